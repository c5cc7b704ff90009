"""What users of other tools complain of, and what goes wrong with a server that is captured: the recorder alone.

Each complaint has a test that would have caught it. Those that are not here are in the file named.

1. The log grows while tables are quiet: `test_the_log_is_not_held_back_by_what_others_write`, and
   test_postgres_recorder.py `test_a_quiet_table_does_not_hold_the_log_back`, test_mysql_recorder.py
   `test_a_position_moves_on_though_nothing_of_interest_is_told`.
2. Unchanged TOAST overwrites data: test_postgres_recorder.py `test_null_absent_and_told_values_are_three_things`;
   test_capture.py `test_a_mirror_equals_the_database_whoever_is_killed_when` and
   `test_a_row_that_goes_under_another_key_takes_along_what_was_not_told`.
3. The saved position is behind the slot's: test_postgres_faults.py
   `test_changes_that_are_lost_are_never_passed_over[position]`.
4. The slot is lost on failover: the same `[slot]`; `test_a_server_that_was_set_back_is_not_read_on` and
   `test_a_slot_of_the_same_name_at_another_server_is_not_read`; test_doctor.py `test_a_slot_that_is_lost_is_bad`.
5. GTID sets with holes: `test_gtids_with_holes_and_of_several_domains_are_all_recorded`.
6. Changes lost between rows and stream: test_postgres_recorder.py
   `test_rows_and_changes_make_the_table_while_it_is_written`, test_mysql_recorder.py
   `test_a_snapshot_and_what_is_written_meanwhile_make_the_table`; and
   `test_a_table_that_is_altered_while_its_rows_are_read_is_read_again`.
7. Binlog purged, or its numbers begin anew: test_mysql_recorder.py `test_a_binlog_that_was_purged_is_lost` and
   `test_a_binlog_that_was_reset_is_lost_though_it_is_as_long_again`; and
   `test_a_binlog_that_counts_from_one_again_is_lost`.
8. One huge transaction: `test_a_huge_transaction_is_recorded_in_little_memory`.
9. Rows are read for days, from zero again, and the log piles up: `test_rows_that_are_read_for_long_hold_no_log_back`;
   test_postgres_recorder.py `test_a_table_is_read_later_exactly_as_of_a_position`.
10. The history of schemas grows: `test_what_is_kept_of_columns_does_not_grow_by_starts_and_statements`.
11. Decimals that nobody can read: test_capture.py `test_every_type_comes_the_same_through_rows_and_changes` and
    `test_every_type_of_mariadb_comes_the_same_through_rows_and_changes`.
12. No old row, or a tombstone, stops the reader: deletes of tables without full old rows in test_capture.py
    `test_a_mirror_equals_the_database_whoever_is_killed_when`; test_kernel.py (what says nothing gives nothing).
13. Time zones: test_altered.py `test_altered_tables_enum_keys_and_zones_are_followed`; test_postgres_recorder.py
    `test_values_of_every_type_are_the_same_in_snapshot_and_stream`.
14. The source's tables change: test_altered.py, all of it; the oracle in test_capture.py.
15. Stalls and crash loops: `test_a_slot_that_a_dead_reader_still_has_is_waited_for`; a key of an enum: test_altered.py.
16. UNKNOWN_COL0: test_mysql_recorder.py `test_changes_that_were_written_without_names_are_lost` and
    `test_a_binlog_that_tells_too_little_is_refused`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from recorded import NUMBERS, PASSWORD, Place, dropped, folded, freed, recording, table, until
from test_mysql_recorder import Shop
from test_postgres_faults import child

from changeglot.capture import pgstream
from changeglot.capture.binlog import Position
from changeglot.capture.findings import recorded
from changeglot.capture.pgcatalog import number
from changeglot.capture.postgres import InUse, Lost
from changeglot.capture.spool import Spool
from changeglot.errors import ChangeglotError, Rewritten
from changeglot.throwaway.databases import MariaDB, Postgres

#: Of the huge transaction.
ROWS, WIDE = 300_000, 200


@pytest.fixture
def shop(mariadb: MariaDB, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(mariadb, f"shop{next(NUMBERS)}", tmp_path / "spool")
    yield made
    made.client.close()


def ids(shop: Shop) -> list[str | None]:
    return [line.new["id"] for line in shop.record() if line.new]


# The log


def test_the_log_is_not_held_back_by_what_others_write(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pgstream, "EVERY", 0.1)
    place.sql("CREATE TABLE quiet (id int PRIMARY KEY)")
    recorder = place.begun("public.quiet")
    # Another database of the server: the log is one.
    other = Place(place.postgres, tmp_path / "other")
    other.sql("CREATE TABLE busy AS SELECT generate_series(1, 10000) AS id")
    ((end,),) = other.sql("SELECT pg_current_wal_lsn()::text")
    with recording(recorder):
        asked = f"SELECT confirmed_flush_lsn < '{end}' FROM pg_replication_slots WHERE slot_name = '{place.name}'"
        until(lambda: place.sql(asked) == [(False,)])
    assert int(Spool(place.folder).position) >= number(end)
    other.connection.close()


def test_rows_that_are_read_for_long_hold_no_log_back(place: Place) -> None:
    place.sql("CREATE TABLE t (id int PRIMARY KEY, a text)", "INSERT INTO t VALUES (1, 'x'), (2, 'y')")
    recorder = place.recorder()
    snapshot = recorder.prepare()
    assert snapshot is not None
    place.sql("UPDATE t SET a = 'z' WHERE id = 1", "DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (3, NULL)")
    end = recorder.current()
    recorder.record(end)
    freed(place)
    confirmed = "SELECT (confirmed_flush_lsn - '0/0'::pg_lsn)::bigint FROM pg_replication_slots WHERE slot_name = '{}'"
    assert place.sql(confirmed.format(place.name))[0][0] >= end
    assert folded(place.copied(snapshot), place.lines()) == table(place)


def test_a_server_that_was_set_back_is_not_read_on(place: Place) -> None:
    place.sql("CREATE TABLE t (id int PRIMARY KEY)")
    recorder = place.begun()
    Spool(place.folder).advance(str(recorder.current() + (1 << 40)))
    for each in (place.recorder().prepare, place.recorder().record):
        with pytest.raises(Lost, match="another server, or one that was set back") as caught:
            each()
        assert "when_needed" in caught.value.hint


def test_a_slot_of_the_same_name_at_another_server_is_not_read(place: Place, oldest: Postgres, tmp_path: Path) -> None:
    place.sql("CREATE TABLE t (id int PRIMARY KEY)")
    place.begun()
    other = Place(oldest, tmp_path / "other")
    other.sql("CREATE TABLE t (id int PRIMARY KEY)")
    try:
        there = other.begun(slot=place.name)
        # As far as the first one, by chance.
        Spool(place.folder).advance(str(there.current()))
        with pytest.raises(Lost, match="another server"):
            place.recorder(port=oldest.port, database=other.name).prepare()
    finally:
        dropped(other)


def test_a_slot_that_a_dead_reader_still_has_is_waited_for(place: Place) -> None:
    place.sql("CREATE TABLE t (id int PRIMARY KEY, a text)")
    recorder = place.begun()
    reads = f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{place.name}' AND active"
    before = child(place, dies=False)
    until(lambda: place.sql(reads))
    # Its machine is gone, and the server has not noticed.
    before.send_signal(signal.SIGSTOP)
    place.sql("INSERT INTO t VALUES (1, 'x')")
    ((pid,),) = place.sql(reads)
    with pytest.raises(InUse, match=f"process {pid} of the server") as caught:
        place.recorder().prepare()
    assert f"SELECT pg_terminate_backend({pid})" in caught.value.hint
    with recording(recorder):
        place.sql("INSERT INTO t VALUES (2, 'y')")
        before.kill()
        before.wait()
        until(lambda: len(place.lines()) == 2)
    assert folded([], place.lines()) == table(place)


def test_gtids_with_holes_and_of_several_domains_are_all_recorded(shop: Shop) -> None:
    shop.run("CREATE TABLE item (id int PRIMARY KEY)")
    shop.recorder.prepare()
    found: list[str | None] = []
    for number_, domain, sequence in ((1, 0, 0), (2, 7, 500), (3, 3, 90000), (4, 7, 100000), (5, 0, 0), (6, 3, 90001)):
        jump = [f"SET gtid_seq_no = {sequence}"] if sequence else []
        shop.run(f"SET gtid_domain_id = {domain}", *jump, f"INSERT INTO item VALUES ({number_})")
        if number_ % 2:
            # It is ended, and begins anew between two of a domain.
            shop.restarted()
            found = ids(shop)
    shop.restarted()
    found = ids(shop)
    assert found == ["1", "2", "3", "4", "5", "6"]
    assert [line.transaction for line in shop.lines()][1:4] == ["7-1-500", "3-1-90000", "7-1-100000"]


def test_a_binlog_that_counts_from_one_again_is_lost(shop: Shop) -> None:
    shop.run("CREATE TABLE item (id int PRIMARY KEY)", "FLUSH BINARY LOGS", "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    shop.recorder.prepare()
    shop.run("RESET MASTER", "INSERT INTO item VALUES (1)")
    for each in (shop.recorder.prepare, shop.recorder.record):
        with pytest.raises(Lost, match="does not have that any more; it has 1 to 1") as caught:
            each()
        assert "new snapshot" in caught.value.hint
    shop.server = replace(shop.server, snapshot="when_needed")
    shop.restarted()
    assert [row for _, row in shop.copied(shop.recorder.prepare())] == [{"id": "1"}]


def test_a_table_that_is_altered_while_its_rows_are_read_is_read_again(place: Place, shop: Shop) -> None:
    for run in (place.sql, shop.run):
        run("CREATE TABLE t (id int PRIMARY KEY, a int, b int)", "INSERT INTO t VALUES (1, 2, 3)")
    recorder = place.recorder()
    snapshot = recorder.prepare()
    assert snapshot is not None
    place.sql("ALTER TABLE t DROP b")
    with pytest.raises(Rewritten, match=r"public\.t was altered while its rows were read"):
        place.copied(snapshot)
    assert [each.new for each in place.copied(recorder.snapshot(["public.t"]))] == [{"id": "1", "a": "2"}]
    named = f"{shop.name}.t"
    chunks = shop.recorder.prepare()
    # As of a position behind the statement, the rows would lack what was changed between the two.
    for statement in ("ALTER TABLE t DROP b", "ALTER TABLE t ADD c int DEFAULT 4"):
        shop.run(statement)
        with pytest.raises(Rewritten, match=f"{named} was altered while its rows were read"):
            shop.copied(chunks)
        assert not list(shop.folder.glob(".chunk*"))
        chunks = shop.recorder.snapshot([named])
    assert [row for _, row in shop.copied(chunks)] == [{"id": "1", "a": "2", "c": "4"}]


# What it costs


@contextmanager
def process(source: str, server: Any, folder: Path) -> Iterator[int]:
    """The process of a pipeline that records. Any: of each database its own class."""
    started = subprocess.Popen(
        [sys.executable, "-m", "changeglot.capture"],
        stdin=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert started.stdin is not None
    started.stdin.write(json.dumps({"source": source, "server": asdict(server), "folder": str(folder)}) + "\n")
    started.stdin.flush()
    yield started.pid
    started.stdin.close()
    assert started.wait(30) == 0


def peak(pid: int) -> int:
    """The most bytes of memory that the process ever had."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    (told,) = (line.split()[1] for line in status if line.startswith("VmHWM"))
    return int(told) << 10


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_a_huge_transaction_is_recorded_in_little_memory(kind: str, request: pytest.FixtureRequest) -> None:
    """Any: as above."""
    recorder: Any
    server: Any
    some = f"SELECT {{}}, repeat('x', {WIDE}) FROM "
    if kind == "postgres":
        place: Place = request.getfixturevalue("place")
        place.sql("CREATE TABLE t (id int PRIMARY KEY, a text)")
        recorder, folder, server, write = place.begun(), place.folder, place.server(), place.sql
        series, name = "generate_series({}, {}) n", "n"
    else:
        shop: Shop = request.getfixturevalue("shop")
        shop.run("CREATE TABLE t (id int PRIMARY KEY, a text)")
        shop.recorder.prepare()
        recorder, folder, server, write = shop.recorder, shop.folder, shop.server, shop.run
        series, name = "seq_{}_to_{}", "seq"

    def reached(end: Any) -> bool:
        """Any: a number, or a text."""
        now = recorded(folder)
        return int(now) >= end if kind == "postgres" else Position.of(now) >= Position.of(end)

    with process(kind, server, folder) as pid:
        taken = []
        for first, last in ((1, 100), (101, 100 + ROWS)):
            write(f"INSERT INTO t {some.format(name)}{series.format(first, last)}")
            until(partial(reached, recorder.current()))
            taken.append(peak(pid))
    written = sum(path.stat().st_size for path in (folder / "segments").iterdir())
    assert sum(path.read_bytes().count(b"\n") for path in (folder / "segments").iterdir()) == ROWS + 100
    assert taken[1] - taken[0] < 40 << 20 < written


