"""A pipeline: messages of a source, decoded, applied to the tables of a sink, batch by batch and each batch once."""

from __future__ import annotations

import fnmatch
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from changeglot import kernel
from changeglot.apply import log, rows, scd1, types
from changeglot.apply.order import ORDER, order
from changeglot.errors import ChangeglotError, ConfigError
from changeglot.layout import decode
from changeglot.model import CHANGE, Op
from changeglot.options import option
from changeglot.sinks.base import LakeSink, settings
from changeglot.sources.base import PLACE, MessageSource
from changeglot.tables import Tables

logger = logging.getLogger(__name__)

#: Where messages go that say nothing which can be applied, and why.
QUARANTINE = ("changeglot", "quarantine")
#: Added to a table's name: its change log, and the keys of rows that are gone.
LOG, ENDED = "__log", "__ended"
_MESSAGE = "__message"


class SchemaChange(ChangeglotError):
    """The source's table changed, and the pipeline was told not to follow."""


@dataclass(frozen=True)
class Rule:
    """What becomes of the tables that it matches."""

    match: str = option("database.table or database.schema.table; * and ? stand for any", example="shop.*")
    mode: tuple[str, ...] = option("scd1: current rows; append: the change log; or a list of both", ("scd1",))
    keys: tuple[str, ...] = option("columns of the key; else as the messages say", ())
    columns: Mapping[str, str] = field(
        default_factory=dict,
        metadata={"help": "types of columns, in the source's words, over what the messages say", "example": ""},
    )
    into: str = option("name of the table in the sink: database.table", "", example="sales.orders")
    delete: Literal["hard", "soft"] = option("whether deleted rows go, or stay with __deleted true", "hard")

    @property
    def types(self) -> dict[str, str]:
        """Spark's types of the columns that it declares."""
        return {name: types.column_type(kind) for name, kind in self.columns.items()}

    def takes(self, name: str) -> bool:
        return fnmatch.fnmatchcase(name, self.match)


@dataclass(frozen=True)
class Table:
    """A table of the source in a batch: what its changes tell of it. Its name has no tenant."""

    name: str
    columns: Mapping[str, str]
    key: tuple[str, ...]


@dataclass(frozen=True)
class Planned:
    """What a pipeline would do with one table of the source."""

    table: str
    into: str
    mode: tuple[str, ...]
    key: tuple[str, ...]
    columns: Mapping[str, str]
    exists: bool


