"""Changes of one table as steps of its rows, and what the steps of each row come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from changeglot import kernel
from changeglot.apply import types
from changeglot.apply.order import ORDER
from changeglot.model import Op

#: Names of the columns of what a row comes to, beside the table's own.
GONE, SINCE, CARRIED = "__gone", "__since", "__carried"


# A merge has no name for its target: what is given bears a mark before its names, and names without are the target's.
_GIVEN = "__s_"


def given(rows: DataFrame) -> DataFrame:
    """The rows as the source of a merge."""
    return rows.select(*(F.col(_quoted(name)).alias(_GIVEN + name) for name in rows.columns))


def s(name: str) -> Column:
    """In a merge: the column of what is given."""
    return F.col(_quoted(_GIVEN + name))


def t(name: str) -> Column:
    """In a merge: the column of the target."""
    return F.col(_quoted(name))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def key_problem(key: Sequence[str]) -> Column:
    """STRING: why a row change has no place in a table with this key; NULL if it has."""
    names = F.array(*map(F.lit, key))
    found = F.map_keys(F.col("key"))
    same = (F.size(found) == len(key)) & (F.size(F.array_except(found, names)) == 0)
    return (
        F.when(F.col("key").isNull(), F.lit("no key, which the table needs"))
        .when(
            ~same,
            F.concat(F.lit("its key is "), F.array_join(found, ", "), F.lit(f", the table's is {', '.join(key)}")),
        )
        .when(F.exists(F.map_values("key"), lambda each: each.isNull()), F.lit("NULL in its key"))
    )


def steps(changes: DataFrame, key: Sequence[str]) -> DataFrame:
    """DataFrame<key ARRAY<STRING>, order, gone BOOLEAN, values MAP>; a change of a key ends one row and begins another.

    `changes` are row changes with ORDER beside a change's fields, and no key_problem.
    """
    names = F.array(*map(F.lit, key))
    old = F.transform(names, lambda name: F.col("key")[name])
    # What is known of the row before belongs to the row under its new key too.
    values = F.when(F.col("op") == Op.UPDATE, F.col("after")).when(F.col("op") == Op.INSERT, F.col("after"))
    new = F.transform(names, lambda name: F.coalesce(F.col("after")[name], F.col("key")[name]))
    moved = (F.col("op") == Op.UPDATE) & (new != old)
    whole = kernel.overlay(F.col("before"), F.col("after"))
    end = F.struct(old.alias("key"), F.lit(True).alias("gone"), F.lit(None).cast("map<string,string>").alias("values"))
    begin = F.struct(
        new.alias("key"), F.lit(False).alias("gone"), F.when(moved, whole).otherwise(values).alias("values")
    )
    each = F.when(F.col("op") == Op.DELETE, F.array(end)).when(moved, F.array(end, begin)).otherwise(F.array(begin))
    return changes.select(F.col(ORDER).alias("order"), F.explode(each).alias("step")).select("order", "step.*")


def folded(steps: DataFrame, key: Sequence[str], columns: Mapping[str, str]) -> DataFrame:
    """A row for each key, in the table's columns and types, with ORDER, GONE, SINCE and CARRIED, the names it has."""
    last = kernel.fold(F.col("order"), F.col("gone"), F.col("values"))
    each = steps.groupBy("key").agg(last.alias("row")).select("key", "row.*")
    text = {name: F.col("values")[name] for name in columns}
    for n, name in enumerate(key):
        text[name] = F.coalesce(text[name], F.get("key", n))
    return each.select(
        *(types.value(text[name], kind).alias(name) for name, kind in columns.items()),
        F.col("order").alias(ORDER),
        F.col("gone").alias(GONE),
        F.col("since").alias(SINCE),
        F.coalesce(F.map_keys("values"), F.array().cast("array<string>")).alias(CARRIED),
    )


def value_problem(columns: Mapping[str, str]) -> Column:
    """STRING: which value of the change is none of its column's type; NULL if all are."""
    found: Column = F.lit(None).cast("string")
    for name, kind in columns.items():
        for image in ("key", "after"):
            bad = types.wrong(F.col(image)[name], kind)
            found = F.when(bad, F.lit(f"{name}: no {kind}")).otherwise(found)
    return found
