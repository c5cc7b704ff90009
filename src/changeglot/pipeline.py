"""A pipeline: messages of a source, decoded, and applied to tables or sent as others, batch by batch."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Literal, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from changeglot import held, jars, logs, positions
from changeglot.apply import types
from changeglot.apply.order import ORDER, READ, number, order
from changeglot.apply.route import Rule
from changeglot.apply.rows import settled
from changeglot.apply.tidings import Told, tables, watched
from changeglot.held import Quarantine
from changeglot.layout import decode, decode_by
from changeglot.model import CHANGE, Op
from changeglot.notes import Notes
from changeglot.seen import seen
from changeglot.sending import Sending
from changeglot.serve.options import Serve
from changeglot.settings import configured
from changeglot.sinks.base import LakeSink, Mark
from changeglot.sinks.delta import Delta
from changeglot.sinks.messages import MessageSink
from changeglot.sources.base import LANE, MESSAGE, PLACE, SENT, TAKEN, MessageSource, Reached
from changeglot.sources.progress import Hear, unheard
from changeglot.tables import Tables
from changeglot.target import Applied, Planned, TableWork, Target, Upkeep

logger = logging.getLogger(__name__)

#: Of what must hold of the columns of a wide table Spark would make more than a memory holds, to no use here.
_PLANNING = {"spark.sql.constraintPropagation.enabled": "false"}
#: Settings of which there may be several, with commas.
_LISTS = ("spark.jars", "spark.sql.extensions")


@dataclass(frozen=True)
class Pipeline:
    """`run` applies what is there (`once`), or goes on as more comes."""

    name: str
    source: MessageSource
    #: Each gets every change, whatever the others do with it.
    sinks: tuple[LakeSink | MessageSink, ...]
    checkpoint: str
    rules: tuple[Rule, ...] = (Rule("*"),)
    format: str = "auto"
    #: Of the formats, by their names. Any: as a person writes them.
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    schema_change: Literal["evolve", "lenient", "ignore", "exception"] = "lenient"
    quarantine: Quarantine = field(default_factory=Quarantine)
    upkeep: Upkeep = field(default_factory=Upkeep)
    serve: Serve = field(default_factory=Serve)

    def __post_init__(self) -> None:
        for n, rule in enumerate(self.rules):
            rule.check(f"tables[{n}]")

    @property
    def sink(self) -> LakeSink:
        """The first that has tables."""
        found = first_lake(self.sinks)
        assert found is not None
        return found

    @property
    def targets(self) -> list[Target | Sending]:
        """What becomes of the changes in each sink. The quarantine of each is its own."""
        return [self._target(n, sink) for n, sink in enumerate(self.sinks)]

    def _target(self, number: int, sink: LakeSink | MessageSink) -> Target | Sending:
        name = f"{self.name}/{number}" if number else self.name
        if isinstance(sink, LakeSink):
            return Target(name, sink, self.rules, self.schema_change, self.quarantine, self.upkeep)
        notes = f"{self._notes}/{number}"
        return Sending(name, sink, self.rules, self._known(), self.quarantine, self._home, notes)

    def _label(self, number: int) -> str:
        """How a sink is told from the others: by its kind and, if there are several of it, its number from 0."""
        kinds = [sink.name for sink in self.sinks]
        return f"{kinds[number]} {number}" if kinds.count(kinds[number]) > 1 else kinds[number]

    @property
    def _home(self) -> LakeSink:
        """Where the quarantine of messages is: a sink with tables if there is one, else beside the checkpoint."""
        return first_lake(self.sinks) or Delta(path=f"{self._notes}/lake")

    @property
    def _source(self) -> MessageSource:
        return self.source.beside(self._notes)

    @property
    def _notes(self) -> str:
        return f"{self.checkpoint.rstrip('/')}/changeglot"

    def session_settings(self) -> dict[str, str]:
        """What a session must be started with, for the source and the sinks to work."""
        return session_settings((self.source, *self.sinks, self._home))

    def check(self, spark: SparkSession) -> None:
        """Raises what is wrong before anything is read: a service that does not answer, for instance."""
        self._source.check(spark)
        for sink in self.sinks:
            if isinstance(sink, MessageSink):
                sink.check(spark)

    def resync(self, tables: Sequence[str]) -> None:
        """Has all rows of these tables read again, while changes of others go on; rows that are gone go."""
        self._source.resync(tables)

    def drop(self) -> str:
        """Drops what the source keeps for the pipeline, which is not run any more; tells what that was."""
        return self._source.drop()

    def run(
        self,
        spark: SparkSession,
        *,
        once: bool = True,
        told: Callable[[Applied], None] = lambda _: None,
        hear: Hear = unheard,
    ) -> StreamingQuery:
        """The running query; with `once` it ends when all that is there is applied.

        `told` hears of each batch, `hear` of the rows of a database that are read before its changes.
        """
        writer: list[str] = []
        targets, begun = self.targets, _last_begun(spark, self.checkpoint)
        source = self._source.telling(hear).going_on(begun.offsets)
        source = source.ending() if once else source
        recording = source.record(spark, once=once)
        stream = source.messages(spark)
        # Files are numbered in a batch only. What a stream is planned with is built once, not with each batch.
        early = self.source.marked

        def apply(batch: DataFrame, number: int) -> None:
            recording.ask()
            if not writer:
                # The query is known by its checkpoint: with another one, batches are counted from the beginning.
                query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
                assert query_id
                writer.append(f"{self.name}/{query_id}")
            with configured(batch.sparkSession, _PLANNING):
                staged = batch if early else self._staged(batch, targets)
                told(self._apply(staged, Mark(writer[0], number, number <= begun.batch), targets))

        query = (self._staged(stream, targets) if early else stream).writeStream.foreachBatch(apply)
        query = query.queryName(self.name).option("checkpointLocation", self.checkpoint)
        try:
            started = (query.trigger(availableNow=True) if once and source.bounded else query).start()
        except BaseException:
            recording.end()
            raise
        recording.follow(started)
        if once and not source.bounded:
            threading.Thread(target=_end, args=(started,), daemon=True).start()
        return started

    def apply(self, batch: DataFrame, mark: Mark) -> Applied:
        """The messages of a batch, as the source gives them, in the sinks. A second time it changes no table."""
        targets = self.targets
        return self._apply(self._staged(batch, targets), mark, targets)

    def _passing(self, targets: Sequence[Target | Sending]) -> Sending | None:
        """What all changes can be passed on to as they lie, if that is all that becomes of them."""
        first, *others = targets
        return first if self.source.marked and not others and isinstance(first, Sending) and first.plain else None

    def _logging(self, targets: Sequence[Target | Sending]) -> Target | None:
        """Whose one log all changes go into, if that is all that becomes of them."""
        first, *others = targets
        return first if self.source.marked and not others and isinstance(first, Target) and first.one_log else None

    def _staged(self, messages: DataFrame, targets: Sequence[Target | Sending]) -> DataFrame:
        """What is made of messages, of a batch or a stream, before a batch is looked at."""
        changes = self._changes(self._source.placed(messages))
        if passing := self._passing(targets):
            return passing.staged(changes)
        return logs.staged(changes) if self._logging(targets) else changes

    def _apply(self, staged: DataFrame, mark: Mark, targets: Sequence[Target | Sending]) -> Applied:
        notes = Notes(staged.sparkSession, f"{self._notes}/seen")
        if passing := self._passing(targets):
            return passing.pass_on(staged, mark, notes)
        if logging := self._logging(targets):
            logged, left = logging.log(staged, mark)
            if left is None:
                return logged
            return logged.plus(self._look(left(self._changes(logs.messages(staged))), mark, targets, notes))
        return self._look(staged, mark, targets, notes)

    def _look(self, staged: DataFrame, mark: Mark, targets: Sequence[Target | Sending], notes: Notes) -> Applied:
        """The changes in the sinks, by what their tables are."""
        if self.source.marked:
            staged, facts = watched(staged, {"marked": F.count(SENT)})
            changes = settled(staged)
            if facts()["marked"]:
                changes = settled(_ordered(seen(changes, notes, mark.batch).once()))
            changes = changes.drop(LANE, SENT)
        elif (latest := self.source.latest) is not None:
            staged, facts = watched(staged, {"latest": F.max(latest)})
            changes = settled(staged)
            found = facts()["latest"]
            reached = self._source.reached(found) if found else None
            mark = replace(mark, stand=self._source.stand(found))
            applied = self._in_all(changes, targets, mark, whole=reached is not None)
            return self._published(staged.sparkSession, applied, reached, mark)
        else:
            changes = settled(staged)
        return self._in_all(changes, targets, mark)

    def _in_all(
        self, changes: DataFrame, targets: Sequence[Target | Sending], mark: Mark, *, whole: bool = False
    ) -> Applied:
        done = Applied.together({self._label(n): self._applied(changes, t, mark) for n, t in enumerate(targets)})
        for sink in self.sinks:
            if isinstance(sink, LakeSink):
                sink.finish(changes.sparkSession, mark, done.newest, whole=whole)
        return done

    def _published(self, spark: SparkSession, applied: Applied, reached: Reached | None, mark: Mark) -> Applied:
        """What a batch did, which all sinks have; and where the source's log is by that, for readers too."""
        if reached is None:
            return applied
        for sink in self.sinks:
            if isinstance(sink, LakeSink):
                positions.publish(spark, sink, self.name, reached, mark)
                if self.upkeep.due(mark):
                    sink.tidy(spark, sink.identifier(*positions.TABLE), self.upkeep.keep_hours)
        return replace(applied, position=reached.text)

    def _changes(self, messages: DataFrame) -> DataFrame:
        # Decoding keeps the bytes of bad messages only; a change may prove bad when it is applied.
        return self._decoded(messages.withColumn(MESSAGE, F.struct("key", "value")))

    def _applied(self, changes: DataFrame, target: Target | Sending, mark: Mark) -> Applied:
        if self.source.decoder and not (isinstance(target, Sending) and Op.SNAPSHOT_END in target.codec.speaks):
            changes = _without_ends(changes)
        applied = target.apply(changes, mark)
        logger.info("batch applied", extra={"pipeline": target.name, "batch": mark.batch})
        return applied

    def _decoded(self, messages: DataFrame) -> DataFrame:
        """The changes with their ORDER."""
        if decoder := self.source.decoder:
            if READ not in messages.columns:
                messages = messages.withColumn(READ, decoder.read(F.col("key")))
            changes = decode_by(decoder, messages)
            if TAKEN in changes.columns:
                taken = F.when(F.col("problem").isNull(), F.col(TAKEN))
                changes = changes.withColumn("produced_at", F.coalesce("produced_at", taken)).drop(TAKEN)
            return _ordered(changes)
        return _ordered(decode(messages, self.format, tables=self._known(), options=self.options))

    def _known(self) -> Tables:
        # Of rules the first counts, of tables the last.
        known = [(rule.match, {"key": list(rule.keys), "columns": rule.columns}) for rule in reversed(self.rules)]
        return Tables.of(dict(known))

    def plan(self, spark: SparkSession) -> list[Planned]:
        """What would be made of what the source has now; nothing is written."""
        source = self._source
        changes = _without_ends(self._decoded(source.placed(source.sample(spark))))
        told = tables(changes).tables
        return [planned for target in self.targets for planned in self._planned(target, changes, told)]

    def _planned(self, target: Target | Sending, changes: DataFrame, told: Sequence[Told]) -> Iterator[Planned]:
        for each in told:
            if not (rule := target.rule(each.name)):
                continue
            if isinstance(target, Sending):
                yield target.planned(each, rule)
                continue
            work = TableWork(target, changes, each, rule, Mark(self.name, 0))
            work.check()
            losses = {n: loss for n, kind in {**each.declared, **rule.columns}.items() if (loss := types.loss(kind))}
            steps = {step for made in work.evolutions.values() for step in made.steps}
            yield Planned(
                table=each.name,
                into=".".join(work.place),
                mode=rule.mode,
                key=work.key,
                columns=work.columns,
                exists=any(work.stored.values()),
                changes=tuple(sorted(steps, key=str)),
                losses=losses,
            )

    def quarantined(self, spark: SparkSession, ids: Sequence[str] = (), table: str = "") -> DataFrame | None:
        """What the quarantine holds, of the ids or the table if they are named; None if it was never used."""
        found = [each for target in self.targets if (each := _quarantined(spark, target, ids, table)) is not None]
        return reduce(DataFrame.unionByName, found) if found else None

    def replay(self, spark: SparkSession, ids: Sequence[str] = (), table: str = "") -> Applied | None:
        """What the quarantine holds once more, as the pipeline is now: rows go where they would have been.

        What is bad again stays there. None: there was nothing to replay.
        """
        done = {}
        for n, target in enumerate(self.targets):
            found = _quarantined(spark, target, ids, table)
            if found is None or found.isEmpty():
                continue
            replay = uuid.uuid4().hex
            released = held.release(found, target.lake, replay)
            messages = released.dropDuplicates(["place"]).select("key", "value", F.col("place").alias(PLACE))
            mark = Mark(f"{self.name}/replay/{replay}", 0, replayed=False)
            done[self._label(n)] = self._applied(settled(self._changes(messages)), replace(target, replay=replay), mark)
            # What was bad again has been written anew, and bears the replay no more.
            held.forget(released, target.lake)
        return Applied.together(done) if done else None

    def forget(self, spark: SparkSession, ids: Sequence[str] = (), table: str = "") -> int:
        """Drops what the quarantine holds; gives how much it was."""
        count = 0
        for target in self.targets:
            found = _quarantined(spark, target, ids, table)
            mine = 0 if found is None else found.count()
            if found is not None and mine:
                held.forget(found, target.lake)
            count += mine
        return count


