"""The quarantine of a pipeline: a table of the changes that have no place in the others, with bytes and reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from changeglot.apply.order import ORDER
from changeglot.apply.rows import given, s, sets, settled, t
from changeglot.apply.tidings import table_name
from changeglot.columns import varying
from changeglot.options import option
from changeglot.sinks.base import LakeSink, Mark
from changeglot.sources.base import MESSAGE, PLACE

TABLE = ("changeglot", "quarantine")
#: `row`: the values of the key. `replay`: set while the message is on its way again.
COLUMNS = {
    "id": "string",
    "pipeline": "string",
    "table": "string",
    "row": "array<string>",
    "order": "string",
    "place": "string",
    "problem": "string",
    "format": "string",
    "key": "binary",
    "value": "binary",
    "batch": "bigint",
    "at": "timestamp",
    "replay": "string",
}


@dataclass(frozen=True)
class Quarantine:
    """What becomes of changes that have no place in their tables."""

    #: What is asked of the changes that are kept.
    wants: ClassVar[tuple[str, ...]] = ("relation", "key", ORDER, PLACE, "ordinal", "problem", "format", MESSAGE)

    on_key_error: Literal["continue", "hold"] = option(
        "later changes of a row go on, or wait behind a bad one", "continue"
    )

    def held(
        self, changes: DataFrame, sink: LakeSink, pipeline: str, table: str | None, replay: str | None = None
    ) -> DataFrame:
        """The changes, all of the table if one is named; a problem more for those behind a bad one of the same row.

        It may be here or in the quarantine. What is on its way again by `replay` holds nothing up.
        """
        if self.on_key_error != "hold":
            return changes
        spark, quarantine = changes.sparkSession, sink.identifier(*TABLE)
        first = F.min(F.when(F.col("problem").isNotNull(), F.col(ORDER))).over(Window.partitionBy("__table", "__row"))
        marked = changes.withColumns({"__row": _row(), "__table": table_name()}).withColumn("__first", first)
        if sink.exists(spark, quarantine):
            mine = (F.col("pipeline") == pipeline) & F.col("row").isNotNull()
            mine = mine & (F.col("table") == table) if table else mine
            mine = mine & ~F.col("replay").eqNullSafe(F.lit(replay)) if replay else mine
            kept = spark.table(quarantine).where(mine).groupBy("table", "row").agg(F.min("order").alias("__held"))
            same = (F.col("__table") == F.col("table")) & (F.col("__row") == F.col("row"))
            marked = marked.join(F.broadcast(kept), same, "left").drop("table", "row")
        else:
            marked = marked.withColumn("__held", F.lit(None).cast("string"))
        behind = F.least("__first", "__held")
        waits = F.when(F.col(ORDER) > behind, F.lit("waits behind a bad change of the same row"))
        return marked.withColumn("problem", F.coalesce("problem", waits)).select(*changes.columns)

    def keep(self, bad: DataFrame, sink: LakeSink, pipeline: str, mark: Mark, name: Column) -> int:
        """How many; each of them is in the table once, however often it comes. `name`: of the change's table."""
        place = F.concat_ws(".", F.col(PLACE), F.col("ordinal").cast("string"))
        kept = {
            "id": F.substring(F.sha2(F.concat_ws(" ", F.lit(pipeline), place), 256), 1, 16),
            "pipeline": F.lit(pipeline),
            "table": F.when(F.col("relation.table").isNotNull(), name),
            "row": _row(),
            "order": F.col(ORDER),
            "place": F.col(PLACE),
            "problem": F.col("problem"),
            "format": F.col("format"),
            "key": F.col(f"{MESSAGE}.key"),
            "value": F.col(f"{MESSAGE}.value"),
            "batch": varying(mark.batch),
            "at": F.current_timestamp(),
            "replay": F.lit(None).cast("string"),
        }
        rows = bad.select(*(column.alias(name) for name, column in kept.items())).dropDuplicates(["id"])
        rows = settled(rows)
        count = rows.count()
        if count:
            spark, table = bad.sparkSession, sink.identifier(*TABLE)
            sink.create(spark, table, COLUMNS)
            put = {name: s(name) for name in kept}
            known = given(rows).mergeInto(table, s("id") == t("id")).whenMatched().update(sets(put))
            # Several sinks of a pipeline may share the table: each has a mark of its own.
            step = mark.of("quarantine", pipeline)
            sink.once(spark, table, step, known.whenNotMatched().insert(sets(put)).merge)
        return count


def _row() -> Column:
    """ARRAY<STRING>: the values of the key, by the order of their names."""
    return F.transform(F.array_sort(F.map_keys("key")), lambda name: F.col("key")[name])


def kept(spark: SparkSession, sink: LakeSink, pipeline: str) -> DataFrame | None:
    """What the quarantine holds of a pipeline; None if it was never used."""
    table = sink.identifier(*TABLE)
    return spark.table(table).where(F.col("pipeline") == pipeline) if sink.exists(spark, table) else None


def release(rows: DataFrame, sink: LakeSink, replay: str) -> DataFrame:
    """Says that the quarantined rows are on their way again; gives them as they are stored now."""
    table = sink.identifier(*TABLE)
    chosen = given(rows.select("id")).mergeInto(table, s("id") == t("id"))
    chosen.whenMatched().update({"replay": F.lit(replay)}).merge()
    return rows.sparkSession.table(table).where(F.col("replay") == replay)


def forget(rows: DataFrame, sink: LakeSink) -> None:
    """Takes the rows out of the quarantine."""
    given(rows.select("id")).mergeInto(sink.identifier(*TABLE), s("id") == t("id")).whenMatched().delete().merge()
