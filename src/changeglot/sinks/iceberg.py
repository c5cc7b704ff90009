"""Iceberg tables: in a folder of their own, or in a REST catalog."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from changeglot.columns import quoted
from changeglot.options import option, words
from changeglot.sinks.base import LakeSink, Mark, assigned, declared, literal, safe

CATALOG = "changeglot_lake"
_MARK = "changeglot-batch-"
_METRICS = "write.metadata.metrics"
#: Snapshots that are kept however old: the marks of the last batch are in them.
_SNAPSHOTS = 200


@dataclass(frozen=True)
class Iceberg(LakeSink):
    """`catalog.database.table`. A batch is known by a property of the snapshot that its commit made."""

    name: ClassVar[str] = "iceberg"
    packages: ClassVar[tuple[str, ...]] = ("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",)
    conf: ClassVar[str] = "spark.sql.iceberg."

    uri: str = option("of a REST catalog; without one the folder is the catalog", "", example="http://localhost:8181")
    catalog: Mapping[str, str] = words(
        "further properties of the catalog, as Iceberg names them; may hold secrets", shown=False
    )

    def session_settings(self) -> dict[str, str]:
        catalog = f"spark.sql.catalog.{CATALOG}"
        kind = {f"{catalog}.type": "rest", f"{catalog}.uri": self.uri} if self.uri else {f"{catalog}.type": "hadoop"}
        return {
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            catalog: "org.apache.iceberg.spark.SparkCatalog",
            f"{catalog}.warehouse": self.path,
            # A cached table does not see what another session of this process commits.
            f"{catalog}.cache-enabled": "false",
            **kind,
            **{f"{catalog}.{name}": value for name, value in self.catalog.items()},
        }

    def identifier(self, *names: str) -> str:
        return quoted(CATALOG, *map(safe, names))

    def exists(self, spark: SparkSession, table: str) -> bool:
        return bool(spark.catalog.tableExists(table))

    def traits(self, searched: Sequence[str]) -> dict[str, str]:
        told = {f"{_METRICS}.column.{name}": "truncate(64)" for name in searched}
        return {
            "format-version": "3",
            # A changed row is marked as deleted in a file of marks, and its own file is not written again.
            **{f"write.{op}.mode": "merge-on-read" for op in ("merge", "update", "delete")},
            # Rows of a merge go where they are made: a shuffle for the sake of files is left to the upkeep.
            **{f"write.{op}.distribution-mode": "none" for op in ("merge", "update", "delete")},
            "write.metadata.delete-after-commit.enabled": "true",
            **({f"{_METRICS}.default": "none", **told} if searched else {}),
        }

    def made(
        self, table: str, columns: Mapping[str, str], by: Sequence[str], properties: Mapping[str, str]
    ) -> Iterator[str]:
        made = f"CREATE TABLE IF NOT EXISTS {table} ({declared(columns)}) USING iceberg"
        yield f"{made} TBLPROPERTIES ({assigned(properties)})"
        if by:
            yield f"ALTER TABLE {table} WRITE LOCALLY ORDERED BY {', '.join(map(quoted, by))}"

    def done(self, spark: SparkSession, table: str, mark: Mark) -> bool:
        marks = spark.table(f"{table}.snapshots").select(F.col("summary")[_MARK + mark.writer].cast("bigint"))
        last = marks.toDF("batch").agg(F.max("batch")).first()
        return last is not None and last[0] is not None and int(last[0]) >= mark.batch

    def marks(self, mark: Mark) -> Mapping[str, str]:
        return {f"snapshot-property.{_MARK}{mark.writer}": str(mark.batch)}

    def tidy(self, spark: SparkSession, table: str, hours: int) -> None:
        name = literal(table.removeprefix(quoted(CATALOG) + "."))
        until = literal((datetime.now(UTC) - timedelta(hours=hours)).isoformat(" "))
        procedure = f"CALL {quoted(CATALOG)}.system"
        spark.sql(f"{procedure}.rewrite_data_files(table => {name})")
        old = f"older_than => TIMESTAMP {until}, retain_last => {_SNAPSHOTS}"
        spark.sql(f"{procedure}.expire_snapshots(table => {name}, {old})")
