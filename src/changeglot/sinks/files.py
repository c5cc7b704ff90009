"""Messages into files: a line each, a folder for each topic and batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from changeglot import kernel
from changeglot.options import option
from changeglot.sinks.messages import LANE, SENT, TOPIC, Lanes, MessageSink

_BATCH, _NUMBER = "batch", "number"


@dataclass(frozen=True, kw_only=True)
class Files(MessageSink):
    """Exactly once: a batch that is written again replaces what was written of it.

    `PATH/topic=shop/batch=WRITER-000000000042/part-...`: the folders of a writer sort as its batches do, and a file has
    the messages of one lane in order.
    """

    name: ClassVar[str] = "files"
    unfit: ClassVar[str] = r"[^A-Za-z0-9._-]"

    path: str = option("a folder", example="/data/out")
    keys: bool = option('lines of {"key": ..., "value": ...}, else of the value alone', False)

    def check(self, spark: SparkSession) -> None:
        """Spark itself says what cannot be written."""

    @property
    def at(self) -> str:
        return self.path

    def lanes(self, spark: SparkSession, topics: Collection[str], known: Mapping[str, Lanes]) -> dict[str, Lanes]:
        return dict.fromkeys(topics, tuple(map(str, range(self.partitions or 1))))

    def send(self, messages: DataFrame) -> None:
        kernel.prepare(messages.sparkSession)
        words = F.split(SENT, " ", 3)
        # What nobody numbers, a heartbeat, is a batch of its own.
        writer = F.coalesce(F.substring(F.sha2(words[2], 256), 1, 8), F.lit("unnumbered"))
        batch = F.coalesce(words[0].cast("bigint"), F.unix_micros(F.current_timestamp()))
        line = kernel.write(F.struct("key", "value")) if self.keys else F.col("value")
        lines = messages.select(
            TOPIC,
            F.concat(writer, F.lit("-"), F.format_string("%012d", batch)).alias(_BATCH),
            LANE,
            words[1].cast("bigint").alias(_NUMBER),
            line.cast("string").alias("value"),
        ).where("value IS NOT NULL")
        # By the folders first: Spark would sort by them, and what lies in order in a lane might not any more.
        laid = lines.repartition(TOPIC, LANE).sortWithinPartitions(TOPIC, _BATCH, LANE, _NUMBER)
        out = laid.select(TOPIC, _BATCH, "value").write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
        out.option("lineSep", "\n").partitionBy(TOPIC, _BATCH).text(self.path)
