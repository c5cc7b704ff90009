"""What every codec owes: a round trip loses exactly what is declared, through any other format too."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any

import pytest
import told
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

import changeglot
from changeglot.codecs import CODECS, codec
from changeglot.codecs.base import Codec, half, moved, place_in_transaction
from changeglot.model import CHANGE, Change, Op

ID = T.StructType([T.StructField("id", T.StringType()), *CHANGE.fields])

# Names as people have them, and worse; table and database names without dots, as OMS demands.
LETTERS = "ab\u00e9\u4e2d\U0001f600 '\"\\/.-_%$\n\t"
names = st.text(LETTERS, min_size=1, max_size=6)
places = st.text("ab\u00e9\u4e2d -_'\"", min_size=1, max_size=6)
texts = st.one_of(
    st.just(""),
    st.just("null"),
    st.text(max_size=12).filter(lambda s: s.isprintable()),
    st.text(LETTERS + "\x00\x01\x1f", max_size=8),
)
integers = st.one_of(st.integers(-(2**63), 2**64 - 1), st.integers(-9, 9)).map(str)
decimals = st.one_of(
    st.tuples(st.integers(0, 10**60), st.integers(1, 20)).map(lambda p: f"{p[0]}.{p[1]:0<5}"),
    st.sampled_from(["0.00", "-1.10", "1e-7", "1E+300", "NaN", "1590315269000.123456789"]),
)
moments = st.tuples(st.integers(0, 4102444800), st.integers(0, 999_999_999)).map(lambda p: _moment(*p))
VALUES: dict[str, st.SearchStrategy[str]] = {
    "bigint": integers,
    "bigint(20) unsigned": integers,
    "decimal(65,30)": decimals,
    "double": decimals,
    "varchar(20)": texts,
    "longtext": texts,
    "blob": st.binary(max_size=6).map(lambda b: base64.b64encode(b).decode()),
    "datetime": st.just("2024-01-02 03:04:05.5"),
    "timestamp": moments,
    "date": st.just("0000-00-00"),
    "time": st.just("03:04:05"),
    "boolean": st.sampled_from(["true", "false"]),
    "json": st.just('{"a":  1.10}'),
    "enum": texts,
}


def _moment(seconds: int, nanos: int) -> str:
    from datetime import UTC, datetime

    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    fraction = f"{nanos:09d}".rstrip("0")
    return f"{text}.{fraction}Z" if fraction else f"{text}Z"


@st.composite
def changes(draw: st.DrawFn) -> dict[str, Any]:
    """One change that a database could tell. Any: a row of CHANGE."""
    op = draw(st.sampled_from([Op.INSERT, Op.UPDATE, Op.DELETE] * 4 + _others()))
    typed = draw(st.booleans())
    columns = draw(st.lists(names, min_size=1, max_size=5, unique=True))
    kinds = {name: draw(st.sampled_from(sorted(VALUES))) if typed else "varchar(20)" for name in columns}

    def row(of: list[str]) -> dict[str, str | None]:
        return {name: draw(st.none() | VALUES[kinds[name]]) for name in of}

    key_names = columns[: draw(st.integers(0, min(2, len(columns))))]
    old, new = row(columns), row(columns)
    if not draw(st.sampled_from([False, False, True])):
        new |= {name: old[name] for name in key_names}
    before: dict[str, str | None] | None = None
    after: dict[str, str | None] | None = None
    if op in (Op.UPDATE, Op.DELETE):
        before = draw(st.sampled_from([old, old, {name: old[name] for name in columns[:2]}]))
    if op == Op.UPDATE and draw(st.booleans()):
        before, new = None, new | {name: old[name] for name in key_names}
    if op in (Op.INSERT, Op.UPDATE):
        after = new
        if op == Op.UPDATE and draw(st.booleans()):
            after = {name: new[name] for name in {*key_names, *columns[:3]}}
    known = before if before is not None else after
    key = {name: known[name] for name in key_names} if known and key_names and op in Op.ROWS else None
    is_row = op in Op.ROWS
    seconds = draw(st.integers(0, 4_000_000_000))
    micros = draw(st.sampled_from([0, 0, 120_000, 123_456]))
    return {
        "op": op,
        "phase": draw(st.sampled_from([None, "snapshot", "stream"])) if is_row else None,
        "relation": {
            "tenant": draw(st.none() | places),
            "database": draw(places),
            "schema": draw(st.none() | places),
            "table": draw(places),
        }
        if is_row or op in (Op.DDL, Op.TRUNCATE)
        else None,
        "key": key,
        "before": before,
        "after": after,
        "columns": [(n, kinds[n], None, draw(st.none() | st.booleans()), None) for n in columns]
        if is_row and typed
        else None,
        "position": draw(st.none() | st.lists(st.integers(0, 2**62).map(Decimal), min_size=1, max_size=3))
        if is_row
        else None,
        "transaction": {
            "ids": draw(st.none() | st.lists(st.from_regex("[1-9][0-9]{0,8}", fullmatch=True), min_size=1, max_size=2)),
            "order": draw(st.none() | st.integers(0, 10**9)),
            "last": draw(st.none() | st.booleans()),
        }
        if is_row
        else None,
        "committed_at": _time(seconds, micros) if draw(st.booleans()) else None,
        "committed_nanos": None,
        "produced_at": _time(seconds + 1, micros) if draw(st.booleans()) else None,
        "origin": draw(
            st.sampled_from(
                [
                    None,
                    {"kind": "mysql", "version": "8", "name": None},
                    {"kind": "oceanbase", "version": None, "name": "n"},
                ]
            )
        )
        if is_row
        else None,
        "statement": "ALTER TABLE t ADD c int" if op in (Op.DDL, Op.TRUNCATE) else None,
        "extra": None,
    }


def _others() -> list[str]:
    return [
        Op.TRUNCATE,
        Op.DDL,
        Op.HEARTBEAT,
        Op.BEGIN,
        Op.COMMIT,
        Op.ROLLBACK,
        Op.UP_TO_DATE,
        Op.MUST_REFETCH,
        Op.SNAPSHOT_END,
    ]


def _time(seconds: int, micros: int) -> Any:
    from datetime import UTC, datetime, timedelta

    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds, microseconds=micros)


def table(spark: SparkSession, drawn: Sequence[Mapping[str, Any]]) -> DataFrame:
    rows = [(str(n), *(each[name] for name in CHANGE.fieldNames())) for n, each in enumerate(drawn)]
    made = spark.createDataFrame(rows, ID).coalesce(1)
    # A struct is never NULL in a change; its parts are.
    for field in CHANGE.fields:
        if isinstance(field.dataType, T.StructType):
            empty = F.struct(*(F.lit(None).cast(p.dataType).alias(p.name) for p in field.dataType))
            made = made.withColumn(field.name, F.coalesce(field.name, empty))
    return made.localCheckpoint()


def surviving(each: Codec, df: DataFrame) -> DataFrame:
    """The changes with every lost field replaced by what it becomes; a split update is its two halves."""
    change: Change = {name: F.col(name) for name in CHANGE.fieldNames()}
    df = df.where(each.tells(change))
    if each.parts(change) is not None:
        parts = F.when(moved(change), F.array(F.lit("delete"), F.lit("insert"))).otherwise(F.array(F.lit("")))
        df = df.select("*", F.posexplode(parts).alias("n", "part"))
        halves = half(change, F.col("part"))
        order = F.when(F.col("part") == "insert", 1).otherwise(0)
        spoken = F.coalesce(
            F.col("transaction.order"), F.when(F.lit(each.name == "electric"), place_in_transaction(change))
        )
        halves["transaction"] = (
            change["transaction"]
            .withField("order", spoken + order)
            .withField(
                "last", F.when((F.col("part") != "delete") | F.lit(each.name != "electric"), F.col("transaction.last"))
            )
        )
        df = df.withColumns({name: halves[name] for name in ("op", "key", "before", "after", "transaction")})
        df = df.localCheckpoint()

    def lose(fields: Change, loss: Any) -> Change:
        first, *rest = loss.field.split(".")
        then = loss.becomes(each.told(change))
        return {**fields, first: fields[first].withField(".".join(rest), then) if rest else then}

    kept = reduce(lose, each.losses, change)
    return df.select("id", *(kept[f.name].cast(f.dataType).alias(f.name) for f in CHANGE.fields))


def round_trip(name: str, df: DataFrame) -> DataFrame:
    encoded = changeglot.encode(df, name).where("spoken").select("id", "key", "value")
    return changeglot.decode(encoded.localCheckpoint(), name)


def assert_same(found: DataFrame, expected: DataFrame) -> None:
    left, right = told.changes_of(found, "id"), told.changes_of(expected, "id")
    assert left.keys() == right.keys()
    for each in sorted(left):
        for changes in (left[each], right[each]):
            if len(changes) > 1:
                # The halves of a key change name each other, in Electric's own words.
                for change in changes:
                    change.pop("extra", None)
        assert left[each] == right[each]


def draw(size: int) -> list[dict[str, Any]]:
    """Many changes for one Spark job, which costs the same for one."""
    drawn: list[dict[str, Any]] = []

    @settings(
        max_examples=size,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(changes())
    def one(change: dict[str, Any]) -> None:
        drawn.append(change)

    one()
    return drawn


@pytest.mark.parametrize("name", CODECS)
def test_a_round_trip_loses_exactly_what_is_declared(name: str, spark: SparkSession) -> None:
    df = table(spark, draw(400))
    kept = surviving(codec(name), df)
    assert_same(round_trip(name, df), kept)

    before, after = told.changes_of(df, "id"), told.changes_of(kept, "id")
    lost: dict[str, set[str]] = {}
    for row in changeglot.encode(df, name).select("id", "lost").collect():
        lost.setdefault(row["id"], set()).update(row["lost"])
    for each, fields in lost.items():
        if len(after.get(each, [])) == 1:
            old, new = before[each][0], after[each][0]
            gone = {field for field in {*old, *new} if old.get(field) != new.get(field)}
            assert {field.split(".")[0] for field in fields} == gone, (each, old, new)
        elif each not in after:
            assert fields == {"op"}


def test_all_49_pairs_keep_what_the_other_format_carries(spark: SparkSession) -> None:
    """A to B to A: everything that A tells goes through B, all A at once, then back, all B at once."""
    df = table(spark, draw(150))

    def tagged(name: str, of: DataFrame) -> DataFrame:
        return of.withColumn("id", F.concat(F.col("id"), F.lit(" " + name)))

    def all_of(frames: list[DataFrame]) -> DataFrame:
        return reduce(DataFrame.unionByName, frames).localCheckpoint()

    plain = ["id", *CHANGE.fieldNames()]
    first = all_of([tagged(a, round_trip(a, df).select(*plain)) for a in CODECS])
    second = all_of([tagged(b, round_trip(b, first).select(*plain)) for b in CODECS])
    expected = all_of([tagged(b, surviving(codec(b), first)) for b in CODECS])
    assert_same(second, expected)
    for a in CODECS:
        mine = F.split("id", " ")[1] == a
        assert_same(round_trip(a, second.where(mine)), surviving(codec(a), second.where(mine)))
