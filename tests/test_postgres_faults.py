"""What goes wrong with PostgreSQL: nothing is lost or told twice, and errors name what helps."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from recorded import PASSWORD, Place, folded, freed, recording, table, until, written

from changeglot.capture.postgres import InUse, Lost, Recorder, Rewritten, Unreachable, copy
from changeglot.capture.spool import Spool
from changeglot.errors import ChangeglotError, ConfigError
from changeglot.throwaway.databases import Postgres


def test_a_change_that_begins_where_the_recorded_ends_is_not_passed_over(place: Place) -> None:
    place.sql("CREATE TABLE t (id int PRIMARY KEY)")
    recorder = place.begun()
    with place.connect() as other, other.transaction():
        other.execute("INSERT INTO t VALUES (1)")
        # Its last byte is just before the commit's first.
        other.execute("SELECT pg_logical_emit_message(false, 'p', 'c', flush => true)")
        recorder.record(stop=lambda: bool(place.lines()))
    recorder.record(recorder.current())
    assert [each.op for each in place.lines()] == ["m", "i"]


def test_a_table_that_is_written_anew_is_not_read_by_an_old_snapshot(place: Place) -> None:
    place.sql("CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 2)")
    recorder = place.recorder()
    snapshot = recorder.prepare()
    assert snapshot is not None
    place.sql("ALTER TABLE t ALTER a TYPE bigint")
    with pytest.raises(Rewritten, match="written anew") as caught:
        place.copied(snapshot)
    assert caught.value.table == "public.t"
    assert not list(place.folder.glob(".rows*"))
    assert [each.new for each in place.copied(recorder.snapshot(["public.t"]))] == [{"id": "1", "a": "2"}]
    closed = recorder.snapshot(["public.t"])
    closed.close()
    with pytest.raises(ChangeglotError, match="the snapshot has ended"):
        copy(place.server(), closed.name, closed.chunks[0], place.folder / "x")


CHILD = """
import os, sys, pickle
from changeglot.capture import pgstream
from changeglot.capture.postgres import Recorder
from changeglot.capture.spool import Spool
server, folder, dies = pickle.load(sys.stdin.buffer)
if dies:
    said = pgstream.Stream._say
    def say(self, **options):
        # Published, and not told to the server.
        if self._published:
            os._exit(9)
        said(self, **options)
    pgstream.Stream._say = say
