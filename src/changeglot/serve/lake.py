"""The tables of a lake that may be asked for, by their names; and who waits for changes of each."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from pyarrow import fs

from changeglot.apply.route import WORDS, Rule
from changeglot.serve.answers import shape_of
from changeglot.serve.asked import Asked, Invalid
from changeglot.serve.delta import Cache, DeltaLog, Gone, Replaced, Unreadable
from changeglot.serve.entries import Entries
from changeglot.serve.history import History
from changeglot.serve.options import Serve
from changeglot.serve.shapes import Definition, Shape
from changeglot.sinks.base import safe, unescaped
from changeglot.sinks.delta import FINISHED
from changeglot.tables import matches
from changeglot.target import ENDED, LOG, VERSIONS

logger = logging.getLogger(__name__)

#: Runs what reads tables, away from the loop. Any: what it gives.
Work = Callable[[Callable[[], Any]], Awaitable[Any]]
#: Seconds for which a finished batch is believed to be the last: who believes it knows too little, never too much.
_RECENT = 1.0
#: Shapes of a table that are remembered.
_SHAPES = 10_000
#: Ends of the names of tables that stand beside those of current rows.
_BESIDE = (LOG, VERSIONS, ENDED)
#: Folders of a lake that hold what is ours alone.
_OWN = ("changeglot", "_changeglot")
#: Tells who waits what has changed, at once; false if that takes more than a moment.
Tell = Callable[[], bool]


class Busy(Exception):
    """More is asked for than can be read."""


def _settle(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)


class Finished(NamedTuple):
    """A batch that all tables have."""

    batch: int
    #: In the source's log, if it has one.
    number: int | None
    #: Seconds from when its newest change was made until it was applied, if that is known.
    lag: float | None


@dataclass
class Served:
    """One table, its shapes, and who waits for them."""

    history: History
    look: float
    work: Work
    #: The last batch of a writer that all tables have, or had a moment ago.
    finished: Callable[[str], Finished | None]
    shapes: OrderedDict[tuple[Definition, tuple[str, ...]], Shape] = field(default_factory=OrderedDict)
    waiting: dict[int, tuple[Shape, dict[asyncio.Future[bool], Tell]]] = field(default_factory=dict)
    looked: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    tail: asyncio.Task[None] | None = None

    async def refresh(self, asked: Asked | None = None) -> None:
        """Reads what was committed to the table, unless that was just done. Raises Unreadable, OSError.

        What is `asked` for may come from a server that has read more.
        """
        began = time.monotonic()
        async with self.lock:
            if began - self.looked > self.look or (asked and self._behind(asked)):
                begun = time.monotonic()
                await self.work(self._advance)
                self.looked = begun

    def _advance(self) -> None:
        if self.history.tip < 0:
            self.history.advance()
        writer = self.history.facts.writer
        told = self.finished(writer) if writer else None
        self.history.advance()
        known = told if writer == self.history.facts.writer else None
        self.history.finish((known.batch, known.number) if known else None)

    def _behind(self, asked: Asked) -> bool:
        if self.history.tip < 0:
            return True
        tip = self.history.steps[self.history.tip]
        base = asked.handle.rpartition("-")[2]
        later = base.isdecimal() and len(base) < 19 and int(base) > tip.version
        return later or (asked.offset is not None and asked.offset.tx > tip.tx)

    def known(self, asked: Asked) -> Shape | None:
        """The shape that is asked for, if it was asked for before and the table is what it was."""
        found = self.shapes.get((asked.definition, asked.queryable))
        return found if found is not None and found.facts == self.history.facts else None

    def shape(self, asked: Asked) -> Shape:
        """The shape that is asked for. Raises Invalid."""
        found = self.shapes[asked.definition, asked.queryable] = shape_of(self.history, asked)
        if len(self.shapes) > _SHAPES:
            self.shapes.popitem(last=False)
        return found

    async def changed(self, shape: Shape, seen: int, seconds: float, tell: Tell = lambda: False) -> bool:
        """Waits until a version after `seen` has something for the shape, at most so long; gives what `tell` gave."""
        if self.history.tip != seen or seconds <= 0:
            return False
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        _, tells = self.waiting.setdefault(id(shape), (shape, {}))
        tells[future] = tell
        if self.tail is None or self.tail.done():
            self.tail = asyncio.create_task(self._follow(seen))
        # No task of its own: thousands wait.
        timer = asyncio.get_running_loop().call_later(seconds, _settle, future)
        try:
            return await future
        finally:
            timer.cancel()
            tells.pop(future, None)
            if not tells:
                self.waiting.pop(id(shape), None)

    def wake(self) -> None:
        """All who wait."""
        for _, tells in self.waiting.values():
            for future in tells:
                _settle(future)

    async def _follow(self, tip: int) -> None:
        """Tells who waits of the versions after `tip`, whoever reads them first, for as long as somebody waits."""
        while self.waiting:
            await asyncio.sleep(self.look)
            try:
                await self.refresh()
                if self.history.tip == tip:
                    continue
                known, tip = tip, self.history.tip
                shapes = [shape for shape, _ in self.waiting.values()]
                concerned = await self.work(partial(self._concerned, shapes, known))
            except (Busy, Unreadable, Gone, Replaced, OSError) as error:
                # Who waits is told by what it asks next.
                logger.warning("a table cannot be followed", extra={"table": self.history.name, "why": str(error)})
                self.wake()
                await asyncio.sleep(1)
                continue
            for number in concerned:
                for future, tell in self.waiting[number][1].items() if number in self.waiting else ():
                    if not future.done():
                        future.set_result(tell())

    def _concerned(self, shapes: Sequence[Shape], tip: int) -> list[int]:
        """The shapes for which the versions after `tip` have something."""
        if self.history.last_break > tip or tip < self.history.lowest or self.history.tip < tip:
            return [id(shape) for shape in shapes]
        versions = range(tip + 1, self.history.tip + 1)
        return [id(shape) for shape in shapes if any(shape.told(version) for version in versions)]


@dataclass
class Lake:
    """The tables in the folder of a sink."""

    path: str
    rules: tuple[Rule, ...]
    options: Serve
    work: Work
    tables: dict[tuple[str, ...], Served] = field(default_factory=dict)
    #: Of each writer, when it was looked and what was found.
    batches: dict[str, tuple[float, Finished | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.files, self.root = file_system(self.path)
        self.cache = Cache(self.options.cache_mb << 20)

    def may(self, place: tuple[str, ...]) -> bool:
        """Is it a table of current rows that the pipeline fills, and one that may be asked for?"""
        name = ".".join(place)
        if place[-1].endswith(_BESIDE) or place[0] in _OWN:
            return False
        filled = any("scd1" in rule.mode and matches(_pattern(rule), name) for rule in self.rules)
        return filled and any(matches(pattern, name) for pattern in self.options.tables)

    async def table(self, asked: Asked) -> Served:
        """The table that is asked for, as it is now. Raises Invalid if there is none, or several."""
        parts = asked.table
        named = parts if len(parts) > 1 else (self.options.schema, *parts)
        if named not in self.tables:
            found = await self.work(partial(self._places, named))
            if len(found) > 1:
                raise Invalid("table", f'"{".".join(named)}" is in several databases: name one')
            if not found:
                raise Invalid("table", f'table "{".".join(named)}" does not exist or may not be asked for')
            self.tables[named] = self._served(found[0])
        served = self.tables[named]
        try:
            await served.refresh(asked)
        except Replaced:
            # Who waits for the old one asks again, and then for the new one.
            if self.tables.get(named) is served:
                del self.tables[named]
            return await self.table(asked)
        except Unreadable as error:
            self.tables.pop(named, None)
            raise Invalid("table", f'table "{".".join(named)}" cannot be served: {error.what}') from error
        return served

    def _served(self, place: tuple[str, ...]) -> Served:
        relation = (place[-2] if len(place) > 1 else self.options.schema, place[-1])
        options = self.options
        entries = Entries(self.log((*place[:-1], place[-1] + LOG)))
        every, keep = max(1, options.snapshot_every), options.keep_versions
        history = History(self.log(place), relation, entries, every=every, keep=keep)
        return Served(history, options.look_ms / 1000, self.work, self.finished)

    def finished(self, writer: str) -> Finished | None:
        """The last batch of a writer that all tables have; None if it is not known. One look is for all tables."""
        looked, told = self.batches.get(writer, (float("-inf"), None))
        if (now := time.monotonic()) - looked > _RECENT:
            folder = "/".join((self.root, *FINISHED, safe(writer)))
            listed = self.files.get_file_info(fs.FileSelector(folder, allow_not_found=True))
            batch = max((int(each.base_name) for each in listed if each.base_name.isdecimal()), default=None)
            if batch is not None:
                with suppress(FileNotFoundError), self.files.open_input_file(f"{folder}/{batch}") as file:
                    note = json.loads(file.read())
                    told = Finished(batch, note["number"], note["lag"])
            self.batches[writer] = now, told
        return told

    def log(self, place: tuple[str, ...]) -> DeltaLog:
        return DeltaLog(self.files, self._folder(place), self.cache)

    def places(self) -> list[tuple[str, ...]]:
        """All tables that may be asked for, by name."""
        found: list[tuple[str, ...]] = []
        folders: list[tuple[str, ...]] = [()]
        # A name has three parts at most.
        for _ in range(3):
            below = [(*folder, name) for folder in folders for name in self._folders(folder)]
            tables = [place for place in below if self._is_there(place)]
            found += filter(self.may, tables)
            folders = [place for place in below if place[0] not in _OWN and place not in tables]
        return sorted(found)

    def _folders(self, place: tuple[str, ...]) -> list[str]:
        """The names whose folders are in that of a place."""
        listed = self.files.get_file_info(fs.FileSelector(self._folder(place), allow_not_found=True))
        names = {each.base_name: unescaped(each.base_name) for each in listed if each.type == fs.FileType.Directory}
        return [name for folder, name in names.items() if safe(name) == folder]

    def _folder(self, place: tuple[str, ...]) -> str:
        return "/".join((self.root, *map(safe, place)))

    def _places(self, named: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Where a table of that name may be: as it is said, without its schema, or within any database."""
        tried = [named]
        if len(named) == 2 and named[0] == self.options.schema:
            tried.append(named[1:])
        if len(named) == 2:
            listed = self.files.get_file_info(fs.FileSelector(self.root, allow_not_found=True))
            tried += [(each.base_name, *named) for each in listed if each.type == fs.FileType.Directory]
        return [place for place in tried if self.may(place) and self._is_there(place)]

    def _is_there(self, place: tuple[str, ...]) -> bool:
        return bool(self.files.get_file_info(f"{self._folder(place)}/_delta_log").type == fs.FileType.Directory)

    def wake(self) -> None:
        for served in self.tables.values():
            served.wake()


def _pattern(rule: Rule) -> str:
    """What the tables that a rule fills are called in the sink."""
    return WORDS.sub("*", rule.into) if rule.into else rule.match


def file_system(path: str) -> tuple[fs.FileSystem, str]:
    """Arrow's file system of a path as Spark knows it, and the path in it."""
    if "://" not in path and not path.startswith("file:"):
        return fs.LocalFileSystem(), path.rstrip("/")
    uri = re.sub(r"^s3[an]://", "s3://", re.sub(r"^file:/+", "file:///", path))
    made, root = fs.FileSystem.from_uri(uri)
    return made, root.rstrip("/")
