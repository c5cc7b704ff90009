"""HTTP: requests for shapes in, answers out. All that Electric's clients see of headers and statuses is here."""

from __future__ import annotations

import asyncio
import gc
import hmac
import json
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from aiohttp import web

from changeglot.serve.answers import EVENTS, Answer, Place, Reply, Stored, invalid, refused
from changeglot.serve.asked import Invalid, asked
from changeglot.serve.bodies import Bodies, stored
from changeglot.serve.delta import Gone
from changeglot.serve.lake import Busy, Lake, Served
from changeglot.serve.options import Serve
from changeglot.serve.overview import Overview
from changeglot.serve.page import NO_PAGE, page
from changeglot.serve.shapes import SNAPSHOT_END, Offset, Part
from changeglot.serve.wire import Connection, Patience, Rates, Told, spelled

if TYPE_CHECKING:
    from changeglot.apply.route import Rule

logger = logging.getLogger(__name__)

METHODS: Final = "GET, HEAD, POST, DELETE, OPTIONS"
EXPOSED: Final = ", ".join(
    f"electric-{name}" for name in ("handle", "offset", "schema", "cursor", "up-to-date", "has-data", "snapshot")
)
_CORS: Final = {
    "access-control-expose-headers": f"{EXPOSED}, retry-after, etag",
    "access-control-allow-methods": METHODS,
    "vary": "origin, authorization",
}
_ALLOWED: Final = "if-none-match, traceparent, content-type, authorization"
#: Seconds of silence after which a stream of events says that it is there, and those after which it ends.
_QUIET, _STREAM = 21, 60
#: What is written in one go.
_PIECE: Final = 1 << 20
#: What is written without waiting whether a client takes it.
_SMALL: Final = 1 << 16
#: Answers that are kept for others who wait for the same.
_TOLD: Final = 1000
#: So many new objects make Python look for garbage among them, and so many such looks, and those again, for one at the
#: older. A client that waits is some sixty objects, and none is garbage when it goes: with Python's own 700, 10 and 10,
#: ten thousand who ask anew had it look through all of them three times for each change, for half a second and more.
_GARBAGE: Final = (100_000, 20, 10)
#: Of a request's first line: a condition may be long.
_LINE: Final = 1 << 16


