"""Numbers of the binlog as text, and MySQL's binary JSON, which holds them too."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable

from changeglot.errors import ChangeglotError

#: A value's text and where the next one begins, from an event and where the value begins.
Reader = Callable[[bytes, int], tuple[bytes, int]]

_DOUBLE = struct.Struct("<d")
#: Bytes of so many decimal digits, up to nine.
_DIGITS = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
# Types of what is no JSON, by their numbers.
_TIMESTAMP, _DATE, _TIME, _DATETIME, _DECIMAL = 7, 10, 11, 12, 246


def double(value: float) -> bytes:
    """As the server says it: the fewest digits, and an exponent from 1e15 and below 1e-15 only.

    >>> double(1e15), double(1e-5), double(-2.50), double(1e14)
    (b'1e15', b'0.00001', b'-2.5', b'100000000000000')
    """
    text = repr(value)
    if "e" not in text and abs(value) < 1e15:
        return text.removesuffix(".0").encode()
    return _shown(text)


def _shown(text: str) -> bytes:
    sign, text = ("-", text[1:]) if text[0] == "-" else ("", text)
    mantissa, _, exponent = text.partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    # The point stands behind so many of the digits.
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0") or "0"
    if not -15 < point <= 15:
        shown = f"{digits[0]}{'.' if digits[1:] else ''}{digits[1:]}e{point - 1}"
    elif point <= 0:
        shown = f"0.{'0' * -point}{digits}"
    else:
        shown = f"{digits[:point]:0<{point}}{'.' if digits[point:] else ''}{digits[point:]}"
    return (sign + shown).encode()


def decimal(precision: int, scale: int) -> Reader:
    """What reads decimals."""
    groups = [
        *([(precision - scale) % 9] if (precision - scale) % 9 else []),
        *[9] * ((precision - scale) // 9 + scale // 9),
        *([scale % 9] if scale % 9 else []),
    ]
    size = sum(_DIGITS[each] for each in groups)
    top, rest = 1 << (8 * size - 1), (1 << (8 * size - 1)) - 1
    # Of each group: how far it is from the end, the bits it has, and the number that it counts for.
    parts, shift, worth = [], 0, 1
    for digits in reversed(groups):
        bits = 8 * _DIGITS[digits]
        parts.append((shift, (1 << bits) - 1, worth))
        shift, worth = shift + bits, worth * 10**digits

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        stored = int.from_bytes(data[at : at + size], "big")
        sign, stored = (b"", stored ^ top) if stored & top else (b"-", stored ^ rest)
        number = 0
        for shift, mask, worth in parts:
            number += ((stored >> shift) & mask) * worth
        text = b"%0*d" % (scale + 1, number)
        if scale:
            text = text[:-scale] + b"." + text[-scale:]
        return sign + text, at + size

    return read


def json_text(kind: int, data: bytes) -> str:
    r"""MySQL's binary JSON as the server says it.

    https://dev.mysql.com/doc/dev/mysql-server/latest/json__binary_8h.html

    >>> json_text(0, bytes.fromhex("01000c000b000100" "050700" "61"))
    '{"a": 7}'
    """
    if kind <= 3:
        return _container(kind, data)
    if kind == 4:
        return ("null", "true", "false")[data[0]]
    if kind in _JSON_NUMBERS:
        return str(_JSON_NUMBERS[kind].unpack_from(data)[0])
    if kind == 11:
        text = double(_DOUBLE.unpack_from(data)[0]).decode()
        return text if "." in text or "e" in text else f"{text}.0"
    if kind == 12:
        return _quoted(_counted(data, 0).decode())
    if kind == 15:
        return _opaque(data[0], _counted(data, 1))
    raise ChangeglotError(f"reading JSON: type {kind} of a value is not known")


_JSON_NUMBERS = {n: struct.Struct(f"<{kind}") for n, kind in zip(range(5, 11), "hHiIqQ", strict=True)}


def _counted(data: bytes, at: int) -> bytes:
    """Bytes behind their number, of which each byte holds seven bits."""
    size = shift = 0
    while True:
        byte = data[at]
        at += 1
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return data[at : at + size]


def _container(kind: int, data: bytes) -> str:
    width = 2 if kind in (0, 2) else 4

    def number(at: int, size: int = width) -> int:
        return int.from_bytes(data[at : at + size], "little")

    count, keyed = number(0), kind < 2
    entries = 2 * width + (count * (width + 2) if keyed else 0)
    inline = {4, 5, 6} if width == 2 else {4, 5, 6, 7, 8}
    parts = []
    for n in range(count):
        at = entries + n * (1 + width)
        shown = json_text(data[at], data[at + 1 : at + 1 + width] if data[at] in inline else data[number(at + 1) :])
        if keyed:
            name = 2 * width + n * (width + 2)
            begin = number(name)
            shown = f"{_quoted(data[begin : begin + number(name + width, 2)].decode())}: {shown}"
        parts.append(shown)
    return f"{{{', '.join(parts)}}}" if keyed else f"[{', '.join(parts)}]"


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_QUOTES = str.maketrans({**{chr(n): f"\\u{n:04x}" for n in range(32)}, **_ESCAPES})


def _quoted(text: str) -> str:
    return f'"{text.translate(_QUOTES)}"'


def _opaque(kind: int, data: bytes) -> str:
    if kind == _DECIMAL:
        return decimal(data[0], data[1])(data, 2)[0].decode()
    if kind in (_DATE, _DATETIME, _TIMESTAMP, _TIME):
        number = int.from_bytes(data[:8], "little", signed=True)
        sign, number = ("-", -number) if number < 0 else ("", number)
        part, whole = number & 0xFFFFFF, number >> 24
        clock = f"{whole >> 6 & 63:02d}:{whole & 63:02d}.{part:06d}"
        if kind == _TIME:
            return f'"{sign}{whole >> 12 & 0x3FF:02d}:{clock}"'
        months = whole >> 22
        day = f"{months // 13:04d}-{months % 13:02d}-{whole >> 17 & 31:02d}"
        return f'"{day}"' if kind == _DATE else f'"{day} {whole >> 12 & 31:02d}:{clock}"'
    return f'"base64:type{kind}:{base64.b64encode(data).decode()}"'
