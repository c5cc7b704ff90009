"""What is found when a database is examined, and what all databases are examined for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from changeglot.capture.spool import Spool

#: Seconds that two clocks may be apart.
APART = 5.0
#: How many names a line has.
_NAMES = 10


class Finding(NamedTuple):
    """What was looked at, how it is, what was found, and what to type or do about it."""

    what: str
    state: Literal["good", "warn", "bad"]
    found: str
    fix: str = ""


def good(what: str, found: str, fix: str = "") -> Finding:
    return Finding(what, "good", found, fix)


def warn(what: str, found: str, fix: str) -> Finding:
    return Finding(what, "warn", found, fix)


def bad(what: str, found: str, fix: str) -> Finding:
    return Finding(what, "bad", found, fix)


def lost(what: str, found: str, snapshot: str) -> Finding:
    """Changes are gone that were not recorded: bad, unless the source is to read all rows again then."""
    if snapshot == "when_needed":
        return warn(what, f"{found}; all rows will be read again", "Run the pipeline.")
    return bad(what, found, "Let all rows be read again: set snapshot: when_needed, and run the pipeline.")


def clock(server: float, before: float, after: float) -> Finding:
    """The server's clock against ours before and after it was asked; seconds since 1970.

    >>> clock(100.0, 99.9, 100.1).found
    'less than 5 seconds from that of this machine'
    >>> clock(160.0, 99.9, 100.0).found
    '60 seconds ahead of that of this machine'
    """
    apart = server - min(max(server, before), after)
    if abs(apart) <= APART:
        return good("clock", f"less than {APART:g} seconds from that of this machine")
    said = f"{abs(apart):.0f} seconds {'ahead of' if apart > 0 else 'behind'} that of this machine"
    return warn("clock", said, "Let both follow a time server: how old a change is would be told wrongly.")


def recorded(folder: Path) -> str:
    """The position of the spool in the folder, in which nothing is made; empty if there is none."""
    for _ in range(3):
        # A spool makes the folders that it misses.
        if not all((folder / name).is_dir() for name in ("segments", "held", "relations")):
            return ""
        try:
            return Spool(folder).position
        except FileNotFoundError:
            # A segment was moved on, by who records, between two looks.
            continue
    return Spool(folder).position


def size(count: int) -> str:
    """Bytes as people say it.

    >>> size(1023), size(1536), size(5 << 40)
    ('1023 bytes', '1.5 KB', '5.0 TB')
    """
    if count < 1024:
        return f"{count} bytes"
    amount = float(count)
    for unit in ("KB", "MB", "GB"):
        amount /= 1024
        if amount < 1024:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1024:.1f} TB"


def listed(names: Sequence[str]) -> str:
    """The names, or the first of many.

    >>> listed([f"t{n}" for n in range(12)])
    't0, t1, t2, t3, t4, t5, t6, t7, t8, t9 and 2 more'
    """
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(names[:_NAMES]) + more
