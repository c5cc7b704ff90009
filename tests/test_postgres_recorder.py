"""The recorder against PostgreSQL itself: what is in the spool is what was in the tables."""

from __future__ import annotations

import time

import pytest
from recorded import Place, folded, recording, table, until, written

from changeglot.capture import pgrows, pgstream
from changeglot.capture.pgcatalog import lsn
from changeglot.capture.pgseen import View
from changeglot.capture.spool import Spool, seen

TYPES = {
    "smallint": "-32768",
    "bigint": "9223372036854775807",
    "numeric": "NaN",
    "numeric(38,10)": "1234567890123456789012345678.0123456789",
    "numeric(5,1)": "-0.0",
    "numeric[]": "{Infinity,-Infinity,NaN}",
    "real": "1.1754944e-38",
    "double precision": "0.1",
    "float8": "-Infinity",
    "text": "a\tb\nc\\d\re'f\"g💜\x01\b\f\v{}",
    "varchar(20)": r"\N",
    "char(5)": "a",
    "name": "N",
    "bytea": r"\x00ff5c0a",
    "boolean": "f",
    "date": "0044-03-15 BC",
    "date[]": "{infinity,-infinity}",
    "time(3)": "23:59:59.123",
    "timetz": "12:00:00.000001+05:30",
    "timestamp": "294276-12-31 23:59:59.999999",
    "timestamp(0)": "infinity",
    "timestamptz": "2024-03-31 02:30:00.123456+02",
    "interval": "10 mons 3 days -04:05:06.789",
    "uuid": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    "json": '{"a" : 1.10, "b":"x\\ny"}',
    "jsonb": '{"a" : 1.10, "b":"\\\\"}',
    "int[]": "{{1,2},{3,NULL}}",
    "text[]": '{"a,b",NULL,"NULL","\\\\","q\\"q"," "}',
    "int4range": "[1,5)",
    "tstzrange": '["2024-01-01 00:00:00+00",infinity)',
    "int4multirange": "{[1,3),[5,9)}",
    "mood": "so so",
    "pair": '(1,"a, ""b""")',
    "pair[]": '{"(1,a)"}',
    "positive": "7",
    "inet": "10.1.2.3/8",
    "cidr": "10.0.0.0/8",
    "macaddr": "08:00:2b:01:02:03",
    "macaddr8": "08:00:2b:01:02:03:04:05",
    "bit(4)": "1010",
    "varbit(8)": "101",
    "xml": "<a>\t&amp;</a>",
    "tsvector": "'a':1 'b''c':2A",
    "tsquery": "'a' & 'b'",
    "money": "-1234.50",
    "point": "(1.5,-2e+30)",
    "polygon": "((0,0),(1,1),(1,0))",
    "oid": "4294967295",
    "pg_lsn": "16/B374D848",
    "regclass": "pg_class",
}


