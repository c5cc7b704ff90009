"""What a lakehouse must do for changes to be applied to its tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import DataFrame, SparkSession

from changeglot.options import option


def quoted(*parts: str) -> str:
    """An identifier of SQL: what is in the parts is a name and nothing else.

    >>> quoted("shop", "a`b")
    '`shop`.`a``b`'
    """
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


@contextmanager
def settings(spark: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    """The session's settings, for a while."""
    before = {name: spark.conf.get(name, None) for name in conf}
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


@dataclass(frozen=True)
class LakeSink(ABC):
    """Tables of one lakehouse. Writing a batch to a table a second time changes nothing."""

    name: ClassVar[str]
    #: Packages that Spark needs, by their Maven coordinates.
    packages: ClassVar[tuple[str, ...]]

    path: str = option("folder of the tables, on any file system that Spark reads", example="/lake")

    @abstractmethod
    def session_settings(self) -> dict[str, str]:
        """What a session must be started with."""

    @abstractmethod
    def identifier(self, *names: str) -> str:
        """How SQL names the table."""

    @abstractmethod
    def exists(self, spark: SparkSession, table: str) -> bool: ...

    @abstractmethod
    def create(self, spark: SparkSession, table: str, columns: Mapping[str, str], cluster: tuple[str, ...]) -> None:
        """An empty table, if it is not there."""

    @abstractmethod
    def done(self, spark: SparkSession, table: str, writer: str, batch: int) -> bool:
        """Has this writer committed this batch, or a later one, to the table?"""

    @abstractmethod
    def once(self, writer: str, batch: int) -> Mapping[str, str]:
        """Settings under which a commit bears the writer's batch, in the table's own transaction."""

    def columns(self, spark: SparkSession, table: str) -> dict[str, str]:
        """Names and types, as DDL."""
        return {field.name: field.dataType.simpleString() for field in spark.table(table).schema}

    def add(self, spark: SparkSession, table: str, columns: Mapping[str, str]) -> None:
        """Columns that the table did not have."""
        wanted = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())
        spark.sql(f"ALTER TABLE {table} ADD COLUMNS ({wanted})")

    def widen(self, spark: SparkSession, table: str, column: str, kind: str) -> None:
        spark.sql(f"ALTER TABLE {table} ALTER COLUMN {quoted(column)} TYPE {kind}")

    def append(self, rows: DataFrame, table: str, writer: str, batch: int) -> None:
        """The rows added, once."""
        spark = rows.sparkSession
        if not self.done(spark, table, writer, batch):
            with settings(spark, self.once(writer, batch)):
                rows.writeTo(table).append()
