"""Electric's shape messages: inserts, updates, deletes and controls of a shape log."""

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
    key_after,
    log_place,
    moved,
    own_words,
    place_in_transaction,
    raw,
)
from changeglot.columns import exact, lookup, sequence
from changeglot.model import POSITION, Change, Op, Phase, change, group
from changeglot.options import option

BODY = f"""
    headers: STRUCT<operation: STRING, control: STRING, lsn: STRING, op_position: BIGINT, last: BOOLEAN,
        txids: ARRAY<STRING>, relation: ARRAY<STRING>, global_last_seen_lsn: STRING,
        `rest=*electric.`: MAP<STRING, STRING>>,
    key: STRING, value: {kernel.IMAGE}, old_value: {kernel.IMAGE}, `rest=*electric/`: MAP<STRING, STRING>
"""
SHAPE = f"schema: STRING, table: STRING, columns: {kernel.COLUMNS}, key: ARRAY<STRING>"
OPS: dict[str, str] = {op: op for op in (Op.INSERT, Op.UPDATE, Op.DELETE)}
CONTROLS: dict[str, str] = {op: op for op in (Op.UP_TO_DATE, Op.MUST_REFETCH, Op.SNAPSHOT_END)}
#: Electric drops a shape whose table is truncated and tells its clients to fetch it again.
WORDS = {**CONTROLS, Op.TRUNCATE: Op.MUST_REFETCH}
#: PostgreSQL's texts. A boolean is `true` in the rows of a snapshot, `t` in the stream.
SPELLING = {"boolean": "TRUE_FALSE", "binary": "HEX", "timestamp": "OFFSET", "zoned": "OFFSET"}
_VALUES = "without types, values stay as PostgreSQL spells them"


