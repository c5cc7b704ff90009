"""Answers to requests for shapes: bodies and headers, without a connection."""

from __future__ import annotations

import json
import random
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from changeglot.serve.asked import Asked, Invalid, Subset
from changeglot.serve.delta import Gone
from changeglot.serve.shapes import MUST_REFETCH, SNAPSHOT_END, Offset, Part, Shape
from changeglot.serve.typed import Refused
from changeglot.serve.where import compiled

if TYPE_CHECKING:
    from changeglot.serve.history import Facts, History

_EPOCH: Final = datetime(2024, 10, 9, tzinfo=UTC).timestamp()
_FIRST: Final = "public, max-age=604800, s-maxage=3600, stale-while-revalidate=2629746"
_LATER: Final = "public, max-age=60, stale-while-revalidate=300"
_LIVE: Final = "public, max-age=5, stale-while-revalidate=5"
EVENTS: Final = "public, max-age=59"


#: Rows of a snapshot: the shape's handle, and the offset behind which they are.
Place = tuple[str, Offset | None]


@dataclass(frozen=True)
class Stored:
    """A body that is in a file."""

    file: IO[bytes]
    size: int

    def __len__(self) -> int:
        return self.size


@dataclass(frozen=True)
class Answer:
    """What is sent."""

    status: int
    body: bytes | Stored = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    type: str = "application/json"


def refused(status: int, told: Mapping[str, Any], **headers: str) -> Answer:
    """An answer that nobody may keep. Any: JSON."""
    kept = {"cache-control": "no-store", "surrogate-control": "no-store", **headers}
    return Answer(status, json.dumps(told).encode(), kept)


def invalid(error: Invalid) -> Answer:
    errors: dict[str, Any] = {error.parameter: [error.what]}
    if error.parameter.startswith("subset."):
        errors = {"subset": {error.parameter.partition(".")[2]: [error.what]}}
    return refused(400, {"message": "Invalid request", "errors": errors})


def shape_of(history: History, asked: Asked) -> Shape:
    """The shape that is asked for, of the table as it is now. Raises Invalid."""
    facts, definition = history.facts, asked.definition
    names = {each.name for each in facts.columns}
    for parameter, columns in (("columns", definition.columns), ("queryable_columns", asked.queryable)):
        if unknown := sorted(set(columns) - names):
            raise Invalid(parameter, f'there is no column "{unknown[0]}"')
        if columns and (missing := [name for name in facts.key if name not in columns]):
            raise Invalid(parameter, f"must contain the key: {', '.join(missing)}")
    if asked.queryable and (hidden := sorted(set(definition.columns) - set(asked.queryable))):
        raise Invalid("columns", f'"{hidden[0]}" is not among the queryable columns')
    meets = _condition(definition.where, dict(definition.params), facts, asked.queryable, "where")
    if definition.params and not definition.where:
        raise Invalid("params", "are given without where")
    return Shape(history, definition, facts, meets)


def _condition(
    where: str, params: Mapping[str, str], facts: Facts, queryable: tuple[str, ...], parameter: str
) -> Callable[[pa.Table], pa.Array] | None:
    if not where.strip():
        return None
    allowed = {each.name: each.kind for each in facts.columns if not queryable or each.name in queryable}
    try:
        return compiled(where, params, allowed)[0]
    except Refused as error:
        raise Invalid(parameter, str(error)) from error


