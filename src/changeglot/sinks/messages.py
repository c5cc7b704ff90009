"""What a transport must do for changes to be sent as messages."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from pyspark.sql import DataFrame, SparkSession

from changeglot.apply.route import WORDS, filled
from changeglot.apply.tidings import PARTS
from changeglot.errors import ConfigError
from changeglot.model import Phase
from changeglot.options import option, words

#: Columns of what is sent, beside `key` and `value`: where to, and what the message is known by.
TOPIC, LANE, SENT = "topic", "lane", "sent"
#: The names of a topic's lanes: who changes one changes where rows go.
Lanes = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class MessageSink(ABC):
    """Topics of one transport, in which a lane (a partition, a queue) keeps its messages in order.

    At least once: a batch that is sent again after a failure doubles what had been sent of it. Each message bears who
    sent it, in which batch and as which of its lane: the second one is known by that, and changeglot's own sources
    leave it out. See docs/topics.md.
    """

    name: ClassVar[str]
    #: Packages that Spark needs, by their Maven coordinates.
    packages: ClassVar[tuple[str, ...]] = ()
    #: A letter that the name of a topic may not have, as a regular expression.
    unfit: ClassVar[str]

    format: str = option("of the messages", example="canal")
    topic: str = option(
        "where they go; {database}, {schema} and {table} stand for the source's; else as the format's own writer does",
        "",
        example="shop.{table}",
    )
    partition: Literal["key", "table", "one"] = option(
        "all changes of what go to one partition or queue: a row, a table, all", "key"
    )
    partitions: int = option("of a topic that is not there yet; 0: as many as the broker makes", 0)
    ddl: Literal["one", "all"] = option("statements go to the first partition, or to each", "one")
    split_topic: bool = option("of arcion: the stream has topics of its own beside the snapshot's", True)
    tombstones: bool = option("after a delete a message without a value, for topics that are compacted", False)
    heartbeat: int = option("seconds without changes after which a heartbeat is sent; 0: never", 0)
    on_loss: Literal["ignore", "warn", "fail"] = option(
        "what the format cannot carry is left out, told, or refused", "warn"
    )
    options: Mapping[str, str] = words("of the format, as `changeglot explain FORMAT` lists them")

    def session_settings(self) -> dict[str, str]:
        """What a session must be started with."""
        return {}

    @abstractmethod
    def check(self, spark: SparkSession) -> None:
        """Raises what is wrong before anything is sent."""

    def topic_of(self, parts: Mapping[str, str | None], phase: str) -> str:
        """Where changes of a table go; letters that no topic may have become `_`.

        >>> from changeglot.sinks.kafka import Kafka
        >>> shop = {"database": "shop", "table": "orders"}
        >>> Kafka(format="canal", topic="cdc.{database}.{table}", servers="").topic_of(shop, "stream")
        'cdc.shop.orders'
        >>> Kafka(format="arcion", servers="").topic_of(shop, "stream")
        'shop_orders_cdc_logs'
        """
        if self.topic:
            name = filled(self.topic, parts)
        else:
            name = "_".join(filter(None, (parts.get(part) for part in PARTS)))
            if self.split_topic and phase != Phase.SNAPSHOT:
                name += "_cdc_logs"
        return re.sub(self.unfit, "_", name)

    @property
    def one_topic(self) -> str | None:
        """The topic, if all changes go to one."""
        return None if not self.topic or WORDS.search(self.topic) else self.topic_of({}, Phase.STREAM)

    def check_words(self, path: str) -> None:
        """Raises what is wrong with it that its types do not tell."""
        if not self.topic and self.format != "arcion":
            hint = "topic: shop, or topic: shop.{table}"
            raise ConfigError(f"{path}.topic", f"is missing, and {self.format} has no names of its own", hint=hint)

    @property
    @abstractmethod
    def at(self) -> str:
        """Where its topics are, as a person says it: elsewhere they have other lanes."""

    @abstractmethod
    def lanes(self, spark: SparkSession, topics: Collection[str], known: Mapping[str, Lanes]) -> dict[str, Lanes]:
        """The lanes of each topic, in the same order every time; topics that are not there are made.

        Of those that were `known`, one that is only away now is among them: what it has is continued there.
        """

    @abstractmethod
    def send(self, messages: DataFrame) -> None:
        """DataFrame<topic, lane STRING, key, value, sent> sent, the rows of each lane in the order that they lie."""
