"""Pipelines into Delta and Iceberg: whatever comes, in whatever order, the tables equal a plain model."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from shop import TYPES, Shop, State, cut, parted, write

import changeglot
from changeglot import config, target
from changeglot.apply import log
from changeglot.apply.order import ORDER
from changeglot.codecs import CODECS
from changeglot.errors import ChangeglotError, ConfigError
from changeglot.model import Op, Phase
from changeglot.pipeline import Pipeline
from changeglot.sinks.base import Mark
from changeglot.target import ENDED, LOG, VERSIONS, Applied, TableWork

SINKS = ("delta", "iceberg")
CANAL = {"format": "canal"}
#: Formats that do not tell where in the source's log a change stood: the transport must keep them in order.
BY_PLACE = ("canal",)
#: Formats whose updates may tell less than the whole row.
TELLS = {"electric": Shop.PARTS, "shareplex": Shop.MOVED_PARTS}


def pipeline(kind: str, warehouse: Path, messages: Path, **words: Any) -> Pipeline:
    """Any: words of the YAML file."""
    content = {
        "source": {"type": "files", "path": str(messages), "files_per_batch": 1, **words.pop("source", {})},
        "sink": {"type": kind, "path": str(warehouse / kind)},
        "tables": [{"match": "*", "mode": ["scd1", "scd2", "append"], "keys": ["id"], "columns": TYPES}],
        **words,
    }
    return config.pipeline(content, name=f"{messages.parent.name}-{messages.name}-{kind}")


def run(made: Pipeline, spark: SparkSession) -> None:
    made.run(spark).awaitTermination()


def stored(spark: SparkSession, made: Pipeline, *place: str, columns: Sequence[str] = tuple(TYPES)) -> dict[int, State]:
    """The rows of a table by their key, which none may share."""
    found = spark.table(made.sink.identifier(*place)).select(*columns).collect()
    rows = {row["id"]: row.asDict() for row in found}
    assert len(rows) == len(found)
    return rows


def versions(spark: SparkSession, made: Pipeline, *place: str) -> dict[int, list[tuple[State, bool, bool]]]:
    """The versions of each row in order: its state, whether it has ended, and whether the next begins where it does."""
    found = spark.table(made.sink.identifier(*place)).orderBy("id", ORDER).collect()
    by_key: dict[int, list[Any]] = {}
    for row in found:
        by_key.setdefault(row["id"], []).append(row)
    return {
        key: [
            ({n: row[n] for n in TYPES}, row["__end"] is not None, bool(rest) and rest[0][ORDER] == row["__end"])
            for row, *rest in (rows[n:] for n in range(len(rows)))
        ]
        for key, rows in by_key.items()
    }


def expected(shop: Shop, table: str) -> dict[int, list[tuple[State, bool, bool]]]:
    return {
        key: [
            (state, ended is not None, n + 1 < len(all_) and all_[n + 1][1] == ended)
            for n, (state, _, ended) in enumerate(all_)
        ]
        for (of, key), all_ in shop.model.versions.items()
        if of == table
    }


@pytest.mark.parametrize("kind", SINKS)
def test_tables_equal_the_model_in_every_mode_and_format(
    spark: SparkSession, tmp_path: Path, warehouse: Path, kind: str
) -> None:
    rng = random.Random(11)
    shops, told = {}, []
    for number, spoken in enumerate(CODECS):
        shop = shops[spoken] = Shop(number, f"{kind}_{spoken.replace('-', '_')}", tells=TELLS.get(spoken, Shop.WHOLE))
        while len(shop.changes) < 40:
            shop.step()
        lines = shop.told(spark, spoken)
        told.append([line for _, line in lines] if spoken in BY_PLACE else parted(lines, rng))
    # All of them in one stream, each in its own order.
    mixed = []
    while any(told):
        mixed.append(rng.choice([lines for lines in told if lines]).pop(0))
    messages = tmp_path / "messages"
    write(messages, cut(mixed, 3, rng))
    made = pipeline(kind, warehouse, messages)
    run(made, spark)
    quarantined = made.quarantined(spark)
    assert quarantined is None or quarantined.select("problem", "table").collect() == []
    for spoken, shop in shops.items():
        rows = {key: row for (_, key), row in shop.model.rows.items()}
        assert stored(spark, made, shop.database, "orders") == rows, spoken
        assert versions(spark, made, shop.database, "orders" + VERSIONS) == expected(shop, "orders"), spoken
        log = spark.table(made.sink.identifier(shop.database, "orders" + LOG))
        assert log.select("op", ORDER).distinct().count() == log.count()
        if spoken in ("oms", "oms-typed", "dataworks", "shareplex"):
            assert log.count() == shop.model.changes["orders"], spoken
    # With its notes lost, a pipeline reads all of it again, and nothing changes.
    before = {spoken: stored(spark, made, shop.database, "orders") for spoken, shop in shops.items()}
    made.apply(made.source.sample(spark), Mark("again", 0))
    for spoken, shop in shops.items():
        assert stored(spark, made, shop.database, "orders") == before[spoken], spoken
        assert versions(spark, made, shop.database, "orders" + VERSIONS) == expected(shop, "orders"), spoken


@pytest.mark.parametrize("many", [0, 1000])
@pytest.mark.parametrize("kind", SINKS)
def test_of_whole_rows_the_last_counts_in_whatever_order_they_come(
    spark: SparkSession, tmp_path: Path, warehouse: Path, monkeypatch: pytest.MonkeyPatch, kind: str, many: int
) -> None:
    shop = Shop(3, f"whole_{kind}_{many}", keys=12, moves=False)
    moving = Shop(4, f"moving_{kind}_{many}", keys=12)
    for each in (shop, moving):
        while len(each.changes) < 60:
            each.step()
    lines = [line for each in (shop, moving) for line in each.lines(spark, "oms-typed")]
    lines += shop.rng.sample(lines, 10)
    # A table of which nothing is right.
    wrong = next(line for line in lines if all(word in line for word in (shop.database, "INSERT", "-7.25")))
    lines.append(wrong.replace("-7.25", "-7.255").replace(shop.database, f"wrong_{kind}_{many}"))
    # Not what a transport does: but each of them says where it belongs.
    shop.rng.shuffle(lines)
    write(tmp_path / "m", cut(lines, 4, shop.rng))
    replaced, replace = [], TableWork._replace

    def counted(work: TableWork, changes: DataFrame) -> int | None:
        replaced.append(replace(work, changes))
        return replaced[-1]

    monkeypatch.setattr(TableWork, "_replace", counted)
    monkeypatch.setattr(target, "_MANY", many)
    rule = {"match": "*", "keys": ["id"], "columns": TYPES}
    made = pipeline(kind, warehouse, tmp_path / "m", tables=[rule], source={"format": "oms-typed"})
    run(made, spark)
    assert replaced.count(0) >= 4
    assert replaced.count(1) == 1
    assert None in replaced
    quarantined = made.quarantined(spark)
    assert quarantined is not None
    assert [row["table"] for row in quarantined.collect()] == [f"wrong_{kind}_{many}.orders"]
    assert stored(spark, made, f"wrong_{kind}_{many}", "orders") == {}
    for each in (shop, moving):
        rows = {key: row for (_, key), row in each.model.rows.items()}
        assert stored(spark, made, each.database, "orders") == rows


@pytest.mark.parametrize("kind", SINKS)
def test_a_batch_that_is_applied_again_changes_nothing(
    spark: SparkSession, tmp_path: Path, warehouse: Path, kind: str
) -> None:
    shop = Shop(3, f"again_{kind}")
    while len(shop.changes) < 30:
        shop.step()
    write(tmp_path / "m", [shop.lines(spark, "canal")])
    made = pipeline(kind, warehouse, tmp_path / "m")
    batch, mark = made.source.sample(spark), Mark("w", 4)
    made.apply(batch, mark)
    tables = [made.sink.identifier(shop.database, "orders" + suffix) for suffix in ("", LOG, VERSIONS, ENDED)]
    history = {table: _commits(spark, kind, table) for table in tables}
    made.apply(batch, mark)
    assert {table: _commits(spark, kind, table) for table in tables} == history


def _commits(spark: SparkSession, kind: str, table: str) -> int:
    """How often rows were written to the table."""
    if kind == "delta":
        return spark.sql(f"DESCRIBE HISTORY {table}").where("operationMetrics.numOutputRows IS NOT NULL").count()
    return spark.table(f"{table}.snapshots").count()


@pytest.mark.parametrize("kind", SINKS)
def test_what_comes_late_fills_what_is_missing_and_covers_nothing_newer(
    spark: SparkSession, tmp_path: Path, warehouse: Path, kind: str
) -> None:
    shop = Shop(0, f"late_{kind}")
    old, new = {"id": 1, "name": "a"}, {"id": 1, "name": "b"}
    shop.say(Op.UPDATE, "orders", 1, old, new, at=7)
    shop.say(Op.DELETE, "orders", 2, {"id": 2, "name": "x", "amount": None}, at=8)
    # A snapshot's rows beside newer changes of the stream, and an update that a delete has overtaken.
    shop.say(Op.INSERT, "orders", 1, None, {**old, "amount": "5.00"}, at=3, phase=Phase.SNAPSHOT)
    shop.say(Op.UPDATE, "orders", 2, old | {"id": 2}, new | {"id": 2}, at=6)
    shop.say(Op.INSERT, "orders", 3, None, {"id": 3, "name": "c", "amount": "1.00"}, at=9)
    lines = shop.lines(spark, "electric")
    write(tmp_path / "m", [[line] for line in lines])
    made = pipeline(kind, warehouse, tmp_path / "m", source={"format": "electric"})
    run(made, spark)
    rows = {key: (row["name"], str(row["amount"])) for key, row in stored(spark, made, shop.database, "orders").items()}
    assert rows == {1: ("b", "5.00"), 3: ("c", "1.00")}
    history = versions(spark, made, shop.database, "orders" + VERSIONS)
    assert [(state["name"], ended) for state, ended, _ in history[1]] == [("a", True), ("b", False)]
    assert [ended for _, ended, _ in history[2]] == [True]


def canal(database: str, op: str, rows: list[State] | None = None, **more: Any) -> str:
    """A message of Canal's. Any: values and members as JSON has them."""
    types = more.pop("types", {"id": "bigint(20)", "name": "varchar(40)", "amount": "decimal(12,2)"})
    message: State = {
        "database": database,
        "table": "orders",
        "type": op,
        "data": rows,
        "isDdl": False,
        "pkNames": ["id"],
    }
    message |= {"es": 1700000000000, "ts": 1700000000100, "id": 1, "old": None, "sql": "", "mysqlType": types}
    message |= {"pkNames": ["id"], **more}
    return json.dumps(message)


