"""A Delta table as its own log tells it: files at a version, and what one commit added and removed. No Spark.

No reader for Python that we found reads tables with deletion vectors, mapped columns and widened types, or tells which
rows one commit changed. This one reads what our sink writes and refuses the rest.
"""

from __future__ import annotations

import base64
import json
import re
import struct
import threading
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs
from pyroaring import BitMap64

from changeglot.errors import ChangeglotError
from changeglot.stand import Stand

#: What a reader of the table must know that this one does.
_FEATURES: Final = {"deletionVectors", "timestampNtz", "typeWidening", "columnMapping", "vacuumProtocolCheck"}
_NUMBERED: Final = re.compile(r"(\d{20})\.(json|checkpoint\.parquet|checkpoint\.(\d{10})\.(\d{10})\.parquet)")
#: Delta writes numbers of base 85 with other characters than Python.
_Z85: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_BYTES: Final = str.maketrans(_Z85, _B85)
_MAGIC: Final = 1681511377
#: Types that are given as files have them.
_NESTED: Final = ("map", "array", "struct")
_RECORDS: Final = re.compile(r'\{"numRecords":(\d+)')


class Unreadable(ChangeglotError):
    """The table is none that this reader reads."""


class Gone(ChangeglotError):
    """A commit or a file of the table is no longer there."""


class Replaced(ChangeglotError):
    """The table that was read is no longer there; another may be in its place."""


@dataclass(frozen=True)
class Vector:
    """Where it is told which rows of a file are deleted."""

    kind: str
    place: str
    offset: int | None
    size: int
    rows: int

    @classmethod
    def of(cls, told: Mapping[str, Any] | None) -> Vector | None:
        """Any: an action's JSON."""
        if not told:
            return None
        place, offset = told["pathOrInlineDv"], told.get("offset")
        return cls(told["storageType"], place, offset, int(told["sizeInBytes"]), int(told["cardinality"]))


@dataclass(frozen=True)
class File:
    """A file of the table, less its deleted rows."""

    path: str
    deleted: Vector | None
    #: How many rows it has, deleted ones too, if the log tells; who removes a file does not say.
    records: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Column:
    """A column: its name, its type in Delta's words, and what files call it."""

    name: str
    kind: str
    stored: str


@dataclass(frozen=True)
class Metadata:
    """What the table is: an id that no other has, columns, and properties."""

    id: str
    columns: tuple[Column, ...]
    properties: Mapping[str, str]

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Metadata:
        """Any: an action's JSON."""
        properties = dict(told.get("configuration") or {})
        mode = properties.get("delta.columnMapping.mode", "none")
        if told.get("partitionColumns") or mode not in ("name", "none"):
            raise Unreadable("the table is partitioned, or its columns are known by numbers")
        columns = []
        for each in json.loads(told["schemaString"])["fields"]:
            stored = each["metadata"]["delta.columnMapping.physicalName"] if mode == "name" else each["name"]
            kind = each["type"] if isinstance(each["type"], str) else each["type"]["type"]
            columns.append(Column(each["name"], kind, stored))
        return cls(told["id"], tuple(columns), properties)


@dataclass(frozen=True)
class Commit:
    """What one version did; files of a commit that moved rows and changed none are left out."""

    version: int
    added: tuple[File, ...] = ()
    removed: tuple[File, ...] = ()
    metadata: Metadata | None = None
    #: Who wrote which batch, as Delta's transaction identifiers tell.
    mark: tuple[str, int] | None = None
    #: When, in milliseconds of Unix, by the clock of who wrote it.
    at: int | None = None
    #: Where the source's log was by then, if who wrote it says so.
    stand: Stand | None = None


@dataclass(frozen=True)
class State:
    """The table at a version."""

    version: int
    metadata: Metadata
    files: tuple[File, ...]


@dataclass
class Cache:
    """The last used of what files hold, in so many bytes: files never change."""

    limit: int
    held: OrderedDict[tuple[object, ...], pa.Table] = field(default_factory=OrderedDict)
    size: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: tuple[object, ...]) -> pa.Table | None:
        with self.lock:
            if (found := self.held.get(key)) is not None:
                self.held.move_to_end(key)
            return found

    def put(self, key: tuple[object, ...], table: pa.Table) -> None:
        with self.lock:
            if key in self.held or table.nbytes > self.limit:
                return
            self.held[key] = table
            self.size += table.nbytes
            while self.size > self.limit:
                self.size -= self.held.popitem(last=False)[1].nbytes


