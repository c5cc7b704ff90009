"""The change: the one meaning that all formats share, and the message that carries it."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

TEXT: Final = T.StringType()
IMAGE_TYPE: Final = T.MapType(TEXT, TEXT, True)


class Op:
    """What a change does."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    TRUNCATE = "truncate"
    DDL = "ddl"
    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    HEARTBEAT = "heartbeat"
    UP_TO_DATE = "up-to-date"
    MUST_REFETCH = "must-refetch"
    SNAPSHOT_END = "snapshot-end"

    ROWS: Final = (INSERT, UPDATE, DELETE)


class Phase:
    """Where a change comes from: a read of the whole table, or the log."""

    SNAPSHOT = "snapshot"
    STREAM = "stream"


def _struct(**fields: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, kind, True) for name, kind in fields.items()])


COLUMN: Final = _struct(name=TEXT, type=TEXT, jdbc=T.IntegerType(), nullable=T.BooleanType(), json=TEXT)
COLUMNS: Final = T.ArrayType(COLUMN, True)
POSITION: Final = T.ArrayType(T.DecimalType(20, 0), True)

CHANGE: Final = _struct(
    op=TEXT,
    phase=TEXT,
    relation=_struct(tenant=TEXT, database=TEXT, schema=TEXT, table=TEXT),
    key=IMAGE_TYPE,
    before=IMAGE_TYPE,
    after=IMAGE_TYPE,
    columns=COLUMNS,
    position=POSITION,
    transaction=_struct(ids=T.ArrayType(TEXT, True), order=T.LongType(), last=T.BooleanType()),
    committed_at=T.TimestampType(),
    committed_nanos=T.IntegerType(),
    produced_at=T.TimestampType(),
    origin=_struct(kind=TEXT, version=TEXT, name=TEXT),
    statement=TEXT,
    extra=IMAGE_TYPE,
)

#: What decoding says of a message beside the change: its format, which of its changes this is, what is wrong,
#: and then the message itself.
VERDICT: Final = _struct(
    format=TEXT,
    ordinal=T.IntegerType(),
    problem=TEXT,
    raw=_struct(key=T.BinaryType(), value=T.BinaryType()),
)

MESSAGE: Final = _struct(key=T.BinaryType(), value=T.BinaryType())

#: A change's fields by name.
Change = dict[str, Column]


def change(**fields: Column) -> Change:
    """Every field of CHANGE in its type; those not given are NULL. A misspelt name fails at once."""
    unknown = fields.keys() - set(CHANGE.fieldNames())
    if unknown:
        raise TypeError(f"no such field of a change: {', '.join(sorted(unknown))}")
    empty = {f.name: group(f.name) for f in CHANGE.fields if isinstance(f.dataType, T.StructType)}
    return {f.name: fields.get(f.name, empty.get(f.name, F.lit(None))).cast(f.dataType) for f in CHANGE.fields}


def group(name: str, /, **parts: Column) -> Column:
    """The STRUCT field `name` of CHANGE, never NULL itself; parts not given are."""
    kind = CHANGE[name].dataType
    assert isinstance(kind, T.StructType)
    unknown = parts.keys() - set(kind.fieldNames())
    if unknown:
        raise TypeError(f"no such part of {name}: {', '.join(sorted(unknown))}")
    return F.struct(*(parts.get(f.name, F.lit(None)).cast(f.dataType).alias(f.name) for f in kind.fields))
