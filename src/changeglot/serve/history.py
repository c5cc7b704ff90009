"""The history of one table of current rows: its versions, numbered as Electric numbers transactions, and their changes.

Every version of the table is a transaction of the shape log. What it changed is told by its commit: the rows that are
in its new files, and those that its deletion vectors took away. So a client that has followed the log up to a version
has the rows of that version, whatever came late, in parts or twice.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from changeglot.apply.scd1 import DELETED
from changeglot.serve import spelling
from changeglot.serve.delta import Column, Commit, DeltaLog, File, Gone, Metadata, Replaced, State, Unreadable, arrow
from changeglot.serve.entries import Entries, Key, Own, marked
from changeglot.sinks.base import KEY

#: So many numbers are kept for the versions of one batch.
_BATCH: Final = 16
#: A number is left free after each: a client that follows events asks from there.
_STEP: Final = 2
#: Seconds after which it is looked whether a table is still the same.
_SURE: Final = 1.0


@dataclass(frozen=True)
class Facts:
    """What a shape stands on: where one of them is another, clients begin anew."""

    id: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    #: The column that marks deleted rows, if they are kept.
    deleted: Column | None
    writer: str | None
    #: Of the source's log, if its numbers are the table's.
    epoch: int | None

    @classmethod
    def of(cls, metadata: Metadata, writer: str | None, epoch: int | None) -> Facts:
        key = tuple(json.loads(metadata.properties.get(KEY, "[]")))
        own = tuple(each for each in metadata.columns if not each.name.startswith("__"))
        if not key or not set(key) <= {each.name for each in own}:
            raise Unreadable("the table has no key")
        deleted = next((each for each in metadata.columns if each.name == DELETED), None)
        return cls(metadata.id, key, own, deleted, writer, epoch)

    @property
    def read(self) -> tuple[Column, ...]:
        """The columns that are read of files."""
        return (*self.columns, self.deleted) if self.deleted else self.columns


@dataclass(frozen=True)
class Step:
    """One version: its number in the log, and whether shapes of the versions before it end here."""

    commit: Commit
    facts: Facts
    tx: int
    #: The number that its writer last told.
    told: int
    #: Which it tells: numbers do not depend on the versions before it.
    start: bool
    broken: bool
    #: Transactions of the source that are in it, if they are known: see Stand.
    seen: str = ""

    @property
    def version(self) -> int:
        return self.commit.version


@dataclass(frozen=True)
class Diff:
    """Rows that a version changed, each with what it was and what it is; rows of NULLs where it was or is not."""

    tx: int
    key: pa.Array
    old: pa.Table
    new: pa.Table
    had: pa.Array
    has: pa.Array
    #: What the source's log tells of them, in whose order they are then.
    own: Own | None = None
    _texts: dict[tuple[str, str], list[str]] = field(default_factory=dict, compare=False)

    def __len__(self) -> int:
        return len(self.key)

    @cached_property
    def keys(self) -> list[str]:
        """In JSON."""
        return list(spelling.quoted(self.key).to_pylist())

    def json(self, side: str, column: str) -> list[str]:
        """The values of a column of `old` or `new`, in JSON."""
        if (side, column) not in self._texts:
            values = getattr(self, side).column(column).combine_chunks()
            self._texts[side, column] = spelling.quoted(spelling.texts(values)).to_pylist()
        return self._texts[side, column]


class History:
    """Versions of a table, read as they are asked for. One thread at a time reads."""

    def __init__(
        self, log: DeltaLog, relation: tuple[str, str], entries: Entries | None = None, *, every: int, keep: int
    ) -> None:
        """`entries`: the change log of the table, if there is one."""
        self.log, self.relation, self.entries = log, relation, entries
        self.every, self.keep = every, keep
        self.steps: dict[int, Step] = {}
        self.lowest = self.tip = -1
        #: The last version known at which shapes ended; -1 if none is.
        self.last_break = -1
        #: All that was told of any table up to this number is in the versions of this one.
        self.finished = 0
        #: New shapes do not begin before this version: files of those before it are gone.
        self.whole = -1
        self._sure = time.monotonic()
        self._diffs: OrderedDict[int, Diff] = OrderedDict()
        self._states: OrderedDict[int, State] = OrderedDict()
        self._lock = threading.RLock()

    @property
    def name(self) -> str:
        return ".".join(f'"{part}"' for part in self.relation)

    @property
    def facts(self) -> Facts:
        return self.steps[self.tip].facts

    def advance(self) -> bool:
        """Reads what was committed since; true if something was. Raises Unreadable if there is no table, Replaced."""
        with self._lock:
            if self.tip < 0:
                latest = self.log.latest()
                if latest is None:
                    raise Unreadable("there is no such table")
                earliest = self.log.earliest()
                wanted = max(latest // self.every * self.every, earliest)
                self._load(self._anchor(wanted, latest, earliest), latest)
                return True
            if time.monotonic() - self._sure > _SURE and not self._same():
                raise Replaced("the table was removed, or made anew")
            found = False
            while (commit := self.log.commit(self.tip + 1)) is not None:
                step = self.steps[self.tip + 1] = self._next(commit, self.steps[self.tip])
                self.tip += 1
                if step.broken:
                    self.last_break, self.finished = self.tip, 0
                found = True
            if found:
                self._forget()
            return found

    def finish(self, told: tuple[int, int | None] | None) -> None:
        """Who writes has said which batch all its tables have, and which number that is in the source's log.

        It was looked at before the versions were.
        """
        batch, number = told or (-1, None)
        if self.facts.epoch is None:
            self.finished = _number(batch + 1) - 1
        elif number is not None:
            self.finished = number

    def _same(self) -> bool:
        """Is it still the table that was read?"""
        self._sure = time.monotonic()
        return self.log.commit(self.tip) == self.steps[self.tip].commit

    def _forget(self) -> None:
        """What nobody may ask for any more, but for the window that new shapes begin in."""
        least = min(self.tip - self.keep, self.base)
        lowest = max((v for v, step in self.steps.items() if step.start and v <= least), default=self.lowest)
        if lowest - self.lowest > self.every:
            self.steps = {version: step for version, step in self.steps.items() if version >= lowest}
            self.lowest = lowest

    def _load(self, lowest: int, latest: int) -> None:
        """Reads the versions from `lowest`, an anchor, up to the first that is known or the latest."""
        first = self._commit(lowest)
        mark, told, stand = marked(first), begun(first), first.stand
        facts = Facts.of(self.state(lowest).metadata, mark and mark[0], stand and stand.epoch)
        number = told[1] if told else 0
        seen = stand.seen if stand else ""
        steps = {lowest: Step(first, facts, number, number, told is not None, broken=False, seen=seen)}
        for version in range(lowest + 1, latest + 1):
            steps[version] = self._next(self._commit(version), steps[version - 1])
        self.steps = {**steps, **self.steps}
        self._find_break()
        self.lowest, self.tip = lowest, max(self.tip, latest)

    def _find_break(self) -> None:
        self.last_break = max((version for version, step in self.steps.items() if step.broken), default=-1)

    def _commit(self, version: int) -> Commit:
        if (found := self.log.commit(version)) is None:
            raise Gone(f"version {version} of the table is no longer there")
        return found

    def _next(self, commit: Commit, before: Step) -> Step:
        mark, stand, facts = marked(commit), commit.stand, before.facts
        writer, epoch = (mark[0], stand and stand.epoch) if mark else (facts.writer, facts.epoch)
        if commit.metadata or (writer, epoch) != (facts.writer, facts.epoch):
            facts = Facts.of(commit.metadata or self.state(commit.version).metadata, writer, epoch)
        broken = facts != before.facts
        told = begun(commit)
        number = told[1] if told else before.told
        start = told is not None and (broken or number != before.told)
        if start:
            tx = number
            # Who wrote the last one counts anew.
            broken = broken or tx <= before.tx
        else:
            tx = 0 if broken else before.tx + _STEP
        seen = (stand.seen if mark and stand else "") or ("" if broken else before.seen)
        return Step(commit, facts, tx, number, start, broken, seen)

    def _anchor(self, wanted: int, latest: int, earliest: int = 0) -> int:
        """The first version from `wanted` on that begins a batch, else the last before it, else the first there is."""
        before = self._run(wanted - 1)
        for version in range(wanted, latest + 1):
            if (commit := self.log.commit(version)) is None:
                continue
            told = begun(commit)
            if told and told != before:
                return version
            before = told or before
        version = wanted
        while version > earliest and (commit := self.log.commit(version - 1)) is not None:
            version -= 1
            told = begun(commit)
            if told and told != self._run(version - 1):
                return version
        return version

    def _run(self, version: int) -> tuple[str, int] | None:
        """The number that was last told at a version, and by whom."""
        while version >= 0:
            if (commit := self.log.commit(version)) is None:
                return None
            if told := begun(commit):
                return told
            version -= 1
        return None

    @property
    def base(self) -> int:
        """The version that a new shape begins with: the same for all servers, and for as long as may be."""
        window = self.tip // self.every
        broken = self.last_break
        while window >= 0:
            begin = max(window * self.every, broken, self.lowest, self.whole)
            for version in range(begin, self.tip + 1):
                if version in (broken, self.lowest, self.whole) or self.steps[version].start:
                    return version
            window -= 1
        return self.lowest

    def leave(self, version: int) -> None:
        """Files of that version or of later ones are gone: shapes that would begin with it begin with the newest."""
        with self._lock:
            if self.base <= version:
                self.whole = self.tip

    def reach(self, version: int) -> None:
        """Reads back as far as that version. Raises Gone if that is more than is kept."""
        with self._lock:
            if version >= self.lowest:
                return
            if version < self.tip - self.keep:
                raise Gone("more is asked for than is kept")
            window = version // self.every * self.every
            lowest = self.lowest
            anchor = self._anchor(window, lowest)
            if anchor > version:
                anchor = self._anchor(max(0, window - self.every), lowest)
            if anchor < lowest:
                self._load(anchor, lowest - 1)
                joint = self.steps[lowest]
                self.steps[lowest] = self._next(joint.commit, self.steps[lowest - 1])
                self._find_break()

    def state(self, version: int) -> State:
        with self._lock:
            if version not in self._states:
                self._states[version] = self.log.state(version)
                while len(self._states) > 4:
                    self._states.popitem(last=False)
            return self._states[version]

    def diff(self, version: int) -> Diff | None:
        """What the version changed; None if nothing."""
        step = self.steps[version]
        if not (step.commit.added or step.commit.removed):
            return None
        with self._lock:
            if version not in self._diffs:
                self._diffs[version] = self._compared(step)
                while len(self._diffs) > 64:
                    self._diffs.popitem(last=False)
            return self._diffs[version]

    def _compared(self, step: Step) -> Diff:
        gone, come = self._gathered(step, "gone"), self._gathered(step, "come")
        gone_keys, come_keys = self.keys(gone, step.facts), self.keys(come, step.facts)
        only = pc.indices_nonzero(pc.invert(pc.is_in(gone_keys, value_set=come_keys)))
        only = only.take(pc.sort_indices(gone_keys.take(only)))
        order = pc.sort_indices(come_keys)
        was = pc.index_in(come_keys.take(order), value_set=gone_keys)
        old_at = pa.concat_arrays([only.cast(pa.int64()), was.cast(pa.int64())])
        new_at = pa.concat_arrays([pa.nulls(len(only), pa.int64()), order.cast(pa.int64())])
        keys = pa.concat_arrays([gone_keys.take(only), come_keys.take(order)])
        if own := self._own(step, keys, new_at):
            by = pa.array(own.order, pa.int64())
            keys, old_at, new_at = keys.take(by), old_at.take(by), new_at.take(by)
        return Diff(
            step.tx,
            keys,
            gone.take(old_at),
            come.take(new_at),
            pc.is_valid(old_at),
            pc.is_valid(new_at),
            own,
        )

    def _own(self, step: Step, keys: pa.Array, new: pa.Array) -> Own | None:
        """What the source's log tells of changed rows; None if that is not known."""
        mark, facts = marked(step.commit), step.facts
        if facts.epoch is None or mark is None or self.entries is None:
            return None
        named = {each.name: each for each in facts.columns}
        told = self.entries.told(*mark, Key(self.name, tuple(named[name] for name in facts.key)))
        return told.of(keys.to_pylist(), pc.is_valid(new).to_pylist()) if told else None

    def _gathered(self, step: Step, which: str) -> pa.Table:
        """The rows that came or that are gone, of all files of a version."""
        facts = step.facts
        parts = [_alive(each, facts) for each in self._parts(step, which)]
        columns = [pa.field(each.name, arrow(each.kind)) for each in facts.columns]
        return pa.concat_tables(parts).combine_chunks() if parts else pa.schema(columns).empty_table()

    def _parts(self, step: Step, which: str) -> Iterator[pa.Table]:
        added = {file.path: file for file in step.commit.added}
        removed = {file.path: file for file in step.commit.removed}
        these, others = (added, removed) if which == "come" else (removed, added)
        for path, file in these.items():
            if path not in others:
                yield self.log.rows(file, step.facts.read)
            elif places := sorted(self._dead(others[path]) - self._dead(file)):
                yield self.log.rows(file, step.facts.read, places)

    def _dead(self, file: File) -> set[int]:
        return set(self.log.deleted(file.deleted)) if file.deleted else set()

    def keys(self, rows: pa.Table, facts: Facts) -> pa.Array:
        """The rows' keys as Electric writes them."""
        parts = [spelling.texts(rows.column(name).combine_chunks()) for name in facts.key]
        return spelling.keys(self.name, parts, rows.num_rows)

    def rows(self, version: int, file: File) -> pa.Table:
        """The rows of one of a version's files."""
        facts = self.steps[version].facts
        return _alive(self.log.rows(file, facts.read), facts)


def _alive(rows: pa.Table, facts: Facts) -> pa.Table:
    """The rows without those that are only marked as deleted."""
    if not facts.deleted:
        return rows
    return rows.filter(pc.invert(pc.fill_null(rows.column(DELETED), False))).drop_columns([DELETED])


def begun(commit: Commit) -> tuple[str, int] | None:
    """Who wrote it, and which number its batch has: in the source's log, else by itself; None if it has none."""
    mark, stand = marked(commit), commit.stand
    if mark is None or (stand and stand.number is None):
        return None
    return mark[0], stand.number if stand and stand.number is not None else _number(mark[1])


def _number(batch: int) -> int:
    return (batch + 1) << _BATCH
