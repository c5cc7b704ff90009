"""Rows and changes of a PostgreSQL database."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql import SparkSession

from changeglot.capture import part
from changeglot.capture.pgserver import Server
from changeglot.capture.spool import seen
from changeglot.codecs.electric import SPELLING
from changeglot.sources.capture import Captured
from changeglot.sources.reading import Copy
from changeglot.stand import Stand

if TYPE_CHECKING:
    from changeglot.capture.pgrows import Snapshot


@dataclass(frozen=True)
class Postgres(Captured, Server):
    """The rows as of one moment, and then every change: no gap between them, and no overlap."""

    name: ClassVar[str] = "postgres"
    settings: ClassVar[type] = Server
    spelling: ClassVar[Mapping[str, str]] = SPELLING

    def check(self, spark: SparkSession) -> None:
        part(self.name)
        self.connect().close()

    def spelled(self, numbers: Sequence[int]) -> str:
        return str(part(self.name).lsn(numbers[0]))

    def stand(self, latest: str | None) -> Stand:
        newest = self.newest
        told = [(each["snapshot"][0], each.get("seen", "")) for each in newest if latest and each["snapshot"]]
        if latest and (segment := re.fullmatch(r"1(\d+)[~+](\d+)\.lines", latest)):
            told.append((int(segment[2]), seen(self.folder, int(segment[1]))))
        position, transactions = max(told, default=(None, ""))
        # The next commit may begin where this one ends.
        number = None if position is None else (position - 1) & ~1
        return Stand(newest[0].get("epoch", 0) if newest else 0, number, transactions)

    def copy(self, rows: Snapshot) -> Copy:
        return partial(part(self.name).copy, self.server, rows.name)
