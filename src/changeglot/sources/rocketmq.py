"""Messages of RocketMQ's topics, through our own data source."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from changeglot import rocketmq
from changeglot.apply.order import place
from changeglot.options import option
from changeglot.rocketmq.pipes import PROPERTY, Cluster
from changeglot.sources.base import LANE, PLACE, SENT, MessageSource


@dataclass(frozen=True, kw_only=True)
class RocketMQ(Cluster, MessageSource):
    """The messages of each queue in order. Where a pipeline is, is in its checkpoint and not with the broker."""

    name: ClassVar[str] = "rocketmq"
    marked: ClassVar[bool] = True
    bounded: ClassVar[bool] = False

    topics: tuple[str, ...] = option("topics by their names", example="[orders]")
    start: str = option("where a new pipeline begins: earliest, latest, or JSON of offsets", "earliest")
    fail_on_data_loss: bool = option("stop when messages are gone that were not read", True)
    group: str = option("the consumer group that RocketMQ's tools show the progress of", "")
    ends: bool = field(default=False, repr=False)
    stood: str = field(default="", repr=False)

    def going_on(self, offsets: str) -> Self:
        return replace(self, stood=offsets)

    def ending(self) -> Self:
        return replace(self, ends=True)

    @property
    def _options(self) -> dict[str, str]:
        return {
            **self.cluster,
            "topics": ",".join(self.topics),
            "startingOffsets": self.start,
            "failOnDataLoss": str(self.fail_on_data_loss).lower(),
            "consumerGroup": self.group,
            "upToNow": str(self.ends).lower(),
            "knownOffsets": self.stood,
        }

    def check(self, spark: SparkSession) -> None:
        with self.looking() as client:
            for topic in self.topics:
                client.route(topic)

    def messages(self, spark: SparkSession) -> DataFrame:
        rocketmq.register(spark)
        return spark.readStream.format("rocketmq").options(**self._options).load()

    def sample(self, spark: SparkSession) -> DataFrame:
        rocketmq.register(spark)
        offsets = {"startingOffsets": "earliest" if self.start == "latest" else self.start}
        return spark.read.format("rocketmq").options(**{**self._options, **offsets}).load()

    def placed(self, batch: DataFrame) -> DataFrame:
        return batch.select(
            "key",
            "value",
            F.concat_ws(" ", "topic", "broker", place(F.col("queue"), F.col("offset"))).alias(PLACE),
            F.concat_ws(" ", "topic", "broker", F.col("queue").cast("string")).alias(LANE),
            F.col("properties")[PROPERTY].alias(SENT),
        )
