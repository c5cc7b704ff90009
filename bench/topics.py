"""Topics: what translating one costs beside copying it, and how long a message is on its way.

usage: topics.py: writes its part of results.md anew. `--quick` is a trial with few messages.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from itertools import cycle, islice, product
from multiprocessing import get_context
from pathlib import Path

import generate
import meter
import run
from apply import alone
from confluent_kafka import Consumer, Producer, TopicPartition
from delays import LANES, PATIENCE, admin, going, make_topic, paced, receive
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from results import DelayRun, TopicRun
from shop import TABLES, Data
from spark import ENVELOPES
from worker import EngineError, Run, Worker

from changeglot import jars, rocketmq
from changeglot.apply.route import Rule
from changeglot.pipeline import Pipeline
from changeglot.sinks.delta import Delta
from changeglot.sinks.kafka import Kafka as KafkaSink
from changeglot.sources.kafka import Kafka as KafkaSource
from changeglot.target import LOG

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "tools"))

from services import Kafka, RocketMQ  # noqa: E402  # The folder of tools is none of Python's.

DATA = HERE / "data" / "topics"
LOGS = DATA.parent / "logs"
ROUNDS = 3
#: Rounds that are not counted: Java is slow until it has compiled what it runs.
WARM = 4
SHOP = "shop"
#: So the time stands in a message that was sent.
STAMPED = r'"es":(\d+)'
RATES = (1_000, 20_000)
#: An environment with Spark 4.2, as `make spark42` makes it, for real-time mode.
SPARK42 = HERE.parent / ".venv-spark42"
#: Different messages that are sent again and again where the delay is measured.
DIFFERENT = 10_000

#: A contender: in the round of that number, what it took and what then was there.
Turn = Callable[[int], tuple[Run, int]]


def timed(job: Callable[[], object], *others: int) -> Run:
    """What a job takes in this process and those below it, but for the processes of others among them."""

    def cpu() -> float:
        return meter.cpu_seconds(os.getpid()) - sum(map(meter.cpu_seconds, others))

    begun, before = time.monotonic(), cpu()
    job()
    return Run(time.monotonic() - begun, cpu() - before, 0)


def turns(part: str, messages: int, rounds: int, contenders: dict[str, Turn]) -> list[TopicRun]:
    """Every contender once a round, taking turns; the first rounds are to warm up."""
    found = {who: TopicRun(part, who, messages, [], [], []) for who in contenders}
    for number in range(WARM + rounds):
        for who, turn in contenders.items():
            took, out = turn(number)
            run.say(f"round {number}: {part}, {who}: {took.wall:.1f} s, {took.cpu:.1f} s of CPU; {out:,} out")
            if number >= WARM:
                found[who].clock.append(took.wall)
                found[who].cpu.append(took.cpu)
                found[who].out.append(out)
    return list(found.values())


def keys_and_values(rows: DataFrame) -> DataFrame:
    return rows.select("key", "value")


def by_hand(rows: DataFrame) -> DataFrame:
    """A change a row, with its images as maps: as a person reads Canal by what Spark has, in the order of offsets."""
    body = F.from_json(F.col("value").cast("string"), ENVELOPES["canal"])
    told = rows.select("partition", "offset", body.alias("body")).select("partition", "offset", "body.*")
    changed = F.arrays_zip("data", "old")
    return told.select("*", F.explode_outer(changed)).drop("data", "old").select("*", "col.*").drop("col")


class Topics:
    """The topics of a broker of Kafka's, each of two partitions."""

    def __init__(self, spark: SparkSession, kafka: Kafka) -> None:
        self.spark, self.kafka, self.address = spark, kafka, kafka.address

    def make(self, topic: str) -> str:
        return make_topic(self.address, topic)

    def drop(self, topic: str) -> int:
        """How many messages the topic had, which is gone then."""
        looking = Consumer({"bootstrap.servers": self.address, "group.id": "bench"})
        bounds = [looking.get_watermark_offsets(TopicPartition(topic, lane)) for lane in range(LANES)]
        looking.close()
        client = admin(self.address)
        client.delete_topics([topic])[topic].result()
        return sum(end - first for first, end in bounds)

    def load(self, data: Data, messages: int) -> None:
        """The shop's Canal messages, as many as are wanted, each partition with those of one file."""
        lane = f"partition < {LANES} AND offset < {messages // LANES}"
        wanted = self.spark.read.parquet(str(data.parquet("canal"))).where(lane).select("value", "partition")
        to = {"kafka.bootstrap.servers": self.address, "topic": self.make(SHOP)}
        wanted.write.format("kafka").options(**to).save()

    def copied(self, to: str, *, sink: str, read: Callable[[DataFrame], DataFrame] = keys_and_values) -> StreamingQuery:
        """Spark's own: keys and values as they are, or what is read of them, into a topic or a Delta table."""
        source = {"kafka.bootstrap.servers": self.address, "subscribe": SHOP, "startingOffsets": "earliest"}
        rows = read(self.spark.readStream.format("kafka").options(**source).load())
        where = {"kafka.bootstrap.servers": self.address, "topic": to} if sink == "kafka" else {"path": to}
        write = rows.writeStream.format(sink).options(**where, checkpointLocation=checkpoint())
        return write.trigger(availableNow=True).start()

    def pipeline(self, source: str, sink: Delta | KafkaSink, into: str = "") -> Pipeline:
        """From Canal messages into the sink; into its tables as a log of changes."""
        return Pipeline(
            name="bench",
            source=KafkaSource(self.address, (source,)),
            sinks=(sink,),
            checkpoint=checkpoint(),
            rules=(Rule("*", into=into, mode=("append",)),),
            format="canal",
        )

    def sink(self, topic: str, spoken: str, **options: str) -> KafkaSink:
        return KafkaSink(servers=self.address, topic=topic, format=spoken, options=options)


