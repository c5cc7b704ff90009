"""The rows of MySQL's and MariaDB's tables as they are: chunks that are copied one by one, each at its own position."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pymysql
from pymysql.cursors import Cursor

from changeglot.capture.binlog import Position
from changeglot.capture.mycatalog import Declared, Described, Kind, describe, origin, quoted, rendered, version_of
from changeglot.capture.myserver import Server
from changeglot.capture.spool import described, move
from changeglot.errors import ChangeglotError, Rewritten

#: Rows of a chunk, about.
ROWS = 100_000
#: Types whose values as the client gives them are found again, so that a table can be cut at them.
_CUT = {"tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "char", "varchar", "binary", "varbinary"}
_CUT |= {"date", "datetime", "timestamp", "uuid"}
#: The server does not know a column, or has another table by now than the transaction that reads it.
_ALTERED = (1054, 1412)


@dataclass(frozen=True)
class Chunk:
    """Rows of a table from a value of its key's first column to before another. Any: values, and JSON."""

    number: int
    database: str
    table: str
    columns: tuple[Declared, ...]
    facts: dict[str, Any]
    key: str | None
    first: Any
    end: Any
    #: About so many.
    rows: int

    #: All of them are one part of the table.
    part: ClassVar[str] = ""

    @property
    def of(self) -> str:
        return f"{self.database}.{self.table}"

    def again(self, now: Chunk) -> Chunk | None:
        """It is read as of a position of its own anyway; None if the table is another by now."""
        return self if (self.columns, self.facts, self.key) == (now.columns, now.facts, now.key) else None


@dataclass(frozen=True)
class Snapshot:
    """What is to be copied. The chunks have positions of their own, behind that one."""

    position: str
    #: As database.table.
    tables: tuple[str, ...]
    chunks: list[Chunk]
    #: Whether a chunk may be read later than others: changes tell whole rows.
    resumable: bool
    #: There are no numbers of transactions by which it could be said what the rows are; each chunk has its position.
    ends: bytes = b""
    reached: str = ""

    def close(self) -> None:
        """Nothing is held."""


class Copied(NamedTuple):
    """What `copy` wrote, and the relation it is of: `Spool.relation(facts)` is its name in the lines. Any: JSON."""

    rows: int
    size: int
    facts: dict[str, Any]
    relation: str


def copy(server: Server, chunk: Chunk, path: Path) -> Copied:
    """Writes the rows of a chunk as lines, all as of one position; a file that is whole, or none."""
    part = path.with_name(f".{path.name}.part")
    with server.connected(streaming=True) as connection:
        position = _snapshot(connection)
        facts = {**chunk.facts, "snapshot": list(position)}
        relation, _ = described(facts)
        where, values = [], []
        for sign, value in ((">=", chunk.first), ("<", chunk.end)):
            if chunk.key is not None and value is not None:
                where.append(f"{quoted(chunk.key)} {sign} %s")
                values.append(value)
        condition = f" WHERE {' AND '.join(where)}" if where else ""
        query = f"SELECT {rendered(chunk.columns)} FROM {quoted(chunk.database)}.{quoted(chunk.table)}{condition}"
        head = f"r\t{relation}\t{chunk.number}.".encode()
        count = 0
        with connection.cursor() as cursor, part.open("wb", buffering=1 << 20) as file:
            try:
                cursor.execute(query, values)
            except pymysql.err.OperationalError as problem:
                if problem.args[0] in _ALTERED:
                    raise _altered(chunk, part) from None
                raise
            while rows := cursor.fetchmany(1000):
                try:
                    lines = [b"%b%d\t%b\n" % (head, n, row) for n, (row,) in enumerate(rows, count)]
                except TypeError as problem:
                    raise ChangeglotError(
                        f'copying "{chunk.database}.{chunk.table}": a row is longer than the server can say',
                        hint="SET GLOBAL max_allowed_packet = 1073741824;",
                    ) from problem
                file.write(b"".join(lines))
                count += len(rows)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        # Who has read a table keeps it from being altered, so that it was before or not at all.
        with server.connected() as other:
            now = describe(other, chunk.database, chunk.table)
        if now is None or now.columns != chunk.columns:
            raise _altered(chunk, part)
    move(part, path)
    return Copied(count, size, facts, relation)


