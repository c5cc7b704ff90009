"""The tables that the binlog tells of, as the spool's relations; and which of its statements concern them."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pymysql
from pymysql.cursors import Cursor

from changeglot.capture import binvalues as types
from changeglot.capture.binlog import Table
from changeglot.capture.binmaps import Mapped
from changeglot.capture.binvalues import Column, Recode, decoding, reader, recoding
from changeglot.capture.mycatalog import Declared, Kind, describe, origin, relation_facts
from changeglot.capture.myserver import Server
from changeglot.capture.spool import Spool
from changeglot.capture.unread import Unread
from changeglot.errors import Lost

#: Charsets whose bytes are UTF-8 already, and Python's names of those with more than one byte a character.
_SAME = {"utf8mb4", "utf8mb3", "utf8", "ascii"}
_CODECS = {
    "big5": "big5hkscs",
    "cp932": "cp932",
    "eucjpms": "euc_jp",
    "euckr": "euc_kr",
    "gb18030": "gb18030",
    "gb2312": "gb2312",
    "gbk": "gbk",
    "sjis": "shift_jis",
    "ucs2": "utf-16-be",
    "ujis": "euc_jp",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
}
_WIDTHS = {
    types.TINY: ("tinyint", 4, 3),
    types.SHORT: ("smallint", 6, 5),
    types.INT24: ("mediumint", 9, 8),
    types.LONG: ("int", 11, 10),
    types.LONGLONG: ("bigint", 20, 20),
}
_WORDS = {
    types.FLOAT: "float",
    types.DOUBLE: "double",
    types.DATE: "date",
    types.NEWDATE: "date",
    types.TIME: "time",
    types.TIME2: "time",
    types.DATETIME: "datetime",
    types.DATETIME2: "datetime",
    types.TIMESTAMP: "timestamp",
    types.TIMESTAMP2: "timestamp",
    types.JSON: "json",
    types.GEOMETRY: "geometry",
    types.VECTOR: "vector",
}
#: As the catalog has labels.
_QUOTES = str.maketrans({"'": "''", "\\": "\\\\", "\0": "\\0", "\n": "\\n", "\r": "\\r"})
#: The first column of what is no table, but MariaDB writes of it as if it were one.
_SEQUENCE = "next_not_cached_value"
_SIZES = {1: "tiny", 2: "", 3: "medium", 4: "long"}

_NAME = r"""(?:`(?:[^`]|``)+`|"(?:[^"]|"")+"|[\w$]+)"""
_FULL = rf"{_NAME}(?:\s*\.\s*{_NAME})?"
_SKIPPED = re.compile(r"(?:\s+|/\*M?!\d*|/\*.*?\*/|--[^\n]*\n|#[^\n]*\n)*", re.DOTALL)
_TRUNCATE = re.compile(
    rf"(?:TRUNCATE(?:\s+TABLE)?|DELETE\s+FROM)\s+({_FULL})\s*(?:;|/\*.*|$)", re.IGNORECASE | re.DOTALL
)
_TABLE_DDL = re.compile(
    r"(?:CREATE(?:\s+OR\s+REPLACE)?|ALTER(?:\s+ONLINE)?(?:\s+IGNORE)?|DROP|RENAME)\s+TABLES?"
    rf"(?:\s+IF\s+(?:NOT\s+)?EXISTS)?\s+((?:{_FULL}(?:\s*,\s*|\s+TO\s+)?)+)",
    re.IGNORECASE,
)
_RENAMES = re.compile(r"RENAME\s+TABLES?\s", re.IGNORECASE)
_RENAMED = re.compile(rf"{_FULL}\s+TO\s+({_FULL})", re.IGNORECASE)
_ALTERED = re.compile(
    rf"^ALTER\s.*?TABLE\s+(?:IF\s+EXISTS\s+)?{_FULL}\s(?:.*,)?\s*RENAME\s+(?!COLUMN\b|INDEX\b|KEY\b)"
    rf"(?:TO\s+|AS\s+|=\s*)?({_FULL})",
    re.IGNORECASE | re.DOTALL,
)
_INDEX_DDL = re.compile(
    r"(?:CREATE(?:\s+OR\s+REPLACE)?(?:\s+(?:UNIQUE|FULLTEXT|SPATIAL))?|DROP)\s+INDEX(?:\s+IF\s+(?:NOT\s+)?EXISTS)?"
    rf"\s+{_NAME}\s.*?\bON\s+({_FULL})",
    re.IGNORECASE | re.DOTALL,
)
_DATABASE_DDL = re.compile(
    rf"(?:CREATE(?:\s+OR\s+REPLACE)?|ALTER|DROP)\s+(?:DATABASE|SCHEMA)(?:\s+IF\s+(?:NOT\s+)?EXISTS)?\s+({_NAME})",
    re.IGNORECASE,
)
_ROW_DML = re.compile(
    r"(?:INSERT|REPLACE|UPDATE|DELETE|LOAD\s+DATA)\b"
    rf"(?:\s+(?:LOW_PRIORITY|DELAYED|HIGH_PRIORITY|QUICK|IGNORE|INTO|FROM))*\s+({_FULL})",
    re.IGNORECASE,
)


class Tables:
    """Asks the server for what the binlog does not tell: the words of types, and keys that are not primary ones.

    The binlog may tell of a table as it was; what the server says of it now counts where both agree.
    """

    def __init__(self, server: Server, kind: Kind, spool: Spool, connection: pymysql.Connection[Cursor]) -> None:
        self._server, self._kind, self._spool, self._connection = server, kind, spool, connection
        self.origin = origin(server, kind)
        #: Of each table that was seen, the last relation.
        self._known: dict[tuple[str, str], str] = {}
        self._recodes: dict[str, Recode | None] = {}
        self._charsets, self._longest = _charsets(connection, kind)

    def charset(self, collation: int) -> str | None:
        """Which one a collation is of; None for bytes."""
        charset = self._charsets.get(collation, "utf8mb4")
        return None if charset == "binary" else charset

    def text(self, data: bytes, collation: int) -> bytes:
        """Text in UTF-8."""
        recode = self._recode(self.charset(collation) or "utf8mb4") if collation else None
        return data if recode is None else recode(data)

    def _recode(self, charset: str) -> Recode | None:
        """What makes UTF-8 of a charset's text; None if it is that already."""
        if charset in _SAME:
            return None
        if charset in _CODECS:
            return decoding(_CODECS[charset])
        if charset not in self._recodes:
            with self._connection.cursor() as cursor:
                # As the server itself sees the 256 bytes; the word is one of its own.
                cursor.execute(
                    f"SELECT HEX(CONVERT(CONVERT(UNHEX(%s) USING {charset}) USING utf8mb4))", (bytes(range(256)).hex(),)
                )
                (told,) = cursor.fetchone() or ("",)
            self._recodes[charset] = recoding(bytes.fromhex(told).decode())
        return self._recodes[charset]

    def table(self, mapped: Mapped) -> Table | None:
        """How its rows become lines; None if its changes are not wanted."""
        if not self._server.wants(mapped.database, mapped.table) or mapped.columns[0].name == _SEQUENCE:
            return None
        if not mapped.named:
            name = f"{mapped.database}.{mapped.table}"
            raise Lost(
                f'reading the binlog: changes of "{name}" were written without the names of its columns',
                hint="SET GLOBAL binlog_row_metadata = FULL; and take a new snapshot.",
            )
        found = describe(self._connection, mapped.database, mapped.table)
        declared = {each.name: each for each in found.columns} if found else {}
        columns, readers = [], []
        for column in mapped.columns:
            told = self._told(column)
            same = declared.get(column.name)
            if same and not _fits(same, told):
                same = None
            columns.append({"name": column.name, "type": same.type if same else told, "nullable": column.nullable})
            recode = self._recode(column.charset) if column.charset else None
            readers.append(reader(column, same.word if same else "", recode))
        names = {each.name for each in mapped.columns if not each.nullable}
        key: list[str] = []
        if mapped.key is not None:
            key = [mapped.columns[n].name for n in mapped.key]
        elif found and names.issuperset(found.key):
            key = list(found.key)
        relation = self._spool.relation(relation_facts(self.origin, mapped.database, mapped.table, columns, key))
        self._known[mapped.database, mapped.table] = relation
        return Table(relation, readers)

    def _told(self, column: Column) -> str:
        """The type in the server's words, as far as the binlog has it."""
        code, size, sign = column.type, column.size, " unsigned" if column.unsigned else ""
        if code in _WIDTHS:
            word, signed, unsigned = _WIDTHS[code]
            return f"{word}({unsigned if column.unsigned else signed}){sign}" if self._kind.mariadb else f"{word}{sign}"
        if code == types.NEWDECIMAL:
            return f"decimal({size},{column.scale}){sign}"
        if code == types.YEAR:
            return "year(4)" if self._kind.mariadb else "year"
        if code == types.BIT:
            return f"bit({size})"
        if code in (types.ENUM, types.SET):
            labels = ",".join(f"'{each.decode().translate(_QUOTES)}'" for each in column.labels)
            return f"{'enum' if code == types.ENUM else 'set'}({labels})"
        if code in (types.STRING, types.VAR_STRING, types.VARCHAR, types.VARCHAR_COMPRESSED):
            fixed = code == types.STRING
            if column.charset is None:
                return f"{'binary' if fixed else 'varbinary'}({size})"
            return f"{'char' if fixed else 'varchar'}({size // self._longest.get(column.charset, 1)})"
        if code in _WORDS:
            return f"{_WORDS[code]}({column.scale})" if column.scale else _WORDS[code] + sign
        return f"{_SIZES.get(size, '')}{'text' if column.charset else 'blob'}"

    def statement(self, database: str, text: str) -> tuple[bytes, str] | None:
        """The op of its line and its relation; None if it concerns no table that is wanted."""
        text = text[_SKIPPED.match(text).end() :]  # type: ignore[union-attr]  # it matches nothing, too
        if found := _TRUNCATE.match(text):
            table = _names(found[1], database)[0]
            return (b"t", self._relation(*table)) if self._server.wants(*table) else None
        if found := _TABLE_DDL.match(text) or _INDEX_DDL.match(text):
            self._ask(text, database)
            wanted = [each for each in _names(found[1], database) if self._server.wants(*each)]
            known = [each for each in wanted if each in self._known]
            return (b"q", self._relation(*(known or wanted)[0])) if wanted else None
        if found := _DATABASE_DDL.match(text):
            return (b"q", "") if self._server.wants_of(_names(found[1], "")[0][1]) else None
        if (found := _ROW_DML.match(text)) and self._server.wants(*(table := _names(found[1], database)[0])):
            raise Lost(
                f'reading the binlog: a change of "{".".join(table)}" was written as a statement',
                hint="Some client has set binlog_format; it must be ROW. Take a new snapshot.",
            )
        return None

    def _ask(self, text: str, database: str) -> None:
        """Of a table that got a name that is wanted, what it had before has never been told: it is read."""
        found = _RENAMED.findall(text) if _RENAMES.match(text) else _ALTERED.findall(text)
        tables = [name for new in found for name in _names(new, database) if self._server.wants(*name)]
        if tables:
            Unread(self._spool.folder).ask([".".join(each) for each in tables])

    def _relation(self, database: str, table: str) -> str:
        """The last one that was seen, or as the table is now; without columns if it is not there."""
        if (database, table) not in self._known:
            found = describe(self._connection, database, table)
            facts = found.facts(self.origin) if found else relation_facts(self.origin, database, table, (), ())
            self._known[database, table] = self._spool.relation(facts)
        return self._known[database, table]


def _charsets(connection: pymysql.Connection[Cursor], kind: Kind) -> tuple[Mapping[int, str], Mapping[str, int]]:
    """The charset of each collation, and the most bytes that a character of each has."""
    found: dict[int, str] = {}
    with connection.cursor() as cursor:
        # The newer ones of MariaDB, which are of several charsets, are in the second table only.
        tables = ["COLLATIONS", *(["COLLATION_CHARACTER_SET_APPLICABILITY"] if kind.mariadb else [])]
        for table in tables:
            cursor.execute(f"SHOW COLUMNS FROM information_schema.{table} LIKE 'ID'")
            if cursor.fetchone():
                cursor.execute(f"SELECT ID, CHARACTER_SET_NAME FROM information_schema.{table} WHERE ID IS NOT NULL")
                found |= {int(number): str(charset) for number, charset in cursor.fetchall() if charset}
        cursor.execute("SELECT CHARACTER_SET_NAME, MAXLEN FROM information_schema.CHARACTER_SETS")
        return found, {str(charset): int(longest) for charset, longest in cursor.fetchall()}


def _names(text: str, database: str) -> list[tuple[str, str]]:
    """Database and name of each table of a list."""
    return [
        (_plain(whole.group("first")), _plain(whole.group("second")))
        if whole.group("second")
        else (database, _plain(whole.group("first")))
        for whole in re.finditer(
            rf"(?P<first>{_NAME})(?:\s*\.\s*(?P<second>{_NAME}))?(?:\s*,\s*|\s+TO\s+)?", text, re.IGNORECASE
        )
    ]


def _plain(name: str) -> str:
    return name[1:-1].replace(name[0] * 2, name[0]) if name[0] in '`"' else name


def _fits(declared: Declared, told: str) -> bool:
    """Whether the catalog's type is one that the binlog tells in this way."""
    if declared.type == told:
        return True
    if declared.word in ("uuid", "inet6", "inet4"):
        return told == ("binary(4)" if declared.word == "inet4" else "binary(16)")
    if declared.word in ("float", "double", "year", *(word for word, _, _ in _WIDTHS.values())):
        # The binlog does not have the width, nor whether zeros fill it.
        return re.sub(r"\(.*?\)| zerofill", "", declared.type) == re.sub(r"\(.*?\)", "", told)
    if told == "geometry":
        return declared.word.startswith(("geom", "multi")) or declared.word in ("point", "linestring", "polygon")
    return declared.type.removesuffix(" zerofill") == told or declared.word == "vector"
