"""MariaDB's tables and binlog in the spool: exact, once each, whatever ends in the middle. Real servers only."""

from __future__ import annotations

import json
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pymysql
import pytest
from pymysql.cursors import Cursor

from changeglot.capture import mychunks
from changeglot.capture.binlog import Events, Position
from changeglot.capture.mycatalog import kind_of
from changeglot.capture.mysql import Lost, Recorder, Server, Snapshot, Unreachable, copy
from changeglot.capture.mytables import Tables
from changeglot.capture.spool import Spool
from changeglot.errors import ChangeglotError, ConfigError
from changeglot.throwaway.databases import MariaDB

PASSWORD = "pass 'word\\"


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDB]:
    with MariaDB.start(tmp_path_factory.mktemp("services"), password=PASSWORD) as service:
        yield service


class Line(NamedTuple):
    """A change. `new` and `old`: values by column; what was not told is missing."""

    op: str
    relation: dict[str, Any]
    position: tuple[int, ...]
    order: int
    last: bool
    transaction: str
    committed: int
    facts: dict[str, str]
    new: dict[str, str | None] | None
    old: dict[str, str | None] | None
    rest: list[str | None]


def values(texts: list[str]) -> list[str | None]:
    def value(text: str) -> str | None:
        if text == "\\N":
            return None
        parts = text.split("\\\\")
        return "\\".join(p.replace("\\t", "\t").replace("\\n", "\n").replace("\\r", "\r") for p in parts)

    return [value(text) for text in texts]


def image(relation: dict[str, Any], texts: list[str]) -> dict[str, str | None]:
    names = [column["name"] for column in relation["columns"]]
    assert len(names) == len(texts)
    return {n: v for n, text, v in zip(names, texts, values(texts), strict=True) if text != "\\-"}


class Shop:
    """A database of its own, a spool, and a client."""

    def __init__(self, service: MariaDB, name: str, folder: Path) -> None:
        self.service, self.name, self.folder = service, name, folder
        self.client = self.connect()
        self.run(f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}", f"USE {name}")
        self.server = Server("127.0.0.1", service.user, (f"{name}.*",), service.password, service.port, "shop")
        self.restarted()

    def connect(self) -> pymysql.Connection[Cursor]:
        return pymysql.connect(
            host="127.0.0.1",
            port=self.service.port,
            user=self.service.user,
            password=self.service.password,
            autocommit=True,
            charset="utf8mb4",
            init_command="SET sql_mode = ''",
        )

    def restarted(self) -> None:
        """As another process would begin."""
        self.spool = Spool(self.folder)
        self.recorder = Recorder(self.server, self.spool)

    def run(self, *statements: str, on: pymysql.Connection[Cursor] | None = None) -> list[tuple[Any, ...]]:
        with (on or self.client).cursor() as cursor:
            for each in statements:
                cursor.execute(each)
            return list(cursor.fetchall())

    def record(self) -> list[Line]:
        """All that was recorded when all was recorded."""
        self.recorder.record(self.recorder.current())
        return self.lines()

    def lines(self) -> list[Line]:
        found = []
        for path in sorted(self.spool.segments.iterdir()):
            for text in path.read_bytes().decode().removesuffix("\n").split("\n"):
                found.append(self._line(text.split("\t")))
        return found

    def relation(self, name: str) -> dict[str, Any]:
        relation: dict[str, Any] = json.loads((self.spool.relations / f"{name}.json").read_bytes())
        return relation

    def _line(self, fields: list[str]) -> Line:
        op, name, position, order, last, transaction, committed, facts, old, *rest = fields
        relation = self.relation(name) if name else {}
        count = len(relation.get("columns", ()))
        assert old == {"i": "", "u": "O", "d": "O"}.get(op, "")
        return Line(
            op,
            relation,
            tuple(map(int, position.split("."))),
            int(order),
            last == "1",
            transaction,
            int(committed),
            json.loads(values([facts])[0] or "{}"),
            image(relation, rest[:count]) if op in "iu" else None,
            image(relation, rest[-count:]) if op in "ud" else None,
            values(rest),
        )

    def copied(self, snapshot: Snapshot | None) -> list[tuple[tuple[int, ...], dict[str, str | None]]]:
        """The rows of a snapshot, each with its chunk's position."""
        assert snapshot is not None
        found = []
        for chunk in snapshot.chunks:
            path = self.folder / f"chunk-{chunk.number}"
            done = copy(self.server, chunk, path)
            assert self.spool.relation(done.facts) == done.relation
            assert path.stat().st_size == done.size
            lines = path.read_bytes().decode().split("\n")[:-1]
            assert len(lines) == done.rows
            for n, line in enumerate(lines):
                op, relation, place, *texts = line.split("\t")
                assert (op, relation, place) == ("r", done.relation, f"{chunk.number}.{n}")
                found.append((tuple(done.facts["snapshot"]), image(done.facts, texts)))
        return found


@pytest.fixture
def shop(mariadb: MariaDB, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shop]:
    made = Shop(mariadb, f"shop_{abs(hash(request.node.name)) % 1_000_000}", tmp_path / "spool")
    yield made
    made.client.close()


