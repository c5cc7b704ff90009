"""What is done with a cluster of RocketMQ: routes, topics, offsets, pulls and sends. Knows no Spark."""

from __future__ import annotations

import json
import logging
import re
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from changeglot.rocketmq.connection import (
    FRAME,
    Answer,
    Ask,
    Connection,
    Credentials,
    Patience,
    Refused,
    Said,
    Unreachable,
)
from changeglot.rocketmq.messages import Messages, Outgoing, RocketMQError, decoded, encoded

logger = logging.getLogger(__name__)
T = TypeVar("T")

#: Pulls under way for one queue: as many as keep the broker busy while we decode, of about so many bytes in all.
DEPTH, WINDOW = 32, 8 << 20
#: Bytes of a batch that is sent, and of all that wait to be sent or acknowledged.
BATCH, HELD = 1 << 20, 32 << 20


class NoTopic(RocketMQError):
    """The name server knows no such topic."""


class OffsetGone(RocketMQError):
    """Messages that are wanted are not in their queue any more."""


class Queue(NamedTuple):
    """One queue of a topic."""

    topic: str
    broker: str
    number: int

    @property
    def name(self) -> str:
        """What it is called among those of its topic."""
        return f"{self.broker}:{self.number}"

    @classmethod
    def named(cls, topic: str, name: str) -> Self:
        """The one that is called so.

        >>> Queue.named("orders", "broker-a:3")
        Queue(topic='orders', broker='broker-a', number=3)
        """
        broker, _, number = name.rpartition(":")
        return cls(topic, broker, int(number))

    def __str__(self) -> str:
        return f'queue {self.name} of topic "{self.topic}"'


class Route(NamedTuple):
    """The queues of a topic that may be read and those that may be written, by broker and number."""

    readable: tuple[Queue, ...]
    writable: tuple[Queue, ...]
    #: The topic's brokers that could be written now, whether or not they let it be.
    writing: frozenset[str]


class Bounds(NamedTuple):
    """The offset of a queue's first message, and the one that its next message will have."""

    first: int
    end: int


