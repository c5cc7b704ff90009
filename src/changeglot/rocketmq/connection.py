"""One connection to a server of RocketMQ: requests, answers, signatures, and what can go wrong.

A request is a frame: two lengths, a header in JSON, a body. Its number (`opaque`) comes back with the answer, so that
many can be under way on one connection. Every operation has a deadline.
"""

from __future__ import annotations

import base64
import hmac
import json
import re
import socket
import struct
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import count
from typing import NamedTuple

from changeglot.rocketmq.messages import RocketMQError

#: As which version of RocketMQ's own client we are known (MQVersion): 5.0.0.
VERSION = 413
#: What a server reads as one frame (com.rocketmq.remoting.frameMaxLength); a longer one makes it hang up.
FRAME = 16 << 20
#: Bytes that are received at once, if they are there.
AHEAD = 1 << 20


class Ask(IntEnum):
    """What is asked (RequestCode)."""

    PULL = 11
    REPORT_OFFSET = 15
    CREATE_TOPIC = 17
    MAX_OFFSET = 30
    MIN_OFFSET = 31
    ROUTE = 105
    CLUSTERS = 106
    SEND = 310
    SEND_BATCH = 320


class Said(IntEnum):
    """What is answered (ResponseCode)."""

    DONE = 0
    FAILED = 1
    BUSY = 2
    NOT_FLUSHED = 10
    NO_COPY = 11
    NOT_COPIED = 12
    ILLEGAL_MESSAGE = 13
    NOT_SERVING = 14
    NO_PERMISSION = 16
    NO_TOPIC = 17
    NOT_FOUND = 19
    ASK_AGAIN = 20
    OFFSET_MOVED = 21
    NO_GROUP = 26


#: After these the same is asked again. A message that was not flushed or copied as its broker wants is not yet safe.
LATER: frozenset[int] = frozenset({Said.BUSY, Said.NOT_SERVING, Said.NOT_FLUSHED, Said.NO_COPY, Said.NOT_COPIED})
HINTS: dict[int, str] = {
    Said.FAILED: "The server's log says more.",
    Said.NO_PERMISSION: "Are accessKey and secretKey right, and may that user do this?",
    Said.NO_GROUP: "Create the group, or set consumerGroup to one that is there.",
}


class Unreachable(RocketMQError):
    """No connection, a broken one, no answer in time, or one that says later: worth another attempt."""


class Refused(RocketMQError):
    """A server said no; its words are shown."""

    def __init__(self, doing: str, answer: Answer) -> None:
        super().__init__(f"{doing}: refused with code {answer.code}: {answer.words}", hint=HINTS.get(answer.code, ""))
        self.code = answer.code


class Answer(NamedTuple):
    """What a server answered."""

    code: int
    remark: str
    fields: dict[str, str]
    body: bytes

    @property
    def words(self) -> str:
        """Its first line, of a length that can be shown."""
        return self.remark.strip().partition("\n")[0][:300].rstrip(". ") or "without a word"


