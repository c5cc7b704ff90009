"""The change log: every change once, in total order."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from changeglot import kernel
from changeglot.apply.order import ORDER
from changeglot.apply.rows import given, s, settled, t
from changeglot.columns import varying
from changeglot.model import CHANGE

#: What a change is known by when it comes a second time: its place in the source's log, else in the transport.
IDENTITY, BATCH = "__identity", "__batch"
#: What a log is searched by.
SEARCHED = ("committed_at", ORDER, IDENTITY, BATCH)
_VARIED = (
    *(f"{image}.key_value.value" for image in ("key", "before", "after", "extra")),
    *("position.list.element", "transaction.ids.list.element", "committed_at", "produced_at", ORDER, IDENTITY),
)
#: What Parquet is told of a log: these are seldom alike, and are not looked up among those before.
PARQUET = {f"parquet.enable.dictionary#{path}": "false" for path in _VARIED}


def columns() -> dict[str, str]:
    """The log's columns: a change's fields, its order and identity, and the batch that brought it.

    What the source declared is one text, the same in most lines of a table: a list takes Parquet nearly as long as all
    values do.
    """
    fields = {field.name: field.dataType.simpleString() for field in CHANGE.fields}
    return {**fields, "columns": "string", ORDER: "string", IDENTITY: "string", BATCH: "bigint"}


def entries(changes: DataFrame, *others: str) -> DataFrame:
    """The changes as lines of the log, of no batch yet; `others`: columns that are kept beside."""
    changes = changes.withColumn("columns", kernel.listed(F.col("columns")))
    source = F.concat_ws(" ", F.slice(F.split(ORDER, " "), 1, 3), F.col("op"), F.to_json(F.col("key")))
    identity = F.when(F.col("position").isNotNull(), source).otherwise(F.col(ORDER))
    return changes.select(*CHANGE.fieldNames(), ORDER, identity.alias(IDENTITY), *others)


def numbered(lines: DataFrame, number: int) -> DataFrame:
    """The lines as those of a batch, with nothing beside them."""
    return lines.select(*CHANGE.fieldNames(), ORDER, IDENTITY, varying(number).alias(BATCH))


def merge(lines: DataFrame, table: str) -> None:
    """The lines added to the log, less those that it has."""
    rows = settled(lines.dropDuplicates([IDENTITY]))
    # The bounds spare reading files of the log that are older than all of it.
    least, greatest = rows.agg(F.min(IDENTITY), F.max(IDENTITY)).collect()[0]
    known = t(IDENTITY).between(F.lit(least), F.lit(greatest)) & (s(IDENTITY) == t(IDENTITY))
    given(rows).mergeInto(table, known).whenNotMatched().insert({name: s(name) for name in rows.columns}).merge()
