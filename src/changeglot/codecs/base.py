"""What a format is: expressions both ways, and a table of what it cannot carry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from changeglot import kernel
from changeglot.columns import EXACT
from changeglot.model import CHANGE, Change, Op
from changeglot.tables import Tables

#: A message's columns, `key` and `value`, or the columns of a stage by name.
Stage = dict[str, Column]


def nothing(_: Change) -> Column:
    """NULL: what is lost is gone."""
    return F.lit(None)


@dataclass(frozen=True)
class Loss:
    """A field that a format cannot carry, why, and what it is after a round trip."""

    field: str
    why: str
    becomes: Callable[[Change], Column] = nothing


@dataclass(frozen=True)
class Decoder(ABC):
    """Messages as expressions of the changes that they tell. Knows no session, no DataFrame and no transport.

    Decoding goes in stages, each a `select` of its own, so that Spark parses once and generates code for all of it:
    body (what was read), rows (where a message holds many), columns, images, change or problem.
    """

    name: ClassVar[str]

    @abstractmethod
    def body(self, message: Stage) -> Stage:
        """What the kernel reads of the message; `body` has the problem, if there is one."""

    def read(self, key: Column) -> Column:
        """STRUCT<position, epoch>, NULL if messages do not tell: at which position of its log a row was read."""
        return F.lit(None).cast("struct<position: array<decimal(20, 0)>, epoch: int>")

    def opened(self, body: Stage) -> Stage:
        """What else is taken from the body once, for the stages that follow."""
        return {}

    def silent(self, body: Stage) -> Column | None:
        """BOOLEAN: does the message say nothing at all (a tombstone)? None if no message is such."""
        return None

    def rows(self, body: Stage) -> Column | None:
        """ARRAY: what becomes one change each; None if a message is one change."""
        return None

    @abstractmethod
    def op(self, body: Stage) -> Column:
        """STRING: what the change does; NULL for a word that the format does not have."""

    @abstractmethod
    def columns(self, body: Stage, row: Column, op: Column) -> Column:
        """COLUMNS, as the message declares them; else the names and JSON kinds of what is there."""

    @abstractmethod
    def images(self, body: Stage, row: Column, op: Column, columns: Column) -> tuple[Column, Column]:
        """Before and after, each STRUCT<values, problem>."""

    @abstractmethod
    def change(self, body: Stage, op: Column, columns: Column, before: Column, after: Column) -> Change:
        """The change; counts only where there is no problem."""

    def problem(self, body: Stage, row: Column, change: Change) -> Column:
        """STRING: what is wrong with a message that could be read, NULL if nothing."""
        return F.when(change["op"].isNull(), F.lit("no operation"))


@dataclass(frozen=True)
class Codec(Decoder):
    """A message format, both ways.

    Encoding goes in stages too: told (what is asked for more than once), parts (where a change needs several messages),
    declared (the columns as the format wants them), message.
    """

    aliases: ClassVar[tuple[str, ...]]
    speaks: ClassVar[frozenset[str]]
    #: Paths of members that prove the format, shown as evidence.
    marks: ClassVar[tuple[str, ...]]

    tables: Tables = field(default=Tables())

    @property
    @abstractmethod
    def losses(self) -> tuple[Loss, ...]:
        """What does not survive encode and decode, exactly; a field that is not named here does."""

    @abstractmethod
    def detect(self, seen: Column) -> Column:
        """BOOLEAN, never NULL: do the members that were seen make it mine? True for one codec at most."""

    # Encoding

    def tells(self, change: Change) -> Column:
        """BOOLEAN: has the format words for this change, and the change what they need?"""
        c = change
        needs = F.when(c["op"].isin(Op.INSERT, Op.UPDATE), c["after"]).when(
            c["op"] == Op.DELETE, F.coalesce(c["before"], c["key"])
        )
        return c["op"].isin(sorted(self.speaks)) & (~c["op"].isin(*Op.ROWS) | needs.isNotNull())

    def declared(self, change: Change) -> Column:
        """COLUMNS as the format's own types name them."""
        return change["columns"]

    def parts(self, change: Change) -> Column | None:
        """ARRAY<STRING>: a word for each message that the change needs; None if always one."""
        return None

    def linked(self, whole: Change, part: Column) -> dict[str, Column]:
        """What one half of a key change says of the other: JSON texts, by their names in `extra`."""
        return {}

    def told(self, change: Change) -> Change:
        """The change with what the message and the losses both ask for: `old` and `new` are images to write."""
        return {**change, "moved": moved(change)}

    @abstractmethod
    def message(self, change: Change, columns: Column, part: Column, whole: Change) -> tuple[Column, Column]:
        """Key and value, BINARY, of a change that the format tells; of one in parts, `change` is the part."""


