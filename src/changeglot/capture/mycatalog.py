"""What a server of MySQL or MariaDB says of itself and of its tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pymysql
from pymysql.cursors import Cursor

from changeglot.capture.myserver import Server
from changeglot.errors import ChangeglotError


class Kind(NamedTuple):
    """Which server it is. `checksum`: whether its events have one; `whole`: whether rows are told with all columns."""

    mariadb: bool
    version: str
    checksum: bool
    whole: bool


def version_of(connection: pymysql.Connection[Cursor]) -> str:
    """What the server said when it was greeted."""
    version: str = connection.get_server_info()  # type: ignore[no-untyped-call]  # the stubs have no type
    return version


def kind_of(connection: pymysql.Connection[Cursor]) -> Kind:
    """Which server it is, after making sure that its binlog can be read."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'log_bin', 'binlog_format',"
            " 'binlog_row_metadata', 'binlog_row_image', 'binlog_row_value_options', 'binlog_checksum')"
        )
        set_to = {str(name).lower(): str(value) for name, value in cursor.fetchall()}
    version = set_to["version"]
    checksum, image = set_to.get("binlog_checksum", "NONE"), set_to.get("binlog_row_image", "FULL")
    kind = Kind("MariaDB" in version, version.partition("-")[0], checksum != "NONE", image.upper() == "FULL")
    wrong = [
        ("log_bin", "ON", "In the server's file of options, below [mysqld]: log_bin = binlog, and start it again."),
        ("binlog_format", "ROW", "SET GLOBAL binlog_format = ROW; and let clients connect anew."),
        ("binlog_row_metadata", "FULL", "SET GLOBAL binlog_row_metadata = FULL; and in its file of options."),
        ("binlog_row_value_options", "", "SET GLOBAL binlog_row_value_options = '';"),
    ]
    for name, right, hint in wrong:
        is_set = set_to.get(name, "" if name == "binlog_row_value_options" else "not known to the server")
        if is_set.upper() != right:
            raise ChangeglotError(f'reading the binlog: {name} is "{is_set}", not "{right}"', hint=hint)
    return kind


def origin(server: Server, kind: Kind) -> dict[str, str]:
    """Which database says it."""
    return {
        "kind": "mariadb" if kind.mariadb else "mysql",
        "version": kind.version,
        "name": server.origin or server.host,
    }


class Declared(NamedTuple):
    """A column as the catalog tells it. `word`: its type without what is in brackets."""

    name: str
    type: str
    word: str
    nullable: bool
    text: bool
    precision: int
    scale: int


class Described(NamedTuple):
    """A table as the catalog tells it."""

    database: str
    table: str
    columns: tuple[Declared, ...]
    key: tuple[str, ...]

    def facts(self, origin: Mapping[str, str]) -> dict[str, Any]:
        """Of its relation. Any: JSON."""
        columns = [{"name": each.name, "type": each.type, "nullable": each.nullable} for each in self.columns]
        return relation_facts(origin, self.database, self.table, columns, self.key)


def relation_facts(
    origin: Mapping[str, str], database: str, table: str, columns: Sequence[Mapping[str, Any]], key: Sequence[str]
) -> dict[str, Any]:
    """What the spool keeps of a relation. Any: JSON."""
    where = {"origin": dict(origin), "database": database, "schema": None, "table": table}
    return {**where, "columns": list(columns), "key": list(key), "snapshot": None}


def describe(connection: pymysql.Connection[Cursor], database: str, table: str) -> Described | None:
    """The table; None if it is not there, or none of rows."""
    where, names = "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s", (database, table)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT TABLE_TYPE FROM information_schema.TABLES {where}", names)
        found = cursor.fetchone()
        if found is None or found[0] not in ("BASE TABLE", "SYSTEM VERSIONED"):
            return None
        cursor.execute(
            "SELECT COLUMN_NAME, COLUMN_TYPE, DATA_TYPE, IS_NULLABLE, CHARACTER_SET_NAME, NUMERIC_PRECISION,"
            f" NUMERIC_SCALE FROM information_schema.COLUMNS {where} ORDER BY ORDINAL_POSITION",
            names,
        )
        columns = tuple(
            Declared(
                name,
                # MariaDB notes there what only it understands.
                re.sub(r"\s*/\*.*?\*/", "", kind),
                word.lower(),
                nullable == "YES",
                charset is not None,
                precision or 0,
                scale or 0,
            )
            for name, kind, word, nullable, charset, precision, scale in cursor.fetchall()
        )
        cursor.execute(
            f"SELECT INDEX_NAME, COLUMN_NAME, NULLABLE FROM information_schema.STATISTICS {where} AND NON_UNIQUE = 0"
            " ORDER BY INDEX_NAME <> 'PRIMARY', INDEX_NAME, SEQ_IN_INDEX",
            names,
        )
        indexes: dict[str, list[str | None]] = {}
        for index, column, nullable in cursor.fetchall():
            indexes.setdefault(index, []).append(None if nullable == "YES" else column)
    key = next((each for each in indexes.values() if None not in each), [])
    return Described(database, table, columns, tuple(each for each in key if each))


def names(connection: pymysql.Connection[Cursor], server: Server) -> list[tuple[str, str]]:
    """Database and name of all tables that are wanted."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES"
            " WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') ORDER BY TABLE_SCHEMA, TABLE_NAME"
        )
        return [(database, table) for database, table in cursor.fetchall() if server.wants(database, table)]


def quoted(name: str) -> str:
    """A name in a statement that is given with values."""
    return "`" + name.replace("`", "``").replace("%", "%%") + "`"


_BYTES = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "vector"}
_SHAPES = {"geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"}
_SHAPES |= {"geometrycollection", "geomcollection"}
#: Bytes, and what stands for them in a line.
_ESCAPES = (("5C", "5C5C"), ("09", "5C74"), ("0A", "5C6E"), ("0D", "5C72"))


def rendered(columns: Sequence[Declared]) -> str:
    """The expression of a row's values as a line has them; each as `binvalues.py` would say it."""
    return f"CONCAT_WS(X'09', {', '.join(map(_rendered, columns))})"


def _rendered(column: Declared) -> str:
    name = quoted(column.name)
    if column.word in _BYTES or column.word in _SHAPES:
        shown = f"CONCAT(X'5C5C78', LOWER(HEX({name})))"
    elif column.text or column.word == "json":
        shown = f"CONVERT(CONVERT({name} USING utf8mb4) USING binary)"
        for found, instead in _ESCAPES:
            shown = f"REPLACE({shown}, X'{found}', X'{instead}')"
    elif column.word == "bit":
        shown = f"LPAD(BIN({name} + 0), {column.precision}, '0')"
    elif column.word == "double":
        shown = f"CAST({name} AS DOUBLE)"
    elif column.word == "float":
        short = f"CONCAT(CAST({name} AS FLOAT))"
        shown = f"IF(CAST({short} AS FLOAT) = {name}, {short}, CONCAT(CAST({name} AS DOUBLE)))"
    elif "zerofill" in column.type:
        exact = f"DECIMAL({column.precision}, {column.scale})" if column.word == "decimal" else "UNSIGNED"
        shown = f"CAST({name} AS {exact})"
    else:
        shown = name
    return f"IFNULL(CONVERT({shown} USING binary), X'5C4E')"
