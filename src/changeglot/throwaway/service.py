"""What all servers that are thrown away have in common: one process, its folder and its ports."""

from __future__ import annotations

import atexit
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, ClassVar, Self

from changeglot.errors import ChangeglotError

#: Seconds in which a service that is well has started, or ended, on a machine that is busy.
PATIENCE = 120
#: Below those that the system gives to clients: a client that knocks at a dead service's port may be given just that.
PORTS = range(20000, 32000)

#: Becomes what its arguments say, after asking the kernel for a signal, the first, when its parent, the second, is
#: gone.
_GUARD = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, int(sys.argv[1]))
if os.getppid() == int(sys.argv[2]):
    os.execv(sys.argv[3], sys.argv[3:])
"""


class ServiceFailed(ChangeglotError):
    """A service did not start, end or answer; what it said last is in the message."""


class Service(ABC):
    """One process that serves, its folder and its ports."""

    name: ClassVar[str]
    #: Where its users expect it.
    usual: ClassVar[int]
    #: Those that can be had; the first is meant where none is named.
    versions: ClassVar[tuple[str, ...]]
    #: What makes it end in good order.
    ends_on: ClassVar[signal.Signals] = signal.SIGTERM
    #: What makes it end at once, when nobody needs it any more, its data neither.
    dies_on: ClassVar[signal.Signals] = signal.SIGKILL

    def __init__(self, folder: Path, state: Mapping[str, Any]) -> None:
        """Its folder, and what `service.json` in it says. Any: numbers and texts."""
        self.folder = folder
        self.state = dict(state)
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(
        cls,
        folder: Path,
        port: int | None = None,
        *,
        user: str = "",
        password: str = "",
        settings: Mapping[str, str] | None = None,
        version: str = "",
        detached: bool = False,
    ) -> Self:
        """Starts one in a folder below this one, on what an earlier one left there, and waits until it answers.

        Without a port it takes a free one. `settings` go over those in the service's own file. `version` is one of
        `versions`, or how it begins. Unless `detached`, it dies when the thread that started it is gone.
        """
        folder = folder.absolute() / cls.name
        old = cls.found(folder.parent)
        if old is not None and old.running:
            raise ServiceFailed(f"{cls.name} already runs in {folder}, at {old.address}")
        versions = [each for each in cls.versions if f"{each}.".startswith(version and f"{version}.")]
        if not versions:
            raise ServiceFailed(f"there is no {cls.name} {version}, only {' and '.join(cls.versions)}")
        folder.mkdir(parents=True, exist_ok=True)
        state = {"ports": cls.ports(port), "user": user, "password": password, "settings": dict(settings or {})}
        service = cls(folder, {**state, "version": versions[0], "detached": detached})
        service._launch()
        return service

    @classmethod
    def found(cls, folder: Path) -> Self | None:
        """The one that was started in the folder, running or not, by whichever process."""
        folder = folder.absolute() / cls.name
        try:
            return cls(folder, json.loads((folder / "service.json").read_bytes()))
        except FileNotFoundError:
            return None

    @property
    def address(self) -> str:
        """What clients are told."""
        return f"127.0.0.1:{self.state['ports']['main']}"

    @property
    def version(self) -> str:
        """The whole of it."""
        version: str = self.state["version"]
        return version

    @property
    def pid(self) -> int:
        """Of the process that serves, or did."""
        pid: int = self.state["pid"]
        return pid

    @property
    def log(self) -> Path:
        """What the process says."""
        return self.folder / "log"

    @property
    def logs(self) -> list[Path]:
        """All that tell why it failed."""
        return [self.log]

    @property
    def running(self) -> bool:
        """Whether the process is there. One of the same number that is another's is not it."""
        if self._process is not None:
            return self._process.poll() is None
        return "pid" in self.state and str(self.folder) in command_of(self.pid)

    def stop(self) -> None:
        """Ends it in good order; if it does not, kills it."""
        if self._end(self.ends_on):
            return
        self.kill()

    def kill(self) -> None:
        """Kills it as a power cut would (kill -9)."""
        if not self._end(signal.SIGKILL):
            raise ServiceFailed(f"{self.name}, process {self.pid}, does not even die when killed")

    def discard(self) -> None:
        """Ends it at once; if it does not, kills it."""
        # RocketMQ takes a quarter of a minute to end in good order.
        if self._end(self.dies_on):
            return
        self.kill()

    def restart(self) -> None:
        """Starts it again, on the same ports and with its data; if it runs, it is stopped before."""
        self.stop()
        self._launch()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.discard()

    @classmethod
    @abstractmethod
    def ports(cls, port: int | None) -> dict[str, int]:
        """Those it needs, free ones, by name; `main` is the one asked for."""

    @abstractmethod
    def prepare(self) -> None:
        """Writes what the process reads."""

    @abstractmethod
    def command(self) -> tuple[list[str], dict[str, str]]:
        """What is run, in which the folder is named, and the environment that goes over this one."""

    def as_user(self) -> list[str]:
        """What a command begins with to be run by another user; nothing if this one will do."""
        return []

    @abstractmethod
    def answers(self) -> bool:
        """Whether it does its work, not only listens. OSError: it does not even listen."""

    def _launch(self) -> None:
        self.prepare()
        command, environment = self.command()
        guarded = not self.state["detached"]
        if guarded and sys.platform == "linux":
            # As the other user already: the kernel forgets the wish of one that becomes another.
            command = [sys.executable, "-I", "-S", "-c", _GUARD, str(int(self.dies_on)), str(os.getpid()), *command]
        elif guarded:
            atexit.register(self.discard)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self.as_user(), *command],
                **self._surroundings(environment, log),
                start_new_session=True,
            )
        try:
            self.state["pid"] = self._process.pid
            (self.folder / "service.json").write_text(json.dumps(self.state, indent=1))
            self._until(self._serves, "started")
        except BaseException:
            self.kill()
            raise

    def _surroundings(self, environment: Mapping[str, str], log: IO[bytes]) -> dict[str, Any]:
        """What every process of the service is started in. Any: options of a process."""
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
        return {"cwd": self.folder, "env": {**os.environ, **environment}, **streams}

    def _run(self, command: Sequence[str], environment: Mapping[str, str], what: str) -> None:
        """Runs what has to be done before the service can start; it speaks into the service's log."""
        with self.log.open("ab") as log:
            done = subprocess.run(
                [*self.as_user(), *command],
                **self._surroundings(environment, log),
                timeout=PATIENCE,
                check=False,
            )
        if done.returncode:
            raise ServiceFailed(f"{self.name} could not {what}{self._said()}")

    def _serves(self) -> bool:
        if not self.running:
            raise ServiceFailed(f"{self.name} ended instead of starting{self._said()}")
        try:
            return self.answers()
        except OSError:
            return False

    def _until(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            if time.monotonic() > deadline:
                raise ServiceFailed(f"{self.name} has not {what} within {PATIENCE} seconds{self._said()}")
            time.sleep(0.05)

    def _end(self, how: signal.Signals) -> bool:
        """Whether it has ended."""
        if self.running:
            os.kill(self.pid, how)
            try:
                self._until(lambda: not self.running, "ended")
            except ServiceFailed:
                return False
        return True

    def _said(self) -> str:
        """The last lines of its logs."""
        parts = []
        for log in self.logs:
            lines = log.read_text("utf-8", "replace").splitlines()[-25:] if log.exists() else []
            if lines:
                parts.append("\n".join((f"; the end of {log}:", *lines)))
        return "\n".join(parts) or f"; it left nothing in {self.log}"


def free(*around: int, wanted: int | None = None) -> int:
    """A port that nobody listens at, nor at those so far from it; the wanted one if it can be."""
    tried = [*([wanted] if wanted else []), *random.sample(PORTS, 1000)]
    for port in tried:
        if all(_is_free(port + distance) for distance in around or (0,)):
            return port
    raise ServiceFailed(f"none of {len(tried)} ports of this machine is free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Connections of one that just ended do not count; for Java neither.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def received(connection: socket.socket, size: int) -> bytes:
    """So many bytes."""
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the service hung up")
        data += part
    return data


def command_of(pid: int) -> str:
    """The command of a process; empty if there is none, or only what is left of it until its parent asks."""
    if sys.platform == "linux":
        try:
            return Path(f"/proc/{pid}/cmdline").read_text("utf-8", "replace").replace("\0", " ")
        except (FileNotFoundError, ProcessLookupError):
            return ""
    return subprocess.run(["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True).stdout
