"""What a source that is a database has in common: its rows and changes, through a spool beside the pipeline's notes."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from changeglot.capture import part
from changeglot.capture.lines import SNAPSHOT, Lines
from changeglot.capture.spool import Spool, described, durable, move
from changeglot.errors import ChangeglotError, ConfigError, complaint
from changeglot.options import option
from changeglot.sources.base import PLACE, TAKEN, MessageSource, Reached, Recording

logger = logging.getLogger(__name__)

#: Bytes of segments that a batch takes; a transaction that is larger is one batch.
_BATCH = 256 << 20
#: Nanoseconds: Spark orders the files of a stream by milliseconds.
_STEP = 1_000_000
#: How often a table is read again that was written anew meanwhile.
_TRIES = 3


class Rows(Protocol):
    """Rows that are to be read before the changes. Any: pieces of them, which a task on any machine can read."""

    tables: Sequence[str]
    chunks: Sequence[Any]
    #: Lines that come after all of them, and the position as of which all tables are then, if there is one.
    ends: bytes
    reached: str

    def close(self) -> None: ...


#: Reads a piece into a file; gives how many rows it has and maybe the facts of their relation. Any: see Rows.
Copy = Callable[[Any, Path], Any]


@dataclass(frozen=True, kw_only=True)
class Captured(MessageSource):
    """The rows of a database's tables, and then every change of them."""

    #: What of it the recorder is given.
    settings: ClassVar[type]
    #: How the database spells values, by families of types.
    spelling: ClassVar[Mapping[str, str]]

    readers: int = option("how many tasks read rows at once, each with a connection of its own", 4)
    home: str = field(default="", repr=False)

    @property
    def server(self) -> Any:
        """What the recorder is given. Any: of each database its own class."""
        return self.settings(**{each.name: getattr(self, each.name) for each in fields(self.settings)})

    @abstractmethod
    def copy(self, rows: Any) -> Copy:
        """How a piece of the rows is read; it is sent to other machines. Any: as the recorder gives them."""

    @property
    def decoder(self) -> Lines:
        return Lines(self.spelling)

    def beside(self, folder: str) -> Self:
        return replace(self, home=f"{folder}/spool")

    @cached_property
    def folder(self) -> Path:
        """Where the spool is. Recorder and tasks write there as in any folder."""
        path = self.home.removeprefix("file:")
        if "://" in path:
            said = f"a database is captured into a folder, and {self.home} is none that this machine has"
            raise ConfigError("checkpoint", said, hint="Name one that all machines share: checkpoint: /mnt/shared/shop")
        return Path(path)

    def record(self, spark: SparkSession, *, once: bool) -> Recording:
        spool = Spool(self.folder)
        recorder = part(self.name).Recorder(self.server, spool)
        rows = recorder.prepare()
        if once:
            self._read(spark, recorder, rows)
            spool.release()
            if self.server.snapshot != "initial_only":
                recorder.record(recorder.current())
            spool.settle()
            return Recording()
        if rows:
            spool.hold()
        return _Recorded(self, spark, recorder, rows, spool)

    def _read(self, spark: SparkSession, recorder: Any, rows: Rows | None) -> None:
        """Reads the rows, if there are any to be read. Any: of each database its own class."""
        tries = 0
        while rows is not None:
            tries += 1
            try:
                self._copied(spark, rows)
                recorder.read(rows.tables)
                return
            except Exception as problem:
                # What a task says comes as text.
                if tries == _TRIES or "Rewritten" not in str(problem):
                    raise _said(problem) from problem
                logger.warning("a table was written anew while its rows were read: they are read again")
            finally:
                rows.close()
            rows = recorder.snapshot(recorder.unread)

    def _copied(self, spark: SparkSession, rows: Rows) -> None:
        name = f"r{time.time_ns():020d}"
        pieces = [(f"{name}-{number:06d}.lines", piece) for number, piece in enumerate(rows.chunks)]
        # In the order of their files before all that was recorded meanwhile, whatever clock a task has.
        at = time.time_ns()
        copy = partial(_copy, self.copy(rows), str(self.folder), at)
        count = min(len(pieces), self.readers)
        if pieces:
            spark.sparkContext.parallelize([pieces[n::count] for n in range(count)], count).foreach(copy)
        if rows.ends:
            reached = f"~{rows.reached}" if rows.reached else ""
            end = self.folder / "rows" / f"{name}-{len(pieces):06d}{reached}.lines"
            durable(end, rows.ends)
            # The next in order: a batch may end before it.
            os.utime(end, ns=(at + _STEP, at + _STEP))
            move(end, self.folder / "segments" / end.name)

    def messages(self, spark: SparkSession) -> DataFrame:
        reader = spark.readStream.format("text").schema("value STRING").option("lineSep", "\n")
        reader = reader.option("maxBytesPerTrigger", str(_BATCH)).option("cleanSource", "delete")
        return _facts(reader.option("pathGlobFilter", "*.lines").load(str(self.folder / "segments")))

    def sample(self, spark: SparkSession) -> DataFrame:
        if not (self.folder / "segments").exists():
            return spark.createDataFrame([], "value STRING, file_name STRING, file_modification_time TIMESTAMP")
        lines = spark.read.format("text").schema("value STRING").option("lineSep", "\n")
        return _facts(lines.load(str(self.folder / "segments")))

    @property
    def _relations(self) -> list[tuple[str, bytes]]:
        """The relations of the spool, by their names in lines."""
        return [(path.stem, path.read_bytes()) for path in (self.folder / "relations").glob("*.json")]

    @property
    def latest(self) -> Column:
        file = F.substring_index(PLACE, " ", 1)
        # Segments come after all rows.
        first = F.when(F.left(file, F.lit(1)) == "r", F.lit("0")).otherwise(F.lit("1"))
        return F.when(file.contains("~"), F.concat(first, file))

    def reached(self, latest: str) -> Reached | None:
        position = latest.rpartition("~")[2].removesuffix(".lines")
        numbers = tuple(map(int, position.split(".")))
        read = [json.loads(facts)["snapshot"] for _, facts in self._relations]
        # Rows that were read may be newer than the changes.
        if any(tuple(each) > numbers for each in read if each):
            return None
        return Reached(self.spelled(numbers), numbers)

    def spelled(self, numbers: Sequence[int]) -> str:
        """A position in the database's words."""
        return ".".join(map(str, numbers))

    def placed(self, batch: DataFrame) -> DataFrame:
        relations = batch.sparkSession.createDataFrame(self._relations, "__relation STRING, key BINARY")
        field_ = partial(F.split_part, F.col("value"), F.lit("\t"))
        told = F.when(~F.left("value", F.lit(1)).isin(*SNAPSHOT), field_(F.lit(4)))
        lines = batch.select(
            F.col("value").cast("binary").alias("value"),
            F.concat_ws(" ", "file_name", field_(F.lit(3)), told).alias(PLACE),
            field_(F.lit(2)).alias("__relation"),
            F.col("file_modification_time").alias(TAKEN),
        )
        return lines.join(F.broadcast(relations), "__relation", "left").drop("__relation")


