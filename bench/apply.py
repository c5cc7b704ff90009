"""Changes into tables: what `scd1` costs beside a bare MERGE of the same decoded changes.

usage: apply.py: writes its part of results.md anew. `--quick` is a trial with small tables.
"""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import meter
import report
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from results import ApplyRun

import changeglot
from changeglot.apply.order import ORDER, order
from changeglot.apply.route import Rule
from changeglot.apply.rows import settled
from changeglot.held import Quarantine
from changeglot.model import CHANGE, VERDICT, Op, change, group
from changeglot.pipeline import session_settings
from changeglot.sinks import LAKES
from changeglot.sinks.base import LakeSink, Mark
from changeglot.sources.base import MESSAGE, PLACE, MessageSource
from changeglot.target import ENDED, Target, Upkeep

HERE = Path(__file__).resolve().parent
DATA = HERE / "data" / "apply"
ROWS = 10_000_000
BATCHES = (1_000, 100_000, 1_000_000)
#: A batch of this size into a table of a tenth of the rows too: does the cost follow the batch?
FOLLOWING = 10_000
ROUNDS = 5
TYPES = {
    "id": "bigint",
    "customer": "bigint",
    "status": "string",
    "total": "decimal(12,2)",
    "placed": "timestamp",
    "note": "string",
}


def say(words: str) -> None:
    sys.stderr.write(words + "\n")


def values(key: Column, version: int) -> dict[str, Column]:
    """A row of the shop's orders; another version of it differs in all but the key."""
    mixed = F.abs(F.xxhash64(key, F.lit(version)))
    return {
        "id": key,
        "customer": mixed % 100_000,
        "status": F.element_at(F.array(*map(F.lit, ("new", "paid", "sent", "back"))), (mixed % 4 + 1).cast("int")),
        "total": ((mixed % 1_000_000) / 100).cast("decimal(12,2)"),
        "placed": F.timestamp_seconds(F.lit(1_700_000_000) + mixed % 10_000_000),
        "note": F.concat(F.lit("a note of "), mixed.cast("string")),
    }


