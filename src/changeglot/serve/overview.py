"""The tables that may be asked for: how many rows each has, and when it last changed. Files of rows are not read."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import pyarrow.compute as pc

from changeglot.apply.scd1 import DELETED
from changeglot.serve.delta import Commit, DeltaLog, Gone, State, Unreadable
from changeglot.serve.entries import marked
from changeglot.serve.lake import Lake

logger = logging.getLogger(__name__)

#: Seconds for which what was found is told to all who ask.
_FRESH: Final = 1.0
#: Tables that are told of, at most; and versions that are looked at for the last that changed something.
_TABLES, _VERSIONS = 1_000, 100
_PLAIN: Final = re.compile(r"[a-z_][a-z0-9_]*")


@dataclass(frozen=True)
class Seen:
    """A table as it was when it was looked at."""

    commit: Commit
    rows: int
    changed_at: int | None
    #: Who wrote the last batch, and which that is.
    mark: tuple[str, int] | None


@dataclass
class Overview:
    """What is known of the tables of a lake."""

    lake: Lake
    seen: dict[tuple[str, ...], Seen] = field(default_factory=dict)
    told: bytes = b""
    looked: float = float("-inf")
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def json(self) -> bytes:
        """All of it, at most a second old."""
        async with self.lock:
            if time.monotonic() - self.looked > _FRESH:
                places = await self.lake.work(self.lake.places)
                tables = [await self.lake.work(partial(self._table, place)) for place in places[:_TABLES]]
                self.seen = {place: seen for place, seen in self.seen.items() if place in set(places)}
                told = {
                    "now": _time(int(time.time() * 1000)),
                    "tables": [each for each in tables if each],
                    "left_out": len(places[_TABLES:]),
                }
                self.told, self.looked = json.dumps(told).encode(), time.monotonic()
            return self.told

    def _table(self, place: tuple[str, ...]) -> dict[str, Any] | None:
        """What is told of a table; None if nothing is in it yet. Any: JSON."""
        name = {"table": asked_as(place)}
        try:
            seen = self._looked(place)
        except (Unreadable, Gone) as error:
            return {**name, "problem": error.what}
        except OSError as error:
            logger.warning("a table cannot be looked at", extra={"table": name["table"], "why": str(error)})
            return {**name, "problem": "it cannot be read now"}
        if seen is None:
            return None
        writer, batch = seen.mark or ("", None)
        finished = self.lake.finished(writer) if writer else None
        return {
            **name,
            "rows": seen.rows,
            "version": seen.commit.version,
            "changed_at": seen.changed_at and _time(seen.changed_at),
            "batch": batch,
            "lag_seconds": None if finished is None or finished.lag is None else round(finished.lag, 3),
        }

    def _looked(self, place: tuple[str, ...]) -> Seen | None:
        log = self.lake.log(place)
        latest = log.latest()
        if latest is None or (newest := log.commit(latest)) is None:
            return None
        known = self.seen.get(place)
        if known is None or known.commit != newest:
            known = self.seen[place] = Seen(newest, _rows(log, log.state(latest)), *_last(log, newest))
        return known


def _last(log: DeltaLog, newest: Commit) -> tuple[int | None, tuple[str, int] | None]:
    """When rows last changed, and the last batch; None of what is too long ago."""
    changed_at = mark = None
    commit: Commit | None = newest
    for _ in range(_VERSIONS):
        if commit is None or (changed_at is not None and mark is not None):
            break
        if changed_at is None and (commit.added or commit.removed):
            changed_at = commit.at
        mark = mark or marked(commit)
        commit = log.commit(commit.version - 1)
    return changed_at, mark


def _rows(log: DeltaLog, state: State) -> int:
    deleted = next((each for each in state.metadata.columns if each.name == DELETED), None)
    if deleted is None:
        return sum(map(log.count, state.files))
    # Where rows are only marked as deleted, the log does not tell how many are.
    marks = [log.rows(file, (deleted,)).column(DELETED) for file in state.files]
    return sum(len(each) - (pc.sum(each).as_py() or 0) for each in marks)


def asked_as(place: tuple[str, ...]) -> str:
    """The name of a table as one asks for it.

    >>> asked_as(("shop", "Big orders"))
    'shop."Big orders"'
    """
    return ".".join(part if _PLAIN.fullmatch(part) else '"' + part.replace('"', '""') + '"' for part in place)


def _time(millis: int) -> str:
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds")
