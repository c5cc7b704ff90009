"""Which transactions are in what was recorded: as PostgreSQL tells of a snapshot, `xmin:xmax:xid,xid`.

The log tells transactions as they end, and of those that wrote nothing of interest, or nothing that stayed, it tells
nothing. So the server is asked now and then what it sees, and where its log is just after that: who has recorded as
much has recorded all of that, and what was told since.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Self

#: The log tells the lower half of a transaction's number.
_HALF = 1 << 32
#: Numbers of which nothing is known, at most: with more, nothing is until the server was asked again.
_MANY = 100_000


class View(NamedTuple):
    """Transactions before `end`, but for some."""

    #: All before it are among them.
    begin: int
    end: int
    others: frozenset[int]

    @classmethod
    def of(cls, text: str) -> Self:
        """What PostgreSQL writes.

        >>> View.of("739:745:741,742")
        View(begin=739, end=745, others=frozenset({741, 742}))
        """
        begin, end, others = text.split(":")
        return cls(int(begin), int(end), frozenset(map(int, filter(None, others.split(",")))))

    def __str__(self) -> str:
        return f"{self.begin}:{self.end}:{','.join(map(str, sorted(self.others)))}"

    @property
    def told(self) -> dict[str, str | list[str]]:
        """In Electric's words."""
        return {"xmin": str(self.begin), "xmax": str(self.end), "xip_list": list(map(str, sorted(self.others)))}

    @property
    def lower(self) -> Self:
        """By the lower halves of numbers; of those that went round since nothing is known.

        >>> View.of(f"{2**32 - 1}:{2**32 + 9}:{2**32 - 1},{2**32 + 7}").lower
        View(begin=0, end=9, others=frozenset({7}))
        """
        above = self.end - self.end % _HALF
        others = frozenset(each - above for each in self.others if each >= above)
        return self._replace(begin=max(0, self.begin - above), end=self.end - above, others=others)

    def has(self, number: int) -> bool:
        return number < self.end and number not in self.others

    def whole(self, half: int) -> int:
        """The number of a transaction of which the lower half is told: the nearest.

        >>> View.of(f"{2 << 32}:{2 << 32}:").whole(5) - (2 << 32), View.of(f"{2 << 32}:{2 << 32}:").whole(2**32 - 5)
        (5, 8589934587)
        """
        near = self.end - self.end % _HALF + half
        return min((near - _HALF, near, near + _HALF), key=lambda each: abs(each - self.end))

    def plus(self, halves: Iterable[int]) -> Self | None:
        """With these transactions; None if of too many others it is not known whether they will come."""
        end, others = self.end, set(self.others)
        for number in map(self.whole, halves):
            if number < end:
                others.discard(number)
                continue
            if number - end + len(others) > _MANY:
                return None
            others.update(range(end, number))
            end = number + 1
        return self._replace(begin=min(others, default=end), end=end, others=frozenset(others))


class Seen:
    """What is recorded, as the recorder goes on."""

    def __init__(self, text: str) -> None:
        """`text`: as it was, empty if that is not known."""
        self._view = View.of(text) if text else None
        #: What the server saw, and up to where it must be recorded for that to hold.
        self._asked: tuple[View, int] | None = None
        #: Lower halves of numbers that were told, less those that the server was known to see.
        self._told: dict[int, None] = {}

    def __str__(self) -> str:
        return str(self._view or "")

    @property
    def wants(self) -> bool:
        """Is it time to ask the server?"""
        return self._asked is None

    def ask(self, view: str, position: int) -> None:
        """What the server saw, and the end of its log after that."""
        asked = View.of(view)
        self._asked = asked, position
        self._told = {each: None for each in self._told if not asked.has(asked.whole(each))}

    def record(self, told: Iterable[int], position: int) -> None:
        """Transactions that the log told since, all up to a position."""
        new = list(told)
        self._view = self._view and self._view.plus(new)
        asked, reached = self._asked or (None, 0)
        self._told |= {each: None for each in new if not (asked and asked.has(asked.whole(each)))}
        if asked and position >= reached:
            self._view, self._asked = asked.plus(self._told), None
