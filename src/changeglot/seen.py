"""Messages of a transport that gives some of them twice: of those that a pipeline sent, each counts once.

A pipeline numbers what it sends into a lane, batch by batch and in order. After a failure it sends the same messages
with the same numbers again. So of one sender a lane brings numbers that rise, or that have been there: what is not
above the highest that was read is a double. The highest of each lane is noted for each batch, before anything of it is
applied, so that a batch that is replayed is cut as it was the first time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from changeglot.notes import Notes
from changeglot.sources.base import LANE, PLACE, SENT

_BATCH, _NUMBER, _WRITER = "__batch", "__number", "__writer"
_WHO = (LANE, _WRITER)
_WHAT = (*_WHO, _BATCH, _NUMBER)
#: Of a lane and a writer: batch and number.
_Highest = dict[tuple[str, str], tuple[int, int]]


@dataclass(frozen=True)
class Seen:
    """What a batch's rows tell of the messages they come from; LANE, SENT and PLACE are among their columns."""

    rows: DataFrame
    #: For each lane and writer: `lowest`, `highest`, and how many messages come `twice` in the batch itself.
    found: list[Row]
    before: _Highest

    @property
    def some_twice(self) -> bool:
        """Are there messages that were sent before?"""
        return self._in_batch or self._in_earlier

    @property
    def _in_batch(self) -> bool:
        return any(row["twice"] for row in self.found)

    @property
    def _in_earlier(self) -> bool:
        return any(tuple(row["lowest"]) <= self.before.get((row[LANE], row[_WRITER]), (-1, -1)) for row in self.found)

    def once(self) -> DataFrame:
        """The rows without those of messages that were sent before; without LANE and SENT."""
        rows = _numbered(self.rows)
        if self._in_batch:
            first = _messages(rows).where(F.col("__first") != F.col("__last")).drop("__last")
            same = [rows[name] == first[name] for name in _WHAT]
            rows = rows.join(first, [*same, rows[PLACE] > first["__first"]], "left_anti")
        if self._in_earlier:
            known = F.broadcast(_table(rows, self.before))
            same = [rows[name] == known[f"__of_{name}"] for name in _WHO]
            told = F.struct(_BATCH, _NUMBER) <= F.struct("__seen_batch", "__seen_number")
            rows = rows.join(known, [*same, told], "left_anti")
        return rows.select(*(name for name in self.rows.columns if name not in (SENT, LANE)))


def seen(rows: DataFrame, notes: Notes, batch: int) -> Seen:
    """Looks at the rows of a batch, and notes what it has seen."""
    numbers = _messages(_numbered(rows)).groupBy(*_WHO)
    highest, lowest = (each(F.struct(_BATCH, _NUMBER)) for each in (F.max, F.min))
    twice = F.count_if(F.col("__first") != F.col("__last"))
    found = numbers.agg(highest.alias("highest"), lowest.alias("lowest"), twice.alias("twice")).collect()
    before: _Highest = {}
    if found:
        before = {(lane, writer): (at, number) for lane, writer, at, number in notes.before(batch) or ()}
        after = dict(before)
        for row in found:
            who = (row[LANE], row[_WRITER])
            after[who] = max(after.get(who, (-1, -1)), tuple(row["highest"]))
        notes.write(batch, [[*who, *number] for who, number in sorted(after.items())])
    return Seen(rows, found, before)


def _numbered(rows: DataFrame) -> DataFrame:
    words = F.split(F.col(SENT), " ", 3)
    return rows.withColumns(
        {
            _BATCH: F.try_element_at(words, F.lit(1)).try_cast("bigint"),
            _NUMBER: F.try_element_at(words, F.lit(2)).try_cast("bigint"),
            _WRITER: F.try_element_at(words, F.lit(3)),
        }
    )


def _messages(rows: DataFrame) -> DataFrame:
    """One row a message that a pipeline sent: its first and its last place in the batch."""
    sent = rows.where(F.col(_WRITER).isNotNull() & F.col(_NUMBER).isNotNull() & F.col(_BATCH).isNotNull())
    return sent.groupBy(*_WHAT).agg(F.min(PLACE).alias("__first"), F.max(PLACE).alias("__last"))


def _table(like: DataFrame, numbers: _Highest) -> DataFrame:
    rows: list[tuple[Any, ...]] = [(*who, *number) for who, number in numbers.items()]
    schema = f"__of_{LANE} STRING, __of_{_WRITER} STRING, __seen_batch BIGINT, __seen_number BIGINT"
    return like.sparkSession.createDataFrame(rows, schema)
