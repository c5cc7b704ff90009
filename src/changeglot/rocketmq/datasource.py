"""The data source: options, offsets and columns of Spark on one side, queues and messages on the other."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any
from zipimport import zipimporter

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from changeglot.errors import ConfigError
from changeglot.rocketmq.client import Bounds, Client, OffsetGone, Queue
from changeglot.rocketmq.messages import Messages, RocketMQError, maps
from changeglot.rocketmq.options import Offsets, Reading, Writing, given, offsets_of
from changeglot.rocketmq.writer import QueueStreamWriter, QueueWriter, checked

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

SCHEMA = (
    "key BINARY, value BINARY, topic STRING, broker STRING, queue INT, offset BIGINT, tags STRING, "
    "properties MAP<STRING, STRING>, bornAt TIMESTAMP, storedAt TIMESTAMP"
)
#: What a batch of rows holds at most, about: messages, and bytes of their bodies.
ROWS, BYTES = 4096, 8 << 20


class RocketMQSource(DataSource):
    """Messages of RocketMQ's topics, read and written, in batches and streams; `register` makes it known to Spark.

    It reads `key BINARY, value BINARY, topic STRING, broker STRING, queue INT, offset BIGINT, tags STRING, properties
    MAP<STRING, STRING>, bornAt TIMESTAMP, storedAt TIMESTAMP`: the key is the property KEYS, NULL without one; the
    properties are all that are stored. Options: `nameServers` and `topics`; `startingOffsets`, `endingOffsets`,
    `failOnDataLoss`, `accessKey`, `secretKey`, `consumerGroup`, `pullBatch`, `timeout`, `maxOffsetsPerTrigger`,
    `knownOffsets`.

    A stream's offsets are in its checkpoint, never at the broker: the same ones give the same messages. A queue, or a
    topic of a longer list, that was not there before is read from its beginning. A batch takes all that is there; on
    Spark 4.2 and newer no more than `maxOffsetsPerTrigger`, for which 4.1 has no means.

    It writes the columns `value` and, if there are such, `key`, `topic`, `tags`, `properties`, `shardingKey`, `queue`:
    at least once each, appended. Rows of one Spark partition with one sharding key, or for one queue, keep their order;
    the others go by turns. A queue is a name, "broker-a:0", or a number among those that can be written now. Options:
    `nameServers`, `topic`; `group`, `createTopics`, `queues`, `accessKey`, `secretKey`, `timeout`. A NULL value is sent
    as an empty one, since RocketMQ has no other.
    """

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  # Spark's signature
        return QueueReader(given(Reading, self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802  # Spark's signature
        options, limits = given(Reading, self.options), _limits()
        if limits is None:
            if options.max_offsets_per_trigger:
                raise ConfigError("maxOffsetsPerTrigger", "this Spark cannot limit a batch", hint="Spark 4.2 can.")
            return QueueStream(options)
        # Spark asks for this type where a trigger ends with what is there.
        limits.SupportsTriggerAvailableNow.register(LimitedQueueStream)
        return LimitedQueueStream(options)

    def writer(self, schema: StructType, overwrite: bool) -> QueueWriter:
        return QueueWriter(given(Writing, self.options), checked(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> QueueStreamWriter:  # noqa: N802
        return QueueStreamWriter(given(Writing, self.options), checked(schema, overwrite))


@dataclass
class Stretch(InputPartition):
    """What a task reads: a queue from one offset until before another."""

    queue: Queue
    first: int
    end: int


class QueueReader(DataSourceReader):
    """What is in the queues when the query is planned."""

    def __init__(self, options: Reading) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        with self._options.client() as client:
            bounds = client.bounds(_queues(client, self._options.named))
        return _stretches(self._options, _starts(self._options, bounds), _ends(self._options, bounds))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)


class QueueStream(DataSourceStreamReader):
    """The queues as they grow, on Spark 4.1: each batch has all that is there."""

    def __init__(self, options: Reading) -> None:
        self._options = options
        #: A queue that is not listed stays where it was: its broker is away.
        self._known = _heard(options.known)
        self._looked = False
        self._absent: dict[Queue, int] = {}

    @cached_property
    def _client(self) -> Client:
        # Not made before it is used: Spark sends readers to its workers.
        return self._options.client()

    def _bounds(self, known: Iterable[Queue] = ()) -> dict[Queue, Bounds]:
        return self._client.bounds(_queues(self._client, self._options.named, known))

    def initialOffset(self) -> Offsets:  # noqa: N802  # Spark's names, here and below
        return _told(_starts(self._options, self._bounds()))

    def latestOffset(self) -> Offsets:  # noqa: N802
        if not (self._options.up_to_now and self._looked):
            self._known |= {queue: each.end for queue, each in self._bounds(self._known).items()}
            self._looked = True
        return _told(self._known)

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        begun, ends = _heard(start), _heard(end)
        # Before 4.2 Spark does not tell from where when it asks how far. Asked first while a broker is away, we do not
        # know of its queues, if `knownOffsets` does not tell, and the next batch begins without them: they go on from
        # where they stood all the same.
        self._absent |= {queue: offset for queue, offset in begun.items() if queue not in ends}
        begun = {**self._absent, **begun}
        new = self._client.bounds(queue for queue in ends if queue not in begun)
        return _stretches(self._options, {**begun, **{queue: each.first for queue, each in new.items()}}, ends)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)

    def commit(self, end: Offsets) -> None:
        if self._options.consumer_group:
            self._client.report(self._options.consumer_group, _heard(end))

    def stop(self) -> None:
        if "_client" in self.__dict__:
            self._client.close()


class LimitedQueueStream(QueueStream):
    """The same on Spark 4.2 and newer: a batch has no more than `maxOffsetsPerTrigger`, if that is set."""

    _target: dict[Queue, Bounds] | None = None

    def latestOffset(self, start: Offsets, limit: Any) -> Offsets:  # type: ignore[override]  # noqa: N802
        """Any: Spark's ReadLimit, which 4.1 does not have, as it has no arguments here."""
        begun = {queue: offset for queue, offset in _heard(start).items() if queue.topic in self._options.named}
        bounds = self._target or self._bounds(begun)
        if self._options.up_to_now:
            self._target = bounds
        return _told(_limited(begun, bounds, getattr(limit, "max_rows", None)))

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """Any: as above."""
        limits, rows = _limits(), self._options.max_offsets_per_trigger
        return limits.ReadMaxRows(rows) if rows else limits.ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._bounds()


