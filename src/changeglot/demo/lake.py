"""The second half of the demo: the seven tellings in one stream become Delta tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from changeglot.explain import fill, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from changeglot.pipeline import Pipeline

#: The table of the story that is followed; it has a key change, deletes and a value of every kind.
TABLE = "customers"
SHOWN = ("id", "email", "name", "vip")


def pipeline(folder: Path) -> Pipeline:
    """Seven shops, each of which speaks another format, into current rows, and of one into history and log too."""
    from changeglot import config
    from changeglot.demo.show import SHOP
    from changeglot.tables import Tables

    known = dict(Tables.load(SHOP / "tables.yaml").by_name)[f"shop.{TABLE}"]
    rule = {"match": f"*.{TABLE}", "keys": list(known.key), "columns": dict(known.columns)}
    content = {
        "source": {"type": "files", "path": str(folder / "messages" / "*")},
        "sink": {"type": "delta", "path": str(folder / "lake")},
        "tables": [{**rule, "match": f"shop_canal.{TABLE}", "mode": ["scd1", "scd2", "append"]}, rule],
    }
    return config.pipeline(content, name="demo")


def spread(decoded: DataFrame, folder: Path) -> list[str]:
    """The changes of the table written again in the formats they came in, each under a database of its own."""
    from pyspark.sql import functions as F

    import changeglot
    from changeglot import kernel
    from changeglot.model import group

    mine = decoded.where(F.col("problem").isNull() & (F.col("relation.table") == TABLE))
    for name in changeglot.CODECS:
        told = mine.where(F.col("format") == name).orderBy("line", "ordinal").coalesce(1)
        # Electric knows schemas, and no databases.
        held = "schema" if name == "electric" else "database"
        relation = group("relation", **{held: F.lit(f"shop_{name.replace('-', '_')}"), "table": F.lit(TABLE)})
        messages = changeglot.encode(told.withColumn("relation", relation), name).where("spoken")
        line = kernel.write(F.struct("key", "value")).cast("string")
        messages.select(line.alias("line")).write.text(str(folder / name))
    return list(changeglot.CODECS)


def show(spark: SparkSession, decoded: DataFrame, scratch: Path) -> bool:
    """Runs the pipeline and prints its tables; true if all seven shops came to the same rows."""
    from pyspark.sql import functions as F

    names = spread(decoded, scratch / "messages")
    made = pipeline(scratch)
    print(
        fill(
            f"Seven shops in one stream, each in another format: the current rows of {TABLE} in each, and of one of "
            "them the history and the log too. The story has partial updates, a key change and a delete."
        )
    )
    made.run(spark).awaitTermination()

    def rows(name: str, suffix: str = "") -> DataFrame:
        return spark.table(made.sink.identifier(f"shop_{name.replace('-', '_')}", TABLE + suffix))

    shown = [column for column in SHOWN if column in rows(names[0]).columns]
    print(f"\ncurrent rows: shop_canal.{TABLE}")
    _print(rows("canal").select(*shown).orderBy("id"))
    print(f"\nhistory: shop_canal.{TABLE}__history")
    times = [F.col(name).cast("string").alias(name) for name in ("__START_AT", "__END_AT")]
    _print(rows("canal", "__history").orderBy("id", "__order").select(*shown, *times))
    print(f"\nlog: shop_canal.{TABLE}__log")
    log = rows("canal", "__log").orderBy("__order")
    _print(log.select("op", F.to_json("key").alias("key"), F.col("committed_at").cast("string").alias("committed_at")))
    first = rows(names[0]).select(*shown)
    same = {name: first.exceptAll(rows(name).select(*shown)).isEmpty() for name in names}
    same |= {name: same[name] and first.count() == rows(name).count() for name in names}
    print("\nthe same rows from " + ", ".join(f"{name}{'' if is_so else ' DIFFERS'}" for name, is_so in same.items()))
    return all(same.values())


def _print(rows: DataFrame) -> None:
    found = [["NULL" if value is None else str(value) for value in row] for row in rows.limit(20).collect()]
    print(table(rows.columns, found))
