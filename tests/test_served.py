"""What Electric's own client has of tables that are captured and served is what their source has, whoever is killed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol, cast

import pytest
from pyarrow import fs
from pyspark.sql import SparkSession
from recorded import until
from shop import TYPES, Shop, write
from test_capture import Shop as Postgres
from test_capture import Store as MariaDB
from test_serve import PATIENCE, SRC, Got, Served, Shopping, following, serving

from changeglot import config
from changeglot.model import Op
from changeglot.serve.answers import Reply
from changeglot.serve.asked import asked
from changeglot.serve.delta import Cache, DeltaLog
from changeglot.serve.history import History
from changeglot.serve.shapes import Definition, Offset, Part, Shape
from changeglot.settings import configured
from changeglot.throwaway.service import free

#: A client that is told to try again soon: how long it waits is no part of what is tested.
EAGER = {"backoffOptions": {"initialDelay": 100, "maxDelay": 500, "multiplier": 1.5}}
#: Small enough that a shape comes in parts, and that servers begin with other rows than those before them.
SMALL = {"chunk_bytes": 20_000, "snapshot_every": 10}


class Origin(Protocol):
    """What is captured: a source that lives, and what clients should have of it."""

    @property
    def folder(self) -> Path: ...

    @property
    def content(self) -> dict[str, Any]:
        """Words of the pipeline's file. Any: of YAML."""

    @property
    def shapes(self) -> list[dict[str, Any]]:
        """Options of ShapeStream. Any: of JSON."""

    def expected(self, shapes: Sequence[Mapping[str, Any]] | None = None) -> dict[int, Any]:
        """What a client should have of the shapes, by number. Any: JSON."""

    def step(self) -> None:
        """A transaction or some."""

    def truncate(self) -> None: ...

    def widen(self) -> None:
        """A column that was not there, and values in it."""


def pick(rng: random.Random, name: str) -> Any:
    """A value for a column. Any: of its type."""
    return rng.choice((None, *VALUES[name]))


NAMES = ("", "x", "x1", "x2", "Zoë/%_", "a'b\"c\\d", "line\nbreak\ttab", " ")
VALUES: dict[str, tuple[Any, ...]] = {
    "big": (0, -5, 2**53 + 1),
    "name": NAMES,
    "amount": (Decimal("0.10"), Decimal("-7.25"), Decimal("40.00"), Decimal("9999999999.99")),
    "rate": (0.1, -1e-07, 1e20, 3.0),
    "good": (True, False),
    "at": ("2024-02-29 23:59:59", "2024-07-01 12:00:00.5", "1999-12-31 00:00:00.123456"),
    "body": ("", "l" * 3000, "m" * 3000),
    "note": NAMES,
    "late": NAMES,
}
#: Tables by the columns of their keys and their others.
KEYS = {"a": ("id",), "b": ("tag", "n")}
OTHERS = {"a": ("big", "name", "amount", "rate", "good", "at", "body"), "b": ("note",)}
#: By the kind of database: what makes the tables, and what a client is told of columns that are not told as they are.
MADE = {
    Postgres: (
        "CREATE TABLE a (id int PRIMARY KEY, big bigint, name text, amount numeric(12,2), rate float8, good boolean,"
        " at timestamptz, body text)",
        # Of a row that changes it is not told, if it does not change.
        "ALTER TABLE a ALTER body SET STORAGE EXTERNAL",
        "CREATE TABLE b (tag text, n int, note text, PRIMARY KEY (tag, n))",
    ),
    MariaDB: (
        "CREATE TABLE a (id int PRIMARY KEY, big bigint, name text, amount decimal(12,2), rate double, good boolean,"
        " at timestamp(6) NULL, body longtext) CHARSET utf8mb4 COLLATE utf8mb4_nopad_bin",
        "CREATE TABLE b (tag varchar(20), n int, note text, PRIMARY KEY (tag, n))"
        " CHARSET utf8mb4 COLLATE utf8mb4_nopad_bin",
    ),
}
TOLD = {
    Postgres: {"big": "big || 'n'", "amount": "amount::text", "at": "at::text"},
    MariaDB: {
        "big": "concat(big, 'n')",
        "amount": "CAST(amount AS CHAR)",
        "at": "concat(trim(TRAILING '.' FROM trim(TRAILING '0' FROM CAST(at AS CHAR))), '+00')",
    },
}


