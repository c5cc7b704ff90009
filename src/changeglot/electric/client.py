"""Requests for parts of shape logs, and what servers answer. A server that is away is asked again."""

from __future__ import annotations

import http.client
import json
import math
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, TypeVar
from urllib.parse import urlencode, urlsplit

from changeglot.errors import ConfigError, Unreachable
from changeglot.options import option

T = TypeVar("T")

#: The offset before all rows, and the path of shapes where a URL has none.
BEGIN: Final = "-1"
_PATH: Final = "/v1/shape"
#: Seconds between two attempts, at first and at most.
_PAUSE, _LONGEST = 1.0, 32.0
#: How often an offset that is not there is asked for: another server may have it by then.
_TRIES: Final = 5
#: What of an answer that is none of ours is told.
_SHOWN: Final = 200


class Rotated(Exception):
    """The handle is none any more: all rows have to be read again."""


@dataclass(frozen=True)
class Shape:
    """A table, or the part of it that meets a condition."""

    table: str = option("name of the table, as the server knows it", example="public.orders")
    where: str = option("condition of the rows, in SQL; without one: all", "", example="amount > $1")
    params: tuple[str, ...] = option("values of $1, $2, ... in the condition", ())
    columns: tuple[str, ...] = option("columns, those of the key among them; none named: all", ())
    replica: Literal["full", "default"] = option("full: updates tell whole rows; default: what they changed", "full")

    @property
    def query(self) -> dict[str, str]:
        """Parameters of a request that say which shape it is."""
        told = {"table": self.table, "log": "full", "replica": self.replica}
        if self.where:
            told["where"] = self.where
        if self.columns:
            told["columns"] = ",".join('"{}"'.format(name.replace('"', '""')) for name in self.columns)
        return told | {f"params[{number}]": value for number, value in enumerate(self.params, 1)}


def place(offset: str) -> tuple[int, float]:
    """What an offset is compared by.

    >>> place("-1") < place("0_0") < place("0_inf") < place("7_2") < place("7_10")
    True
    """
    tx, _, op = offset.partition("_")
    return int(tx), math.inf if op == "inf" else int(op or 0)


@dataclass(frozen=True)
class Answer:
    """A part of a log: its messages, as they came; the offset behind them, and whether there are no more."""

    handle: str
    offset: str
    complete: bool
    body: bytes = field(repr=False)
    #: JSON of the columns, by name; empty if the answer does not tell.
    schema: str = ""
    cursor: str = ""

    @cached_property
    def messages(self) -> list[Any]:
        """Any: JSON."""
        try:
            told = json.loads(self.body or b"[]")
        except ValueError:
            told = None
        if not isinstance(told, list) or not all(isinstance(each, dict) for each in told):
            raise _no_shapes(f"no list of messages: {self.body[:_SHOWN]!r}")
        return told

    def until(self, end: str) -> bytes:
        """The body, less messages that are behind an offset."""
        text, read, last = self.body.decode(), json.JSONDecoder().raw_decode, place(end)
        pieces, at = [], text.index("[") + 1
        while (at := _space(text, at)) < len(text) and text[at] != "]":
            told, behind = read(text, at)
            headers = told["headers"]
            if "lsn" not in headers or (int(headers["lsn"]), headers.get("op_position", 0)) <= last:
                pieces.append(text[at:behind])
            at = _space(text, behind)
            at += text[at] == ","
        return f"[{','.join(pieces)}]".encode()


def _space(text: str, at: int) -> int:
    """Where what follows white space begins."""
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


