"""How long a commit is on its way: from PostgreSQL, through a pipeline that goes on, into a Delta table and a topic."""

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psycopg
from delays import PATIENCE, going, known, make_topic, paced, receive
from pyspark.sql import SparkSession
from results import DelayRun
from run import say

from changeglot.apply.route import Rule
from changeglot.pipeline import Pipeline
from changeglot.sinks.delta import Delta
from changeglot.sinks.kafka import Kafka as KafkaSink
from changeglot.sources.postgres import Postgres as PostgresSource
from changeglot.throwaway.databases import Postgres

sys.path.append(str(Path(__file__).resolve().parent.parent / "tools"))

from services import Kafka  # The folder of tools is none of Python's.

#: Transactions in a second, each of one row, which bears the milliseconds since 1970 just before it is committed.
RATE = 100
COLUMNS = "id bigint PRIMARY KEY, at bigint NOT NULL, note text"
INSERT = "INSERT INTO {} VALUES (%s, %s, 'a note of ' || %s)"
#: So the stamp stands in a message.
STAMPED = r'"at":"?(\d+)'


def commit(dsn: str, table: str, seconds: int) -> float:
    """Commits rows, evenly; gives how many a second it were."""
    with psycopg.connect(dsn, autocommit=True) as connection:

        def send(numbers: range) -> None:
            for number in numbers:
                connection.execute(INSERT.format(table).encode(), (number, int(time.time() * 1000), number))

        return paced(RATE, seconds, send, time.sleep)


def source(postgres: Postgres, table: str) -> PostgresSource:
    return PostgresSource(
        host="127.0.0.1",
        port=postgres.port,
        database=postgres.database,
        user=postgres.user,
        tables=(f"public.{table}",),
        publication=table,
        slot=table,
        snapshot="no_data",
    )


def committed(spark: SparkSession, sink: Delta, table: str, count: int, warm: int, seconds: int) -> dict[str, Any]:
    """What `known` tells of rows of the table, each read when the commit of the version began to exist that has it."""
    time.sleep(warm + seconds)
    rows, deadline = sink.identifier("bench", table), time.time() + PATIENCE
    while time.time() < deadline:
        # Not at once: a look takes time from the last ones.
        time.sleep(3)
        if sink.exists(spark, rows) and spark.table(rows).count() >= count:
            break
    read: list[tuple[float, float]] = []
    log = Path(sink.path, "bench", table, "_delta_log")
    seen = 0
    for path in sorted(log.glob("[0-9]*.json")):
        version = f"SELECT id, at FROM {rows} VERSION AS OF {int(path.stem)} WHERE id >= {seen} ORDER BY id"
        new = spark.sql(version).collect()
        # All that was committed before is there too, or this is no delay.
        assert [row.id for row in new] == list(range(seen, seen + len(new)))
        seen += len(new)
        read += [(row.at / 1000, path.stat().st_ctime) for row in new]
    return known(read, count, warm, seconds)


def delays(
    spark: SparkSession, postgres: Postgres, kafka: Kafka, folder: Path, warm: int, seconds: int
) -> Iterator[DelayRun]:
    """Into a table of rows as they are now, and into a topic."""
    count = RATE * (warm + seconds)
    sink, go = Delta(path=str(folder / "tables")), make_topic(kafka.address, "go")
    # Who writes and who reads have processes of their own, as they would have machines.
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:

        def from_table() -> dict[str, Any]:
            return committed(spark, sink, "to_delta", count, warm, seconds)

        def from_topic() -> dict[str, Any]:
            return pool.submit(receive, kafka.address, go, STAMPED, count, warm, seconds).result()

        ways: dict[str, tuple[str, Delta | KafkaSink, Callable[[], dict[str, Any]]]] = {
            "into a Delta table, scd1": ("to_delta", sink, from_table),
            "into Kafka, Canal": ("to_kafka", KafkaSink(servers=kafka.address, topic=go, format="canal"), from_topic),
        }
        for mode, (table, into, found) in ways.items():
            with psycopg.connect(postgres.dsn, autocommit=True) as connection:
                connection.execute(f"CREATE TABLE {table} ({COLUMNS})".encode())
            pipeline = Pipeline(
                name=table,
                source=source(postgres, table),
                sinks=(into,),
                checkpoint=str(folder / "checkpoints" / table),
                rules=(Rule("*", into=f"bench.{table}"),),
            )
            with going(pipeline.run(spark, once=False)):
                sent = pool.submit(commit, postgres.dsn, table, warm + seconds)
                told = found()
            one = DelayRun(rate=RATE, seconds=seconds, mode=mode, sent=sent.result(), **told)
            say(f"{mode}, {RATE:,} commits a second: {one}")
            yield one
