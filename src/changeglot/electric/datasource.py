"""The data source: where the reading of each shape is, how far a batch goes, and what a task reads of it."""

from __future__ import annotations

import json
import logging
import queue
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from changeglot.electric.client import BEGIN, Answer, Rotated, Server, Shape, place
from changeglot.errors import ChangeglotError, ConfigError, Unreachable

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

#: An answer a row: what is known of its shape (see `_facts`), its body, the shape's table, and where in the log it
#: begins: two numbers, as text, for they may be longer than Spark's.
SCHEMA: Final = "key BINARY, value BINARY, shape STRING, epoch BIGINT, tx STRING, op STRING, takenAt TIMESTAMP"
_MUST_REFETCH: Final = b'[{"headers":{"control":"must-refetch"}}]'
#: More than any number in an offset.
_INF: Final = 1 << 80
#: How often a shape is begun anew that is refused, or that a cache gives though it is no more.
_TRIES: Final = 5
#: Seconds.
_PAUSE: Final = 1.0
#: Names of types as PostgreSQL itself shows them, where its own differ.
_TYPES: Final = {
    "int2": "smallint", "int4": "integer", "int8": "bigint", "float4": "real", "float8": "double precision",
    "bool": "boolean", "varchar": "character varying", "bpchar": "character", "varbit": "bit varying",
    "time": "time{} without time zone", "timetz": "time{} with time zone",
    "timestamp": "timestamp{} without time zone", "timestamptz": "timestamp{} with time zone",
}  # fmt: skip

#: Of each shape its Spot, as JSON.
Offsets = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Spot:
    """Where the reading of a shape is."""

    handle: str = ""
    offset: str = BEGIN
    #: Which reading from the first row on it is: see the package.
    epoch: int = 0
    #: Schema and table as messages name them; empty if none has.
    relation: tuple[str, ...] = ()

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Spot:
        """Any: JSON."""
        return cls(**{**told, "relation": tuple(told["relation"])})


@dataclass(frozen=True)
class Stretch(InputPartition):
    """What a task reads: a shape's log from one spot to another."""

    shape: Shape
    start: Spot
    end: Spot

    @property
    def begins(self) -> bool:
        """Is it the beginning of an epoch?"""
        return self.start.epoch != self.end.epoch


@dataclass
class Waiting:
    """What waits for changes of a shape; one thread at a time does."""

    #: Was the end of the log reached?
    live: bool = False
    cursor: str = ""
    #: Of the handle that is followed.
    events: Iterator[bool] | None = None


