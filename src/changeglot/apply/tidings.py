"""What a batch of changes tells of its tables: names, types and statements, but no rows."""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, reduce
from operator import and_
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, Observation, Row
from pyspark.sql import functions as F

from changeglot.apply import types
from changeglot.apply.order import ORDER
from changeglot.model import Op
from changeglot.settings import jvm

#: Statements of one table that a batch may bring; with more, something is wrong with the source.
_STATEMENTS = 1000
#: Seconds after which Spark has told what it saw of rows that it has computed, if it has.
_PATIENCE = 10
#: Of the name of a table.
PARTS = ("database", "schema", "table")
_RELATION = tuple(f"relation.{part}" for part in PARTS)
_Parts = tuple[str | None, str | None, str]


@dataclass(frozen=True)
class Told:
    """What a batch tells of one table of the source. Its name has no tenant; a column's type may not be known."""

    name: str
    #: Database, schema and table.
    parts: _Parts
    changes: int
    columns: Mapping[str, str | None]
    #: As the source declares them.
    declared: Mapping[str, str]
    key: tuple[str, ...]
    #: The columns that all updates tell: a set for each kind of them.
    updates: Sequence[frozenset[str]]
    #: The order of the batch's first change, of whatever table.
    oldest: str
    truncated: str | None
    #: Has some change a position in the source's log?
    placed: bool
    statements: Sequence[tuple[str, str, str | None]] = ()

    @property
    def named(self) -> dict[str, str | None]:
        """Its parts by their names."""
        return dict(zip(PARTS, self.parts, strict=True))

    @property
    def has(self) -> Column:
        """BOOLEAN: is the change one of this table?"""
        return reduce(and_, (F.col(f"relation.{n}").eqNullSafe(F.lit(part)) for n, part in self.named.items()))


@dataclass(frozen=True)
class Tidings:
    """What a batch tells: of its tables, how many of its changes are bad, and the newest commit's time."""

    tables: Sequence[Told]
    bad: int
    newest: datetime | None

    def counts(self, takes: Callable[[Told], bool]) -> tuple[dict[str, int], dict[str, int]]:
        """How many changes the tables have, by name: of those that are taken, and of the others."""
        taken: Counter[str] = Counter()
        others: Counter[str] = Counter()
        for each in self.tables:
            (taken if takes(each) else others)[each.name] += each.changes
        return dict(taken), dict(others)


def watched(rows: DataFrame, facts: Mapping[str, Column]) -> tuple[DataFrame, Callable[[], Mapping[str, Any]]]:
    """The rows; and facts about them, to be had once they are computed. Any: what the facts are."""
    seen = Observation()

    @cache
    def found() -> Mapping[str, Any]:
        """Any: as above."""
        assert seen._jo is not None
        told, late = seen._jo.future(), time.monotonic() + _PATIENCE
        while not told.isCompleted() and time.monotonic() < late:
            time.sleep(0.01)
        try:
            return seen.get if told.isCompleted() else asked(rows, facts)
        except Py4JJavaError:
            # Spark saw that nothing would come of the rows, and did not compute them.
            return asked(rows, facts)

    return rows.observe(seen, *(fact.alias(name) for name, fact in facts.items())), found


def computed(
    rows: DataFrame, facts: Mapping[str, Column], then: Callable[[DataFrame], DataFrame]
) -> tuple[DataFrame, Callable[[], Mapping[str, Any]]]:
    """What is made of the rows, for one use; and facts about the rows, to be had after it. Any: what the facts are.

    Unlike those of `watched` they are told whatever command it is that uses them: Spark tells of one that makes a table
    before it has begun.
    """
    made = then(rows.observe("facts", *(fact.alias(name) for name, fact in facts.items())))
    session, query = made.sparkSession, made._jdf.queryExecution()
    plain = session._jsparkSession.internalCreateDataFrame(query.toRdd(), made._jdf.schema(), False)

    def found() -> Mapping[str, Any]:
        """Any: as above."""
        told = query.observedMetrics().apply("facts")
        row = jvm(session).org.apache.spark.sql.api.python.PythonSQLUtils.toPyRow(told)
        return dict(pickle.loads(row).asDict())

    return DataFrame(plain, session), found


def asked(rows: DataFrame, facts: Mapping[str, Column]) -> Mapping[str, Any]:
    """Facts about the rows, which are computed for it. Any: what the facts are."""
    return rows.agg(*(fact.alias(name) for name, fact in facts.items())).collect()[0].asDict()


def table_name() -> Column:
    """STRING: database.schema.table, as far as the source has them."""
    return F.concat_ws(".", "relation.database", "relation.schema", "relation.table")


