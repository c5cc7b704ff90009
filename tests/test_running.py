"""The commands on pipelines: the examples as they stand, and what is said when something is wrong."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from conftest import Run
from pyspark.sql import SparkSession
from shop import write
from test_pipelines import canal, row

from changeglot import cli
from changeglot.demo.show import SHOP
from changeglot.options import schema_of
from changeglot.running import Progress
from changeglot.sinks import SINKS
from changeglot.sources.progress import Extent, Read, followed, note
from changeglot.target import Upkeep

ALL_EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.yaml"))
#: Those of topics are in test_topics.py, those of databases in test_capture.py.
EXAMPLES = [path for path in ALL_EXAMPLES if yaml.safe_load(path.read_text())["source"]["type"] == "files"]
EXAMPLES = [path for path in EXAMPLES if "servers" not in path.read_text()]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_runs_as_it_stands(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, warehouse: Path, example: Path
) -> None:
    # Every table of the shop's life, under another database for each example: Iceberg has one folder for all.
    told = (SHOP / "canal.jsonl").read_text().replace('"shop"', f'"{example.stem}"')
    (tmp_path / "canal.jsonl").write_text(told)
    monkeypatch.setenv("MESSAGES", str(tmp_path))
    monkeypatch.setenv("LAKE", str(warehouse / yaml.safe_load(example.read_text())["sink"]["type"]))
    planned = run("check", example, "--json")
    assert planned.status == cli.DONE
    tables = {each["table"].split(".")[1]: each for each in json.loads(planned.out)["tables"]}
    assert tables.keys() == {"customers", "orders", "order_lines"}
    assert not any(each["exists"] for each in tables.values())
    assert "customers" in run("check", example).out
    done = run("run", example, "--json")
    # One message of the story is poisoned.
    assert done.status == cli.BAD, done.err
    told = json.loads(done.out)
    assert told["quarantined"] == 1
    assert all(count > 0 for count in told["changes"].values())
    again = run("run", example, "--json")
    assert again.status == cli.DONE
    assert json.loads(again.out)["batches"] == 0
    listed = json.loads(run("quarantine", "list", example, "--json").out)
    assert [each["count"] for each in listed] == [1]
    shown = json.loads(run("quarantine", "show", example, listed[0]["id"], "--json").out)
    assert shown[0]["value"] in told_lines(tmp_path)
    assert run("quarantine", "replay", example).status == cli.BAD
    assert "1 dropped" in run("quarantine", "drop", example).out


def told_lines(folder: Path) -> list[str]:
    return (folder / "canal.jsonl").read_text().splitlines()


def test_the_schema_knows_every_word_of_the_examples(run: Run) -> None:
    schema = json.loads(run("schema").out)
    for example in ALL_EXAMPLES:
        words = yaml.safe_load(example.read_text())
        assert words.keys() <= schema["properties"].keys()
        for rule in words.get("tables", ()):
            assert rule.keys() <= schema["properties"]["tables"]["items"]["properties"].keys()
    kinds = {kind["properties"]["type"]["const"] for kind in schema["properties"]["sink"]["anyOf"][0]["oneOf"]}
    assert kinds == set(SINKS)
    assert schema_of(Upkeep)["properties"]["every"]["type"] == "integer"


def file(folder: Path, lake: Path, **words: Any) -> Path:
    """A pipeline's file. Any: its words."""
    content = {
        "source": {"type": "files", "path": str(folder / "messages"), "files_per_batch": 1},
        "sink": {"type": "delta", "path": str(lake)},
        **words,
    }
    path = folder / "pipeline.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_what_is_wrong_is_told_in_a_line_and_by_the_status(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "messages", [[canal("wrong", "INSERT", [row(1)])]])
    broken = tmp_path / "broken.yaml"
    broken.write_text("source: {type: files")
    done = run("run", broken)
    assert done.status == cli.WRONG
    assert "is not YAML" in done.err

    done = run("run", file(tmp_path, tmp_path / "lake", surce={}))
    assert done.status == cli.WRONG
    assert 'Did you mean "source"?' in done.err

    # A folder below a file cannot be made.
    (tmp_path / "file").write_text("")
    done = run("run", file(tmp_path, tmp_path / "file" / "lake"))
    assert done.status == cli.FAILED
    assert len(done.err.splitlines()) <= 3
    assert str(tmp_path / "file") in done.err

    write(tmp_path / "messages", [[canal("wrong", "INSERT", [row(1)], pkNames=None)]])
    made = file(
        tmp_path,
        tmp_path / "lake",
        checkpoint=str(tmp_path / "other"),
        source={"type": "files", "path": str(tmp_path / "messages" / "0001.jsonl")},
    )
    done = run("run", made)
    assert done.status == cli.WRONG, done.err
    assert '"wrong.orders" has no key' in done.err
    assert not (tmp_path / "lake" / "wrong").exists()


