"""How a server of MySQL or MariaDB is reached. Its client is loaded when it is wanted."""

from __future__ import annotations

import re
import ssl as tls
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal

from changeglot.errors import ChangeglotError, ConfigError, Unreachable
from changeglot.options import option

if TYPE_CHECKING:
    import pymysql
    from pymysql.cursors import Cursor

#: What the server, or the way to it, says when it may be otherwise soon.
AWAY = {1040, 1053, 1077, 1079, 1129, 1152, 1158, 1159, 1160, 1161, 1927, 2002, 2003, 2006, 2013, 2055}
#: An account that lets nobody in: of MySQL, of MariaDB.
_LOCKED = {3118, 4151}
#: Of all connections: all times in UTC, no surprises, and patience while Spark is slow or nobody asks.
_SESSION = {"time_zone": "'+00:00'", "sql_mode": "''", "net_write_timeout": 3600, "wait_timeout": 31536000}
_SYSTEM = ("information_schema", "mysql", "performance_schema", "sys")


@dataclass(frozen=True)
class Server:
    """A server of MySQL 8.0.14 or MariaDB 10.5, or newer, that writes a binlog of rows."""

    host: str = option("of the server", example="db.example.com")
    user: str = option("who may read the tables and the binlog")
    tables: tuple[str, ...] = option("database and table, `*` for any letters", example="shop.*")
    password: str = option("of the user", "", shown=False)
    port: int = option("of the server", 3306)
    origin: str = option("what changes call the server; host if empty", "")
    ssl: Literal["disable", "prefer", "require", "verify"] = option("whether the connection is encrypted", "prefer")
    ssl_ca: str = option("a file of certificates that are trusted, instead of the system's", "")
    server_id: int = option("of no other server or reader of the binlog; 0 for one made of origin and tables", 0)
    snapshot: Literal["initial", "initial_only", "no_data", "when_needed"] = option(
        "whether rows that are there are read first", "initial"
    )

    def __post_init__(self) -> None:
        if not self.tables:
            raise ConfigError("tables", "is empty", hint="tables: [shop.*]")
        for each in self.tables:
            if not re.fullmatch(r"[^.]+\.[^.]+", each):
                raise ConfigError("tables", f'"{each}" is not a database and a table', hint="As in shop.* or shop.item")

    @property
    def reader_id(self) -> int:
        """What the server knows this reader by; the same at each start."""
        made_of = " ".join((self.origin or self.host, *self.tables))
        return self.server_id or 1_000_000_000 + zlib.crc32(made_of.encode()) % 3_000_000_000

    def wants(self, database: str, table: str) -> bool:
        """Whether the table is one of those that are captured."""
        return database not in _SYSTEM and any(
            _matches(database, each.partition(".")[0]) and _matches(table, each.partition(".")[2])
            for each in self.tables
        )

    def wants_of(self, database: str) -> bool:
        """Whether a table of the database can be one of those."""
        return database not in _SYSTEM and any(_matches(database, each.partition(".")[0]) for each in self.tables)

    @contextmanager
    def connected(self, *, streaming: bool = False) -> Iterator[pymysql.Connection[Cursor]]:
        """A connection that says all times in UTC; `streaming`: rows come as they are, one after the other."""
        import pymysql
        from pymysql.cursors import Cursor, SSCursor

        address = f"{self.host}:{self.port}"
        try:
            connection: pymysql.Connection[Cursor] = pymysql.connect(
                host=self.host,
                port=self.port,
                user=self.user,
                password=self.password,
                charset="utf8mb4",
                autocommit=True,
                connect_timeout=10,
                use_unicode=not streaming,
                cursorclass=SSCursor if streaming else Cursor,
                init_command=f"SET SESSION {', '.join(f'{name} = {value}' for name, value in _SESSION.items())}",
                **self._encryption(),
            )
        except (pymysql.err.Error, OSError, RuntimeError) as problem:
            raise _explained(problem, f"connecting to {address}", self.user) from problem
        try:
            yield connection
        except (pymysql.err.Error, OSError) as problem:
            raise _explained(problem, f"reading from {address}", self.user) from problem
        finally:
            if connection.open:
                # Not `close`, which would wait for the rows that nobody wants any more.
                connection._force_close()  # type: ignore[attr-defined]  # not in the stubs

    def _encryption(self) -> dict[str, Any]:
        """Any: options of the client."""
        if self.ssl == "disable":
            return {"ssl_disabled": True}
        if self.ssl == "prefer":
            return {}
        context = tls.create_default_context(cafile=self.ssl_ca or None)
        if self.ssl == "require":
            context.check_hostname, context.verify_mode = False, tls.CERT_NONE
        return {"ssl": context}


def _matches(name: str, pattern: str) -> bool:
    # Only `*` means more than itself.
    return fnmatchcase(name, pattern.replace("[", "[[]").replace("?", "[?]"))


def _explained(problem: Exception, doing: str, user: str) -> ChangeglotError:
    """The server's words, and what to do."""
    from pymysql.err import InterfaceError

    code = problem.args[0] if problem.args and isinstance(problem.args[0], int) else 0
    said = str(problem.args[-1]) if problem.args else type(problem).__name__
    if isinstance(problem, OSError | InterfaceError) or code in AWAY:
        return Unreachable(f"{doing}: {said}", hint="Does the server run, and are host and port right?")
    if "cryptography" in said:
        return ConfigError("ssl", f"{doing}: {said}", hint="pip install cryptography, or set ssl to require.")
    if code in (1045, 1698, 1044, 2054, 2059) or isinstance(problem, RuntimeError):
        return ConfigError("password", f"{doing}: {said}", hint="Are user and password right?")
    if code in _LOCKED:
        return ChangeglotError(f"{doing}: {said}", hint=f"ALTER USER '{user}'@'%' ACCOUNT UNLOCK; lets it in.")
    if code in (1142, 1143, 1227):
        grants = "REPLICATION SLAVE, REPLICATION CLIENT, RELOAD, SELECT"
        return ChangeglotError(
            f"{doing}: {said}", hint=f"GRANT {grants} ON *.* TO '{user}'@'%'; lets it (RELOAD: MySQL)."
        )
    return ChangeglotError(f"{doing}: {said} ({code})")
