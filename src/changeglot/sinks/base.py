"""What a lakehouse must do for changes to be applied to its tables."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import ClassVar

from pyspark.sql import DataFrame, DataFrameWriterV2, SparkSession

from changeglot.columns import quoted
from changeglot.options import option
from changeglot.settings import configured
from changeglot.stand import Stand

#: The property of a table that holds its key.
KEY = "changeglot.key"
#: Types by which rows cannot lie.
UNORDERED = ("binary", "boolean")


@dataclass(frozen=True)
class Mark:
    """Who commits which batch. `replayed`: the batch may have been begun before, by a process that died.

    `stand`: where it leaves the source's log, where the table's clients know that log.
    """

    writer: str
    batch: int
    replayed: bool = True
    stand: Stand | None = None

    def of(self, *step: str) -> Mark:
        """The mark of one commit among those of the batch."""
        return replace(self, writer="/".join((self.writer, *step)))


def safe(name: str) -> str:
    """The name as one of a file: those of tables come from messages, and may hold anything.

    >>> safe("a/../b"), safe("..")
    ('a~2F..~2Fb', '~2E~2E')
    """
    escaped = re.sub(r"[^\w\- .]", lambda found: "".join(f"~{byte:02X}" for byte in found[0].encode()), name)
    return escaped if escaped.strip(". ") else "".join(f"~{byte:02X}" for byte in name.encode())


def unescaped(name: str) -> str:
    """What `safe` made the name of.

    >>> unescaped("a~2F..~2Fb"), unescaped(safe("Zoë~2F")), unescaped("~FF")
    ('a/../b', 'Zoë~2F', '\ufffd')
    """
    return re.sub(
        "(?:~[0-9A-F]{2})+", lambda found: bytes.fromhex(found[0].replace("~", " ")).decode("utf-8", "replace"), name
    )


def literal(text: str) -> str:
    r"""The text in SQL, where no parameter may stand: it is that text and nothing else.

    >>> print(literal("it's"))
    'it\'s'
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def assigned(properties: Mapping[str, str]) -> str:
    """Properties of a table, in SQL."""
    return ", ".join(f"{literal(name)} = {literal(value)}" for name, value in properties.items())


def declared(columns: Mapping[str, str]) -> str:
    """Columns by name and type, in SQL."""
    return ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())


