"""Pipelines into Delta and Iceberg: after random transactions the tables equal a plain model that replays them."""

from __future__ import annotations

import json
import os
import random
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

import changeglot
from changeglot import config
from changeglot.errors import ConfigError
from changeglot.model import CHANGE, Op
from changeglot.pipeline import Pipeline

TYPES = {"id": "bigint", "name": "varchar(40)", "amount": "decimal(12,2)"}
Rows = dict[tuple[str, int], dict[str, Any]]


class Shop:
    """Random transactions over two tables, as changes, and the rows that they leave."""

    def __init__(self, seed: int, database: str) -> None:
        self.rng = random.Random(seed)
        self.database = database
        self.rows: Rows = {}
        self.changes: list[dict[str, Any]] = []

    def values(self, key: int) -> dict[str, Any]:
        name = self.rng.choice(["", "x", "Zoë", "a'b\"c", None])
        return {"id": key, "name": name, "amount": self.rng.choice([None, Decimal("0.10"), Decimal("-7.25")])}

    def say(self, op: str, table: str, key: int | None, before: Any, after: Any) -> None:
        """Any: row images as plain dictionaries, or None."""

        def text(row: dict[str, Any] | None) -> dict[str, str | None] | None:
            return None if row is None else {name: None if v is None else str(v) for name, v in row.items()}

        n = len(self.changes) + 1
        columns = [Row(name=c, type=t, jdbc=None, nullable=c != "id", json=None) for c, t in TYPES.items()]
        change: dict[str, Any] = dict.fromkeys(CHANGE.fieldNames())
        change |= {
            "op": op,
            "phase": "stream",
            "relation": Row(tenant=None, database=self.database, schema=None, table=table),
            "key": None if key is None else {"id": str(key)},
            "before": text(before),
            "after": text(after),
            "columns": columns,
            "position": [Decimal(n), Decimal(0)],
            "transaction": Row(ids=[str(n)], order=0, last=True),
            "origin": Row(kind="mysql", version=None, name=None),
        }
        self.changes.append(change)

    def step(self) -> None:
        table = self.rng.choice(["orders", "items"])
        keys = sorted(k for t, k in self.rows if t == table)
        roll = self.rng.random()
        if not keys or roll < 0.4:
            key = self.rng.randrange(12)
            if (table, key) in self.rows:
                return
            self.rows[table, key] = self.values(key)
            self.say(Op.INSERT, table, key, None, self.rows[table, key])
        elif roll < 0.75:
            key = self.rng.choice(keys)
            before, after = self.rows[table, key], self.values(key)
            self.rows[table, key] = after
            self.say(Op.UPDATE, table, key, before, after)
        elif roll < 0.85:
            key, new = self.rng.choice(keys), self.rng.randrange(12)
            if (table, new) in self.rows:
                return
            before, after = self.rows.pop((table, key)), self.values(new)
            self.rows[table, new] = after
            self.say(Op.UPDATE, table, key, before, after)
        else:
            key = self.rng.choice(keys)
            self.say(Op.DELETE, table, key, self.rows.pop((table, key)), None)

    def lines(self, spark: SparkSession, format: str) -> list[list[str]]:
        """The messages of each change, in the order of the changes."""
        rows = [tuple(change[name] for name in CHANGE.fieldNames()) for change in self.changes]
        made = spark.createDataFrame(rows, CHANGE).coalesce(1)
        told = changeglot.encode(made, format).where("spoken").select("key", "value").collect()
        found: list[list[str]] = []
        for row in told:
            value = bytes(row["value"]).decode()
            key = None if row["key"] is None else json.loads(bytes(row["key"]))
            found.append([json.dumps({"key": key, "value": json.loads(value)}) if key is not None else value])
        return found


