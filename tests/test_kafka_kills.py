"""A pipeline from topic to topic that is killed, and its broker with it: what our own source reads of it is exact."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from services import Kafka
from shop import TYPES
from test_kafka import consumed, keyed, lake, pipeline, produce, rows, run, shop, to_kafka, topic
from test_kills import Victim
from test_pipelines import stored

KILLS = 6


def again(kafka: Kafka) -> Callable[[], None]:
    def restart() -> None:
        kafka.kill()
        kafka.restart()

    return restart


def test_killed_with_its_broker_nothing_is_lost_and_nothing_doubled_for_our_own_source(
    spark: SparkSession, tmp_path: Path, warehouse: Path
) -> None:
    rng = random.Random(7)
    one = shop(9, "k_killed", 120, keys=12)
    told = [(keyed(row), value) for row, _, value in one.messages(spark, "canal")]
    batches = [told[n : n + len(told) // KILLS + 1] for n in range(0, len(told), len(told) // KILLS + 1)]
    with Kafka.start(tmp_path) as kafka:
        topic(kafka, "killed.in", 1)
        topic(kafka, "killed.out", 3)
        content: dict[str, Any] = {
            "source": {"type": "kafka", "servers": kafka.address, "topics": ["killed.in"], "format": "canal"},
            "sink": to_kafka(kafka, "canal", "killed.out"),
            "tables": [{"match": "*", "keys": ["id"], "columns": TYPES}],
            "checkpoint": str(tmp_path / "checkpoint"),
        }
        content["source"]["max_per_batch"] = 5
        victim = Victim(tmp_path / "victim", content, warehouse)
        for number, batch in enumerate(batches):
            produce(kafka, "killed.in", batch)
            if number % 3 == 2:
                victim.kill_after(rng.uniform(2, 6), again(kafka))
            elif number == 0:
                # After the messages of a batch were sent, and before Spark knows.
                assert not victim.run(2)
            else:
                victim.kill_after(rng.uniform(1, 8))
        assert victim.run()
        sent = consumed(kafka, "killed.out")
        assert len({(m.partition, m.sent) for m in sent}) >= len(one.changes)
        logged = [
            {"match": "*", "keys": ["id"], "columns": TYPES, "mode": ["scd1", "append"], "into": "k_exact.{table}"}
        ]
        source = {"topics": ["killed.out"], "format": "canal"}
        back = pipeline(kafka, tmp_path, "back", source, lake(warehouse), tables=logged)
        run(back, spark)
        assert stored(spark, back, "k_exact", "orders") == rows(one)
        log = spark.table(back.sink.identifier("k_exact", "orders__log"))
        assert log.count() == len({(m.partition, m.sent) for m in sent})
        assert len(sent) > log.count()
