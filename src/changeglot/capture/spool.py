r"""What was captured and Spark has not read: segments of lines on a disk, in order, each ending on a commit.

A line is text fields between tabs, escaped as PostgreSQL's COPY does it: `\N` alone is NULL, and `\-` alone is a value
that was not told. The fields of a line by its first one:

| op               | fields                                                                                        |
|------------------|-----------------------------------------------------------------------------------------------|
| `r`              | op, relation, place, then the values of a row that a snapshot read                              |
| `c`              | op, relation, place: what the table had before is gone, for its rows follow                     |
| `e`              | op, relation, place, then xmin, xmax, xip_list as JSON: all rows of a snapshot came before |
| `i`, `u`, `d`    | op, relation, position, order, last, transaction, committed, facts, old, then values            |
| `t`              | the same, without values: the table was emptied                                                |
| `q`              | the same, and one value: a statement (DDL)                                                     |
| `m`              | the same, and two values: the prefix and the content of a message (`relation` is empty)         |

`relation`: what `Spool.relation` gave; its facts tell the position of a snapshot's rows, and the epoch. `place`: what
tells the rows of a segment apart. `position`: numbers between dots, of the transaction. `order`: which of its
transaction's changes it is, from 0. `last`: `1` for the last of them, else `0`. `committed`: microseconds since 1970.
`facts`: a JSON object of texts, or empty. `old`: what stands behind the new row's values: `O` the whole old row, `K`
its key alone, empty nothing. A delete has only the old row. Values are as many as the relation's columns, in their
order.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

_END = ".lines"
#: Values that stand for none: NULL, and one that was not told.
NULL, ABSENT = rb"\N", rb"\-"
#: Fields of a change before its values.
_VALUES = 9
#: Nanoseconds: Spark orders the files of a stream by milliseconds.
_STEP = 1_000_000
#: Nanoseconds between two files that become segments. Who lists a folder meanwhile may miss one and see the next.
_PACE = 50_000_000


class Spool:
    """A folder of segments. One process records; Spark reads `segments`, and removes what it has read.

    While a snapshot's rows are read, what is told of their tables is set aside: it comes after them.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.segments, self.held, self.relations = (self.folder / n for n in ("segments", "held", "relations"))
        for each in (self.segments, self.held, self.relations):
            each.mkdir(parents=True, exist_ok=True)
        self.aside = Aside(self.folder / "aside", self.facts)
        self._known = {path.stem for path in self.relations.glob("*.json")}
        self._number, self._at, self._position = 0, 0, ""
        if self._state.exists():
            self._number, self._at, self._position = json.loads(self._state.read_bytes())
        # A segment may have become one just before the process ended.
        for path in (*self._found(self.held), *self._found(self.segments)):
            number, position = re.split("[~+]", path.name.removesuffix(_END))
            if int(number) > self._number:
                self._number, self._at, self._position = int(number), path.stat().st_mtime_ns, position

    @property
    def epoch(self) -> int:
        """How often changes were lost: positions of another epoch are of another log, and come after all before."""
        return int(self._epoch.read_text()) if self._epoch.exists() else 0

    def renew(self) -> None:
        """Another log begins. What was set aside of the one before is of no use."""
        durable(self._epoch, str(self.epoch + 1).encode())
        for path in self.aside.kept():
            path.unlink()
        self.advance("")

    @property
    def _epoch(self) -> Path:
        return self.folder / "epoch"

    @property
    def _state(self) -> Path:
        return self.folder / "position.json"

    @staticmethod
    def _found(folder: Path) -> list[Path]:
        """The segments that were recorded, the oldest first."""
        return sorted(folder.glob(f"[0-9]*{_END}"))

    @property
    def position(self) -> str:
        """The end of what is durable; empty if nothing ever was."""
        return self._position

    def reached(self, position: str) -> bool:
        """Whether all up to there is durable by now, whoever records it."""
        state = json.loads(self._state.read_bytes()) if self._state.exists() else (0, 0, "")
        return bool(state[2]) and numbers(state[2]) >= numbers(position)

    def dated(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """The facts of a relation of this epoch. Any: JSON."""
        epoch = self.epoch
        return {**facts, "epoch": epoch} if epoch else dict(facts)

    def relation(self, facts: Mapping[str, Any]) -> str:
        """The name of a relation in lines: the same for the same facts in the same epoch. Any: JSON."""
        name, content = described(self.dated(facts))
        if name not in self._known:
            durable(self.relations / f"{name}.json", content)
            self._known.add(name)
        return name

    def facts(self, relation: str) -> dict[str, Any]:
        """Of a relation that has that name. Any: JSON."""
        found: dict[str, Any] = json.loads((self.relations / f"{relation}.json").read_bytes())
        return found

    def segment(self) -> Segment:
        """A new segment, which nobody sees until it is published."""
        return Segment(self, self.folder / ".segment")

    def settle(self) -> None:
        """Lets Spark see what it may. Only who records does it, so that all is seen in order."""
        # What was set aside is older than what was not.
        for path in (*self.aside.released(self._number), *self._found(self.held)):
            if not path.stat().st_size:
                path.unlink()
                continue
            time.sleep(max(0, min(_PACE, self._at + _PACE - time.time_ns())) / 1e9)
            # The latest: Spark reads them by the time of their last change.
            self._at = max(time.time_ns(), self._at + _STEP)
            os.utime(path, ns=(self._at, self._at))
            # Only if nothing of before is set aside are all tables as of its position.
            move(path, self.segments / (path.name.replace("~", "+") if self.aside.keeps else path.name))
        self.aside.end()

    def publish(self, path: Path, position: str) -> None:
        """A file that is durable becomes the next segment. `position`: its end, of letters, digits, `.`, `-` and `_`.

        From then on all that was told up to there is durable, and the database may forget it.
        """
        number = self._number + 1
        self.aside.take(path, number)
        # With it all is durable: what was set aside before, with its number, is forgotten without it.
        move(path, self.held / f"{number:020d}~{position}{_END}")
        self._number, self._position = number, position
        self.settle()
        self._note()

    def advance(self, position: str) -> None:
        """Nothing of interest was told up to there."""
        self._position = position
        self._note()

    def _note(self) -> None:
        durable(self._state, json.dumps([self._number, self._at, self._position]).encode())


class Aside:
    """Changes of tables whose rows are being read: they come when those are there. Changes of others go on."""

    def __init__(self, folder: Path, facts: Callable[[str], dict[str, Any]]) -> None:
        """`facts`: of a relation by its name. Any: JSON."""
        self._folder = folder
        self._folder.mkdir(exist_ok=True)
        # One file each, which never changes.
        self._facts = cache(facts)

    @property
    def _note(self) -> Path:
        return self._folder / "tables.json"

    def _noted(self) -> tuple[list[str] | None, dict[str, str] | None]:
        """Whose changes are set aside, None for all; from where on they may come, None if they may not yet."""
        try:
            tables, since = json.loads(self._note.read_bytes())
        except FileNotFoundError:
            return [], {}
        return tables, since

    @property
    def waits(self) -> bool:
        """Whether changes are set aside, or have been and did not yet come."""
        return self._note.exists()

    @property
    def keeps(self) -> bool:
        """Whether changes are set aside that may not yet come."""
        return self._noted()[1] is None

    def begin(self, tables: Collection[str] | None) -> None:
        """Sets aside what is told of these tables from now on, named as `named` does it; None: all that is told."""
        noted, since = self._noted()
        if since is None:
            tables = None if tables is None or noted is None else {*noted, *tables}
        durable(self._note, json.dumps([None if tables is None else sorted(tables), None]).encode())

    def release(self, since: Mapping[str, str]) -> None:
        """Lets it come, at the next `settle` of who records: of each table what is not before that position.

        All up to there must be recorded. What is before is in the rows.
        """
        durable(self._note, json.dumps([self._noted()[0], dict(since)]).encode())

    def kept(self) -> list[Path]:
        """What was set aside, the oldest first."""
        return sorted(self._folder.glob(f"s*{_END}"))

    def partial(self, table: str) -> dict[tuple[str, ...], set[tuple[str, ...]]]:
        """Keys of rows of a table that were changed without all of their values being told, by the key's columns."""
        found: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
        for path in self.kept():
            with path.open("rb") as lines:
                for line in lines:
                    op, relation, *_ = fields = line[:-1].split(b"\t")
                    if op == b"u" and ABSENT in fields and self._table(relation) == table:
                        facts = self._facts(relation.decode())
                        row = dict(zip((each["name"] for each in facts["columns"]), fields[_VALUES:], strict=False))
                        key = tuple(unescaped(row[name]) for name in facts["key"])
                        found.setdefault(tuple(facts["key"]), set()).add(key)
        return found

    def released(self, number: int) -> list[Path]:
        """What may come now, of the segments up to that number."""
        _, since = self._noted()
        if since is None:
            return []
        for path in self.kept():
            if int(path.name[1:].removesuffix(_END)) > number:
                # It was not all of its segment: that comes again.
                path.unlink()
            else:
                self._cut(path, {table: numbers(at) for table, at in since.items()})
        return self.kept()

    def end(self) -> None:
        """If all has come that was set aside, nothing is any more."""
        if self.waits and self._noted()[1] is not None and not self.kept():
            self._note.unlink()

    def _cut(self, path: Path, since: Mapping[str, tuple[int, ...]]) -> None:
        """Leaves out rows' changes that are before their table's position."""
        with path.open("rb") as lines:
            _, _, first, _ = next(lines).split(b"\t", 3)
        # They are in order: mostly all of them are behind it.
        if numbers(first.decode()) >= max(since.values(), default=()):
            return
        part = path.with_name(f".{path.name}")
        with path.open("rb") as lines, part.open("wb") as rest:
            for line in lines:
                op, relation, position, _ = line.split(b"\t", 3)
                if op == b"q" or numbers(position.decode()) >= since.get(self._table(relation), ()):
                    rest.write(line)
            rest.flush()
            os.fsync(rest.fileno())
        move(part, path)

    def take(self, path: Path, number: int) -> None:
        """Takes what is to be set aside out of a file that becomes the segment of that number."""
        mine = self._folder / f"s{number:020d}{_END}"
        mine.unlink(missing_ok=True)
        tables, since = self._noted()
        if since is not None:
            return
        part, rest = mine.with_name(f".{mine.name}"), path.with_name(f".{path.name}.rest")
        with path.open("rb") as lines, part.open("wb") as kept, rest.open("wb") as others:
            if tables is None:
                shutil.copyfileobj(lines, kept, 1 << 20)
            else:
                self._split(lines, kept, others, tables)
            for file in (kept, others):
                file.flush()
                os.fsync(file.fileno())
        if part.stat().st_size:
            move(part, mine)
        part.unlink(missing_ok=True)
        move(rest, path)

    def _split(self, lines: BinaryIO, kept: BinaryIO, others: BinaryIO, tables: Collection[str]) -> None:
        """Each transaction in two, either of which has its last change."""
        waiting: dict[BinaryIO, list[bytes]] = {}
        for line in lines:
            fields = line.split(b"\t", 5)
            file = kept if self._table(fields[1]) in tables else others
            if before := waiting.get(file):
                file.write(b"\t".join(before))
            ends = fields[4] == b"1"
            fields[4] = b"0"
            waiting[file] = fields
            if ends:
                for each, last in waiting.items():
                    last[4] = b"1"
                    each.write(b"\t".join(last))
                waiting.clear()

    def _table(self, relation: bytes) -> str:
        return named(self._facts(relation.decode())) if relation else ""


def named(facts: Mapping[str, Any]) -> str:
    """The table of a relation: what its database knows it by, with its schema or, where there are none, the database.

    >>> named({"database": "shop", "schema": "public", "table": "t"}), named({"database": "shop", "table": "t"})
    ('public.t', 'shop.t')

    Any: JSON.
    """
    return f"{facts.get('schema') or facts.get('database')}.{facts['table']}"


def numbers(position: str) -> tuple[int, ...]:
    """What a position is compared by."""
    return tuple(map(int, position.split(".")))


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
        return NULL
    return value.replace(b"\\", b"\\\\").replace(b"\t", b"\\t").replace(b"\n", b"\\n").replace(b"\r", b"\\r")


_LETTERS = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


def unescaped(told: bytes) -> str:
    r"""The value of a field, which is one.

    >>> unescaped(field("a\tb\\n".encode()))
    'a\tb\\n'
    """
    return re.sub(rb"\\(.)", lambda found: _LETTERS.get(found[1], found[1]), told).decode()


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