def write(folder: Path, shop: Shop, spark: SparkSession, format: str) -> None:
    """Files in the order of the changes; some messages come twice, as from a producer that tries again."""
    lines = shop.lines(spark, format)
    folder.mkdir(parents=True, exist_ok=True)
    cuts = sorted({0, len(lines), *(shop.rng.randrange(len(lines)) for _ in range(3))})
    for number, (start, end) in enumerate(pairwise(cuts)):
        again = max(0, start - shop.rng.randrange(6))
        file = folder / f"{number}.jsonl"
        file.write_text("".join(line + "\n" for some in lines[again:end] for line in some))
        # Files are taken in the order of their times.
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))


def pipeline(kind: str, warehouse: Path, messages: Path, **words: Any) -> Pipeline:
    """Any: words of the YAML file."""
    content = {
        "source": {"type": "files", "path": str(messages), "files_per_batch": 1},
        "sink": {"type": kind, "path": str(warehouse)},
        "tables": [{"match": "*", "mode": ["scd1", "append"], "keys": ["id"], "columns": TYPES}],
        **words,
    }
    return config.pipeline(content, name=f"{messages.name}-{kind}")


def stored(spark: SparkSession, made: Pipeline, database: str, table: str) -> dict[int, dict[str, Any]]:
    found = spark.table(made.sink.identifier(database, table)).select(*TYPES).collect()
    rows = {row["id"]: row.asDict() for row in found}
    assert len(rows) == len(found)
    return rows


@pytest.mark.parametrize(("kind", "format"), [("delta", "canal"), ("delta", "shareplex"), ("iceberg", "arcion")])
def test_tables_equal_the_model_after_random_transactions(
    spark: SparkSession, tmp_path: Path, warehouse: Path, kind: str, format: str
) -> None:
    shop = Shop(7, f"shop_{kind}_{format}")
    for _ in range(120):
        shop.step()
    messages = tmp_path / f"messages-{format}"
    write(messages, shop, spark, format)
    made = pipeline(kind, warehouse, messages)
    made.run(spark).awaitTermination()
    for table in ("orders", "items"):
        expected = {key: row for (t, key), row in shop.rows.items() if t == table}
        assert stored(spark, made, shop.database, table) == expected


def test_a_batch_that_is_applied_again_changes_nothing(spark: SparkSession, tmp_path: Path, warehouse: Path) -> None:
    for kind in ("delta", "iceberg"):
        shop = Shop(3, f"again_{kind}")
        for _ in range(40):
            shop.step()
        write(tmp_path / shop.database, shop, spark, "oms")
        made = pipeline(kind, warehouse, tmp_path / shop.database)
        made.run(spark).awaitTermination()
        before = stored(spark, made, shop.database, "orders")
        log = spark.table(made.sink.identifier(shop.database, "orders__log")).count()
        assert log == sum(change["relation"].table == "orders" for change in shop.changes)
        made.apply(made.source.sample(spark), 0)
        assert stored(spark, made, shop.database, "orders") == before
        assert spark.table(made.sink.identifier(shop.database, "orders__log")).count() == log


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"surce": {}}, 'surce: no such word. Did you mean "source"?'),
        ({"sink": {"type": "dleta"}}, 'sink.type: no choice "dleta". Did you mean "delta"?'),
        ({"tables": [{"match": "*", "mode": "scd3"}]}, 'tables[0].mode: no choice "scd3". Did you mean "scd1"?'),
        ({"tables": [{"mode": "scd1"}]}, "tables[0].match: is missing. Name a table, or * for all."),
        ({"schema_change": "evolv"}, 'schema_change: no choice "evolv". Did you mean "evolve"?'),
    ],
)
def test_a_mistake_in_a_pipeline_is_told_with_its_path(words: dict[str, Any], said: str) -> None:
    content = {"source": {"type": "files", "path": "x"}, "sink": {"type": "delta", "path": "y"}, **words}
    with pytest.raises(ConfigError) as error:
        config.pipeline(content, name="p")
    assert str(error.value) == said
