"""Answers with many rows of a snapshot, kept on disk: the same request has the same answer, for ever."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from tempfile import TemporaryFile
from typing import Final

from changeglot.serve.answers import Answer, Place, Stored

#: Bytes from which on an answer is worth a file.
_LARGE: Final = 1 << 20


@dataclass
class Bodies:
    """The last used, in so many bytes."""

    limit: int
    held: OrderedDict[Place, Answer] = field(default_factory=OrderedDict)
    size: int = 0

    def get(self, place: Place) -> Answer | None:
        if (found := self.held.get(place)) is not None:
            self.held.move_to_end(place)
        return found

    def put(self, place: Place, answer: Answer) -> None:
        if isinstance(answer.body, Stored) and place not in self.held:
            self.held[place] = answer
            self.size += len(answer.body)
            while self.size > self.limit:
                self.size -= len(self.held.popitem(last=False)[1].body)


def stored(answer: Answer) -> Answer:
    """The answer, its body in a file without a name if it is large: it goes with the last who sends it."""
    if answer.status != 200 or isinstance(answer.body, Stored) or len(answer.body) < _LARGE:
        return answer
    file = TemporaryFile(buffering=0)  # noqa: SIM115  # Open for as long as it is kept.
    rest = memoryview(answer.body)
    while rest:
        rest = rest[file.write(rest) :]
    return replace(answer, body=Stored(file, len(answer.body)))
