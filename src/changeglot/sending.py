"""Where changes go as messages: a batch at a time, the changes of a row in order, each message known by its number."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
from changeglot.codecs.base import Codec, half, moved, place_in_transaction
from changeglot.columns import row_of_task
from changeglot.errors import ConfigError
from changeglot.held import Quarantine
from changeglot.layout import encode
from changeglot.model import CHANGE, Change, Op, Phase, change
from changeglot.notes import Notes
from changeglot.seen import seen
from changeglot.sinks.base import LakeSink, Mark
from changeglot.sinks.messages import LANE, SENT, TOPIC, Lanes, MessageSink
from changeglot.sources import base as read
from changeglot.tables import Tables
from changeglot.target import Applied, Planned

#: Between the parts of the key of a row's messages where the format has none: no name or value of OMS holds it.
_SEPARATOR = "\x01"
#: Before the names in `extra` that tell of the source's log.
_LOG = "arcion.source."
#: Before the names of fields, among what is observed.
_LOST = "lost "
_HALF, _OP, _ROW_KEY, _RELATION, _TOMB = "__half", "__sent_op", "__row_key", "__sent_relation", "__tomb"
_HASH, _BAD, _AT, _ORDINAL = "__hash", "__bad", "__committed_at", "__ordinal"
#: Seconds for which the lanes of topics are taken to be as many as they were. Kafka's own clients ask less often.
_FRESH = 60
_NOBODY = Tidings((), 0, None)


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
    #: The topics' lanes, and when they were looked up.
    looked_up: dict[str, tuple[Lanes, float]] = field(default_factory=dict, repr=False, compare=False)

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
        if any(rule.shapes for rule in self.rules):
            # What follows reads it once for each table.
            judged = settled(judged)
        good = self._routed(judged.where(F.col("problem").isNull()), told)
        coded, facts = watched(self._coded(good, told), self._facts(F.lit(True)))
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
        """Does every change go to one topic as it is, whatever its table, and only those of a row must be in order?"""
        every = any(rule.match == "*" for rule in self.rules) and not any(rule.shapes for rule in self.rules)
        one = self.sink.one_topic is not None and self.sink.partition == "key"
        return every and one and self.quarantine.on_key_error != "hold"

    def staged(self, changes: DataFrame) -> DataFrame:
        """What `pass_on` takes of changes of a transport, a batch of them or a stream."""
        judged = changes.withColumn("problem", F.coalesce("problem", self._problem()))
        bad = F.when(F.col("problem").isNotNull(), F.struct(*Quarantine.wants))
        judged = judged.withColumns({_BAD: bad, _AT: F.col("committed_at"), _ORDINAL: F.col("ordinal")})
        own = ("key", "value", "spoken", "part", "lost", TOPIC, _HALF, _OP, _HASH, _BAD, _AT, _ORDINAL)
        return self._coded(judged, _NOBODY).select(*own, read.PLACE, read.LANE, read.SENT)

    def pass_on(self, staged: DataFrame, mark: Mark, notes: Notes) -> Applied:
        """What `apply` does, with changes that are made into messages once and are sent as they lie.

        The changes of a row are in order as they are in their own transport, and its partitions are known: a message
        has its number among those of the partition that it comes from. Their tables are not known, which takes a look
        of its own.
        """
        rows, found = self._looked_at(staged)
        number = row_of_task() + 1
        if found["marked"]:
            # Some may be there twice, or behind others that were sent after them.
            rows, found = self._looked_at(seen(rows, notes, mark.batch).once())
            lane = Window.partitionBy(read.LANE).orderBy(read.PLACE, _ORDINAL, _HALF, _TOMB, "part", LANE)
            number = F.row_number().over(lane)
        lost = self._lost(found)
        going = self._going(rows, self._lanes(rows.sparkSession, _NOBODY, mark))
        self.sink.send(self._numbered(going, number, mark, F.col(read.LANE)))
        bad = rows.where(F.col(_BAD).isNotNull()).select(f"{_BAD}.*")
        kept = self.quarantine.keep(bad, self.lake, self.name, mark, table_name()) if found["bad"] else 0
        counts = {str(self.sink.one_topic): int(found["good"])}
        return Applied(mark.batch, counts, kept, {}, found["newest"], untold=int(found["untold"]), lost=lost)

    def _looked_at(self, staged: DataFrame) -> tuple[DataFrame, Mapping[str, Any]]:
        """The messages settled, and facts about them. Any: what was observed."""
        good = F.col(_BAD).isNull()
        about = {
            "bad": F.count(_BAD),
            "good": F.count_if(good & (F.col(_HALF) == 0) & (F.col("part") == 0)),
            "newest": F.max(_AT),
            "marked": F.count(read.SENT),
            **self._facts(good),
        }
        staged, facts = watched(staged, about)
        return settled(staged), facts()

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
        lanes = self.sink.lanes(spark, [topic], self._noted(spark))[topic]
        nobody = F.lit(None).cast("string").alias(SENT)
        each = F.explode(F.array(*map(F.lit, lanes))).alias(LANE)
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
        shaped = [each for each in told.tables if (rule := self.rule(each.name)) and rule.shapes]
        plain = [each for each in told.tables if (rule := self.rule(each.name)) and not rule.shapes]
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
        """The messages, with what is asked for to send them; `spoken` is false where the format has no word."""
        every = self.codec.parts(change()) is None and self.sink.partition != "key"
        split = changes.withColumn(_HALF, F.lit(0)) if every else _split(changes, self.codec)
        key = F.concat_ws(_SEPARATOR, table_name(), F.array_join(F.map_values("key"), _SEPARATOR, ""))
        split = split.withColumns(
            {
                _OP: F.col("op"),
                _ROW_KEY: F.when(F.col("op").isin(*Op.ROWS) & F.col("key").isNotNull(), key).cast("binary"),
                _RELATION: table_name(),
                TOPIC: self._topic(told),
            }
        )
        coded = encode(split, self.sink.format, tables=self.known, options=self._options)
        coded = coded.withColumn("key", F.coalesce("key", _ROW_KEY))
        return coded.withColumn(_HASH, self._hash()).drop(read.MESSAGE, "problem", "raw", _ROW_KEY, _RELATION)

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

    def _facts(self, good: Column) -> dict[str, Column]:
        """What is to be known of the messages; of bad changes, for which `good` is false, there are none."""
        going = F.col("spoken") & F.col(TOPIC).isNotNull()
        about = {"untold": F.count_if(good & ~going)}
        if self.sink.on_loss == "ignore":
            return about
        return about | {
            _LOST + loss.field: F.count_if(good & F.array_contains("lost", loss.field)) for loss in self.codec.losses
        }

    def _lost(self, found: Mapping[str, Any]) -> dict[str, dict[str, int]]:
        """What is to be told of what the messages do not carry; raises what is refused. Any: what was observed."""
        lost = {name.removeprefix(_LOST): n for name, n in found.items() if name.startswith(_LOST) and n}
        if lost and self.sink.on_loss == "fail":
            said = f"{self.sink.format} cannot carry {', '.join(sorted(lost))} of this batch; nothing of it was sent"
            raise ConfigError("sink.on_loss", said, hint="Allow it with on_loss: warn.")
        return {self.sink.format: lost} if lost and self.sink.on_loss == "warn" else {}

    def _laid(self, coded: DataFrame, told: Tidings, mark: Mark) -> DataFrame:
        """The messages in their lanes, each lane in order and its messages numbered: the same ones every time."""
        going = self._going(coded, self._lanes(coded.sparkSession, told, mark))
        number = F.row_number().over(Window.partitionBy(TOPIC, LANE).orderBy(ORDER, _HALF, _TOMB, "part"))
        return self._numbered(going, number, mark)

    def _going(self, coded: DataFrame, lanes: Mapping[str, Lanes]) -> DataFrame:
        """The messages that are sent, each with its lane."""
        names = _names_of(lanes, F.col(TOPIC))
        # As Kafka's clients do: the sign is dropped.
        number = (F.col(_HASH).bitwiseAND(F.lit(0x7FFFFFFF)) % F.array_size(names)).cast("int")
        going = coded.where(F.col("spoken") & F.col(TOPIC).isNotNull())
        going = going.withColumn(LANE, F.get(names, F.coalesce(number, F.lit(0))))
        if self.sink.ddl == "all" and self.sink.partition == "key":
            of = F.when(F.col(_OP).isin(*Op.ROWS), F.array(LANE)).otherwise(names)
            going = going.withColumn(LANE, F.explode(of))
        if not self.sink.tombstones:
            return going.withColumn(_TOMB, F.lit(0))
        dead = (F.col(_OP) == Op.DELETE) & F.col("key").isNotNull() & (F.col("part") == 0)
        copies = F.when(dead, F.array(F.lit(0), F.lit(1))).otherwise(F.array(F.lit(0)))
        going = going.withColumn(_TOMB, F.explode(copies))
        return going.withColumn("value", F.when(F.col(_TOMB) == 0, F.col("value")))

    def _numbered(self, going: DataFrame, number: Column, mark: Mark, *origin: Column) -> DataFrame:
        """The messages as they are sent, each with what it is known by; `origin`: what the numbers are counted in."""
        writer = F.lit(self._writer(mark))
        sent = F.concat_ws(" ", F.lit(str(mark.batch)), number.cast("string"), writer, *origin)
        return going.select(TOPIC, LANE, "key", "value", sent.alias(SENT))

    def _hash(self) -> Column:
        """INT: what chooses the lane; NULL for the first, where all but rows go unless a table has one of its own."""
        table = F.col(_RELATION).cast("binary")
        if self.sink.partition == "one":
            return F.lit(None).cast("int")
        if self.sink.partition == "table":
            return kernel.murmur2(table)
        return F.when(F.col(_OP).isin(*Op.ROWS), kernel.murmur2(F.coalesce("key", table)))

    def _lanes(self, spark: SparkSession, told: Tidings, mark: Mark) -> dict[str, Lanes]:
        """The lanes of the topics; of a batch that is sent again, those that they had the first time."""
        one = self.sink.one_topic
        topics = [one] if one else sorted({*self._topics(told).values()})
        now = time.monotonic()
        asked = [topic for topic in topics if now - self.looked_up.get(topic, ((), -_FRESH))[1] >= _FRESH]
        if asked:
            streaming = self.replay is None
            noted = self._noted(spark, mark.batch if streaming else None)
            found = there = self.sink.lanes(spark, asked, noted)
            if mark.replayed:
                # Lanes that were added since are for the next batch. Those that are gone are for none.
                found = {topic: _left(noted.get(topic, ()), names) for topic, names in there.items()}
            for topic, names in found.items():
                self.looked_up[topic] = names, now if names == there[topic] else -_FRESH
            if streaming and found.items() - noted.items():
                self._notes(spark).write(mark.batch, noted | found)
        return {topic: self.looked_up[topic][0] for topic in topics}

    def _notes(self, spark: SparkSession) -> Notes:
        """Of the lanes of this transport's topics: a pipeline may have sent them elsewhere before."""
        where = hashlib.sha256(f"{self.sink.name} {self.sink.at}".encode()).hexdigest()[:12]
        return Notes(spark, f"{self.folder.rstrip('/')}/lanes/{where}")

    def _noted(self, spark: SparkSession, batch: int | None = None) -> dict[str, Lanes]:
        """The lanes that topics had, when that was last noted, in that batch or before it."""
        notes = self._notes(spark)
        told = notes.last() if batch is None else notes.until(batch)
        return {topic: tuple(names) for topic, names in (told or {}).items()}

    def _writer(self, mark: Mark) -> str:
        """Who sends: another one if it would number the messages otherwise, and would seem to have sent them."""
        how = repr((__version__, replace(self, lake=None, folder="", replay=None)))  # type: ignore[arg-type]
        return f"{mark.writer}/{hashlib.sha256(how.encode()).hexdigest()[:12]}"


