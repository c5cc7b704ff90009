"""DataWorks JSON, version 2.0; the 0.0.1 of DataWorks' own synchronisation is read too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pyspark.sql import Column
from pyspark.sql import functions as F

from changeglot import kernel, values
from changeglot.codecs.base import Codec, Loss, Stage, log_place, only, own_words, raw
from changeglot.codecs.words import DDL_WORDS, ddl_word
from changeglot.columns import at_millis, at_number, exact, json_text, lookup, millis_of, nanos_of, sequence
from changeglot.model import Change, Op, Phase, change, group
from changeglot.options import option

_COLUMN = "ARRAY<STRUCT<name: STRING, type: STRING, jdbc: INT, nullable: BOOLEAN, json: STRING>>"
_ROW = f"STRUCT<data: {kernel.IMAGE}, dataColumn: {kernel.IMAGE}>"
BODY = f"""
    version: STRING,
    schema: STRUCT<
        source: STRUCT<dbType: STRING, dbVersion: STRING, dbName: STRING, schema: STRING, table: STRING,
            schemaName: STRING, tableName: STRING, `rest=*dataworks.source.`: MAP<STRING, STRING>>,
        column: {_COLUMN}, dataColumn: {_COLUMN}, pk: ARRAY<STRING>, primaryKey: ARRAY<STRING>,
        `rest=*dataworks.schema.`: MAP<STRING, STRING>>,
    payload: STRUCT<
        before: {_ROW}, after: {_ROW}, op: STRING,
        timestamp: STRUCT<eventTime: STRING, systemTime: STRING, `rest=*dataworks.timestamp.`: MAP<STRING, STRING>>,
        ddl: STRUCT<text: STRING>, scn: STRING, sequenceId: STRING, `rest=*dataworks.payload.`: MAP<STRING, STRING>>,
    `rest=*dataworks/`: MAP<STRING, STRING>
