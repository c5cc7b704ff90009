"""A pipeline from topic to topic that is killed, and its broker with it: what our own source reads of it is exact."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from services import Kafka, RocketMQ
from shop import TYPES
from test_kafka import consumed, keyed, lake, produce, rows, run, shop, topic
from test_kills import Victim
from test_pipelines import stored
from test_topics import fill

from changeglot import config

#: One message, as its key and value; and what is known of one that was sent: its partition and its mark.
Message = tuple[bytes, bytes]
Sent = tuple[int, str]


class OfKafka:
    """Two topics of Kafka's, the first of one partition."""

    kills = 6
    come, go = "killed.in", "killed.out"
    #: Small batches: several are on their way when it is killed.
    source: ClassVar[dict[str, Any]] = {"max_per_batch": 5}

    def __init__(self, folder: Path) -> None:
        self.broker = Kafka.start(folder)
        topic(self.broker, self.come, 1)

    def send(self, messages: Sequence[Message]) -> None:
        produce(self.broker, self.come, messages)

    def sent(self) -> list[Sent]:
        return [(m.partition or 0, m.sent) for m in consumed(self.broker, self.go)]


class OfRocketMQ:
    """Two topics of RocketMQ's; all that comes lies in one queue of the first."""

    kills = 4
    come, go = "killed-in", "killed-out"
    source: ClassVar[dict[str, Any]] = {}

    def __init__(self, folder: Path) -> None:
        self.broker = RocketMQ.start(folder)

    def send(self, messages: Sequence[Message]) -> None:
        fill(SparkSession.active(), self.broker, self.come, [value for _, value in messages])

    def sent(self) -> list[Sent]:
        options = {"nameServers": self.broker.address, "topics": self.go}
        there = SparkSession.active().read.format("rocketmq").options(**options).load()
        return [(row[0], row[1]) for row in there.select("queue", F.col("properties")["changeglot"]).collect()]


@pytest.mark.parametrize("transport", [OfKafka, OfRocketMQ])
def test_killed_with_its_broker_nothing_is_lost_and_nothing_doubled_for_our_own_source(
    spark: SparkSession, tmp_path: Path, warehouse: Path, transport: type[OfKafka] | type[OfRocketMQ]
) -> None:
    rng = random.Random(7)
    one = shop(9, "k_killed", 120, keys=12)
    told = [(keyed(row), value) for row, _, value in one.messages(spark, "canal")]
    size = len(told) // transport.kills + 1
    batches = [told[n : n + size] for n in range(0, len(told), size)]
    topics = transport(tmp_path)
    with topics.broker as broker:
        kind = broker.name
        at = {"type": kind, "servers": broker.address, "format": "canal"}
        rule = {"match": "*", "keys": ["id"], "columns": TYPES}
        content: dict[str, Any] = {
            "source": {**at, "topics": [topics.come], **topics.source},
            "sink": {**at, "topic": topics.go, "partitions": 3},
            "tables": [rule],
            "checkpoint": str(tmp_path / "checkpoint"),
        }

        def restart() -> None:
            broker.kill()
            broker.restart()

        victim = Victim(tmp_path / "victim", content, warehouse)
        for number, batch in enumerate(batches):
            topics.send(batch)
            if number % 3 == 2:
                victim.kill_after(rng.uniform(2, 6), restart)
            elif number == 0:
                # After the messages of a batch were sent, and before Spark knows.
                assert not victim.run(2)
            else:
                victim.kill_after(rng.uniform(1, 8))
        assert victim.run()
        sent = topics.sent()
        assert len(set(sent)) >= len(one.changes)
        back = config.pipeline(
            {
                "source": {**at, "topics": [topics.go]},
                "sink": lake(warehouse),
                "tables": [{**rule, "mode": ["scd1", "append"], "into": f"{kind}_exact.{{table}}"}],
                "checkpoint": str(tmp_path / "back"),
            },
            name=f"{kind}-back",
        )
        run(back, spark)
        assert stored(spark, back, f"{kind}_exact", "orders") == rows(one)
        log = spark.table(back.sink.identifier(f"{kind}_exact", "orders__log"))
        assert len(sent) > log.count() == len(set(sent))