@dataclass(frozen=True, kw_only=True)
class Server:
    """Whom to ask, and how."""

    url: str
    secret: str = field(default="", repr=False)
    #: What else is sent with every request.
    parameters: Mapping[str, str] = field(default_factory=dict, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: Seconds: of silence after which a connection is given up, and for which a server that is away is waited for.
    timeout: float = 45
    patience: float = 600

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        try:
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            good = False
        if not good or parts.query or parts.username:
            hint = "As http://localhost:3000. What else a server wants goes into secret, parameters or headers."
            raise ConfigError("source.url", "is no address of a server", hint=hint)

    @property
    def name(self) -> str:
        """The server in messages to people."""
        return f"{urlsplit(self.url).scheme}://{urlsplit(self.url).netloc}{self._path}"

    @property
    def _path(self) -> str:
        return urlsplit(self.url).path.rstrip("/") or _PATH

    def ask(self, shape: Shape, offset: str, handle: str = "", *, fresh: bool = False, **more: str) -> Answer:
        """What is behind an offset. Raises Rotated. With `fresh` no cache may answer."""
        asked = {**shape.query, "offset": offset, **({"handle": handle} if handle else {}), **more}
        if fresh:
            asked["cache-buster"] = _any()

        def take(response: http.client.HTTPResponse) -> Answer:
            with response:
                body = response.read()
            # Older servers answer 204 if nothing came.
            return _answer(response, body) if response.status == 200 else Answer(handle, offset, True, b"[]")

        return self._asked(shape, asked, take)

    def events(self, shape: Shape, offset: str, handle: str) -> Iterator[bool]:
        """Goes on while the server holds the stream: true when changes were told, false when nothing was for a while.

        Raises Rotated.
        """
        asked = {**shape.query, "offset": offset, "handle": handle, "live": "true", "live_sse": "true"}
        told = False
        response = self._asked(shape, {**asked, "cache-buster": _any()}, lambda response: response)
        # What is lost with a connection is told by the next one.
        with response, suppress(OSError, http.client.HTTPException, ValueError):
            for line in response:
                if line.startswith(b"data:"):
                    headers = json.loads(line[5:])["headers"]
                    told = told or "control" not in headers
                    if told and headers.get("control") == "up-to-date":
                        yield True
                        told = False
                elif line.startswith(b":"):
                    yield False
                elif line.strip():
                    # A server, or a proxy, that has no events answers as if they were not asked for.
                    yield True
                    return
        yield told

    def _asked(self, shape: Shape, asked: Mapping[str, str], take: Callable[[http.client.HTTPResponse], T]) -> T:
        """What is taken of the answer of a server that may be away for a while. Raises Rotated."""
        query = urlencode({**self.parameters, **asked, **({"secret": self.secret} if self.secret else {})})
        began, pause, beyond = time.monotonic(), _PAUSE, 0
        while True:
            floor = 0.0
            try:
                response = self._sent(query)
                if response.status in (200, 204):
                    return take(response)
                with response:
                    said = response.read()
            except (OSError, http.client.HTTPException) as error:
                why = _why(error)
            else:
                why, floor = f"it answers {response.status}", _seconds(response.getheader("retry-after", ""))
                beyond += self._refused(shape, response.status, said)
            if beyond == _TRIES:
                raise Rotated
            if time.monotonic() - began + floor > self.patience:
                raise Unreachable(
                    f'following "{shape.table}" of {self.name}: {why}',
                    hint="When the server is there again, start the pipeline again: it goes on where it was.",
                )
            time.sleep(max(floor, pause * random.uniform(0.5, 1)))
            pause = min(_LONGEST, 2 * pause)

    def _sent(self, query: str) -> http.client.HTTPResponse:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        assert parts.hostname
        connection = kind(parts.hostname, parts.port, timeout=self.timeout)
        try:
            # The connection then ends with the response.
            connection.request("GET", f"{self._path}?{query}", headers={"connection": "close", **self.headers})
            return connection.getresponse()
        except BaseException:
            connection.close()
            raise

    def _refused(self, shape: Shape, status: int, said: bytes) -> bool:
        """Raises what cannot be mended by asking again. True if the offset is not there, which may be mended so."""
        if status == 409:
            raise Rotated
        if status == 429 or status >= 500:
            return False
        if status in (401, 403):
            known = "is not the one" if self.secret else "is missing"
            raise ConfigError(
                "source.secret", f"{known} that {self.name} wants ({status})", hint='secret: "${ELECTRIC_SECRET}"'
            )
        if status != 400:
            raise _no_shapes(f"status {status} at {self.name}")
        parameter, reason = _reason(said)
        if parameter == "offset" and "bounds" in reason:
            return True
        where = "source.tables" if parameter == "table" else f"source.tables.{parameter}"
        hint = "Name it as the server does, with its schema: public.orders." if parameter == "table" else ""
        raise ConfigError(where, f'{self.name} refuses "{shape.table}": {reason}', hint=hint)


def _answer(response: http.client.HTTPResponse, body: bytes) -> Answer:
    told = {name: response.getheader(f"electric-{name}", "") for name in ("handle", "offset", "schema", "cursor")}
    if not told["handle"] or not told["offset"]:
        raise _no_shapes("no handle and no offset")
    # Headers are read as Latin-1, whatever they were written in.
    schema = told["schema"].encode("latin-1").decode("utf-8", "replace")
    complete = response.getheader("electric-up-to-date") is not None
    return Answer(told["handle"], told["offset"], complete, body, schema, told["cursor"])


def _no_shapes(found: str) -> ConfigError:
    hint = f"Electric, and changeglot serve, have them at {_PATH}. A proxy must pass Electric's headers on."
    return ConfigError("source.url", f"has no shapes: {found}", hint=hint)


def _any() -> str:
    """What no cache has seen."""
    return str(random.getrandbits(48))


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it does not answer"
    if isinstance(error, socket.gaierror):
        return "there is no such host"
    return (getattr(error, "strerror", "") or type(error).__name__).lower()


def _seconds(told: str) -> float:
    """Of a retry-after; one that is a date counts as none."""
    return float(told) if told.isdecimal() else 0.0


def _reason(said: bytes) -> tuple[str, str]:
    """Which parameter a server does not take, and why."""
    try:
        told = json.loads(said)
        parameter, reasons = next(iter(told["errors"].items()))
        return str(parameter), "; ".join(map(str, reasons)) if isinstance(reasons, Sequence) else str(reasons)
    except (ValueError, LookupError, TypeError, AttributeError, StopIteration):
        return "request", said[:_SHOWN].decode("utf-8", "replace")
