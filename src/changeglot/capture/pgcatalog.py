"""What a PostgreSQL server knows of its tables, publications and slots, and how it is reached."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from changeglot.capture.pgoutput import Relation
from changeglot.capture.pgserver import Server, quoted
from changeglot.errors import ChangeglotError, ConfigError, Unreachable

#: What our publications carry as comment.
OURS = "changeglot"
#: Types whose names other databases have for something else.
_OWN = {"bit", "money", "point", "polygon"}
#: What a server says that is not there for a moment: it ends, starts, is full, or serves the slot's reader of before.
_LATER = ("08", "53", "57P", "55006")


class InUse(Unreachable):
    """The slot has another reader, or one that has just ended."""


class Table(NamedTuple):
    """A table that is captured. Rows lie in its leaves: in itself, or in the partitions below it."""

    oid: int
    schema: str
    table: str
    partitioned: bool
    owned: bool
    leaves: tuple[Leaf, ...]

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"

    @property
    def quoted(self) -> str:
        return quoted(self.schema, self.table)


class Leaf(NamedTuple):
    """Where rows lie. `file`: another one when all of them were written anew. `rows`: about how many, -1 unknown."""

    oid: int
    schema: str
    table: str
    file: int
    blocks: int
    size: int
    rows: int


class Slot(NamedTuple):
    """A replication slot; `lost` says why it is of no use, if so."""

    plugin: str | None
    database: str | None
    pid: int | None
    confirmed: int
    lost: str


def lsn(position: int) -> str:
    """A position as PostgreSQL writes it.

    >>> lsn(4294967296)
    '1/0'
    """
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def number(position: str) -> int:
    """The position that PostgreSQL writes so.

    >>> number("1/0")
    4294967296
    """
    high, low = position.split("/")
    return int(high, 16) << 32 | int(low, 16)


class Catalog:
    """The catalog as one connection sees it. Any: facts are JSON, and rows of all kinds."""

    def __init__(self, server: Server, connection: psycopg.Connection[Any]) -> None:
        self._server, self.connection = server, connection
        self._types: dict[tuple[int, int], str] = {}

    def ask(self, query: str, *given: object) -> list[tuple[Any, ...]]:
        return self.connection.execute(query.encode(), given or None).fetchall()

    @cached_property
    def version(self) -> tuple[int, str]:
        """The number and the words of the server's version."""
        return self.connection.info.server_version, self.ask("SHOW server_version")[0][0].split()[0]

    def tables(self) -> list[Table]:
        """Those that are wanted; a partition only if no table above it is. ConfigError: there are none."""
        rows = self.ask(
            """SELECT c.oid, n.nspname, c.relname, c.relkind = 'p', pg_has_role(c.relowner, 'USAGE'),
                ARRAY(SELECT relid::oid FROM pg_partition_ancestors(c.oid) WHERE relid <> c.oid)
            FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
                AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
            ORDER BY n.nspname, c.relname"""
        )
        wanted = {row[0]: row for row in rows if self._server.wants(row[1], row[2])}
        names = {f"{schema}.{table}" for _, schema, table, *_ in wanted.values()}
        missing = [each for each in self._server.tables if "*" not in each and each not in names]
        if missing or not wanted:
            named = ", ".join(missing or self._server.tables)
            hint = "Was it renamed or dropped? Unlogged and foreign tables, and views, cannot be captured."
            raise ConfigError("tables", f'database "{self._server.database}" has no table {named}', hint=hint)
        return [
            Table(oid, schema, table, partitioned, owned, self._leaves(oid))
            for oid, schema, table, partitioned, owned, above in wanted.values()
            if not any(each in wanted for each in above)
        ]

    def _leaves(self, oid: int) -> tuple[Leaf, ...]:
        rows = self.ask(
            """SELECT c.oid, n.nspname, c.relname, c.relfilenode,
                pg_relation_size(c.oid) / current_setting('block_size')::int, pg_table_size(c.oid), c.reltuples::bigint
            FROM (SELECT relid FROM pg_partition_tree(%s) WHERE isleaf UNION SELECT %s::regclass) leaf
            JOIN pg_class c ON c.oid = leaf.relid JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE c.relkind = 'r' ORDER BY n.nspname, c.relname""",
            *(oid, oid),
        )
        return tuple(Leaf(*row) for row in rows)

    def told(self, table: Table, *, published: bool) -> tuple[list[dict[str, Any]], str]:
        """The columns that the log tells, and which rows: a condition, or nothing."""
        found: tuple[Any, ...] = (None, None)
        if published and self.version[0] >= 150000:
            rows = self.ask(
                "SELECT attnames::text[], rowfilter FROM pg_publication_tables"
                " WHERE pubname = %s AND schemaname = %s AND tablename = %s",
                *(self._server.publication, table.schema, table.table),
            )
            found = rows[0] if rows else found
        columns = self.ask(
            """SELECT attname, format_type(atttypid, atttypmod), NOT attnotnull FROM pg_attribute
            WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped
                AND (%s::text[] IS NULL OR attname = ANY(%s::text[]))
                AND (attgenerated = '' OR (attgenerated = 's' AND %s))
            ORDER BY attnum""",
            # Before PostgreSQL 18 the log tells no generated columns, whatever the publication lists.
            *(table.oid, found[0], found[0], found[0] is not None and self.version[0] >= 180000),
        )
        listed = [{"name": name, "type": kind, "nullable": nullable} for name, kind, nullable in columns]
        return listed, found[1] or ""

    def facts(
        self, schema: str, table: str, columns: list[dict[str, Any]], key: Sequence[str], position: int | None
    ) -> dict[str, Any]:
        """A relation as the spool keeps it."""
        name = self._server.origin or self._server.host
        return {
            "origin": {"kind": "postgresql", "version": self.version[1], "name": name},
            "database": self._server.database,
            "schema": schema,
            "table": table,
            "columns": [{**each, "type": _plain(each["type"])} for each in columns],
            "key": list(key),
            "snapshot": None if position is None else [position],
        }

    def key(self, oid: int, columns: Iterable[str]) -> list[str]:
        """The columns that identify a row: those that old rows are known by, the primary key, or unique ones."""
        rows = self.ask(
            """SELECT keyed.names FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
            JOIN pg_class named ON named.oid = i.indexrelid, LATERAL (
                SELECT array_agg(a.attname::text ORDER BY k.at) AS names, bool_and(a.attnotnull) AS sure
                FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(number, at)
                JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number WHERE k.at <= i.indnkeyatts
            ) keyed
            WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
                AND (i.indimmediate OR i.indisprimary) AND keyed.sure
            ORDER BY i.indisreplident AND c.relreplident = 'i' DESC, i.indisprimary DESC, named.relname""",
            oid,
        )
        known = set(columns)
        return next((names for (names,) in rows if known.issuperset(names)), [])

    def recorded(self, relation: Relation) -> dict[str, Any]:
        """The facts of a relation of the log. What the log does not tell is as it is now."""
        now = self.ask("SELECT attname, attnotnull FROM pg_attribute WHERE attrelid = %s", relation.oid)
        required = {name for name, sure in now if sure}
        columns = [
            {"name": each.name, "type": self._type(each.type, each.modifier, each.type_name), "nullable": True}
            for each in relation.columns
        ]
        for each in columns:
            each["nullable"] = each["name"] not in required
        key = self.key(relation.oid, (each.name for each in relation.columns))
        told = [each.name for each in relation.columns if each.key]
        if relation.identity in "di" and set(told) != set(key):
            key = told
        return self.facts(relation.schema, relation.table, columns, key, None)

    def _type(self, oid: int, modifier: int, name: str) -> str:
        if (oid, modifier) not in self._types:
            ((found,),) = self.ask("SELECT format_type(%s, %s)", oid, modifier)
            # A type that is no more.
            self._types[oid, modifier] = name if found == "???" and name else found
        return self._types[oid, modifier]

    def slot(self) -> Slot | None:
        rows = self.ask(
            """SELECT plugin, database, active_pid, confirmed_flush_lsn - '0/0'::pg_lsn, wal_status,
                to_jsonb(s) ->> 'invalidation_reason'
            FROM pg_replication_slots s WHERE slot_name = %s""",
            self._server.slot,
        )
        if not rows:
            return None
        plugin, database, pid, confirmed, status, reason = rows[0]
        lost = reason or ("its log was removed" if status == "lost" else "")
        return Slot(plugin, database, pid, int(confirmed or 0), lost)

    def published(self) -> set[tuple[str, str]]:
        """Schemas and tables of the publication."""
        asked = "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s"
        return set(self.ask(asked, self._server.publication))

    def publishes(self, oid: int) -> bool:
        """Whether the publication has the table of that number."""
        asked = """SELECT 1 FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
            WHERE p.pubname = %s AND r.prrelid = %s"""
        return bool(self.ask(asked, self._server.publication, oid))

    def publication(self) -> tuple[bool, bool, bool] | None:
        """Whether it is ours, whether it tells of roots for their partitions, and of all kinds of changes."""
        rows = self.ask(
            """SELECT obj_description(oid, 'pg_publication') IS NOT DISTINCT FROM %s, pubviaroot,
                pubinsert AND pubupdate AND pubdelete AND pubtruncate
            FROM pg_publication WHERE pubname = %s""",
            *(OURS, self._server.publication),
        )
        return rows[0] if rows else None

    def publish(self, tables: Sequence[Table], *, add: bool = False) -> None:
        """Makes our publication, or adds tables to it."""
        name = sql.Identifier(self._server.publication)
        form = "ALTER PUBLICATION {} ADD TABLE {}" if add else "CREATE PUBLICATION {} FOR TABLE {} WITH ({})"
        parts = [name, sql.SQL(", ").join(map(_published, tables)), sql.SQL("publish_via_partition_root = true")]
        with self.connection.transaction():
            self.connection.execute(sql.SQL(form).format(*parts))
            self.connection.execute(sql.SQL("COMMENT ON PUBLICATION {} IS {}").format(name, sql.Literal(OURS)))

    def without_identity(self, tables: Sequence[Table]) -> list[str]:
        """Those, or their partitions, whose old rows would not be told: published, they refuse UPDATE and DELETE."""
        return [
            quoted(*row)
            for table in tables
            for row in self.ask(
                """SELECT n.nspname, c.relname FROM pg_class root, pg_class c JOIN pg_namespace n
                    ON n.oid = c.relnamespace
                WHERE root.oid = %s AND c.oid = ANY(%s) AND NOT (
                    c.relreplident = 'f' OR root.relreplident <> 'f' AND c.relreplident IN ('d', 'i') AND EXISTS (
                        SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
                            AND CASE c.relreplident WHEN 'd' THEN i.indisprimary ELSE i.indisreplident END))
                ORDER BY 1, 2""",
                *(table.oid, [table.oid, *(leaf.oid for leaf in table.leaves)]),
            )
        ]