class Client:
    """The name servers and brokers of a cluster. What one that is away cannot do is tried again until the timeout."""

    def __init__(
        self, name_servers: Sequence[str], *, credentials: Credentials | None = None, timeout: float = 30
    ) -> None:
        self._timeout = timeout
        self._credentials = credentials
        self._name_servers = deque(name_servers)
        #: Of each broker its master's, or that of a copy, which can be read, while the master is away.
        self._addresses: dict[str, str] = {}
        self._connections: dict[str, Connection] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def patience(self, doing: str) -> Patience:
        return Patience(doing, self._timeout)

    def route(self, topic: str, *, sure: bool = False) -> Route:
        """The queues of a topic. NoTopic: the name server knows none. One that is `sure` to be there is waited for."""

        def found(deadline: float) -> Route:
            try:
                return self._looked_up(topic, deadline)
            except NoTopic as problem:
                if not sure:
                    raise
                raise Unreachable(problem.what, hint=problem.hint) from problem

        return self._patiently(f'looking up topic "{topic}"', found)

    def route_or_create(self, topic: str, queues: int) -> Route:
        """The queues of a topic, which is created with so many on each broker if there is none of its name."""
        try:
            return self.route(topic)
        except NoTopic:
            doing = f'creating topic "{topic}"'

        def create(deadline: float) -> None:
            brokers = self._brokers(doing, deadline)
            try:
                # A broker that was away has brought its topics back: none of them may be changed.
                self._looked_up(topic, deadline)
            except NoTopic:
                self._set_queues(doing, brokers, topic, queues, deadline)

        self._patiently(doing, create)
        return self.route(topic, sure=True)

    def set_queues(self, topic: str, queues: int) -> None:
        """Gives it so many queues on each broker, whether it is there or not."""
        doing = f'changing topic "{topic}"'
        self._patiently(
            doing, lambda deadline: self._set_queues(doing, self._brokers(doing, deadline), topic, queues, deadline)
        )

    def brokers(self) -> list[str]:
        """The names of all brokers that can be written; an error if they are of several clusters."""
        return self._patiently(
            "asking for the brokers", lambda deadline: self._brokers("asking for the brokers", deadline)
        )

    def _brokers(self, doing: str, deadline: float) -> list[str]:
        brokers = _json(self._name_server(Ask.CLUSTERS, {}, deadline).body)["brokerAddrTable"].values()
        clusters = sorted({each["cluster"] for each in brokers})
        if not clusters:
            raise Unreachable("the name server knows no broker", hint="Does one run, with this name server's address?")
        if len(clusters) > 1:
            raise RocketMQError(
                f"{doing}: the name server knows several clusters, {', '.join(clusters)}",
                hint="Create the topics yourself, in the one that is meant.",
            )
        return self._learned(brokers)

    def _set_queues(self, doing: str, brokers: Iterable[str], topic: str, queues: int, deadline: float) -> None:
        fields = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        for broker in brokers:
            answer = self._broker(broker, deadline).call(Ask.CREATE_TOPIC, fields, deadline=deadline)
            if answer.code != Said.DONE:
                raise Refused(doing, answer)

    def bounds(self, queues: Iterable[Queue]) -> dict[Queue, Bounds]:
        """Where each of the queues begins and ends."""
        wanted = tuple(queues)

        def asked(deadline: float) -> dict[Queue, Bounds]:
            connections = [self.connection(queue, deadline) for queue in wanted]
            numbers = [
                [connection.ask(each, _place(queue), deadline=deadline) for each in (Ask.MIN_OFFSET, Ask.MAX_OFFSET)]
                for queue, connection in zip(wanted, connections, strict=True)
            ]
            found = {}
            for queue, connection, pair in zip(wanted, connections, numbers, strict=True):
                answers = [connection.answer(number, deadline) for number in pair]
                for answer in answers:
                    if answer.code != Said.DONE:
                        raise Refused(f"asking for the offsets of {queue}", answer)
                found[queue] = Bounds(*(int(answer.fields["offset"]) for answer in answers))
            return found

        return self._patiently("asking for the offsets of topics", asked)

    def report(self, group: str, offsets: Mapping[Queue, int]) -> None:
        """Tells the brokers how far a group is, so that their tools show it. It may fail: nothing depends on it."""
        deadline = time.monotonic() + min(self._timeout, 2)
        try:
            for queue, offset in offsets.items():
                fields = {"consumerGroup": group, "commitOffset": str(offset), **_place(queue)}
                answer = self.connection(queue, deadline).call(Ask.REPORT_OFFSET, fields, deadline=deadline)
                if answer.code != Said.DONE:
                    raise Refused(f"telling how far {queue} was read", answer)
        except RocketMQError as problem:
            logger.info("offsets not reported", extra={"group": group, "problem": str(problem)})

    def pull(
        self, queue: Queue, first: int, end: int, *, group: str, at_once: int = 32, lossy: bool = False
    ) -> Iterator[Messages]:
        """The messages of a queue from one offset until before another, in order, some at a time.

        OffsetGone: one is not there any more, and it is not said that what is lost be passed over (`lossy`).
        """
        patience = self.patience(f"reading {queue}")
        while first < end:
            try:
                for messages, reached in self._pulled(queue, first, end, group=group, at_once=at_once, lossy=lossy):
                    if messages.offsets:
                        yield messages
                    first, patience = reached, self.patience(f"reading {queue}")
            except Unreachable as problem:
                patience.wait(problem)

    def _pulled(
        self, queue: Queue, first: int, end: int, *, group: str, at_once: int, lossy: bool
    ) -> Iterator[tuple[Messages, int]]:
        """Messages and the offset after them, until the end or a loss.

        However many it is asked for, a broker gives 32 at once, 8 if it has to read its disk, and no more than 256 kB.
        So what follows is asked for before it can be known where it begins, in steps that the answers teach.
        """
        fields = {
            "consumerGroup": group,
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
            **_place(queue),
        }
        connection = self.connection(queue, self.soon())
        under_way: deque[tuple[int, int]] = deque()

        def ask(*stretches: tuple[int, int]) -> list[tuple[int, int]]:
            wanted = (
                {**fields, "queueOffset": str(offset), "maxMsgNums": str(until - offset)} for offset, until in stretches
            )
            numbers = connection.ask_each(Ask.PULL, wanted, deadline=self.soon())
            return [(number, until) for number, (_, until) in zip(numbers, stretches, strict=True)]

        step, depth, whole, asked = at_once, 2, 0, first
        try:
            while first < end:
                # Half of them at once: to send and to be woken costs more than the requests do.
                if asked < end and len(under_way) <= depth // 2:
                    until = min(end, asked + step * (depth - len(under_way)))
                    under_way += ask(*((each, min(each + step, until)) for each in range(asked, until, step)))
                    asked = until
                number, until = under_way.popleft()
                answer = connection.answer(number, self.soon())
                messages, reached = _taken(queue, first, until, answer)
                if reached - first != len(messages.offsets):
                    self._lose(queue, first, messages, answer, lossy=lossy)
                    yield messages, min(reached, end)
                    return
                if reached < until:
                    under_way.extendleft(ask((reached, until)))
                    step, whole = reached - first, 0
                elif (whole := whole + 1) == 64:
                    step, whole = min(at_once, 2 * step), 0
                depth = max(1, min(DEPTH, WINDOW // max(1, len(answer.body))))
                first = reached
                yield messages, reached
        finally:
            # Nobody waits for these answers any more.
            if under_way:
                connection.close()

    def _lose(self, queue: Queue, first: int, messages: Messages, answer: Answer, *, lossy: bool) -> None:
        gone = next(offset for offset in count(first) if offset not in messages.offsets)
        begins, ends = answer.fields.get("minOffset"), answer.fields.get("maxOffset")
        if not lossy:
            raise OffsetGone(
                f"reading {queue}: the message at offset {gone} is gone; the queue begins at {begins} and ends before "
                f"{ends}",
                hint="It was deleted before it was read (fileReservedTime), or the topic was made anew. To go on with "
                "what is there set failOnDataLoss to false; to begin anew take another checkpoint.",
            )
        logger.warning("messages lost", extra={"queue": str(queue), "offset": gone, "begins": begins, "ends": ends})

    def connection(self, queue: Queue, deadline: float) -> Connection:
        """To the queue's broker, wherever it is now."""
        address = self._addresses.get(queue.broker)
        held = self._connections.get(address or "")
        if address is None or (held is not None and not held.open):
            self._addresses.pop(queue.broker, None)
            try:
                self._looked_up(queue.topic, deadline)
            except NoTopic as problem:
                raise Unreachable(problem.what, hint=problem.hint) from problem
            if queue.broker not in self._addresses:
                raise Unreachable(f'the name server does not list broker "{queue.broker}"', hint="Does it run?")
        return self._broker(queue.broker, deadline)

    def _broker(self, broker: str, deadline: float) -> Connection:
        try:
            return self._connected(f'broker "{broker}"', self._addresses[broker], deadline)
        except Unreachable:
            del self._addresses[broker]
            raise

    def _name_server(self, code: Ask, fields: Mapping[str, str], deadline: float) -> Answer:
        """The answer of the first that gives one, beginning with the one that did last."""
        problems = []
        for left in range(len(self._name_servers), 0, -1):
            now = time.monotonic()
            share = now + (deadline - now) / left
            try:
                connection = self._connected("name server", self._name_servers[0], share)
                return connection.call(code, fields, deadline=share)
            except Unreachable as problem:
                problems.append(problem.what)
                self._name_servers.rotate(-1)
        raise Unreachable("; ".join(problems), hint="Is nameServers right, and does one of them run?")

    def _looked_up(self, topic: str, deadline: float) -> Route:
        answer = self._name_server(Ask.ROUTE, {"topic": topic, "acceptStandardJsonOnly": "true"}, deadline)
        if answer.code == Said.NO_TOPIC:
            raise NoTopic(
                f'the name server {self._name_servers[0]} knows no topic "{topic}"',
                hint="Is that its name, was it created, and does its broker run?",
            )
        if answer.code != Said.DONE:
            raise Refused(f'looking up topic "{topic}"', answer)
        told = _json(answer.body)
        masters = self._learned(told["brokerDatas"])
        readable: list[Queue] = []
        writable: list[Queue] = []
        for data in sorted(told["queueDatas"], key=lambda each: str(each["brokerName"])):
            broker, permission = data["brokerName"], data["perm"]
            if permission & 4:
                readable += (Queue(topic, broker, number) for number in range(data["readQueueNums"]))
            if permission & 2 and broker in masters:
                writable += (Queue(topic, broker, number) for number in range(data["writeQueueNums"]))
        there = frozenset(data["brokerName"] for data in told["queueDatas"]) & {*masters}
        return Route(tuple(readable), tuple(writable), there)

    def _learned(self, brokers: Iterable[Mapping[str, Any]]) -> list[str]:
        """Those that have a master; the addresses of all are kept. Any: JSON."""
        masters = []
        for each in brokers:
            name, addresses = str(each["brokerName"]), {int(number): at for number, at in each["brokerAddrs"].items()}
            if addresses:
                self._addresses[name] = addresses[min(addresses)]
            if 0 in addresses:
                masters.append(name)
        return masters

    def _connected(self, server: str, address: str, deadline: float) -> Connection:
        held = self._connections.get(address)
        if held is None or not held.open:
            held = self._connections[address] = Connection(server, address, self._credentials, deadline)
        return held

    def _patiently(self, doing: str, work: Callable[[float], T]) -> T:
        patience = self.patience(doing)
        while True:
            try:
                return work(patience.attempt())
            except Unreachable as problem:
                patience.wait(problem)

    def soon(self) -> float:
        """When a single request is over that is made now."""
        return time.monotonic() + self._timeout / 3


class Sender:
    """Messages into queues, at least once each, those of one queue in order: one batch of it is under way at a time."""

    def __init__(self, client: Client, group: str) -> None:
        self._client = client
        self._group = group
        self._waiting: dict[Queue, list[Outgoing]] = {}
        self._sizes: dict[Queue, int] = {}
        self._sent: dict[Queue, tuple[list[Outgoing], tuple[Connection, int] | None]] = {}
        self._held = 0

    def add(self, queue: Queue, message: Outgoing) -> None:
        size = message.size
        if size > FRAME - (64 << 10):
            raise RocketMQError(
                f"sending to {queue}: a message of {size} bytes is more than a frame of RocketMQ's, {FRAME}",
                hint="Send a smaller one.",
            )
        if queue in self._waiting and (message.alone or self._sizes[queue] + size > BATCH):
            self._send(queue)
        self._waiting.setdefault(queue, []).append(message)
        self._sizes[queue] = self._sizes.get(queue, 0) + size
        self._held += size
        if message.alone:
            self._send(queue)
        if self._held > HELD:
            self.flush()

    def flush(self) -> None:
        """All that was added is acknowledged."""
        for queue in tuple(self._waiting):
            self._send(queue)
        for queue in tuple(self._sent):
            self._settle(queue)
        self._held = 0

    def _send(self, queue: Queue) -> None:
        self._settle(queue)
        batch = self._waiting.pop(queue)
        del self._sizes[queue]
        try:
            self._sent[queue] = batch, self._asked(queue, batch)
        except Unreachable:
            # Whoever waits for the answer asks again.
            self._sent[queue] = batch, None

    def _settle(self, queue: Queue) -> None:
        """What was sent to the queue is acknowledged."""
        if queue not in self._sent:
            return
        batch, asked = self._sent.pop(queue)
        patience = self._client.patience(f"sending {len(batch)} messages to {queue}")
        while True:
            try:
                connection, number = asked or self._asked(queue, batch)
                answer = connection.answer(number, patience.attempt())
                break
            except Unreachable as problem:
                asked = None
                patience.wait(problem)
        # Of a batch, a broker says it in the words of its own exception.
        large = answer.code == Said.ILLEGAL_MESSAGE or (answer.code == Said.FAILED and "size exceeded" in answer.remark)
        if large and len(batch) > 1:
            # The broker may take less than a batch holds.
            for half in (batch[: len(batch) // 2], batch[len(batch) // 2 :]):
                self._sent[queue] = half, None
                self._settle(queue)
        elif large:
            raise RocketMQError(
                f"sending to {queue}: the broker does not take a message with a body of {len(batch[0].body)} bytes and "
                f"properties of {len(batch[0].properties)} bytes: {answer.words}",
                hint="Send a smaller one, or raise maxMessageSize of the broker.",
            )
        elif answer.code != Said.DONE:
            raise Refused(f"sending to {queue}", answer)
        else:
            self._held -= sum(message.size for message in batch)

    def _asked(self, queue: Queue, batch: Sequence[Outgoing]) -> tuple[Connection, int]:
        # A body that is empty arrives as none at all unless it is in a batch.
        single = len(batch) == 1 and len(batch[0].body) > 0
        deadline = self._client.soon()
        fields = {
            "a": self._group,
            "b": queue.topic,
            "c": "TBW102",
            "d": "4",
            "e": str(queue.number),
            "f": "0",
            "g": str(time.time_ns() // 1_000_000),
            "h": "0",
            "i": batch[0].properties.decode() if single else "",
            "j": "0",
            "k": "false",
            "m": "false" if single else "true",
            "n": queue.broker,
        }
        connection = self._client.connection(queue, deadline)
        body = batch[0].body if single else b"".join(map(encoded, batch))
        return connection, connection.ask(Ask.SEND if single else Ask.SEND_BATCH, fields, body, deadline=deadline)


def _taken(queue: Queue, first: int, until: int, answer: Answer) -> tuple[Messages, int]:
    """The messages of an answer to a pull, and where to go on: farther than there are messages if some are gone."""
    if answer.code == Said.DONE:
        found = decoded(answer.body)
        wanted = found.part(bisect_left(found.offsets, first), bisect_left(found.offsets, until))
        return wanted, wanted.offsets[-1] + 1 if wanted.offsets else max(found.offsets[0], first + 1)
    none, following = Messages.none(), int(answer.fields.get("nextBeginOffset", first))
    if answer.code == Said.OFFSET_MOVED:
        # Where the queue begins; or ends, if that is before what is wanted, which then is nowhere.
        return none, following if following > first else 1 << 63
    if answer.code == Said.ASK_AGAIN and following > first:
        return none, following
    if answer.code in (Said.NOT_FOUND, Said.ASK_AGAIN):
        raise Unreachable(f"the broker has nothing at offset {first}", hint="Its log says more.")
    raise Refused(f"reading {queue}", answer)


def _place(queue: Queue) -> dict[str, str]:
    return {"topic": queue.topic, "queueId": str(queue.number)}


def _json(data: bytes) -> Any:
    """JSON as RocketMQ writes it: numbers that are names have no quotes. Any: JSON."""
    return json.loads(re.sub(r"([{,])(-?\d+):", r'\1"\2":', data.decode()))
