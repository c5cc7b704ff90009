"""The demo on a database: a throwaway PostgreSQL is changed while it is watched, and mirrored.

What is shown is what came out of the pipeline: nothing here knows what should.
"""

from __future__ import annotations

import json
import queue
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from functools import reduce
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from changeglot.capture import part
from changeglot.codecs import CODECS
from changeglot.demo.show import cut, title
from changeglot.errors import ChangeglotError
from changeglot.explain import WIDTH, fill, table
from changeglot.running import Progress, failure
from changeglot.throwaway.databases import Postgres

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from changeglot.pipeline import Pipeline
    from changeglot.target import Applied

DATABASE = "shop"
#: The shop before it is watched. What is stored EXTERNAL is not told again when it stays as it is.
BEFORE = (
    "CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL, vip boolean DEFAULT false, notes text)",
    "ALTER TABLE customers ALTER notes SET STORAGE EXTERNAL",
    "CREATE TABLE orders (id int PRIMARY KEY, customer int, total numeric(10,2), placed_at timestamptz DEFAULT now())",
    "INSERT INTO customers (id, name, notes) SELECT n, (ARRAY['Ann', 'Ben', 'Cleo'])[n], repeat('likes tea. ', 2000)"
    " FROM generate_series(1, 3) n",
    "INSERT INTO orders SELECT n, n % 3 + 1, n % 100 + n / 100.0 FROM generate_series(1, 10000) n",
    "ANALYZE",
)
#: The table whose changes are shown as they come.
LOGGED = "customers"
#: What happens while it is watched, a transaction each.
LIFE = (
    ("INSERT INTO customers VALUES (4, 'Dora', true, NULL)",),
    ("UPDATE customers SET vip = true WHERE id = 2",),
    ("UPDATE customers SET id = 40, name = 'Dora B.' WHERE id = 4",),
    ("DELETE FROM orders", "ROLLBACK"),
    ("DELETE FROM customers WHERE id = 3",),
)
#: What goes on in a shop that is served.
GOING_ON = (
    "INSERT INTO orders VALUES (%(id)s, %(id)s %% 3 + 1, %(total)s) ON CONFLICT (id) DO UPDATE SET total = %(total)s",
    "UPDATE orders SET total = %(total)s, placed_at = now() WHERE id = %(id)s",
    "DELETE FROM orders WHERE id = %(id)s",
)
#: Rows of a table that are shown all, and letters of a value.
SCREEN = 20
#: The change whose spellings are shown.
SPELT = "update"