def brief(lines: list[Line]) -> list[tuple[str, dict[str, str | None] | None, dict[str, str | None] | None]]:
    return [(line.op, line.new, line.old) for line in lines]


def applied(
    rows: list[tuple[tuple[int, ...], dict[str, str | None]]], lines: list[Line], key: str = "id"
) -> dict[str | None, dict[str, str | None]]:
    """The table that a snapshot and the changes behind it make; each chunk takes only what it does not hold yet."""
    found = {row[key]: row for _, row in rows}
    first = {position for position, _ in rows}
    since = min(first) if first else (0, 0)
    assert len(first) <= 1, "one chunk"
    for line in lines:
        if line.position > since:
            if line.old is not None:
                found.pop(line.old[key], None)
            if line.new is not None:
                found[line.new[key]] = line.new
    return found


#: Type, and literals; a NULL is added to each.
TYPES: dict[str, list[str]] = {
    "tinyint": ["-128", "127"],
    "tinyint unsigned": ["255"],
    "bool": ["true"],
    "smallint": ["-32768", "32767"],
    "smallint unsigned": ["65535"],
    "mediumint": ["-8388608", "8388607"],
    "mediumint unsigned": ["16777215"],
    "int": ["-2147483648", "2147483647"],
    "int unsigned": ["4294967295"],
    "int(8) zerofill": ["42"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "bigint unsigned": ["18446744073709551615", "0"],
    "decimal(10,2)": ["-12345678.90", "0.05", "0", "-0.01"],
    "decimal(65,30)": ["-99999999999999999999999999999999999.999999999999999999999999999999", "1.5"],
    "decimal(9,0) unsigned": ["999999999"],
    "decimal(18,9)": ["123456789.987654321", "-1"],
    "decimal(5,5)": ["0.12345", "-0.00001"],
    "decimal(8,3) zerofill": ["1.5"],
    "float": ["0.1", "16777216", "3.1415927", "1e20", "1e-20", "-1.5e38", "1234567", "-0e0", "3.40282e38"],
    "float(7,2)": ["1.5", "12345.67"],
    "double": ["0.1", "1e15", "1e14", "123456789012345678", "1e-5", "1e-15", "1e-16", "-1.7976931348623157e308"],
    "double(9,3)": ["1.25", "-0.001"],
    "double unsigned": ["5e-324", "0.3", "2.2250738585072014e-308", "999999999999999.9"],
    "bit(1)": ["b'1'", "b'0'"],
    "bit(12)": ["b'101'"],
    "bit(64)": ["18446744073709551615"],
    "date": ["'2024-02-29'", "'0000-00-00'", "'2024-00-00'", "'9999-12-31'", "'0001-01-01'"],
    "time": ["'838:59:59'", "'-838:59:59'", "'00:00:01'", "'-00:00:01'"],
    "time(2)": ["'-00:00:00.50'", "'12:00:00.25'", "'-12:34:56.07'"],
    "time(6)": ["'-838:59:59.999999'", "'00:00:00.000001'", "'-00:00:00.000001'", "'100:00:00.5'"],
    "datetime": ["'2024-02-29 23:59:59'", "'0000-00-00 00:00:00'", "'2024-00-00 00:00:00'"],
    "datetime(3)": ["'9999-12-31 23:59:59.999'", "'1000-01-01 00:00:00.01'"],
    "datetime(6)": ["'2024-02-29 23:59:59.000001'", "'0000-00-00 00:00:00'"],
    "timestamp null": [
        "'2024-02-29 23:59:59'",
        "'0000-00-00 00:00:00'",
        "'2038-01-19 03:14:07'",
        "'1970-01-02 00:00:00'",
    ],
    "timestamp(1) null": ["'2024-02-29 23:59:59.9'"],
    "timestamp(6) null": ["'2024-02-29 23:59:59.000001'", "'0000-00-00 00:00:00'"],
    "year": ["2024", "1901", "2155", "0"],
    "char(5)": ["'ab '", "''", "'äöü€😀'"],
    "char(255)": ["'äöü'"],
    "varchar(20)": [r"'a\tb\nc\rd\\e\0f'", "''", r"'\\N'", r"'\\-'", "'😀 \"quoted\"'"],
    "varchar(300)": ["'long'", "'ü'"],
    "varchar(20) charset latin1": ["'äöü€'", "_latin1 x'818D8F909D80'"],
    "varchar(20) charset cp1251": ["'привет'"],
    "varchar(20) charset latin2": ["'ąćę'"],
    "varchar(20) charset gbk": ["'中文'"],
    "varchar(20) charset sjis": ["'日本'"],
    "varchar(20) charset utf16": ["'日本😀'"],
    "varchar(20) charset ucs2": ["'日本'"],
    "varchar(20) collate utf8mb4_uca1400_ai_ci": ["'ünï'"],
    "varchar(20) charset utf8mb3": ["'ünï'"],
    "varchar(20) compressed": ["'short'"],
    "text compressed": ["repeat('compressible ', 100)", "'x'"],
    "tinytext": ["'tiny'"],
    "text": [r"'two\nlines'"],
    "text charset latin1": ["'tëxt'"],
    "mediumtext": ["repeat('m', 70000)"],
    "longtext": ["'l'"],
    "json": ["""'{"a": [1, 2.50, "x\\\\ty"]}'"""],
    "binary(4)": ["x'00ff'", "x'00000000'", "x'20202020'"],
    "varbinary(20)": ["x'005c090a'", "''"],
    "tinyblob": ["x'00'"],
    "blob": ["x'deadbeef'", "repeat(x'61', 300)"],
    "mediumblob": ["x'01'"],
    "longblob": ["x'02'"],
    "blob compressed": ["repeat(x'00', 200)"],
    "enum('a','it''s','ü','b\\\\c')": ["'a'", "'it''s'", "'ü'", "'b\\\\c'", "0"],
    "enum('ä','b') charset latin1": ["'ä'"],
    "set('a','b','ü','d')": ["'d,a'", "''", "'ü'", "'a,b,ü,d'"],
    "point": ["point(1, -2.5)"],
    "geometry": ["st_geomfromtext('LINESTRING(0 0,1 1)')"],
    "uuid": [
        "'123e4567-e89b-12d3-a456-426655440000'",
        "'0189f7e0-6d2b-7cc3-98c4-dc0c0c07398f'",
        "'9f4a3a52-6f0e-4d6a-8c1e-0b8c6a7f2e11'",
        "'00000000-0000-0000-0000-000000000000'",
        "'ffffffff-ffff-ffff-ffff-ffffffffffff'",
    ],
    "inet6": ["'2001:db8::ff00:42:8329'", "'::'", "'::ffff:192.0.2.1'", "'::192.0.2.1'", "'1::'"],
    "inet4": ["'192.0.2.1'", "'0.0.0.0'"],
}


def test_every_type_reads_the_same_from_the_table_and_from_the_binlog(shop: Shop) -> None:
    declared = "".join(f", c{n} {kind}" for n, kind in enumerate(TYPES))
    shop.run(
        f"CREATE TABLE types (id int PRIMARY KEY{declared}, g1 int AS (id + 1) STORED, g2 int AS (id + 2) VIRTUAL)"
    )
    assert shop.recorder.prepare() is not None
    shop.run("SET time_zone = '+00:00'")
    for n in range(max(map(len, TYPES.values())) + 1):
        literal = [literals[n] if n < len(literals) else "NULL" for literals in TYPES.values()]
        names = ", ".join(f"c{i}" for i in range(len(TYPES)))
        shop.run(f"INSERT INTO types (id, {names}) VALUES ({n}, {', '.join(literal)})")
    streamed = shop.record()
    copied = [row for _, row in shop.copied(shop.recorder.snapshot([f"{shop.name}.types"]))]
    kinds = ["int", *TYPES, "stored", "virtual"]
    for line, row in zip(streamed, copied, strict=True):
        assert line.new is not None
        for kind, told, read in zip(kinds, line.new.items(), row.items(), strict=True):
            assert told == read, kind
    first, third = copied[0], copied[2]
    shown = dict(zip(TYPES, list(first.values())[1:], strict=False))
    assert shown["bigint unsigned"] == "18446744073709551615"
    assert shown["decimal(10,2)"] == "-12345678.90"
    assert shown["float"] == "0.1"
    assert shown["bit(12)"] == "000000000101"
    assert shown["time(6)"] == "-838:59:59.999999"
    assert shown["varchar(20)"] == "a\tb\nc\rd\\e\0f"
    assert shown["varchar(20) charset latin1"] == "äöü€"
    assert shown["set('a','b','ü','d')"] == "a,d"
    assert shown["binary(4)"] == "\\x00ff0000"
    assert shown["timestamp null"] == "2024-02-29 23:59:59"
    assert shown["uuid"] == "123e4567-e89b-12d3-a456-426655440000"
    assert dict(zip(TYPES, list(third.values())[1:], strict=False))["date"] == "2024-00-00"
    # The catalog and the binlog tell the same relation but for where the snapshot was taken.
    (chunk,) = shop.recorder.snapshot([f"{shop.name}.types"]).chunks
    for told, read in zip(streamed[0].relation["columns"], chunk.facts["columns"], strict=True):
        assert told == read
    assert streamed[0].relation == chunk.facts


def test_types_that_are_gone_from_the_catalog_are_told_by_the_binlog(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE item (id int unsigned PRIMARY KEY, name varchar(20) NOT NULL, a decimal(9,2), t datetime(3))"
    )
    shop.recorder.prepare()
    shop.run("INSERT INTO item VALUES (1, 'one', 1, now())", "DROP TABLE item")
    inserted, dropped = shop.record()
    types = [(column["name"], column["type"], column["nullable"]) for column in inserted.relation["columns"]]
    assert types == [
        ("id", "int(10) unsigned", False),
        ("name", "varchar(20)", False),
        ("a", "decimal(9,2)", True),
        ("t", "datetime(3)", True),
    ]
    assert inserted.relation["key"] == ["id"]
    assert (dropped.op, dropped.relation) == ("q", inserted.relation)


def test_changes_have_their_transaction_order_and_facts(shop: Shop) -> None:
    shop.run("CREATE TABLE item (id int PRIMARY KEY, name text)")
    shop.recorder.prepare()
    before = int(time.time())
    shop.run("BEGIN", "INSERT INTO item VALUES (1, 'a'), (2, NULL)", "UPDATE item SET id = 3 WHERE id = 1", "COMMIT")
    shop.run("DELETE FROM item WHERE id = 2")
    lines = shop.record()
    assert brief(lines) == [
        ("i", {"id": "1", "name": "a"}, None),
        ("i", {"id": "2", "name": None}, None),
        ("u", {"id": "3", "name": "a"}, {"id": "1", "name": "a"}),
        ("d", None, {"id": "2", "name": None}),
    ]
    assert [(line.order, line.last) for line in lines] == [(0, False), (1, False), (2, True), (0, True)]
    assert lines[0].transaction == lines[2].transaction != lines[3].transaction
    assert lines[0].position == lines[2].position < lines[3].position
    assert before - 1 <= lines[0].committed / 1e6 <= time.time() + 1
    assert lines[0].facts == {
        "gtid": lines[0].transaction,
        "file": f"binlog.{lines[0].position[0]:06d}",
        "server_id": "1",
    }
    assert lines[0].relation["origin"] == {"kind": "mariadb", "version": shop.service.version, "name": "shop"}


@pytest.mark.parametrize("compressed", ["OFF", "ON"])
def test_what_a_minimal_image_leaves_out_is_absent_and_not_null(shop: Shop, compressed: str) -> None:
    shop.run("CREATE TABLE item (id int PRIMARY KEY, a text, b int, c int)", "INSERT INTO item VALUES (1, 'x', 2, 3)")
    shop.recorder.prepare()
    shop.run(f"SET GLOBAL log_bin_compress = {compressed}", "SET GLOBAL log_bin_compress_min_len = 10")
    shop.run("SET binlog_row_image = MINIMAL", "UPDATE item SET a = NULL, b = 5", "DELETE FROM item")
    shop.run("SET binlog_row_image = NOBLOB", "INSERT INTO item VALUES (2, 'y', 2, 3)", "UPDATE item SET b = 6")
    shop.run("SET binlog_row_image = FULL", "SET GLOBAL log_bin_compress = OFF")
    assert brief(shop.record()) == [
        ("u", {"a": None, "b": "5"}, {"id": "1"}),
        ("d", None, {"id": "1"}),
        ("i", {"id": "2", "a": "y", "b": "2", "c": "3"}, None),
        ("u", {"id": "2", "b": "6", "c": "3"}, {"id": "2", "b": "2", "c": "3"}),
    ]


def test_keys_are_the_primary_one_or_a_unique_one_or_none(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE a (x int, y int, z int, PRIMARY KEY (z, x))",
        "CREATE TABLE b (x int NOT NULL, y int, UNIQUE (y), UNIQUE (x))",
        "CREATE TABLE c (x int, UNIQUE (x))",
    )
    snapshot = shop.recorder.prepare()
    assert snapshot is not None
    assert [chunk.facts["key"] for chunk in snapshot.chunks] == [["z", "x"], ["x"], []]
    shop.run("INSERT INTO a VALUES (1, 2, 3)", "INSERT INTO b VALUES (1, 2)", "INSERT INTO c VALUES (1)")
    lines = shop.record()
    assert [line.relation["key"] for line in lines] == [["z", "x"], ["x"], []]


def test_columns_added_renamed_and_dropped_in_the_middle(shop: Shop) -> None:
    shop.run("CREATE TABLE item (id int PRIMARY KEY, a int)")
    shop.recorder.prepare()
    shop.run(
        "INSERT INTO item VALUES (1, 1)",
        "ALTER TABLE item ADD COLUMN b varchar(9) FIRST",
        "INSERT INTO item VALUES ('x', 2, 2)",
        "ALTER TABLE item RENAME COLUMN a TO c",
        "INSERT INTO item VALUES ('y', 3, 3)",
        "ALTER TABLE item DROP COLUMN b",
        "INSERT INTO item VALUES (4, 4)",
        "ALTER TABLE item MODIFY c bigint unsigned",
        "INSERT INTO item VALUES (5, 18446744073709551615)",
    )
    lines = shop.record()
    assert [line.new for line in lines if line.op == "i"] == [
        {"id": "1", "a": "1"},
        {"b": "x", "id": "2", "a": "2"},
        {"b": "y", "id": "3", "c": "3"},
        {"id": "4", "c": "4"},
        {"id": "5", "c": "18446744073709551615"},
    ]
    told = [line for line in lines if line.op == "q"]
    assert told[0].rest == ["ALTER TABLE item ADD COLUMN b varchar(9) FIRST"]
    assert all(line.last and line.relation["table"] == "item" for line in told)
    assert all(line.facts["database"] == shop.name for line in told)
    types = [[column["type"] for column in line.relation["columns"]] for line in lines if line.op == "i"]
    assert types[0] == types[3] == ["int(11)", "int(11)"]
    assert types[4] == ["int(11)", "bigint(20) unsigned"]


def test_statements_are_told_if_they_concern_a_table_that_is_captured(shop: Shop) -> None:
    shop.run("CREATE TABLE `an item` (id int)", "CREATE TABLE other (id int)", "CREATE TABLE third (id int)")
    shop.server = replace(shop.server, tables=(f"{shop.name}.*item*",))
    shop.restarted()
    shop.recorder.prepare()
    statements = [
        "/* why */ TRUNCATE TABLE `an item`",
        f"CREATE INDEX ids ON {shop.name}.`an item` (id)",
        "RENAME TABLE third TO new_item, `an item` TO `an item 2`",
        "DROP TABLE IF EXISTS other, new_item",
    ]
    shop.run(
        "CREATE OR REPLACE USER eve@localhost IDENTIFIED BY 'topsecret'",
        *statements,
        "CREATE TEMPORARY TABLE item_temp (id int)",
        "CREATE VIEW item_view AS SELECT 1",
        "DROP USER eve@localhost",
        "DELETE FROM `an item 2`",
    )
    lines = shop.record()
    assert [line.op for line in lines] == ["t", "q", "q", "q"]
    assert [line.relation["table"] for line in lines[:3]] == ["an item", "an item", "an item"]
    assert [str(line.rest[0]).replace("`", "") for line in lines[1:3]] == [
        each.replace("`", "") for each in statements[1:3]
    ]
    assert "topsecret" not in "".join(path.read_text() for path in shop.spool.segments.iterdir())


def test_a_change_that_was_written_as_a_statement_is_lost_and_not_skipped(shop: Shop) -> None:
    shop.run("CREATE TABLE item (id int PRIMARY KEY)")
    shop.recorder.prepare()
    shop.run("SET binlog_format = STATEMENT", "INSERT INTO item VALUES (1)", "SET binlog_format = ROW")
    with pytest.raises(Lost, match="was written as a statement"):
        shop.record()


def test_what_is_rolled_back_is_not_told_and_sessions_do_not_mix(shop: Shop) -> None:
    shop.run("CREATE TABLE item (id int PRIMARY KEY)", "CREATE TABLE isam (id int PRIMARY KEY) ENGINE = MyISAM")
    shop.recorder.prepare()
    other = shop.connect()
    shop.run("BEGIN", "INSERT INTO item VALUES (1)", "SAVEPOINT s", "INSERT INTO item VALUES (2)")
    shop.run(f"USE {shop.name}", "BEGIN", "INSERT INTO item VALUES (10)", on=other)
    shop.run("ROLLBACK TO s", "INSERT INTO item VALUES (3)")
    shop.run("INSERT INTO item VALUES (11)", "COMMIT", on=other)
    shop.run("COMMIT", "BEGIN", "INSERT INTO item VALUES (4)", "ROLLBACK")
    shop.run(
        "INSERT INTO isam VALUES (5)", "BEGIN", "INSERT INTO isam VALUES (6)", "INSERT INTO item VALUES (7)", "ROLLBACK"
    )
    other.close()
    lines = shop.record()
    assert [line.new and line.new["id"] for line in lines] == ["10", "11", "1", "3", "5", "6"]
    assert [line.last for line in lines] == [False, True, False, True, True, True]
    assert len({line.position for line in lines}) == 4


def test_an_xa_transaction_is_refused(shop: Shop) -> None:
    shop.run("CREATE TABLE item (id int PRIMARY KEY)")
    shop.recorder.prepare()
    shop.run("XA START 'x'", "INSERT INTO item VALUES (1)", "XA END 'x'", "XA PREPARE 'x'", "XA COMMIT 'x'")
    with pytest.raises(ChangeglotError, match="XA transaction"):
        shop.record()


def recording(shop: Shop) -> tuple[threading.Thread, threading.Event, list[BaseException]]:
    """A recorder that runs until it is told to stop."""
    stop, failed = threading.Event(), []

    def run() -> None:
        try:
            shop.recorder.record(None, stop.is_set)
        except BaseException as problem:  # noqa: BLE001 - the test raises it
            failed.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, stop, failed


def awaited(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_recorders_that_end_and_servers_that_restart_lose_and_repeat_nothing(shop: Shop) -> None:
    shop.run("CREATE TABLE item (id int PRIMARY KEY)")
    shop.recorder.prepare()
    thread, stop, failed = recording(shop)
    shop.run("INSERT INTO item VALUES (1)", "BEGIN", "INSERT INTO item VALUES (2), (3)", "COMMIT")
    awaited(lambda: len(shop.lines()) == 3)
    shop.service.kill()
    shop.service.restart()
    shop.client = shop.connect()
    shop.run(f"USE {shop.name}", "INSERT INTO item VALUES (4)", "FLUSH BINARY LOGS", "INSERT INTO item VALUES (5)")
    awaited(lambda: len(shop.lines()) == 5)
    stop.set()
    thread.join()
    assert not failed
    shop.run("INSERT INTO item VALUES (6)")
    shop.restarted()
    snapshot = shop.recorder.prepare()
    assert snapshot is not None
    shop.recorder.unread.done(snapshot.tables)
    assert shop.recorder.prepare() is None
    shop.record()
    shop.restarted()
    lines = shop.record()
    assert [line.new and line.new["id"] for line in lines] == ["1", "2", "3", "4", "5", "6"]
    assert lines[4].position[0] > lines[3].position[0] > lines[2].position[0]
    assert sorted({line.position for line in lines}) == list(dict.fromkeys(line.position for line in lines))


def test_a_transaction_that_is_cut_in_the_middle_comes_again(shop: Shop) -> None:
    shop.run("CREATE TABLE item (id int PRIMARY KEY, t text)")
    shop.recorder.prepare()
    shop.run("INSERT INTO item VALUES (0, '')", "INSERT INTO item SELECT seq, repeat('x', 100) FROM seq_1_to_20000")
    asked = iter(range(1000))
    # Asked for the first time when 256 events have come, within the second transaction.
    shop.recorder.record(None, lambda: next(asked) > 0)
    assert len(shop.lines()) == 1
    lines = shop.record()
    assert [line.new and line.new["id"] for line in lines] == [str(n) for n in range(20001)]
    assert [line.last for line in lines[1:]] == [False] * 19999 + [True]


def test_a_transaction_that_its_server_did_not_finish_is_dropped(shop: Shop) -> None:
    shop.run("CREATE TABLE item (id int PRIMARY KEY)")
    shop.recorder.prepare()
    shop.run("INSERT INTO item VALUES (1)", "INSERT INTO item VALUES (2), (3)")
    shop.run("BEGIN", "INSERT INTO item VALUES (4)", "INSERT INTO item VALUES (5)", "COMMIT")
    begun = Position.of(shop.spool.position)
    with shop.server.connected() as connection:
        tables = Tables(shop.server, kind_of(connection), shop.spool, connection)
        events = Events(tables, begun, mariadb=True, checksum=True)
        with shop.recorder._dumped(connection, begun, ends=True) as feed:
            lines = b""
            while lines.count(b"\n") < 4:
                lines += events.take(feed.read(30) or b"")
    complete = events.position
    assert events.inside
    # As the server tells it when it goes on with another file.
    name = b"binlog.%06d" % (complete.file + 1)
    event = struct.pack("<IBIIIHQ", 0, 4, 1, 31 + len(name), 0, 0x20, 4) + name
    assert events.take(event + zlib.crc32(event).to_bytes(4, "little")) == b""
    assert not events.inside
    assert events.rolled_back
    assert events.position == Position(complete.file + 1, 4) > complete


def test_a_reader_with_the_same_number_is_told_of(shop: Shop) -> None:
    shop.run("CREATE TABLE item (id int PRIMARY KEY)")
    shop.recorder.prepare()
    thread, stop, failed = recording(shop)
    shop.run("INSERT INTO item VALUES (1)")
    awaited(lambda: len(shop.lines()) == 1)
    Recorder(shop.server, Spool(shop.folder / "other")).prepare()
    thread.join(30)
    stop.set()
    thread.join()
    (problem,) = failed
    assert "Set server_id" in str(problem)


def test_sequences_and_other_databases_are_no_tables(shop: Shop) -> None:
    shop.run("CREATE TABLE item (id int PRIMARY KEY)", "CREATE SEQUENCE numbers CACHE 2")
    shop.recorder.prepare()
    shop.run("SELECT NEXTVAL(numbers) FROM seq_1_to_10", "INSERT INTO item VALUES (NEXTVAL(numbers))")
    assert [(line.op, line.new) for line in shop.record()] == [("i", {"id": "11"})]


def test_a_row_that_is_larger_than_a_packet(shop: Shop) -> None:
    shop.run("SET GLOBAL max_allowed_packet = 134217728")
    shop.client = shop.connect()
    shop.run(f"USE {shop.name}", "CREATE TABLE item (id int PRIMARY KEY, t longtext)")
    shop.recorder.prepare()
    shop.run("INSERT INTO item VALUES (1, repeat('abcdefgh', 5000000))")
    streamed = [line.new for line in shop.record()]
    assert streamed == [{"id": "1", "t": "abcdefgh" * 5_000_000}]
    assert [row for _, row in shop.copied(shop.recorder.snapshot([f"{shop.name}.item"]))] == streamed


def test_a_snapshot_and_what_is_written_meanwhile_make_the_table(shop: Shop) -> None:
    shop.run("CREATE TABLE item (id int PRIMARY KEY, n int)", "INSERT INTO item SELECT seq, 0 FROM seq_1_to_3000")
    snapshot = shop.recorder.prepare()
    other, stop = shop.connect(), threading.Event()

    def write() -> None:
        shop.run(f"USE {shop.name}", on=other)
        n = 0
        while not stop.is_set():
            n += 1
            shop.run(
                "BEGIN", f"UPDATE item SET n = {n} WHERE id % 7 = {n % 7}", f"DELETE FROM item WHERE id = {n}", on=other
            )
            shop.run(
                f"INSERT INTO item VALUES ({10000 + n}, 0)", f"UPDATE item SET id = -id WHERE id = {2000 + n}", on=other
            )
            shop.run("COMMIT", on=other)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        awaited(lambda: shop.run("SELECT max(id) FROM item")[0][0] > 10003)
        rows = shop.copied(snapshot)
        seen = shop.run("SELECT max(id) FROM item")[0][0]
        awaited(lambda: shop.run("SELECT max(id) FROM item")[0][0] > seen + 3)
    finally:
        stop.set()
        writer.join()
        other.close()
    found = applied(rows, shop.record())
    table = {str(key): str(n) for key, n in shop.run("SELECT id, n FROM item")}
    assert {key: row["n"] for key, row in found.items()} == table


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        ("int", "seq"),
        ("bigint unsigned", "18446744073709500000 + seq"),
        ("varchar(20)", "concat('Ab%''', char(65 + seq % 50), seq)"),
        ("binary(3)", "unhex(lpad(hex(seq), 6, '0'))"),
        ("datetime(3)", "'2024-01-01' + interval seq second"),
        ("decimal(12,4)", "seq / 8"),
        ("uuid", "uuid()"),
        ("double", "seq / 8"),
    ],
)
def test_chunks_hold_each_row_once(shop: Shop, monkeypatch: pytest.MonkeyPatch, kind: str, made: str) -> None:
    monkeypatch.setattr(mychunks, "ROWS", 100)
    shop.run(f"CREATE TABLE item (`a%%s` {kind}, n int, PRIMARY KEY (`a%%s`, n))")
    shop.run(
        f"INSERT INTO item SELECT {made}, seq FROM seq_1_to_250", f"INSERT INTO item SELECT {made}, 9 FROM seq_1_to_1"
    )
    snapshot = shop.recorder.prepare()
    assert snapshot is not None
    assert len(snapshot.chunks) == (1 if kind == "double" else 3)
    rows = shop.copied(snapshot)
    assert sorted(int(row["n"] or 0) for _, row in rows) == sorted([*range(1, 251), 9])


