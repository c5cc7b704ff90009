"""Databases captured into tables: what they hold is what the database holds, whoever ends when."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import UTC
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
from conftest import Run, lakes
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from recorded import NUMBERS, PASSWORD, Place, dropped
from services import Kafka
from test_mysql_recorder import TYPES as MARIADB_TYPES
from test_postgres_recorder import TYPES

from changeglot import config, positions
from changeglot.capture import part
from changeglot.capture.spool import Spool
from changeglot.codecs import CODECS
from changeglot.model import Op
from changeglot.pipeline import Pipeline
from changeglot.sinks.base import Mark
from changeglot.sources.base import Reached
from changeglot.sources.capture import Captured
from changeglot.target import Applied
from changeglot.throwaway.databases import MariaDB, Postgres

EXAMPLES = Path(__file__).parents[1] / "examples"
#: How often the pipeline is killed.
KILLS = 5


class Shop(Place):
    """A database of PostgreSQL's."""

    INSERT = "INSERT INTO {} (id, name, amount, body, at) VALUES (%s, %s, %s, %s, now()) ON CONFLICT DO NOTHING"
    #: Whether a statement that alters a table is a part of the transaction around it, and told in the log.
    DDL_WITHIN, DDL_TOLD = True, False
    TABLES = (
        "CREATE TABLE a (id int PRIMARY KEY, name text, amount numeric(12,2), body text, at timestamptz)",
        "CREATE TABLE b (id int PRIMARY KEY, name text, amount numeric(12,2), body text, at timestamptz)",
        "ALTER TABLE b REPLICA IDENTITY FULL",
        "ALTER TABLE a ALTER body SET STORAGE EXTERNAL",
        "ALTER TABLE b ALTER body SET STORAGE EXTERNAL",
        *(
            f"INSERT INTO {table} SELECT n, 'n' || n, n, repeat(n::text, 1500), now() FROM generate_series(1, 300) n"
            for table in "ab"
        ),
    )

    @property
    def source(self) -> dict[str, Any]:
        """Any: of YAML."""
        own = {"type": "postgres", "port": self.postgres.port, "user": self.postgres.user, "password": PASSWORD}
        return {**own, "host": "127.0.0.1", "database": self.name, "slot": self.name, "tables": ["public.*"]}

    @property
    def schema(self) -> tuple[str, ...]:
        """Before the name of a table of the sink."""
        return (self.name, "public")

    @property
    def log_end(self) -> int:
        return int(self.sql("SELECT pg_current_wal_insert_lsn() - '0/0'")[0][0])

    def transaction(self, *statements: str) -> str:
        """What the database calls it."""
        self.sql("BEGIN", *statements)
        ((number,),) = self.sql("SELECT pg_current_xact_id()::text")
        self.sql("COMMIT")
        return str(number)

    def restart(self) -> None:
        self.postgres.restart()
        self.connection = self.connect()

    def end(self) -> None:
        dropped(self)


