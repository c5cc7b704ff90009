"""The command `changeglot`: messages in and out, and pipelines.

Nothing of Spark is imported before a command needs it, so that help and mistakes are told at once.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any

from changeglot.errors import ChangeglotError, ConfigError, MissingError, PipelineFailed
from changeglot.inputs import InputError, Inputs, find, stage

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from changeglot.pipeline import Pipeline
    from changeglot.quarantine import Reason

DONE, FAILED, WRONG, BAD, LOST, INTERRUPTED = 0, 1, 2, 3, 4, 130
STATUSES = """\
exit status:
  0    done
  1    failed unexpectedly: Spark, the disk, a fault of changeglot; doctor: something is bad
  2    wrong usage or configuration, an input that is not there or cannot be read, no Java
  3    done, but some messages were bad: counted on stderr, kept in --quarantine if given
  4    --on-loss fail, and something would have been lost: nothing was written
  130  interrupted
"""
# Spark's own default cuts times to milliseconds and writes them in the session's zone.
TIMES = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "timeZone": "UTC"}
INPUT = "a file, a folder, a glob, - for stdin: a message a line; gzip, bzip2 and zstd are unpacked"
FROM = "format of all messages (auto: each message tells)"
QUARANTINE = "keep bad messages there, with reason, file and line (they are counted only)"
TABLES = "YAML of the tables' keys and types, for formats that do not carry them"
OPTION = "an option of a format, as `changeglot explain FORMAT` lists them; repeatable"
QUIET = "no progress, no summary, no warning of losses; bad messages are still reported"
ON_LOSS = "what the new format cannot carry: leave it out, say so (warn), or write nothing"
ACTION = "problems and counts; the messages; try them again after a fix; throw them away"
FILES = "no database: the shop's life as files in all seven formats (also where no PostgreSQL can be had)"
SERVE = "the shop goes on until Ctrl-C, and its mirror is served: a page to look at, and shapes for Electric's clients"
# What a JVM does that does not live for long: it compiles quickly rather than well.
BRIEF = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
JAVA = "Spark needs Java 17 or 21; see that JAVA_HOME, or java on the PATH, is one of them."
Rows = Callable[["DataFrame"], "DataFrame"]


@dataclass(frozen=True)
class Work:
    """What a command on messages works with: a session, the inputs, a folder that will be removed."""

    spark: SparkSession
    inputs: Inputs
    scratch: Path


@dataclass(frozen=True)
class Written:
    """What one pass over the messages did, and its part files in the order of the input."""

    messages: int
    lines: int
    bad: int
    untold: int
    lost: Mapping[str, int]
    parts: Sequence[Path] = field(repr=False)


def entry() -> None:
    """The command as it is installed: exits with the status; tidies up when it is interrupted or told to end."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    sys.exit(main())


def _end(number: int, _: object) -> None:
    # Not KeyboardInterrupt: Py4J would log it.
    sys.exit(128 + number)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    arguments = parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        status = run(arguments)
        sys.stdout.flush()
    except ChangeglotError as error:
        _complain(error.what, error.hint)
        return FAILED if isinstance(error, PipelineFailed) else WRONG
    except BrokenPipeError:
        _forget_stdout()
        return DONE
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        _complain(str(error), "Check the disk, and the rights there and in the temporary folder.")
        return FAILED
    except _failures_of_spark() as error:
        if arguments.debug:
            raise
        _complain(_causes(error)[-1], "Say --debug to see all of it.")
        return FAILED
    return status


