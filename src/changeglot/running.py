"""The commands on pipelines: run, check, quarantine. What a person sees of them, and what a script reads."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from changeglot.errors import ChangeglotError, ConfigError, PipelineFailed
from changeglot.explain import table
from changeglot.pipeline import Pipeline, Planned
from changeglot.target import Applied

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: How much of a message is shown.
_SHOWN = 2000


@dataclass
class Progress:
    """What a run has done so far, told as it goes: one line that changes on a terminal, else a line for each batch."""

    quiet: bool
    shown: bool
    begun: float = field(default_factory=time.monotonic)
    last: float = field(default_factory=time.monotonic)
    batches: int = 0
    quarantined: int = 0
    tables: Counter[str] = field(default_factory=Counter)
    passed_over: Counter[str] = field(default_factory=Counter)

    def tell(self, applied: Applied) -> None:
        now = time.monotonic()
        changes, seconds = sum(applied.tables.values()), now - self.last
        self.last = now
        self.batches += 1
        self.quarantined += applied.quarantined
        self.tables.update(applied.tables)
        for name in applied.passed_over.keys() - self.passed_over.keys():
            self.say(f"{name}: no rule of the pipeline takes this table; its changes are passed over")
        self.passed_over.update(applied.passed_over)
        if self.quiet:
            return
        behind = f", {_ago(applied.newest)} behind" if applied.newest else ""
        bad = f", {applied.quarantined:,} to the quarantine" if applied.quarantined else ""
        rate = f"{changes:,} changes of {len(applied.tables)} tables in {seconds:.1f} s"
        rate += f" ({changes / seconds:,.0f}/s)" if seconds > 0 else ""
        line = f"batch {applied.batch}: {rate}{behind}{bad}"
        print(f"\r\033[K{line}" if self.shown else line, end="" if self.shown else "\n", file=sys.stderr, flush=True)

    def say(self, line: str) -> None:
        print(f"\r\033[K{line}" if self.shown else line, file=sys.stderr)

    def summary(self) -> dict[str, Any]:
        """Any: numbers and texts, as JSON has them."""
        return {
            "batches": self.batches,
            "changes": dict(sorted(self.tables.items())),
            "quarantined": self.quarantined,
            "passed_over": dict(sorted(self.passed_over.items())),
            "seconds": round(time.monotonic() - self.begun, 1),
        }


def _ago(moment: datetime) -> str:
    """How long ago, by the source's clock: Spark's times have no zone here, and are of this machine's."""
    seconds = max(0.0, (datetime.now(UTC) - moment.astimezone(UTC)).total_seconds())
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds:.0f} s"


def run(pipeline: Pipeline, spark: SparkSession, *, once: bool, quiet: bool, as_json: bool) -> bool:
    """Runs it to its end; true if nothing went to the quarantine."""
    from pyspark.errors import StreamingQueryException

    progress = Progress(quiet=quiet or as_json, shown=sys.stderr.isatty())
    query = pipeline.run(spark, once=once, told=progress.tell)
    try:
        # In short steps: an interrupt is not heard within one.
        while not query.awaitTermination(1):
            pass
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


def failure(error: Exception, pipeline: Pipeline) -> ChangeglotError:
    """What stopped it, in a line: our own complaint if it was one, else the last cause that Spark tells."""
    text = str(error)
    for line in text.splitlines():
        kind, _, said = line.strip().partition(": ")
        if kind.startswith("changeglot.") and said:
            return ChangeglotError(f'pipeline "{pipeline.name}" stopped: {said.strip()}')
    told = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line.partition("Caused by: ")[2] for line in told if line.startswith("Caused by: ")]
    what = causes[-1] if causes else told[0] if told else type(error).__name__
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
