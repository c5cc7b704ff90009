"""Where changes go: the tables of a sink, by the rules of a pipeline, a batch of them at a time and each batch once."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial, reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from changeglot import kernel
from changeglot.apply import rows, scd1, scd2, types
from changeglot.apply.ddl import Amendment, amended, amendments
from changeglot.apply.order import ORDER
from changeglot.apply.route import IMAGES, WORDS, Rule, Ruled, routed
from changeglot.apply.schema import Evolution, evolution
from changeglot.apply.tidings import Told, table_name, tables, watched
from changeglot.at_once import at_once, lazy, meanwhile
from changeglot.columns import quoted
from changeglot.errors import ConfigError
from changeglot.held import Quarantine
from changeglot.logs import Log, apart
from changeglot.model import Op
from changeglot.options import option
from changeglot.sinks.base import LakeSink, Mark

logger = logging.getLogger(__name__)

#: Where it is kept how the tables' columns changed, and when.
HISTORY = ("changeglot", "schemas")
_HISTORY = {
    "pipeline": "string",
    "table": "string",
    "order": "string",
    "kind": "string",
    "column": "string",
    "becomes": "string",
    "statement": "string",
    "batch": "bigint",
    "at": "timestamp",
}
#: Added to a table's name: its change log, its history, and the keys of rows that are gone.
LOG, VERSIONS, ENDED = "__log", "__history", "__ended"
#: The first of a key's values, by which the rows that are gone lie: those of a batch are found without reading all.
_FIRST = "first"
_ENDED = {"key": "array<string>", _FIRST: "string", ORDER: "string", "at": "timestamp"}
#: So many changes for each part of a shuffle are worth being laid out for the merge, which then has as many parts. With
#: fewer it is left to Spark how many parts, and so how many files, a merge makes.
_MANY = 10_000


@dataclass(frozen=True)
class Upkeep:
    """How tables are kept small and fast."""

    every: int = option("batches after which tables are compacted; 0: never", 100)
    keep_hours: int = option("how long what was replaced can still be read, by time travel", 168)

    def due(self, mark: Mark) -> bool:
        """Is it time for it?"""
        return bool(self.every) and (mark.batch + 1) % self.every == 0


@dataclass(frozen=True)
class Applied:
    """What a batch did: changes by table, what went to the quarantine or no rule took, the newest commit's time.

    `untold`: what a format of messages has no word for, a statement for instance. `lost`: by format, how many changes
    had a field that it does not carry. `position`: up to where of the source's log all sinks have all, in the source's
    words; None if it has none, or rows were read that are newer.
    """

    batch: int
    tables: Mapping[str, int]
    quarantined: int
    passed_over: Mapping[str, int]
    newest: datetime | None
    untold: int = 0
    lost: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    position: str | None = None

    @classmethod
    def together(cls, several: Mapping[str, Applied]) -> Applied:
        """What one batch did in several sinks, by their names; with one sink its own."""
        if len(several) == 1:
            return next(iter(several.values()))
        first = next(iter(several.values()))
        return replace(
            first,
            tables={f"{sink}: {table}": n for sink, each in several.items() for table, n in each.tables.items()},
            quarantined=sum(each.quarantined for each in several.values()),
            untold=sum(each.untold for each in several.values()),
            lost={spoken: fields for each in several.values() for spoken, fields in each.lost.items()},
        )

    def plus(self, rest: Applied) -> Applied:
        """What one batch did in one sink, in two parts."""
        return replace(
            rest,
            tables=dict(Counter(self.tables) + Counter(rest.tables)),
            newest=max(filter(None, (self.newest, rest.newest)), default=None),
        )


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
class Target(Ruled):
    """The tables of a sink, as one pipeline fills them."""

    name: str
    sink: LakeSink
    rules: tuple[Rule, ...]
    schema_change: str
    quarantine: Quarantine
    upkeep: Upkeep
    #: The name of what is on its way again out of the quarantine, if it is that.
    replay: str | None = None

    @property
    def lake(self) -> LakeSink:
        """Where the quarantine is."""
        return self.sink

    def apply(self, changes: DataFrame, mark: Mark) -> Applied:
        """The changes (with ORDER, PLACE and the message) in the tables. A second time it changes nothing."""
        told = tables(changes)
        taken = [(each, rule) for each in told.tables if (rule := self.rule(each.name))]
        # All that may be refused is found before anything is written.
        # Without a log nobody knows which of the source's transactions changed a row.
        marks = {True: mark, False: replace(mark, stand=None)}
        work = [TableWork(self, changes, each, rule, marks["append" in rule.mode]) for each, rule in taken]
        with meanwhile(look for each in work for look in (each.read_ahead, each.look_back)):
            bad = self._fill(work)
        if told.bad:
            bad.append(changes.where(F.col("problem").isNotNull()))
        quarantined = 0
        if bad:
            every = reduce(DataFrame.unionByName, bad)
            quarantined = self.quarantine.keep(every, self.sink, self.name, mark, table_name())
        if self.upkeep.due(mark):
            self.tidy(changes.sparkSession, work)
        filled: Counter[str] = Counter()
        for each in work:
            filled[".".join(each.place)] += each.told.changes
        _, passed_over = told.counts(lambda each: self.rule(each.name) is not None)
        return Applied(mark.batch, dict(filled), quarantined, passed_over, told.newest)

    def _fill(self, work: Sequence[TableWork]) -> list[DataFrame]:
        """The good changes in their tables; gives those that have no place there, with the problem."""
        # Each looks at what the sink has: they wait more than they work.
        at_once(each.check for each in work)
        logs = [each for each in work if each.logged]
        at_once(each.log.make for each in {each.place: each for each in logs}.values())
        # Appending takes no settings of the session: all at once.
        at_once(partial(each.log.append, each.mine, each.told.name) for each in logs if each.new_to_log)
        places = set()
        bad: list[DataFrame] = []
        for each in work:
            # Another table of the batch may have gone into the same one: it is looked at anew.
            now = replace(each) if each.place in places else each
            places.add(each.place)
            now.evolve()
            bad += now.apply()
        return bad

    @property
    def one_log(self) -> bool:
        """Does every change go into one log as it is, whatever its table, and nothing else become of it?"""
        rule, *others = self.rules
        one = rule.match == "*" and rule.mode == ("append",) and rule.into and not WORDS.search(rule.into)
        return bool(one) and not others and not rule.shapes and self.quarantine.on_key_error != "hold"

    def log(self, lines: DataFrame, mark: Mark) -> tuple[Applied, Callable[[DataFrame], DataFrame] | None]:
        """Lines that were `staged` in the `one_log`, in one pass; and which of their changes are left for `apply`.

        Their tables are not known, which takes a look of its own.
        """
        place = self.rules[0].place(None, None, "")
        log = Log(lines.sparkSession, self.sink, self.sink.identifier(*place[:-1], place[-1] + LOG), mark)
        if not log.alone:
            return Applied(mark.batch, {}, 0, {}, None), lambda changes: changes
        found = log.fill(lines)
        applied = Applied(mark.batch, {".".join(place): found["good"]}, 0, {}, found["newest"])
        if found["apart"]:
            return applied, lambda changes: changes.where(apart())
        if self.upkeep.due(mark):
            self.sink.tidy(log.spark, log.table, self.upkeep.keep_hours)
        return applied, None

    def tidy(self, spark: SparkSession, work: Sequence[TableWork]) -> None:
        for each in work:
            for suffix in ("", LOG, VERSIONS, ENDED):
                table = each.table(suffix)
                if self.sink.exists(spark, table):
                    self.sink.tidy(spark, table, self.upkeep.keep_hours)


@dataclass(frozen=True)
class TableWork:
    """One table of the source in one batch: what it becomes in the sink."""

    target: Target
    #: Of the whole batch.
    changes: DataFrame
    told: Told
    rule: Rule
    mark: Mark

    def check(self) -> None:
        """Raises what the pipeline refuses of it."""
        if self.mirrored and self.told.columns and not self.key:
            raise ConfigError(
                f"tables.{self.rule.match}.keys",
                f'"{self.told.name}" has no key, and {" and ".join(self.mirrored)} need one',
                hint="Name its columns, or use mode: append.",
            )
        for name in self.rule.keys or self.told.key:
            if self.mirrored and self.rule.mask.get(name, "sha256") != "sha256":
                raise ConfigError(
                    f"tables.{self.rule.match}.mask.{name}",
                    f'is in the key of "{self.told.name}", all rows of which it would make one',
                    hint="Use sha256.",
                )
        _ = self.evolutions

    def look_back(self) -> None:
        """Finds out whether a change may be late, where that is asked before anything else."""
        if list(self.rule.mode) == ["scd1"]:
            _ = self._ended_later

    def read_ahead(self) -> None:
        """Reads what merging will ask of the tables that are there."""
        for mode, there in self.stored.items():
            if there:
                self.sink.read_ahead(self.spark, self.table(self.suffix(mode)))

    @property
    def sink(self) -> LakeSink:
        return self.target.sink

    @property
    def spark(self) -> SparkSession:
        return self.changes.sparkSession

    @lazy
    def place(self) -> tuple[str, ...]:
        return self.rule.place(*self.told.parts)

    def table(self, suffix: str = "") -> str:
        return self.sink.identifier(*self.place[:-1], self.place[-1] + suffix)

    @lazy
    def mirrored(self) -> list[str]:
        """The modes that make rows of changes."""
        return [mode for mode in self.rule.mode if mode != "append"]

    def suffix(self, mode: str) -> str:
        """Of the table of a mode: the table's own name goes to the first of them."""
        return "" if mode == "scd1" or "scd1" not in self.rule.mode else VERSIONS

    @lazy
    def stored(self) -> dict[str, bool]:
        """Which of the modes' tables are there."""
        return {mode: self.sink.exists(self.spark, self.table(self.suffix(mode))) for mode in self.mirrored}

    @lazy
    def made(self) -> list[str]:
        """The modes whose tables are there once the batch has made its own: one that tells of no columns makes none."""
        return [m for m in self.mirrored if self.stored[m] or (self.key and self.evolutions[m].columns)]

    @lazy
    def key(self) -> tuple[str, ...]:
        """The key in the sink's names: the rule's, that of the table which is there, or what the messages say."""
        for mode, there in self.stored.items():
            if there and (known := self.sink.key(self.spark, self.table(self.suffix(mode)))):
                renamed = {each.was: each.now for each in self.amendments if each.now}
                return tuple(renamed.get(name, name) for name in known)
        return tuple(self.rule.sink_name(name) for name in self.rule.keys or self.told.key)

    # Columns

    @lazy
    def amendments(self) -> list[Amendment]:
        """Renames and drops by earlier statements and this batch's; none if the pipeline does not follow them."""
        if self.target.schema_change not in ("evolve", "exception"):
            return []
        return sorted({*self._remembered, *self._amended_now}, key=lambda each: each.order)

    @lazy
    def _amended_now(self) -> list[Amendment]:
        """Renames and drops by the batch's statements."""
        return [
            Amendment(each.order, self.rule.sink_name(each.was), each.now and self.rule.sink_name(each.now))
            for order, statement, source in self.told.statements
            for each in amendments(statement or "", order, source) or ()
        ]

    @lazy
    def _last_told(self) -> dict[str, str]:
        """The columns that changes of the batch carry, and the order of the last that does."""
        images = (F.coalesce(F.map_keys(image), F.array().cast("array<string>")) for image in IMAGES)
        names = self.changes.where(self.told.has).select(ORDER, F.explode(F.array_union(*list(images)[1:])).alias("n"))
        found = names.groupBy("n").agg(F.max(ORDER).alias("last")).collect()
        return {self.rule.sink_name(row["n"]): row["last"] for row in found}

    @lazy
    def _remembered(self) -> list[Amendment]:
        history = self.sink.identifier(*HISTORY)
        if not self.sink.exists(self.spark, history):
            return []
        mine = (F.col("table") == self.told.name) & F.col("kind").isin("rename", "drop")
        found = self.spark.table(history).where(mine & (F.col("pipeline") == self.target.name))
        return [Amendment(row["order"], row["column"], row["becomes"]) for row in found.collect()]

    @lazy
    def evolutions(self) -> dict[str, Evolution]:
        """What each mode's table becomes; raises what the pipeline does not follow."""
        own = {*scd1.columns({}, soft=True), *scd1.PARTS, *scd2.columns({})}
        source_key = self.rule.keys or self.told.key
        told = self.rule.sink_columns(self.told.columns, source_key)
        for each in self.amendments:
            # What only changes from before the statement had is no column of the table now.
            if each.was in told and self._last_told.get(each.was, "") < each.order:
                kind = told.pop(each.was)
                if each.now:
                    told.setdefault(each.now, kind)
        now = self._amended_now if self.amendments else []
        made = {}
        for mode in self.mirrored:
            if self.stored[mode]:
                found = self.sink.columns(self.spark, self.table(self.suffix(mode)))
                known = {name: kind for name, kind in found.items() if name not in own}
                # A name that is told again after the statement is another column, which may be there already.
                due = [each for each in now if not (each.was in told and each.now in known)]
                made[mode] = evolution(self.told.name, known, told, due, self.target.schema_change)
            else:
                made[mode] = Evolution({name: kind or types.TEXT for name, kind in told.items()})
        return made

    @property
    def columns(self) -> dict[str, str]:
        """The columns that the modes' tables then have."""
        return {name: kind for made in self.evolutions.values() for name, kind in made.columns.items()}

    def evolve(self) -> None:
        """Makes and changes the tables. What is done is written down first: after a crash it is not seen again."""
        steps = list(self._changes())
        if steps:
            self._write_down(steps)
        for mode, each in self.evolutions.items():
            table = self.table(self.suffix(mode))
            if not self.stored[mode]:
                if mode in self.made:
                    soft = self.rule.delete == "soft"
                    own = scd1.columns(each.columns, soft=soft) if mode == "scd1" else scd2.columns(each.columns)
                    self.sink.create(self.spark, table, own, self.key)
                continue
            for was, now in each.rename.items():
                self.sink.rename(self.spark, table, was, now)
            for name in each.drop:
                self.sink.drop(self.spark, table, name)
            if each.add:
                if mode == "scd1" and None in self.told.columns.values():
                    self._untold(table, tuple(each.add))
                self.sink.add(self.spark, table, each.add)
            for name, kind in each.widen.items():
                self.sink.widen(self.spark, table, name, kind)

    def _untold(self, table: str, names: Sequence[str]) -> None:
        """Says of every row that nothing has told these columns, of which the source may have told us a part before.

        Done before they are there: after a crash it is done again.
        """
        self._take_parts()
        never = F.create_map(*(part for name in names for part in (F.lit(name), F.lit(""))))
        every = rows.given(self.spark.range(1)).mergeInto(table, F.lit(True)).whenMatched()
        every.update(rows.sets({rows.ORDERS: kernel.overlay(rows.t(rows.ORDERS), never)})).merge()

    def _changes(self) -> Iterator[dict[str, Any]]:
        """Lines of the history. Any: texts."""
        orders = {(each.was, each.now): each.order for each in self.amendments}
        seen = set()
        for mode, each in self.evolutions.items():
            steps = each.steps if self.stored[mode] else [("create", n, k) for n, k in each.columns.items()]
            for kind, column, becomes in steps:
                if (kind, column, becomes) not in seen:
                    seen.add((kind, column, becomes))
                    order = orders.get((column, becomes if kind == "rename" else None), "")
                    yield {"kind": kind, "column": column, "becomes": becomes, "order": order}
        for order, statement, _ in self.told.statements:
            yield {"kind": "statement", "statement": statement, "order": order}

    def _write_down(self, steps: Sequence[Mapping[str, Any]]) -> None:
        """Any: texts."""
        table = self.sink.identifier(*HISTORY)
        self.sink.create(self.spark, table, _HISTORY)
        same = {"pipeline": self.target.name, "table": self.told.name, "batch": self.mark.batch}
        schema = ", ".join(f"`{name}` {kind}" for name, kind in _HISTORY.items() if name != "at")
        lines = [tuple({**step, **same}.get(name) for name in _HISTORY if name != "at") for step in steps]
        made = self.spark.createDataFrame(lines, schema).withColumn("at", F.current_timestamp())
        self.sink.append(made, table, self.mark.of(self.told.name, "schema"))

    # The log

    @property
    def logged(self) -> bool:
        return "append" in self.rule.mode

    @lazy
    def log(self) -> Log:
        return Log(self.spark, self.sink, self.table(LOG), self.mark)

    @property
    def new_to_log(self) -> bool:
        """Is it certain that the log has none of the changes, and the batch none of them twice?

        What has no position in the source's log is known by its place in the transport, which one writer reads once. If
        there was another one, it may have read the same: with a checkpoint that is lost now, for instance.
        """
        # What is replayed is written under another name than the pipeline's.
        return not self.target.replay and self.log.alone and not self.told.placed

    # Rows

    @lazy
    def mine(self) -> DataFrame:
        """The good changes, as the rule wants them."""
        return self._routed(self.changes.where(self.told.has & F.col("problem").isNull()))

    def apply(self) -> Sequence[DataFrame]:
        """The changes in the tables; gives those that have no place there, with the problem."""
        if self.logged and not self.new_to_log:
            self.log.merge(self.mine, self.told.name)
        if not self.made:
            return ()
        mine = amended(self.mine, IMAGES, ORDER, self.amendments).where(F.col("op").isin(*Op.ROWS))
        bad = self._replace(mine) if self._tells_whole else None
        if bad == 0:
            return ()
        problem = F.coalesce(rows.key_problem(self.key), rows.value_problem(self.columns, self.key))
        checked = mine.withColumn("problem", problem)
        hold = self.target.quarantine.held
        checked = hold(checked, self.sink, self.target.name, self.told.name, self.target.replay)
        if bad is None:
            bad = self._mirror(checked)
        return [checked.where(F.col("problem").isNotNull())] if bad else ()

    @property
    def _tells_whole(self) -> bool:
        """Is a table of current rows all that is made, and does every change tell all of its columns?"""
        if self.made != ["scd1"] or self.told.truncated is not None or self.amendments or self._by_column:
            return False
        names = (set(map(self.rule.sink_name, each)) for each in self.told.updates)
        return self.target.quarantine.on_key_error != "hold" and all(each >= self.columns.keys() for each in names)

    @property
    def _by_column(self) -> bool:
        """Does the table say when each of a row's columns was told?"""
        return rows.ORDERS in self.sink.columns(self.spark, self.table(self.suffix("scd1")))

    def _replace(self, changes: DataFrame) -> int | None:
        """Changes of whole rows, of which the last counts. How many are bad; None, and nothing done, if keys change."""
        states = rows.states(changes, self.key, self.columns)
        seen = {
            "bad": F.count(rows.PROBLEM),
            "good": F.count_if(F.col(rows.PROBLEM).isNull()),
            "moved": F.count_if(rows.MOVED),
            "ends": F.count_if(rows.GONE),
            **rows.bounds(self.columns, {name: F.col(quoted(name)) for name in self.key}),
        }
        states, facts = watched(states, seen)
        good = F.col(rows.PROBLEM).isNull()
        many = _MANY * int(str(self.spark.conf.get("spark.sql.shuffle.partitions")))
        settled = rows.laid if self.told.changes >= many else rows.settled
        last = settled(rows.last(states.where(good), self.key, self.columns))
        if self._ended_later is not None:
            last = settled(rows.outlived(last, self._ended_later, self.key, self.columns))
        found = facts()
        if found["moved"]:
            return None
        # An end that is not a row's last change needs no memory: the row itself keeps what is late away.
        names = {"key": rows.KEY, "order": ORDER, "at": rows.AT}
        ends = last.where(rows.GONE).select(*(F.col(own).alias(name) for name, own in names.items()))
        merge = partial(self._scd1, last.drop(rows.KEY, rows.AT), self._bounds(found), "merge", whole=True)
        remember = partial(self._remember, ends)
        # Both are of one batch, and neither looks at what the other writes.
        at_once(call for call, some in ((merge, found["good"]), (remember, found["ends"])) if some)
        return int(found["bad"])

    def _mirror(self, checked: DataFrame) -> int:
        """Changes of any kind in all modes' tables. How many are bad."""
        checked, seen = watched(checked, {"bad": F.count("problem")})
        steps = rows.steps(checked.where(F.col("problem").isNull()), self.key, self.columns)
        key = {name: types.value(F.get("key", n), self.columns[name]) for n, name in enumerate(self.key)}
        facts = {
            "ends": F.count_if(F.col("kind") == rows.END),
            "parts": F.count_if(F.col("kind") == rows.PART),
            "lent": F.count("lender"),
            "steps": F.count(F.lit(1)),
            "least": F.min(F.get("key", 0)),
            "most": F.max(F.get("key", 0)),
            **rows.bounds(self.columns, key),
        }
        steps, told = watched(steps, facts)
        steps = rows.settled(steps)
        found = told()
        if self.told.truncated is not None or found["ends"]:
            self._remember(steps.where(F.col("kind") == rows.END).select("key", "order", "at").distinct())
        if self.told.truncated is not None:
            self._truncate(self.told.truncated)
        if found["parts"] and "scd1" in self.made:
            self._take_parts()
        if (ended := self._ended()) is not None:
            near = F.col(_FIRST).isNull() | F.col(_FIRST).between(found["least"], found["most"])
            ended = ended.where(near)
        if found["steps"]:
            for mode in self.made:
                whole = self._lent(mode, steps, ended) if found["lent"] else steps
                self._merge(mode, whole, ended, self._bounds(found), "merge")
        return int(seen()["bad"])

    def _bounds(self, found: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Least and greatest of the key's columns, as far as they are known. Any: their values."""
        return {n: (found[f"low_{n}"], found[f"high_{n}"]) for n in self.key if f"low_{n}" in found}

    def _routed(self, changes: DataFrame) -> DataFrame:
        rule = self.rule
        if rule.keys:
            names = F.array(*map(F.lit, rule.keys))
            fits = F.size(F.array_intersect(F.map_keys("key"), names)) == F.size(F.map_keys("key"))
            named = kernel.pick(F.col("before"), F.col("after"), names)
            changes = changes.withColumn("key", F.coalesce(F.when(fits, F.col("key")), named, F.col("key")))
        return routed(changes, rule, self.told.columns, rule.keys or self.told.key)

    def _remember(self, ends: DataFrame) -> None:
        """What is gone now, for changes that come late."""
        table = self.table(ENDED)
        gone = ends.select("key", F.get("key", 0).alias(_FIRST), F.col("order").alias(ORDER), "at")
        if self.told.truncated is not None:
            # Of every row: a key of no columns.
            every = {"key": F.array(), _FIRST: F.lit(None), ORDER: F.lit(self.told.truncated), "at": F.lit(None)}
            cut = self.spark.range(1).select(*(every[name].cast(kind).alias(name) for name, kind in _ENDED.items()))
            gone = gone.unionByName(cut)
        self.sink.create(self.spark, table, _ENDED, (_FIRST,))
        self.sink.append(gone, table, self.mark.of(self.told.name, "end"))

    def _truncate(self, at: str) -> None:
        """Ends every row that is older."""
        cut = rows.given(self.spark.range(1).select(F.lit(at).alias("at")))
        older = rows.t(ORDER) < rows.s("at")
        for mode in self.made:
            table = self.table(self.suffix(mode))
            if mode == "scd2":
                current = cut.mergeInto(table, older & rows.t(scd2.ENDED).isNull())
                write = current.whenMatched().update({scd2.ENDED: rows.s("at")}).merge
            elif self.rule.delete == "soft":
                gone = {scd1.DELETED: F.lit(True), ORDER: rows.s("at")}
                write = cut.mergeInto(table, older).whenMatched().update(gone).merge
            else:
                write = cut.mergeInto(table, older).whenMatched().delete().merge
            self.sink.once(self.spark, table, self.mark.of(self.told.name, mode, "truncate"), write)

    def _take_parts(self) -> None:
        """Lets the table say when each of a row's columns was told."""
        table = self.table(self.suffix("scd1"))
        if not self._by_column:
            self.sink.add(self.spark, table, scd1.PARTS)

    def _ended(self) -> DataFrame | None:
        """What is known to be gone; None if nothing is."""
        table = self.table(ENDED)
        return self.spark.table(table) if self.sink.exists(self.spark, table) else None

    @lazy
    def _ended_later(self) -> DataFrame | None:
        """What is known to have ended after the batch's first change; None if nothing is, as is the rule."""
        ended = self._ended()
        if ended is None:
            return None
        later = ended.where(F.col(ORDER) > self.told.oldest)
        # What the files say of themselves is enough to know that it is empty.
        return None if later.isEmpty() else later

    def _lent(self, mode: str, steps: DataFrame, ended: DataFrame | None) -> DataFrame:
        """The steps; those of rows that go under another key have taken along what is stored, or told before them."""
        stored = self._rows(mode)
        while True:
            # A row that goes on and on takes as many rounds as it has keys; one is the rule.
            free, told = watched(rows.free(steps), {"count": F.count(F.lit(1))})
            free = rows.settled(free)
            if not told()["count"]:
                return steps
            lenders = free.select(F.col("lender").alias("key"))
            own = rows.settled(stored.join(lenders, "key", "left_semi"))
            steps = rows.settled(rows.lent(steps, free, rows.with_ends(steps, ended), own))

    def _merge(
        self, mode: str, steps: DataFrame, ended: DataFrame | None, bounds: Mapping[str, Any], step: str
    ) -> None:
        """Any: as of _bounds."""
        if mode == "scd2":
            self._scd2(steps, ended, bounds, step)
        else:
            every = rows.with_ends(steps, ended)
            folded = rows.folded(every, self.key, self.evolutions[mode].columns)
            self._scd1(rows.settled(folded), bounds, step, whole=False)

    def _rows(self, mode: str) -> DataFrame:
        """The rows that a table has now, as steps."""
        columns = self.evolutions[mode].columns
        stored = self.spark.table(self.table(self.suffix(mode)))
        if mode == "scd2":
            stored = stored.where(F.col(scd2.ENDED).isNull())
        elif scd1.DELETED in stored.columns:
            stored = stored.where(~F.col(scd1.DELETED))
        return rows.stored(stored, self.key, columns)

    def _scd1(self, last: DataFrame, bounds: Mapping[str, Any], step: str, *, whole: bool) -> None:
        """Any: as of _bounds."""
        table, columns = self.table(self.suffix("scd1")), self.evolutions["scd1"].columns
        same, soft = rows.same(self.key, bounds), self.rule.delete == "soft"
        merge = partial(scd1.merge, last, table, same, self.key, columns)
        merge = partial(merge, soft=soft, parts=not whole and self._by_column, whole=whole)
        self.sink.once(self.spark, table, self.mark.of(self.told.name, "scd1", step), merge)

    def _scd2(self, steps: DataFrame, ended: DataFrame | None, bounds: Mapping[str, Any], step: str) -> None:
        """Any: as of _bounds."""
        table, columns = self.table(self.suffix("scd2")), self.evolutions["scd2"].columns
        tracked = [self.rule.sink_name(name) for name in self.rule.track]
        same, within = rows.same(self.key, bounds), rows.same((), bounds)
        mark = self.mark.of(self.told.name, "scd2", step)
        self.sink.once(
            self.spark,
            table,
            mark,
            lambda: scd2.merge(steps, ended, table, same, within, self.key, columns, tracked, self.amendments),
        )
