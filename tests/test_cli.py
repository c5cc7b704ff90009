"""The command line, with real files, in one session."""

from __future__ import annotations

import base64
import bz2
import contextlib
import gzip
import io
import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import URLError

import pytest
from conftest import Ran, Run
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import changeglot
from changeglot import cli, inputs
from changeglot.codecs import codec
from changeglot.demo import live, show
from changeglot.demo.show import DIFFERENT, MISSING, PART, SAME, SHOP, UNSPOKEN

EMOJI = "\N{FOX FACE}"


def alone(*argv: str, **changed: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in a process of its own, with another environment."""
    environment = {name: value for name, value in {**os.environ, **changed}.items() if value}
    command = [sys.executable, "-m", "changeglot", *argv]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def told(number: int, data: Mapping[str, object] | None = None, *, op: str = "ins") -> str:
    """A SharePlex message: the smallest of the seven."""
    meta = {"time": "2024-03-01T09:00:00", "op": op, "table": "shop.t", "rowid": f"shop.t-{number}", "scn": str(number)}
    return json.dumps({"data": {"id": number, **(data or {})}, "meta": meta}, ensure_ascii=False)


def ids(lines: Sequence[Any]) -> list[int]:
    """The rows that decoded changes are about. Any: changes as JSON."""
    return [int(line["after"]["id"]) for line in lines]


# Without Spark


def test_help_starts_without_spark() -> None:
    script = "import sys, changeglot.cli as c\ntry: c.main(['--help'])\nfinally: assert 'pyspark' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "translate" in done.stdout


def test_help_tells_the_exit_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["--help"], ["translate", "--help"]):
        with pytest.raises(SystemExit) as stopped:
            cli.main(argv)
        assert stopped.value.code == 0
        assert cli.STATUSES.strip() in capsys.readouterr().out


def test_wrong_usage_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in ([], ["nonsense"], ["translate", "x"], ["detect", "x", "--cores", "0"]):
        with pytest.raises(SystemExit) as stopped:
            cli.main(argv)
        assert stopped.value.code == cli.WRONG
    assert '"0" is not a number from 1' in capsys.readouterr().err


def test_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert changeglot.__version__ in capsys.readouterr().out


@pytest.mark.parametrize("name", list(changeglot.CODECS))
def test_explain_tells_of_every_format(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", name, "--json"]) == cli.DONE
    data = json.loads(capsys.readouterr().out)
    assert data["format"] == name
    assert data["writes"] == sorted(changeglot.CODECS[name].speaks)
    assert {"insert", "update", "delete"} <= data["reads"].keys()
    assert cli.main(["explain", name]) == cli.DONE
    text = capsys.readouterr().out
    assert all(loss["field"] in text and loss["why"].split()[0] in text for loss in data["losses"])
    assert all(f"{name}.{option['option']}=" in text for option in data["options"])
    assert max(map(len, text.splitlines())) <= 100


def test_explain_lists_the_formats_and_takes_their_aliases(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "--json"]) == cli.DONE
    assert [row["format"] for row in json.loads(capsys.readouterr().out)] == list(changeglot.CODECS)
    assert cli.main(["explain"]) == cli.DONE
    assert "shareplex" in capsys.readouterr().out
    assert cli.main(["explain", "DefaultExtendColumnType", "Sharplex", "--json"]) == cli.DONE
    pair = json.loads(capsys.readouterr().out)
    assert (pair["from"], pair["to"]) == ("oms-typed", "shareplex")
    assert [loss["field"] for loss in pair["losses"]] == [
        loss.field for loss in changeglot.lost_between("oms-typed", "shareplex")
    ]
    assert cli.main(["explain", "oms-typed", "shareplex"]) == cli.DONE
    assert "shareplex cannot carry" in capsys.readouterr().out


def test_explain_matrix_has_all_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "--matrix", "--json"]) == cli.DONE
    data = json.loads(capsys.readouterr().out)
    assert {(a, b) for a in data for b in data[a]} == {(a, b) for a in changeglot.CODECS for b in changeglot.CODECS}
    assert cli.main(["explain", "--matrix"]) == cli.DONE
    assert str(len(data["canal"]["electric"])) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["explain", "cannal"], 'Did you mean "canal"?'),
        (["explain", "oms", "canal", "electric"], "Name none, one or two"),
        (["decode", "/nowhere/at.all"], 'no input "/nowhere/at.all"'),
        (["decode", "/nowhere/*.json"], 'no input "/nowhere/*.json"'),
        (["decode", "-", "-"], "standard input is named twice"),
        (["decode", "-", "--from", "nonsense"], 'no format "nonsense"'),
        (["decode", "-", "--option", "canal"], "Write format.name=value"),
        (["decode", "-", "--option", "canal.dialekt=native"], 'Did you mean "dialect"?'),
        (["decode", "-", "--option", "canal.dialect=x"], 'no choice "x"'),
        (["decode", "-", "--tables", "/nowhere.yaml"], "/nowhere.yaml"),
        (["translate", "-", "--to", "nonsense"], 'no format "nonsense"'),
        (["translate", "-", "--to", "oms", "--output", "/"], "is there already"),
    ],
)
def test_a_mistake_is_told_in_words_before_spark_starts(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(_: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(cli, "_session", started)
    assert cli.main(argv) == cli.WRONG
    err = capsys.readouterr().err
    assert err.startswith("changeglot: ")
    assert said in err
    assert "Traceback" not in err


def test_a_missing_java_is_told_with_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text(told(1))
    done = alone("decode", str(tmp_path / "m.jsonl"), PATH=str(tmp_path), JAVA_HOME="")
    assert done.returncode == cli.WRONG
    assert "Java" in done.stderr
    assert "Install" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_stops_reading_is_no_error() -> None:
    command = [sys.executable, "-m", "changeglot", "explain", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
    assert process.returncode == cli.DONE
    assert err == b""


def test_an_interrupt_is_status_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "find", interrupted)
    assert cli.main(["detect", "x"]) == cli.INTERRUPTED


# Inputs


def test_inputs_come_in_the_order_given_and_sorted_within(tmp_path: Path) -> None:
    for name in ("d/b", "d/a", "d/.hidden", "d/_SUCCESS", "d/_temporary/x", "d/sub/c", "z[1]", "g2", "g1"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    names = [str(tmp_path / name) for name in ("z[1]", "d", "g*")]
    found = [Path(name).relative_to(tmp_path).as_posix() for name in inputs.find(names)]
    assert found == ["z[1]", "d/a", "d/b", "d/sub/c", "g1", "g2"]


def test_a_folder_without_files_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(inputs.InputError, match="hold no file"):
        inputs.find([str(tmp_path)])


def test_files_of_all_packings_are_read_in_order(
    run: Run, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in many splits, a gzip file, two frames of zstd, a file with odd names, stdin, an empty file."""
    monkeypatch.setattr(inputs, "SMALLEST_SPLIT", 4096)
    monkeypatch.setattr(inputs, "LARGEST_SPLIT", 4096)

    def lines(first: int, end: int) -> bytes:
        return b"".join(told(n).encode() + b"\n" for n in range(first, end))

    (tmp_path / "big.jsonl").write_bytes(lines(0, 200))
    (tmp_path / "packed").write_bytes(gzip.compress(lines(200, 208)))
    (tmp_path / "packed too").write_bytes(bz2.compress(lines(208, 210)))
    (tmp_path / "_x {1}: *.json").write_bytes(lines(210, 211).replace(b"\n", b"\r\n\n \t\r\n"))
    jvm = spark._jvm
    assert jvm is not None
    for first in (211, 213):
        stream = jvm.java.io.FileOutputStream(str(tmp_path / "two.zst"), True)
        packed = jvm.com.github.luben.zstd.ZstdOutputStream(stream)
        packed.write(lines(first, first + 2))
        packed.close()
    (tmp_path / "empty").touch()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines(215, 217).rstrip())))
    names = [tmp_path / name for name in ("big.jsonl", "packed", "packed too", "_x {1}: *.json", "two.zst", "empty")]
    before = spark.conf.get("spark.sql.files.maxPartitionBytes")
    done = run("decode", *names, "-", tmp_path / "big.jsonl", "--from", "shareplex", "--json")
    assert done.status == cli.DONE
    assert ids(done.lines) == [*range(217), *range(200)]
    assert done.summary["messages"] == done.summary["written"] == 417
    assert spark.conf.get("spark.sql.files.maxPartitionBytes") == before
    monkeypatch.setattr(inputs, "ORDERED_FILES", 1)
    many = run("decode", *names, "--from", "shareplex", "-q")
    assert sorted(ids(many.lines)) == [*range(215)], "packed into fewer tasks, all lines are still there"


