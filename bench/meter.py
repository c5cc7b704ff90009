"""What a process and all it started have used, read from /proc (Linux)."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Process:
    """One line of /proc/PID/stat: `ticks` are its own and those of children that ended."""

    parent: int
    ticks: int
    pages: int


def processes() -> dict[int, Process]:
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The name of the program, in brackets, may itself hold spaces and brackets.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        found[int(entry.name)] = Process(
            parent=int(fields[1]), ticks=sum(map(int, fields[11:15])), pages=int(fields[21])
        )
    return found


def tree(root: int) -> Iterator[Process]:
    """The process `root` and all below it that are alive."""
    alive = processes()
    children: dict[int, list[int]] = {}
    for pid, process in alive.items():
        children.setdefault(process.parent, []).append(pid)
    waiting = [root] if root in alive else []
    while waiting:
        pid = waiting.pop()
        yield alive[pid]
        waiting += children.get(pid, [])


def cpu_seconds(root: int) -> float:
    return sum(process.ticks for process in tree(root)) / TICKS


def machine_seconds() -> float:
    """Seconds of CPU that the whole machine has worked, whoever for."""
    user, nice, system, _idle, _waiting, irq, softirq, *_ = (
        int(ticks) for ticks in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) / TICKS


def resident_bytes(root: int) -> int:
    """Memory resident now. Pages that two processes share count twice: never too low."""
    return sum(process.pages for process in tree(root)) * PAGE
