"""Rows and changes of tables that an Electric serves, or `changeglot serve` does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import ClassVar, Literal, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from changeglot import electric, kernel
from changeglot.apply.order import place
from changeglot.codecs.electric import Followed
from changeglot.electric.client import Server, Shape
from changeglot.errors import ConfigError, Unreachable
from changeglot.notes import Notes
from changeglot.options import option, words
from changeglot.sources.base import PLACE, TAKEN, MessageSource

#: Seconds for which a server that is away is waited for before a pipeline begins.
_PATIENCE = 5.0


@dataclass(frozen=True)
class Electric(MessageSource):
    """The rows of shapes, and then every change of them. Where a pipeline is, is in its checkpoint."""

    name: ClassVar[str] = "electric"
    bounded: ClassVar[bool] = False

    url: str = option("address of the server; without a path: of /v1/shape there", example="http://localhost:3000")
    tables: tuple[str | Shape, ...] = option("tables by their names, or parts of them", example="[public.orders]")
    secret: str = option("what the server wants to know, sent as the parameter of that name", "", shown=False)
    parameters: Mapping[str, str] = words("further parameters of every request; not shown", shown=False)
    headers: Mapping[str, str] = words("headers of every request; not shown", shown=False)
    live: Literal["long-poll", "sse"] = option("how changes are waited for", "long-poll")
    max_per_batch: int = option("messages of a shape that a batch takes, about; 0: all that there are", 1_000_000)
    timeout: int = option("seconds of silence after which a connection is given up", 45)
    patience: int = option("seconds after which a server that does not answer ends the run", 600)
    home: str = field(default="", repr=False)
    ends: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        names = [shape.table for shape in self.shapes]
        if not names:
            raise ConfigError("source.tables", "names no table", hint="tables: [public.orders]")
        for name in names:
            if names.count(name) > 1:
                hint = "Each makes a table of its own name: use two pipelines, or one condition with OR."
                raise ConfigError("source.tables", f'"{name}" is there twice', hint=hint)
        _ = self.server

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return tuple(Shape(each) if isinstance(each, str) else each for each in self.tables)

    @property
    def server(self) -> Server:
        return Server(
            url=self.url,
            secret=self.secret,
            parameters=self.parameters,
            headers=self.headers,
            timeout=self.timeout,
            patience=self.patience,
        )

    @property
    def decoder(self) -> Followed:
        return Followed()

    def beside(self, folder: str) -> Self:
        return replace(self, home=folder)

    def ending(self) -> Self:
        return replace(self, ends=True)

    def check(self, spark: SparkSession) -> None:
        server = replace(self.server, patience=_PATIENCE)
        for shape in self.shapes:
            try:
                server.ask(shape, "now")
            except Unreachable as problem:
                hint = "Is it started, and is this its address?"
                raise ConfigError("source.url", problem.what, hint=hint) from problem

    def _options(self, since: str) -> dict[str, str]:
        return {
            "shapes": json.dumps([asdict(shape) for shape in self.shapes]),
            # Spark shows no option of such a name.
            "secrets": json.dumps(asdict(self.server)),
            "live": self.live,
            "ends": str(self.ends).lower(),
            "limit": str(self.max_per_batch),
            "since": since,
        }

    def messages(self, spark: SparkSession) -> DataFrame:
        electric.register(spark)
        return spark.readStream.format("changeglot-electric").options(**self._options(self._since(spark))).load()

    def _since(self, spark: SparkSession) -> str:
        """Up to where the last batch goes that Spark has planned, as JSON."""
        planned = Notes(spark, f"{self.home.rpartition('/')[0]}/offsets")
        if not (numbers := planned.numbers()):
            return "{}"
        # A version, what the batch was planned with, and the offsets of its one source.
        return planned.content(max(numbers)).decode().splitlines()[2]

    def sample(self, spark: SparkSession) -> DataFrame:
        electric.register(spark)
        return spark.read.format("changeglot-electric").options(**self._options("{}")).load()

    def placed(self, batch: DataFrame) -> DataFrame:
        kernel.prepare(batch.sparkSession)
        # The kernel reads objects, and keeps each message as it came. What is no list is one bad message.
        body = F.concat(F.lit(b'{"messages":'), F.col("value"), F.lit(b"}"))
        read = kernel.read(body, f"messages: ARRAY<{kernel.VALUE}>")["messages"]["text"]
        told = batch.withColumn("value", F.coalesce(read, F.array(F.col("value").cast("string"))))
        each = told.select("*", F.posexplode("value").alias("number", "message"))
        where = place(*(F.col(name) for name in ("epoch", "tx", "op", "number")))
        return each.select(
            "key",
            F.col("message").cast("binary").alias("value"),
            F.concat_ws(" ", "shape", where).alias(PLACE),
            F.col("takenAt").alias(TAKEN),
        )
