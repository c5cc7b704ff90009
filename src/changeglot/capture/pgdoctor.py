"""What is well with a PostgreSQL server and what is not, before something is captured and while it is."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from changeglot.capture.findings import Finding, bad, clock, good, listed, lost, recorded, size, warn
from changeglot.capture.pgcatalog import Catalog, Slot, Table, lsn, number, telling
from changeglot.capture.pgserver import Server, quoted
from changeglot.capture.pgstream import unwanted
from changeglot.errors import ChangeglotError, ConfigError

#: The major versions that were tried.
_OLDEST, _NEWEST = 14, 18
#: Seconds after which an open transaction is a long one.
_LONG = 600
#: Bytes of the log that a slot which nobody reads may hold back unsaid.
_MUCH = 1 << 30
#: A sentence for each state of a slot in which its log is no longer sure.
_STATES = {
    "extended": "which is more than max_wal_size",
    "unreserved": "some of which the server removes at its next checkpoint",
}


class _Held(NamedTuple):
    """What a slot keeps of the log; `left`: bytes until it loses it, None if never."""

    name: str
    active: bool
    status: str | None
    left: int | None
    size: int


def examine(server: Server, folder: Path) -> list[Finding]:
    """What was found at the server, and in the folder of its spool. Nothing is changed, there or here."""
    found: list[Finding] = []
    try:
        with telling(server, "examining the server"), closing(server.connect()) as connection:
            connection.execute("SET default_transaction_read_only = on")
            # It waits for no lock.
            connection.execute("SET statement_timeout = '10s'")
            for each in _findings(server, folder, connection):
                found.append(each)
    except ChangeglotError as problem:
        found.append(bad("server", problem.what, problem.hint))
    return found


def _findings(server: Server, folder: Path, connection: psycopg.Connection[Any]) -> Iterator[Finding]:
    """Any: rows of all kinds."""
    catalog = Catalog(server, connection)
    ((standby,),) = catalog.ask("SELECT pg_is_in_recovery()")
    where = f'{server.host}:{server.port}, database "{server.database}", user "{server.user}"'
    yield good("server", f"reached at {where}")
    yield _version(catalog)
    before = time.time()
    ((now,),) = catalog.ask("SELECT extract(epoch FROM clock_timestamp())::float8")
    yield clock(now, before, time.time())
    if standby:
        yield bad("server", "is a standby, on which nothing can be published", 'Set "host" to its primary.')
        return
    yield from _Examined(server, folder, catalog).findings()


def _version(catalog: Catalog) -> Finding:
    major, words = catalog.version[0] // 10000, catalog.version[1]
    if major < _OLDEST:
        return bad("version", f"PostgreSQL {words}", f"Upgrade it to {_OLDEST} or newer: older ones are not read.")
    if major > _NEWEST:
        return warn("version", f"PostgreSQL {words}", f"Try it with care: {_OLDEST} to {_NEWEST} were tried.")
    return good("version", f"PostgreSQL {words}")


class _Examined:
    """A server that was reached, and the spool of what is recorded of it."""

    def __init__(self, server: Server, folder: Path, catalog: Catalog) -> None:
        self._server, self._folder, self._catalog = server, folder, catalog
        self._user = quoted(server.user)
        # In this order: who records meanwhile moves first the log's end, then the spool, and the slot at last.
        self._slot: Slot | None = catalog.slot()
        self._position = recorded(folder)
        ((end,),) = catalog.ask("SELECT pg_current_wal_insert_lsn()::text")
        self._end = number(end)

    def findings(self) -> Iterator[Finding]:
        try:
            tables = self._catalog.tables()
            yield good("tables", f"{len(tables)} captured: {listed([str(each) for each in tables])}")
        except ConfigError as problem:
            tables = []
            yield bad("tables", problem.what, problem.hint)
        if tables and self._server.snapshot != "no_data":
            yield from self._rights(tables)
        if self._server.snapshot == "initial_only":
            return
        yield from self._server_settings()
        if tables:
            yield from self._identities(tables)
            yield from self._publication(tables)
        yield from self._slots()
        yield from self._transactions()
        yield self._spool()

    def _ask(self, query: str, *given: object) -> list[tuple[Any, ...]]:
        """Any: rows of all kinds."""
        return self._catalog.ask(query, *given)

    def _server_settings(self) -> Iterator[Finding]:
        """What the server must be set to, and whether it has room for one more reader."""
        ((level, slots, senders, keeps, idle),) = self._ask(
            """SELECT current_setting('wal_level'), current_setting('max_replication_slots')::int,
                current_setting('max_wal_senders')::int, current_setting('max_slot_wal_keep_size'),
                current_setting('idle_replication_slot_timeout', true)"""
        )
        if level == "logical":
            yield good("wal_level", level)
        else:
            said = f"{level}: the log does not tell what changed"
            yield bad("wal_level", said, "ALTER SYSTEM SET wal_level = logical, and restart the server.")
        ((taken, sending),) = self._ask(
            "SELECT (SELECT count(*) FROM pg_replication_slots), (SELECT count(*) FROM pg_stat_replication)"
        )
        yield _room("max_replication_slots", slots, taken, needed=self._slot is None)
        yield _room("max_wal_senders", senders, sending, needed=self._slot is None or self._slot.pid is None)
        yield self._replicates()
        limit = "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf()"
        if keeps == "-1":
            said = "-1: while nobody reads a slot, the log grows until the disk is full"
            yield warn("max_slot_wal_keep_size", said, f"As much as the disk can spare: {limit}")
        else:
            yield good("max_slot_wal_keep_size", f"{keeps}: a slot that is further behind is lost")
        if idle is not None and idle != "0":
            said = f"{idle}: a slot that nobody reads for so long is lost"
            fix = "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf()"
            yield warn("idle_replication_slot_timeout", said, f"Run the pipeline more often than that, or: {fix}")

    def _replicates(self) -> Finding:
        ((may,),) = self._ask(
            """SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = current_user AND (rolreplication OR rolsuper)
                OR rolname = 'rds_replication' AND pg_has_role(oid, 'MEMBER'))"""
        )
        if not may:
            return bad("replication", f"{self._user} may not replicate", f"ALTER ROLE {self._user} REPLICATION")
        try:
            self._server.connect(replication=True).close()
        except ChangeglotError as problem:
            return bad("replication", problem.what, problem.hint)
        return good("replication", f"{self._user} may replicate")

    def _rights(self, tables: Sequence[Table]) -> Iterator[Finding]:
        """Whether all rows can be read."""
        rows = self._ask(
            """SELECT n.nspname, c.relname, has_schema_privilege(n.oid, 'USAGE'),
                has_table_privilege(c.oid, 'SELECT'), row_security_active(c.oid)
            FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY(%s) ORDER BY 1, 2""",
            [leaf.oid for each in tables for leaf in each.leaves],
        )
        schemas = sorted({quoted(schema) for schema, _, enters, _, _ in rows if not enters})
        closed = [quoted(schema, table) for schema, table, _, reads, _ in rows if not reads]
        hidden = [quoted(schema, table) for schema, table, _, _, hides in rows if hides]
        if schemas:
            fix = f"GRANT USAGE ON SCHEMA {', '.join(schemas)} TO {self._user}"
            yield bad("rights", f"{self._user} may not use schema {listed(schemas)}", fix)
        if closed:
            fix = f"GRANT SELECT ON {', '.join(closed)} TO {self._user}"
            yield bad("rights", f"{self._user} may not read {listed(closed)}", fix)
        if hidden:
            said = f"policies hide rows of {listed(hidden)} from {self._user}"
            yield bad("rights", said, f"ALTER ROLE {self._user} BYPASSRLS")
        if not (schemas or closed or hidden):
            yield good("rights", f"{self._user} may read them all")

    def _identities(self, tables: Sequence[Table]) -> Iterator[Finding]:
        """Whether old rows are told, and known by a key."""
        unable = self._catalog.without_identity(tables)
        for each in unable:
            said = f"{each} has no key that old rows are told by: published, it refuses UPDATE and DELETE"
            yield bad("replica identity", said, f"ALTER TABLE {each} REPLICA IDENTITY FULL")
        if not unable:
            yield good("replica identity", "changes and deletes of all tables tell which row it was")
        for table in tables:
            columns, _ = self._catalog.told(table, published=True)
            if table.quoted not in unable and not self._catalog.key(table.oid, [each["name"] for each in columns]):
                said = f"{table} has none: its current rows cannot be told apart"
                yield warn("key", said, "Give it a primary key; or name columns in the pipeline: tables: keys.")

    def _publication(self, tables: Sequence[Table]) -> Iterator[Finding]:
        """Whether there is one of the tables, or can be."""
        name, there = quoted(self._server.publication), self._catalog.publication()
        published = self._catalog.published()
        missing = [each for each in tables if (each.schema, each.table) not in published]
        add = ", ".join(each.quoted for each in missing)
        if there is None:
            if self._position:
                yield lost("publication", f"{name} was dropped, and changes since are gone", self._server.snapshot)
                return
            yield self._made(missing, name)
            return
        ours, roots, all_kinds = there
        partitioned = [str(each) for each in tables if each.partitioned]
        extra = sorted(published - {(each.schema, each.table) for each in tables})
        if partitioned and not roots:
            said = f"{name} tells of the partitions of {listed(partitioned)}, not of the table"
            fix = f"ALTER PUBLICATION {name} SET (publish_via_partition_root = true)"
            yield bad("publication", said, fix)
        if not all_kinds:
            said = f"{name} leaves out some of insert, update, delete and truncate"
            fix = f"ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate')"
            yield warn("publication", said, fix)
        if ours and extra:
            problem = unwanted(self._server, *extra)
            yield bad("publication", problem.what, problem.hint)
        command = f"ALTER PUBLICATION {name} ADD TABLE {add}"
        if missing and ours:
            said = f"{name} has not all tables"
            yield self._added(missing, said, command) or good("publication", f"{add} will be added to {name}")
        elif missing:
            said = f"{name}, which was not made by changeglot, has not {listed([str(each) for each in missing])}"
            yield bad("publication", said, command)
        else:
            whose = "made by changeglot" if ours else "not made by changeglot, and left as it is"
            yield good("publication", f"{name} has all tables; {whose}")

    def _made(self, tables: Sequence[Table], name: str) -> Finding:
        """Whether a publication of the tables can be made."""
        all_of_them = ", ".join(each.quoted for each in tables)
        make = f"CREATE PUBLICATION {name} FOR TABLE {all_of_them} WITH (publish_via_partition_root = true)"
        if unable := self._added(tables, f"{name} is not there", make):
            return unable
        ((may,),) = self._ask("SELECT has_database_privilege(current_database(), 'CREATE')")
        if not may:
            said = f"{name} is not there, and {self._user} may make none in the database"
            return bad("publication", said, f"GRANT CREATE ON DATABASE {quoted(self._server.database)} TO {self._user}")
        return good("publication", f"{name} will be made")

    def _added(self, missing: Sequence[Table], said: str, command: str) -> Finding | None:
        """What keeps the user from publishing the tables."""
        foreign = [str(each) for each in missing if not each.owned]
        if not foreign:
            return None
        why = f"{said}, and {self._user} does not own {listed(foreign)}"
        return bad("publication", why, f"Let the owner type: {command}")

    def _slots(self) -> Iterator[Finding]:
        """Ours, and those of others that hold back the log."""
        rows = self._ask(
            """SELECT slot_name, active, wal_status, safe_wal_size,
                coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint
            FROM pg_replication_slots ORDER BY slot_name"""
        )
        slots = {row[0]: _Held(*row) for row in rows}
        yield self._ours(slots.pop(self._server.slot, None))
        for each in slots.values():
            if not each.active and each.status not in (None, "lost"):
                said = f'nobody reads slot "{each.name}" now, and it holds back {size(each.size)} of the log'
                drop = f"SELECT pg_drop_replication_slot('{each.name}')"
                yield warn("other slots", said, f"If nobody needs it: {drop}")

    def _ours(self, held: _Held | None) -> Finding:
        slot, named = self._slot, f'"{self._server.slot}"'
        if slot is None or held is None:
            if self._position:
                said = f"{named} is gone, and with it changes after {lsn(int(self._position))}"
                return lost("slot", said, self._server.snapshot)
            return good("slot", f"{named} will be made")
        if slot.plugin != "pgoutput" or slot.database != self._server.database:
            kind = f'of {slot.plugin}, database "{slot.database}"' if slot.plugin else "a physical one"
            return bad("slot", f"{named} is {kind}", 'Set "slot" to another name.')
        drop = f"SELECT pg_drop_replication_slot('{self._server.slot}')"
        if not self._position:
            if (self._folder / "unread.json").exists():
                return good("slot", f"{named} was made by a run that ended at once, and will be made anew")
            said = f"{named} exists, but nothing was ever recorded in {self._folder}"
            return bad("slot", said, f'Set "slot" to another name; or if it is of a folder that was lost: {drop}')
        if slot.lost:
            return lost("slot", f"{named} is lost: {slot.lost}", self._server.snapshot)
        read = f"process {slot.pid} of the server reads it" if slot.pid else "nobody reads it now"
        said = f"{named}: {read}; it holds back {size(held.size)} of the log"
        if held.status in _STATES:
            soon = f"; {size(max(0, held.left))} more, and it is lost" if held.left is not None else ""
            fix = f"Run the pipeline, so that it catches up; or if it is not needed any more: {drop}"
            return warn("slot", f"{said}, {_STATES[held.status]}{soon}", fix)
        if slot.pid is None and held.size > _MUCH:
            return warn("slot", said, f"Run the pipeline; or if it is not needed any more: {drop}")
        return good("slot", said)

    def _transactions(self) -> Iterator[Finding]:
        """Those that are open for long: a slot that is made waits for them, and so does vacuum."""
        rows = self._ask(
            """SELECT pid, usename, application_name, state, (clock_timestamp() - xact_start)::interval(0)::text
            FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
                AND xact_start < clock_timestamp() - make_interval(secs => %s) ORDER BY xact_start""",
            _LONG,
        )
        for pid, user, application, state, age in rows:
            by = f'"{user}"' + (f" ({application})" if application else "")
            said = f"process {pid} of {by} has had one open for {age}, and is {state}: new slots and vacuum wait"
            ours = "It reads rows for a pipeline: let it end."
            fix = ours if application == "changeglot" else f"Let it end; or: SELECT pg_terminate_backend({pid})"
            yield warn("transactions", said, fix)
        prepared = self._ask(
            """SELECT gid, database, (clock_timestamp() - prepared)::interval(0)::text, quote_literal(gid)
            FROM pg_prepared_xacts WHERE prepared < clock_timestamp() - make_interval(secs => %s) ORDER BY prepared""",
            _LONG,
        )
        for gid, database, age, literal in prepared:
            said = f'"{gid}" of database "{database}" has been prepared for {age}: new slots and vacuum wait'
            yield warn("transactions", said, f"COMMIT PREPARED {literal}, or ROLLBACK PREPARED {literal}")
        ((sees,),) = self._ask("SELECT pg_has_role('pg_read_all_stats', 'USAGE')")
        if not sees:
            hidden = f"those of others are hidden from {self._user}"
            yield good("transactions", hidden, f"To have them looked at: GRANT pg_read_all_stats TO {self._user}")
        elif not rows and not prepared:
            yield good("transactions", f"none is open for more than {_LONG // 60} minutes")

    def _spool(self) -> Finding:
        """What was recorded, against what the server has."""
        if not self._position:
            return good("spool", f"nothing was recorded yet in {self._folder}")
        position = int(self._position)
        said = f"recorded up to {lsn(position)}"
        if self._slot is not None and self._slot.confirmed > position:
            behind = f"{said} only, but the slot is at {lsn(self._slot.confirmed)}"
            why = "another has read it, or the folder is an old one"
            return lost("spool", f"{behind}: {why}", self._server.snapshot)
        if position > self._end:
            why = "it is another server, or one that was set back"
            return lost("spool", f"{said}, but the log ends at {lsn(self._end)}: {why}", self._server.snapshot)
        return good("spool", f"{said}, {size(self._end - position)} before the end of the log")


def _room(what: str, limit: int, taken: int, *, needed: bool) -> Finding:
    """Whether there is one more, and another for the moment in which a new table's rows are read."""
    left = limit - taken - needed
    said = f"{limit}, of which {taken} are in use"
    fix = f"ALTER SYSTEM SET {what} = {taken + 10}, and restart the server."
    if left < 0:
        return bad(what, f"{said}: none is free", fix)
    if left == 0:
        return warn(what, f"{said}: none is free for tables that are added later", fix)
    return good(what, said)