"""
OPS: dict[str, str] = {
    "INSERT": Op.INSERT,
    "UPDATE": Op.UPDATE,
    "DELETE": Op.DELETE,
    "HEARTBEAT": Op.HEARTBEAT,
    "TRANSACTION_BEGIN": Op.BEGIN,
    "TRANSACTION_END": Op.COMMIT,
    **dict.fromkeys(DDL_WORDS, Op.DDL),
    "TRUNCATE": Op.TRUNCATE,
    "GTID": Op.BEGIN,
    "XACOMMIT": Op.COMMIT,
    "XAROLLBACK": Op.ROLLBACK,
    # The 0.0.1 cousin tells an update in two messages, each with one image.
    "UPDATE_BEFORE": Op.UPDATE,
    "UPDATE_AFTER": Op.UPDATE,
    "MHEARTBEAT": Op.HEARTBEAT,
}
WORDS: dict[str, str] = {
    Op.INSERT: "INSERT",
    Op.UPDATE: "UPDATE",
    Op.DELETE: "DELETE",
    Op.HEARTBEAT: "HEARTBEAT",
    Op.BEGIN: "TRANSACTION_BEGIN",
    Op.COMMIT: "TRANSACTION_END",
    Op.ROLLBACK: "XAROLLBACK",
    Op.TRUNCATE: "TRUNCATE",
}


@dataclass(frozen=True)
class Dataworks(Codec):
    """Types, key and source in `schema`; images, op and times in `payload`."""

    name = "dataworks"
    aliases = ("dataworks_v2", "dataworks-2.0")
    speaks = frozenset({*WORDS, Op.DDL})
    marks = ("payload.op", "version", "payload.timestamp")

    times: Literal["text", "millis"] = option(
        "how a TIMESTAMP is written: text, epoch seconds as later editions do; millis, a number as the document does."
        " Both are read",
        "text",
    )

    @property
    def losses(self) -> tuple[Loss, ...]:
        return (
            Loss("phase", "no field"),
            Loss("relation", "no tenant; a heartbeat has no schema at all", _relation),
            Loss("key", "of a row change only", only("key")),
            Loss(
                "columns",
                "no JDBC code, no nullable; a JSON kind becomes a type; of row changes only",
                self._types,
            ),
            Loss("position", "one number; not of a heartbeat", _scn),
            Loss("transaction", "no field"),
            Loss("committed_at", "milliseconds", lambda c: at_millis(millis_of(c["committed_at"]))),
            Loss("committed_nanos", "milliseconds"),
            Loss("produced_at", "milliseconds", lambda c: at_millis(millis_of(c["produced_at"]))),
            Loss("origin", "no name; a heartbeat has none", _origin),
            Loss("statement", "a heartbeat has none", _unless_heartbeat("statement")),
            Loss("extra", "only its own words, a DDL's among them", _extra),
        )

    def _types(self, c: Change) -> Column:
        declared = kernel.facts(self.declared(c), "type", "json")
        before, after = (kernel.spelled(image, c["columns"], self._rules()) for image in (_old(c), c["after"]))
        return F.when(c["op"].isin(*Op.ROWS), kernel.completed(declared, before, after))

    def _rules(self) -> dict[str, str]:
        stamp = "EPOCH_OR_MILLIS" if self.times == "text" else "MILLIS_OR_EPOCH"
        return values.rules({**values.OCEANBASE, "timestamp": stamp, "datetime": "MILLIS", "date": "MILLIS"})

    def opened(self, body: Stage) -> Stage:
        payload = body["body"]["payload"]
        return {i: F.coalesce(payload[i]["data"], payload[i]["dataColumn"]) for i in ("before", "after")}

    def detect(self, seen: Column) -> Column:
        payload = seen["payload"]
        sign = seen["version"].isNotNull() | payload["timestamp"].isNotNull()
        return (payload["op"]["kind"] == "string") & sign & payload["source"].isNull()

    def body(self, message: Stage) -> Stage:
        return {"body": kernel.read(message["value"], BODY)}

    def op(self, body: Stage) -> Column:
        return lookup(OPS, body["body"]["payload"]["op"])

    def columns(self, body: Stage, row: Column, op: Column) -> Column:
        schema = body["body"]["schema"]
        declared = F.coalesce(schema["column"], schema["dataColumn"])
        found = kernel.completed(declared, body["before"], body["after"])
        return self.tables.complete(found, self._relation(body))

    def images(self, body: Stage, row: Column, op: Column, columns: Column) -> tuple[Column, Column]:
        before, after = (kernel.canonical(body[i], columns, self._rules()) for i in ("before", "after"))
        return before, after

    def _relation(self, body: Stage) -> Column:
        source = body["body"]["schema"]["source"]
        return group(
            "relation",
            database=source["dbName"],
            schema=F.coalesce(source["schema"], source["schemaName"]),
            table=F.coalesce(source["table"], source["tableName"]),
        )

    def change(self, body: Stage, op: Column, columns: Column, before: Column, after: Column) -> Change:
        b = body["body"]
        schema, payload = b["schema"], b["payload"]
        word, times, source = payload["op"], payload["timestamp"], schema["source"]
        relation = self._relation(body)
        names = F.coalesce(schema["pk"], schema["primaryKey"], self.tables.key_of(relation))
        full = payload["sequenceId"] == "-1"
        event, system = (F.when(times[name] != "-1", times[name]) for name in ("eventTime", "systemTime"))
        notes = {
            "dataworks.op": F.when(~word.isin(list(WORDS.values())), json_text(word)),
            "dataworks.scn": F.when(payload["scn"] == "null", F.lit('"null"')),
        }
        extra = kernel.overlay(
            kernel.overlay(schema["rest"], source["rest"]),
            kernel.overlay(payload["rest"], times["rest"]),
        )
        return change(
            op=op,
            phase=F.when(full, Phase.SNAPSHOT),
            relation=relation,
            key=F.when(op.isin(*Op.ROWS), kernel.pick(before, after, names)),
            before=before,
            after=after,
            columns=columns,
            position=sequence(exact(F.coalesce(payload["scn"], F.when(~full, payload["sequenceId"])))),
            committed_at=at_number(event, 1000),
            committed_nanos=nanos_of(event, 1000),
            produced_at=at_number(system, 1000),
            origin=group("origin", kind=F.lower(source["dbType"]), version=source["dbVersion"]),
            statement=payload["ddl"]["text"],
            extra=kernel.note(kernel.overlay(extra, b["rest"]), notes),
        )

    def problem(self, body: Stage, row: Column, change: Change) -> Column:
        b = body["body"]
        payload = b["payload"]
        is_row = change["op"].isin(*Op.ROWS)
        missing = change["before"].isNull() & change["after"].isNull()
        names = F.coalesce(b["schema"]["pk"], b["schema"]["primaryKey"])
        event = payload["timestamp"]["eventTime"]
        return (
            F.when(
                change["op"].isNull(),
                F.concat(F.lit("unknown op "), F.coalesce(payload["op"], F.lit("null"))),
            )
            .when(is_row & missing, F.lit("no image of the row"))
            .when(
                is_row & (F.size(names) > 0) & change["key"].isNull(),
                F.lit("a column of schema.pk is not in the row"),
            )
            .when(
                event.isNotNull() & (event != "-1") & change["committed_at"].isNull(),
                F.lit("payload.timestamp.eventTime: expected a number of milliseconds"),
            )
        )

    def tells(self, change: Change) -> Column:
        """Half an update too: its dialect 0.0.1 tells them so."""
        c = change
        images = F.coalesce(c["before"], c["after"], c["key"]).isNotNull()
        return c["op"].isin(sorted(self.speaks)) & (~c["op"].isin(*Op.ROWS) | images)

    def declared(self, change: Change) -> Column:
        return kernel.typed(change["columns"], values.NAMED, {}, F.lit(None).cast("array<string>"))

    def message(self, change: Change, columns: Column, part: Column, whole: Change) -> tuple[Column, Column]:
        c, extra = change, change["extra"]
        is_row, beat = c["op"].isin(*Op.ROWS), c["op"] == Op.HEARTBEAT
        word = F.when(c["op"] == Op.DDL, ddl_word(c["statement"])).otherwise(lookup(WORDS, c["op"]))
        source = F.struct(
            c["origin"]["kind"].alias("dbType"),
            c["origin"]["version"].alias("dbVersion"),
            c["relation"]["database"].alias("dbName"),
            c["relation"]["schema"].alias("schema"),
            c["relation"]["table"].alias("table"),
            extra.alias("*dataworks.source."),
        )
        schema = F.struct(
            source.alias("source"),
            F.when(is_row, columns).alias("column@name=name,type=type"),
            F.when(is_row, F.map_keys(c["key"])).alias("pk"),
            extra.alias("*dataworks.schema."),
        )
        times = F.struct(
            millis_of(c["committed_at"]).alias("eventTime"),
            millis_of(c["produced_at"]).alias("systemTime?"),
            extra.alias("*dataworks.timestamp."),
        )
        ddl = F.when(c["statement"].isNotNull(), F.struct(c["statement"].alias("text")))
        scn = F.coalesce(json_text(log_place(c).cast("string")), extra["dataworks.scn"], F.lit("null"))
        payload = F.struct(
            _unless(beat, self._image(_old(c), columns)).alias("before?"),
            _unless(beat, self._image(c["after"], columns)).alias("after?"),
            F.coalesce(raw(extra, "dataworks.op"), json_text(word).cast("binary")).alias("op"),
            times.alias("timestamp"),
            _unless(beat, kernel.write(ddl)).alias("ddl?"),
            F.when(~beat, scn.cast("binary")).alias("scn?"),
            extra.alias("*dataworks.payload."),
        )
        value = F.struct(
            F.lit("2.0").alias("version"),
            F.when(~beat, schema).alias("schema?"),
            payload.alias("payload"),
            extra.alias("*dataworks/"),
        )
        return F.lit(None).cast("binary"), kernel.write(value)

    def _image(self, image: Column, columns: Column) -> Column:
        """BINARY: the image in its object, NULL without one."""
        data = F.struct(kernel.spelled(image, columns, self._rules()).alias("data"))
        return kernel.write(F.when(image.isNotNull(), data))


def _unless(beat: Column, member: Column) -> Column:
    """BINARY: the member or `null`; NULL in a heartbeat, which has none."""
    return F.when(~beat, F.coalesce(member, F.lit("null").cast("binary")))


def _unless_heartbeat(field: str) -> Callable[[Change], Column]:
    return lambda c: F.when(c["op"] != Op.HEARTBEAT, c[field])


def _old(c: Change) -> Column:
    known = F.when(c["op"] == Op.DELETE, F.coalesce(c["before"], c["key"])).otherwise(c["before"])
    return F.when(c["op"] != Op.HEARTBEAT, known)


def _relation(c: Change) -> Column:
    r = c["relation"]
    kept = group("relation", database=r["database"], schema=r["schema"], table=r["table"])
    return F.when(c["op"] == Op.HEARTBEAT, group("relation")).otherwise(kept)


def _extra(c: Change) -> Column:
    kept = own_words("dataworks.", "dataworks/")(c)
    word = F.when(c["op"] == Op.DDL, json_text(ddl_word(c["statement"])))
    return kernel.note(kept, {"dataworks.op": F.coalesce(kept["dataworks.op"], word)})


def _scn(c: Change) -> Column:
    return F.when(c["op"] != Op.HEARTBEAT, sequence(log_place(c)))


def _origin(c: Change) -> Column:
    kept = group("origin", kind=c["origin"]["kind"], version=c["origin"]["version"])
    return F.when(c["op"] != Op.HEARTBEAT, kept)
