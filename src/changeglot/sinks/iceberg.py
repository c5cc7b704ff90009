"""Iceberg tables: in a folder of their own, or in a REST catalog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from changeglot.options import option
from changeglot.sinks.base import LakeSink, quoted

CATALOG = "changeglot_lake"
_MARK = "changeglot-batch-"


@dataclass(frozen=True)
class Iceberg(LakeSink):
    """`catalog.database.table`. A batch is known by a property of the snapshot that its commit made."""

    name: ClassVar[str] = "iceberg"
    packages: ClassVar[tuple[str, ...]] = ("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",)

    uri: str = option("of a REST catalog; without one the folder is the catalog", "", example="http://localhost:8181")

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
        }

    def identifier(self, *names: str) -> str:
        return quoted(CATALOG, *names)

    def exists(self, spark: SparkSession, table: str) -> bool:
        return bool(spark.catalog.tableExists(table))

    def create(self, spark: SparkSession, table: str, columns: Mapping[str, str], cluster: tuple[str, ...]) -> None:
        wanted = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())
        properties = {
            "format-version": "3",
            **{f"write.{op}.mode": "merge-on-read" for op in ("merge", "update", "delete")},
        }
        listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        spark.sql(f"CREATE TABLE IF NOT EXISTS {table} ({wanted}) USING iceberg TBLPROPERTIES ({listed})")
        if cluster:
            spark.sql(f"ALTER TABLE {table} WRITE ORDERED BY {', '.join(map(quoted, cluster))}")

    def done(self, spark: SparkSession, table: str, writer: str, batch: int) -> bool:
        marks = spark.table(f"{table}.snapshots").select(F.col("summary")[_MARK + writer].cast("bigint").alias("batch"))
        last = marks.agg(F.max("batch")).first()
        return last is not None and last[0] is not None and int(last[0]) >= batch

    def once(self, writer: str, batch: int) -> Mapping[str, str]:
        return {f"spark.sql.iceberg.snapshot-property.{_MARK}{writer}": str(batch)}
