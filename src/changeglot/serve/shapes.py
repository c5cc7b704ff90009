"""Shapes: rows of a table that meet a condition, as messages of Electric's shape log. It knows no HTTP."""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from changeglot.capture.pgseen import View
from changeglot.serve import spelling
from changeglot.serve.delta import Gone
from changeglot.serve.history import Diff, Facts, History

if TYPE_CHECKING:
    from collections.abc import Callable


#: Of what the server writes: another one ends all shapes.
_FORM: Final = 1
#: Rows of a snapshot that are looked at in one go, at most.
_ROWS: Final = 8192
_OFFSET: Final = re.compile(r"(\d{1,20})_(\d{1,20}|inf)")
_INF: Final = 1 << 80


class Offset(NamedTuple):
    """A place in a shape's log. With tx 0: so many rows of the snapshot are behind it."""

    tx: int
    op: int

    def __str__(self) -> str:
        return f"{self.tx}_{'inf' if self.op >= _INF else self.op}"

    @classmethod
    def of(cls, text: str) -> Offset | None:
        """None if it is none.

        >>> str(Offset.of("007_inf")), Offset.of("10"), Offset.of("1_2_3")
        ('7_inf', None, None)
        """
        match = _OFFSET.fullmatch(text)
        return cls(int(match[1]), _INF if match[2] == "inf" else int(match[2])) if match else None


#: The end of every snapshot.
SNAPSHOT_END: Final = Offset(0, _INF)


@dataclass(frozen=True)
class Definition:
    """What a shape is asked for by; two that are equal are one shape."""

    where: str = ""
    params: tuple[tuple[str, str], ...] = ()
    columns: tuple[str, ...] = ()
    replica: Literal["default", "full"] = "default"
    log: Literal["full", "changes_only"] = "full"


class Part(NamedTuple):
    """A part of a log: messages, the offset behind them, and whether there are no more."""

    messages: tuple[bytes, ...]
    end: Offset
    complete: bool


