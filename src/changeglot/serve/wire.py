"""Connections of the server: who may ask how often, who waits too long with it, and answers past aiohttp's own way."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import cast

from aiohttp import web


@dataclass
class Rates:
    """How often an address may ask."""

    limit: int
    left: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def takes(self, address: str) -> bool:
        if not self.limit:
            return True
        now = time.monotonic()
        left, at = self.left.pop(address, (float(self.limit), now))
        left = min(float(self.limit), left + (now - at) * self.limit)
        self.left[address] = (left - 1 if left >= 1 else left, now)
        if len(self.left) > 10_000:
            self.left.popitem(last=False)
        return left >= 1


@dataclass
class Patience:
    """With those who have connected and do not say what they want: after so many seconds they are left."""

    seconds: int
    awaited: dict[asyncio.BaseTransport, asyncio.TimerHandle] = field(default_factory=dict)
    served: set[asyncio.BaseTransport] = field(default_factory=set)

    def wait(self, transport: asyncio.Transport) -> None:
        if transport not in self.awaited and transport not in self.served:
            self.awaited[transport] = asyncio.get_running_loop().call_later(self.seconds, transport.abort)

    def end(self, transport: asyncio.BaseTransport) -> None:
        if timer := self.awaited.pop(transport, None):
            timer.cancel()

    @contextmanager
    def serving(self, transport: asyncio.BaseTransport | None) -> Iterator[None]:
        """Its request is here, and is answered within."""
        if transport is None:
            yield
            return
        self.end(transport)
        self.served.add(transport)
        try:
            yield
        finally:
            self.served.discard(transport)


class Connection(asyncio.Protocol):
    """A connection of the server's, which has to say in time what is wanted."""

    def __init__(self, server: Callable[[], asyncio.Protocol], patience: Patience) -> None:
        self._inner, self._patience = server(), patience
        self.eof_received = self._inner.eof_received  # type: ignore[method-assign]
        self.pause_writing = self._inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = self._inner.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A faster loop's is none of Python's own.
        self._transport = cast(asyncio.Transport, transport)
        self._patience.wait(self._transport)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._patience.wait(self._transport)
        self._inner.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._patience.end(self._transport)
        self._inner.connection_lost(exc)


class Told(web.StreamResponse):
    """A response that is on its way: nothing is left to send."""

    def __init__(self, request: web.Request) -> None:
        super().__init__()
        self._alive = request.keep_alive

    @property
    def keep_alive(self) -> bool:
        return self._alive

    async def prepare(self, request: web.BaseRequest) -> None:
        """It was."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Nor an end."""


def spelled(status: int, headers: Mapping[str, str], kind: str, body: bytes) -> bytes:
    """An answer as it goes over the wire."""
    more = {"content-type": kind, "content-length": str(len(body)), "date": formatdate(usegmt=True)}
    lines = (f"{name}: {value}\r\n" for name, value in {**headers, **more}.items())
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{''.join(lines)}\r\n".encode() + body