def row(key: int, **values: Any) -> State:
    """Any: a row's values."""
    return {"id": key, "name": "n", "amount": "1.00", **values}


@pytest.mark.parametrize("kind", SINKS)
def test_truncates_and_soft_deletes(spark: SparkSession, tmp_path: Path, warehouse: Path, kind: str) -> None:
    database = f"cut_{kind}"
    first = [canal(database, "INSERT", [row(1), row(2)]), canal(database, "DELETE", [row(2)])]
    second = [canal(database, "TRUNCATE", isDdl=True, sql="TRUNCATE TABLE orders"), canal(database, "INSERT", [row(3)])]
    write(tmp_path / "m", [first, second])
    for delete in ("hard", "soft"):
        rule = {"match": "*", "mode": ["scd1", "scd2"], "delete": delete, "into": f"{database}.{delete}"}
        made = pipeline(kind, warehouse, tmp_path / "m", tables=[rule], checkpoint=str(tmp_path / delete), source=CANAL)
        run(made, spark)
    assert stored(spark, made, database, "hard").keys() == {3}
    soft = stored(spark, made, database, "soft", columns=("id", "__deleted"))
    assert {key: row["__deleted"] for key, row in soft.items()} == {1: True, 2: True, 3: False}
    history = versions(spark, made, database, "hard" + VERSIONS)
    assert {key: [ended for _, ended, _ in all_] for key, all_ in history.items()} == {1: [True], 2: [True], 3: [False]}


