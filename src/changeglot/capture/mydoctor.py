"""What is well with a server of MySQL or MariaDB and what is not, before something is captured and while it is."""

from __future__ import annotations

import json
import re
import secrets
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pymysql
from pymysql.constants import COMMAND
from pymysql.cursors import Cursor

from changeglot.capture.binlog import Position
from changeglot.capture.findings import Finding, bad, clock, good, listed, lost, recorded, size, warn
from changeglot.capture.mycatalog import describe, names, quoted
from changeglot.capture.myserver import Server
from changeglot.errors import ChangeglotError

#: The oldest versions whose binlog tells the names of columns.
_OLDEST = {"MySQL": (8, 0, 14), "MariaDB": (10, 5, 0)}
_DAY = 86400
_OPTIONS = "and in its file of options"
#: Settings that must be so, why, and how to set them; not being known to the server is bad where there is no default.
_NEEDED: tuple[tuple[str, str, str | None, str, str], ...] = (
    (
        "log_bin",
        "ON",
        None,
        "there is no binlog",
        "In its file of options, below [mysqld]: log_bin = binlog; and start it again.",
    ),
    (
        "binlog_format",
        "ROW",
        None,
        "it has statements, not rows",
        f"SET GLOBAL binlog_format = ROW; {_OPTIONS}. Clients must connect anew.",
    ),
    (
        "binlog_row_metadata",
        "FULL",
        None,
        "it does not name columns",
        f"SET GLOBAL binlog_row_metadata = FULL; {_OPTIONS}.",
    ),
    (
        "binlog_row_value_options",
        "",
        "",
        "it has parts of JSON values only",
        f"SET GLOBAL binlog_row_value_options = ''; {_OPTIONS}. Clients must connect anew.",
    ),
    (
        "binlog_transaction_compression",
        "OFF",
        "OFF",
        "it is compressed, and not read then",
        f"SET GLOBAL binlog_transaction_compression = OFF; {_OPTIONS}. Clients must connect anew.",
    ),
)
_FORMAT, _DENIED = 15, (1044, 1142, 1143, 1227)


def examine(server: Server, folder: Path) -> list[Finding]:
    """What was found at the server, and in the folder of its spool. Nothing is changed, there or here."""
    found: list[Finding] = []
    try:
        with server.connected() as connection:
            _limited(connection)
            with connection.cursor() as cursor:
                # It waits for no lock.
                cursor.execute("SET SESSION lock_wait_timeout = 5")
                cursor.execute("SET SESSION TRANSACTION READ ONLY")
            for each in _Examined(server, folder, connection).findings():
                found.append(each)
    except ChangeglotError as problem:
        found.append(bad("server", problem.what, problem.hint))
    return found


