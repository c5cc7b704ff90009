"""What a request asks for, of its parameters; and what is wrong with them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from changeglot.serve.shapes import Definition, Offset

_IDENTIFIER: Final = r'(?:"(?:[^"]|"")+"|[A-Za-z_\u0080-\U0010ffff][\w$]*)'
_NAME: Final = re.compile(rf"{_IDENTIFIER}(?:\.{_IDENTIFIER}){{0,2}}")
_ORDER: Final = re.compile(rf"\s*({_IDENTIFIER})(?:\s+(asc|desc))?(?:\s+nulls\s+(first|last))?\s*", re.IGNORECASE)
_SUBSET: Final = "subset__"
_SUBSET_WORDS: Final = ("where", "params", "limit", "offset", "order_by", "where_expr", "order_by_expr")


class Invalid(Exception):
    """What is wrong with a request, by parameter."""

    def __init__(self, parameter: str, what: str) -> None:
        super().__init__(f"{parameter}: {what}")
        self.parameter, self.what = parameter, what


@dataclass(frozen=True)
class Subset:
    """Some of a shape's rows, as they are now."""

    where: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    order: tuple[tuple[str, bool, bool], ...] = ()
    limit: int | None = None
    offset: int = 0


@dataclass(frozen=True)
class Asked:
    """A request for a shape. `offset` None with `now`: the end of the log, else all rows."""

    table: tuple[str, ...]
    definition: Definition
    queryable: tuple[str, ...]
    offset: Offset | None
    now: bool
    handle: str
    live: bool
    events: bool
    cursor: int | None
    subset: Subset | None

    @property
    def begins(self) -> bool:
        """Does it ask for a shape that it has nothing of?"""
        return self.offset is None


def asked(query: Mapping[str, str], body: Mapping[str, Any] | None = None) -> Asked:
    """What the parameters ask for, and the body of a POST. Raises Invalid. Any: JSON."""
    subset = _subset(query, body or {})
    offset, now = _offset(query)
    live = _true(query, "live")
    if live and offset is None:
        raise Invalid("live", "can't be true when offset is -1 or now")
    events = _true(query, "live_sse") or _true(query, "experimental_live_sse")
    if events and not live:
        raise Invalid("live_sse", "can't be true unless live is also true")
    handle = query.get("handle", "")
    if offset is not None and not handle and subset is None:
        raise Invalid("handle", "can't be blank when offset isn't -1 or now")
    columns = _columns(query, "columns")
    queryable = _columns(query, "queryable_columns")
    cursor = query.get("cursor", "")
    return Asked(
        table=_table(query),
        definition=Definition(
            where=query.get("where", ""),
            params=tuple(sorted(_params(query).items())),
            columns=columns or queryable,
            replica=_word(query, "replica", "default", "full"),
            log=_word(query, "log", "full", "changes_only"),
        ),
        queryable=queryable,
        offset=offset,
        now=now,
        handle=handle,
        live=live,
        events=events,
        cursor=int(cursor) if re.fullmatch(r"\d{1,18}", cursor) else None,
        subset=subset,
    )


def _true(query: Mapping[str, str], name: str) -> bool:
    return name in query and query[name] != "false"


def _word(query: Mapping[str, str], name: str, *words: str) -> Any:
    """One of the words, the first if nothing is said. Any: literals of several kinds."""
    word = query.get(name, words[0])
    if word not in words:
        raise Invalid(name, f"is invalid, must be one of {', '.join(words)}")
    return word


def _unquoted(identifier: str) -> str:
    if identifier.startswith('"'):
        return identifier[1:-1].replace('""', '"')
    return identifier.lower()


def _table(query: Mapping[str, str]) -> tuple[str, ...]:
    text = query.get("table", "")
    if not text:
        raise Invalid("table", "can't be blank")
    if not _NAME.fullmatch(text):
        raise Invalid("table", "is no name of a table")
    parts = tuple(_unquoted(each) for each in re.findall(_IDENTIFIER, text))
    if any(len(part) > 63 for part in parts):
        raise Invalid("table", "has a name of more than 63 characters")
    return parts


