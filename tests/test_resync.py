"""Tables whose rows are read again, or for the first time while others are followed; and reading that was cut short."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from recorded import until
from test_capture import Shop, Store, content, place, replayed, run_through, shop

from changeglot import config
from changeglot.capture import part, pgrows
from changeglot.capture.spool import Spool
from changeglot.errors import ConfigError
from changeglot.pipeline import Pipeline
from changeglot.sources import capture
from changeglot.sources.reading import Reading

__all__ = ["place", "shop"]


def mirror(spark: SparkSession, made: Pipeline, of: Shop | Store, table: str) -> list[tuple[Any, ...]]:
    """Any: values."""
    name = made.sink.identifier(*of.schema, table)
    if not made.sink.exists(spark, name):
        return []
    return [tuple(row) for row in spark.table(name).orderBy("id").select("id", "name", "body").collect()]


def held(of: Shop | Store, table: str) -> list[tuple[Any, ...]]:
    """Any: values."""
    return list(of.sql(f"SELECT id, name, body FROM {table} ORDER BY id"))


def same(spark: SparkSession, made: Pipeline, of: Shop | Store, table: str) -> Callable[[], bool]:
    return lambda: mirror(spark, made, of, table) == held(of, table)


@contextmanager
def running(made: Pipeline, spark: SparkSession) -> Iterator[None]:
    query = made.run(spark, once=False)
    try:
        yield
        assert query.isActive
    finally:
        query.stop()


def test_a_table_is_read_again_or_for_the_first_time_while_others_are_followed(
    place: Shop | Store, spark: SparkSession, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "_LOOK", 0.5)
    make = "CREATE TABLE {} (id int PRIMARY KEY, name varchar(20), body text)"
    place.sql(make.format("a"), make.format("b"))
    for table in "ab":
        place.sql(f"INSERT INTO {table} VALUES (1, 'one', 'x'), (2, 'two', NULL), (3, 'three', 'y')")
    words = content(place, warehouse)
    made = config.pipeline(words, name=place.name)
    with running(made, spark):
        until(lambda: same(spark, made, place, "a")() and same(spark, made, place, "b")())
        # As if some had been lost, and others not deleted.
        name = made.sink.identifier(*place.schema, "a")
        spark.sql(f"DELETE FROM {name} WHERE id = 1")
        spark.sql(f"UPDATE {name} SET id = 77 WHERE id = 3")
        place.sql("UPDATE b SET name = 'new' WHERE id = 1", "UPDATE a SET name = 'new' WHERE id = 2")
        made.resync([f"{place.schema[-1]}.a"])
        until(same(spark, made, place, "a"))
        place.sql(make.format("c"), "INSERT INTO c VALUES (1, 'of c', 'z')", "DELETE FROM b WHERE id = 3")
        place.sql("UPDATE a SET name = 'after' WHERE id = 3", "DELETE FROM a WHERE id = 2")
        for table in "abc":
            until(same(spark, made, place, table))
    for table in "abc":
        again = replayed(spark, made, place, table)
        assert [(key, row["name"], row["body"]) for key, row in sorted(again.items())] == held(place, table)
    assert not (place.folder / "notes" / "changeglot" / "spool" / "aside" / "tables.json").exists()
    with pytest.raises(ConfigError, match="is none of them"):
        made.resync(["other.t"])


def test_rows_are_read_again_when_changes_were_lost_and_what_was_deleted_meanwhile_is_gone(
    place: Shop | Store, spark: SparkSession, warehouse: Path
) -> None:
    place.sql("CREATE TABLE a (id int PRIMARY KEY, name varchar(20), body text)")
    place.sql("INSERT INTO a VALUES (1, 'one', 'x'), (2, 'two', NULL), (3, 'three', 'y')")
    words = content(place, warehouse)
    made = config.pipeline({**words, "source": {**words["source"], "snapshot": "when_needed"}}, name=place.name)
    run_through(made, spark)
    place.sql("UPDATE a SET name = 'second' WHERE id = 2")
    run_through(made, spark)
    if isinstance(place, Shop):
        assert made.drop() == f'slot "{place.name}" and publication "changeglot"'
    else:
        # Another log, whose positions are before those that were read.
        time.sleep(1)
        place.sql("RESET MASTER")
    place.sql("DELETE FROM a WHERE id = 1", "UPDATE a SET name = 'again' WHERE id = 2")
    run_through(made, spark)
    assert mirror(spark, made, place, "a") == held(place, "a")
    place.sql("UPDATE a SET name = 'at last' WHERE id = 2", "INSERT INTO a VALUES (1, 'back', NULL)")
    run_through(made, spark)
    assert mirror(spark, made, place, "a") == held(place, "a")
    again = replayed(spark, made, place, "a")
    assert [(key, row["name"], row["body"]) for key, row in sorted(again.items())] == held(place, "a")


def test_a_reading_that_was_cut_short_goes_on_with_what_is_missing(
    shop: Shop, spark: SparkSession, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pgrows, "CHUNK", 5 * 8192)
    shop.sql(
        "CREATE TABLE a (id int PRIMARY KEY, name varchar(200), body text) WITH (fillfactor = 50)",
        "ALTER TABLE a ALTER body SET STORAGE EXTERNAL",
        "INSERT INTO a SELECT n, repeat('n', 200), repeat(n::text, 2000) FROM generate_series(1, 300) n",
    )
    made = config.pipeline(content(shop, warehouse), name=shop.name)
    folder = shop.folder / "notes" / "changeglot" / "spool"
    assert isinstance(made.source, capture.Captured)
    server = made.source.server
    recorder = part("postgres").Recorder(server, Spool(folder), waits=True)
    rows = recorder.prepare()
    reading = Reading(folder)
    reading.begin(rows, ())
    pieces = list(reading.left.items())
    assert len(pieces) > 3
    # The first and the last, into whose blocks rows of others go; then it is killed.
    reading.job(partial(pgrows.copy, server, rows.name), rows)([pieces[0], pieces[-1]])
    rows.close()
    read = sum(len(path.read_text().splitlines()) for path in (folder / "segments").iterdir())
    shop.sql(
        "UPDATE a SET name = 'moved' WHERE id % 3 = 0",
        "UPDATE a SET id = id + 1000 WHERE id % 7 = 0",
        "DELETE FROM a WHERE id % 11 = 0",
        "INSERT INTO a SELECT n, 'late', repeat(n::text, 2000) FROM generate_series(301, 310) n",
    )
    run_through(made, spark)
    assert mirror(spark, made, shop, "a") == held(shop, "a")
    log = spark.table(made.sink.identifier(*shop.schema, "a__log"))
    # Those that were there were not read again; but those are, of whose changes one does not tell all.
    assert 0 < read < 300
    assert log.where("op = 'truncate'").count() == 0
    assert log.where("phase = 'snapshot' AND key['id'] = '1'").count() == 1
    again = replayed(spark, made, shop, "a")
    assert [(key, row["name"], row["body"]) for key, row in sorted(again.items())] == held(shop, "a")
    shop.sql("UPDATE a SET name = 'end' WHERE id % 2 = 0")
    run_through(made, spark)
    assert mirror(spark, made, shop, "a") == held(shop, "a")
