"""A pipeline: messages of a source, decoded, applied to the tables of a sink, batch by batch and each batch once."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from changeglot import held
from changeglot.apply import types
from changeglot.apply.order import ORDER, number, order
from changeglot.apply.route import Rule
from changeglot.apply.rows import settled
from changeglot.apply.tidings import tables
from changeglot.held import MESSAGE, Quarantine
from changeglot.layout import decode
from changeglot.model import CHANGE
from changeglot.sinks.base import LakeSink, Mark
from changeglot.sources.base import PLACE, MessageSource
from changeglot.tables import Tables
from changeglot.target import Applied, TableWork, Target, Upkeep

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Planned:
    """What a pipeline would do with one table of the source."""

    table: str
    into: str
    mode: tuple[str, ...]
    key: tuple[str, ...]
    columns: Mapping[str, str]
    exists: bool
    #: How the tables that are there would change, as (kind, column, what it becomes).
    changes: tuple[tuple[str, str, str | None], ...]
    #: What is not kept as the source has it.
    losses: Mapping[str, str]


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
    schema_change: Literal["evolve", "lenient", "ignore", "exception"] = "lenient"
    quarantine: Quarantine = field(default_factory=Quarantine)
    upkeep: Upkeep = field(default_factory=Upkeep)

    @property
    def target(self) -> Target:
        return Target(self.name, self.sink, self.rules, self.schema_change, self.quarantine, self.upkeep)

    def session_settings(self) -> dict[str, str]:
        """What a session must be started with, for the source and the sink to work."""
        packages = ",".join((*self.source.packages, *self.sink.packages))
        return {
            **({"spark.jars.packages": packages} if packages else {}),
            **self.source.session_settings(),
            **self.sink.session_settings(),
        }

    def run(
        self, spark: SparkSession, *, once: bool = True, told: Callable[[Applied], None] = lambda _: None
    ) -> StreamingQuery:
        """The running query; with `once` it ends when all that is there is applied. `told` hears of each batch."""
        writer: list[str] = []

        def apply(batch: DataFrame, number: int) -> None:
            # Only the first batch of a process can have been begun by another one before.
            replayed = not writer
            if replayed:
                writer.append(f"{self.name}/{_query_id(spark, self.checkpoint)}")
            told(self.apply(batch, Mark(writer[0], number, replayed)))

        stream = self.source.messages(spark).writeStream.queryName(self.name).foreachBatch(apply)
        stream = stream.option("checkpointLocation", self.checkpoint)
        return (stream.trigger(availableNow=True) if once else stream).start()

    def apply(self, batch: DataFrame, mark: Mark) -> Applied:
        """The messages of a batch, as the source gives them, in the tables. A second time it changes nothing."""
        return self._apply(self.source.placed(batch), self.target, mark)

    def _apply(self, messages: DataFrame, target: Target, mark: Mark) -> Applied:
        # Decoding keeps the bytes of bad messages only; a change may prove bad when it is applied.
        changes = settled(self._decoded(messages.withColumn(MESSAGE, F.struct("key", "value"))))
        applied = target.apply(changes, mark)
        logger.info("batch applied", extra={"pipeline": self.name, "batch": mark.batch})
        return applied

    def _decoded(self, messages: DataFrame) -> DataFrame:
        """The changes with their ORDER."""
        told = decode(messages, self.format, tables=self._known(), options=self.options)
        change = {name: F.col(name) for name in CHANGE.fieldNames()}
        # A message's changes have one place; which of them it is orders them.
        place = F.concat_ws(".", F.col(PLACE), number(F.col("ordinal").cast("string")))
        return told.withColumn(ORDER, order(change, place))

    def _known(self) -> Tables:
        # Of rules the first counts, of tables the last.
        known = [(rule.match, {"key": list(rule.keys), "columns": rule.columns}) for rule in reversed(self.rules)]
        return Tables.of(dict(known))

    def plan(self, spark: SparkSession) -> list[Planned]:
        """What would be made of what the source has now; nothing is written."""
        changes = self._decoded(self.source.placed(self.source.sample(spark)))
        found = []
        for each in tables(changes).tables:
            if not (rule := self.target.rule(each.name)):
                continue
            work = TableWork(self.target, changes, each, rule, Mark(self.name, 0))
            work.check()
            losses = {n: loss for n, kind in {**each.declared, **rule.columns}.items() if (loss := types.loss(kind))}
            steps = {step for made in work.evolutions.values() for step in made.steps}
            found.append(
                Planned(
                    table=each.name,
                    into=".".join(work.place),
                    mode=rule.mode,
                    key=work.key,
                    columns=work.columns,
                    exists=any(work.stored.values()),
                    changes=tuple(sorted(steps, key=str)),
                    losses=losses,
                )
            )
        return found

    def quarantined(self, spark: SparkSession, ids: Sequence[str] = (), table: str = "") -> DataFrame | None:
        """What the quarantine holds, of the ids or the table if they are named; None if it was never used."""
        found = held.kept(spark, self.sink, self.name)
        if found is None:
            return None
        found = found.where(F.col("id").isin(*ids)) if ids else found
        return found.where(F.col("table") == table) if table else found

    def replay(self, spark: SparkSession, ids: Sequence[str] = (), table: str = "") -> Applied | None:
        """What the quarantine holds once more, as the pipeline is now: rows go where they would have been.

        What is bad again stays there. None: there was nothing to replay.
        """
        found = self.quarantined(spark, ids, table)
        if found is None or found.isEmpty():
            return None
        replay = uuid.uuid4().hex
        released = held.release(found, self.sink, replay)
        messages = released.dropDuplicates(["place"]).select("key", "value", F.col("place").alias(PLACE))
        target = replace(self.target, replay=replay)
        applied = self._apply(messages, target, Mark(f"{self.name}/replay/{replay}", 0, replayed=False))
        # What was bad again has been written anew, and bears the replay no more.
        held.forget(released, self.sink)
        return applied

    def forget(self, spark: SparkSession, ids: Sequence[str] = (), table: str = "") -> int:
        """Drops what the quarantine holds; gives how much it was."""
        found = self.quarantined(spark, ids, table)
        count = 0 if found is None else found.count()
        if found is not None and count:
            held.forget(found, self.sink)
        return count


def _query_id(spark: SparkSession, checkpoint: str) -> str:
    """What a checkpoint is known by: with another one, batches are counted from the beginning."""
    line = spark.read.text(f"{checkpoint.rstrip('/')}/metadata").first()
    assert line is not None
    return str(json.loads(line[0])["id"])
