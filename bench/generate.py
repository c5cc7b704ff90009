"""Makes the messages that are measured, the same ones at every run.

usage: generate.py OUT [ROWS] [FILES]

Each change of the shop is written twice, as a Canal message and as a Debezium message without a
schema (which Arcion's format reads), and each message twice, as a line of text and as a row of
Kafka-like parquet. 20 % inserts, 70 % updates, 10 % deletes.
"""

import argparse
import json
import random
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from shop import (
    DECIMALS,
    FLAGS,
    INTEGERS,
    JDBC_TYPES,
    MANIFEST,
    MYSQL_TYPES,
    TABLES,
    Data,
)

ROWS = 2_000_000
FILES = 8
PROCESSES = 2
VERSION = 1
"""To be raised when the messages change, so that data of before is made again."""

START_MS = 1_760_000_000_000
ROW_GROUP = 62_500

Value = str | int
Row = dict[str, Value]
Message = dict[str, Any]  # Any: JSON.

dumps = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


@dataclass(frozen=True)
class Change:
    """One change of a row: `row` is the row after it (of a delete: before), `old` an update's."""

    number: int
    op: str
    table: str
    row: Row
    old: Row | None


def value(column: str, number: int, rnd: random.Random) -> Value:
    if column == "id":
        return number // len(TABLES) % 200_000
    if column in INTEGERS:
        return rnd.randrange(1, 100_000)
    if column in DECIMALS:
        return f"{rnd.randrange(1, 10_000_000) / 100:.2f}"
    if column in FLAGS:
        return rnd.randrange(2)
    if column.endswith("_at"):
        return START_MS + rnd.randrange(30_000_000) * 1000
    return f"{column}-{rnd.getrandbits(48):x}"


def change(number: int, rnd: random.Random) -> Change:
    table = tuple(TABLES)[number % len(TABLES)]
    names = TABLES[table]
    (op,) = rnd.choices(("insert", "update", "delete"), (20, 70, 10))
    row = {name: value(name, number, rnd) for name in names}
    touched = (names[2], names[7])
    old = {name: value(name, number, rnd) for name in touched} if op == "update" else None
    return Change(number, op, table, row, old)


def texts(row: Row) -> dict[str, str]:
    """Values as Canal writes them: all text, times as the database prints them."""
    return {name: datetime_text(int(item)) if name.endswith("_at") else str(item) for name, item in row.items()}


def datetime_text(ms: int) -> str:
    """Some datetime that depends on `ms`: cheaper to make than the true one, and as long."""
    month, day, hour = 1 + ms % 12, 1 + ms // 7 % 28, ms // 11 % 24
    return f"2026-{month:02}-{day:02} {hour:02}:{ms // 13 % 60:02}:{ms // 17 % 60:02}"


def canal(c: Change) -> Message:
    at = START_MS + c.number
    return {
        "data": [texts(c.row)],
        "database": "shop",
        "es": at,
        "gtid": "",
        "id": c.number,
        "isDdl": False,
        "mysqlType": MYSQL_TYPES[c.table],
        "old": [texts(c.old)] if c.old else None,
        "pkNames": ["id"],
        "sql": "",
        "sqlType": JDBC_TYPES[c.table],
        "table": c.table,
        "ts": at + 3,
        "type": c.op.upper(),
    }


def debezium(c: Change) -> Message:
    at = START_MS + c.number
    return {
        "before": None if c.op == "insert" else c.row | (c.old or {}),
        "after": None if c.op == "delete" else c.row,
        "source": {
            "version": "3.3.1.Final",
            "connector": "mysql",
            "name": "srv",
            "ts_ms": at,
            "snapshot": "false",
            "db": "shop",
            "sequence": None,
            "ts_us": at * 1000,
            "ts_ns": at * 1_000_000,
            "table": c.table,
            "server_id": 1,
            "gtid": None,
            "file": "binlog.000007",
            "pos": 4 + c.number * 300,
            "row": 0,
            "thread": 11,
            "query": None,
        },
        "transaction": None,
        "op": {"insert": "c", "update": "u", "delete": "d"}[c.op],
        "ts_ms": at + 5,
        "ts_us": at * 1000 + 5000,
        "ts_ns": at * 1_000_000 + 5_000_000,
    }


KINDS: dict[str, Callable[[Change], Message]] = {"canal": canal, "debezium": debezium}


def write_file(folder: Path, rows: int, files: int, file: int) -> dict[str, int]:
    """Bytes of JSON written, by kind. A file depends on its number alone, not on the others."""
    rnd = random.Random(file)
    numbers = range(file * rows // files, (file + 1) * rows // files)
    changes = [change(number, rnd) for number in numbers]
    sizes = {}
    for kind, spell in KINDS.items():
        values = [dumps(spell(c)).encode() for c in changes]
        write_messages(folder, kind, file, values)
        sizes[kind] = sum(map(len, values))
    return sizes


def write_messages(folder: Path, kind: str, file: int, values: list[bytes]) -> None:
    text = folder / f"{kind}.txt" / f"part-{file:03}.txt"
    text.write_bytes(b"\n".join((*values, b"")))
    count = len(values)
    table = pa.table(
        {
            "key": pa.nulls(count, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "topic": pa.array(["cdc"] * count).dictionary_encode(),
            "partition": pa.array([file] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "timestamp": pa.array(range(START_MS, START_MS + count), pa.timestamp("ms", "UTC")),
        }
    )
    parquet = folder / f"{kind}.parquet" / f"part-{file:03}.parquet"
    pq.write_table(table, parquet, row_group_size=ROW_GROUP, compression="snappy")


def generate(folder: Path, rows: int = ROWS, files: int = FILES) -> Data:
    """The messages of `folder`, made unless they are there already, whole and as asked for."""
    manifest = folder / MANIFEST
    wanted = {"rows": rows, "files": files, "version": VERSION}
    if manifest.exists() and wanted.items() <= json.loads(manifest.read_text()).items():
        return Data.load(folder)

    shutil.rmtree(folder, ignore_errors=True)
    for kind in KINDS:
        for suffix in ("txt", "parquet"):
            (folder / f"{kind}.{suffix}").mkdir(parents=True)
    with ProcessPoolExecutor(PROCESSES) as pool:
        written = list(pool.map(partial(write_file, folder, rows, files), range(files)))
    sizes = {kind: sum(part[kind] for part in written) for kind in KINDS}
    # Last of all: a folder without a manifest was not finished.
    manifest.write_text(json.dumps({**wanted, "sizes": sizes}))
    return Data.load(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("rows", type=int, nargs="?", default=ROWS)
    parser.add_argument("files", type=int, nargs="?", default=FILES)
    options = parser.parse_args()
    data = generate(options.out, options.rows, options.files)
    for kind, size in data.sizes.items():
        sys.stdout.write(f"{kind}: {data.rows} messages, {size / data.rows:.0f} bytes each\n")


if __name__ == "__main__":
    main()
