"""One connection that follows a replication slot: frames in, segments of the spool out, and what is durable told back.

https://www.postgresql.org/docs/current/protocol-replication.html
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NoReturn

import psycopg
from psycopg import errors, sql

from changeglot.capture.pgcatalog import Catalog, lsn
from changeglot.capture.pgoutput import Decoder, Relation
from changeglot.capture.pgserver import Server, quoted
from changeglot.capture.spool import Segment, Spool
from changeglot.errors import ChangeglotError, Lost

#: Bytes after which a segment ends; of an open transaction as many are kept in memory.
LARGE = 8 << 20
#: Seconds between two segments, unless they are large.
PAUSE = 0.2
#: Seconds between two reads, in which frames gather.
NAP = 0.005
#: Seconds in which the server hears of us, and of a quiet stream's position.
EVERY = 10.0
#: 2000-01-01 in seconds since 1970.
_EPOCH = 946_684_800
_DATA = ord("w")
#: Of a frame before its payload: its kind, two positions and a time.
_HEAD = 25


class Stream:
    """All that is whole becomes segments; of a transaction that is cut nothing is kept, for it comes again."""

    def __init__(
        self, server: Server, spool: Spool, catalog: Catalog, connection: psycopg.Connection[Any], *, ours: bool
    ) -> None:
        """Any: the connection has no rows."""
        self._server, self._spool, self._catalog, self._ours = server, spool, catalog, ours
        self._connection, self._pgconn = connection, connection.pgconn
        self._decoder = Decoder(self._named)
        self._skipped = ""
        connection.add_notice_handler(self._notice)
        #: All up to there came.
        self._seen = int(spool.position)
        self._open = ExitStack()
        self._segment: Segment | None = None
        #: The open transaction: its lines, or whether they are what the segment holds.
        self._parts: list[bytes] = []
        self._size = 0
        self._large = False
        self._asked = False
        self._started = self._published = self._said = 0.0

    def follow(self, until: int | None, stop: Callable[[], bool]) -> None:
        """Until all up to there is durable, or it is told to stop: then what is whole is."""
        names = quoted(self._server.publication)
        begin = "START_REPLICATION SLOT {} LOGICAL " + lsn(self._seen)
        options = " (proto_version '1', publication_names {}, messages 'true')"
        command = sql.SQL(begin + options).format(sql.Identifier(self._server.slot), sql.Literal(names))
        self._connection.execute(command)
        poll = select.poll()
        poll.register(self._pgconn.socket, select.POLLIN)
        with self._open:
            while True:
                took = self._take()
                now = time.monotonic()
                self._settle(now, quiet=not took)
                if stop() or (until is not None and self._seen >= until and not self._decoder.within):
                    self._finish()
                    return
                if not took:
                    if (until is not None or self._spool.aside.waits) and now - self._said > PAUSE:
                        self._advance()
                        self._say(ask=True)
                    poll.poll(1000 * (PAUSE / 4 if self._started else PAUSE))
                elif not poll.poll(0):
                    # The server sends each change by itself, and is slowed by who is woken by each.
                    time.sleep(NAP)
                self._pgconn.consume_input()

    def _take(self) -> bool:
        """Decodes the frames that are here; False: there were none."""
        get, read = self._pgconn.get_copy_data, self._decoder.read
        took = False
        while True:
            size, view = get(1)
            if size > 0:
                took = True
                data = bytes(view)
                if data[0] != _DATA:
                    self._alive(data)
                elif read(data, _HEAD):
                    self._whole()
            elif size == 0:
                return took
            else:
                self._ended()

    def _ended(self) -> NoReturn:
        result = self._pgconn.get_result()
        if result is None or not result.error_message:
            raise psycopg.OperationalError("the server ended the stream")
        problem = errors.error_from_result(result)
        if isinstance(problem, errors.UndefinedObject):
            raise self._lost(str(problem)) from None
        raise problem

    def _lost(self, said: str) -> Lost:
        """Of a time without its publication the log is of no use, though there is another by now."""
        hint = "Let the rows be read again: drop the slot, and start with an empty folder."
        return Lost(f"the server cannot tell changes: {self._server.hidden(said)}", hint=hint)

    def _alive(self, data: bytes) -> None:
        end, _, reply = struct.unpack_from(">QQB", data, 1)
        self._asked = self._asked or bool(reply)
        if not self._decoder.within:
            # All that was committed before has been sent before.
            self._reach(end)

    def _reach(self, position: int) -> None:
        if self._skipped:
            raise self._lost(self._skipped)
        self._seen = max(self._seen, position)

    def _whole(self) -> None:
        self._reach(self._decoder.end)
        lines = self._decoder.taken()
        if self._parts:
            lines = b"".join((*self._parts, lines))
            self._parts.clear()
            self._size = 0
        self._large = False
        if lines:
            self._write(lines)
        if self._segment is not None and self._segment.size > LARGE:
            self._publish()

    def _write(self, lines: bytes) -> None:
        if self._segment is None:
            self._segment = self._open.enter_context(self._spool.segment())
            self._started = time.monotonic()
        self._segment.write(lines)

    def _settle(self, now: float, *, quiet: bool) -> None:
        """Between two reads: what is due."""
        if self._decoder.within:
            self._spill()
        elif self._segment is not None and (
            self._asked or now - self._started > PAUSE or (quiet and now - self._published > PAUSE)
        ):
            self._publish()
        if self._asked or now - self._said > EVERY:
            self._advance()
            self._say()

    def _spill(self) -> None:
        part = self._decoder.taken()
        if self._large:
            self._write(part)
            return
        self._parts.append(part)
        self._size += len(part)
        if self._size > LARGE:
            # It gets a segment of its own, so that those before it need not wait, and nothing of it stays if it is cut.
            if self._segment is not None:
                self._publish()
            self._write(b"".join(self._parts))
            self._parts.clear()
            self._size = 0
            self._large = True

    def _publish(self) -> None:
        assert self._segment is not None
        self._segment.publish(str(self._seen))
        self._segment = None
        self._open.close()
        self._started, self._published = 0.0, time.monotonic()
        self._say()

    def _advance(self) -> None:
        if self._segment is None and not self._decoder.within and self._seen > int(self._spool.position):
            self._spool.advance(str(self._seen))

    def _finish(self) -> None:
        if self._segment is not None and not self._large:
            self._publish()
        self._advance()
        self._say()
        self._pgconn.flush()

    def _say(self, *, ask: bool = False) -> None:
        """Tells the server what it may forget; it answers if asked to."""
        durable = int(self._spool.position)
        at = int((time.time() - _EPOCH) * 1_000_000)
        self._pgconn.put_copy_data(struct.pack(">cQQQQB", b"r", durable, durable, durable, at, ask))
        self._pgconn.flush()
        self._said, self._asked = time.monotonic(), False

    def _notice(self, notice: errors.Diagnostic) -> None:
        # PostgreSQL 18 goes on without a publication that is gone, with no more than a warning.
        if notice.severity_nonlocalized == "WARNING" and notice.sqlstate == "55000":
            self._skipped = notice.message_primary or "without a word"

    def _named(self, relation: Relation) -> str | None:
        if self._server.wants(relation.schema, relation.table):
            return self._spool.relation(self._catalog.recorded(relation))
        # By its number: it may have had that name for a while only.
        if self._ours and self._catalog.publishes(relation.oid):
            raise unwanted(self._server, (relation.schema, relation.table))
        return None


def unwanted(server: Server, *tables: tuple[str, str]) -> ChangeglotError:
    named = ", ".join(".".join(each) for each in tables)
    said = f'publication "{server.publication}" has {named}, which no pattern of "tables" matches'
    drop = f"ALTER PUBLICATION {quoted(server.publication)} DROP TABLE {', '.join(quoted(*each) for each in tables)}"
    return ChangeglotError(said, hint=f'If it was renamed, add it to "tables"; if it is not wanted, type: {drop}')
