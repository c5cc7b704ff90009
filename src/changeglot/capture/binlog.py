"""Events of the binlog of MySQL and MariaDB to lines of the spool; knows no server but by what is given to it.

Layouts: https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_replication.html and
https://mariadb.com/kb/en/replication-protocol. A transaction's position is the end of the event that begins it, its
GTID's: known before its changes, and up to a snapshot's position if, and only if, the snapshot holds them.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from changeglot.capture.binjson import Reader
from changeglot.capture.binmaps import Mapped, length, table_map
from changeglot.capture.binvalues import inflated
from changeglot.capture.spool import field
from changeglot.errors import ChangeglotError

# Events, by their numbers.
_QUERY, _STOP, _ROTATE, _FORMAT, _XID, _TABLE_MAP, _HEARTBEAT = 2, 3, 4, 15, 16, 19, 27
_GTID, _ANONYMOUS, _XA_PREPARE, _PARTIAL, _PAYLOAD, _HEARTBEAT_2, _TAGGED = 33, 34, 38, 39, 40, 41, 42
_MARIADB_GTID, _QUERY_COMPRESSED = 162, 165
#: Op, whether there is a header that may be longer, whether the rows are compressed.
_ROWS: dict[int, tuple[bytes, bool, bool]] = {
    first + n: (op, extra, packed)
    for first, extra, packed in ((23, False, False), (30, True, False), (166, False, True), (169, True, True))
    for n, op in enumerate((b"i", b"u", b"d"))
}
_HEADER = struct.Struct("<IBIIIH")
_SIZE = _HEADER.size
_ARTIFICIAL = 0x20


class Position(NamedTuple):
    """A place in the binlog: the number of a file, and how many bytes are before it there."""

    file: int
    at: int

    @classmethod
    def of(cls, text: str) -> Position:
        file, at = text.split(".")
        return cls(int(file), int(at))

    def __str__(self) -> str:
        return f"{self.file}.{self.at}"


class Table:
    """How the rows of a table become lines."""

    def __init__(self, relation: str, readers: Sequence[Reader]) -> None:
        self.relation = relation.encode()
        self._readers = readers

    def plan(self, present: bytes) -> tuple[list[Reader | None], int]:
        """What reads each column, None for those that are not told; and how many bytes say which are NULL."""
        told = int.from_bytes(present, "little")
        plan = [read if told >> n & 1 else None for n, read in enumerate(self._readers)]
        return plan, (sum(read is not None for read in plan) + 7) // 8


class Catalog(Protocol):
    """What the events alone do not tell."""

    def text(self, data: bytes, collation: int) -> bytes:
        """Text in UTF-8."""

    def charset(self, collation: int) -> str | None:
        """Which one a collation is of; None for bytes."""

    def table(self, mapped: Mapped) -> Table | None:
        """None if its changes are not wanted."""

    def statement(self, database: str, text: str) -> tuple[bytes, str] | None:
        """The op of a line and its relation; None if it is not wanted."""


class Events:
    """Takes events, one after the other, and gives lines."""

    def __init__(self, catalog: Catalog, position: Position, *, mariadb: bool, checksum: bool) -> None:
        self._catalog, self._mariadb, self._checksum = catalog, mariadb, checksum
        #: The end of what is complete.
        self.position = position
        #: Whether a transaction is under way.
        self.inside = False
        #: The file that is read and when it was begun, in seconds since 1970, which tells it from another of its name.
        self.opened: tuple[int, int] | None = None
        self._at, self._name = position.at, ""
        self._maps: dict[int, Table | None] = {}
        self._tables: dict[bytes, Table | None] = {}
        self._plans: dict[tuple[Table, bytes], tuple[list[Reader | None], int]] = {}
        self._start(0, "")

    def _start(self, committed: int, gtid: str, server: int = 0) -> None:
        """A transaction begins; its changes come."""
        #: Whether it was rolled back in the end: its lines are none.
        self.rolled_back = False
        self._order = 0
        self._held: tuple[bytes, int, bytes] | None = None
        position = str(Position(self.position.file, self._at))
        facts = {"gtid": gtid, "file": self._name, "server_id": str(server or "")}
        self._told = {name: text for name, text in facts.items() if text}
        self._position = position.encode()
        self._transaction = (gtid or position).encode()
        self._committed = committed

    def take(self, event: bytes) -> bytes:
        """The lines that an event completes."""
        stamp, kind, server, size, end, flags = _HEADER.unpack_from(event)
        if kind == _FORMAT:
            self._format(event, stamp)
        elif self._checksum:
            if zlib.crc32(memoryview(event)[:-4]) != int.from_bytes(event[-4:], "little"):
                raise ChangeglotError(
                    f"reading the binlog behind {self.position}: an event's checksum is wrong",
                    hint="Ask the server with `mariadb-binlog --verify-binlog-checksum` or mysqlbinlog's.",
                )
            event = event[:-4]
        if kind in (_ROTATE, _HEARTBEAT, _HEARTBEAT_2) or flags & _ARTIFICIAL or (kind == _FORMAT and not end):
            if kind == _ROTATE:
                self._rotate(event)
            elif (
                kind == _HEARTBEAT and end > self._at and not self.inside and _file(event[_SIZE:]) == self.position.file
            ):
                # Events at the end that are not for us.
                self._at = end
                self.position = Position(self.position.file, end)
            return b""
        # The header has 32 bits of where an event ends, MariaDB's none within a transaction; events are not all sent.
        self._at += size
        if end:
            self._at += ((end - self._at + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)
        lines = b""
        if kind in _ROWS:
            return self._rows(event, kind)
        if kind == _TABLE_MAP:
            self._map(event)
            return b""
        if kind == _XID:
            lines = self._end()
        elif kind in (_QUERY, _QUERY_COMPRESSED):
            lines = self._query(event, kind == _QUERY_COMPRESSED)
        elif kind in (_MARIADB_GTID, _GTID, _ANONYMOUS, _TAGGED):
            self._gtid(event, kind, stamp, server)
            return b""
        elif kind == _XA_PREPARE and event[_SIZE]:
            # Committed at once.
            lines = self._end()
        elif kind in (_XA_PREPARE, _PARTIAL, _PAYLOAD):
            self._refuse(kind, event)
        if not self.inside:
            self.position = Position(self.position.file, self._at)
        return lines

    def _refuse(self, kind: int, event: bytes) -> None:
        if kind == _PAYLOAD:
            raise ChangeglotError(
                f"reading the binlog behind {self.position}: a transaction is compressed, which is not read",
                hint="SET GLOBAL binlog_transaction_compression = OFF; and take a new snapshot.",
            )
        if kind == _PARTIAL:
            if self._maps.get(_table(event)) is None:
                return
            raise ChangeglotError(
                f"reading the binlog behind {self.position}: a row tells parts of its JSON only, which is not read",
                hint="SET GLOBAL binlog_row_value_options = ''; and take a new snapshot.",
            )
        if self._held:
            raise ChangeglotError(
                f"reading the binlog behind {self.position}: an XA transaction changes a table that is captured",
                hint="XA transactions are not read: they may be rolled back later. Leave the table out.",
            )
        self.inside = False

    def _format(self, event: bytes, stamp: int) -> None:
        self._checksum = event[-5] == 1
        self._maps.clear()
        self.opened = self.position.file, stamp

    def _rotate(self, event: bytes) -> None:
        self._name = event[_SIZE + 8 :].decode()
        file, (at,) = _file(event[_SIZE + 8 :]), struct.unpack_from("<Q", event, _SIZE)
        if file != self.position.file:
            self.position, self._at = Position(file, at), at
            if self.inside:
                # The server was killed while it wrote: nothing goes on in another file.
                self._held, self.rolled_back, self.inside = None, True, False

    def _gtid(self, event: bytes, kind: int, stamp: int, server: int) -> None:
        committed, gtid = stamp * 1_000_000, ""
        if kind == _MARIADB_GTID:
            number, domain, flags = struct.unpack_from("<QIB", event, _SIZE)
            gtid = f"{domain}-{server}-{number}"
            # One that stands alone, as DDL does, has no commit.
            self.inside = not flags & 1
        elif kind != _TAGGED:
            source, (number,) = event[_SIZE + 1 : _SIZE + 17].hex(), struct.unpack_from("<Q", event, _SIZE + 17)
            if kind == _GTID:
                gtid = f"{source[:8]}-{source[8:12]}-{source[12:16]}-{source[16:20]}-{source[20:]}:{number}"
            here = int.from_bytes(event[_SIZE + 42 : _SIZE + 49], "little")
            # The highest bit tells that the server where it was committed first says when.
            first = int.from_bytes(event[_SIZE + 49 : _SIZE + 56], "little") if here >> 55 else here
            committed = first or committed
        self._start(committed, gtid, server)

    def _query(self, event: bytes, packed: bool) -> bytes:
        thread, _, size, _, status = struct.unpack_from("<IIBHH", event, _SIZE)
        at = _SIZE + 13
        database = event[at + status : at + status + size].decode()
        text = event[at + status + size + 1 :]
        text = self._catalog.text(inflated(text, event=True) if packed else text, _client(event[at : at + status]))
        word = text[:20].rstrip(b"; \n").upper()
        if word == b"BEGIN" or word.startswith((b"XA START", b"XA BEGIN")):
            self.inside = True
            self._told["thread"] = str(thread)
            return b""
        if word == b"COMMIT":
            return self._end()
        if word == b"ROLLBACK":
            self._held, self.rolled_back, self.inside = None, True, False
            return b""
        lines = b""
        if not word.startswith((b"SAVEPOINT", b"ROLLBACK TO", b"XA ")):
            wanted = self._catalog.statement(database, text.decode("utf-8", "replace"))
            # Whatever it did, tables may have changed in a way that their maps do not tell.
            self._tables.clear()
            if wanted:
                op, relation = wanted
                self._told["thread"], self._told["database"] = str(thread), database
                lines = self._held_back(b"\t" + field(text) if op == b"q" else b"", op, relation.encode(), b"")
                del self._told["database"]
        return lines if self.inside else lines + self._end()

    def _end(self) -> bytes:
        self.inside = False
        held, self._held = self._held, None
        return b"%b%d\t1%b" % held if held else b""

    def _held_back(self, row: bytes, op: bytes, relation: bytes, old: bytes) -> bytes:
        """The line before; this one may be the last."""
        head, tail = self._frame(op, relation, old)
        lines = b"%b%d\t0%b" % self._held if self._held else b""
        self._held = head, self._order, tail + row + b"\n"
        self._order += 1
        return lines

    def _frame(self, op: bytes, relation: bytes, old: bytes) -> tuple[bytes, bytes]:
        """A line before its order, and behind `last` up to its values."""
        facts = json.dumps(self._told, ensure_ascii=False, separators=(",", ":")).encode()
        tail = b"\t%b\t%d\t%b\t%b" % (self._transaction, self._committed, field(facts), old)
        return b"%b\t%b\t%b\t" % (op, relation, self._position), tail

    def _map(self, event: bytes) -> None:
        described = event[_SIZE + 8 :]
        if described not in self._tables:
            mapped = table_map(described, self._mariadb, self._catalog.charset, self._catalog.text)
            self._tables[described] = self._catalog.table(mapped)
        self._maps[_table(event)] = self._tables[described]

    def _rows(self, event: bytes, kind: int) -> bytes:
        op, extra, packed = _ROWS[kind]
        table = self._maps.get(_table(event))
        if table is None:
            return b""
        at = _SIZE + 8
        if extra:
            at += int.from_bytes(event[at : at + 2], "little")
        count, at = length(event, at)
        size = (count + 7) // 8
        first, at = self._plan(table, event[at : at + size]), at + size
        second = None
        if op == b"u":
            second, at = self._plan(table, event[at : at + size]), at + size
        if packed:
            event, at = inflated(event[at:], event=True), 0
        rows: list[bytes] = []
        append, end = rows.append, len(event)
        if second is None:
            while at < end:
                row, at = _row(event, at, *first)
                append(row)
        else:
            while at < end:
                old, at = _row(event, at, *first)
                row, at = _row(event, at, *second)
                append(row + old)
        if not rows:
            return b""
        head, tail = self._frame(op, table.relation, b"" if op == b"i" else b"O")
        lines = [b"%b%d\t0%b" % self._held] if self._held else []
        order, last = self._order, rows.pop()
        between = b"\t0" + tail
        lines += [b"%b%d%b%b\n" % (head, n, between, row) for n, row in enumerate(rows, order)]
        self._order = order + len(rows) + 1
        self._held = head, self._order - 1, tail + last + b"\n"
        return b"".join(lines)

    def _plan(self, table: Table, present: bytes) -> tuple[list[Reader | None], int]:
        found = self._plans.get((table, present))
        if found is None:
            if len(self._plans) > 1000:
                self._plans.clear()
            found = self._plans[table, present] = table.plan(present)
        return found


def _file(name: bytes) -> int:
    """The number of a file of the binlog."""
    return int(name.rpartition(b".")[2])


def _table(event: bytes) -> int:
    """The number that a table has for a while."""
    return int.from_bytes(event[_SIZE : _SIZE + 6], "little")


def _row(data: bytes, at: int, plan: list[Reader | None], nulls: int) -> tuple[bytes, int]:
    """The values of a row, each behind a tab, and where the next row begins."""
    null = int.from_bytes(data[at : at + nulls], "little")
    at += nulls
    values = [b""]
    append = values.append
    for read in plan:
        if read is None:
            append(b"\\-")
            continue
        if null & 1:
            append(b"\\N")
        else:
            value, at = read(data, at)
            append(value)
        null >>= 1
    return b"\t".join(values), at


def _client(status: bytes) -> int:
    """The collation of a statement's text; 0 if it is not told."""
    at = 0
    while at < len(status):
        code = status[at]
        if code == 4:
            return int.from_bytes(status[at + 1 : at + 3], "little")
        if code == 2:
            at += 3 + status[at + 1]
        elif code in (5, 6):
            at += 2 + status[at + 1]
        elif code in (0, 1, 3):
            at += {0: 5, 1: 9, 3: 5}[code]
        else:
            break
    return 0