def _end(query: StreamingQuery) -> None:
    """Stops a query when its source has nothing more."""
    # Who waits for the query hears how it failed.
    with suppress(StreamingQueryException):
        query.processAllAvailable()
        query.stop()


def first_lake(sinks: Iterable[LakeSink | MessageSink]) -> LakeSink | None:
    """The first of the sinks that has tables."""
    return next((sink for sink in sinks if isinstance(sink, LakeSink)), None)


def _ordered(changes: DataFrame) -> DataFrame:
    """The changes with their ORDER, by what they tell and by their PLACE."""
    change = {name: F.col(name) for name in CHANGE.fieldNames()}
    # A message's changes have one place; which of them it is orders them.
    place = F.concat_ws(".", F.col(PLACE), number(F.col("ordinal").cast("string")))
    read = F.col(READ) if READ in changes.columns else None
    return changes.withColumn(ORDER, order(change, place, read)).drop(READ)


def _without_ends(changes: DataFrame) -> DataFrame:
    """Less what tells where rows end: it is no change of a table, and nothing is lost by who has no word for it."""
    return changes.where(~F.col("op").eqNullSafe(F.lit(Op.SNAPSHOT_END)))


def _quarantined(spark: SparkSession, target: Target | Sending, ids: Sequence[str], table: str) -> DataFrame | None:
    found = held.kept(spark, target.lake, target.name)
    if found is None:
        return None
    found = found.where(F.col("id").isin(*ids)) if ids else found
    return found.where(F.col("table") == table) if table else found