def test_empty_inputs_are_read_as_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    done = run("translate", tmp_path, "--from", "shareplex", "--to", "oms", "--output", tmp_path / "out", "--json")
    assert done.status == cli.DONE
    assert done.summary["messages"] == 0
    assert [part.read_bytes() for part in (tmp_path / "out").iterdir()] == [b""]


def test_damaged_inputs_are_told_by_the_users_name(run: Run, tmp_path: Path) -> None:
    (tmp_path / "cut.gz").write_bytes(gzip.compress(told(1).encode() * 99)[:60])
    (tmp_path / "cut.zst").write_bytes(b"\x28\xb5\x2f\xfd nothing of the kind")
    for name in ("cut.gz", "cut.zst"):
        done = run("decode", tmp_path / name, "--from", "shareplex")
        assert done.status == cli.WRONG
        assert name in done.err
        assert "damaged" in done.err
        assert "Traceback" not in done.err


# Decoding


def test_absent_null_and_value_are_three_facts(run: Run, tmp_path: Path) -> None:
    message = {"id": "\\", "none": None, "empty": "", "name": EMOJI, "long": "\u0000", "no.dots": 1}
    (tmp_path / "m").write_text(told(1, message) + "\n" + told(2, op="ddl"), "utf-8")
    done = run("decode", tmp_path / "m", "--from", "shareplex")
    first, second = done.lines
    assert first["after"] == {**message, "no.dots": "1"}
    assert "before" not in first
    assert "after" not in second
    assert first["committed_at"] == "2024-03-01T09:00:00.000000Z"
    assert first["position"][0] == 1
    assert (first["format"], first["ordinal"]) == ("shareplex", 0)


