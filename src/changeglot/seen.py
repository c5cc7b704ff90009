"""Messages of a transport that gives some of them twice: of those that a pipeline sent, each counts once.

A pipeline numbers what it sends into a lane, batch by batch. After a failure it sends a batch again, with the same
numbers, and it begins no batch before all of the last one has arrived. So of each sender it is enough to know, for each
lane, the newest batch and which of its numbers have been read: what is of an older batch has been there, and so has
what is among those numbers. That is noted for each batch of ours before anything of it is applied, so that a batch that
is replayed is cut as it was the first time.

A broker may have refused one message and taken the next, which then lies before it. So a message's place is where its
sender's batch began, and its number.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from changeglot.apply.order import number
from changeglot.notes import Notes
from changeglot.sources.base import LANE, PLACE, SENT

_BATCH, _NUMBER, _WRITER = "__batch", "__number", "__writer"
_WHO = (LANE, _WRITER)
_WHAT = (*_WHO, _BATCH, _NUMBER)
#: A set of numbers is kept as bits, in pieces of so many bytes, as Spark has them.
_PIECE, _BITS, _SIZE = "__piece", "__bits", 4096
_COLUMNS = f"{LANE} STRING, {_WRITER} STRING, {_BATCH} BIGINT"


class Newest(NamedTuple):
    """What has been read of a sender's newest batch: its number, and the bits of the messages by piece."""

    batch: int
    #: Where its first message stood.
    began: str
    bits: dict[int, int]

    def with_(self, other: Newest) -> Newest:
        """What has been read with both."""
        if self.batch != other.batch:
            return max(self, other, key=lambda each: each.batch)
        pieces = self.bits.keys() | other.bits.keys()
        bits = {piece: self.bits.get(piece, 0) | other.bits.get(piece, 0) for piece in pieces}
        return Newest(self.batch, min(self.began, other.began), bits)

    def meets(self, other: Newest | None) -> bool:
        """Have both some numbers, of one batch?"""
        return other is not None and any(bits & other.bits.get(piece, 0) for piece, bits in self.bits.items())


#: By lane and writer.
_Known = dict[tuple[str, str], Newest]


@dataclass(frozen=True)
class Seen:
    """What a batch's rows tell of the messages they come from; LANE, SENT and PLACE are among their columns."""

    rows: DataFrame
    #: Was any of it sent by a pipeline?
    some: bool
    #: Did a message come twice in the batch itself?
    twice: bool
    #: Did some come that may have been read in an earlier batch?
    old: bool
    before: _Known

    def once(self) -> DataFrame:
        """The rows without those of messages that were sent before, in their place."""
        rows = _numbered(self.rows)
        if self.twice:
            first = _messages(rows).where(F.col("__first") != F.col("__last")).drop("__last")
            same = [rows[name] == first[name] for name in _WHAT]
            rows = rows.join(first, [*same, rows[PLACE] > first["__first"]], "left_anti")
        if self.old:
            known = F.broadcast(_table(rows, self.before))
            who = [rows[name] == known[f"__of{name}"] for name in _WHO]
            older = rows[_BATCH] < known["__of_batch"]
            at = F.bitmap_bit_position(rows[_NUMBER])
            byte = F.conv(F.hex(F.substring(known[_BITS], (at / 8).cast("int") + 1, F.lit(1))), 16, 10).cast("int")
            there = (rows[_BATCH] == known["__of_batch"]) & (F.bitmap_bucket_number(rows[_NUMBER]) == known[_PIECE])
            was_read = there & (F.getbit(byte, (at % 8).cast("int")) == 1)
            rows = rows.join(known, [*who, older | was_read], "left_anti")
        if self.some:
            began = F.broadcast(self._beginnings(rows))
            place = F.concat(F.col("__began"), F.lit(" "), number(F.col(_NUMBER).cast("string")))
            rows = rows.join(began, [*_WHO, _BATCH], "left").withColumn(PLACE, F.coalesce(place, PLACE))
        return rows.select(*self.rows.columns)

    def _beginnings(self, rows: DataFrame) -> DataFrame:
        """Where each sender's batches began: those that were begun before, where they did then."""
        here = _messages(rows).groupBy(*_WHO, _BATCH).agg(F.min("__first").alias("__here"))
        told = [(*who, one.batch, one.began) for who, one in self.before.items()]
        there = rows.sparkSession.createDataFrame(told, f"{_COLUMNS}, __there STRING")
        joined = here.join(F.broadcast(there), [*_WHO, _BATCH], "left")
        return joined.select(*_WHO, _BATCH, F.least("__here", "__there").alias("__began"))


