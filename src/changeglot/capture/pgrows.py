"""The rows that a PostgreSQL server had at a position of its log: parts that any task on any machine may read."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self

import psycopg
from psycopg import errors, sql
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from changeglot.capture.pgcatalog import Catalog, Table, telling
from changeglot.capture.pgseen import View
from changeglot.capture.pgserver import Server
from changeglot.capture.spool import Spool, move
from changeglot.errors import Rewritten as Rewritten
from changeglot.errors import Unreachable

#: Bytes that a chunk is about as large as.
CHUNK = 64 << 20
#: How many rows are asked for at once by their keys.
_KEYS = 500


@dataclass(frozen=True)
class Chunk:
    """Rows of a table, or of one of its partitions, that lie in the blocks from `first` to before `end`."""

    relation: str
    #: The captured table, as schema.table.
    of: str
    schema: str
    table: str
    oid: int
    file: int
    columns: tuple[str, ...]
    where: str
    first: int
    end: int | None
    #: About so many.
    rows: int

    @property
    def part(self) -> int:
        """Its partition, or the table."""
        return self.oid

    def again(self, now: Chunk) -> Chunk | None:
        """The same blocks under another snapshot; None if they are others, or the table is."""
        same = (self.file, self.columns, self.where) == (now.file, now.columns, now.where)
        return replace(self, relation=now.relation) if same else None


class Copied(NamedTuple):
    """How much of a chunk there was."""

    rows: int
    bytes: int


@dataclass
class Snapshot:
    """Rows as they were at a position, for as long as it is not closed. It holds back VACUUM."""

    name: str
    position: int
    #: As schema.table.
    tables: tuple[str, ...]
    chunks: list[Chunk]
    #: Whether another snapshot may read what this one has not: changes tell what is between them.
    resumable: bool
    #: The transactions that are in the rows, as PostgreSQL writes it: `xmin:xmax:xid,xid`.
    seen: str
    _connection: psycopg.Connection[Any] = field(repr=False)

    #: As of which position all tables are, once their rows are there; empty if changes of others are still to come.
    reached: str = ""

    @property
    def ends(self) -> bytes:
        """Lines that say of each table that all its rows are there, and what they are."""
        told = "\t".join(map(json.dumps, View.of(self.seen).told.values()))
        relations = dict.fromkeys(each.relation for each in self.chunks)
        return "".join(f"e\t{relation}\t{n}\t{told}\n" for n, relation in enumerate(relations)).encode()

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def copy(server: Server, snapshot: str, chunk: Chunk, path: str | Path) -> Copied:
    """Reads a chunk into a file of lines, which is there whole or not at all. Any process on any machine may."""
    path = Path(path)
    table = sql.Identifier(chunk.schema, chunk.table)
    fields = [
        sql.Literal("r"),
        sql.Literal(chunk.relation),
        sql.SQL("ctid"),
        *map(sql.Identifier, chunk.columns),
    ]
    bounds = [sql.SQL("ctid >= {}::tid").format(sql.Literal(f"({chunk.first},0)"))]
    if chunk.end is not None:
        bounds.append(sql.SQL("ctid < {}::tid").format(sql.Literal(f"({chunk.end},0)")))
    if chunk.where:
        # The server's own words, of its publication.
        bounds.append(sql.SQL("({})").format(sql.SQL(chunk.where)))
    query = sql.SQL("COPY (SELECT {} FROM ONLY {} WHERE {}) TO STDOUT").format(
        sql.SQL(", ").join(fields), table, sql.SQL(" AND ").join(bounds)
    )
    part = path.with_name(f".{path.name}.part")
    with telling(server, f"reading rows of {chunk.of}"), closing(server.connect()) as connection:
        enter(connection, snapshot)
        with part.open("wb", buffering=1 << 20) as file:
            try:
                count = _copied(connection, query.as_string(connection).encode(), file)
            except errors.UndefinedColumn as problem:
                part.unlink()
                said = (
                    f"{chunk.schema}.{chunk.table} was altered while its rows were read: {server.hidden(str(problem))}"
                )
                raise Rewritten(chunk.of, said, hint="Read it again, by a new snapshot.") from None
            size = file.tell()
            file.flush()
            os.fsync(file.fileno())
        # Reading keeps the table from being written anew, so it was before or not at all.
        now = connection.execute("SELECT pg_relation_filenode(%s)", (chunk.oid,)).fetchone()
        if now != (chunk.file,):
            part.unlink()
            said = f"{chunk.schema}.{chunk.table} was emptied or written anew (TRUNCATE, VACUUM FULL, ALTER TABLE)"
            raise Rewritten(chunk.of, f"{said} while its rows were read", hint="Read it again, by a new snapshot.")
    move(part, path)
    return Copied(count, size)


def _copied(connection: psycopg.Connection[Any], query: bytes, file: BinaryIO) -> int:
    """Writes what a COPY gives, a line at a time as the server sends it; how many. Any: rows of all kinds.

    Not by the client's own iterator, which takes four times as long for a line.
    """
    server = connection.pgconn
    server.send_query(query)
    ready = select.poll()
    ready.register(server.socket, select.POLLIN)
    write, take = file.write, server.get_copy_data
    while (result := _result(server, ready)) is not None and result.status == ExecStatus.COPY_OUT:
        while True:
            size, line = take(1)
            if size > 0:
                write(line)
            elif size == 0:
                ready.poll()
                server.consume_input()
            else:
                break
    if result is None or result.status != ExecStatus.COMMAND_OK:
        raise errors.error_from_result(result) if result is not None else errors.OperationalError("no answer")
    count = result.command_tuples or 0
    while _result(server, ready) is not None:
        pass
    return count


def _result(server: PGconn, ready: select.poll) -> PGresult | None:
    """What the server answers next, however long it takes."""
    while server.is_busy():
        ready.poll()
        server.consume_input()
    return server.get_result()


def chunks(
    spool: Spool, catalog: Catalog, table: Table, position: int, seen: str, *, published: bool
) -> Iterator[Chunk]:
    """The rows of a table as of that position, in parts of about the same size; `seen`: see Snapshot."""
    columns, where = catalog.told(table, published=published)
    names = tuple(each["name"] for each in columns)
    key = catalog.key(table.oid, names)
    relation = spool.relation({**catalog.facts(table.schema, table.table, columns, key, position), "seen": seen})
    for leaf in table.leaves:
        # Of one size: who reads the last is not the last for long.
        step = max(1, -(-leaf.blocks // max(1, -(-leaf.size // CHUNK))))
        # Of a table that was never looked at: rows of a hundred bytes.
        rows = leaf.rows if leaf.rows >= 0 else leaf.size // 100
        for first in range(0, max(1, leaf.blocks), step):
            end = first + step if first + step < leaf.blocks else None
            share = rows * min(step, leaf.blocks - first) // max(1, leaf.blocks)
            at = (leaf.schema, leaf.table, leaf.oid, leaf.file)
            yield Chunk(relation, str(table), *at, names, where, first, end, share)


def enter(connection: psycopg.Connection[Any], snapshot: str | None) -> None:
    """From now on the connection sees what the snapshot does. Any: rows of all kinds."""
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    if snapshot is not None:
        try:
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
        except (errors.UndefinedObject, errors.InvalidParameterValue) as problem:
            # The server was restarted, or ended the transaction that held it.
            raise Unreachable(f"the snapshot has ended: {problem}") from problem


def mended(server: Server, spool: Spool, rows: Snapshot, tables: Collection[str]) -> None:
    """Segments of those rows, as the snapshot has them, of whose changes that were set aside one does not tell all."""
    with closing(server.connect()) as connection:
        enter(connection, rows.name)
        for table in sorted(tables):
            chunk = next(each for each in rows.chunks if each.of == table)
            for names, keys in spool.aside.partial(table).items():
                listed = sorted(keys)
                for first in range(0, len(listed), _KEYS):
                    _mend(connection, spool, chunk, names, listed[first : first + _KEYS])


def _mend(
    connection: psycopg.Connection[Any], spool: Spool, chunk: Chunk, names: Sequence[str], keys: Iterable[Sequence[str]]
) -> None:
    """Any: rows of all kinds."""
    facts = spool.facts(chunk.relation)
    listed = sql.SQL(", ").join
    places = [sql.Literal("r"), sql.Literal(chunk.relation), sql.SQL("'m' || row_number() OVER ()")]
    wanted = listed(sql.SQL("({})").format(listed(map(sql.Literal, each))) for each in keys)
    query = sql.SQL("COPY (SELECT {} FROM {} WHERE ({}) IN ({}){}) TO STDOUT").format(
        listed([*places, *map(sql.Identifier, chunk.columns)]),
        sql.Identifier(facts["schema"], facts["table"]),
        listed(map(sql.Identifier, names)),
        wanted,
        sql.SQL(f" AND ({chunk.where})" if chunk.where else ""),
    )
    name = f"m{time.time_ns():020d}.lines"
    part = spool.folder / "rows" / f".{name}"
    with part.open("wb") as file:
        _copied(connection, query.as_string(connection).encode(), file)
        file.flush()
        os.fsync(file.fileno())
    move(part, spool.segments / name)
