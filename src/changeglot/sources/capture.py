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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Self

from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from changeglot.apply.order import READ
from changeglot.capture import part
from changeglot.capture.lines import SNAPSHOT, Lines
from changeglot.capture.spool import Spool, durable, numbers
from changeglot.capture.unread import Unread
from changeglot.errors import ChangeglotError, ConfigError, Unreachable, complaint
from changeglot.options import option
from changeglot.sources.base import PLACE, TAKEN, MessageSource, Reached, Recording
from changeglot.sources.progress import Hear, followed, unheard
from changeglot.sources.reading import Copy, Reading, Rows

logger = logging.getLogger(__name__)

#: Bytes of segments that a batch takes; a transaction that is larger is one batch.
_BATCH = 256 << 20
#: How often a table is read again that was written anew meanwhile, and for how many seconds a server is waited for.
_TRIES, _PATIENCE = 3, 600
#: Seconds between two looks for tables that are to be read while a pipeline runs, and at how far the log was recorded.
_LOOK, _PAUSE = 5.0, 0.1


@dataclass(frozen=True, kw_only=True)
class Captured(MessageSource):
    """The rows of a database's tables, and then every change of them."""

    #: What of it the recorder is given.
    settings: ClassVar[type]
    #: How the database spells values, by families of types.
    spelling: ClassVar[Mapping[str, str]]

    readers: int = option("how many tasks read rows at once, each with a connection of its own", 4)
    home: str = field(default="", repr=False)
    hear: Hear = field(default=unheard, repr=False)

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

    def telling(self, hear: Hear) -> Self:
        return replace(self, hear=hear)

    def session_settings(self) -> dict[str, str]:
        # Spark's own bar would be drawn over ours.
        return {"spark.ui.showConsoleProgress": "false"}

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
        recorder = part(self.name).Recorder(self.server, spool, waits=self.server.snapshot != "initial_only")
        # What one who was killed had on its way.
        spool.settle()
        Reading(self.folder).recover(recorder.unread.tables)
        rows = recorder.prepare()
        if not once:
            return _Recorded(self, spark, recorder, rows, spool)
        if rows is not None:
            self.read(spark, recorder, rows, spool, recorder.reach)
        elif spool.aside.keeps:
            spool.aside.release({})
        if self.server.snapshot != "initial_only":
            recorder.record(recorder.current())
        spool.settle()
        return Recording()

    def read(self, spark: SparkSession, recorder: Any, rows: Rows, spool: Spool, reach: Callable[[str], None]) -> None:
        """Has rows read, and lets the changes come that are not in them; `reach` waits until a position is recorded.

        Any: of each database its own class.
        """
        reading, tries, since = Reading(self.folder), 0, time.monotonic()
        while True:
            try:
                reading.begin(rows, recorder.unread.again)
                if reading.cleared:
                    reading.clear(recorder.cleared(rows, reading.cleared))
                self._copied(spark, reading, rows)
                released = reading.since()
                if spool.aside.waits:
                    reach(max(released.values(), key=numbers))
                    if reading.resumed:
                        recorder.mend(rows, reading.resumed)
                reading.finish(rows)
                if spool.aside.waits:
                    spool.aside.release(released)
                recorder.unread.done(rows.tables)
                reading.end()
                return
            except Exception as problem:
                # What a task says comes as text.
                said = f"{type(problem).__name__} {problem}"
                tries += "Rewritten" in said
                away = "Unreachable" in said and time.monotonic() < since + _PATIENCE
                if not away and (tries == _TRIES or "Rewritten" not in said):
                    raise _said(problem) from problem
                logger.warning("rows could not be read, which is tried again: %s", _said(problem))
            finally:
                rows.close()
            rows = self._again(recorder, since)

    @staticmethod
    def _again(recorder: Any, since: float) -> Rows:
        """Another snapshot of what is not read, as soon as the server gives one. Any: as of `read`."""
        while True:
            try:
                rows: Rows = recorder.snapshot(recorder.unread.tables)
                return rows
            except Unreachable:
                if time.monotonic() > since + _PATIENCE:
                    raise
                time.sleep(1)

    def _copied(self, spark: SparkSession, reading: Reading, rows: Rows) -> None:
        pieces = list(reading.left.items())
        count = min(len(pieces), self.readers)
        if pieces:
            job = reading.job(self.copy(rows), rows)
            with followed(self.folder / "rows", pieces, self.hear):
                spark.sparkContext.parallelize([pieces[n::count] for n in range(count)], count).foreach(job)

    def resync(self, tables: Sequence[str]) -> None:
        unknown = [each for each in tables if not self.server.wants(*each.split(".", 1))] if tables else ()
        if unknown:
            raise ConfigError(
                "tables", f'"{", ".join(unknown)}" is none of them', hint=f"They are {self.server.tables}."
            )
        Unread(Spool(self.folder).folder).ask(tables)

    def drop(self) -> str:
        said: str = part(self.name).Recorder(self.server, Spool(self.folder)).drop()
        return said

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
        return [(path.stem, _content(path)) for path in (self.folder / "relations").glob("*.json")]

    @property
    def latest(self) -> Column:
        file = F.substring_index(PLACE, " ", 1)
        # Segments come after all rows.
        first = F.when(F.left(file, F.lit(1)) == "r", F.lit("0")).otherwise(F.lit("1"))
        return F.when(file.contains("~"), F.concat(first, file))

    def reached(self, latest: str) -> Reached | None:
        position = latest.rpartition("~")[2].removesuffix(".lines")
        found = numbers(position)
        known = [json.loads(facts) for _, facts in self._relations]
        epoch = max(each.get("epoch", 0) for each in known)
        # Rows that were read may be newer than the changes. Another log may have smaller numbers.
        read = [each["snapshot"] for each in known if each["snapshot"] and each.get("epoch", 0) == epoch]
        if any(tuple(each) > found for each in read):
            return None
        return Reached(self.spelled(found), found)

    def spelled(self, numbers: Sequence[int]) -> str:
        """A position in the database's words."""
        return ".".join(map(str, numbers))

    def placed(self, batch: DataFrame) -> DataFrame:
        relations = batch.sparkSession.createDataFrame(self._relations, "__relation STRING, key BINARY")
        # Of each relation once, not of each line.
        relations = relations.withColumn(READ, self.decoder.read(F.col("key")))
        field_ = partial(F.split_part, F.col("value"), F.lit("\t"))
        told = F.when(~F.left("value", F.lit(1)).isin(*SNAPSHOT), field_(F.lit(4)))
        lines = batch.select(
            F.col("value").cast("binary").alias("value"),
            F.concat_ws(" ", "file_name", field_(F.lit(3)), told).alias(PLACE),
            field_(F.lit(2)).alias("__relation"),
            F.col("file_modification_time").alias(TAKEN),
        )
        return lines.join(F.broadcast(relations), "__relation", "left").drop("__relation")


