r"""The messages of pgoutput, protocol version 1, to lines of the spool; bytes to bytes, no connection in sight.

https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from struct import pack, unpack_from
from typing import NamedTuple

from changeglot.capture.spool import ABSENT, NULL, field
from changeglot.errors import ChangeglotError

#: 2000-01-01, from which PostgreSQL counts microseconds, in those since 1970.
_EPOCH = 946_684_800_000_000

_BEGIN, _COMMIT, _ORIGIN, _RELATION, _TYPE, _MESSAGE, _TRUNCATE = b"BCORYMT"
_INSERT, _UPDATE, _DELETE = b"IUD"
_NEW, _OLD, _KEY = b"NOK"
_TEXT, _NOTHING, _UNCHANGED = b"tnu"
_BACKSLASH, _NEWLINE, _RETURN = b"\\\n\r"
#: A value is `t`, its length in four bytes, and itself, in which there is no zero. One of less than 256 bytes begins
#: so, and nothing else of a row looks so: lengths are less than 1 GiB.
_SHORT = b"t\0\0\0"
#: A value of less than 64 KiB, and what follows up to the next one. If as many are found as there are columns, nothing
#: follows, and each is as it was told: their lengths need not be looked at.
_VALUE = rb"t\0\0..([^\0]*)"


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


class _Whole(NamedTuple):
    """How changes become lines if no value is large, NULL or not told, as most are.

    `match` finds the values. `old`: what is said of the old row; `split`: where the new one begins behind it, if so.
    """

    begin: bytes
    old: bytes
    match: Callable[[bytes, int], re.Match[bytes] | None]
    split: int


class Decoder:
    """Payloads in, lines out. `relation` names a relation as lines do; None: its changes are left out.

    The last line is held back until it is known whether the transaction has another.
    """

    def __init__(self, relation: Callable[[Relation], str | None]) -> None:
        self._named = relation
        self._relations: dict[int, _Known | None] = {}
        #: By what they begin with: kind, relation, which row, and how many values it has.
        self._wholes: dict[bytes, _Whole] = {}
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
        whole = self._wholes.get(data[at : at + 8])
        if whole is not None and (found := whole.match(data, at + 8)) is not None:
            begin, old, _, split = whole
            values = found.groups()
            if split:
                values = values[split:] + values[:split]
            self._add(begin, _row(old, values, data[at + 8 :]))
            return False
        kind = data[at]
        if kind == _INSERT:
            # Of the relation's number and `N` nothing but the number is of interest.
            if (known := self._relations[int.from_bytes(data[at + 1 : at + 5], "big")]) is not None:
                told = data[at + 6 :]
                self._add(known.insert, _row(b"", _values(told), told))
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
        tag, told = data[at + 5], data[at + 6 :]
        found = _values(told)
        if tag == _NEW:
            self._add(known.update, _row(b"", found, told))
            return
        count = len(found) // 2
        old, found = found[:count], found[count:]
        if tag == _KEY:
            _only_key(old, known.others)
        elif ABSENT in found:
            # An unchanged value that is stored aside is not told again, but the whole old row has it.
            found = [old[place] if value is ABSENT else value for place, value in enumerate(found)]
        self._add(known.update, _row(b"K" if tag == _KEY else b"O", found + old, told))

    def _delete(self, data: bytes, at: int) -> None:
        known = self._relations[int.from_bytes(data[at + 1 : at + 5], "big")]
        if known is None:
            return
        tag, told = data[at + 5], data[at + 6 :]
        old = _values(told)
        if tag == _KEY:
            _only_key(old, known.others)
        self._add(known.delete, _row(b"K" if tag == _KEY else b"O", old, told))

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
        self._wholes = {begin: each for begin, each in self._wholes.items() if begin[1:5] != pack(">I", oid)}
        name_of = self._named(relation)
        if name_of is None:
            self._relations[oid] = None
            return
        insert, update, delete, truncate = (b"%b\t%b\t" % (op, name_of.encode()) for op in (b"i", b"u", b"d", b"t"))
        others = tuple(place for place, each in enumerate(columns) if not each.key)
        self._relations[oid] = _Known(insert, update, delete, truncate, others)
        row = _VALUE * count
        one = re.compile(row, re.DOTALL).fullmatch
        two = re.compile(row + b"N" + re.escape(pack(">H", count)) + row, re.DOTALL).fullmatch
        for kind, tag, whole in (
            (_INSERT, _NEW, _Whole(insert, b"", one, 0)),
            (_UPDATE, _NEW, _Whole(update, b"", one, 0)),
            (_UPDATE, _OLD, _Whole(update, b"O", two, count)),
            (_DELETE, _OLD, _Whole(delete, b"O", one, 0)),
        ):
            self._wholes[pack(">BIBH", kind, oid, tag, count)] = whole


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(b"\0", at)
    return data[at:end].decode(), end + 1


def _values(told: bytes) -> list[bytes]:
    """All values of a row, or of two. What is NULL or was not told is these very objects."""
    before, *pieces = told.split(_SHORT)
    found: list[bytes] = []
    if len(before) > 2:
        # Before them stands how many they are.
        _others(before[2:], found)
    for piece in pieces:
        end = piece[0] + 1
        found.append(piece[1:end])
        if end < len(piece):
            _others(piece[end:], found)
    return found


def _others(told: bytes, found: list[bytes]) -> None:
    """Adds what is no short value."""
    if not told.strip(b"n"):
        found += [NULL] * len(told)
        return
    at = 0
    while at < len(told):
        kind = told[at]
        at += 1
        if kind == _TEXT:
            start = at + 4
            at = start + int.from_bytes(told[at:start], "big")
            found.append(told[start:at])
        elif kind == _NOTHING:
            found.append(NULL)
        elif kind == _UNCHANGED:
            found.append(ABSENT)
        elif kind == _NEW:
            # The old row ends, and the new one begins with how many they are.
            at += 2
        else:
            raise ChangeglotError(f"the server sent a value of an unknown kind, {chr(kind)!r}")


def _only_key(old: list[bytes], others: tuple[int, ...]) -> None:
    """Leaves the key's values alone: the others come as NULL, which they need not be."""
    for place in others:
        old[place] = ABSENT


def _row(old: bytes, found: Sequence[bytes], told: bytes) -> bytes:
    """What is said of the old row, and the values, as fields of a line."""
    row = b"\t".join([old, *found])
    # A length may look like a backslash: that is rare, and does no harm.
    if _BACKSLASH not in told and row.count(b"\t") == len(found) and _NEWLINE not in row and _RETURN not in row:
        return row
    return b"\t".join([old, *(value if value is NULL or value is ABSENT else field(value) for value in found)])
