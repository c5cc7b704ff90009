"""What a source of messages must do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from changeglot.codecs.base import Decoder
from changeglot.errors import ConfigError
from changeglot.sources.progress import Hear
from changeglot.stand import Stand

#: The column in which a source says where a message stood: text that sorts as the transport's order does.
PLACE = "place"
#: The message as it came, beside its changes.
MESSAGE = "__message"
#: Columns of a transport that may give a message twice: what keeps its messages in order (a partition, a queue), and
#: what a pipeline that sent the message wrote on it; NULL on others' messages.
LANE, SENT = "__read_from", "__sent_as"
#: A column of a source that makes its messages itself: when it had what they tell, TIMESTAMP.
TAKEN = "__taken_at"


class Reached(NamedTuple):
    """A place in a source's log: in the source's words, and as numbers that compare with the positions of changes."""

    text: str
    numbers: tuple[int, ...]


class Recording:
    """What goes on beside a stream, for there to be messages: of a transport, nothing."""

    def follow(self, query: StreamingQuery) -> None:
        """Ends it when the stream ends."""

    def ask(self) -> None:
        """Raises what has stopped it."""

    def end(self) -> None:
        """Ends it."""


@dataclass(frozen=True)
class MessageSource(ABC):
    """A stream of messages, the same ones in the same batch however often it is read."""

    name: ClassVar[str]
    #: Packages that Spark needs, by their Maven coordinates.
    packages: ClassVar[tuple[str, ...]] = ()
    #: Does `placed` give LANE and SENT? A task of Spark's then reads one lane, all that a batch has of it, in order.
    marked: ClassVar[bool] = False
    #: Does Spark end a run when it has all, and not before? Of a source in Python it runs one batch, be it one that was
    #: left undone. Of one that is not bounded, `ending` gives nothing more when that was all, and the run is stopped.
    bounded: ClassVar[bool] = True

    @property
    def decoder(self) -> Decoder | None:
        """What all of its messages are read by; None: the pipeline's format says that."""
        return None

    def session_settings(self) -> dict[str, str]:
        """What a session must be started with."""
        return {}

    def beside(self, folder: str) -> Self:
        """The source of a pipeline that keeps its notes in the folder."""
        return self

    def telling(self, hear: Hear) -> Self:
        """The source, which says how far it is with rows that it reads before the stream."""
        return self

    def going_on(self, offsets: str) -> Self:
        """The source of a pipeline whose last batch ended there, in the words that it has Spark note."""
        return self

    def ending(self) -> Self:
        """The source of a run that ends with what is there when it begins."""
        return self

    def record(self, spark: SparkSession, *, once: bool) -> Recording:
        """Begins what goes on beside the stream; with `once`, all that there is now is there when it returns."""
        return Recording()

    def resync(self, tables: Sequence[str]) -> None:
        """Has all rows of these tables read again, by the pipeline that runs or else when it next does."""
        raise ConfigError("source", f"{self.name} has messages, and no rows that could be read again")

    def drop(self) -> str:
        """Drops what the source keeps for a pipeline that is not run any more; tells what that was."""
        raise ConfigError("source", f"{self.name} keeps nothing for a pipeline")

    @property
    def latest(self) -> Column | None:
        """STRING of a message that was `placed`, of which `reached` takes a batch's greatest; None if it has no log."""
        return None

    def reached(self, latest: str) -> Reached | None:
        """Up to where of the log all is told; None if what is told is not yet as of one moment."""
        return None

    def stand(self, latest: str | None) -> Stand | None:
        """Where the log is by a batch, also if not all is told; None if it has no numbers that clients could know."""
        return None

    @abstractmethod
    def check(self, spark: SparkSession) -> None:
        """Raises what is wrong before a stream begins: a service that does not answer, for instance."""

    @abstractmethod
    def messages(self, spark: SparkSession) -> DataFrame:
        """Streaming DataFrame of the messages, as the transport gives them."""

    @abstractmethod
    def sample(self, spark: SparkSession) -> DataFrame:
        """What is there now, as a batch: to look at, not to apply."""

    @abstractmethod
    def placed(self, batch: DataFrame) -> DataFrame:
        """DataFrame<key BINARY, value BINARY, place STRING> of a batch of them; if `marked`, LANE and SENT too.

        It may have TAKEN.
        """