@dataclass(frozen=True)
class Pipeline:
    """`run` applies what is there (`once`), or goes on as more comes."""

    name: str
    source: MessageSource
    sink: LakeSink
    checkpoint: str
    rules: tuple[Rule, ...] = (Rule("*"),)
    format: str = "auto"
    #: Of the formats, by their names. Any: as a person writes them.
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    schema_change: Literal["evolve", "ignore", "exception"] = "evolve"

    def session_settings(self) -> dict[str, str]:
        """What a session must be started with, for the source and the sink to work."""
        packages = ",".join((*self.source.packages, *self.sink.packages))
        return {
            **({"spark.jars.packages": packages} if packages else {}),
            **self.source.session_settings(),
            **self.sink.session_settings(),
        }

    def run(self, spark: SparkSession, *, once: bool = True) -> StreamingQuery:
        """The running query; with `once` it ends when all that is there is applied."""
        stream = self.source.messages(spark).writeStream.queryName(self.name).foreachBatch(self.apply)
        stream = stream.option("checkpointLocation", self.checkpoint)
        return (stream.trigger(availableNow=True) if once else stream).start()

    def plan(self, spark: SparkSession) -> list[Planned]:
        """What would be made of what the source has now; nothing is written."""
        messages = self.source.placed(self.source.sample(spark))
        changes = decode(messages, self.format, tables=self._known(), options=self.options)
        found = []
        for table in self._tables(changes):
            rule = next((rule for rule in self.rules if rule.takes(table.name)), None)
            if rule is not None:
                into = tuple((rule.into or table.name).split("."))
                there = self.sink.exists(spark, self.sink.identifier(*into))
                columns = {**table.columns, **rule.types}
                found.append(Planned(table.name, ".".join(into), rule.mode, rule.keys or table.key, columns, there))
        return found

    def _known(self) -> Tables:
        named = [rule for rule in self.rules if not set(rule.match) & set("*?[")]
        return Tables.of({rule.match: {"key": list(rule.keys), "columns": rule.columns} for rule in named})

    # One batch

    def apply(self, batch: DataFrame, number: int) -> None:
        """The batch's messages in the tables. A second time it changes nothing: every commit bears the number."""
        messages = self.source.placed(batch)
        # Decoding keeps the bytes of bad messages only; a change may prove bad when it is applied.
        messages = messages.withColumn(_MESSAGE, F.struct("key", "value"))
        told = decode(messages, self.format, tables=self._known(), options=self.options)
        change = {name: F.col(name) for name in CHANGE.fieldNames()}
        # A message's changes have one place; which of them it is orders them.
        place = F.concat_ws(".", F.col(PLACE), F.lpad(F.col("ordinal").cast("string"), 10, "0"))
        changes = told.withColumn(ORDER, order(change, place)).persist()
        try:
            for table in self._tables(changes):
                rule = next((rule for rule in self.rules if rule.takes(table.name)), None)
                if rule is not None:
                    self._apply_table(changes, table, rule, number)
            self._quarantine(changes.where(F.col("problem").isNotNull()), number, "")
        finally:
            changes.unpersist()

    def _tables(self, changes: DataFrame) -> list[Table]:
        """What the batch's changes tell of their tables: names and types, no rows."""
        good = changes.where(F.col("problem").isNull() & F.col("op").isin(*Op.ROWS, Op.TRUNCATE))
        names = F.coalesce(
            F.map_keys("after"), F.map_keys("before"), F.map_keys("key"), F.array().cast("array<string>")
        )
        declared = F.transform(
            "columns", lambda c: F.struct(c["name"].alias("name"), c["type"].alias("type"), c["jdbc"].alias("jdbc"))
        )
        bare = F.transform(
            names,
            lambda n: F.struct(
                n.alias("name"), F.lit(None).cast("string").alias("type"), F.lit(None).cast("int").alias("jdbc")
            ),
        )
        facts = good.select(
            _name().alias("name"),
            F.map_keys("key").alias("key"),
            F.coalesce(declared, bare).alias("columns"),
        ).distinct()
        found: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {}
        for row in facts.collect():
            columns, key = found.get(row["name"], ({}, ()))
            for column in row["columns"] or []:
                kind = types.column_type(column["type"], column["jdbc"])
                before = columns.get(column["name"], kind)
                columns[column["name"]] = types.wider(before, kind) or types.TEXT
            found[row["name"]] = columns, key or tuple(row["key"] or ())
        return [Table(name, *known) for name, known in sorted(found.items())]

    def _apply_table(self, changes: DataFrame, table: Table, rule: Rule, number: int) -> None:
        mine = changes.where((_name() == table.name) & F.col("problem").isNull())
        place = tuple((rule.into or table.name).split("."))
        if "append" in rule.mode:
            self._append(mine, (*place[:-1], place[-1] + LOG), table.name, number)
        if "scd1" not in rule.mode:
            return
        key = rule.keys or table.key
        if rule.keys:
            named = kernel.pick(F.col("before"), F.col("after"), F.array(*map(F.lit, key)))
            mine = mine.withColumn("key", F.coalesce("key", named))
        columns = self._evolve(changes.sparkSession, place, table, rule, key)
        problem = F.coalesce(rows.key_problem(key), rows.value_problem(columns))
        checked = mine.where(F.col("op").isin(*Op.ROWS)).withColumn("problem", problem)
        self._quarantine(checked.where(F.col("problem").isNotNull()), number, table.name)
        good = checked.where(F.col("problem").isNull())
        self._mirror(good, mine, place, table.name, key, columns, rule, number)

    def _writer(self, source: str, step: str) -> str:
        """Who commits: several tables of the source may go into one of the sink in the same batch."""
        return f"{self.name}/{source}/{step}"

    def _append(self, changes: DataFrame, place: tuple[str, ...], source: str, number: int) -> None:
        spark, table = changes.sparkSession, self.sink.identifier(*place)
        self.sink.create(spark, table, log.columns(), ())
        writer = self._writer(source, "append")
        if not self.sink.done(spark, table, writer, number):
            with settings(spark, self.sink.once(writer, number)):
                log.merge(changes, table, number)

    def _evolve(
        self, spark: SparkSession, place: tuple[str, ...], table: Table, rule: Rule, key: Sequence[str]
    ) -> dict[str, str]:
        """The columns that the sink's table has, once it has those of the batch."""
        found = {**table.columns, **rule.types}
        target = self.sink.identifier(*place)
        soft = rule.delete == "soft"
        if not self.sink.exists(spark, target):
            if not key:
                raise ConfigError(
                    f"tables.{rule.match}.keys", f'"{table.name}" has no key', hint="Name its columns, or append only."
                )
            self.sink.create(spark, target, scd1.columns(found, soft=soft), tuple(key))
            return found
        own = scd1.columns({}, soft=soft)
        known = {name: kind for name, kind in self.sink.columns(spark, target).items() if name not in own}
        new = {name: kind for name, kind in found.items() if name not in known}
        wider = {
            n: w
            for n, kind in found.items()
            if n in known and (w := types.wider(known[n], kind)) not in (None, known[n])
        }
        if (new or wider) and self.schema_change == "exception":
            names = ", ".join((*new, *wider))
            raise SchemaChange(
                f'"{table.name}" changed: {names}', hint="Set schema_change to evolve, or change the table."
            )
        if self.schema_change == "evolve":
            if new:
                self.sink.add(spark, target, new)
            for name, kind in wider.items():
                self.sink.widen(spark, target, name, kind)
            known |= new | wider
        return known

    def _mirror(
        self,
        good: DataFrame,
        mine: DataFrame,
        place: tuple[str, ...],
        source: str,
        key: Sequence[str],
        columns: Mapping[str, str],
        rule: Rule,
        number: int,
    ) -> None:
        spark, target = good.sparkSession, self.sink.identifier(*place)
        ended = self.sink.identifier(*place[:-1], place[-1] + ENDED)
        steps = rows.steps(good, key)
        cut = mine.where(F.col("op") == Op.TRUNCATE).agg(F.max(ORDER)).first()
        soft, truncated = rule.delete == "soft", cut[0] if cut else None
        if truncated is not None:
            self._truncate(spark, target, source, truncated, number, soft=soft)
            steps = steps.where(F.col("order") > truncated)
        last = rows.folded(steps, key, columns).persist()
        try:
            if not soft:
                last = self._remember(last, ended, source, key, truncated, number)
            writer = self._writer(source, "merge")
            if not self.sink.done(spark, target, writer, number):
                with settings(spark, self.sink.once(writer, number)):
                    scd1.merge(last, target, key, columns, soft=soft)
        finally:
            last.unpersist()
        logger.info("table applied", extra={"pipeline": self.name, "table": ".".join(place), "batch": number})

    def _truncate(self, spark: SparkSession, target: str, source: str, at: str, number: int, *, soft: bool) -> None:
        writer = self._writer(source, "truncate")
        if self.sink.done(spark, target, writer, number):
            return
        what = f"UPDATE {target} SET {scd1.DELETED} = true, {ORDER} = :at" if soft else f"DELETE FROM {target}"
        with settings(spark, self.sink.once(writer, number)):
            spark.sql(f"{what} WHERE {ORDER} < :at", args={"at": at})

    def _remember(
        self,
        last: DataFrame,
        ended: str,
        source: str,
        key: Sequence[str],
        truncated: str | None,
        number: int,
    ) -> DataFrame:
        """The rows less those that came late for a row which is gone; and what is gone now, kept for later batches."""
        spark = last.sparkSession
        names = F.array(*(F.col(f"`{name}`").cast("string") for name in key))
        self.sink.create(spark, ended, {"key": "array<string>", ORDER: "string"}, ())
        writer = self._writer(source, "end")
        if not self.sink.done(spark, ended, writer, number):
            gone = last.where(rows.GONE).select(names.alias("key"), ORDER)
            if truncated is not None:
                # Of every row: a key of no columns.
                none = F.array().cast("array<string>").alias("key")
                gone = gone.union(spark.range(1).select(none, F.lit(truncated).alias(ORDER)))
            with settings(spark, self.sink.once(writer, number)):
                put = {name: rows.s(name) for name in gone.columns}
                merge = rows.given(gone).mergeInto(ended, rows.s("key") == rows.t("key"))
                merge.whenMatched(rows.s(ORDER) > rows.t(ORDER)).update(put).whenNotMatched().insert(put).merge()
        known = spark.table(ended).select(F.col("key").alias("__key"), F.col(ORDER).alias("__end"))
        whole = known.where(F.size("__key") == 0).agg(F.max("__end")).first()
        late = F.col("__end") > F.col(ORDER)
        kept = last.join(known, names == F.col("__key"), "left").where(~F.coalesce(late, F.lit(False)))
        if whole is not None and whole[0] is not None:
            kept = kept.where(F.col(ORDER) > whole[0])
        return kept.drop("__key", "__end")

    def _quarantine(self, bad: DataFrame, number: int, step: str) -> None:
        spark, table = bad.sparkSession, self.sink.identifier(*QUARANTINE)
        kept = {
            "pipeline": F.lit(self.name),
            "batch": F.lit(number).cast("bigint"),
            "place": F.col(PLACE),
            "problem": F.col("problem"),
            "format": F.col("format"),
            "table": _name(),
            "key": F.col(f"{_MESSAGE}.key"),
            "value": F.col(f"{_MESSAGE}.value"),
            "at": F.current_timestamp(),
        }
        rows_ = bad.select(*(column.alias(name) for name, column in kept.items()))
        if bad.isEmpty():
            return
        self.sink.create(spark, table, {f.name: f.dataType.simpleString() for f in rows_.schema}, ())
        self.sink.append(rows_, table, self._writer(step, "quarantine"), number)


def _name() -> Column:
    """STRING: database.schema.table, as far as the source has them."""
    return F.concat_ws(".", "relation.database", "relation.schema", "relation.table")