@dataclass(frozen=True)
class Electric(Codec):
    """Values are PostgreSQL's texts; types and the names of key columns come from tables."""

    name = "electric"
    aliases = ("shapemessage", "shape-message", "shape", "shape-log")
    speaks = frozenset({*OPS, *WORDS})
    marks = ("headers.operation", "headers.control", "headers.event", "key")

    replica: Literal["full", "default"] = option(
        "full: whole rows, and old values of changed columns; default: keys and changed columns, as Electric sends"
        " when not asked otherwise",
        "full",
    )

    @property
    def losses(self) -> tuple[Loss, ...]:
        return (
            Loss(
                "op",
                "a truncate is a must-refetch",
                lambda c: F.coalesce(lookup(WORDS, c["op"]), c["op"]),
            ),
            Loss("phase", "a row without an lsn and txids is a snapshot's", _phase),
            Loss("relation", "schema and table only; a database stands for a schema", _relation),
            Loss(
                "key",
                "values without names; the names come from tables, or from a delete's value",
                self._named_key,
            ),
            Loss("before", f"{self._before_why()}; {_VALUES}", lambda c: c["was"]),
            Loss("after", f"{self._after_why()}; {_VALUES}", lambda c: c["is"]),
            Loss("columns", "no types: they come from tables", self._known_columns),
            Loss("position", "two numbers, the second is the order in the transaction", _position),
            Loss("transaction", "of a row change only; an order is wanted by `last`", _transaction),
            Loss("committed_at", "no field"),
            Loss("committed_nanos", "no field"),
            Loss("produced_at", "no field"),
            Loss("origin", "no field"),
            Loss("statement", "no field"),
            Loss(
                "extra", "only its own words; the key itself where the names of its columns are not known", self._extra
            ),
        )

    def _respelled(self, image: Column, c: Change) -> Column:
        """What is read of values that are written: without the types that they were written by."""
        written = _spelled(image, c)
        if not self.tables.has_columns:
            return written["values"]
        return kernel.canonical(written, self._known_columns(c), values.rules(SPELLING, kinds=False))["values"]

    def _after_why(self) -> str:
        return "of an insert or update only" if self.replica == "full" else "key and changed columns"

    def _before_why(self) -> str:
        if self.replica == "full":
            return "an update's unknown old values cannot be told from unchanged ones"
        return "of a delete: its key"

    def _before(self, c: Change) -> Column:
        if self.replica == "full":
            updated = F.when(_tells_old(c), kernel.overlay(c["after"], c["before"]))
            gone = F.coalesce(c["before"], c["key"])
        else:
            updated, gone = (
                F.lit(None).cast("map<string,string>"),
                F.coalesce(c["key"], c["before"]),
            )
        return F.when(c["op"] == Op.UPDATE, updated).when(c["op"] == Op.DELETE, gone)

    def _after(self, c: Change) -> Column:
        return F.when(c["op"].isin(Op.INSERT, Op.UPDATE), self._value(c))

    def _named_key(self, c: Change) -> Column:
        """MAP: the key that is read, if the names of its columns are known."""
        written = F.when(c["key"].isNull(), c["extra"]["electric/key"])
        parts = F.coalesce(F.size(_parts(written)) - 1, F.size(_identity(c)))
        whole = F.when((c["op"] == Op.DELETE) & (F.size(c["was"]) == parts), c["was"])
        if not self.tables.has_keys:
            return whole
        named = kernel.pick(c["was"], c["is"], self.tables.key_of(_relation(c)))
        return F.when(c["op"].isin(*Op.ROWS), F.coalesce(named, whole))

    def _extra(self, c: Change) -> Column:
        nameless = c["op"].isin(*Op.ROWS) & self._named_key(c).isNull()
        key = kernel.quote(_key(_relation(c), _identity(c)))
        kept = own_words("electric.", "electric/")(c)
        return kernel.note(
            kept, {"electric/key": F.coalesce(kept["electric/key"], F.when(nameless, key.cast("string")))}
        )

    def _known_columns(self, c: Change) -> Column:
        return F.when(c["op"].isin(*Op.ROWS), self.tables.columns_of(_relation(c)))

    def detect(self, seen: Column) -> Column:
        headers = seen["headers"]
        return headers["operation"].isNotNull() | headers["control"].isNotNull() | headers["event"].isNotNull()

    def body(self, message: Stage) -> Stage:
        return {"body": kernel.read(message["value"], BODY)}

    def _relation_of(self, body: Stage) -> Column:
        """From the header, else from the key: `"schema"."table"/...`."""
        b = body["body"]
        header = b["headers"]["relation"]
        first = F.replace(_parts(b["key"])[0], F.lit(_SLASH), F.lit("/"))
        name = (
            F.regexp_extract(first, r'^"(.*)"\."(.*)"$', 1),
            F.regexp_extract(first, r'^"(.*)"\."(.*)"$', 2),
        )
        spoken = F.size(header) == 2
        return group(
            "relation",
            schema=F.when(spoken, F.get(header, 0)).when(b["key"].isNotNull(), F.nullif(name[0], F.lit(""))),
            table=F.when(spoken, F.get(header, 1)).when(b["key"].isNotNull(), F.nullif(name[1], F.lit(""))),
        )

    def op(self, body: Stage) -> Column:
        headers = body["body"]["headers"]
        return F.coalesce(lookup(OPS, headers["operation"]), lookup(CONTROLS, headers["control"]))

    def _types(self, body: Stage) -> Column:
        """COLUMNS of the message's table, NULL if not known."""
        return self.tables.columns_of(self._relation_of(body))

    def _names(self, body: Stage) -> Column:
        """ARRAY<STRING>: the names of its key's columns, NULL if not known."""
        return self.tables.key_of(self._relation_of(body))

    def columns(self, body: Stage, row: Column, op: Column) -> Column:
        return F.when(body["body"]["headers"]["operation"].isNotNull(), self._types(body))

    def images(self, body: Stage, row: Column, op: Column, columns: Column) -> tuple[Column, Column]:
        b, spelling = body["body"], values.rules(SPELLING, kinds=False)
        before = F.when(op == Op.DELETE, b["value"]).when(
            (op == Op.UPDATE) & b["old_value"].isNotNull(),
            kernel.overlay(b["value"], b["old_value"]),
        )
        after = F.when(op.isin(Op.INSERT, Op.UPDATE), b["value"])
        return kernel.canonical(before, columns, spelling), kernel.canonical(after, columns, spelling)

    def change(self, body: Stage, op: Column, columns: Column, before: Column, after: Column) -> Change:
        b = body["body"]
        headers = b["headers"]
        lsn = _lsn(F.coalesce(headers["lsn"], headers["global_last_seen_lsn"]))
        relation = self._relation_of(body)
        is_row = headers["operation"].isNotNull()
        parts = F.size(_parts(b["key"])) - 1
        told = F.when((op == Op.DELETE) & (F.size(before) == parts), before)
        key = F.coalesce(kernel.pick(before, after, self._names(body)), told)
        order = headers["op_position"]
        return change(
            op=op,
            phase=F.when(headers["lsn"].isNotNull() | (is_row & headers["txids"].isNotNull()), Phase.STREAM).when(
                op == Op.INSERT, Phase.SNAPSHOT
            ),
            relation=F.when(is_row, relation),
            key=F.when(is_row, key),
            before=before,
            after=after,
            columns=columns,
            position=sequence(lsn, order),
            transaction=group("transaction", ids=_some(headers["txids"]), order=order, last=headers["last"]),
            extra=kernel.note(
                kernel.overlay(headers["rest"], b["rest"]),
                # The names of the key's columns may not be known: the key itself then is.
                {"electric/key": F.when(is_row & key.isNull(), kernel.quote(b["key"]))},
            ),
        )

    def problem(self, body: Stage, row: Column, change: Change) -> Column:
        b = body["body"]
        headers = b["headers"]
        word = F.coalesce(headers["operation"], headers["control"])
        bad_lsn = F.coalesce(headers["lsn"], headers["global_last_seen_lsn"]).isNotNull() & change["position"].isNull()
        is_row = headers["operation"].isNotNull()
        return (
            F.when(word.isNull(), F.lit("neither an operation nor a control"))
            .when(change["op"].isNull(), F.concat(F.lit("unknown operation or control "), word))
            .when(is_row & b["value"].isNull(), F.lit("no value"))
            .when(bad_lsn, F.lit("headers.lsn: expected a number"))
        )

    def told(self, change: Change) -> Change:
        """With both images as they are read of what is written."""
        c = super().told(change)
        return {**c, "was": self._respelled(self._before(c), c), "is": self._respelled(self._after(c), c)}

    def parts(self, change: Change) -> Column:
        two = F.array(F.lit("delete"), F.lit("insert"))
        return F.when(moved(change), two).otherwise(F.array(F.lit("")))

    def linked(self, whole: Change, part: Column) -> dict[str, Column]:
        relation, old, new = _relation(whole), whole["key"], key_after(whole)
        others = {
            "electric.key_change_to": F.when(part == "delete", _key(relation, new)),
            "electric.key_change_from": F.when(part == "insert", _key(relation, old)),
        }
        return {name: kernel.quote(key).cast("string") for name, key in others.items()}

    def _value(self, c: Change) -> Column:
        """MAP: what stands in `value`."""
        if self.replica == "full":
            gone, updated = F.coalesce(c["before"], c["key"]), c["after"]
        else:
            gone = F.coalesce(c["key"], c["before"])
            updated = kernel.overlay(key_after(c), kernel.differ(c["before"], c["after"]))
        return F.when(c["op"] == Op.DELETE, gone).when(c["op"] == Op.UPDATE, updated).otherwise(c["after"])

    def message(self, change: Change, columns: Column, part: Column, whole: Change) -> tuple[Column, Column]:
        c, extra = change, change["extra"]
        is_row = c["op"].isin(*Op.ROWS)
        relation = _relation(c)
        key = _key(relation, _identity(c))
        kept = F.when(extra["electric/key"].isNotNull() & c["key"].isNull(), raw(extra, "electric/key"))
        order = place_in_transaction(c)
        lsn = log_place(c).cast("string")
        linked = self.linked(whole, part)
        # Digits are a JSON number, any other text becomes a string: numbers are what clients compare.
        ids = _some(c["transaction"]["ids"]).cast("array<binary>")
        # Only a snapshot's rows have no transaction: one that is not known is an empty list.
        unknown = F.when((c["phase"] == Phase.STREAM) & lsn.isNull(), F.array().cast("array<binary>"))
        headers = F.struct(
            F.when(is_row, c["op"]).alias("operation?"),
            lookup(WORDS, c["op"]).alias("control?"),
            F.when(is_row, F.array(relation["schema"], relation["table"])).alias("relation?"),
            F.when(is_row, lsn).alias("lsn?"),
            F.when(is_row, F.try_add(order, F.when(part == "insert", 1).otherwise(0))).alias("op_position?"),
            F.when(is_row, F.coalesce(ids, unknown)).alias("txids?"),
            F.when(is_row & (part != "delete") & c["transaction"]["last"], F.lit(True)).alias("last?"),
            *(
                F.coalesce(raw(extra, name), other.cast("binary")).alias(f"{name.removeprefix('electric.')}?")
                for name, other in linked.items()
            ),
            F.when(c["op"] == Op.UP_TO_DATE, lsn).alias("global_last_seen_lsn?"),
            extra.alias("*electric."),
        )
        tells = (part == "") & F.lit(self.replica == "full") & _tells_old(c)
        former = F.when(tells, kernel.differ(c["after"], c["before"]))
        value = F.struct(
            F.when(is_row, F.coalesce(kept, kernel.quote(key))).alias("key?"),
            F.when(is_row, _spelled(self._value(c), change)).alias("value?"),
            _spelled(former, change).alias("old_value?"),
            headers.alias("headers"),
            extra.alias("*electric/"),
        )
        return F.lit(None).cast("binary"), kernel.write(value)


