"""RocketMQ's messages as bytes: as brokers store them, and as they are sent. Knows no socket."""

from __future__ import annotations

import os
import struct
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, Self

from changeglot.errors import ChangeglotError

if TYPE_CHECKING:
    import pyarrow as pa


class RocketMQError(ChangeglotError):
    """A name server or a broker is away, refuses, or does not have what is asked for."""


class Messages(NamedTuple):
    """Messages as they are stored, by columns: there is no object for each of them. Times in milliseconds."""

    offsets: list[int]
    bodies: list[bytes]
    properties: list[bytes]
    born: list[int]
    stored: list[int]

    @classmethod
    def none(cls) -> Self:
        return cls([], [], [], [], [])

    def part(self, begin: int, end: int) -> Messages:
        """Those between two places."""
        offsets, bodies, properties, born, stored = self
        return Messages(
            offsets[begin:end], bodies[begin:end], properties[begin:end], born[begin:end], stored[begin:end]
        )

    def extend(self, more: Messages) -> None:
        self.offsets.extend(more.offsets)
        self.bodies.extend(more.bodies)
        self.properties.extend(more.properties)
        self.born.extend(more.born)
        self.stored.extend(more.stored)


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
    v6: struct.Struct(f">iI12xq8xiq{20 if v6 & 0x10 else 8}xq{20 if v6 & 0x20 else 8}x12xi") for v6 in (0, 16, 32, 48)
}
_MAGIC, _MAGIC_LONG_TOPIC = 0xDAA320A7, 0xDAA320AB


def decoded(data: bytes) -> Messages:
    """The messages of a pull's answer."""
    found = offsets, bodies, properties, born, stored = Messages.none()
    at = 0
    while at < len(data):
        # The usual layout, which is the shortest; the flags are at the same place in all.
        layout = _LAYOUTS[0]
        size, magic, offset, flags, born_at, stored_at, length = layout.unpack_from(data, at)
        if flags & 0x30:
            layout = _LAYOUTS[flags & 0x30]
            *_, born_at, stored_at, length = layout.unpack_from(data, at)
        begin = at + layout.size
        place = begin + length
        body = data[begin:place]
        if magic == _MAGIC:
            place += 1 + data[place]
        elif magic == _MAGIC_LONG_TOPIC:
            place += 2 + int.from_bytes(data[place : place + 2])
        else:
            raise RocketMQError(f"reading messages: one at offset {offset} is of an unknown kind, {magic:X}")
        if flags & 1:
            body = _inflated(body, flags >> 8 & 7)
        if flags & 0x80:
            raise RocketMQError(f"reading messages: that at offset {offset} is a batch of a topic of the type BatchCQ")
        offsets.append(offset)
        bodies.append(body)
        properties.append(data[place + 2 : place + 2 + int.from_bytes(data[place : place + 2])])
        born.append(born_at)
        stored.append(stored_at)
        at += size
    return found


def maps(properties: Sequence[bytes]) -> pa.MapArray:
    """Properties as they are stored, by name: MAP<STRING, STRING> for each message."""
    import pyarrow as pa
    import pyarrow.compute as pc

    # Arrow takes those of all messages apart at once.
    try:
        pairs = pc.split_pattern(pa.array(properties, pa.string()), "\x02")
    except pa.ArrowInvalid:
        return _plain_maps(properties)  # Some are not UTF-8.
    parts = pc.split_pattern(pairs.values, "\x01", max_splits=1)
    whole = pc.equal(pc.list_value_length(parts), 2)
    before = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(whole.cast(pa.int32()))])
    parts = parts.filter(whole)
    names, values = pc.list_element(parts, 0), pc.list_element(parts, 1)
    places = pa.table({"message": pc.list_parent_indices(pairs).filter(whole), "name": names})
    if places.group_by(places.column_names, use_threads=False).aggregate([]).num_rows < len(names):
        return _plain_maps(properties)  # A message has a name twice.
    return pa.MapArray.from_arrays(before.take(pairs.offsets), names, values)


def _plain_maps(properties: Sequence[bytes]) -> pa.MapArray:
    """The same for whatever is stored, one by one: of a name that is there twice, the last one holds."""
    import pyarrow as pa

    texts = (each.decode("utf-8", "replace").split("\x02") for each in properties)
    named = (dict([pair.split("\x01", 1) for pair in pairs if "\x01" in pair]) for pairs in texts)
    return pa.array([tuple(each.items()) for each in named], pa.map_(pa.string(), pa.string()))


def _inflated(body: bytes, how: int) -> bytes:
    """A body that was compressed: with zlib if it is not said how, or said so."""
    if how in (0, 3):
        return zlib.decompress(body)
    if how not in (1, 2):
        raise RocketMQError(f"reading messages: one is compressed in an unknown way, {how}")
    import pyarrow as pa

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