def test_bad_messages_are_kept_with_reason_file_and_line(run: Run, tmp_path: Path) -> None:
    bad = {2: b'{"data": {"id"' + b" " * 99, 5: b"\xff\xfe\x00", 6: b"[]"}
    rows = [told(1).encode(), b"", b"", told(2).encode(), b"", b"", told(3).encode()]
    for line, content in bad.items():
        rows[line - 1] = content
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "b.jsonl").write_bytes(b"\n".join(rows))
    keyed = b'{"key": {"a": 1}, "value": {"meta": 1}}'
    (tmp_path / "in" / "a.jsonl").write_bytes(told(0).encode() + b"\r\n" + keyed)
    aside = tmp_path / "aside"
    for _ in range(2):
        done = run("decode", tmp_path / "in", "--quarantine", aside, "--from", "shareplex", "--json")
        assert done.status == cli.BAD
        assert ids(done.lines) == [0, 1, 2, 3]
        assert done.summary["bad"] == 4
    assert len(list(aside.iterdir())) == 4, "what an earlier run put there stays"
    latest = sorted(aside.iterdir())[2:]
    records = [json.loads(line) for part in latest for line in part.read_text("utf-8").splitlines()]
    name = str(tmp_path / "in" / "b.jsonl")
    assert [(r["file"], r["line"]) for r in records] == [
        (str(tmp_path / "in" / "a.jsonl"), 2),
        (name, 2),
        (name, 5),
        (name, 6),
    ]
    assert [base64.b64decode(r["value"]) for r in records] == [b'{"meta": 1}', *bad.values()]
    assert base64.b64decode(records[0]["key"]) == b'{"a": 1}'
    assert records[1]["value"] == base64.b64encode(bad[2]).decode()
    assert records[1]["text"].encode() == bad[2]
    assert "text" not in records[2]
    assert all(r["problem"] for r in records)


