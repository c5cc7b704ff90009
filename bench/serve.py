"""Serving: the first rows beside nginx, thousands who wait for changes, and a thousand filters.

usage: serve.py: writes its part of results.md anew. `--quick` is a trial with little.
"""

import argparse
import http.client
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import quantiles
from typing import Any
from urllib.parse import urlencode, urlsplit

import meter
from apply import alone, values
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from results import ServeRun, WaitRun
from run import say
from waiting import Waiting

from changeglot import config
from changeglot.errors import MissingError
from changeglot.throwaway.service import free

HERE = Path(__file__).resolve().parent
DATA = HERE / "data" / "serve"
ROUNDS = 5
ROWS, WAITING, FILTERS = 1_000_000, 10_000, 1_000
#: Commits that are waited for; changes in each of them where filters are the point: those of some seconds.
COMMITS, CHANGES = 10, 25_000
TYPES = {
    "id": "bigint",
    "customer": "bigint",
    "status": "varchar(9)",
    "total": "decimal(12,2)",
    "placed": "timestamp",
    "note": "varchar(99)",
}


class Lake:
    """A table that a pipeline fills with orders, batch by batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.batches = spark, folder, 0

    @property
    def content(self) -> dict[str, Any]:
        """Any: words of the pipeline's file."""
        return {
            "name": "bench",
            "source": {"type": "files", "path": str(self.folder / "in" / "*"), "format": "canal"},
            "sink": {"type": "delta", "path": str(self.folder / "lake")},
            "tables": [{"match": "shop.*", "mode": "scd1", "keys": ["id"]}],
        }

    def add(self, count: int, op: str = "INSERT") -> None:
        """So many orders, each told once: a batch of its own."""
        data = {name: each.cast("string") for name, each in values(F.col("id"), self.batches).items()}
        message: dict[str, Column] = {
            "database": F.lit("shop"),
            "table": F.lit("orders"),
            "type": F.lit(op),
            "pkNames": F.array(F.lit("id")),
            "isDdl": F.lit(False),
            "mysqlType": F.struct(*(F.lit(kind).alias(name) for name, kind in TYPES.items())),
            "data": F.array(F.struct(*(each.alias(name) for name, each in data.items()))),
        }
        lines = self.spark.range(count).select(F.to_json(F.struct(*(c.alias(n) for n, c in message.items()))))
        lines.write.text(str(self.folder / "in" / f"{self.batches:05}"))
        self.batches += 1
        config.pipeline(self.content, "bench").run(self.spark).awaitTermination()

    @property
    def committed(self) -> float:
        """When the newest version of the table came to be."""
        log = self.folder / "lake" / "shop" / "orders" / "_delta_log"
        return max(log.glob("[0-9]*.json")).stat().st_ctime

    @contextmanager
    def served(self) -> Iterator[tuple[str, int]]:
        """The address of a server in a process of its own, and its number."""
        file = self.folder / "serve.yaml"
        file.write_text(json.dumps({**self.content, "serve": {"port": 0, "poll_seconds": 60}}))
        command = [sys.executable, "-m", "changeglot", "serve", str(file)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            try:
                yield process.stderr.readline().split(" at ")[1].strip(), process.pid
            finally:
                process.terminate()


@contextmanager
def nginx(folder: Path) -> Iterator[str]:
    """The address of nginx, which serves the files of a folder."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        raise MissingError("nginx is what is measured against", hint="Debian: apt-get install nginx-light")
    port = free()
    (folder / "nginx.conf").write_text(
        f"daemon off; worker_processes auto; pid {folder}/pid; error_log stderr crit; user root;\n"
        "events { worker_connections 1024; }\n"
        f"http {{ sendfile on; tcp_nopush on; access_log off; server {{ listen 127.0.0.1:{port}; root {folder}; }}\n"
        + "".join(f"{each}_temp_path {folder}/temp;\n" for each in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        + "}\n"
    )
    with subprocess.Popen([program, "-p", str(folder), "-c", str(folder / "nginx.conf")]) as process:
        try:
            for _ in range(100):
                with suppress(OSError):
                    http.client.HTTPConnection("127.0.0.1", port, timeout=1).connect()
                    break
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


class Client:
    """Asks over one connection, and keeps nothing but where to go on."""

    def __init__(self, url: str) -> None:
        self.connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)
        self.buffer = bytearray(1 << 20)

    def get(self, path: str, into: Path | None = None) -> tuple[int, Mapping[str, str]]:
        """How many bytes came, and the headers; the body goes into a file, if that is wanted."""
        self.connection.request("GET", path)
        response = self.connection.getresponse()
        assert response.status == 200, response.read()
        if into is not None:
            return into.write_bytes(response.read()), dict(response.headers)
        size = 0
        while got := response.readinto(self.buffer):
            size += got
        return size, dict(response.headers)

    def sync(self, table: str, into: Path | None = None) -> int:
        """All rows of a table, as Electric's clients ask for them; how many bytes it were."""
        query, size, number = {"table": table, "offset": "-1"}, 0, 0
        while True:
            path = into / f"{number}.json" if into else None
            got, headers = self.get(f"/v1/shape?{urlencode(query)}", path)
            size, number = size + got, number + 1
            if "electric-up-to-date" in headers:
                return size
            query |= {"offset": headers["electric-offset"], "handle": headers["electric-handle"]}


def first_rows(lake: Lake, rows: int, rounds: int) -> list[ServeRun]:
    """A client that has nothing gets all rows, beside nginx with the same bytes in files."""
    files = lake.folder / "files"
    files.mkdir()
    with lake.served() as (url, _):
        size = Client(url).sync("shop.orders", files)
    found = {who: ServeRun(who, rows, size) for who in ("changeglot, first client", "changeglot, others", "nginx")}
    count = len(list(files.iterdir()))

    def taken(who: str, call: Any) -> None:
        """Any: gives how many bytes came."""
        clock = time.monotonic()
        got = call()
        found[who].clock.append(time.monotonic() - clock)
        assert got == size, (who, got, size)

    with nginx(files) as static:
        for _ in range(rounds):
            with lake.served() as (url, _):
                for who in ("changeglot, first client", "changeglot, others"):
                    taken(who, lambda url=url: Client(url).sync("shop.orders"))
            plain = Client(static)
            taken("nginx", lambda plain=plain: sum(plain.get(f"/{number}.json")[0] for number in range(count)))
            say(f"first rows: {[(one.who, one.clock[-1]) for one in found.values()]}")
    return list(found.values())


def waited(lake: Lake, what: str, wheres: Sequence[str], clients: int, commits: int, changes: int) -> WaitRun:
    """Clients that wait for changes of shapes, as many for each; batches that are committed meanwhile."""
    with lake.served() as (url, pid), Waiting.start(url, "shop.orders", wheres, clients) as waiting:
        waiting.wait()
        delays: list[float] = []
        ends: list[float] = []
        for number in range(commits):
            lake.add(changes, "UPDATE")
            committed = lake.committed
            told = waiting.told()
            assert len(told) == clients, f"{len(told)} of {clients} were told"
            delays += [at - committed for at in told]
            ends.append(max(told) - committed)
            say(f"{what}: commit {number}, the last of {clients} told after {ends[-1]:.2f} s")
        # The first is to warm up.
        cuts = quantiles(delays[clients:], n=100)
        return WaitRun(
            what, clients, len(wheres), changes, commits - 1, (cuts[49], cuts[98]), ends[1:], meter.resident_bytes(pid)
        )


def measure(spark: SparkSession, options: argparse.Namespace) -> list[ServeRun | WaitRun]:
    rows, clients, shapes, commits = ROWS, WAITING, FILTERS, COMMITS
    if options.quick:
        rows, clients, shapes, commits = 50_000, 500, 50, 2
    lake = Lake(spark, DATA)
    lake.add(rows)
    wide = 100_000 // shapes
    filters = [f"customer >= {n * wide} AND customer < {(n + 1) * wide}" for n in range(shapes)]
    return [
        *first_rows(lake, rows, options.rounds),
        waited(lake, "one shape", [""], clients, commits, 10),
        waited(lake, "a filter each", filters, shapes, commits, CHANGES),
    ]


def main() -> None:
    alone(__doc__.splitlines()[0], ROUNDS, DATA, "serve", measure)


if __name__ == "__main__":
    main()
