"""Values as PostgreSQL writes them, and in JSON: whole columns at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as of

#: PostgreSQL's name of a type, by Delta's; decimals apart.
TYPES = {
    "string": "text", "long": "int8", "integer": "int4", "short": "int2", "byte": "int2", "float": "float4",
    "double": "float8", "boolean": "bool", "binary": "bytea", "date": "date", "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}  # fmt: skip
#: Bytes that JSON has no plain character for.
_CONTROLS = bytes(range(0x20))


def texts(values: pa.Array) -> pa.Array:
    """LARGE_STRING, NULL where the value is: PostgreSQL's text of each."""
    kind, text = values.type, pa.large_string()
    if of.is_large_string(kind):
        return values
    if of.is_large_binary(kind):
        return pa.array([None if each is None else f"\\x{each.hex()}" for each in values.to_pylist()], text)
    if of.is_floating(kind):
        short = pc.cast(values, text)
        size = pc.abs(pc.cast(values, pa.float64()))
        # Where Arrow and PostgreSQL both write all digits.
        plain = pc.and_(pc.greater_equal(size, 1e-4), pc.less(size, 1e6))
        limit = 6 if of.is_float32(kind) else 15
        return _mended(short, pc.or_(plain, pc.equal(size, 0)), lambda each: _float(each, limit))
    if of.is_timestamp(kind):
        return _moments(values)
    made = pc.cast(values, text)
    if of.is_decimal(kind):
        return _mended(made, pc.invert(pc.match_substring(made, "E")), lambda each: f"{Decimal(each):f}")
    return made


def _moments(values: pa.Array) -> pa.Array:
    """Of timestamps: PostgreSQL writes no zeros at the end of a fraction."""
    kind, text = values.type, pa.large_string()
    local = values.cast(pa.timestamp(kind.unit)) if kind.tz else values
    whole = pc.floor_temporal(local, unit="second")
    if pc.all(pc.equal(whole, local)).as_py() is not False:
        made = pc.cast(whole.cast(pa.timestamp("s")), text)
    else:
        made = pc.replace_substring_regex(pc.cast(local, text), r"\.?0*$", "")
    return beside(made, "+00") if kind.tz else made


def beside(*parts: pa.Array | str) -> pa.Array:
    """LARGE_STRING: the texts of each row one after the other; NULL where one is."""
    few: list[pa.Array | str] = []
    for part in parts:
        if isinstance(part, str) and few and isinstance(few[-1], str):
            few[-1] += part
        else:
            few.append(part)
    each = [pa.scalar(part, pa.large_string()) if isinstance(part, str) else part for part in few]
    return pc.binary_join_element_wise(*each, pa.scalar("", pa.large_string()))


def _mended(made: pa.Array, good: pa.Array, mend: Callable[[str], str]) -> pa.Array:
    """The texts, those that are not good each made anew."""
    bad = pc.invert(pc.fill_null(good, True))
    if not pc.any(bad).as_py():
        return made
    return pc.replace_with_mask(made, bad, pa.array([mend(each) for each in made.filter(bad).to_pylist()], made.type))


def _float(text: str, limit: int) -> str:
    """PostgreSQL's text of a number that Arrow wrote: with an exponent below 1e-4, and from so many digits on.

    >>> _float("1e+14", 15), _float("1e+15", 15), _float("1234567", 6), _float("0.00001", 15), _float("-inf", 15)
    ('100000000000000', '1e+15', '1.234567e+06', '1e-05', '-Infinity')
    """
    if text.lstrip("-") in ("nan", "inf"):
        return {"nan": "NaN", "-nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[text]
    number = Decimal(text).normalize()
    if number == 0 or -4 <= number.adjusted() < limit:
        return f"{number:f}"
    digits = "".join(map(str, number.as_tuple().digits))
    exponent = number.adjusted()
    point = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{'-' if number < 0 else ''}{digits[0]}{point}e{'-' if exponent < 0 else '+'}{abs(exponent):02}"


def quoted(values: pa.Array) -> pa.Array:
    """LARGE_STRING, never NULL: the texts in JSON."""
    return beside(*pieces(values))


def pieces(values: pa.Array) -> list[pa.Array | str]:
    """What `beside` makes the texts in JSON of."""
    content, made = joined(values), values
    # All texts are looked at at once: most hold nothing that is written otherwise.
    if b"\\" in content:
        made = pc.replace_substring(made, "\\", "\\\\")
    if b'"' in content:
        made = pc.replace_substring(made, '"', '\\"')
    if len(content.translate(None, _CONTROLS)) < len(content):
        bad = pc.fill_null(pc.match_substring_regex(values, r"[\x00-\x1f]"), False)
        dumped = [json.dumps(each, ensure_ascii=False)[1:-1] for each in values.filter(bad).to_pylist()]
        made = pc.replace_with_mask(made, bad, pa.array(dumped, made.type))
    return [pc.fill_null(beside('"', made, '"'), "null")] if made.null_count else ['"', made, '"']


def keys(relation: str, key: Sequence[pa.Array], length: int) -> pa.Array:
    """LARGE_STRING: `"schema"."table"/"value"/...` of each row; NULL is a bare underscore, a slash is doubled."""
    parts: list[pa.Array | str] = [pa.repeat(pa.scalar(relation, pa.large_string()), length)]
    for each in key:
        parts += ["/", pc.fill_null(beside('"', pc.replace_substring(each, "/", "//"), '"'), "_")]
    return beside(*parts)


def joined(lines: pa.Array) -> bytes:
    """The lines one after the other, without a look at each; none is NULL."""
    if not len(lines):
        return b""
    _, ends, content = lines.buffers()
    ends = memoryview(ends).cast("q")
    return bytes(memoryview(content)[ends[lines.offset] : ends[lines.offset + len(lines)]])


def schema(columns: Sequence[tuple[str, str]], key: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What the electric-schema header tells of columns by name and Delta's type. Any: JSON."""
    told: dict[str, dict[str, Any]] = {}
    for name, kind in columns:
        if kind.startswith("decimal"):
            precision, scale = kind[8:-1].split(",")
            of: dict[str, Any] = {"type": "numeric", "precision": int(precision), "scale": int(scale)}
        else:
            of = {"type": TYPES[kind]}
        if name in key:
            of |= {"pk_index": list(key).index(name), "not_null": True}
        told[name] = of
    return told
