"""Messages of Kafka's topics, through Spark's own connector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from changeglot import kafka
from changeglot.apply.order import place
from changeglot.errors import ConfigError
from changeglot.options import option, words
from changeglot.sources.base import LANE, PLACE, SENT, MessageSource

#: Of a task, which reads one partition, Kafka's client asks for more only when it has handed out all that came. So much
#: comes at a time, and all of it is handed out at once: the next comes while the task works, and waits in the system's
#: buffer, as large as that makes it. At the end nothing comes, and whatever else Spark asks the broker for has to wait
#: as long as the broker does.
_AT_A_TIME = {
    "max.partition.fetch.bytes": str(8 << 20),
    "fetch.max.bytes": str(64 << 20),
    "max.poll.records": str(20_000),
    "receive.buffer.bytes": "-1",
    "fetch.max.wait.ms": "5",
}


@dataclass(frozen=True)
class Kafka(MessageSource):
    """The messages of each partition in order. Those of transactions that were aborted are not read."""

    name: ClassVar[str] = "kafka"
    marked: ClassVar[bool] = True

    servers: str = option("brokers to ask first, with commas", example="localhost:9092")
    topics: tuple[str, ...] = option("topics by their names", ())
    pattern: str = option(
        "or topics by a regular expression; new ones are found while it runs", "", example="shop[.].*"
    )
    start: str = option("where a new pipeline begins: earliest, latest, or Spark's JSON of offsets", "earliest")
    max_per_batch: int = option("messages a batch takes at most; 0: all that there are", 1_000_000)
    fail_on_data_loss: bool = option("stop when messages are gone that were not read, or a topic is", True)
    kafka: Mapping[str, str] = words("further settings of the client, as Kafka names them; not shown", shown=False)

    def __post_init__(self) -> None:
        if bool(self.topics) == bool(self.pattern):
            raise ConfigError("source.topics", "wants topics, or a pattern", hint="topics: [orders]")

    @property
    def _client(self) -> dict[str, str]:
        return kafka.client(self.servers, {"isolation.level": "read_committed", **_AT_A_TIME, **self.kafka})

    @property
    def _options(self) -> dict[str, str]:
        chosen = {"subscribe": ",".join(self.topics)} if self.topics else {"subscribePattern": self.pattern}
        return {
            **kafka.options(self.servers, self._client),
            **chosen,
            "startingOffsets": self.start,
            "failOnDataLoss": str(self.fail_on_data_loss).lower(),
            "includeHeaders": "true",
        }

    def session_settings(self) -> dict[str, str]:
        return kafka.session_settings()

    def check(self, spark: SparkSession) -> None:
        with kafka.admin(spark, self._client, "source.servers") as admin:
            missing = set(self.topics) - kafka.lanes(spark, admin, self.topics).keys()
        if missing:
            raise ConfigError("source.topics", f"{self.servers} has no topic {', '.join(sorted(missing))}")

    def messages(self, spark: SparkSession) -> DataFrame:
        reader = spark.readStream.format("kafka").options(**self._options)
        if self.max_per_batch:
            reader = reader.option("maxOffsetsPerTrigger", str(self.max_per_batch))
        return reader.load()

    def sample(self, spark: SparkSession) -> DataFrame:
        offsets = {"startingOffsets": "earliest" if self.start == "latest" else self.start}
        return spark.read.format("kafka").options(**{**self._options, **offsets}).load()

    def placed(self, batch: DataFrame) -> DataFrame:
        # An array of two fields each, NULL if there are none.
        mine = F.array_position("headers.key", kafka.HEADER)
        return batch.select(
            "key",
            "value",
            F.concat_ws(" ", "topic", place(F.col("partition"), F.col("offset"))).alias(PLACE),
            F.concat_ws(" ", "topic", F.col("partition").cast("string")).alias(LANE),
            F.when(mine > 0, F.element_at("headers", mine.cast("int"))["value"]).cast("string").alias(SENT),
        )
