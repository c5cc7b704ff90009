"""The functions of the Java kernel as expressions, and how a session comes to know them.

The kernel (`java/io/changeglot/kernel`) reads and writes JSON exactly and works on row images. It knows no format.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from changeglot.errors import MissingError

JAR = Path(__file__).parent / "changeglot-kernel.jar"
CATALOG = "changeglot"

#: Types of the shape language; see Shape.java.
IMAGE = "STRUCT<values: MAP<STRING, STRING>, kinds: STRING>"
KIND = "STRUCT<kind: STRING>"
VALUE = "STRUCT<kind: STRING, text: STRING>"
#: What is known of a row's columns.
COLUMNS = "ARRAY<STRUCT<name: STRING, type: STRING, jdbc: INT, nullable: BOOLEAN, json: STRING>>"


def settings() -> dict[str, str]:
    """What a new session's configuration must hold."""
    return {
        f"spark.sql.catalog.{CATALOG}": "io.changeglot.kernel.Kernel",
        "spark.jars": str(_jar()),
    }


def prepare(spark: SparkSession) -> None:
    """Makes the kernel known to a session that is already there; does nothing the second time."""
    name = f"spark.sql.catalog.{CATALOG}"
    if spark.conf.get(name, None) is None:
        spark.sql(f"ADD JAR '{_jar()}'").collect()
        spark.conf.set(name, settings()[name])


def _jar() -> Path:
    if not JAR.exists():
        raise MissingError("the kernel is not built", hint="In a source checkout, run `make kernel` once.")
    return JAR


def _call(name: str, *arguments: Column) -> Column:
    # In one struct: see Bound in Kernel.java.
    return F.call_function(f"{CATALOG}.{name}", F.struct(*arguments))


def table(words: Mapping[str, str]) -> Column:
    """A constant table of words, as one text: a literal is cheap to plan with, a map of hundreds is not."""
    return F.lit("\n".join(f"{word}\t{meaning}" for word, meaning in words.items()))


def read(message: Column, shape: str) -> Column:
    """STRUCT of problem and the shape's fields; all of them NULL where problem is not."""
    return _call("read", message, F.lit(None).cast(T.DataType.fromDDL(f"STRUCT<{shape}>")))


def write(value: Column) -> Column:
    """BINARY: the struct as JSON."""
    return _call("write", value)


def quote(text: Column) -> Column:
    """BINARY: the STRING as a JSON string."""
    return _call("quote", text)


def murmur2(content: Column) -> Column:
    """INT: the hash of a BINARY by which clients of Kafka choose a partition."""
    return _call("murmur2", content)


def sortable(numbers: Column) -> Column:
    """STRING of an ARRAY<DECIMAL(20, 0)>: sorts as the numbers do, which are not negative."""
    return _call("sortable", numbers)


def canonical(image: Column, columns: Column, rules: Mapping[str, str]) -> Column:
    """STRUCT<values, problem>: an image that was read, in canonical text, by the rule for each column's type."""
    return _call("canonical", image, columns, table(rules))


def spelled(values: Column, columns: Column, rules: Mapping[str, str]) -> Column:
    """IMAGE to write, of canonical values, by the rule for each column's type."""
    return _call("spelled", values, columns, table(rules))


def overlay(base: Column, over: Column) -> Column:
    """Both MAPs, or both IMAGEs, as one: what `over` has stands above. NULL counts as empty."""
    return _call("overlay", base, over)


def pick(first: Column, second: Column, names: Column) -> Column:
    """MAP of the named values, of `first` where it has them, else of `second`; NULL if one is in neither."""
    return _call("pick", first, second, names)


def differ(base: Column, other: Column) -> Column:
    """MAP: what `other` has that `base` has not, or has otherwise."""
    return _call("differ", base, other)


def covers(image: Column, other: Column) -> Column:
    """BOOLEAN, never NULL: has the image every name that the other has? Without an image, no."""
    return _call("covers", image, other)


def zipped(names: Column, values: Column) -> Column:
    """MAP of two arrays; NULL if they are not as many, or a name comes twice."""
    return _call("zip", names, values)


def fields(line: Column, columns: Column, skip: Column) -> Column:
    """IMAGE of as many texts between tabs as there are COLUMNS, after `skip`; NULL if fewer. See Fields.java."""
    return _call("fields", line, columns, skip)


def note(values: Column, notes: Mapping[str, Column]) -> Column:
    """MAP: the values with each text that is not NULL laid on them under its name."""
    texts = F.array(*(text.cast("string") for text in notes.values()))
    return _call("note", values, F.array(*map(F.lit, notes)), texts)


def leading(numbers: Column) -> Column:
    """ARRAY<DECIMAL>: the numbers before the first NULL; NULL if there is none."""
    return _call("leading", numbers)


def merge(first: Column, second: Column) -> Column:
    """COLUMNS of both by name, each fact from the first that knows it."""
    return _call("merge", first, second)


def typed(columns: Column, types: Mapping[str, str], codes: Mapping[str, str], keys: Column) -> Column:
    """COLUMNS with the types of one table, the JDBC codes of another, nullable unless among the keys."""
    return _call("typed", columns, table(types), table(codes), keys)


def completed(columns: Column | None, first: Column, second: Column) -> Column:
    """COLUMNS; where they have no type, what two IMAGEs tell of them: their names, and the JSON kinds of the values."""
    known = F.lit(None).cast(COLUMNS) if columns is None else columns
    return _call("completed", known, first, second)


def only(columns: Column, names: Column) -> Column:
    """COLUMNS of those names, in their order."""
    return _call("only", columns, names)


def facts(columns: Column, *names: str) -> Column:
    """COLUMNS with the named facts alone; `type!` leaves out columns without a type."""
    return _call("facts", columns, F.array(*map(F.lit, names)))


def listed(columns: Column) -> Column:
    """STRING: the COLUMNS as a JSON array, each an object of what is known of it. The same ones are written once."""
    return _call("listed", columns)


def prefixed(values: Column, *prefixes: str) -> Column:
    """MAP of the values whose names begin with one of the prefixes; NULL if none does."""
    return _call("prefixed", values, F.array(*map(F.lit, prefixes)))


def joined(texts: Column, *, quote: str, separator: str, escaped: str, escape: str, null: str) -> Column:
    """STRING: the texts in quotes, joined, `escaped` in them replaced by `escape`; `null` for a NULL."""
    return _call("joined", texts, F.array(*map(F.lit, (quote, separator, escaped, escape, null))))


def unlike(first: Column, second: Column) -> Column:
    """ARRAY<STRING>: the names of the fields in which two STRUCTs of one type differ; of nothing but NULL is NULL."""
    return _call("unlike", first, second)


def fold(steps: Column) -> Column:
    """STRUCT<order, gone, since, whole, values, orders>: what an ARRAY of steps of one row comes to; see Steps.java."""
    return _call("fold", steps)


def versions(steps: Column, stored: Column, tracked: Column) -> Column:
    """ARRAY<STRUCT<start, end, start_at, end_at, values, base, steps>>: versions that steps change; see Steps.java."""
    return _call("versions", steps, stored, tracked)
