"""Of PostgreSQL's tables, clients are told of its own transactions."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from recorded import until
from test_capture import Shop
from test_serve import ELECTRIC, PATIENCE, Served, Shopping, pages, serving

from changeglot import config
from changeglot.throwaway.databases import Postgres


@dataclass
class Numbered:
    """A database that is captured into current rows and a log, a batch at a time."""

    spark: SparkSession
    place: Shop

    @property
    def folder(self) -> Path:
        return self.place.folder

    @property
    def content(self) -> dict[str, Any]:
        """Any: of YAML."""
        return {
            "name": "numbered",
            "source": self.place.source,
            "sink": {"type": "delta", "path": str(self.folder / "lake")},
            "tables": [{"match": "*", "mode": ["scd1", "append"], "into": "{schema}.{table}"}],
            "checkpoint": str(self.folder / "notes"),
        }

    def apply(self) -> None:
        config.pipeline(self.content, "").run(self.spark).awaitTermination()

    def entries(self, table: str) -> dict[tuple[str, str], tuple[int, int]]:
        """Of changes of rows, by transaction and key, the position and the order that the log has."""
        log = self.spark.table(f"delta.`{self.folder}/lake/public/{table}__log`").where("phase = 'stream'")
        return {
            (row["transaction"]["ids"][0], row["key"]["id"]): (int(row["position"][0]), int(row["position"][1]))
            for row in log.collect()
        }


@pytest.fixture(scope="module")
def numbered(spark: SparkSession, newest: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Numbered]:
    made = Numbered(spark, Shop(newest, tmp_path_factory.mktemp("numbered")))
    for table in "tsu":
        made.place.sql(
            f"CREATE TABLE {table} (id int PRIMARY KEY, name text)",
            f"INSERT INTO {table} SELECT n, 'n' || n FROM generate_series(1, 4) n",
        )
    made.apply()
    yield made
    made.place.end()


def served(numbered: Numbered, **options: Any) -> Any:
    """Any: options of `serve`; a context of a server."""
    return serving(cast("Shopping", numbered), **options)


def has(view: Mapping[str, Any], transaction: str) -> bool:
    """As Electric's client sees it. Any: JSON."""
    number = int(transaction)
    running = set(map(int, view["xip_list"]))
    return number < int(view["xmin"]) or (number < int(view["xmax"]) and number not in running)


def told(server: Served, table: str, **more: str) -> list[Any]:
    """The messages of a first sync. Any: JSON."""
    return [each for got in pages(server, table=f"public.{table}", **more) for each in got.json]


def subset(server: Served, table: str, handle: str) -> dict[str, Any]:
    """What is told of the rows of a subset. Any: JSON."""
    query = {
        "table": f"public.{table}",
        "offset": "now",
        "handle": handle,
        "subset__limit": "9",
        "subset__order_by": "id",
    }
    found: dict[str, Any] = server.ask(query).json["metadata"]
    return found


def test_messages_tell_of_the_source_and_of_its_transactions(numbered: Numbered) -> None:
    place = numbered.place
    with served(numbered) as server:
        (got, *_) = pages(server, table="public.t")
        # It began before all others, and ends when they are told.
        with place.connect() as connection:
            connection.execute("BEGIN")
            ((long,),) = connection.execute("SELECT pg_current_xact_id()::text").fetchall()
            connection.execute("INSERT INTO t VALUES (7, 'long')")
            ids = [
                place.transaction("UPDATE t SET name = 'a' WHERE id = 1"),
                place.transaction("DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (5, 'e')"),
                place.transaction("UPDATE t SET id = 30 WHERE id = 3"),
                place.transaction("INSERT INTO t VALUES (6, 'f')"),
                place.transaction("DELETE FROM t WHERE id = 6"),
                place.transaction("UPDATE t SET name = 'b' WHERE id = 1"),
            ]
            numbered.apply()
            view = subset(server, "t", got.handle)
            assert [has(view, each) for each in (*ids, long)] == [True] * len(ids) + [False]
            connection.execute("COMMIT")
        numbered.apply()
        after = subset(server, "t", got.handle)
        assert all(has(after, each) for each in (*ids, long))
        assert int(after["database_lsn"]) > int(view["database_lsn"])
        messages = told(server, "t")
        changes = [each for each in messages if "lsn" in each["headers"]]
        at = numbered.entries("t")
        key = '"public"."t"/"{}"'.format
        # What was told of each: what it is, by whom, where, and what else.
        wanted = [
            (key(2), "delete", [ids[1]], at[ids[1], "2"], {}),
            (key(5), "insert", [ids[1]], at[ids[1], "5"], {"last": True}),
            (key(3), "delete", [ids[2]], at[ids[2], "3"], {"key_change_to": key(30)}),
            (key(30), "insert", [ids[2]], _next(at[ids[2], "3"]), {"key_change_from": key(3), "last": True}),
            # Two that left nothing are told with the last.
            (key(1), "update", [ids[0], ids[5], ids[3], ids[4]], at[ids[5], "1"], {"last": True}),
            (key(7), "insert", [long], at[long, "7"], {"last": True}),
        ]
        assert [_said(each) for each in changes] == [
            (name, op, list(map(int, by)), (str(place[0]), place[1]), more) for name, op, by, place, more in wanted
        ]
        assert int(changes[-1]["headers"]["lsn"]) <= int(messages[-1]["headers"]["global_last_seen_lsn"])
        (end,) = [each["headers"] for each in messages if each["headers"].get("control") == "snapshot-end"]
        assert not any(has(end, each) for each in (*ids, long))
        # In a condition, both sides of a key that changed are told of, or it is as any other.
        part = [_said(each) for each in told(server, "t", where="id < 10") if "lsn" in each["headers"]]
        assert [each for each in part if each[0] == key(3)] == [
            (key(3), "delete", [int(ids[2])], (str(at[ids[2], "3"][0]), at[ids[2], "3"][1]), {"last": True})
        ]
        with served(numbered) as other:
            assert [got.body for got in pages(server, table="public.t")] == [
                got.body for got in pages(other, table="public.t")
            ]


