"""A database of a test, what was recorded of it, and who writes to it meanwhile."""

from __future__ import annotations

import json
import pickle
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from changeglot.capture.postgres import Recorder, Server, Snapshot, copy
from changeglot.capture.spool import Spool
from changeglot.throwaway.databases import Postgres

NUMBERS = count()
PASSWORD = "s3cret word"


class Line(NamedTuple):
    """A line, its values by the names of the columns: None is NULL, and what was not told is missing."""

    op: str
    relation: dict[str, Any]
    position: str
    order: int
    last: bool
    transaction: str
    new: dict[str, str | None]
    old: dict[str, str | None]

    @property
    def table(self) -> str:
        return f"{self.relation['schema']}.{self.relation['table']}"


LETTERS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\"}


def text(field: str) -> str | None:
    return None if field == r"\N" else re.sub(r"\\(.)", lambda found: LETTERS[found[1]], field)


class Place:
    """A database of its own, and a folder."""

    def __init__(self, postgres: Postgres, folder: Path) -> None:
        self.postgres, self.folder, self.name = postgres, folder, f"d{next(NUMBERS)}"
        with psycopg.connect(postgres.dsn, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {self.name}")
        self.connection = self.connect()

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.postgres.dsn, dbname=self.name, autocommit=True)

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        for each in statements:
            cursor = self.connection.execute(each.encode())
        return cursor.fetchall() if cursor.description else []

    def server(self, *tables: str, **options: Any) -> Server:
        given = {
            "host": "127.0.0.1",
            "port": self.postgres.port,
            "database": self.name,
            "user": self.postgres.user,
            "password": PASSWORD,
            "origin": "shop",
            "slot": self.name,
            "tables": tables or ("public.*",),
        }
        return Server(**{**given, **options})

    def recorder(self, *tables: str, **options: Any) -> Recorder:
        return Recorder(self.server(*tables, **options), Spool(self.folder), patience=60)

    def begun(self, *tables: str, **options: Any) -> Recorder:
        """One that records from here on."""
        recorder = self.recorder(*tables, **{"snapshot": "no_data", **options})
        assert recorder.prepare() is None
        return recorder

    def lines(self) -> list[Line]:
        """All that was recorded."""
        paths = sorted((self.folder / "segments").iterdir())
        return [self.line(each) for path in paths for each in path.read_text().split("\n")[:-1]]

    def line(self, said: str) -> Line:
        op, name, position, *fields = said.split("\t")
        head, values = ([], fields) if op == "r" else (fields[:6], fields[6:])
        if op == "m":
            relation: dict[str, Any] = {"schema": "", "table": "", "columns": [{"name": "prefix"}, {"name": "content"}]}
        else:
            relation = json.loads((self.folder / "relations" / f"{name}.json").read_bytes())
        names = [each["name"] for each in relation["columns"]]
        rows = [
            {name: text(each) for name, each in zip(names, part, strict=True) if each != r"\-"}
            for part in (values[at : at + len(names)] for at in range(0, len(values), max(1, len(names))))
        ]
        rows = rows[::-1] if op == "d" else rows
        new, old = [*([{}] if op == "d" else []), *rows, {}, {}][:2]
        order, last, transaction, *_ = head or ("0", "0", "", "")
        return Line(op, relation, position, int(order), last == "1", transaction, new, old)

    def copied(self, snapshot: Snapshot, server: Server | None = None) -> list[Line]:
        """Its rows, as a task of another process would read them."""
        with snapshot:
            found = []
            for chunk in pickle.loads(pickle.dumps(snapshot.chunks)):
                path = self.folder / f"rows{next(NUMBERS)}.lines"
                asked = pickle.loads(pickle.dumps(server or self.server()))
                counted = copy(asked, snapshot.name, chunk, path)
                said = path.read_bytes().decode()
                rows = [self.line(each) for each in said.split("\n")[:-1]]
                assert counted == (len(rows), len(said.encode()))
                assert len({each.position for each in rows}) == len(rows)
                found += rows
        return found


def dropped(place: Place) -> None:
    """A slot that nobody reads would keep the log."""
    mine = "FROM pg_replication_slots WHERE database = current_database()"
    place.sql(f"SELECT pg_terminate_backend(active_pid) {mine}")
    freed(place)
    place.sql(f"SELECT pg_drop_replication_slot(slot_name) {mine}")
    place.connection.close()


def freed(place: Place) -> None:
    """The server notices a moment later that a recorder has ended."""
    until(lambda: not place.sql("SELECT 1 FROM pg_replication_slots WHERE database = current_database() AND active"))


def until(done: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """In another thread, whose error is ours."""
    stop, problems = threading.Event(), []

    def run() -> None:
        try:
            recorder.record(stop=stop.is_set)
        except BaseException as problem:
            problems.append(problem)
            raise

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not problems


def folded(rows: list[Line], changes: list[Line]) -> list[dict[str, str | None]]:
    """The table that rows and changes make."""
    table = {each.new["id"]: each.new for each in rows}
    for each in changes:
        key = (each.old or each.new)["id"]
        before = table.pop(key, {})
        assert (each.op == "i") == (before == {})
        if each.op != "d":
            table[each.new["id"]] = {**before, **each.new}
    return [table[key] for key in sorted(table, key=lambda key: int(key or 0))]


def writes(connection: psycopg.Connection[Any], seed: int, done: Callable[[], bool]) -> None:
    """Transactions of all kinds, some of them rolled back; two writers share no key."""
    chance = random.Random(seed)
    while not done():
        with connection.transaction(force_rollback=chance.random() < 0.2):
            for _ in range(chance.randint(1, 5)):
                key = 2 * chance.randint(0, 300) + seed
                chosen = chance.random()
                if chosen < 0.6:
                    upsert = "INSERT INTO t VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET a = excluded.a"
                    connection.execute(upsert, (key, str(chance.random())))
                elif chosen < 0.8:
                    connection.execute("DELETE FROM t WHERE id = %s", (key,))
                else:
                    connection.execute("UPDATE t SET id = id + 10000, a = NULL WHERE id = %s", (key,))
                    connection.execute("DELETE FROM t WHERE id = %s", (key + 10000,))


@contextmanager
def written(place: Place) -> Iterator[None]:
    stop = threading.Event()
    connections = [place.connect() for _ in range(2)]
    threads = [threading.Thread(target=writes, args=(each, seed, stop.is_set)) for seed, each in enumerate(connections)]
    for each in threads:
        each.start()
    try:
        yield
    finally:
        stop.set()
        for thread, connection in zip(threads, connections, strict=True):
            thread.join()
            connection.close()


def table(place: Place) -> list[dict[str, str | None]]:
    return [{"id": str(key), "a": value} for key, value in place.sql("SELECT id, a FROM t ORDER BY id")]