def _limits() -> Any:
    """Spark's module of read limits, None before 4.2. Any: it is not there to be checked against."""
    try:
        return importlib.import_module("pyspark.sql.streaming.datasource")
    except ModuleNotFoundError:
        return None


def _told(offsets: Mapping[Queue, int]) -> Offsets:
    """As Spark keeps them, which compares them as text: in order."""
    told: Offsets = {}
    for queue in sorted(offsets):
        told.setdefault(queue.topic, {})[queue.name] = offsets[queue]
    return told


def _heard(offsets: Offsets) -> dict[Queue, int]:
    heard = {}
    for topic, queues in offsets.items():
        for name, offset in queues.items():
            heard[Queue.named(topic, name)] = offset
    return heard


def _queues(client: Client, topics: Sequence[str], known: Iterable[Queue] = ()) -> list[Queue]:
    """All that can be read. A topic that was known is waited for, if its broker is away."""
    there = {queue.topic for queue in known}
    found: list[Queue] = []
    for topic in topics:
        readable = client.route(topic, sure=topic in there).readable
        if not readable:
            raise RocketMQError(f'reading topic "{topic}": it has no queue that may be read', hint="See its perm.")
        found += readable
    return found


def _starts(options: Reading, bounds: Mapping[Queue, Bounds]) -> dict[Queue, int]:
    """Where a new query begins."""
    told = offsets_of("startingOffsets", options.starting_offsets, ("earliest", "latest"), options.named)
    if told is None:
        latest = options.starting_offsets.lower() == "latest"
        return {queue: each.end if latest else each.first for queue, each in bounds.items()}
    return {queue: each.first for queue, each in bounds.items()} | _listed("startingOffsets", told, bounds)


def _ends(options: Reading, bounds: Mapping[Queue, Bounds]) -> dict[Queue, int]:
    """Where a batch ends."""
    told = offsets_of("endingOffsets", options.ending_offsets, ("latest",), options.named)
    return (
        {queue: each.end for queue, each in bounds.items()} if told is None else _listed("endingOffsets", told, bounds)
    )