def _said(problem: Exception) -> ChangeglotError:
    """What went wrong while rows were read: our own complaint, if a task made one."""
    if isinstance(problem, ChangeglotError):
        return problem
    return ChangeglotError(complaint(str(problem)) or f"reading rows: {' '.join(str(problem).split())[:500]}")


def _facts(lines: DataFrame) -> DataFrame:
    return lines.select("value", "_metadata.file_name", "_metadata.file_modification_time")


def _copy(copy: Copy, folder: str, at: int, pieces: Iterable[tuple[str, Any]]) -> None:
    """Reads the pieces into segments. What runs in a task. Any: see Rows."""
    rows, segments = Path(folder, "rows"), Path(folder, "segments")
    rows.mkdir(exist_ok=True)
    for name, piece in pieces:
        found = copy(piece, rows / name)
        if facts := getattr(found, "facts", None):
            relation, content = described(facts)
            durable(Path(folder, "relations", f"{relation}.json"), content)
        os.utime(rows / name, ns=(at, at))
        move(rows / name, segments / name)


class _Recorded(Recording):
    """A process that records, and a thread that has rows read before."""

    def __init__(self, source: Captured, spark: SparkSession, recorder: Any, rows: Rows | None, spool: Spool) -> None:
        """Any: of each database its own class."""
        self._source, self._spool = source, spool
        self._problem: ChangeglotError | None = None
        self._ended = False
        self._process: subprocess.Popen[str] | None = None
        if source.server.snapshot != "initial_only":
            self._process = subprocess.Popen(
                [sys.executable, "-m", "changeglot.capture"],
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
            assert self._process.stdin is not None
            # Not among its arguments, which everybody sees.
            given = {"source": source.name, "server": asdict(source.server), "folder": str(source.folder)}
            self._process.stdin.write(json.dumps(given) + "\n")
            self._process.stdin.flush()
            threading.Thread(target=self._watch, daemon=True).start()
        threading.Thread(target=self._read, args=(spark, recorder, rows), daemon=True).start()

    def _watch(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        said = [line for line in self._process.stderr if not self._told(line)]
        if self._process.wait() and not self._ended:
            last = said[-1].strip() if said else f"status {self._process.returncode}"
            self._fail(ChangeglotError(f"recording ended: {last}"))

    def _told(self, line: str) -> bool:
        """Takes what the recorder tells of itself."""
        try:
            told = json.loads(line)
        except ValueError:
            return False
        if isinstance(told, dict) and "problem" in told:
            self._fail(ChangeglotError(told["problem"], hint=told["hint"]))
            return True
        return False

    def _read(self, spark: SparkSession, recorder: Any, rows: Rows | None) -> None:
        """Any: of each database its own class."""
        try:
            self._source._read(spark, recorder, rows)
            self._spool.release()
        except ChangeglotError as problem:
            self._fail(problem)

    def _fail(self, problem: ChangeglotError) -> None:
        if self._ended or self._problem:
            return
        self._problem = problem
        # A stream that waits for segments does not see it: an empty one wakes it.
        durable(self._spool.segments / f"z{time.time_ns():020d}.lines", b"\n")

    def follow(self, query: StreamingQuery) -> None:
        threading.Thread(target=self._follow, args=(query,), daemon=True).start()

    def _follow(self, query: StreamingQuery) -> None:
        with suppress(StreamingQueryException):
            query.awaitTermination()
        self.end()

    def ask(self) -> None:
        if self._problem:
            raise self._problem

    def end(self) -> None:
        self._ended = True
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