@dataclass(frozen=True)
class DeltaLog:
    """One table in a folder of a file system."""

    files: fs.FileSystem
    root: str
    cache: Cache

    def _bytes(self, path: str) -> bytes | None:
        """What a file under the table's folder holds; None if it is not there."""
        try:
            with self.files.open_input_file(f"{self.root}/{path}") as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def commit(self, version: int) -> Commit | None:
        """None if it is not there: not yet, or no longer."""
        content = self._bytes(f"_delta_log/{version:020}.json")
        return None if content is None else commit(version, map(json.loads, content.splitlines()))

    def _listed(self) -> Iterator[tuple[int, str, str]]:
        """Versions, kinds and names of what the log's folder holds."""
        for each in self.files.get_file_info(fs.FileSelector(f"{self.root}/_delta_log", allow_not_found=True)):
            if match := _NUMBERED.fullmatch(each.base_name):
                yield int(match[1]), match[2], each.base_name

    def latest(self) -> int | None:
        """The newest version; None if there is no table."""
        return max((version for version, _, _ in self._listed()), default=None)

    def _checkpoints(self) -> dict[int, list[str]]:
        """The names of checkpoints that are there with all their parts, by version."""
        begun: dict[int, list[str]] = {}
        for version, kind, name in self._listed():
            if kind != "json":
                begun.setdefault(version, []).append(name)
        return {version: names for version, names in begun.items() if len(names) == _parts(names[0])}

    def earliest(self) -> int:
        """The first version whose state can be told: Delta removes old commits and leaves some that tell no state."""
        return 0 if self.commit(0) else min(self._checkpoints(), default=0)

    def state(self, version: int) -> State:
        """The table at that version."""
        whole = {at: names for at, names in self._checkpoints().items() if at <= version}
        metadata: Metadata | None = None
        held: dict[str, File] = {}
        if whole:
            for name in whole[max(whole)]:
                metadata = self._checkpoint(name, held) or metadata
        for number in range(max(whole, default=-1) + 1, version + 1):
            content = self._bytes(f"_delta_log/{number:020}.json")
            if content is None:
                raise Gone(f"version {number} of the table is no longer there")
            for action in map(json.loads, content.splitlines()):
                metadata = _replayed(action, held) or metadata
        if metadata is None:
            raise Unreadable("the table's log does not tell its columns")
        return State(version, metadata, tuple(held[path] for path in sorted(held)))

    def _checkpoint(self, name: str, held: dict[str, File]) -> Metadata | None:
        with self.files.open_input_file(f"{self.root}/_delta_log/{name}") as file:
            read = pq.ParquetFile(file)
            wanted = {"add", "metaData", "protocol"} & {field.name for field in read.schema_arrow}
            metadata = None
            for batch in read.iter_batches(columns=sorted(wanted)):
                for row in batch.to_pylist():
                    metadata = _replayed({kind: told for kind, told in row.items() if told}, held) or metadata
        return metadata

    def rows(self, file: File, columns: Sequence[Column], within: Sequence[int] | None = None) -> pa.Table:
        """The file's rows in the columns' types; `within`: those at these places alone, be they deleted or not."""
        table = self._whole(file.path, columns)
        if within is not None:
            return table.take(pa.array(within, pa.int64()))
        if file.deleted is None:
            return table
        gone = pa.array(self.deleted(file.deleted), pa.int64())
        places = pa.array(range(table.num_rows), pa.int64())
        return table.filter(pc.invert(pc.is_in(places, value_set=gone)))

    def _whole(self, path: str, columns: Sequence[Column]) -> pa.Table:
        key = (self.root, path, *columns)
        if (found := self.cache.get(key)) is None:
            found = self._read(path, columns)
            self.cache.put(key, found)
        return found

    def _read(self, path: str, columns: Sequence[Column]) -> pa.Table:
        try:
            with self.files.open_input_file(f"{self.root}/{path}") as file:
                read = pq.ParquetFile(file, coerce_int96_timestamp_unit="us")
                there = set(read.schema_arrow.names)
                stored = read.read(columns=[each.stored for each in columns if each.stored in there])
        except FileNotFoundError as error:
            raise Gone(f'"{path}" of the table is no longer there') from error
        made = [
            _typed(stored.column(each.stored), each.kind)
            if each.stored in there
            else pa.chunked_array([pa.nulls(stored.num_rows, arrow(each.kind))])
            for each in columns
        ]
        return pa.table(made, names=[each.name for each in columns]).combine_chunks()

    def count(self, file: File) -> int:
        """How many rows it has that are not deleted; it is looked into only if the log does not tell."""
        records = file.records
        if records is None:
            with self.files.open_input_file(f"{self.root}/{file.path}") as opened:
                records = int(pq.ParquetFile(opened).metadata.num_rows)
        return records - (file.deleted.rows if file.deleted else 0)

    def deleted(self, vector: Vector) -> list[int]:
        """The places of deleted rows in a file, from 0."""
        if vector.kind == "i":
            told = base64.b85decode(vector.place.translate(_BYTES))[: vector.size]
        elif vector.kind == "u":
            name = uuid.UUID(bytes=base64.b85decode(vector.place[-20:].translate(_BYTES)))
            folder = f"{vector.place[:-20]}/" if vector.place[:-20] else ""
            content = self._bytes(f"{folder}deletion_vector_{name}.bin")
            if content is None:
                raise Gone("a deletion vector of the table is no longer there")
            # Its length stands before it, and a checksum after it.
            begin = (vector.offset or 0) + 4
            told = content[begin : begin + vector.size]
        else:
            raise Unreadable("a deletion vector lies outside of the table")
        if struct.unpack("<i", told[:4])[0] != _MAGIC:
            raise Unreadable("a deletion vector is in a form that is not known")
        return list(BitMap64.deserialize(told[4:]))