@dataclass(frozen=True)
class Credentials:
    """A user and what only it knows; neither is ever shown."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)

    def signed(self, fields: Mapping[str, str], body: bytes) -> dict[str, str]:
        """The fields, who asks, and a signature over all these values, in the order of their names, and the body."""
        named = {**fields, "AccessKey": self.access_key}
        content = "".join(named[name] for name in sorted(named)).encode() + body
        signature = hmac.digest(self.secret_key.encode(), content, "sha1")
        return {**named, "Signature": base64.b64encode(signature).decode()}

    def hidden(self, text: str) -> str:
        """The text without them."""
        return re.sub(rf"(?<!\w){re.escape(self.access_key)}(?!\w)", "***", text.replace(self.secret_key, "***"))


class Patience:
    """Attempts, with pauses that grow, until the time is over; then the last problem is the error."""

    def __init__(self, doing: str, timeout: float) -> None:
        self._doing = doing
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._pause = 0.0

    def attempt(self) -> float:
        """When one attempt is over: in a third of the time, so that a connection that is silently dead is given up."""
        return min(self._deadline, time.monotonic() + self._timeout / 3)

    def wait(self, problem: Unreachable) -> None:
        """Until the next attempt. Unreachable: there is no time for one."""
        if time.monotonic() + self._pause >= self._deadline:
            said = f"{self._doing}: {problem.what}; given up after {self._timeout:g} seconds"
            raise Unreachable(said, hint=problem.hint) from problem
        time.sleep(self._pause)
        self._pause = min(1.0, max(0.05, 2 * self._pause))


class Connection:
    """One connection to a server; after any problem it is closed, and another one has to be made."""

    def __init__(self, server: str, address: str, credentials: Credentials | None, deadline: float) -> None:
        self._server = f"{server} at {address}"
        self._credentials = credentials
        self._numbers = count(1)
        self._answers: dict[int, Answer] = {}
        #: What was received, of which what lies between these two places was not yet asked for.
        self._ahead = bytearray(AHEAD)
        self._begin = self._end = 0
        self._socket: socket.socket | None = None
        host, _, port = address.rpartition(":")
        try:
            self._socket = socket.create_connection((host.strip("[]"), int(port)), _left(deadline))
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as problem:
            raise self._lost(problem) from problem

    @property
    def open(self) -> bool:
        return self._socket is not None

    def ask(self, code: Ask, fields: Mapping[str, str], body: bytes = b"", *, deadline: float) -> int:
        """Sends a request, and gives the number by which its answer is known."""
        number, frame = self._framed(code, fields, body)
        self._send(frame, deadline)
        return number

    def ask_each(self, code: Ask, several: Iterable[Mapping[str, str]], *, deadline: float) -> list[int]:
        """The same for several requests, which are sent at once."""
        framed = [self._framed(code, fields, b"") for fields in several]
        self._send(b"".join(frame for _, frame in framed), deadline)
        return [number for number, _ in framed]

    def _framed(self, code: Ask, fields: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        number = next(self._numbers)
        header = {
            "code": code,
            "language": "PYTHON",
            "version": VERSION,
            "opaque": number,
            "flag": 0,
            "serializeTypeCurrentRPC": "JSON",
            "extFields": self._credentials.signed(fields, body) if self._credentials else fields,
        }
        head = json.dumps(header).encode()
        return number, struct.pack(">ii", 4 + len(head) + len(body), len(head)) + head + body

    def _send(self, data: bytes, deadline: float) -> None:
        try:
            self._ready(deadline).sendall(data)
        except OSError as problem:
            raise self._lost(problem) from problem

    def answer(self, number: int, deadline: float) -> Answer:
        """The answer to a request. Unreachable: it says later."""
        while number not in self._answers:
            size, length = struct.unpack(">ii", self._received(8, deadline))
            length &= 0xFFFFFF
            header = json.loads(self._received(length, deadline))
            body = self._received(size - 4 - length, deadline)
            # A broker asks its clients, too; only an answer has this flag.
            if header["flag"] & 1:
                remark, fields = header.get("remark") or "", header.get("extFields") or {}
                remark = self._credentials.hidden(remark) if self._credentials else remark
                self._answers[header["opaque"]] = Answer(header["code"], remark, fields, body)
        answer = self._answers.pop(number)
        if answer.code in LATER:
            said = f"{self._server} says later, code {answer.code}: {answer.words}"
            raise Unreachable(said, hint="The server's log says more.")
        return answer

    def call(self, code: Ask, fields: Mapping[str, str], *, deadline: float) -> Answer:
        return self.answer(self.ask(code, fields, deadline=deadline), deadline)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _received(self, size: int, deadline: float) -> bytes:
        """So many bytes."""
        if self._end - self._begin < size:
            self._receive(size, deadline)
        self._begin += size
        with memoryview(self._ahead) as view:
            return bytes(view[self._begin - size : self._begin])

    def _receive(self, size: int, deadline: float) -> None:
        """Brings so many bytes at least."""
        left = self._ahead[self._begin : self._end]
        if len(self._ahead) < size:
            self._ahead = bytearray(size)
        self._ahead[: len(left)] = left
        self._begin, self._end = 0, len(left)
        try:
            with memoryview(self._ahead) as view:
                while self._end < size:
                    part = self._ready(deadline).recv_into(view[self._end :])
                    if not part:
                        raise ConnectionError("it closed the connection")
                    self._end += part
        except OSError as problem:
            raise self._lost(problem) from problem

    def _ready(self, deadline: float) -> socket.socket:
        if self._socket is None:
            raise ConnectionError("the connection was lost")
        self._socket.settimeout(_left(deadline))
        return self._socket

    def _lost(self, problem: OSError) -> Unreachable:
        self.close()
        why = "no answer in time" if isinstance(problem, TimeoutError) else problem.strerror or str(problem)
        return Unreachable(f"cannot reach {self._server}: {why}", hint="Does it run, and may this machine reach it?")


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
