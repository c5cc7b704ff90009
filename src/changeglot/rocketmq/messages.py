"""RocketMQ's messages as bytes: as brokers store them, and as they are sent. Knows no socket."""

from __future__ import annotations

import os
import struct
import time
import zlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import count
from typing import NamedTuple

from changeglot.errors import ChangeglotError


class RocketMQError(ChangeglotError):
    """A name server or a broker is away, refuses, or does not have what is asked for."""


class Message(NamedTuple):
    """A message as it is stored; times in milliseconds."""

    offset: int
    body: bytes
    properties: dict[str, str]
    born: int
    stored: int


class Outgoing(NamedTuple):
    """A message as it is sent; one that goes `alone` is not put into a batch."""

    body: bytes
    properties: bytes
    alone: bool = False

    @property
    def size(self) -> int:
        """In a batch."""
        return 22 + len(self.body) + len(self.properties)


#: Asked for by these properties, a message is delivered later, which none in a batch is.
DELAYS = frozenset({"DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"})


def outgoing(body: bytes, properties: Mapping[str, str]) -> Outgoing:
    """A message to send. What has an empty value is left out, as brokers do."""
    given = {name: value for name, value in properties.items() if value}
    text = "".join(f"{name}\x01{value}\x02" for name, value in given.items())
    data = text.encode()
    if text.count("\x01") != len(given) or text.count("\x02") != len(given):
        raise RocketMQError(
            f"sending a message: one of its properties {', '.join(sorted(given))} holds U+0001 or U+0002",
            hint="RocketMQ parts properties by these: take them out of keys, tags and properties.",
        )
    if len(data) > 32767:
        raise RocketMQError(
            f"sending a message: its properties, keys and tags are {len(data)} bytes long, and RocketMQ takes 32767",
            hint="Move what is long into the body.",
        )
    return Outgoing(body, data, not DELAYS.isdisjoint(given))


def unique_ids() -> Iterator[str]:
    """Ids as RocketMQ's own client makes them (MessageClientIDSetter): who, milliseconds of the month, a counter.

    They stay when a message is sent again, so that a consumer can know it, and tools find messages by them.
    """
    # Python workers are forks of each other: what `random` gives one, it gives all.
    who = os.urandom(10).hex().upper()
    now = time.localtime()
    month = int(time.mktime((now.tm_year, now.tm_mon, 1, 0, 0, 0, 0, 0, -1))) * 1000
    for number in count():
        yield f"{who}{time.time_ns() // 1_000_000 - month & 0xFFFFFFFF:08X}{number & 0xFFFF:04X}"


@lru_cache(maxsize=1 << 16)
def sharded(key: str, queues: int) -> int:
    """Which of the queues has the key's messages, as RocketMQ's own client says (SelectMessageQueueByHash).

    >>> sharded("order-17", 8)
    5
    """
    units = key.encode("utf-16-be", "surrogatepass")
    value = 0
    for unit in struct.unpack(f">{len(units) // 2}H", units):
        value = 31 * value + unit & 0xFFFFFFFF
    return abs(value - (1 << 32) if value >> 31 else value) % queues


#: Up to the body, by whether the producer's and the broker's addresses are IPv6 (MessageDecoder).
_LAYOUTS = {
    v6: struct.Struct(f">iIiiiqqiq{20 if v6 & 0x10 else 8}xq{20 if v6 & 0x20 else 8}x12xi") for v6 in (0, 16, 32, 48)
}
_FLAGS = struct.Struct(">36xi")
_MAGIC, _MAGIC_LONG_TOPIC = 0xDAA320A7, 0xDAA320AB


def decoded(data: bytes) -> Iterator[Message]:
    """The messages of a pull's answer."""
    at = 0
    while at < len(data):
        (flags,) = _FLAGS.unpack_from(data, at)
        layout = _LAYOUTS[flags & 0x30]
        size, magic, _, _, _, offset, _, _, born, stored, length = layout.unpack_from(data, at)
        begin = at + layout.size
        body = data[begin : begin + length]
        place = begin + length
        if magic == _MAGIC:
            place += 1 + data[place]
        elif magic == _MAGIC_LONG_TOPIC:
            place += 2 + int.from_bytes(data[place : place + 2])
        else:
            raise RocketMQError(f"reading messages: one at offset {offset} is of an unknown kind, {magic:X}")
        end = place + 2 + int.from_bytes(data[place : place + 2])
        pairs = data[place + 2 : end].decode("utf-8", "replace").split("\x02")
        properties = dict([pair.split("\x01", 1) for pair in pairs if "\x01" in pair])
        if flags & 1:
            body = _inflated(body, flags >> 8 & 7)
        if flags & 0x80:
            raise RocketMQError(f"reading messages: that at offset {offset} is a batch of a topic of the type BatchCQ")
        yield Message(offset, body, properties, born, stored)
        at += size


def _inflated(body: bytes, how: int) -> bytes:
    """A body that was compressed: with zlib if it is not said how, or said so."""
    if how in (0, 3):
        return zlib.decompress(body)
    if how not in (1, 2):
        raise RocketMQError(f"reading messages: one is compressed in an unknown way, {how}")
    import pyarrow as pa  # type: ignore[import-untyped]  # It has no types.

    with pa.CompressedInputStream(pa.BufferReader(body), "lz4" if how == 1 else "zstd") as stream:
        return bytes(stream.read())


def encoded(message: Outgoing) -> bytes:
    """One of a batch (MessageDecoder.encodeMessage)."""
    return b"".join(
        (
            struct.pack(">iiiii", message.size, 0, 0, 0, len(message.body)),
            message.body,
            struct.pack(">h", len(message.properties)),
            message.properties,
        )
    )