def _parts(name: str) -> int:
    match = _NUMBERED.fullmatch(name)
    assert match is not None
    return int(match[4] or 1)


def _file(told: Mapping[str, Any]) -> File:
    """Any: an action's JSON."""
    path = unquote(told["path"])
    if "://" in path or path.startswith(("/", "file:")) or ".." in path.split("/"):
        raise Unreadable("a file of the table lies outside of it")
    records = _RECORDS.match(told.get("stats") or "")
    return File(path, Vector.of(told.get("deletionVector")), int(records[1]) if records else None)


def _known(told: Mapping[str, Any]) -> None:
    """Raises what a reader must know that this one does not. Any: an action's JSON."""
    needed = set(told.get("readerFeatures") or ())
    if told["minReaderVersion"] > 3 or needed - _FEATURES:
        raise Unreadable(f"the table needs a reader that knows {', '.join(sorted(needed - _FEATURES))}")


def _replayed(action: Mapping[str, Any], held: dict[str, File]) -> Metadata | None:
    """The files after the action; the metadata if it tells it. Any: JSON."""
    if "protocol" in action:
        _known(action["protocol"])
    if "add" in action:
        file = _file(action["add"])
        held[file.path] = file
    elif "remove" in action:
        file = _file(action["remove"])
        # A file whose deleted rows changed is removed and added in one commit, in any order.
        if held.get(file.path) == file:
            del held[file.path]
    return Metadata.of(action["metaData"]) if "metaData" in action else None


def commit(version: int, actions: Iterator[Mapping[str, Any]]) -> Commit:
    """One version, of its actions. Any: JSON."""
    added: list[File] = []
    removed: list[File] = []
    marks: list[tuple[str, int]] = []
    metadata = at = stand = None
    for action in actions:
        if "commitInfo" in action:
            at, stand = action["commitInfo"].get("timestamp"), Stand.of(action["commitInfo"].get("userMetadata"))
        if "protocol" in action:
            _known(action["protocol"])
        for kind, found in (("add", added), ("remove", removed)):
            if kind in action and action[kind]["dataChange"]:
                found.append(_file(action[kind]))
        if "metaData" in action:
            metadata = Metadata.of(action["metaData"])
        if "txn" in action:
            marks.append((action["txn"]["appId"], int(action["txn"]["version"])))
    return Commit(version, tuple(added), tuple(removed), metadata, marks[0] if marks else None, at, stand)


def _typed(values: pa.ChunkedArray, kind: str) -> pa.ChunkedArray:
    return values if kind in _NESTED else values.cast(arrow(kind))


def arrow(kind: str) -> pa.DataType:
    """Arrow's type of one of Delta's."""
    if match := re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", kind):
        return pa.decimal128(int(match[1]), int(match[2]))
    known = {
        "string": pa.large_string(), "long": pa.int64(), "integer": pa.int32(), "short": pa.int16(), "byte": pa.int8(),
        "float": pa.float32(), "double": pa.float64(), "boolean": pa.bool_(), "binary": pa.large_binary(),
        "date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us"),
    }  # fmt: skip
    if kind not in known:
        raise Unreadable(f"a column is of type {kind}")
    return known[kind]
