"""Memory of the command line over one large file: it must not grow with the file.

usage: memory.py [--memory-sizes GB ...]: writes its part of results.md anew.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import meter
import report
from generate import ROWS, generate
from results import MemoryRun
from shop import Data

HERE = Path(__file__).resolve().parent
DATA = HERE / "data"
GB = 10**9
BLOCK = 100 * 10**6
PAUSE = 0.25
"""Seconds between two looks at the memory in use."""

SWELLING = 12.0
"""Bytes written for a byte read, until a run has told: the target's schema is in each message."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--memory-sizes", type=float, nargs="+", default=[1, 10], metavar="GB", help="of the files")
    parser.add_argument("--driver-memory", default="2g", help="what the command may use")


def write_input(file: Path, size: int, data: Data) -> tuple[int, int]:
    """Bytes and messages written: one block of Canal messages, again and again."""
    with (data.text("canal") / "part-000.txt").open("rb") as source:
        block = source.read(min(BLOCK, size))
    block = block[: block.rindex(b"\n") + 1]
    times = max(1, size // len(block))
    with file.open("wb") as target:
        for _ in range(times):
            target.write(block)
    return times * len(block), times * block.count(b"\n")


def count_lines(file: Path) -> int:
    lines = 0
    with file.open("rb") as source:
        while chunk := source.read(1 << 24):
            lines += chunk.count(b"\n")
    return lines


def watch(command: list[str], log: Path) -> tuple[int, int, float]:
    """Exit code, peak of memory resident in all its processes, seconds on the clock."""
    start, peak = time.monotonic(), 0
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        while process.poll() is None:
            peak = max(peak, meter.resident_bytes(process.pid))
            time.sleep(PAUSE)
    return process.returncode, peak, time.monotonic() - start


def translate(size: int, data: Data, driver_memory: str, work: Path) -> MemoryRun:
    file, output, log = work / "canal.json", work / "out", DATA / "logs" / "memory.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    read, messages = write_input(file, size, data)
    command = [sys.executable, "-m", "changeglot", "translate", str(file), "--to", "arcion"]
    command += ["--output", str(output), "--driver-memory", driver_memory]
    code, peak, wall = watch(command, log)
    # Spark's own notes beside the data begin with a dot or an underscore.
    parts = [part for part in output.rglob("*") if part.is_file() and part.name[0] not in "._"]
    written = sum(map(count_lines, parts))
    problem = None
    if code:
        problem = f"ended with exit code {code}"
    elif written < messages:
        problem = f"{messages - written:,} messages are missing"
    return MemoryRun(
        input_bytes=read,
        output_bytes=sum(part.stat().st_size for part in parts),
        messages_in=messages,
        messages_out=written,
        driver_memory=driver_memory,
        peak=peak,
        wall=wall,
        problem=problem,
    )


def measure(data: Data, options: argparse.Namespace) -> list[MemoryRun]:
    """A run for each size that the disk has room for. Leaves nothing behind."""
    runs: list[MemoryRun] = []
    swelling = SWELLING
    for size in sorted(int(size * GB) for size in options.memory_sizes):
        needed, free = size * (1 + swelling), shutil.disk_usage(DATA).free
        if needed > free:
            problem = f"not run: needs {needed / GB:.0f} GB of disk, {free / GB:.0f} GB are free"
            runs.append(MemoryRun(size, 0, 0, 0, options.driver_memory, 0, 0.0, problem))
            continue
        with tempfile.TemporaryDirectory(prefix="memory-", dir=DATA) as work:
            run = translate(size, data, options.driver_memory, Path(work))
        sys.stderr.write(
            f"memory: {size / GB:.1f} GB read in {run.wall:.0f} s, "
            f"peak {run.peak / GB:.2f} GB{', ' + run.problem if run.problem else ''}\n"
        )
        runs.append(run)
        if run.output_bytes and not run.problem:
            swelling = 1.1 * run.output_bytes / run.input_bytes
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser)
    options = parser.parse_args()
    report.update("memory", measure(generate(DATA / str(ROWS)), options))


if __name__ == "__main__":
    main()
