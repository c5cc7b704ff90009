r"""The messages of pgoutput, protocol version 1, to lines of the spool; bytes to bytes, no connection in sight.

https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

from collections.abc import Callable
from struct import unpack_from
from typing import NamedTuple

from changeglot.capture.spool import field
from changeglot.errors import ChangeglotError

NULL, ABSENT = rb"\N", rb"\-"
#: 2000-01-01, from which PostgreSQL counts microseconds, in those since 1970.
_EPOCH = 946_684_800_000_000

_BEGIN, _COMMIT, _ORIGIN, _RELATION, _TYPE, _MESSAGE, _TRUNCATE = b"BCORYMT"
_INSERT, _UPDATE, _DELETE = b"IUD"
_NEW, _OLD, _KEY = b"NOK"
_TEXT, _NOTHING, _UNCHANGED = b"tnu"


class Column(NamedTuple):
    """A column as the log has it; `type_name` is known of types that users made."""

    name: str
    key: bool
    type: int
    modifier: int
    type_name: str


class Relation(NamedTuple):
    """A table as the log has it. `identity`: what is told of an old row: d, i its key; f all; n nothing."""

    oid: int
    schema: str
    table: str
    identity: str
    columns: tuple[Column, ...]


class _Known(NamedTuple):
    """How the lines of a relation begin, and where the columns stand that are not of its key."""

    insert: bytes
    update: bytes
    delete: bytes
    truncate: bytes
    others: tuple[int, ...]


class Decoder:
    """Payloads in, lines out. `relation` names a relation as lines do; None: its changes are left out.

    The last line is held back until it is known whether the transaction has another.
    """

    def __init__(self, relation: Callable[[Relation], str | None]) -> None:
        self._named = relation
        self._relations: dict[int, _Known | None] = {}
        self._types: dict[int, str] = {}
        #: Whether a transaction has begun and not ended.
        self.within = False
        #: The end of the last transaction, or message outside of one, that came whole.
        self.end = 0
        self._lines: list[bytes] = []
        self._held: tuple[bytes, bytes, int, bytes, bytes] | None = None
        self._order = 0
        self._position = self._transaction = b""

    def taken(self) -> bytes:
        """The lines that are ready, once. After a whole transaction: all of it."""
        lines = b"".join(self._lines)
        self._lines.clear()
        return lines

    def read(self, data: bytes, at: int = 0) -> bool:
        """Takes the payload that begins there. True: all that came is whole."""
        kind = data[at]
        if kind == _INSERT:
            # Of the relation's number and `N` nothing but the number is of interest.
            if (known := self._relations[int.from_bytes(data[at + 1 : at + 5], "big")]) is not None:
                found = [b""]
                _, marks = _values(data, at + 6, found)
                self._add(known.insert, _row(found, marks))
        elif kind == _UPDATE:
            self._update(data, at)
        elif kind == _DELETE:
            self._delete(data, at)
        elif kind == _BEGIN:
            position, committed, transaction = unpack_from(">qqI", data, at + 1)
            self._position = b"%d\t" % position
            self._transaction = b"%d\t%d\t\t" % (transaction, committed + _EPOCH)
            self._order = 0
            self.within = True
        elif kind == _COMMIT:
            (self.end,) = unpack_from(">q", data, at + 10)
            self._finish()
            self.within = False
            return True
        elif kind == _RELATION:
            self._relation(data, at + 1)
        elif kind == _TRUNCATE:
            (count,) = unpack_from(">I", data, at + 1)
            for oid in unpack_from(f">{count}I", data, at + 6):
                if (known := self._relations[oid]) is not None:
                    self._add(known.truncate, b"")
        elif kind == _MESSAGE:
            return self._message(data, at)
        elif kind == _TYPE:
            (oid,) = unpack_from(">I", data, at + 1)
            schema, name, _ = data[at + 5 :].split(b"\0", 2)
            self._types[oid] = f"{schema.decode()}.{name.decode()}" if schema else name.decode()
        elif kind != _ORIGIN:
            raise ChangeglotError(f"the server sent a message of an unknown kind, {chr(kind)!r}")
        return False

    def _add(self, begin: bytes, row: bytes) -> None:
        if self._held is not None:
            self._lines.append(b"%b%b%d\t0\t%b%b\n" % self._held)
        self._held = (begin, self._position, self._order, self._transaction, row)
        self._order += 1

    def _finish(self) -> None:
        if self._held is not None:
            self._lines.append(b"%b%b%d\t1\t%b%b\n" % self._held)
            self._held = None

    def _update(self, data: bytes, at: int) -> None:
        known = self._relations[int.from_bytes(data[at + 1 : at + 5], "big")]
        if known is None:
            return
        at += 5
        tag, marks, old = data[at], 0, [b""]
        if tag != _NEW:
            at, marks = _values(data, at + 1, old)
            if tag == _KEY:
                marks = _only_key(old, known.others)
        found = [b"" if tag == _NEW else b"O" if tag == _OLD else b"K"]
        _, unknown = _values(data, at + 1, found)
        if tag == _OLD and unknown:
            # An unchanged value that is stored aside is not told again, but the whole old row has it.
            found = [old[place] if value is ABSENT else value for place, value in enumerate(found)]
            unknown = sum(value is NULL or value is ABSENT for value in found)
        if tag != _NEW:
            found += old[1:]
        self._add(known.update, _row(found, marks + unknown))

    def _delete(self, data: bytes, at: int) -> None:
        known = self._relations[int.from_bytes(data[at + 1 : at + 5], "big")]
        if known is None:
            return
        tag = data[at + 5]
        found = [b"O" if tag == _OLD else b"K"]
        _, marks = _values(data, at + 6, found)
        if tag == _KEY:
            marks = _only_key(found, known.others)
        self._add(known.delete, _row(found, marks))

    def _message(self, data: bytes, at: int) -> bool:
        flags, position = unpack_from(">Bq", data, at + 1)
        end = data.index(b"\0", at + 10)
        row = b"\t".join((b"", field(data[at + 10 : end]), field(data[end + 5 :])))
        if flags & 1:
            self._add(b"m\t\t", row)
            return False
        # It belongs to no transaction, and nobody says when it was written. Told is where it ends, which may be where
        # a commit begins: the byte before is its own.
        self._lines.append(b"m\t\t%d\t0\t1\t\t\t\t%b\n" % (position - 1, row))
        self.end = position
        return not self.within

    def _relation(self, data: bytes, at: int) -> None:
        (oid,) = unpack_from(">I", data, at)
        schema, at = _text(data, at + 4)
        table, at = _text(data, at)
        identity, count = unpack_from(">cH", data, at)
        at += 3
        columns = []
        for _ in range(count):
            key = bool(data[at] & 1)
            name, at = _text(data, at + 1)
            kind, modifier = unpack_from(">Ii", data, at)
            columns.append(Column(name, key, kind, modifier, self._types.get(kind, "")))
            at += 8
        relation = Relation(oid, schema, table, identity.decode(), tuple(columns))
        name_of = self._named(relation)
        if name_of is None:
            self._relations[oid] = None
            return
        insert, update, delete, truncate = (b"%b\t%b\t" % (op, name_of.encode()) for op in (b"i", b"u", b"d", b"t"))
        # Counted from 1: before the values stands what is said of the old row.
        others = tuple(place for place, each in enumerate(columns, 1) if not each.key)
        self._relations[oid] = _Known(insert, update, delete, truncate, others)


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(b"\0", at)
    return data[at:end].decode(), end + 1


def _values(data: bytes, at: int, found: list[bytes]) -> tuple[int, int]:
    """Adds the values of a row to those found; where the row ends, and how many are NULL or were not told."""
    add, number = found.append, int.from_bytes
    marks = 0
    count = data[at] << 8 | data[at + 1]
    at += 2
    for _ in range(count):
        kind = data[at]
        if kind == _TEXT:
            start = at + 5
            at = start + number(data[at + 1 : start], "big")
            add(data[start:at])
        else:
            marks += 1
            at += 1
            if kind == _NOTHING:
                add(NULL)
            elif kind == _UNCHANGED:
                add(ABSENT)
            else:
                raise ChangeglotError(f"the server sent a value of an unknown kind, {chr(kind)!r}")
    return at, marks


def _only_key(old: list[bytes], others: tuple[int, ...]) -> int:
    """Leaves the key's values alone: the others come as NULL, which they need not be. How many those are."""
    for place in others:
        old[place] = ABSENT
    return sum(value is NULL or value is ABSENT for value in old)


def _row(found: list[bytes], marks: int) -> bytes:
    """The values as fields of a line; those that are NULL or were not told are these very objects."""
    row = b"\t".join(found)
    if row.count(b"\\") == marks and row.count(b"\t") == len(found) - 1 and b"\n" not in row and b"\r" not in row:
        return row
    return b"\t".join([value if value is NULL or value is ABSENT else field(value) for value in found])
