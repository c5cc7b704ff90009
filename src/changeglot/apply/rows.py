"""Changes of one table as steps of its rows, and what the steps of each row come to.

A step is of one of four kinds. END: the row is gone. PART: it has these values, the others stay. WHOLE: as PART, and
every column of the table was told. BEGIN: it has these values and no others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from changeglot import kernel
from changeglot.apply import types
from changeglot.apply.order import ORDER
from changeglot.columns import quoted
from changeglot.model import Op
from changeglot.settings import configured

END, PART, WHOLE, BEGIN = range(4)
STEP = "STRUCT<`order`: STRING, kind: INT, at: TIMESTAMP, `values`: MAP<STRING, STRING>>"
#: Names of the columns of what a row comes to, beside the table's own.
GONE, SINCE, TOLD, CARRIED, ORDERS = "__gone", "__since", "__whole", "__carried", "__orders"
KEY, AT, PROBLEM, MOVED = "__key", "__at", "__problem", "__moved"

# A merge has no name for its target: what is given bears a mark before its names, and names without are the target's.
_GIVEN = "__s_"


def settled(rows: DataFrame) -> DataFrame:
    """The rows, computed now and kept by Spark for as long as they are used.

    What is made of them is planned from here on: Spark would plan all that led to them again with each use, which takes
    longer than a small batch. A machine that is lost with some of them fails the batch, which is then applied again.
    """
    return rows.localCheckpoint(eager=True)


def laid(rows: DataFrame) -> DataFrame:
    """The rows settled, and Spark knows by what they are parted and sorted: a merge takes them as they lie.

    It would not know it of a plan that it may still change while it runs.
    """
    with configured(rows.sparkSession, {"spark.sql.adaptive.enabled": "false"}):
        return settled(rows)


def given(rows: DataFrame) -> DataFrame:
    """The rows as the source of a merge."""
    return rows.select(*(F.col(quoted(name)).alias(_GIVEN + name) for name in rows.columns))


def s(name: str) -> Column:
    """In a merge: the column of what is given."""
    return F.col(quoted(_GIVEN + name))


def t(name: str) -> Column:
    """In a merge: the column of the target."""
    return F.col(quoted(name))


def sets(values: Mapping[str, Column]) -> dict[str, Column]:
    """In a merge: what the columns of the target are set to. Spark parses their names."""
    return {quoted(name): value for name, value in values.items()}


def same(key: Sequence[str], bounds: Mapping[str, tuple[object, object]]) -> Column:
    """In a merge: is it the same row? The bounds of the batch's keys spare reading files that have none of them."""
    met = F.lit(True)
    for name, (low, high) in bounds.items():
        least, most = rounded(low, high) if isinstance(low, int) and isinstance(high, int) else (low, high)
        met = met & t(name).between(F.lit(least), F.lit(most))
    for name in key:
        met = met & (s(name) == t(name))
    return met


