"""Rows of Spark into queues."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)

from changeglot.errors import ConfigError
from changeglot.rocketmq.client import Client, Queue, Sender
from changeglot.rocketmq.messages import RocketMQError, outgoing, sharded, unique_ids
from changeglot.rocketmq.options import Writing

if TYPE_CHECKING:
    import pyarrow as pa

#: Messages that follow each other into one queue where it does not matter into which.
TURN = 500
#: Properties that brokers and clients set for themselves, in whichever message: not to be copied into another one.
THEIRS = frozenset(
    {
        *("UNIQ_KEY", "WAIT", "CLUSTER", "MSG_REGION", "TRACE_ON", "MIN_OFFSET", "MAX_OFFSET", "__CRC32#"),
        *("REAL_TOPIC", "REAL_QID", "RETRY_TOPIC", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", "ORIGIN_MESSAGE_ID"),
        *("TRAN_MSG", "PGROUP", "TRANSACTION_PREPARED_QUEUE_OFFSET", "__transactionId__", "TRANSACTION_CHECK_TIMES"),
        *("INNER_NUM", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"),
        *("CONSUME_START_TIME", "POP_CK", "1ST_POP_TIME"),
    }
)
_BYTES, _NUMBERS = (BinaryType, StringType), (IntegerType, LongType, ShortType, ByteType)
_COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "value": _BYTES,
    "key": _BYTES,
    "topic": (StringType,),
    "tags": (StringType,),
    "properties": (MapType,),
    "shardingKey": (StringType,),
    "queue": (*_NUMBERS, StringType),
}


class _Queues:
    """Rows into queues."""

    def __init__(self, options: Writing, columns: Mapping[str, int]) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(self._options, self._columns, iterator)


class QueueWriter(_Queues, DataSourceArrowWriter):
    """Rows of a batch into queues."""


class QueueStreamWriter(_Queues, DataSourceStreamArrowWriter):
    """Rows of a stream into queues; those of a batch that is written again are sent again."""


def checked(schema: StructType, overwrite: bool) -> dict[str, int]:
    """Where each column is that is written."""
    if overwrite:
        raise ConfigError("mode", "messages can be appended, nothing else", hint='Write with mode("append").')
    known = {name.lower(): name for name in _COLUMNS}
    found: dict[str, int] = {}
    for place, each in enumerate(schema.fields):
        name = known.get(each.name.lower())
        if name is None:
            raise ConfigError(each.name, "no column that can be written", hint=f"Columns: {', '.join(_COLUMNS)}.")
        of_texts = not isinstance(each.dataType, MapType) or (
            isinstance(each.dataType.keyType, StringType) and isinstance(each.dataType.valueType, StringType)
        )
        if not isinstance(each.dataType, _COLUMNS[name]) or not of_texts:
            types = " or ".join(kind.typeName() for kind in _COLUMNS[name])
            wanted = "MAP<STRING, STRING>" if name == "properties" else types
            raise ConfigError(each.name, f"is of type {each.dataType.simpleString()}", hint=f"Cast it to {wanted}.")
        found[name] = place
    if "value" not in found:
        raise ConfigError("value", "this column is missing", hint="It is the message itself, BINARY or STRING.")
    return found


def _write(options: Writing, columns: Mapping[str, int], batches: Iterable[pa.RecordBatch]) -> WriterCommitMessage:
    topics: dict[str, tuple[Queue, ...]] = {}
    ids = unique_ids()
    # Tasks begin with different queues. Workers are forks of each other: their `random`s are alike.
    turns = count(random.SystemRandom().randrange(1 << 20) * TURN)

    def chosen(topic: str, place: str | int | None, sharding_key: str | None) -> Queue:
        if not topic:
            raise RocketMQError(
                "sending a message: its row has no topic",
                hint="Set the option topic, or fill the column topic in all rows.",
            )
        if isinstance(place, str):
            # Who names it knows of it: its broker may be away now.
            return _named(topic, place)
        queues = topics.get(topic) or topics.setdefault(topic, _writable(client, options, topic))
        if place is not None:
            return _numbered(queues, place, topic)
        if sharding_key is not None:
            return queues[sharded(sharding_key, len(queues))]
        return queues[next(turns) // TURN % len(queues)]

    with options.client() as client:
        sender = Sender(client, options.group)
        for batch in batches:
            for value, key, topic, tags, properties, sharding_key, place in _rows(batch, columns):
                queue = chosen(topic or options.topic, place, sharding_key)
                given = {name: text for name, text in properties or () if name not in THEIRS and text is not None}
                if key is not None:
                    given["KEYS"] = _text(key)
                if tags is not None:
                    given["TAGS"] = tags
                if sharding_key is not None:
                    given["__SHARDINGKEY"] = sharding_key
                given["UNIQ_KEY"] = next(ids)
                sender.add(queue, outgoing(value or b"", given))
        sender.flush()
    return WriterCommitMessage()


def _rows(batch: pa.RecordBatch, columns: Mapping[str, int]) -> Iterator[tuple[Any, ...]]:
    """The values of each row, in the order of _COLUMNS. Any: as the columns are."""
    import pyarrow as pa

    def values(name: str) -> list[Any]:
        """Any: as above."""
        if name not in columns:
            return [None] * batch.num_rows
        column = batch.column(columns[name])
        found: list[Any] = (column.cast(pa.binary()) if name in ("value", "key") else column).to_pylist()
        return found

    return zip(*map(values, _COLUMNS), strict=True)


def _writable(client: Client, options: Writing, topic: str) -> tuple[Queue, ...]:
    route = client.route_or_create(topic, options.queues) if options.create_topics else client.route(topic)
    if not route.writable:
        raise RocketMQError(
            f'sending to topic "{topic}": it has no queue that may be written',
            hint="See its perm, and whether the masters of its brokers run.",
        )
    return route.writable


@lru_cache(maxsize=1 << 12)
def _named(topic: str, name: str) -> Queue:
    try:
        return Queue.named(topic, name)
    except ValueError as error:
        raise RocketMQError(
            f'sending to topic "{topic}": a row asks for queue "{name}", which names none', hint='Say "broker-a:0".'
        ) from error


def _numbered(queues: Sequence[Queue], number: int, topic: str) -> Queue:
    if not 0 <= number < len(queues):
        raise RocketMQError(
            f'sending to topic "{topic}": a row asks for queue {number}, and there are {len(queues)}, counted from 0',
            hint="Queues are counted over all brokers, in the order of their names.",
        )
    return queues[number]


def _text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise RocketMQError(
            "sending a message: its key is not UTF-8, and RocketMQ's keys are texts",
            hint="Write base64(key), or hex(key).",
        ) from error
