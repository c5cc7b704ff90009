"""RocketMQ as a source and a sink of Spark, against a real broker that lets in one user alone."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import struct
import subprocess
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from services import RocketMQ
from shop import TYPES
from test_kafka import every_format, run

import changeglot
from changeglot import config, jars, rocketmq
from changeglot.codecs import CODECS
from changeglot.errors import ConfigError
from changeglot.options import options_of
from changeglot.rocketmq.client import Client, Sender
from changeglot.rocketmq.connection import Ask, Credentials
from changeglot.rocketmq.datasource import SCHEMA, LimitedQueueStream, Stretch
from changeglot.rocketmq.messages import decoded, maps, outgoing, sharded
from changeglot.rocketmq.options import Reading, Writing, given
from changeglot.rocketmq.writer import checked

USER, PASSWORD = "ann-of-tests", "not-to-be-shown"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    with RocketMQ.start(tmp_path_factory.mktemp("rocketmq"), user=USER, password=PASSWORD) as service:
        yield service


@pytest.fixture
def client(broker: RocketMQ) -> Iterator[Client]:
    with Client([broker.address], credentials=Credentials(USER, PASSWORD), timeout=60) as client:
        yield client


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid.uuid4().hex}"


class Messages:
    """What the tests do with topics."""

    def __init__(self, spark: SparkSession, client: Client, address: str) -> None:
        self.spark = spark
        self.client = client
        self.options = {"nameServers": address, "accessKey": USER, "secretKey": PASSWORD}

    def write(self, rows: DataFrame, topic: str, count: int, **options: str) -> None:
        """All are there when it returns: brokers count a message some milliseconds after they took it."""
        there = self.count(topic)
        rows.write.format("rocketmq").options(**{**self.options, "topic": topic, **options}).mode("append").save()
        self.wait(topic, there + count)

    def send(self, topic: str, numbers: Iterable[int], *queues: int) -> None:
        """The same without Spark: to these of three queues, by turns."""
        there = self.count(topic)
        route = self.client.route_or_create(topic, 3)
        sender, sent = Sender(self.client, "tests"), 0
        for sent, number in enumerate(numbers, 1):
            each = queues[sent % len(queues)] if queues else sent % len(route.writable)
            sender.add(route.writable[each], outgoing(str(number).encode(), {}))
        sender.flush()
        self.wait(topic, there + sent)

    def wait(self, topic: str, count: int) -> None:
        deadline = time.monotonic() + 30
        while self.count(topic) < count:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def wait_for_queues(self, topic: str, count: int) -> None:
        deadline = time.monotonic() + 30
        while len(self.client.route(topic).readable) != count:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def count(self, topic: str) -> int:
        try:
            return sum(each.end for each in self.client.bounds(self.client.route(topic).readable).values())
        except rocketmq.NoTopic:
            return 0

    def read(self, topics: str, **options: str) -> DataFrame:
        return self.spark.read.format("rocketmq").options(**{**self.options, "topics": topics, **options}).load()

    def stream(self, topics: str, folder: Path, **options: str) -> list[Row]:
        """What a query brings that ends with what is there, and goes on from the last one in the folder."""
        stream = (
            self.spark.readStream.format("rocketmq").options(**{**self.options, "topics": topics, **options}).load()
        )
        found: list[Row] = []
        query = (
            stream.writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect()))
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return found


@pytest.fixture
def messages(spark: SparkSession, broker: RocketMQ, client: Client) -> Messages:
    rocketmq.register(spark)
    return Messages(spark, client, broker.address)


def numbers(rows: Sequence[Row]) -> list[int]:
    return sorted(int(row["value"]) for row in rows)


def placed(frame: DataFrame) -> list[Row]:
    """Its rows as they are in the queues."""
    return sorted(frame.collect(), key=lambda row: (row["topic"], row["queue"], row["offset"]))


def one(spark: SparkSession, value: object = "any") -> DataFrame:
    return spark.range(1, numPartitions=1).select(F.lit(value).alias("value"))


def test_what_is_written_is_read(spark: SparkSession, messages: Messages, topic: str) -> None:
    big = os.urandom(3 << 20)
    rows = [
        (b"key of two words", b"plain", "red", {"colour": "häßlich", "empty": ""}),
        (None, b"\x00\xff\x01\x02\x80", None, None),
        ("grüße".encode(), b"", "", {}),
        (b"null", None, "blue", {"KEYS": "overridden", "UNIQ_KEY": "not mine", "TRAN_MSG": "true"}),
        (b"big", big, None, None),
    ]
    columns = "key BINARY, value BINARY, tags STRING, properties MAP<STRING, STRING>"
    messages.write(spark.createDataFrame(rows, columns), topic, len(rows))
    frame = messages.read(topic)
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,broker:string,queue:int,offset:bigint,tags:string,"
        "properties:map<string,string>,bornAt:timestamp,storedAt:timestamp>"
    )
    found = {row["key"] and bytes(row["key"]): row for row in frame.collect()}
    assert len(found) == len(rows)
    assert {key: bytes(row["value"]) for key, row in found.items()} == {
        b"key of two words": b"plain",
        None: b"\x00\xff\x01\x02\x80",
        "grüße".encode(): b"",
        b"null": b"",
        b"big": big,
    }
    assert {key: row["tags"] for key, row in found.items() if row["tags"]} == {
        b"key of two words": "red",
        b"null": "blue",
    }
    assert found[b"key of two words"]["properties"].items() >= {"colour": "häßlich", "TAGS": "red"}.items()
    assert "empty" not in found[b"key of two words"]["properties"]
    assert "TRAN_MSG" not in found[b"null"]["properties"]
    assert len({row["properties"]["UNIQ_KEY"] for row in found.values()}) == len(rows)
    assert {(row["topic"], row["broker"]) for row in found.values()} == {(topic, "broker-a")}
    for row in found.values():
        assert timedelta() <= row["storedAt"] - row["bornAt"] < timedelta(minutes=5)
        assert abs(row["storedAt"].timestamp() - time.time()) < 3600


def test_a_stream_goes_on_where_it_stood(messages: Messages, topic: str, tmp_path: Path) -> None:
    messages.send(topic, range(10_000))
    assert numbers(messages.stream(topic, tmp_path)) == list(range(10_000))
    assert messages.stream(topic, tmp_path) == []
    messages.send(topic, range(10_000, 10_500))
    assert numbers(messages.stream(topic, tmp_path)) == list(range(10_000, 10_500))


def test_a_new_queue_and_a_new_topic_are_read_from_their_beginning(
    messages: Messages, topic: str, tmp_path: Path
) -> None:
    messages.send(topic, range(10))
    assert messages.stream(topic, tmp_path, startingOffsets="latest") == []
    assert len(messages.client.route_or_create(topic, 9).readable) == 3
    messages.client.set_queues(topic, 5)
    messages.wait_for_queues(topic, 5)
    messages.send(topic, range(10, 15), 4)
    messages.send(f"{topic}-2", range(15, 20))
    assert numbers(messages.stream(f"{topic}, {topic}-2", tmp_path, startingOffsets="latest")) == list(range(10, 20))


def test_messages_of_a_sharding_key_keep_their_order(spark: SparkSession, messages: Messages, topic: str) -> None:
    rows = spark.range(20_000).select(
        F.col("id").cast("string").alias("value"), F.concat(F.lit("k"), F.col("id") % 37).alias("shardingKey")
    )
    ordered = rows.repartition(2, "shardingKey").sortWithinPartitions(F.col("value").cast("int"))
    messages.write(ordered, topic, 20_000)
    by_key = defaultdict(list)
    for row in placed(messages.read(topic)):
        by_key[row["properties"]["__SHARDINGKEY"]].append((row["queue"], int(row["value"])))
    assert len(by_key) == 37
    for key, found in by_key.items():
        assert {queue for queue, _ in found} == {sharded(key, 8)}
        assert [value for _, value in found] == list(range(int(key[1:]), 20_000, 37))


def test_rows_go_where_they_say(spark: SparkSession, messages: Messages, topic: str) -> None:
    rows = [("a", f"{topic}-1", 3), ("b", f"{topic}-2", 0), ("c", f"{topic}-1", 3), ("d", None, 7)]
    frame = spark.createDataFrame(rows, "value STRING, topic STRING, queue INT").coalesce(1)
    frame.write.format("rocketmq").options(**messages.options, topic=f"{topic}-3").mode("append").save()
    for number in (1, 2, 3):
        messages.wait(f"{topic}-{number}", 1)
    found = placed(messages.read(",".join(f"{topic}-{number}" for number in (1, 2, 3))))
    assert [(bytes(row["value"]).decode(), row["topic"], row["queue"]) for row in found] == [
        ("a", f"{topic}-1", 3),
        ("c", f"{topic}-1", 3),
        ("b", f"{topic}-2", 0),
        ("d", f"{topic}-3", 7),
    ]
    with pytest.raises(PySparkException, match="a row asks for queue 8, and there are 8, counted from 0"):
        messages.write(frame.withColumn("queue", F.lit(8)), topic, 0)


def test_the_same_offsets_give_the_same_messages(messages: Messages, topic: str) -> None:
    messages.send(topic, range(300), 0, 1)
    start = json.dumps({topic: {"broker-a:0": 10, "broker-a:1": 20}})
    end = json.dumps({topic: {"broker-a:0": 15, "broker-a:1": 120}})
    first = placed(messages.read(topic, startingOffsets=start, endingOffsets=end))
    places = [(0, offset) for offset in range(10, 15)] + [(1, offset) for offset in range(20, 120)]
    assert [(row["queue"], row["offset"]) for row in first] == places
    messages.send(topic, range(300, 400))
    assert placed(messages.read(topic, startingOffsets=start, endingOffsets=end)) == first
    assert len(messages.read(topic, startingOffsets=json.dumps({topic: {"broker-a:0": 10}})).collect()) == 390
    assert messages.read(topic, startingOffsets="latest").collect() == []


def test_a_batch_takes_no_more_than_it_may_and_tools_see_how_far_it_is(messages: Messages, topic: str) -> None:
    messages.send(topic, range(3000), 1)
    messages.send(topic, range(3000, 3100), 2)
    group = f"group-{topic}"
    stream = LimitedQueueStream(given(Reading, {**messages.options, "topics": topic, "consumerGroup": group}))
    stream.prepareForTriggerAvailableNow()
    messages.send(topic, range(3100, 3200))
    start, limit, found = stream.initialOffset(), SimpleNamespace(max_rows=1000), []
    while (end := stream.latestOffset(start, limit)) != start:
        batch = []
        for part in stream.partitions(start, end):
            assert isinstance(part, Stretch)
            batch += [row["value"] for rows in stream.read(part) for row in rows.to_pylist()]
        assert len(batch) <= 1000
        found += batch
        start = end
    stream.commit(end)
    stream.stop()
    assert sorted(map(int, found)) == list(range(3100))
    for queue in messages.client.route(topic).readable:
        fields, soon = {"consumerGroup": group, "topic": topic, "queueId": str(queue.number)}, messages.client.soon()
        # QUERY_CONSUMER_OFFSET: we have no use for it ourselves.
        answer = messages.client.connection(queue, soon).call(cast("Ask", 14), fields, deadline=soon)
        assert int(answer.fields["offset"]) == end[topic][queue.name]


def test_a_stream_is_written(messages: Messages, topic: str, tmp_path: Path) -> None:
    messages.send(topic, range(300))
    options = {**messages.options, "topics": topic, "consumerGroup": "tests"}
    stream = messages.spark.readStream.format("rocketmq").options(**options).load()
    sink = stream.selectExpr("value AS key", "value", "tags", "properties").writeStream.format("rocketmq")
    sink = sink.options(**messages.options, topic=f"{topic}-copy", checkpointLocation=str(tmp_path))
    for _ in range(2):
        sink.trigger(availableNow=True).start().awaitTermination()
    messages.wait(f"{topic}-copy", 300)
    copies = messages.read(f"{topic}-copy").collect()
    assert numbers(copies) == list(range(300))
    assert all(row["key"] == row["value"] for row in copies)


def test_a_broker_that_is_killed_is_waited_for(
    broker: RocketMQ, client: Client, messages: Messages, topic: str, tmp_path: Path
) -> None:
    messages.send(topic, range(2000), 0)
    assert numbers(messages.stream(topic, tmp_path)) == list(range(2000))
    first, second, _ = client.route(topic).writable
    pulled = client.pull(first, 0, 2000, group="tests")
    found = list(next(pulled).bodies)
    sent: list[BaseException] = []
    half, killed = threading.Event(), threading.Event()

    def send() -> None:
        with Client([broker.address], credentials=Credentials(USER, PASSWORD), timeout=100) as other:
            sender = Sender(other, "tests")
            for number in range(2000, 42_000):
                sender.add(second, outgoing(str(number).encode() + b" " * 300, {}))
                if number == 20_000:
                    half.set()
                    killed.wait(60)
            sender.flush()
            sent.clear()

    sent.append(AssertionError("not all was sent"))
    sending = threading.Thread(target=send)
    sending.start()
    half.wait(60)
    broker.kill()
    killed.set()
    broker.restart()
    sending.join(120)
    assert not sent
    found += [body for several in pulled for body in several.bodies]
    assert sorted(map(int, found)) == list(range(2000))
    # At least once, and in order but for what was sent again.
    messages.wait(topic, 42_000)
    arrived = numbers_in_order(messages.stream(topic, tmp_path))
    assert sorted(set(arrived)) == list(range(2000, 42_000))
    firsts = list(dict.fromkeys(arrived))
    assert firsts == sorted(firsts)


def numbers_in_order(rows: Sequence[Row]) -> list[int]:
    return [int(row["value"]) for row in sorted(rows, key=lambda row: (row["queue"], row["offset"]))]


def test_messages_of_all_sizes_come_in_order(client: Client, messages: Messages, topic: str) -> None:
    # A broker gives what 256 kB hold, and one message at least: each pull may bring less than it asked for.
    bodies = [bytes([number % 256]) * (number * 37 % 100_000) for number in range(400)]
    bodies[50] = bodies[51] = b"x" * 3_000_000
    queue = client.route_or_create(topic, 1).writable[0]
    sender = Sender(client, "tests")
    for body in bodies:
        sender.add(queue, outgoing(body, {}))
    sender.flush()
    messages.wait(topic, len(bodies))
    for at_once in (1, 32, 1000):
        found = list(client.pull(queue, 0, len(bodies), group="tests", at_once=at_once))
        assert [offset for several in found for offset in several.offsets] == list(range(len(bodies)))
        assert [body for several in found for body in several.bodies] == bodies


def others(broker: RocketMQ, home: Path, to: str, of: str, count: int, *file: Path) -> list[list[str]]:
    """What RocketMQ's own client says when it has sent its messages, or those of the file, and read so many."""
    java = shutil.which("java") or str(Path(os.environ["JAVA_HOME"]) / "bin" / "java")
    classes = os.pathsep.join(map(str, jars.resolve(["org.apache.rocketmq:rocketmq-client:5.5.0"])))
    program = Path(__file__).parent / "rocketmq" / "Others.java"
    ran = subprocess.run(
        [
            *(java, "-XX:TieredStopAtLevel=1", f"-Duser.home={home}", "-Dfile.encoding=UTF-8", str(program)),
            *(broker.address, USER, PASSWORD, to, of, str(count), *map(str, file)),
        ],
        env={**os.environ, "CLASSPATH": classes},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return [line.split() for line in ran.stdout.splitlines()]


def test_messages_pass_between_the_java_client_and_this_one(
    spark: SparkSession, broker: RocketMQ, messages: Messages, topic: str, tmp_path: Path
) -> None:
    messages.client.route_or_create(f"{topic}-theirs", 8)
    rows = [
        (b"one two", "grüße".encode(), "red", {"colour": "häßlich"}, "a"),
        (None, b"\x00\xff", None, None, "a"),
        (b"empty", b"", None, None, "a"),
    ]
    columns = "key BINARY, value BINARY, tags STRING, properties MAP<STRING, STRING>, shardingKey STRING"
    messages.write(spark.createDataFrame(rows, columns).coalesce(1), topic, len(rows))
    ours = placed(messages.read(topic))
    lines = others(broker, tmp_path, f"{topic}-theirs", topic, len(rows))

    got = [line[1:] for line in lines if line[0] == "GOT"]
    assert {(int(queue), int(offset)) for queue, offset, *_ in got} == {(row["queue"], row["offset"]) for row in ours}
    assert [tuple(_text(part) for part in (keys, tags, colour)) for _, _, keys, tags, colour, _, _ in got] == [
        ("one two", "red", "häßlich"),
        (None, None, None),
        ("empty", None, None),
    ]
    assert [unique for *_, unique, _ in got] == [row["properties"]["UNIQ_KEY"] for row in ours]
    assert [base64.b64decode(body[1:]) for *_, body in got] == ["grüße".encode(), b"\x00\xff", b""]

    messages.wait(f"{topic}-theirs", 12)
    theirs = defaultdict(list)
    for row in placed(messages.read(f"{topic}-theirs")):
        theirs[bytes(row["key"]).decode()].append(row)
    plain = theirs["one two"][0]
    assert (bytes(plain["value"]).decode(), plain["tags"], plain["properties"]["colour"]) == ("grüße", "red", "häßlich")
    for how in ("LZ4", "ZSTD", "ZLIB"):
        assert bytes(theirs[how][0]["value"]) == how.encode() * 5000
    assert [bytes(row["value"]) for row in theirs["batch"]] == [b"b0", b"b1", b"b2"]
    shards = {_text(key): int(queue) for word, key, queue in (line for line in lines if line[0] == "SHARD")}
    assert {bytes(row["value"]).decode(): row["queue"] for row in theirs["sharded"]} == shards
    assert {key: sharded(str(key), 8) for key in shards} == shards


def test_the_java_client_and_pipelines_understand_each_other_in_every_format(
    spark: SparkSession, broker: RocketMQ, messages: Messages, topic: str, tmp_path: Path
) -> None:
    _, mixed = every_format(spark, "r")
    file, out = tmp_path / "lines", f"{topic}-out"
    file.write_text("".join(f"{_line(str(row).encode())} {_line(key)} {_line(value)}\n" for row, key, value in mixed))
    others(broker, tmp_path, topic, topic, 0, file)
    messages.wait(topic, len(mixed))
    # Of those that lie in one queue, and so of one row, in their order.
    theirs = [
        (None if row["key"] is None else bytes(row["key"]), bytes(row["value"])) for row in placed(messages.read(topic))
    ]
    sent = sorted(mixed, key=lambda message: sharded(str(message[0]), 4))
    assert theirs == [(key, value) for _, key, value in sent]
    at = {"type": "rocketmq", "servers": broker.address, "access_key": USER, "secret_key": PASSWORD}
    content = {
        "source": {**at, "topics": [topic], "format": "auto"},
        "sink": [{**at, "format": spoken, "topic": out} for spoken in CODECS],
        "tables": [{"match": "*", "keys": ["id"], "columns": TYPES}],
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    made = config.pipeline(content, name="every")
    run(made, spark)
    assert made.quarantined(spark) is None
    ours = messages.read(out).collect()
    got = others(broker, tmp_path, topic, out, len(ours), Path(os.devnull))
    received = [(_bytes(keys), _bytes(body)) for _, _, _, keys, _, _, _, body in got]
    assert sorted(map(str, received)) == sorted(str((bytes(row["key"]), bytes(row["value"]))) for row in ours)
    found = changeglot.decode(spark.createDataFrame(received, "key BINARY, value BINARY"))
    assert found.where("problem IS NOT NULL").select("format", "problem").collect() == []
    counts = {row["format"]: row["count"] for row in found.where("op IS NOT NULL").groupBy("format").count().collect()}
    assert counts.keys() == CODECS.keys()
    assert all(count >= len(mixed) for count in counts.values()), counts


def _line(part: bytes | None) -> str:
    return "-" if part is None else "." + base64.b64encode(part).decode()


def _bytes(part: str) -> bytes | None:
    return None if part == "-" else base64.b64decode(part[1:])


def _text(part: str) -> str | None:
    found = _bytes(part)
    return None if found is None else found.decode()


def refused(messages: Messages, *words: str, topics: str, **options: str) -> None:
    """A batch and a stream say all these words, and no secret."""
    stream = messages.spark.readStream.format("rocketmq").options(**{**messages.options, "topics": topics, **options})
    query = stream.load().writeStream.format("noop").trigger(availableNow=True)
    with pytest.raises(PySparkException) as batch:
        messages.read(topics, **options).collect()
    with pytest.raises(PySparkException) as streamed:
        query.start().awaitTermination()
    for error in (batch, streamed):
        for word in words:
            assert word in str(error.value)
        assert options.get("secretKey", PASSWORD) not in str(error.value)


def test_a_name_server_that_is_away_is_named(messages: Messages) -> None:
    away = {"nameServers": "127.0.0.1:1;127.0.0.1:2", "timeout": "0.5"}
    words = ('looking up topic "any"', "name server at 127.0.0.1:1", "127.0.0.1:2", "refused", "Is nameServers right")
    refused(messages, *words, topics="any", **away)


def test_a_topic_that_is_not_there_is_named(spark: SparkSession, messages: Messages, topic: str) -> None:
    refused(messages, f'knows no topic "{topic}"', "was it created", topics=topic)
    with pytest.raises(PySparkException, match=f'knows no topic "{topic}"'):
        messages.write(one(spark), topic, 0, createTopics="false")
    with pytest.raises(PySparkException, match="its row has no topic"):
        one(spark).write.format("rocketmq").options(**messages.options).mode("append").save()


def test_a_wrong_password_is_refused_in_the_brokers_words(spark: SparkSession, messages: Messages, topic: str) -> None:
    messages.send(topic, range(1))
    refused(messages, "refused with code 16: check signature failed", "accessKey", topics=topic, secretKey="other-word")
    with pytest.raises(PySparkException, match="refused with code 16: check signature failed") as error:
        messages.write(one(spark), topic, 0, secretKey="other-word")
    assert "other-word" not in str(error.value)


def test_a_message_that_is_too_large_is_told_by_its_size(spark: SparkSession, messages: Messages, topic: str) -> None:
    for size, words in ((5_000_000, "a body of 5000000 bytes"), (17_000_000, "more than a frame")):
        with pytest.raises(PySparkException, match=words):
            messages.write(one(spark, "x" * size), topic, 0)


def test_messages_that_are_gone_are_an_error_unless_they_may_be(messages: Messages, topic: str, tmp_path: Path) -> None:
    messages.send(topic, range(100), 0)
    before, after = (json.dumps({topic: {"broker-a:0": offset}}) for offset in (-5, 1000))
    gone = f'queue broker-a:0 of topic "{topic}": the message at offset -5 is gone; the queue begins at 0'
    refused(messages, gone, "failOnDataLoss", topics=topic, startingOffsets=before)
    beyond = f'queue broker-a:0 of topic "{topic}": offset 1000 is wanted, and the queue ends before 100'
    with pytest.raises(PySparkException, match=beyond):
        messages.read(topic, startingOffsets=after).collect()
    lossy = messages.stream(topic, tmp_path / "before", startingOffsets=before, failOnDataLoss="false")
    assert numbers(lossy) == list(range(100))
    assert messages.stream(topic, tmp_path / "after", startingOffsets=after, failOnDataLoss="false") == []
    messages.send(topic, range(100, 110), 0)
    assert numbers(messages.stream(topic, tmp_path / "after", failOnDataLoss="false")) == list(range(100, 110))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "nameServers: is missing"),
        ({"nameservers": "localhost"}, "is not host:port"),
        ({"nameservers": "a:1;:2"}, "is not host:port"),
        ({"topic": "any"}, 'topic: no such option. Did you mean "topics"?'),
        ({"topics": " , "}, "topics: names no topic"),
        ({"startingoffsets": "first"}, "Say earliest or latest"),
        ({"startingoffsets": '{"any": 3}'}, "says no offsets"),
        ({"startingoffsets": '{"other": {}}'}, 'topic "other" is not among those that are read'),
        ({"failondataloss": "perhaps"}, "neither true nor false"),
        ({"pullbatch": "many"}, "is not a number"),
        ({"timeout": "0"}, "wants seconds"),
        ({"accesskey": "ann"}, "go together"),
    ],
)
def test_a_mistake_in_an_option_is_explained(options: dict[str, str], words: str) -> None:
    needed = {"nameservers": "localhost:9876", "topics": "any"} if options else {}
    with pytest.raises(ConfigError) as error:
        given(Reading, {**needed, **options})
    assert words in str(error.value)


