"""Canal JSON: one table a message, its rows in `data`, an update's former values in `old`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pyspark.sql import Column
from pyspark.sql import functions as F

from changeglot import kernel, values
from changeglot.codecs.base import (
    Codec,
    Loss,
    Stage,
    moved,
    only,
    own_words,
    raw,
)
from changeglot.codecs.words import DDL_WORDS, ddl_word
from changeglot.columns import at_millis, exact, filled, json_text, lookup, millis_of, sequence
from changeglot.model import Change, Op, Phase, change, group
from changeglot.options import option

_TYPES = "ARRAY<STRUCT<`name=@`: STRING, `type=.`: STRING, jdbc: INT, nullable: BOOLEAN, json: STRING>>"
_CODES = "ARRAY<STRUCT<`name=@`: STRING, type: STRING, `jdbc=.`: INT, nullable: BOOLEAN, json: STRING>>"
BODY = f"""
    data: ARRAY<{kernel.IMAGE}>, database: STRING, es: BIGINT, gtid: STRING, isDdl: BOOLEAN, mysqlType: {_TYPES},
    old: ARRAY<{kernel.IMAGE}>, pkNames: ARRAY<STRING>, sql: STRING, sqlType: {_CODES}, table: STRING, ts: BIGINT,
    type: STRING, _tidb: STRING,
    `rest=*canal.`: MAP<STRING, STRING>
