"""A topic into tables: all of the shop's Canal messages, by a pipeline of changeglot's and by Flink.

usage: load.py: writes its part of results.md anew. `--quick` is a trial with few messages.
"""

import argparse
import os
import time
from contextlib import closing
from pathlib import Path

import generate
import meter
import pyspark
import run
from apply import alone
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from results import LoadRun
from shop import TABLES, Data
from worker import EngineError, Run, Worker

from changeglot import jars
from changeglot.apply.order import ORDER
from changeglot.apply.route import Rule
from changeglot.errors import MissingError
from changeglot.pipeline import Pipeline
from changeglot.sinks import LAKES
from changeglot.sinks.base import LakeSink
from changeglot.sources.files import Files

HERE = Path(__file__).resolve().parent
DATA = HERE / "data" / "load"
#: The newest that there is for a Flink of this age.
FLINK_ICEBERG = "org.apache.iceberg:iceberg-flink-runtime-2.0:1.10.0"
ROUNDS = 2
FLINK = "Flink, Iceberg"


def wanted() -> tuple[str, str]:
    """What Flink needs: Iceberg's jar for it, as Flink names one, and Spark's of Hadoop, as Java names several."""
    try:
        (iceberg,) = jars.resolve([FLINK_ICEBERG], transitive=False)
    except MissingError as problem:
        raise EngineError("Iceberg for Flink could not be had") from problem
    hadoop = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-*.jar")
    return iceberg.resolve().as_uri(), os.pathsep.join(map(str, hadoop))


def ours(spark: SparkSession, data: Data, sink: LakeSink, number: int) -> Run:
    """The messages in new tables, as `changeglot run` does it in a session that is warm."""
    made = Pipeline(
        name=f"load-{sink.name}",
        source=Files(path=str(data.text("canal")), files_per_batch=2),
        sinks=(sink,),
        checkpoint=str(DATA / "checkpoints" / f"{sink.name}-{number}"),
        rules=(Rule("*", into=f"shop_{number}.{{table}}"),),
        format="canal",
    )
    begun, cpu = time.monotonic(), meter.cpu_seconds(os.getpid())
    made.run(spark).awaitTermination()
    return Run(time.monotonic() - begun, meter.cpu_seconds(os.getpid()) - cpu, 0)


def read(spark: SparkSession, sink: LakeSink, *names: str) -> tuple[int, float]:
    """How many rows the tables have, and the seconds it takes to read every value of them."""
    begun, count = time.monotonic(), 0
    for table in TABLES:
        rows = spark.table(sink.identifier(*names, table))
        values = rows.select(F.xxhash64(*(name for name in rows.columns if name != ORDER)).alias("hash"))
        count += values.agg(F.count("hash")).collect()[0][0]
    return count, time.monotonic() - begun


def measure(spark: SparkSession, data: Data, cores: int, rounds: int) -> list[LoadRun]:
    """Every contender once a round, taking turns, each into new tables; the first round is to warm up."""
    sinks = {f"changeglot, {name.capitalize()}": cls(path=str(DATA / name)) for name, cls in LAKES.items()}
    place = DATA / "iceberg" / "flink"
    found = {who: LoadRun(who, data.rows, [], [], [], []) for who in (*sinks, FLINK)}
    command = [run.flink_python(), str(HERE / "flink_lake.py"), str(data.folder), str(place), *wanted(), str(cores)]
    with closing(Worker(command, DATA.parent / "logs" / "flink_lake.log")) as flink:
        for number in range(rounds + 1):
            for who, one in found.items():
                if who == FLINK:
                    took = flink.run(flink.contenders[0])
                    rows, reading = read(spark, LAKES["iceberg"](path=str(DATA / "iceberg")), "flink", f"shop_{number}")
                else:
                    took = ours(spark, data, sinks[who], number)
                    rows, reading = read(spark, sinks[who], f"shop_{number}")
                run.say(f"round {number}: {who}: {took.wall:.1f} s, {took.cpu:.1f} s of CPU; read in {reading:.1f} s")
                if number:
                    for kept, value in ((one.clock, took.wall), (one.cpu, took.cpu), (one.read, reading)):
                        kept.append(value)
                    one.rows.append(rows)
    return list(found.values())


def main() -> None:
    def each(spark: SparkSession, options: argparse.Namespace) -> list[LoadRun]:
        rows = run.QUICK_ROWS if options.quick else generate.ROWS
        data = generate.generate(run.DATA / str(rows), rows)
        return measure(spark, data, options.cores, options.rounds)

    alone(__doc__.splitlines()[0], ROUNDS, DATA, "loads", each)


if __name__ == "__main__":
    main()
