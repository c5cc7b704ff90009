"""Rows and changes of a MySQL or MariaDB server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql import SparkSession

from changeglot.capture import part
from changeglot.capture.myserver import Server
from changeglot.sources.capture import Captured
from changeglot.sources.reading import Copy

if TYPE_CHECKING:
    from changeglot.capture.mychunks import Snapshot


@dataclass(frozen=True)
class MySQL(Captured, Server):
    """The rows that are there, and then every change of them."""

    name: ClassVar[str] = "mysql"
    settings: ClassVar[type] = Server
    #: Times are told in UTC.
    spelling: ClassVar[Mapping[str, str]] = {"binary": "HEX", "bit": "BIT_TEXT", "timestamp": "LOCAL UTC"}

    def check(self, spark: SparkSession) -> None:
        part(self.name)
        # No more than that: a reader of the log would end the one that runs.
        with self.connected():
            pass

    def copy(self, rows: Snapshot) -> Copy:
        return partial(part(self.name).copy, self.server)
