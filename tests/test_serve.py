"""Tables served to Electric's clients: its own client, unmodified, follows them; and the protocol, header by header."""

from __future__ import annotations

import http.client
import json
import os
import queue
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from shop import TYPES, Shop, write

from changeglot import config
from changeglot.model import Op

SRC = Path(__file__).parents[1] / "src"
ELECTRIC = Path(__file__).parent / "electric"
#: Seconds after which what does not happen is taken for never.
PATIENCE = 120


@dataclass
class Shopping:
    """A shop whose changes go through a pipeline into a lake, batch by batch."""

    spark: SparkSession
    folder: Path
    name: str
    shop: Shop
    mode: Sequence[str] = ("scd1", "append")
    told: int = 0

    @property
    def content(self) -> dict[str, Any]:
        """Any: words of the pipeline's file."""
        return {
            "name": self.name,
            "source": {"type": "files", "path": str(self.folder / "in"), "format": "canal", "files_per_batch": 1},
            "sink": {"type": "delta", "path": str(self.folder / "lake")},
            "tables": [{"match": f"{self.name}.*", "mode": list(self.mode), "keys": ["id"]}],
        }

    def go_on(self, changes: int) -> None:
        """So many changes more, applied as one batch."""
        for _ in range(changes):
            self.shop.step()
        self.apply()

    def apply(self) -> None:
        lines = self.shop.lines(self.spark, "canal")
        write(self.folder / "in", [lines[self.told :]])
        self.told = len(lines)
        config.pipeline(self.content, self.name).run(self.spark).awaitTermination()

    def rows(self, *columns: str, where: Callable[[Mapping[str, Any]], bool] = lambda _: True) -> dict[str, Any]:
        """What a client should have, by Electric's keys: of the model, not of the tables. Any: JSON."""
        found = {}
        for (table, key), row in self.shop.model.rows.items():
            if table == "orders" and where(row):
                texts = {
                    "id": f"{key}n",
                    "name": row["name"],
                    "amount": None if row["amount"] is None else str(row["amount"]),
                }
                more = {name: row[name] for name in row if name not in texts}
                told = {**texts, **more}
                found[f'"{self.name}"."orders"/"{key}"'] = {n: told[n] for n in (columns or told)}
        return found


@dataclass
class Served:
    """A server of its own process."""

    process: subprocess.Popen[str]
    url: str

    @property
    def port(self) -> int:
        port = urlsplit(self.url).port
        assert port
        return port

    def ask(
        self, query: Mapping[str, str] | str = "", method: str = "GET", path: str = "/v1/shape", **more: Any
    ) -> Got:
        """Any: what http.client takes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            text = query if isinstance(query, str) else urlencode(query)
            connection.request(method, f"{path}?{text}" if text else path, **more)
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Got(response.status, headers, response.read())
        finally:
            connection.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass(frozen=True)
class Got:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @cached_property
    def json(self) -> Any:
        """Any: JSON."""
        return json.loads(self.body)

    @property
    def controls(self) -> list[str]:
        return [each["headers"]["control"] for each in self.json if "control" in each["headers"]]

    @property
    def handle(self) -> str:
        return self.headers["electric-handle"]

    @property
    def offset(self) -> str:
        return self.headers["electric-offset"]


@contextmanager
def serving(shopping: Shopping, port: int = 0, **options: Any) -> Iterator[Served]:
    """Any: options of `serve`."""
    file = shopping.folder / f"serve-{time.monotonic_ns()}.yaml"
    file.write_text(json.dumps({**shopping.content, "serve": {"poll_seconds": 2, **options, "port": port}}))
    command = [sys.executable, "-m", "changeglot", "serve", str(file)]
    environment = {**os.environ, "PYTHONPATH": f"{SRC}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    errors: list[str] = []
    reading = threading.Thread(target=lambda: errors.extend(process.stderr or ()))
    said = process.stderr.readline()
    reading.start()
    try:
        assert " at http://" in said, said
        yield Served(process, said.split(" at ")[1].strip())
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reading.join()
        process.stderr.close()
    assert not errors, "".join(errors)


@dataclass
class Client:
    """Electric's own client in Node, with several shapes."""

    process: subprocess.Popen[str]
    lines: queue.Queue[dict[str, Any]] = field(default_factory=queue.Queue)
    #: What each shape was when it was last up to date. Any: JSON.
    rows: dict[int, Any] = field(default_factory=dict)
    handles: dict[int, str] = field(default_factory=dict)
    controls: list[tuple[int, str]] = field(default_factory=list)

    def follow(self) -> None:
        def read() -> None:
            assert self.process.stdout is not None
            for line in self.process.stdout:
                self.lines.put(json.loads(line))

        threading.Thread(target=read, daemon=True).start()

    def until(self, expected: Mapping[int, Any]) -> None:
        """Waits until the shapes are as expected. Any: JSON."""
        ends = time.monotonic() + PATIENCE
        while any(self.rows.get(number) != rows for number, rows in expected.items()):
            try:
                line = self.lines.get(timeout=max(0.1, ends - time.monotonic()))
            except queue.Empty:
                for number, rows in expected.items():
                    assert self.rows.get(number) == rows, f"shape {number}"
                raise
            assert "error" not in line, line
            if "control" in line:
                self.controls.append((line["shape"], line["control"]))
            else:
                self.rows[line["shape"]] = line["rows"]
                self.handles[line["shape"]] = line["handle"]