@dataclass(frozen=True)
class Followed:
    """Shapes of a server, and how many messages of one a batch may have; 0: all."""

    server: Server
    shapes: tuple[Shape, ...]
    limit: int = 0

    def ahead(self, shape: Shape, spot: Spot, waiting: Waiting, *, fresh: bool = False) -> Spot:
        """How far a batch may go from a spot; the same spot if there is nothing. Who has all waits for more."""
        at = spot if spot.handle else _anew(spot)
        told = tries = 0
        while True:
            live = {"live": "true", "cursor": waiting.cursor} if waiting.live and not fresh else {}
            try:
                answer = self.server.ask(shape, at.offset, at.handle, fresh=fresh, **live)
                if at.offset != BEGIN and answer.handle != at.handle:
                    raise Rotated
            except Rotated:
                if tries == _TRIES:
                    raise Unreachable(f'following "{shape.table}" of {self.server.name}: it gives no handle') from None
                logger.warning("a shape is read anew", extra={"table": shape.table, "handle": at.handle})
                at, told, tries, fresh = _anew(spot), 0, tries + 1, True
                continue
            if at.offset == BEGIN and answer.handle == spot.handle and tries < _TRIES:
                # Of a cache, since no server gives a handle that it just refused; else it lost the end of its log.
                tries += 1
                continue
            _refuse_moves(shape, answer)
            if answer.offset == at.offset and not answer.complete:
                raise Unreachable(f'following "{shape.table}" of {self.server.name}: it stays at {answer.offset}')
            waiting.live, waiting.cursor = answer.complete, answer.cursor or waiting.cursor
            rows = [each for each in answer.messages if "key" in each]
            told += len(rows)
            named = (tuple(each["headers"].get("relation", ())) for each in rows)
            relation = next((each for each in named if len(each) == 2), at.relation)
            at = Spot(answer.handle, answer.offset, at.epoch, relation)
            whole = bool(spot.handle) and at.epoch != spot.epoch
            if answer.complete or (self.limit and told >= self.limit and not whole):
                return at if told or at.epoch != spot.epoch else spot
            fresh = False

    def read(self, stretch: Stretch) -> Iterator[tuple[bytes, bytes, str, int, str, str]]:
        """Rows of SCHEMA but for the last column: the same messages for the same stretch, as long as its handle lives.

        What is left when that dies is not told.
        """
        shape, end = stretch.shape, stretch.end
        offset, schema = BEGIN if stretch.begins else stretch.start.offset, ""
        late, fresh = time.monotonic() + self.server.patience, False
        while place(offset) < place(end.offset):
            try:
                answer = self.server.ask(shape, offset, end.handle, fresh=fresh)
                if answer.handle != end.handle:
                    self._gone(shape, end, answer)
            except Rotated:
                logger.warning("a shape is no more and is read anew", extra={"table": shape.table})
                return
            schema = answer.schema or schema
            body = answer.body if place(answer.offset) <= place(end.offset) else answer.until(end.offset)
            yield _facts(shape, end, schema), body, shape.table, end.epoch, *_numbers(offset)
            fresh = place(answer.offset) <= place(offset)
            if fresh:
                # A cache, or a server that lags behind the one that told of the end.
                if time.monotonic() > late:
                    said = f'following "{shape.table}" of {self.server.name}: its log has become shorter'
                    raise Unreachable(said, hint=f"It ends at {answer.offset}, and had {end.offset}.")
                time.sleep(1)
            offset = answer.offset if not fresh else offset
        if stretch.begins:
            yield _facts(shape, end, ""), _MUST_REFETCH, shape.table, end.epoch, "0", "0"

    def _gone(self, shape: Shape, end: Spot, answer: Answer) -> None:
        """Raises Rotated if the handle is no more, as it should be when another one is given."""
        self.server.ask(shape, end.offset, end.handle, fresh=True)
        raise ChangeglotError(
            f'reading "{shape.table}" of {self.server.name}: it gives {answer.handle}, and has {end.handle} still',
            hint="Is a cache before it that leaves parameters out? With another checkpoint all is read anew.",
        )


def _anew(spot: Spot) -> Spot:
    """The beginning of another epoch."""
    return Spot(epoch=max(spot.epoch + 1, int(time.time())), relation=spot.relation)


def _refuse_moves(shape: Shape, answer: Answer) -> None:
    """Raises if rows may leave the shape without a message of their own."""
    for each in answer.messages:
        if "event" in each.get("headers", {}) or "tags" in each.get("headers", {}):
            raise ConfigError(
                "source.tables.where",
                f'"{shape.table}" has a subquery in its condition: how its rows come and go is not followed',
                hint="Follow the table without it, and filter in the pipeline.",
            )


def _numbers(offset: str) -> tuple[str, str]:
    """Where an answer begins, as numbers that sort: before all, what begins an epoch."""
    tx, op = place(offset)
    return str(max(tx, 0)), str(1 if tx < 0 else 2 + (_INF if op > _INF else int(op)))


def _facts(shape: Shape, end: Spot, schema: str) -> bytes:
    """What is known of a shape, as JSON: relation, columns, key, epoch."""
    relation = end.relation or _named(shape.table)
    told: dict[str, dict[str, Any]] = json.loads(schema or "{}")
    key = sorted((name for name in told if "pk_index" in told[name]), key=lambda name: int(told[name]["pk_index"]))
    columns = [
        {"name": name, "type": type_of(about), "nullable": not about.get("not_null", False)}
        for name, about in told.items()
    ]
    facts = {"schema": relation[0], "table": relation[1], "columns": columns, "key": key, "epoch": end.epoch}
    return json.dumps(facts, ensure_ascii=False).encode()


