"""A pipeline that fails after every step and is killed at random moments: its tables are as if nothing had been."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from conftest import lakes
from pyspark.sql import SparkSession
from shop import TYPES, Shop, cut, write
from test_pipelines import SINKS, expected, pipeline, stored, versions

from changeglot.target import LOG

TABLES = ("orders", "items", "stock", "people")
RULES: list[dict[str, Any]] = [
    {"match": "*.orders", "mode": ["scd1", "scd2", "append"]},
    {"match": "*.items", "mode": "scd1"},
    {"match": "*.stock", "mode": "scd2"},
    {"match": "*.people", "mode": "append"},
]
TABLES_OF = [{**rule, "keys": ["id"], "columns": TYPES} for rule in RULES]
#: After each sink's steps in turn it is killed so often at random moments.
AT_RANDOM = 15


class Victim:
    """A pipeline in a process of its own."""

    def __init__(self, folder: Path, content: dict[str, Any], warehouse: Path) -> None:
        """Any: words of the YAML file."""
        self.folder = folder
        settings = {**lakes(warehouse), "spark.ui.showConsoleProgress": "false"}
        folder.mkdir()
        (folder / "pipeline.json").write_text(json.dumps(content))
        (folder / "settings.json").write_text(json.dumps(settings))

    def start(self, step: int | Literal["each"] = 0) -> subprocess.Popen[str]:
        files = [str(self.folder / name) for name in ("pipeline.json", "settings.json")]
        command = [sys.executable, str(Path(__file__).parent / "killed.py"), *files, str(step)]
        with (self.folder / "log").open("a") as log:
            return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)

    def run(self, step: int = 0) -> bool:
        """Did it come to its end?"""
        process = self.start(step)
        process.communicate(timeout=300)
        assert process.returncode in (0, -signal.SIGKILL), (self.folder / "log").read_text()[-2000:]
        return process.returncode == 0

    def fail_at_each(self) -> int:
        """It fails after each of its steps in turn, and comes to its end; how often it failed."""
        process = self.start("each")
        out, _ = process.communicate(timeout=1200)
        assert process.returncode == 0, (self.folder / "log").read_text()[-2000:]
        return int(out.split("done ")[1])

    def kill_after(self, seconds: float, meanwhile: Callable[[], object] = lambda: None) -> None:
        process = self.start()
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", (self.folder / "log").read_text()[-2000:]
        time.sleep(seconds)
        meanwhile()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)


def from_files(folder: Path, kind: str, warehouse: Path) -> Victim:
    """A victim that reads files in the folder's `messages`."""
    content = {
        "source": {"type": "files", "path": str(folder / "messages"), "files_per_batch": 1, "format": "oms-typed"},
        "sink": {"type": kind, "path": str(warehouse / kind)},
        "tables": TABLES_OF,
    }
    return Victim(folder, content, warehouse)


def killed(victim: Victim, batches: list[list[str]], rng: random.Random) -> int:
    """The pipeline over all batches, failing after each step of the first one, then killed at random; how often."""
    write(victim.folder / "messages", batches[:1])
    failed = victim.fail_at_each()
    write(victim.folder / "messages", batches[1:])
    for _ in range(AT_RANDOM):
        victim.kill_after(rng.uniform(0.5, 12))
    assert victim.run()
    return failed + AT_RANDOM


def test_failing_after_every_step_and_killed_at_random_the_tables_equal_the_model(
    spark: SparkSession, tmp_path: Path, warehouse: Path
) -> None:
    victims, shops = [], []
    for number, kind in enumerate(SINKS):
        shop = Shop(number, f"killed_{kind}", TABLES, keys=5)
        while len(shop.changes) < 80:
            shop.step()
        victims.append(from_files(tmp_path / kind, kind, warehouse))
        shops.append(shop)
    told = []
    for shop in shops:
        # The first batch has changes of all tables, so that every step there is comes in it.
        lines = shop.lines(spark, "oms-typed")
        told.append([lines[:40], *cut(lines[40:], 3, shop.rng)])
        assert {change["relation"].table for change in shop.changes[:40]} == set(TABLES)
    with ThreadPoolExecutor(2) as pool:
        kills = list(pool.map(killed, victims, told, [random.Random(1), random.Random(2)]))
    assert sum(kills) > 50
    for kind, shop in zip(SINKS, shops, strict=True):
        made = pipeline(kind, warehouse, tmp_path / kind / "messages", tables=TABLES_OF)
        for table in ("orders", "items"):
            rows = {key: row for (of, key), row in shop.model.rows.items() if of == table}
            assert stored(spark, made, shop.database, table) == rows
        assert versions(spark, made, shop.database, "orders__history") == expected(shop, "orders")
        assert versions(spark, made, shop.database, "stock") == expected(shop, "stock")
        for table in ("orders", "people"):
            log = spark.table(made.sink.identifier(shop.database, table + LOG))
            assert log.count() == shop.model.changes[table]