def session_settings(parts: Iterable[MessageSource | LakeSink | MessageSink]) -> dict[str, str]:
    """What a session must be started with, for all of them to work in it."""
    parts = list(parts)
    # Not as packages: Spark would look for them anew at each start, and each Python worker would search all of them.
    found = jars.resolve([*dict.fromkeys(name for part in parts for name in part.packages)], excludes=jars.SPARKS_OWN)
    joined = {"spark.jars": ",".join(map(str, found))} if found else {}
    for part in parts:
        for name, value in part.session_settings().items():
            several = joined[name].split(",") if name in _LISTS and name in joined else []
            joined[name] = ",".join(dict.fromkeys([*several, *value.split(",")])) if name in _LISTS else value
    return joined


class _Begun(NamedTuple):
    """A batch, and up to where of the source it goes."""

    batch: int = -1
    offsets: str = ""


def _last_begun(spark: SparkSession, checkpoint: str) -> _Begun:
    """The last batch that was ever begun with a checkpoint, if one was."""
    # Spark notes what a batch has before it begins it.
    notes = Notes(spark, f"{checkpoint.rstrip('/')}/offsets")
    if not (batches := notes.numbers()):
        return _Begun()
    told: list[str] = []
    # That it is damaged is told by Spark.
    with suppress(Py4JJavaError):
        told = notes.content(max(batches)).decode("utf-8", "replace").splitlines()
    # The version of the note, what Spark keeps for itself, and the source's.
    return _Begun(max(batches), told[2] if len(told) == 3 and told[0] == "v1" else "")
