"""Topics of both transports: the examples as they stand, RocketMQ both ways, and many tables in one topic."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from services import Kafka, RocketMQ
from shop import TYPES, write
from test_kafka import consumed, keyed, lake, pipeline, produce, rows, run, shop, to_kafka, topic
from test_pipelines import stored

from changeglot import cli, config
from changeglot import rocketmq as queues
from changeglot.codecs import CODECS
from changeglot.demo.show import SHOP
from changeglot.pipeline import Pipeline
from changeglot.sending import Sending
from changeglot.sinks.base import Mark

EXAMPLES = Path(__file__).parents[1] / "examples"
FLINK = Path(__file__).parents[1] / ".venv-flink" / "bin" / "python"


def told(spoken: str) -> list[tuple[bytes | None, bytes | None]]:
    """A shop's life in a format, as keys and values."""
    found: list[tuple[bytes | None, bytes | None]] = []
    for line in (SHOP / f"{spoken}.jsonl").read_bytes().splitlines():
        if line.startswith(b'{"key":') and b',"value":' in line and spoken == "arcion":
            both = json.loads(line)
            found.append((json.dumps(both["key"]).encode(), json.dumps(both["value"]).encode()))
        else:
            found.append((None, line))
    return found


def fill(spark: SparkSession, rocketmq: RocketMQ, topic: str, values: list[bytes | None]) -> None:
    queues.register(spark)
    lines = spark.createDataFrame([(value, 0) for value in values], "value BINARY, queue INT").coalesce(1)
    lines.write.format("rocketmq").options(nameServers=rocketmq.address, topic=topic).mode("append").save()


def test_the_examples_run_as_they_stand(
    spark: SparkSession, kafka: Kafka, rocketmq: RocketMQ, run: Run, monkeypatch: pytest.MonkeyPatch, warehouse: Path
) -> None:
    monkeypatch.setenv("KAFKA", kafka.address)
    monkeypatch.setenv("ROCKETMQ", rocketmq.address)
    monkeypatch.setenv("LAKE", str(warehouse / "delta"))
    produce(kafka, topic(kafka, "shop", 1), told("canal"))
    produce(kafka, topic(kafka, "mixed", 1), [message for spoken in CODECS for message in told(spoken)])
    fill(spark, rocketmq, "shop", [value for _, value in told("dataworks")])
    monkeypatch.setenv("MESSAGES", str(SHOP / "canal.jsonl"))
    for name in ("files-to-topics", "kafka-to-delta", "kafka-to-kafka", "rocketmq-to-kafka-and-iceberg"):
        if "iceberg" in name:
            monkeypatch.setenv("LAKE", str(warehouse / "iceberg"))
        example = EXAMPLES / f"{name}.yaml"
        planned = run("check", example, "--json")
        assert planned.status == cli.DONE, planned.err
        assert json.loads(planned.out)["tables"]
        done = run("run", example, "--json")
        # A message of the story is poisoned in some formats.
        assert done.status == (cli.DONE if name.startswith("rocketmq") else cli.BAD), done.err
        assert all(count > 0 for count in json.loads(done.out)["changes"].values())
        again = run("run", example, "--json")
        assert again.status == cli.DONE
        assert json.loads(again.out)["batches"] == 0
    assert consumed(kafka, "shapes.customers")
    assert spark.table(
        config.load(EXAMPLES / "rocketmq-to-kafka-and-iceberg.yaml").sink.identifier("shop", "orders")
    ).count()


def test_rocketmq_to_rocketmq_to_tables_is_exact(
    spark: SparkSession, rocketmq: RocketMQ, tmp_path: Path, warehouse: Path
) -> None:
    one = shop(31, "r_shop", 40, tables=("orders", "items"))
    fill(spark, rocketmq, "r-in", [value for _, _, value in one.messages(spark, "canal")])

    def made(name: str, topic: str, sink: Mapping[str, Any], **words: Any) -> Pipeline:
        """Any: words of the YAML file."""
        content = {
            "source": {"type": "rocketmq", "servers": rocketmq.address, "topics": [topic], "format": "canal"},
            "sink": sink,
            "tables": [{"match": "*", "keys": ["id"], "columns": TYPES, **words}],
            "checkpoint": str(tmp_path / name),
        }
        return config.pipeline(content, name=name)

    sink = {"type": "rocketmq", "servers": rocketmq.address, "format": "canal", "topic": "r.out", "partitions": 4}
    there = made("there", "r-in", sink)
    run(there, spark)
    # Sent again, as after a crash: the same numbers.
    there.apply(there.source.sample(spark), _mark(there))
    queues.register(spark)
    sent = spark.read.format("rocketmq").options(nameServers=rocketmq.address, topics="r_out").load()
    assert sent.count() >= 2 * len(one.changes)
    assert sent.select("queue").distinct().count() > 1
    back = made("back", "r_out", lake(warehouse), mode=["scd1", "append"])
    run(back, spark)
    for table in ("orders", "items"):
        assert stored(spark, back, "r_shop", table) == rows(one, table)
    logs = [spark.table(back.sink.identifier("r_shop", f"{table}__log")).count() for table in ("orders", "items")]
    assert sum(logs) == sent.count() // 2


