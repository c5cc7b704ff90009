"""Where changes go as messages: a batch at a time, the changes of a row in order, each message known by its number."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from changeglot import kernel
from changeglot._version import __version__
from changeglot.apply.order import ORDER
from changeglot.apply.route import Rule, Ruled, routed
from changeglot.apply.rows import settled
from changeglot.apply.tidings import PARTS, Tidings, Told, table_name, tables, watched
from changeglot.codecs import codec
from changeglot.codecs.base import Codec, half, moved
from changeglot.errors import ConfigError
from changeglot.held import MESSAGE, Quarantine
from changeglot.layout import encode
from changeglot.model import CHANGE, Change, Op, Phase, change
from changeglot.notes import Notes
from changeglot.sinks.base import LakeSink, Mark
from changeglot.sinks.messages import LANE, SENT, TOPIC, MessageSink
from changeglot.sources import base as read
from changeglot.tables import Tables
from changeglot.target import Applied, Planned

#: Between the parts of the key of a row's messages where the format has none: no name or value of OMS holds it.
_SEPARATOR = "\x01"
#: Before the names of fields, among what is observed.
_LOST = "lost "
_HALF, _OP, _ROW_KEY, _RELATION, _TOMB = "__half", "__sent_op", "__row_key", "__sent_relation", "__tomb"


@dataclass(frozen=True)
class Sending(Ruled):
    """The topics of a sink, as one pipeline fills them."""

    name: str
    sink: MessageSink
    rules: tuple[Rule, ...]
    known: Tables
    quarantine: Quarantine
    #: Where the quarantine is.
    lake: LakeSink
    #: The pipeline's notes.
    folder: str
    #: The name of what is on its way again out of the quarantine, if it is that.
    replay: str | None = None

    @property
    def codec(self) -> Codec:
        return codec(self.sink.format, self._options, self.known)

    @property
    def _options(self) -> dict[str, dict[str, Any]]:
        """Any: values as a person writes them."""
        return {self.sink.format: dict(self.sink.options)}

    def apply(self, changes: DataFrame, mark: Mark) -> Applied:
        """The changes (with ORDER, PLACE and the message) sent. A second time they are sent with the same numbers."""
        told = tables(changes)
        taken, passed_over = told.counts(lambda each: self.rule(each.name) is not None)
        judged = changes.withColumn("problem", F.coalesce("problem", self._problem()))
        judged = self.quarantine.held(judged, self.lake, self.name, None, self.replay)
        judged, seen = watched(judged, {"bad": F.count("problem")})
        if any(map(_shapes, self.rules)):
            # What follows reads it once for each table.
            judged = settled(judged)
        good = self._routed(judged.where(F.col("problem").isNull()), told)
        coded, facts = watched(self._coded(good, told), self._facts())
        # Before any is sent: what they tell of themselves is not to be had of a writer, and one that tries once more to
        # send them need not make them again.
        messages = settled(self._laid(coded, told, mark))
        found = facts()
        lost = self._lost(found)
        self.sink.send(messages)
        quarantined = 0
        if seen()["bad"]:
            bad = judged.where(F.col("problem").isNotNull())
            quarantined = self.quarantine.keep(bad, self.lake, self.name, mark, table_name())
        return Applied(
            mark.batch,
            taken,
            quarantined,
            passed_over,
            told.newest,
            untold=int(found["untold"]),
            lost=lost,
        )

    @property
    def plain(self) -> bool:
        """Does every change go to one topic as it is, whatever its table?"""
        every = any(rule.match == "*" for rule in self.rules) and not any(map(_shapes, self.rules))
        return every and self.sink.one_topic is not None and self.quarantine.on_key_error != "hold"

    def pass_on(self, changes: DataFrame, mark: Mark, some_twice: Callable[[DataFrame], bool]) -> Applied | None:
        """What `apply` does, with changes that are computed once and not kept; None, and nothing sent, if some are old.

        Their tables are not known, which takes a look of its own.
        """
        judged = changes.withColumn("problem", F.coalesce("problem", self._problem()))
        about = {
            "bad": F.count("problem"),
            "good": F.count_if(F.col("problem").isNull()),
            "newest": F.max("committed_at"),
        }
        judged, seen = watched(judged, about)
        nobody = Tidings((), 0, None)
        coded, facts = watched(self._coded(judged.where(F.col("problem").isNull()), nobody), self._facts())
        messages = settled(self._laid(coded, nobody, mark))
        if some_twice(messages):
            return None
        lost = self._lost(facts())
        self.sink.send(messages)
        bad = judged.where(F.col("problem").isNotNull())
        kept = self.quarantine.keep(bad, self.lake, self.name, mark, table_name()) if seen()["bad"] else 0
        counts = {str(self.sink.one_topic): int(seen()["good"])}
        return Applied(mark.batch, counts, kept, {}, seen()["newest"], untold=int(facts()["untold"]), lost=lost)

    def planned(self, told: Told, rule: Rule) -> Planned:
        """What would become of a table."""
        topics = {self.sink.topic_of(told.named, phase): None for phase in (Phase.SNAPSHOT, Phase.STREAM)}
        columns = rule.sink_columns(told.columns, rule.keys or told.key)
        return Planned(
            table=told.name,
            into=f"{self.sink.name}: {', '.join(topics)}",
            mode=(self.sink.format,),
            key=tuple(map(rule.sink_name, rule.keys or told.key)),
            columns={name: told.declared.get(name) or kind or "" for name, kind in columns.items()},
            exists=False,
            changes=(),
            losses={},
        )

    def beat(self, spark: SparkSession) -> bool:
        """A heartbeat into each topic that all changes go to; false if the format or the topics have none."""
        topic = self.sink.one_topic
        if topic is None or Op.HEARTBEAT not in self.codec.speaks:
            return False
        now = F.current_timestamp()
        fields = change(op=F.lit(Op.HEARTBEAT), phase=F.lit(Phase.STREAM), committed_at=now, produced_at=now)
        beat = spark.range(1).select(*(column.alias(name) for name, column in fields.items()))
        said = encode(beat, self.sink.format, tables=self.known, options=self._options).where("spoken")
        lanes = self.sink.lanes(spark, [topic])[topic]
        nobody = F.lit(None).cast("string").alias(SENT)
        each = F.explode(F.sequence(F.lit(0), F.lit(lanes - 1))).alias(LANE)
        self.sink.send(said.select(F.lit(topic).alias(TOPIC), each, "key", "value", nobody))
        return True

    def _problem(self) -> Column:
        """STRING: why a row change cannot be told in the format; NULL if it can."""
        fields: Change = {field: F.col(field) for field in CHANGE.fieldNames()}
        untold = ~F.coalesce(self.codec.tells(fields), F.lit(False))
        said = F.lit(f"{self.sink.format} has no words for it: it does not tell the row")
        return F.when(F.col("op").isin(*Op.ROWS) & untold, said)

    def _routed(self, changes: DataFrame, told: Tidings) -> DataFrame:
        """The changes that the rules take, as they want them; what is of no table is taken."""
        shaped = [each for each in told.tables if (rule := self.rule(each.name)) and _shapes(rule)]
        plain = [each for each in told.tables if (rule := self.rule(each.name)) and not _shapes(rule)]
        rest = changes
        if len(plain) < len(told.tables):
            names = [each.name for each in plain]
            rest = changes.where(F.col("relation.table").isNull() | table_name().isin(names))
        return reduce(DataFrame.unionByName, (self._shaped(changes, each) for each in shaped), rest)

    def _shaped(self, changes: DataFrame, told: Told) -> DataFrame:
        rule = self.rule(told.name)
        assert rule is not None
        return routed(changes.where(told.has), rule, told.columns, rule.keys or told.key)

    def _coded(self, changes: DataFrame, told: Tidings) -> DataFrame:
        """The messages, with what is asked for to send them; not those that the format has no word for."""
        every = self.codec.parts(change()) is None and self.sink.partition != "key"
        split = changes.withColumn(_HALF, F.lit(0)) if every else _split(changes)
        values = F.transform(F.map_values("key"), lambda value: F.coalesce(value, F.lit("")))
        key = F.concat_ws(_SEPARATOR, table_name(), values)
        split = split.withColumns(
            {
                _OP: F.col("op"),
                _ROW_KEY: F.when(F.col("op").isin(*Op.ROWS) & F.col("key").isNotNull(), key).cast("binary"),
                _RELATION: table_name(),
                TOPIC: self._topic(told),
            }
        )
        coded = encode(split, self.sink.format, tables=self.known, options=self._options)
        return coded.drop(MESSAGE, "problem", "raw")

    def _topic(self, told: Tidings) -> Column:
        """STRING: where the change goes; NULL if it is of no table and there is a topic for each."""
        if self.sink.one_topic is not None:
            return F.lit(self.sink.one_topic)
        topics = self._topics(told)
        if not topics:
            return F.lit(None).cast("string")
        phase = F.when(F.col("phase") == Phase.SNAPSHOT, F.lit(Phase.SNAPSHOT)).otherwise(F.lit(Phase.STREAM))
        parts = (F.coalesce(F.col(f"relation.{part}"), F.lit("")) for part in PARTS)
        named = F.create_map(*(F.lit(word) for pair in topics.items() for word in pair))
        return named[F.concat_ws(_SEPARATOR, phase, *parts)]

    def _topics(self, told: Tidings) -> dict[str, str]:
        """The topics of the batch's tables, by phase and table."""
        found = {}
        for each in told.tables:
            if self.rule(each.name):
                for phase in (Phase.SNAPSHOT, Phase.STREAM):
                    word = _SEPARATOR.join((phase, *(part or "" for part in each.parts)))
                    found[word] = self.sink.topic_of(each.named, phase)
        return found

    def _facts(self) -> dict[str, Column]:
        going = F.col("spoken") & F.col(TOPIC).isNotNull()
        lost = {_LOST + loss.field: F.count_if(F.array_contains("lost", loss.field)) for loss in self.codec.losses}
        return {"untold": F.count_if(~going), **lost}

    def _lost(self, found: Mapping[str, Any]) -> dict[str, dict[str, int]]:
        """What is to be told of what the messages do not carry; raises what is refused. Any: what was observed."""
        lost = {name.removeprefix(_LOST): n for name, n in found.items() if name.startswith(_LOST) and n}
        if lost and self.sink.on_loss == "fail":
            said = f"{self.sink.format} cannot carry {', '.join(sorted(lost))} of this batch; nothing of it was sent"
            raise ConfigError("sink.on_loss", said, hint="Allow it with on_loss: warn.")
        return {self.sink.format: lost} if lost and self.sink.on_loss == "warn" else {}

    def _laid(self, coded: DataFrame, told: Tidings, mark: Mark) -> DataFrame:
        """The messages in their lanes, each lane in order and its messages numbered: the same ones every time."""
        lanes = self._lanes(coded.sparkSession, told, mark)
        going = coded.where(F.col("spoken") & F.col(TOPIC).isNotNull())
        key = F.coalesce("key", _ROW_KEY)
        going = going.withColumns({"key": key, "__lanes": _looked_up(lanes, F.col(TOPIC))})
        going = going.withColumn(LANE, self._lane())
        if self.sink.ddl == "all" and self.sink.partition == "key":
            each = F.sequence(F.lit(0), F.col("__lanes") - 1)
            of = F.when(F.col(_OP).isin(*Op.ROWS), F.array(LANE)).otherwise(each)
            going = going.withColumn(LANE, F.explode(of))
        if self.sink.tombstones:
            dead = (F.col(_OP) == Op.DELETE) & F.col("key").isNotNull() & (F.col("part") == 0)
            copies = F.when(dead, F.array(F.lit(0), F.lit(1))).otherwise(F.array(F.lit(0)))
            going = going.withColumn(_TOMB, F.explode(copies))
            going = going.withColumn("value", F.when(F.col(_TOMB) == 0, F.col("value")))
        else:
            going = going.withColumn(_TOMB, F.lit(0))
        number = F.row_number().over(Window.partitionBy(TOPIC, LANE).orderBy(ORDER, _HALF, _TOMB, "part"))
        sent = F.concat_ws(" ", F.lit(str(mark.batch)), number.cast("string"), F.lit(self._writer(mark)))
        origin = (name for name in (read.PLACE, read.LANE, read.SENT) if name in going.columns)
        return going.select(TOPIC, LANE, "key", "value", sent.alias(SENT), *origin)

    def _lane(self) -> Column:
        """INT: which lane the message goes to; of other than rows the first, unless a table has one of its own."""
        of_row = F.col(_OP).isin(*Op.ROWS)
        if self.sink.partition == "one":
            return F.lit(0)
        table = F.col(_RELATION).cast("binary")
        hashed = F.coalesce("key", table) if self.sink.partition == "key" else table
        # As Kafka's clients do: the sign is dropped.
        lane = (kernel.murmur2(hashed).bitwiseAND(F.lit(0x7FFFFFFF)) % F.col("__lanes")).cast("int")
        return lane if self.sink.partition == "table" else F.when(of_row, lane).otherwise(F.lit(0))

    def _lanes(self, spark: SparkSession, told: Tidings, mark: Mark) -> dict[str, int]:
        """How many lanes the topics have; of a batch that is sent again, as many as they had the first time."""
        notes = Notes(spark, f"{self.folder.rstrip('/')}/lanes")
        noted = notes.of(mark.batch) if mark.replayed else None
        if noted is not None:
            return {str(topic): int(count) for topic, count in noted.items()}
        one = self.sink.one_topic
        topics = [one] if one else sorted({*self._topics(told).values()})
        found = self.sink.lanes(spark, topics)
        if self.replay is None:
            notes.write(mark.batch, found)
        return found

    def _writer(self, mark: Mark) -> str:
        """Who sends: another one if it would number the messages otherwise, and would seem to have sent them."""
        how = repr((__version__, replace(self, lake=None, folder="", replay=None)))  # type: ignore[arg-type]
        return f"{mark.writer}/{hashlib.sha256(how.encode()).hexdigest()[:12]}"