def test_one_value_of_a_key_may_have_more_rows_than_a_chunk(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mychunks, "ROWS", 10)
    shop.run("CREATE TABLE item (a char(1), n int, PRIMARY KEY (a, n))")
    shop.run("INSERT INTO item SELECT if(seq > 5, 'b', 'A'), seq FROM seq_1_to_95", "INSERT INTO item VALUES ('C', 1)")
    rows = shop.copied(shop.recorder.prepare())
    assert sorted(int(row["n"] or 0) for _, row in rows) == sorted([*range(1, 96), 1])


def test_a_binlog_that_was_purged_is_lost(shop: Shop) -> None:
    shop.run("CREATE TABLE item (id int PRIMARY KEY)")
    shop.recorder.prepare()
    begun = shop.spool.position
    shop.run("FLUSH BINARY LOGS", "INSERT INTO item VALUES (1)", "FLUSH BINARY LOGS")
    shop.run("SET GLOBAL slave_connections_needed_for_purge = 0")
    file = int(begun.split(".")[0])

    def purged() -> bool:
        shop.run(f"PURGE BINARY LOGS TO 'binlog.{file + 2:06d}'")
        return f"binlog.{file:06d}" not in [row[0] for row in shop.run("SHOW BINARY LOGS")]

    # Not while the server has not noticed yet that a reader has left.
    awaited(purged)
    with pytest.raises(Lost, match="does not have that any more"):
        shop.recorder.prepare()
    with pytest.raises(Lost, match="does not have that any more"):
        shop.recorder.record(None)
    shop.server = replace(shop.server, tables=shop.server.tables, snapshot="when_needed")
    shop.restarted()
    assert [row for _, row in shop.copied(shop.recorder.prepare())] == [{"id": "1"}]


