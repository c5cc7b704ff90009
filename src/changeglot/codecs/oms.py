"""OceanBase Migration Service's Default format, and DefaultExtendColumnType, which is the same with types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import Column
from pyspark.sql import functions as F

from changeglot import kernel, values
from changeglot.codecs.base import Codec, Loss, Stage, key_after, log_place, only, own_words, raw
from changeglot.columns import (
    at_number,
    filled,
    json_text,
    lookup,
    seconds_of,
    sequence,
)
from changeglot.model import COLUMNS, Change, Op, Phase, change, group

#: The document writes /u0001 here and \\u0001 for SharePlex: both are the control character.
SEPARATOR = "\x01"
#: Both formats keep their words in `extra` under one name: they are the same.
PREFIX = "oms"
_CHECKPOINT, _IDENTITY = f"{PREFIX}.checkpoint", f"{PREFIX}.source_identity"

_TYPES = "ARRAY<STRUCT<`name=@`: STRING, `type=schemaType`: STRING, jdbc: INT, nullable: BOOLEAN, json: STRING>>"
_IMAGE = f"STRUCT<`types=__light_type`: {_TYPES}, `row=*`: {kernel.IMAGE}>"
BODY = f"""
    prevStruct: {_IMAGE}, postStruct: {_IMAGE},
    allMetaData: STRUCT<record_primary_key: STRING, record_primary_value: STRING, dbType: STRING,
        storeDataSequence: DECIMAL(20,0), checkpoint: STRING, source_identity: STRING,
        table_name: STRING, db: STRING, timestamp: STRING, uniqueId: STRING,
        `rest=*{{0}}.`: MAP<STRING, STRING>>,
    recordType: STRING, `rest=*{{0}}/`: MAP<STRING, STRING>