def _listed(word: str, told: Offsets, bounds: Mapping[Queue, Bounds]) -> dict[Queue, int]:
    there = {(queue.topic, queue.name): queue for queue in bounds}
    for topic, queues in told.items():
        for name in queues:
            if (topic, name) not in there:
                others = ", ".join(name for each, name in there if each == topic)
                raise ConfigError(word, f'topic "{topic}" has no queue "{name}"', hint=f"It has {others}.")
    return {there[topic, name]: offset for topic, queues in told.items() for name, offset in queues.items()}


def _limited(begun: Mapping[Queue, int], bounds: Mapping[Queue, Bounds], rows: int | None) -> dict[Queue, int]:
    """How far each queue goes, so that all take so many rows: one that has more to read takes more of them."""
    starts = {queue: begun.get(queue, each.first) for queue, each in bounds.items()}
    behind = {queue: max(0, each.end - starts[queue]) for queue, each in bounds.items()}
    total = sum(behind.values())
    if rows is None or total <= rows:
        return {**begun, **{queue: each.end for queue, each in bounds.items()}}
    ends = {**begun, **starts}
    left = rows
    for queue in sorted(behind, key=lambda each: (-behind[each], each)):
        share = min(left, -(-behind[queue] * rows // total))
        ends[queue] += share
        left -= share
    return ends


def _stretches(options: Reading, start: Mapping[Queue, int], end: Mapping[Queue, int]) -> list[Stretch]:
    """One for each queue in which there is something to read."""
    for queue in sorted(end):
        if start[queue] > end[queue]:
            what = f"reading {queue}: offset {start[queue]} is wanted, and the queue ends before {end[queue]}"
            if options.fail_on_data_loss:
                raise OffsetGone(
                    what,
                    hint="Are these offsets of this topic, or was it made anew, or did its broker lose messages? To go "
                    "on with what comes set failOnDataLoss to false; to begin anew take another checkpoint.",
                )
            logger.warning("messages lost", extra={"queue": str(queue), "offset": start[queue], "ends": end[queue]})
    return [Stretch(queue, start[queue], end[queue]) for queue in sorted(end) if start[queue] < end[queue]]


def _read(options: Reading, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
    # Spark gives none if there is no partition at all.
    if not isinstance(partition, Stretch):
        return
    _ease_tasks()
    with options.client() as client:
        held, size = Messages.none(), 0
        for messages in client.pull(
            partition.queue,
            partition.first,
            partition.end,
            group=options.group,
            at_once=options.pull_batch,
            lossy=not options.fail_on_data_loss,
        ):
            held.extend(messages)
            size += sum(map(len, messages.bodies))
            if len(held.offsets) >= ROWS or size >= BYTES:
                yield _batch(partition.queue, held)
                held, size = Messages.none(), 0
        if held.offsets:
            yield _batch(partition.queue, held)


def _ease_tasks() -> None:
    """Spares the tasks to come 0.15 seconds each, in a worker that is used again.

    After each task Spark has its worker look at all objects for garbage, of which those of modules are by far the most.
    Before each it has it look anew for what can be imported. Before 3.12 Python then reads the lists of all files in
    pyspark.zip and in a jar of Spark's, once for each package in them. What PYTHONPATH names does not change.
    """
    _freeze_once()
    fixed = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    for path, finder in tuple(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter) and finder.archive in fixed:
            # Should something more be imported, it is made again, of the list that is known.
            del sys.path_importer_cache[path]


_freeze_once = cache(gc.freeze)


def _batch(queue: Queue, messages: Messages) -> pa.RecordBatch:
    """The messages as columns, in the order of SCHEMA."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows, properties = len(messages.offsets), maps(messages.properties)
    text, millis, micros = pa.string(), pa.timestamp("ms", tz="UTC"), pa.timestamp("us", tz="UTC")
    columns = {
        "key": pc.map_lookup(properties, "KEYS", "last").cast(pa.binary()),
        "value": pa.array(messages.bodies, pa.binary()),
        "topic": pa.repeat(pa.scalar(queue.topic, text), rows),
        "broker": pa.repeat(pa.scalar(queue.broker, text), rows),
        "queue": pa.repeat(pa.scalar(queue.number, pa.int32()), rows),
        "offset": pa.array(messages.offsets, pa.int64()),
        "tags": pc.map_lookup(properties, "TAGS", "last"),
        "properties": properties,
        "bornAt": pa.array(messages.born, millis).cast(micros),
        "storedAt": pa.array(messages.stored, millis).cast(micros),
    }
    return pa.record_batch(list(columns.values()), names=list(columns))
