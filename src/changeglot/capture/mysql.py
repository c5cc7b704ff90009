"""The recorder of MySQL and MariaDB: a snapshot's chunks, and the binlog into the spool.

No lock is held while rows are read, nor is a snapshot shared: each chunk is exact at a position of its own, which the
relation of its rows tells. What the binlog says of them up to there is in them.
"""

from __future__ import annotations

import json
import logging
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pymysql
from pymysql.constants import COMMAND
from pymysql.cursors import Cursor

from changeglot.capture.binlog import Events, Position
from changeglot.capture.mycatalog import Kind, kind_of, names
from changeglot.capture.mychunks import Chunk, Copied, Snapshot, chunks, copy, end_of
from changeglot.capture.myserver import Server
from changeglot.capture.mytables import Tables
from changeglot.capture.spool import Segment, Spool, durable
from changeglot.capture.unread import Unread
from changeglot.errors import ChangeglotError, Lost, Unreachable

__all__ = ["Chunk", "Copied", "Lost", "Recorder", "Server", "Snapshot", "Unreachable", "copy"]

logger = logging.getLogger(__name__)

#: A segment is published at a commit when it has so many bytes, or is so many seconds old.
FULL, OLD = 8 << 20, 0.2
#: Seconds between two signs of life of the server, without any after which it is taken for dead, and between two notes
#: of a position when nothing of interest is told.
BEAT, DEAD, NOTE = 5, 30, 10


