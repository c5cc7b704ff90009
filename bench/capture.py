"""Capture: how fast a database's rows and changes are recorded, beside Debezium and COPY, and where they are when.

usage: capture.py: writes its part of results.md anew. `--quick` is a trial with few rows.
"""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import commits
import meter
import psycopg
import report
from apply import session
from psycopg import sql
from results import CaptureRun, DelayRun
from run import say
from worker import Worker

from changeglot import __version__, jars
from changeglot.capture.postgres import Chunk, Recorder, Server, copy
from changeglot.capture.spool import Spool
from changeglot.errors import MissingError
from changeglot.sources.kafka import Kafka as KafkaSource
from changeglot.throwaway.databases import Postgres

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "tools"))

from services import Kafka  # noqa: E402  # The folder of tools is none of Python's.

DATA = HERE / "data" / "capture"
ROUNDS = 5
#: Rounds that are not counted: Java is slow until it has compiled what it runs, here for some hundred thousand events.
WARM = 2
#: Processes that copy rows, as tasks of Spark's would, and threads of Debezium's.
TASKS = 2
CHANGES, ROWS = 500_000, 1_000_000

DEBEZIUM = "3.6.1.Final"
ARTIFACTS = [
    f"io.debezium:debezium-{name}:{DEBEZIUM}" for name in ("api", "embedded", "connector-postgres", "storage-file")
]
#: What says into its log what is wrong, with the API that all of them speak to it.
LOGGER = "org.slf4j:slf4j-simple:2.0.17"
#: Seconds between two attempts to fetch them: a repository that is asked for many files at once may refuse some.
PAUSES = (20, 60, 120)
#: Those that were the fastest of some that were tried, without what costs time and is not wanted.
SETTINGS = {
    "name": "bench",
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "plugin.name": "pgoutput",
    "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
    "topic.prefix": "bench",
    "publication.autocreate.mode": "disabled",
    "publication.name": "debezium",
    "converter.schemas.enable": "false",
    "provide.transaction.metadata": "false",
    "tombstones.on.delete": "false",
    "max.batch.size": "4096",
    "max.queue.size": "16384",
    "poll.interval.ms": "10",
    "record.processing.threads": "AVAILABLE_CORES",
    "snapshot.max.threads": str(TASKS),
    "snapshot.fetch.size": "20000",
}

#: The table that changes, and the one that is read whole.
CHANGING, RESTING = "orders", "archive"
COLUMNS = """id bigint PRIMARY KEY, customer integer NOT NULL, status text NOT NULL, total numeric(12,2) NOT NULL,
    pieces smallint NOT NULL, paid boolean NOT NULL, placed timestamp NOT NULL, note text"""
INSERT = """INSERT INTO {} SELECT n, n * 7919 %% 100000, (ARRAY['new', 'paid', 'sent', 'back'])[n %% 4 + 1],
    (n %% 1000000) / 100.0, n %% 10, n %% 2 = 0, timestamp '2024-01-01' + n * interval '1 second', 'a note of ' || n
    FROM generate_series(%s::bigint, %s::bigint - 1) n"""
UPDATE = "UPDATE {} SET status = 'sent', total = total + 1, note = 'changed, ' || id WHERE id >= %s AND id < %s"
DELETE = "DELETE FROM {} WHERE id >= %s AND id < %s"
#: How many rows a transaction inserts, updates and deletes.
INSERTS, UPDATES, DELETES = 20, 70, 10


@dataclass(frozen=True)
class Took:
    """Seconds on the clock and of CPU, seconds before that, and the changes or rows that then were there."""

    clock: float
    cpu: float
    before: float
    out: int


#: A contender: its version, and what it took in a round, given an empty folder.
Turn = tuple[str, Callable[[Path], Took]]