def test_a_binlog_that_was_reset_is_lost_though_it_is_as_long_again(shop: Shop) -> None:
    shop.run("RESET MASTER", "CREATE TABLE item (id int PRIMARY KEY, t text)")
    shop.recorder.prepare()
    # What tells a file from another is the second in which it was begun.
    began = int(time.time())
    awaited(lambda: time.time() >= began + 1)
    shop.run("RESET MASTER", "INSERT INTO item VALUES (1, repeat('x', 5000))")
    with pytest.raises(Lost, match="is not the one that was read before"):
        shop.recorder.prepare()
    with pytest.raises(Lost, match="is not the one that was read before"):
        shop.recorder.record(shop.recorder.current())


def test_modes_without_rows_and_tables_that_were_not_finished(shop: Shop) -> None:
    shop.run("CREATE TABLE item (id int PRIMARY KEY)", "INSERT INTO item VALUES (1)")
    shop.server = replace(shop.server, tables=shop.server.tables, snapshot="no_data")
    shop.restarted()
    assert shop.recorder.prepare() is None
    assert shop.recorder.prepare() is None
    shop.recorder.unread.ask([f"{shop.name}.item", f"{shop.name}.nothing"])
    assert [row for _, row in shop.copied(shop.recorder.prepare())] == [{"id": "1"}]
    assert shop.recorder.unread.tables == [f"{shop.name}.item"]
    shop.recorder.unread.done([f"{shop.name}.item"])
    assert shop.recorder.prepare() is None
    with pytest.raises(ChangeglotError, match="there is no table"):
        shop.recorder.snapshot([f"{shop.name}.nothing"])