def _altered(chunk: Chunk, part: Path) -> Rewritten:
    part.unlink()
    named = f"{chunk.database}.{chunk.table}"
    return Rewritten(named, f"{named} was altered while its rows were read", hint="Read it again, by a new snapshot.")


def _snapshot(connection: pymysql.Connection[Cursor]) -> Position:
    """Begins a transaction, and gives the position that it sees."""
    begin = "START TRANSACTION WITH CONSISTENT SNAPSHOT"
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        if "MariaDB" in version_of(connection):
            cursor.execute(begin)
            cursor.execute("SHOW STATUS LIKE 'binlog_snapshot_%'")
            told = {_text(name).lower(): _text(value) for name, value in cursor.fetchall()}
            return _position(told["binlog_snapshot_file"], told["binlog_snapshot_position"])
        # Others wait while it waits for the lock, and no longer than the server answers three statements.
        cursor.execute("SET SESSION lock_wait_timeout = 10")
        cursor.execute("FLUSH TABLES WITH READ LOCK")
        cursor.execute(begin)
        position = end_of(connection)
        cursor.execute("UNLOCK TABLES")
        return position


def end_of(connection: pymysql.Connection[Cursor]) -> Position:
    """Where the binlog ends."""
    version = version_of(connection)
    numbers = tuple(int(each) for each in version.partition("-")[0].split(".")[:2])
    renamed = "MariaDB" not in version and numbers >= (8, 2)
    with connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOG STATUS" if renamed else "SHOW MASTER STATUS")
        (row,) = cursor.fetchall()
    return _position(_text(row[0]), _text(row[1]))


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _position(file: str, at: str) -> Position:
    return Position(int(file.rpartition(".")[2]), int(at))


def chunks(
    connection: pymysql.Connection[Cursor], kind: Kind, server: Server, tables: Iterable[str], *, cut: bool = True
) -> list[Chunk]:
    """Those of the tables named as database.table; unless they are `cut`, one of each."""
    found: list[Chunk] = []
    for database, _, table in (each.partition(".") for each in tables):
        told = describe(connection, database, table)
        if told is None:
            raise ChangeglotError(
                f'taking a snapshot: there is no table "{database}.{table}" that {server.user} may read',
                hint=f"GRANT SELECT ON `{database}`.* TO '{server.user}'@'%'; if it is there.",
            )
        with connection.cursor() as cursor:
            # Nothing is read: only whether it may be.
            cursor.execute(f"SELECT {rendered(told.columns)} FROM {quoted(database)}.{quoted(table)} LIMIT 0", ())
        found += _chunks(connection, told, told.facts(origin(server, kind)), len(found), cut=cut)
    return found


def _chunks(
    connection: pymysql.Connection[Cursor], table: Described, facts: dict[str, Any], number: int, *, cut: bool
) -> list[Chunk]:
    """Of about as many rows each, unless a single value has more. Any: JSON."""
    words = {each.name: each.word for each in table.columns}
    key = table.key[0] if cut and table.key and words[table.key[0]] in _CUT else None
    cuts: list[Any] = []
    if key is not None:
        with connection.cursor() as cursor:
            while True:
                behind = f" WHERE {quoted(key)} > %s" if cuts else ""
                cursor.execute(
                    f"SELECT {quoted(key)} FROM {quoted(table.database)}.{quoted(table.table)}{behind}"
                    f" ORDER BY {quoted(key)} LIMIT 1 OFFSET %s",
                    (*cuts[-1:], ROWS - 1 if cuts else ROWS),
                )
                row = cursor.fetchone()
                if row is None:
                    break
                cuts.append(row[0])
    bounds = [None, *cuts, None]
    return [
        Chunk(number + n, table.database, table.table, table.columns, facts, key, first, end, ROWS)
        for n, (first, end) in enumerate(pairwise(bounds))
    ]