def tables(changes: DataFrame) -> Tidings:
    """What the changes tell of their tables: names and types, but no rows."""
    changes, seen = watched(changes, {"bad": F.count("problem"), "oldest": F.min(ORDER)})
    good = changes.where(F.col("problem").isNull() & F.col("relation.table").isNotNull())
    # Changes that say the same of their table are one group. All that is aggregated has a fixed width, and all that is
    # grouped by lies ready: Spark hashes, and sorts nothing.
    names = F.coalesce(F.map_keys("after"), F.map_keys("before"), F.map_keys("key"))
    said = {"columns": F.col("columns"), "key": F.map_keys("key"), "names": names}
    of_rows = F.col("op").isin(*Op.ROWS)
    by = (F.when(of_rows, each).alias(name) for name, each in said.items())
    alike = good.groupBy(*_RELATION, "op", *by).agg(
        F.count(F.lit(1)).alias("changes"), F.max("committed_at").alias("newest"), F.count("position").alias("placed")
    )
    # Parts of rows may be as many as there are rows: of their names, those that some tell, and those that all do.
    groups = alike.groupBy(*PARTS, "op", "columns", "key").agg(
        F.sum("changes").alias("changes"),
        F.max("newest").alias("newest"),
        F.sum("placed").alias("placed"),
        F.collect_list("names").alias("lists"),
    )
    some = F.array_distinct(F.flatten("lists")).alias("names")
    every = F.reduce("lists", F.get("lists", F.lit(0)), F.array_intersect).alias("always")
    found = groups.select(*PARTS, "op", "columns", "key", "changes", "newest", "placed", some, every).collect()
    of_tables = good.where(F.col("op").isin(Op.DDL, Op.TRUNCATE))
    spoken = _spoken(of_tables) if any(row["op"] in (Op.DDL, Op.TRUNCATE) for row in found) else {}
    rows_of: dict[_Parts, list[Row]] = {}
    for row in found:
        rows_of.setdefault((row["database"], row["schema"], row["table"]), []).append(row)
    oldest = seen()["oldest"]
    told = [_told(parts, rows, oldest, *spoken.get(parts, (None, ()))) for parts, rows in rows_of.items()]
    newest = max((row["newest"] for row in found if row["newest"]), default=None)
    return Tidings(sorted(told, key=lambda each: each.name), seen()["bad"], newest)


def _spoken(changes: DataFrame) -> dict[_Parts, tuple[str | None, Sequence[tuple[str, str, str | None]]]]:
    """Of each table the order of its last truncate, and its statements."""
    statement = F.struct(F.col(ORDER).alias("order"), "statement", F.col("origin.kind").alias("kind"))
    found = changes.groupBy(*_RELATION).agg(
        F.max(F.when(F.col("op") == Op.TRUNCATE, F.col(ORDER))).alias("truncated"),
        F.slice(F.sort_array(F.collect_list(F.when(F.col("op") == Op.DDL, statement))), 1, _STATEMENTS).alias("ddl"),
    )
    return {
        (row["database"], row["schema"], row["table"]): (row["truncated"], [tuple(each) for each in row["ddl"]])
        for row in found.collect()
    }


def _told(
    parts: _Parts,
    rows: Sequence[Row],
    oldest: str,
    truncated: str | None,
    statements: Sequence[tuple[str, str, str | None]],
) -> Told:
    """What the groups of one table's changes say together."""
    known: dict[str, str | None] = {}
    declared: dict[str, str] = {}
    for row in rows:
        if row["columns"] is None:
            known |= {name: known.get(name) for name in row["names"] or ()}
            continue
        for column in row["columns"]:
            name, typed = column["name"], column["type"] is not None or column["jdbc"] is not None
            kind = types.column_type(column["type"], column["jdbc"]) if typed else None
            before = known.get(name)
            if kind is not None and before is not None:
                kind = types.wider(before, kind) or types.TEXT
            known[name] = kind or before
            if column["type"] is not None:
                declared[name] = column["type"]
    keys = sorted({tuple(row["key"]) for row in rows if row["key"]}, key=lambda key: (-len(key), key))
    return Told(
        name=".".join(part for part in parts if part is not None),
        parts=parts,
        changes=sum(row["changes"] for row in rows),
        columns=known,
        declared=declared,
        key=keys[0] if keys else (),
        updates=[frozenset(row["always"] or ()) for row in rows if row["op"] == Op.UPDATE],
        oldest=oldest,
        truncated=truncated,
        placed=any(row["placed"] for row in rows),
        statements=statements,
    )
