"""The commands on pipelines: run, check, quarantine. What a person sees of them, and what a script reads."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from changeglot.errors import ChangeglotError, ConfigError, MissingError, PipelineFailed, complaint
from changeglot.explain import table
from changeglot.pipeline import Pipeline, first_lake
from changeglot.sending import Sending
from changeglot.sources.progress import Extent
from changeglot.target import Applied, Planned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: How much of a message is shown.
_SHOWN = 2000
#: What Spark says that it does while it waits for a source, and the seconds after which that is told.
_ASKING, _PATIENCE = "Getting offsets from", 30
#: Seconds between two lines of how far rows are read, where they stay; and letters of the bar where they do not.
_NOW_AND_THEN, _BAR = 10, 20
#: By what of their errors transports tell that messages are gone, and that nobody is there.
_GONE = ("may have been lost", "KAFKA_DATA_LOSS", "OffsetGone", "OffsetOutOfRange")
_AWAY = ("kafka.common.errors.TimeoutException", "BrokerNotAvailable", "Unreachable")
_GOES_ON = "When it is there again, start the pipeline again: it goes on where it was."


@dataclass
class Progress:
    """What a run has done so far, told as it goes: one line that changes on a terminal, else a line for each batch."""

    quiet: bool
    shown: bool
    as_json: bool = False
    begun: float = field(default_factory=time.monotonic)
    last: float = field(default_factory=time.monotonic)
    batches: int = 0
    quarantined: int = 0
    tables: Counter[str] = field(default_factory=Counter)
    passed_over: Counter[str] = field(default_factory=Counter)
    untold: int = 0
    lost: dict[str, Counter[str]] = field(default_factory=dict)
    position: str | None = None
    waiting: int = 0
    asked: float = field(default_factory=time.monotonic)
    #: When what the source last answered was told by Spark, which does so for nothing too, every now and then.
    answered: str = ""
    complaints: int = 0
    began: float = 0
    noted: float = 0
    #: What the line of a terminal has: how far rows are read, and the last batch.
    drawn: tuple[str, str] = ("", "")

    def hear(self, reading: Extent) -> None:
        """Tells how far rows of a database are read: a bar on a terminal, else a line now and then and at the end."""
        now = time.monotonic()
        if not self.began:
            self.began = self.noted = now
        rows, of, left = map(sum, zip(*reading.values(), strict=True))
        drawn = self.shown and not self.quiet
        if drawn:
            to_go = (now - self.began) * (of - rows) / rows if rows else 0
            line = f"{_bar(rows, of)} {_read(reading, rows, of)}"
            self._draw(reading=f"{line}, {to_go:.0f} s to go" if to_go >= 1 else line if left else "")
        if left and (drawn or now - self.noted < _NOW_AND_THEN):
            return
        self.noted = now
        if self.as_json:
            told = {name: {"rows": each.rows, "of_about": each.of} for name, each in reading.items()}
            print(json.dumps({"reading": told}, ensure_ascii=False), file=sys.stderr, flush=True)
        elif not self.quiet:
            done = f"{rows:,} rows of {len(reading)} tables read in {now - self.began:.1f} s"
            self.say(_read(reading, rows, of) if left else done)

    def _draw(self, *, reading: str | None = None, batch: str | None = None) -> None:
        """The line of a terminal, with something new in it."""
        self.drawn = (
            self.drawn[0] if reading is None else reading,
            self.drawn[1] if batch is None else batch,
        )
        line = "; ".join(filter(None, self.drawn))[: shutil.get_terminal_size().columns - 1]
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)

    def tell(self, applied: Applied) -> None:
        now = time.monotonic()
        changes, seconds = sum(applied.tables.values()), now - self.last
        self.last = now
        self.batches += 1
        self.quarantined += applied.quarantined
        self.untold += applied.untold
        self.position = applied.position or self.position
        self.tables.update(applied.tables)
        for name in applied.passed_over.keys() - self.passed_over.keys():
            self.say(f"{name}: no rule of the pipeline takes this table; its changes are passed over")
        self.passed_over.update(applied.passed_over)
        for spoken, fields in applied.lost.items():
            new = fields.keys() - self.lost.get(spoken, Counter()).keys()
            self.lost.setdefault(spoken, Counter()).update(fields)
            if new and not self.quiet:
                self.say(f"{spoken} does not carry {', '.join(sorted(new))}: left out")
        if self.quiet:
            return
        behind = f", {_ago(applied.newest)} behind" if applied.newest else ""
        bad = f", {applied.quarantined:,} to the quarantine" if applied.quarantined else ""
        bad += f", {applied.untold:,} that the format has no word for" if applied.untold else ""
        rate = f"{changes:,} changes of {len(applied.tables)} tables in {seconds:.1f} s"
        rate += f" ({changes / seconds:,.0f}/s)" if seconds > 0 else ""
        line = f"batch {applied.batch}: {rate}{behind}{self._waiting()}{bad}"
        if self.shown:
            self._draw(batch=line)
        else:
            self.say(line)

    def _waiting(self) -> str:
        """How many messages the source still had when the batch before was cut."""
        return f", {self.waiting:,} messages to go" if self.waiting else ""

    def watch(self, query: StreamingQuery) -> None:
        """Says so when the source has not answered for a while, and again as long as it does not."""
        last = query.lastProgress
        self.waiting = sum(_behind(source) for source in last["sources"]) if last else 0
        now, moment = time.monotonic(), last["timestamp"] if last else ""
        # One that waits for changes before it answers seems to be asked all the time.
        answers = moment != self.answered or not query.status["message"].startswith(_ASKING)
        if answers:
            self.asked, self.answered = now, moment
        elif now - self.asked > _PATIENCE * (self.complaints + 1):
            self.complaints += 1
            self.say(f"stalled: the source has not answered for {now - self.asked:.0f} s")
            return
        if answers and self.complaints:
            self.complaints = 0
            self.say("the source answers again")

    def say(self, line: str) -> None:
        """A line that stays."""
        print(f"\r\033[K{line}" if self.shown else line, file=sys.stderr, flush=True)

    def summary(self) -> dict[str, Any]:
        """Any: numbers and texts, as JSON has them."""
        return {
            "batches": self.batches,
            "changes": dict(sorted(self.tables.items())),
            "quarantined": self.quarantined,
            "passed_over": dict(sorted(self.passed_over.items())),
            "untold": self.untold,
            "lost": {spoken: dict(sorted(fields.items())) for spoken, fields in sorted(self.lost.items())},
            "position": self.position,
            "seconds": round(time.monotonic() - self.begun, 1),
        }


def _read(reading: Extent, rows: int, of: int) -> str:
    """How many rows of all were read, and how far the tables are that are not done."""
    told = f"{_percent(rows, of)}, {rows:,} of about {of:,} rows read"
    unread = [f"{name} {_percent(each.rows, each.of)}" for name, each in reading.items() if each.left]
    more = f" and {len(unread) - 3} more tables" if len(unread) > 3 else ""
    return f"{told}: {', '.join(unread[:3])}{more}" if unread else told


def _percent(rows: int, of: int) -> str:
    return f"{100 * rows // of if of else 100}%"


def _bar(rows: int, of: int) -> str:
    full, empty = "█░" if "utf" in (sys.stderr.encoding or "").lower() else "#."
    done = _BAR * rows // of if of else _BAR
    return full * done + empty * (_BAR - done)


def _ago(moment: datetime) -> str:
    """How long ago, by the source's clock: Spark's times have no zone here, and are of this machine's."""
    seconds = max(0.0, (datetime.now(UTC) - moment.astimezone(UTC)).total_seconds())
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds:.0f} s"


