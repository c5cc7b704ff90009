"""Measures changeglot and writes results.md: all contenders in one run, taking turns.

usage: run.py [--quick] [--rows N] [--rounds N] ...; see README.md.
"""

import argparse
import os
import platform
import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import generate
import memory
import report
from results import Measurement, Results
from shop import Data
from worker import EngineError, Worker

HERE = Path(__file__).resolve().parent
DATA = HERE / "data"
FLINK = HERE.parent / ".venv-flink"
QUICK_ROWS = 200_000


def say(words: str) -> None:
    sys.stderr.write(words + "\n")


def machine() -> Iterator[tuple[str, str]]:
    """What the numbers depend on; nothing that tells whose machine it is."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            yield "processor", line.partition(":")[2].strip()
            break
    yield "cores", str(os.cpu_count())
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    yield "memory", f"{total / 2**30:.0f} GiB"
    yield "system", f"{platform.system()} {platform.machine()}"


def flink_python() -> str:
    """The Python of Flink's own environment."""
    if not (FLINK / ".installed").exists():
        raise EngineError("it is not installed; `make flink` does that")
    return str(FLINK / "bin" / "python")


def start(data: Data, options: argparse.Namespace) -> Iterator[Worker]:
    """The engines, each in a process of its own."""
    logs, place, cores = DATA / "logs", str(data.folder), str(options.cores)
    spark = [sys.executable, str(HERE / "spark.py"), place, cores, options.heap]
    yield Worker(spark, logs / "spark.log")
    if options.no_flink:
        return
    try:
        flink = [flink_python(), str(HERE / "flink.py"), place, cores]
        yield Worker(flink, logs / "flink.log")
    except EngineError as problem:
        say(f"going on without Flink: {problem}")


def measure(engines: list[Worker], results: Results, only: str) -> None:
    """Every contender once a round, in another order each round; the first round is to warm up."""
    taking_part = [
        (engine, Measurement(contender))
        for engine in engines
        for contender in engine.contenders
        if only in contender.name
    ]
    results.measurements = [measurement for _, measurement in taking_part]
    for number in range(results.rounds + 1):
        order = random.Random(number).sample(taking_part, len(taking_part))
        for engine, measurement in order:
            if measurement.problem:
                continue
            name = measurement.contender.name
            try:
                run = engine.run(measurement.contender)
            except EngineError as problem:
                measurement.problem = str(problem)
                say(f"round {number}: {name}: {problem}")
                continue
            say(f"round {number}: {name}: {run.wall:.2f} s, {run.cpu:.2f} s of CPU")
            if number > 0:
                measurement.runs.append(run)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=generate.ROWS)
    parser.add_argument("--rounds", type=int, default=3, help="counted ones, after a first")
    parser.add_argument("--cores", type=int, default=2, help="threads that each engine may use")
    parser.add_argument("--heap", default="6g", help="memory of Spark's JVM")
    parser.add_argument("--only", default="", help="contenders whose name contains this")
    parser.add_argument("--no-flink", action="store_true")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--quick", action="store_true", help="few rows, no Flink, no memory")
    memory.add_arguments(parser)
    options = parser.parse_args()
    if options.quick:
        options.rows = QUICK_ROWS
        options.no_flink = options.no_memory = True
    return options


def main() -> None:
    options = arguments()
    trial = bool(options.only) or options.rows < generate.ROWS
    results = Results(options.rows, options.rounds, options.cores, trial, dict(machine()))
    say(f"generating {options.rows} messages of each kind")
    data = generate.generate(DATA / str(options.rows), options.rows)
    say("starting the engines, and counting what decode and translate yield")
    with ExitStack() as open_engines:
        engines = []
        for engine in start(data, options):
            engines.append(open_engines.enter_context(closing(engine)))
            results.versions |= engine.about["versions"]
            results.checks |= engine.about.get("checks", {})
        measure(engines, results, options.only)
    publish(results)
    if not options.no_memory:
        results.memory = memory.measure(data, options)
        publish(results)


def publish(results: Results) -> None:
    """Writes the page, on which the other programs' parts stay. A trial leaves the published one alone."""
    page = DATA / "trial.md" if results.trial else HERE / "results.md"
    page.write_text(report.page(results, page.read_text() if page.exists() else ""))
    say(f"wrote {page.relative_to(HERE.parent)}")


if __name__ == "__main__":
    main()
