"""The recorder of PostgreSQL 14 to 18: the rows that are there, exactly as of a position, and all changes after it.

Rows are read by many tasks at once under one exported snapshot; changes come through one replication slot.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from changeglot.capture.pgcatalog import (
    Catalog,
    InUse,
    Slot,
    Table,
    lsn,
    number,
    telling,
)
from changeglot.capture.pgrows import Chunk, Copied, Rewritten, Snapshot, chunks, copy, enter, mended
from changeglot.capture.pgserver import Server, quoted
from changeglot.capture.pgstream import Stream, unwanted
from changeglot.capture.spool import Spool, durable
from changeglot.capture.unread import Unread
from changeglot.errors import ChangeglotError, Lost, Unreachable

__all__ = ["Chunk", "Copied", "InUse", "Lost", "Recorder", "Rewritten", "Server", "Snapshot", "Unreachable", "copy"]

logger = logging.getLogger(__name__)

#: Seconds in which a slot is free whose reader has just ended, and the longest pause between two attempts.
_FREE, _PAUSE = 3.0, 10.0


class Recorder:
    """Keeps a spool up to date with a database. Given the same folder again it goes on where it was."""

    def __init__(self, server: Server, spool: Spool, *, patience: float = 600, waits: bool = False) -> None:
        """`patience`: seconds for which a server that is away is waited for, while recording.

        `waits`: changes of a table whose rows are to be read are set aside, until who reads them releases them.
        """
        self._server, self._spool, self._patience, self._waits = server, spool, patience, waits
        #: Tables whose rows were not yet all read, as schema.table; there from before a slot is made.
        self.unread = Unread(spool.folder)
        self._said = ""

    def prepare(self) -> Snapshot | None:
        """Checks the server, makes what is missing, and gives the rows that are to be read before the changes.

        Those are of all tables at first, later of tables that are new, that are `unread` or were asked for.
        """
        mode = self._server.snapshot
        doing = f"preparing the capture of {self._server.host}:{self._server.port}"
        with telling(self._server, doing), closing(self._server.connect()) as connection:
            catalog = Catalog(self._server, connection)
            tables = catalog.tables()
            if mode != "no_data":
                self._check_rights(catalog, tables)
            if mode == "initial_only":
                if not self._spool.position:
                    self.unread.add([str(each) for each in tables])
                wanted = self._chosen(tables)
                return self._plain(wanted) if wanted else None
            self._check_server(catalog)
            fresh = not self._spool.position
            try:
                self._check(catalog)
            except Lost as problem:
                if mode != "when_needed":
                    raise
                logger.warning("changes were lost, all rows are read again: %s", problem)
                self.unread.add([str(each) for each in tables], again=True)
                self._spool.renew()
                fresh = True
            self._publish(catalog, tables, fresh=fresh)
            if not fresh:
                wanted = self._chosen(tables)
                return self.snapshot(wanted) if wanted else None
            if self.unread:
                # It was made by one who ended before anything was recorded, or is of no use any more.
                self._drop_slot(catalog)
            names = [str(each) for each in tables]
            self.unread.meet(names, read=False)
            self.unread.add([] if mode == "no_data" else names)
        with telling(self._server, f'making slot "{self._server.slot}"'):
            return self._begin()

    def added(self) -> list[str]:
        """Publishes tables that match and are new, and notes those that were asked for; names all that are to be read.

        To be asked now and then while another process records. A table that cannot be published is left out.
        """
        with telling(self._server, "looking for tables"), closing(self._server.connect()) as connection:
            catalog = Catalog(self._server, connection)
            tables = catalog.tables()
            try:
                self._publish(catalog, tables, fresh=False)
            except ChangeglotError as problem:
                if str(problem) != self._said:
                    logger.warning("a table is not captured: %s", problem)
                    self._said = str(problem)
                published = catalog.published()
                tables = [each for each in tables if (each.schema, each.table) in published]
            return self._chosen(tables)

    def _chosen(self, tables: Sequence[Table]) -> list[str]:
        """Those to be read, of the tables there are."""
        names = [str(each) for each in tables]
        self.unread.take(names)
        # Some have been published by others, or have another name now.
        self.unread.meet(names, read=self._server.snapshot != "no_data")
        wanted = set(self.unread.tables)
        return [str(each) for each in tables if str(each) in wanted]

    def _begin(self) -> Snapshot | None:
        if self._waits:
            self._spool.aside.begin(None)
        keeps = "NOEXPORT_SNAPSHOT" if self._server.snapshot == "no_data" else "EXPORT_SNAPSHOT"
        with closing(self._server.connect(replication=True)) as connection:
            name, position = _made(
                connection, f"CREATE_REPLICATION_SLOT {{}} LOGICAL pgoutput {keeps}", self._server.slot
            )
            snapshot = self._opened(name, position, self.unread.tables) if name else None
        durable(self._of, self._system().encode())
        self._spool.advance(str(position))
        if snapshot:
            snapshot.reached = self._spool.position
            self._spool.see(snapshot.seen)
        return snapshot

    def snapshot(self, tables: Collection[str]) -> Snapshot:
        """The rows of these tables as they are now, exact at a position of the log that is recorded."""
        self.unread.add(tables)
        if self._waits:
            self._spool.aside.begin(tables)
        slot = f"{self._server.slot[:40]}_{secrets.token_hex(8)}"
        command = "CREATE_REPLICATION_SLOT {} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT"
        with (
            telling(self._server, "taking a snapshot"),
            closing(self._server.connect(replication=True)) as connection,
        ):
            name, position = _made(connection, command, slot)
            assert name is not None
            return self._opened(name, position, tables)

    def _plain(self, tables: Collection[str]) -> Snapshot:
        """Rows without changes need no slot."""
        snapshot = self._opened(None, None, tables)
        self._spool.advance(str(snapshot.position))
        snapshot.reached = self._spool.position
        return snapshot

    def _opened(self, name: str | None, position: int | None, tables: Collection[str]) -> Snapshot:
        connection = self._server.connect()
        try:
            enter(connection, name)
            catalog = Catalog(self._server, connection)
            asked = "SELECT pg_export_snapshot(), pg_current_wal_insert_lsn()::text, pg_current_snapshot()::text"
            ((exported, now, seen),) = catalog.ask(asked)
            at = number(now) if position is None else position
            published = self._server.snapshot != "initial_only"
            chosen = [each for each in catalog.tables() if str(each) in tables]
            parts = [
                chunk for each in chosen for chunk in chunks(self._spool, catalog, each, at, seen, published=published)
            ]
        except BaseException:
            connection.close()
            raise
        return Snapshot(exported, at, tuple(map(str, chosen)), parts, published, seen, connection)

    def cleared(self, rows: Snapshot, tables: Collection[str]) -> bytes:
        """Lines that empty the tables, before their rows."""
        relations = {each.of: each.relation for each in rows.chunks}
        return b"".join(b"c\t%b\t0\n" % relations[each].encode() for each in sorted(tables))

    def mend(self, rows: Snapshot, tables: Collection[str]) -> None:
        """Reads rows once more whose changes do not tell all, of tables that were read under several snapshots.

        Such a row may have gone from blocks that were not read into some that were. All of its changes up to the
        snapshot must be recorded.
        """
        with telling(self._server, "reading rows that changed meanwhile"):
            mended(self._server, self._spool, rows, tables)

    def reach(self, position: str) -> None:
        """Records until all up to there is durable."""
        self.record(int(position))

    def current(self) -> int:
        """The position after all that was committed before it was asked for: `record` reaches it."""
        with telling(self._server, "asking for the end of the log"), closing(self._server.connect()) as connection:
            # The commit that follows is past that position, and is written though nobody writes anything else.
            with connection.transaction():
                asked = "SELECT pg_current_wal_insert_lsn()::text FROM pg_current_xact_id()"
                ((position,),) = Catalog(self._server, connection).ask(asked)
            return number(position)

    def record(self, until: int | None = None, stop: Callable[[], bool] = lambda: False) -> None:
        """Records until all up to a position is durable, or it is told to stop. Waits for a server that is away."""
        if self._server.snapshot == "initial_only":
            return
        pause, since, before = 0.1, 0.0, self._spool.position
        while not stop():
            try:
                with telling(self._server, "following the log"):
                    self._follow(until, stop)
                return
            except Unreachable as problem:
                now = time.monotonic()
                if not since or self._spool.position != before:
                    pause, since, before = 0.1, now, self._spool.position
                if now - since > self._patience:
                    said = f"{problem.what}; given up after {self._patience:g} seconds"
                    raise Unreachable(said, hint=problem.hint) from problem
                logger.warning("the stream broke, another attempt follows: %s", problem.what)
                _wait(pause, stop)
                pause = min(_PAUSE, 2 * pause)

    def _follow(self, until: int | None, stop: Callable[[], bool]) -> None:
        with closing(self._server.connect()) as plain, closing(self._server.connect(replication=True)) as connection:
            catalog = Catalog(self._server, plain)
            self._check(catalog)
            publication = catalog.publication()
            ours = publication is not None and publication[0]
            Stream(self._server, self._spool, catalog, connection, ours=ours).follow(until, stop)

    def drop(self) -> str:
        """Removes the slot, and the publication if it is ours; without them the database forgets its log as before."""
        dropped = [f'slot "{self._server.slot}"']
        with telling(self._server, "dropping the slot"), closing(self._server.connect()) as connection:
            catalog = Catalog(self._server, connection)
            self._drop_slot(catalog)
            publication = catalog.publication()
            if publication is not None and publication[0]:
                connection.execute(sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(self._server.publication)))
                dropped.append(f'publication "{self._server.publication}"')
            self.unread.forget()
        return " and ".join(dropped)

    def _drop_slot(self, catalog: Catalog) -> None:
        if self._free(catalog) is not None:
            catalog.ask("SELECT pg_drop_replication_slot(%s)", self._server.slot)

    def _free(self, catalog: Catalog) -> Slot | None:
        """The slot, which is one of ours that nobody reads."""
        deadline = time.monotonic() + _FREE
        while (slot := catalog.slot()) is not None and slot.pid is not None and time.monotonic() < deadline:
            time.sleep(0.05)
        named = f'slot "{self._server.slot}"'
        if slot is None:
            return None
        if slot.plugin != "pgoutput" or slot.database != self._server.database:
            kind = f'of {slot.plugin}, database "{slot.database}"' if slot.plugin else "a physical one"
            raise ChangeglotError(f"{named} is {kind}", hint='Set "slot" to another name.')
        if slot.pid is not None:
            hint = f'Stop it, or set "slot" to another name. To end it, type: SELECT pg_terminate_backend({slot.pid})'
            raise InUse(f"{named} is read by another, process {slot.pid} of the server", hint=hint)
        return slot

    def _check(self, catalog: Catalog) -> None:
        """That slot and publication are there, and hold all that was not recorded. Lost: they do not."""
        slot, name, position = self._free(catalog), self._server.slot, self._spool.position
        again = (
            "Let the rows be read again: set snapshot: when_needed, or drop the slot and start with an empty folder."
        )
        if not position:
            if slot is not None and not self.unread:
                said = f'slot "{name}" exists, but nothing was ever recorded in {self._spool.folder}'
                drop = f"SELECT pg_drop_replication_slot('{name}')"
                hint = f'Set "slot" to another name; or if the slot is of a folder that was lost, type: {drop}'
                raise ChangeglotError(said, hint=hint)
            return
        if self._of.exists() and self._of.read_text() != self._system():
            said = f"{self._server.host}:{self._server.port} is another server than the one that was recorded"
            raise Lost(said, hint=again)
        if slot is None:
            raise Lost(f'slot "{name}" is gone, and with it changes after {lsn(int(position))}', hint=again)
        if slot.lost:
            hint = f"{again} See max_slot_wal_keep_size and idle_replication_slot_timeout of the server."
            raise Lost(f'slot "{name}" is lost: {slot.lost}', hint=hint)
        if slot.confirmed > int(position):
            said = (
                f'slot "{name}" is at {lsn(slot.confirmed)}, but only changes up to {lsn(int(position))} were recorded'
            )
            raise Lost(f"{said}: another has read it, or the folder is an old one", hint=again)
        if catalog.publication() is None:
            raise Lost(f'publication "{self._server.publication}" was dropped, and changes since are gone', hint=again)
        ((end,),) = catalog.ask("SELECT pg_current_wal_insert_lsn()::text")
        if int(position) > number(end):
            said = f"the server's log ends at {end}, before {lsn(int(position))}, which was recorded"
            raise Lost(f"{said}: it is another server, or one that was set back", hint=again)

    @property
    def _of(self) -> Path:
        """Which server it is that was recorded."""
        return self._spool.folder / "server"

    def _system(self) -> str:
        """What a server has in common with its standbys, and with no other."""
        with closing(self._server.connect(replication=True)) as connection:
            ((system, *_),) = connection.execute("IDENTIFY_SYSTEM").fetchall()
        return str(system)

    def _check_server(self, catalog: Catalog) -> None:
        ((level, may),) = catalog.ask(
            """SELECT current_setting('wal_level'), EXISTS (SELECT FROM pg_roles WHERE rolname = current_user
                AND (rolreplication OR rolsuper) OR rolname = 'rds_replication' AND pg_has_role(oid, 'MEMBER'))"""
        )
        if level != "logical":
            hint = "Type: ALTER SYSTEM SET wal_level = logical, and restart the server."
            raise ChangeglotError(f'the server keeps no log of changes: its wal_level is "{level}"', hint=hint)
        if not may:
            hint = f"Type: ALTER ROLE {quoted(self._server.user)} REPLICATION"
            raise ChangeglotError(f'user "{self._server.user}" may not replicate', hint=hint)

    def _check_rights(self, catalog: Catalog, tables: Sequence[Table]) -> None:
        """That all rows can be read."""
        leaves = [leaf for each in tables for leaf in each.leaves]
        rows = catalog.ask(
            """SELECT n.nspname, c.relname, has_schema_privilege(n.oid, 'USAGE') FROM pg_class c
            JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY(%s)
                AND NOT (has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'))
            ORDER BY 1, 2""",
            [leaf.oid for leaf in leaves],
        )
        if rows:
            user = quoted(self._server.user)
            schemas = sorted({quoted(schema) for schema, _, may in rows if not may})
            named = ", ".join(quoted(schema, table) for schema, table, _ in rows)
            hint = f"Type: GRANT SELECT ON {named} TO {user}"
            if schemas:
                hint = f"Type: GRANT USAGE ON SCHEMA {', '.join(schemas)} TO {user}; {hint.removeprefix('Type: ')}"
            raise ChangeglotError(f'user "{self._server.user}" may not read {named}', hint=hint)

    def _publish(self, catalog: Catalog, tables: Sequence[Table], *, fresh: bool) -> None:
        """Makes the publication have the tables; those that were added are to be read."""
        unable = catalog.without_identity(tables)
        if unable:
            # Published, it would refuse these statements at once: the source's own users would fail.
            said = f"{', '.join(unable)} would refuse UPDATE and DELETE once published: old rows could not be told"
            full = "; ".join(f"ALTER TABLE {each} REPLICA IDENTITY FULL" for each in unable)
            hint = f'Give it a primary key, or type: {full}; or leave it out of "tables".'
            raise ChangeglotError(said, hint=hint)
        name, publication = self._server.publication, catalog.publication()
        published = catalog.published()
        missing = [each for each in tables if (each.schema, each.table) not in published]
        listed = ", ".join(each.quoted for each in missing)
        foreign = [each for each in missing if not each.owned]
        if publication is None:
            make = f"CREATE PUBLICATION {quoted(name)} FOR TABLE {listed} WITH (publish_via_partition_root = true)"
            ((may,),) = catalog.ask("SELECT has_database_privilege(current_database(), 'CREATE')")
            if foreign or not may:
                raise self._may_not(foreign, make)
            catalog.publish(tables)
            return
        ours, roots, all_kinds = publication
        partitioned = [str(each) for each in tables if each.partitioned]
        if partitioned and not roots:
            said = f'publication "{name}" tells of the partitions of {", ".join(partitioned)}, not of the table'
            set_roots = f"ALTER PUBLICATION {quoted(name)} SET (publish_via_partition_root = true)"
            raise ChangeglotError(said, hint=f"Type: {set_roots}")
        if not all_kinds:
            logger.warning('publication "%s" leaves out some of insert, update, delete and truncate', name)
        extra = sorted(published - {(each.schema, each.table) for each in tables})
        if ours and extra:
            raise unwanted(self._server, *extra)
        if missing:
            add = f"ALTER PUBLICATION {quoted(name)} ADD TABLE {listed}"
            if not ours:
                named = ", ".join(map(str, missing))
                said = f'publication "{name}", which is not ours, has no table {named}'
                raise ChangeglotError(said, hint=f"Type: {add}")
            if foreign:
                raise self._may_not(foreign, add)
            if not fresh and self._server.snapshot != "no_data":
                self.unread.add([str(each) for each in missing])
            catalog.publish(missing, add=True)

    def _may_not(self, foreign: Sequence[Table], command: str) -> ChangeglotError:
        owned = f"does not own {', '.join(map(str, foreign))}" if foreign else "may create nothing in the database"
        return ChangeglotError(
            f'user "{self._server.user}" {owned}, and cannot publish', hint=f"Let the owner type: {command}"
        )


def _made(connection: psycopg.Connection[Any], command: str, slot: str) -> tuple[str | None, int]:
    """A slot's snapshot, which lives until the connection's next command, and its position. Any: rows of all kinds."""
    logger.info("waiting for the transactions that are open at the server", extra={"slot": slot})
    made = sql.SQL(command).format(sql.Identifier(slot))
    ((_, position, snapshot, _),) = connection.execute(made).fetchall()
    return snapshot, number(position)


def _wait(seconds: float, stop: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not stop() and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, 0.1))