def test_tables_that_are_wanted_later_are_read_and_those_made_later_are_not(shop: Shop) -> None:
    shop.run("CREATE TABLE item (id int PRIMARY KEY)", "CREATE TABLE person (id int PRIMARY KEY)")
    shop.server = replace(shop.server, tables=(f"{shop.name}.item*",))
    shop.restarted()
    first = shop.recorder.prepare()
    assert first is not None
    assert first.tables == (f"{shop.name}.item",)
    shop.recorder.unread.done(first.tables)
    shop.run("CREATE TABLE item2 (id int PRIMARY KEY)")
    assert shop.recorder.prepare() is None
    shop.server = replace(shop.server, tables=(f"{shop.name}.item*", f"{shop.name}.person"))
    shop.restarted()
    for _ in range(2):
        later = shop.recorder.prepare()
        assert later is not None
        assert later.tables == (f"{shop.name}.person",)


def test_a_server_that_stays_away_is_given_up(shop: Shop) -> None:
    shop.run("CREATE TABLE item (id int PRIMARY KEY)")
    shop.recorder.check()
    assert shop.spool.position == ""
    shop.recorder.prepare()
    with pytest.raises(Unreachable, match="given up after 0 seconds"):
        Recorder(replace(shop.server, port=1), shop.spool, patience=0).record(None)


