"""Messages to Kafka's topics, through Spark's own connector."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from changeglot import kafka
from changeglot.errors import ChangeglotError
from changeglot.options import option, words
from changeglot.settings import jvm
from changeglot.sinks.messages import LANE, SENT, TOPIC, Lanes, MessageSink

#: Few large requests: a batch of ours waits for all of them at its end, and not for any before. Kafka's own defaults
#: are for messages that come one by one.
_PRODUCER = {"batch.size": "262144", "linger.ms": "20", "buffer.memory": "67108864"}
#: Seconds in which a topic that was made is known, and between two looks.
_PATIENCE, _PAUSE = 30, 0.1


@dataclass(frozen=True, kw_only=True)
class Kafka(MessageSink):
    """At least once, in order in each partition; what a message is known by is its header `changeglot`.

    A message goes to the partition that Kafka's own clients would choose for its key.
    """

    name: ClassVar[str] = "kafka"
    unfit: ClassVar[str] = r"[^A-Za-z0-9._-]"

    servers: str = option("brokers to ask first, with commas", example="localhost:9092")
    kafka: Mapping[str, str] = words("further settings of the client, as Kafka names them; not shown", shown=False)

    def session_settings(self) -> dict[str, str]:
        return kafka.session_settings()

    def check(self, spark: SparkSession) -> None:
        with kafka.admin(spark, kafka.client(self.servers, self.kafka), "sink.servers") as admin:
            admin.describeCluster().clusterId().get()

    @property
    def at(self) -> str:
        return self.servers

    def lanes(self, spark: SparkSession, topics: Collection[str], known: Mapping[str, Lanes]) -> dict[str, Lanes]:
        java = jvm(spark)
        with kafka.admin(spark, kafka.client(self.servers, self.kafka), "sink.servers") as admin:
            found = kafka.lanes(spark, admin, topics)
            missing = [topic for topic in topics if topic not in found]
            if missing:
                empty = java.java.util.Optional.empty()
                count = java.java.util.Optional.of(self.partitions) if self.partitions else empty
                new = java.java.util.ArrayList()
                for topic in missing:
                    new.add(java.org.apache.kafka.clients.admin.NewTopic(topic, count, empty))
                admin.createTopics(new).all().get()
            # A broker that is busy knows of a new topic some moments later.
            late = time.monotonic() + _PATIENCE
            while (unknown := [topic for topic in topics if topic not in found]) and time.monotonic() < late:
                time.sleep(_PAUSE)
                found = kafka.lanes(spark, admin, topics)
        if unknown:
            raise ChangeglotError(
                f"making topics: {', '.join(unknown)} cannot be found, {_PATIENCE} seconds after",
                hint="Are all brokers well?",
            )
        return {topic: tuple(map(str, range(count))) for topic, count in found.items()}

    def send(self, messages: DataFrame) -> None:
        header = F.struct(F.lit(kafka.HEADER).alias("key"), F.col(SENT).cast("binary").alias("value"))
        rows = messages.select(
            "key",
            "value",
            TOPIC,
            F.col(LANE).cast("int").alias("partition"),
            F.when(F.col(SENT).isNotNull(), F.array(header)).alias("headers"),
        )
        options = kafka.options(self.servers, {**_PRODUCER, **self.kafka})
        rows.write.format("kafka").options(**options, includeHeaders="true").save()
