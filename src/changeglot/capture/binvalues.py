r"""Values of the binlog's row images as text: what the server itself would say, exact, and escaped as a line wants it.

The text of a value by its type; `mycatalog.py` has the server render a snapshot's rows in the same way:

| type                          | text                                                                              |
|-------------------------------|-----------------------------------------------------------------------------------|
| integers, decimal, year       | digits; no filling zeros but those of a decimal's scale and of year `0000`          |
| float                         | six digits if they read back as the same number, else those of the same double      |
| double                        | the fewest digits that read back                                                    |
| bit                           | as many `0` and `1` as it is long                                                   |
| date, datetime, time          | as declared, with its fraction; `0000-00-00` and `2024-00-00` as they are            |
| timestamp                     | the same, in UTC                                                                    |
| enum, set                     | labels, a set's between commas in the order of its definition                       |
| char, varchar, text, json     | UTF-8                                                                               |
| binary, blob, geometry        | `\x` and hexadecimal digits                                                          |
"""

from __future__ import annotations

import codecs
import struct
import zlib
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from functools import lru_cache
from typing import NamedTuple

from changeglot.capture.binjson import Reader, decimal, double, json_text
from changeglot.capture.spool import field
from changeglot.errors import ChangeglotError

#: Text in a charset to UTF-8.
Recode = Callable[[bytes], bytes]

# https://dev.mysql.com/doc/dev/mysql-server/latest/field__types_8h.html, and MariaDB's compressed columns
TINY, SHORT, LONG, FLOAT, DOUBLE, TIMESTAMP, LONGLONG, INT24 = 1, 2, 3, 4, 5, 7, 8, 9
DATE, TIME, DATETIME, YEAR, NEWDATE, VARCHAR, BIT, TIMESTAMP2, DATETIME2, TIME2 = 10, 11, 12, 13, 14, 15, 16, 17, 18, 19
BLOB_COMPRESSED, VARCHAR_COMPRESSED, VECTOR, JSON, NEWDECIMAL, ENUM, SET = 140, 141, 242, 245, 246, 247, 248
TINY_BLOB, MEDIUM_BLOB, LONG_BLOB, BLOB, VAR_STRING, STRING, GEOMETRY = 249, 250, 251, 252, 253, 254, 255

_INTEGERS = {TINY: "b", SHORT: "h", LONG: "i", LONGLONG: "q"}
_EPOCH = date(1970, 1, 1)


class Column(NamedTuple):
    """A column as the binlog tells it. `size`: of what its type says; `scale`: digits behind the point."""

    name: str
    type: int
    size: int
    scale: int
    nullable: bool
    unsigned: bool
    #: None for bytes.
    charset: str | None
    labels: Sequence[bytes]


def escaped(value: bytes) -> bytes:
    """A text as a field of a line; most hold nothing that needs it."""
    if b"\\" in value or b"\t" in value or b"\n" in value or b"\r" in value:
        return field(value)
    return value


def reader(column: Column, kind: str, recode: Recode | None) -> Reader:
    """What reads the values of a column. `kind`: the server's word for its type, if it is known."""
    code = column.type
    if code in _INTEGERS:
        return _number(_INTEGERS[code].upper() if column.unsigned else _INTEGERS[code])
    if code in _PLAIN:
        return _PLAIN[code]
    if code == INT24:
        return _int24(signed=not column.unsigned)
    if code == NEWDECIMAL:
        return decimal(column.size, column.scale)
    if code in _FRACTIONAL:
        return _FRACTIONAL[code](column.scale)
    if code == BIT:
        return _bits(column.size)
    if code == ENUM:
        return _enum(column.size, [escaped(each) for each in column.labels])
    if code == SET:
        return _set(column.size, column.labels)
    if code in (STRING, VAR_STRING, VARCHAR):
        length = 1 if column.size < 256 else 2
        if code == STRING and kind in _FIXED:
            return _fixed(length, *_FIXED[kind])
        pad = column.size if code == STRING and column.charset is None else 0
        return _text(length, recode) if column.charset else _binary(length, pad)
    if code in (VARCHAR_COMPRESSED, BLOB_COMPRESSED):
        length = column.size if code == BLOB_COMPRESSED else 1 if column.size < 256 else 2
        return _compressed(length, column.charset is not None, recode)
    if code == JSON:
        return _json(column.size)
    if code in (BLOB, GEOMETRY, VECTOR, TINY_BLOB, MEDIUM_BLOB, LONG_BLOB):
        return _text(column.size, recode) if column.charset else _binary(column.size, 0)
    raise ChangeglotError(
        f'reading column "{column.name}": its type, number {code} of the binlog, is not known',
        hint="Leave its table out.",
    )