def parser() -> argparse.ArgumentParser:
    """The grammar of the command line, and its help."""
    shape = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(
        prog="changeglot",
        description="Change messages in seven formats: see what they say, say it in another, make tables of them.",
        epilog=STATUSES,
        formatter_class=shape,
    )
    top.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    spark = argparse.ArgumentParser(add_help=False)
    group = spark.add_argument_group("Spark")
    group.add_argument("--driver-memory", default="2g", metavar="SIZE", help="memory of the JVM (2g)")
    group.add_argument("--cores", type=_count, metavar="N", help="cores to use (all)")
    group.add_argument("--debug", action="store_true", help="show Spark's warnings and whole errors")
    inputs = argparse.ArgumentParser(add_help=False)
    inputs.add_argument("input", nargs="+", metavar="INPUT", help=INPUT)
    answer = argparse.ArgumentParser(add_help=False)
    answer.add_argument("--json", action="store_true", help="answer in JSON, on stdout")
    lines = argparse.ArgumentParser(add_help=False)
    lines.add_argument("--from", dest="source", default="auto", metavar="FORMAT", help=FROM)
    lines.add_argument("--output", type=Path, metavar="DIR", help="a new folder for the lines (stdout)")
    lines.add_argument("--quarantine", type=Path, metavar="DIR", help=QUARANTINE)
    lines.add_argument("--tables", type=Path, metavar="FILE", help=TABLES)
    lines.add_argument("--option", action="append", default=[], metavar="FORMAT.NAME=VALUE", help=OPTION)
    lines.add_argument("--json", action="store_true", help="the summary as JSON, the last line of stderr")
    pipeline = argparse.ArgumentParser(add_help=False)
    pipeline.add_argument("pipeline", type=Path, metavar="PIPELINE", help="its YAML file")
    quiet = argparse.ArgumentParser(add_help=False)
    quiet.add_argument("-q", "--quiet", action="store_true", help=QUIET)

    def command(
        name: str,
        run: Callable[[argparse.Namespace], int],
        about: str,
        *parents: argparse.ArgumentParser,
    ) -> argparse.ArgumentParser:
        made = commands.add_parser(
            name,
            help=about,
            description=about,
            epilog=STATUSES,
            formatter_class=shape,
            parents=parents,
        )
        made.set_defaults(run=run, debug=False, quiet=False, on_loss="ignore")
        return made

    command("detect", detect, "count the messages of each format", inputs, answer, quiet, spark)
    command("decode", decode, "write each change as a line of JSON", inputs, lines, quiet, spark)
    made = command("translate", translate, "write each message in another format", inputs, lines, quiet, spark)
    made.add_argument("--to", required=True, metavar="FORMAT", help="format to write")
    made.add_argument("--with-key", action="store_true", help='write {"key": ..., "value": ...}')
    made.add_argument("--on-loss", choices=("ignore", "warn", "fail"), default="warn", help=ON_LOSS)
    made = command("explain", explain, "tell what a format carries, and what is lost between two", answer)
    made.add_argument("format", nargs="*", metavar="FORMAT", help="none: all; one: it; two: from, to")
    made.add_argument("--matrix", action="store_true", help="how much each format loses of each")
    made = command("demo", demo, "watch a small shop's database, or hear its life in seven formats", quiet, spark)
    which = made.add_mutually_exclusive_group()
    which.add_argument("--files", action="store_true", help=FILES)
    which.add_argument("--serve", action="store_true", help=SERVE)
    made = command("run", run, "apply the messages of a source to the tables of a sink", pipeline, quiet, spark)
    made.add_argument("--json", action="store_true", help="what was done, as JSON on stdout")
    when = made.add_mutually_exclusive_group()
    when.add_argument("--once", action="store_true", help="end when all that is there is applied (the default)")
    when.add_argument("--continuous", action="store_true", help="go on as more comes")
    command("check", check, "tell what a pipeline would do, and write nothing", pipeline, answer, quiet, spark)
    command("doctor", doctor, "examine the database that a pipeline captures, and change nothing", pipeline, answer)
    made = command(
        "resync", resync, "have all rows of tables read again, by the pipeline that captures them", pipeline, answer
    )
    made.add_argument("table", nargs="+", metavar="TABLE", help="as the source's `tables` name it: public.orders")
    command("drop", drop, "drop what the database keeps for a pipeline that is not run any more", pipeline, answer)
    made = command("serve", serve, "serve the tables of a pipeline to Electric's clients, over HTTP", pipeline, quiet)
    made.add_argument("--host", metavar="ADDRESS", help="address to listen on (127.0.0.1)")
    made.add_argument("--port", type=int, metavar="N", help="port to listen on; 0: a free one (3000)")
    command("schema", schema, "print the JSON Schema of a pipeline's file, for editors")
    made = command("quarantine", quarantine, "look at what a pipeline could not apply", answer, quiet, spark)
    made.add_argument("action", choices=("list", "show", "replay", "drop"), help=ACTION)
    made.add_argument("pipeline", type=Path, metavar="PIPELINE", help="its YAML file")
    made.add_argument("id", nargs="*", metavar="ID", help="those alone")
    made.add_argument("--table", metavar="NAME", help="those of a table of the source alone")
    made.add_argument("--limit", type=_count, default=20, metavar="N", help="how many to show (20)")
    return top