def _named(table: str) -> tuple[str, str]:
    """The relation of a table that told no row yet.

    >>> _named("Orders"), _named('shop."My Table"')
    (('public', 'orders'), ('shop', 'My Table'))
    """
    found = [
        part[1:-1].replace('""', '"') if part.startswith('"') else part.lower()
        for part in re.findall(r'"(?:[^"]|"")+"|[^."]+', table)
    ]
    schema, name = (["public", *found])[-2:]
    return schema, name


def type_of(about: Mapping[str, Any]) -> str:
    """A column's type, as PostgreSQL shows it, of what the electric-schema header tells. Any: JSON.

    >>> type_of({"type": "numeric", "precision": 10, "scale": 2}), type_of({"type": "int8", "dims": 1})
    ('numeric(10,2)', 'bigint[]')
    >>> type_of({"type": "timestamptz", "precision": 3}), type_of({"type": "varchar", "max_length": 5})
    ('timestamp(3) with time zone', 'character varying(5)')
    """
    kind = str(about["type"])
    sizes = [about[name] for name in ("max_length", "length", "precision", "scale") if about.get(name) is not None]
    size = f"({','.join(map(str, sizes))})" if sizes and kind != "interval" else ""
    name = _TYPES.get(kind, kind)
    return (name.format(size) if "{}" in name else f"{name}{size}") + ("[]" if about.get("dims") else "")


class ShapeSource(DataSource):
    """Shapes as streams and, up to now, as batches. Options: see `sources/electric.py`, which gives them as JSON."""

    @classmethod
    def name(cls) -> str:
        return "changeglot-electric"

    def schema(self) -> str:
        return SCHEMA

    def _followed(self) -> Followed:
        told = json.loads(self.options["shapes"])
        shapes = (Shape(**{**each, **{n: tuple(each[n]) for n in ("params", "columns")}}) for each in told)
        return Followed(Server(**json.loads(self.options["secrets"])), tuple(shapes), int(self.options["limit"]))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  # Spark's signature
        return ShapeReader(self._followed())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802  # Spark's signature
        followed, since = self._followed(), json.loads(self.options["since"])
        if self.options["ends"] == "true":
            return EndingStream(followed, since)
        return ShapeStream(followed, since, events=self.options["live"] == "sse")


class ShapeReader(DataSourceReader):
    """All that there is when the query is planned."""

    def __init__(self, followed: Followed) -> None:
        self._followed = followed

    def partitions(self) -> Sequence[InputPartition]:
        begin, followed = Spot(), self._followed
        return [Stretch(shape, begin, followed.ahead(shape, begin, Waiting())) for shape in followed.shapes]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._followed, partition)


