"""Messages to RocketMQ's topics, through our own data source."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from changeglot import rocketmq
from changeglot.options import option
from changeglot.rocketmq.client import Client, Queue
from changeglot.rocketmq.pipes import PROPERTY, Cluster
from changeglot.sinks.messages import LANE, SENT, TOPIC, Lanes, MessageSink

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

    @property
    def at(self) -> str:
        return self.servers

    def lanes(self, spark: SparkSession, topics: Collection[str], known: Mapping[str, Lanes]) -> dict[str, Lanes]:
        with self.looking() as client:
            return {topic: self._queues(client, topic, known.get(topic, ())) for topic in topics}

    def _queues(self, client: Client, topic: str, known: Lanes) -> Lanes:
        # One that was known is on brokers that are away, if nobody knows it: not to be made on others.
        route = client.route(topic, sure=True) if known else client.route_or_create(topic, self.partitions or _QUEUES)
        before = (Queue.named(topic, name) for name in known)
        away = (queue for queue in before if queue.broker not in route.writing)
        return tuple(queue.name for queue in sorted({*route.writable, *away}))

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