@dataclass(frozen=True)
class Followed(Electric):
    """Messages of shapes that are followed. A message's key tells of its shape: relation, columns, key and epoch.

    A must-refetch ends all rows that were told before, as a truncate does.
    """

    def read(self, key: Column) -> Column:
        epoch = kernel.read(key, "epoch: BIGINT")["epoch"]
        return F.struct(F.lit(None).cast(POSITION).alias("position"), F.coalesce(epoch, F.lit(0)).alias("epoch"))

    def body(self, message: Stage) -> Stage:
        return {**super().body(message), "shape": kernel.read(F.coalesce(message["key"], F.lit(b"{}")), SHAPE)}

    def silent(self, body: Stage) -> Column:
        return body["body"]["headers"]["control"] == Op.UP_TO_DATE

    def _types(self, body: Stage) -> Column:
        return body["shape"]["columns"]

    def _names(self, body: Stage) -> Column:
        return F.nullif(body["shape"]["key"], F.array().cast("array<string>"))

    def op(self, body: Stage) -> Column:
        op = super().op(body)
        return F.when(op == Op.MUST_REFETCH, Op.TRUNCATE).otherwise(op)

    def change(self, body: Stage, op: Column, columns: Column, before: Column, after: Column) -> Change:
        told, shape = super().change(body, op, columns, before, after), body["shape"]
        ends = op == Op.TRUNCATE
        relation = group("relation", schema=shape["schema"], table=shape["table"])
        names = (
            F.concat(F.lit('"'), F.replace(shape[n], F.lit('"'), F.lit('""')), F.lit('"')) for n in ("schema", "table")
        )
        return {
            **told,
            "phase": F.when(ends, Phase.SNAPSHOT).otherwise(told["phase"]),
            "relation": F.when(ends, relation).otherwise(told["relation"]),
            "statement": F.when(ends, F.concat(F.lit("TRUNCATE TABLE "), F.concat_ws(".", *names))),
        }

    def problem(self, body: Stage, row: Column, change: Change) -> Column:
        placeless = change["op"].isin(Op.UPDATE, Op.DELETE) & change["position"].isNull()
        said = F.lit("no lsn: a log that was compacted does not tell in which order")
        return F.coalesce(super().problem(body, row, change), F.when(placeless, said))


