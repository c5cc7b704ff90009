"""Delta tables in a folder: no catalog, no service."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from pyspark.sql import SparkSession

from changeglot.columns import quoted
from changeglot.notes import Notes
from changeglot.settings import configured, jvm
from changeglot.sinks.base import UNORDERED, LakeSink, Mark, assigned, declared, safe

#: A changed row is marked in a bitmap, its file is not written again.
_ROWS_CHANGE = {"delta.enableDeletionVectors": "true"}
#: Any name, and columns that can be renamed, dropped and made wider.
_COLUMNS_CHANGE = {"delta.enableTypeWidening": "true", "delta.columnMapping.mode": "name"}
#: Parquet's least and greatest of each column in each part of a file; of one column, with # and its name.
_BOUNDS = "parquet.column.statistics.enabled"
#: And how many bytes their values have, and how deep they lie.
_SIZES = "parquet.size.statistics.enabled"
#: A folder beside the tables, and one in it for each writer: notes of the last batches that all tables have.
FINISHED = ("changeglot", "batches")


@dataclass(frozen=True)
class Delta(LakeSink):
    """A folder for each table, `path/database/table`. A batch is known by Delta's own transaction identifiers."""

    name: ClassVar[str] = "delta"
    packages: ClassVar[tuple[str, ...]] = ("io.delta:delta-spark_4.1_2.13:4.4.0",)
    conf: ClassVar[str] = "spark.databricks.delta.write."
    # What we merge is settled: Delta need not do it again.
    merging: ClassVar[Mapping[str, str]] = {"spark.databricks.delta.merge.materializeSource": "none"}

    def session_settings(self) -> dict[str, str]:
        return {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            # On one machine: fifty tasks for each look at a table otherwise.
            "spark.databricks.delta.snapshotPartitions": "2",
            # Not the 96 bits of old, which take longer, and have no bounds.
            "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        }

    def identifier(self, *names: str) -> str:
        return f"delta.{quoted('/'.join((self.path.rstrip('/'), *map(safe, names))))}"

    def exists(self, spark: SparkSession, table: str) -> bool:
        # Spark's catalog knows no table by its path.
        return bool(jvm(spark).io.delta.tables.DeltaTable.isDeltaTable(spark._jsparkSession, _path(table)))

    def property(self, spark: SparkSession, table: str, name: str) -> str | None:
        # SHOW TBLPROPERTIES also tells by what the table is clustered, and reads all of its log for that.
        found = _snapshot(spark, table).metadata().configuration().get(name)
        return str(found.get()) if found.isDefined() else None

    def traits(self, searched: Sequence[str]) -> dict[str, str]:
        if not searched:
            return {**_ROWS_CHANGE, **_COLUMNS_CHANGE}
        # Delta hands a table's properties on to Parquet, which knows columns by the names in its files.
        bounds = {_BOUNDS: "false", _SIZES: "false", **{f"{_BOUNDS}#{name}": "true" for name in searched}}
        return {**_ROWS_CHANGE, "delta.dataSkippingStatsColumns": ",".join(map(quoted, searched)), **bounds}

    def made(
        self, table: str, columns: Mapping[str, str], by: Sequence[str], properties: Mapping[str, str]
    ) -> Iterator[str]:
        # Delta clusters by four columns at most, which are among the first, of which it keeps bounds.
        first = [name for name, kind in columns.items() if kind not in UNORDERED][:32]
        by = [name for name in by if name in first][:4]
        clustered = f"CLUSTER BY ({', '.join(map(quoted, by))})" if by else ""
        made = f"CREATE TABLE IF NOT EXISTS {table} ({declared(columns)}) USING delta"
        yield f"{made} {clustered} TBLPROPERTIES ({assigned(properties)})"

    def done(self, spark: SparkSession, table: str, mark: Mark) -> bool:
        # Delta itself leaves out a commit that bears a batch which the table has.
        return False

    def marks(self, mark: Mark) -> Mapping[str, str]:
        return {"txnAppId": mark.writer, "txnVersion": str(mark.batch)}

    def remarks(self, mark: Mark) -> Mapping[str, str]:
        return {"spark.databricks.delta.commitInfo.userMetadata": str(mark.stand)} if mark.stand else {}

    def finish(self, spark: SparkSession, mark: Mark, newest: datetime | None, *, whole: bool) -> None:
        folder = "/".join((self.path.rstrip("/"), *FINISHED, safe(mark.writer)))
        number = mark.stand.number if mark.stand and whole else None
        lag = time.time() - newest.timestamp() if newest else None
        Notes(spark, folder).write(mark.batch, {"number": number, "lag": lag})

    def read_ahead(self, spark: SparkSession, table: str) -> None:
        # Delta puts a snapshot together of the log once, when the first asks; and it asks for the thread's session.
        jvm(spark).org.apache.spark.sql.SparkSession.setActiveSession(spark._jsparkSession)
        _snapshot(spark, table).numOfFiles()

    def tidy(self, spark: SparkSession, table: str, hours: int) -> None:
        spark.sql(f"OPTIMIZE {table}")
        # It lists the table's folder by ten thousand tasks otherwise, however small that is.
        tasks = str(4 * spark.sparkContext.defaultParallelism)
        with configured(spark, {"spark.sql.sources.parallelPartitionDiscovery.parallelism": tasks}):
            spark.sql(f"VACUUM {table} RETAIN {hours} HOURS")


def _snapshot(spark: SparkSession, table: str) -> Any:
    """What the table is now. Any: a Snapshot of Delta's."""
    log = jvm(spark).org.apache.spark.sql.delta.DeltaLog
    return log.forTableWithSnapshot(spark._jsparkSession, _path(table))._2()


def _path(table: str) -> str:
    """Of a table by its identifier."""
    return table.removeprefix("delta.").strip("`").replace("``", "`")