@dataclass
class Hearts:
    """Topics that want a heartbeat when nothing else comes."""

    targets: Sequence[Sending]
    beaten: dict[str, float] = field(default_factory=dict)

    def beat(self, spark: SparkSession, last: float) -> None:
        """Sends those that are due, of a pipeline whose last batch was then."""
        for target in self.targets:
            now = time.monotonic()
            if now - max(last, self.beaten.get(target.name, 0)) >= target.sink.heartbeat:
                target.beat(spark)
                self.beaten[target.name] = now


def _behind(source: Any) -> int:
    """How many messages a transport with numbered ones has beyond the last batch. Any: what Spark tells of a source."""
    try:
        latest, end = json.loads(source["latestOffset"]), json.loads(source["endOffset"])
        return sum(
            int(offset) - int(end.get(topic, {}).get(lane, offset))
            for topic, lanes in latest.items()
            for lane, offset in lanes.items()
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return 0


def run(pipeline: Pipeline, spark: SparkSession, *, once: bool, quiet: bool, as_json: bool) -> bool:
    """Runs it to its end; true if nothing went to the quarantine."""
    from pyspark.errors import StreamingQueryException

    progress = Progress(quiet=quiet or as_json, shown=sys.stderr.isatty(), as_json=as_json and not quiet)
    pipeline.check(spark)
    hearts = Hearts([target for target in pipeline.targets if isinstance(target, Sending) and target.sink.heartbeat])
    query = pipeline.run(spark, once=once, told=progress.tell, hear=progress.hear)
    try:
        # In short steps: an interrupt is not heard within one.
        while not query.awaitTermination(1):
            progress.watch(query)
            if not once:
                hearts.beat(spark, progress.last)
    except StreamingQueryException as error:
        raise failure(error, pipeline) from error
    finally:
        query.stop()
    told = progress.summary()
    if as_json:
        print(json.dumps(told, ensure_ascii=False))
    elif not quiet:
        changes = sum(progress.tables.values())
        held = f", {progress.quarantined:,} in the quarantine" if progress.quarantined else ""
        progress.say(f"{progress.batches} batches, {changes:,} changes in {told['seconds']} s{held}")
    return not progress.quarantined


def serve(pipeline: Pipeline, host: str | None, port: int | None, *, quiet: bool) -> None:
    """Serves the tables of its first lake until the process is told to end."""
    lake = first_lake(pipeline.sinks)
    if lake is None or lake.name != "delta":
        raise ConfigError(
            "sink", "has no tables that can be served", hint="Only those of Delta are: sink: {type: delta}."
        )
    if not any("scd1" in rule.mode for rule in pipeline.rules):
        raise ConfigError("tables", "has no current rows, of which shapes are made", hint="Say mode: scd1.")
    try:
        from changeglot.serve.app import serve as serving
    except ImportError as error:
        raise MissingError(f"{error.name} is missing", hint="pip install 'changeglot[serve]'") from error
    options = pipeline.serve
    options = replace(options, host=host or options.host, port=options.port if port is None else port)

    def ready(address: str) -> None:
        if not quiet:
            print(f"serving {lake.path} at {address}/v1/shape", file=sys.stderr, flush=True)

    if find_spec("uvloop"):
        import uvloop

        uvloop.run(serving(lake.path, pipeline.rules, options, ready))
    else:
        asyncio.run(serving(lake.path, pipeline.rules, options, ready))


def failure(error: Exception, pipeline: Pipeline) -> ChangeglotError:
    """What stopped it, in a line: our own complaint if it was one, else the last cause that Spark tells."""
    text = str(error)
    away = any(word in text for word in _AWAY)
    if said := complaint(text):
        what = f'pipeline "{pipeline.name}" stopped: {said}'
        return PipelineFailed(what, hint=_GOES_ON) if away else ChangeglotError(what)
    told = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line.partition("Caused by: ")[2] for line in told if line.startswith("Caused by: ")]
    what = causes[-1] if causes else told[0] if told else type(error).__name__
    if "Traceback (most recent call last)" in what:
        # Python's own errors say at the end what happened.
        what = next((line for line in text.partition(what)[2].splitlines() if line and not line[0].isspace()), what)
    if any(word in text for word in _GONE):
        said = f"messages are gone that were not read: {what}"
        hint = "A topic was deleted, or kept them too short a time. fail_on_data_loss: false goes on with the rest."
        return ConfigError("source", said, hint=hint)
    if away:
        what = f'pipeline "{pipeline.name}" stopped: the broker does not answer: {what}'
        return PipelineFailed(what, hint=_GOES_ON)
    if any(word in what.lower() for word in ("checkpoint", "offset", "json")) or pipeline.checkpoint in what:
        hint = f"Its notes are in {pipeline.checkpoint}. If they are damaged, remove them: all is read again, and what "
        return ConfigError("checkpoint", what, hint=hint + "the tables have is not applied twice.")
    return PipelineFailed(f'pipeline "{pipeline.name}" stopped: {what}', hint="Started again, it goes on from there.")