# A slash inside a part of a key is doubled; while keys are cut, this stands for the two.
_SLASH = "\x01"


def _parts(key: Column) -> Column:
    """ARRAY<STRING>: the relation and the values of a key, in their quotes."""
    return F.split(F.replace(key, F.lit("//"), F.lit(_SLASH)), "/")


def _key(relation: Column, identity: Column) -> Column:
    """`"schema"."table"/"value"/...`; NULL is a bare underscore."""

    def joined(texts: Column, separator: str) -> Column:
        return kernel.joined(texts, quote='"', separator=separator, escaped="/", escape="//", null="_")

    place = F.array(relation["schema"], F.coalesce(relation["table"], F.lit("")))
    return F.concat_ws("/", joined(place, "."), joined(F.map_values(identity), "/"))


def _identity(c: Change) -> Column:
    """MAP: the key; without one the whole row, as Electric has it."""
    return F.coalesce(c["key"], F.when(c["op"] == Op.DELETE, c["before"]).otherwise(c["after"]))


def _spelled(image: Column, c: Change) -> Column:
    snapshot = kernel.spelled(image, c["columns"], values.rules(SPELLING, kinds=False))
    stream = kernel.spelled(image, c["columns"], values.rules({**SPELLING, "boolean": "T_F"}, kinds=False))
    return F.when(F.get(c["position"], 0).isNotNull(), stream).otherwise(snapshot)


