"""The demo: decodes the seven tellings of one story, shows that they mean the same changes, and makes tables of them.

What is the same is found out by Spark, on what was decoded. Nothing here knows the story.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from changeglot.explain import WIDTH, fill, matrix, table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SHOP = Path(__file__).parent / "shop"
# The telling the others are held against: it has whole images, types and keys in every message.
MEASURE = "dataworks"
SAME, PART, UNSPOKEN, MISSING, DIFFERENT = "same", "part", "unspoken", "missing", "different"
MARKS = {SAME: "✓", PART: "◐", UNSPOKEN: "·", MISSING: "✗", DIFFERENT: "✗"}
LEGEND = {
    SAME: "same",
    PART: "same in the columns that it carries",
    UNSPOKEN: "has no word for it, as declared",
    DIFFERENT: "DIFFERENT",
}
PLAIN = {SAME: "=", PART: "~", UNSPOKEN: ".", MISSING: "X", DIFFERENT: "X"}


@dataclass(frozen=True)
class Step:
    """One change of the story: what it is called, and how each telling fares with it."""

    op: str
    row: str
    verdicts: dict[str, str]


def show(spark: SparkSession, compared: Callable[[DataFrame], list[Step]] | None = None) -> bool:
    """Prints the demo; true if all tellings mean the same and the poisoned message was set aside."""
    import changeglot
    from changeglot.inputs import stage

    files = sorted(SHOP.glob("*.jsonl"), key=lambda file: list(changeglot.CODECS).index(file.stem))
    tables = changeglot.Tables.load(SHOP / "tables.yaml")
    with tempfile.TemporaryDirectory(prefix="changeglot-") as scratch:
        staged = stage([str(file) for file in files], Path(scratch) / "in", spark)
        inputs = replace(staged, names=tuple(file.name for file in files))
        with inputs.splits(spark, whole=True):
            messages = inputs.numbered(spark)
            decoded = changeglot.decode(messages, tables=tables).persist()
            try:
                return _print(messages, decoded, (compared or compare)(decoded), Path(scratch))
            finally:
                decoded.unpersist()


def _print(messages: DataFrame, decoded: DataFrame, steps: list[Step], scratch: Path) -> bool:
    from pyspark.sql import functions as F

    from changeglot.demo import lake

    bad = decoded.where(F.col("problem").isNotNull()).select(
        "file", "line", "problem", F.col("raw.value").cast("STRING").alias("text")
    )
    aside = bad.orderBy("file", "line").collect()
    marks = MARKS if "utf" in (sys.stdout.encoding or "").lower() else PLAIN
    formats = list(steps[0].verdicts)
    wrong = [
        (step, format_, verdict)
        for step in steps
        for format_, verdict in step.verdicts.items()
        if verdict in (MISSING, DIFFERENT)
    ]

    title("One shop's life, told in seven formats")
    print(
        fill(
            f"{messages.count()} messages of {len(formats)} files, decoded by the one expression "
            "changeglot.decode(messages): nobody said which file is in which format."
        )
    )
    title("The same update, seven spellings")
    spellings(messages, decoded)
    title("Do they mean the same?")
    rows = [(step.op, step.row, *(marks[step.verdicts[name]].center(len(name)) for name in formats)) for step in steps]
    print(table(("change", "row", *formats), rows))
    print("\n" + "   ".join(f"{marks[verdict]} {means}" for verdict, means in LEGEND.items()))
    if any(step.op.endswith("*") for step in steps):
        print("* half of an update that changes the key: some formats can only tell it as two")
    for step, format_, verdict in wrong:
        print(f"{format_}: {step.op} {step.row} is {verdict}")
    title("What is lost from each to each")
    print(matrix().text)
    title("What could not be read")
    for row in aside:
        print(f"{row['file']}:{row['line']}  {row['problem']}")
        print(cut(f"  {row['text']}"))
    print(fill("It stopped nothing. `--quarantine DIR` keeps such messages with their bytes, reason, file and line."))
    title("Into tables")
    kept = lake.show(decoded.sparkSession, decoded, scratch)
    title("Try next" if not wrong else "The tellings differ: see above")
    shop = _near(SHOP)
    for command in (
        f"changeglot detect '{shop}/*.jsonl'",
        f"changeglot decode {shop}/electric.jsonl --tables {shop}/tables.yaml",
        f"changeglot translate {shop}/canal.jsonl --to arcion --with-key --quarantine bad",
        "changeglot explain dataworks shareplex",
    ):
        print(f"  {command}")
    return not wrong and len(aside) > 0 and kept


def compare(decoded: DataFrame) -> list[Step]:
    """Every change that any telling has, in the order of the story, with a verdict for each telling.

    Two changes are the same one if op, table and key are, and it is the first such, or the second,
    in both. Then all that both carry must be equal: database, time, statement, and each column of
    the images. An update that changes the key is held against others as its two halves.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    from changeglot.codecs import CODECS

    told = _halves(decoded.where(F.col("problem").isNull()))
    which = ["op", "table", "row"]
    seen = Window.partitionBy("telling", *which).orderBy("line", "ordinal", "half")
    told = told.withColumn("nth", F.row_number().over(seen))
    which.append("nth")

    # What only others tell is held against the first of them.
    first = Window.partitionBy(*which).orderBy((F.col("telling") != MEASURE).cast("int"), "telling")
    measure = told.withColumn("rank", F.row_number().over(first)).where("rank = 1").drop("rank")
    order = [F.col("telling") != MEASURE, F.col("line"), F.col("ordinal"), F.col("half")]
    measure = measure.withColumn("place", F.row_number().over(Window.orderBy(*order)))

    speaks = [(name, op) for name, kind in CODECS.items() for op in sorted(kind.speaks)]
    tellings = told.select("telling").distinct()
    grid = measure.alias("m").crossJoin(tellings.alias("t"))
    same_one = [F.col(f"m.{name}").eqNullSafe(F.col(f"o.{name}")) for name in which]
    of_telling = F.col("t.telling") == F.col("o.telling")
    pairs = grid.join(told.alias("o"), [of_telling, *same_one], "left")
    words = F.array(*(F.lit(f"{name} {op}") for name, op in speaks))
    spoken = F.array_contains(words, F.concat_ws(" ", "t.telling", "m.op"))
    clash = F.lit(False)
    for name in ("database", "committed_at", "statement"):
        clash = clash | F.coalesce(F.col(f"m.{name}") != F.col(f"o.{name}"), F.lit(False))
    less = F.lit(False)
    for name in ("before", "after"):
        clash = clash | _clash(F.col(f"m.{name}"), F.col(f"o.{name}"))
        less = less | _less(F.col(f"m.{name}"), F.col(f"o.{name}"))
    verdict = (
        F.when(F.col("o.op").isNull() & spoken, MISSING)
        .when(F.col("o.op").isNull(), UNSPOKEN)
        .when(clash, DIFFERENT)
        .when(less, PART)
        .otherwise(SAME)
    )
    found = pairs.select(
        "m.place",
        "m.op",
        "m.half",
        "m.table",
        "m.row",
        F.col("t.telling").alias("telling"),
        verdict.alias("verdict"),
    )
    steps = found.groupBy("place", "op", "half", "table", "row").agg(
        F.map_from_entries(F.collect_list(F.struct("telling", "verdict"))).alias("verdicts")
    )
    names = list(CODECS)
    return [
        Step(
            row["op"] + ("*" if row["half"] else ""),
            " ".join(part for part in (row["table"], row["row"]) if part),
            {name: row["verdicts"][name] for name in names if name in row["verdicts"]},
        )
        for row in steps.orderBy("place").collect()
    ]


