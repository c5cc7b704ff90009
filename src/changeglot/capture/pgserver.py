"""A PostgreSQL server: how it is reached. Its client is loaded then: who captures nothing need not have it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from changeglot.errors import ChangeglotError, ConfigError, Unreachable
from changeglot.options import option

if TYPE_CHECKING:
    import psycopg

#: Values are told alike by the snapshot and by the log, whatever the role's own settings are.
_SETTINGS = {
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    # Types of other schemas are named with them.
    "search_path": "public",
    # Rows that a policy hides make reading fail, instead of being left out.
    "row_security": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}
#: Words of a server that lets nobody in, whenever it is asked, and what helps.
_REFUSALS = {
    "password authentication failed": 'Is "password" that of the user?',
    "no password supplied": 'Set "password".',
    "no pg_hba.conf entry": "Let the user come from this machine: a line in the server's pg_hba.conf.",
    "is not permitted to log in": "Type: ALTER ROLE {user} LOGIN",
    "does not exist": 'Are "database" and "user" those of the server?',
    "permission denied for database": "Type: GRANT CONNECT ON DATABASE {database} TO {user}",
    "permission denied": "Type: ALTER ROLE {user} REPLICATION",
    "must be superuser or replication role": "Type: ALTER ROLE {user} REPLICATION",
    "does not support SSL": 'Set "sslmode" to prefer, or let the server have a certificate.',
    "certificate": 'Does "sslmode" fit the server\'s certificate?',
}


@dataclass(frozen=True)
class Server:
    """A database of a PostgreSQL server, which of its tables are captured, and by which publication and slot."""

    host: str = option("name or address of the server", example="localhost")
    database: str = option("which of its databases", example="shop")
    user: str = option("a role that may replicate", example="changeglot")
    tables: tuple[str, ...] = option("schema.table, * for any letters", example="public.*")
    password: str = option("of the role", "", shown=False)
    port: int = option("of the server", 5432)
    sslmode: str = option("as libpq has it", "prefer")
    origin: str = option("what changes call the server; host if empty", "")
    publication: str = option("made if it is not there", "changeglot")
    slot: str = option("made if it is not there; of small letters, digits and _", "changeglot")
    snapshot: Literal["initial", "initial_only", "no_data", "when_needed"] = option(
        "rows that are there before the changes: at first, those alone, none, or whenever changes are lost", "initial"
    )

    def __post_init__(self) -> None:
        if not re.fullmatch("[a-z0-9_]{1,63}", self.slot):
            raise ConfigError("slot", f'"{self.slot}" is no name of a slot', hint="Use small letters, digits and _.")
        if not self.tables:
            raise ConfigError("tables", "is empty", hint="tables: [public.*]")
        for each in self.tables:
            if "." not in each:
                raise ConfigError("tables", f'"{each}" has no schema', hint=f"Write public.{each}, or *.{each}.")

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(".*".join(map(re.escape, each.split("*"))) for each in self.tables))

    def wants(self, schema: str, table: str) -> bool:
        return self._pattern.fullmatch(f"{schema}.{table}") is not None

    def connect(self, *, replication: bool = False) -> psycopg.Connection[Any]:
        """Commits each statement. Unreachable: the server does not answer. Any: rows of all kinds."""
        import psycopg

        try:
            return psycopg.connect(
                host=self.host,
                port=self.port,
                dbname=self.database,
                user=self.user,
                password=self.password or None,
                sslmode=self.sslmode,
                application_name="changeglot",
                client_encoding="UTF8",
                connect_timeout=15,
                keepalives=1,
                keepalives_idle=30,
                keepalives_interval=10,
                keepalives_count=3,
                options=" ".join(f"-c {name}={value}" for name, value in _SETTINGS.items()),
                replication="database" if replication else None,
                autocommit=True,
            )
        except psycopg.OperationalError as problem:
            said = self.hidden(str(problem))
            doing = f"connecting to {self.host}:{self.port}: {said}"
            for words, hint in _REFUSALS.items():
                if words in str(problem):
                    names = {"user": quoted(self.user), "database": quoted(self.database)}
                    raise ChangeglotError(doing, hint=hint.format(**names)) from None
            raise Unreachable(doing, hint='Does it run, and are "host" and "port" right?') from None

    def hidden(self, text: str) -> str:
        """Words of the server in one line, without the password."""
        text = " ".join(text.split())
        return text.replace(self.password, "***") if self.password else text


def quoted(*names: str) -> str:
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)