def _plain(kind: str) -> str:
    """The name of a type, with its schema if the same name is one of other databases' types, with other texts.

    >>> _plain("bit varying(3)"), _plain("point[]"), _plain("integer")
    ('pg_catalog.bit varying(3)', 'point[]', 'integer')
    """
    word = re.split(r"[ (]", kind, maxsplit=1)[0]
    return f"pg_catalog.{kind}" if word in _OWN else kind


def _published(table: Table) -> sql.Composed:
    # Tables that inherit from it are tables of their own.
    only = sql.SQL("" if table.partitioned else "ONLY ")
    return only + sql.Identifier(table.schema, table.table)


@contextmanager
def telling(server: Server, doing: str) -> Iterator[None]:
    """What PostgreSQL says, as our errors. Unreachable: it may be well later."""
    try:
        yield
    except psycopg.Error as problem:
        said = f"{doing}: {server.hidden(str(problem))}"
        state = problem.sqlstate or ""
        if state.startswith(_LATER) or (not state and isinstance(problem, psycopg.OperationalError)):
            raise Unreachable(said, hint="Does the server run? Its log says more.") from None
        raise ChangeglotError(said, hint=_hint(state, server)) from None


def _hint(state: str, server: Server) -> str:
    if state == "42501":
        return f"Give user {quoted(server.user)} the right to do that."
    if state == "42704":
        return "Was it dropped meanwhile? Start again."
    return ""