class _Examined:
    """A server that was reached, and the spool of what is recorded of it."""

    def __init__(self, server: Server, folder: Path, connection: pymysql.Connection[Cursor]) -> None:
        self._server, self._folder, self._connection = server, folder, connection
        rows = self._ask("SHOW GLOBAL VARIABLES")
        self._set: Mapping[str, str] = {str(name).lower(): str(value) for name, value in rows}
        ((account,),) = self._ask("SELECT CURRENT_USER()")
        user, _, host = account.rpartition("@")
        self._user = f"{_literal(user)}@{_literal(host)}"

    def _ask(self, query: str, *given: object) -> list[tuple[Any, ...]]:
        """Any: rows of all kinds."""
        with self._connection.cursor() as cursor:
            cursor.execute(query, given or None)
            return list(cursor.fetchall())

    def findings(self) -> Iterator[Finding]:
        yield good("server", f'reached at {self._server.host}:{self._server.port}, user "{self._server.user}"')
        yield self._version()
        before = time.time()
        ((now,),) = self._ask("SELECT UNIX_TIMESTAMP(SYSDATE(6))")
        yield clock(float(now), before, time.time())
        yield from self._settings()
        yield from self._tables()
        if self._set.get("log_bin", "").upper() == "ON":
            yield from self._binlog()

    def _version(self) -> Finding:
        version = self._set["version"]
        kind = "MariaDB" if "MariaDB" in version else "MySQL"
        oldest = _OLDEST[kind]
        numbers = tuple(int(each) for each in re.findall("[0-9]+", version)[:3])
        said = f"{kind} {version.partition('-')[0]}"
        if numbers < oldest:
            return bad(
                "version", said, f"Upgrade it to {'.'.join(map(str, oldest))} or newer: older ones are not read."
            )
        return good("version", said)

    def _settings(self) -> Iterator[Finding]:
        """What the server must be set to, and what it had better be."""
        for name, right, default, why, fix in _NEEDED:
            value = self._set.get(name, default)
            if value is None:
                yield bad(name, f"is not known to the server: {why}", "Upgrade it.")
            elif value.upper() != right:
                yield bad(name, f'"{value}", not "{right}": {why}', fix)
            elif name in self._set:
                yield good(name, value or "none")
        image = self._set.get("binlog_row_image", "FULL")
        if image.upper() == "FULL":
            yield good("binlog_row_image", image)
        else:
            said = f'"{image}", not "FULL": changes tell some columns only, and rows may be known in part'
            yield warn("binlog_row_image", said, f"SET GLOBAL binlog_row_image = FULL; {_OPTIONS}.")
        yield self._retention()
        total = int(self._set.get("max_binlog_total_size", "0"))
        if total:
            said = f"{size(total)}: the oldest files are removed when there is more, read or not"
            yield warn("max_binlog_total_size", said, "SET GLOBAL max_binlog_total_size = 0; the age limits them too.")
        for name in ("gtid_mode", "gtid_strict_mode"):
            if name in self._set:
                yield good(name, f"{self._set[name]}; not needed: positions are those of files")
        number = int(self._set["server_id"])
        if number == 0:
            yield bad("server_id", "0: it refuses all who read its binlog", "SET GLOBAL server_id = 1")
        elif number == self._server.reader_id:
            yield bad("server_id", f"{number}, which is that of this reader", 'Set "server_id" to another number.')
        else:
            yield good("server_id", f"{number}, and {self._server.reader_id} of this reader")

    def _retention(self) -> Finding:
        name = "binlog_expire_logs_seconds"
        if name in self._set:
            seconds = float(self._set[name])
        else:
            name = "expire_logs_days"
            seconds = float(self._set.get(name, "0")) * _DAY
        if seconds == 0:
            return good(name, "0: files are kept until someone removes them")
        said = f"files are kept for {_span(seconds)}"
        if seconds < _DAY:
            why = f"{said}: a pipeline that is away for longer must read all rows again"
            fix = f"SET GLOBAL {name} = {7 * _DAY if name.endswith('seconds') else 7}; {_OPTIONS}."
            return warn(name, why, fix)
        return good(name, said)

    def _tables(self) -> Iterator[Finding]:
        """Which are captured, may be read, and have a key."""
        found = names(self._connection, self._server)
        there = {".".join(each) for each in found}
        if not found:
            said = f"none that {self._user} may read is one of {', '.join(self._server.tables)}"
            yield bad("tables", said, f"Is that their name? Then: GRANT SELECT ON *.* TO {self._user}")
            return
        yield good("tables", f"{len(found)} captured: {listed(sorted(there))}")
        for each in self._server.tables:
            if "*" not in each and each not in there:
                said = f"{each} is not there, or {self._user} may not read it"
                database, _, table = each.partition(".")
                yield warn("tables", said, f"GRANT SELECT ON {_name(database, table)} TO {self._user}, if it is there.")
        closed = []
        for database, table in found:
            try:
                self._ask(f"SELECT * FROM {_name(database, table)} LIMIT 0")
            except pymysql.err.Error as problem:
                if problem.args[0] not in _DENIED:
                    raise
                closed.append(_name(database, table))
                continue
            told = describe(self._connection, database, table)
            if told is not None and not told.key:
                said = f"{database}.{table} has none: its current rows cannot be told apart"
                yield warn("key", said, "Give it a primary key; or name columns in the pipeline: tables: keys.")
        if closed:
            fix = "; ".join(f"GRANT SELECT ON {each} TO {self._user}" for each in closed)
            yield bad("rights", f"{self._user} may not read {listed(closed)}", fix)
        else:
            yield good("rights", f"{self._user} may read them all")
        if "MariaDB" not in self._set["version"] and self._server.snapshot != "no_data":
            yield self._locks()

    def _locks(self) -> Finding:
        """Whether it may lock tables for a moment, as a position is known only then. Of roles nothing is known."""
        said = " ".join(row[0] for row in self._ask("SHOW GRANTS"))
        if re.search(r"\b(RELOAD|FLUSH_TABLES|ALL PRIVILEGES)\b[^`']* ON \*\.\*", said):
            return good("rights", f"{self._user} may lock tables for a moment")
        fix = f"Unless a role lets it: GRANT RELOAD ON *.* TO {self._user}"
        return warn("rights", f"{self._user} may not lock tables, as reading the first rows does for a moment", fix)

    def _binlog(self) -> Iterator[Finding]:
        """Whether it may be read, and has what was not recorded yet."""
        position = recorded(self._folder)
        grant = f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {self._user}"
        try:
            rows = self._ask("SHOW BINARY LOGS")
            yield from self._filters()
        except pymysql.err.Error as problem:
            if problem.args[0] not in _DENIED:
                raise
            yield bad("rights", f"{self._user} may not ask for the files of the binlog: {problem.args[-1]}", grant)
            return
        files = {int(row[0].rpartition(".")[2]): (row[0], int(row[1])) for row in rows}
        at = Position.of(position) if position else None
        file = at.file if at and at.file in files else max(files)
        try:
            begun = _begun(self._server, files[file][0])
        except ChangeglotError as problem:
            denied = problem.__cause__ is not None and problem.__cause__.args[:1] == (1227,)
            yield bad("rights", f"reading the binlog: {problem.what}", grant if denied else problem.hint)
            return
        yield good("rights", f"{self._user} may read the binlog")
        yield self._spool(at, files, begun)

    def _filters(self) -> Iterator[Finding]:
        """Databases that the binlog leaves out."""
        try:
            rows = self._ask("SHOW MASTER STATUS")
        except pymysql.err.ProgrammingError:
            # As it is called since MySQL 8.2.
            rows = self._ask("SHOW BINARY LOG STATUS")
        for _, _, only, ignored, *_ in rows:
            for name, value in (("binlog_do_db", only), ("binlog_ignore_db", ignored)):
                if value:
                    said = f'"{value}": changes of databases that it leaves out are never told'
                    yield warn(name, said, f"If one is captured: take {name} out of the server's file of options.")

    def _spool(self, at: Position | None, files: Mapping[int, tuple[str, int]], begun: int) -> Finding:
        """What was recorded, against what the server has."""
        if at is None:
            return good("spool", f"nothing was recorded yet in {self._folder}")
        if at.file not in files or at.at > files[at.file][1]:
            there = f"the server has files {min(files)} to {max(files)}, the last of {files[max(files)][1]} bytes"
            return lost("spool", f"recorded up to {at}, but {there}", self._server.snapshot)
        noted = self._folder / "binlog.json"
        known = dict(json.loads(noted.read_bytes())) if noted.exists() else {}
        if known.get(at.file, begun) != begun:
            said = f"recorded up to {at}, of a file that is another one now: another server, or a binlog that was reset"
            return lost("spool", said, self._server.snapshot)
        behind = sum(length for file, (_, length) in files.items() if file >= at.file) - at.at
        return good("spool", f"recorded up to {at}, {size(behind)} before the end of the binlog")


