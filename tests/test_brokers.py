"""A cluster of RocketMQ with two brokers, one of which is away for a while: nothing is lost, moved or read twice."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from recorded import until
from services import RocketMQ
from shop import TYPES, write
from test_kafka import lake, rows, shop
from test_pipelines import stored

from changeglot import cli, config, rocketmq
from changeglot.rocketmq.client import Client
from changeglot.throwaway.service import free

#: Before that of the other, `broker-a`, wherever queues are listed: what is known by its number only is another then.
AWAY = "broker-0"


@dataclass
class Cluster:
    """Two brokers, and the name server that both are known to, which one of them has."""

    stays: RocketMQ
    goes: RocketMQ

    @property
    def words(self) -> dict[str, Any]:
        """Of a source or a sink. Any: of YAML."""
        return {"type": "rocketmq", "servers": self.stays.address, "format": "canal"}

    def listed(self) -> set[str]:
        with Client([self.stays.address]) as client:
            return set(client.brokers())

    @contextmanager
    def one_away(self) -> Iterator[None]:
        """Within, one of them is killed."""
        self.goes.kill()
        try:
            until(lambda: AWAY not in self.listed())
            yield
        finally:
            self.goes.restart()
            until(lambda: AWAY in self.listed())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with RocketMQ.start(tmp_path_factory.mktemp("stays")) as stays:
        port = free()
        settings = {"brokerName": AWAY, "namesrvAddr": f"{stays.address};127.0.0.1:{port}"}
        with RocketMQ.start(tmp_path_factory.mktemp("goes"), port, settings=settings) as goes:
            made = Cluster(stays, goes)
            until(lambda: made.listed() == {AWAY, "broker-a"})
            yield made


def pipeline(folder: Path, name: str, source: Mapping[str, Any], sink: Mapping[str, Any], *mode: str) -> Path:
    """The file of one. Any: words of it."""
    content = {
        "source": source,
        "sink": sink,
        "tables": [{"match": "*", "keys": ["id"], "columns": TYPES, "mode": mode or ["scd1"]}],
        "checkpoint": str(folder / name),
    }
    file = folder / f"{name}.yaml"
    file.write_text(json.dumps(content))
    return file


def messages(spark: SparkSession, cluster: Cluster, topic: str) -> DataFrame:
    rocketmq.register(spark)
    return spark.read.format("rocketmq").options(nameServers=cluster.stays.address, topics=topic).load()


def test_rows_stay_in_their_queues_and_arrive_once_though_a_broker_was_away(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, warehouse: Path, run: Run
) -> None:
    one = shop(33, "b_out", 80, tables=("orders", "items"))
    lines = one.lines(spark, "canal")
    files = {"type": "files", "path": str(tmp_path / "in"), "format": "canal"}
    there = pipeline(tmp_path, "there", files, {**cluster.words, "topic": "b-out", "partitions": 2})
    write(tmp_path / "in", [lines[:40]])
    assert run("run", there).status == cli.DONE
    write(tmp_path / "in", [lines[40:]])
    with cluster.one_away():
        stopped = run("run", there)
    assert stopped.status == cli.FAILED
    assert f'does not list broker "{AWAY}"' in stopped.err
    assert "goes on where it was" in stopped.err
    assert run("run", there).status == cli.DONE
    places = defaultdict(set)
    for row in messages(spark, cluster, "b-out").collect():
        places[bytes(row["key"])].add((row["broker"], row["queue"]))
    assert all(len(each) == 1 for each in places.values())
    assert len({place for each in places.values() for place in each}) == 4
    file = pipeline(tmp_path, "back", {**cluster.words, "topics": ["b-out"]}, lake(warehouse), "scd1", "append")
    assert run("run", file).status == cli.DONE
    back = config.load(file)
    for table in ("orders", "items"):
        assert stored(spark, back, "b_out", table) == rows(one, table)
    sent = messages(spark, cluster, "b-out").select(F.col("properties")["changeglot"], "broker", "queue").distinct()
    logs = [spark.table(back.sink.identifier("b_out", f"{table}__log")).count() for table in ("orders", "items")]
    assert sum(logs) == sent.count()
    # What was known there does not hold for another name server, which knows one of the brokers only.
    elsewhere = {**cluster.words, "servers": cluster.goes.address, "topic": "b-out"}
    write(tmp_path / "in", [lines[:1]])
    done = run("run", pipeline(tmp_path, "there", files, elsewhere))
    assert done.status == cli.DONE, done.err


def test_a_run_that_begins_while_a_broker_is_away_goes_on_with_its_queues_where_they_stood(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, warehouse: Path, run: Run
) -> None:
    one = shop(34, "b_in", 60, moves=False)
    told = [(row, value) for row, _, value in one.messages(spark, "canal")]
    file = pipeline(tmp_path, "in", {**cluster.words, "topics": ["b-in"]}, lake(warehouse), "scd1", "append")
    made = config.load(file)
    with Client([cluster.stays.address]) as client:
        client.route_or_create("b-in", 2)

    def send(some: Sequence[tuple[int, bytes]]) -> None:
        """Each row of the shop's into a queue of its own broker."""
        brokers = ("broker-a", AWAY)
        each = [(value, f"{brokers[row % 2]}:{row // 2 % 2}") for row, value in some]
        frame = spark.createDataFrame(each, "value BINARY, queue STRING").coalesce(1)
        rocketmq.register(spark)
        frame.write.format("rocketmq").options(nameServers=cluster.stays.address, topic="b-in").mode("append").save()

    def logged() -> int:
        """How many there are when it has run."""
        done = run("run", file)
        assert done.status == cli.DONE, done.err
        return spark.table(made.sink.identifier("b_in", "orders__log")).count()

    first, rest = told[:30], told[30:]
    then, last = ([each for each in rest if each[0] % 2 == odd] for odd in (0, 1))
    assert then
    assert last
    send(first)
    assert logged() == len(first)
    with cluster.one_away():
        send(then)
        assert logged() == len(first) + len(then)
    send(last)
    assert logged() == len(told)
    assert stored(spark, made, "b_in", "orders") == rows(one)
