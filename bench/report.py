"""results.md: what was measured, against what was wanted."""

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

from plan import BARE, FORMATS, TRANSLATIONS
from results import CaptureRun, DelayRun, Measurement, Results, ServeRun, TopicRun, WaitRun

HERE = Path(__file__).resolve().parent
FAIL = "**FAIL**"
NOT_MEASURED = "not measured"
QUIET = 0.05
MB = 10**6
GB = 10**9

SIMDJSON = 900 * MB
"""Bytes a second that simdjson parses on one core, on messages and a machine like these."""


@dataclass(frozen=True)
class Target:
    """A ratio of two contenders' times that is wanted.

    "faster": `other` takes at least `limit` times as long as `ours`;
    "within": `ours` takes at most `limit` times as long as `other`.
    """

    title: str
    ours: str
    other: str
    sense: Literal["faster", "within"]
    limit: float
    goal: float | None = None

    def ratios(self, results: Results) -> tuple[float, float] | None:
        """By CPU and by the clock; None when one of the two was not measured."""
        ours, other = results.named(self.ours), results.named(self.other)
        if ours is None or other is None:
            return None
        if self.sense == "faster":
            return other.cpu / ours.cpu, other.wall / ours.wall
        return ours.cpu / other.cpu, ours.wall / other.wall

    def verdict(self, results: Results) -> str:
        """The worse of both ratios decides; messages that were not understood fail it anyway."""
        ratios = self.ratios(results)
        if ratios is None:
            return NOT_MEASURED
        check = results.checks.get(self.ours)
        if check and (check["problems"] or check["out"] < results.rows):
            return f"{FAIL}: {check['out']:,} out, {check['problems']:,} problems"
        if self.sense == "within":
            return "pass" if max(ratios) <= self.limit else FAIL
        if min(ratios) < self.limit:
            return FAIL
        return "pass, goal reached" if self.goal and min(ratios) >= self.goal else "pass"


TARGETS: tuple[Target, ...] = (
    Target(
        "decode canal against Flink canal-json, same lines",
        "decode canal, text",
        "Flink canal-json, union of columns",
        "faster",
        limit=1.2,
        goal=2.0,
    ),
    Target(
        "decode arcion against Flink debezium-json, same lines",
        "decode debezium, text",
        "Flink debezium-json, union of columns",
        "faster",
        limit=1.0,
        goal=2.0,
    ),
    *(
        Target(
            f"decode {format_} against the kernel alone",
            f"decode {kind}, parquet",
            f"kernel {kind}, parquet",
            "within",
            limit=1.6,
        )
        for kind, format_ in FORMATS.items()
    ),
    *(
        Target(
            f"translate {FORMATS[kind]} to {to} against the kernel alone",
            f"translate {kind} to {to}, parquet",
            f"kernel {kind}, parquet",
            "within",
            limit=3.0,
        )
        for kind, to in (*(pair for pair in TRANSLATIONS if pair[1] != "arcion"), ("canal", f"arcion {BARE}"))
    ),
)