def _halves(changes: DataFrame) -> DataFrame:
    """The changes with what they are compared by; one that changes the key as a delete and an insert."""
    from pyspark.sql import functions as F

    names = F.map_keys("key")
    moved = F.transform(names, lambda name: F.coalesce(F.try_element_at("after", name), F.lit("")))
    stays = F.transform(names, lambda name: F.try_element_at("key", name))
    moves = (
        (F.col("op") == "update") & F.forall(names, lambda name: F.map_contains_key("after", name)) & (moved != stays)
    )
    halves = F.when(moves, F.array(F.lit(1), F.lit(2))).otherwise(F.array(F.lit(0)))
    split = changes.withColumns({"names": names, "moved": moved, "stays": stays}).withColumn("half", F.explode(halves))
    removes, adds = F.col("half") == 1, F.col("half") == 2
    return split.select(
        F.regexp_replace("file", "[.].*", "").alias("telling"),
        "line",
        "ordinal",
        "half",
        F.when(removes, "delete").when(adds, "insert").otherwise(F.col("op")).alias("op"),
        F.col("relation.database").alias("database"),
        F.col("relation.table").alias("table"),
        F.concat_ws(", ", F.when(adds, F.col("moved")).otherwise(F.col("stays"))).alias("row"),
        F.when(~adds, F.col("before")).alias("before"),
        F.when(~removes, F.col("after")).alias("after"),
        "committed_at",
        "statement",
    )


def _clash(one: Column, other: Column) -> Column:
    """BOOLEAN, never NULL: has a column that is in both another value?"""
    from pyspark.sql import functions as F

    both = F.array_intersect(F.map_keys(one), F.map_keys(other))
    return F.coalesce(F.exists(both, lambda name: ~one[name].eqNullSafe(other[name])), F.lit(False))


def _less(one: Column, other: Column) -> Column:
    """BOOLEAN, never NULL: has one a column that the other has not?"""
    from pyspark.sql import functions as F

    empty = F.array().cast("ARRAY<STRING>")
    return F.size(F.array_except(F.coalesce(F.map_keys(one), empty), F.coalesce(F.map_keys(other), empty))) > 0


def spellings(messages: DataFrame, decoded: DataFrame) -> None:
    """Prints the first update of the story as each telling has it, and the change that they all mean."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    from changeglot.codecs import CODECS

    first = Window.partitionBy("file").orderBy("line")
    updates = decoded.where("op = 'update'").withColumn("n", F.row_number().over(first))
    fields = ("op", "relation", "key", "before", "after")
    told = updates.where("n = 1").select("file", "line", *(F.to_json(F.struct(name)).alias(name) for name in fields))
    text = messages.select("file", "line", F.col("value").cast("STRING").alias("text"))
    rows = {row["file"].split(".")[0]: row for row in told.join(text, ["file", "line"]).collect()}
    width = max(map(len, rows))
    for name in CODECS:
        print(cut(f"{name:<{width}}  {rows[name]['text']}"))
    print("\nThe change that they mean:")
    for name in fields:
        value = rows[MEASURE][name].removeprefix(f'{{"{name}":').removesuffix("}")
        print(cut(f"{name:<{width}}  {value}"))


def title(text: str) -> None:
    """A heading."""
    print(f"\n{text}\n{'─' * WIDTH if 'utf' in (sys.stdout.encoding or '').lower() else '-' * WIDTH}")


def cut(text: str) -> str:
    """The text on one line of the terminal."""
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 3]}..."


def _near(path: Path) -> str:
    """The path as seen from here, if it is below."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
