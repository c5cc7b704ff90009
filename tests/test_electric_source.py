"""Electric as a source: a served lake is followed into another one, whoever is killed when and whatever is rotated."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest
from conftest import Run
from killed import LAKE
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from shop import Shop
from test_kills import Victim
from test_pipelines import stored
from test_serve import PATIENCE, Shopping, serving

from changeglot import cli, config
from changeglot.electric.client import Server, Shape
from changeglot.electric.datasource import EndingStream, Followed, Spot, Stretch, Waiting
from changeglot.errors import ChangeglotError, ConfigError, Unreachable
from changeglot.model import Op
from changeglot.pipeline import Pipeline
from changeglot.sinks.base import LakeSink
from changeglot.sinks.delta import Delta

EXAMPLE = Path(__file__).parents[1] / "examples" / "electric-to-delta.yaml"
#: Refuses every handle but that of the newest rows.
STRICT = {"snapshot_every": 1, "keep_versions": 0}
#: What is served needs no more.
ROWS = ("scd1",)
#: Answers of a few rows each.
SMALL = {"chunk_bytes": 300}


def words(made: Shopping, url: str, **source: Any) -> dict[str, Any]:
    """Any: words of the pipeline's file."""
    return {
        "name": f"mirror-of-{made.name}",
        "source": {"type": "electric", "url": url, "tables": [f"{made.name}.orders"], **source},
        "sink": {"type": "delta", "path": str(made.folder / "mirror")},
        "tables": [{"match": "*", "mode": ["scd1", "append"]}],
    }


def ended(spark: SparkSession, content: Mapping[str, Any]) -> Pipeline:
    """The pipeline, when all that there is was applied. Any: words of its file."""
    made = config.pipeline(content, "")
    made.check(spark)
    assert made.run(spark).awaitTermination(PATIENCE)
    return made


def spots(made: Pipeline) -> dict[str, Spot]:
    """Where the last batch ends, by Spark's checkpoint."""
    folder = Path(made.checkpoint) / "offsets"
    last = max((path for path in folder.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))
    return {name: Spot.of(told) for name, told in json.loads(last.read_text().splitlines()[2]).items()}


def batches(made: Pipeline) -> int:
    return len([path for path in Path(made.checkpoint).glob("commits/*") if path.name.isdecimal()])


def rows(made: Shopping, table: str = "orders") -> dict[int, dict[str, Any]]:
    """What a mirror should have. Any: values of columns."""
    return {key: row for (of, key), row in made.shop.model.rows.items() if of == table}


def drop(made: Shopping, keys: Sequence[int]) -> None:
    """Deletes rows."""
    for key in keys:
        made.shop.say(Op.DELETE, "orders", key, made.shop.model.rows["orders", key], None)
        made.shop.model.end("orders", key, len(made.shop.changes))
    made.apply()


def replayed(spark: SparkSession, made: Pipeline, *place: str) -> dict[int, dict[str, str | None]]:
    """The rows that a log comes to."""
    found: dict[int, dict[str, str | None]] = {}
    log = spark.table(made.sink.identifier(*place[:-1], f"{place[-1]}__log")).orderBy("__order")
    for change in log.select("op", "key", "after").collect():
        if change["op"] == Op.TRUNCATE:
            found.clear()
        elif change["op"] == Op.DELETE:
            del found[int(change["key"]["id"])]
        elif change["op"] in Op.ROWS:
            found[int(change["after"]["id"])] = {**found.get(int(change["key"]["id"]), {}), **change["after"]}
    return found


def told(made: Shopping) -> dict[int, dict[str, str | None]]:
    return {key: {n: None if v is None else str(v) for n, v in row.items()} for key, row in rows(made).items()}


