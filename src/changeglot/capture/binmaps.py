"""Descriptions of tables in the binlog: the columns that rows have."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from changeglot.capture.binvalues import (
    BIT,
    BLOB,
    BLOB_COMPRESSED,
    DATETIME2,
    DOUBLE,
    ENUM,
    FLOAT,
    GEOMETRY,
    INT24,
    JSON,
    LONG,
    LONG_BLOB,
    LONGLONG,
    MEDIUM_BLOB,
    NEWDECIMAL,
    SET,
    SHORT,
    STRING,
    TIME2,
    TIMESTAMP2,
    TINY,
    TINY_BLOB,
    VAR_STRING,
    VARCHAR,
    VARCHAR_COMPRESSED,
    VECTOR,
    YEAR,
    Column,
)

#: The charset of a collation, None for bytes; and text of a collation in UTF-8.
Charset = Callable[[int], str | None]
Text = Callable[[bytes, int], bytes]

_NUMBERS = {TINY, SHORT, INT24, LONG, LONGLONG, NEWDECIMAL, FLOAT, DOUBLE, YEAR}
_TEXTS = {STRING, VAR_STRING, VARCHAR, BLOB, TINY_BLOB, MEDIUM_BLOB, LONG_BLOB, BLOB_COMPRESSED, VARCHAR_COMPRESSED}
#: Bytes that the type of a column comes with.
_FACTS = {
    **dict.fromkeys((FLOAT, DOUBLE, BLOB, TINY_BLOB, MEDIUM_BLOB, LONG_BLOB, GEOMETRY, JSON, VECTOR), 1),
    **dict.fromkeys((TIMESTAMP2, DATETIME2, TIME2, BLOB_COMPRESSED), 1),
    **dict.fromkeys((VARCHAR, VARCHAR_COMPRESSED, STRING, VAR_STRING, ENUM, SET, NEWDECIMAL, BIT), 2),
}


class Mapped(NamedTuple):
    """A table as the binlog describes it. `key`: numbers of columns; None if it has no primary key."""

    database: str
    table: str
    columns: list[Column]
    key: list[int] | None
    #: Whether the columns have names: binlog_row_metadata=FULL.
    named: bool


def length(data: bytes, at: int) -> tuple[int, int]:
    """A number of one to nine bytes, and what is behind it."""
    first = data[at]
    if first < 251:
        return first, at + 1
    size = {252: 2, 253: 3, 254: 8}[first]
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


def _lengths(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        number, at = length(data, at)
        found.append(number)
    return found


def _texts(data: bytes, at: int, count: int | None) -> tuple[list[bytes], int]:
    """So many texts, or all, each behind its length."""
    found: list[bytes] = []
    while at < len(data) if count is None else len(found) < count:
        size, at = length(data, at)
        found.append(data[at : at + size])
        at += size
    return found, at


def table_map(data: bytes, mariadb: bool, charset: Charset, text: Text) -> Mapped:
    """What an event says of a table, behind the table's number."""
    database, at = data[1 : 1 + data[0]].decode(), data[0] + 2
    table, at = data[at + 1 : at + 1 + data[at]].decode(), at + data[at] + 2
    count, at = length(data, at)
    codes, at = data[at : at + count], at + count
    size, at = length(data, at)
    types, facts = [], at
    for code in codes:
        width = _FACTS.get(code, 0)
        types.append(_type(code, data[facts : facts + width]))
        facts += width
    at += size
    nullable, at = int.from_bytes(data[at : at + (count + 7) // 8], "little"), at + (count + 7) // 8
    members: dict[int, bytes] = {}
    while at < len(data):
        code, (long, begin) = data[at], length(data, at + 1)
        members[code], at = data[begin : begin + long], begin + long
    texts = _TEXTS | {GEOMETRY} if mariadb else _TEXTS
    charsets = _charsets([n for n, each in enumerate(types) if each[0] in texts], members.get(2), members.get(3))
    labelled = [n for n, each in enumerate(types) if each[0] in (ENUM, SET)]
    charsets |= _charsets(labelled, members.get(10), members.get(11))
    labels: dict[int, list[bytes]] = {}
    for code, kind in ((5, SET), (6, ENUM)):
        at = 0
        for n in (n for n, each in enumerate(types) if each[0] == kind and code in members):
            many, at = length(members[code], at)
            found, at = _texts(members[code], at, many)
            labels[n] = [text(each, charsets.get(n, 0)) for each in found]
    numbers = [n for n, each in enumerate(types) if each[0] in _NUMBERS]
    signs = members.get(1, b"")
    unsigned = {n for i, n in enumerate(numbers) if i // 8 < len(signs) and signs[i // 8] & 0x80 >> i % 8}
    names = _texts(members.get(4, b""), 0, None)[0]
    columns = [
        Column(
            names[n].decode() if names else "",
            code,
            width,
            scale,
            bool(nullable >> n & 1),
            n in unsigned,
            charset(charsets[n]) if n in charsets else None,
            labels.get(n, ()),
        )
        for n, (code, width, scale) in enumerate(types)
    ]
    # A key of whole columns, or pairs of a column and how much of it.
    key = _lengths(members[8]) if 8 in members else _lengths(members[9])[::2] if 9 in members else None
    return Mapped(database, table, columns, key, bool(names))


def _charsets(columns: list[int], usual: bytes | None, each: bytes | None) -> dict[int, int]:
    """Collations by column: one for all but some, or one for each."""
    if each is not None:
        return dict(zip(columns, _lengths(each), strict=False))
    if not usual:
        return {}
    default, *others = _lengths(usual)
    other = dict(zip(others[::2], others[1::2], strict=True))
    return {n: other.get(i, default) for i, n in enumerate(columns)}


def _type(code: int, facts: bytes) -> tuple[int, int, int]:
    """The type that is meant, how long, and how many digits behind the point."""
    if code in (STRING, VAR_STRING, ENUM, SET):
        if facts[0] & 0x30 != 0x30:
            # Two bits of a long CHAR's length are hidden in its type.
            return facts[0] | 0x30, facts[1] | ((facts[0] & 0x30) ^ 0x30) << 4, 0
        return facts[0], facts[1], 0
    if code in (VARCHAR, VARCHAR_COMPRESSED):
        return code, int.from_bytes(facts, "little"), 0
    if code == NEWDECIMAL:
        return code, facts[0], facts[1]
    if code == BIT:
        return code, facts[0] + 8 * facts[1], 0
    if code in (TIMESTAMP2, DATETIME2, TIME2):
        return code, 0, facts[0]
    return code, facts[0] if facts else 0, 0