class Shop:
    """A database, a pipeline that watches it, and the folder of both."""

    def __init__(self, postgres: Postgres, folder: Path) -> None:
        self.postgres, self.folder = postgres, folder
        self.query: StreamingQuery | None = None
        self.server: subprocess.Popen[str] | None = None
        self.applied: queue.Queue[Applied] = queue.Queue()
        with closing(self.connect(postgres.database)) as connection:
            connection.execute(f"CREATE DATABASE {DATABASE}")
        self.connection = self.connect(DATABASE)
        for statement in BEFORE:
            self.connection.execute(statement)

    def connect(self, database: str) -> Any:
        """Any: the client is not installed everywhere."""
        import psycopg

        return psycopg.connect(self.postgres.dsn, dbname=database, autocommit=True)

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """Any: whatever a database holds."""
        found: list[tuple[Any, ...]] = self.connection.execute(statement).fetchall()
        return found

    @property
    def tables(self) -> list[str]:
        return [name for (name,) in self.ask("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")]

    @property
    def content(self) -> dict[str, Any]:
        """Words of the pipeline's file: the shop into current rows and logs. Any: of YAML."""
        server = self.postgres
        source = {"type": "postgres", "host": "127.0.0.1", "port": server.port, "user": server.user}
        return {
            "source": {**source, "database": DATABASE, "tables": ["public.*"]},
            "sink": {"type": "delta", "path": str(self.folder / "lake")},
            "tables": [{"match": "*", "mode": ["scd1", "append"]}],
        }

    @property
    def pipeline(self) -> Pipeline:
        from changeglot import config

        return config.pipeline(self.content, name="watching")

    def watch(self, spark: SparkSession, *, quiet: bool) -> None:
        """Begins to mirror it; the rows that are there have arrived then."""
        rows = sum(self.ask(f"SELECT count(*) FROM {name}")[0][0] for name in self.tables)
        print(
            fill(f"{rows:,} rows of {' and '.join(self.tables)} are read first, as of one moment; then every change.")
        )
        begun = time.monotonic()
        progress = Progress(quiet=quiet, shown=sys.stderr.isatty())
        self.query = self.pipeline.run(spark, once=False, told=self.applied.put, hear=progress.hear)
        self.arrived(rows)
        print(f"mirrored {rows:,} rows in {time.monotonic() - begun:.0f} s")

    def serve(self) -> str:
        """Serves the mirror, by a process of its own, as long as the shop is there; its address."""
        file = self.folder / "shop.yaml"
        file.write_text(json.dumps({**self.content, "name": "watching"}))
        command = [sys.executable, "-m", "changeglot", "serve", str(file), "--port", "0"]
        self.server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.server.stderr is not None
        said = self.server.stderr.readline()
        if " at " not in said:
            raise ChangeglotError(f"serving the mirror: {said.strip() or 'it ended'}")
        # What it says later is for people too, and waits for nobody.
        threading.Thread(target=shutil.copyfileobj, args=(self.server.stderr, sys.stderr), daemon=True).start()
        return said.split(" at ")[1].strip()

    def mirror(self, spark: SparkSession, name: str) -> DataFrame:
        """A table of the sink's."""
        return spark.table(self.pipeline.sink.identifier(DATABASE, "public", name))

    def arrived(self, count: int) -> None:
        """Waits for so many changes, however busy the machine is."""
        while count > 0:
            try:
                count -= sum(self.applied.get(timeout=1).tables.values())
            except queue.Empty:
                if self.query and (why := self.query.exception()):
                    raise failure(why, self.pipeline) from None

    def close(self) -> None:
        """Ends who serves, and who watches if Spark is there."""
        if self.server is not None:
            self.server.terminate()
            self.server.wait()
        if self.query is not None:
            self.query.stop()
            deadline = time.monotonic() + 30
            # Then the recorder, which writes into the folder, is about to end.
            while time.monotonic() < deadline and self.ask("SELECT 1 FROM pg_replication_slots WHERE active"):
                time.sleep(0.05)
        self.connection.close()


@contextmanager
def opened(folder: Path, say: Callable[[str], None]) -> Iterator[Shop | None]:
    """A shop on a server of its own, both gone at the end; None, and it is said why, if there cannot be one here."""
    with ExitStack() as stack:
        shop = None
        try:
            part("postgres")
            named = f"PostgreSQL {Postgres.versions[0].removesuffix('.0')}"
            say(f"starting {named}" if Postgres.fetched() else f"fetching {named}, 15 MB, this once, and starting it")
            postgres = stack.enter_context(Postgres.start(folder))
            shop = stack.enter_context(closing(Shop(postgres, folder)))
            say(f"{named} listens at {postgres.address} until the demo ends")
        except (ChangeglotError, OSError) as problem:
            why = str(problem).splitlines()[0]
            say(f"there can be no PostgreSQL here, so the shop's life comes from files: {why}")
        yield shop


def show(spark: SparkSession, shop: Shop, *, quiet: bool = False) -> bool:
    """Prints the demo; true if the mirror is what the database is."""
    title("A shop in PostgreSQL, captured into Delta tables")
    shop.watch(spark, quiet=quiet)
    title("Changed while it is watched")
    told = [line for statements in LIFE for line in live(spark, shop, statements)]
    title("The database, and its mirror")
    same = compared(spark, shop)
    title("One of these changes, as each format would tell it")
    spelt(next(change for change in told if change["op"] == SPELT), shop, spark)
    title("Try next" if same else "The mirror differs from the database: see above")
    for command in (
        "changeglot demo --serve                     # it goes on, for a page and for Electric's clients to follow",
        "changeglot demo --files                     # the seven formats held against each other",
        'make services WHAT="postgres mariadb"       # servers of your own; docs/capture.md tells how to capture them',
        "changeglot run shop.yaml --continuous       # this demo's pipeline, on a database of yours",
    ):
        print(f"  {command}")
    return same


