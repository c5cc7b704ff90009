"""Up to where a source's log is applied: a table beside the others, a line for each batch."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from changeglot.columns import varying
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
        "batch": varying(mark.batch),
        "at": F.current_timestamp(),
    }
    sink.create(spark, table, _COLUMNS)
    said = (F.col("pipeline") == pipeline) & (F.col("position") == reached.text) & (F.col("batch") == mark.batch)
    if mark.replayed and not spark.table(table).where(said).isEmpty():
        return
    # Without a mark: for that Delta would read all of the table's log, with every batch.
    made = spark.range(1, numPartitions=1).select(
        *(line[name].cast(kind).alias(name) for name, kind in _COLUMNS.items())
    )
    sink.append(made, table, None)
