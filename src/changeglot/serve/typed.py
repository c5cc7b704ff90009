"""Values of conditions: what kind they are of, how they are read from text, and when two can be compared."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from changeglot.serve import spelling

#: Delta's types by what can be done with their values.
FAMILIES: Final = {
    "string": "text", "long": "integer", "integer": "integer", "short": "integer", "byte": "integer", "float": "float",
    "double": "float", "boolean": "boolean", "binary": "binary", "date": "date", "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}  # fmt: skip
NUMBERS: Final = ("integer", "decimal", "float")
_MOMENTS: Final = ("date", "timestamp", "timestamptz")
_TRUE, _FALSE = ("t", "true", "y", "yes", "on", "1"), ("f", "false", "n", "no", "off", "0")

#: What is computed of rows: an array, or one value for all. Any: Arrow's arrays and scalars.
Value = Callable[["pa.Table"], Any]


class Refused(Exception):
    """What is wrong with a condition, in words for who sent it."""


@dataclass(frozen=True)
class Typed:
    """A part of a condition and its family; `unknown`: a text whose family the other side decides, which is `text`."""

    family: str
    value: Value
    text: str | None = None


def call(name: str, *parts: Value, **options: Any) -> Value:
    """One of Arrow's functions over the parts. Any: its options."""

    def called(rows: pa.Table) -> Any:
        return getattr(pc, name)(*(part(rows) for part in parts), **options)

    return called


def all_of(name: str, parts: Sequence[Value]) -> Value:
    """One of Arrow's functions of two over all parts, one after the other."""

    def called(rows: pa.Table) -> Any:
        return reduce(getattr(pc, name), (part(rows) for part in parts))

    return called


def constant(value: Any, family: str) -> Typed:
    """Any: a value as Python has it."""
    kinds = {
        "integer": pa.int64(), "float": pa.float64(), "boolean": pa.bool_(), "text": pa.large_string(),
        "date": pa.date32(), "timestamp": pa.timestamp("us"), "timestamptz": pa.timestamp("us", "UTC"),
        "binary": pa.large_binary(), "unknown": pa.large_string(),
    }  # fmt: skip
    if family == "decimal" and value is not None:
        digits, exponent = value.as_tuple().digits, int(value.as_tuple().exponent)
        scale = max(0, -exponent)
        precision = max(len(digits) + max(0, exponent), scale)
        if precision > 38:
            raise Refused(f'"{value}" has more digits than can be compared')
        made = pa.scalar(value, pa.decimal128(max(1, precision), scale))
    else:
        made = pa.scalar(value, kinds.get(family, pa.large_string()))
    return Typed(family, lambda _: made)


def read(text: str, family: str) -> Any:
    """The text as a value of a family. Any: as Python has it. Raises Refused."""
    try:
        if family == "integer":
            number = int(text)
            if not -(2**63) <= number < 2**63:
                raise ValueError
            return number
        if family == "decimal":
            number_ = Decimal(text.strip())
            if not number_.is_finite():
                raise ValueError
            return number_
        if family == "float":
            return float(text)
        if family == "boolean":
            word = text.strip().lower()
            if word not in (*_TRUE, *_FALSE):
                raise ValueError
            return word in _TRUE
        if family == "date":
            return date.fromisoformat(text.strip()[:10])
        if family in ("timestamp", "timestamptz"):
            moment = datetime.fromisoformat(re.sub(r"([+-]\d\d)$", r"\1:00", text.strip()))
            if family == "timestamp":
                return moment.replace(tzinfo=None)
            return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
        if family == "binary":
            return bytes.fromhex(text.removeprefix("\\x"))
    except (ValueError, InvalidOperation, OverflowError) as error:
        raise Refused(f'"{text[:100]}" is no value of type {family}') from error
    return text


def settled(part: Typed, family: str = "text") -> Typed:
    """The part in a family that is known: that of a text alone is `family`."""
    if part.family != "unknown":
        return part
    return constant(None if part.text is None else read(part.text, family), family)


def paired(one: Typed, other: Typed) -> tuple[Typed, Typed]:
    """Two parts that can be compared."""
    if one.family == "unknown" and other.family == "unknown":
        return settled(one), settled(other)
    if other.family == "unknown":
        if one.family == "integer" and other.text is not None and not re.fullmatch(r"\s*[+-]?\d+\s*", other.text):
            raise Refused(f'"{other.text[:100]}" is no value of type integer')
        return one, settled(other, one.family)
    if one.family == "unknown":
        there, here = paired(other, one)
        return here, there
    if one.family == other.family:
        return one, other
    if one.family in NUMBERS and other.family in NUMBERS:
        return (as_float(one), as_float(other)) if "float" in (one.family, other.family) else (one, other)
    if one.family in _MOMENTS and other.family in _MOMENTS:
        wider = max(one.family, other.family, key=_MOMENTS.index)
        return cast(one, wider), cast(other, wider)
    raise Refused(f"compares {one.family} with {other.family}")


def as_float(part: Typed) -> Typed:
    return part if part.family == "float" else cast(part, "float")


def cast(part: Typed, family: str) -> Typed:

    if part.family == "unknown":
        return settled(part, family)
    if part.family == family:
        return part
    kinds = {
        "integer": pa.int64(), "float": pa.float64(), "boolean": pa.bool_(), "date": pa.date32(),
        "timestamp": pa.timestamp("us"), "timestamptz": pa.timestamp("us", "UTC"),
    }  # fmt: skip
    if family == "text":
        return Typed("text", _spelled(part.value))
    allowed = (
        part.family == "text"
        or (part.family in NUMBERS and family in NUMBERS)
        or (part.family in _MOMENTS and family in _MOMENTS)
    )
    if not allowed or family not in kinds:
        raise Refused(f"cannot cast {part.family} to {family}")
    return Typed(family, call("cast", part.value, target_type=kinds[family], safe=part.family == "text"))


def _spelled(value: Value) -> Value:
    def spelled(rows: pa.Table) -> Any:
        made = value(rows)
        if isinstance(made, pa.Scalar):
            return spelling.texts(pa.array([made.as_py()], made.type))[0]
        return spelling.texts(made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made)

    return spelled


def regular(pattern: str) -> str:
    r"""The pattern of LIKE as a regular expression.

    >>> regular("a_%"), regular("50\\%")
    ('a..*', '50%')
    """
    found, escaped = [], False
    for each in pattern:
        if escaped or each not in "\\%_":
            found.append(re.sub(r"([^\w\s%])", r"\\\1", each) if each.isascii() else each)
            escaped = False
        elif each == "\\":
            escaped = True
        else:
            found.append({"%": ".*", "_": "."}[each])
    return "".join(found)


def elements(text: str) -> Sequence[str | None]:
    r"""The elements of an array of PostgreSQL's, of one dimension.

    >>> elements('{1,NULL,"a\\"b,c",x y}')
    ['1', None, 'a"b,c', 'x y']
    """
    body = text[1:-1]
    found: list[str | None] = []
    if not body.strip():
        return found
    for quoted, plain in re.findall(r'\s*(?:"((?:[^"\\]|\\.)*)"|([^,"]*))\s*(?:,|$)', body, re.DOTALL):
        found.append(re.sub(r"\\(.)", r"\1", quoted) if quoted else plain.strip())
        if not quoted and plain.strip().upper() == "NULL":
            found[-1] = None
    if not body.rstrip().endswith(",") and len(found) > 1 and found[-1] == "":
        found.pop()
    return found