@pytest.mark.parametrize("kind", SINKS)
def test_a_table_follows_its_source_by_the_policy(
    spark: SparkSession, tmp_path: Path, warehouse: Path, kind: str
) -> None:
    database = f"schema_{kind}"
    wide = {"id": "bigint(20)", "title": "varchar(40)", "amount": "decimal(14,2)", "extra": "int(11)"}
    alter = "ALTER TABLE orders CHANGE name title varchar(40), DROP COLUMN gone"
    was = {"id": "bigint(20)", "name": "varchar(40)", "amount": "decimal(12,2)", "gone": "int(11)"}
    later = [
        canal(database, "UPDATE", [row(1, name="m", gone=2)], old=[{"name": "n", "gone": 1}], types=was),
        canal(database, "ALTER", isDdl=True, sql=alter),
        canal(database, "INSERT", [{"id": 2, "title": "t", "amount": "123456789012.00", "extra": 7}], types=wide),
    ]
    seen = {}
    for policy in ("evolve", "lenient", "ignore", "exception"):
        rule = {"match": "*", "mode": ["scd1", "scd2"], "into": f"{database}.{policy}"}
        folder = tmp_path / policy
        write(folder, [[canal(database, "INSERT", [row(1, gone=1)], types=was)]])
        made = pipeline(kind, warehouse, folder, tables=[rule], schema_change=policy, source=CANAL)
        run(made, spark)
        write(folder, [later])
        if policy == "exception":
            with pytest.raises(Exception, match="changed: rename name, drop gone, add extra, widen amount"):
                run(made, spark)
        else:
            run(made, spark)
        kinds = made.sink.columns(spark, made.sink.identifier(database, policy))
        seen[policy] = {n: kind for n, kind in kinds.items() if not n.startswith("__")}
    whole = {"id": "bigint", "name": "string", "amount": "decimal(12,2)", "gone": "int"}
    assert seen["ignore"] == seen["exception"] == whole
    assert seen["lenient"] == whole | {"title": "string", "amount": "decimal(14,2)", "extra": "int"}
    assert seen["evolve"] == {"id": "bigint", "title": "string", "amount": "decimal(14,2)", "extra": "int"}
    evolved = spark.table(made.sink.identifier(database, "evolve")).select("id", "title", "extra").collect()
    assert sorted(map(tuple, evolved)) == [(1, "m", None), (2, "t", 7)]
    past = spark.table(made.sink.identifier(database, "evolve" + VERSIONS)).orderBy("id", ORDER).select("id", "title")
    assert [tuple(each) for each in past.collect()] == [(1, "n"), (1, "m"), (2, "t")]
    # A column of the old name is another column, then and later.
    folder, anew = tmp_path / "evolve", {**wide, "gone": "int(11)"}
    rule = {"match": "*", "mode": ["scd1", "scd2"], "into": f"{database}.evolve"}
    made = pipeline(kind, warehouse, folder, tables=[rule], schema_change="evolve", source=CANAL)
    back = {"id": 3, "title": "t", "amount": "1.00", "extra": 7, "gone": 5}
    write(folder, [[canal(database, "INSERT", [{**back, "id": n}], types=anew)] for n in (3, 4)])
    run(made, spark)
    returned = spark.table(made.sink.identifier(database, "evolve")).select("id", "gone").collect()
    assert sorted(map(tuple, returned)) == [(1, None), (2, None), (3, 5), (4, 5)]
    told = spark.table(made.sink.identifier("changeglot", "schemas"))
    told = told.where(F.col("pipeline").endswith(f"-evolve-{kind}"))
    assert {tuple(each) for each in told.where("kind <> 'create'").select("kind", "column").collect()} == {
        ("rename", "name"),
        ("drop", "gone"),
        ("add", "extra"),
        ("add", "gone"),
        ("widen", "amount"),
        ("statement", None),
    }