def checkpoint() -> str:
    """A new one."""
    return str(DATA / "checkpoints" / str(time.time_ns()))


def to_kafka(topics: Topics, messages: int, rounds: int) -> list[TopicRun]:
    """A topic into another one."""

    def turn(start: Callable[[str], StreamingQuery]) -> Turn:
        def one(_: int) -> tuple[Run, int]:
            to = topics.make(f"out-{time.time_ns()}")
            took = timed(lambda: start(to).awaitTermination(), topics.kafka.pid)
            return took, topics.drop(to)

        return one

    def translated(spoken: str, **options: str) -> Turn:
        return turn(lambda to: topics.pipeline(SHOP, topics.sink(to, spoken, **options)).run(topics.spark))

    contenders = {
        "Spark, copied": turn(lambda to: topics.copied(to, sink="kafka")),
        "changeglot, canal to canal": translated("canal"),
        "changeglot, canal to arcion without schemas": translated("arcion", schemas="false"),
    }
    return turns("Kafka to Kafka", messages, rounds, contenders)


def to_delta(topics: Topics, messages: int, rounds: int) -> list[TopicRun]:
    """A topic into Delta tables, all of its changes."""
    sink = Delta(path=str(DATA / "delta"))

    def copied(read: Callable[[DataFrame], DataFrame]) -> Turn:
        def one(_: int) -> tuple[Run, int]:
            path = str(DATA / "raw" / str(time.time_ns()))
            took = timed(lambda: topics.copied(path, sink="delta", read=read).awaitTermination(), topics.kafka.pid)
            return took, topics.spark.read.format("delta").load(path).count()

        return one

    def logged(into: str, names: Sequence[str]) -> Turn:
        def one(_: int) -> tuple[Run, int]:
            database = f"shop_{time.time_ns()}"
            made = topics.pipeline(SHOP, sink, f"{database}.{into}")
            took = timed(lambda: made.run(topics.spark).awaitTermination(), topics.kafka.pid)
            return took, sum(topics.spark.table(sink.identifier(database, name + LOG)).count() for name in names)

        return one

    contenders = {
        "Spark, bytes": copied(keys_and_values),
        "Spark, from_json": copied(by_hand),
        "changeglot, one log": logged("changes", ["changes"]),
        "changeglot, a log for each table": logged("{table}", list(TABLES)),
    }
    return turns("Kafka to Delta", messages, rounds, contenders)


def from_rocketmq(spark: SparkSession, data: Data, messages: int, rounds: int) -> list[TopicRun]:
    """A topic of RocketMQ's, read and dropped."""
    rocketmq.register(spark)
    with RocketMQ.start(DATA / "services") as service:
        server = {"nameServers": service.address}
        wanted = spark.read.parquet(str(data.parquet("canal"))).where(f"partition < 2 AND offset < {messages // 2}")
        wanted.select("value").write.format("rocketmq").options(**server, topic=SHOP).mode("append").save()
        rows = spark.read.format("rocketmq").options(**server, topics=SHOP).load()
        # A broker finds messages a little after it has taken them.
        deadline = time.monotonic() + PATIENCE
        while (there := rows.count()) < messages and time.monotonic() < deadline:
            time.sleep(0.5)
        classes = os.pathsep.join(map(str, jars.resolve(["org.apache.rocketmq:rocketmq-client:5.5.0"])))
        client = [
            *("java", "-Xmx1g", "-XX:+UseParallelGC", f"-Duser.home={DATA}", "-cp", classes),
            *(str(HERE / "java" / "Reader.java"), service.address, SHOP, str(messages)),
        ]
        with closing(Worker(client, LOGS / "rocketmq.log")) as java:

            def theirs(_: int) -> tuple[Run, int]:
                # It tells of it, if it has not read them all.
                return java.run(java.contenders[0]), messages

            def ours(_: int) -> tuple[Run, int]:
                job = rows.write.format("noop").mode("overwrite").save
                return timed(job, service.pid, java.process.pid), there

            contenders = {"RocketMQ's client in Java": theirs, "changeglot, source of Spark": ours}
            return turns("RocketMQ", messages, rounds, contenders)


