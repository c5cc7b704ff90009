"""What Electric's own client has of tables that are captured and served is what their source has, whoever is killed."""

from __future__ import annotations

import shutil
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs
from pyspark.sql import SparkSession
from shop import Shop
from test_serve import PATIENCE, Got, Shopping, electric, following, serving

from changeglot import config
from changeglot.serve.answers import Reply
from changeglot.serve.asked import asked
from changeglot.serve.delta import Cache, DeltaLog
from changeglot.serve.history import History
from changeglot.serve.shapes import Definition, Offset, Part, Shape
from changeglot.settings import configured

__all__ = ["electric"]

#: A client that is told to try again soon: how long it waits is no part of what is tested.
EAGER = {"backoffOptions": {"initialDelay": 100, "maxDelay": 500, "multiplier": 1.5}}


@pytest.fixture(scope="module")
def kept(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shopping:
    """A shop of two batches."""
    made = Shopping(spark, tmp_path_factory.mktemp("kept"), "kept", Shop(5, "kept", keys=20))
    made.go_on(20)
    made.go_on(20)
    return made


@dataclass
class Behind:
    """A copy of a table without its last version, which comes when it is told to."""

    made: Shopping
    last: Path
    aside: Path

    @classmethod
    def of(cls, kept: Shopping, folder: Path) -> Behind:
        shutil.copytree(kept.folder / "lake", folder / "lake")
        last = max((folder / "lake" / "kept" / "orders" / "_delta_log").glob("*.json"))
        return cls(replace(kept, folder=folder), last, last.rename(folder / last.name))

    def come(self) -> None:
        self.aside.rename(self.last)


def test_who_waits_is_told_of_what_another_request_saw_first(kept: Shopping, tmp_path: Path) -> None:
    behind = Behind.of(kept, tmp_path)
    with serving(behind.made, poll_seconds=10 * PATIENCE, look_ms=2000) as server:
        query = {"table": "kept.orders", "offset": "now"}
        first = server.ask(query)
        live = {**query, "offset": first.offset, "handle": first.handle, "live": "true"}
        waited: list[Got] = []
        waiting = threading.Thread(target=lambda: waited.append(server.ask(live)))
        waiting.start()
        time.sleep(0.5)
        behind.come()
        # A handle that is newer than what a server knows makes it look.
        assert server.ask({**query, "offset": "0_inf", "handle": f"1-{int(behind.last.stem)}"}).status == 409
        waiting.join(PATIENCE)
        assert [got.headers["electric-has-data"] for got in waited] == ["true"]


def test_a_change_that_comes_while_an_answer_is_made_is_told_by_the_next(kept: Shopping, tmp_path: Path) -> None:
    behind = Behind.of(kept, tmp_path)

    class Late(Shape):
        def changes(self, base: int, after: Offset, limit: int) -> Part:
            part = super().changes(base, after, limit)
            if behind.aside.exists():
                behind.come()
                self.history.advance()
            return part

    log = DeltaLog(fs.LocalFileSystem(), str(behind.last.parents[1]), Cache(1 << 20))
    history = History(log, ("kept", "orders"), every=100, keep=100)
    history.advance()
    query = {"table": "kept.orders", "offset": "now"}
    shape = Late(history, Definition(), history.facts, None)
    now = Reply(shape, asked(query), 1000, 20).first()
    assert now is not None
    for data in ("false", "true"):
        live = {"offset": now.headers["electric-offset"], "handle": now.headers["electric-handle"], "live": "true"}
        now = Reply(shape, asked({**query, **live}), 1000, 20).changes(last=True)
        assert now is not None
        assert now.headers["electric-has-data"] == data


def test_upkeep_harms_no_client_and_those_whose_files_are_gone_begin_anew(kept: Shopping, electric: Path) -> None:
    made, spark = kept, kept.spark
    table = config.pipeline(made.content, "any").sink.identifier("kept", "orders")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES (delta.checkpointInterval = 3)")
    shapes = [
        {"params": {"table": "kept.orders"}, **EAGER},
        {"params": {"table": "kept.orders", "where": "id > 5", "replica": "full"}, "liveSse": True, **EAGER},
    ]

    def expected() -> dict[int, Any]:
        return {0: made.rows(), 1: made.rows(where=lambda row: row["id"] > 5)}

    def tidy() -> None:
        spark.sql(f"OPTIMIZE {table}")
        with configured(spark, {"spark.databricks.delta.retentionDurationCheck.enabled": "false"}):
            spark.sql(f"VACUUM {table} RETAIN 0 HOURS")

    with ExitStack() as stack:
        server = stack.enter_context(serving(made))
        client = stack.enter_context(following(electric, server.url, shapes))
        client.until(expected())
        for _ in range(3):
            made.go_on(10)
            client.until(expected())
            tidy()
        assert {control for _, control in client.controls} == {"snapshot-end"}
        assert list(made.folder.glob("lake/kept/orders/_delta_log/*.checkpoint.parquet"))
        server.kill()
        made.go_on(10)
        tidy()
        made.go_on(10)
        tidy()
        server = stack.enter_context(serving(made, server.port))
        # One that comes now finds the rows that others began with gone, too.
        late = stack.enter_context(following(electric, server.url, shapes))
        for each in (client, late):
            each.until(expected())
        assert {(number, "must-refetch") for number in (0, 1)} <= set(client.controls)
        made.go_on(10)
        for each in (client, late):
            each.until(expected())