@dataclass
class Shape:
    """One definition over one table."""

    history: History
    definition: Definition
    facts: Facts
    #: BOOLEAN of each row: does it meet the condition? None: all do.
    meets: Callable[[pa.Table], pa.Array] | None
    _told: OrderedDict[int, tuple[tuple[Offset, bytes], ...]] = field(default_factory=OrderedDict)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns that are sent, as the table orders them."""
        wanted = self.definition.columns
        return tuple(each.name for each in self.facts.columns if not wanted or each.name in wanted)

    @cached_property
    def schema(self) -> str:
        """The electric-schema header: without characters that a header does not carry."""
        kinds = [(each.name, each.kind) for each in self.facts.columns if each.name in self.columns]
        return json.dumps(spelling.schema(kinds, self.facts.key), separators=(",", ":"))

    def handle(self, base: int) -> str:
        """What the shape that stands on that version is known by: the same on all servers, and never another's."""
        d, f = self.definition, self.facts
        told = [
            _FORM, self.history.relation, d.where, d.params, self.columns, d.replica, d.log, f.id, f.key,
            [(each.name, each.kind, each.stored) for each in f.columns], f.deleted and f.deleted.stored, f.writer, base,
        ]  # fmt: skip
        digest = hashlib.sha256(json.dumps(told).encode()).digest()
        return f"{int.from_bytes(digest[:8], 'big')}-{base}"

    def at_hand(self, handle: str) -> bool:
        """Is the version that the handle stands on one that was read?"""
        return self.history.lowest <= _version(handle)

    def base(self, handle: str) -> int | None:
        """The version that the handle stands on, if it is one of this shape that can still be followed."""
        base = _version(handle)
        if not 0 <= base <= self.history.tip or self.handle(base) != handle:
            return None
        try:
            self.history.reach(base)
        except Gone:
            return None
        return base if base >= self.history.last_break else None

    @property
    def _relation(self) -> str:
        return json.dumps(self.history.relation, ensure_ascii=False, separators=(",", ":"))

    # Rows

    def snapshot(self, base: int, begin: int, limit: int) -> tuple[bytes, int | None]:
        """Messages of the rows from a place on, up to about so many bytes; where the rest begins, None if none is."""
        found: list[bytes] = []
        size = place = 0
        step = max(1, min(_ROWS, limit >> 10))
        if self.definition.log == "full":
            for file in self.history.state(base).files:
                rows = self.history.rows(base, file)
                for start in range(0, rows.num_rows, step):
                    if place + start < begin:
                        continue
                    if size >= limit:
                        return b",".join(found), place + start
                    part = rows.slice(start, step)
                    if self.meets:
                        part = part.filter(pc.fill_null(self.meets(part), False))
                    if part.num_rows:
                        found.append(self.inserts(part))
                        size += len(found[-1])
                place += rows.num_rows
        return b",".join(found), None

    def inserts(self, rows: pa.Table, headers: str = "") -> bytes:
        """Messages of rows that are there, comma separated; `headers`: what is said of each beside."""
        return spelling.joined(self.lines(rows, headers))[:-1]

    def lines(self, rows: pa.Table, headers: str = "") -> pa.Array:
        """LARGE_STRING of each row: its message, and a comma."""
        rows = rows.combine_chunks()
        parts: list[pa.Array | str] = ['{"key":', *spelling.pieces(self.history.keys(rows, self.facts)), ',"value":{']
        for number, name in enumerate(self.columns):
            values = rows.column(name).combine_chunks()
            parts += [f"{',' if number else ''}{json.dumps(name, ensure_ascii=False)}:"]
            parts += spelling.pieces(spelling.texts(values))
        parts.append(f'}},"headers":{{"operation":"insert","relation":{self._relation}{headers}}}}},')
        return spelling.beside(*parts)

    # Changes

    def changes(self, base: int, after: Offset, limit: int) -> Part:
        """Messages of the log that begins with a version, behind an offset, up to about so many bytes. Raises Gone."""
        history, tip = self.history, self.history.tip
        found: list[bytes] = []
        size = 0
        for version in self._behind(base, after, tip):
            for offset, message in self.told(version):
                if offset > after:
                    found.append(message)
                    size += len(message)
                    if size >= limit:
                        return Part(tuple(found), offset, complete=False)
        return Part(tuple(found), max(after, Offset(history.steps[tip].tx, _INF)), complete=True)

    def _behind(self, base: int, after: Offset, tip: int) -> Iterator[int]:
        """The versions whose numbers are not less than the offset's, oldest first."""
        first = tip + 1
        while first > base + 1 and self.history.steps[first - 1].tx >= after.tx:
            first -= 1
        yield from range(first, tip + 1)

    def known(self, base: int, after: Offset) -> bool:
        """Are the messages behind an offset at hand, so that nothing has to be read?"""
        return all(version in self._told for version in self._behind(base, after, self.history.tip))

    def told(self, version: int) -> tuple[tuple[Offset, bytes], ...]:
        """The messages of a version, each with its offset."""
        if (known := self._told.get(version)) is None:
            diff = self.history.diff(version)
            known = tuple(self._told_of(diff)) if diff else ()
            self._told[version] = known
            while len(self._told) > 1000:
                self._told.popitem(last=False)
        return known

    def _told_of(self, diff: Diff) -> Iterator[tuple[Offset, bytes]]:
        was, now = diff.had, diff.has
        if self.meets:
            was = pc.and_(was, pc.fill_null(self.meets(diff.old), False))
            now = pc.and_(now, pc.fill_null(self.meets(diff.new), False))
        places = pc.indices_nonzero(pc.or_(was, now))
        shown: dict[int, tuple[str, str]] = {}
        for at, was_in, is_in in zip(
            places.to_pylist(), was.take(places).to_pylist(), now.take(places).to_pylist(), strict=True
        ):
            if told := self._body(diff, at, was_in=was_in, is_in=is_in):
                shown[at] = told
        numbered = self._numbered(diff, shown) if diff.own else self._counted(diff, list(shown))
        for at, headers in numbered:
            yield Offset(diff.tx, 2 * at), f"{shown[at][1]},{headers}}}}}".encode()

    def _counted(self, diff: Diff, shown: Sequence[int]) -> Iterator[tuple[int, str]]:
        """The rows, each with the end of its headers: a version is one transaction."""
        # Where transactions are the source's, nobody knows of which this is.
        ids = diff.tx if self.facts.epoch is None else ""
        for at in shown:
            last = ',"last":true' if at == shown[-1] else ""
            yield at, f'"lsn":"{diff.tx}","op_position":{2 * at},"txids":[{ids}]{last}'

    @staticmethod
    def _numbered(diff: Diff, shown: Mapping[int, tuple[str, str]]) -> Iterator[tuple[int, str]]:
        """The same, as the source's log has them."""
        own, rows = diff.own, list(shown)
        assert own is not None
        for at, following in zip_longest(rows, rows[1:]):
            place, ids, more = own.places[at], own.ids[at], ""
            new, old = own.moves.get(at), own.origins.get(at)
            if new is not None and shown.get(new, ("",))[0] == "insert":
                more = f',"key_change_to":{diff.keys[new]}'
            elif old is not None and old in shown and shown[at][0] == "insert":
                more = f',"key_change_from":{diff.keys[old]}'
            if following is None:
                # Who waits for a transaction hears of it, though others have undone it.
                ids = [*ids, *own.others]
            if following is None or own.places[following].lsn > place.lsn:
                more += ',"last":true'
            told = ",".join(map(str, ids))
            yield at, f'"lsn":"{place.lsn}","op_position":{place.op},"txids":[{told}]{more}'

    def _body(self, diff: Diff, at: int, *, was_in: bool, is_in: bool) -> tuple[str, str] | None:
        """What became of a row, and its message but for the end of its headers; None if of what is sent nothing did."""
        full = self.definition.replica == "full"
        old: str = ""
        if not was_in:
            op, value = "insert", self._image(diff, "new", at, self.columns)
        elif not is_in:
            op, value = "delete", self._image(diff, "old", at, self.columns if full else self.facts.key)
        else:
            op = "update"
            changed = [n for n in self.columns if diff.json("old", n)[at] != diff.json("new", n)[at]]
            if not changed:
                return None
            told = self.columns if full else [n for n in self.columns if n in changed or n in self.facts.key]
            value = self._image(diff, "new", at, told)
            if full:
                old = f',"old_value":{self._image(diff, "old", at, changed)}'
        headers = f'"headers":{{"operation":"{op}","relation":{self._relation}'
        return op, f'{{"key":{diff.keys[at]},"value":{value}{old},{headers}'

    @staticmethod
    def _image(diff: Diff, side: str, at: int, columns: Any) -> str:
        """Any: names in a list or a tuple."""
        pairs = (f"{json.dumps(name, ensure_ascii=False)}:{diff.json(side, name)[at]}" for name in columns)
        return f"{{{','.join(pairs)}}}"

    # Controls

    def snapshot_end(self, version: int) -> bytes:
        """Says which transactions the rows of a version hold: its own, and all before."""
        return _control("snapshot-end", **self.visible(version))

    def visible(self, version: int) -> Mapping[str, Any]:
        """Any: JSON."""
        step = self.history.steps[version]
        if step.facts.epoch is None:
            following = str(step.tx + 1)
            return {"xmin": following, "xmax": following, "xip_list": []}
        # Messages tell the lower half of a transaction's number.
        return View.of(step.seen or "0:0:").lower.told

    def up_to_date(self, tx: int) -> bytes:
        return _control("up-to-date", global_last_seen_lsn=str(tx))


def _version(handle: str) -> int:
    """The version that a handle stands on; -1 if it is none."""
    match = re.fullmatch(r"\d{1,20}-(\d{1,18})", handle)
    return int(match[1]) if match else -1


def _control(word: str, **more: Any) -> bytes:
    """Any: JSON."""
    return json.dumps({"headers": {"control": word, **more}}, separators=(",", ":")).encode()


MUST_REFETCH: Final = b'[{"headers":{"control":"must-refetch"}}]'