def _next(place: tuple[int, int]) -> tuple[int, int]:
    return place[0], place[1] + 1


def _said(message: Mapping[str, Any]) -> tuple[Any, ...]:
    """Any: JSON."""
    headers = dict(message["headers"])
    op, by, place = headers.pop("operation"), headers.pop("txids"), (headers.pop("lsn"), headers.pop("op_position"))
    del headers["relation"]
    return message["key"], op, by, place, headers


def test_a_truncate_is_told_with_its_transaction_and_changes_of_a_table_that_is_read_again_have_none(
    numbered: Numbered,
) -> None:
    place = numbered.place
    with served(numbered) as server:
        (got, *_) = pages(server, table="public.s")
        number = place.transaction("TRUNCATE s", "INSERT INTO s VALUES (1, 'x'), (9, 'y')")
        numbered.apply()
        changes = [each for each in told(server, "s") if "lsn" in each["headers"]]
        assert {tuple(each["headers"]["txids"]) for each in changes} == {(int(number),)}
        order = [(int(each["headers"]["lsn"]), each["headers"]["op_position"]) for each in changes]
        assert order == sorted(order)
        assert [each["headers"]["operation"] for each in changes] == ["delete"] * 4 + ["insert"] * 2
        # Rows that are read again belong to no transaction.
        config.pipeline(numbered.content, "").resync(["public.s"])
        place.sql("INSERT INTO s VALUES (10, 'z')")
        numbered.apply()
        query = {"table": "public.s", "handle": got.handle, "offset": got.offset}
        last = [each for each in server.ask(query).json if "lsn" in each["headers"]][len(changes) :]
        assert {each["key"] for each in last} >= {'"public"."s"/"10"'}
        assert {tuple(each["headers"]["txids"]) for each in last} == {()}
        numbers = [int(each["headers"]["lsn"]) for each in (*changes, *last)]
        assert numbers == sorted(numbers)


@contextmanager
def waiting(electric: Path, url: str, table: str) -> Iterator[tuple[Any, queue.Queue[Any]]]:
    """TanStack DB's collection in Node; Any: a stream of text, and JSON."""
    command = ["node", str(ELECTRIC / "await.mjs"), str(electric), url, table]
    lines: queue.Queue[Any] = queue.Queue()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        threading.Thread(target=lambda: deque(map(lines.put, map(json.loads, process.stdout or ())), 0)).start()
        try:
            yield process.stdin, lines
        finally:
            process.kill()


def test_an_app_waits_for_its_own_transaction(numbered: Numbered, electric: Path) -> None:
    place = numbered.place
    with served(numbered) as server, waiting(electric, server.url, "public.u") as (ask, lines):
        assert [each for each, _ in lines.get(timeout=PATIENCE)["rows"]] == [1, 2, 3, 4]
        mine = place.transaction("UPDATE u SET name = 'mine' WHERE id = 1")
        undone = place.transaction("UPDATE u SET name = 'other' WHERE id = 1")
        ask.write(f"{mine}\n{undone}\n")
        # Nobody has told of it yet.
        with pytest.raises(queue.Empty):
            lines.get(timeout=3)
        numbered.apply()
        found = [lines.get(timeout=PATIENCE) for _ in range(2)]
        assert {each["transaction"] for each in found} == {int(mine), int(undone)}
        assert all(each["rows"][0] == [1, "other"] for each in found)

        def lag() -> float | None:
            (found,) = [each for each in server.ask(path="/v1/tables").json["tables"] if each["table"] == "public.u"]
            return cast("float | None", found["lag_seconds"])

        # A moment later it is known how far behind that was.
        until(lambda: (lag() or 0) > 0, PATIENCE)


def test_a_lake_that_follows_another_has_its_rows(numbered: Numbered, tmp_path: Path) -> None:
    place = numbered.place
    place.sql("CREATE TABLE f (id int PRIMARY KEY, name text)", "INSERT INTO f VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    numbered.apply()
    spark = numbered.spark
    with served(numbered, chunk_bytes=600) as server:
        content = {
            "name": "following",
            "source": {"type": "electric", "url": server.url, "tables": ["public.f"]},
            "sink": {"type": "delta", "path": str(tmp_path / "lake")},
            "checkpoint": str(tmp_path / "notes"),
        }
        for statements in (
            ("TRUNCATE f", "INSERT INTO f SELECT n, 'n' || n FROM generate_series(1, 40) n"),
            (
                "UPDATE f SET id = id + 100 WHERE id % 2 = 0",
                "INSERT INTO f VALUES (2, 'back')",
                "DELETE FROM f WHERE id = 1",
            ),
        ):
            config.pipeline(content, "").run(spark).awaitTermination()
            # Two transactions, in one batch.
            for each in (statements[:1], statements[1:]):
                place.transaction(*each)
            numbered.apply()
        config.pipeline(content, "").run(spark).awaitTermination()
    rows = spark.table(f"delta.`{tmp_path}/lake/public/f`").select("id", "name").orderBy("id").collect()
    assert [tuple(row) for row in rows] == place.sql("SELECT id, name FROM f ORDER BY id")