class Server:
    """One process that serves the tables of a lake."""

    def __init__(self, path: str, rules: tuple[Rule, ...], options: Serve) -> None:
        self.options = options
        self.pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="tables")
        self.lake = Lake(path, rules, options, self.work)
        self.overview = Overview(self.lake)
        self.pages = page() if options.page else NO_PAGE
        #: What may be asked for without the secret.
        self.open = {"/v1/health", *(self.pages if options.page else ())}
        self.rates = Rates(options.rate)
        self.requests = self.working = 0
        #: Answers to those who waited for the last changes: most wait for the same.
        self.told: dict[tuple[object, ...], bytes] = {}
        self.patience = Patience(options.send_seconds)
        self.bodies = Bodies(options.disk_mb << 20)
        self.making: dict[Place, asyncio.Task[Answer]] = {}
        self.ending = asyncio.Event()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=self.options.body_bytes, middlewares=[self._guarded])
        app.router.add_route("*", "/v1/shape", self._shape)
        app.router.add_get("/v1/health", self._health)
        app.router.add_get("/v1/tables", self._tables)
        for path in self.pages:
            app.router.add_get(path, self._page)
        return app

    async def work(self, call: Callable[[], Any]) -> Any:
        """Runs what reads tables in a thread. Any: what it gives."""
        if self.working >= self.options.working:
            raise Busy
        self.working += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.pool, call)
        finally:
            self.working -= 1

    # What all requests meet

    @web.middleware
    async def _guarded(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        with self.patience.serving(request.transport):
            return await self._answered(request, handler)

    async def _answered(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if self.requests >= self.options.connections:
            return await self._send(request, _busy("concurrent_request_limit_exceeded", "Too many requests at once"))
        self.requests += 1
        try:
            if problem := self._refusal(request):
                return await self._send(request, problem)
            return await handler(request)
        except Busy:
            return await self._send(request, _busy("overloaded", "The server has too much to read"))
        except Invalid as error:
            return await self._send(request, invalid(error))
        except web.HTTPRequestEntityTooLarge:
            return await self._send(request, refused(413, {"message": "Request body is too large"}))
        except web.HTTPException as error:
            return await self._send(
                request, Answer(error.status, error.reason.encode(), {"cache-control": "no-store"}, "text/plain")
            )
        except (OSError, Gone) as error:
            logger.error("the tables cannot be read", extra={"why": str(error)})
            return await self._send(request, _busy("storage_unreachable", "The tables cannot be read now"))
        finally:
            self.requests -= 1

    def _refusal(self, request: web.Request) -> Answer | None:
        if not self.rates.takes(request.remote or ""):
            return refused(429, {"message": "Too many requests"}, **{"retry-after": "1"})
        if self.options.secret and request.method != "OPTIONS" and request.path not in self.open:
            given = request.query.get("secret") or request.query.get("api_secret") or ""
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            given = given or (token.strip() if scheme.lower() == "bearer" else "")
            if not hmac.compare_digest(given.encode("utf-8", "replace"), self.options.secret.encode()):
                return refused(401, {"message": "Unauthorized - Invalid API secret"})
        return None

    def _allowed(self, request: web.Request) -> dict[str, str]:
        origin = request.headers.get("origin", "*") if self.options.origins == "*" else self.options.origins
        return {**_CORS, "access-control-allow-origin": origin}

    async def _send(self, request: web.Request, answer: Answer) -> web.StreamResponse:
        """The answer in pieces: a client that does not take one is left."""
        asked_for = [each.strip() for each in request.headers.get("if-none-match", "").split(",")]
        if answer.status == 200 and answer.headers.get("etag") in asked_for:
            answer = replace(answer, status=304, body=b"")
        response = web.StreamResponse(status=answer.status, headers={**self._allowed(request), **answer.headers})
        response.content_type = answer.type
        if self.ending.is_set():
            response.force_close()
        if answer.status not in (204, 304):
            response.content_length = len(answer.body)
        with _left(request):
            await response.prepare(request)
            if request.method != "HEAD":
                await self._write_all(response, answer.body)
            await response.write_eof()
        return response

    async def _write_all(self, response: web.StreamResponse, body: bytes | Stored) -> None:
        for begin in range(0, len(body), _PIECE):
            if isinstance(body, bytes):
                piece = body[begin : begin + _PIECE]
            else:
                read = partial(os.pread, body.file.fileno(), _PIECE, begin)
                piece = await asyncio.get_running_loop().run_in_executor(None, read)
            await self._write(response, piece)

    async def _write(self, response: web.StreamResponse, piece: bytes) -> None:
        async with asyncio.timeout(self.options.send_seconds):
            await response.write(piece)

    # What is asked for

    async def _health(self, request: web.Request) -> web.StreamResponse:
        return await self._send(request, Answer(200, b'{"status":"active"}', {"cache-control": "no-cache, no-store"}))

    async def _page(self, request: web.Request) -> web.StreamResponse:
        return await self._send(request, self.pages[request.path])

    async def _tables(self, request: web.Request) -> web.StreamResponse:
        return await self._send(request, Answer(200, await self.overview.json(), {"cache-control": "no-cache"}))

    async def _shape(self, request: web.Request) -> web.StreamResponse:
        if request.method == "OPTIONS":
            headers = {"access-control-max-age": "86400", "access-control-allow-headers": _ALLOWED}
            return await self._send(request, Answer(204, headers=headers))
        if request.method == "DELETE":
            told = {"message": "Shapes are read from the tables and cannot be deleted"}
            return await self._send(request, refused(405, told, allow=METHODS))
        if request.method not in ("GET", "HEAD", "POST"):
            return await self._send(request, refused(405, {"message": "Method not allowed"}, allow=METHODS))
        found = asked(request.query, await self._body(request) if request.method == "POST" else None)
        served = await self.lake.table(found)
        shape = served.known(found) or await self.work(partial(served.shape, found))
        reply = Reply(shape, found, self.options.chunk_bytes, self.options.poll_seconds)
        if found.events and found.subset is None and found.offset and found.offset >= SNAPSHOT_END:
            return await self._events(request, served, reply)
        if (place := reply.place) is not None:
            answer: Answer | None = await self._rows(place, reply)
        else:
            answer = await self._answer(request, served, reply)
        if answer is None:
            return Told(request)
        if request.method != "GET" and answer.status == 200:
            answer = replace(answer, headers={**answer.headers, "cache-control": "no-cache"})
        return await self._send(request, answer)

    async def _body(self, request: web.Request) -> Mapping[str, Any]:
        """The JSON of a POST. Raises Invalid. Any: JSON."""
        try:
            async with asyncio.timeout(self.options.send_seconds):
                content = await request.read()
        except TimeoutError as error:
            raise web.HTTPRequestTimeout from error
        if not content.strip():
            return {}
        try:
            told = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise Invalid("body", "is not JSON") from error
        if not isinstance(told, dict):
            raise Invalid("body", "is no object")
        return told

    async def _rows(self, place: Place, reply: Reply) -> Answer:
        """Rows of a snapshot, made once for all who ask; those behind them are made while these are sent."""
        answer = self.bodies.get(place)
        if answer is None:
            answer = await asyncio.shield(self._made(place, reply))
        more = reply.following(answer)
        if more is not None and more.place is not None and self.bodies.get(more.place) is None:
            self._made(more.place, more)
        return answer

    def _made(self, place: Place, reply: Reply) -> asyncio.Task[Answer]:
        if place not in self.making:
            task = self.making[place] = asyncio.create_task(self._make(place, reply))
            # Nobody may wait for it by then.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self.making[place]

    async def _make(self, place: Place, reply: Reply) -> Answer:
        try:
            answer: Answer = await self.work(lambda: stored(made) if (made := reply.first()) else made)
            self.bodies.put(place, answer)
            return answer
        finally:
            del self.making[place]

    async def _answer(self, request: web.Request, served: Served, reply: Reply) -> Answer | None:
        """None if it was sent while all who waited were told."""
        ends = time.monotonic() + self.options.poll_seconds
        seen = reply.history.tip
        answer: Answer | None = reply.first() if reply.known else await self.work(reply.first)
        while answer is None:
            tell, left = partial(self._tell, request, reply), ends - time.monotonic()
            if not self.ending.is_set() and await served.changed(reply.shape, seen, left, tell):
                return None
            seen = reply.history.tip
            look = partial(reply.changes, last=self.ending.is_set() or time.monotonic() >= ends)
            # Thousands wait for one shape: what was read for one of them is read for all.
            answer = look() if reply.known else await self.work(look)
        return answer

    def _tell(self, request: web.Request, reply: Reply) -> bool:
        """Writes the answer to who waits, past all that a request goes through, which takes ten times as long.

        Thousands are told before the first of them asks again.
        """
        transport, headers = request.transport, request.headers
        plain = request.method == "GET" and request.keep_alive and "if-none-match" not in headers
        if not plain or transport is None or transport.is_closing() or self.ending.is_set() or not reply.known:
            return False
        asked, tip = reply.asked, reply.history.tip
        key = (id(reply.shape), tip, asked.handle, asked.offset, asked.cursor, headers.get("origin"))
        if (content := self.told.get(key)) is None:
            answer = reply.changes()
            if answer is None or isinstance(answer.body, Stored) or len(answer.body) > _SMALL:
                return False
            if len(self.told) >= _TOLD:
                self.told.clear()
            sent = {**self._allowed(request), **answer.headers}
            content = self.told[key] = spelled(answer.status, sent, answer.type, answer.body)
        transport.write(content)
        return True

    async def _events(self, request: web.Request, served: Served, reply: Reply) -> web.StreamResponse:
        """Messages as they come, each an event; what cannot be followed is answered as any other request."""
        seen = reply.history.tip
        answer: Answer | None = await self.work(reply.first)
        if answer is not None and answer.status != 200:
            return await self._send(request, answer)
        base, offset = reply.base, reply.asked.offset
        assert base is not None
        assert offset is not None
        headers = {**reply.about(base, offset), "electric-cursor": str(reply.cursor()), "cache-control": EVENTS}
        # nginx would hold events back until there are some kilobytes of them.
        plain = {"connection": "close", "x-accel-buffering": "no"}
        response = web.StreamResponse(headers={**self._allowed(request), **headers, **plain})
        response.content_type = "text/event-stream"
        with _left(request):
            await response.prepare(request)
            if request.method != "HEAD":
                await self._told(response, served, reply, base, offset, seen)
            await response.write_eof()
        return response

    async def _told(
        self, response: web.StreamResponse, served: Served, reply: Reply, base: int, offset: Offset, seen: int
    ) -> None:
        """The events behind an offset, for a while."""
        shape, history = reply.shape, reply.history
        ends = time.monotonic() + _STREAM
        # Has it still to be said that this is all?
        owed = True
        while not self.ending.is_set():
            try:
                part: Part = await self.work(partial(shape.changes, base, offset, self.options.chunk_bytes))
            except (Gone, Busy):
                return
            events = list(part.messages)
            if part.complete and (events or owed):
                # Clients go on from the number that is told here, as if it had no changes of its own: the odd one
                # after the last version's, which it still is when they come back with it.
                events.append(shape.up_to_date(part.end.tx | 1))
            if events:
                await self._write(response, b"".join(b"data: " + each + b"\n\n" for each in events))
            offset, owed = max(part.end, offset), not part.complete
            left = ends - time.monotonic()
            if left <= 0:
                return
            if part.complete:
                await served.changed(shape, seen, min(left, _QUIET))
                if seen == history.tip and left > _QUIET:
                    await self._write(response, b": keep-alive\n\n")
            seen = history.tip
            if history.last_break > base or history.facts != shape.facts:
                return


@contextmanager
def _left(request: web.Request) -> Iterator[None]:
    """Within, whoever asked may go, or take nothing for too long: it is left then, and nobody is told."""
    try:
        yield
    except (ConnectionError, TimeoutError):
        if request.transport is not None:
            request.transport.abort()


def _busy(code: str, message: str) -> Answer:
    return refused(503, {"code": code, "message": message}, **{"retry-after": "2"})


async def serve(
    path: str, rules: tuple[Rule, ...], options: Serve, ready: Callable[[str], None] = lambda _: None
) -> None:
    """Serves until the process is told to end; then who waits is answered, and nobody is cut off."""
    server = Server(path, rules, options)
    # Arrow loads pandas with its first array, where that is there: not while somebody waits.
    pa.array([0])
    gc.freeze()
    gc.set_threshold(*_GARBAGE)
    # A request that nobody waits for any more is given up.
    runner = web.AppRunner(
        server.app(),
        handler_cancellation=True,
        access_log=None,
        max_line_size=_LINE,
        max_field_size=_LINE,
        shutdown_timeout=options.send_seconds,
    )
    await runner.setup()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.ending.set)
    assert runner.server is not None
    accept = partial(Connection, runner.server, server.patience)
    site = await loop.create_server(accept, options.host, options.port, backlog=4096, reuse_address=True)
    host, port = site.sockets[0].getsockname()[:2]
    ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")
    await server.ending.wait()
    site.close()
    server.lake.wake()
    await runner.cleanup()
    server.pool.shutdown(wait=False, cancel_futures=True)
