"""A process that holds one engine, warm, and runs what it is told, so that engines can take turns.

Both sides of the talk are here: `serve` in the process that works, `Worker` in the one that
measures. Needs nothing but Python, for Flink's environment has nothing else in common with ours.
"""

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import meter

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Contender:
    """What is measured: its name, and how much goes through it in one run."""

    name: str
    messages: int
    bytes: int


@dataclass(frozen=True)
class Run:
    """One run: seconds on the clock, of CPU in all processes of the engine, and in all others."""

    wall: float
    cpu: float
    others: float


class EngineError(Exception):
    """A contender, or the engine as a whole, did not do its work."""


Job = Callable[[], object]


def own_stdout() -> TextIO:
    """The way to answer. What libraries and the JVM print goes to stderr from here on.

    To be called before the engine starts, which inherits what it finds.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def serve(answers: TextIO, about: Mapping[str, Any], jobs: Mapping[Contender, Job]) -> None:
    """Says what there is to run, then runs the contender named on each line of the input."""

    def reply(answer: Mapping[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")

    by_name = {contender.name: job for contender, job in jobs.items()}
    reply({"about": about, "contenders": [asdict(contender) for contender in jobs]})
    for line in sys.stdin:
        try:
            by_name[line.strip()]()
        except Exception as problem:
            # The log has all of it; the words of an engine tell of paths and hosts.
            logger.exception("contender failed")
            reply({"problem": type(problem).__name__})
        else:
            reply({})


class Worker:
    """A running engine, seen from the process that measures it."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
            )
        hello = self.answer()
        self.about: dict[str, Any] = hello["about"]
        self.contenders = [Contender(**contender) for contender in hello["contenders"]]

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise EngineError(f"the engine stopped with {self.process.wait()}: see {self.log.name}")
        answer: dict[str, Any] = json.loads(line)
        if "problem" in answer:
            raise EngineError(answer["problem"])
        return answer

    def run(self, contender: Contender) -> Run:
        assert self.process.stdin is not None
        before = time.monotonic(), meter.cpu_seconds(self.process.pid), meter.machine_seconds()
        with suppress(BrokenPipeError):  # answer() tells that the engine is gone
            self.process.stdin.write(contender.name + "\n")
            self.process.stdin.flush()
        self.answer()
        after = time.monotonic(), meter.cpu_seconds(self.process.pid), meter.machine_seconds()
        wall, cpu, machine = (b - a for a, b in zip(before, after, strict=True))
        return Run(wall=wall, cpu=cpu, others=max(0.0, machine - cpu))

    def close(self) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