@dataclass
class Database:
    """One of PostgreSQL's or MariaDB's. What is drawn is always possible: nobody else writes."""

    place: Postgres | MariaDB
    rng: random.Random = field(default_factory=lambda: random.Random(17))
    #: Any: values of keys.
    keys: dict[str, set[tuple[Any, ...]]] = field(default_factory=lambda: {table: set() for table in KEYS})
    others: dict[str, tuple[str, ...]] = field(default_factory=lambda: dict(OTHERS))

    def __post_init__(self) -> None:
        if isinstance(self.place, Postgres):
            self.place.sql(f"ALTER DATABASE {self.place.name} SET TimeZone = 'UTC'")
            self.place.connection.close()
            self.place.connection = self.place.connect()
        self.place.sql(*MADE[type(self.place)])
        self.writer = self.place.connect()
        for _ in range(30):
            self.step()

    @property
    def folder(self) -> Path:
        return self.place.folder

    @property
    def content(self) -> dict[str, Any]:
        """Any: of YAML."""
        return {
            "name": f"served-{self.place.name}",
            "source": self.place.source,
            "sink": {"type": "delta", "path": str(self.folder / "lake")},
            # With a log, PostgreSQL's own numbers are told.
            "tables": [{"match": "*", "mode": ["scd1", "append"] if isinstance(self.place, Postgres) else ["scd1"]}],
            "schema_change": "evolve",
            "checkpoint": str(self.folder / "notes"),
        }

    def table(self, name: str) -> str:
        return ".".join((*self.place.schema, name))

    @property
    def shapes(self) -> list[dict[str, Any]]:
        """Any: of JSON."""
        a, b = {"table": self.table("a")}, {"table": self.table("b")}
        # Two subsets that are all rows.
        subsets = [
            {"where": f"id {sign} $1", "params": {"1": "30"}, "method": method}
            for sign, method in (("<", "GET"), (">=", "POST"))
        ]
        return [
            {"params": a},
            {"params": {**a, "replica": "full"}, "liveSse": True},
            {"params": {**a, "where": "amount > $1 AND name IS NOT NULL", "params": ["0"], "replica": "full"}},
            {"params": {**a, "where": "(id & 1) = 0", "columns": ["id", "name", "at"]}, "liveSse": True},
            {"params": {**b, "replica": "full"}},
            {"params": {**b, "where": "tag LIKE 'x%' OR note = ''"}, "liveSse": True},
            {"params": a, "log": "changes_only", "subsets": subsets},
        ]

    def expected(self, shapes: Sequence[Mapping[str, Any]] | None = None) -> dict[int, Any]:
        """Any: JSON."""
        return {number: self._rows(**each["params"]) for number, each in enumerate(shapes or self.shapes)}

    def _rows(self, table: str, where: str = "true", columns: Sequence[str] = (), params: Any = (), **_: Any) -> Any:
        """Any: JSON."""
        name = table.rpartition(".")[2]
        columns = columns or (*KEYS[name], *self.others[name])
        for number, value in enumerate(params, 1):
            where = where.replace(f"${number}", value)
        told = [TOLD[type(self.place)].get(each, each) for each in columns]
        found = self.place.sql(f"SELECT {', '.join((*KEYS[name], *told))} FROM {name} WHERE {where}")
        relation = ".".join(f'"{each}"' for each in (self.place.schema[-1], name))
        size = len(KEYS[name])
        return {
            "/".join((relation, *(f'"{str(part).replace("/", "//")}"' for part in row[:size]))): dict(
                zip(columns, row[size:], strict=True)
            )
            for row in found
        }

    def step(self) -> None:
        with self.writer.cursor() as cursor:
            cursor.execute("BEGIN")
            for _ in range(self.rng.randint(1, 5)):
                self._change(cursor)
            cursor.execute("COMMIT")

    def _change(self, cursor: Any) -> None:
        """Any: a cursor of two clients, which are used alike."""
        rng, table = self.rng, self.rng.choice("aab")
        keys, names, others = self.keys[table], KEYS[table], self.others[table]
        new = (rng.randrange(60),) if table == "a" else (rng.choice(NAMES), rng.randrange(3))
        chance = rng.random()
        if not keys or chance < 0.35:
            if new not in keys:
                row = (*new, *(pick(rng, each) for each in others))
                cursor.execute(f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(row))})", row)
                keys.add(new)
            return
        key = rng.choice(sorted(keys))
        same = " AND ".join(f"{each} = %s" for each in names)
        if chance < 0.7:
            column = rng.choice(others)
            cursor.execute(f"UPDATE {table} SET {column} = %s WHERE {same}", (pick(rng, column), *key))
        elif chance < 0.85:
            if new not in keys:
                moved = ", ".join(f"{each} = %s" for each in names)
                cursor.execute(f"UPDATE {table} SET {moved} WHERE {same}", (*new, *key))
                keys.remove(key)
                keys.add(new)
        else:
            cursor.execute(f"DELETE FROM {table} WHERE {same}", key)
            keys.remove(key)

    def truncate(self) -> None:
        with self.writer.cursor() as cursor:
            cursor.execute("TRUNCATE TABLE b")
        self.keys["b"].clear()

    def widen(self) -> None:
        for table in KEYS:
            self.place.sql(f"ALTER TABLE {table} ADD COLUMN late varchar(20)")
            self.others[table] += ("late",)
        for _ in range(20):
            self.step()

    def end(self) -> None:
        self.writer.close()
        self.place.end()