#: Of a relation's file, which is named by it: no batch reads it again.
_content = cache(Path.read_bytes)


def _said(problem: Exception) -> ChangeglotError:
    """What went wrong while rows were read: our own complaint, if a task made one."""
    if isinstance(problem, ChangeglotError):
        return problem
    return ChangeglotError(complaint(str(problem)) or f"reading rows: {' '.join(str(problem).split())[:500]}")


def _facts(lines: DataFrame) -> DataFrame:
    return lines.select("value", "_metadata.file_name", "_metadata.file_modification_time")


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
        """Has rows read, those that are to be read now and those that will be. Any: of each database its own class."""
        try:
            if rows is None and self._spool.aside.keeps:
                self._spool.aside.release({})
            while not self._ended:
                if rows is not None:
                    self._source.read(spark, recorder, rows, self._spool, self._reach)
                if self._process is None:
                    return
                rows = self._wanted(recorder)
        except ChangeglotError as problem:
            self._fail(problem)

    def _wanted(self, recorder: Any) -> Rows | None:
        """Rows of tables that are new or were asked for, if there are any by and by. Any: as above."""
        time.sleep(_LOOK)
        if self._ended or self._spool.aside.waits:
            return None
        try:
            tables = recorder.added()
            rows: Rows | None = recorder.snapshot(tables) if tables else None
            return rows
        except Unreachable as problem:
            logger.warning("tables could not be looked for: %s", problem)
            return None

    def _reach(self, position: str) -> None:
        while not self._spool.reached(position):
            if self._ended:
                raise ChangeglotError("reading rows: the pipeline has ended")
            time.sleep(_PAUSE)

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