def test_values_of_every_type_are_the_same_in_snapshot_and_stream(any_place: Place) -> None:
    any_place.sql(
        "CREATE TYPE mood AS ENUM ('so so', 'good')",
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE DOMAIN positive AS int CHECK (value > 0)",
        "CREATE TABLE t (id int PRIMARY KEY, " + ", ".join(f"c{at} {kind}" for at, kind in enumerate(TYPES)) + ")",
        # A role that likes its values otherwise: ours are as ever.
        f"ALTER ROLE {any_place.postgres.user} IN DATABASE {any_place.name} SET DateStyle = 'German, DMY'",
        f"ALTER ROLE {any_place.postgres.user} IN DATABASE {any_place.name} SET extra_float_digits = -5",
        f"ALTER ROLE {any_place.postgres.user} IN DATABASE {any_place.name} SET TimeZone = 'Asia/Tokyo'",
    )
    insert = f"INSERT INTO t VALUES (%s{', %s' * len(TYPES)})".encode()
    any_place.connection.execute(insert, (1, *TYPES.values()))
    any_place.connection.execute(insert, (2, *[None] * len(TYPES)))
    recorder = any_place.recorder()
    snapshot = recorder.prepare()
    assert snapshot is not None
    rows = any_place.copied(snapshot)
    any_place.sql("DELETE FROM t")
    any_place.connection.execute(insert, (1, *TYPES.values()))
    any_place.connection.execute(insert, (2, *[None] * len(TYPES)))
    recorder.record(recorder.current())
    deleted, streamed = any_place.lines()[:2], any_place.lines()[2:]
    assert [each.old for each in deleted] == [{"id": "1"}, {"id": "2"}]
    assert [(each.op, each.new) for each in rows] == [("r", each.new) for each in streamed]
    assert {value for each in rows[1:] for value in each.new.values()} == {"2", None}
    assert rows[0].relation == {**streamed[0].relation, "snapshot": [snapshot.position], "seen": snapshot.seen}
    told = {each["name"]: each["type"] for each in rows[0].relation["columns"]}
    shown = dict(zip(TYPES, list(told.values())[1:], strict=True))
    for kind, full in {"varchar(20)": "character varying(20)", "mood": "mood", "pair[]": "pair[]"}.items():
        assert shown[kind] == full
    assert shown["timestamp(0)"] == "timestamp(0) without time zone"
    values = dict(zip(TYPES, list(rows[0].new.values())[1:], strict=True))
    for kind in ("text", "varchar(20)", "bytea", "json", "timestamp", "timetz", "interval", "numeric[]", "date"):
        assert values[kind] == TYPES[kind]
    assert values["timestamptz"] == "2024-03-31 00:30:00.123456+00"
    version = any_place.sql("SHOW server_version")[0][0].split()[0]
    origin = {"kind": "postgresql", "version": version, "name": "shop"}
    assert list(rows[0].relation.items())[:5] == [
        ("origin", origin),
        ("database", any_place.name),
        ("schema", "public"),
        ("table", "t"),
        ("columns", rows[0].relation["columns"]),
    ]
    assert rows[0].relation["columns"][:1] == [{"name": "id", "type": "integer", "nullable": False}]
    assert rows[0].relation["key"] == ["id"]


def test_null_absent_and_told_values_are_three_things(any_place: Place) -> None:
    big = "repeat(md5(random()::text), 400)"
    for name, identity in (("one", "DEFAULT"), ("two", "FULL")):
        any_place.sql(
            f"CREATE TABLE {name} (id int PRIMARY KEY, small text, big text, other text)",
            f"ALTER TABLE {name} ALTER big SET STORAGE EXTERNAL",
            f"ALTER TABLE {name} REPLICA IDENTITY {identity}",
        )
    recorder = any_place.begun()
    for name in ("one", "two"):
        any_place.sql(
            f"INSERT INTO {name} SELECT 1, NULL, {big}, ''",
            f"UPDATE {name} SET other = 'x'",
            f"UPDATE {name} SET id = 2",
            f"UPDATE {name} SET big = NULL",
            f"DELETE FROM {name}",
        )
    recorder.record(recorder.current())
    found = any_place.lines()
    one, two = ([each for each in found if each.table == f"public.{name}"] for name in ("one", "two"))
    assert [each.op for each in one] == [each.op for each in two] == ["i", "u", "u", "u", "d"]
    row = one[0].new
    assert row["small"] is None
    assert row["other"] == ""
    assert [each.new for each in one[1:]] == [
        {"id": "1", "small": None, "other": "x"},
        {"id": "2", "small": None, "other": "x"},
        {"id": "2", "small": None, "big": None, "other": "x"},
        {},
    ]
    assert [each.old for each in one[1:]] == [{}, {"id": "1"}, {}, {"id": "2"}]
    row = two[0].new
    rows = [row, {**row, "other": "x"}, {**row, "id": "2", "other": "x"}]
    rows += [{**rows[2], "big": None}, {}]
    assert [each.new for each in two] == rows
    assert [each.old for each in two[1:]] == rows[:-1]