def detect(arguments: argparse.Namespace) -> int:
    """Prints how many messages each format has, and which members proved it."""
    from pyspark.sql import functions as F

    import changeglot

    with _work(arguments) as work, work.inputs.splits(work.spark):
        found = changeglot.detect(work.inputs.messages(work.spark))
        # What is wrong with an unknown message may be said in as many ways as there are messages.
        proof = F.when(F.col("format").isNotNull(), F.col("evidence")).alias("proof")
        rows = found.groupBy("format", proof).agg(F.count(F.lit(1)).alias("n")).collect()
    formats: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: (row["format"] or "", -row["n"], row["proof"] or "")):
        of = formats.setdefault(row["format"] or "", {"format": row["format"], "messages": 0, "evidence": []})
        of["messages"] += row["n"]
        of["evidence"].append({"messages": row["n"], "proof": row["proof"]})
    unknown = formats.pop("", {"messages": 0})["messages"]
    total = unknown + sum(of["messages"] for of in formats.values())
    if arguments.json:
        print_json({"messages": total, "unknown": unknown, "formats": list(formats.values())})
        return BAD if unknown else DONE
    table = [(name, f"{e['messages']:,}", e["proof"] or "") for name, of in formats.items() for e in of["evidence"]]
    if unknown:
        table.append(
            (
                "unknown",
                f"{unknown:,}",
                "in none of the formats: changeglot decode tells why, and where",
            )
        )
    print_table(("format", "messages", "evidence"), table, right={1})
    return BAD if unknown else DONE


def decode(arguments: argparse.Namespace) -> int:
    """Writes each change as a line of JSON."""
    import changeglot

    settings = _settings(arguments)

    def line(changes: DataFrame) -> Column:
        from pyspark.sql import functions as F

        # NULL fields of a struct are left out, NULL values of a map never are: an image's absent,
        # NULL and given values stay three facts.
        fields = [_filled(changes, name) for name in changes.columns if name not in ("problem", "raw")]
        return F.to_json(F.struct(*fields), TIMES)

    return _convert(arguments, lambda messages: changeglot.decode(messages, **settings), line, {})


def _filled(rows: DataFrame, name: str) -> Column:
    """The column; NULL if it is a struct of NULLs only."""
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    kind = rows.schema[name].dataType
    if not isinstance(kind, T.StructType):
        return F.col(name)
    parts = [F.col(name)[part].isNotNull() for part in kind.fieldNames()]
    return F.when(reduce(or_, parts), F.col(name)).alias(name)


def translate(arguments: argparse.Namespace) -> int:
    """Writes each message in another format, and counts what that loses."""
    import changeglot
    from changeglot.codecs import codec

    settings = _settings(arguments)
    target = codec(arguments.to, settings["options"], settings["tables"])
    losses = {loss.field: loss.why for loss in target.losses}

    def line(messages: DataFrame) -> Column:
        from pyspark.sql import functions as F

        from changeglot.kernel import write

        value = write(F.struct("key", "value")) if arguments.with_key else messages["value"]
        return F.when(messages["spoken"], value).cast("STRING")

    return _convert(
        arguments,
        lambda messages: changeglot.translate(messages, target.name, **settings),
        line,
        {} if arguments.on_loss == "ignore" else losses,
    )


def explain(arguments: argparse.Namespace) -> int:
    """Prints what changeglot knows of its formats: all, one, what is lost between two."""
    from changeglot.explain import formats, matrix, one, pair

    if arguments.matrix:
        told = matrix()
    elif len(arguments.format) > 2:
        raise ConfigError("explain", "three formats or more", hint="Name none, one or two.")
    else:
        told = (formats, one, pair)[len(arguments.format)](*arguments.format)
    if arguments.json:
        print_json(told.data)
    else:
        print(told.text)
    return DONE