@pytest.fixture(scope="module")
def shopping(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shopping:
    """A shop of a few batches, of which tests only read."""
    made = Shopping(spark, tmp_path_factory.mktemp("source"), "read", Shop(4, "read", keys=20, moves=False), ROWS)
    for changes in (40, 12):
        made.go_on(changes)
    return made


def test_a_mirror_follows_changes_a_restart_of_the_server_and_rotations(spark: SparkSession, tmp_path: Path) -> None:
    made = Shopping(spark, tmp_path, "mirrored", Shop(5, "mirrored", keys=9), ROWS)
    made.go_on(14)
    place = ("mirrored", "orders")
    with serving(made, **SMALL) as server:
        content = words(made, server.url)
        mirror = ended(spark, content)
        assert stored(spark, mirror, *place) == rows(made)
        (first,) = spots(mirror).values()
        ended(spark, content)
        # Where nothing comes nothing is done.
        assert batches(mirror) == 1
        server.kill()
    made.go_on(12)
    with serving(made, server.port):
        ended(spark, content)
        assert stored(spark, mirror, *place) == rows(made)
        (now,) = spots(mirror).values()
        # It went on where it was.
        assert (now.handle, now.epoch) == (first.handle, first.epoch)
        assert now.offset != first.offset
    assert replayed(spark, mirror, *place) == told(made)
    drop(made, list(rows(made)))
    with serving(made, server.port, **STRICT):
        # A table that is empty tells of no row, and what the mirror has is gone all the same.
        ended(spark, content)
        assert stored(spark, mirror, *place) == {}
        (anew,) = spots(mirror).values()
        assert anew.epoch > first.epoch
        assert anew.handle != first.handle
        made.go_on(9)
        ended(spark, content)
        assert stored(spark, mirror, *place) == rows(made)
        assert replayed(spark, mirror, *place) == told(made)
        # Without the checkpoint all is read again, and what was deleted meanwhile goes.
        gone, *left = rows(made)
        assert left
        drop(made, [gone])
        again = ended(spark, {**content, "checkpoint": str(tmp_path / "another")})
        assert stored(spark, again, *place) == rows(made)


def test_shapes_of_conditions_and_columns_are_followed_live_batch_by_batch(spark: SparkSession, tmp_path: Path) -> None:
    made = Shopping(spark, tmp_path, "live", Shop(6, "live", ("orders", "items"), keys=8), ROWS)
    made.go_on(24)
    tables = [
        {"table": "live.orders", "where": "id < $1 AND name IS NOT NULL", "params": ["6"], "replica": "default"},
        {"table": "live.items", "columns": ["id", "amount"]},
    ]

    def expected() -> tuple[Any, Any]:
        """Any: rows."""
        some = {key: row for key, row in rows(made).items() if key < 6 and row["name"] is not None}
        return some, {key: {n: row[n] for n in ("id", "amount")} for key, row in rows(made, "items").items()}

    with serving(made, **SMALL) as server:
        for live in ("sse", "long-poll"):
            content = words(made, server.url, tables=tables, live=live, max_per_batch=3)
            mirror = config.pipeline({**content, "tables": [{"match": "*", "mode": "scd1"}]}, "")
            query = mirror.run(spark, once=False)
            try:
                until(spark, mirror, expected(), query)
                # The first rows alone are several batches.
                assert batches(mirror) > 1
                before = expected()
                made.go_on(10)
                assert all(one != other for one, other in zip(before, expected(), strict=True))
                until(spark, mirror, expected(), query)
            finally:
                query.stop()
            assert spark.table(mirror.sink.identifier("live", "items")).columns[:2] == ["id", "amount"]
    assert len({spot.epoch for spot in spots(mirror).values()}) <= 2


def found(spark: SparkSession, mirror: Pipeline) -> tuple[Any, Any]:
    """Any: rows."""
    try:
        orders = stored(spark, mirror, "live", "orders")
        return orders, stored(spark, mirror, "live", "items", columns=("id", "amount"))
    except Exception as error:
        # Not made yet.
        if "TABLE_OR_VIEW_NOT_FOUND" in str(error) or "DELTA_" in str(error) or "PATH_NOT_FOUND" in str(error):
            return None, None
        raise


def until(spark: SparkSession, mirror: Pipeline, wanted: object, query: StreamingQuery) -> None:
    """Waits for the batch after which the mirror has what is wanted."""
    ends, seen = time.monotonic() + PATIENCE, -1
    while True:
        if (now := batches(mirror)) != seen:
            seen, rows = now, found(spark, mirror)
            if rows == wanted:
                return
        assert query.exception() is None
        assert time.monotonic() < ends, rows
        time.sleep(0.1)


def messages(read: Iterator[tuple[bytes, bytes, str, int, str, str]]) -> list[Any]:
    """Any: JSON."""
    return [message for row in read for message in json.loads(row[1])]


def values(read: Sequence[Any]) -> dict[str, Any]:
    """The rows that messages of a log come to, in their order. Any: JSON."""
    found: dict[str, Any] = {}
    for each in read:
        if each["headers"].get("operation") == "delete":
            del found[each["key"]]
        elif "key" in each:
            found[each["key"]] = {**found.get(each["key"], {}), **each["value"]}
    return found


def test_a_handle_that_dies_between_planning_and_reading_leaves_a_batch_short_and_the_next_one_mends_it(
    shopping: Shopping, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = Shape("read.orders")
    wanted = {key: row["name"] for key, row in rows(shopping).items()}

    def names(read: Sequence[Any]) -> dict[int, Any]:
        """Any: JSON."""
        return {int(row["id"]): row["name"] for row in values(read).values()}

    with serving(shopping, **SMALL) as server:
        followed = Followed(Server(url=server.url, patience=PATIENCE), (shape,))
        end = followed.ahead(shape, Spot(), Waiting())
        all_of_it = Stretch(shape, Spot(), end)
        rest = Stretch(shape, Spot(end.handle, "0_inf", end.epoch, end.relation), end)
        whole = messages(followed.read(all_of_it))
        # The same however often it is read.
        assert messages(followed.read(all_of_it)) == whole
        assert whole[-1]["headers"] == {"control": "must-refetch"}
        assert names(whole) == wanted
        changes = [each for each in messages(followed.read(rest)) if "key" in each]
        assert changes
        assert changes == [each for each in whole if "lsn" in each["headers"]]
        cut = Stretch(
            shape, rest.start, Spot(end.handle, "{lsn}_{op_position}".format(**changes[0]["headers"]), end.epoch)
        )
        assert [each for each in messages(followed.read(cut)) if "key" in each] == changes[:1]
        ending, hasty = EndingStream(followed, {}), EndingStream(followed, {})
        planned, left = ending.latestOffset(), hasty.latestOffset()
        # One dies in the middle.
        torn = followed.read(all_of_it)
        begun = json.loads(next(torn)[1])
        server.kill()
        with serving(shopping, server.port, **STRICT):
            assert messages(followed.read(all_of_it)) == []
            assert messages(followed.read(rest)) == []
            assert messages(torn) == []
            # Nothing of what was before is ended by rows of which some are missing.
            assert {"control": "must-refetch"} not in [each["headers"] for each in begun]
            mended = followed.ahead(shape, end, Waiting())
            assert mended.epoch > end.epoch
            anew = messages(followed.read(Stretch(shape, end, mended)))
            assert anew[-1]["headers"] == {"control": "must-refetch"}
            assert names(anew) == wanted
            # A run that ends does so when that was mended, and then asks no more.
            (short,) = ending.partitions({}, planned)
            assert list(ending.read(short)) == []
            (mending,) = ending.partitions(planned, last := ending.latestOffset())
            assert isinstance(mending, Stretch)
            assert names(messages(followed.read(mending))) == wanted
            assert ending.latestOffset() == last
            # Nor does it go on for ever where all that it reads dies.
            monkeypatch.setattr("changeglot.electric.datasource._TRIES", 1)
            assert hasty.latestOffset() == left
        assert ending.latestOffset() == last


def test_who_begins_with_a_handle_that_lives_gets_the_same_rows_though_newer_ones_are_there(
    shopping: Shopping,
) -> None:
    with serving(shopping, snapshot_every=1000) as server:
        old = server.ask({"table": "read.orders", "offset": "-1"})
    with serving(shopping, snapshot_every=1) as server:
        new = server.ask({"table": "read.orders", "offset": "-1"})
        assert new.handle != old.handle
        again = server.ask({"table": "read.orders", "offset": "-1", "handle": old.handle})
        assert (again.handle, again.body) == (old.handle, old.body)
        unknown = server.ask({"table": "read.orders", "offset": "-1", "handle": "1-1"})
        assert (unknown.handle, unknown.body) == (new.handle, new.body)


def failed(spark: SparkSession, content: Mapping[str, Any], step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ends after so many steps of its batch. Any: words of the pipeline's file."""
    done = 0

    def counted(given: Callable[..., Any]) -> Callable[..., Any]:
        """Any: whatever the step takes and gives."""

        def wrapped(*arguments: Any, **named: Any) -> Any:
            nonlocal done
            found = given(*arguments, **named)
            done += 1
            assert done < step, "enough"
            return found

        return wrapped

    with monkeypatch.context() as patch:
        for name in LAKE:
            home = Delta if name in vars(Delta) else LakeSink
            patch.setattr(home, name, counted(getattr(home, name)))
        with pytest.raises(StreamingQueryException, match="enough"):
            ended(spark, content)


def test_killed_at_any_time_nothing_is_lost_and_nothing_doubled(
    spark: SparkSession, tmp_path: Path, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Shopping(spark, tmp_path, "slain", Shop(8, "slain", keys=15), ROWS)
    made.go_on(30)
    place, rng = ("slain", "orders"), random.Random(3)
    with serving(made, **SMALL) as server:
        content = words(made, server.url)
        for step in (1, 3):
            failed(spark, content, step, monkeypatch)
        made.go_on(8)
        # What was left undone, and what has come since.
        mirror = ended(spark, content)
        assert stored(spark, mirror, *place) == rows(made)
        assert batches(mirror) == 2
        made.go_on(8)
        failed(spark, content, 2, monkeypatch)
        live = Victim(tmp_path / "live", {**content, "once": False}, warehouse)
        live.kill_after(rng.uniform(1, 6), lambda: made.go_on(8))
        server.kill()
        drop(made, [min(rows(made))])
        with serving(made, server.port, **STRICT):
            live.kill_after(rng.uniform(2, 6))
            ended(spark, content)
    assert stored(spark, mirror, *place) == rows(made)
    assert replayed(spark, mirror, *place) == told(made)


def test_what_is_wrong_is_said_with_what_to_do(
    spark: SparkSession, shopping: Shopping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("changeglot.sources.electric._PATIENCE", 1)

    def said(**source: Any) -> ChangeglotError:
        """Any: words of the source."""
        with pytest.raises(ChangeglotError) as caught:
            config.pipeline(words(shopping, **{"url": server.url, **source}), "").check(spark)
        assert "hush" not in str(caught.value)
        return caught.value

    with serving(shopping, secret="hush") as server:
        url = server.url
        wrong: list[tuple[dict[str, Any], str, str]] = [
            ({}, "source.secret", "is missing"),
            ({"secret": "hushhush"}, "source.secret", "is not the one"),
            ({"secret": "hush", "tables": ["read.nothing"]}, "source.tables", "does not exist"),
            ({"secret": "hush", "tables": [{"table": "read.orders", "where": "x = 1"}]}, "source.tables.where", '"x"'),
            (
                {"secret": "hush", "tables": [{"table": "read.orders", "columns": ["name"]}]},
                "source.tables.columns",
                "key",
            ),
            ({"secret": "hush", "url": f"{url}/v2"}, "source.url", "404"),
            ({"secret": "hush", "url": url.replace("shape", "health")}, "source.url", "no handle"),
        ]
        for source, path, text in wrong:
            problem = said(**source)
            assert isinstance(problem, ConfigError)
            assert problem.path == path, problem
            assert text in problem.what
    problem = said()
    assert "connection refused" in str(problem)
    assert "address" in problem.hint
    for source, text in (
        ({"url": "localhost:3000"}, "source.url: is no address"),
        ({"url": "http://a:hush@localhost"}, "source.url: is no address"),
        ({"tables": []}, "source.tables: names no table"),
        ({"tables": ["a", {"table": "a", "where": "x"}]}, "there twice"),
        ({"tables": [{"table": "a", "wher": "x"}]}, "Did you mean"),
        ({"tables": [{"where": "x"}]}, "source.tables.table: is missing"),
        ({"live": "poll"}, "source.live"),
    ):
        assert text in str(said(**source)), text


def test_the_example_runs_and_no_secret_is_shown(
    spark: SparkSession,
    shopping: Shopping,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    secret = "hush-hush-0815"
    with serving(shopping, secret=secret) as server:
        for name, value in {"ELECTRIC": server.url, "ELECTRIC_SECRET": secret, "LAKE": str(tmp_path / "lake")}.items():
            monkeypatch.setenv(name, value)
        text = EXAMPLE.read_text().replace("public.", "read.")
        file = tmp_path / "example.yaml"
        file.write_text(text)
        planned = run("check", file, "--json")
        assert planned.status == cli.DONE, planned.err
        (table,) = json.loads(planned.out)["tables"]
        assert (table["into"], table["key"]) == ("read.orders", ["id"])
        assert table["columns"] == {"id": "bigint", "name": "string", "amount": "decimal(12,2)"}
        done = run("run", file, "--json")
        assert done.status == cli.DONE, done.err
        assert json.loads(done.out)["changes"]["read.orders"] > len(rows(shopping))
        assert "nothing to examine" in run("doctor", file).out
        made = config.load(file)
        assert stored(spark, made, "read", "orders") == rows(shopping)
        plan = made._source.messages(spark)._jdf.queryExecution().toString()
        shown = [planned.err, done.out, done.err, repr(made), plan, caplog.text]
    shown += [path.read_text(errors="replace") for path in Path(made.checkpoint).rglob("*") if path.is_file()]
    assert not any(secret in each for each in shown)


#: Answers, as status, headers and body, to requests by their handle and offset; the last of them again and again.
Script = dict[tuple[str, str], list[tuple[int, dict[str, str], str]]]


class Conversation(BaseHTTPRequestHandler):
    """Answers as the documents, and notes of a real Electric 1.7, have them: what it says, not what it does.

    Ours has none of them: snapshot chunks that are numbered, booleans in the stream, a change of a key that is linked,
    a 503 and a 429 that ask for patience, a 409 that names the next handle, a 204.
    """

    url: ClassVar[str]
    asked: ClassVar[list[dict[str, str]]]
    script: ClassVar[Script]

    def do_GET(self) -> None:
        query = {name: each[0] for name, each in parse_qs(urlsplit(self.path).query, keep_blank_values=True).items()}
        type(self).asked.append(query)
        answers = self.script.get((query.get("handle", ""), query["offset"])) or [(400, {}, '{"errors":{"offset":[]}}')]
        status, headers, body = answers.pop(0) if len(answers) > 1 else answers[0]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


def row(op: str, key: str, value: Mapping[str, str | None], **headers: Any) -> dict[str, Any]:
    """Any: JSON."""
    about = {"operation": op, "relation": ["public", "t"], **headers}
    return {"key": f'"public"."t"/"{key}"', "value": value, "headers": about}


SCHEMA = {
    "id": {"type": "int8", "pk_index": 0, "not_null": True},
    "b": {"type": "bool"},
    "n": {"type": "numeric", "precision": 6, "scale": 2},
    "at": {"type": "timestamp"},
    "tags": {"type": "text", "dims": 1},
}


def answer(handle: str, offset: str, *told: Any, complete: bool = False) -> tuple[int, dict[str, str], str]:
    """Any: JSON."""
    headers = {"electric-handle": handle, "electric-offset": offset, "electric-schema": json.dumps(SCHEMA)}
    done = [{"headers": {"control": "up-to-date", "global_last_seen_lsn": "100"}}] if complete else []
    return 200, {**headers, **({"electric-up-to-date": ""} if complete else {})}, json.dumps([*told, *done])


@contextmanager
def conversing(given: Script) -> Iterator[type[Conversation]]:
    class Said(Conversation):
        asked: ClassVar[list[dict[str, str]]] = []
        script: ClassVar[Script] = given

    server = ThreadingHTTPServer(("127.0.0.1", 0), Said)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    Said.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield Said
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_what_only_a_real_electric_says_is_understood(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = {"headers": {"control": "snapshot-end", "xmin": "739", "xmax": "739", "xip_list": []}}
    old = {"id": "1", "b": "true", "n": "1.50", "at": "2024-01-31 12:34:56.123456", "tags": "{a,NULL}"}
    nothing = {"b": None, "n": None, "at": None, "tags": None}
    first = answer("H1", "0_0", row("insert", "1", old), row("insert", "2", {"id": "2", **nothing}))
    stream: dict[str, Any] = {"lsn": "100", "txids": [740]}
    log = answer(
        "H1",
        "100_5",
        row("insert", "3", {"id": "3", **nothing}),
        end,
        row("update", "1", {**old, "b": "f"}, op_position=0, **stream),
        row("delete", "2", {"id": "2"}, op_position=2, key_change_to='"public"."t"/"9"', **stream),
        row("insert", "9", {"id": "9", **nothing}, op_position=3, last=True, key_change_from="", **stream),
        complete=True,
    )
    anew = answer("H2", "0_0", row("insert", "1", {**old, "b": "true"}), row("insert", "4", {"id": "4", **nothing}))
    script: Script = {
        ("", "now"): [answer("H1", "0_inf", complete=True)],
        # It is busy at first; and after the rotation a cache still has what was.
        ("", "-1"): [(503, {"retry-after": "1"}, "{}"), first, first, anew],
        ("H1", "-1"): [first],
        ("H1", "0_0"): [(429, {}, "{}"), log],
        # The run that reads it looks whether it lived that long; the next one finds that it does no more.
        ("H1", "100_5"): [
            answer("H1", "100_5", complete=True),
            (409, {"electric-handle": "H2"}, '[{"headers":{"control":"must-refetch"}}]'),
        ],
        ("H2", "-1"): [anew],
        ("H2", "0_0"): [answer("H2", "0_inf", end, complete=True)],
        ("H2", "0_inf"): [(204, {}, "")],
        ("H2", "9_9"): [(400, {}, '{"errors":{"offset":["out of bounds for this shape"]}}')],
        ("H3", "-1"): [answer("H3", "0_0", row("insert", "1", {"id": "1"}, tags=["0a1b"]))],
        ("H4", "1_0"): [(500, {}, "{}")],
    }
    with conversing(script) as said:
        content: dict[str, Any] = {
            "name": "real",
            "source": {"type": "electric", "url": said.url, "tables": ["t"], "parameters": {"source_id": "7"}},
            "sink": {"type": "delta", "path": str(tmp_path)},
        }

        def stored_rows() -> list[tuple[Any, ...]]:
            """Any: values of columns."""
            made = ended(spark, content)
            found = spark.table(made.sink.identifier("public", "t")).orderBy("id")
            return [tuple(each) for each in found.select("id", "b", "n", "at", "tags").collect()]

        moment, none = datetime(2024, 1, 31, 12, 34, 56, 123456), (None,) * 4
        assert stored_rows() == [(1, False, Decimal("1.50"), moment, "{a,NULL}"), (3, *none), (9, *none)]
        assert stored_rows() == [(1, True, Decimal("1.50"), moment, "{a,NULL}"), (4, *none)]
        assert all(each["source_id"] == "7" for each in said.asked)
        monkeypatch.setattr("changeglot.electric.client._PAUSE", 0.01)
        shape = Shape("t")
        followed = Followed(Server(url=said.url, patience=1), (shape,))
        idle = Spot("H2", "0_inf", 1)
        assert followed.ahead(shape, idle, Waiting(live=True)) == idle
        # A log that has become shorter is no other than one that is gone.
        assert followed.ahead(shape, Spot("H2", "9_9", 1), Waiting()).epoch > 1
        with pytest.raises(ConfigError, match="subquery"):
            followed.ahead(shape, Spot("H3", "-1", 1), Waiting())
        with pytest.raises(Unreachable, match="it answers 500"):
            followed.ahead(shape, Spot("H4", "1_0", 1), Waiting())
