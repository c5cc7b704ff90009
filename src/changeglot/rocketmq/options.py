"""Options of the data source, as Spark hands them over and as they are meant."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, get_type_hints

from changeglot.errors import ConfigError
from changeglot.options import option, options_of, required
from changeglot.rocketmq.client import Client
from changeglot.rocketmq.connection import Credentials

T = TypeVar("T")

#: topic → queue → the offset of the message that is next.
Offsets = dict[str, dict[str, int]]


@dataclass(frozen=True, kw_only=True)
class _Cluster:
    """Options of both directions."""

    name_servers: str = option("host:port of the name servers, separated by ; or ,", example="localhost:9876")
    access_key: str = option("user, if RocketMQ asks who it is", "", shown=False)
    secret_key: str = option("what only that user knows", "", shown=False)
    timeout: float = option("seconds after which an error is raised if a server is away or nothing comes", 30.0)

    def __post_init__(self) -> None:
        if not all(port.isdecimal() and host for host, _, port in self._servers):
            raise ConfigError("nameServers", f'"{self.name_servers}" is not host:port;host:port')
        if bool(self.access_key) != bool(self.secret_key):
            raise ConfigError("accessKey", "accessKey and secretKey go together, and one is missing")
        if self.timeout <= 0:
            raise ConfigError("timeout", "wants seconds, more than none")

    @property
    def _servers(self) -> list[tuple[str, str, str]]:
        parts = self.name_servers.replace(",", ";").split(";")
        return [part.strip().rpartition(":") for part in parts if part.strip()] or [("", "", "")]

    def client(self) -> Client:
        credentials = Credentials(self.access_key, self.secret_key) if self.access_key else None
        servers = ["".join(each) for each in self._servers]
        return Client(servers, credentials=credentials, timeout=self.timeout)


@dataclass(frozen=True, kw_only=True)
class Reading(_Cluster):
    """Options of a reader."""

    topics: str = option("names, separated by commas", example="orders,customers")
    starting_offsets: str = option(
        "where a new query begins: earliest, latest, or offsets; a queue that these do not name, at its beginning",
        "earliest",
        example='{"orders": {"broker-a:0": 17}}',
    )
    ending_offsets: str = option(
        "where a batch ends, before which offsets: latest, or offsets; a queue that these do not name is not read",
        "latest",
    )
    fail_on_data_loss: bool = option("whether messages that are gone before they were read are an error", True)
    consumer_group: str = option("whose offsets RocketMQ's tools are to show; not where reading begins", "")
    pull_batch: int = option("messages that one request asks for; a broker gives no more than it is set to", 32)
    max_offsets_per_trigger: int = option("messages that a batch of a stream takes at most; Spark 4.2 and newer", 0)
    up_to_now: bool = option("whether a stream has no more than what is there when it first looks", False)
    known_offsets: str = option(
        "where a stream that goes on stood, as its checkpoint has it, for queues whose brokers are away as it starts",
        "",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.named:
            raise ConfigError("topics", "names no topic")
        if self.pull_batch < 1:
            raise ConfigError("pullBatch", "wants a number of messages, at least 1")
        offsets_of("startingOffsets", self.starting_offsets, ("earliest", "latest"), self.named)
        offsets_of("endingOffsets", self.ending_offsets, ("latest",), self.named)

    @property
    def known(self) -> Offsets:
        """Where the stream stood, of the topics that are read now."""
        told: Offsets = json.loads(self.known_offsets or "{}")
        return {topic: queues for topic, queues in told.items() if topic in self.named}

    @property
    def named(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name.strip() for name in self.topics.split(",") if name.strip()))

    @property
    def group(self) -> str:
        """A broker wants one with every pull."""
        return self.consumer_group or "changeglot"


@dataclass(frozen=True, kw_only=True)
class Writing(_Cluster):
    """Options of a writer."""

    topic: str = option("where a row goes that has no topic of its own", "")
    group: str = option("as which producer group the messages are sent", "changeglot")
    create_topics: bool = option("whether a topic that is not there is created", True)
    queues: int = option("queues that a created topic has on each broker", 8)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.queues < 1:
            raise ConfigError("queues", "wants a number of queues, at least 1")


def given(cls: type[T], told: Mapping[str, str]) -> T:
    """The options as Spark hands them over: names in any case, values as text. Those of others are passed over."""
    hints = get_type_hints(cls)
    known = {_word(each.name).lower(): each for each in options_of(cls)}
    for name in told:
        meant = difflib.get_close_matches(name.lower(), known, 1, 0.8)
        if name.lower() not in known and meant:
            raise ConfigError(name, "no such option", hint=f'Did you mean "{_word(known[meant[0]].name)}"?')
    texts = {name.lower(): text for name, text in told.items()}
    found = {}
    for name, each in known.items():
        if name in texts:
            found[each.name] = _value(hints[each.name], texts[name], _word(each.name))
        elif required(each):
            hint = f"{each.metadata['help']}: {each.metadata['example']}"
            raise ConfigError(_word(each.name), "is missing", hint=hint)
    return cls(**found)


def _word(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _value(kind: type, text: str, word: str) -> str | int | float | bool:
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ConfigError(word, f'"{text}" is neither true nor false')
        return text.lower() == "true"
    try:
        return text if kind is str else int(text) if kind is int else float(text)
    except ValueError as error:
        raise ConfigError(word, f'"{text}" is not a number') from error


def offsets_of(word: str, text: str, words: Sequence[str], topics: Sequence[str]) -> Offsets | None:
    """The offsets that the option has; None if it is one of the words."""
    if text.lower() in words:
        return None
    try:
        told = json.loads(text)
        offsets = {topic: {queue: int(offset) for queue, offset in queues.items()} for topic, queues in told.items()}
    except (ValueError, TypeError, AttributeError) as error:
        hint = f'Say {" or ".join(words)}, or {{"topic": {{"broker:queue": offset}}}} in JSON.'
        raise ConfigError(word, f'"{text}" says no offsets', hint=hint) from error
    for topic in offsets:
        if topic not in topics:
            raise ConfigError(word, f'topic "{topic}" is not among those that are read')
    return offsets