def demo(arguments: argparse.Namespace) -> int:
    """Shows a small shop: its database captured while it changes, or its life as files in all seven formats."""
    from pyspark.sql import SparkSession

    from changeglot.demo import lake, live
    from changeglot.demo.show import show

    def say(text: str) -> None:
        if not arguments.quiet:
            print(f"changeglot: {text}", file=sys.stderr)

    ours = SparkSession.getActiveSession() is None
    with (
        tempfile.TemporaryDirectory(prefix="changeglot-", ignore_cleanup_errors=True) as folder,
        nullcontext() if arguments.files else live.opened(Path(folder), say) as shop,
    ):
        say("starting Spark; all of it takes a minute or so")
        pipeline = shop.pipeline if shop else lake.pipeline(Path(folder))
        spark = _session(arguments, **pipeline.session_settings(), **BRIEF)
        try:
            of_shop = live.serve if arguments.serve else live.show
            good = _apart(lambda: of_shop(spark, shop, quiet=arguments.quiet) if shop else show(spark))
        except (KeyboardInterrupt, SystemExit):
            if ours:
                # That Spark is gone is no news then, whichever thread finds it.
                logging.disable()
                threading.excepthook = lambda _: None
                _halt(spark)
                if shop:
                    shop.query = None
            raise
    return DONE if good else FAILED