def _offset(query: Mapping[str, str]) -> tuple[Offset | None, bool]:
    text = query.get("offset", "")
    if not text:
        raise Invalid("offset", "can't be blank")
    if text in ("-1", "now"):
        return None, text == "now"
    if (offset := Offset.of(text)) is None:
        raise Invalid("offset", "has invalid format")
    return offset, False


def _columns(query: Mapping[str, str], name: str) -> tuple[str, ...]:
    if name not in query:
        return ()
    text = query[name]
    if not re.fullmatch(rf"\s*{_IDENTIFIER}\s*(?:,\s*{_IDENTIFIER}\s*)*", text):
        raise Invalid(name, "is no list of columns")
    return tuple(_unquoted(each) for each in re.findall(_IDENTIFIER, text))


def _params(query: Mapping[str, str]) -> dict[str, str]:
    found = {match[1]: query[name] for name in query if (match := re.fullmatch(r"params\[(\d{1,4})\]", name))}
    if set(found) != {str(number + 1) for number in range(len(found))}:
        raise Invalid("params", "must be numbered from 1, without gaps")
    return found


def _subset(query: Mapping[str, str], body: Mapping[str, Any]) -> Subset | None:
    """Any: JSON."""
    told: dict[str, Any] = {name: query[_SUBSET + name] for name in _SUBSET_WORDS if _SUBSET + name in query}
    inner = body.get("subset", body)
    if not isinstance(inner, Mapping):
        raise Invalid("subset", "is no object")
    told |= {name: value for name, value in inner.items() if name in _SUBSET_WORDS and value is not None}
    if not told:
        return None
    made = Subset(order=_order(told.get("order_by", "")))
    where = told.get("where", "")
    if not isinstance(where, str):
        raise Invalid("subset.where", "is no text")
    made = replace(made, where=where, params=_subset_params(told.get("params", {})))
    for name, least in (("limit", 1), ("offset", 0)):
        if name in told:
            number = str(told[name])
            if isinstance(told[name], bool) or not re.fullmatch(r"\d{1,15}", number) or int(number) < least:
                raise Invalid(f"subset.{name}", f"must be a number from {least} on")
            if not made.order:
                raise Invalid("subset.order_by", f"is wanted with {name}")
            made = replace(made, limit=int(number)) if name == "limit" else replace(made, offset=int(number))
    return made


def _subset_params(told: Any) -> dict[str, str]:
    """Any: JSON, or text of it."""
    if isinstance(told, str):
        try:
            told = json.loads(told)
        except ValueError as error:
            raise Invalid("subset.params", "is not JSON") from error
    if isinstance(told, list):
        told = {str(number + 1): each for number, each in enumerate(told)}
    if not isinstance(told, Mapping) or any(isinstance(each, dict | list | bool) for each in told.values()):
        raise Invalid("subset.params", "must be texts by number")
    return {str(name): str(value) for name, value in told.items()}


def _order(told: Any) -> tuple[tuple[str, bool, bool], ...]:
    """Columns, whether they go down, and whether NULLs come first. Any: JSON."""
    if not isinstance(told, str):
        raise Invalid("subset.order_by", "is no text")
    found: list[tuple[str, bool, bool]] = []
    at = 0
    while told[at:].strip():
        match = _ORDER.match(told, at)
        if not match or told[match.end() : match.end() + 1] not in ("", ","):
            raise Invalid("subset.order_by", "wants columns, each maybe with ASC or DESC, NULLS FIRST or NULLS LAST")
        down = (match[2] or "").lower() == "desc"
        first = match[3].lower() == "first" if match[3] else down
        found.append((_unquoted(match[1]), down, first))
        at = match.end() + 1
    return tuple(found)