def planned(found: Sequence[Planned], pipeline: Pipeline) -> str:
    """What a pipeline would do, for people."""
    rows = [
        (each.table, each.into, ", ".join(each.mode), ", ".join(each.key) or "none", "there" if each.exists else "new")
        for each in found
    ]
    told = [table(("table", "into", "mode", "key", ""), rows)] if rows else ["The source has no messages yet."]
    for each in found:
        told.append(f"\n{each.into}")
        width = max(map(len, each.columns), default=0)
        changes = {column: f"{kind} {becomes or ''}".strip() for kind, column, becomes in each.changes}
        for name, kind in each.columns.items():
            notes = [changes.pop(name, ""), each.losses.get(name, "")]
            told.append(f"  {name:{width}}  {kind:14}  {'; '.join(filter(None, notes))}".rstrip())
        told += [f"  {name:{width}}  {what}" for name, what in changes.items()]
    told.append(f"\nschema_change: {pipeline.schema_change}; bad changes: {pipeline.quarantine.on_key_error}")
    return "\n".join(told)


def quarantine_list(pipeline: Pipeline, spark: SparkSession) -> list[dict[str, Any]]:
    """The problems of the quarantine, the most frequent first. Any: numbers and texts."""
    from pyspark.sql import functions as F

    found = pipeline.quarantined(spark)
    if found is None:
        return []
    counts = found.groupBy("table", "problem").agg(F.count(F.lit(1)).alias("count"), F.min("at"), F.first("id"))
    rows = counts.orderBy(F.desc("count"), "table", "problem").limit(1000).collect()
    return [
        {"table": row[0], "problem": row[1], "count": row[2], "since": row[3].isoformat(" "), "id": row[4]}
        for row in rows
    ]


def quarantine_show(
    pipeline: Pipeline, spark: SparkSession, ids: Sequence[str], of: str, limit: int
) -> list[dict[str, Any]]:
    """What the quarantine holds, oldest first, as JSON has it. Any: numbers and texts."""
    found = pipeline.quarantined(spark, ids, of)
    if found is None:
        return []
    shown = []
    for row in found.orderBy("order", "id").limit(limit).collect():
        told = {name: row[name] for name in ("id", "table", "problem", "format", "place", "row", "batch")}
        told["at"] = row["at"].isoformat(" ")
        for part in ("key", "value"):
            told[part] = None if row[part] is None else bytes(row[part])[:_SHOWN].decode("utf-8", "backslashreplace")
        shown.append(told)
    return shown


def as_data(found: Sequence[Planned], pipeline: Pipeline) -> dict[str, Any]:
    """What a pipeline would do, for scripts. Any: JSON."""
    return {"pipeline": pipeline.name, "tables": [asdict(each) for each in found]}
