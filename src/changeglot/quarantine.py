"""Where bad messages go: JSON lines that say why, where from, and hold the bytes as they came."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLACES, KINDS = 3, 20
RECORD = "problem STRING, file STRING, line BIGINT"


@dataclass(frozen=True)
class Reason:
    """A problem, how many changes or messages had it, and the first places, as `file:line`."""

    problem: str
    count: int
    places: tuple[str, ...]


def records(changes: DataFrame, *, raw: bool) -> DataFrame:
    """DataFrame<record STRING>: of each row with a problem, one line of JSON, in order.

    Members `problem`, `format`, `file`, `line`; with `raw` also `key` and `value` in Base64 and
    `text`, the value itself, where it is valid UTF-8. What is NULL is left out.
    """
    from pyspark.sql import functions as F

    named = [name for name in ("problem", "format", "file", "line") if name in changes.columns]
    fields = [F.col(name) for name in named]
    if raw:
        text = F.col("raw.value").cast("STRING")
        fields += [
            # Spark's Base64 comes in lines of 76 characters.
            *(F.translate(F.base64(f"raw.{name}"), "\r\n", "").alias(name) for name in ("key", "value")),
            F.when(F.is_valid_utf8(text), text).alias("text"),
        ]
    bad = changes.where(F.col("problem").isNotNull())
    return bad.select(F.to_json(F.struct(*fields)).alias("record"))


def reasons(spark: SparkSession, folder: Path) -> list[Reason]:
    """The problems of the records in the folder, the most frequent first; of many kinds only so many.

    Where in a message it stops to be JSON differs from one to the next: that is one kind of problem.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    kind = F.regexp_replace("problem", "at byte [0-9]+", "at byte ...").alias("kind")
    found = spark.read.schema(RECORD).json(str(folder)).select("*", kind)
    first = Window.partitionBy("kind").orderBy("file", "line")
    counts = found.groupBy("kind").agg(F.count(F.lit(1)).alias("count"), *(f("problem") for f in (F.min, F.max)))
    places = (
        found.withColumn("place", F.row_number().over(first))
        .where(F.col("place") <= PLACES)
        .groupBy("kind")
        .agg(F.sort_array(F.collect_list(F.struct("place", "file", "line"))).alias("places"))
    )
    most = counts.orderBy(F.desc("count"), "kind").limit(KINDS)
    ordered = most.join(places, "kind").orderBy(F.desc("count"), "kind")
    return [
        Reason(
            row["min(problem)"] if row["min(problem)"] == row["max(problem)"] else row["kind"],
            row["count"],
            tuple(f"{place['file']}:{place['line']}" for place in row["places"]),
        )
        for row in ordered.collect()
    ]
