"""A log of changes in a sink: whether a pipeline is alone in writing it, and so how it is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from changeglot.apply import log
from changeglot.apply.tidings import asked, watched
from changeglot.at_once import lazy
from changeglot.model import Op
from changeglot.sinks.base import LakeSink, Mark
from changeglot.sources.base import SENT

#: The property of a log that names who alone has written it; or says that there are several.
_WRITER, _SEVERAL = "changeglot.writer", "several"
_STEP, _APART = "append", "__apart"


@dataclass(frozen=True)
class Log:
    """One log, as one batch finds it."""

    spark: SparkSession
    sink: LakeSink
    table: str
    mark: Mark

    def make(self) -> None:
        """Makes it, if it is not there."""
        alone = {_WRITER: self.mark.writer}
        self.sink.create(self.spark, self.table, log.columns(), searched=log.SEARCHED, properties=alone)

    @lazy
    def alone(self) -> bool:
        """Has nobody else written it? From now on nobody else has, or is told that there are several."""
        writer = self.sink.property(self.spark, self.table, _WRITER)
        if writer not in (self.mark.writer, _SEVERAL):
            self.sink.put(self.spark, self.table, {_WRITER: _SEVERAL})
        return writer == self.mark.writer

    def append(self, changes: DataFrame, step: str) -> None:
        """The changes added to it, of which it has none."""
        self._append(log.entries(changes, self.mark.batch), step)

    def _append(self, lines: DataFrame, step: str) -> None:
        self.sink.append(lines, self.table, self.mark.of(step, _STEP))

    def merge(self, changes: DataFrame, step: str) -> None:
        """The changes added to it, less those that it has."""
        lines, mark = log.entries(changes, self.mark.batch), self.mark.of(step, _STEP)
        self.sink.once(self.spark, self.table, mark, lambda: log.merge(lines, self.table))

    def fill(self, changes: DataFrame) -> tuple[Mapping[str, Any], DataFrame]:
        """The changes of a transport added to it in one pass; facts about them, and those that want a look first.

        Such are a bad one, one that may be here twice, one that is known by its place in the source's log, and a
        statement. Any: counts, and the time of the newest.
        """
        known = F.col("problem").isNotNull() | F.col("position").isNotNull() | F.col(SENT).isNotNull()
        apart = known | F.coalesce(F.col("op") == Op.DDL, F.lit(False))
        # What no line has goes first: Spark takes along all that is there when it looks.
        lines = log.entries(changes.withColumn(_APART, apart), self.mark.batch, _APART)
        about = {
            "good": F.count_if(~F.col(_APART)),
            "apart": F.count_if(_APART),
            "newest": F.max(F.when(~F.col(_APART), F.col("committed_at"))),
        }
        seen, facts = watched(lines, about)
        if self.mark.replayed:
            # What was added before is not even computed.
            seen, facts = lines, lambda: asked(lines, about)
        # All of them at once: a step that no table has.
        self._append(seen.where(~F.col(_APART)).drop(_APART), "")
        return facts(), changes.where(apart)
