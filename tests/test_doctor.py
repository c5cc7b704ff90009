"""`changeglot doctor` against real servers: what it finds is so, and what it says to type mends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
import yaml
from pymysql.cursors import Cursor
from recorded import until

from changeglot import cli, doctor
from changeglot.capture import mydoctor, mysql, pgdoctor, postgres
from changeglot.capture.findings import Finding, recorded
from changeglot.capture.spool import Spool
from changeglot.throwaway.databases import MariaDB, Postgres

PASSWORD = "s3cret' word"
NUMBERS = count()


def states(findings: list[Finding], state: str) -> dict[str, Finding]:
    """Those of a state, by what was looked at."""
    return {each.what: each for each in findings if each.state == state}


def one(findings: list[Finding], what: str) -> Finding:
    (found,) = (each for each in findings if each.what == what)
    return found


def one_or_none(findings: list[Finding], what: str) -> Finding | None:
    return next((each for each in findings if each.what == what), None)


@contextmanager
def recording(recorder: postgres.Recorder | mysql.Recorder) -> Iterator[None]:
    """In another thread, whose error is ours."""
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(recorder.record, None, stop.is_set)
        try:
            yield
        finally:
            stop.set()
        done.result()


# PostgreSQL


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    settings = {"max_slot_wal_keep_size": "10GB", "max_prepared_transactions": "5"}
    with Postgres.start(tmp_path_factory.mktemp("right"), password=PASSWORD, settings=settings) as service:
        yield service


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    settings = {
        "wal_level": "replica",
        "max_replication_slots": "1",
        "max_wal_senders": "1",
        "idle_replication_slot_timeout": "1h",
    }
    with Postgres.start(tmp_path_factory.mktemp("wrong"), password=PASSWORD, settings=settings) as service:
        yield service


class Place:
    """A database of its own, and the folder of a spool."""

    def __init__(self, service: Postgres, folder: Path) -> None:
        self.service, self.folder, self.name = service, folder / "changeglot" / "spool", f"d{next(NUMBERS)}"
        with closing(psycopg.connect(service.dsn, autocommit=True)) as connection:
            connection.execute(f"CREATE DATABASE {self.name}".encode())
        self.connection = psycopg.connect(service.dsn, dbname=self.name, autocommit=True)
        self.server = postgres.Server(
            "127.0.0.1", self.name, service.user, ("public.*",), PASSWORD, service.port, slot=self.name
        )

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        for each in statements:
            cursor = self.connection.execute(each.encode())
        return cursor.fetchall() if cursor.description else []

    def found(self, **options: Any) -> list[Finding]:
        return pgdoctor.examine(replace(self.server, **options), self.folder)

    def begun(self) -> postgres.Recorder:
        """One that records from here on."""
        recorder = postgres.Recorder(replace(self.server, snapshot="no_data"), Spool(self.folder))
        assert recorder.prepare() is None
        return recorder


@pytest.fixture
def place(right: Postgres, tmp_path: Path) -> Iterator[Place]:
    made = Place(right, tmp_path)
    made.sql("CREATE TABLE item (id int PRIMARY KEY, name text)", "CREATE TABLE sold (id int PRIMARY KEY)")
    yield made
    made.sql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
    made.connection.close()


@pytest.fixture
def misplaced(wrong: Postgres, tmp_path: Path) -> Iterator[Place]:
    made = Place(wrong, tmp_path)
    yield made
    made.connection.close()


def written(tmp_path: Path, **source: Any) -> Path:
    """A pipeline's file. Any: YAML."""
    path = tmp_path / "shop.yaml"
    path.write_text(yaml.safe_dump({"source": source, "sink": {"type": "delta", "path": str(tmp_path / "lake")}}))
    return path


def pipeline(place: Place, tmp_path: Path, **changed: Any) -> Path:
    server = place.server
    source = {name: getattr(server, name) for name in ("host", "port", "database", "user", "password", "slot")}
    return written(tmp_path, **{"type": "postgres", **source, "tables": ["public.*"], **changed})