def test_without_a_quarantine_bad_messages_are_counted_and_placed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "m").write_text("\n".join(["{", '{"', told(1), *["{" + " " * n for n in range(5)]]), "utf-8")
    done = run("decode", tmp_path / "m", "--from", "shareplex", "-q")
    assert done.status == cli.BAD
    assert ids(done.lines) == [1]
    assert "changeglot: 7 bad" in done.err
    assert f"{tmp_path / 'm'}:1, {tmp_path / 'm'}:4, {tmp_path / 'm'}:5, ..." in done.err
    assert "lines written" not in done.err


# Translating


def test_translated_messages_read_back_with_their_keys(run: Run, tmp_path: Path) -> None:
    source = SHOP / "canal.jsonl"
    done = run(
        "translate",
        source,
        "--from",
        "canal",
        "--to",
        "arcion",
        "--with-key",
        "--output",
        tmp_path / "a" / "out",
        "--json",
    )
    assert done.status == cli.BAD, "one message of the shop is poisoned"
    assert done.out == ""
    parts = sorted((tmp_path / "a" / "out").iterdir())
    assert [part.name for part in parts] == ["part-00000.jsonl"]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["out"]
    lines = [json.loads(line) for line in parts[0].read_text("utf-8").splitlines()]
    assert {frozenset(line) for line in lines} == {frozenset({"key", "value"})}
    assert done.summary["written"] == len(lines)
    assert done.summary["untold"] == 2, "Arcion has no word for a DDL and a heartbeat"

    def rows(ran: Ran) -> list[Any]:
        return [(c["op"], c["relation"]["table"], c["key"], c.get("after")) for c in ran.lines if c["op"] == "insert"]

    back = run("decode", tmp_path / "a" / "out", "--from", "arcion")
    assert back.status == cli.DONE
    straight = run("decode", source, "--from", "canal")
    moved = ("insert", "customers", {"id": "30"})
    assert [row for row in rows(back) if row[:3] != moved] == rows(straight)
    again = run("translate", source, "--from", "canal", "--to", "arcion", "--output", tmp_path / "a" / "out")
    assert again.status == cli.WRONG
    assert "is there already" in again.err


def test_losses_are_counted_with_their_reasons(run: Run, tmp_path: Path) -> None:
    (tmp_path / "m").write_text(f"{told(1)}\n{told(2)}\n", "utf-8")
    argv = ("translate", tmp_path / "m", "--from", "shareplex", "--to", "canal")
    warned = run(*argv)
    assert warned.status == cli.DONE
    assert [line["data"][0]["id"] for line in warned.lines] == [1, 2]
    why = {loss.field: loss.why for loss in codec("canal").losses}
    assert f"2  position: {why['position']}" in warned.err
    assert "2 messages read, 2 lines written" in warned.err
    ignored = run(*argv, "--on-loss", "ignore", "--json")
    assert ignored.lines == warned.lines
    assert ignored.summary["lost"] == {}
    quiet = run(*argv, "-q")
    assert (quiet.status, quiet.err) == (cli.DONE, "")
    failed = run(*argv, "--on-loss", "fail", "--output", tmp_path / "out", "--json")
    assert failed.status == cli.LOST
    assert failed.out == ""
    assert not (tmp_path / "out").exists()
    assert failed.summary["lost"]["position"] == 2
    assert failed.summary["written"] == 0
    told_so = run(*argv, "--on-loss", "fail")
    assert (told_so.status, told_so.out) == (cli.LOST, "")
    assert "nothing was written" in told_so.err


