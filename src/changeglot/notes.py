"""Small notes beside a pipeline's checkpoint, one for a batch: what must be the same when the batch is replayed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from changeglot.settings import jvm

#: So many of the last are kept. Spark never goes back further than one batch.
_KEPT = 10


@dataclass(frozen=True)
class Notes:
    """Notes of one kind, in a folder on any file system that Spark reads."""

    spark: SparkSession
    folder: str

    def before(self, batch: int) -> Any:
        """The last note of an earlier batch; None if there is none. Any: JSON."""
        earlier = [number for number in self.numbers() if number < batch]
        return self._read(max(earlier)) if earlier else None

    def last(self) -> Any:
        """The last note of all; None if there is none. Any: JSON."""
        there = self.numbers()
        return self._read(max(there)) if there else None

    def until(self, batch: int) -> Any:
        """The last note of the batch or an earlier one; None if there is none. Any: JSON."""
        return self.before(batch + 1)

    def write(self, batch: int, note: Any) -> None:
        """The batch's note, all of it or nothing. Any: JSON."""
        whole, part = self._path(str(batch)), self._path(f".{batch}.part")
        out = self._system.create(part, True)
        out.write(bytearray(json.dumps(note, sort_keys=True).encode()))
        out.close()
        self._system.delete(whole, False)
        if not self._system.rename(part, whole):
            raise OSError(f"{whole}: the note could not be put there")
        for number in self.numbers():
            if number < batch - _KEPT:
                self._system.delete(self._path(str(number)), False)

    @property
    def _system(self) -> Any:
        """Any: Hadoop's file system, a Java object."""
        return self._path("").getFileSystem(self.spark.sparkContext._jsc.hadoopConfiguration())

    def _path(self, name: str) -> Any:
        """Any: Hadoop's path, a Java object."""
        return jvm(self.spark).org.apache.hadoop.fs.Path(f"{self.folder.rstrip('/')}/{name}" if name else self.folder)

    def numbers(self) -> list[int]:
        """The batches that have one."""
        here = self._path("")
        if not self._system.exists(here):
            return []
        names = [str(each.getPath().getName()) for each in self._system.listStatus(here)]
        return [int(name) for name in names if name.isdecimal()]

    def _read(self, batch: int) -> Any:
        """Any: JSON."""
        return json.loads(self.content(batch))

    def content(self, batch: int) -> bytes:
        """The bytes of its note."""
        stream = self._system.open(self._path(str(batch)))
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()
