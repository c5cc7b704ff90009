"""Kafka, both ways, with a real broker: what others write is read right, what we write arrives once and in order."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined]
from conftest import Run
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from services import Kafka
from shop import TYPES, Shop, State
from test_pipelines import BY_PLACE, TELLS, stored

import changeglot
from changeglot import cli, config, model, running
from changeglot.apply import log
from changeglot.codecs import CODECS
from changeglot.errors import ConfigError
from changeglot.pipeline import Pipeline
from changeglot.sinks import kafka as sinks
from changeglot.sinks.base import Mark
from changeglot.target import Applied

LARGE = 5 << 20


def produce(
    kafka: Kafka, topic: str, messages: Sequence[tuple[bytes | None, bytes | None]], to: int = -1, **settings: Any
) -> None:
    """By another client, to one partition or where that client chooses. Any: its settings."""
    producer = Producer({"bootstrap.servers": kafka.address, "message.max.bytes": 2 * LARGE, **settings})
    failed: list[object] = []
    for key, value in messages:
        producer.produce(topic, value, key, to, on_delivery=lambda error, _: failed.append(error) if error else None)
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not failed


class Got(NamedTuple):
    """A message as another client gets it; `sent` is its header `changeglot`."""

    key: bytes | None
    value: bytes | None
    partition: int | None
    sent: str

    @property
    def json(self) -> dict[str, Any]:
        """Any: JSON."""
        told: dict[str, Any] = json.loads(self.value or b"null")
        return told


def consumed(kafka: Kafka, topic: str) -> list[Got]:
    """All messages of a topic, by another client, the partitions one after the other."""
    settings = {"bootstrap.servers": kafka.address, "group.id": "tests", "fetch.message.max.bytes": 2 * LARGE}
    consumer = Consumer({**settings, "enable.partition.eof": True, "isolation.level": "read_committed"})
    found: list[Got] = []
    try:
        for partition in sorted(consumer.list_topics(topic, timeout=30).topics[topic].partitions):
            consumer.assign([TopicPartition(topic, partition, 0)])
            while True:
                message = consumer.poll(30)
                assert message is not None
                if message.error():
                    break
                header = dict(message.headers() or ()).get("changeglot") or b""
                assert isinstance(header, bytes)
                found.append(Got(message.key(), message.value(), message.partition(), header.decode()))
    finally:
        consumer.close()
    return found


def topic(kafka: Kafka, name: str, partitions: int = 3, **settings: str) -> str:
    # A client that nobody holds gives up.
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(30)
    return name


def pipeline(kafka: Kafka, tmp_path: Path, name: str, source: Mapping[str, Any], sink: Any, **words: Any) -> Pipeline:
    """Any: words of the YAML file."""
    content = {
        "source": {"type": "kafka", "servers": kafka.address, **source},
        "sink": sink,
        "checkpoint": str(tmp_path / name),
        "tables": [{"match": "*", "keys": ["id"], "columns": TYPES}],
        **words,
    }
    return config.pipeline(content, name=name)


def run(made: Pipeline, spark: SparkSession) -> None:
    made.check(spark)
    made.run(spark).awaitTermination()


def to_kafka(kafka: Kafka, format: str, topic: str, **words: Any) -> dict[str, Any]:
    """Any: words of the YAML file."""
    return {"type": "kafka", "servers": kafka.address, "format": format, "topic": topic, **words}


def lake(warehouse: Path) -> dict[str, Any]:
    """Any: words of the YAML file."""
    return {"type": "delta", "path": str(warehouse / "delta")}


def shop(seed: int, database: str, steps: int = 60, **words: Any) -> Shop:
    """Any: of a shop."""
    made = Shop(seed, database, **words)
    while len(made.changes) < steps:
        made.step()
    return made


def rows(shop: Shop, table: str = "orders") -> dict[int, State]:
    return {key: row for (of, key), row in shop.model.rows.items() if of == table}


def keyed(key: int) -> bytes:
    return f"row {key}".encode()


def every_format(spark: SparkSession, prefix: str) -> tuple[dict[str, Shop], list[tuple[int, bytes | None, bytes]]]:
    """A shop for each format; and the messages of all, mixed, each with the row that it is about and its key."""
    rng = random.Random(5)
    shops, told = {}, []
    for number, spoken in enumerate(CODECS):
        tells = TELLS.get(spoken, Shop.WHOLE)
        # Where the transport must keep the order, a row that goes to another partition cannot be told.
        name, moves = f"{prefix}_{spoken.replace('-', '_')}", spoken not in BY_PLACE
        one = shops[spoken] = shop(number, name, 15, tells=tells, moves=moves)
        told.append(one.messages(spark, spoken))
    mixed = []
    while any(told):
        mixed.append(rng.choice([messages for messages in told if messages]).pop(0))
    return shops, mixed


def test_every_format_in_one_topic_is_read(spark: SparkSession, kafka: Kafka, tmp_path: Path, warehouse: Path) -> None:
    shops, mixed = every_format(spark, "k")
    produce(kafka, topic(kafka, "every"), [(key or keyed(row), value) for row, key, value in mixed])
    made = pipeline(kafka, tmp_path, "every", {"topics": ["every"], "max_per_batch": 70}, lake(warehouse))
    run(made, spark)
    quarantined = made.quarantined(spark)
    assert quarantined is None or quarantined.select("problem", "table").collect() == []
    for spoken, one in shops.items():
        assert stored(spark, made, one.database, "orders") == rows(one), spoken


def test_a_fan_out_to_every_format_arrives_once_in_order_and_where_kafka_itself_would_put_it(
    spark: SparkSession, kafka: Kafka, tmp_path: Path, warehouse: Path
) -> None:
    one = shop(21, "k_out", 40, tables=("orders", "items"))
    produce(kafka, topic(kafka, "in", 1), [(keyed(key), line.encode()) for key, line in one.told(spark, "oms-typed")])
    sinks = [to_kafka(kafka, spoken, f"out.{spoken}", partitions=3) for spoken in CODECS]
    made = pipeline(kafka, tmp_path, "fan", {"topics": ["in"], "format": "oms-typed"}, sinks)
    run(made, spark)
    assert made.quarantined(spark) is None
    for spoken in CODECS:
        sent = consumed(kafka, f"out.{spoken}")
        assert len(sent) >= len(one.changes), spoken
        produce(kafka, f"twin.{spoken}", [(each.key, each.value) for each in sent], partitioner="murmur2_random")
        assert sorted((m.key, m.partition) for m in consumed(kafka, f"twin.{spoken}")) == sorted(
            (m.key, m.partition) for m in sent
        ), spoken
    for spoken in ("electric", "canal", "shareplex", "arcion"):
        rules = [{"match": "*", "keys": ["id"], "columns": TYPES, "into": f"kb_{spoken}.{{table}}"}]
        source = {"topics": [f"out.{spoken}"], "format": spoken, "max_per_batch": 25}
        back = pipeline(kafka, tmp_path, f"back-{spoken}", source, lake(warehouse), tables=rules)
        run(back, spark)
        for table in ("orders", "items"):
            assert stored(spark, back, f"kb_{spoken}", table) == rows(one, table), (spoken, table)


def test_what_is_sent_twice_is_read_once(
    spark: SparkSession, kafka: Kafka, tmp_path: Path, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = shop(3, "k_twice", 30)
    lines = [(keyed(key), line.encode()) for key, line in one.told(spark, "canal")]
    produce(kafka, topic(kafka, "first", 1), lines)
    topic(kafka, "second", 2)
    made = pipeline(
        kafka,
        tmp_path,
        "twice",
        {"topics": ["first"], "format": "canal", "max_per_batch": 10},
        to_kafka(kafka, "canal", "second"),
    )
    sends: list[int] = []
    whole = sinks.Kafka.send

    def fails(self: Any, messages: Any) -> None:
        """Every second time only some are sent, and not the first of them. Any: a sink and a DataFrame."""
        sends.append(1)
        if len(sends) % 2:
            whole(self, messages.where("lane = 0 AND CAST(split_part(sent, ' ', 2) AS INT) IN (1, 2, 4)"))
            raise RuntimeError("the power went")
        whole(self, messages)

    monkeypatch.setattr(sinks.Kafka, "send", fails)
    for _ in range(3):
        with pytest.raises(StreamingQueryException, match="the power went"):
            run(made, spark)
    run(made, spark)
    assert len(sends) == 6
    sent = consumed(kafka, "second")
    numbers = [(m.partition, m.sent) for m in sent]
    assert len(sent) > len(set(numbers)) >= len(one.changes)
    logged = [{"match": "*", "keys": ["id"], "columns": TYPES, "mode": ["scd1", "append"]}]
    for size in (4, 1000):
        back = pipeline(
            kafka,
            tmp_path,
            f"once-{size}",
            {"topics": ["second"], "format": "canal", "max_per_batch": size},
            lake(warehouse),
            tables=[{**rule, "into": f"k_once_{size}.{{table}}"} for rule in logged],
        )
        run(back, spark)
        assert stored(spark, back, f"k_once_{size}", "orders") == rows(one)
        assert spark.table(back.sink.identifier(f"k_once_{size}", "orders__log")).count() == len(set(numbers))


@pytest.mark.parametrize("sink", ["delta", "iceberg"])
def test_one_log_of_all_tables_has_what_a_look_at_each_of_them_finds(
    spark: SparkSession, kafka: Kafka, tmp_path: Path, warehouse: Path, sink: str
) -> None:
    first, second = f"all.{sink}", f"sent.{sink}"
    one, placed = shop(31, "k_all", 40, tables=("orders", "items")), shop(32, "k_placed", 20)
    ddl = {"database": "k_all", "table": "orders", "type": "ALTER", "isDdl": True, "sql": "ALTER TABLE t ADD c INT"}
    lines: list[tuple[bytes | None, bytes | None]] = []
    lines += [(keyed(key), line.encode()) for key, line in one.told(spark, "canal")]
    lines += [(None, json.dumps(ddl).encode()), (None, b"no change at all")]
    lines += [(keyed(key), line.encode()) for key, line in placed.told(spark, "oms-typed")] * 2
    produce(kafka, topic(kafka, first, 2), lines)
    topic(kafka, second, 2)
    # These bear our mark.
    run(pipeline(kafka, tmp_path, f"{sink}-sent", {"topics": [first]}, to_kafka(kafka, "canal", second)), spark)

    def logging(name: str, *more: dict[str, Any]) -> Pipeline:
        """Any: words of the YAML file."""
        rules = [{"match": "*", "mode": "append", "into": f"k_logs.{name}"}, *more]
        into = {"type": sink, "path": str(warehouse / sink)}
        return pipeline(kafka, tmp_path, f"{sink}-{name}", {"topics": [first, second]}, into, tables=rules)

    def logged(made: Pipeline) -> list[Row]:
        found = spark.table(made.sink.identifier("k_logs", f"{made.rules[0].into.split('.')[1]}__log"))
        return sorted(found.drop("__batch").collect(), key=lambda row: str(row["__identity"]))

    looked, passed = logging("looked", {"match": "nobody.*"}), logging("passed")
    run(looked, spark)
    # A batch that is applied again, by who is alone and by who is not.
    for writer in ("one", "one", "other"):
        applied = passed.apply(passed.source.sample(spark), Mark(writer, 0))
        assert logged(passed) == logged(looked)
        assert sum(applied.tables.values()) == len(lines) - 1 + len(consumed(kafka, second))
    assert len({row["__identity"] for row in logged(passed)}) == len(logged(passed)) > 2 * len(one.changes)
    quarantined = passed.quarantined(spark)
    assert quarantined is not None
    assert [bytes(row["value"]) for row in quarantined.collect()] == [b"no change at all"]


@pytest.mark.parametrize("sink", ["delta", "iceberg"])
def test_a_log_is_made_with_its_first_lines_and_goes_on(
    spark: SparkSession, kafka: Kafka, tmp_path: Path, warehouse: Path, sink: str
) -> None:
    name, one = topic(kafka, f"begun.{sink}", 2), shop(35, "k_begun", 30)
    lines = [(keyed(key), line.encode()) for key, line in one.told(spark, "canal")]
    rule = {"match": "*", "mode": "append", "into": "k_begun.lines"}
    into = {"type": sink, "path": str(warehouse / sink)}
    made = pipeline(kafka, tmp_path, f"{sink}-begun", {"topics": [name]}, into, tables=[rule])
    table = made.sink.identifier("k_begun", "lines__log")
    for number, part in enumerate((lines[:10], lines[10:])):
        produce(kafka, name, part)
        applied: list[Applied] = []
        made.run(spark, told=applied.append).awaitTermination()
        assert [each.tables for each in applied] == [{"k_begun.lines": len(part)}]
        newest = spark.table(table).where(F.col("__batch") == number).agg(F.max("committed_at")).collect()[0][0]
        assert applied[0].newest == newest
        # Nothing is made before there is something to put into it.
        commits = f"DESCRIBE HISTORY {table}" if sink == "delta" else f"SELECT * FROM {table}.snapshots"
        assert spark.sql(commits).count() == number + 1
        # As if it had been killed when the lines were there, and before Spark knew.
        lost = Path(made.checkpoint) / "commits" / str(number)
        lost.unlink()
        lost.with_name(f".{lost.name}.crc").unlink()
        applied.clear()
        made.run(spark, told=applied.append).awaitTermination()
        assert [each.tables for each in applied] == [{"k_begun.lines": len(part)}]
        assert spark.sql(commits).count() == number + 1
        assert spark.table(table).where(F.col("__batch") == number).count() == len(part)
    assert made.sink.columns(spark, table) == log.columns()
    again = spark.table(table).withColumn("columns", F.from_json("columns", model.COLUMNS))
    decoded = changeglot.decode(made.source.sample(spark).select("key", "value"), "canal")
    told = ("op", "key", "before", "after", "columns")
    assert sorted(map(str, again.select(*told).collect())) == sorted(map(str, decoded.select(*told).collect()))
    # A log is told again as the changes are.
    for format_ in ("oms-typed", "arcion"):
        ours, theirs = (changeglot.encode(each, format_) for each in (spark.table(table), decoded))
        said = ("key", "value", "part", "lost")
        assert sorted(map(str, ours.select(*said).collect())) == sorted(map(str, theirs.select(*said).collect()))
    if sink == "delta":
        for file in (warehouse / sink / "k_begun" / "lines__log").glob("*.parquet"):
            group = pq.ParquetFile(file).metadata.row_group(0)
            parts = {part.path_in_schema: part for part in map(group.column, range(group.num_columns))}
            assert {path for path, part in parts.items() if part.is_stats_set} == set(log.SEARCHED)
            assert parts["committed_at"].physical_type == "INT64"
            looked_up = {path for path, part in parts.items() if "PLAIN_DICTIONARY" in part.encodings}
            assert {"after.key_value.key", "columns"} <= looked_up
            assert not looked_up & {"after.key_value.value", "extra.key_value.value", "committed_at", "produced_at"}


@pytest.mark.parametrize("sink", ["delta", "iceberg"])
def test_a_log_that_has_columns_as_a_list_goes_on_so(
    spark: SparkSession, kafka: Kafka, tmp_path: Path, warehouse: Path, sink: str
) -> None:
    name, one = topic(kafka, f"listed.{sink}", 1), shop(36, "k_listed", 10)
    produce(kafka, name, [(keyed(key), line.encode()) for key, line in one.told(spark, "canal")])
    rule = {"match": "*", "mode": "append", "into": "k_listed.lines"}
    into = {"type": sink, "path": str(warehouse / sink)}
    made = pipeline(kafka, tmp_path, f"{sink}-listed", {"topics": [name]}, into, tables=[rule])
    table = made.sink.identifier("k_listed", "lines__log")
    # As before columns were one text.
    made.sink.create(spark, table, {**log.columns(), "columns": model.COLUMNS.simpleString()})
    run(made, spark)
    found = spark.table(table).select("columns").collect()
    assert len(found) == len(one.changes)
    decoded = changeglot.decode(made.source.sample(spark).select("key", "value"), "canal").select("columns").collect()
    assert sorted(map(str, found)) == sorted(map(str, decoded))


def test_partitions_are_chosen_as_asked_and_tombstones_follow_deletes(
    spark: SparkSession, kafka: Kafka, tmp_path: Path
) -> None:
    one = shop(8, "k_lanes", 40, tables=("orders", "items"))
    ddl = {"database": "k_lanes", "table": "orders", "type": "ALTER", "isDdl": True, "sql": "ALTER TABLE t"}
    ddl |= dict.fromkeys(("sqlType", "data", "pkNames", "old", "mysqlType", "es", "ts"))
    lines = [line.encode() for _, line in one.told(spark, "canal")]
    produce(kafka, topic(kafka, "lanes", 1), [(None, line) for line in [*lines, json.dumps(ddl).encode()]])
    sinks = [
        to_kafka(kafka, "canal", "one", partition="one", partitions=3),
        to_kafka(kafka, "canal", "table", partition="table", partitions=3),
        to_kafka(kafka, "canal", "all", ddl="all", partitions=3),
        {"type": "kafka", "servers": kafka.address, "format": "arcion", "tombstones": True, "partitions": 2},
    ]
    run(pipeline(kafka, tmp_path, "lanes", {"topics": ["lanes"], "format": "canal"}, sinks), spark)
    single = consumed(kafka, "one")
    assert {m.partition for m in single} == {0}
    # In one partition a change of a key needs no two messages, and all is as it came.
    assert [m.json for m in single] == [json.loads(line) for line in [*lines, json.dumps(ddl).encode()]]
    by_table: dict[str, set[int | None]] = {}
    for message in consumed(kafka, "table"):
        by_table.setdefault(message.json["table"], set()).add(message.partition)
    assert all(len(lanes) == 1 for lanes in by_table.values())
    everywhere = [m.partition for m in consumed(kafka, "all") if m.json["isDdl"]]
    assert everywhere == [0, 1, 2]
    for table in ("orders", "items"):
        sent = consumed(kafka, f"k_lanes_{table}_cdc_logs")
        deletes = [n for n, m in enumerate(sent) if m.value and m.value[:1] == b"{" and m.json["payload"]["op"] == "d"]
        # Arcion's own mark of the end of a row, then Kafka's.
        assert [sent[n + 1].value for n in deletes] == [b'"default"'] * len(deletes)
        assert [m for m in sent if m.value is None] == [sent[n + 2] for n in deletes]
        assert all(sent[n].key == sent[n + 1].key == sent[n + 2].key for n in deletes)
        assert deletes


def test_what_topics_may_hold_is_read_right(spark: SparkSession, kafka: Kafka, tmp_path: Path, warehouse: Path) -> None:
    """Null values, a compacted topic, aborted transactions, a message of 5 MB, partitions that are added."""
    one = shop(4, "k_odd", 30, moves=False)
    lines = one.told(spark, "canal")
    large = json.dumps(
        {
            "database": "k_odd",
            "table": "large",
            "type": "INSERT",
            "isDdl": False,
            "data": [{"id": 1, "name": "x" * LARGE, "amount": None}],
            "pkNames": ["id"],
            "old": None,
            "sql": "",
        }
    )
    topic(kafka, "odd", 1, **{"cleanup.policy": "compact"})
    produce(kafka, "odd", [(keyed(key), line.encode()) for key, line in lines[:10]])
    produce(kafka, "odd", [(b"dead", None), (b"large", large.encode())])
    transaction = Producer(
        {"bootstrap.servers": kafka.address, "transactional.id": "t", "message.max.bytes": 2 * LARGE}
    )
    transaction.init_transactions(30)
    for committed in (False, True):
        transaction.begin_transaction()
        # What is aborted would leave other rows.
        for key, line in lines[10:15]:
            transaction.produce(
                "odd", line.replace("k_odd", "k_odd" if committed else "k_aborted").encode(), keyed(key)
            )
        transaction.commit_transaction(30) if committed else transaction.abort_transaction(30)
    source = {
        "pattern": "odd|odd[.]new",
        "format": "canal",
        "max_per_batch": 7,
        "kafka": {"metadata.max.age.ms": "500"},
    }
    made = pipeline(kafka, tmp_path, "odd", source, lake(warehouse))
    run(made, spark)
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.create_partitions([NewPartitions("odd", 3)])["odd"].result(30)
    # Rows that had changes before stay in the first partition; others are told in new ones.
    produce(kafka, "odd", [(keyed(key), line.encode()) for key, line in lines[15:]], partitioner="consistent")
    run(made, spark)
    assert stored(spark, made, "k_odd", "large")[1]["name"] == "x" * LARGE
    assert not made.sink.exists(spark, made.sink.identifier("k_aborted", "orders"))
    quarantined = made.quarantined(spark)
    assert quarantined is None or quarantined.count() == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"servers": "127.0.0.1:1"}, "source.servers: no broker answers at 127.0.0.1:1 within 10 s"),
        ({"topics": ["nowhere"]}, "has no topic nowhere"),
        ({"topics": []}, "source.topics: wants topics, or a pattern"),
        ({"topic": "in"}, 'source.topic: no such option. Did you mean "topics"?'),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_read(
    spark: SparkSession, kafka: Kafka, tmp_path: Path, words: dict[str, Any], said: str
) -> None:
    def checked() -> None:
        pipeline(kafka, tmp_path, "wrong", {"topics": ["in"], **words}, to_kafka(kafka, "canal", "x")).check(spark)

    with pytest.raises(ConfigError, match=re.escape(said)):
        checked()


def test_wrong_credentials_are_told_and_right_ones_are_not(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> None:
    def made(password: str) -> Pipeline:
        login = "org.apache.kafka.common.security.plain.PlainLoginModule"
        words = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{login} required username="ann" password="{password}";',
        }
        source = {"topics": ["safe"], "format": "canal", "servers": kafka.sasl_address, "kafka": words}
        return pipeline(kafka, tmp_path, "safe", source, to_kafka(kafka, "canal", "safer"))

    produce(kafka, "safe", [(None, b"{}")])
    with pytest.raises(ConfigError, match="refuses these credentials") as refused:
        made("wrong-one").check(spark)
    assert "wrong-one" not in str(refused.value)
    right = made("secret")
    right.check(spark)
    assert "secret" not in repr(right)
    run(right, spark)
    assert right.quarantined(spark) is not None


def test_a_topic_that_is_deleted_stops_the_pipeline(kafka: Kafka, tmp_path: Path, run: Run, warehouse: Path) -> None:
    produce(kafka, topic(kafka, "gone", 1), [(None, b"{}")] * 5)
    content = {
        "source": {"type": "kafka", "servers": kafka.address, "topics": ["gone"], "format": "canal"},
        "sink": lake(warehouse),
        "checkpoint": str(tmp_path / "gone"),
    }
    file = tmp_path / "gone.yaml"
    file.write_text(json.dumps(content))
    done = run("run", file, "--json")
    assert done.status == cli.BAD
    assert json.loads(done.out)["quarantined"] == 5
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.delete_topics(["gone"])["gone"].result(30)
    missing = run("run", file)
    assert missing.status == cli.WRONG
    assert "has no topic gone" in missing.err
    produce(kafka, topic(kafka, "gone", 1), [(None, b"{}")])
    lost = run("run", file)
    assert lost.status == cli.WRONG
    assert "messages are gone that were not read" in lost.err


def test_a_broker_that_falls_silent_is_told_of_and_what_is_new_is_found(
    spark: SparkSession,
    kafka: Kafka,
    tmp_path: Path,
    warehouse: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(running, "_PATIENCE", 2)
    produce(kafka, topic(kafka, "silent", 1), [(None, b"{}")])
    source = {"pattern": "silent.*", "kafka": {"metadata.max.age.ms": "500"}}
    made = pipeline(kafka, tmp_path, "silent", source, lake(warehouse))
    ways = {"once": False, "quiet": False, "as_json": False}
    thread = threading.Thread(target=running.run, args=(made, spark), kwargs=ways)
    said = ""

    def heard(words: str) -> None:
        nonlocal said
        deadline = time.monotonic() + 50
        while words not in said:
            assert time.monotonic() < deadline, said
            time.sleep(0.1)
            said += capfd.readouterr().err

    thread.start()
    try:
        heard("batch 0: ")
        os.kill(kafka.pid, signal.SIGSTOP)
        heard("stalled: the source has not answered for ")
    finally:
        os.kill(kafka.pid, signal.SIGCONT)
    heard("the source answers again")
    # It goes on, with a partition and then a topic that were not there when it began.
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.create_partitions([NewPartitions("silent", 2)])["silent"].result(30)
    produce(kafka, "silent", [(None, b"new partition")], to=1)
    heard("batch 1: ")
    produce(kafka, topic(kafka, "silent.new", 1), [(None, b"new topic")])
    heard("batch 2: ")
    quarantined = made.quarantined(spark)
    assert quarantined is not None
    assert {bytes(row["value"]) for row in quarantined.collect()} == {b"{}", b"new partition", b"new topic"}
    for query in spark.streams.active:
        if query.name == made.name:
            query.stop()
    thread.join(30)
    assert not thread.is_alive()