def test_transactions_are_whole_in_the_order_of_their_commits(any_place: Place) -> None:
    any_place.sql(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a)",
        "CREATE TABLE keyless (x int, y text)",
        "ALTER TABLE keyless REPLICA IDENTITY FULL",
        "CREATE UNLOGGED TABLE never (id int PRIMARY KEY)",
    )
    recorder = any_place.begun()
    with any_place.connect() as first, any_place.connect() as second, first.transaction(), second.transaction():
        first.execute("INSERT INTO a VALUES (1)")
        second.execute("INSERT INTO a VALUES (2)")
        first.execute("INSERT INTO a VALUES (3)")
        first.execute("SAVEPOINT s")
        first.execute("INSERT INTO a VALUES (4)")
        first.execute("ROLLBACK TO s")
        first.execute("INSERT INTO keyless VALUES (NULL, 'x')")
    any_place.sql(
        "UPDATE keyless SET x = 1",
        "DELETE FROM keyless",
        "BEGIN",
        "TRUNCATE a CASCADE",
        "SELECT pg_logical_emit_message(true, 'with', 'a')",
        "SELECT pg_logical_emit_message(false, 'without', 'b')",
        "COMMIT",
    )
    recorder.record(recorder.current())
    found = any_place.lines()
    assert [(each.op, each.order, each.last, each.new.get("id")) for each in found[:4]] == [
        ("i", 0, True, "2"),
        ("i", 0, False, "1"),
        ("i", 1, False, "3"),
        ("i", 2, True, None),
    ]
    assert [(each.op, each.new, each.old) for each in found[4:6]] == [
        ("u", {"x": "1", "y": "x"}, {"x": None, "y": "x"}),
        ("d", {}, {"x": "1", "y": "x"}),
    ]
    assert found[4].relation["key"] == []
    assert [(each.op, each.table, each.last, each.new) for each in found[6:]] == [
        ("m", ".", True, {"prefix": "without", "content": "b"}),
        ("t", "public.a", False, {}),
        ("t", "public.b", False, {}),
        ("m", ".", True, {"prefix": "with", "content": "a"}),
    ]
    positions = [(int(each.position), each.order) for each in found]
    assert positions == sorted(set(positions))
    assert len({each.transaction for each in found}) == 6
    recorder.record(recorder.current())
    assert any_place.lines() == found


def test_partitions_are_told_and_read_as_their_table(any_place: Place) -> None:
    any_place.sql(
        "CREATE SCHEMA s",
        "CREATE TABLE s.root (id int, at date, n text, twice int GENERATED ALWAYS AS (id * 2) STORED,"
        " PRIMARY KEY (at, id)) PARTITION BY RANGE (at)",
        "CREATE TABLE s.y23 PARTITION OF s.root FOR VALUES FROM ('2023-01-01') TO ('2024-01-01')",
        "CREATE TABLE s.later (n text, at date NOT NULL, gone int, id int NOT NULL,"
        " twice int GENERATED ALWAYS AS (id * 2) STORED)",
        "ALTER TABLE s.later DROP gone",
        "ALTER TABLE s.root ATTACH PARTITION s.later FOR VALUES FROM ('2024-01-01') TO ('2030-01-01')",
        "INSERT INTO s.root VALUES (1, '2023-05-05', 'a'), (2, '2024-05-05', 'b')",
    )
    recorder = any_place.recorder("s.*")
    snapshot = recorder.prepare()
    assert snapshot is not None
    assert snapshot.tables == ("s.root",)
    rows = any_place.copied(snapshot)
    any_place.sql("UPDATE s.root SET n = 'c'", "INSERT INTO s.later VALUES ('d', '2024-06-06', 3)")
    any_place.sql("UPDATE s.root SET at = '2023-06-06' WHERE id = 2")
    recorder.record(recorder.current())
    assert sorted(each.new["id"] or "" for each in rows) == ["1", "2"]
    assert {each.relation["table"] for each in [*rows, *any_place.lines()]} == {"root"}
    assert rows[0].relation["columns"] == any_place.lines()[0].relation["columns"]
    assert rows[0].relation["key"] == any_place.lines()[0].relation["key"] == ["at", "id"]
    expected = [{"id": str(a), "at": str(b), "n": c} for a, b, c in any_place.sql("SELECT id, at, n FROM s.root")]
    assert folded(rows, any_place.lines()) == sorted(expected, key=lambda row: row["id"])


