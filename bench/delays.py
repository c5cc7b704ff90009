"""How long something is on its way through a query that goes on: what topics and databases have in common."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import linear_regression, quantiles
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql.streaming.query import StreamingQuery

#: Partitions of a topic.
LANES = 2
#: Seconds for which what was sent is waited for.
PATIENCE = 60


def admin(address: str) -> AdminClient:
    """A new one each time: it would look for the broker, and complain, when that is gone. It tells of warnings only.

    It is to be kept until it has answered.
    """
    return AdminClient({"bootstrap.servers": address, "log_level": 4})


def make_topic(address: str, topic: str) -> str:
    client = admin(address)
    client.create_topics([NewTopic(topic, LANES, 1)])[topic].result()
    return topic


def paced(rate: int, seconds: int, send: Callable[[range], None], wait: Callable[[float], object]) -> float:
    """Has so many things a second sent, evenly, by their numbers; gives how many a second it were."""
    begun, sent, count = time.time(), 0, rate * seconds
    while sent < count:
        due = min(count, int((time.time() - begun) * rate))
        send(range(sent, due))
        sent = due
        wait(0.002)
    return sent / (time.time() - begun)


def receive(address: str, topic: str, stamped: str, count: int, warm: int, seconds: int) -> dict[str, Any]:
    """What `known` tells of messages, `count` in all, in which the expression finds the milliseconds they bear."""
    found = re.compile(stamped.encode())
    reader = Consumer({"bootstrap.servers": address, "group.id": "bench", "enable.auto.commit": False})
    reader.assign([TopicPartition(topic, lane, 0) for lane in range(LANES)])
    read: list[tuple[float, float]] = []
    deadline = time.time() + warm + seconds + PATIENCE
    while len(read) < count and time.time() < deadline:
        several = reader.consume(10_000, 0.1)
        now = time.time()
        stamps = (found.search(message.value() or b"") for message in several)
        read += [(int(stamp[1]) / 1000, now) for stamp in stamps if stamp]
    reader.close()
    return known(read, count, warm, seconds)


def known(read: Sequence[tuple[float, float]], count: int, warm: int, seconds: int) -> dict[str, Any]:
    """The fields of a DelayRun, but for what was wanted and sent, given when each was sent and read.

    Any: numbers, and a tuple of them.
    """
    first = min((stamp for stamp, _ in read), default=0)
    watched = [(stamp, at - stamp) for stamp, at in read if warm <= stamp - first < warm + seconds]
    lost = count - len(read)
    if len({stamp for stamp, _ in watched}) < 2:
        return {"delays": (0.0, 0.0), "growth": 0.0, "translated": 0.0, "lost": lost}
    cuts = quantiles((delay * 1000 for _, delay in watched), n=100)
    return {
        "delays": (cuts[49], cuts[98]),
        "growth": linear_regression(*zip(*watched, strict=True)).slope,
        "translated": len(read) / (max(at for _, at in read) - first),
        "lost": lost,
    }


@contextmanager
def going(query: StreamingQuery) -> Iterator[None]:
    """The query goes on meanwhile, and has not failed."""
    try:
        yield
        problem = query.exception()
    finally:
        query.stop()
    if problem is not None:
        raise problem