class Recorder:
    """Reads the binlog from where the spool ends. The server is told nothing: how long it keeps files is its matter."""

    def __init__(self, server: Server, spool: Spool, *, patience: float = 600, waits: bool = False) -> None:
        """`patience`: seconds for which a server that is away is waited for, while recording.

        `waits`: changes of a table whose rows are to be read are set aside, until who reads them releases them.
        """
        self._server, self._spool, self._patience, self._waits = server, spool, patience, waits
        #: Tables whose rows were not yet all read, as database.table, and the patterns that chose them.
        self.unread = Unread(spool.folder)
        #: Since when the server is away.
        self._away: float | None = None

    def check(self) -> None:
        """Makes sure that all can be read that `prepare` and `record` read, and changes nothing."""
        with self._server.connected() as connection:
            kind = kind_of(connection)
            found = self._found(connection)
            position = Position.of(self._spool.position) if self._spool.position else end_of(connection)
            opened = self._peek(connection, kind, position)
            if self._spool.position:
                self._same(opened)
            chunks(connection, kind, self._server, found, cut=False)

    def prepare(self) -> Snapshot | None:
        """Makes sure that all can be read, and begins where the binlog ends if nothing was recorded yet.

        Gives the rows that are to be read before the changes: of all tables at first; later of tables that are wanted
        since the patterns changed, that are `unread` or were asked for. Those made later tell all themselves.
        """
        mode = self._server.snapshot
        with self._server.connected() as connection:
            kind = kind_of(connection)
            if not kind.whole:
                logger.warning("rows are told in part: binlog_row_image is not FULL")
            found = self._found(connection)
            begun = bool(self._spool.position)
            if begun and mode != "initial_only":
                try:
                    self._same(self._peek(connection, kind, Position.of(self._spool.position)))
                except Lost as problem:
                    if mode != "when_needed":
                        raise
                    logger.warning("changes were lost, all rows are read again: %s", problem)
                    self.unread.add(found, again=True)
                    self._spool.renew()
                    begun = False
            if begun:
                patterns = self.unread.patterns
                chosen = replace(self._server, tables=tuple(patterns)) if patterns else self._server
                added = [] if mode == "no_data" else [each for each in found if not chosen.wants(*each.split(".", 1))]
                self.unread.add(added, patterns=self._server.tables)
            else:
                if self._waits:
                    self._spool.aside.begin(None)
                position = end_of(connection)
                self._files.unlink(missing_ok=True)
                self._same(self._peek(connection, kind, position))
                self.unread.add([] if mode == "no_data" else found, patterns=self._server.tables)
                self._spool.advance(str(position))
            wanted = self._chosen(found)
            return self._opened(connection, kind, wanted) if wanted else None

    def added(self) -> list[str]:
        """Notes tables that were asked for; names all that are to be read. Another process may record meanwhile."""
        if not self.unread.asked():
            return []
        with self._server.connected() as connection:
            return self._chosen(self._found(connection))

    def _chosen(self, found: Collection[str]) -> list[str]:
        self.unread.take(found)
        wanted = set(self.unread.tables)
        return [each for each in found if each in wanted]

    def _found(self, connection: pymysql.Connection[Cursor]) -> list[str]:
        """The tables that are wanted."""
        found = [f"{database}.{table}" for database, table in names(connection, self._server)]
        if not found:
            wanted, user = ", ".join(self._server.tables), self._server.user
            raise ChangeglotError(
                f"looking for tables: none that {user} may read is one of {wanted}",
                hint=f"Is that their name? GRANT SELECT ON shop.* TO '{user}'@'%'; lets it read them.",
            )
        return found

    def snapshot(self, tables: Collection[str]) -> Snapshot:
        """The rows of these tables, as `shop.item`, again or for the first time."""
        with self._server.connected() as connection:
            opened = self._opened(connection, kind_of(connection), tables)
        self.unread.add(tables)
        return opened

    def _opened(self, connection: pymysql.Connection[Cursor], kind: Kind, tables: Collection[str]) -> Snapshot:
        if self._waits:
            self._spool.aside.begin(tables)
        position = end_of(connection)
        parts = chunks(connection, kind, self._server, tables)
        parts = [replace(each, facts=self._spool.dated(each.facts)) for each in parts]
        resumable = kind.whole and self._server.snapshot != "initial_only"
        return Snapshot(str(position), tuple(tables), parts, resumable)

    def cleared(self, rows: Snapshot, tables: Collection[str]) -> bytes:
        """Lines that empty the tables, before their rows."""
        facts = {each.of: {**each.facts, "snapshot": list(Position.of(rows.position))} for each in rows.chunks}
        return b"".join(b"c\t%b\t0\n" % self._spool.relation(facts[each]).encode() for each in sorted(tables))

    def mend(self, rows: Snapshot, tables: Collection[str]) -> None:
        """Nothing is to be done: changes tell whole rows."""

    def drop(self) -> str:
        """The server knows nothing of us."""
        return "nothing: the server keeps its binlog for whoever reads it"

    def reach(self, position: str) -> None:
        """Records until all up to there is durable."""
        self.record(position)

    def current(self) -> str:
        """Where the binlog ends."""
        with self._server.connected() as connection:
            return str(end_of(connection))

    def record(self, until: str | None = None, stop: Callable[[], bool] = lambda: False) -> None:
        """Records until all up to a position is durable, or it is told to stop. Waits for a server that is away."""
        if self._server.snapshot == "initial_only":
            return
        target = Position.of(until) if until else None
        pause = 0.1
        while not stop():
            try:
                self._follow(target, stop)
                return
            except Unreachable as problem:
                now = time.monotonic()
                if self._away is None:
                    self._away, pause = now, 0.1
                if now - self._away > self._patience:
                    said = f"{problem.what}; given up after {self._patience:g} seconds"
                    raise Unreachable(said, hint=problem.hint) from problem
                logger.warning("the stream broke, another attempt follows: %s", problem.what)
                while time.monotonic() < now + pause and not stop():
                    time.sleep(0.05)
                pause = min(10, 2 * pause)

    def _follow(self, target: Position | None, stop: Callable[[], bool]) -> None:
        position = Position.of(self._spool.position)
        with self._server.connected() as connection:
            kind = kind_of(connection)
            tables = Tables(self._server, kind, self._spool, connection)
            events = Events(tables, position, mariadb=kind.mariadb, checksum=kind.checksum)
            with self._dumped(connection, position) as feed:
                _Writer(self._spool, events).follow(feed, target, stop, self._same)

    def _peek(self, connection: pymysql.Connection[Cursor], kind: Kind, position: Position) -> tuple[int, int]:
        """The file that is read from there, and when it was begun."""
        tables = Tables(self._server, kind, self._spool, connection)
        events = Events(tables, position, mariadb=kind.mariadb, checksum=kind.checksum)
        with self._dumped(connection, position, ends=True) as feed:
            while events.opened is None:
                if (event := feed.read(DEAD)) is None:
                    raise Unreachable("reading the binlog: the server says nothing")
                events.take(event)
        return events.opened

    @property
    def _files(self) -> Path:
        return self._spool.folder / "binlog.json"

    def _same(self, opened: tuple[int, int]) -> None:
        """A file of the binlog is read: it must be the one that it was."""
        self._away = None
        file, made = opened
        known = {int(n): m for n, m in json.loads(self._files.read_bytes())} if self._files.exists() else {}
        if known.get(file, made) != made:
            raise Lost(
                f"reading the binlog: file {file} is not the one that was read before",
                hint="It is another server, or its binlog was reset. Take a new snapshot, with a new folder.",
            )
        if file not in known:
            needed = Position.of(self._spool.position).file if self._spool.position else file
            known = {n: m for n, m in known.items() if n >= needed} | {file: made}
            durable(self._files, json.dumps(sorted(known.items())).encode())

    @contextmanager
    def _dumped(
        self, connection: pymysql.Connection[Cursor], position: Position, *, ends: bool = False
    ) -> Iterator[_Feed]:
        """The events from a position on, of those that are there if it `ends`. `connection`: another one, to ask."""
        with connection.cursor() as cursor:
            cursor.execute("SHOW BINARY LOGS")
            files = {int(row[0].rpartition(".")[2]): (row[0], int(row[1])) for row in cursor.fetchall()}
        name, size = files.get(position.file, ("", 0))
        if position.at == size and position.at >= 1 << 32 and position.file + 1 in files:
            # A dump begins below that; here ends a file with a transaction that was too large for it.
            name, size = files[position.file + 1]
            position = Position(position.file + 1, 4)
        if not name or position.at > size:
            there = f"it has {min(files)} to {max(files)}, the last of {files[max(files)][1]} bytes"
            raise Lost(
                f"reading the binlog from {position}: the server does not have that any more; {there}",
                hint="It was purged (binlog_expire_logs_seconds), or it is another server. Take a new snapshot.",
            )
        with self._server.connected() as dumped:
            with dumped.cursor() as cursor:
                cursor.execute(
                    "SET @master_binlog_checksum = @@global.binlog_checksum, @mariadb_slave_capability = 4,"
                    f" @master_heartbeat_period = {BEAT * 1_000_000_000},"
                    " @source_binlog_checksum = @@global.binlog_checksum"
                )
            asked = struct.pack("<IHI", position.at, int(ends), self._server.reader_id) + name.encode()
            # Private names of the client's: it speaks no replication, but keeps the connection, encrypted or not.
            client: Any = dumped
            client._execute_command(COMMAND.COM_BINLOG_DUMP, asked)
            yield _Feed(client._sock)