def _lsn(text: Column) -> Column:
    """DECIMAL of a decimal number, as Electric writes it, or of PostgreSQL's own `16/B374D848`."""
    high, low = (F.conv(F.substring_index(text, "/", n), 16, 10) for n in (1, -1))
    own = F.when(text.rlike("^[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}$"), exact(high) * 4294967296 + exact(low))
    return F.coalesce(exact(text), own)


def _tells_old(c: Change) -> Column:
    """BOOLEAN: is the old row of an update known as far as the new one is?"""
    known = (c["op"] == Op.UPDATE) & kernel.covers(c["before"], c["after"]) & ~moved(c)
    return F.coalesce(known, F.lit(False))


def _phase(c: Change) -> Column:
    ids = F.size(F.coalesce(c["transaction"]["ids"], F.array().cast("array<string>"))) > 0
    told = F.get(c["position"], 0).isNotNull() | ids | F.coalesce(c["phase"] == Phase.STREAM, F.lit(False))
    return F.when(c["op"].isin(*Op.ROWS) & told, Phase.STREAM).when(c["op"] == Op.INSERT, Phase.SNAPSHOT)


def _some(ids: Column) -> Column:
    """The ids; NULL if there are none."""
    return F.when(F.size(ids) > 0, ids)


def _relation(c: Change) -> Column:
    r = c["relation"]
    schema = F.coalesce(r["schema"], r["database"], F.lit("public"))
    return F.when(c["op"].isin(*Op.ROWS), group("relation", schema=schema, table=r["table"]))


def _position(c: Change) -> Column:
    lsn, order = log_place(c), place_in_transaction(c)
    return F.when(c["op"].isin(*Op.ROWS), sequence(lsn, order)).when(c["op"] == Op.UP_TO_DATE, sequence(lsn))


def _transaction(c: Change) -> Column:
    last = F.when(c["transaction"]["last"], F.lit(True))
    return F.when(
        c["op"].isin(*Op.ROWS),
        group("transaction", ids=_some(c["transaction"]["ids"]), order=place_in_transaction(c), last=last),
    )