def rounded(low: int, high: int) -> tuple[int, int]:
    """Bounds a little wider, which stay the same from batch to batch: Spark compiles what has another number in it.

    >>> rounded(1, 62_597), rounded(98, 62_613), rounded(5000, 5001), rounded(-3, 2**63 - 1)
    ((0, 65535), (0, 65535), (4096, 5119), (-2305843009213693952, 9223372036854775807))
    """
    step = max(1 << 10, 1 << (high - low).bit_length() >> 3)
    return max(low // step * step, -(1 << 63)), min((high // step + 1) * step, 1 << 63) - 1


def bounds(of: Mapping[str, str], key: Mapping[str, Column]) -> dict[str, Column]:
    """Aggregates: least and greatest of each column of the key, if Python gives the value back unchanged."""
    found: dict[str, Column] = {}
    for name, value in key.items():
        if of[name] in ("smallint", "int", "bigint", "string", "date") or of[name].startswith("decimal"):
            found |= {f"low_{name}": F.min(value), f"high_{name}": F.max(value)}
    return found


def key_problem(key: Sequence[str]) -> Column:
    """STRING: why a row change has no place in a table with this key; NULL if it has."""
    found = F.map_keys(F.col("key"))
    good = reduce(and_, (F.col("key")[name].isNotNull() for name in key), F.size(found) == len(key))
    other = F.size(F.array_except(found, F.array(*map(F.lit, key)))) > 0
    told = F.concat(F.lit("its key is "), F.array_join(found, ", "), F.lit(f", the table's is {', '.join(key)}"))
    return (
        F.when(good, F.lit(None).cast("string"))
        .when(F.col("key").isNull(), F.lit("no key, which the table needs"))
        .when(other | (F.size(found) != len(key)), told)
        .otherwise(F.lit("NULL in its key"))
    )


def value_problem(columns: Mapping[str, str], key: Sequence[str]) -> Column:
    """STRING: which value of the change is none of its column's type; NULL if all are."""
    found: Column = F.lit(None).cast("string")
    for image, names in (("after", list(columns)), ("key", key)):
        for name in names:
            bad = types.wrong(F.col(image)[name], columns[name])
            found = F.when(bad, F.lit(f"{name}: no {columns[name]}")).otherwise(found)
    return found


def steps(changes: DataFrame, key: Sequence[str], columns: Collection[str]) -> DataFrame:
    """DataFrame<key ARRAY<STRING>, order, kind, at, values, lender ARRAY<STRING>> of row changes without a key_problem.

    `columns` are those of the table: a change that carries them all tells the whole row. A change of a key ends one row
    and begins another; where it does not tell all of that, `lender` is the key under which the rest of it is stored.
    """
    old = F.array(*(F.col("key")[name] for name in key))
    new = F.array(*(F.coalesce(F.col("after")[name], F.col("key")[name]) for name in key))
    moved = (F.col("op") == Op.UPDATE) & (new != old)
    values = F.when(moved, kernel.overlay(F.col("before"), F.col("after"))).otherwise(F.col("after"))
    every = F.create_map(*(part for name in columns for part in (F.lit(name), F.lit(""))))
    all_told = kernel.covers(values, every)
    kind = F.when((F.col("op") == Op.INSERT) | (moved & all_told), BEGIN).when(all_told, WHOLE).otherwise(PART)
    at = F.coalesce("committed_at", "produced_at")

    def step(key: Column, kind: Column, values: Column, lender: Column) -> Column:
        parts = {"key": key, "kind": kind, "at": at, "values": values, "lender": lender}
        return F.struct(*(part.alias(name) for name, part in parts.items()))

    nothing, nobody = F.lit(None).cast("map<string,string>"), F.lit(None).cast("array<string>")
    end = step(old, F.lit(END), nothing, nobody)
    begin = step(new, kind, values, F.when(moved & ~all_told, old))
    each = F.when(F.col("op") == Op.DELETE, F.array(end)).when(moved, F.array(end, begin)).otherwise(F.array(begin))
    found = changes.select(F.col(ORDER).alias("order"), F.explode(each).alias("step"))
    return found.select("order", "step.*")


def states(changes: DataFrame, key: Sequence[str], columns: Mapping[str, str]) -> DataFrame:
    """The table's columns, in their types, after each of the changes, all of which tell whole rows; ORDER and GONE.

    And of what is gone KEY, as the key of steps, and AT; PROBLEM, not NULL where the change has one; MOVED: the change
    is one of the key, which is more than one state.
    """
    texts = {name: F.col("after")[name] for name in columns}
    texts |= {name: F.coalesce(texts[name], F.col("key")[name]) for name in key}
    wrong = (types.wrong(text, columns[name]) for name, text in texts.items())
    moved = reduce(or_, (texts[name] != F.col("key")[name] for name in key))
    gone = F.col("op") == Op.DELETE
    own = {
        ORDER: F.col(ORDER),
        GONE: gone,
        KEY: F.when(gone, F.array(*(texts[name] for name in key))),
        AT: F.when(gone, F.coalesce("committed_at", "produced_at")),
        PROBLEM: F.when(reduce(or_, wrong, key_problem(key).isNotNull()), F.lit("bad")),
        MOVED: (F.col("op") == Op.UPDATE) & F.coalesce(moved, F.lit(False)),
        **{name: types.value(text, columns[name]) for name, text in texts.items()},
    }
    return changes.select(*(column.alias(name) for name, column in own.items()))


def free(steps: DataFrame) -> DataFrame:
    """DataFrame<of, order, lender>: the steps with a lender whose row no other of them has still to complete.

    What a row was before it ended or began anew does not matter: so there are as many rounds as one row has keys one
    after the other, however often those are used by others.
    """
    waits = F.col("lender").isNotNull()
    told = steps.where(waits | (F.col("kind") != PART)).select(F.col("key").alias("on"), "order", waits.alias("waits"))
    asks = steps.where(waits).select(F.col("lender").alias("on"), "order", F.col("key").alias("of"), "lender")
    # Who asks comes first: what happens to its lender by the same change is later.
    earlier = Window.partitionBy("on").orderBy("order", F.col("of").isNull())
    last = F.last("waits", ignorenulls=True).over(earlier.rowsBetween(Window.unboundedPreceding, -1))
    every = told.unionByName(asks, allowMissingColumns=True).withColumn("__last", last)
    return every.where(F.col("of").isNotNull() & ~F.coalesce("__last", F.lit(False))).select("of", "order", "lender")


def lent(steps: DataFrame, free: DataFrame, told: DataFrame, stored: DataFrame) -> DataFrame:
    """The steps, those that are `free` completed by what their lenders' rows are just before.

    `told`: the steps, and the ends that earlier batches told; `stored`: the rows that are there, as steps.
    """
    told = told.where(F.col("lender").isNull()).unionByName(stored, allowMissingColumns=True)
    parts = told.select(F.col("key").alias("lender"), F.struct("order", "kind", "at", "values").alias("step"))
    joined = free.join(parts, "lender").where(F.col("step.order") < F.col("order"))
    found = joined.groupBy("of", "order").agg(kernel.fold(F.collect_list("step")).alias("__row"))
    # A row is there if it began or was told whole; of another some columns may be known.
    there = F.col("__row.since").isNotNull() | F.col("__row.whole")
    whole = F.coalesce(there & ~F.col("__row.gone"), F.lit(False))
    known = F.when(~F.col("__row.gone"), F.col("__row.values"))
    asked = free.select(F.col("of").alias("key"), "order", F.lit(True).alias("__free"))
    asked = asked.join(found.withColumnRenamed("of", "key"), ["key", "order"], "left")
    taking = F.col("lender").isNotNull() & F.col("__free")
    return steps.join(asked, ["key", "order"], "left").select(
        "key",
        "order",
        F.when(taking & whole, F.lit(BEGIN)).otherwise(F.col("kind")).alias("kind"),
        "at",
        F.when(taking & known.isNotNull(), kernel.overlay(known, F.col("values")))
        .otherwise(F.col("values"))
        .alias("values"),
        F.when(F.col("__free").isNull(), F.col("lender")).alias("lender"),
    )


def with_ends(steps: DataFrame, ended: DataFrame | None) -> DataFrame:
    """The steps, and the ends that earlier batches told of the same rows; `ended` is DataFrame<key, order, at>."""
    if ended is None:
        return steps
    keys = steps.select("key")
    every = F.size("key") == 0
    of_rows = ended.where(~every).join(keys, "key", "left_semi").select("key", ORDER, "at")
    of_all = keys.crossJoin(F.broadcast(ended.where(every).select(ORDER, "at")))
    ends = of_rows.unionByName(of_all).select("key", F.col(ORDER).alias("order"), F.lit(END).alias("kind"), "at")
    return steps.unionByName(ends, allowMissingColumns=True)


def folded(steps: DataFrame, key: Sequence[str], columns: Mapping[str, str]) -> DataFrame:
    """A row for each key: the table's columns in their types, ORDER, GONE, SINCE, TOLD, CARRIED (names) and ORDERS."""
    each = F.collect_list(F.struct("order", "kind", "at", "values"))
    found = steps.groupBy("key").agg(each.alias("steps")).select("key", kernel.fold(F.col("steps")).alias("row"))
    return found.select("key", "row.*").select(
        *(value.alias(name) for name, value in typed(F.col("values"), key, columns).items()),
        F.col("order").alias(ORDER),
        F.col("gone").alias(GONE),
        F.col("since").alias(SINCE),
        F.col("whole").alias(TOLD),
        F.coalesce(F.map_keys("values"), F.array().cast("array<string>")).alias(CARRIED),
        F.col("orders").alias(ORDERS),
    )


def last(states: DataFrame, key: Sequence[str], columns: Mapping[str, str]) -> DataFrame:
    """A row for each key, of `states`: the table's columns, ORDER, GONE, KEY and AT."""
    # By the columns that a merge joins on, so that it finds the rows where they are.
    later = F.lead(ORDER).over(Window.partitionBy(*map(quoted, key)).orderBy(ORDER))
    found = states.withColumn("__later", later).where(F.col("__later").isNull())
    return found.select(*map(quoted, columns), ORDER, GONE, KEY, AT)


def outlived(last: DataFrame, ended: DataFrame, key: Sequence[str], columns: Mapping[str, str]) -> DataFrame:
    """The rows of `last` that no end is later than; `ended` is DataFrame<key, order, at>."""
    own = {f"__end_{n}": types.value(F.get("key", n), columns[name]) for n, name in enumerate(key)}
    ends = ended.select("key", F.col(ORDER).alias("__end"), *(value.alias(name) for name, value in own.items()))
    later = F.col("__end") > F.col(ORDER)
    same = reduce(and_, (F.col(n) == F.col(quoted(name)) for n, name in zip(own, key, strict=True)))
    every = F.size("key") == 0
    last = last.join(ends.where(~every).drop("key"), same & later, "left_anti")
    return last.join(F.broadcast(ends.where(every).select("__end")), later, "left_anti")


def typed(values: Column, key: Sequence[str], columns: Mapping[str, str]) -> dict[str, Column]:
    """The columns of a row whose texts and key (ARRAY<STRING> `key`) are given."""
    text = {name: values[name] for name in columns}
    for n, name in enumerate(key):
        text[name] = F.coalesce(text[name], F.get("key", n))
    return {name: types.value(text[name], kind) for name, kind in columns.items()}


def stored(rows: DataFrame, key: Sequence[str], columns: Mapping[str, str]) -> DataFrame:
    """Rows of a table as steps, which tell their values as text; each column when it was told, if the table says so."""
    texts = {name: types.text(t(name), kind) for name, kind in columns.items()}
    pairs = F.create_map(*(part for name, text in texts.items() for part in (F.lit(name), text)))
    whole = _step(F.col(ORDER), BEGIN, pairs)
    each = F.array(whole)
    if ORDERS in rows.columns:
        told = {name: F.coalesce(t(ORDERS)[name], t(ORDER)) for name in columns}
        parts = (_step(when, PART, F.create_map(F.lit(name), texts[name])) for name, when in told.items())
        # What was never told is not known.
        known = F.filter(F.array(*parts), lambda part: part["order"] != "")
        each = F.when(F.col(ORDERS).isNull(), each).otherwise(known)
    names = F.array(*(texts[name] for name in key))
    return rows.select(names.alias("key"), F.explode(each).alias("step")).select("key", "step.*")


def _step(order: Column, kind: int, values: Column) -> Column:
    at = F.lit(None).cast("timestamp")
    parts = {"order": order, "kind": F.lit(kind), "at": at, "values": values}
    return F.struct(*(part.alias(name) for name, part in parts.items()))