def test_a_server_that_is_set_up_is_told_to_be_well(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = cli.main(["doctor", str(pipeline(place, tmp_path))])
    lines = capsys.readouterr().out.splitlines()
    assert status == 0
    assert "ok    wal_level: logical" in lines
    assert "ok    tables: 2 captured: public.item, public.sold" in lines
    assert f'ok    slot: "{place.name}" will be made' in lines
    assert lines[-1] == f"0 bad, 0 to look at, {len(lines) - 1} well"
    # Nothing was made, there or here.
    assert place.sql("SELECT 1 FROM pg_replication_slots UNION ALL SELECT 1 FROM pg_publication") == []
    assert [each.name for each in tmp_path.iterdir()] == ["shop.yaml"]


def test_it_answers_without_java_and_in_json(place: Place, tmp_path: Path) -> None:
    environment = {**os.environ, "JAVA_HOME": "/nowhere", "PATH": "/nowhere"}
    command = [sys.executable, "-m", "changeglot", "doctor", str(pipeline(place, tmp_path)), "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    findings = json.loads(done.stdout)
    assert {"what": "wal_level", "state": "good", "found": "logical", "fix": ""} in findings
    assert PASSWORD not in done.stdout + done.stderr


def test_tables_are_asked_for_again_and_all_that_is_kept_is_dropped_without_java(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = pipeline(place, tmp_path)
    file.write_text(f"{file.read_text()}checkpoint: {place.folder.parents[1]}\n")
    path = str(file)
    recorder = postgres.Recorder(place.server, Spool(place.folder))
    first = recorder.prepare()
    assert first is not None
    first.close()
    recorder.unread.done(first.tables)
    assert cli.main(["resync", path, "public.item", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"asked": ["public.item"]}
    again = recorder.prepare()
    assert again is not None
    again.close()
    assert (again.tables, recorder.unread.again) == (("public.item",), ["public.item"])
    assert cli.main(["resync", path, "other.item"]) == 2
    assert "other.item" in capsys.readouterr().err
    assert cli.main(["drop", path]) == 0
    assert capsys.readouterr().out == f'dropped: slot "{place.name}" and publication "changeglot"\n'
    assert place.sql("SELECT 1 FROM pg_replication_slots UNION ALL SELECT 1 FROM pg_publication") == []


def test_of_a_source_that_is_no_database_there_is_nothing_to_examine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, type="files", path=str(tmp_path))
    for command in (["resync", str(path), "a.b"], ["drop", str(path)]):
        assert cli.main(command) == 2
        assert "source: files" in capsys.readouterr().err
    assert cli.main(["doctor", str(path)]) == 0
    assert "nothing to examine: the source is files" in capsys.readouterr().out
    assert cli.main(["doctor", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"password": "not the s3cret"}, "password authentication failed"),
        ({"database": "nowhere"}, "does not exist"),
        ({"port": 1}, "connecting to 127.0.0.1:1"),
    ],
)
def test_a_server_that_lets_nobody_in_is_all_that_is_told(
    changed: dict[str, Any], said: str, place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["doctor", str(pipeline(place, tmp_path, **changed))]) == 1
    out = capsys.readouterr().out
    line, fix, summary = out.splitlines()
    assert line.startswith("BAD   server: ")
    assert said in line
    assert fix.strip()
    assert summary == "1 bad, 0 to look at, 0 well"
    assert "s3cret" not in out


def test_a_server_that_is_set_up_wrongly_is_told_all_that_is_missing(misplaced: Place) -> None:
    place = misplaced
    place.sql(
        "CREATE TABLE keyless (a int)",
        "CREATE TABLE whole (a int)",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
        "SELECT pg_create_physical_replication_slot('left_over', true)",
    )
    found = place.found()
    wrong = states(found, "bad")
    assert set(wrong) == {"wal_level", "max_replication_slots", "replica identity"}
    assert wrong["wal_level"].fix == "ALTER SYSTEM SET wal_level = logical, and restart the server."
    assert wrong["max_replication_slots"].found == "1, of which 1 are in use: none is free"
    assert wrong["replica identity"].fix == 'ALTER TABLE "public"."keyless" REPLICA IDENTITY FULL'
    doubtful = states(found, "warn")
    assert set(doubtful) == {
        "max_wal_senders",
        "max_slot_wal_keep_size",
        "idle_replication_slot_timeout",
        "other slots",
        "key",
    }
    assert doubtful["idle_replication_slot_timeout"].found.startswith("1h: ")
    assert doubtful["key"].found.startswith("public.whole has none")
    assert '"left_over"' in doubtful["other slots"].found
    # What it says to type.
    place.sql(wrong["replica identity"].fix, doubtful["other slots"].fix.partition(": ")[2])
    assert set(states(place.found(), "bad")) == {"wal_level"}


def test_rows_alone_need_no_log(misplaced: Place) -> None:
    misplaced.sql("CREATE TABLE keyless (a int)")
    assert states(misplaced.found(snapshot="initial_only"), "bad") == {}


def test_a_table_that_is_not_there_is_bad(misplaced: Place) -> None:
    assert "no table public.gone" in one(misplaced.found(tables=("public.gone",)), "tables").found


def test_what_a_user_lacks_is_mended_by_what_is_told_to_be_typed(place: Place) -> None:
    poor = f"{place.name} poor"
    place.sql(
        f"CREATE ROLE \"{poor}\" LOGIN PASSWORD 'poor'",
        "CREATE SCHEMA inner_one",
        "CREATE TABLE inner_one.kept (id int PRIMARY KEY)",
        "CREATE TABLE inner_one.hidden (id int PRIMARY KEY)",
        "ALTER TABLE inner_one.hidden ENABLE ROW LEVEL SECURITY",
    )
    server = {"user": poor, "password": "poor", "tables": ("inner_one.*",)}
    found = place.found(**server)
    wrong = [each for each in found if each.state == "bad"]
    assert [each.what for each in wrong] == ["rights"] * 3 + ["replication", "publication"]
    for each in wrong:
        place.sql(each.fix.partition("type: ")[2] or each.fix)
    found = place.found(**server)
    assert states(found, "bad") == {}
    assert "not made by changeglot" in one(found, "publication").found
    assert "hidden from" in one(found, "transactions").found
    # The owner of the tables makes one itself, if the database lets it.
    place.sql(*(f'ALTER TABLE inner_one.{each} OWNER TO "{poor}"' for each in ("kept", "hidden")))
    wrong = [each for each in place.found(**server, publication="other") if each.state == "bad"]
    assert [each.what for each in wrong] == ["publication"]
    place.sql(wrong[0].fix)
    assert one(place.found(**server, publication="other"), "publication").found == '"other" will be made'
    place.sql(
        "DROP PUBLICATION changeglot",
        "DROP SCHEMA inner_one CASCADE",
        f'DROP OWNED BY "{poor}"',
        f'DROP ROLE "{poor}"',
    )


def test_a_publication_of_others_must_have_all_tables(place: Place) -> None:
    place.sql(
        "CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY LIST (id)",
        "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1)",
        "CREATE PUBLICATION changeglot FOR TABLE item WITH (publish = 'insert')",
    )
    found = [each for each in place.found() if each.what == "publication"]
    assert [each.state for each in found] == ["bad", "warn", "bad"]
    place.sql(*(each.fix for each in found))
    assert one(place.found(), "publication").state == "good"


def test_what_is_recorded_is_held_against_the_slot(place: Place) -> None:
    recorder = place.begun()
    place.sql("INSERT INTO item VALUES (1, 'a')")
    recorder.record(recorder.current())
    found = place.found()
    assert states(found, "bad") == {}
    assert one(found, "spool").found.startswith("recorded up to ")
    assert "nobody reads it now" in one(found, "slot").found
    assert one(found, "publication").found == '"changeglot" has all tables; made by changeglot'
    # Another reads from the slot.
    place.sql("INSERT INTO item VALUES (2, 'b')")
    place.sql(f"SELECT pg_replication_slot_advance('{place.name}', pg_current_wal_lsn())")
    assert set(states(place.found(), "bad")) == {"spool"}
    found = place.found(snapshot="when_needed")
    assert states(found, "bad") == {}
    assert "all rows will be read again" in states(found, "warn")["spool"].found
    place.sql(f"SELECT pg_drop_replication_slot('{place.name}')", "DROP PUBLICATION changeglot")
    assert set(states(place.found(), "bad")) == {"slot", "publication"}


def test_a_spool_of_another_server_is_bad(place: Place) -> None:
    place.begun()
    Spool(place.folder).advance(str(1 << 60))
    assert "another server" in states(place.found(), "bad")["spool"].found


def test_a_slot_is_not_taken_from_another(place: Place, tmp_path: Path) -> None:
    place.begun()
    found = pgdoctor.examine(place.server, tmp_path / "elsewhere")
    assert "nothing was ever recorded" in states(found, "bad")["slot"].found
    assert not (tmp_path / "elsewhere").exists()
    place.sql(f"SELECT pg_create_physical_replication_slot('{place.name}_p')")
    assert "a physical one" in states(place.found(slot=f"{place.name}_p"), "bad")["slot"].found


def test_a_slot_that_is_lost_is_bad(place: Place) -> None:
    place.begun()
    place.sql("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
    try:
        for _ in range(3):
            place.sql("SELECT pg_switch_wal() FROM pg_logical_emit_message(true, 'a', 'b')")
            place.sql("INSERT INTO item SELECT max(id) + 1 FROM (SELECT id FROM item UNION ALL SELECT 0) AS i")
        assert states(place.found(), "warn")["slot"].found.count("and it is lost") == 1
        place.sql("CHECKPOINT")
        assert "is lost: " in states(place.found(), "bad")["slot"].found
    finally:
        place.sql("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")


def test_one_who_records_is_not_disturbed_and_well(place: Place) -> None:
    recorder = place.begun()
    with recording(recorder):
        reads = f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{place.name}' AND active"
        until(lambda: place.sql(reads))
        ((pid,),) = place.sql(reads)
        for number in range(20):
            place.sql(f"INSERT INTO item VALUES ({number})")
            found = place.found()
            assert states(found, "bad") == {}
            assert f"process {pid} of the server reads it" in one(found, "slot").found
    until(lambda: not place.sql(reads))


def test_the_oldest_version_is_examined_too(tmp_path: Path) -> None:
    with Postgres.start(tmp_path, password=PASSWORD, version="14") as service:
        place = Place(service, tmp_path / "notes")
        place.sql("CREATE TABLE item (id int PRIMARY KEY)")
        place.begun()
        found = place.found()
        assert set(states(found, "warn")) == {"max_slot_wal_keep_size"}
        assert states(found, "bad") == {}
        place.connection.close()
        # Without a primary it waits for one, and lets clients read.
        service.stop()
        (service.data / "standby.signal").touch()
        service.restart()
        until(lambda: one_or_none(place.found(), "version"))
        assert "is a standby" in states(place.found(), "bad")["server"].found


def test_transactions_that_are_open_for_long_are_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert one(place.found(), "transactions").found == "none is open for more than 10 minutes"
    monkeypatch.setattr(pgdoctor, "_LONG", 0)
    place.sql("BEGIN", "INSERT INTO item VALUES (7)", "PREPARE TRANSACTION 'it''s'")
    with closing(psycopg.connect(place.service.dsn, application_name="lazy")) as other:
        other.execute("SELECT 1")
        pid = other.info.backend_pid
        found = [each for each in place.found() if each.what == "transactions"]
        lazy = next(each for each in found if "(lazy)" in each.found)
        assert lazy.state == "warn"
        assert f"pg_terminate_backend({pid})" in lazy.fix
        prepared = next(each for each in found if '"it\'s"' in each.found)
    place.sql(prepared.fix.partition(", or ")[2])


# MariaDB


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDB]:
    with MariaDB.start(tmp_path_factory.mktemp("mariadb"), password=PASSWORD) as service:
        yield service


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDB]:
    settings = {"skip_log_bin": "", "binlog_row_metadata": "NO_LOG", "binlog_row_image": "MINIMAL"}
    with MariaDB.start(tmp_path_factory.mktemp("silent"), password=PASSWORD, settings=settings) as service:
        yield service


