"""changeglot on Spark, with Spark's own reading and its from_json to compare it with.

usage: spark.py DATA CORES MEMORY; started by run.py.
"""

import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from plan import BARE, FORMATS, LOSSES, TRANSLATIONS
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from shop import Data
from worker import Contender, Job, own_stdout, serve

import changeglot
from changeglot.codecs import CODECS, codec

ENVELOPES: dict[str, str] = {
    "canal": """
        data ARRAY<MAP<STRING, STRING>>, old ARRAY<MAP<STRING, STRING>>, database STRING,
        `table` STRING, type STRING, es BIGINT, ts BIGINT, isDdl BOOLEAN, pkNames ARRAY<STRING>
    """,
    "debezium": """
        before MAP<STRING, STRING>, after MAP<STRING, STRING>, op STRING, ts_ms BIGINT,
        source STRUCT<db: STRING, `table`: STRING, ts_ms: BIGINT, file: STRING, pos: BIGINT,
                      row: INT, gtid: STRING, snapshot: STRING>
    """,
}
"""Shapes for Spark's own from_json, which does not keep numbers exact."""


class Bench:
    """The contenders of one session over one folder of data."""

    def __init__(self, spark: SparkSession, data: Data) -> None:
        self.spark = spark
        self.data = data
        self.jobs: dict[Contender, Job] = {}
        self.checks: dict[str, dict[str, int]] = {}

    def messages(self, kind: str) -> DataFrame:
        return self.spark.read.parquet(str(self.data.parquet(kind))).select("key", "value")

    def lines(self, kind: str) -> DataFrame:
        return self.spark.read.text(str(self.data.text(kind)))

    def add(self, name: str, frame: DataFrame, messages: int, size: int) -> None:
        """Measures the whole of `frame`, every column of it, into a sink that keeps nothing."""
        self.jobs[Contender(name, messages, size)] = frame.write.format("noop").mode("overwrite").save

    def check(self, name: str, frame: DataFrame, wanted: str) -> None:
        """Counts what comes out: a fast reading that yields problems would be no feat."""
        row = frame.agg(F.count(wanted).alias("out"), F.count("problem").alias("problems")).first()
        assert row is not None
        self.checks[name] = row.asDict()

    def add_kind(self, kind: str) -> None:
        """All that is asked of the large data of one kind."""
        rows, size, format_ = self.data.rows, self.data.sizes[kind], FORMATS[kind]
        messages, lines = self.messages(kind), self.lines(kind)
        value = F.col("value").cast("string")
        guessed = F.from_json(value, ENVELOPES[kind]).alias("body")
        frames = {
            f"scan {kind}, parquet": messages,
            f"scan {kind}, text": lines,
            f"kernel {kind}, parquet": kernel(messages, format_),
            f"kernel {kind}, text": kernel(lines, format_),
            f"from_json {kind}, parquet": messages.select(guessed).select("body.*"),
        }
        decoded = {
            f"decode {kind}, parquet": changeglot.decode(messages, format_),
            f"decode {kind}, text": changeglot.decode(lines, format_),
            f"decode {kind} by auto, parquet": changeglot.decode(messages, "auto"),
        }
        told = {
            f"translate {kind} to {to}, parquet": changeglot.translate(messages, to, format_)
            for source, to in TRANSLATIONS
            if source == kind
        }
        if (kind, "arcion") in TRANSLATIONS:
            bare = changeglot.translate(messages, "arcion", format_, options={"arcion": {"schemas": False}})
            told[f"translate {kind} to arcion {BARE}, parquet"] = bare
        translated = {name: frame.drop("lost") for name, frame in told.items()}
        translated |= {f"{name}, {LOSSES}": frame for name, frame in told.items()}
        for name, frame in {**frames, **decoded, **translated}.items():
            self.add(name, frame, rows, size)
        for name, frame in decoded.items():
            self.check(name, frame, "op")
        for name, frame in translated.items():
            self.check(name, frame, "value")

    def add_format(self, format_: str) -> None:
        """A quarter of the Canal messages, translated to a format: reading them back."""
        source = self.spark.read.parquet(str(self.data.parquet("canal")))
        quarter = source.where(F.col("offset") % 4 == 0).select("key", "value")
        path = str(self.data.folder / "formats" / f"{format_}.parquet")
        translated = changeglot.translate(quarter, format_, "canal").select("key", "value")
        translated.where("value IS NOT NULL").write.mode("overwrite").parquet(path)

        messages = self.spark.read.parquet(path)
        row = messages.agg(F.count("value"), F.sum(F.length("value"))).first()
        assert row is not None
        count, size = row
        decoded = changeglot.decode(messages, format_)
        self.add(f"kernel {format_} sample", kernel(messages, format_), count, size)
        self.add(f"decode {format_} sample", decoded, count, size)
        self.check(f"decode {format_} sample", decoded, "op")


def kernel(messages: DataFrame, format_: str) -> DataFrame:
    """The messages parsed and nothing more: the least that decoding them can cost."""
    key = F.col("key") if "key" in messages.columns else F.lit(None)
    message = {"key": key.cast("binary"), "value": F.col("value").cast("binary")}
    body = codec(format_).body(message)
    return flat(messages.select(*(column.alias(name) for name, column in body.items())))


def flat(frame: DataFrame) -> DataFrame:
    """Structs as columns, so that a sink is given all that is in them."""
    columns = []
    for field in frame.schema:
        inner = field.dataType.names if isinstance(field.dataType, T.StructType) else []
        columns += [F.col(field.name)[name].alias(f"{field.name}_{name}") for name in inner]
        columns += [] if inner else [F.col(field.name)]
    return frame.select(*columns)


def versions(spark: SparkSession) -> Iterator[tuple[str, str]]:
    yield "Python", platform.python_version()
    yield "Spark", spark.version
    java = spark.sparkContext._jvm
    assert java is not None
    yield "Java", java.System.getProperty("java.version")


def main() -> None:
    answers = own_stdout()
    data, cores, memory = Data.load(Path(sys.argv[1])), int(sys.argv[2]), sys.argv[3]
    spark = changeglot.session(cores=cores, driver_memory=memory)
    bench = Bench(spark, data)
    for kind in FORMATS:
        bench.add_kind(kind)
    for format_ in CODECS:
        bench.add_format(format_)
    serve(answers, {"versions": dict(versions(spark)), "checks": bench.checks}, bench.jobs)


if __name__ == "__main__":
    main()
