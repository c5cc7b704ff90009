"""What the change log tells of a batch: by which of the source's transactions, and where in it, a row was changed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from changeglot.model import Op, Phase
from changeglot.serve import spelling
from changeglot.serve.delta import Column, Commit, DeltaLog, arrow

#: What is replayed out of the quarantine is no batch of its own.
_REPLAY: Final = re.compile(r"/replay/[0-9a-f]{32}/")
#: Batches of a log that are remembered.
_KNOWN: Final = 20_000
_READ: Final = ("op", "phase", "key", "after", "position", "transaction")


def marked(commit: Commit) -> tuple[str, int] | None:
    """Who wrote which batch: the name of the pipeline and of its checkpoint."""
    if commit.mark is None or _REPLAY.search(commit.mark[0]):
        return None
    match = re.match(r"(.*?/[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/", commit.mark[0])
    return (match[1], commit.mark[1]) if match else None


class Key(NamedTuple):
    """How a table's keys are written: as of the relation, by columns."""

    relation: str
    columns: tuple[Column, ...]

    def of(self, images: pa.Array) -> list[str]:
        """The keys of rows of which the images, as the log has them, tell the values."""
        parts = []
        for each in self.columns:
            text = pc.map_lookup(images, each.name, "first").cast(pa.large_string())
            # In the column's type, and so as rows of the table have it.
            parts.append(text if each.kind == "string" else spelling.texts(text.cast(arrow(each.kind))))
        return list(spelling.keys(self.relation, parts, len(images)).to_pylist())


class Place(NamedTuple):
    """A transaction's position in the source's log, and which of its changes."""

    lsn: int
    op: int


@dataclass
class Told:
    """What became of the rows of a table in one batch, by their keys."""

    #: When a row was last told, and when it last ended.
    tells: dict[str, Place] = field(default_factory=dict)
    ends: dict[str, Place] = field(default_factory=dict)
    #: Where a row that ended went, if it has another key since.
    becomes: dict[Place, str] = field(default_factory=dict)
    #: The transactions that changed a row, in their order.
    ids: dict[str, list[int]] = field(default_factory=dict)
    #: When all rows ended, and by what.
    emptied: tuple[Place, int] | None = None

    def add(self, op: str, place: Place, transaction: int, key: str, after: str) -> None:
        if op == Op.TRUNCATE:
            self.emptied = place, transaction
            return
        if op == Op.DELETE or (op == Op.UPDATE and key != after):
            self.ends[key] = place
            self._by(key, transaction)
        if op == Op.UPDATE and key != after:
            self.becomes[place] = after
            place = Place(place.lsn, place.op + 1)
        if op != Op.DELETE:
            self.tells[after] = place
            self._by(after, transaction)

    def _by(self, key: str, transaction: int) -> None:
        ids = self.ids.setdefault(key, [])
        if transaction not in ids[-1:]:
            ids.append(transaction)

    def of(self, keys: Sequence[str], has: Sequence[bool]) -> Own | None:
        """Of rows that a version changed, in the order of their changes; None if of one of them nothing is told."""
        found: list[tuple[Place, int]] = []
        ids: list[list[int]] = []
        for at, (key, there) in enumerate(zip(keys, has, strict=True)):
            by = self.ids.get(key, [])
            place = self.tells.get(key) if there else self.ends.get(key)
            if not there and self.emptied and (place is None or place < self.emptied[0]):
                place, by = self.emptied[0], [self.emptied[1]]
            if place is None:
                return None
            found.append((place, at))
            ids.append(by)
        found.sort()
        order = [at for _, at in found]
        places = [place for place, _ in found]
        shown = {each for by in ids for each in by}
        every = {each for by in self.ids.values() for each in by} | ({self.emptied[1]} if self.emptied else set())
        told = {keys[at]: n for n, at in enumerate(order) if has[at]}
        moves = {
            n: told[new]
            for n, (place, at) in enumerate(found)
            if not has[at] and (new := self.becomes.get(place)) in told and self.tells[new] == (place.lsn, place.op + 1)
        }
        return Own(order, places, [ids[at] for at in order], moves, sorted(every - shown))