def test_what_is_kept_of_columns_does_not_grow_by_starts_and_statements(place: Place, shop: Shop) -> None:
    for each in (place.sql, shop.run):
        each("CREATE TABLE t (id int PRIMARY KEY, a int)")
    recorder = place.begun()
    shop.recorder.prepare()
    for at in range(6):
        for run in (place.sql, shop.run):
            run(
                f"INSERT INTO t VALUES ({2 * at}, 1)",
                "ALTER TABLE t ADD b int",
                f"INSERT INTO t VALUES ({2 * at + 1}, 1, 2)",
                "ALTER TABLE t DROP b",
            )
        recorder.record(recorder.current())
        shop.restarted()
        shop.record()
    # Each shape of the table is written down once, and nothing is read at a start but those.
    assert len(list((place.folder / "relations").iterdir())) == 2
    assert len(list((shop.folder / "relations").iterdir())) == 2
    assert len(place.lines()) == 12
    assert len([line for line in shop.lines() if line.op == "i"]) == 12


# What goes wrong with a server that was captured before


#: What breaks a PostgreSQL server for role {0} of database {1}, what is said then, the hint, and what mends it.
BROKEN: dict[str, tuple[str, str, str, str]] = {
    "password": (
        "ALTER ROLE {0} PASSWORD 'another'",
        "password authentication failed",
        'Is "password" that of the user',
        f"ALTER ROLE {{0}} PASSWORD '{PASSWORD}'",
    ),
    "login": ("ALTER ROLE {0} NOLOGIN", "not permitted to log in", 'ALTER ROLE "{0}" LOGIN', "ALTER ROLE {0} LOGIN"),
    "connections": (
        "REVOKE CONNECT ON DATABASE {1} FROM PUBLIC",
        "permission denied for database",
        'GRANT CONNECT ON DATABASE "{1}" TO "{0}"',
        "GRANT CONNECT ON DATABASE {1} TO {0}",
    ),
    "replication": (
        "ALTER ROLE {0} NOREPLICATION",
        "may not replicate|permission denied",
        'ALTER ROLE "{0}" REPLICATION',
        "ALTER ROLE {0} REPLICATION",
    ),
    "publication's tables": (
        "ALTER PUBLICATION changeglot ADD TABLE other",
        "public.other, which no pattern",
        'ALTER PUBLICATION "changeglot" DROP TABLE "public"."other"',
        "ALTER PUBLICATION changeglot DROP TABLE other",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_breaks_at_a_server_is_told_with_its_fix_and_nothing_is_lost(place: Place, what: str) -> None:
    role = f"{place.name}_{next(NUMBERS)}"
    place.sql(
        "CREATE TABLE t (id int PRIMARY KEY, a text)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD '{PASSWORD}'",
        f"ALTER TABLE t OWNER TO {role}",
        f"GRANT CREATE ON DATABASE {place.name} TO {role}",
    )
    given = {"user": role, "snapshot": "no_data"}
    recorder = place.begun("public.t", **given)
    place.sql("INSERT INTO t VALUES (1, 'before')")
    recorder.record(recorder.current())
    freed(place)
    breaks, words, hint, mends = (each.format(role, place.name) for each in BROKEN[what])
    place.sql(breaks, "INSERT INTO other VALUES (1)", "INSERT INTO t VALUES (2, 'meanwhile')")
    for each in (recorder.prepare, recorder.record):
        with pytest.raises(ChangeglotError, match=words) as caught:
            each()
        assert hint in caught.value.hint
        assert PASSWORD not in str(caught.value)
    place.sql(mends, "UPDATE t SET a = 'after' WHERE id = 1")
    again = place.recorder("public.t", **given)
    assert again.prepare() is None
    again.record(again.current())
    assert folded([], place.lines()) == table(place)


def test_a_name_that_a_table_has_for_a_while_hides_no_change(place: Place) -> None:
    place.sql("CREATE TABLE t (id int PRIMARY KEY, a text)")
    recorder = place.begun("public.t")
    place.sql(
        "INSERT INTO t VALUES (1, 'before')",
        "ALTER TABLE t RENAME TO u",
        "INSERT INTO u VALUES (2, 'meanwhile')",
        "ALTER TABLE u RENAME TO t",
    )
    with pytest.raises(ChangeglotError, match=r"public\.u"):
        recorder.record(recorder.current())


def test_a_table_that_got_another_name_is_read_under_it(place: Place) -> None:
    place.sql("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    prepare = place.recorder().prepare
    first = prepare()
    assert first is not None
    first.close()
    place.sql("ALTER TABLE t RENAME TO u", "INSERT INTO u VALUES (2)")
    again = prepare()
    # What is in it since before has never been told of a table of that name.
    assert again is not None
    assert again.tables == ("public.u",)


@pytest.mark.parametrize("rename", ["RENAME TABLE {} TO {}", "ALTER TABLE {} RENAME {}", "ALTER TABLE {} RENAME TO {}"])
def test_a_table_that_the_binlog_renames_is_read_under_its_name(shop: Shop, rename: str) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (id int PRIMARY KEY)")
    shop.server = replace(shop.server, tables=(f"{shop.name}.t", f"{shop.name}.new"))
    shop.restarted()
    first = shop.recorder.prepare()
    assert first is not None
    shop.recorder.unread.done(first.tables)
    # For a while, and for good.
    shop.run(rename.format("t", "u"), "INSERT INTO u VALUES (2)", rename.format("u", "t"), "CREATE INDEX i ON t (id)")
    shop.run(rename.format("other", "new"))
    shop.record()
    again = shop.recorder.prepare()
    assert again is not None
    assert again.tables == (f"{shop.name}.new", f"{shop.name}.t")
    assert shop.recorder.unread.again == [f"{shop.name}.new", f"{shop.name}.t"]


#: As BROKEN, of MariaDB: user {0}, database {1}.
SPOILT: dict[str, tuple[str, str, str, str]] = {
    "password": (
        "ALTER USER {0}@'127.0.0.1' IDENTIFIED BY 'another'",
        "Access denied",
        "Are user and password right",
        "ALTER USER {0}@'127.0.0.1' IDENTIFIED BY 'secret-7'",
    ),
    "login": (
        "ALTER USER {0}@'127.0.0.1' ACCOUNT LOCK",
        "account is locked",
        "ALTER USER '{0}'@'%' ACCOUNT UNLOCK",
        "ALTER USER {0}@'127.0.0.1' ACCOUNT UNLOCK",
    ),
    "replication": (
        "REVOKE REPLICATION SLAVE ON *.* FROM {0}@'127.0.0.1'",
        "REPLICATION SLAVE",
        "GRANT REPLICATION SLAVE",
        "GRANT REPLICATION SLAVE ON *.* TO {0}@'127.0.0.1'",
    ),
    "tables": (
        "REVOKE SELECT ON {1}.* FROM {0}@'127.0.0.1'",
        "none that {0} may read",
        "GRANT SELECT ON",
        "GRANT SELECT ON {1}.* TO {0}@'127.0.0.1'",
    ),
}


@pytest.mark.parametrize("what", SPOILT)
def test_what_a_user_of_mariadb_may_no_more_is_told_with_its_fix_and_nothing_is_lost(shop: Shop, what: str) -> None:
    user = f"ann{next(NUMBERS)}"
    shop.run(
        "CREATE TABLE item (id int PRIMARY KEY)",
        f"CREATE USER {user}@'127.0.0.1' IDENTIFIED BY 'secret-7'",
        f"GRANT SELECT ON {shop.name}.* TO {user}@'127.0.0.1'",
        f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {user}@'127.0.0.1'",
    )
    owner = shop.server
    shop.server = replace(owner, user=user, password="secret-7")
    shop.restarted()
    shop.recorder.prepare()
    shop.run("INSERT INTO item VALUES (1)")
    assert ids(shop) == ["1"]
    breaks, words, hint, mends = (each.format(user, shop.name) for each in SPOILT[what])
    shop.run(breaks, "INSERT INTO item VALUES (2)")
    with pytest.raises(ChangeglotError, match=words) as caught:
        shop.recorder.prepare()
    assert hint in caught.value.hint
    assert "secret" not in str(caught.value)
    shop.run(mends, "INSERT INTO item VALUES (3)")
    shop.restarted()
    shop.recorder.prepare()
    assert ids(shop) == ["1", "2", "3"]
    shop.run(f"DROP USER {user}@'127.0.0.1'")
