"""Messages to RocketMQ's topics, through our own data source."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from changeglot import rocketmq
from changeglot.options import option
from changeglot.rocketmq.pipes import PROPERTY, Cluster
from changeglot.sinks.messages import LANE, SENT, TOPIC, MessageSink

#: Of a topic that is made, on each broker.
_QUEUES = 8


@dataclass(frozen=True, kw_only=True)
class RocketMQ(Cluster, MessageSink):
    """At least once, in order in each queue; what a message is known by is its property `changeglot`."""

    name: ClassVar[str] = "rocketmq"
    unfit: ClassVar[str] = r"[^%|A-Za-z0-9_-]"

    tags: str = option("of all messages, for consumers that ask for some only", "")

    def check(self, spark: SparkSession) -> None:
        with self.looking() as client:
            client.brokers()

    def lanes(self, spark: SparkSession, topics: Collection[str]) -> dict[str, int]:
        with self.looking() as client:
            return {topic: len(client.route_or_create(topic, self.partitions or _QUEUES).writable) for topic in topics}

    def send(self, messages: DataFrame) -> None:
        rocketmq.register(messages.sparkSession)
        known = F.create_map(F.lit(PROPERTY), F.col(SENT))
        rows = messages.select(
            "value",
            # RocketMQ parts its properties by these; JSON does not have them, our own keys of rows do.
            F.regexp_replace(F.col("key").cast("string"), "[\\x00-\\x02]", "/").alias("key"),
            TOPIC,
            F.col(LANE).alias("queue"),
            F.when(F.col(SENT).isNotNull(), known).alias("properties"),
            *([F.lit(self.tags).alias("tags")] if self.tags else []),
        )
        rows.write.format("rocketmq").options(**self.cluster).mode("append").save()