@dataclass(frozen=True)
class Own:
    """Of rows that a version changed: what the source's log says of each."""

    #: Which of the rows as they were given comes first, and so on.
    order: list[int]
    places: list[Place]
    ids: list[list[int]]
    #: Rows that ended, and the row that each has become: by their numbers in that order.
    moves: Mapping[int, int]
    #: Transactions of the batch of which nothing is left to tell.
    others: list[int]

    @cached_property
    def origins(self) -> Mapping[int, int]:
        return {new: old for old, new in self.moves.items()}


class Entries:
    """The change log beside a table, read as it is asked for."""

    def __init__(self, log: DeltaLog) -> None:
        self._log = log
        self._columns: tuple[Column, ...] = ()
        self._forget()

    def _forget(self) -> None:
        #: Versions by the batch that they are of; each writer's first batch among them; the first and last of them.
        self._found: dict[tuple[str, int], list[int]] = {}
        self._least: dict[str, int] = {}
        self._low = self._high = -1

    def told(self, writer: str, batch: int, key: Key) -> Told | None:
        """What the log has of a batch; None if it has nothing, or rows that were read and belong to no transaction."""
        commits = map(self._log.commit, self._versions(writer, batch))
        parts = [self._log.rows(file, self._columns) for commit in commits if commit for file in commit.added]
        if not parts or any(pc.any(pc.equal(each.column("phase"), Phase.SNAPSHOT)).as_py() for each in parts):
            return None
        try:
            changes = [change for each in parts for change in _changes(each, key)]
        except (pa.ArrowException, TypeError):
            # Keys that do not read as the table has them; a change without a place.
            return None
        told = Told()
        for each in sorted(changes, key=lambda change: change[1]):
            told.add(*each)
        return told

    def _versions(self, writer: str, batch: int) -> list[int]:
        """Those that wrote a batch: before the table that is served was written."""
        if len(self._found) > _KNOWN:
            self._forget()
        if self._high < 0:
            if (latest := self._log.latest()) is None:
                return []
            self._columns = tuple(each for each in self._log.state(latest).metadata.columns if each.name in _READ)
            self._low, self._high = latest + 1, latest
        while (commit := self._log.commit(self._high + 1)) is not None:
            self._high += 1
            self._note(commit)
        while self._least.get(writer, batch) >= batch and (commit := self._log.commit(self._low - 1)) is not None:
            self._low -= 1
            self._note(commit)
        return self._found.get((writer, batch), [])

    def _note(self, commit: Commit) -> None:
        if mark := marked(commit):
            self._found.setdefault(mark, []).append(commit.version)
            self._least[mark[0]] = min(mark[1], self._least.get(*mark))


def _changes(rows: pa.Table, key: Key) -> Iterator[tuple[str, Place, int, str, str]]:
    """Of each change of rows: what it does, where it is told, by which transaction, and the row's key before and after.

    Raises TypeError if that is not told of one.
    """
    wanted = pc.is_in(rows.column("op"), value_set=pa.array([*Op.ROWS, Op.TRUNCATE], pa.large_string()))
    rows = rows.filter(wanted).combine_chunks()
    position, ids = (rows.column("position").combine_chunks(), _first(rows.column("transaction").combine_chunks()))
    old, new = (key.of(rows.column(name).combine_chunks()) for name in ("key", "after"))
    places = zip(*(pc.list_element(position, n).to_pylist() for n in (0, 1)), strict=True)
    for op, place, each, was, now in zip(rows.column("op").to_pylist(), places, ids.to_pylist(), old, new, strict=True):
        yield op, Place(*map(int, place)), int(each), was, now if op == Op.UPDATE else was


def _first(transactions: pa.Array) -> Any:
    """The first of the ids that each tells: its first field. Any: an array."""
    return pc.list_element(pc.struct_field(transactions, [0]), 0)