def table(heads: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    """A table in Markdown; a head that ends in a colon belongs to a column of numbers."""
    lines = [
        "| " + " | ".join(head.rstrip(":") for head in heads) + " |",
        "|" + "|".join("---:" if head.endswith(":") else "---" for head in heads) + "|",
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
    return "\n".join(lines)


def targets(results: Results) -> Iterator[Sequence[str]]:
    for target in TARGETS:
        sign = "≥" if target.sense == "faster" else "≤"
        wanted = f"{sign} {target.limit}x" + (f", goal {target.goal}x" if target.goal else "")
        ratios = target.ratios(results)
        shown = [f"{ratio:.2f}x" for ratio in ratios] if ratios else ["", ""]
        trial = " (trial)" if results.trial and ratios else ""
        yield target.title, wanted, *shown, target.verdict(results) + trial


def rates(one: Measurement) -> tuple[str, str]:
    """Megabytes and thousands of messages that one core does in a second."""
    return (
        f"{one.contender.bytes / one.cpu / MB:.0f}",
        f"{one.contender.messages / one.cpu / 1000:.0f}",
    )


def measured(results: Results) -> Iterator[Sequence[str]]:
    for one in results.measurements:
        if one.contender.name.endswith(" sample"):
            continue
        if not one.runs:
            yield one.contender.name, "", "", "", "", "", one.problem or "not run"
        else:
            check = results.checks.get(one.contender.name)
            yield (
                one.contender.name,
                f"{one.wall:.2f}",
                f"{one.cpu:.2f}",
                *rates(one),
                f"{one.spread:.0%}",
                f"{check['out']:,} out, {check['problems']:,} problems" if check else "",
            )


def formats(results: Results) -> Iterator[Sequence[str]]:
    for one in results.measurements:
        name = one.contender.name
        kernel = results.named(name.replace("decode", "kernel"))
        if not (name.startswith("decode") and name.endswith(" sample") and one.runs and kernel):
            continue
        check = results.checks[name]
        yield (
            name.split()[1],
            f"{one.contender.messages:,}",
            f"{one.contender.bytes / one.contender.messages:.0f}",
            *rates(one),
            f"{one.contender.bytes / kernel.cpu / MB:.0f}",
            f"{one.cpu / kernel.cpu:.2f}x",
            f"{check['problems']:,}",
        )


def parts(results: Results, kind: str, to: str) -> Iterator[Sequence[str]]:
    """Each step's own microseconds of CPU a message, as differences of what was measured."""
    steps = {
        "scan: parquet to bytes": f"scan {kind}, parquet",
        "kernel: bytes to the format's shape": f"kernel {kind}, parquet",
        "expressions: shape to change": f"decode {kind}, parquet",
        f"output: change to {to} message": f"translate {kind} to {to}, parquet",
    }
    found = [(step, results.named(name)) for step, name in steps.items()]
    known = [(step, one) for step, one in found if one is not None]
    if not known:
        return
    whole = known[-1][1].cpu
    before = 0.0
    for step, one in known:
        own = one.cpu - before
        yield (
            step,
            f"{own / one.contender.messages * MB:.2f}",
            f"{own / whole:.0%}",
            f"{one.contender.bytes / one.cpu / MB:.0f}",
        )
        before = one.cpu


def limits(results: Results) -> Iterator[str]:
    """Where the floors are, in sentences."""
    kernel = results.named("kernel canal, parquet")
    if kernel:
        size, count = kernel.contender.bytes, kernel.contender.messages
        yield (
            f"The limit of the hardware: simdjson parses about {SIMDJSON // MB} MB a second on one "
            f"core, {size / count / SIMDJSON * MB:.1f} µs a message, and keeps nothing (measured "
            f"apart from this run). The kernel reads the same Canal messages at "
            f"{size / kernel.cpu / MB:.0f} MB a second, the scan included; it yields the exact "
            f"text of every value, in rows as Spark wants them."
        )
    for kind in ("canal", "debezium"):
        lines, raw = results.named(f"scan {kind}, text"), results.named(f"Flink raw lines, {kind}")
        if lines and raw:
            yield (
                f"Reading the {kind} lines and doing nothing costs Spark {lines.cpu:.1f} s of CPU "
                f"and Flink {raw.cpu:.1f} s: that part of the comparison is the engine's, not the "
                f"format's."
            )


def memory(results: Results) -> Iterator[Sequence[str]]:
    for run in results.memory:
        outcome = f"{FAIL}: {run.problem}" if run.problem else "finished"
        yield (
            f"{run.input_bytes / GB:.1f} GB",
            f"{run.messages_in:,}",
            f"{run.messages_out:,}",
            f"{run.output_bytes / GB:.1f} GB",
            f"{run.wall:.0f} s",
            f"{run.peak / GB:.2f} GB",
            outcome,
        )


def remarks(results: Results) -> Iterator[str]:
    """What a reader must know before trusting the numbers."""
    if results.trial:
        yield "**A trial: with few messages, what a job costs to start weighs in all numbers.**"
    taken = f"Other processes took {results.others:.0%} of the machine during the runs"
    yield f"{taken}." if results.others < QUIET else f"**{taken}: it was not quiet.**"


def memory_section(results: Results) -> Iterator[str]:
    if not results.memory:
        yield "Not measured."
        return
    yield (
        f"`changeglot translate FILE --to arcion --driver-memory {results.memory[0].driver_memory}`"
        f" over one file of Canal messages. Peak is the resident memory of all its processes "
        f"together, looked at four times a second."
    )
    heads = ("file", "messages:", "written:", "size written:", "clock:", "peak memory:", "outcome")
    yield table(heads, memory(results))
    first, last = results.memory[0], results.memory[-1]
    if first.peak and last.peak:
        yield (
            f"{last.input_bytes / first.input_bytes:.0f} times the input takes "
            f"{last.peak / first.peak:.2f} times the memory."
        )


#: What `scd1` may take of a bare MERGE's time, and a batch into a table of ten times the rows.
APPLY_LIMIT, FOLLOW_LIMIT = 1.3, 1.5


def apply_section(results: Results) -> Iterator[str]:
    """Tables: beside a bare MERGE, and whether the cost follows the batch."""
    if not results.apply:
        yield "Not measured."
        return
    clock = {(one.sink, one.who, one.rows, one.size): median(one.clock) for one in results.apply}
    cpu = {(one.sink, one.who, one.rows, one.size): median(one.cpu) for one in results.apply}
    yield (
        "One batch of changes (70 % updates, 20 % inserts, 10 % deletes, keys that lie together) into a table that is "
        "there, from the same decoded changes in memory. `scd1` checks keys and values, orders and folds the "
        "changes of each row, remembers what is deleted and keeps late changes from covering newer ones; the bare "
        f"MERGE does none of that. Median of {len(results.apply[0].clock)} rounds, each on the table as it was."
    )
    rows = []
    for sink, who, of, size in clock:
        if who == "scd1":
            ratio = clock[sink, "scd1", of, size] / clock[sink, "merge", of, size]
            rows.append(
                (
                    *(sink, f"{size:,}", f"{of:,}"),
                    f"{clock[sink, 'merge', of, size]:.1f}",
                    f"{clock[sink, 'scd1', of, size]:.1f}",
                    f"{size / cpu[sink, 'scd1', of, size]:,.0f}",
                    f"{ratio:.2f}x",
                    f"≤ {APPLY_LIMIT}x: " + ("pass" if ratio <= APPLY_LIMIT else FAIL),
                )
            )
    heads = ("sink", "changes:", "rows of the table:", "MERGE s:", "scd1 s:", "scd1 changes/s a core:", "ratio:", "")
    yield table(heads, iter(rows))
    pairs = [
        (sink, of, size) for sink, who, of, size in clock if who == "scd1" and (sink, who, of // 10, size) in clock
    ]
    for sink, of, size in pairs:
        ratio = clock[sink, "scd1", of, size] / clock[sink, "scd1", of // 10, size]
        verdict = "pass" if ratio <= FOLLOW_LIMIT else FAIL
        yield (
            f"{sink}: {size:,} changes into {of:,} rows take {ratio:.2f} times what they take into {of // 10:,} "
            f"(wanted ≤ {FOLLOW_LIMIT}x: {verdict})."
        )


def load_section(results: Results) -> Iterator[str]:
    """A topic into tables, beside Flink."""
    if not results.loads:
        yield "Not measured."
        return
    first = results.loads[0]
    yield (
        f"All {first.messages:,} Canal messages, as lines of text, into four new tables with typed columns, until the "
        f"last is committed. changeglot runs a pipeline with `mode: scd1`, the format named, in four batches; Flink "
        f"runs `canal-json` into Iceberg with upserts, a commit every ten seconds, and reads the file once for each "
        f"table since its format yields one. Flink writes what is deleted as conditions that every reader must then "
        f"apply; so what Spark takes to read all rows afterwards is part of the comparison. Its rows are not "
        f"quite the same: it applies lines as its readers come to them, changeglot in the order of files and lines. "
        f"Median of {len(first.clock)} after a round to warm up."
    )
    rows = (
        (
            one.who,
            f"{median(one.clock):.1f}",
            f"{median(one.cpu):.1f}",
            f"{one.messages / median(one.cpu):,.0f}",
            f"{median(one.rows):,.0f}",
            f"{median(one.read):.1f}",
        )
        for one in results.loads
    )
    heads = ("", "clock s:", "CPU s:", "changes/s a core:", "rows:", "read s:")
    yield table(heads, rows)


@dataclass(frozen=True)
class Beside:
    """A contender for topics beside another one: what it may take of the other's time, if that is limited.

    By the `clock`, else by the CPU.
    """

    part: str
    ours: str
    other: str
    limit: float | None = None
    clock: bool = True

    def row(self, runs: dict[tuple[str, str], TopicRun]) -> Sequence[str]:
        ours, other = runs[self.part, self.ours], runs[self.part, self.other]
        cpu, clock = median(ours.cpu) / median(other.cpu), median(ours.clock) / median(other.clock)
        counts = clock if self.clock else cpu
        wanted = f"≤ {self.limit}x: " + ("pass" if counts <= self.limit else FAIL) if self.limit else ""
        return *_topic(ours), f"{clock:.2f}x", f"{cpu:.2f}x", wanted


def _topic(one: TopicRun) -> Sequence[str]:
    return (
        one.part,
        one.who,
        f"{one.messages:,}",
        f"{median(one.out):,.0f}",
        f"{median(one.clock):.1f}",
        f"{median(one.cpu):.1f}",
        f"{one.messages / median(one.cpu):,.0f}",
    )


#: Of RocketMQ by CPU: half of its client's messages for each second of it, or more.
BESIDE = (
    Beside("Kafka to Kafka", "changeglot, canal to canal", "Spark, copied", limit=2.5),
    Beside("Kafka to Kafka", "changeglot, canal to arcion without schemas", "Spark, copied"),
    Beside("Kafka to Delta", "Spark, from_json", "Spark, bytes"),
    Beside("Kafka to Delta", "changeglot, one log", "Spark, bytes", limit=2.0),
    Beside("Kafka to Delta", "changeglot, a log for each table", "Spark, bytes"),
    Beside("RocketMQ", "changeglot, source of Spark", "RocketMQ's client in Java", limit=2.0, clock=False),
)


def topics_section(results: Results) -> Iterator[str]:
    """Topics: beside copies of them, and how long a message is on its way."""
    runs = {(one.part, one.who): one for one in results.topics if isinstance(one, TopicRun)}
    delays = [one for one in results.topics if isinstance(one, DelayRun)]
    if not runs:
        yield "Not measured."
        return
    first = next(iter(runs.values()))
    yield (
        "The shop's Canal messages in a topic, all of them read in one batch by a query that is new. From Kafka, two "
        "partitions: a pipeline that knows the format, into another topic or into Delta tables with `mode: append`; "
        "beside it Spark's own stream, which takes the bytes over as they are, knows of no row or table and promises "
        "no order; and for Delta, what a person would write to read them: `from_json`, the images as maps, into one "
        "table, numbers not exact, nothing checked. "
        'From RocketMQ: `format("rocketmq")` into a sink that keeps nothing, beside RocketMQ\'s own client, '
        "in a JVM that is warm too. CPU is that of all processes, Python's among them, but not of the brokers, which "
        "are on the same machine. Only ratios mean something. "
        f"Median of {len(first.clock)} rounds after others to warm up."
    )
    rows = {key: (*_topic(one), "", "", "") for key, one in runs.items()}
    rows |= {(each.part, each.ours): each.row(runs) for each in BESIDE if (each.part, each.ours) in runs}
    heads = ("", "who", "messages:", "out:", "clock s:", "CPU s:", "messages/s a core:", "clock:", "CPU:", "")
    yield table(heads, iter(rows.values()))
    yield (
        "Of Kafka the clock counts; of RocketMQ the CPU: at least half as many messages for each second of a core as "
        "its client has."
    )
    if not delays:
        return
    yield (
        "How long a message is on its way: from when a producer stamps it to when a consumer has its translation, "
        "Canal to Canal. In micro-batches: a pipeline that goes on, each batch with all that has come meanwhile. In "
        "real-time mode, which Python has since Spark 4.2 and which has no batches: `changeglot.translate` in a stream "
        "of that Spark's, without a pipeline's quarantine and the marks on its messages. Producer, broker and consumer "
        f"share the machine with it. {delays[0].seconds} seconds each, after a warm-up. A delay is told if it kept up."
    )
    if all(one.mode == "micro-batch" for one in delays):
        yield "Real-time mode was not measured: `make spark42` fetches the Spark that it wants."
    yield table(("mode", "messages/s wanted:", *DELAY_HEADS), map(_delay, delays))


DELAY_HEADS = ("sent:", "p50 ms:", "p99 ms:", "")


def _delay(one: DelayRun) -> Sequence[str]:
    shown = [f"{delay:,.0f}" for delay in one.delays] if one.steady else ["", ""]
    lost = f", {one.lost:,} were waited for in vain" if one.lost else ""
    behind = f"did not keep up: {one.translated:,.0f}/s, from the first sent to the last read{lost}"
    return one.mode, f"{one.rate:,}", f"{one.sent:,.0f}", *shown, "kept up" if one.steady else behind


@dataclass(frozen=True)
class Faster:
    """How many times as many rows or changes a second, by the clock, ours has to record as another contender."""

    part: str
    ours: str
    other: str
    limit: float

    def row(self, runs: dict[tuple[str, str], CaptureRun]) -> Sequence[str]:
        ours, other = runs[self.part, self.ours], runs[self.part, self.other]
        ratio = ours.rate / other.rate
        verdict = "pass" if ratio >= self.limit else FAIL
        if not (ours.whole and other.whole):
            verdict = f"{FAIL}: not all of {ours.rows:,} came, or some twice"
        title = f"{self.part}: {self.ours}, against {self.other}"
        return title, f"≥ {self.limit}x", f"{ratio:.2f}x", verdict


FASTER = (
    Faster("stream", "changeglot, recorder", "Debezium, engine", limit=3.0),
    Faster("snapshot", "changeglot, two tasks", "Debezium, engine", limit=3.0),
    Faster("snapshot", "changeglot, two tasks", "COPY to a file", limit=0.5),
)


def _captured(one: CaptureRun) -> Sequence[str]:
    return (
        one.part,
        f"{one.who}, {one.version}",
        f"{one.rows:,}",
        f"{median(one.out):,.0f}",
        f"{median(one.before):.2f}",
        f"{median(one.clock):.2f}",
        f"{median(one.cpu):.2f}",
        f"{median(one.server):.2f}",
        f"{one.rate:,.0f}",
    )


def capture_section(results: Results) -> Iterator[str]:
    """What a database tells: beside Debezium and beside COPY, and how long a commit is on its way."""
    runs = {(one.part, one.who): one for one in results.capture if isinstance(one, CaptureRun)}
    delays = [one for one in results.capture if isinstance(one, DelayRun)]
    if not runs:
        yield "Not measured."
        return
    first = next(iter(runs.values()))
    yield (
        "One table of eight small columns in PostgreSQL, on the same machine. The stream: inserts, updates and deletes "
        "in transactions of a hundred that were made while nobody read them, then each drained from a slot of its own; "
        "ours by one process into a spool, from the first call until all is durable and the server knows it. The "
        "snapshot: a table that rests; ours in chunks, copied by two processes as by tasks of Spark's, from the first "
        "look at the server until all is durable. Debezium's engine runs in a JVM that is warm, with the settings that "
        "were its fastest, and writes the JSON of its events without schemas into a file, which nobody makes durable; "
        "its clock begins at its first event, what passed until then stands before it. They do not do the same: its "
        "events are finished messages, our lines become changes in Spark. COPY is the database's own way to write a "
        "table, to one client or by the server itself, and is no capture. CPU is the contender's, and beside it the "
        f"server's. Median of {len(first.clock)} rounds after others to warm up, all taking turns."
    )
    heads = ("", "who", "rows:", "out:", "before s:", "clock s:", "CPU s:", "server's CPU s:", "rows/s:")
    yield table(heads, map(_captured, runs.values()))
    rows = (each.row(runs) for each in FASTER if {(each.part, each.ours), (each.part, each.other)} <= runs.keys())
    yield table(("", "wanted", "clock:", "verdict"), rows)
    if not delays:
        return
    yield (
        "How long a commit is on its way through a pipeline that goes on, one row in each transaction: from just "
        "before it is committed until a version of the Delta table that has it is there for all who read it, or "
        "until a consumer of the topic has its message. Recorder, Spark, database, broker, and who writes and reads, "
        f"share the machine. {delays[0].seconds} seconds each, after a warm-up. A delay is told if it kept up."
    )
    yield table(("", "commits/s wanted:", *DELAY_HEADS), map(_delay, delays))


def serve_section(results: Results) -> Iterator[str]:
    """What clients of the shape log wait for."""
    first = {one.who: one for one in results.serve if isinstance(one, ServeRun)}
    waits = [one for one in results.serve if isinstance(one, WaitRun)]
    if not first:
        yield "Not measured."
        return
    ours, later, nginx = first.values()
    yield (
        f"A client without anything gets the {ours.rows:,} rows of a table of six columns, {ours.bytes / MB:,.0f} MB "
        "of JSON in parts of 10 MiB, over one connection: the first one to ask a server that was just started, which "
        "makes them out of the table's files; and those after it. Beside them nginx with the same bytes in files, and "
        f"the same client. Median of {len(ours.clock)} rounds, all taking turns."
    )
    best = median(nginx.clock)
    rows = (
        (
            one.who,
            f"{median(one.clock):.3f}",
            f"{one.bytes / MB / median(one.clock):,.0f}",
            f"{best / median(one.clock):.2f}x",
        )
        for one in first.values()
    )
    yield table(("who", "clock s:", "MB/s:", "of nginx:"), rows)
    yield (
        "Clients that wait by long poll, in one process, for changes that a pipeline commits to the table, on one "
        "server; each asks again at once when it was told. From the commit's file until a client has read the answer. "
        "With a filter each, every commit has something for each of them: changes a second are those of a commit in "
        "the time until the last client has its own. Clients, server and Spark share the machine."
    )
    heads = ("", "clients:", "shapes:", "changes in a commit:", "p50 ms:", "p99 ms:", "changes/s:", "server's MiB:")
    yield table(heads, map(_waited, waits))
    yield table(
        ("", "wanted", "", "verdict"), _serve_verdicts(best / median(ours.clock), best / median(later.clock), waits)
    )


def _waited(one: WaitRun) -> Sequence[str]:
    rate = one.changes / median(one.ends)
    return (
        one.what, f"{one.clients:,}", f"{one.shapes:,}", f"{one.changes:,}", f"{one.delays[0] * 1000:,.0f}",
        f"{one.delays[1] * 1000:,.0f}", f"{rate:,.0f}", f"{one.memory / (1 << 20):,.0f}",
    )  # fmt: skip


def _serve_verdicts(first: float, later: float, waits: Sequence[WaitRun]) -> Iterator[Sequence[str]]:
    def row(what: str, wanted: str, found: str, *, good: bool) -> Sequence[str]:
        return what, wanted, found, "pass" if good else FAIL

    yield row(
        "rows of which the server has files, as nginx has, against nginx", "≥ 0.5x", f"{later:.2f}x", good=later >= 0.5
    )
    yield "rows for the first client, who has those files made, against nginx", "", f"{first:.2f}x", "stated"
    everyone, filters = waits
    gib = everyone.memory / (1 << 30)
    yield row(f"{everyone.clients:,} clients wait", "< 2 GiB", f"{gib:.2f} GiB", good=gib < 2)
    p99 = everyone.delays[1]
    yield row("a change reaches all of them, p99", "≤ 1 s", f"{p99:.2f} s", good=p99 <= 1)
    rate = filters.changes / median(filters.ends)
    yield row(f"{filters.shapes:,} filters", "≥ 5,000 changes/s", f"{rate:,.0f}", good=rate >= 5000)


def machine(results: Results) -> str:
    facts = {**results.machine, **results.versions}
    return ", ".join(f"{name} {fact}" for name, fact in facts.items())


def page(results: Results, earlier: str = "") -> str:
    """The whole of results.md; SECTIONS that were not measured stay as they are on an earlier one."""
    verdicts = [target.verdict(results) for target in TARGETS]
    passed = sum(verdict.startswith("pass") for verdict in verdicts)
    failed = sum(verdict.startswith(FAIL) for verdict in verdicts)
    sections = [
        "# Benchmark results",
        "Written by `make bench`; do not edit. README.md says what is measured and how.",
        f"{results.rows:,} messages of each kind, {results.cores} threads for each engine, "
        f"median of {results.rounds} rounds after one to warm up, all contenders taking turns in "
        f"one run. Machine: {machine(results)}.",
        *remarks(results),
        "## Targets",
        f"{passed} of {len(TARGETS)} pass, {failed} fail, {verdicts.count(NOT_MEASURED)} were not "
        f"measured. A ratio must hold by CPU and by the clock.",
        table(("", "wanted", "CPU:", "clock:", "verdict"), targets(results)),
        "Flink reads the columns of the rows, all as text, under one schema that is the union of "
        "all tables' columns. changeglot reads the whole message: row images, key, relation, "
        "declared types, position, times, transaction, origin.",
        f"Arcion's messages are held to the limit {BARE}, as they are in the comparison with Flink: with them a "
        "message is more than three times as large as the one it is made of, and the parser's time on the smaller "
        "one says nothing about writing the larger. What that takes is in the next table.",
        "## Measured",
        "Seconds of one run; CPU is that of all processes of the engine. MB are of JSON, whatever "
        "the file they lay in. Rates are for one core. Spread is largest less smallest CPU.",
        table(
            (
                "",
                "clock s:",
                "CPU s:",
                "MB/s a core:",
                "k messages/s a core:",
                "spread:",
                "checked",
            ),
            measured(results),
        ),
        "`from_json` is Spark's own function with the row images as maps: a reference only, since "
        "it does not keep numbers exact and reads fewer members.",
        "## Every format",
        "A quarter of the Canal messages translated to each format, written as parquet, and decoded.",
        table(
            (
                *("format", "messages:", "bytes each:", "MB/s a core:", "k messages/s a core:"),
                *("kernel alone MB/s:", "decode / kernel:", "problems:"),
            ),
            formats(results),
        ),
        "## Where the time goes",
        "Each step is what was measured with it less what was measured without it, in CPU time.",
    ]
    for kind, to in (("canal", "arcion"), ("debezium", "canal")):
        sections += [
            f"{FORMATS[kind].capitalize()} messages, translated to {to}:",
            table(
                ("step", "µs a message:", "share:", "MB/s a core up to here:"),
                parts(results, kind, to),
            ),
        ]
    sections += limits(results)
    sections += [
        *(part_of(part, results, earlier) for part in SECTIONS),
        "## To run it again",
        "`make bench`, on a machine with Java 17 that does nothing else; an hour and a half, "
        "10 GB of disk, and more for the memory part. `python bench/run.py --quick` is a trial "
        "of some minutes.",
    ]
    return "\n\n".join(sections) + "\n"


#: Parts that a program of their own can measure again: where each stands, and what it says.
SECTIONS: Final[Mapping[str, tuple[str, Callable[[Results], Iterator[str]]]]] = {
    "memory": ("## Memory", memory_section),
    "apply": ("## Tables", apply_section),
    "loads": ("### From a topic into tables", load_section),
    "topics": ("## Topics", topics_section),
    "capture": ("## Capture", capture_section),
    "serve": ("## Serving", serve_section),
}


def publish(part: str, runs: Sequence[Any], *, trial: bool) -> None:
    """A trial is printed, and leaves the page as it is. Any: dataclasses."""
    if trial:
        sys.stdout.write(json.dumps([asdict(one) for one in runs], indent=1) + "\n")
    else:
        update(part, runs)


def update(part: str, runs: Sequence[object]) -> None:
    """Writes one of the SECTIONS anew. The rest of the page is of an earlier run."""
    path = HERE / "results.md"
    measured_now = Results(rows=0, rounds=0, cores=0, trial=False, machine={}, **{part: list(runs)})
    text = part_of(part, measured_now) + "\n\n"
    path.write_text(_placed(part).sub(lambda _: text, path.read_text()))


def part_of(part: str, results: Results, earlier: str = "") -> str:
    """One of the SECTIONS; what was not measured is taken from an earlier page."""
    heading, section = SECTIONS[part]
    before = None if getattr(results, part) else _placed(part).search(earlier)
    return before[0].rstrip() if before else "\n\n".join((heading, *section(results)))


def _placed(part: str) -> re.Pattern[str]:
    """One of the SECTIONS on a page: up to the next heading."""
    return re.compile(rf"^{SECTIONS[part][0]}\n.*?(?=^#)", re.M | re.S)
