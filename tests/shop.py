"""Random transactions of a small shop, as changes, and a plain model that replays them in their true order."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql import types as T

import changeglot
from changeglot.model import CHANGE, Op

TYPES = {"id": "bigint", "name": "varchar(40)", "amount": "decimal(12,2)"}
#: Any: values of a row as Python has them.
State = dict[str, Any]


@dataclass
class Model:
    """What tables should be: their rows, and every version of every row as (state, began, ended)."""

    rows: dict[tuple[str, int], State] = field(default_factory=dict)
    versions: dict[tuple[str, int], list[tuple[State, int, int | None]]] = field(default_factory=dict)
    changes: dict[str, int] = field(default_factory=dict)

    def put(self, table: str, key: int, state: State, at: int) -> None:
        if self.rows.get((table, key)) != state:
            if (table, key) in self.rows:
                self._close(table, key, at)
            self.versions.setdefault((table, key), []).append((state, at, None))
        self.rows[table, key] = state

    def end(self, table: str, key: int, at: int) -> None:
        self._close(table, key, at)
        del self.rows[table, key]

    def _close(self, table: str, key: int, at: int) -> None:
        state, began, _ = self.versions[table, key][-1]
        self.versions[table, key][-1] = (state, began, at)


class Shop:
    """Changes and, beside them, the model."""

    #: What updates tell: whole rows, only the columns that changed, or only those even where the key does.
    WHOLE, PARTS, MOVED_PARTS = range(3)

    def __init__(
        self,
        seed: int,
        database: str,
        tables: Sequence[str] = ("orders",),
        keys: int = 8,
        tells: int = WHOLE,
        moves: bool = True,
    ) -> None:
        self.rng, self.tells, self.moves = random.Random(seed), tells, moves
        self.database, self.tables, self.keys = database, tables, keys
        self.model = Model()
        self.changes: list[dict[str, Any]] = []

    def values(self, key: int) -> State:
        name = self.rng.choice(["", "x", "Zoë", "a'b\"c", None])
        return {"id": key, "name": name, "amount": self.rng.choice([None, Decimal("0.10"), Decimal("-7.25")])}

    def say(
        self,
        op: str,
        table: str,
        key: int | None = None,
        before: State | None = None,
        after: State | None = None,
        *,
        at: int | None = None,
        **fields: Any,
    ) -> None:
        """A change. Any: fields of a change."""

        def text(row: State | None) -> dict[str, str | None] | None:
            return None if row is None else {name: None if v is None else str(v) for name, v in row.items()}

        n = at or len(self.changes) + 1
        types = fields.pop("types", TYPES)
        columns = [Row(name=c, type=t, jdbc=None, nullable=c != "id", json=None) for c, t in types.items()]
        change: dict[str, Any] = dict.fromkeys(CHANGE.fieldNames())
        change |= {
            "op": op,
            "phase": "stream",
            "relation": Row(tenant=None, database=self.database, schema=None, table=table),
            "key": None if key is None else {"id": str(key)},
            "before": text(before),
            "after": text(after),
            "columns": columns if op in Op.ROWS else None,
            "position": [Decimal(n), Decimal(0)],
            "transaction": Row(ids=[str(n)], order=0, last=True),
            "origin": Row(kind="mysql", version=None, name=None),
            **fields,
        }
        self.changes.append(change)
        self.model.changes[table] = self.model.changes.get(table, 0) + 1

    def step(self) -> None:
        """One change that a shop could make."""
        table = self.rng.choice(self.tables)
        keys = sorted(k for t, k in self.model.rows if t == table)
        roll, n = self.rng.random(), len(self.changes) + 1
        if not keys or roll < 0.35:
            key = self.rng.randrange(self.keys)
            if key in keys:
                return
            after = self.values(key)
            self.say(Op.INSERT, table, key, None, after)
            self.model.put(table, key, after, n)
        elif roll < 0.75:
            key = self.rng.choice(keys)
            before, after = self.model.rows[table, key], self.values(key)
            if self.rng.random() < 0.5:
                after["amount"] = before["amount"]
            self.say(Op.UPDATE, table, key, *self._told(before, after, self.PARTS))
            self.model.put(table, key, after, n)
        elif roll < 0.85 and self.moves:
            key, new = self.rng.choice(keys), self.rng.randrange(self.keys)
            if new in keys:
                return
            before, after = self.model.rows[table, key], self.values(new)
            self.say(Op.UPDATE, table, key, *self._told(before, after, self.MOVED_PARTS))
            self.model.end(table, key, n)
            self.model.put(table, new, after, n)
        else:
            key = self.rng.choice(keys)
            self.say(Op.DELETE, table, key, self.model.rows[table, key], None)
            self.model.end(table, key, n)

    def _told(self, before: State, after: State, least: int) -> tuple[State, State]:
        """What an update tells of the row before and after it."""
        if self.tells < least:
            return before, after
        changed = [name for name in after if name == "id" or before[name] != after[name]]
        return {name: before[name] for name in changed}, {name: after[name] for name in changed}

    def messages(self, spark: SparkSession, format: str) -> list[tuple[int, bytes | None, bytes]]:
        """The messages in the order of the changes: the row that each is about, its key and its value."""
        rows = [(*(change[name] for name in CHANGE.fieldNames()), n) for n, change in enumerate(self.changes)]
        schema = T.StructType([*CHANGE.fields, T.StructField("n", T.IntegerType())])
        made = spark.createDataFrame(rows, schema).coalesce(1)
        found = []
        for row in changeglot.encode(made, format).where("spoken").select("key", "value", "n").collect():
            about, key = self.changes[row["n"]]["key"], row["key"]
            found.append((int(about["id"]) if about else 0, None if key is None else bytes(key), bytes(row["value"])))
        return found

    def told(self, spark: SparkSession, format: str) -> list[tuple[int, str]]:
        """The messages, a line each, in the order of the changes; and the row that each is about."""
        return [
            (row, value.decode() if key is None else f'{{"key":{key.decode()},"value":{value.decode()}}}')
            for row, key, value in self.messages(spark, format)
        ]

    def lines(self, spark: SparkSession, format: str) -> list[str]:
        return [line for _, line in self.told(spark, format)]


def parted(told: Sequence[tuple[int, str]], rng: random.Random, parts: int = 3) -> list[str]:
    """The messages as from a topic of several partitions: of one row in order, of others as it comes; some twice."""
    queues: list[list[str]] = [[] for _ in range(parts)]
    for row, line in told:
        queues[row % parts].append(line)
    found: list[str] = []
    while any(queues):
        queue = rng.choice([queue for queue in queues if queue])
        found.append(queue.pop(0))
        if rng.random() < 0.1:
            found.append(found[-1])
    return found


def cut(lines: Sequence[str], count: int, rng: random.Random) -> list[list[str]]:
    """The lines in so many batches."""
    cuts = sorted(rng.sample(range(1, len(lines)), count - 1))
    return [list(lines[a:b]) for a, b in zip([0, *cuts], [*cuts, len(lines)], strict=True)]


def write(folder: Path, batches: Sequence[Sequence[str]]) -> None:
    """A file for each batch; they are taken in the order of their times."""
    folder.mkdir(parents=True, exist_ok=True)
    first = len(list(folder.iterdir()))
    for number, lines in enumerate(batches, first):
        file = folder / f"{number:04d}.jsonl"
        file.write_text("".join(line + "\n" for line in lines))
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))