"""
OPS: dict[str, str] = {
    "INSERT": Op.INSERT,
    "UPDATE": Op.UPDATE,
    "DELETE": Op.DELETE,
    "HEARTBEAT": Op.HEARTBEAT,
    "DDL": Op.DDL,
    "ROW": Op.INSERT,
    "REPLACE": Op.INSERT,
    "INDEX_INSERT": Op.INSERT,
    "INDEX_UPDATE": Op.UPDATE,
    "INDEX_DELETE": Op.DELETE,
    "INDEX_REPLACE": Op.INSERT,
    "BEGIN": Op.BEGIN,
    "COMMIT": Op.COMMIT,
    "ROLLBACK": Op.ROLLBACK,
}
WORDS: dict[str, str] = {
    Op.INSERT: "INSERT",
    Op.UPDATE: "UPDATE",
    Op.DELETE: "DELETE",
    Op.HEARTBEAT: "HEARTBEAT",
    Op.DDL: "DDL",
    Op.TRUNCATE: "DDL",
}
#: The document's names of databases; the later names of the same are kept in `extra`. UNKNOW is spelled so there.
ORIGINS: dict[str, str] = {
    "MYSQL": "mysql",
    "ORACLE": "oracle",
    "OCEANBASE": "oceanbase",
    "OB_IN_ORACLE_MODE": "oceanbase-oracle",
    "DB2": "db2",
    "UNKNOW": "unknown",
}
LATER: dict[str, str] = {
    "OB_MYSQL": "oceanbase",
    "OB_05": "oceanbase",
    "OB_ORACLE": "oceanbase-oracle",
    "DB2_LUW": "db2",
    "UNKNOWN": "unknown",
}
_OCEANBASE = ("oceanbase", "oceanbase-oracle")
_OCEANBASE_TYPES = [word for word, kind in {**ORIGINS, **LATER}.items() if kind in _OCEANBASE]


@dataclass(frozen=True)
class Oms(Codec):
    """Full images before and after, and allMetaData; no types."""

    name = "oms"
    aliases: ClassVar[tuple[str, ...]] = ("default", "oms-default", "oceanbase")
    speaks = frozenset(WORDS)
    marks: ClassVar[tuple[str, ...]] = ("recordType", "allMetaData", "prevStruct", "postStruct")
    typed: ClassVar[bool] = False

    @property
    def losses(self) -> tuple[Loss, ...]:
        return (
            Loss(
                "op",
                "a truncate is a DDL",
                lambda c: F.when(c["op"] == Op.TRUNCATE, Op.DDL).otherwise(c["op"]),
            ),
            Loss("phase", "a snapshot's inserts are of type ROW; the stream has timestamps", _phase),
            Loss("relation.tenant", "only before an OceanBase database's name", _of_oceanbase),
            Loss("relation.schema", "no field"),
            Loss("key", f"of a row change only; {self._values}", self._respelled("key", *Op.ROWS)),
            Loss("before", f"not of an insert; {self._values}", self._respelled("before", Op.UPDATE, Op.DELETE)),
            Loss("after", f"not of a delete; {self._values}", self._respelled("after", Op.INSERT, Op.UPDATE)),
            Loss("columns", *self._columns_loss()),
            Loss("position", "one number", lambda c: sequence(log_place(c))),
            Loss("transaction", "one id, no order", _transaction),
            Loss(
                "committed_at",
                "seconds",
                lambda c: F.timestamp_seconds(seconds_of(c["committed_at"])),
            ),
            Loss("committed_nanos", "seconds"),
            Loss("produced_at", "no field"),
            Loss("origin", "the kind alone", lambda c: group("origin", kind=_kind(c))),
            Loss("statement", "of DDL only", only("statement", Op.DDL, Op.TRUNCATE)),
            Loss("extra", "only its own words, checkpoint and source_identity among them", _extra),
        )

    _values: ClassVar[str] = "without types, binary, times and truths stay as the format spells them"

    def _respelled(self, field: str, *ops: str) -> Callable[[Change], Column]:
        """What is read of values that are written: without the types that they were written by."""

        def kept(c: Change) -> Column:
            types = self._columns_loss()[1](c)
            image = self._image(c["key"], c) if field == "key" else c["old" if field == "before" else "new"]
            read = kernel.canonical(image, types, values.rules(values.OCEANBASE))
            return F.when(c["op"].isin(*ops), read["values"])

        return kept

    def _columns_loss(self) -> tuple[str, Callable[[Change], Column]]:
        return "no types: the JSON kinds of the values remain", self._kinds

    def _kinds(self, c: Change) -> Column:
        found = F.when(c["op"].isin(*Op.ROWS), kernel.completed(None, c["old"], c["new"]))
        return self.tables.complete(found, c["relation"])

    def detect(self, seen: Column) -> Column:
        light = seen["prevStruct"]["light"].isNotNull() | seen["postStruct"]["light"].isNotNull()
        light = F.coalesce(light, F.lit(False))
        images = seen["prevStruct"].isNotNull() | seen["postStruct"].isNotNull()
        mine = seen["recordType"].isNotNull() & (images | seen["allMetaData"].isNotNull())
        return mine & (light if self.typed else ~light)

    def body(self, message: Stage) -> Stage:
        return {"body": kernel.read(message["value"], BODY.format(PREFIX))}

    def op(self, body: Stage) -> Column:
        return lookup(OPS, body["body"]["recordType"])

    def columns(self, body: Stage, row: Column, op: Column) -> Column:
        post, prev = body["body"]["postStruct"], body["body"]["prevStruct"]
        declared = kernel.merge(post["types"], prev["types"])
        found = F.when(op != Op.DDL, kernel.completed(declared, prev["row"], post["row"]))
        return self.tables.complete(found, self._relation(body))

    def images(self, body: Stage, row: Column, op: Column, columns: Column) -> tuple[Column, Column]:
        b, spelling = body["body"], values.rules(values.OCEANBASE)
        post = F.when(op != Op.DDL, b["postStruct"]["row"])
        return kernel.canonical(b["prevStruct"]["row"], columns, spelling), kernel.canonical(post, columns, spelling)

    def _relation(self, body: Stage) -> Column:
        meta = body["body"]["allMetaData"]
        dotted = meta["dbType"].isin(_OCEANBASE_TYPES) & meta["db"].contains(".")
        return group(
            "relation",
            tenant=F.when(dotted, F.substring_index(meta["db"], ".", 1)),
            database=F.when(dotted, _after_dot(meta["db"])).otherwise(meta["db"]),
            table=meta["table_name"],
        )

    def change(self, body: Stage, op: Column, columns: Column, before: Column, after: Column) -> Change:
        b = body["body"]
        meta, word = b["allMetaData"], b["recordType"]
        relation = self._relation(body)
        names = F.split(filled(meta["record_primary_key"]), SEPARATOR)
        key = F.coalesce(
            kernel.pick(before, after, names),
            kernel.zipped(names, F.split(meta["record_primary_value"], SEPARATOR)),
        )
        usual = F.coalesce(lookup(WORDS, op), F.upper(op))
        kind = F.coalesce(lookup({**ORIGINS, **LATER}, meta["dbType"]), F.lower(meta["dbType"]))
        odd_origin = meta["dbType"] != F.coalesce(lookup(_back(ORIGINS), kind), F.upper(kind))
        return change(
            op=op,
            phase=F.when(word == "ROW", Phase.SNAPSHOT).when(meta["timestamp"].isNotNull(), Phase.STREAM),
            relation=relation,
            key=F.when(op.isin(*Op.ROWS), F.coalesce(key, self._known_key(relation, before, after))),
            before=before,
            after=after,
            columns=columns,
            position=sequence(meta["storeDataSequence"]),
            transaction=group("transaction", ids=F.when(meta["uniqueId"].isNotNull(), F.array(meta["uniqueId"]))),
            committed_at=at_number(meta["timestamp"], 1_000_000),
            origin=group("origin", kind=kind),
            statement=F.when(op == Op.DDL, b["postStruct"]["row"]["values"]["ddl"]),
            extra=kernel.note(
                kernel.overlay(meta["rest"], b["rest"]),
                {
                    f"{PREFIX}.recordType": F.when((word != usual) & (word != "ROW"), json_text(word)),
                    _CHECKPOINT: kernel.quote(meta["checkpoint"]),
                    _IDENTITY: kernel.quote(meta["source_identity"]),
                    f"{PREFIX}.dbType": F.when(odd_origin, kernel.quote(meta["dbType"])),
                },
            ),
        )

    def _known_key(self, relation: Column, before: Column, after: Column) -> Column:
        return kernel.pick(before, after, self.tables.key_of(relation))

    def problem(self, body: Stage, row: Column, change: Change) -> Column:
        b = body["body"]
        meta, word = b["allMetaData"], F.coalesce(b["recordType"], F.lit("null"))
        missing = F.when(change["op"] == Op.DELETE, change["before"]).otherwise(change["after"]).isNull()
        return (
            F.when(change["op"].isNull(), F.concat(F.lit("unknown recordType "), word))
            .when(
                meta["timestamp"].isNotNull() & change["committed_at"].isNull(),
                F.lit("allMetaData.timestamp: expected a number of seconds"),
            )
            .when(change["op"].isin(*Op.ROWS) & missing, F.lit("no image of the row"))
        )

    def declared(self, change: Change) -> Column:
        if not self.typed:
            return change["columns"]
        upper = {kind: word.upper() for kind, word in values.NAMED.items()}
        known = kernel.typed(change["columns"], upper, {}, F.lit(None).cast("array<string>"))
        return F.when(change["op"].isin(Op.DDL, Op.TRUNCATE), _ddl_columns()).otherwise(known)

    def told(self, change: Change) -> Change:
        """With both images to write."""
        c = super().told(change)
        return {**c, "old": self._image(_old(c), c), "new": self._image(c["after"], c)}

    def _image(self, image: Column, change: Change) -> Column:
        return kernel.spelled(image, change["columns"], values.rules(values.OCEANBASE))

    def message(self, change: Change, columns: Column, part: Column, whole: Change) -> tuple[Column, Column]:
        c, extra, name = change, change["extra"], PREFIX
        r, kind = c["relation"], _kind(c)
        is_ddl = c["op"].isin(Op.DDL, Op.TRUNCATE)
        key = F.when(c["op"] == Op.UPDATE, key_after(c)).when(c["op"].isin(*Op.ROWS), c["key"])
        tenant = F.when(kind.isin(*_OCEANBASE), r["tenant"])
        before = F.when(c["op"].isin(Op.UPDATE, Op.DELETE), c["old"])
        # A DDL statement stands where a row would, as its only column.
        statement = self._image(F.create_map(F.lit("ddl"), c["statement"]), c)
        after = F.when(is_ddl, statement).when(c["op"].isin(Op.INSERT, Op.UPDATE), c["new"])
        word = F.when((c["op"] == Op.INSERT) & (c["phase"] == Phase.SNAPSHOT), F.lit("ROW")).otherwise(
            lookup(WORDS, c["op"])
        )
        database = F.when(tenant.isNotNull(), F.concat_ws(".", tenant, r["database"])).otherwise(r["database"])
        beat = _beats(c)
        made = _made(c)
        meta = F.struct(
            F.coalesce(raw(extra, _CHECKPOINT), made[_CHECKPOINT]).alias("checkpoint"),
            _unless(beat, F.array_join(F.map_keys(key), SEPARATOR)).alias("record_primary_key?"),
            _unless(beat, F.array_join(F.map_values(key), SEPARATOR, "")).alias("record_primary_value?"),
            F.coalesce(raw(extra, _IDENTITY), made[_IDENTITY], _unless(beat, F.lit(None))).alias("source_identity?"),
            F.coalesce(
                raw(extra, f"{name}.dbType"),
                kernel.quote(F.coalesce(lookup(_back(ORIGINS), kind), F.upper(kind))),
            ).alias("dbType"),
            log_place(c).alias("storeDataSequence?"),
            _unless(beat, r["table"]).alias("table_name?"),
            _unless(beat, database).alias("db?"),
            seconds_of(c["committed_at"]).cast("string").alias("timestamp?"),
            F.get(c["transaction"]["ids"], 0).alias("uniqueId?"),
            extra.alias(f"*{name}."),
        )
        value = F.struct(
            self._struct(before, columns).alias("prevStruct"),
            self._struct(after, columns).alias("postStruct"),
            meta.alias("allMetaData"),
            F.coalesce(raw(extra, f"{name}.recordType"), json_text(word).cast("binary")).alias("recordType"),
            extra.alias(f"*{name}/"),
        )
        return F.lit(None).cast("binary"), kernel.write(value)

    def _struct(self, image: Column, columns: Column) -> Column:
        """STRUCT of the image; of the typed form with the types beside it."""
        members = [image.alias("*")]
        if self.typed:
            known = F.coalesce(columns, F.array().cast(COLUMNS))
            members.append(F.when(image.isNotNull(), known).alias("__light_type@{schemaType=type}"))
        return F.when(image.isNotNull(), F.struct(*members))


@dataclass(frozen=True)
class OmsTyped(Oms):
    """The same with `__light_type`, the types of the columns, inside the images."""

    name = "oms-typed"
    aliases: ClassVar[tuple[str, ...]] = (
        "defaultextendcolumntype",
        "default-extend-column-type",
        "default_with_schema",
        "oms-ext",
    )
    marks: ClassVar[tuple[str, ...]] = ("postStruct.light", "prevStruct.light", *Oms.marks)
    typed = True
    _values: ClassVar[str] = "a value without a type stays as the format spells it"

    def _columns_loss(self) -> tuple[str, Callable[[Change], Column]]:
        return "types alone; without one, the type or the JSON kind of the values", self._types

    def _types(self, c: Change) -> Column:
        known = kernel.facts(self.declared(c), "type!")
        there = F.coalesce(_old(c), c["after"]).isNotNull()
        return F.when(c["op"].isin(*Op.ROWS) & there, kernel.merge(known, self._kinds(c)))


def _ddl_columns() -> Column:
    fact = F.struct(F.lit("ddl"), F.lit("VAR_STRING"), F.lit(None), F.lit(None), F.lit(None))
    return F.array(fact).cast(COLUMNS)


def _back(table: dict[str, str]) -> dict[str, str]:
    return {meaning: word for word, meaning in table.items()}


def _after_dot(text: Column) -> Column:
    return F.regexp_replace(text, r"^[^.]*\.", "")


def _unless(beat: Column, text: Column) -> Column:
    """BINARY: the text as JSON, `null` if it is NULL; NULL in a heartbeat, which has no such member."""
    return F.when(~beat, F.coalesce(kernel.quote(text.cast("string")), F.lit("null").cast("binary")))


def _beats(c: Change) -> Column:
    """BOOLEAN: is it a heartbeat, which has no table?"""
    return (c["op"] == Op.HEARTBEAT) & c["relation"]["table"].isNull()


def _made(c: Change) -> dict[str, Column]:
    """BINARY, JSON: what the format wants and another source did not say in its words.

    The checkpoint is a second in the stream, and the key and its values in a snapshot.
    """
    read = (c["op"] == Op.INSERT) & (c["phase"] == Phase.SNAPSHOT)
    key = F.concat_ws(
        "=", F.array_join(F.map_keys(c["key"]), SEPARATOR), F.array_join(F.map_values(c["key"]), SEPARATOR, "")
    )
    at = F.when(read, F.when(c["key"].isNotNull(), key)).otherwise(seconds_of(c["committed_at"]).cast("string"))
    return {_CHECKPOINT: kernel.quote(at), _IDENTITY: F.when(~_beats(c), kernel.quote(c["origin"]["name"]))}


def _extra(c: Change) -> Column:
    kept = own_words(f"{PREFIX}.", f"{PREFIX}/")(c)
    return kernel.note(kept, {name: F.coalesce(kept[name], text.cast("string")) for name, text in _made(c).items()})


def _kind(c: Change) -> Column:
    return c["origin"]["kind"]


def _old(c: Change) -> Column:
    """The row before; of a delete that knows no more, its key."""
    return F.when(c["op"] == Op.DELETE, F.coalesce(c["before"], c["key"])).otherwise(c["before"])


def _of_oceanbase(c: Change) -> Column:
    return F.when(_kind(c).isin(*_OCEANBASE), c["relation"]["tenant"])


def _transaction(c: Change) -> Column:
    first = F.get(c["transaction"]["ids"], 0)
    return group("transaction", ids=F.when(first.isNotNull(), F.array(first)))


def _phase(c: Change) -> Column:
    return F.when((c["op"] == Op.INSERT) & (c["phase"] == Phase.SNAPSHOT), c["phase"]).when(
        c["committed_at"].isNotNull(), Phase.STREAM
    )