class Filed(Shopping):
    """A shop whose changes come as files of Canal messages, to be read by another process."""

    @property
    def content(self) -> dict[str, Any]:
        """Any: of YAML."""
        words = super().content
        return {**words, "source": {**words["source"], "files_per_batch": 100}, "schema_change": "evolve"}

    @property
    def shapes(self) -> list[dict[str, Any]]:
        """Any: of JSON."""
        table = {"table": f"{self.name}.orders"}
        return [
            {"params": table},
            {"params": {**table, "where": "name = $1 OR amount > 0", "params": ["x"], "replica": "full"}},
            {"params": {**table, "where": "(id & 1) = 0", "columns": ["id", "name"]}, "liveSse": True},
        ]

    def expected(self, shapes: Sequence[Mapping[str, Any]] | None = None) -> dict[int, Any]:
        """Any: JSON."""
        assert shapes is None
        some = self.rows(where=lambda row: row["name"] == "x" or (row["amount"] is not None and row["amount"] > 0))
        return dict(enumerate((self.rows(), some, self.rows("id", "name", where=lambda row: row["id"] % 2 == 0))))

    def step(self) -> None:
        self.go_on(15)

    def apply(self) -> None:
        """A file that is there as a whole or not at all."""
        lines = self.shop.lines(self.spark, "canal")
        write(self.folder / "draft", [lines[self.told :]])
        self.told = len(lines)
        (self.folder / "in").mkdir(exist_ok=True)
        last = max((self.folder / "draft").iterdir())
        os.link(last, self.folder / "in" / last.name)

    def truncate(self) -> None:
        self.shop.say(Op.TRUNCATE, "orders")
        self.shop.model.rows.clear()

    def widen(self) -> None:
        for (_, key), row in list(self.shop.model.rows.items())[:3]:
            after = {**row, "late": "new"}
            self.shop.say(Op.UPDATE, "orders", key, row, after, types={**TYPES, "late": "varchar(9)"})
            self.shop.model.rows["orders", key] = after
        for row in self.shop.model.rows.values():
            row.setdefault("late", None)
        self.apply()


