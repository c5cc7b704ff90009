"""Tables that are altered at their database are followed, or refused with a fix; keys of enums; zones of all kinds."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from recorded import PASSWORD
from test_capture import Shop, Store, content, place, run_through

from changeglot import config
from changeglot.apply.ddl import Amendment, amended
from changeglot.pipeline import Pipeline
from changeglot.throwaway.databases import MariaDB

__all__ = ["place"]


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDB]:
    # Not UTC, and no whole hours from it.
    settings = {"default_time_zone": "-03:30"}
    with MariaDB.start(tmp_path_factory.mktemp("mariadb"), password=PASSWORD, settings=settings) as service:
        yield service


#: By the kind of place: what makes the tables, what alters them, and what gives a column a type of another family.
MADE = {
    Shop: (
        "CREATE TYPE mood AS ENUM ('so so', 'good')",
        "CREATE TABLE felt (mood mood, n int, at timestamptz, plain timestamp, PRIMARY KEY (mood, n))",
        "CREATE TABLE grown (id int PRIMARY KEY, gone int, was int, wide int, odd int)",
    ),
    Store: (
        "CREATE TABLE felt (mood enum('so so','good'), n int, at timestamp NULL, plain datetime, PRIMARY KEY(mood, n))",
        "CREATE TABLE grown (id int PRIMARY KEY, gone int, was int, wide int, odd int)",
    ),
}
ALTERED = {
    Shop: ("ALTER TYPE mood ADD VALUE 'new' BEFORE 'good'", "ALTER TABLE grown ALTER wide TYPE bigint"),
    Store: ("ALTER TABLE felt MODIFY mood enum('so so','new','good')", "ALTER TABLE grown MODIFY wide bigint"),
}
RETYPED = {Shop: "ALTER TABLE grown ALTER odd TYPE text", Store: "ALTER TABLE grown MODIFY odd text"}
#: One is at +05:45, the other, in July, at -02:30. The server has a third.
ZONES = {
    Shop: ("SET TimeZone = 'Asia/Kathmandu'", "SET TimeZone = 'America/St_Johns'"),
    Store: ("SET time_zone = '+05:45'", "SET time_zone = '-02:30'"),
}


def rows(spark: SparkSession, made: Pipeline, place: Shop | Store, table: str) -> list[dict[str, Any]]:
    """Of the mirror, without what is ours. Any: of whatever type the columns are."""
    found = spark.table(made.sink.identifier(*place.schema, table)).collect()
    kept = [{n: v for n, v in row.asDict().items() if not n.startswith("__")} for row in found]
    return sorted(kept, key=lambda row: list(map(str, row.values())))


def test_altered_tables_enum_keys_and_zones_are_followed(
    place: Shop | Store, spark: SparkSession, warehouse: Path
) -> None:
    kind, (here, there) = type(place), ZONES[type(place)]
    told_ddl = isinstance(place, Store)
    if isinstance(place, Shop):
        place.sql(f"ALTER DATABASE {place.name} SET TimeZone = 'Asia/Tokyo'")
    noon = "'2024-07-01 12:00:00', '2024-07-01 12:00:00'"
    place.sql(
        *MADE[kind],
        "INSERT INTO grown VALUES (1, 1, 1, 1, 1), (2, 2, 2, 2, 2)",
        here,
        f"INSERT INTO felt VALUES ('so so', 1, {noon}), ('good', 1, {noon}), ('good', 2, NULL, NULL)",
    )
    words = content(place, warehouse, schema_change="evolve", tables=[{"match": "*"}])
    made = config.pipeline(words, name=place.name)
    run_through(made, spark)
    place.sql(
        *ALTERED[kind],
        "ALTER TABLE grown ADD extra int DEFAULT 7",
        "INSERT INTO grown VALUES (3, 3, 3, 1099511627776, 3, 30)",
        "ALTER TABLE grown RENAME COLUMN was TO became",
        "ALTER TABLE grown DROP gone",
        "UPDATE grown SET odd = 22 WHERE id = 2",
        "INSERT INTO grown (id, became, wide, odd) VALUES (4, 4, 4, 4)",
        "UPDATE felt SET mood = 'new' WHERE mood = 'good' AND n = 1",
        "DELETE FROM felt WHERE mood = 'so so'",
        here,
        f"INSERT INTO felt VALUES ('so so', 2, {noon})",
        there,
        "UPDATE felt SET at = '2024-07-01 03:45:00', plain = '2024-07-01 12:00:00' WHERE mood = 'good' AND n = 2",
    )
    run_through(made, spark)
    felt = {(row["mood"], row["n"]): (row["at"], row["plain"]) for row in rows(spark, made, place, "felt")}
    moments = (datetime(2024, 7, 1, 6, 15), datetime(2024, 7, 1, 12))
    assert felt == {("new", 1): moments, ("good", 2): moments, ("so so", 2): moments}
    # Of a row that nobody touched since are not told: a default, and, where no DDL is told, a new name.
    grown = rows(spark, made, place, "grown")
    rest = [{} if told_ddl else {"gone": n, "was": m} for n, m in ((1, 1), (2, 2), (3, 3), (None, None))]
    assert grown == [
        {"id": 1, "became": 1 if told_ddl else None, "wide": 1, "odd": 1, "extra": None} | rest[0],
        {"id": 2, "became": 2, "wide": 2, "odd": 22, "extra": 7} | rest[1],
        {"id": 3, "became": 3 if told_ddl else None, "wide": 1 << 40, "odd": 3, "extra": 30} | rest[2],
        {"id": 4, "became": 4, "wide": 4, "odd": 4, "extra": 7} | rest[3],
    ]
    place.sql(
        RETYPED[kind],
        "INSERT INTO grown (id, odd) VALUES (5, '5'), (6, 'six')",
        "ALTER TABLE grown RENAME COLUMN became TO later",
        "INSERT INTO grown (id, later) VALUES (7, 7)",
    )
    with pytest.raises(StreamingQueryException, match=r'"odd" was int and is string.*set schema_change to lenient'):
        run_through(made, spark)
    lenient = config.pipeline({**words, "schema_change": "lenient"}, name=place.name)
    run_through(lenient, spark)
    assert rows(spark, made, place, "grown")[:4] == [{**row, "later": None} for row in grown]
    new = {row["id"]: (row["odd"], row["became"], row["later"]) for row in rows(spark, made, place, "grown")[4:]}
    assert new == {5: (5, None, None), 7: (None, None, 7)}
    held = lenient.quarantined(spark)
    assert held is not None
    ((problem,),) = held.select("problem").collect()
    assert problem == "odd: no int"


def test_names_that_columns_had_are_followed_however_many_there_were(spark: SparkSession) -> None:
    amendments = [Amendment(f"{at:03d}", f"c{at}", f"c{at + 1}") for at in range(1, 60)]
    amendments += [Amendment("100", "d", None), Amendment("101", "c60", "e")]
    given: dict[str, tuple[dict[str, str | None] | None, dict[str, str | None] | None]] = {
        "000": ({"c1": "1", "d": "2", "k": None}, {"e": "1", "k": None}),
        "030": ({"c31": None, "d": "2"}, {"e": None}),
        "059": ({"c60": "1", "c1": "2"}, {"e": "1", "c1": "2"}),
        # Of both names the new one's value stands.
        "058": ({"c59": "1", "c60": "2"}, {"e": "2"}),
        "100": ({"c60": "1", "d": "2"}, {"e": "1", "d": "2"}),
        "101": ({"c60": "1"}, {"c60": "1"}),
        "102": (None, None),
    }
    rows = spark.createDataFrame([(at, was) for at, (was, _) in given.items()], "at STRING, image MAP<STRING, STRING>")
    found = {row["at"]: row["image"] for row in amended(rows, ["image"], "at", amendments).collect()}
    assert found == {at: now for at, (_, now) in given.items()}