def test_tables_and_options_reach_the_codecs(run: Run, tmp_path: Path) -> None:
    (tmp_path / "m").write_text(told(7, op="upd"), "utf-8")
    (tmp_path / "t.yaml").write_text("tables: {shop.t: {key: [id], columns: {id: bigint}}}", "utf-8")
    zone = "shareplex.zone=Asia/Shanghai"
    done = run("decode", tmp_path / "m", "--from", "SharePlex", "--tables", tmp_path / "t.yaml", "--option", zone)
    assert done.lines[0]["key"] == {"id": "7"}
    assert done.lines[0]["committed_at"] == "2024-03-01T01:00:00.000000Z"


# All formats at once


def test_detect_counts_each_format_with_its_evidence(run: Run, tmp_path: Path) -> None:
    (tmp_path / "strange").write_text('{"a": 1}\n[]\nno JSON\n', "utf-8")
    names = sorted(SHOP.glob("*.jsonl"))
    done = run("detect", *names, tmp_path / "strange", "--json")
    assert done.status == cli.BAD
    found = json.loads(done.out)
    # A heartbeat and a DDL of oms-typed are those of oms.
    counts = {of["format"]: of["messages"] for of in found["formats"]}
    assert counts.keys() == changeglot.CODECS.keys()
    assert found["unknown"] == 4
    lines = sum(len(name.read_bytes().splitlines()) for name in names) + 3
    assert found["messages"] == lines == found["unknown"] + sum(counts.values())
    assert all(proof["proof"] for of in found["formats"] for proof in of["evidence"])
    shown = run("detect", *names[:1])
    assert shown.status == cli.DONE
    assert shown.out.startswith("format")


class Story(NamedTuple):
    """What the demo said, what it printed, and what it had decoded."""

    fine: bool
    printed: str
    decoded: DataFrame


@pytest.fixture(scope="module")
def story(spark: SparkSession) -> Story:
    """The demo, run once for all its tests."""
    kept: list[DataFrame] = []

    def watched(decoded: DataFrame) -> list[show.Step]:
        kept.append(spark.createDataFrame(decoded.collect(), decoded.schema))
        return show.compare(kept[0])

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        fine = show.show(spark, watched)
    return Story(fine, printed.getvalue(), kept[0])


def test_the_demo_shows_that_all_tellings_are_the_same(story: Story) -> None:
    assert story.fine
    assert "canal.jsonl:11  not JSON" in story.printed
    assert "from \\ to" in story.printed
    assert "changeglot explain" in story.printed
    shown = story.printed.split("Try next")[0]
    assert max(map(len, shown.splitlines())) <= 100