@dataclass(frozen=True)
class Reply:
    """Answers to one request for one shape."""

    shape: Shape
    asked: Asked
    chunk: int
    poll: int

    @property
    def history(self) -> History:
        return self.shape.history

    @cached_property
    def base(self) -> int | None:
        """The version that it is about; None if the client must begin anew."""
        known = self.shape.base(self.asked.handle) if self.asked.handle else None
        # Who begins may name a handle: as long as it lives, what is told from its beginning on is the same.
        begins = self.asked.begins or (self.asked.subset and not self.asked.handle)
        return self.history.base if begins and known is None else known

    @property
    def place(self) -> Place | None:
        """The rows that are asked for, if it is those."""
        asked, base = self.asked, self.base
        if base is None or asked.now or asked.subset is not None:
            return None
        rows = asked.offset is None or asked.offset < SNAPSHOT_END
        return (self.shape.handle(base), asked.offset) if rows else None

    def following(self, answer: Answer) -> Reply | None:
        """The request that a client makes after that answer, if it is for more rows."""
        end = Offset.of(answer.headers.get("electric-offset", ""))
        if end is None or end >= SNAPSHOT_END:
            return None
        return replace(self, asked=replace(self.asked, offset=end, handle=answer.headers["electric-handle"]))

    def must_refetch(self) -> Answer:
        """Tells the client to begin anew, and with what."""
        # The table may be another one than when the shape was asked for.
        handle = replace(self.shape, facts=self.history.facts, _told=OrderedDict()).handle(self.history.base)
        return Answer(
            409, MUST_REFETCH, {"electric-handle": handle, "cache-control": "public, max-age=60, must-revalidate"}
        )

    def first(self) -> Answer | None:
        """The answer, if it does not have to wait for changes. Raises Invalid."""
        try:
            return self._first()
        except Gone:
            again = self._left()
            return again._first() if self.asked.begins else again.must_refetch()

    def _left(self) -> Reply:
        """The same, after files were found to be gone that it needs."""
        if self.base is not None:
            self.history.leave(self.base)
        return replace(self)

    def _first(self) -> Answer | None:
        asked, base = self.asked, self.base
        if base is None:
            return self.must_refetch()
        if asked.subset is not None:
            return self._subset(base, asked.subset)
        finished = self.history.finished
        if asked.now:
            return self._changed(base, Part((), self.tail, complete=True), finished)
        if asked.offset is None or asked.offset < SNAPSHOT_END:
            return self._rows(base, asked.offset.op if asked.offset else 0)
        self._within(asked.offset)
        part = self.shape.changes(base, asked.offset, self.chunk)
        return None if asked.live and not part.messages else self._changed(base, part, finished)

    def _within(self, offset: Offset) -> None:
        """Raises Invalid if the offset is beyond the log. One number after its end is free."""
        if offset.tx > self.history.steps[self.history.tip].tx + 1:
            raise Invalid("offset", "out of bounds for this shape")

    @property
    def tail(self) -> Offset:
        return Offset(self.history.steps[self.history.tip].tx, SNAPSHOT_END.op)

    @property
    def known(self) -> bool:
        """Is it one that waits, and can be answered without reading anything?"""
        asked, shape = self.asked, self.shape
        if not asked.live or asked.subset is not None or not shape.at_hand(asked.handle) or self.base is None:
            return False
        assert asked.offset is not None
        return asked.offset >= SNAPSHOT_END and shape.known(self.base, asked.offset)

    def changes(self, *, last: bool = False) -> Answer | None:
        """The answer to who waited, if there is something for it now; the `last` one if there is nothing, too."""
        base, asked = self.base, self.asked
        assert base is not None
        assert asked.offset is not None
        if base < self.history.last_break:
            return self.must_refetch()
        finished = self.history.finished
        try:
            part = self.shape.changes(base, asked.offset, self.chunk)
        except Gone:
            return self._left().must_refetch()
        return self._changed(base, part, finished) if part.messages or last else None

    def _rows(self, base: int, begin: int) -> Answer:
        body, rest = self.shape.snapshot(base, begin, self.chunk)
        end = SNAPSHOT_END if rest is None else Offset(0, rest)
        last = [] if rest is not None else [self.shape.snapshot_end(base)]
        messages = [each for each in (body, *last) if each]
        kept = _FIRST if self.asked.begins else _LATER
        return self._answer(base, messages, end, kept, data=True)

    def _changed(self, base: int, part: Part, finished: int) -> Answer:
        """`finished`: up to which number the part has all that was told of any table, as far as was known before it."""
        messages = [*part.messages]
        headers = {}
        if part.complete:
            messages.append(self.shape.up_to_date(max(part.end.tx, finished)))
            headers["electric-up-to-date"] = ""
        if self.asked.live:
            headers["electric-cursor"] = str(self.cursor())
        kept = _LIVE if self.asked.live else _LATER
        return self._answer(base, messages, part.end, kept, data=bool(part.messages), **headers)

    def _answer(self, base: int, messages: list[bytes], end: Offset, kept: str, *, data: bool, **more: str) -> Answer:
        handle = self.shape.handle(base)
        begin = "now" if self.asked.now else self.asked.offset or "-1"
        headers = {
            **self.about(base, end),
            **more,
            "electric-has-data": str(data).lower(),
            "etag": f'"{handle}:{begin}:{end}{"" if data else f":{time.monotonic_ns()}"}"',
            "cache-control": kept,
        }
        return Answer(200, b"[" + b",".join(messages) + b"]", headers)

    def about(self, base: int, end: Offset) -> dict[str, str]:
        """Headers of every answer with messages."""
        told = {"electric-handle": self.shape.handle(base), "electric-offset": str(end)}
        return told if self.asked.live else {**told, "electric-schema": self.shape.schema}

    def cursor(self) -> int:
        """Equal for all who wait at the same time, and never that of the request: no cache may answer twice."""
        elapsed = time.time() - _EPOCH
        now = (int(elapsed // self.poll) + 1) * self.poll
        before = self.asked.cursor
        return now if before is None or now > before else before + random.randint(1, 3600)

    # Subsets

    def _subset(self, base: int, subset: Subset) -> Answer:
        tip, facts = self.history.tip, self.shape.facts
        meets = _condition(subset.where, subset.params, facts, self.asked.queryable, "subset.where")
        found = []
        for file in self.history.state(tip).files:
            rows = self.history.rows(tip, file)
            for each in (self.shape.meets, meets):
                rows = rows.filter(pc.fill_null(each(rows), False)) if each else rows
            found.append(rows)
        mark = _mark(self.shape.handle(base), tip, subset)
        data = b""
        if found and (every := pa.concat_tables(found)).num_rows:
            data = self.shape.inserts(self._sorted(every, subset), f',"snapshot_mark":{mark}')
        tx = self.history.steps[tip].tx
        metadata = {**self.shape.visible(tip), "snapshot_mark": mark, "database_lsn": str(tx)}
        body = b'{"metadata":' + json.dumps(metadata, separators=(",", ":")).encode() + b',"data":[' + data + b"]}"
        # The client goes on from there: with the changes since it last asked, of which rows of other subsets may be.
        end = self.asked.offset or self.tail
        headers = {**self.about(base, end), "electric-snapshot": "true", "cache-control": "no-cache"}
        return Answer(200, body, headers)

    def _sorted(self, rows: pa.Table, subset: Subset) -> pa.Table:
        names = {each.name for each in self.shape.facts.columns}
        if self.asked.queryable:
            names &= set(self.asked.queryable)
        keys: list[tuple[str, str]] = []
        # Arrow places all NULLs on one side: beside each column stands whether it is NULL.
        table = rows
        for number, (name, down, first) in enumerate(subset.order):
            if name not in names:
                raise Invalid("subset.order_by", f'there is no column "{name}"')
            table = table.append_column(f"\0{number}", pc.cast(pc.is_null(rows.column(name)), pa.int8()))
            keys += [
                (f"\0{number}", "descending" if first else "ascending"),
                (name, "descending" if down else "ascending"),
            ]
        keys += [(name, "ascending") for name in self.shape.facts.key]
        placed = rows.take(pc.sort_indices(table, sort_keys=keys))
        return placed.slice(subset.offset, subset.limit) if subset.limit else placed.slice(subset.offset)


def _mark(handle: str, version: int, subset: Subset) -> int:
    """A number for a subset: the same for the same one."""
    return zlib.crc32(repr((handle, version, subset)).encode())
