"""How far the rows of a database are read: told by names of files, which a task on any machine can make."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

_END = ".read"
#: Seconds between two looks.
_PACE = 0.25


class Read(NamedTuple):
    """Rows of a table that were read, about how many there are, and how many pieces of them are left.

    In the end there are none, and as many rows as were read.
    """

    rows: int
    of: int
    left: int


#: By table.
Extent = Mapping[str, Read]
#: Is told, maybe by another thread.
Hear = Callable[[Extent], None]


def unheard(_: Extent) -> None:
    """Nobody listens."""


def note(folder: Path, piece: str, rows: int) -> None:
    """A piece has been read, and had so many rows. A name alone: nobody can see half of it."""
    (folder / f"{piece}~{rows}{_END}").touch()


@contextmanager
def followed(folder: Path, pieces: Sequence[tuple[str, Any]], hear: Hear) -> Iterator[None]:
    """Tells of the pieces, by their names, that are noted in the folder meanwhile: at first, on change, and at the end.

    Any: pieces that are `of` a table and have about so many `rows`.
    """
    folder.mkdir(exist_ok=True)
    # Of one who was killed.
    _clear(folder)
    ended, last = threading.Event(), _reading(folder, pieces)

    def look() -> None:
        nonlocal last
        now = _reading(folder, pieces)
        if now != last:
            last = now
            hear(now)

    def follow() -> None:
        while not ended.wait(_PACE):
            look()

    hear(last)
    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        look()
        _clear(folder)


def _reading(folder: Path, pieces: Sequence[tuple[str, Any]]) -> Extent:
    """Of pieces that were read as they were, of others by what is thought of them. Any: see above."""
    noted = dict(path.name.removesuffix(_END).rsplit("~", 1) for path in folder.glob(f"*{_END}"))
    found: dict[str, Read] = {}
    for name, piece in pieces:
        rows, of, left = found.get(piece.of, (0, 0, 0))
        done = int(noted.get(name, 0))
        found[piece.of] = Read(rows + done, of + (done if name in noted else piece.rows), left + (name not in noted))
    return found


def _clear(folder: Path) -> None:
    for path in folder.glob(f"*{_END}"):
        path.unlink()