def seen(rows: DataFrame, notes: Notes, batch: int) -> Seen:
    """Looks at the rows of a batch, and notes what it has seen."""
    messages = _messages(_numbered(rows))
    doubled = F.count_if(F.col("__first") != F.col("__last")).alias("doubled")
    bounds = (F.min(_BATCH).alias("oldest"), F.max(_BATCH).alias("newest"))
    found = {(row[LANE], row[_WRITER]): row for row in messages.groupBy(*_WHO).agg(*bounds, doubled).collect()}
    if not found:
        return Seen(rows, some=False, twice=False, old=False, before={})
    before = _read(notes.before(batch) or ())
    # The rest of a batch that was read in part is not old, unless some of it is there again.
    asked = {(*who, row["newest"]) for who, row in found.items()}
    asked |= {(*who, before[who].batch) for who in found if who in before}
    now = _bits(messages, sorted(asked))
    after = dict(before)
    for who, row in found.items():
        one = now[*who, row["newest"]]
        after[who] = one.with_(before[who]) if who in before else one
    notes.write(batch, _note(after))
    old = any(
        row["oldest"] < before[who].batch or before[who].meets(now.get((*who, before[who].batch)))
        for who, row in found.items()
        if who in before
    )
    return Seen(rows, some=True, twice=any(row["doubled"] for row in found.values()), old=old, before=before)


def _bits(messages: DataFrame, asked: list[tuple[str, str, int]]) -> dict[tuple[str, str, int], Newest]:
    """Which numbers there are of the batches that are asked for, by lane, writer and batch."""
    wanted = F.broadcast(messages.sparkSession.createDataFrame(asked, _COLUMNS))
    piece = F.bitmap_bucket_number(_NUMBER).alias(_PIECE)
    bits = F.bitmap_construct_agg(F.bitmap_bit_position(_NUMBER)).alias(_BITS)
    pieces = messages.join(wanted, [*_WHO, _BATCH]).groupBy(*_WHO, _BATCH, piece)
    found: dict[tuple[str, str, int], Newest] = {}
    for row in pieces.agg(bits, F.min("__first").alias("began")).collect():
        what = (row[LANE], row[_WRITER], row[_BATCH])
        one = Newest(row[_BATCH], row["began"], {row[_PIECE]: int.from_bytes(row[_BITS], "little")})
        found[what] = one.with_(found[what]) if what in found else one
    return found


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
    sent = rows.where(F.col(_WRITER).isNotNull() & (F.col(_NUMBER) > 0) & F.col(_BATCH).isNotNull())
    return sent.groupBy(*_WHAT).agg(F.min(PLACE).alias("__first"), F.max(PLACE).alias("__last"))


def _note(known: _Known) -> list[list[Any]]:
    """Any: JSON."""

    def text(bits: int) -> str:
        return base64.b64encode(zlib.compress(bits.to_bytes(_SIZE, "little"))).decode()

    return [
        [*who, one.batch, one.began, piece, text(bits)]
        for who, one in sorted(known.items())
        for piece, bits in sorted(one.bits.items())
    ]


def _read(note: Any) -> _Known:
    """Any: JSON."""
    known: _Known = {}
    for lane, writer, batch, began, piece, text in note:
        bits = int.from_bytes(zlib.decompress(base64.b64decode(text)), "little")
        known.setdefault((lane, writer), Newest(batch, began, {})).bits[piece] = bits
    return known


def _table(like: DataFrame, known: _Known) -> DataFrame:
    """A row for each piece."""
    schema = f"__of{LANE} STRING, __of{_WRITER} STRING, __of_batch BIGINT, {_PIECE} BIGINT, {_BITS} BINARY"
    rows = [
        (*who, one.batch, piece, bits.to_bytes(_SIZE, "little"))
        for who, one in known.items()
        for piece, bits in one.bits.items()
    ]
    return like.sparkSession.createDataFrame(rows, schema)