class Store:
    """A database of MariaDB's."""

    INSERT = "INSERT IGNORE INTO {} (id, name, amount, body, at) VALUES (%s, %s, %s, %s, now(6))"
    DDL_WITHIN, DDL_TOLD = False, True
    TABLES = (
        *(
            f"CREATE TABLE {table} (id int PRIMARY KEY, name text, amount decimal(12,2), body longtext,"
            " at timestamp(6) NULL) CHARSET utf8mb4"
            for table in "ab"
        ),
        *(
            f"INSERT INTO {table} SELECT seq, concat('n', seq), seq, repeat(seq, 1500), now(6) FROM seq_1_to_300"
            for table in "ab"
        ),
    )

    def __init__(self, mariadb: MariaDB, folder: Path) -> None:
        self.mariadb, self.folder, self.name = mariadb, folder, f"store{next(NUMBERS)}"
        with closing(self.connect("mysql")) as connection:
            connection.cursor().execute(f"CREATE DATABASE {self.name}")

    def connect(self, database: str = "") -> Any:
        """Any: as PostgreSQL's is used."""
        return pymysql.connect(
            host="127.0.0.1",
            port=self.mariadb.port,
            user=self.mariadb.user,
            password=PASSWORD,
            database=database or self.name,
            autocommit=True,
            init_command="SET time_zone = '+00:00'",
        )

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            for each in statements:
                cursor.execute(each)
            return list(cursor.fetchall())

    @property
    def source(self) -> dict[str, Any]:
        """Any: of YAML."""
        own = {"type": "mysql", "port": self.mariadb.port, "user": self.mariadb.user, "password": PASSWORD}
        return {**own, "host": "127.0.0.1", "origin": self.name, "tables": [f"{self.name}.*"]}

    @property
    def schema(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def log_end(self) -> int:
        file, place, *_ = self.sql("SHOW MASTER STATUS")[0]
        return int(file.rpartition(".")[2]) << 32 | int(place)

    def transaction(self, *statements: str) -> str:
        """What the database calls it."""
        return str(self.sql("BEGIN", *statements, "COMMIT", "SELECT @@last_gtid")[0][0])

    def restart(self) -> None:
        self.mariadb.restart()

    def end(self) -> None:
        """Nothing is held."""


@pytest.fixture
def shop(newest: Postgres, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(newest, tmp_path)
    yield made
    made.end()


@pytest.fixture(params=["newest", "mariadb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop | Store]:
    service = request.getfixturevalue(request.param)
    made = Shop(service, tmp_path) if request.param == "newest" else Store(service, tmp_path)
    yield made
    made.end()


def content(place: Shop | Store, warehouse: Path, sink: str = "delta", **words: Any) -> dict[str, Any]:
    """Words of a pipeline's file. Any: of YAML."""
    return {
        "source": place.source,
        "sink": {"type": sink, "path": str(warehouse / sink)},
        "tables": [{"match": "*", "mode": ["scd1", "append"]}],
        "checkpoint": str(place.folder / "notes"),
        **words,
    }


def run_through(made: Pipeline, spark: SparkSession) -> list[Applied]:
    told: list[Applied] = []
    made.check(spark)
    made.run(spark, told=told.append).awaitTermination()
    return told


def quarantined(made: Pipeline, spark: SparkSession) -> list[Row]:
    """Why what is in its quarantine is there."""
    found = made.quarantined(spark)
    return [] if found is None else found.select("problem").collect()


def run_with(made: Pipeline, spark: SparkSession, change: Callable[[], None]) -> list[Applied]:
    """The rows as they are, and what changes after that, in one batch."""
    source = made.source.beside(f"{made.checkpoint}/changeglot")
    assert isinstance(source, Captured)
    spool = Spool(source.folder)
    recorder = part(source.name).Recorder(source.server, spool, waits=True)
    source.read(spark, recorder, recorder.prepare(), spool, recorder.reach)
    change()
    return run_through(made, spark)


def test_every_type_comes_the_same_through_rows_and_changes(shop: Shop, spark: SparkSession, warehouse: Path) -> None:
    columns = {f"c{at}": kind for at, kind in enumerate(TYPES)}
    shop.sql(
        "CREATE TYPE mood AS ENUM ('so so', 'good')",
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE DOMAIN positive AS int CHECK (value > 0)",
        f"CREATE TABLE t (id int PRIMARY KEY, {', '.join(f'{name} {kind}' for name, kind in columns.items())})",
    )
    insert = f"INSERT INTO t VALUES (%s{', %s' * len(TYPES)})".encode()

    def both(number: int) -> None:
        shop.connection.execute(insert, (number, *TYPES.values()))
        shop.connection.execute(insert, (number + 1, *[None] * len(TYPES)))

    both(1)
    # What Spark's dates and times do not have.
    far = {name: "text" for name, kind in columns.items() if kind in ("date", "timestamp", "timestamp(0)")}
    rules = [{"match": "*", "mode": ["scd1", "append"], "columns": far}]
    made = config.pipeline(content(shop, warehouse, tables=rules), name=shop.name)
    (applied,) = run_through(made, spark)
    assert shop.sql(f"SELECT '{applied.position}' <= pg_current_wal_lsn()") == [(True,)], "that of the snapshot"
    both(3)
    run_through(made, spark)
    assert quarantined(made, spark) == []
    rows = {row["id"]: row for row in spark.table(made.sink.identifier(shop.name, "public", "t")).collect()}
    told = spark.table(made.sink.identifier(shop.name, "public", "t__log")).orderBy("__order").collect()
    assert [(row["phase"], row["key"]) for row in told] == [
        ("snapshot", {"id": "1"}),
        ("snapshot", {"id": "2"}),
        ("stream", {"id": "3"}),
        ("stream", {"id": "4"}),
    ]
    for name, kind in columns.items():
        assert rows[1][name] == rows[3][name] or kind in ("float8",), kind
        assert rows[2][name] is rows[4][name] is None, kind
        assert told[0]["after"][name] == told[2]["after"][name], kind
    shown = {kind: rows[1][name] for name, kind in columns.items()}
    assert shown["numeric(38,10)"] == Decimal("1234567890123456789012345678.0123456789")
    assert shown["bytea"] == b"\x00\xff\\\n"
    assert shown["boolean"] is False
    assert shown["text"] == TYPES["text"]
    assert shown["int[]"] == TYPES["int[]"]
    assert shown["money"] == "-$1,234.50"
    assert shown["bit(4)"] == "1010"
    assert shown["timestamptz"].isoformat() == "2024-03-31T00:30:00.123456"


def told(place: Shop | Store, spark: SparkSession, *changes: str) -> tuple[str, dict[str, list[Any]]]:
    """What the database calls a transaction of these changes, and all messages of a capture, by format. Any: JSON."""
    sinks = [{"type": "files", "path": str(place.folder / name), "format": name, "topic": "all"} for name in CODECS]
    words = {"source": place.source, "sink": sinks, "tables": [{"match": "*"}], "checkpoint": str(place.folder / "c")}
    made = config.pipeline(words, name=place.name)
    called: list[str] = []

    def change() -> None:
        called.append(place.transaction(*changes))
        place.sql("DELETE FROM item WHERE id = 2", "TRUNCATE TABLE item")

    run_with(made, spark, change)
    found: dict[str, list[Any]] = {}
    for name in CODECS:
        (path,) = (place.folder / name).glob("*/*/part-*")
        found[name] = [json.loads(line) for line in path.read_text().splitlines()]
    return called[0], found


def test_every_format_tells_what_the_database_knows_of_a_change(place: Shop | Store, spark: SparkSession) -> None:
    place.sql(
        "CREATE TABLE item (id int PRIMARY KEY, name varchar(20), amount decimal(10,2))",
        "INSERT INTO item VALUES (1, 'one', 1.50), (2, NULL, 2)",
    )
    postgres, schema = isinstance(place, Shop), "public" if isinstance(place, Shop) else place.name
    before, begun = place.log_end, int(time.time())
    called, messages = told(
        place,
        spark,
        "INSERT INTO item VALUES (3, 'three', 3)",
        "UPDATE item SET id = 4 WHERE id = 3",
        "UPDATE item SET name = 'x' WHERE id = 1",
    )
    # A change of the key is two. A snapshot's rows have no place in the log.
    orders = [0, 2, 3, 4, 0, 0]

    headers = [each["headers"] for each in messages["electric"]]
    rows, controls = [[each for each in headers if word in each] for word in ("operation", "control")]
    assert [sorted(each) for each in rows[:2]] == [["operation", "relation"]] * 2
    lsns = [int(each["lsn"]) for each in rows[2:]]
    assert lsns[:4] == [lsns[0]] * 4
    assert before <= lsns[0] < lsns[4] < place.log_end
    assert [each["op_position"] for each in rows[2:]] == orders[:5]
    assert [each.get("last") for each in rows[2:]] == [None, None, None, True, True]
    assert rows[2]["txids"] == [int(called) if postgres else called]
    assert rows[3]["key_change_to"] == f'"{schema}"."item"/"4"'
    assert rows[4]["key_change_from"] == f'"{schema}"."item"/"3"'
    assert [each["control"] for each in controls] == ["snapshot-end", "must-refetch"][not postgres :]
    if postgres:
        assert headers.index(controls[0]) == 2
        assert int(controls[0]["xmin"]) <= int(controls[0]["xmax"]) <= int(called)
        assert called not in controls[0]["xip_list"]

    for name in ("oms", "oms-typed"):
        metas = [each["allMetaData"] for each in messages[name]]
        assert [each["checkpoint"] for each in metas[:2]] == ["id=1", "id=2"]
        assert [each.get("storeDataSequence") for each in metas[:7]] == [None, None, *lsns]
        assert lsns[4] < metas[7]["storeDataSequence"] < place.log_end
        assert all(each["checkpoint"] == each["timestamp"] for each in metas[2:])
        assert begun <= int(metas[2]["timestamp"]) <= time.time()
        assert {each["source_identity"] for each in metas} == {place.source.get("origin") or "127.0.0.1"}
        assert metas[2]["uniqueId"] == called
        assert messages[name][7]["postStruct"]["ddl"].startswith("TRUNCATE TABLE")

    canal = messages["canal"]
    assert [each["type"] for each in canal[1:]] == ["ROW", "INSERT", "DELETE", "INSERT", "UPDATE", "DELETE", "TRUNCATE"]
    assert canal[0]["sqlType"] == {"id": 4, "name": 12, "amount": 2 if postgres else 3}
    assert canal[0]["mysqlType"].keys() == canal[0]["sqlType"].keys()
    assert canal[0]["pkNames"] == ["id"]
    assert begun <= canal[2]["es"] // 1000 <= canal[2]["ts"] // 1000 <= time.time()
    assert canal[7]["sql"] == messages["oms"][7]["postStruct"]["ddl"]

    payloads = [each["payload"] for each in messages["dataworks"]]
    assert [each["scn"] for each in payloads[:7]] == [None, None, *map(str, lsns)]
    assert payloads[2]["timestamp"] == {"eventTime": canal[2]["es"], "systemTime": canal[2]["ts"]}

    metas = [each["meta"] for each in messages["shareplex"]]
    assert [each["seq"] for each in metas[2:]] == orders
    assert [each["scn"] for each in metas[2:7]] == list(map(str, lsns))
    assert metas[2]["trans"] == called

    payloads = [each["payload"] for each in messages["arcion"] if each != "default"]
    assert [each["transaction"]["total_order"] for each in payloads[2:]] == orders[:5]
    assert payloads[2]["transaction"]["id"] == called
    ((version,),) = place.sql("SHOW server_version" if postgres else "SELECT version()")
    numbers: dict[str, int | str | None] = {"file": None, "pos": lsns[0], "gtid": None, "server_id": None}
    if not postgres:
        ((server,),) = place.sql("SELECT @@server_id")
        numbers = {"file": f"binlog.{before >> 32:06d}", "pos": lsns[0] & 0xFFFFFFFF, "gtid": called}
        numbers["server_id"] = str(server)
    for payload, row in zip(payloads[2:6], (0, 2, 2, 4), strict=True):
        assert payload["source"] == {
            **numbers,
            "version": re.split(r"[ -]", version)[0],
            "connector": "POSTGRESQL" if postgres else "MARIADB",
            "name": place.source.get("origin") or "127.0.0.1",
            "db": place.name,
            "schema": schema if postgres else None,
            "table": "item",
            "row": row,
            "ts_ms": canal[2]["es"],
            "snapshot": "false",
            # MariaDB does not write who did it; MySQL does.
            "thread": None,
            "query": None,
        }
    assert payloads[2]["ts_ms"] == canal[2]["ts"]
    empty = ("file", "pos", "gtid", "server_id", "row", "ts_ms")
    assert (payloads[0]["op"], payloads[0]["source"]["snapshot"]) == ("r", "true")
    assert not any(payloads[0]["source"][name] for name in empty)


def published(made: Pipeline, spark: SparkSession) -> list[Row]:
    return (
        spark.table(made.sink.identifier(*positions.TABLE))
        .where(F.col("pipeline") == made.name)
        .orderBy("batch")
        .collect()
    )


def test_one_position_is_published_and_all_tables_are_as_of_it(
    place: Shop | Store, spark: SparkSession, warehouse: Path
) -> None:
    place.sql(*(f"CREATE TABLE {table} (id int PRIMARY KEY, n int)" for table in "ab"))
    place.sql(*(f"INSERT INTO {table} VALUES (1, 1)" for table in "ab"))
    made = config.pipeline(content(place, warehouse, tables=[{"match": "*"}]), name=place.name)
    ends: list[int] = []

    def change() -> None:
        place.transaction("UPDATE a SET n = 2", "UPDATE b SET n = 2")
        ends.append(place.log_end)

    (applied,) = run_with(made, spark, change)
    ends.append(place.log_end)
    place.transaction("UPDATE a SET n = 3", "UPDATE b SET n = 3")
    for table in "ab":
        rows = spark.table(made.sink.identifier(*place.schema, table)).collect()
        assert [row["n"] for row in rows] == [2]
    (line,) = published(made, spark)
    assert (line["position"], line["batch"]) == (applied.position, applied.batch)
    file, at = (0, *line["numbers"])[-2:]
    assert ends[0] <= int(file) << 32 | int(at) <= ends[1]
    # A batch that is applied again says nothing again.
    for batch in (0, 0, 1):
        positions.publish(spark, made.sink, "again", Reached(f"at {batch}", (batch,)), Mark("again", batch))
    found = spark.table(made.sink.identifier(*positions.TABLE)).where("pipeline = 'again'").orderBy("batch")
    assert [(row["position"], row["batch"]) for row in found.collect()] == [("at 0", 0), ("at 1", 1)]


def test_every_type_of_mariadb_comes_the_same_through_rows_and_changes(
    mariadb: MariaDB, tmp_path: Path, spark: SparkSession, warehouse: Path
) -> None:
    store = Store(mariadb, tmp_path)
    columns = {f"c{at}": kind for at, kind in enumerate(MARIADB_TYPES)}
    declared = "".join(f", {name} {kind}" for name, kind in columns.items())
    made_of = "(id int PRIMARY KEY{}, g1 int AS (id % 100 + 1) STORED, g2 int AS (id % 100 + 2) VIRTUAL)"
    store.sql(f"CREATE TABLE t {made_of.format(declared)}")
    count = max(map(len, MARIADB_TYPES.values())) + 1

    def all_from(first: int) -> None:
        rows = (
            ", ".join(literals[n] if n < len(literals) else "NULL" for literals in MARIADB_TYPES.values())
            for n in range(count)
        )
        insert = f"INSERT INTO t (id, {', '.join(columns)}) VALUES ({{}}, {{}})"
        store.sql("SET sql_mode = ''", *(insert.format(first + n, row) for n, row in enumerate(rows)))

    all_from(0)
    # Days that no calendar has, but zero ones.
    odd = {name: "text" for name, kind in columns.items() if kind in ("date", "datetime")}
    rules = [{"match": "*", "mode": ["scd1", "append"], "columns": odd}]
    made = config.pipeline(content(store, warehouse, tables=rules), name=store.name)
    run_through(made, spark)
    all_from(100)
    run_through(made, spark)
    assert quarantined(made, spark) == []
    rows = {row["id"]: row for row in spark.table(made.sink.identifier(store.name, "t")).collect()}
    log = spark.table(made.sink.identifier(store.name, "t__log")).collect()
    told = {int(row["key"]["id"]): row for row in log}
    assert len(log) == len(told) == len(rows) == 2 * count
    for n in range(count):
        assert (told[n]["phase"], told[100 + n]["phase"]) == ("snapshot", "stream")
        for name, kind in {**columns, "g1": "stored", "g2": "virtual"}.items():
            assert rows[n][name] == rows[100 + n][name], kind
            assert told[n]["after"][name] == told[100 + n]["after"][name], kind
    assert not {name for name in columns if any(rows[count - 1][name] is not None for name in columns)}
    shown = {kind: rows[0][name] for name, kind in columns.items()}
    assert shown["bigint unsigned"] == Decimal("18446744073709551615")
    assert shown["decimal(10,2)"] == Decimal("-12345678.90")
    assert shown["decimal(65,30)"] == MARIADB_TYPES["decimal(65,30)"][0]
    assert shown["varchar(20)"] == "a\tb\nc\rd\\e\0f"
    assert shown["varchar(20) charset latin1"] == "äöü€"
    assert shown["binary(4)"] == b"\x00\xff\x00\x00"
    assert shown["time(6)"] == "-838:59:59.999999"
    assert shown["set('a','b','ü','d')"] == "a,d"
    assert shown["timestamp null"].isoformat() == "2024-02-29T23:59:59"
    assert shown["inet6"] == "2001:db8::ff00:42:8329"
    # A zero date.
    assert rows[1]["c" + str(list(MARIADB_TYPES).index("timestamp(6) null"))] is None


class Life:
    """Random transactions of two sessions, until it is told to end.

    Each adds columns with a default to both tables, gives them another name, and drops them: `x1_7` is one that the
    first session added, and `y1_7` the same under its later name.
    """

    COLUMNS = ("name", "amount", "body", "at")
    DEFAULT = 7

    def __init__(self, place: Shop | Store, seed: int) -> None:
        self.place, self.ended, self.done = place, threading.Event(), 0
        #: How many statements altered a table, and how many may.
        self.altered, self.allowed = 0, 0
        place.sql(*place.TABLES)
        self.threads = [threading.Thread(target=self._live, args=(n, random.Random(seed + n))) for n in (1, 2)]
        for thread in self.threads:
            thread.start()

    def _live(self, session: int, rng: random.Random) -> None:
        while not self.ended.is_set():
            # The server may restart.
            with suppress(psycopg.OperationalError, pymysql.err.Error), closing(self.place.connect()) as connection:
                while not self.ended.is_set():
                    self._transaction(connection.cursor(), rng, session)
                    self.done += 1
                    time.sleep(rng.choice((0, 0.05, 0.1)))
            time.sleep(0.1)

    def _transaction(self, cursor: Any, rng: random.Random, session: int) -> None:
        """Any: of two clients, which are used alike."""
        cursor.execute("BEGIN")
        try:
            for number in range(rng.randint(1, 6)):
                cursor.execute(f"SAVEPOINT s{number}")
                if self.place.DDL_WITHIN and rng.random() < 0.02:
                    self._alter(cursor, rng, session)
                self._change(cursor, rng, session)
                if rng.random() < 0.1:
                    cursor.execute(f"ROLLBACK TO SAVEPOINT s{number}")
            cursor.execute("COMMIT" if rng.random() < 0.95 else "ROLLBACK")
        except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
            cursor.execute("ROLLBACK")
        if rng.random() < 0.004:
            cursor.execute(f"TRUNCATE TABLE {rng.choice('ab')}")
        if rng.random() < 0.05:
            self._alter(cursor, rng, session)

    def added(self, cursor: Any, session: str = "[12]") -> list[tuple[str, str]]:
        """The columns that a session has added, each behind its table. Any: as above."""
        asked = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = '{}'"
        cursor.execute(asked.format(self.place.schema[-1]))
        return sorted((table, name) for table, name in cursor.fetchall() if re.match(f"[xy]{session}_", name))

    def _alter(self, cursor: Any, rng: random.Random, session: int) -> None:
        """Any: as above."""
        if self.altered >= self.allowed:
            return
        self.altered += 1
        added = self.added(cursor, str(session))
        if len(added) < rng.randint(1, 4):
            name = f"x{session}_{self.altered}"
            cursor.execute(f"ALTER TABLE {rng.choice('ab')} ADD COLUMN {name} int DEFAULT {self.DEFAULT}")
            return
        table, name = rng.choice(added)
        later = name.replace("x", "y")
        renames = later != name and rng.random() < 0.5
        cursor.execute(f"ALTER TABLE {table} " + (f"RENAME COLUMN {name} TO {later}" if renames else f"DROP {name}"))

    def _change(self, cursor: Any, rng: random.Random, session: int) -> None:
        """Any: as above."""
        table, key = rng.choice("ab"), rng.randint(1, 400)
        chance = rng.random()
        if chance < 0.3:
            row = (key, rng.choice((None, "x\ty\\z\nü")), rng.randint(1, 999), "l" * rng.choice((1, 5000)))
            cursor.execute(self.place.INSERT.format(table), row)
        elif chance < 0.4 and (added := self.added(cursor, str(session))):
            table, column = rng.choice(added)
            cursor.execute(f"UPDATE {table} SET {column} = %s WHERE id = %s", (rng.randint(8, 99), key))
        elif chance < 0.6:
            column = rng.choice(("name", "amount"))
            cursor.execute(f"UPDATE {table} SET {column} = %s WHERE id = %s", (str(rng.randint(1, 99)), key))
        elif chance < 0.62 + 0.08 * (table == "b"):
            cursor.execute(f"UPDATE {table} SET id = id + 1000 WHERE id = %s", (key,))
        elif chance < 0.75:
            cursor.execute(f"UPDATE {table} SET body = repeat('m', 4000) WHERE id = %s", (key,))
        else:
            cursor.execute(f"DELETE FROM {table} WHERE id = %s", (key,))

    def end(self) -> None:
        self.ended.set()
        for thread in self.threads:
            thread.join(30)
            assert not thread.is_alive()


class Victim:
    """A pipeline in a process of its own, that goes on until it is killed."""

    def __init__(self, folder: Path, words: dict[str, Any], warehouse: Path) -> None:
        """Any: words of the YAML file."""
        self.folder = folder
        settings = {**lakes(warehouse), "spark.ui.showConsoleProgress": "false"}
        (folder / "pipeline.json").write_text(json.dumps({**words, "once": False}))
        (folder / "settings.json").write_text(json.dumps(settings))

    def start(self) -> subprocess.Popen[str]:
        files = [str(self.folder / name) for name in ("pipeline.json", "settings.json")]
        command = [sys.executable, str(Path(__file__).parent / "killed.py"), *files, "0"]
        with (self.folder / "log").open("a") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", (self.folder / "log").read_text()[-2000:]
        return process

    @staticmethod
    def kill(process: subprocess.Popen[str], *, all_of_it: bool) -> None:
        """It and what it started; or it alone, and what it started ends by itself."""
        with suppress(ProcessLookupError):
            if all_of_it:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        process.communicate(timeout=60)


def replayed(spark: SparkSession, made: Pipeline, place: Shop | Store, table: str) -> dict[int, dict[str, str | None]]:
    """The rows that the log of a table comes to; where it tells of names, columns under their later ones."""
    rows: dict[int, dict[str, str | None]] = {}
    log = spark.table(made.sink.identifier(*place.schema, f"{table}__log")).orderBy("__order")
    for change in log.select("op", "key", "before", "after").toLocalIterator():
        if change["op"] == Op.TRUNCATE:
            rows.clear()
        if change["op"] not in Op.ROWS:
            continue
        key = int(change["key"]["id"])
        old = rows.pop(key, {})
        if change["op"] != Op.DELETE:
            told = {re.sub("^x", "y", name) if place.DDL_TOLD else name: v for name, v in change["after"].items()}
            rows[int(change["after"]["id"])] = {**old, **told}
    return rows


def test_a_mirror_equals_the_database_whoever_is_killed_when(
    place: Shop | Store, spark: SparkSession, warehouse: Path
) -> None:
    rng = random.Random(7)
    words = content(place, warehouse, name=f"killed-{place.name}", schema_change="evolve")
    life = Life(place, 11)
    victim = Victim(place.folder, words, warehouse)
    try:
        for number in range(KILLS):
            life.allowed += 6
            process = victim.start()
            time.sleep(rng.uniform(0.5, 9))
            if number % 3 == 2:
                place.restart()
                time.sleep(3)
            victim.kill(process, all_of_it=bool(number % 2))
    finally:
        life.end()
    made = config.pipeline(words, name="")
    run_through(made, spark)
    assert life.done > 100
    assert life.altered > 3
    assert quarantined(made, spark) == []
    lines = published(made, spark)
    reached = [line["numbers"] for line in lines]
    assert reached == sorted(reached)
    assert len({line["batch"] for line in lines}) == len(lines)
    with closing(place.connect()) as connection:
        everything = life.added(connection.cursor())
    for table in "ab":
        added = [name for of, name in everything if of == table]
        wanted = {
            row[0]: row[1:] for row in place.sql(f"SELECT {', '.join(('id', *life.COLUMNS, *added))} FROM {table}")
        }
        found = {row["id"]: row.asDict() for row in spark.table(made.sink.identifier(*place.schema, table)).collect()}
        assert found.keys() == wanted.keys()
        log = spark.table(made.sink.identifier(*place.schema, f"{table}__log"))
        assert log.agg(F.max("position")).collect()[0][0] < reached[-1]
        again = replayed(spark, made, place, table)
        assert again.keys() == wanted.keys()
        for key, (name, amount, body, at, *values) in wanted.items():
            moment = at and (at.astimezone(UTC).replace(tzinfo=None) if at.tzinfo else at)
            assert tuple(found[key][each] for each in life.COLUMNS) == (name, amount, body, moment)
            assert (again[key]["name"], again[key]["amount"], again[key]["body"]) == (name, str(amount), body)
            for column, value in zip(added, values, strict=True):
                told = again[key].get(column.replace("x", "y") if place.DDL_TOLD else column)
                assert found[key].get(column) == (told and int(told)), column
                # A row that nobody touched since has it by the default, which is not told; nor is a name that is new.
                untold = told is None and (value == life.DEFAULT or (column.startswith("y") and not place.DDL_TOLD))
                assert untold or int(told or 0) == value, column
        if place.DDL_TOLD:
            ours = {each for row in found.values() for each in row if re.match("[xy][12]_", each)}
            assert ours <= set(added)


def test_a_row_that_goes_under_another_key_takes_along_what_was_not_told(
    shop: Shop, spark: SparkSession, warehouse: Path
) -> None:
    shop.sql(*shop.TABLES[:1], "ALTER TABLE a ALTER body SET STORAGE EXTERNAL")
    made = config.pipeline(content(shop, warehouse), name=shop.name)
    run_through(made, spark)
    # All in one batch: it is there for no longer than a moment, and is told in parts.
    shop.sql(
        "INSERT INTO a VALUES (1, 'one', 1, repeat('l', 5000)), (5, 'five', 5, repeat('m', 5000))",
        "UPDATE a SET name = 'two' WHERE id = 1",
        "UPDATE a SET id = 2 WHERE id = 1",
        "UPDATE a SET id = 3 WHERE id = 2",
        "INSERT INTO a VALUES (1, 'again', 1, repeat('n', 5000))",
        "UPDATE a SET id = 4 WHERE id = 1",
        "UPDATE a SET id = 1 WHERE id = 5",
        "DELETE FROM a WHERE id = 1",
    )
    run_through(made, spark)
    rows = spark.table(made.sink.identifier(*shop.schema, "a")).orderBy("id").collect()
    assert [(row["id"], row["name"], row["body"]) for row in rows] == [(3, "two", "l" * 5000), (4, "again", "n" * 5000)]


def test_what_stops_the_recorder_stops_the_pipeline_and_names_the_fix(
    shop: Shop, spark: SparkSession, warehouse: Path
) -> None:
    shop.sql("CREATE TABLE t (id int PRIMARY KEY)")
    made = config.pipeline(content(shop, warehouse), name=shop.name)
    query = made.run(spark, once=False)
    try:
        shop.sql("DROP PUBLICATION changeglot", "INSERT INTO t VALUES (1)")
        with pytest.raises(StreamingQueryException, match="publication"):
            query.awaitTermination(60)
    finally:
        query.stop()


def test_the_examples_run_as_they_stand_and_topics_tell_what_the_database_holds(
    shop: Shop,
    mariadb: MariaDB,
    kafka: Kafka,
    spark: SparkSession,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    warehouse: Path,
    tmp_path: Path,
) -> None:
    store = Store(mariadb, tmp_path)
    store.name = "shop"
    with closing(store.connect("mysql")) as connection:
        connection.cursor().execute("CREATE DATABASE shop")
    given = {
        "PGHOST": "127.0.0.1",
        "PGPORT": shop.postgres.port,
        "PGDATABASE": shop.name,
        "PGUSER": shop.postgres.user,
        "PGPASSWORD": PASSWORD,
        "MYSQL_HOST": "127.0.0.1",
        "MYSQL_PORT": mariadb.port,
        "MYSQL_USER": mariadb.user,
        "MYSQL_PASSWORD": PASSWORD,
        "KAFKA": kafka.address,
        "LAKE": str(warehouse / "delta"),
        "NOTES": str(tmp_path / "mysql-notes"),
    }
    for name, value in given.items():
        monkeypatch.setenv(name, str(value))
    for place in (shop, store):
        place.sql(
            "CREATE TABLE orders (id int PRIMARY KEY, name varchar(20), amount decimal(10,2))",
            "INSERT INTO orders VALUES (1, 'one', 1.50), (2, 'two', 2.00), (3, NULL, 3)",
        )
    reading = []
    for after in ("UPDATE orders SET name = 'new' WHERE id = 1", "DELETE FROM orders WHERE id = 2", ""):
        for name in ("postgres-to-delta", "mysql-to-kafka"):
            ran = run("run", EXAMPLES / f"{name}.yaml", "--json")
            assert ran.status == 0, ran.err
            reading.append([json.loads(line)["reading"] for line in ran.err.splitlines()])
        if after:
            shop.sql(after)
            store.sql(after)
    # How far the rows are that are read first, and only then.
    last = {"rows": 3, "of_about": 3}
    assert [each[-1:] for each in reading] == [[{"public.orders": last}], [{"shop.orders": last}], *[[]] * 4]
    wanted = {(1, "new", Decimal("1.50")), (3, None, Decimal(3))}
    made = config.load(EXAMPLES / "postgres-to-delta.yaml")
    mirror = spark.table(made.sink.identifier(shop.name, "public", "orders"))
    assert {(row["id"], row["name"], row["amount"]) for row in mirror.collect()} == wanted
    # What Arcion's consumers read: rows first, then changes.
    words = {
        "source": {"type": "kafka", "servers": kafka.address, "pattern": "shop_orders.*", "format": "arcion"},
        "sink": {"type": "delta", "path": str(warehouse / "delta")},
        "tables": [{"match": "*", "mode": ["scd1", "append"], "into": "captured.{table}"}],
        "checkpoint": str(tmp_path / "back"),
    }
    back = config.pipeline(words, name="back")
    run_through(back, spark)
    mirror = spark.table(back.sink.identifier("captured", "orders"))
    # Its messages do not tell how many digits a decimal has: it is text.
    assert {(row["id"], row["name"], Decimal(row["amount"])) for row in mirror.collect()} == wanted
    log = spark.table(back.sink.identifier("captured", "orders__log")).orderBy("__order").collect()
    assert [row["op"] for row in log] == ["insert"] * 3 + ["update", "delete"]
    assert log[3]["before"] == {"id": "1", "name": "one", "amount": "1.50"}
    assert {row["origin"]["name"] for row in log}