def _begun(server: Server, file: str) -> int:
    """When a file of the binlog was begun, in seconds since 1970, as who reads it is told."""
    with server.connected() as connection:
        _limited(connection)
        with connection.cursor() as cursor:
            cursor.execute(
                "SET @master_binlog_checksum = @@global.binlog_checksum, @mariadb_slave_capability = 4,"
                " @source_binlog_checksum = @@global.binlog_checksum"
            )
        # Any: private names of the client's, which speaks no replication. The number is one that nobody has: the
        # server would end another reader of the same.
        client: Any = connection
        reader = (1 << 31) + secrets.randbelow(1 << 31)
        client._execute_command(COMMAND.COM_BINLOG_DUMP, struct.pack("<IHI", 4, 1, reader) + file.encode())
        while True:
            event = client._read_packet().get_all_data()
            if event[0] != 0:
                raise ChangeglotError(f"file {file} has no beginning", hint="Ask the server: SHOW BINLOG EVENTS")
            if event[5] == _FORMAT:
                return int.from_bytes(event[1:5], "little")


def _limited(connection: pymysql.Connection[Cursor]) -> None:
    """It waits for no answer longer than some seconds."""
    # Any: the client has no other way once it is connected, and the recorder's connections wait for long.
    client: Any = connection
    client._read_timeout = 10


def _span(seconds: float) -> str:
    """A time as people say it.

    >>> _span(60), _span(2592000)
    ('1 minutes', '30 days')
    """
    for unit, name in ((_DAY, "days"), (3600, "hours")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds / 60:.3g} minutes"


def _name(database: str, table: str) -> str:
    return f"{quoted(database)}.{quoted(table)}".replace("%%", "%")


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