def test_every_option_and_column_is_in_the_docs() -> None:
    page = (Path(__file__).parents[1] / "docs" / "topics.md").read_text()
    names = {each.name for kind in (Reading, Writing) for each in options_of(kind)}
    words = {re.sub("_(.)", lambda found: found[1].upper(), name) for name in names}
    assert not [word for word in words if f"`{word}`" not in page]
    assert SCHEMA in " ".join(page.split())


def test_secrets_are_not_shown(messages: Messages) -> None:
    for made in (
        given(Writing, messages.options),
        Credentials(USER, PASSWORD),
    ):
        assert USER not in repr(made)
        assert PASSWORD not in repr(made)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("key STRING", "value: this column is missing"),
        ("value BINARY, name STRING", "name: no column that can be written"),
        ("value INT", "is of type int. Cast it to binary or string"),
        ("value STRING, properties MAP<STRING, INT>", "Cast it to MAP<STRING, STRING>"),
    ],
)
def test_a_mistake_in_a_column_is_explained(spark: SparkSession, columns: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        checked(spark.createDataFrame([], columns).schema, overwrite=False)
    assert words in str(error.value)


def test_what_rocketmq_cannot_carry_is_an_error(spark: SparkSession, messages: Messages, topic: str) -> None:
    for key, words in ((b"\xff", "not UTF-8"), (b"a\x01b", "U\\+0001"), (b"k" * 40_000, "40")):
        with pytest.raises(PySparkException, match=words):
            messages.write(one(spark).withColumn("key", F.lit(key)), topic, 0)
    with pytest.raises(PySparkException, match="appended, nothing else"):
        one(spark).write.format("rocketmq").options(**messages.options, topic=topic).mode("overwrite").save()


def stored(v6: int, magic: int) -> bytes:
    """A message as a broker stores it."""
    born, at = bytes(20 if v6 & 0x10 else 8), bytes(20 if v6 & 0x20 else 8)
    head = struct.pack(">Iiiiqqiq", magic, 0, 3, 0, 7, 99, v6, 1000) + born + struct.pack(">q", 2000) + at
    length = struct.pack(">B" if magic == 0xDAA320A7 else ">H", 5)
    rest = struct.pack(">iqi", 0, 0, 4) + b"body" + length + b"topic" + struct.pack(">h", 7) + b"a\x01b\x02c\x01d"
    return struct.pack(">i", 4 + len(head) + len(rest)) + head + rest


@pytest.mark.parametrize("v6", [0, 0x10, 0x20, 0x30])
@pytest.mark.parametrize("magic", [0xDAA320A7, 0xDAA320AB])
def test_stored_messages_of_all_layouts_are_decoded(v6: int, magic: int) -> None:
    found = decoded(stored(v6, magic) * 2 + stored(0, 0xDAA320A7))
    assert found == ([7] * 3, [b"body"] * 3, [b"a\x01b\x02c\x01d"] * 3, [1000] * 3, [2000] * 3)


def test_a_stored_message_of_an_unknown_kind_is_told() -> None:
    with pytest.raises(rocketmq.RocketMQError, match="one at offset 7 is of an unknown kind, DAA320A8"):
        decoded(stored(0, 0xDAA320A8))


@pytest.mark.parametrize(
    ("odd", "found"),
    [
        (b"no value\x02\x02a\x01b\x01c", [("a", "b\x01c")]),
        (b"a\x01b\x02c\x01d\x02a\x01e", [("a", "e"), ("c", "d")]),
        (b"a\x01b\xffc\x02", [("a", "b\ufffdc")]),
    ],
)
def test_stored_properties_become_maps(odd: bytes, found: list[tuple[str, str]]) -> None:
    made = maps([b"", odd, b"a\x01b\x02c\x01\x02", "a\x01ü".encode()])
    assert made.to_pylist() == [[], found, [("a", "b"), ("c", "")], [("a", "ü")]]
