"""SharePlex JSON: an update's new values in `data`, its old row in `key`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pyspark.sql import Column
from pyspark.sql import functions as F

from changeglot import kernel, values
from changeglot.codecs.base import Codec, Loss, Stage, key_after, log_place, own_words, place_in_transaction, raw
from changeglot.columns import at_clock, clock_text, exact, json_text, lookup, sequence
from changeglot.model import Change, Op, change, group
from changeglot.options import option

SEPARATOR = "\x01"
BODY = f"""
    data: {kernel.IMAGE},
    meta: STRUCT<time: STRING, op: STRING, posttime: STRING, seq: STRING, table: STRING, trans: STRING, scn: STRING,
        xid: STRING,
        `rest=*shareplex.`: MAP<STRING, STRING>>,
    key: {kernel.IMAGE}, sql: STRUCT<ddl: STRING>, `rest=*shareplex/`: MAP<STRING, STRING>
"""
OPS: dict[str, str] = {
    "ins": Op.INSERT,
    "upd": Op.UPDATE,
    "del": Op.DELETE,
    "ddl": Op.DDL,
    "truncate": Op.TRUNCATE,
}
WORDS = {op: word for word, op in OPS.items()}
_VALUES = "without types, binary, times and truths stay as the format spells them"


@dataclass(frozen=True)
class Shareplex(Codec):
    """After is `key` overlaid with `data`. An old value that `key` does not hold is never made up."""

    name = "shareplex"
    aliases = ("sharplex",)
    speaks = frozenset(WORDS)
    marks = ("meta.op", "data")

    dialect: Literal["auto", "oms", "flink"] = option(
        "what an update holds. oms: data the changed columns, key the old row; flink: data the new row, key the old"
        " values of changed columns; auto: flink if meta has an xid",
        "auto",
    )
    zone: str = option("zone of time and posttime, which carry none", "UTC", example="Asia/Shanghai")

    @property
    def losses(self) -> tuple[Loss, ...]:
        return (
            Loss("phase", "no field"),
            Loss("relation", "database and table only; a schema stands for a database", _relation),
            Loss("key", "values without names; the names come from tables", self._named_key),
            Loss("before", f"of an update that knows no old row: its key; {_VALUES}", self._respelled(_before)),
            Loss("after", f"of an update: with old values that it does not carry; {_VALUES}", self._respelled(_after)),
            Loss("columns", "no types: the JSON kinds of the values remain", self._kinds),
            Loss("position", "two numbers, the second is the order in the transaction", _position),
            Loss("transaction", "one id, no last", _transaction),
            Loss("committed_at", "seconds", lambda c: F.date_trunc("second", c["committed_at"])),
            Loss("committed_nanos", "seconds"),
            Loss("produced_at", "seconds", lambda c: F.date_trunc("second", c["produced_at"])),
            Loss("origin", "no field"),
            Loss(
                "statement",
                "of DDL only",
                lambda c: F.when(c["op"].isin(Op.DDL, Op.TRUNCATE), c["statement"]),
            ),
            Loss("extra", "only its own words, the rowid always among them", self._extra),
        )

    def _named_key(self, c: Change) -> Column:
        names = self.tables.key_of(_relation(c))
        before, after = self._respelled(_before)(c), self._respelled(_after)(c)
        return F.when(c["op"].isin(*Op.ROWS), kernel.pick(before, after, names))

    def _respelled(self, image: Callable[[Change], Column]) -> Callable[[Change], Column]:
        """What is read of values that are written: without the types that they were written by."""

        def kept(c: Change) -> Column:
            return kernel.canonical(self._image(image(c), c), self._kinds(c), values.rules(values.OCEANBASE))["values"]

        return kept

    def _kinds(self, c: Change) -> Column:
        data, key = self._told(c)
        none = F.lit(None).cast("map<string,string>")
        data = F.when(c["op"].isin(*Op.ROWS), data).otherwise(none)
        found = kernel.completed(None, self._image(key, c), self._image(data, c))
        return self.tables.complete(F.when(c["op"].isin(*Op.ROWS), found), _relation(c))

    def _extra(self, c: Change) -> Column:
        kept = own_words("shareplex.", "shareplex/")(c)
        return kernel.note(
            kept, {"shareplex.rowid": F.coalesce(kept["shareplex.rowid"], kernel.quote(_rowid(c)).cast("string"))}
        )

    def detect(self, seen: Column) -> Column:
        return seen["meta"]["op"].isNotNull()

    def body(self, message: Stage) -> Stage:
        return {"body": kernel.read(message["value"], BODY)}

    def op(self, body: Stage) -> Column:
        return lookup(OPS, F.lower(body["body"]["meta"]["op"]))

    def columns(self, body: Stage, row: Column, op: Column) -> Column:
        b = body["body"]
        found = F.when(op.isin(*Op.ROWS), kernel.completed(None, b["key"], b["data"]))
        return self.tables.complete(found, self._relation_of(body))

    def images(self, body: Stage, row: Column, op: Column, columns: Column) -> tuple[Column, Column]:
        b, spelling = body["body"], values.rules(values.OCEANBASE)
        old = F.when(F.size(b["key"]["values"]) > 0, b["key"])
        whole = F.lit(self.dialect == "flink")
        if self.dialect == "auto":
            whole = b["meta"]["xid"].isNotNull()
        before = F.when(op == Op.DELETE, b["data"]).when(
            op == Op.UPDATE,
            F.when(whole & old.isNotNull(), kernel.overlay(b["data"], old)).otherwise(old),
        )
        after = F.when((op == Op.INSERT) | ((op == Op.UPDATE) & whole), b["data"]).when(
            op == Op.UPDATE, kernel.overlay(old, b["data"])
        )
        return kernel.canonical(before, columns, spelling), kernel.canonical(after, columns, spelling)

    def _relation_of(self, body: Stage) -> Column:
        name = body["body"]["meta"]["table"]
        table = F.substring_index(name, ".", -1)
        cut = F.length(name) - F.length(table) - 1
        return group("relation", database=F.when(cut > 0, F.substr(name, F.lit(1), cut)), table=table)

    def change(self, body: Stage, op: Column, columns: Column, before: Column, after: Column) -> Change:
        b = body["body"]
        meta = b["meta"]
        scn, seq = exact(meta["scn"]), exact(meta["seq"])
        relation = self._relation_of(body)
        ids = F.when(meta["trans"].isNotNull(), F.array(meta["trans"]))
        return change(
            op=op,
            relation=relation,
            key=F.when(op.isin(*Op.ROWS), kernel.pick(before, after, self.tables.key_of(relation))),
            before=before,
            after=after,
            columns=columns,
            position=sequence(scn, seq),
            transaction=group("transaction", ids=ids, order=seq.try_cast("bigint")),
            committed_at=at_clock(meta["time"], self.zone),
            produced_at=at_clock(meta["posttime"], self.zone),
            statement=b["sql"]["ddl"],
            extra=kernel.note(
                kernel.overlay(meta["rest"], b["rest"]),
                {
                    "shareplex.scn": F.when(scn.isNull(), kernel.quote(meta["scn"])),
                    "shareplex.op": F.when(meta["op"] != lookup(WORDS, op), json_text(meta["op"])),
                },
            ),
        )

    def problem(self, body: Stage, row: Column, change: Change) -> Column:
        b = body["body"]
        meta = b["meta"]
        bad_time = (meta["time"].isNotNull() & change["committed_at"].isNull()) | (
            meta["posttime"].isNotNull() & change["produced_at"].isNull()
        )
        return (
            F.when(
                change["op"].isNull(),
                F.concat(F.lit("unknown op "), F.coalesce(meta["op"], F.lit("null"))),
            )
            .when(change["op"].isin(*Op.ROWS) & b["data"].isNull(), F.lit("no data"))
            .when(bad_time, F.lit("meta.time or posttime: expected YYYY-MM-DDTHH:mm:ss"))
        )

    def _told(self, c: Change) -> tuple[Column, Column]:
        """What stands in data and in key."""
        old = F.when(c["op"] == Op.UPDATE, F.coalesce(c["before"], c["key"]))
        data = (
            F.when(c["op"] == Op.INSERT, c["after"])
            .when(c["op"] == Op.DELETE, F.coalesce(c["before"], c["key"]))
            .when(c["op"] == Op.UPDATE, kernel.differ(old, c["after"]))
        )
        return data, old

    def _image(self, image: Column, c: Change) -> Column:
        return kernel.spelled(image, c["columns"], values.rules(values.OCEANBASE))

    def message(self, change: Change, columns: Column, part: Column, whole: Change) -> tuple[Column, Column]:
        c, extra = change, change["extra"]
        data, old = self._told(c)
        relation = _relation(c)
        table = F.concat_ws(".", relation["database"], relation["table"])
        order = place_in_transaction(c)
        scn = F.coalesce(json_text(log_place(c).cast("string")), extra["shareplex.scn"])
        meta = F.struct(
            self._clock(c["committed_at"]).alias("time"),
            F.coalesce(raw(extra, "shareplex.op"), json_text(lookup(WORDS, c["op"])).cast("binary")).alias("op"),
            self._clock(c["produced_at"]).alias("posttime?"),
            order.alias("seq?"),
            table.alias("table"),
            F.coalesce(raw(extra, "shareplex.rowid"), kernel.quote(_rowid(c))).alias("rowid"),
            F.get(c["transaction"]["ids"], 0).alias("trans?"),
            scn.cast("binary").alias("scn?"),
            extra.alias("*shareplex."),
        )
        empty = F.create_map().cast("map<string,string>")
        value = F.struct(
            self._image(F.coalesce(data, empty), c).alias("data"),
            meta.alias("meta"),
            self._image(old, c).alias("key?"),
            F.when(c["op"].isin(Op.DDL, Op.TRUNCATE), F.struct(c["statement"].alias("ddl"))).alias("sql?"),
            extra.alias("*shareplex/"),
        )
        return F.lit(None).cast("binary"), kernel.write(value)

    def _clock(self, moment: Column) -> Column:
        return F.replace(F.substring(clock_text(moment, self.zone), 1, 19), F.lit(" "), F.lit("T"))


def _relation(c: Change) -> Column:
    r = c["relation"]
    return group("relation", database=F.coalesce(r["database"], r["schema"]), table=r["table"])


def _rowid(c: Change) -> Column:
    """The table's name and the values of the key."""
    relation = _relation(c)
    table = F.concat_ws(".", relation["database"], relation["table"])
    key = F.when(c["op"] == Op.UPDATE, key_after(c)).otherwise(c["key"])
    return F.concat(table, F.lit("-"), F.coalesce(F.array_join(F.map_values(key), SEPARATOR, ""), F.lit("")))


def _before(c: Change) -> Column:
    known = F.coalesce(c["before"], c["key"])
    return F.when(c["op"].isin(Op.UPDATE, Op.DELETE), F.when(F.size(known) > 0, known))


def _after(c: Change) -> Column:
    return F.when(c["op"] == Op.UPDATE, kernel.overlay(_before(c), c["after"])).when(c["op"] == Op.INSERT, c["after"])


def _position(c: Change) -> Column:
    return sequence(log_place(c), place_in_transaction(c))


def _transaction(c: Change) -> Column:
    first = F.get(c["transaction"]["ids"], 0)
    return group("transaction", ids=F.when(first.isNotNull(), F.array(first)), order=place_in_transaction(c))