class Apply:
    """The tables and batches of one sink."""

    def __init__(self, spark: SparkSession, sink: LakeSink) -> None:
        self.spark, self.sink = spark, sink

    def table(self, rows: int) -> str:
        return self.sink.identifier("bench", f"orders_{rows}")

    def fill(self, rows: int) -> None:
        """A table of so many rows, as an earlier run of a pipeline would have left it after its upkeep."""
        table = self.table(rows)
        if self.sink.exists(self.spark, table):
            return
        say(f"{self.sink.name}: a table of {rows:,} rows")
        self.sink.create(self.spark, table, {**TYPES, ORDER: "string"}, ("id",))
        made = self.spark.range(0, rows, 1, max(2, rows // 1_000_000))
        made = made.select(*(c.alias(n) for n, c in values(F.col("id"), 0).items()), F.lit("0").alias(ORDER))
        made.sortWithinPartitions("id").writeTo(table).append()

    def state(self, table: str) -> int:
        if self.sink.name == "delta":
            return int(self.spark.sql(f"DESCRIBE HISTORY {table} LIMIT 1").collect()[0]["version"])
        return int(self.spark.sql(f"SELECT max_by(snapshot_id, made_current_at) FROM {table}.history").collect()[0][0])

    def restore(self, table: str, state: int, rows: int) -> None:
        """The table as it was before a run; what a run remembers of deleted rows is forgotten."""
        if self.sink.name == "delta":
            self.spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF {state}")
        else:
            catalog, name = table.split(".", 1)
            self.spark.sql(f"CALL {catalog}.system.rollback_to_snapshot('{name}', {state})")
        ended = self.sink.identifier("bench", f"orders_{rows}{ENDED}")
        if self.sink.exists(self.spark, ended):
            self.spark.sql(f"DELETE FROM {ended}")


@cache
def batch(spark: SparkSession, rows: int, size: int) -> DataFrame:
    """Decoded changes, ready, of keys that lie together, at the end of the table as new business does.

    They are read from files, so that Spark knows how much it is: it plans the bare MERGE better than without.
    """
    path = str(DATA / f"batch-{rows}-{size}")
    # 70 % updates, 10 % deletes and 20 % inserts.
    first = rows - size * 8 // 10
    n = spark.range(0, size, 1, 2).select("id", (F.col("id") + first).alias("key"))
    op = F.when(F.col("key") >= rows, Op.INSERT).when(F.col("id") % 8 == 0, Op.DELETE).otherwise(Op.UPDATE)
    row = n.select(
        op.alias("op"), F.col("id").alias("n"), *(c.alias(name) for name, c in values(F.col("key"), 1).items())
    )
    texts = F.create_map(*(part for name in TYPES for part in (F.lit(name), F.col(name).cast("string"))))
    told = change(
        op=F.col("op"),
        phase=F.lit("stream"),
        relation=group("relation", database=F.lit("bench"), table=F.lit(f"orders_{rows}")),
        key=F.create_map(F.lit("id"), F.col("id").cast("string")),
        before=F.when(F.col("op") != Op.INSERT, texts),
        after=F.when(F.col("op") != Op.DELETE, texts),
        columns=F.array(
            *(F.struct(F.lit(name), F.lit(kind), F.lit(None), F.lit(True), F.lit(None)) for name, kind in TYPES.items())
        ),
        position=F.array(F.col("n") + 1),
    )
    place = F.lpad(F.col("n").cast("string"), 20, "0")
    verdict = {field.name: F.lit(None).cast(field.dataType).alias(field.name) for field in VERDICT.fields}
    verdict |= {"ordinal": F.lit(0).alias("ordinal")}
    message = F.struct(F.lit(None).cast("binary").alias("key"), F.lit(None).cast("binary").alias("value"))
    row.select(
        *(told[name].alias(name) for name in CHANGE.fieldNames()),
        *verdict.values(),
        place.alias(PLACE),
        message.alias(MESSAGE),
        order(told, place).alias(ORDER),
    ).write.parquet(path)
    return settled(spark.read.parquet(path))


def bare(changes: DataFrame, table: str) -> None:
    """What a person would write, who knows that no row changes twice in the batch and nothing comes late."""
    row = F.coalesce("after", "before")
    source = changes.select("op", *(row[name].cast(kind).alias(f"s_{name}") for name, kind in TYPES.items()))
    put = {name: F.col(f"s_{name}") for name in TYPES}
    merge = source.mergeInto(table, F.col("s_id") == F.col("id")).whenMatched(F.col("op") == Op.DELETE).delete()
    merge = merge.whenMatched().update(put).whenNotMatched(F.col("op") != Op.DELETE)
    merge.insert({**put, ORDER: F.lit("1")}).merge()


def ours(changes: DataFrame, sink: LakeSink, number: int) -> None:
    """What a pipeline does with a batch once it is decoded."""
    target = Target("bench", sink, (Rule("*"),), "lenient", Quarantine(), Upkeep(every=0))
    applied = target.apply(changes, Mark(f"bench-{time.time_ns()}", number, replayed=False))
    assert applied.quarantined == 0


def measure(spark: SparkSession, rows: int, batches: tuple[int, ...], rounds: int) -> list[ApplyRun]:
    """Every contender once a round, taking turns; each begins with the table as it was."""
    small = rows // 10
    jobs: list[tuple[str, str, int, int, Callable[[], None], Apply]] = []
    for name, cls in LAKES.items():
        apply = Apply(spark, cls(path=str(DATA / name)))
        for size in sorted({*batches, FOLLOWING}):
            for of in (rows, small) if size == FOLLOWING else (rows,):
                apply.fill(of)
                told = batch(spark, of, size)
                table = apply.table(of)
                jobs.append((name, "merge", of, size, lambda c=told, t=table: bare(c, t), apply))
                jobs.append((name, "scd1", of, size, lambda c=told, s=apply.sink: ours(c, s, 1), apply))
    found = {job[:4]: ApplyRun(*job[:4], clock=[], cpu=[]) for job in jobs}
    states = {(job[0], job[2]): job[5].state(job[5].table(job[2])) for job in jobs}
    for number in range(rounds + 1):
        for *key, job, apply in jobs:
            sink, who, of, size = key
            begun, cpu = time.monotonic(), meter.cpu_seconds(os.getpid())
            job()
            clock, cpu = time.monotonic() - begun, meter.cpu_seconds(os.getpid()) - cpu
            say(f"round {number}: {sink} {who}, {size:,} into {of:,}: {clock:.1f} s, {cpu:.1f} s of CPU")
            if number:
                found[tuple(key)].clock.append(clock)
                found[tuple(key)].cpu.append(cpu)
            apply.restore(apply.table(of), states[sink, of], of)
    return list(found.values())


def session(cores: int, heap: str, folder: Path, sources: Sequence[MessageSource] = ()) -> SparkSession:
    """One with all sinks of tables in it, each in a folder of its own there, and what the sources need."""
    conf = session_settings([*(cls(path=str(folder / name)) for name, cls in LAKES.items()), *sources])
    return changeglot.session(cores=cores, driver_memory=heap, **conf)


def alone(
    title: str,
    rounds: int,
    folder: Path,
    part: str,
    measure: Callable[[SparkSession, argparse.Namespace], list[Any]],
    sources: Sequence[MessageSource] = (),
) -> None:
    """Measures one part of the results and publishes it. Any: its runs, whatever they are."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--heap", default="8g")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--quick", action="store_true", help="a trial with little, one round; prints what it measured")
    options = parser.parse_args()
    if options.quick:
        options.rounds = 1
    # What a run that was killed has left.
    shutil.rmtree(folder, ignore_errors=True)
    spark = session(options.cores, options.heap, folder, sources)
    try:
        runs = measure(spark, options)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    report.publish(part, runs, trial=options.quick)


def main() -> None:
    def each(spark: SparkSession, options: argparse.Namespace) -> list[ApplyRun]:
        rows, batches = (200_000, (1_000, 20_000)) if options.quick else (ROWS, BATCHES)
        return measure(spark, rows, batches, options.rounds)

    alone(__doc__.splitlines()[0], ROUNDS, DATA, "apply", each)


if __name__ == "__main__":
    main()