def test_rows_and_columns_are_taken_renamed_and_masked(spark: SparkSession, tmp_path: Path, warehouse: Path) -> None:
    database = "routed"
    lines = [
        canal(database, "INSERT", [row(1, amount="5.00"), row(2, amount="50.00"), row(3, name=None)]),
        canal(database, "UPDATE", [row(1, amount="60.00")], old=[{"amount": "5.00"}]),
        canal(database, "UPDATE", [row(2, amount="6.00")], old=[{"amount": "50.00"}]),
        canal(database, "INSERT", [row(4, amount="no number")]),
        canal(database, "INSERT", [row(5, amount="70.00", name="secret")]).replace('"orders"', '"other"'),
    ]
    write(tmp_path / "m", [lines])
    rules = [
        {"match": f"{database}.orders", "filter": "amount > 10", "project": ["name"], "rename": {"name": "title"}},
        {"match": "*", "into": "{database}.all_{table}", "mask": {"name": "sha256", "amount": "redact"}},
    ]
    made = pipeline("delta", warehouse, tmp_path / "m", tables=rules, source=CANAL)
    run(made, spark)
    taken = spark.table(made.sink.identifier(database, "orders"))
    assert [name for name in taken.columns if not name.startswith("__")] == ["id", "title"]
    assert {tuple(each) for each in taken.select("id", "title").collect()} == {(1, "n")}
    masked = spark.table(made.sink.identifier(database, "all_other")).select("name", "amount").collect()
    assert len(masked[0]["name"]) == 64
    assert masked[0]["amount"] == "***"


