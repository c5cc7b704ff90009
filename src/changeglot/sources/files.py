"""Messages from a folder: a line each; files that are added later are read when they are there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from changeglot.apply.order import place
from changeglot.columns import row_of_task
from changeglot.inputs import keyed
from changeglot.options import option
from changeglot.settings import jvm
from changeglot.sources.base import PLACE, MessageSource

# Spark cuts files into pieces by how many cores there are, and packs small ones together. With both sizes the same it
# cuts every file alike and packs none: the number of a line in its piece is then the same on every machine.
_PIECE = str(128 << 20)


@dataclass(frozen=True)
class Files(MessageSource):
    """Files in the order of their last change, then of their names; their lines in order. A file must not change."""

    name: ClassVar[str] = "files"

    path: str = option("a folder, a file, or a glob", example="/data/shop/*.jsonl")
    files_per_batch: int = option("how many files a batch takes at most", 1000)

    def session_settings(self) -> dict[str, str]:
        return {"spark.sql.files.maxPartitionBytes": _PIECE, "spark.sql.files.openCostInBytes": _PIECE}

    def check(self, spark: SparkSession) -> None:
        """Spark itself says what is not there."""

    def messages(self, spark: SparkSession) -> DataFrame:
        reader = spark.readStream.format("text").schema("value STRING").option("lineSep", "\n")
        return _facts(reader.option("maxFilesPerTrigger", str(self.files_per_batch)).load(self._streamed(spark)))

    def _streamed(self, spark: SparkSession) -> str:
        """The path as a stream takes it: of a single file, a glob that it alone meets."""
        path = jvm(spark).org.apache.hadoop.fs.Path(self.path)
        system = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
        is_file = system.exists(path) and system.getFileStatus(path).isFile()
        return f"{self.path[:-1]}[{self.path[-1]}]" if is_file else self.path

    def sample(self, spark: SparkSession) -> DataFrame:
        return _facts(spark.read.format("text").schema("value STRING").option("lineSep", "\n").load(self.path))

    def placed(self, batch: DataFrame) -> DataFrame:
        where = F.concat_ws(
            " ",
            place(F.unix_micros("file_modification_time")),
            F.col("file_path"),
            place(F.col("file_block_start"), row_of_task()),
        )
        return keyed(batch.select("value", where.alias(PLACE)))


def _facts(lines: DataFrame) -> DataFrame:
    facts = ("file_modification_time", "file_path", "file_block_start")
    return lines.select("value", *(F.col(f"_metadata.{fact}") for fact in facts))
