"""The type of a table's column, by what the source declared; and its values, from canonical text.

| declared | in the table |
|---|---|
| tinyint, smallint | SMALLINT; unsigned: INT |
| mediumint, int, year | INT; unsigned int: BIGINT |
| bigint, and int8, which is PostgreSQL's | BIGINT; unsigned: DECIMAL(20,0) |
| decimal(p,s), numeric, number, money | DECIMAL(p,s) up to 38 digits; more, or no precision: STRING |
| real, float4, float32 | FLOAT |
| float, double | DOUBLE |
| boolean | BOOLEAN |
| binary, blob, bytea, bit | BINARY |
| date | DATE |
| datetime, timestamp without time zone | TIMESTAMP_NTZ; finer than microseconds: STRING |
| timestamp, timestamptz, datetimeoffset | TIMESTAMP; finer than microseconds: STRING |
| time, json, enum, set, interval, text, an array, anything else, nothing | STRING |

A zero date (`0000-00-00`) has no place in a DATE or TIMESTAMP and becomes NULL. Any other text that is no value of its
column's type is a problem of the change: nothing is bent to fit.
"""

from __future__ import annotations

import re
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from changeglot.values import FAMILY, JDBC

TEXT: Final = "string"
_WIDTHS: Final = {
    "tinyint": "smallint", "int1": "smallint", "byte": "smallint", "uint8": "smallint", "smallint": "smallint",
    "int2": "smallint", "int16": "smallint", "short": "smallint", "smallserial": "smallint", "uint16": "int",
    "uint32": "bigint", "uint64": "decimal(20,0)", "mediumint": "int", "int": "int", "integer": "int", "int3": "int",
    "int4": "int", "int32": "int", "serial": "int", "year": "int", "real": "float", "float4": "float",
    "float32": "float", "binary_float": "float", "money": "decimal(19,4)", "smallmoney": "decimal(10,4)",
}  # fmt: skip
_UNSIGNED: Final = {"smallint": "int", "int": "bigint", "bigint": "decimal(20,0)"}
_FAMILIES: Final = {
    "integer": "bigint",
    "float": "double",
    "boolean": "boolean",
    "binary": "binary",
    "bit": "binary",
    "date": "date",
    "datetime": "timestamp_ntz",
    "timestamp": "timestamp",
    "zoned": "timestamp",
}
_WORDS: Final = {code: word for word, code in JDBC.items()}
_DECLARED: Final = re.compile(r"\s*([^(]*)(?:\(([^)]*)\))?(.*)", re.DOTALL)
ZERO_DATE: Final = r"^0000-00-00"


def column_type(declared: str | None, jdbc: int | None = None) -> str:
    """Spark's type, as DDL, of a column that was declared so; STRING where that is not known.

    >>> column_type("BIGINT(20) UNSIGNED"), column_type("decimal(12,2)"), column_type("decimal(65,30)")
    ('decimal(20,0)', 'decimal(12,2)', 'string')
    >>> column_type("timestamp(9)"), column_type(None, 93), column_type("timestamp without time zone")
    ('string', 'timestamp', 'timestamp_ntz')
    >>> column_type("integer[]"), column_type("timestamp(3) with time zone[]")
    ('string', 'string')
    """
    if declared is None:
        declared = _WORDS.get(jdbc, "") if jdbc is not None else ""
    match = _DECLARED.fullmatch(declared)
    assert match is not None
    name = " ".join(f"{match[1]} {match[3]}".lower().split())
    if name.endswith("[]"):
        return TEXT
    numbers = [int(part) for part in (match[2] or "").split(",") if part.strip().lstrip("-").isdigit()]
    first = name.split(" ")[0] if name else ""
    family = FAMILY.get(name) or FAMILY.get(first)
    if family == "decimal" and first not in _WIDTHS:
        return _decimal(numbers)
    if family in ("datetime", "timestamp", "zoned") and numbers and numbers[0] > 6:
        return TEXT
    found = _WIDTHS.get(first) or _FAMILIES.get(family or "", TEXT)
    return _UNSIGNED.get(found, found) if "unsigned" in name else found


def loss(declared: str) -> str | None:
    """What a column of the type does not keep as the source has it.

    >>> loss("decimal(65,30)"), loss("datetime"), loss("int")
    ('is text: no decimal of Spark has more than 38 digits', 'a zero date becomes NULL', None)
    """
    kind = column_type(declared)
    word = declared.lower().split("(")[0].split(" ")[0]
    family = FAMILY.get(word)
    if family == "decimal" and kind == TEXT:
        return "is text: no decimal of Spark has more than 38 digits"
    if family in ("datetime", "timestamp", "zoned") and kind == TEXT:
        return "is text: Spark's times stop at the microsecond"
    return "a zero date becomes NULL" if kind in ("date", "timestamp_ntz", "timestamp") else None


def _decimal(numbers: list[int]) -> str:
    precision, scale = (*numbers, 0, 0)[:2]
    if not 0 < precision <= 38 or not 0 <= scale <= precision:
        return TEXT
    return f"decimal({precision},{scale})"


def value(text: Column, kind: str) -> Column:
    """The canonical text as a value of the type; NULL where it is none."""
    if kind == TEXT:
        return text
    if kind == "binary":
        return F.try_to_binary(text, F.lit("base64"))
    if kind.startswith("decimal"):
        # A cast would round what has more digits than the type. No regular expression: this is done for every value.
        scale, point = int(kind.rstrip(")").split(",")[1]), F.instr(text, ".")
        short = (F.length(text) - point <= scale) | (F.length(F.rtrim(text, F.lit("0"))) - point <= scale)
        fits = ((point == 0) | short) & ~text.contains("e") & ~text.contains("E")
        return F.when(fits, text.try_cast(kind))
    return text.try_cast(kind)


def text(value: Column, kind: str) -> Column:
    """The value as text that `value` reads back as the same."""
    if kind == "binary":
        return F.translate(F.base64(value), "\r\n", "")
    return value.cast("string")


def wrong(text: Column, kind: str) -> Column:
    """BOOLEAN, never NULL: is the text no value of the type? A zero date is taken for NULL."""
    if kind == TEXT:
        return F.lit(False)
    bad = text.isNotNull() & value(text, kind).isNull()
    if kind in ("timestamp", "timestamp_ntz"):
        # Finer than a microsecond: a cast would cut it.
        bad = bad | F.coalesce(text.contains(".") & text.rlike(r"\.[0-9]{6}[0-9]*[1-9]"), F.lit(False))
    if kind in ("date", "timestamp", "timestamp_ntz"):
        bad = bad & ~F.coalesce(text.rlike(ZERO_DATE), F.lit(False))
    return bad


def wider(known: str, found: str) -> str | None:
    """The type that holds the values of both; None if only text would.

    >>> wider("int", "bigint"), wider("bigint", "int"), wider("decimal(10,2)", "decimal(12,4)"), wider("int", "date")
    ('bigint', 'bigint', 'decimal(12,4)', None)
    """
    if known == found:
        return known
    integers = ["smallint", "int", "bigint"]
    if known in integers and found in integers:
        return max(known, found, key=integers.index)
    if {known, found} == {"float", "double"}:
        return "double"
    if known.startswith("decimal") and found.startswith("decimal"):
        (p, s), (q, t) = (map(int, kind[8:-1].split(",")) for kind in (known, found))
        scale = max(s, t)
        precision = max(p - s, q - t) + scale
        return f"decimal({precision},{scale})" if precision <= 38 else None
    return None
