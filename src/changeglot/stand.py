"""Where the source's log is by a batch, for those who serve its tables by the source's own numbers."""

from __future__ import annotations

import json
from typing import NamedTuple, Self

#: Under this name a commit's metadata tells it.
_NAME = "changeglot.stand"


class Stand(NamedTuple):
    """A place in a log."""

    #: Numbers of another epoch are of another log.
    epoch: int
    #: Even, not less than that of any transaction up to there, less than that of any after; None if it is not known.
    number: int | None
    #: Which transactions are in the tables, as PostgreSQL writes it: `xmin:xmax:xid,xid`; empty if it is not known.
    seen: str

    def __str__(self) -> str:
        return json.dumps({_NAME: self._asdict()})

    @classmethod
    def of(cls, metadata: str | None) -> Self | None:
        """Of a commit's metadata, which may tell anything.

        >>> Stand.of(str(Stand(0, 8, "7:7:"))), Stand.of("by hand"), Stand.of(None)
        (Stand(epoch=0, number=8, seen='7:7:'), None, None)
        """
        try:
            return cls(**json.loads(metadata or "")[_NAME])
        except (ValueError, LookupError, TypeError):
            return None