def _shapes(rule: Rule) -> bool:
    return bool(rule.filter or rule.project or rule.mask or rule.rename)


def _looked_up(counts: Mapping[str, int], topic: Column) -> Column:
    if len(set(counts.values())) <= 1:
        return F.lit(next(iter(counts.values()), 1))
    return F.create_map(*(part for name, count in counts.items() for part in (F.lit(name), F.lit(count))))[topic]


def _split(changes: DataFrame) -> DataFrame:
    """The changes; one that gives a row another key is two, each in order with the other changes of its key."""
    fields: Change = {field: F.col(field) for field in CHANGE.fieldNames()}
    flagged = changes.withColumn("__moved", moved(fields))
    parts = F.when(F.col("__moved"), F.array(F.lit("delete"), F.lit("insert"))).otherwise(F.array(F.lit("")))
    rows = flagged.select("*", F.posexplode(parts).alias(_HALF, "__part"))
    halves = half(fields, F.col("__part"))
    # The new row is all that is known of it. What a format kept of the change as a whole is of neither half.
    halves["after"] = F.when(F.col("__part") == "insert", kernel.overlay(F.col("before"), F.col("after"))).otherwise(
        halves["after"]
    )
    halves["extra"] = F.when(~F.col("__moved"), F.col("extra"))
    told = {field: halves[field] for field in ("op", "key", "before", "after", "extra")}
    return rows.withColumns(told).drop("__moved", "__part")