class Source:
    """A server, and its two tables."""

    def __init__(self, postgres: Postgres) -> None:
        self.postgres = postgres
        self.first, self.end = 0, UPDATES + DELETES
        with self.connect() as connection:
            for table in (CHANGING, RESTING):
                connection.execute(f"CREATE TABLE {table} ({COLUMNS})".encode())
            connection.execute(f"CREATE PUBLICATION debezium FOR TABLE {CHANGING}, {RESTING}".encode())
        self.fill(CHANGING, self.end)

    def connect(self) -> psycopg.Connection[Any]:
        """Commits each statement. Any: rows of all kinds."""
        return psycopg.connect(self.postgres.dsn, autocommit=True)

    def server(self, table: str, **options: Any) -> Server:
        """How our recorder is told of a table. Any: its options."""
        postgres = self.postgres
        return Server(
            host="127.0.0.1",
            port=postgres.port,
            database=postgres.database,
            user=postgres.user,
            tables=(f"public.{table}",),
            **options,
        )

    def fill(self, table: str, rows: int) -> None:
        with self.connect() as connection:
            connection.execute(_of(INSERT, table), (0, rows))
            connection.execute(f"VACUUM ANALYZE {table}".encode())

    def change(self, changes: int) -> None:
        """So many, in transactions of a hundred: the oldest rows go, those that stay change, new ones come."""
        insert, update, delete = (_of(each, CHANGING) for each in (INSERT, UPDATE, DELETE))
        with self.connect() as connection:
            for _ in range(changes // (INSERTS + UPDATES + DELETES)):
                kept = self.first + DELETES
                with connection.transaction():
                    connection.execute(insert, (self.end, self.end + INSERTS))
                    connection.execute(update, (kept, kept + UPDATES))
                    connection.execute(delete, (self.first, kept))
                self.first, self.end = kept, self.end + INSERTS

    def rest(self) -> None:
        """Has the server do now what it would do on its own while somebody is measured."""
        with self.connect() as connection:
            connection.execute(f"VACUUM ANALYZE {CHANGING}".encode())
            connection.execute("CHECKPOINT")


def _of(statement: str, table: str) -> sql.Composed:
    return sql.SQL(statement).format(sql.Identifier(table))


class Debezium(Worker):
    """Its engine, in a JVM that is warm."""

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres
        found = [*fetched(ARTIFACTS, excludes=["org.slf4j:slf4j-api"]), *fetched([LOGGER])]
        options = ["-Xmx2g", "-XX:+UseParallelGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        program = ["-cp", os.pathsep.join(map(str, found)), str(HERE / "java" / "Debezium.java")]
        super().__init__(["java", *options, *program], DATA.parent / "logs" / "debezium.log")

    def capture(self, folder: Path, table: str, count: int, given: Mapping[str, str]) -> Took:
        """So many events of the table, into a file."""
        settings = {
            **SETTINGS,
            "database.hostname": "127.0.0.1",
            "database.port": str(self._postgres.port),
            "database.user": self._postgres.user,
            "database.dbname": self._postgres.database,
            "table.include.list": f"public.{table}",
            "offset.storage.file.filename": str(folder / "offsets"),
            **given,
        }
        told, events = folder / "settings.properties", folder / "events"
        told.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        assert self.process.stdin is not None
        self.process.stdin.write(f"{told}\t{count}\t{events}\n")
        self.process.stdin.flush()
        return Took(**self.answer(), out=lines([events]))


def fetched(packages: Sequence[str], excludes: Sequence[str] = ()) -> list[Path]:
    """Jars, for which several attempts are made."""
    for pause in PAUSES:
        try:
            return jars.resolve(packages, excludes=excludes)
        except MissingError as problem:
            say(f"{problem}\nanother attempt in {pause} seconds")
            time.sleep(pause)
    return jars.resolve(packages, excludes=excludes)


def lines(paths: Sequence[Path]) -> int:
    """How many these files have."""
    found = 0
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                found += block.count(b"\n")
    return found


def turns(
    part: str, rows: int, rounds: int, postgres: Postgres, contenders: dict[str, Turn], ready: Callable[[], None]
) -> list[CaptureRun]:
    """Every contender once a round, taking turns, when all is ready for the round; the first ones are to warm up."""
    found = {who: CaptureRun(part, who, version, rows) for who, (version, _) in contenders.items()}
    for number in range(WARM + rounds):
        ready()
        # Each is first as often as last.
        for who, (_, turn) in sorted(contenders.items(), reverse=bool(number % 2)):
            folder = DATA / "round"
            folder.mkdir()
            before = meter.cpu_seconds(postgres.pid)
            took = turn(folder)
            server = meter.cpu_seconds(postgres.pid) - before
            shutil.rmtree(folder)
            say(f"round {number}: {part}, {who}: {took}, {server:.1f} s of CPU of the server")
            if number >= WARM:
                one = found[who]
                for kept, value in ((one.clock, took.clock), (one.cpu, took.cpu), (one.before, took.before)):
                    kept.append(value)
                one.server.append(server)
                one.out.append(took.out)
    return list(found.values())


def recorded(server: Server, folder: Path) -> tuple[float, float]:
    """Seconds on the clock and of CPU, from the first call to when all is durable that was committed by now."""
    recorder = Recorder(server, Spool(folder))
    until = recorder.current()
    clock, cpu = time.monotonic(), time.process_time()
    recorder.record(until)
    return time.monotonic() - clock, time.process_time() - cpu


def stream(
    source: Source, debezium: Debezium, pool: ProcessPoolExecutor, changes: int, rounds: int
) -> list[CaptureRun]:
    """Changes that were made while nobody read them."""
    server, spool = source.server(CHANGING, snapshot="no_data"), DATA / "spool"
    theirs = {"snapshot.mode": "no_data", "slot.name": "debezium"}

    def gone() -> None:
        with source.connect() as connection:
            drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = 'debezium'"
            connection.execute(drop)
        Recorder(server, Spool(spool)).drop()
        shutil.rmtree(spool)

    def ready() -> None:
        gone()
        Recorder(server, Spool(spool)).prepare()
        with source.connect() as connection:
            connection.execute("SELECT pg_create_logical_replication_slot('debezium', 'pgoutput')")
        source.change(changes)
        source.rest()

    def ours(_: Path) -> Took:
        clock, cpu = pool.submit(recorded, server, spool).result()
        return Took(clock, cpu, before=0, out=lines(list((spool / "segments").iterdir())))

    contenders: dict[str, Turn] = {
        "changeglot, recorder": (__version__, ours),
        "Debezium, engine": (DEBEZIUM, lambda folder: debezium.capture(folder, CHANGING, changes, theirs)),
    }
    found = turns("stream", changes, rounds, source.postgres, contenders, ready)
    gone()
    return found


def copied(server: Server, snapshot: str, chunk: Chunk, path: Path) -> float:
    """Seconds of CPU for a part of a table, into a file."""
    cpu = time.process_time()
    copy(server, snapshot, chunk, path)
    return time.process_time() - cpu


def plain(dsn: str, path: Path) -> tuple[float, float]:
    """Seconds on the clock and of CPU for a table that a client reads by COPY, into a file."""
    clock, cpu = time.monotonic(), time.process_time()
    with (
        psycopg.connect(dsn) as connection,
        path.open("wb", buffering=1 << 20) as file,
        connection.cursor().copy(f"COPY {RESTING} TO STDOUT".encode()) as rows,
    ):
        for each in rows:
            file.write(each)
    return time.monotonic() - clock, time.process_time() - cpu


def snapshot(source: Source, debezium: Debezium, pool: ProcessPoolExecutor, rows: int, rounds: int) -> list[CaptureRun]:
    """A table that does not change."""
    server, postgres = source.server(RESTING, snapshot="initial_only"), source.postgres
    theirs = {"snapshot.mode": "initial_only", "slot.name": "snapshot", "slot.drop.on.stop": "true"}
    source.fill(RESTING, rows)

    def ours(folder: Path) -> Took:
        clock, cpu = time.monotonic(), time.process_time()
        found = Recorder(server, Spool(folder / "spool")).prepare()
        assert found is not None
        with found:
            paths = [folder / f"{n}.lines" for n in range(len(found.chunks))]
            jobs = [pool.submit(copied, server, found.name, *each) for each in zip(found.chunks, paths, strict=True)]
            used = sum(each.result() for each in jobs)
        clock, cpu = time.monotonic() - clock, time.process_time() - cpu
        return Took(clock, used + cpu, before=0, out=lines(paths))

    def to_client(folder: Path) -> Took:
        clock, cpu = pool.submit(plain, postgres.dsn, folder / "rows").result()
        return Took(clock, cpu, before=0, out=lines([folder / "rows"]))

    def to_file(_: Path) -> Took:
        # Its own folder: the server is another user.
        path = postgres.data / "rows"
        with source.connect() as connection:
            clock = time.monotonic()
            connection.execute(sql.SQL(f"COPY {RESTING} TO {{}}").format(sql.Literal(str(path))))
            took = Took(time.monotonic() - clock, 0, before=0, out=lines([path]))
        path.unlink()
        return took

    contenders: dict[str, Turn] = {
        "changeglot, two tasks": (__version__, ours),
        "Debezium, engine": (DEBEZIUM, lambda folder: debezium.capture(folder, RESTING, rows, theirs)),
        "COPY to a client": (f"PostgreSQL {postgres.version}", to_client),
        "COPY to a file": (f"PostgreSQL {postgres.version}", to_file),
    }
    return turns("snapshot", rows, rounds, postgres, contenders, lambda: None)


def delayed(postgres: Postgres, warm: int, seconds: int) -> list[DelayRun]:
    """How long a commit is on its way."""
    spark = session(TASKS, "4g", DATA, [KafkaSource("", ("any",))])
    try:
        with Kafka.start(DATA) as kafka:
            return list(commits.delays(spark, postgres, kafka, DATA, warm, seconds))
    finally:
        spark.stop()


def measure(changes: int, rows: int, rounds: int, warm: int, seconds: int) -> list[CaptureRun | DelayRun]:
    """All parts, one after the other, with the same server, and where it is compared the same engine beside ours."""
    DATA.mkdir(parents=True)
    with Postgres.start(DATA) as postgres:
        source = Source(postgres)
        with (
            closing(Debezium(postgres)) as debezium,
            ProcessPoolExecutor(TASKS, get_context("spawn")) as pool,
        ):
            compared = [
                *stream(source, debezium, pool, changes, rounds),
                *snapshot(source, debezium, pool, rows, rounds),
            ]
        return [*compared, *delayed(postgres, warm, seconds)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_true", help="a trial with little, one round; prints what it measured")
    options = parser.parse_args()
    changes, rows, rounds = (50_000, 200_000, 1) if options.quick else (CHANGES, ROWS, options.rounds)
    warm, seconds = (20, 5) if options.quick else (30, 20)
    shutil.rmtree(DATA, ignore_errors=True)
    try:
        runs = measure(changes, rows, rounds, warm, seconds)
    finally:
        shutil.rmtree(DATA, ignore_errors=True)
    if options.quick:
        sys.stdout.write(json.dumps([asdict(one) for one in runs], indent=1) + "\n")
    else:
        report.update("capture", runs)


if __name__ == "__main__":
    main()