def test_columns_change_in_the_middle_and_each_line_has_those_of_its_time(place: Place) -> None:
    place.sql("CREATE TABLE t (id int PRIMARY KEY, a text)")
    recorder = place.begun()
    place.sql(
        "INSERT INTO t VALUES (1, 'x')",
        "ALTER TABLE t ADD b numeric(10,2) NOT NULL DEFAULT 7",
        "INSERT INTO t VALUES (2, 'y')",
        "ALTER TABLE t RENAME a TO aa",
        "ALTER TABLE t ALTER b TYPE text",
        "INSERT INTO t VALUES (3, 'z')",
        "ALTER TABLE t DROP aa",
        "INSERT INTO t VALUES (4)",
    )
    recorder.record(recorder.current())
    assert [each.new for each in place.lines()] == [
        {"id": "1", "a": "x"},
        {"id": "2", "a": "y", "b": "7.00"},
        {"id": "3", "aa": "z", "b": "7"},
        {"id": "4", "b": "7"},
    ]
    assert [each.relation["columns"][-1]["type"] for each in place.lines()] == ["text", "numeric(10,2)", "text", "text"]


def test_rows_and_changes_make_the_table_while_it_is_written(any_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pgrows, "CHUNK", 16 << 10)
    any_place.sql(
        "CREATE TABLE t (id int PRIMARY KEY, a text)",
        "INSERT INTO t SELECT n, repeat('x', 100) FROM generate_series(1, 2000) n",
    )
    with written(any_place):
        recorder = any_place.recorder()
        snapshot = recorder.prepare()
        assert snapshot is not None
        assert len(snapshot.chunks) > 5
        with recording(recorder):
            until(lambda: len(list((any_place.folder / "segments").iterdir())) > 1)
            rows = any_place.copied(snapshot)
    recorder.record(recorder.current())
    assert folded(rows, any_place.lines()) == table(any_place)
    assert all(int(each.position) >= snapshot.position for each in any_place.lines())
    assert recorder.unread.tables == ["public.t"]
    recorder.unread.done(snapshot.tables)
    assert any_place.recorder().prepare() is None


def test_a_table_is_read_later_exactly_as_of_a_position(place: Place) -> None:
    place.sql("CREATE TABLE old (id int PRIMARY KEY)", "CREATE TABLE t (id int PRIMARY KEY, a text)")
    begun = place.recorder("public.old")
    first = begun.prepare()
    assert first is not None
    # It ends before all was read, and is told of another table.
    first.close()
    with written(place):
        recorder = place.recorder("public.*")
        snapshot = recorder.prepare()
        assert snapshot is not None
        assert snapshot.tables == ("public.old", "public.t")
        rows = place.copied(snapshot)
    recorder.record(recorder.current())
    after = [each for each in place.lines() if int(each.position) >= snapshot.position]
    assert folded(rows, after) == table(place)
    recorder.unread.done(("public.old",))
    again = recorder.prepare()
    assert again is not None
    assert again.tables == ("public.t",)
    assert folded(place.copied(again), []) == table(place)
    slots = place.sql("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")
    assert slots == [(place.name,)]


def test_a_large_transaction_is_there_whole_or_not_at_all(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pgstream, "LARGE", 256 << 10)
    place.sql("CREATE TABLE t (id int PRIMARY KEY, a text)")
    recorder = place.begun()
    place.sql("INSERT INTO t VALUES (0, NULL)")
    place.sql("INSERT INTO t SELECT n, repeat('x', 50) FROM generate_series(1, 100000) n")
    recorder.record(stop=(place.folder / ".segment").exists)
    segments = place.folder / "segments"
    recorder.record(stop=lambda: any(segments.iterdir()) and (place.folder / ".segment").exists())
    assert [each.new["id"] for each in place.lines()] == ["0"]
    assert not (place.folder / ".segment").exists()
    recorder.record(recorder.current())
    found = place.lines()
    assert [each.new["id"] for each in found] == [str(n) for n in range(100001)]
    assert [each.last for each in found] == [True, *[False] * 99999, True]
    assert found[-1].order == 99999


def test_a_quiet_table_does_not_hold_the_log_back(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pgstream, "EVERY", 0.1)
    place.sql("CREATE TABLE quiet (id int PRIMARY KEY)", "CREATE TABLE busy (id int PRIMARY KEY)")
    recorder = place.begun("public.quiet")
    with recording(recorder):
        place.sql("INSERT INTO busy SELECT generate_series(1, 10000)")
        end = recorder.current()
        asked = "SELECT 1 FROM pg_replication_slots WHERE slot_name = '{}' AND confirmed_flush_lsn < '{}'"
        behind = asked.format(place.name, lsn(end))
        until(lambda: not place.sql(behind))
    assert int(Spool(place.folder).position) >= end
    assert place.lines() == []