def serve(spark: SparkSession, shop: Shop, *, quiet: bool = False) -> bool:
    """The shop goes on, and its mirror is served, until the process is told to end."""
    title("A shop in PostgreSQL, served to Electric's clients out of Delta tables")
    shop.watch(spark, quiet=quiet)
    address = shop.serve()
    print(f"\nWatch it:    {address.removesuffix('/v1/shape')}/?table={DATABASE}.public.orders")
    print(f"Follow it:   {address}, table {DATABASE}.public.orders; docs/serve.md has a client of ten lines")
    print("End it:      Ctrl-C", flush=True)
    chance = random.Random()
    while True:
        if shop.query and (why := shop.query.exception()):
            raise failure(why, shop.pipeline) from None
        order, total = chance.randrange(1, 11_000), chance.randrange(100, 50_000) / 100
        shop.connection.execute(chance.choice(GOING_ON), {"id": order, "total": total})
        time.sleep(chance.random())


def live(spark: SparkSession, shop: Shop, statements: Sequence[str]) -> list[Row]:
    """Runs a transaction, waits for its changes and prints them; the changes."""
    count, begun = 0, time.monotonic()
    shop.connection.execute("BEGIN")
    for statement in statements:
        print(f"{DATABASE}=# {statement}")
        count += shop.connection.execute(statement).rowcount
    if statements[-1] == "ROLLBACK":
        print("          nothing of it may arrive")
        return []
    shop.connection.execute("COMMIT")
    shop.arrived(count)
    seconds = time.monotonic() - begun
    changes = logged(spark, shop).collect()[-count:]
    for change in changes:
        print(cut(f"  {seconds:4.1f} s  {described(change)}"))
    return changes


def logged(spark: SparkSession, shop: Shop) -> DataFrame:
    """The changes that arrived after the rows that were there, in order."""
    return shop.mirror(spark, f"{LOGGED}__log").where(F.col("phase") == "stream").orderBy("__order")


def described(change: Row) -> str:
    """A change in a line."""
    key = ", ".join(change["key"].values())
    names = [column["name"] for column in json.loads(change["columns"])]
    after = change["after"] or {}
    values = " ".join(f"{name}={'NULL' if after[name] is None else after[name]}" for name in names if name in after)
    absent = [name for name in names if name not in after] if after else []
    kept = f" ({', '.join(absent)} untouched: not told, and kept)" if absent else ""
    return f"{change['op']:6}  {change['relation']['table']} {key:<6} {values}{kept}".rstrip()


def compared(spark: SparkSession, shop: Shop) -> bool:
    """Prints what the database selects beside what the mirror has; true if all rows of all tables are the same."""
    same = {}
    for name in shop.tables:
        cursor = shop.connection.execute(f"SELECT * FROM {name} ORDER BY id")
        columns = [column.name for column in cursor.description]
        mirror = shop.mirror(spark, name).select(*columns).orderBy("id")
        theirs, ours = ([tuple(map(_moment, row)) for row in rows] for rows in (cursor.fetchall(), mirror.collect()))
        if len(theirs) < SCREEN:
            _beside(f"PostgreSQL: SELECT * FROM {name}", f"Delta: {name}", columns, theirs, ours)
        same[f"{name}: {len(theirs):,} rows"] = theirs == ours
    print(
        "\n"
        + "; ".join(f"{name}, {'all equal' if is_so else 'and the mirror DIFFERS'}" for name, is_so in same.items())
    )
    return all(same.values())


def _beside(one: str, other: str, columns: Sequence[str], *sides: Sequence[tuple[Any, ...]]) -> None:
    """Any: whatever a database holds."""
    left, right = (table(columns, [[_shown(value) for value in row] for row in rows]).splitlines() for rows in sides)
    for ours, theirs in zip_longest((one, *left), (other, *right), fillvalue=""):
        print(f"{ours:<{WIDTH // 2}}{theirs}".rstrip())


def _moment(value: Any) -> Any:
    """Times as both sides mean them, which say them otherwise; others as they are. Any: whatever a database holds."""
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def _shown(value: object) -> str:
    text = "NULL" if value is None else str(value)
    return text if len(text) < SCREEN else f"{len(text):,} letters"


def spelt(change: Row, shop: Shop, spark: SparkSession) -> None:
    """Prints the change as each format has it, in the format's first message of it."""
    import changeglot

    # By its place in the log, as it is there.
    told = logged(spark, shop).where(F.col("__order") == change["__order"])
    spoken = [changeglot.encode(told, name).select(F.lit(name).alias("format"), "part", "value") for name in CODECS]
    messages = reduce(DataFrame.unionByName, spoken).where("part = 0").collect()
    width = max(map(len, CODECS))
    for format_, _, value in messages:
        print(cut(f"{format_:<{width}}  {bytes(value).decode()}"))
