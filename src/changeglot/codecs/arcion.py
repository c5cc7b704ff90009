"""Arcion Replicant's JSON CDC format for Kafka: a key and a value, each with its schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql import Column
from pyspark.sql import functions as F

from changeglot import kernel, values
from changeglot.codecs.base import Codec, Loss, Stage, moved, own_words, raw
from changeglot.columns import EXACT, at_micros, at_millis, exact, filled, lookup, millis_of
from changeglot.model import Change, Op, Phase, change, group
from changeglot.options import option

_FIELDS = "ARRAY<STRUCT<`name=field`: STRING, type: STRING, jdbc: INT, `nullable=optional`: BOOLEAN, json: STRING>>"
_SCHEMA = f"STRUCT<fields: ARRAY<STRUCT<field: STRING, fields: {_FIELDS}>>>"
_SOURCE = """STRUCT<version: STRING, connector: STRING, name: STRING, ts_ms: BIGINT, db: STRING, schema: STRING,
    table: STRING, snapshot: STRING, file: STRING, pos: DECIMAL(20,0), row: BIGINT,
    query: BINARY, thread: BINARY, server_id: BINARY, gtid: BINARY, `rest=*arcion.source.`: MAP<STRING, STRING>>"""
_PAYLOAD = f"""before: {kernel.IMAGE}, after: {kernel.IMAGE}, source: {_SOURCE}, op: STRING, ts_ms: BIGINT,
    transaction: STRUCT<`text=.`: STRING, id: STRING, total_order: BIGINT,
        `rest=*arcion.transaction.`: MAP<STRING, STRING>>,
    `rest=*arcion.`: MAP<STRING, STRING>"""
#: With schemas the change stands in `payload`; without, it is the message.
BODY = f"`self=.`: {kernel.VALUE}, schema: {_SCHEMA}, payload: STRUCT<{_PAYLOAD}>, {_PAYLOAD}"
KEY = f"`text=.`: STRING, schema: STRUCT<fields: {_FIELDS}>, payload: {kernel.IMAGE}, `row=*`: {kernel.IMAGE}"

OPS: dict[str, str] = {
    "r": Op.INSERT,
    "c": Op.INSERT,
    "u": Op.UPDATE,
    "d": Op.DELETE,
    "t": Op.TRUNCATE,
    "INSERT": Op.INSERT,
    "UPDATE": Op.UPDATE,
    "DELETE": Op.DELETE,
}
WORDS: dict[str, str] = {Op.INSERT: "c", Op.UPDATE: "u", Op.DELETE: "d"}
#: Replicant's names of its sources.
CONNECTORS: dict[str, str] = {
    "MYSQL": "mysql",
    "POSTGRESQL": "postgresql",
    "ORACLE": "oracle",
    "SYBASE_ASE": "ase",
    "SQLSERVER": "sqlserver",
}
#: The only types its schemas have.
CONNECT = {
    "integer": "int64", "decimal": "string", "float": "double", "boolean": "boolean", "text": "string",
    "binary": "bytes", "bit": "bytes", "date": "string", "time": "string", "datetime": "string",
    "timestamp": "string", "zoned": "string", "json": "string", "enum": "string", "set": "string",
    "interval": "string",
}  # fmt: skip
_NARROW = {
    "tinyint": "int16", "int1": "int16", "byte": "int16", "int8": "int64", "smallint": "int16", "int2": "int16",
    "int16": "int16", "short": "int16", "smallserial": "int16", "year": "int32", "mediumint": "int32", "int": "int32",
    "int3": "int32", "int4": "int32", "int32": "int32", "integer": "int32", "serial": "int32",
    "float4": "float", "real": "float", "float": "float", "float32": "float", "uint64": "string",
    "bigint unsigned": "string", "int unsigned": "int64", "uint32": "int64", "array": "array", "struct": "struct",
    "map": "map",
}  # fmt: skip
TYPES = {**values.by_family(CONNECT), **_NARROW}
INTEGERS = {"int8": "INTEGER", "int16": "INTEGER", "int32": "INTEGER", "int64": "INTEGER"}


@dataclass(frozen=True)
class Arcion(Codec):
    """Snapshot rows have op r; a delete is followed by a tombstone; a key change is a delete and an insert."""

    name = "arcion"
    aliases = ("arcion-json", "replicant", "json-cdc", "json cdc")
    speaks = frozenset(WORDS)
    marks = ("payload.source", "source.connector", "op", "payload.op", "self")

    dialect: Literal["A", "B", "C", "D"] = option(
        "which edition of the format is written: A of 2022, B the document, C of 2023-03-09, D of 2023-04-07 on; all"
        " are read",
        "B",
    )
    schemas: bool = option("write schema and payload; false: the payload alone", True)
    zone: str = option(
        "zone of source.ts_ms, which Replicant writes in its host's time",
        "UTC",
        example="Asia/Kolkata",
    )

    @property
    def losses(self) -> tuple[Loss, ...]:
        return (
            Loss("phase", "every message says: not a snapshot is the stream", _phase),
            Loss("relation.tenant", "no field"),
            Loss(
                "before",
                "of an update or delete only",
                self._image_of("before", Op.UPDATE, Op.DELETE),
            ),
            Loss(
                "after",
                "of an insert or update only",
                self._image_of("after", Op.INSERT, Op.UPDATE),
            ),
            Loss("columns", "Kafka Connect's types, no JDBC code", self._types),
            Loss("position", "three numbers: file, pos and row", _position),
            Loss("transaction", "one id, no last", self._transaction),
            Loss("committed_at", "milliseconds", lambda c: at_millis(millis_of(c["committed_at"]))),
            Loss("committed_nanos", "milliseconds"),
            Loss("produced_at", "milliseconds", lambda c: at_millis(millis_of(c["produced_at"]))),
            Loss("origin", "always with a name", _origin),
            Loss("statement", "no field"),
            Loss("extra", "only its own words, a log file among them", _extra),
        )

    def _image_of(self, field: str, *ops: str) -> Callable[[Change], Column]:
        def kept(c: Change) -> Column:
            image = F.when(c["op"].isin(*ops), c[field])
            return F.when(F.size(image) > 0, image) if field == "before" else image

        return kept

    def _types(self, c: Change) -> Column:
        return kernel.facts(self.declared(c), "type", "nullable", "json")

    def _transaction(self, c: Change) -> Column:
        first = filled(F.get(c["transaction"]["ids"], 0))
        ids = F.when(first.isNotNull(), F.array(first))
        if self.dialect in ("C", "D"):
            return F.lit(None)
        return group(
            "transaction",
            ids=ids,
            **({"order": c["transaction"]["order"]} if self.dialect == "B" else {}),
        )

    def detect(self, seen: Column) -> Column:
        def of(payload: Column, op: Column) -> Column:
            return (payload["source"].isNotNull() & op["kind"].isNotNull()) | (
                op["text"].isin(list(OPS)) & (payload["before"].isNotNull() | payload["after"].isNotNull())
            )

        tombstone = (seen["self"]["text"] == "default") | (seen["self"]["kind"] == "null")
        return of(seen["payload"], seen["payload"]["op"]) | of(seen, seen["op"]) | tombstone

    def body(self, message: Stage) -> Stage:
        key, value = message["key"], message["value"]
        bare = value == F.lit(b"default")
        no_key = key.isin(F.lit(b"default"), F.lit(b'"default"'), F.lit(b"null"), F.lit(b""))
        return {
            "body": kernel.read(F.when(bare, F.lit(_DEFAULT)).otherwise(value), BODY),
            "keys": kernel.read(F.when(~no_key, key), KEY),
        }

    def silent(self, body: Stage) -> Column:
        whole = body["body"]["self"]
        return F.coalesce((whole["text"] == "default") | (whole["kind"] == "null"), F.lit(False))

    def opened(self, body: Stage) -> Stage:
        b = body["body"]
        names = ("before", "after", "source", "op", "ts_ms", "transaction", "rest")
        return {name: F.coalesce(b["payload"][name], b[name]) for name in names}

    def op(self, body: Stage) -> Column:
        return lookup(OPS, body["op"])

    def columns(self, body: Stage, row: Column, op: Column) -> Column:
        fields = body["body"]["schema"]["fields"]
        declared = F.lit(None)
        for n in (1, 0):
            field = F.get(fields, n)
            declared = F.when(field["field"].isin("before", "after"), field["fields"]).otherwise(declared)
        found = kernel.completed(declared, body["before"], body["after"])
        return self.tables.complete(found, self._relation(body))

    def images(self, body: Stage, row: Column, op: Column, columns: Column) -> tuple[Column, Column]:
        before, after = body["before"], body["after"]
        # The later editions write {} for an image that is not there.
        before = F.when(F.size(before["values"]) > 0, before)
        after = F.when(op != Op.DELETE, after)
        spelling = {
            **values.rules({"boolean": "BOOLEAN", "binary": "BASE64", "bit": "BASE64"}),
            **INTEGERS,
        }
        return kernel.canonical(before, columns, spelling), kernel.canonical(after, columns, spelling)

    def _relation(self, body: Stage) -> Column:
        source = body["source"]
        return group(
            "relation",
            database=filled(source["db"]),
            schema=source["schema"],
            table=source["table"],
        )

    def change(self, body: Stage, op: Column, columns: Column, before: Column, after: Column) -> Change:
        source, keys = body["source"], body["keys"]
        word, block = body["op"], body["transaction"]
        relation = self._relation(body)
        named = F.coalesce(keys["payload"], F.when(F.size(keys["row"]["values"]) > 0, keys["row"]))["values"]
        # The oldest edition writes a key change as one update, with the new key.
        names = F.coalesce(F.map_keys(named), self.tables.key_of(relation))
        key = F.coalesce(kernel.pick(before, named, names), kernel.pick(before, after, names))
        kind = F.coalesce(lookup(CONNECTORS, F.upper(source["connector"])), F.lower(source["connector"]))
        snapshot = (word == "r") | (source["snapshot"] != "false")
        ids = filled(F.coalesce(block["id"], block["text"]))
        return change(
            op=op,
            phase=F.when(F.coalesce(snapshot, F.lit(False)), Phase.SNAPSHOT).otherwise(Phase.STREAM),
            relation=relation,
            key=key,
            before=before,
            after=after,
            columns=columns,
            position=_place(source),
            transaction=group("transaction", ids=F.when(ids.isNotNull(), F.array(ids)), order=block["total_order"]),
            committed_at=self._at(source["ts_ms"], self.zone),
            produced_at=self._at(body["ts_ms"]),
            origin=group("origin", kind=kind, version=source["version"], name=source["name"]),
            extra=kernel.note(
                kernel.overlay(kernel.overlay(source["rest"], block["rest"]), body["rest"]),
                {
                    "arcion.source.file": kernel.quote(source["file"]),
                    **{f"arcion.source.{n}": source[n] for n in ("query", "thread", "server_id", "gtid")},
                    "arcion.source.connector": F.when(
                        source["connector"] != F.upper(source["connector"]),
                        kernel.quote(source["connector"]),
                    ),
                },
            ),
        )

    @staticmethod
    def _at(number: Column, zone: str = "UTC") -> Column:
        """The 2022 edition wrote microseconds: 16 digits."""
        in_micros = (number >= 10**14) | (number <= -(10**14))
        moment = F.when(in_micros, at_micros(number)).otherwise(at_millis(number))
        return moment if zone == "UTC" else F.to_utc_timestamp(moment, zone)

    def problem(self, body: Stage, row: Column, change: Change) -> Column:
        word = F.coalesce(body["op"], F.lit("null"))
        writes = change["op"].isin(Op.INSERT, Op.UPDATE)
        removes = change["op"] == Op.DELETE
        bad_time = (body["source"]["ts_ms"].isNotNull() & change["committed_at"].isNull()) | (
            body["ts_ms"].isNotNull() & change["produced_at"].isNull()
        )
        return (
            F.when(
                body["keys"]["problem"].isNotNull(),
                F.concat(F.lit("key: "), body["keys"]["problem"]),
            )
            .when(change["op"].isNull(), F.concat(F.lit("unknown op "), word))
            .when(bad_time, F.lit("ts_ms: no such time"))
            .when(writes & change["after"].isNull(), F.lit("no image of the row"))
            .when(
                removes & change["before"].isNull() & change["key"].isNull(),
                F.lit("no image of the row, and no key"),
            )
        )

    # Encoding

    def declared(self, change: Change) -> Column:
        """The columns as its schemas have them; those of the images where no more is known."""
        c = change
        known = kernel.completed(c["columns"], c["old"], c["new"])
        keys = F.coalesce(F.map_keys(c["key"]), F.array().cast("array<string>"))
        types = {**TYPES, "*": "string"}
        return F.when(c["op"].isin(*Op.ROWS), kernel.typed(known, types, {}, keys))

    def told(self, change: Change) -> Change:
        """With both images to write."""
        c = super().told(change)
        return {**c, "old": self._image(c["before"], c["columns"]), "new": self._image(c["after"], c["columns"])}

    def _image(self, image: Column, columns: Column) -> Column:
        native = {"integer": "NUMBER", "float": "NUMBER", "boolean": "BOOLEAN"} if self.dialect == "D" else {}
        spelling = values.rules({"boolean": "TRUE_FALSE", **native}, kinds=self.dialect == "D")
        return kernel.spelled(image, columns, spelling)

    def parts(self, change: Change) -> Column:
        d, t, i, whole = (F.lit(word) for word in ("delete", "tombstone", "insert", ""))
        return (
            F.when(moved(change), F.array(d, t, i))
            .when(change["op"] == Op.DELETE, F.array(whole, t))
            .otherwise(F.array(whole))
        )

    def message(self, change: Change, columns: Column, part: Column, whole: Change) -> tuple[Column, Column]:
        c, extra = change, change["extra"]
        r, source, snapshot = c["relation"], "arcion.source.", c["phase"] == Phase.SNAPSHOT
        snapshot = F.coalesce(snapshot, F.lit(False))
        name = F.coalesce(
            c["origin"]["name"],
            F.when(snapshot, F.lit("KAFKA_snapshot_connector")).otherwise(F.lit("KAFKA_Connector")),
        )
        place = F.concat_ws(".", name, r["database"], r["schema"], r["table"])
        kind = c["origin"]["kind"]
        file, pos, row = _file(c)
        order = F.try_add(c["transaction"]["order"], F.when(part == "insert", 1).otherwise(0))
        word = F.when((c["op"] == Op.INSERT) & snapshot, F.lit("r")).otherwise(lookup(WORDS, c["op"]))
        ids = F.get(c["transaction"]["ids"], 0)
        source_block = F.struct(
            r["schema"].alias("schema"),
            raw(extra, source + "query").alias("query"),
            raw(extra, source + "thread").alias("thread"),
            raw(extra, source + "server_id").alias("server_id"),
            c["origin"]["version"].alias("version"),
            F.coalesce(raw(extra, source + "file"), file).alias("file"),
            F.coalesce(
                raw(extra, source + "connector"),
                kernel.quote(F.coalesce(lookup(_back(CONNECTORS), kind), F.upper(kind))),
            ).alias("connector"),
            pos.alias("pos"),
            name.alias("name"),
            raw(extra, source + "gtid").alias("gtid"),
            row.alias("row"),
            self._number(c["committed_at"], self.zone).alias("ts_ms"),
            F.coalesce(r["database"], F.lit("")).alias("db"),
            r["table"].alias("table"),
            (snapshot if self.dialect == "A" else snapshot.cast("string")).alias("snapshot"),
            extra.alias("*" + source),
        )
        block = {
            "A": [ids.alias("transaction")],
            "B": [
                F.struct(
                    F.coalesce(ids, F.lit("")).alias("id"),
                    order.alias("total_order"),
                    extra.alias("*arcion.transaction."),
                ).alias("transaction")
            ],
        }
        payload = F.struct(
            self._or_empty(F.when(c["op"] != Op.INSERT, c["old"])).alias("before"),
            self._or_empty(F.when(c["op"] != Op.DELETE, c["new"])).alias("after"),
            source_block.alias("source"),
            (F.upper(c["op"]) if self.dialect == "A" else word).alias("op"),
            self._number(c["produced_at"]).alias("ts_ms"),
            *block.get(self.dialect, []),
        )
        if self.schemas:
            payload = F.struct(
                self._envelope(place, name, columns, snapshot).alias("schema"),
                payload.alias("payload"),
            )
        tombstone = F.lit(None if self.dialect == "D" else _DEFAULT).cast("binary")
        value = F.when(part == "tombstone", tombstone).otherwise(kernel.write(payload))
        return self._key(c, columns, place), value

    def _or_empty(self, image: Column) -> Column:
        """The later editions write {} for an image that is not there."""
        if self.dialect != "D":
            return image
        empty = F.create_map().cast("map<string,string>")
        return F.coalesce(image, F.struct(empty.alias("values"), F.lit("").alias("kinds")))

    def _number(self, moment: Column, zone: str = "UTC") -> Column:
        """BIGINT: milliseconds; microseconds in the edition of 2022."""
        local = moment if zone == "UTC" else F.from_utc_timestamp(moment, zone)
        return F.unix_micros(local) if self.dialect == "A" else millis_of(local)

    def _key(self, c: Change, columns: Column, place: Column) -> Column:
        """BINARY: the key, or what stands for none."""
        image = self._image(c["key"], c["columns"])
        if self.schemas:
            fields = kernel.only(columns, F.map_keys(c["key"]))
            schema = _struct_node(F.concat(place, F.lit(".Key")), fields.alias(_NODES))
            key = kernel.write(F.struct(schema.alias("schema"), image.alias("payload")))
        else:
            key = kernel.write(F.struct(image.alias("*")))
        none = F.lit(None if self.dialect == "D" else _DEFAULT).cast("binary")
        return F.when(c["key"].isNotNull(), key).otherwise(none)

    def _envelope(self, place: Column, name: Column, columns: Column, snapshot: Column) -> Column:
        later = self.dialect in ("C", "D")

        def image(field: str) -> Column:
            node = F.struct(
                F.lit("struct").alias("type"),
                F.lit(later).alias("optional"),
                F.lit(field).alias("field"),
                F.concat(place, F.lit(".Value")).alias("name"),
                columns.alias(_NODES),
            )
            return kernel.write(node)

        def source_of(is_snapshot: bool) -> Column:
            nodes = [
                _node(field, kind, optional or (field == "ts_ms" and is_snapshot))
                for field, kind, optional in (_LATER_SOURCE if later else _SOURCE_FIELDS)
            ]
            return F.lit(json.dumps(nodes, separators=(",", ":"))).cast("binary")

        source = F.struct(
            F.lit("struct").alias("type"),
            F.lit(False).alias("optional"),
            F.lit("source").alias("field"),
            name.alias("name"),
            F.when(snapshot, source_of(True)).otherwise(source_of(False)).alias("fields"),
        )
        ends = [_TRANSACTION] if self.dialect == "B" else []
        ends += [_node("op", "string", False), _node("ts_ms", "int64", True)]
        constant = [F.lit(json.dumps(node, separators=(",", ":"))).cast("binary") for node in ends]
        fields = F.array(image("before"), image("after"), kernel.write(source), *constant)
        return _struct_node(F.concat(place, F.lit(".Envelope")), fields.alias("fields"))


_DEFAULT = b'"default"'
#: A list of columns as nodes of a Connect schema.
_NODES = "fields@type=type,optional=nullable,field=name"

#: Field, type, optional, in the document's order.
_SOURCE_FIELDS = (
    ("version", "string", False), ("connector", "string", False), ("name", "string", False), ("ts_ms", "int64", False),
    ("db", "string", False), ("schema", "string", False), ("table", "string", True), ("query", "string", True),
    ("snapshot", "string", True), ("server_id", "int64", False), ("gtid", "string", True), ("file", "string", False),
    ("pos", "int64", False), ("row", "int32", False),
)  # fmt: skip
_LOOSENED = {"db", "schema", "server_id", "file", "pos", "row"}
_LATER_SOURCE = tuple(
    (field, kind, field in _LOOSENED or (optional and field != "table")) for field, kind, optional in _SOURCE_FIELDS
)


def _node(field: str, kind: str, optional: bool) -> dict[str, Any]:
    """A node of a Connect schema. Any: JSON."""
    return {"type": kind, "optional": optional, "field": field}


_TRANSACTION_FIELDS = (("id", "string"), ("total_order", "int64"), ("data_collection_order", "int64"))
_TRANSACTION = {
    "type": "struct",
    "optional": True,
    "field": "transaction",
    "name": None,
    "fields": [_node(field, kind, False) for field, kind in _TRANSACTION_FIELDS],
}


def _struct_node(name: Column, fields: Column) -> Column:
    return F.struct(F.lit("struct").alias("type"), F.lit(False).alias("optional"), name.alias("name"), fields)


def _back(table: dict[str, str]) -> dict[str, str]:
    return {meaning: word for word, meaning in table.items()}


def _place(source: Column) -> Column:
    """Position: MySQL's log file, pos and row; PostgreSQL's and Oracle's pos; SQL Server's three-part LSN and row."""
    file, pos, row = source["file"], source["pos"], source["row"]
    number = F.when(pos.isNotNull(), exact(F.substring_index(file, ".", -1)))
    # 0000002a:000001c8:0003 is a number of 64 bits and one of 16.
    is_lsn = pos.isNull() & file.rlike("^[0-9A-Fa-f]{8}:[0-9A-Fa-f]{8}:[0-9A-Fa-f]{4}$")
    high = exact(F.conv(F.replace(F.substring(file, 1, 17), F.lit(":"), F.lit("")), 16, 10))
    low = exact(F.conv(F.substring(file, 19, 4), 16, 10))
    row = row.cast(EXACT)
    place = F.when(number.isNotNull(), F.array(number, pos, row)).when(is_lsn, F.array(high, low, row))
    return kernel.leading(place.otherwise(F.array(pos, row)))


def _file(c: Change) -> tuple[Column, Column, Column]:
    """File (BINARY), pos and row of a position: of three numbers the first is a file's."""
    p = [F.get(c["position"], n) for n in range(3)]
    three = F.size(c["position"]) >= 3
    is_lsn = c["extra"]["arcion.source.file"].contains(":")
    file = F.when(three, kernel.quote(p[0].cast("string")))
    pos = F.when(F.coalesce(~is_lsn, F.lit(True)), F.when(three, p[1]).otherwise(p[0]))
    row = F.when(three, p[2]).otherwise(p[1]).try_cast("bigint")
    return file, pos, row


def _position(c: Change) -> Column:
    kept = F.slice(c["position"], 1, 3)
    return F.when(c["extra"]["arcion.source.file"].isNotNull(), c["position"]).otherwise(kept)


def _extra(c: Change) -> Column:
    kept = own_words("arcion.")(c)
    file = F.coalesce(kept["arcion.source.file"], _file(c)[0].cast("string"))
    return kernel.note(kept, {"arcion.source.file": file})


def _phase(c: Change) -> Column:
    return F.when(c["phase"] == Phase.SNAPSHOT, Phase.SNAPSHOT).otherwise(Phase.STREAM)


def _origin(c: Change) -> Column:
    default = F.when(c["phase"] == Phase.SNAPSHOT, "KAFKA_snapshot_connector").otherwise("KAFKA_Connector")
    o = c["origin"]
    return group("origin", kind=o["kind"], version=o["version"], name=F.coalesce(o["name"], default))