@pytest.mark.parametrize("kind", SINKS)
def test_a_bad_row_is_held_and_goes_where_it_belongs_after_a_fix(
    spark: SparkSession, tmp_path: Path, warehouse: Path, kind: str
) -> None:
    database = f"held_{kind}"
    lines = [
        canal(database, "INSERT", [row(1), row(2)]),
        canal(database, "UPDATE", [row(1, amount="a lot")], old=[{"amount": "1.00"}]),
        canal(database, "UPDATE", [row(1, name="later", amount="9.00")], old=[{"amount": "a lot"}]),
        canal(database, "UPDATE", [row(2, name="free")], old=[{"name": "n"}]),
        "{",
    ]
    last = [canal(database, "UPDATE", [row(1, name="last", amount="9.00")], old=[{"name": "later"}])]
    write(tmp_path / "m", [lines, last])
    hold = {"on_key_error": "hold"}
    rule = {"match": "*", "mode": ["scd1", "append"]}
    made = pipeline(kind, warehouse, tmp_path / "m", tables=[rule], quarantine=hold, source=CANAL)
    run(made, spark)
    names = {key: each["name"] for key, each in stored(spark, made, database, "orders").items()}
    assert names == {1: "n", 2: "free"}
    kept = made.quarantined(spark)
    assert kept is not None
    counts = Counter(each["problem"] for each in kept.where("table IS NOT NULL").collect())
    assert counts == {"amount: no decimal(12,2)": 1, "waits behind a bad change of the same row": 2}
    assert kept.where("table IS NULL").count() == 1
    # The fix: the amount may be any text.
    fixed = pipeline(
        kind,
        warehouse,
        tmp_path / "m",
        tables=[{**rule, "columns": {"amount": "text"}, "into": f"{database}.fixed"}],
        quarantine=hold,
        source=CANAL,
    )
    applied = fixed.replay(spark)
    assert applied is not None
    assert applied.quarantined == 1
    assert {key: (each["name"], each["amount"]) for key, each in stored(spark, made, database, "fixed").items()} == {
        1: ("last", "9.00")
    }
    assert fixed.forget(spark) == 1
    assert fixed.replay(spark) is None


def test_a_continuous_run_takes_what_comes_later(spark: SparkSession, tmp_path: Path, warehouse: Path) -> None:
    told: Queue[Applied] = Queue()
    write(tmp_path / "m", [[canal("going_on", "INSERT", [row(1)])]])
    made = pipeline("delta", warehouse, tmp_path / "m", tables=[{"match": "*"}], source=CANAL)
    query = made.run(spark, once=False, told=told.put)
    try:
        assert told.get(timeout=120).tables == {"going_on.orders": 1}
        write(tmp_path / "m", [[canal("going_on", "INSERT", [row(2)]), canal("going_on", "INSERT", [row(3)])]])
        applied = told.get(timeout=120)
        assert (applied.batch, applied.tables) == (1, {"going_on.orders": 2})
        assert stored(spark, made, "going_on", "orders").keys() == {1, 2, 3}
    finally:
        query.stop()


def test_what_is_compiled_for_one_batch_serves_the_next(spark: SparkSession) -> None:
    message = {
        "type": "INSERT",
        "database": "d",
        "table": "t",
        "pkNames": ["id"],
        "data": [{"id": "1"}],
        "isDdl": False,
    }
    messages = spark.range(2).select(F.lit(json.dumps(message)).alias("value"), F.col("id").cast("string").alias(ORDER))
    changes = changeglot.decode(messages, "canal")

    def code(batch: int) -> list[str]:
        stages = log.numbered(log.entries(changes), batch)._jdf.queryExecution().debug().codegenToSeq()
        return [stages.apply(n)._2() for n in range(stages.size())]

    assert code(1)
    assert code(1) == code(2)
    assert [row[log.BATCH] for row in log.numbered(log.entries(changes), 7).collect()] == [7, 7]