@dataclass(frozen=True)
class LakeSink(ABC):
    """Tables of one lakehouse. Writing a batch to a table a second time changes nothing."""

    name: ClassVar[str]
    #: Packages that Spark needs, by their Maven coordinates.
    packages: ClassVar[tuple[str, ...]]
    #: What makes a setting of a session of an option of a writer.
    conf: ClassVar[str]
    #: Settings for a merge.
    merging: ClassVar[Mapping[str, str]] = MappingProxyType({})

    path: str = option("folder of the tables, on any file system that Spark reads", example="/lake")

    @abstractmethod
    def session_settings(self) -> dict[str, str]:
        """What a session must be started with."""

    @abstractmethod
    def identifier(self, *names: str) -> str:
        """How SQL names the table."""

    @abstractmethod
    def exists(self, spark: SparkSession, table: str) -> bool: ...

    def create(
        self,
        spark: SparkSession,
        table: str,
        columns: Mapping[str, str],
        key: Sequence[str] = (),
        *,
        searched: Sequence[str] = (),
        properties: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """An empty table, if it is not there; its rows lie by the key.

        `searched`: columns of whose values each file tells least and greatest, which takes time; else those it can.
        """
        if not self.exists(spark, table):
            by = [name for name in key if columns[name] not in UNORDERED]
            for statement in self.made(table, columns, by, self._given(searched, key, properties)):
                spark.sql(statement)

    @abstractmethod
    def traits(self, searched: Sequence[str]) -> dict[str, str]:
        """The properties of a table that is made; `searched` as of `create`."""

    @abstractmethod
    def made(
        self, table: str, columns: Mapping[str, str], by: Sequence[str], properties: Mapping[str, str]
    ) -> Iterator[str]:
        """The statements that make a table whose rows lie `by` some columns."""

    @abstractmethod
    def done(self, spark: SparkSession, table: str, mark: Mark) -> bool:
        """Has this writer committed this batch, or a later one, to the table?"""

    @abstractmethod
    def marks(self, mark: Mark) -> Mapping[str, str]:
        """Options of a writer by which its commit bears the mark, in the table's own transaction."""

    def remarks(self, mark: Mark) -> Mapping[str, str]:
        """Settings by which a commit tells where its mark stands."""
        return {}

    def finish(  # noqa: B027  # Most have nobody to tell.
        self, spark: SparkSession, mark: Mark, newest: datetime | None, *, whole: bool
    ) -> None:
        """Lets those who serve the tables know that all have the batch, also those that it did not change.

        `newest`: when the last of its changes was made. `whole`: the tables are as of one moment then, at which the
        mark stands.
        """

    @abstractmethod
    def tidy(self, spark: SparkSession, table: str, hours: int) -> None:
        """Small files made into large ones, and what was replaced more than so many hours ago removed."""

    def read_ahead(self, spark: SparkSession, table: str) -> None:  # noqa: B027  # Most have nothing to keep.
        """Reads what a merge into the table will ask first, and keeps it until then."""

    def once(self, spark: SparkSession, table: str, mark: Mark, write: Callable[[], object]) -> None:
        """Does what commits to the table, unless it was done."""
        if not (mark.replayed and self.done(spark, table, mark)):
            # A merge takes no options.
            settings = {self.conf + name: value for name, value in self.marks(mark).items()}
            with configured(spark, {**settings, **self.merging, **self.remarks(mark)}):
                write()

    def append(self, rows: DataFrame, table: str, mark: Mark | None) -> None:
        """Adds the rows to the table, unless it was done, which the mark tells. Other commits may be on their way."""
        if not (mark and mark.replayed and self.done(rows.sparkSession, table, mark)):
            self._writer(rows, table, mark).append()

    def begin(
        self, rows: DataFrame, table: str, mark: Mark, *, searched: Sequence[str], properties: Mapping[str, str]
    ) -> None:
        """The rows as a table, which is not there: made, filled and marked by one commit. Words as of `create`."""
        writer = self._writer(rows, table, mark).using(self.name)
        for name, value in self._given(searched, (), properties).items():
            writer = writer.tableProperty(name, value)
        writer.create()

    def _writer(self, rows: DataFrame, table: str, mark: Mark | None) -> DataFrameWriterV2:
        writer = rows.writeTo(table)
        for name, value in (self.marks(mark) if mark else {}).items():
            writer = writer.option(name, value)
        return writer

    def _given(self, searched: Sequence[str], key: Sequence[str], properties: Mapping[str, str]) -> dict[str, str]:
        return {**self.traits(searched), KEY: json.dumps(list(key)), **properties}

    def key(self, spark: SparkSession, table: str) -> tuple[str, ...]:
        """The key that the table was made with."""
        return tuple(json.loads(self.property(spark, table, KEY) or "[]"))

    def property(self, spark: SparkSession, table: str, name: str) -> str | None:
        """One of the table's properties."""
        told = {row["key"]: row["value"] for row in spark.sql(f"SHOW TBLPROPERTIES {table}").collect()}
        return told.get(name)

    def put(self, spark: SparkSession, table: str, properties: Mapping[str, str]) -> None:
        """Gives the table other properties."""
        spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({assigned(properties)})")

    def columns(self, spark: SparkSession, table: str) -> dict[str, str]:
        """Names and types, as DDL."""
        return {field.name: field.dataType.simpleString() for field in spark.table(table).schema}

    def add(self, spark: SparkSession, table: str, columns: Mapping[str, str]) -> None:
        """Columns that the table did not have."""
        spark.sql(f"ALTER TABLE {table} ADD COLUMNS ({declared(columns)})")

    def widen(self, spark: SparkSession, table: str, column: str, kind: str) -> None:
        spark.sql(f"ALTER TABLE {table} ALTER COLUMN {quoted(column)} TYPE {kind}")

    def rename(self, spark: SparkSession, table: str, column: str, now: str) -> None:
        spark.sql(f"ALTER TABLE {table} RENAME COLUMN {quoted(column)} TO {quoted(now)}")

    def drop(self, spark: SparkSession, table: str, column: str) -> None:
        spark.sql(f"ALTER TABLE {table} DROP COLUMN {quoted(column)}")