def _number(kind: str) -> Reader:
    layout = struct.Struct(f"<{kind}")
    unpack, size = layout.unpack_from, layout.size

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        return b"%d" % unpack(data, at)[0], at + size

    return read


def _int24(*, signed: bool) -> Reader:
    def read(data: bytes, at: int) -> tuple[bytes, int]:
        return b"%d" % int.from_bytes(data[at : at + 3], "little", signed=signed), at + 3

    return read


_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")


def _read_float(data: bytes, at: int) -> tuple[bytes, int]:
    (value,) = _FLOAT.unpack_from(data, at)
    short = f"{value:.6g}"
    try:
        same = _FLOAT.unpack(_FLOAT.pack(float(short)))[0] == value
    except OverflowError:
        same = False
    return double(float(short) if same else value), at + 4


def _read_double(data: bytes, at: int) -> tuple[bytes, int]:
    return double(_DOUBLE.unpack_from(data, at)[0]), at + 8


def _bits(size: int) -> Reader:
    count = (size + 7) // 8

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        return f"{int.from_bytes(data[at : at + count], 'big'):0{size}b}".encode(), at + count

    return read


def _read_year(data: bytes, at: int) -> tuple[bytes, int]:
    return (b"%d" % (1900 + data[at]) if data[at] else b"0000"), at + 1


def _read_date(data: bytes, at: int) -> tuple[bytes, int]:
    number = int.from_bytes(data[at : at + 3], "little")
    return b"%04d-%02d-%02d" % (number >> 9, number >> 5 & 15, number & 31), at + 3


def _fraction(part: int, count: int, scale: int) -> bytes:
    """The digits that are shown of those that so many bytes hold, two each."""
    return b"." + (b"%0*d" % (2 * count, part))[:scale] if scale else b""