def _apart(work: Callable[[], bool]) -> bool:
    """Does the work in a thread of its own: an interrupt in the midst of a word with the JVM would garble the next."""
    done: list[bool | BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # noqa: BLE001  # It is raised where it is waited for.
            done.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
    (found,) = done
    if isinstance(found, BaseException):
        raise found
    return found


def run(arguments: argparse.Namespace) -> int:
    """Runs a pipeline."""
    with _pipeline(arguments) as (made, spark):
        from changeglot import running

        once = not arguments.continuous
        good = running.run(made, spark, once=once, quiet=arguments.quiet, as_json=arguments.json)
    return DONE if good else BAD


def check(arguments: argparse.Namespace) -> int:
    """Tells what a pipeline would do."""
    with _pipeline(arguments) as (made, spark):
        from changeglot import running

        planned = made.plan(spark)
        if arguments.json:
            print_json(running.as_data(planned, made))
        else:
            print(running.planned(planned, made))
    return DONE


def doctor(arguments: argparse.Namespace) -> int:
    """Tells what is well with the database of a pipeline's source, what is not, and what to type."""
    from changeglot import config
    from changeglot.doctor import as_data, examine, healthy, told

    made = config.load(arguments.pipeline)
    found = examine(made)
    if arguments.json:
        print_json(as_data(found))
    else:
        print(told(found, made.source.name))
    return DONE if healthy(found) else FAILED


def resync(arguments: argparse.Namespace) -> int:
    """Asks the pipeline that captures the tables for all of their rows."""
    from changeglot import config

    config.load(arguments.pipeline).resync(arguments.table)
    if arguments.json:
        print_json({"asked": arguments.table})
    else:
        print(f"{', '.join(arguments.table)}: read again by the pipeline if it runs, else when it is run next")
    return DONE


def drop(arguments: argparse.Namespace) -> int:
    """Drops slot and publication of a pipeline that is not run any more; its tables stay."""
    from changeglot import config

    dropped = config.load(arguments.pipeline).drop()
    if arguments.json:
        print_json({"dropped": dropped})
    else:
        print(f"dropped: {dropped}")
    return DONE


def serve(arguments: argparse.Namespace) -> int:
    """Serves the tables of a pipeline until it is told to end."""
    from changeglot import config, running

    running.serve(config.load(arguments.pipeline), arguments.host, arguments.port, quiet=arguments.quiet)
    return DONE


def schema(_: argparse.Namespace) -> int:
    """Prints the JSON Schema of a pipeline's file."""
    from changeglot.config import json_schema

    print_json(json_schema())
    return DONE


def quarantine(arguments: argparse.Namespace) -> int:
    """Looks into the quarantine of a pipeline, or empties it."""
    with _pipeline(arguments) as (made, spark):
        from changeglot import running

        ids, table = tuple(arguments.id), arguments.table or ""
        if arguments.action == "list":
            told = running.quarantine_list(made, spark)
            if arguments.json:
                print_json(told)
            else:
                rows = [(f"{r['count']:,}", r["table"] or "", r["problem"], r["since"], r["id"]) for r in told]
                print_table(("changes", "table", "problem", "since", "the first"), rows, right={0})
        elif arguments.action == "show":
            print_json(running.quarantine_show(made, spark, ids, table, arguments.limit))
        elif arguments.action == "replay":
            applied = made.replay(spark, ids, table)
            bad = applied.quarantined if applied else 0
            done = sum(applied.tables.values()) if applied else 0
            if arguments.json:
                print_json({"applied": done - bad, "bad": bad})
            else:
                print(f"{done - bad:,} changes applied, {bad:,} still bad" if applied else "nothing to replay")
            return BAD if bad else DONE
        else:
            gone = made.forget(spark, ids, table)
            print_json({"dropped": gone}) if arguments.json else print(f"{gone:,} dropped")
    return DONE


@contextmanager
def _pipeline(arguments: argparse.Namespace) -> Iterator[tuple[Pipeline, SparkSession]]:
    """The pipeline of the arguments, and a session that has what it needs."""
    from changeglot import config

    made = config.load(arguments.pipeline)
    yield made, _session(arguments, **made.session_settings())


def _convert(
    arguments: argparse.Namespace,
    rows: Rows,
    line: Callable[[DataFrame], Column],
    losses: Mapping[str, str],
) -> int:
    """One pass from the inputs to lines, in a folder or on stdout; a second only if some were bad."""
    begun = time.monotonic()
    output: Path | None = arguments.output
    if output and output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise ConfigError("--output", f'"{output}" is there already', hint="Name a new folder.")
    reasons: list[Reason] = []
    with _work(arguments) as work, _beside(output, work.scratch) as folder:
        written = _write(work, rows, line, losses, folder / "lines")
        lost = {name: n for name, n in written.lost.items() if n}
        refused = bool(lost or written.untold) and arguments.on_loss == "fail"
        if written.bad and not refused:
            reasons = _set_aside(work, rows, arguments.quarantine)
        if output and not refused:
            _publish(written.parts, folder / "parts", output)
        elif not refused:
            _send(written.parts)
    summary = {
        "messages": written.messages,
        "written": 0 if refused else written.lines,
        "bad": written.bad,
        "reasons": [{"problem": r.problem, "count": r.count, "places": r.places} for r in reasons],
        "untold": written.untold,
        "lost": lost,
        "seconds": round(time.monotonic() - begun, 1),
    }
    if arguments.json:
        print(json.dumps(summary, ensure_ascii=False), file=sys.stderr)
    else:
        _summarise(arguments, written, reasons, [(f, n, losses[f]) for f, n in lost.items()], refused)
    return LOST if refused else BAD if written.bad else DONE


def _write(
    work: Work,
    rows: Rows,
    line: Callable[[DataFrame], Column],
    losses: Collection[str],
    folder: Path,
) -> Written:
    """The lines of what is good in part files, and all that is counted, in one pass of Spark."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    read, made = Observation(), Observation()
    with work.inputs.splits(work.spark):
        messages = work.inputs.messages(work.spark)
        found = rows(messages.observe(read, F.count(F.lit(1)).alias("messages")))
        spoken = F.col("spoken") if "spoken" in found.columns else F.lit(True)
        fine = F.col("problem").isNull()
        good = fine & F.col("line").isNotNull()
        lines = found.withColumn("line", line(found)).observe(
            made,
            F.count_if(~fine).alias("bad"),
            F.count_if(good).alias("lines"),
            F.count_if(fine & ~spoken).alias("untold"),
            *(F.count_if(spoken & F.array_contains("lost", name)).alias(f"lost {name}") for name in losses),
        )
        lines.where(good).select("line").write.option("lineSep", "\n").text(str(folder))
        parts = _in_order(folder, work.inputs.order(work.spark))
    counts = made.get
    lost = {name: counts[f"lost {name}"] for name in losses}
    return Written(read.get["messages"], counts["lines"], counts["bad"], counts["untold"], lost, parts)


def _set_aside(work: Work, rows: Rows, quarantine: Path | None) -> list[Reason]:
    """Why messages were bad. A pass that finds them again with file and line, into the quarantine if given."""
    from changeglot.quarantine import reasons, records

    folder = work.scratch / "bad"
    with work.inputs.splits(work.spark, whole=True):
        found = records(rows(work.inputs.numbered(work.spark)), raw=quarantine is not None)
        found.write.option("lineSep", "\n").text(str(folder))
        parts = _in_order(folder, work.inputs.order(work.spark))
    why = reasons(work.spark, folder)
    if quarantine:
        quarantine.mkdir(parents=True, exist_ok=True)
        run = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
        for number, part in enumerate(parts):
            shutil.move(part, quarantine / f"{run}-{number:05d}.jsonl")
    return why


def _in_order(folder: Path, tasks: Sequence[int]) -> list[Path]:
    """The part files of the tasks, but for empty ones."""
    parts = {int(re.findall("[0-9]+", part.name)[0]): part for part in folder.glob("part-*")}
    return [parts[task] for task in tasks if task in parts and parts[task].stat().st_size]


def _publish(parts: Sequence[Path], folder: Path, output: Path) -> None:
    """The parts as the output folder, all at once."""
    folder.mkdir()
    for number, part in enumerate(parts):
        part.rename(folder / f"part-{number:05d}.jsonl")
    if not parts:
        (folder / "part-00000.jsonl").touch()
    folder.rename(output)


def _send(parts: Sequence[Path]) -> None:
    """The bytes of the parts on stdout, until nobody reads it."""
    sys.stdout.flush()
    try:
        for part in parts:
            with part.open("rb") as file:
                shutil.copyfileobj(file, sys.stdout.buffer, 1 << 20)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        _forget_stdout()


def _forget_stdout() -> None:
    """Stdout to nowhere: Python must not find the closed pipe again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _beside(output: Path | None, scratch: Path) -> Iterator[Path]:
    """A folder to write to that can be renamed to the output; the scratch folder if there is none."""
    if output is None:
        yield scratch
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".changeglot-", dir=output.parent) as folder:
        yield Path(folder)


