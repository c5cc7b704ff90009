"""Up to where a source's log is applied: a table beside the others, a line for each batch."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from changeglot.sinks.base import LakeSink, Mark
from changeglot.sources.base import Reached

TABLE = ("changeglot", "positions")
#: `numbers` compares with the positions of changes.
_COLUMNS = {
    "pipeline": "string",
    "position": "string",
    "numbers": "array<decimal(20,0)>",
    "batch": "bigint",
    "at": "timestamp",
}


def publish(spark: SparkSession, sink: LakeSink, pipeline: str, reached: Reached, mark: Mark) -> None:
    """Tells readers of the sink that all its tables have all up to there. A second time it changes nothing."""
    table = sink.identifier(*TABLE)
    line = {
        "pipeline": F.lit(pipeline),
        "position": F.lit(reached.text),
        "numbers": F.array(*(F.lit(str(number)) for number in reached.numbers)),
        "batch": F.lit(mark.batch),
        "at": F.current_timestamp(),
    }
    sink.create(spark, table, _COLUMNS)
    made = spark.range(1, numPartitions=1).select(
        *(line[name].cast(kind).alias(name) for name, kind in _COLUMNS.items())
    )
    sink.append(made, table, mark.of("position"))