"""
OPS: dict[str, str] = {
    "INSERT": Op.INSERT,
    "UPDATE": Op.UPDATE,
    "DELETE": Op.DELETE,
    "ROW": Op.INSERT,
    "TRUNCATE": Op.TRUNCATE,
    **dict.fromkeys(DDL_WORDS, Op.DDL),
    "MHEARTBEAT": Op.HEARTBEAT,
    "TIDB_WATERMARK": Op.HEARTBEAT,
    "GTID": Op.BEGIN,
    "XACOMMIT": Op.COMMIT,
    "XAROLLBACK": Op.ROLLBACK,
}
WORDS: dict[str, str] = {
    Op.INSERT: "INSERT",
    Op.UPDATE: "UPDATE",
    Op.DELETE: "DELETE",
    Op.TRUNCATE: "TRUNCATE",
    Op.HEARTBEAT: "MHEARTBEAT",
}
#: Native Canal and TiCDC write every value as text, binary as ISO-8859-1 characters, enums and sets as numbers.
NATIVE = {"binary": "LATIN1", "bit": "BITS", "enum": "ENUM", "set": "SET"}


@dataclass(frozen=True)
class Canal(Codec):
    """`old` holds an update's changed columns only: before is `data` overlaid with it, row by row, by presence."""

    name = "canal"
    aliases = ("canal-json", "canal json")
    speaks = frozenset({*WORDS, Op.DDL})
    marks = ("type", "isDdl", "mysqlType", "sqlType", "pkNames", "data")

    dialect: Literal["auto", "oms", "native"] = option(
        "oms: typed values, Base64; native: Canal's own and TiCDC's, all text, ISO-8859-1; auto: native if the"
        " message has an id, a gtid or TiDB's part",
        "auto",
    )
    zone: str = option(
        "zone of the TIMESTAMP texts in the native dialect; left as they are without one",
        "",
        example="Asia/Shanghai",
    )

    @property
    def losses(self) -> tuple[Loss, ...]:
        return (
            Loss("phase", "only a snapshot's inserts say so, by type ROW", _phase),
            Loss("relation.tenant", "cut from the database name"),
            Loss("relation.schema", "no field"),
            Loss("key", "of a row change only, by the names in pkNames", only("key")),
            Loss(
                "before",
                "an update's unknown old values cannot be told from unchanged ones",
                _before,
            ),
            Loss(
                "after",
                "of an insert or update only",
                lambda c: F.when(c["op"].isin("insert", "update"), c["after"]),
            ),
            Loss("columns", "no nullable; a JSON kind becomes the type that it stands for", self._columns),
            Loss(
                "position",
                "no field but TiDB's commitTs",
                lambda c: F.when(c["extra"]["canal._tidb"].isNotNull(), c["position"]),
            ),
            Loss("transaction", "no field but the native dialect's gtid", _transaction),
            Loss("committed_at", "milliseconds", lambda c: at_millis(millis_of(c["committed_at"]))),
            Loss("committed_nanos", "milliseconds"),
            Loss("produced_at", "milliseconds", lambda c: at_millis(millis_of(c["produced_at"]))),
            Loss("origin", "no field"),
            Loss("statement", "an empty one is none", lambda c: filled(c["statement"])),
            Loss("extra", "only Canal's own words, a DDL's among them", _extra),
        )

    def detect(self, seen: Column) -> Column:
        signs = [seen[m].isNotNull() for m in ("isDdl", "mysqlType", "sqlType", "pkNames")]
        word = F.coalesce(seen["type"]["text"].isin(list(OPS)), F.lit(False))
        rows = seen["data"]["kind"].isin("array", "object")
        sign = signs[0] | signs[1] | signs[2] | signs[3]
        return (seen["type"]["kind"] == "string") & (sign | (word & rows))

    def body(self, message: Stage) -> Stage:
        return {"body": kernel.read(message["value"], BODY)}

    def rows(self, body: Stage) -> Column:
        b = body["body"]
        # A delete whose row stands in `old` alone: Flink's encoder once wrote that.
        return F.when((b["type"] == "DELETE") & b["data"].isNull(), b["old"]).otherwise(b["data"])

    def _former(self, body: Stage) -> Column:
        return F.get(body["body"]["old"], F.coalesce(body["ordinal"], F.lit(0)))

    def op(self, body: Stage) -> Column:
        return lookup(OPS, body["body"]["type"])

    def columns(self, body: Stage, row: Column, op: Column) -> Column:
        b = body["body"]
        declared = kernel.merge(b["mysqlType"], b["sqlType"])
        found = kernel.completed(declared, row, self._former(body))
        return self.tables.complete(found, _relation(b))

    def images(self, body: Stage, row: Column, op: Column, columns: Column) -> tuple[Column, Column]:
        b = body["body"]
        old = self._former(body)
        before = F.when(op == Op.DELETE, row).when((op == Op.UPDATE) & old.isNotNull(), kernel.overlay(row, old))
        after = F.when(op.isin(Op.INSERT, Op.UPDATE), row)
        return self._canonical(b, before, columns), self._canonical(b, after, columns)

    def _rules(self) -> dict[str, str]:
        return values.rules({**NATIVE, **({"timestamp": f"LOCAL {self.zone}"} if self.zone else {})}, kinds=False)

    def _canonical(self, b: Column, image: Column, columns: Column) -> Column:
        oms = kernel.canonical(image, columns, values.rules(values.OCEANBASE))
        native = kernel.canonical(image, columns, self._rules())
        return self._choose(_is_native(b), native, oms)

    def _choose(self, is_native: Column, native: Column, oms: Column) -> Column:
        if self.dialect == "auto":
            return F.when(is_native, native).otherwise(oms)
        return native if self.dialect == "native" else oms

    def change(self, body: Stage, op: Column, columns: Column, before: Column, after: Column) -> Change:
        b = body["body"]
        times = [exact(F.get_json_object(b["_tidb"], path)) for path in ("$.commitTs", "$.watermarkTs")]
        return change(
            op=op,
            phase=F.when(b["type"] == "ROW", Phase.SNAPSHOT),
            relation=_relation(b),
            key=kernel.pick(before, after, F.coalesce(b["pkNames"], self.tables.key_of(_relation(b)))),
            before=before,
            after=after,
            columns=columns,
            position=F.when(b["_tidb"].isNotNull(), sequence(F.coalesce(*times))),
            transaction=group("transaction", ids=F.when(b["gtid"] != "", F.array(b["gtid"]))),
            committed_at=at_millis(b["es"]),
            produced_at=at_millis(b["ts"]),
            statement=filled(b["sql"]),
            extra=kernel.note(
                b["rest"],
                {
                    "canal.type": F.when(~b["type"].isin([*WORDS.values(), "ROW"]), json_text(b["type"])),
                    "canal.isDdl": F.when(b["isDdl"] != op.isin(Op.DDL, Op.TRUNCATE), b["isDdl"]),
                    "canal.gtid": F.when(b["gtid"].isNotNull(), F.lit('""')),
                    "canal._tidb": b["_tidb"],
                },
            ),
        )

    def problem(self, body: Stage, row: Column, change: Change) -> Column:
        b = body["body"]
        is_row = change["op"].isin(*Op.ROWS)
        bad_time = (b["es"].isNotNull() & change["committed_at"].isNull()) | (
            b["ts"].isNotNull() & change["produced_at"].isNull()
        )
        return (
            F.when(bad_time, F.lit("es or ts: no such time"))
            .when(
                change["op"].isNull(),
                F.concat(F.lit("unknown type "), F.coalesce(b["type"], F.lit("null"))),
            )
            .when(is_row & row.isNull(), F.lit("no row in data"))
            .when(
                is_row & (F.size(b["pkNames"]) > 0) & change["key"].isNull(),
                F.lit("a column of pkNames is not in data"),
            )
        )

    def told(self, change: Change) -> Change:
        """With what stands in `data` and in `old`, as images to write."""
        c = super().told(change)
        is_row, native, columns = c["op"].isin(*Op.ROWS), self._as_native(c), self.declared(c)
        data = F.when(c["op"] == Op.DELETE, F.coalesce(c["before"], c["key"])).when(is_row, c["after"])
        old = F.when(_tells_old(c), kernel.differ(c["after"], c["before"]))
        return {**c, "data": self._spelled(native, data, columns), "old": self._spelled(native, old, columns)}

    def declared(self, change: Change) -> Column:
        none = F.lit(None).cast("array<string>")
        return kernel.typed(change["columns"], values.NAMED, values.codes(), none)

    def message(self, change: Change, columns: Column, part: Column, whole: Change) -> tuple[Column, Column]:
        c, extra = change, change["extra"]
        is_row = c["op"].isin(*Op.ROWS)
        word = F.coalesce(
            F.when((c["op"] == Op.INSERT) & (c["phase"] == Phase.SNAPSHOT), F.lit("ROW")),
            F.when(c["op"] == Op.DDL, ddl_word(c["statement"])),
            lookup(WORDS, c["op"]),
        )
        foreign = F.coalesce(extra["canal.id"].isNull(), F.lit(True))
        gtid = (F.lit(self.dialect == "native") & foreign) | extra["canal.gtid"].isNotNull()
        value = F.struct(
            c["relation"]["database"].alias("database"),
            F.when(is_row, columns).alias("sqlType@jdbc"),
            F.when(is_row, F.array(c["data"])).alias("data"),
            F.when(is_row, F.map_keys(c["key"])).alias("pkNames"),
            F.when(c["old"].isNotNull(), F.array(c["old"])).alias("old"),
            F.when(is_row, columns).alias("mysqlType@type"),
            F.coalesce(raw(extra, "canal.type"), json_text(word).cast("binary")).alias("type"),
            c["relation"]["table"].alias("table"),
            millis_of(c["committed_at"]).alias("es"),
            F.coalesce(
                raw(extra, "canal.isDdl"),
                c["op"].isin(Op.DDL, Op.TRUNCATE).cast("string").cast("binary"),
            ).alias("isDdl"),
            millis_of(c["produced_at"]).alias("ts"),
            F.coalesce(c["statement"], F.lit("")).alias("sql"),
            F.when(gtid, F.coalesce(F.get(c["transaction"]["ids"], 0), F.lit(""))).alias("gtid?"),
            extra.alias("*canal."),
        )
        return F.lit(None).cast("binary"), kernel.write(value)

    def _as_native(self, c: Change) -> Column:
        """BOOLEAN: is it told in the native dialect, as it came or as was asked?"""
        came = c["extra"]["canal.id"].isNotNull() | c["extra"]["canal.gtid"].isNotNull()
        return F.coalesce(came, F.lit(False)) | F.lit(self.dialect == "native")

    def _columns(self, c: Change) -> Column:
        declared = kernel.facts(self.declared(c), "type!", "jdbc", "json")
        return F.when(c["op"].isin(*Op.ROWS), kernel.completed(declared, c["data"], c["old"]))

    def _spelled(self, is_native: Column, image: Column, columns: Column) -> Column:
        oms = kernel.spelled(image, columns, values.rules(values.OCEANBASE))
        native = kernel.spelled(image, columns, self._rules())
        return self._choose(is_native, native, oms)