# What several formats share


def key_after(change: Change) -> Column:
    """MAP: the key of the row after the change."""
    return kernel.pick(change["after"], change["key"], F.map_keys(change["key"]))


def moved(change: Change) -> Column:
    """BOOLEAN, never NULL: does an update change the row's key?"""
    if "moved" in change:
        return change["moved"]
    there = (change["op"] == Op.UPDATE) & change["key"].isNotNull() & change["after"].isNotNull()
    return F.coalesce(there & (F.size(kernel.differ(change["key"], key_after(change))) > 0), F.lit(False))


def half(change: Change, part: Column) -> Change:
    """The change, or of one that is told as two: its `delete` of the old row, or its `insert` of the new."""
    removes, adds = part == "delete", part == "insert"
    return {
        **change,
        "op": F.when(removes, Op.DELETE).when(adds, Op.INSERT).otherwise(change["op"]),
        "key": F.when(adds, key_after(change)).otherwise(change["key"]),
        **{name: F.when(~adds, change[name]) for name in ("before", "old") if name in change},
        **{name: F.when(~removes, change[name]) for name in ("after", "new") if name in change},
        "moved": F.lit(False),
    }


def log_place(change: Change) -> Column:
    """DECIMAL: where the transaction is in the log, as one number that grows as the log does.

    Of a file's number, a place in it and a row: file and place, which has 32 bits; else the first number.
    """
    position = change["position"]
    first, place = F.get(position, 0), F.get(position, 1)
    both = first * F.lit(1 << 32).cast(EXACT) + F.least(place, F.lit((1 << 32) - 1).cast(EXACT))
    # A first number of 64 bits, SQL Server's, is no file's.
    return F.when((F.size(position) >= 3) & (first < 1 << 31), both.try_cast(EXACT)).otherwise(first)


def place_in_transaction(change: Change) -> Column:
    """BIGINT: the order in the transaction; else the number of the position that tells it."""
    position = change["position"]
    told = F.when(F.size(position) >= 3, F.get(position, 2)).otherwise(F.get(position, 1))
    return F.coalesce(change["transaction"]["order"], told.try_cast("bigint"))


def raw(extra: Column, name: str) -> Column:
    """BINARY: JSON text kept under that name, NULL if there is none."""
    return extra[name].cast("binary")


def only(field: str, *ops: str) -> Callable[[Change], Column]:
    """The field of a change with one of the ops, of a row change if none is named; else NULL."""
    return lambda change: F.when(change["op"].isin(*(ops or Op.ROWS)), change[field])


def own_words(*prefixes: str) -> Callable[[Change], Column]:
    """Of `extra` only what begins with one of the prefixes; NULL if nothing does."""
    return lambda change: kernel.prefixed(change["extra"], *prefixes)


def lost(codec: Codec, change: Change) -> Column:
    """ARRAY<STRING>: fields of this change, as told, that the format does not carry; `op` if it has no word for it."""
    now = F.struct(*(part_of(change, loss.field).alias(loss.field) for loss in codec.losses))
    then = F.struct(*(loss.becomes(change).cast(type_of(loss.field)).alias(loss.field) for loss in codec.losses))
    spoken = F.coalesce(codec.tells(change), F.lit(False))
    return F.when(spoken, kernel.unlike(now, then)).otherwise(F.array(F.lit("op")))


def part_of(change: Change, path: str) -> Column:
    """A field of the change, `relation.tenant` for instance."""
    first, *more = path.split(".")
    value = change[first]
    for name in more:
        value = value[name]
    return value


def type_of(path: str) -> T.DataType:
    """The type of a field of the change, as part_of has it."""
    kind: T.DataType = CHANGE
    for name in path.split("."):
        assert isinstance(kind, T.StructType)
        kind = kind[name].dataType
    return kind