def _left(before: Lanes, now: Lanes) -> Lanes:
    """Those that were there before, as far as they still are; else those of now."""
    return tuple(name for name in before if name in now) or now


def _names_of(lanes: Mapping[str, Lanes], topic: Column) -> Column:
    """ARRAY<STRING>: the lanes of a topic, which has one at least."""
    arrays = {name: F.array(*map(F.lit, names)) for name, names in lanes.items()}
    if len(set(lanes.values())) <= 1:
        return next(iter(arrays.values()), F.array(F.lit("")))
    return F.create_map(*(part for name, names in arrays.items() for part in (F.lit(name), names)))[topic]


def _split(changes: DataFrame, codec: Codec) -> DataFrame:
    """The changes; one that gives a row another key is two, each in order with the other changes of its key."""
    fields: Change = {field: F.col(field) for field in CHANGE.fieldNames()}
    flagged = changes.withColumn("__moved", moved(fields))
    parts = F.when(F.col("__moved"), F.array(F.lit("delete"), F.lit("insert"))).otherwise(F.array(F.lit("")))
    rows = flagged.select("*", F.posexplode(parts).alias(_HALF, "__part"))
    halves = half(fields, F.col("__part"))
    adds = F.col("__part") == "insert"
    order = F.try_add(place_in_transaction(fields), F.when(adds, 1).otherwise(0))
    transaction = F.col("transaction").withField("order", order)
    transaction = transaction.withField("last", F.when(adds, F.col("transaction.last")))
    halves["transaction"] = F.when(F.col("__moved"), transaction).otherwise(F.col("transaction"))
    # The new row is all that is known of it. What a format kept of the change as a whole is of neither half, but for
    # where it was in the log.
    halves["after"] = F.when(adds, kernel.overlay(F.col("before"), F.col("after"))).otherwise(halves["after"])
    extra, linked = kernel.prefixed(F.col("extra"), _LOG), codec.linked(fields, F.col("__part"))
    extra = kernel.note(extra, linked) if linked else extra
    halves["extra"] = F.when(F.col("__moved"), extra).otherwise(F.col("extra"))
    told = {field: halves[field] for field in ("op", "key", "before", "after", "transaction", "extra")}
    return rows.withColumns(told).drop("__moved", "__part")