def test_the_demo_tells_from_files_where_no_server_can_be_had_and_fails_if_a_telling_differs(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    monkeypatch.setattr(show, "show", lambda _: False)
    done = run("demo")
    assert done.status == cli.FAILED
    (why,) = (line for line in done.err.splitlines() if "x86-64" in line)
    assert "there can be no PostgreSQL here, so the shop's life comes from files" in why
    monkeypatch.setattr(show, "show", lambda _: True)
    assert run("demo", "-q") == (cli.DONE, "", "")
    assert run("demo", "--files", "-q").status == cli.DONE


def test_the_demo_watches_a_database_and_mirrors_it(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    compared, wrong = live.compared, []

    def twice(spark: SparkSession, shop: live.Shop) -> bool:
        with shop.connection.transaction(force_rollback=True):
            shop.connection.execute("UPDATE orders SET total = total + 0.01 WHERE id = 7")
            wrong.append(compared(spark, shop))
        return compared(spark, shop)

    monkeypatch.setattr(live, "compared", twice)
    done = run("demo")
    assert done.status == cli.DONE, done.err
    assert wrong == [False]
    assert "orders: 10,000 rows, and the mirror DIFFERS" in done.out
    assert "customers: 3 rows, all equal; orders: 10,000 rows, all equal" in done.out
    assert "10,003 rows of 2 tables read" in done.err
    # What arrived: of the update not what it left alone, and nothing of what was rolled back.
    told = [line.split(" s  ")[1] for line in done.out.splitlines() if re.match(" +[0-9.]+ s  ", line)]
    assert [line.split()[:3] for line in told] == [
        ["insert", "customers", "4"],
        ["update", "customers", "2"],
        ["update", "customers", "4"],
        ["delete", "customers", "3"],
    ]
    assert [line.split("  ")[-1] for line in told[1:2]] == [
        "id=2 name=Ben vip=true (notes untouched: not told, and kept)"
    ]
    spelt = done.out.split("as each format would tell it")[1].split("Try next")[0]
    assert [line.split()[0] for line in spelt.splitlines()[2:-1]] == list(changeglot.CODECS)
    assert max(map(len, done.out.split("Try next")[0].splitlines())) <= 100
    gone(done.err, tmp_path)


def test_a_shop_that_is_served_is_followed_by_the_client_of_the_docs(electric: Path, tmp_path: Path) -> None:
    (code,) = re.findall(r"```js\n(.*?)```", (Path(__file__).parents[1] / "docs" / "serve.md").read_text(), re.DOTALL)
    assert len(code.splitlines()) <= 11
    (tmp_path / "client.mjs").write_text(code)
    (tmp_path / "node_modules").symlink_to(electric / "node_modules")
    (tmp_path / "demo").mkdir()
    command = [sys.executable, "-m", "changeglot", "demo", "--serve", "-q"]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "demo")}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        said = ""
        while "End it" not in said:
            said += (line := demo.stdout.readline())
            assert line, demo.stderr and demo.stderr.read()
        (address,) = re.findall(r"Follow it: +([^,]*),", said)
        (page,) = re.findall(r"Watch it: +(.*)", said)
        with urllib.request.urlopen(page) as got:
            assert b"<html" in got.read()
        with subprocess.Popen(["node", tmp_path / "client.mjs", address], stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            try:
                told = [client.stdout.readline() for _ in range(3)]
            finally:
                client.kill()
        demo.send_signal(signal.SIGINT)
        assert "Traceback" not in demo.communicate()[1]
    assert demo.returncode == cli.INTERRUPTED
    assert all(re.fullmatch(r"\d+ orders, [0-9.]+ in all\n", line) for line in told)
    assert len(set(told)) > 1
    # Those who served and recorded ended with it.
    assert not list((tmp_path / "demo").iterdir())
    with pytest.raises(URLError):
        urllib.request.urlopen(page)


def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "changeglot", "demo"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stderr is not None
        said = ""
        while "listens at" not in said:
            said += demo.stderr.readline()
        assert list(tmp_path.glob("changeglot-*/postgres"))
        demo.send_signal(signal.SIGINT)
        assert "Traceback" not in demo.stderr.read()
    assert demo.returncode == cli.INTERRUPTED
    gone(said, tmp_path)


def gone(said: str, folder: Path) -> None:
    """Neither the server that was told of nor anything that it had is there."""
    assert not list(folder.glob("changeglot-*"))
    (port,) = re.findall("listens at 127.0.0.1:([0-9]+)", said)
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", int(port)), timeout=5):
        pass


def test_the_demo_finds_what_a_telling_says_otherwise(story: Story) -> None:
    decoded = story.decoded
    whole = show.compare(decoded)
    verdicts = {v for step in whole for v in step.verdicts.values()}
    assert verdicts == {SAME, PART, UNSPOKEN}
    assert {name for step in whole for name, v in step.verdicts.items() if v == PART} == {"electric"}
    theirs = F.col("file") == "canal.jsonl"
    total = F.map_zip_with("after", "after", lambda name, a, _: F.when(name == "total", "0.00").otherwise(a))
    order = F.col("relation.table") == "orders"
    false = decoded.withColumn(
        "after", F.when(theirs & order & F.col("after").isNotNull(), total).otherwise(F.col("after"))
    )
    wrong = {
        (step.op, step.row, name) for step in show.compare(false) for name, v in step.verdicts.items() if v == DIFFERENT
    }
    assert ("insert", "orders 100", "canal") in wrong
    assert {name for _, _, name in wrong} == {"canal"}
    silent = decoded.where(~(theirs & (F.col("op") == "ddl")))
    missing = {(step.op, name) for step in show.compare(silent) for name, v in step.verdicts.items() if v == MISSING}
    assert missing == {("ddl", "canal")}