def test_rows_alone_need_no_slot(place: Place) -> None:
    place.sql("CREATE TABLE t (a text)", "INSERT INTO t VALUES ('x')")
    recorder = place.recorder(snapshot="initial_only")
    snapshot = recorder.prepare()
    assert snapshot is not None
    assert [each.new for each in place.copied(snapshot)] == [{"a": "x"}]
    recorder.record()
    assert place.sql("SELECT 1 FROM pg_publication") == []
    assert recorder.unread.tables == ["public.t"]
    recorder.unread.done(["public.t"])
    assert recorder.prepare() is None


def test_a_publication_of_others_says_which_columns_and_rows_are_told(place: Place) -> None:
    place.sql(
        "CREATE TABLE t (id int PRIMARY KEY, a text, secret text, twice int GENERATED ALWAYS AS (id * 2) STORED)",
        "CREATE TABLE unwanted (id int PRIMARY KEY)",
        "CREATE PUBLICATION p FOR TABLE t (id, a, twice) WHERE (id < 10), unwanted",
        "INSERT INTO t VALUES (1, 'x', 'y'), (10, 'x', 'y')",
    )
    recorder = place.recorder("public.t", publication="p")
    snapshot = recorder.prepare()
    assert snapshot is not None
    rows = place.copied(snapshot)
    place.sql("INSERT INTO t VALUES (2, 'x', 'y'), (11, 'x', 'y')", "INSERT INTO unwanted VALUES (1)")
    recorder.record(recorder.current())
    assert [each.new for each in rows] == [{"id": "1", "a": "x", "twice": "2"}]
    assert [each.new for each in place.lines()] == [{"id": "2", "a": "x", "twice": "4"}]
    assert rows[0].relation["columns"] == place.lines()[0].relation["columns"]


def test_of_every_segment_it_is_known_which_transactions_are_recorded_with_it(
    any_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pgstream, "LOOK", 0.05)
    monkeypatch.setattr(pgstream, "PAUSE", 0.02)
    # Of one table nothing is told.
    any_place.sql("CREATE TABLE t (id int PRIMARY KEY, a text)", "CREATE TABLE u (id serial)")
    any_place.folder.mkdir(exist_ok=True)
    with any_place.connect() as long, any_place.connect() as aside:
        # One that began before all others and ends after them.
        long.execute("BEGIN")
        aside.execute("BEGIN")
        recorder = any_place.begun("public.t")
        long.execute("INSERT INTO t VALUES (-1, 'long')")
        with written(any_place):
            for _ in range(3):
                with recording(recorder):
                    for _ in range(100):
                        any_place.sql("INSERT INTO u DEFAULT VALUES")
                # Nobody records, and much goes on.
                for _ in range(50):
                    any_place.sql("INSERT INTO u DEFAULT VALUES")
            with recording(recorder):
                long.execute("COMMIT")
                time.sleep(0.3)
        with recording(recorder):
            for number in range(2):
                until(lambda: any_place.sql("SELECT count(*) FROM t WHERE id = -1"))
                any_place.sql(f"INSERT INTO t VALUES ({-2 - number}, 'last')")
                time.sleep(0.5)
        aside.execute("ROLLBACK")
    spool = Spool(any_place.folder)
    found, views = [], {}
    for path in sorted(spool.segments.iterdir()):
        number = int(path.name.split("~")[0])
        ids = {int(any_place.line(each).transaction) for each in path.read_text().splitlines()}
        found.append((number, ids))
        views[number] = seen(any_place.folder, number)
    every = set().union(*(ids for _, ids in found))
    assert len(every) > 50
    recorded: set[int] = set()
    known = [view for view in views.values() if view]
    assert len(known) > len(views) / 2
    for number, ids in found:
        recorded |= ids
        if views[number]:
            view = View.of(views[number])
            assert {each for each in every if view.has(view.whole(each))} == recorded
    # What is not known stays little, though one that began first ended last.
    assert len(View.of(known[-1]).others) < 10