class ShapeStream(DataSourceStreamReader):
    """Shapes as they grow."""

    def __init__(self, followed: Followed, since: Offsets, *, events: bool = False) -> None:
        """`since`: where the last batch ends. Before 4.2 Spark does not tell from where on when it asks how far."""
        self._followed, self._events = followed, events
        self._spots = {name: Spot.of(told) for name, told in since.items()}
        self._busy: set[str] = set()
        self._asked = False

    def initialOffset(self) -> Offsets:  # noqa: N802  # Spark's names, here and below
        return {}

    def latestOffset(self, start: Offsets | None = None, limit: Any = None) -> Offsets:  # noqa: ARG002, N802
        """Asks for all shapes at first, then waits until one has something. Any: Spark's ReadLimit, from 4.2 on."""
        self._begin(start)
        if not self._asked:
            self._found: queue.Queue[tuple[str, Spot | Exception]] = queue.Queue()
            self._waiting = {shape.table: Waiting() for shape in self._followed.shapes}
        for shape in self._followed.shapes:
            if shape.table not in self._busy:
                self._busy.add(shape.table)
                # Nothing that still waits keeps the process alive.
                threading.Thread(target=self._look, args=(shape,), daemon=True).start()
        self._take()
        while self._busy if not self._asked else not self._found.empty():
            self._take()
        self._asked = True
        return self._told()

    def _begin(self, start: Offsets | None) -> None:
        """Notes from where on Spark asks, if it tells."""
        self._spots |= {name: Spot.of(told) for name, told in (start or {}).items()}

    def _told(self) -> Offsets:
        return {name: asdict(self._spots[name]) for name in sorted(self._spots)}

    def _take(self) -> None:
        """What the first that has something found."""
        name, found = self._found.get()
        self._busy.discard(name)
        if isinstance(found, Exception):
            raise found
        self._spots[name] = found

    def _look(self, shape: Shape) -> None:
        """Finds out how far a shape is. Who has all of it waits for more, and is not asked all the time."""
        spot, waiting, began = self._spots.get(shape.table, Spot()), self._waiting[shape.table], time.monotonic()
        try:
            found = self._heard(shape, spot, waiting) if self._events else self._followed.ahead(shape, spot, waiting)
        except Exception as error:  # noqa: BLE001  # raised by who waits for it
            self._found.put((shape.table, error))
            return
        if self._asked and found == spot:
            time.sleep(max(0.0, began + _PAUSE - time.monotonic()))
        self._found.put((shape.table, found))

    def _heard(self, shape: Shape, spot: Spot, waiting: Waiting) -> Spot:
        """What a stream of events calls for. Events tell of no offset: they only tell when to ask."""
        if waiting.live:
            waiting.events = waiting.events or self._followed.server.events(shape, spot.offset, spot.handle)
            try:
                if not next(waiting.events):
                    return spot
            except (Rotated, StopIteration):
                waiting.events = None
        found = self._followed.ahead(shape, spot, waiting, fresh=True)
        if found.handle != spot.handle:
            waiting.events = None
        return found

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        found = []
        for shape in self._followed.shapes:
            first, last = (Spot.of(each[shape.table]) if shape.table in each else Spot() for each in (start, end))
            if first != last:
                found.append(Stretch(shape, first, last))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._followed, partition)

    def commit(self, end: Offsets) -> None:
        """The server keeps nothing for us."""

    def stop(self) -> None:
        """Threads end with the process."""


class EndingStream(ShapeStream):
    """Shapes up to where they end when that is reached. What came since is left to another run.

    But a handle that died since may have done so before all was read that was planned: it is read anew.
    """

    def __init__(self, followed: Followed, since: Offsets) -> None:
        super().__init__(followed, since)
        #: How often the end of each was reached.
        self._reached: Counter[str] = Counter()
        self._over = False

    def latestOffset(self, start: Offsets | None = None, limit: Any = None) -> Offsets:  # noqa: ARG002, N802
        """Never waits. When there was nothing once, there is nothing more. Any: as above."""
        self._begin(start)
        if not self._over:
            names = [shape.table for shape in self._followed.shapes]
            with ThreadPoolExecutor() as pool:
                found = dict(zip(names, pool.map(self._ahead, self._followed.shapes), strict=True))
            self._over = found.items() <= self._spots.items()
            self._spots |= found
        return self._told()

    def _ahead(self, shape: Shape) -> Spot:
        spot, waiting, often = self._spots.get(shape.table, Spot()), Waiting(), self._reached[shape.table]
        # A message is enough to know that a handle lives.
        followed = replace(self._followed, limit=1) if often else self._followed
        found = followed.ahead(shape, spot, waiting)
        if often and found.epoch == spot.epoch:
            return spot
        if often == _TRIES:
            logger.warning("a shape is no more before it is read: left to another run", extra={"table": shape.table})
            return spot
        self._reached[shape.table] += waiting.live
        return found


def _read(followed: Followed, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
    # Spark gives none if there is no partition at all.
    if not isinstance(partition, Stretch):
        return
    import pyarrow as pa

    text, moment = pa.string(), pa.timestamp("us", tz="UTC")
    kinds = (pa.binary(), pa.binary(), text, pa.int64(), text, text, moment)
    names = [each.strip().split(" ")[0] for each in SCHEMA.split(",")]
    for row in followed.read(partition):
        values = (*row, datetime.now(UTC))
        columns = [pa.array([value], kind) for value, kind in zip(values, kinds, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, names=names)