class Shop:
    """A database of its own, and the folder of a spool."""

    def __init__(self, service: MariaDB, folder: Path) -> None:
        self.folder, self.name = folder / "spool", f"d{next(NUMBERS)}"
        self.client: pymysql.Connection[Cursor] = pymysql.connect(
            host="127.0.0.1", port=service.port, user=service.user, password=PASSWORD, autocommit=True
        )
        self.run(f"CREATE DATABASE {self.name}", f"USE {self.name}", "CREATE TABLE item (id INT PRIMARY KEY)")
        self.server = mysql.Server("127.0.0.1", service.user, (f"{self.name}.*",), PASSWORD, service.port)

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        with self.client.cursor() as cursor:
            for each in statements:
                cursor.execute(each)
            return list(cursor.fetchall())

    def found(self, **options: Any) -> list[Finding]:
        return mydoctor.examine(replace(self.server, **options), self.folder)


@pytest.fixture
def shop(mariadb: MariaDB, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(mariadb, tmp_path)
    yield made
    made.client.close()


def test_a_binlog_that_is_set_up_is_told_to_be_well(shop: Shop) -> None:
    found = shop.found()
    assert states(found, "bad") == {}
    assert states(found, "warn") == {}
    assert one(found, "version").found == "MariaDB 11.4.5"
    assert one(found, "tables").found == f"1 captured: {shop.name}.item"
    assert one(found, "server_id").found.startswith("1, and ")
    assert not shop.folder.exists()


def test_a_pipeline_of_a_binlog_is_examined_by_the_command(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = {name: getattr(shop.server, name) for name in ("host", "port", "user", "password")}
    path = written(tmp_path, type="mysql", **server, tables=[f"{shop.name}.*"])
    assert cli.main(["doctor", str(path)]) == 0
    out = capsys.readouterr().out
    assert "ok    binlog_format: ROW" in out.splitlines()
    assert f"{tmp_path}/lake/_changeglot/shop/changeglot/spool" in out
    assert PASSWORD not in out
    shop.run("SET GLOBAL binlog_row_metadata = MINIMAL")
    try:
        assert cli.main(["doctor", str(path), "--json"]) == 1
        found = [Finding(**each) for each in json.loads(capsys.readouterr().out)]
        shop.run(states(found, "bad")["binlog_row_metadata"].fix.partition(";")[0])
        assert cli.main(["doctor", str(path)]) == 0
    finally:
        shop.run("SET GLOBAL binlog_row_metadata = FULL")


def test_a_table_without_a_key_and_short_lives_are_warned_of(shop: Shop) -> None:
    shop.run("CREATE TABLE keyless (a INT)", "SET GLOBAL binlog_expire_logs_seconds = 3600")
    try:
        doubtful = states(shop.found(tables=(f"{shop.name}.*", f"{shop.name}.gone")), "warn")
    finally:
        shop.run("SET GLOBAL binlog_expire_logs_seconds = 0")
    assert set(doubtful) == {"key", "binlog_expire_logs_seconds", "tables"}
    assert "kept for 60 minutes" in doubtful["binlog_expire_logs_seconds"].found


def test_a_server_without_a_binlog_is_told_all_that_is_missing(silent: MariaDB, tmp_path: Path) -> None:
    shop = Shop(silent, tmp_path)
    found = shop.found(server_id=1)
    shop.client.close()
    assert set(states(found, "bad")) == {"log_bin", "binlog_row_metadata", "server_id"}
    assert set(states(found, "warn")) == {"binlog_row_image"}


@pytest.mark.parametrize("changed", [{"password": "not the s3cret"}, {"port": 1}])
def test_a_server_that_cannot_be_asked_is_all_that_is_told(changed: dict[str, Any], shop: Shop) -> None:
    (found,) = shop.found(**changed)
    assert (found.what, found.state) == ("server", "bad")
    assert "s3cret" not in doctor.told([found], "mysql")


def test_what_a_reader_lacks_is_mended_by_what_is_told_to_be_typed(shop: Shop) -> None:
    poor = f"{shop.name}'s"
    shop.run(f"CREATE USER \"{poor}\"@'127.0.0.1' IDENTIFIED BY 'poor'")
    server = {"user": poor, "password": "poor"}
    found = shop.found(**server)
    assert "none that" in states(found, "bad")["tables"].found
    # It sees the table, and may not read it; it may ask for the files, and not read them.
    shop.run(
        f"GRANT INSERT ON {shop.name}.* TO \"{poor}\"@'127.0.0.1'",
        f"GRANT BINLOG MONITOR ON *.* TO \"{poor}\"@'127.0.0.1'",
    )
    found = shop.found(**server)
    wrong = [each for each in found if each.state == "bad"]
    assert [each.what for each in wrong] == ["rights", "rights"]
    assert "REPLICATION SLAVE" in wrong[1].found
    shop.run(*(each.fix for each in wrong))
    assert states(shop.found(**server), "bad") == {}
    shop.run(f"DROP USER \"{poor}\"@'127.0.0.1'")


def test_what_is_recorded_is_held_against_the_binlog(shop: Shop) -> None:
    server = replace(shop.server, snapshot="no_data")
    recorder = mysql.Recorder(server, Spool(shop.folder))
    assert recorder.prepare() is None
    shop.run("INSERT INTO item VALUES (1)")
    recorder.record(recorder.current())
    assert (
        one(shop.found(), "spool").found
        == f"recorded up to {recorded(shop.folder)}, 0 bytes before the end of the binlog"
    )
    shop.run("FLUSH BINARY LOGS", "INSERT INTO item VALUES (2)")
    assert one(shop.found(), "spool").state == "good"
    shop.run("FLUSH BINARY LOGS", "SET GLOBAL slave_connections_needed_for_purge = 0")
    file, _, _ = recorded(shop.folder).partition(".")

    def purged() -> bool:
        names = [row[0] for row in shop.run("SHOW BINARY LOGS")]
        shop.run(f"PURGE BINARY LOGS TO '{names[-1]}'")
        return f"binlog.{int(file):06d}" not in names

    # Not while the server has not noticed yet that a reader has left.
    until(purged)
    assert "the server has files" in one(shop.found(), "spool").found
    assert one(shop.found(), "spool").state == "bad"
    assert one(shop.found(snapshot="when_needed"), "spool").state == "warn"


def test_a_reader_of_the_binlog_is_not_disturbed(shop: Shop) -> None:
    recorder = mysql.Recorder(replace(shop.server, snapshot="no_data"), Spool(shop.folder))
    assert recorder.prepare() is None
    shop.run("INSERT INTO item VALUES (1)")
    asked = "SELECT ID FROM information_schema.PROCESSLIST WHERE COMMAND = 'Binlog Dump' ORDER BY ID"
    with recording(recorder):
        before = recorded(shop.folder)
        until(lambda: recorded(shop.folder) != before or shop.run(asked))
        readers = set(shop.run(asked))
        assert states(shop.found(), "bad") == {}
        assert readers & set(shop.run(asked))
        shop.run("INSERT INTO item VALUES (2)")
        end = recorder.current()
        until(lambda: recorded(shop.folder) == end)


def test_a_binlog_that_was_reset_is_another_one(shop: Shop) -> None:
    recorder = mysql.Recorder(replace(shop.server, snapshot="no_data"), Spool(shop.folder))
    assert recorder.prepare() is None
    noted = shop.folder / "binlog.json"
    # As if it had been begun a second before.
    noted.write_text(json.dumps([[file, made - 1] for file, made in json.loads(noted.read_bytes())]))
    assert "another one now" in states(shop.found(), "bad")["spool"].found


def test_a_spool_that_is_being_read_is_only_looked_at(tmp_path: Path) -> None:
    assert recorded(tmp_path / "none") == ""
    assert list(tmp_path.iterdir()) == []
    Spool(tmp_path).advance("7.8")
    assert recorded(tmp_path) == "7.8"
