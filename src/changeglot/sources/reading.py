"""The rows of tables on their way into segments: their pieces, and which of them are there, whoever is killed when."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from changeglot.capture.spool import described, durable, move, numbers
from changeglot.sources.progress import note

_END, _DONE = ".lines", ".done"
#: Nanoseconds by which what empties a table is older than its rows, and what ends them younger: Spark reads the oldest
#: first, and may end a batch anywhere.
_STEP = 1_000_000
#: In the place of a piece's number.
_FIRST, _LAST = "000000", "999999"


class Piece(Protocol):
    """Some rows of a table, which a task on any machine can read."""

    #: The table.
    of: str
    #: Which part of it: pieces of one part are all its rows.
    part: object
    #: About so many.
    rows: int

    def again(self, now: Any) -> Any:
        """The piece under the snapshot of another of its part; None if the table is another by now. Any: Piece."""


class Rows(Protocol):
    """Rows that are to be read before the changes, as of a position. Any: PostgreSQL's is a number."""

    tables: Sequence[str]
    chunks: Sequence[Any]
    position: Any
    #: The position as of which all tables are then, if there is one.
    reached: str
    #: Whether a snapshot that follows it may read what this one has not: changes tell what is between them.
    resumable: bool

    @property
    def ends(self) -> bytes:
        """Lines that come after all of them."""

    def close(self) -> None: ...


#: Reads a piece into a file; gives how many rows it has and maybe the facts of their relation. Any: see Piece.
Copy = Callable[[Any, Path], Any]


@dataclass
class Reading:
    """One reading of some tables. Begun again after a crash it goes on with the pieces that are not there."""

    folder: Path
    #: The pieces that are to be read, by the names of their segments.
    left: dict[str, Piece] = field(default_factory=dict)
    #: Tables of which some pieces were read by an earlier snapshot.
    resumed: set[str] = field(default_factory=set)
    #: Tables that are told from their beginning, though something was told before.
    cleared: set[str] = field(default_factory=set)
    _at: int = 0

    @property
    def _rows(self) -> Path:
        return self.folder / "rows"

    @property
    def _note(self) -> Path:
        return self._rows / "pieces"

    def _noted(self) -> dict[str, Piece]:
        """All pieces, by the names of their segments."""
        # Written here, and by nobody else.
        noted: dict[str, Piece] = pickle.loads(self._note.read_bytes()) if self._note.exists() else {}
        return noted

    def _done(self) -> dict[str, str]:
        """The position of each piece that was read."""
        return {path.name.removesuffix(_DONE): path.read_text() for path in self._rows.glob(f"*{_DONE}")}

    def recover(self, unread: Collection[str]) -> None:
        """After a crash: what was read becomes segments; what is of no use any more is forgotten."""
        self._rows.mkdir(parents=True, exist_ok=True)
        done = self._done()
        for path in self._rows.glob(f"*{_END}"):
            if path.name in done:
                move(path, self.folder / "segments" / path.name)
            else:
                path.unlink()
        if not {piece.of for piece in self._noted().values()} & {*unread}:
            self.end()

    def begin(self, rows: Rows, again: Collection[str]) -> None:
        """Finds out which pieces are to be read. `again`: tables of which something was told before."""
        self.recover(rows.tables)
        noted, done = self._noted(), self._done()
        self._at = time.time_ns()
        name = f"r{self._at:020d}"
        pieces: list[tuple[str, Piece]] = []
        self.left, self.resumed, self.cleared = {}, set(), set()
        for table in rows.tables:
            old = {each: piece for each, piece in noted.items() if piece.of == table}
            new = [piece for piece in rows.chunks if piece.of == table]
            goes_on = _going_on(old, new) if rows.resumable and any(each in done for each in old) else {}
            if goes_on:
                self.resumed.add(table)
                pieces += goes_on.items()
                self.left |= {each: piece for each, piece in goes_on.items() if each not in done}
                continue
            if table in again or any(each in done for each in old):
                self.cleared.add(table)
            for piece in new:
                self.left[f"{name}-{len(pieces) + 1:06d}{_END}"] = piece
                pieces.append((f"{name}-{len(pieces) + 1:06d}{_END}", piece))
        durable(self._note, pickle.dumps(dict(pieces)))
        for each in done.keys() - dict(pieces).keys():
            (self._rows / f"{each}{_DONE}").unlink()

    def clear(self, lines: bytes) -> None:
        """What empties the `cleared` tables becomes a segment, before all rows."""
        path = self._rows / f"r{self._at:020d}-{_FIRST}{_END}"
        durable(path, lines)
        os.utime(path, ns=(self._at - _STEP, self._at - _STEP))
        move(path, self.folder / "segments" / path.name)

    def job(self, copy: Copy, rows: Rows) -> Job:
        """What a task does with pieces."""
        return Job(copy, str(self.folder), self._at, [int(n) for n in str(rows.position).split(".")])

    def since(self) -> dict[str, str]:
        """From where on changes of each table are not in its rows, all of them."""
        of, found = self._noted(), dict[str, str]()
        for name, position in self._done().items():
            table = of[name].of
            found[table] = min(found.get(table, position), position, key=numbers)
        return found

    def finish(self, rows: Rows) -> None:
        """What tells that all rows are there becomes a segment, after all of them."""
        if rows.ends:
            reached = f"~{rows.reached}" if rows.reached else ""
            path = self._rows / f"r{self._at:020d}-{_LAST}{reached}{_END}"
            durable(path, rows.ends)
            os.utime(path, ns=(self._at + _STEP, self._at + _STEP))
            move(path, self.folder / "segments" / path.name)

    def end(self) -> None:
        """All is there and noted."""
        for path in self._rows.glob(f"*{_DONE}"):
            path.unlink()
        self._note.unlink(missing_ok=True)


def _going_on(old: Mapping[str, Piece], new: Sequence[Piece]) -> dict[str, Piece]:
    """The old pieces under the new snapshot; none if the table is another by now."""
    parts = {piece.part: piece for piece in new}
    found = {name: piece.again(parts[piece.part]) for name, piece in old.items() if piece.part in parts}
    same = len(found) == len(old) and parts.keys() == {piece.part for piece in old.values()}
    return found if same and all(found.values()) else {}


@dataclass(frozen=True)
class Job:
    """Reads pieces into segments. Runs in a task, on whatever machine."""

    copy: Copy
    folder: str
    at: int
    #: Of the rows, unless a piece tells its own.
    position: Sequence[int]

    def __call__(self, pieces: Iterable[tuple[str, Any]]) -> None:
        """Any: see Piece."""
        rows, segments = Path(self.folder, "rows"), Path(self.folder, "segments")
        for name, piece in pieces:
            found = self.copy(piece, rows / name)
            facts = getattr(found, "facts", None)
            if facts:
                relation, content = described(facts)
                durable(Path(self.folder, "relations", f"{relation}.json"), content)
            note(rows, name, found.rows)
            # In the order of their files before all that was recorded meanwhile, whatever clock a task has.
            os.utime(rows / name, ns=(self.at, self.at))
            position = facts["snapshot"] if facts else self.position
            # From here on it counts as read: if it does not become a segment now, it does at the next start.
            durable(rows / f"{name}{_DONE}", ".".join(map(str, position)).encode())
            move(rows / name, segments / name)
