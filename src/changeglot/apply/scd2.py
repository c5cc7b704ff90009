"""History: every version of every row, with where it began and ended.

A version keeps the steps that made it, as text. So a change that comes late, between two versions or before the first,
makes of them what they would have been had it come in time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from changeglot import kernel
from changeglot.apply import types
from changeglot.apply.ddl import Amendment, renamed
from changeglot.apply.order import ORDER
from changeglot.apply.rows import STEP, given, s, sets, settled, t, typed, with_ends

#: When a version began and ended by the source's clock, and in the order of changes; NULL: it is the current one.
START_AT, END_AT, ENDED = "__START_AT", "__END_AT", "__end"
#: The steps that made a version, and what the row was after the first of them, where that step does not tell it.
STEPS, BASE = "__steps", "__base"
_VANISHED = "__vanished"
_STORED = f"STRUCT<start: STRING, `end`: STRING, end_at: TIMESTAMP, steps: ARRAY<{STEP}>, base: MAP<STRING, STRING>>"


def columns(of: Mapping[str, str]) -> dict[str, str]:
    """The table's columns: the source's, and a version's own. ORDER is where the version began."""
    own = {START_AT: "timestamp", END_AT: "timestamp", ORDER: "string", ENDED: "string"}
    return {**of, **own, STEPS: f"array<{STEP}>", BASE: "map<string,string>"}


def merge(
    steps: DataFrame,
    ended: DataFrame | None,
    table: str,
    same: Column,
    within: Column,
    key: Sequence[str],
    of: Mapping[str, str],
    tracked: Sequence[str],
    amendments: Sequence[Amendment],
) -> None:
    """The versions that the steps, as `rows.steps` gives them, begin, end or change.

    `within` holds for every row of the table that has one of their keys. Without `tracked` any column begins a version.
    """
    first = steps.groupBy("key").agg(F.min("order").alias("__first"))
    names = F.array(*(types.text(t(name), of[name]) for name in key))
    stored = steps.sparkSession.table(table).where(within).withColumn("key", names).join(F.broadcast(first), "key")
    # What ended before the first of the steps is not touched by them; nor do earlier ends of the row count.
    stored = stored.where(F.coalesce(F.col(ENDED) >= F.col("__first"), F.lit(True)))
    fresh = with_ends(steps, ended)
    if ended is not None:
        fresh = fresh.join(F.broadcast(first), "key").where(F.col("order") >= F.col("__first"))
    # What is stored bears the names that the columns had then.
    base, made = renamed(F.col(BASE), F.col(ORDER), amendments), F.col(STEPS)
    if amendments:
        made = F.transform(made, lambda x: x.withField("values", renamed(x["values"], x["order"], amendments)))
    version = F.struct(F.col(ORDER), F.col(ENDED), F.col(END_AT), made, base).cast(_STORED)
    step = F.struct("order", "kind", "at", "values").cast(STEP)
    both = fresh.select("key", step.alias("step"), F.lit(None).cast(_STORED).alias("version")).unionByName(
        stored.select("key", F.lit(None).cast(STEP).alias("step"), version.alias("version"))
    )
    lists = both.groupBy("key").agg(*(F.collect_list(name).alias(name) for name in ("step", "version")))
    track = F.array(*map(F.lit, tracked)) if tracked else F.lit(None).cast("array<string>")
    found = lists.select("key", F.explode(kernel.versions(F.col("step"), F.col("version"), track)).alias("v"))
    rows = found.select("key", "v.*").select(
        *(value.alias(name) for name, value in typed(F.col("values"), key, of).items()),
        F.col("start").alias(ORDER),
        F.col("end").alias(ENDED),
        F.col("start_at").alias(START_AT),
        F.col("end_at").alias(END_AT),
        F.col("steps").alias(STEPS),
        F.col("base").alias(BASE),
        F.col("steps").isNull().alias(_VANISHED),
    )
    put = sets({name: s(name) for name in columns(of)})
    writer = given(settled(rows)).mergeInto(table, same & (s(ORDER) == t(ORDER))).whenMatched(s(_VANISHED)).delete()
    writer.whenMatched().update(put).whenNotMatched(~s(_VANISHED)).insert(put).merge()