def _relation(b: Column) -> Column:
    return group("relation", database=b["database"], table=b["table"])


def _is_native(b: Column) -> Column:
    return b["gtid"].isNotNull() | b["_tidb"].isNotNull() | F.coalesce(b["rest"]["canal.id"].isNotNull(), F.lit(False))


def _phase(c: Change) -> Column:
    return F.when((c["op"] == Op.INSERT) & (c["phase"] == Phase.SNAPSHOT), c["phase"])


def _before(c: Change) -> Column:
    """A delete's row, or its key; an update's, if it is known as far as the new one is."""
    updated = F.when(_tells_old(c), kernel.overlay(c["after"], c["before"]))
    return F.when(c["op"] == Op.DELETE, F.coalesce(c["before"], c["key"])).otherwise(updated)


def _tells_old(c: Change) -> Column:
    """BOOLEAN: old values that are not known must not be told as unchanged ones; but a key change must be told."""
    known = c["before"].isNotNull() & (kernel.covers(c["before"], c["after"]) | moved(c))
    return (c["op"] == Op.UPDATE) & known


def _extra(c: Change) -> Column:
    kept = own_words("canal.")(c)
    word = F.when(c["op"] == Op.DDL, json_text(ddl_word(c["statement"])))
    return kernel.note(kept, {"canal.type": F.coalesce(kept["canal.type"], word)})


def _transaction(c: Change) -> Column:
    return F.when(c["extra"]["canal.gtid"].isNotNull(), c["transaction"])