class Life:
    """Transactions that go on in another thread."""

    def __init__(self, origin: Origin) -> None:
        self.origin, self.steps, self.problem = origin, 0, ""
        self.ended, self.cut = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._live)

    def _live(self) -> None:
        try:
            while not self.ended.wait(0.3):
                if self.cut.is_set():
                    self.cut.clear()
                    self.origin.truncate()
                self.origin.step()
                self.steps += 1
        except BaseException as problem:
            self.problem = repr(problem)
            raise

    def __enter__(self) -> Life:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()
        assert not self.problem
        assert not self.cut.is_set()


class Capturing:
    """The pipeline of an origin, as a command that goes on until it is killed."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.file, self.log = origin.folder / "pipeline.yaml", origin.folder / "pipeline.log"
        self.file.write_text(json.dumps(origin.content))
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "changeglot", "run", "--continuous", "--quiet", "--driver-memory", "1g"]
        # It does not live long enough for the JVM to gain by its slower compiler.
        fast = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1", "PYTHONPATH": str(SRC)}
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [*command, str(self.file)], stdout=log, stderr=log, env={**os.environ, **fast}, start_new_session=True
            )

    def kill(self) -> None:
        """It and what it started."""
        self.check()
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def check(self) -> None:
        """That it lives."""
        assert self.process.poll() is None, self.log.read_text()[-2000:]

    def committed(self, versions: int) -> None:
        """Waits until the tables have so many versions more."""
        logs = [self.origin.folder.joinpath("lake", *name.split("."), "_delta_log") for name in tables(self.origin)]

        def count() -> int:
            self.check()
            return sum(len(list(log.glob("*.json"))) for log in logs)

        before = count()
        until(lambda: count() >= before + versions, PATIENCE)


def served(origin: Origin, port: int = 0, **options: Any) -> AbstractContextManager[Served]:
    """A server of its own process. Any: options of `serve`."""
    # It takes the folder and the content of what it serves.
    return serving(cast("Shopping", origin), port, **SMALL, **options)


def tables(origin: Origin) -> set[str]:
    return {each["params"]["table"] for each in origin.shapes}


@dataclass
class World:
    origin: Origin
    pipeline: Capturing


@pytest.fixture(scope="module")
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """An origin of the kind that a test names, and its running pipeline, which has filled the tables."""
    folder = tmp_path_factory.mktemp(request.param)
    with ExitStack() as stack:
        origin: Origin
        if request.param == "canal":
            origin = Filed(request.getfixturevalue("spark"), folder, "filed", Shop(3, "filed", keys=30))
            origin.step()
        else:
            postgres = request.param == "postgres"
            service = request.getfixturevalue("newest" if postgres else "mariadb")
            origin = database = Database((Postgres if postgres else MariaDB)(service, folder))
            stack.callback(database.end)
        pipeline = Capturing(origin)
        stack.callback(pipeline.kill)
        # They are made, and filled.
        pipeline.committed(2 * len(tables(origin)))
        yield World(origin, pipeline)


def of(*kinds: str) -> pytest.MarkDecorator:
    """Runs a test with worlds of these kinds."""
    return pytest.mark.parametrize("world", kinds, indirect=True)


@of("postgres", "mariadb", "canal")
def test_a_client_has_what_the_source_has_whoever_is_killed_when(world: World, electric: Path) -> None:
    origin, rng = world.origin, random.Random(5)
    shapes = [{**each, **EAGER} for each in origin.shapes]
    with ExitStack() as stack:
        server = stack.enter_context(served(origin))
        client = stack.enter_context(following(electric, server.url, shapes))
        client.until(origin.expected())
        handles = dict(client.handles)
        with Life(origin) as life:
            world.pipeline.committed(2)
            server.kill()
            world.pipeline.committed(1)
            server = stack.enter_context(served(origin, server.port))
            time.sleep(rng.uniform(0, 2))
            world.pipeline.kill()
            life.cut.set()
            world.pipeline.start()
            world.pipeline.committed(1)
            server.kill()
            server = stack.enter_context(served(origin, server.port))
            world.pipeline.committed(1)
        assert life.steps > 5
        client.until(origin.expected())
        # Who dies forgets nothing: nobody begins anew.
        assert client.handles == handles
        assert "must-refetch" not in {control for _, control in client.controls}
        origin.widen()
        client.until(origin.expected())
        assert {(number, "must-refetch") for number in range(len(shapes))} <= set(client.controls)


def conditions(count: int) -> list[str]:
    """Conditions on the table `a` that all databases read alike, each another."""
    rng, found = random.Random(23), set[str]()
    while len(found) < count:
        number = rng.randrange(60)
        each = [
            f"(id & 7) = {number % 8}",
            f"id BETWEEN {number} AND {number + 20}",
            f"id IN ({number}, {number + 3}, {60 - number})",
            f"amount > {number}",
            f"amount IS NULL AND rate < {number}.5",
            f"name LIKE '{rng.choice(('x%', '%x%', '_', '%%'))}'",
            f"name = '{rng.choice(('x', 'x1', ' ', ''))}'",
            "good",
            "big <= 0",
            f"coalesce(name, 'none') <> 'x' AND id > {number}",
        ]
        one, other = rng.sample(each, 2)
        found.add(rng.choice((f"{one}", f"({one}) AND NOT ({other})", f"({one}) OR ({other})", f"NOT ({one})")))
    return sorted(found)


@of("postgres")
def test_a_hundred_shapes_are_followed_at_once(world: World, electric: Path) -> None:
    origin = world.origin
    table = origin.shapes[0]["params"]
    shapes: list[dict[str, Any]] = [{"params": {**table, "where": each}} for each in conditions(100)]
    with served(origin) as server, following(electric, server.url, shapes) as client:
        client.until(origin.expected(shapes))
        with Life(origin):
            world.pipeline.committed(3)
        wanted = origin.expected(shapes)
        client.until(wanted)
        assert len({json.dumps(each, sort_keys=True) for each in wanted.values()}) > 40


NGINX = """
{user}
daemon off;
pid {folder}/pid;
worker_processes 1;
events {{ worker_connections 4096; }}
http {{
    log_format seen '$server_port $upstream_addr $upstream_cache_status';
    access_log {folder}/seen seen;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/temp;
    fastcgi_temp_path {folder}/temp;
    uwsgi_temp_path {folder}/temp;
    scgi_temp_path {folder}/temp;
    proxy_cache_path {folder}/cache keys_zone=shapes:10m;
    proxy_http_version 1.1;
    upstream servers {{ {servers} }}
    server {{
        listen 127.0.0.1:{balancer};
        location / {{ proxy_pass http://servers; proxy_buffering off; }}
    }}
    server {{
        listen 127.0.0.1:{cache};
        location / {{
            proxy_pass http://servers;
            proxy_cache shapes;
            proxy_cache_lock on;
            proxy_cache_revalidate on;
            proxy_cache_use_stale updating;
            proxy_cache_background_update on;
        }}
    }}
}}
"""


@dataclass
class Proxies:
    """nginx before some servers: one address takes them in turn, the other keeps what they allow to."""

    folder: Path
    balancer: int
    cache: int

    @property
    def seen(self) -> Counter[tuple[int, str]]:
        """How often each address had what from the servers or kept."""
        lines = [line.split() for line in (self.folder / "seen").read_text().splitlines()]
        return Counter((int(port), status if status != "-" else server) for port, server, *_, status in lines)


@contextmanager
def proxied(folder: Path, *servers: Served) -> Iterator[Proxies]:
    made = Proxies(folder, free(), free())
    each = " ".join(f"server 127.0.0.1:{server.port};" for server in servers)
    user = "user root;" if os.geteuid() == 0 else ""
    words = {"folder": folder, "user": user, "servers": each, "balancer": made.balancer, "cache": made.cache}
    (folder / "nginx.conf").write_text(NGINX.format(**words))
    command = ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "errors")]
    with subprocess.Popen(command) as process:
        try:
            until(lambda: (folder / "pid").exists() and (folder / "pid").read_text())
            assert process.poll() is None, (folder / "errors").read_text()
            yield made
        finally:
            process.terminate()
            process.wait(PATIENCE)


@of("postgres")
def test_clients_behind_a_balancer_and_behind_a_cache_are_right_while_changes_go_on(
    world: World, electric: Path, tmp_path: Path
) -> None:
    origin = world.origin
    shapes = [{**each, **EAGER} for each in origin.shapes]
    with ExitStack() as stack:
        one, other = (stack.enter_context(served(origin)) for _ in range(2))
        proxies = stack.enter_context(proxied(tmp_path, one, other))
        balanced, cached = (f"http://127.0.0.1:{port}/v1/shape" for port in (proxies.balancer, proxies.cache))
        clients = [stack.enter_context(following(electric, url, shapes)) for url in (balanced, cached, cached)]

        def all_right() -> None:
            wanted = origin.expected()
            for client in clients:
                client.until(wanted)

        all_right()
        live = {**shapes[0]["params"], "handle": clients[0].handles[0], "offset": "0_inf", "live": "true"}
        # Else the cache would hold them back.
        assert one.ask({**live, "live_sse": "true"}, "HEAD").headers["x-accel-buffering"] == "no"
        with Life(origin):
            world.pipeline.committed(2)
            one.kill()
            world.pipeline.committed(1)
            stack.enter_context(served(origin, one.port))
            world.pipeline.committed(2)
            # One that begins with what the cache has kept.
            clients.append(stack.enter_context(following(electric, cached, shapes)))
        all_right()
        seen = proxies.seen
        assert seen[proxies.cache, "HIT"] > 0
        for server in (one, other):
            assert seen[proxies.balancer, f"127.0.0.1:{server.port}"] > 0
        assert not [each for each in clients for _, control in each.controls if control == "must-refetch"]
        origin.step()
        all_right()


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
    sink = config.pipeline(made.content, "any").sink
    table = sink.identifier("kept", "orders")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES (delta.checkpointInterval = 3)")
    shapes = [
        {"params": {"table": "kept.orders"}, **EAGER},
        {"params": {"table": "kept.orders", "where": "id > 5", "replica": "full"}, "liveSse": True, **EAGER},
    ]

    def expected() -> dict[int, Any]:
        return {0: made.rows(), 1: made.rows(where=lambda row: row["id"] > 5)}

    def tidy() -> None:
        with configured(spark, {"spark.databricks.delta.retentionDurationCheck.enabled": "false"}):
            sink.tidy(spark, table, 0)

    with ExitStack() as stack:
        server = stack.enter_context(serving(made))
        client = stack.enter_context(following(electric, server.url, shapes))
        client.until(expected())
        for _ in range(3):
            made.go_on(10)
            client.until(expected())
            tidy()
        assert "must-refetch" not in {control for _, control in client.controls}
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
    # As Delta removes what is old of a log: commits behind the first checkpoint that is left tell no state.
    log = made.folder / "lake" / "kept" / "orders" / "_delta_log"
    first = min(log.glob("*.checkpoint.parquet")).name[:20]
    for path in log.glob("0*"):
        if path.name[:20] <= first:
            path.unlink()
    with serving(made) as server, following(electric, server.url, shapes) as client:
        client.until(expected())