def test_a_run_that_ends_has_all_after_one_that_was_cut(
    spark: SparkSession, rocketmq: RocketMQ, tmp_path: Path, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = shop(32, "cut_shop", 30)
    first, *others = [value for _, _, value in one.messages(spark, "canal")]
    content = {
        "source": {"type": "rocketmq", "servers": rocketmq.address, "topics": ["r-cut"], "format": "canal"},
        "sink": lake(warehouse),
        "tables": [{"match": "*", "keys": ["id"], "columns": TYPES}],
        "checkpoint": str(tmp_path / "cut"),
    }
    made = config.pipeline(content, name="cut")

    def cut(*_: object) -> None:
        raise RuntimeError("cut")

    fill(spark, rocketmq, "r-cut", [first])
    with monkeypatch.context() as patched:
        patched.setattr(Pipeline, "_apply", cut)
        with pytest.raises(StreamingQueryException, match="cut"):
            run(made, spark)
    fill(spark, rocketmq, "r-cut", [*others])
    run(made, spark)
    assert stored(spark, made, "cut_shop", "orders") == rows(one, "orders")


def test_files_have_every_format_once_and_in_order(spark: SparkSession, tmp_path: Path, warehouse: Path) -> None:
    one = shop(14, "f_shop", 40, tables=("orders", "items"))
    write(tmp_path / "in", [one.lines(spark, "oms-typed")])
    rules = [{"match": "*", "keys": ["id"], "columns": TYPES}]

    def made(name: str, source: dict[str, Any], sink: Any) -> Pipeline:
        """Any: words of the YAML file."""
        words = {"source": {"type": "files", **source}, "sink": sink, "tables": rules}
        return config.pipeline({**words, "checkpoint": str(tmp_path / f"notes-{name}")}, name=name)

    def lines(spoken: str) -> list[str]:
        files = sorted((tmp_path / "out" / f"topic={spoken}").glob("batch=*/part-*"))
        return [line for file in files for line in file.read_text().splitlines()]

    def into(spoken: str) -> dict[str, Any]:
        """Any: words of the YAML file."""
        return {"type": "files", "path": str(tmp_path / "out"), "format": spoken, "topic": spoken, "keys": True}

    there = made("there", {"path": str(tmp_path / "in"), "format": "oms-typed"}, [into(spoken) for spoken in CODECS])
    run(there, spark)
    written = {spoken: lines(spoken) for spoken in CODECS}
    # Written again, as after a crash: in the place of what was there.
    there.apply(there.source.sample(spark), _mark(there))
    assert {spoken: lines(spoken) for spoken in CODECS} == written
    for spoken in ("electric", "canal", "shareplex", "arcion"):
        assert len(written[spoken]) >= len(one.changes)
        source = {"path": str(tmp_path / "out" / f"topic={spoken}" / "*"), "format": spoken}
        rules = [{"match": "*", "keys": ["id"], "columns": TYPES, "into": f"f_{spoken}.{{table}}"}]
        back = made(spoken, source, lake(warehouse))
        run(back, spark)
        for table in ("orders", "items"):
            assert stored(spark, back, f"f_{spoken}", table) == rows(one, table), (spoken, table)


@pytest.mark.parametrize("kind", [None, "delta", "iceberg"])
def test_what_is_bad_is_kept_for_every_sink_and_goes_to_each_after_a_fix(
    spark: SparkSession, tmp_path: Path, warehouse: Path, kind: str | None
) -> None:
    one, bad = shop(15, f"bad_{kind}", 10), shop(16, f"bad_{kind}", 10, tables=("items",))
    write(tmp_path / "in", [[*one.lines(spark, "canal"), *bad.lines(spark, "oms-typed")]])
    tables = [{"type": kind, "path": str(warehouse / kind)}] if kind else []
    files = [
        {"type": "files", "path": str(tmp_path / "out"), "format": spoken, "topic": spoken}
        for spoken in ("canal", "oms")
    ]

    def made(spoken: str, sinks: list[dict[str, Any]]) -> Pipeline:
        """Any: words of the YAML file."""
        source = {"type": "files", "path": str(tmp_path / "in"), "format": spoken}
        rules = [{"match": "*", "keys": ["id"], "columns": TYPES}]
        words = {"source": source, "sink": sinks, "tables": rules, "checkpoint": str(tmp_path / "notes")}
        return config.pipeline(words, name=f"bad-{kind}")

    def lines(spoken: str) -> int:
        files = (tmp_path / "out" / f"topic={spoken}").glob("batch=*/part-*")
        return sum(len(file.read_text().splitlines()) for file in files)

    both = [*tables, *files]
    every = made("canal", both)
    # As if it had been killed when the first of the sinks had all, and then once more at the very end.
    for sinks in (both[:1], both, both):
        now = made("canal", sinks)
        applied = now.apply(now.source.sample(spark), Mark("bad", 0))
        kept = every.quarantined(spark)
        assert kept is not None
        assert applied.quarantined == kept.count() == len(bad.changes) * len(sinks)
    told = {spoken: lines(spoken) for spoken in ("canal", "oms")}
    assert made("auto", both).replay(spark) is not None
    # A change of a row's key is two messages.
    assert all(lines(spoken) >= many + len(bad.changes) for spoken, many in told.items())
    kept = every.quarantined(spark)
    assert kept is not None
    assert kept.isEmpty()
    if kind:
        assert stored(spark, every, f"bad_{kind}", "items") == rows(bad, "items")


def _mark(made: Pipeline) -> Mark:
    """The mark of its first batch, which is known by its checkpoint."""
    known = json.loads((Path(made.checkpoint) / "metadata").read_text("utf-8"))
    return Mark(f"{made.name}/{known['id']}", 0, replayed=True)


def test_a_hundred_tables_in_one_topic(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> None:
    names = [f"t{n}" for n in range(100)]
    one = shop(2, "k_many", 400, tables=names)
    produce(kafka, topic(kafka, "many", 3), [(keyed(row), value) for row, _, value in one.messages(spark, "oms-typed")])
    sink = to_kafka(kafka, "canal", "many.{table}", partitions=1)
    made = pipeline(kafka, tmp_path, "many", {"topics": ["many"], "format": "oms-typed"}, sink)
    run(made, spark)
    rng = random.Random(1)
    for name in rng.sample(sorted(one.model.changes), 10):
        sent = [m for m in consumed(kafka, f"many.{name}") if m.value]
        moves = sum(
            1
            for change in one.changes
            if change["relation"].table == name and change["after"] and change["after"]["id"] != change["key"]["id"]
        )
        assert len(sent) == one.model.changes[name] + moves
        assert {m.json["table"] for m in sent} == {name}


def test_a_heartbeat_goes_to_every_partition_when_nothing_else_comes(
    spark: SparkSession, kafka: Kafka, tmp_path: Path
) -> None:
    topic(kafka, "idle", 1)
    sink = to_kafka(kafka, "dataworks", "beats", partitions=2, heartbeat=1)
    made = pipeline(kafka, tmp_path, "beats", {"topics": ["idle"], "format": "canal"}, sink)
    (target,) = made.targets
    assert isinstance(target, Sending)
    assert target.beat(spark)
    beats = consumed(kafka, "beats")
    assert [m.partition for m in beats] == [0, 1]
    assert all(m.json["payload"]["op"] == "HEARTBEAT" and not m.sent for m in beats)


def test_flink_reads_what_is_sent_in_its_formats(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> None:
    assert FLINK.exists(), "make flink"
    one = shop(12, "k_flink", 60)
    produce(
        kafka, topic(kafka, "flink.in", 1), [(keyed(row), value) for row, _, value in one.messages(spark, "oms-typed")]
    )
    sinks = [
        to_kafka(kafka, "canal", "flink.canal", partitions=1),
        to_kafka(kafka, "arcion", "flink.arcion", partitions=1),
    ]
    run(pipeline(kafka, tmp_path, "flink", {"topics": ["flink.in"], "format": "oms-typed"}, sinks), spark)
    # Arcion's messages are Debezium's with a schema, but for its own mark after a delete.
    for spoken, reader, *options in (
        ("canal", "canal-json"),
        ("arcion", "debezium-json", "debezium-json.schema-include=true"),
    ):
        lines = [m.value for m in consumed(kafka, f"flink.{spoken}") if m.value and m.value.startswith(b"{")]
        file = tmp_path / f"{spoken}.jsonl"
        file.write_bytes(b"\n".join(lines) + b"\n")
        command = [str(FLINK), str(Path(__file__).parent / "flink_reads.py"), str(file), reader, *options]
        told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
        expected = {
            str(key): [row["name"], None if row["amount"] is None else str(row["amount"])]
            for key, row in rows(one).items()
        }
        assert json.loads(told.splitlines()[-1]) == expected, spoken