@pytest.mark.parametrize("kind", SINKS)
def test_upkeep_leaves_the_rows_as_they_are(spark: SparkSession, tmp_path: Path, warehouse: Path, kind: str) -> None:
    shop = Shop(5, f"upkeep_{kind}")
    while len(shop.changes) < 20:
        shop.step()
    write(tmp_path / "m", cut(shop.lines(spark, "oms"), 2, shop.rng))
    made = pipeline(kind, warehouse, tmp_path / "m", upkeep={"every": 1, "keep_hours": 168})
    run(made, spark)
    rows = {key: row for (_, key), row in shop.model.rows.items()}
    assert stored(spark, made, shop.database, "orders") == rows
    assert versions(spark, made, shop.database, "orders" + VERSIONS) == expected(shop, "orders")


def test_names_of_tables_and_columns_may_be_anything(spark: SparkSession, tmp_path: Path, warehouse: Path) -> None:
    types = {"id": "bigint(20)", "a.b `c`, d": "text", "key": "text", "order": "int"}
    line = canal("../odd", "INSERT", [{"id": 1, "a.b `c`, d": "x", "key": "k", "order": 3}], types=types)
    for kind in SINKS:
        write(tmp_path / kind, [[line]])
        made = pipeline(kind, warehouse, tmp_path / kind, tables=[{"match": "*", "mode": ["scd1", "scd2", "append"]}])
        run(made, spark)
        for name in ("orders", "orders" + VERSIONS):
            found = spark.table(made.sink.identifier("../odd", name)).collect()[0]
            assert (found["a.b `c`, d"], found["key"], found["order"]) == ("x", "k", 3)
    assert not (warehouse / "odd").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"surce": {}}, 'surce: no such word. Did you mean "source"?'),
        ({"sink": {"type": "dleta"}}, 'sink.type: no choice "dleta". Did you mean "delta"?'),
        ({"sink": {"type": "delta"}}, "sink.path: is missing. folder of the tables, on any file system"),
        ({"tables": [{"match": "*", "mode": "scd3"}]}, 'tables[0].mode: no choice "scd3". Did you mean "scd2"?'),
        ({"tables": [{"mode": "scd1"}]}, "tables[0].match: is missing. database.table or"),
        ({"tables": [{"match": "*", "filter": "a = ("}]}, "tables[0].filter: is no condition of SQL"),
        ({"tables": [{"match": "*", "filter": "a in (select 1)"}]}, "tables[0].filter: may look at the row alone"),
        ({"tables": [{"match": "*", "mask": {"a": "md5"}}]}, 'tables[0].mask.a: no choice "md5". Choose'),
        ({"tables": [{"match": "*", "keys": "id"}]}, "tables[0].keys: wants a list"),
        ({"schema_change": "evolv"}, 'schema_change: no choice "evolv". Did you mean "evolve"?'),
        ({"quarantine": {"on_key_error": "wait"}}, 'quarantine.on_key_error: no choice "wait". Choose'),
        ({"upkeep": {"every": "often"}}, 'upkeep.every: "often" is not a number'),
    ],
)
def test_a_mistake_in_a_pipeline_is_told_with_its_path(words: dict[str, Any], said: str) -> None:
    content = {"source": {"type": "files", "path": "x"}, "sink": {"type": "delta", "path": "y"}, **words}
    with pytest.raises(ConfigError) as error:
        config.pipeline(content, name="p")
    assert str(error.value).startswith(said)


def test_a_table_without_a_key_is_refused_before_anything_is_written(
    spark: SparkSession, tmp_path: Path, warehouse: Path
) -> None:
    write(
        tmp_path / "m", [[canal("a_keyed", "INSERT", [row(1)]), canal("b_keyless", "INSERT", [row(1)], pkNames=None)]]
    )
    made = pipeline("delta", warehouse, tmp_path / "m", tables=[{"match": "*"}])
    with pytest.raises(ChangeglotError, match=r'"b_keyless\.orders" has no key'):
        made.apply(made.source.sample(spark), Mark("w", 0))
    assert not made.sink.exists(spark, made.sink.identifier("a_keyed", "orders"))