Recorder(server, Spool(folder)).record()
"""


def child(place: Place, *, dies: bool) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    started = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, env=environment)
    assert started.stdin is not None
    started.stdin.write(pickle.dumps((place.server(), place.folder, dies)))
    started.stdin.close()
    return started


def more_segments(place: Place, enough: int) -> bool:
    return len(list((place.folder / "segments").iterdir())) >= enough


def test_a_recorder_that_is_killed_goes_on_without_a_gap_or_a_line_twice(place: Place) -> None:
    place.sql("CREATE TABLE t (id int PRIMARY KEY, a text)")
    recorder = place.begun()
    confirmed = "SELECT (confirmed_flush_lsn - '0/0'::pg_lsn)::bigint FROM pg_replication_slots WHERE slot_name = '{}'"
    with written(place):
        assert child(place, dies=True).wait(60) == 9
        assert place.sql(confirmed.format(place.name))[0][0] < int(Spool(place.folder).position)
        for _ in range(2):
            enough = len(list((place.folder / "segments").iterdir())) + 2
            started = child(place, dies=False)
            until(partial(more_segments, place, enough))
            started.send_signal(signal.SIGKILL)
            started.wait()
    again = place.recorder()
    assert again.prepare() is None
    again.record(recorder.current())
    found = place.lines()
    assert folded([], found) == table(place)
    places = [(int(each.position), each.order) for each in found]
    assert places == sorted(set(places))


def test_a_server_that_restarts_is_waited_for(place: Place) -> None:
    place.sql("CREATE TABLE t (id int PRIMARY KEY, a text)")
    recorder = place.begun()
    with recording(recorder):
        place.sql("INSERT INTO t VALUES (1, 'before')")
        until(lambda: len(place.lines()) == 1)
        place.postgres.restart()
        place.connection = place.connect()
        place.sql("INSERT INTO t VALUES (2, 'after')")
        until(lambda: len(place.lines()) == 2)
        place.postgres.kill()
        place.postgres.restart()
        place.connection = place.connect()
        place.sql("INSERT INTO t VALUES (3, 'after')")
        until(lambda: len(place.lines()) == 3)
    assert folded([], place.lines()) == table(place)


def test_what_keeps_a_server_from_being_captured_is_named_with_its_fix(place: Place, tmp_path: Path) -> None:
    role = f"{place.name}_reader"
    place.sql(
        "CREATE SCHEMA hidden",
        "CREATE TABLE hidden.t (id int PRIMARY KEY)",
        "CREATE TABLE loose (a int)",
        f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'",
    )

    def refused(
        words: str, hint: str, *tables: str, kind: type[ChangeglotError] = ChangeglotError, **options: Any
    ) -> None:
        with pytest.raises(kind, match=words) as caught:
            place.recorder(*tables, **options).prepare()
        assert hint in caught.value.hint
        assert PASSWORD not in f"{caught.value!r} {caught.value} {caught.value.__cause__}"

    mine: dict[str, Any] = {"user": role}
    refused("password authentication failed", "password", password="wrong " + PASSWORD)
    refused("connecting to 127.0.0.1:1: .*refused", '"port"', kind=Unreachable, port=1)
    refused('database "nowhere" does not exist', '"database"', database="nowhere")
    refused("has no table public.gone", "renamed or dropped", "public.gone", kind=ConfigError)
    refused(
        'may not read "hidden"."t"', f'GRANT USAGE ON SCHEMA "hidden" TO "{role}"; GRANT SELECT', "hidden.*", **mine
    )
    place.sql(f"GRANT USAGE ON SCHEMA hidden TO {role}", f"GRANT SELECT ON hidden.t TO {role}")
    refused("may not replicate", f'ALTER ROLE "{role}" REPLICATION', "hidden.*", **mine)
    place.sql(f"ALTER ROLE {role} REPLICATION")
    made = 'CREATE PUBLICATION "changeglot" FOR TABLE "hidden"."t" WITH (publish_via_partition_root = true)'
    refused("does not own hidden.t", made, "hidden.*", **mine)
    place.sql(made)
    refused('"public"."loose" would refuse UPDATE', 'ALTER TABLE "public"."loose" REPLICA IDENTITY FULL')
    place.sql("ALTER TABLE loose REPLICA IDENTITY FULL")
    refused("which is not ours, has no table public.loose", 'ALTER PUBLICATION "changeglot" ADD TABLE "public"."loose"')
    recorder = place.recorder("hidden.*", **mine)
    snapshot = recorder.prepare()
    assert snapshot is not None
    place.copied(snapshot, place.server("hidden.*", **mine))
    place.sql("INSERT INTO hidden.t VALUES (1)")
    recorder.record(recorder.current())
    assert [each.new for each in place.lines()] == [{"id": "1"}]
    with pytest.raises(ChangeglotError, match="nothing was ever recorded") as caught:
        Recorder(place.server("hidden.*"), Spool(tmp_path / "other")).prepare()
    assert f"pg_drop_replication_slot('{place.name}')" in caught.value.hint
    with recording(recorder):
        until(lambda: place.sql(f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{place.name}' AND active"))
        with pytest.raises(InUse, match=r"read by another, process \d+"):
            place.recorder("hidden.*").prepare()
    assert PASSWORD not in repr(place.server())
    recorder.drop()
    assert place.sql(f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{place.name}'") == []
    assert place.sql("SELECT pubname FROM pg_publication") == [("changeglot",)]


@pytest.mark.parametrize("what", ["slot", "publication", "position"])
def test_changes_that_are_lost_are_never_passed_over(any_place: Place, what: str) -> None:
    any_place.sql("CREATE TABLE t (id int PRIMARY KEY)")
    recorder = any_place.begun()
    any_place.sql("INSERT INTO t VALUES (1)")
    recorder.record(recorder.current())
    advance = "SELECT pg_replication_slot_advance('{0}', pg_current_wal_flush_lsn())"
    drop = {
        "slot": "SELECT pg_drop_replication_slot('{0}')",
        "publication": "DROP PUBLICATION changeglot",
        "position": "INSERT INTO t VALUES (2)",
    }
    freed(any_place)
    any_place.sql(drop[what].format(any_place.name))
    if what == "position":
        any_place.sql(advance.format(any_place.name))
    words = {"slot": "is gone", "publication": "was dropped", "position": "another has read it"}
    for each in (recorder.prepare, recorder.record):
        with pytest.raises(Lost, match=words[what]):
            each()
    needed = any_place.recorder(snapshot="when_needed")
    snapshot = needed.prepare()
    assert snapshot is not None
    rows = any_place.copied(snapshot)
    any_place.sql("INSERT INTO t VALUES (7)")
    needed.record(needed.current())
    assert [each.new["id"] for each in rows] == [str(n) for (n,) in any_place.sql("SELECT id FROM t WHERE id < 7")]
    assert [each.new["id"] for each in any_place.lines()] == ["1", "7"]
    needed.drop()
    assert any_place.sql("SELECT 1 FROM pg_publication") == []


def test_a_publication_that_is_dropped_while_it_is_followed_is_an_error(any_place: Place) -> None:
    any_place.sql("CREATE TABLE t (id int PRIMARY KEY)")
    recorder = any_place.begun()
    any_place.sql("INSERT INTO t VALUES (1)", "DROP PUBLICATION changeglot", "INSERT INTO t VALUES (2)")
    any_place.sql("CREATE PUBLICATION changeglot FOR TABLE t")
    with pytest.raises(Lost, match=r"cannot tell changes: .*publication"):
        recorder.record(recorder.current())


def test_a_table_that_is_renamed_is_not_lost_in_silence(place: Place) -> None:
    place.sql("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (id int PRIMARY KEY)")
    recorder = place.begun("public.t*", "public.other")
    place.sql("ALTER TABLE t RENAME TO renamed", "INSERT INTO renamed VALUES (1)")
    drop = 'ALTER PUBLICATION "changeglot" DROP TABLE "public"."renamed"'
    with pytest.raises(ChangeglotError, match=r"public\.renamed, which no pattern") as caught:
        recorder.record(recorder.current())
    assert drop in caught.value.hint
    with pytest.raises(ChangeglotError, match=r"public\.renamed, which no pattern"):
        recorder.prepare()
    place.sql(drop)
    recorder.prepare()
    recorder.record(recorder.current())
    assert place.lines() == []


def test_a_server_without_a_log_of_changes_is_refused(tmp_path: Path) -> None:
    with Postgres.start(tmp_path, password=PASSWORD, version="14", settings={"wal_level": "replica"}) as postgres:
        place = Place(postgres, tmp_path)
        place.sql("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        with pytest.raises(ChangeglotError, match='wal_level is "replica"') as caught:
            place.recorder().prepare()
        mends = "ALTER SYSTEM SET wal_level = logical"
        assert mends in caught.value.hint
        place.sql(mends)
        postgres.restart()
        place.connection = place.connect()
        snapshot = place.recorder().prepare()
        assert snapshot is not None
        assert [each.new for each in place.copied(snapshot)] == [{"id": "1"}]
        place.connection.close()