def test_a_type_that_cannot_be_followed_stops_the_run_before_it_writes(
    spark: SparkSession, run: Run, tmp_path: Path
) -> None:
    made = file(tmp_path, tmp_path / "lake", schema_change="evolve")
    write(tmp_path / "messages", [[canal("types", "INSERT", [row(1)])]])
    assert run("run", made).status == cli.DONE
    other = {"id": "bigint(20)", "name": "varchar(40)", "amount": "date"}
    write(tmp_path / "messages", [[canal("types", "INSERT", [row(2, amount="2024-01-01")], types=other)]])
    done = run("run", made)
    assert done.status == cli.WRONG
    assert 'column "amount" was decimal(12,2) and is date' in done.err
    assert spark.table(f"delta.`{tmp_path}/lake/types/orders`").count() == 1


def test_a_damaged_checkpoint_is_told_and_can_be_removed(spark: SparkSession, run: Run, tmp_path: Path) -> None:
    made = file(tmp_path, tmp_path / "lake")
    write(tmp_path / "messages", [[canal("damaged", "INSERT", [row(1)])]])
    assert run("run", made).status == cli.DONE
    notes = tmp_path / "lake" / "_changeglot" / "pipeline"
    for each in (notes / "offsets").iterdir():
        each.write_bytes(b"\x00damaged")
    (notes / "offsets" / ".0.crc").unlink(missing_ok=True)
    write(tmp_path / "messages", [[canal("damaged", "INSERT", [row(2)])]])
    done = run("run", made)
    assert done.status == cli.WRONG, done.err
    assert str(notes) in done.err
    shutil.rmtree(notes)
    assert run("run", made).status == cli.DONE
    assert spark.table(f"delta.`{tmp_path}/lake/damaged/orders`").count() == 2


def test_a_full_disk_is_told_and_the_run_goes_on_when_there_is_room(
    spark: SparkSession, run: Run, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "none", str(lake)], check=False).returncode:
        pytest.skip("no disk can be made that is small enough to fill")
    try:
        many = [canal("full", "INSERT", [row(n, name=os.urandom(1500).hex()) for n in range(400)])]
        write(tmp_path / "messages", [many])
        made = file(tmp_path, lake)
        done = run("run", made)
        assert done.status == cli.FAILED
        assert "No space left on device" in done.err
        subprocess.run(["mount", "-o", "remount,size=64m", str(lake)], check=True)
        assert run("run", made).status == cli.DONE
        assert spark.table(f"delta.`{lake}/full/orders`").count() == 400
    finally:
        subprocess.run(["umount", "-l", str(lake)], check=True)


def test_how_far_rows_are_read_is_counted_by_the_pieces_that_tasks_have_read(tmp_path: Path) -> None:
    pieces = [
        (name, SimpleNamespace(of=of, rows=rows)) for name, of, rows in (("1", "a", 100), ("2", "a", 50), ("3", "b", 7))
    ]
    note(tmp_path, "1", 5)  # By one who was killed.
    heard: list[Extent] = []
    with followed(tmp_path, pieces, heard.append):
        note(tmp_path, "1", 90)
        while len(heard) < 2:
            time.sleep(0.01)
        note(tmp_path, "2", 60)
        note(tmp_path, "3", 0)
    assert heard[:2] == [{"a": Read(0, 150, 2), "b": Read(0, 7, 1)}, {"a": Read(90, 140, 1), "b": Read(0, 7, 1)}]
    assert heard[-1] == {"a": Read(150, 150, 0), "b": Read(0, 0, 0)}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("progress", "first", "last"),
    [
        (
            Progress(quiet=False, shown=False, began=1),
            "33%, 50 of about 150 rows read: a 50%, b 0%\n",
            "150 rows of 2 tables read in ",
        ),
        (
            Progress(quiet=False, shown=True),
            "░░ 33%, 50 of about 150 rows read: a 50%, b 0%",
            "150 rows of 2 tables read in ",
        ),
        (
            Progress(quiet=True, shown=True, as_json=True, began=1),
            '{"reading": {"a": {"rows": 50, "of_about": 100}, "b": {"rows": 0, "of_about": 50}}}\n',
            '{"reading": {"a": {"rows": 100, "of_about": 100}, "b": {"rows": 50, "of_about": 50}}}\n',
        ),
        (Progress(quiet=True, shown=True), "", ""),
    ],
)
def test_rows_that_are_read_are_told_as_who_listens_wants_it(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, progress: Progress, first: str, last: str
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    progress.hear({"a": Read(50, 100, 1), "b": Read(0, 50, 1)})
    told = capfd.readouterr().err
    assert first in told
    assert bool(told) == bool(first)
    progress.hear({"a": Read(100, 100, 0), "b": Read(50, 50, 0)})
    told = capfd.readouterr().err
    assert last in told
    assert bool(told) == bool(last)
