"""Delta tables in a folder: no catalog, no service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import SparkSession

from changeglot.sinks.base import LakeSink, quoted

_TXN = "spark.databricks.delta.write.txn"


@dataclass(frozen=True)
class Delta(LakeSink):
    """A folder for each table, `path/database/table`. A batch is known by Delta's own transaction identifiers."""

    name: ClassVar[str] = "delta"
    packages: ClassVar[tuple[str, ...]] = ("io.delta:delta-spark_4.1_2.13:4.4.0",)

    def session_settings(self) -> dict[str, str]:
        return {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            # On one machine: fifty tasks for each look at a table otherwise.
            "spark.databricks.delta.snapshotPartitions": "2",
        }

    def identifier(self, *names: str) -> str:
        return f"delta.{quoted('/'.join((self.path.rstrip('/'), *names)))}"

    def exists(self, spark: SparkSession, table: str) -> bool:
        # Spark's catalog knows no table by its path.
        jvm = spark.sparkContext._jvm
        assert jvm is not None
        path = table.removeprefix("delta.").strip("`").replace("``", "`")
        return bool(jvm.io.delta.tables.DeltaTable.isDeltaTable(spark._jsparkSession, path))

    def create(self, spark: SparkSession, table: str, columns: Mapping[str, str], cluster: tuple[str, ...]) -> None:
        wanted = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())
        clustered = f"CLUSTER BY ({', '.join(map(quoted, cluster))})" if cluster else ""
        properties = {
            "delta.enableDeletionVectors": "true",
            "delta.enableTypeWidening": "true",
        }
        listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        spark.sql(f"CREATE TABLE IF NOT EXISTS {table} ({wanted}) USING delta {clustered} TBLPROPERTIES ({listed})")

    def done(self, spark: SparkSession, table: str, writer: str, batch: int) -> bool:
        # Delta itself leaves out a commit that bears a batch which the table has.
        return False

    def once(self, writer: str, batch: int) -> Mapping[str, str]:
        return {f"{_TXN}AppId": writer, f"{_TXN}Version": str(batch)}
