"""Messages from files: a line each, in the order of the lines and of the files.

Every file is staged first: a folder of our own holds one entry an input, named by its number. Spark
reads that folder and nothing else, so no name of the user's (with a bracket, a colon, an underscore
in front) means anything to Spark, and an entry's number tells which input a line came from.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from changeglot.errors import ChangeglotError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STDIN = "-"
# What compressed files begin with. Not the name but the bytes decide: a pipe has no name.
MAGIC = {b"\x1f\x8b": "gz", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zst"}
# Each file is a task of its own, which is what keeps the files in order; past this many they are
# packed, and only the lines of each file are.
ORDERED_FILES = 2000
SMALLEST_SPLIT, LARGEST_SPLIT, WHOLE_FILES = 4 << 20, 128 << 20, 1 << 40
KEYED = "key STRUCT<kind STRING, text STRING>, value BINARY, `others=*` MAP<STRING, STRING>"


class InputError(ChangeglotError):
    """An input that is not there, or cannot be read."""


@dataclass(frozen=True)
class Inputs:
    """Staged inputs: `names` as the user knows them, in order, and the folder Spark reads."""

    names: tuple[str, ...]
    folder: Path

    def messages(self, spark: SparkSession) -> DataFrame:
        """DataFrame<key BINARY, value BINARY>: a row a line that is not blank."""
        return keyed(_lines(spark, self.folder))

    def numbered(self, spark: SparkSession) -> DataFrame:
        """The messages with `file` STRING and `line` BIGINT from 1; right only in `splits(whole=True)`."""
        from pyspark.sql import functions as F

        within = F.monotonically_increasing_id().bitwiseAND(F.lit((1 << 33) - 1))
        entry = F.regexp_extract("_metadata.file_path", r"([0-9]+)[^/]*$", 1).cast("INT")
        names = F.from_json(F.lit(json.dumps(self.names)), "ARRAY<STRING>")
        lines = _lines(spark, self.folder).select("value", entry.alias("entry"), (within + 1).alias("line"))
        return keyed(lines).withColumn("file", F.get(names, "entry")).drop("entry")

    def named(self, text: str) -> str | None:
        """The user's name of the entry that an error message of Spark's is about, if it is about one."""
        entry = re.search(rf"FAILED_READ_FILE.*{re.escape(self.folder.as_posix())}/([0-9]+)", text)
        return self.names[int(entry[1])] if entry else None

    @contextmanager
    def splits(self, spark: SparkSession, *, whole: bool = False) -> Iterator[None]:
        """Within, Spark reads no two files in one task; a file in one task too if `whole`."""
        from changeglot.settings import configured

        total = sum(entry.stat().st_size for entry in self.folder.iterdir())
        size = min(max(total // spark.sparkContext.defaultParallelism, SMALLEST_SPLIT), LARGEST_SPLIT)
        size = WHOLE_FILES if whole else size
        packed = len(self.names) > ORDERED_FILES and not whole
        conf = {
            "spark.sql.files.maxPartitionBytes": str(size),
            # A file that costs a whole partition to open gets one of its own.
            "spark.sql.files.openCostInBytes": str(SMALLEST_SPLIT if packed else size),
        }
        with configured(spark, conf):
            yield

    def order(self, spark: SparkSession) -> list[int]:
        """The numbers of Spark's tasks in the order of the input, to be asked within `splits`.

        Spark starts the largest first, so a task's number says nothing about its place.
        """
        plan = _lines(spark, self.folder)._jdf.queryExecution()
        places = []
        for number, task in enumerate(plan.toRdd().partitions()):
            first = task.files()[0]
            entry = Path(first.urlEncodedPath()).name
            places.append((entry, first.start(), number))
        return [number for _, _, number in sorted(places)]


def find(arguments: Sequence[str]) -> list[str]:
    """The files that the arguments name, in their order; those of a folder or a glob are sorted.

    >>> find(["-"])
    ['-']
    """
    found: list[str] = []
    for argument in arguments:
        if argument == STDIN or (Path(argument).exists() and not Path(argument).is_dir()):
            found.append(argument)
            continue
        # Path.glob takes no absolute pattern.
        matches = [argument] if Path(argument).is_dir() else sorted(glob.glob(argument, recursive=True))  # noqa: PTH207
        if not matches:
            hint = "Name a file, a folder, a glob in quotes, or - for standard input."
            raise InputError(f'no input "{argument}"', hint=hint)
        for match in matches:
            found += _walk(match) if Path(match).is_dir() else [match]
    if not found:
        raise InputError("the inputs hold no file", hint="Hidden files and those named _... are skipped.")
    if found.count(STDIN) > 1:
        raise InputError("standard input is named twice", hint="Give - once.")
    return found


def stage(names: Sequence[str], folder: Path, spark: SparkSession) -> Inputs:
    """The named files put into the folder: a link each, or a copy where Spark could not read it."""
    folder.mkdir()
    for number, name in enumerate(names):
        entry = folder / f"{number:09d}"
        try:
            if name == STDIN:
                _spool(sys.stdin.buffer, entry)
            elif Path(name).is_file():
                entry.symlink_to(Path(name).resolve())
            else:
                with Path(name).open("rb") as pipe:
                    _spool(pipe, entry)
            with entry.open("rb") as file:
                start = file.read(4)
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(
                f'cannot read "{name}": {reason.lower()}', hint="Check its path and its rights."
            ) from error
        packing = next((kind for magic, kind in MAGIC.items() if start.startswith(magic)), None)
        if packing == "zst":
            _unpack(spark, entry, name)
        elif packing:
            # Spark chooses a codec by the end of a name.
            entry.rename(entry.with_suffix(f".{packing}"))
    return Inputs(tuple(names), folder)


def _walk(folder: str) -> list[str]:
    found = []
    for path, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name[0] not in "._")
        found += [str(Path(path) / name) for name in files if name[0] not in "._"]
    return sorted(found)


def _spool(stream: BinaryIO, entry: Path) -> None:
    with entry.open("wb") as file:
        shutil.copyfileobj(stream, file, 1 << 20)


def _unpack(spark: SparkSession, entry: Path, name: str) -> None:
    """The entry replaced by what is packed in it, by the library Spark brings: Hadoop's needs a native one."""
    from py4j.protocol import Py4JJavaError

    from changeglot.settings import jvm

    java, gateway = jvm(spark), spark.sparkContext._gateway
    assert gateway is not None
    plain = entry.with_suffix(".txt")
    options = gateway.new_array(java.java.nio.file.CopyOption, 0)
    packed = java.com.github.luben.zstd.ZstdInputStream(java.java.io.FileInputStream(str(entry)))
    try:
        java.java.nio.file.Files.copy(packed, java.java.io.File(str(plain)).toPath(), options)
    except Py4JJavaError as error:
        raise InputError(f'cannot unpack "{name}"', hint="It starts as zstd but is damaged or cut short.") from error
    finally:
        packed.close()
    entry.unlink()


def _lines(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.read.schema("value STRING").option("lineSep", "\n").text(str(folder))


def keyed(lines: DataFrame) -> DataFrame:
    """Lines to messages: blank ones left out, lines of `key` and `value` and nothing else taken apart."""
    from pyspark.sql import functions as F

    from changeglot.kernel import read

    others = [name for name in lines.columns if name != "value"]
    line = F.col("value").cast("BINARY")
    # Two members and no other: one of the two comes first. All other lines are not parsed here.
    maybe = F.substring("value", 1, 64).rlike(r'^\s*\{\s*"(key|value)"')
    parsed = lines.where(F.trim(F.col("value"), F.lit(" \t\r")) != "").select(
        *others, line.alias("whole"), F.when(maybe, read(line, KEYED)).alias("parts")
    )
    key, value = F.col("parts.key"), F.col("parts.value")
    keyed = key.isNotNull() & value.isNotNull() & F.col("parts.others").isNull()
    return parsed.select(
        F.when(keyed, key["text"].cast("BINARY")).alias("key"),
        F.when(~keyed, F.col("whole")).when(value != F.lit(b"null"), value).alias("value"),
        *others,
    )
