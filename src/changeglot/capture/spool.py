r"""What was captured and Spark has not read: segments of lines on a disk, in order, each ending on a commit.

A line is text fields between tabs, escaped as PostgreSQL's COPY does it: `\N` alone is NULL, and `\-` alone is a value
that was not told. The fields of a line by its first one:

| op               | fields                                                                                        |
|------------------|-----------------------------------------------------------------------------------------------|
| `r`              | op, relation, place, then the values of a row that a snapshot read                              |
| `e`              | op, relation, place, then xmin, xmax, xip_list as JSON: all rows of a snapshot came before |
| `i`, `u`, `d`    | op, relation, position, order, last, transaction, committed, facts, old, then values            |
| `t`              | the same, without values: the table was emptied                                                |
| `q`              | the same, and one value: a statement (DDL)                                                     |
| `m`              | the same, and two values: the prefix and the content of a message (`relation` is empty)         |

`relation`: what `Spool.relation` gave. `place`: what tells the rows of a segment apart. `position`:
numbers between dots, of the transaction. `order`: which of its transaction's changes it is, from 0. `last`: `1` for the
last of them, else `0`. `committed`: microseconds since 1970. `facts`: a JSON object of texts, or empty. `old`: what
stands behind the new row's values: `O` the whole old row, `K` its key alone, empty nothing. A delete has only the old
row. Values are as many as the relation's columns, in their order.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

_END = ".lines"
#: Nanoseconds: Spark orders the files of a stream by milliseconds.
_STEP = 1_000_000
#: Nanoseconds between two files that become segments. Who lists a folder meanwhile may miss one and see the next.
_PACE = 50_000_000


class Spool:
    """A folder of segments. One process records; Spark reads `segments`, and removes what it has read.

    While a snapshot's rows are read, what is recorded is held back: it comes after them.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.segments, self.held, self.relations = (self.folder / n for n in ("segments", "held", "relations"))
        for each in (self.segments, self.held, self.relations):
            each.mkdir(parents=True, exist_ok=True)
        self._known = {path.stem for path in self.relations.glob("*.json")}
        self._number, self._at, self._position = 0, 0, ""
        if self._state.exists():
            self._number, self._at, self._position = json.loads(self._state.read_bytes())
        # A segment may have become one just before the process ended.
        for path in (*self._found(self.held), *self._found(self.segments)):
            number, _, position = path.name.removesuffix(_END).partition("~")
            if int(number) > self._number:
                self._number, self._at, self._position = int(number), path.stat().st_mtime_ns, position

    @property
    def _state(self) -> Path:
        return self.folder / "position.json"

    @property
    def _holding(self) -> Path:
        return self.folder / "holding"

    @staticmethod
    def _found(folder: Path) -> list[Path]:
        """The segments that were recorded, the oldest first."""
        return sorted(folder.glob(f"[0-9]*{_END}"))

    @property
    def position(self) -> str:
        """The end of what is durable; empty if nothing ever was."""
        return self._position

    def relation(self, facts: Mapping[str, Any]) -> str:
        """The name of a relation in lines: the same for the same facts. Any: JSON."""
        name, content = described(facts)
        if name not in self._known:
            durable(self.relations / f"{name}.json", content)
            self._known.add(name)
        return name

    def segment(self) -> Segment:
        """A new segment, which nobody sees until it is published."""
        return Segment(self, self.folder / ".segment")

    def hold(self) -> None:
        """Keeps back what is recorded from now on."""
        durable(self._holding, b"")

    def release(self) -> None:
        """Lets what was kept back, and what comes, be seen: at the next `settle` of who records."""
        self._holding.unlink(missing_ok=True)

    def settle(self) -> None:
        """Lets Spark see what was kept back, if it may. Only who records does it, so that all is seen in order."""
        if not self._holding.exists():
            for path in self._found(self.held):
                time.sleep(max(0, min(_PACE, self._at + _PACE - time.time_ns())) / 1e9)
                # The latest: Spark reads them by the time of their last change.
                self._at = max(time.time_ns(), self._at + _STEP)
                os.utime(path, ns=(self._at, self._at))
                move(path, self.segments / path.name)

    def publish(self, path: Path, position: str) -> None:
        """A file that is durable becomes the next segment. `position`: its end, of letters, digits, `.`, `-` and `_`.

        From then on all that was told up to there is durable, and the database may forget it.
        """
        self._number += 1
        self._position = position
        name = f"{self._number:020d}~{position}{_END}"
        move(path, self.held / name)
        self.settle()
        self._note()

    def advance(self, position: str) -> None:
        """Nothing of interest was told up to there."""
        self._position = position
        self._note()

    def _note(self) -> None:
        durable(self._state, json.dumps([self._number, self._at, self._position]).encode())


class Segment:
    """Lines on their way to the disk; only `publish` makes them a segment of the spool."""

    def __init__(self, spool: Spool, path: Path) -> None:
        self._spool, self._path = spool, path
        self._file: BinaryIO = path.open("wb", buffering=1 << 20)
        #: How many bytes were written.
        self.size = 0

    def write(self, lines: bytes) -> None:
        """Whole lines, each with its end."""
        self.size += len(lines)
        self._file.write(lines)

    def rewind(self, size: int) -> None:
        """Forgets what was written behind so many bytes."""
        self._file.seek(size)
        self._file.truncate()
        self.size = size

    def publish(self, position: str) -> None:
        """Makes it durable, and a segment: see Spool.publish."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._spool.publish(self._path, position)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


def described(facts: Mapping[str, Any]) -> tuple[str, bytes]:
    """The name of a relation in lines, and what the spool keeps of it. Any: JSON."""
    content = json.dumps(facts, ensure_ascii=False, separators=(",", ":")).encode()
    return hashlib.sha256(content).hexdigest()[:16], content


def field(value: bytes | None) -> bytes:
    r"""A value as a field of a line.

    >>> field(b"a\tb").decode(), field(None).decode()
    ('a\\tb', '\\N')
    """
    if value is None:
        return b"\\N"
    return value.replace(b"\\", b"\\\\").replace(b"\t", b"\\t").replace(b"\n", b"\\n").replace(b"\r", b"\\r")


def durable(path: Path, content: bytes) -> None:
    """A file with that content, or as it was before: never half of it, whatever ends."""
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    move(part, path)


def move(path: Path, to: Path) -> None:
    """The file under another name, for good."""
    path.replace(to)
    for folder in {path.parent, to.parent}:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