class _Feed:
    """Events as they come through a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._data, self._at = b"", 0
        self._parts: list[bytes] = []

    def read(self, wait: float) -> bytes | None:
        """The next event; None if nothing comes in so many seconds."""
        while True:
            if len(self._data) - self._at < 4 and not self._fill(4, wait):
                return None
            size = int.from_bytes(self._data[self._at : self._at + 3], "little")
            if len(self._data) - self._at < 4 + size and not self._fill(4 + size, wait):
                return None
            begin = self._at + 4
            self._at = begin + size
            part = self._data[begin : self._at]
            # A longer one comes in parts, of which the last is shorter, or empty.
            if self._parts or size == 0xFFFFFF:
                self._parts.append(part)
                if size == 0xFFFFFF:
                    continue
                part, self._parts = b"".join(self._parts), []
            if part[0] == 0:
                return part[1:]
            self._failed(part)

    def _fill(self, size: int, wait: float) -> bool:
        """Whether there are so many bytes."""
        parts = [self._data[self._at :]]
        have = len(parts[0])
        self._socket.settimeout(wait)
        try:
            while have < size:
                part = self._socket.recv(max(1 << 18, size - have))
                if not part:
                    raise Unreachable("reading the binlog: the server has ended the connection")
                parts.append(part)
                have += len(part)
        except TimeoutError:
            return False
        finally:
            self._data, self._at = b"".join(parts), 0
        return True

    def _failed(self, packet: bytes) -> None:
        if packet[0] != 255:
            raise Unreachable("reading the binlog: the server has ended it")
        code, said = int.from_bytes(packet[1:3], "little"), packet[9:].decode("utf-8", "replace")
        if "same server" in said:
            raise ChangeglotError(f"reading the binlog: {said}", hint="Set server_id to a number that nobody else has.")
        if code == 1236:
            raise Lost(f"reading the binlog: {said}", hint="Take a new snapshot.")
        raise pymysql.err.OperationalError(code, said)


class _Writer:
    """Lines into segments, each ending on a commit."""

    def __init__(self, spool: Spool, events: Events) -> None:
        self._spool, self._events = spool, events
        self._segment: Segment | None = None
        #: What of the segment is complete, and since when there is any.
        self._complete, self._since = 0, 0.0
        self._noted = time.monotonic()

    def follow(
        self,
        feed: _Feed,
        target: Position | None,
        stop: Callable[[], bool],
        opened: Callable[[tuple[int, int]], None],
    ) -> None:
        """Records until it is told to stop, or the position is reached."""
        events, heard, taken = self._events, time.monotonic(), 0
        file: tuple[int, int] | None = None
        try:
            while True:
                event = feed.read(0.01 if self._complete else OLD)
                if event is None:
                    if not events.inside:
                        self.publish()
                    if time.monotonic() - heard > DEAD:
                        raise Unreachable("reading the binlog: the server has been silent")
                    if stop():
                        return
                    continue
                heard = time.monotonic()
                lines = events.take(event)
                if lines:
                    self._write(lines)
                if not events.inside:
                    if events.opened != file and events.opened:
                        file = events.opened
                        opened(file)
                    self._commit()
                    if target and file and events.position >= target:
                        return
                taken += 1
                if not taken & 255 and stop():
                    return
        finally:
            # What is not complete comes again.
            if self._segment and self._segment.size > self._complete:
                self._segment.rewind(self._complete)
            self.publish(ended=True)

    def _write(self, lines: bytes) -> None:
        if self._segment is None:
            self._segment, self._since = self._spool.segment(), time.monotonic()
        self._segment.write(lines)

    def _commit(self) -> None:
        """All that was written is complete, unless it was rolled back."""
        if self._segment is None:
            return
        if self._events.rolled_back and self._segment.size > self._complete:
            self._segment.rewind(self._complete)
        self._complete = self._segment.size
        if self._complete > FULL or time.monotonic() - self._since > OLD:
            self.publish()

    def publish(self, *, ended: bool = False) -> None:
        """What is complete becomes durable; if there is nothing, the position alone does, but not too often."""
        position = str(self._events.position)
        if self._segment is not None and self._complete:
            with self._segment as segment:
                segment.publish(position)
        elif self._segment is not None:
            with self._segment:
                pass
        elif position != self._spool.position and (
            ended or self._spool.aside.waits or time.monotonic() - self._noted > NOTE
        ):
            self._spool.advance(position)
        else:
            return
        self._segment, self._complete, self._noted = None, 0, time.monotonic()