def _datetime(scale: int) -> Reader:
    count = (scale + 1) // 2

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        end = at + 5 + count
        number = int.from_bytes(data[at : at + 5], "big") & 0x7FFFFFFFFF
        months = number >> 22
        shown = (months // 13, months % 13, number >> 17 & 31, number >> 12 & 31, number >> 6 & 63, number & 63)
        text = b"%04d-%02d-%02d %02d:%02d:%02d" % shown
        return text + _fraction(int.from_bytes(data[at + 5 : end], "big"), count, scale), end

    return read


@lru_cache(4096)
def _day(number: int) -> bytes:
    return (_EPOCH + timedelta(number)).isoformat().encode()


def _moment(seconds: int) -> bytes:
    if not seconds:
        return b"0000-00-00 00:00:00"
    day, second = divmod(seconds, 86400)
    return b"%b %02d:%02d:%02d" % (_day(day), second // 3600, second // 60 % 60, second % 60)


def _timestamp(scale: int) -> Reader:
    count = (scale + 1) // 2

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        end = at + 4 + count
        seconds, part = int.from_bytes(data[at : at + 4], "big"), int.from_bytes(data[at + 4 : end], "big")
        # A fraction without seconds is a moment in 1970; nothing at all is none.
        text = b"1970-01-01 00:00:00" if part and not seconds else _moment(seconds)
        return text + _fraction(part, count, scale), end

    return read


def _time(scale: int) -> Reader:
    count = (scale + 1) // 2
    zero, mask = 1 << (8 * count + 23), (1 << (8 * count)) - 1

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        end = at + 3 + count
        number = int.from_bytes(data[at:end], "big") - zero
        sign, number = (b"-", -number) if number < 0 else (b"", number)
        whole = number >> (8 * count)
        text = b"%b%02d:%02d:%02d" % (sign, whole >> 12 & 0x3FF, whole >> 6 & 63, whole & 63)
        return text + _fraction(number & mask, count, scale), end

    return read


def _old_timestamp(data: bytes, at: int) -> tuple[bytes, int]:
    return _moment(int.from_bytes(data[at : at + 4], "little")), at + 4


def _old_datetime(data: bytes, at: int) -> tuple[bytes, int]:
    day, second = divmod(int.from_bytes(data[at : at + 8], "little"), 1_000_000)
    shown = (day // 10000, day // 100 % 100, day % 100, second // 10000, second // 100 % 100, second % 100)
    return b"%04d-%02d-%02d %02d:%02d:%02d" % shown, at + 8


def _old_time(data: bytes, at: int) -> tuple[bytes, int]:
    number = int.from_bytes(data[at : at + 3], "little", signed=True)
    sign, number = (b"-", -number) if number < 0 else (b"", number)
    return b"%b%02d:%02d:%02d" % (sign, number // 10000, number // 100 % 100, number % 100), at + 3


_PLAIN: dict[int, Reader] = {
    FLOAT: _read_float,
    DOUBLE: _read_double,
    YEAR: _read_year,
    DATE: _read_date,
    NEWDATE: _read_date,
    TIMESTAMP: _old_timestamp,
    DATETIME: _old_datetime,
    TIME: _old_time,
}
_FRACTIONAL: dict[int, Callable[[int], Reader]] = {DATETIME2: _datetime, TIMESTAMP2: _timestamp, TIME2: _time}


def _enum(size: int, labels: Sequence[bytes]) -> Reader:
    # Zero is what was no label when it was stored.
    shown = [b"", *labels]

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        return shown[int.from_bytes(data[at : at + size], "little")], at + size

    return read


def _set(size: int, labels: Sequence[bytes]) -> Reader:
    known: dict[int, bytes] = {}

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        chosen = int.from_bytes(data[at : at + size], "little")
        if chosen not in known:
            known[chosen] = escaped(b",".join(each for n, each in enumerate(labels) if chosen >> n & 1))
        return known[chosen], at + size

    return read


def _text(length: int, recode: Recode | None) -> Reader:
    if length == 1 and recode is None:

        def short(data: bytes, at: int) -> tuple[bytes, int]:
            end = at + 1 + data[at]
            value = data[at + 1 : end]
            if b"\\" in value or b"\t" in value or b"\n" in value or b"\r" in value:
                value = field(value)
            return value, end

        return short

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        begin = at + length
        end = begin + int.from_bytes(data[at:begin], "little")
        value = data[begin:end]
        return escaped(value if recode is None else recode(value)), end

    return read


def _binary(length: int, pad: int) -> Reader:
    def read(data: bytes, at: int) -> tuple[bytes, int]:
        begin = at + length
        end = begin + int.from_bytes(data[at:begin], "little")
        # Zeros at the end of BINARY are not stored.
        return b"\\\\x" + data[begin:end].ljust(pad, b"\0").hex().encode(), end

    return read


def _fixed(length: int, size: int, shown: Callable[[bytes], str]) -> Reader:
    def read(data: bytes, at: int) -> tuple[bytes, int]:
        begin = at + length
        end = begin + int.from_bytes(data[at:begin], "little")
        return shown(data[begin:end].ljust(size, b"\0")).encode(), end

    return read


def inflated(data: bytes, *, event: bool) -> bytes:
    """What MariaDB compressed: an event's body, or the value of a column."""
    if not event and (not data or data[0] == 0):
        return data[1:]
    # An event's byte: 1 and the algorithm, then how long the length is. A column's: the algorithm, how it is wrapped.
    length = data[0] & 7
    return zlib.decompress(data[1 + length :], 15 if event or not data[0] & 8 else -15)


def _compressed(length: int, text: bool, recode: Recode | None) -> Reader:
    def read(data: bytes, at: int) -> tuple[bytes, int]:
        begin = at + length
        end = begin + int.from_bytes(data[at:begin], "little")
        value = inflated(data[begin:end], event=False)
        if not text:
            return b"\\\\x" + value.hex().encode(), end
        return escaped(value if recode is None else recode(value)), end

    return read


def _uuid(value: bytes) -> str:
    shown = value.hex()
    return f"{shown[:8]}-{shown[8:12]}-{shown[12:16]}-{shown[16:20]}-{shown[20:]}"


def _inet4(value: bytes) -> str:
    return ".".join(map(str, value))


def _inet6(value: bytes) -> str:
    # As inet_ntop of the C library: it alone decides when the end is shown as an address of version 4.
    from socket import AF_INET6, inet_ntop

    return inet_ntop(AF_INET6, value)


_FIXED: dict[str, tuple[int, Callable[[bytes], str]]] = {
    "uuid": (16, _uuid),
    "inet6": (16, _inet6),
    "inet4": (4, _inet4),
}


def recoding(table: str) -> Recode:
    """Text of a charset of single bytes to UTF-8: the characters of the 256 bytes are given."""

    def recode(value: bytes) -> bytes:
        return value if value.isascii() else codecs.charmap_decode(value, "strict", table)[0].encode()

    return recode


def decoding(codec: str) -> Recode:
    """Text that Python has a codec for to UTF-8."""

    def recode(value: bytes) -> bytes:
        return value.decode(codec, "replace").encode()

    return recode


def _json(length: int) -> Reader:
    def read(data: bytes, at: int) -> tuple[bytes, int]:
        begin = at + length
        end = begin + int.from_bytes(data[at:begin], "little")
        # Nothing at all stands where a column became NOT NULL without a value.
        return escaped(json_text(data[begin], data[begin + 1 : end]).encode() if end > begin else b"null"), end

    return read