@contextmanager
def following(electric: Path, url: str, shapes: list[dict[str, Any]]) -> Iterator[Client]:
    """Any: options of ShapeStream."""
    command = ["node", str(ELECTRIC / "follow.mjs"), str(electric), url, json.dumps(shapes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        client = Client(process)
        client.follow()
        try:
            yield client
        finally:
            process.kill()


#: Rows of a table whose changes are known one by one.
TOLD: dict[int, dict[str, Any]] = {key: {"id": key, "name": "a", "amount": None} for key in (1, 2, 3)}


@pytest.fixture(scope="module")
def shopping(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shopping:
    """A shop of a few batches, of which tests only read."""
    made = Shopping(spark, tmp_path_factory.mktemp("serve"), "shop", Shop(7, "shop", keys=12, moves=False))
    for key, row in TOLD.items():
        made.shop.say(Op.INSERT, "told", key, None, row)
    made.go_on(12)
    made.shop.say(Op.UPDATE, "told", 1, TOLD[1], {**TOLD[1], "amount": "1.50"})
    made.shop.say(Op.UPDATE, "told", 2, TOLD[2], {**TOLD[2], "name": "b"})
    made.shop.say(Op.DELETE, "told", 3, TOLD[3], None)
    made.go_on(10)
    made.go_on(14)
    return made


@pytest.fixture(scope="module")
def server(shopping: Shopping) -> Iterator[Served]:
    with serving(shopping, tables=["shop.o*", "shop.t*"], body_bytes=2000, poll_seconds=1) as made:
        yield made


def pages(server: Served, **definition: str) -> Iterator[Got]:
    """All answers of a first sync, as a client asks for them."""
    query = {"offset": "-1", **definition}
    for _ in range(100):
        got = server.ask(query)
        assert got.status == 200, (query, got.body)
        yield got
        if "electric-up-to-date" in got.headers:
            return
        query |= {"offset": got.offset, "handle": got.handle}
    raise AssertionError("it never ends")


def test_electrics_client_follows_shapes_of_a_canal_file_through_changes_kills_and_a_new_column(
    spark: SparkSession, electric: Path, tmp_path: Path
) -> None:
    made = Shopping(spark, tmp_path, "followed", Shop(3, "followed", keys=9, moves=False))
    made.go_on(12)
    table = {"table": "followed.orders"}
    shapes: list[dict[str, Any]] = [
        {"params": table},
        {"params": table, "liveSse": True},
        {"params": {**table, "where": "name = $1 OR amount > 0", "params": ["x"], "replica": "full"}},
        {
            "params": {**table, "columns": ["id", "name"], "where": "id % 2 = 0".replace("id % 2", "id & 1")},
            "liveSse": True,
        },
    ]

    def expected() -> dict[int, Any]:
        every = made.rows()
        some = made.rows(where=lambda row: row["name"] == "x" or (row["amount"] is not None and row["amount"] > 0))
        even = made.rows("id", "name", where=lambda row: row["id"] % 2 == 0)
        return dict(enumerate((every, every, some, even)))

    with serving(made) as server, following(electric, server.url, shapes) as client:
        client.until(expected())
        made.go_on(14)
        client.until(expected())
        before = dict(client.handles)
        server.kill()
        made.go_on(10)
        with serving(made, server.port):
            client.until(expected())
            # A server that dies is none that forgets: nobody begins anew.
            assert client.handles == before
            assert {control for _, control in client.controls} == {"snapshot-end"}
            for key, row in [(key, row) for (_, key), row in made.shop.model.rows.items()][:2]:
                after = {**row, "note": "new"}
                made.shop.say(Op.UPDATE, "orders", key, row, after, types={**TYPES, "note": "varchar(9)"})
                made.shop.model.rows["orders", key] = after
            made.apply()
            for row in made.shop.model.rows.values():
                row.setdefault("note", None)
            client.until(expected())
            assert {(number, "must-refetch") for number in range(4)} <= set(client.controls)


def test_any_server_gives_the_same_bytes_for_the_same_request_before_and_after_a_restart(shopping: Shopping) -> None:
    def told(server: Served) -> list[tuple[Any, ...]]:
        """Any: texts."""
        names = ("electric-handle", "electric-offset", "electric-schema")
        definitions: tuple[dict[str, str], ...] = (
            {},
            {"where": "amount is null", "replica": "full"},
            {"columns": "id,name", "log": "changes_only"},
        )
        every = [list(pages(server, table="shop.orders", **definition)) for definition in definitions]
        assert all(len(each) > 2 for each in every)
        return [(got.body, [got.headers[n] for n in names]) for each in every for got in each]

    small = {"chunk_bytes": 300, "snapshot_every": 2}
    with serving(shopping, **small) as one, serving(shopping, **small) as other:
        first = told(one)
        assert told(other) == first
    with serving(shopping, **small) as again:
        assert told(again) == first


def test_a_new_client_gets_current_rows_and_one_that_is_too_far_behind_begins_anew(
    shopping: Shopping, server: Served
) -> None:
    query = {"table": "shop.orders", "offset": "-1"}
    old = server.ask(query)
    with serving(shopping, snapshot_every=1, keep_versions=0) as strict:
        new = strict.ask(query)
        assert new.handle != old.handle
        rows = {each["key"]: each["value"]["name"] for each in new.json if "key" in each}
        assert rows == {key: row["name"] for key, row in shopping.rows().items()}
        tail = strict.ask({**query, "offset": new.offset, "handle": new.handle})
        assert tail.controls == ["up-to-date"]
        assert len(tail.json) == 1
        late = strict.ask({**query, "offset": old.offset, "handle": old.handle})
        assert (late.status, late.controls, late.handle) == (409, ["must-refetch"], new.handle)


def test_what_is_told_of_a_change_follows_the_replica_and_the_condition(server: Served) -> None:
    def told(**definition: str) -> list[tuple[Any, ...]]:
        """Any: JSON."""
        _, log = pages(server, table="shop.told", **definition)
        changes = [each for each in log.json if "key" in each]
        assert [each["headers"].get("last") for each in changes][-1] is True
        assert len({(e["headers"]["lsn"], e["headers"]["op_position"]) for e in changes}) == len(changes)
        return sorted((e["headers"]["operation"], e["value"]["id"], e["value"], e.get("old_value")) for e in changes)

    def whole(key: str, name: str = "a", amount: str | None = None) -> dict[str, str | None]:
        return {"id": key, "name": name, "amount": amount}

    assert told() == [
        ("delete", "3", {"id": "3"}, None),
        ("update", "1", {"id": "1", "amount": "1.50"}, None),
        ("update", "2", {"id": "2", "name": "b"}, None),
    ]
    assert told(replica="full") == [
        ("delete", "3", whole("3"), None),
        ("update", "1", whole("1", amount="1.50"), {"amount": None}),
        ("update", "2", whole("2", "b"), {"name": "a"}),
    ]
    # What leaves the condition is deleted, what comes to meet it inserted, what stays out is not told.
    assert told(where="name = 'b'") == [("insert", "2", whole("2", "b"), None)]
    assert told(where="amount IS NULL AND id < 3") == [
        ("delete", "1", {"id": "1"}, None),
        ("update", "2", {"id": "2", "name": "b"}, None),
    ]
    assert told(columns="id,name", where="id = 1 OR id = 2") == [("update", "2", {"id": "2", "name": "b"}, None)]


#: Conditions that Spark and PostgreSQL read alike.
CONDITIONS = (
    "id > 3", "id IN (1, 2, 9)", "NOT id = 4", "name = 'x'", "name <> 'x'", "name LIKE '%o%'", "name ILIKE 'ZO_'",
    "amount > 0", "amount = 0.1", "amount IS NULL", "name IS NOT NULL AND amount < 0", "id BETWEEN 2 AND 5",
    "id NOT BETWEEN 2 AND 5", "name NOT IN ('x', '')", "name NOT LIKE 'Z%'", "name IS DISTINCT FROM 'x'",
    "amount IS NOT DISTINCT FROM -7.25", "(id > 2 OR amount IS NULL) AND NOT (name = '' OR id = 5)", "id + 1 > 4 * 2",
    "10 - id < 5", "-id < -3", "amount * 2 > 0.1", "id & 1 = 1", "lower(name) = 'zoë'", "upper(name) || '!' = 'X!'",
    "coalesce(name, 'none') = 'none'", "greatest(id, 3) = 3", "least(id, 3) = 3", "CAST(id AS STRING) = '4'",
    "amount = '0.10'", "id = '4'", "(amount > 0) IS TRUE", "(amount > 0) IS NOT TRUE", "name = 'a''b\"c'",
    "true", "CAST(NULL AS BOOLEAN)", "id = NULL",
)  # fmt: skip


def test_a_condition_means_what_it_means_in_sql(spark: SparkSession, shopping: Shopping, server: Served) -> None:
    table = spark.table(config.pipeline(shopping.content, "any").sink.identifier("shop", "orders"))
    chosen = [F.collect_list(F.when(F.expr(text), F.col("id"))).alias(str(n)) for n, text in enumerate(CONDITIONS)]
    wanted = table.agg(*chosen).collect()[0]
    for number, text in enumerate(CONDITIONS):
        found: set[int] = set()
        for got in pages(server, table="shop.orders", where=text.replace("STRING", "TEXT")):
            for each in got.json:
                if "key" in each:
                    change = found.discard if each["headers"]["operation"] == "delete" else found.add
                    change(int(each["value"]["id"]))
        assert sorted(found) == sorted(wanted[number]), text


REFUSED = (
    "id IN (SELECT 1)", "EXISTS (SELECT 1)", "now() > '2024-01-01'", "pg_read_file('/etc/passwd') = ''", "nothing = 1",
    "id = 1; DROP TABLE orders", "other.orders.id = 1", "id", "((((", "name ~ 'x'", "id = 'x'", "id = $1", "name > 1",
    "(" * 300 + "true" + ")" * 300, "read_parquet('/etc') IS NULL", "sum(id) > 1", "id = 1 LIMIT 1", "__order = ''",
)  # fmt: skip


def test_each_status_and_header_is_as_electric_has_them(shopping: Shopping, server: Served) -> None:
    query = {"table": "shop.orders", "offset": "-1"}
    first = server.ask(query)
    assert first.status == 200
    assert first.controls == ["snapshot-end"]
    assert first.headers["cache-control"].startswith("public, max-age=604800")
    assert first.headers["access-control-allow-origin"] == "*"
    assert "electric-up-to-date" not in first.headers
    schema = json.loads(first.headers["electric-schema"])
    assert schema["id"] == {"type": "int8", "pk_index": 0, "not_null": True}
    assert schema["amount"] == {"type": "numeric", "precision": 12, "scale": 2}
    same = server.ask(query, headers={"if-none-match": first.headers["etag"], "origin": "http://a.example"})
    assert (same.status, same.body, same.headers["access-control-allow-origin"]) == (304, b"", "http://a.example")
    head = server.ask(query, "HEAD")
    assert (head.status, head.body, head.handle) == (200, b"", first.handle)

    log = server.ask({**query, "offset": first.offset, "handle": first.handle})
    assert log.headers["cache-control"] == "public, max-age=60, stale-while-revalidate=300"
    assert log.headers["electric-up-to-date"] == ""
    assert log.headers["electric-has-data"] == "true"
    now = server.ask({**query, "offset": "now"})
    assert (now.controls, now.offset, now.handle) == (["up-to-date"], log.offset, log.handle)
    live = {**query, "offset": log.offset, "handle": log.handle, "live": "true", "cursor": ""}
    waited = server.ask(live)
    assert (waited.controls, waited.headers["electric-has-data"]) == (["up-to-date"], "false")
    assert waited.headers["cache-control"] == "public, max-age=5, stale-while-revalidate=5"
    assert "electric-schema" not in waited.headers
    assert int(server.ask({**live, "cursor": "999999999999"}).headers["electric-cursor"]) > 999999999999
    # A client that followed events asks from a number after the last.
    between = f"{int(log.offset.split('_')[0]) + 1}_0"
    assert server.ask({**live, "offset": between}).status == 200

    subset = {**query, "subset__order_by": "id DESC", "subset__limit": "2", "subset__where": "id < $1"}
    some = server.ask({**subset, "subset__params": '{"1": "9"}'})
    assert (some.headers["electric-snapshot"], some.headers["cache-control"]) == ("true", "no-cache")
    ids = [int(each["value"]["id"]) for each in some.json["data"]]
    assert ids == sorted((key for _, key in shopping.shop.model.rows if key < 9), reverse=True)[:2]
    assert int(some.json["metadata"]["database_lsn"]) <= int(log.json[-1]["headers"]["global_last_seen_lsn"])
    # A table that the last batch did not change has all of it too.
    rested = list(pages(server, table="shop.told"))[-1]
    assert rested.json[-1] == log.json[-1]
    assert int(rested.json[-1]["headers"]["global_last_seen_lsn"]) > int(log.json[-2]["headers"]["lsn"])
    body = {"where": "id < $1", "params": {"1": "9"}, "order_by": "id DESC", "limit": 2}
    posted = server.ask(query, "POST", body=json.dumps({"subset": body}))
    assert posted.json == some.json | {"metadata": posted.json["metadata"], "data": posted.json["data"]}
    assert [each["value"] for each in posted.json["data"]] == [each["value"] for each in some.json["data"]]

    gone = server.ask({**query, "offset": first.offset, "handle": "1-1"})
    assert (gone.status, gone.controls, gone.handle) == (409, ["must-refetch"], first.handle)
    assert gone.headers["cache-control"] == "public, max-age=60, must-revalidate"
    other = server.ask({**query, "offset": first.offset, "handle": first.handle, "replica": "full"})
    assert other.status == 409

    wrong: tuple[tuple[str, dict[str, str]], ...] = (
        ("table", {"offset": "-1"}),
        ("table", {**query, "table": "shop.nothing"}),
        ("table", {**query, "table": "shop.orders__log"}),
        ("table", {**query, "table": "changeglot.schemas"}),
        ("table", {**query, "table": "../lake.orders"}),
        ("offset", {"table": "shop.orders"}),
        *(("offset", {**query, "offset": text, "handle": "x"}) for text in ("10", "1_2_3", "", "x", "1_", "-2")),
        ("offset", {**query, "offset": "99999999999_0", "handle": first.handle}),
        ("handle", {**query, "offset": "0_0"}),
        ("live", {**query, "live": "true"}),
        ("live_sse", {**query, "live_sse": "true"}),
        ("columns", {**query, "columns": "name"}),
        ("columns", {**query, "columns": "id,nothing"}),
        ("columns", {**query, "columns": "id,,name"}),
        ("replica", {**query, "replica": "half"}),
        ("log", {**query, "log": "none"}),
        ("params", {**query, "where": "id = $2", "params[2]": "1"}),
        ("subset", {**query, "subset__limit": "2"}),
        ("subset", {**query, "subset__where": "id IN (SELECT 1)"}),
        ("where", {**query, "where": "true", "params[1]": "1"}),
        *(("where", {**query, "where": text}) for text in REFUSED),
    )
    for parameter, bad in wrong:
        got = server.ask(bad)
        assert got.status == 400, bad
        assert list(got.json["errors"]) == [parameter], bad
        assert got.headers["cache-control"] == "no-store"

    assert server.ask(path="/v1/health").json == {"status": "active"}
    assert server.ask(path="/nothing").status == 404
    assert server.ask(path="/").status == 200
    options = server.ask(method="OPTIONS")
    assert (options.status, options.headers["access-control-max-age"]) == (204, "86400")
    assert server.ask({**query, "handle": first.handle}, "DELETE").status == 405
    assert server.ask(query, "PUT").status == 405
    assert server.ask(query, "POST", body="{").status == 400
    assert server.ask(query, "POST", body=json.dumps({"where": "x" * 3000})).status == 413


def test_events_tell_the_same_as_answers(shopping: Shopping, server: Served) -> None:
    query = {"table": "shop.orders", "offset": "-1"}
    first = server.ask(query)
    query |= {"offset": first.offset, "handle": first.handle}
    log = server.ask(query).json
    # The last part of a log may be empty: it tells all the same that there is no more.
    with serving(shopping, chunk_bytes=1) as another:
        for each in (another, server):
            connection = http.client.HTTPConnection("127.0.0.1", each.port, timeout=PATIENCE)
            connection.request("GET", f"/v1/shape?{urlencode({**query, 'live': 'true', 'live_sse': 'true'})}")
            response = connection.getresponse()
            assert response.headers["content-type"] == "text/event-stream"
            events: list[Any] = []
            while len(events) < len(log):
                line = response.readline().decode()
                assert not line.startswith(":")
                if line.startswith("data: "):
                    events.append(json.loads(line[6:]))
            connection.close()
            assert events[:-1] == log[:-1]
            assert events[-1]["headers"]["control"] == "up-to-date"
    # Clients ask again from there, as if it were an offset: it is one after the table's last, however often they do.
    seen = events[-1]["headers"]["global_last_seen_lsn"]
    assert int(seen) == int(log[-2]["headers"]["lsn"]) + 1
    again = {**query, "offset": f"{seen}_0", "live": "true", "live_sse": "true"}
    connection.request("GET", f"/v1/shape?{urlencode(again)}")
    assert json.loads(connection.getresponse().readline()[6:])["headers"]["global_last_seen_lsn"] == seen
    connection.close()


def test_a_server_keeps_to_its_limits_and_answers_who_waits_before_it_ends(shopping: Shopping) -> None:
    query = {"table": "shop.orders", "offset": "-1"}
    with serving(shopping, secret="open sesame", rate=20) as server:
        assert server.ask(query).status == 401
        assert server.ask({**query, "secret": "no"}).status == 401
        assert server.ask(path="/v1//shape").status == 401
        assert server.ask({**query, "secret": "open sesame"}).status == 200
        assert server.ask(query, headers={"authorization": "Bearer open sesame"}).status == 200
        statuses = [server.ask(path="/v1/health").status]
        ends = time.monotonic() + PATIENCE
        while 429 not in statuses and time.monotonic() < ends:
            callers = [threading.Thread(target=lambda: statuses.append(server.ask().status)) for _ in range(60)]
            for each in callers:
                each.start()
            for each in callers:
                each.join()
        assert statuses[0] == 200
        assert 429 in statuses
    with serving(shopping, connections=1, poll_seconds=60) as server:
        first = server.ask({**query, "offset": "now"})
        live = {**query, "offset": first.offset, "handle": first.handle, "live": "true"}
        waited: list[Got] = []
        waiting = threading.Thread(target=lambda: waited.append(server.ask(live)))
        waiting.start()
        ends = time.monotonic() + PATIENCE
        while (refused := server.ask(path="/v1/health")).status != 503 and time.monotonic() < ends:
            time.sleep(0.05)
        assert (refused.status, refused.json["code"]) == (503, "concurrent_request_limit_exceeded")
        assert int(refused.headers["retry-after"]) > 0
        server.process.terminate()
        waiting.join(PATIENCE)
        assert [(got.status, got.controls) for got in waited] == [(200, ["up-to-date"])]
        assert server.process.wait(PATIENCE) == 0


WORDS = (
    "table", "offset", "handle", "live", "live_sse", "cursor", "where", "params[1]", "params[x]", "columns", "replica",
    "log", "queryable_columns", "subset__where", "subset__params", "subset__limit", "subset__offset",
    "subset__order_by", "secret",
)  # fmt: skip
TEXTS = (
    "shop.orders", '"shop"."orders"', "orders", "-1", "now", "0_0", "0_inf", "1_2", "9" * 25 + "_1", "", "true",
    "false", "id", '"id"', "id,name", "id = 1", "id = $1", "name LIKE '%", "\0", "%", "'", '"', "{}", "[1]", '{"1":1}',
    "1", "-5", "full", "default", "id DESC NULLS FIRST", "\U0001f98a", "1-1", "a" * 5000, "CASE WHEN id THEN 1 END",
    "id::int[] @> '{1}'", "../x", "1e309",
)  # fmt: skip


def test_nothing_that_is_asked_is_an_error_of_the_server(server: Served) -> None:
    rng = random.Random(5)
    first = server.ask({"table": "shop.orders", "offset": "-1"})
    texts = (*TEXTS, first.handle, first.offset)
    for number in range(300):
        query = {rng.choice(WORDS): rng.choice(texts) for _ in range(rng.randrange(6))}
        if rng.random() < 0.8:
            query = {"table": "shop.orders", "offset": rng.choice(("-1", "now", first.offset)), **query}
        if rng.random() < 0.3:
            query["where"] = " ".join(rng.choice((*CONDITIONS, *REFUSED, *TEXTS)) for _ in range(rng.randrange(1, 4)))
        text = urlencode(query)
        if number % 10 == 0:
            text = "".join(rng.choice("&=%ab01 \t[]+;#") for _ in range(20)).replace(" ", "%20").replace("\t", "%0")
        body = quote("".join(rng.choice('{}[]":,01ax') for _ in range(12)))
        method = rng.choice(("GET", "GET", "HEAD", "POST"))
        got = server.ask(text, method, **({"body": body} if method == "POST" else {}))
        assert got.status in (200, 304, 400, 409), (method, text, got)


def test_who_does_not_say_what_it_wants_is_left(shopping: Shopping) -> None:
    with serving(shopping, send_seconds=1) as server:
        for begun in (b"", b"GET /v1/sh", b"GET /v1/health HTTP/1.1\r\nhost: x\r\nx-"):
            with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
                connection.sendall(begun)
                with suppress(ConnectionResetError):
                    assert connection.recv(1) == b""
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
            connection.sendall(
                b"POST /v1/shape?table=shop.told&offset=-1 HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n{"
            )
            assert b" 408 " in connection.recv(100)
        # Who waits for changes is not such a one.
        got = list(pages(server, table="shop.told"))[-1]
        query = {"table": "shop.told", "offset": got.offset, "handle": got.handle, "live": "true"}
        assert server.ask(query).controls == ["up-to-date"]