@contextmanager
def _work(arguments: argparse.Namespace) -> Iterator[Work]:
    """The inputs, staged. What is missing is told before Spark is started."""
    names = find(arguments.input)
    from pyspark.sql import SparkSession

    ours = SparkSession.getActiveSession() is None
    with tempfile.TemporaryDirectory(prefix="changeglot-") as scratch:
        spark = _session(arguments)
        inputs = stage(names, Path(scratch) / "in", spark)
        try:
            yield Work(spark, inputs, Path(scratch))
        except (KeyboardInterrupt, SystemExit):
            if ours:
                _halt(spark)
            raise
        except _failures_of_spark() as error:
            causes = _causes(error)
            named = next((name for cause in causes if (name := inputs.named(cause))), None)
            if named is None or arguments.debug:
                raise
            reason = causes[-1].rpartition("Exception: ")[2].lower()
            raise InputError(f'cannot read "{named}": {reason}', hint="It may be damaged or cut short.") from error


def _session(arguments: argparse.Namespace, **settings: str) -> SparkSession:
    """The session that is there already, or a new one as the arguments say."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    import changeglot

    if SparkSession.getActiveSession() is not None:
        return changeglot.session()
    handler = signal.getsignal(signal.SIGINT)
    shown = sys.stderr.isatty() and not arguments.quiet
    conf = {"spark.ui.showConsoleProgress": str(shown).lower(), **settings}
    with nullcontext() if arguments.debug else _muffled():
        try:
            spark = changeglot.session(cores=arguments.cores, driver_memory=arguments.driver_memory, **conf)
        except PySparkRuntimeError as error:
            if error.getCondition() != "JAVA_GATEWAY_EXITED":
                raise
            raise MissingError("Java could not be started", hint=JAVA) from error
        if handler is _end:
            # PySpark put its own there, which talks to the JVM from within whatever is talking to it.
            signal.signal(signal.SIGINT, _end)
        # What fails is told by us, in a line.
        spark.sparkContext.setLogLevel("WARN" if arguments.debug else "OFF")
        for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
            PySparkLogger.getLogger(name).disabled = not arguments.debug
    return spark


def _halt(spark: SparkSession) -> None:
    """Ends the JVM at once: tasks that went on would write to folders that are being removed."""
    process = getattr(spark.sparkContext._gateway, "proc", None)
    if process is not None:
        # It would complain that the JVM is gone.
        spark.sparkContext._accumulatorServer.shutdown()
        process.kill()
        process.wait()


@contextmanager
def _muffled() -> Iterator[None]:
    """Within, a JVM may start: what it says on stderr meanwhile is told only if it does not."""
    source, sink = os.pipe()
    stderr = os.dup(2)
    held: list[bytes] = []
    up = threading.Event()

    def copy() -> None:
        while chunk := os.read(source, 1 << 16):
            if up.is_set():
                os.write(stderr, chunk)
            else:
                held.append(chunk)

    os.dup2(sink, 2)
    os.close(sink)
    threading.Thread(target=copy, daemon=True).start()
    try:
        yield
    except BaseException:
        os.write(stderr, b"".join(held))
        raise
    finally:
        while select.select([source], [], [], 0)[0]:
            time.sleep(0.01)
        up.set()
        os.dup2(stderr, 2)


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """What decode and translate take beside the messages. Any: values of several keyword arguments."""
    from changeglot.codecs import codec, resolve
    from changeglot.tables import Tables

    options: dict[str, dict[str, str]] = {}
    for given in arguments.option:
        match = re.fullmatch(r"([^.=]+)\.([^=]+)=(.*)", given, re.DOTALL)
        if not match:
            raise ConfigError("--option", f'cannot read "{given}"', hint="Write format.name=value.")
        options.setdefault(resolve(match[1]), {})[match[2]] = match[3]
    for name in options:
        codec(name, options)
    return {
        "format": "auto" if arguments.source == "auto" else resolve(arguments.source),
        "tables": Tables.load(arguments.tables) if arguments.tables else None,
        "options": options,
    }


def _summarise(
    arguments: argparse.Namespace,
    written: Written,
    reasons: Sequence[Reason],
    lost: Sequence[tuple[str, int, str]],
    refused: bool,
) -> None:
    """What a person wants to know, on stderr."""

    def say(text: str) -> None:
        print(text, file=sys.stderr)

    loud = refused or not (arguments.quiet or arguments.on_loss == "ignore")
    if written.untold and loud:
        say(f"changeglot: {written.untold:,} changes not told: {arguments.to} has no word for what they do")
    if lost and loud:
        say(f"changeglot: {arguments.to} cannot carry all of it; lost, by field:")
        for name, n, why in sorted(lost, key=lambda row: (-row[1], row[0])):
            say(f"  {n:>9,}  {name}: {why}")
    if reasons:
        where = f", kept in {arguments.quarantine}" if arguments.quarantine else ""
        say(f"changeglot: {written.bad:,} bad{where}:")
        for reason in reasons:
            more = ", ..." if reason.count > len(reason.places) else ""
            say(f"  {reason.count:>9,}  {reason.problem} ({', '.join(reason.places)}{more})")
        if not arguments.quarantine:
            say("  --quarantine DIR keeps them.")
    if refused:
        say("changeglot: nothing was written, as --on-loss fail asks")
    elif not arguments.quiet:
        say(f"changeglot: {written.messages:,} messages read, {written.lines:,} lines written")


def print_json(data: Any) -> None:
    """One JSON document on stdout. Any: whatever JSON can say."""
    print(json.dumps(data, ensure_ascii=False, indent=2))


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> None:
    """Columns as wide as their widest cell."""
    from changeglot.explain import table

    print(table(head, rows, right))


def _complain(what: str, hint: str) -> None:
    print(f"changeglot: {what}", file=sys.stderr)
    if hint:
        print(f"  {hint}", file=sys.stderr)


def _causes(error: BaseException) -> list[str]:
    """What was said when it failed, the first line of each cause, the innermost last."""
    said = [str(error)]
    thrown = getattr(error, "java_exception", None)
    while thrown is not None:
        said.append(thrown.toString())
        thrown = thrown.getCause()
    return [(text.strip() or type(error).__name__).splitlines()[0] for text in said]


def _failures_of_spark() -> tuple[type[BaseException], ...]:
    """What Spark raises; nothing if it was never imported."""
    if "pyspark" not in sys.modules:
        return ()
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return (PySparkException, Py4JError)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'"{text}" is not a number from 1')
    return int(text)


class _Version(argparse.Action):
    """Looks the version up when asked for, not at every start."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import changeglot

        print(f"changeglot {changeglot.__version__}")
        parser.exit()