def test_a_position_moves_on_though_nothing_of_interest_is_told(shop: Shop) -> None:
    shop.run("CREATE TABLE item (id int PRIMARY KEY)")
    shop.recorder.prepare()
    shop.run("CREATE OR REPLACE DATABASE elsewhere", "CREATE TABLE elsewhere.item (id int)")
    shop.run("INSERT INTO elsewhere.item VALUES (1)", "FLUSH BINARY LOGS", "DROP DATABASE elsewhere")
    assert shop.record() == []
    assert shop.spool.position == shop.recorder.current()


@pytest.mark.parametrize(
    ("variable", "wrong", "right"), [("binlog_row_metadata", "MINIMAL", "FULL"), ("binlog_format", "MIXED", "ROW")]
)
def test_a_binlog_that_tells_too_little_is_refused(shop: Shop, variable: str, wrong: str, right: str) -> None:
    shop.run("CREATE TABLE item (id int PRIMARY KEY)", f"SET GLOBAL {variable} = {wrong}")
    try:
        with pytest.raises(ChangeglotError, match=f'{variable} is "{wrong}".*SET GLOBAL {variable} = {right}'):
            shop.recorder.prepare()
    finally:
        shop.run(f"SET GLOBAL {variable} = {right}")


def test_changes_that_were_written_without_names_are_lost(shop: Shop) -> None:
    shop.run("CREATE TABLE item (id int PRIMARY KEY)")
    shop.recorder.prepare()
    shop.run(
        "SET GLOBAL binlog_row_metadata = NO_LOG",
        "INSERT INTO item VALUES (1)",
        "SET GLOBAL binlog_row_metadata = FULL",
    )
    with pytest.raises(Lost, match="without the names of its columns"):
        shop.record()