def send(address: str, topic: str, lines: Sequence[bytes], rate: int, seconds: int) -> float:
    """Sends so many messages a second, evenly, each with the time in its `es`; gives how many a second it were."""
    halves = [re.split(rb'(?<="es":)\d+', line, maxsplit=1) for line in lines]
    producer = Producer({"bootstrap.servers": address, "queue.buffering.max.messages": 10_000_000})
    messages = cycle(halves)

    def some(numbers: range) -> None:
        stamp = b"%d" % (time.time() * 1000)
        for head, tail in islice(messages, len(numbers)):
            producer.produce(topic, head + stamp + tail)

    sent = paced(rate, seconds, some, producer.poll)
    producer.flush()
    return sent


@contextmanager
def batches(topics: Topics, come: str, go: str) -> Iterator[None]:
    """A pipeline from one topic to the other, meanwhile."""
    with going(topics.pipeline(come, topics.sink(go, "canal")).run(topics.spark, once=False)):
        yield


@contextmanager
def real_time(topics: Topics, come: str, go: str) -> Iterator[None]:
    """A translation in real-time mode, in a process of its own, since it wants another Spark."""
    words = [
        str(SPARK42 / "bin" / "python"),
        str(HERE / "realtime.py"),
        topics.address,
        come,
        go,
        checkpoint(),
        str(LANES),
    ]
    paths = {**os.environ, "PYTHONPATH": str(HERE.parent / "src")}
    with (LOGS / "realtime.log").open("w") as log:
        process = subprocess.Popen(words, env=paths, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
    assert process.stdin is not None
    assert process.stdout is not None
    if not process.stdout.readline():
        raise EngineError("real-time mode did not start: see realtime.log")
    yield
    process.stdin.close()
    if process.wait():
        raise EngineError("real-time mode stopped: see realtime.log")


def delays(topics: Topics, data: Data, warm: int, seconds: int) -> Iterator[DelayRun]:
    """How long messages are on their way through a query that goes on, in each mode and at each rate."""
    with (data.text("canal") / "part-000.txt").open("rb") as file:
        lines = [line.rstrip(b"\n") for line in islice(file, DIFFERENT)]
    modes = {"micro-batch": batches, **({"real-time": real_time} if (SPARK42 / ".installed").exists() else {})}
    # What is beside the query has processes of its own, as it would have machines.
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        for mode, rate in product(modes, RATES):
            come, go = topics.make(f"come-{mode}-{rate}"), topics.make(f"go-{mode}-{rate}")
            with modes[mode](topics, come, go):
                count = rate * (warm + seconds)
                received = pool.submit(receive, topics.address, go, STAMPED, count, warm, seconds)
                sent = pool.submit(send, topics.address, come, lines, rate, warm + seconds)
                known = {"sent": sent.result(), **received.result()}
            found = DelayRun(rate=rate, seconds=seconds, mode=mode, **known)
            run.say(f"{mode}, {rate:,} messages a second: {found}")
            yield found


def from_kafka(
    spark: SparkSession, data: Data, messages: int, rounds: int, warm: int, seconds: int
) -> Iterator[TopicRun | DelayRun]:
    """All that has to do with Kafka."""
    with Kafka.start(DATA / "services") as service:
        topics = Topics(spark, service)
        topics.load(data, messages)
        yield from to_kafka(topics, messages, rounds)
        yield from to_delta(topics, messages, rounds)
        yield from delays(topics, data, warm, seconds)


def main() -> None:
    def each(spark: SparkSession, options: argparse.Namespace) -> list[TopicRun | DelayRun]:
        LOGS.mkdir(parents=True, exist_ok=True)
        rows = run.QUICK_ROWS if options.quick else generate.ROWS
        data = generate.generate(run.DATA / str(rows), rows)
        many, fewer, warm, seconds = (20_000, 20_000, 5, 5) if options.quick else (400_000, 200_000, 10, 20)
        of_kafka = list(from_kafka(spark, data, many, options.rounds, warm, seconds))
        return [*of_kafka, *from_rocketmq(spark, data, fewer, options.rounds)]

    sources = (KafkaSource("", ("any",)),)
    alone(__doc__.splitlines()[0], ROUNDS, DATA, "topics", each, sources)


if __name__ == "__main__":
    main()
