"""A log of changes in a sink: whether a pipeline is alone in writing it, and so how it is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from changeglot.apply import log
from changeglot.apply.tidings import asked, computed
from changeglot.at_once import lazy
from changeglot.model import Op
from changeglot.sinks.base import LakeSink, Mark
from changeglot.sources.base import LANE, MESSAGE, PLACE, SENT

#: The property of a log that names who alone has written it; or says that there are several.
_WRITER, _SEVERAL = "changeglot.writer", "several"
_STEP, _APART = "append", "__apart"


def apart() -> Column:
    """BOOLEAN of a transport's change: is it not to be added to a log without a look?

    Such are a bad one, one that may be here twice, one that is known by its place in the source's log, and a statement.
    """
    known = F.col("problem").isNotNull() | F.col("position").isNotNull() | F.col(SENT).isNotNull()
    return known | F.coalesce(F.col("op") == Op.DDL, F.lit(False))


def staged(changes: DataFrame) -> DataFrame:
    """A transport's changes as lines of a log, with the messages that told them."""
    return log.entries(changes.withColumn(_APART, apart()), _APART, "ordinal", MESSAGE, PLACE, LANE, SENT)


def messages(lines: DataFrame) -> DataFrame:
    """The messages of lines that were `staged`, as the transport gave them."""
    return lines.where("ordinal = 0").select(f"{MESSAGE}.*", PLACE, LANE, SENT)


@dataclass(frozen=True)
class Log:
    """One log, as one batch finds it."""

    spark: SparkSession
    sink: LakeSink
    table: str
    mark: Mark

    @property
    def _properties(self) -> dict[str, str]:
        return {**log.PARQUET, _WRITER: self.mark.writer}

    @property
    def exists(self) -> bool:
        return self.sink.exists(self.spark, self.table)

    def make(self) -> None:
        """Makes it, if it is not there."""
        made = log.columns()
        self.sink.create(self.spark, self.table, made, searched=log.SEARCHED, properties=self._properties)

    @lazy
    def alone(self) -> bool:
        """Has nobody else written it? From now on nobody else has, or is told that there are several."""
        if not self.exists:
            return True
        writer = self.sink.property(self.spark, self.table, _WRITER)
        if writer not in (self.mark.writer, _SEVERAL):
            self.sink.put(self.spark, self.table, {_WRITER: _SEVERAL})
        return writer == self.mark.writer

    def append(self, changes: DataFrame, step: str) -> None:
        """The changes added to it, of which it has none."""
        self._append(self._lines(log.entries(changes)), step)

    def _lines(self, entries: DataFrame) -> DataFrame:
        lines = log.numbered(entries, self.mark.batch)
        kind = self.sink.columns(self.spark, self.table)["columns"] if self.exists else "string"
        # Earlier versions made logs that have a list there.
        return lines if kind == "string" else lines.withColumn("columns", F.from_json("columns", kind))

    def _append(self, lines: DataFrame, step: str) -> None:
        mark = self.mark.of(step, _STEP)
        if self.exists:
            self.sink.append(lines, self.table, mark)
        else:
            self.sink.begin(lines, self.table, mark, searched=log.SEARCHED, properties=self._properties)

    def merge(self, changes: DataFrame, step: str) -> None:
        """The changes added to it, less those that it has."""
        lines, mark = self._lines(log.entries(changes)), self.mark.of(step, _STEP)
        self.sink.once(self.spark, self.table, mark, lambda: log.merge(lines, self.table))

    def fill(self, entries: DataFrame) -> Mapping[str, Any]:
        """Lines that were `staged` added to it in one pass, but for those that are apart; facts about them.

        Any: counts, and the time of the newest.
        """
        about = {
            "good": F.count_if(~F.col(_APART)),
            "apart": F.count_if(_APART),
            "newest": F.max(F.when(~F.col(_APART), F.col("committed_at"))),
        }

        def good(rows: DataFrame) -> DataFrame:
            return self._lines(rows.where(~F.col(_APART)))

        facts: Callable[[], Mapping[str, Any]]
        if self.mark.replayed:
            # What was added before is not even computed.
            added, facts = good(entries), partial(asked, entries, about)
        else:
            added, facts = computed(entries, about, good)
        # All of them at once: a step that no table has.
        self._append(added, "")
        return facts()
