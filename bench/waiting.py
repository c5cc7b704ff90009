"""Thousands of clients that wait for changes, in a process of their own: as small as they can be.

usage: waiting.py ADDRESS TABLE WHERES CLIENTS: one for each of the wheres in turn; says when each was told.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast
from urllib.parse import urlencode, urlsplit

import uvloop


class Waiting:
    """The process, seen from outside."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @classmethod
    @contextmanager
    def start(cls, url: str, table: str, wheres: Sequence[str], clients: int) -> Iterator["Waiting"]:
        command = [sys.executable, str(Path(__file__)), url, table, json.dumps(wheres), str(clients)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield cls(process)
            finally:
                process.kill()

    def wait(self) -> None:
        """Until all have asked, and some time more."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        time.sleep(3)

    def told(self) -> list[float]:
        """When each was told what has changed since it was last asked this, and asks again."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("told\n")
        self._process.stdin.flush()
        found: list[float] = json.loads(self._process.stdout.readline())
        return found


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def header(head: bytes, name: bytes) -> bytes:
    """Of an answer; nothing if it has none of that name."""
    return head.partition(b"\r\n" + name + b": ")[2].partition(b"\r\n")[0]


class Client(asyncio.Protocol):
    """One connection. An answer is read for its offset and cursor, and asked again from there.

    It does as little as it can: thousands of them share a core, and who is told last waits for what all others do.
    """

    def __init__(self, every: "Everyone", where: str) -> None:
        self.every = every
        self.line = f"GET /v1/shape?{urlencode({'table': every.table, **({'where': where} if where else {})})}".encode()
        self.place = b"&offset=now"
        self.live = False
        self.got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A faster loop's is none of Python's own.
        self.transport = cast(asyncio.Transport, transport)
        self.ask()

    def ask(self) -> None:
        self.got = b""
        self.transport.write(self.line + self.place + b" HTTP/1.1\r\nhost: x\r\n\r\n")

    def data_received(self, data: bytes) -> None:
        self.got += data
        head, end, body = self.got.partition(b"\r\n\r\n")
        head = head.lower() + b"\r\n"
        if not end or len(body) < int(header(head, b"content-length")):
            return
        assert head.startswith(b"http/1.1 200 "), self.got
        if self.live and header(head, b"electric-has-data") == b"true":
            self.every.told(time.time())
        if not self.live and b"\r\nelectric-up-to-date:" in head:
            self.live = True
            self.every.waits()
        self.place = b"&offset=%b&handle=%b" % (header(head, b"electric-offset"), header(head, b"electric-handle"))
        if self.live:
            self.place += b"&live=true"
        if cursor := header(head, b"electric-cursor"):
            self.place += b"&cursor=" + cursor
        self.ask()

    def connection_lost(self, exc: Exception | None) -> None:
        sys.exit(f"a connection was lost: {exc}")


class Everyone:
    """All of them."""

    def __init__(self, url: str, table: str, wheres: Sequence[str], clients: int) -> None:
        self.url, self.table, self.wheres, self.clients = url, table, wheres, clients
        self.waiting = 0
        self.those: list[float] = []
        self.all = asyncio.Event()

    def waits(self) -> None:
        self.waiting += 1

    def told(self, at: float) -> None:
        self.those.append(at)
        if len(self.those) == self.clients:
            self.all.set()

    async def run(self) -> None:
        loop, place = asyncio.get_running_loop(), urlsplit(self.url)
        for number in range(self.clients):
            where = self.wheres[number % len(self.wheres)]
            await loop.create_connection(lambda where=where: Client(self, where), place.hostname, place.port)
            while number - self.waiting > 100:
                await asyncio.sleep(0.01)
        while self.waiting < self.clients:
            await asyncio.sleep(0.05)
        say("ready")
        while await loop.run_in_executor(None, sys.stdin.readline):
            with suppress(TimeoutError):
                async with asyncio.timeout(60):
                    await self.all.wait()
            say(json.dumps(self.those))
            self.those.clear()
            self.all.clear()
            await asyncio.sleep(3)


def main() -> None:
    url, table, wheres, clients = sys.argv[1:]
    uvloop.run(Everyone(url, table, json.loads(wheres), int(clients)).run())


if __name__ == "__main__":
    main()