def test_who_may_not_is_told_what_to_grant(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE item (id int PRIMARY KEY)", "CREATE OR REPLACE USER ann@'127.0.0.1' IDENTIFIED BY 'secret-7'"
    )

    def prepare(password: str = "secret-7", port: int = shop.service.port) -> None:
        server = Server("127.0.0.1", "ann", shop.server.tables, password=password, port=port)
        assert "secret-7" not in repr(server)
        Recorder(server, Spool(shop.folder)).prepare()

    with pytest.raises(ConfigError, match="Are user and password right") as wrong:
        prepare("secret-8")
    assert "secret" not in str(wrong.value)
    with pytest.raises(Unreachable, match="Does the server run"):
        prepare(port=1)
    with pytest.raises(ChangeglotError, match="none that ann may read"):
        prepare()
    for grant in (f"SELECT ON {shop.name}.*", "REPLICATION CLIENT ON *.*"):
        shop.run(f"GRANT {grant} TO ann@'127.0.0.1'")
        with pytest.raises(ChangeglotError, match="GRANT REPLICATION SLAVE"):
            prepare()
    shop.run("GRANT REPLICATION SLAVE ON *.* TO ann@'127.0.0.1'")
    prepare()
    shop.run("DROP USER ann@'127.0.0.1'")


def test_a_server_without_a_binlog_is_refused(tmp_path: Path) -> None:
    with MariaDB.start(tmp_path, settings={"skip_log_bin": ""}) as service:
        shop = Shop(service, "shop", tmp_path / "spool")
        shop.run("CREATE TABLE item (id int PRIMARY KEY)", "INSERT INTO item VALUES (1)")
        with pytest.raises(ChangeglotError, match='log_bin is "OFF"') as caught:
            shop.recorder.prepare()
        assert "log_bin = binlog" in caught.value.hint
        # Its file of options without the word, and started again.
        service.state["settings"].clear()
        service.restart()
        assert [row for _, row in shop.copied(shop.recorder.prepare())] == [{"id": "1"}]


@pytest.mark.parametrize("pattern", ["item", "a.b.c", ".item"])
def test_a_pattern_is_a_database_and_a_table(pattern: str) -> None:
    with pytest.raises(ConfigError, match="not a database and a table"):
        Server("127.0.0.1", "ann", (pattern,))
