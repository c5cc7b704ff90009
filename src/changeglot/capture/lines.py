"""Lines of the spool as changes: what `spool.py` says of them, in expressions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import Column
from pyspark.sql import functions as F

from changeglot import kernel, values
from changeglot.codecs.base import Decoder, Stage
from changeglot.columns import EXACT, at_micros, filled, lookup
from changeglot.model import Change, Op, Phase, change, group

RELATION = f"""
    origin: STRUCT<kind: STRING, version: STRING, name: STRING>, database: STRING, schema: STRING, table: STRING,
    columns: {kernel.COLUMNS}, key: ARRAY<STRING>
"""
OPS: dict[str, str] = {
    "r": Op.INSERT,
    "c": Op.TRUNCATE,
    "e": Op.SNAPSHOT_END,
    "i": Op.INSERT,
    "u": Op.UPDATE,
    "d": Op.DELETE,
    "t": Op.TRUNCATE,
    "q": Op.DDL,
    "m": Op.HEARTBEAT,
}
# Fields of a line before its values; of a snapshot's row there are fewer.
_OP, _RELATION, _POSITION, _ORDER, _LAST, _TRANSACTION, _COMMITTED, _FACTS, _OLD, _VALUES = range(10)
_ROW = 3
#: Lines of a snapshot.
SNAPSHOT = ("r", "c", "e")
#: What is said in the values of a message, and of the end of a snapshot's rows.
_MESSAGE, _END = ("message.prefix", "message.content"), ("electric.xmin", "electric.xmax", "electric.xip_list")


@dataclass(frozen=True)
class Lines(Decoder):
    """A message's key is its relation, as the spool keeps it; the value is a line."""

    name = "capture"

    #: The kernel's rule for each family of types, by which the database's texts are read.
    spelling: Mapping[str, str] = field(hash=False)

    def read(self, key: Column) -> Column:
        body = kernel.read(key, f"snapshot: ARRAY<{EXACT}>, epoch: INT")
        return F.struct(body["snapshot"].alias("position"), F.coalesce(body["epoch"], F.lit(0)).alias("epoch"))

    def body(self, message: Stage) -> Stage:
        line = message["value"].cast("string")
        read = F.left(line, F.lit(1)).isin(*SNAPSHOT)
        return {
            "body": kernel.read(F.coalesce(message["key"], F.lit(b"{}")), RELATION),
            # What is behind the last of them stays one text.
            "head": F.when(read, F.split(line, "\t", _ROW + 1)).otherwise(F.split(line, "\t", _VALUES + 1)),
        }

    def opened(self, body: Stage) -> Stage:
        word = F.get(body["head"], _OP)
        read = word.isin(*SNAPSHOT)
        told = F.when(read, F.get(body["head"], _ROW)).otherwise(F.get(body["head"], _VALUES))
        facts = F.when(~read, filled(F.get(body["head"], _FACTS)))
        return {
            "word": word,
            "values": told,
            "facts": kernel.read(facts.cast("binary"), "`rest=*arcion.source.`: MAP<STRING, STRING>"),
        }

    def op(self, body: Stage) -> Column:
        return lookup(OPS, body["word"])

    def columns(self, body: Stage, row: Column, op: Column) -> Column:
        return F.when(op.isin(*Op.ROWS), body["body"]["columns"])

    def images(self, body: Stage, row: Column, op: Column, columns: Column) -> tuple[Column, Column]:
        rules, told = values.rules(self.spelling, kinds=False), body["values"]
        old = F.when(op == Op.DELETE, kernel.fields(told, columns, F.lit(0))).when(
            (op == Op.UPDATE) & (F.get(body["head"], _OLD) != ""), kernel.fields(told, columns, F.size(columns))
        )
        new = F.when(op.isin(Op.INSERT, Op.UPDATE), kernel.fields(told, columns, F.lit(0)))
        return kernel.canonical(old, columns, rules), kernel.canonical(new, columns, rules)

    def change(self, body: Stage, op: Column, columns: Column, before: Column, after: Column) -> Change:
        b, head, word = body["body"], body["head"], body["word"]
        read = word.isin(*SNAPSHOT)
        # In steps of two, as Electric has it: a change of a row's key is told as two in many formats.
        order = F.when(~read, F.get(head, _ORDER)).try_cast("bigint") * 2
        numbers = F.split(F.when(~read, F.get(head, _POSITION)), "[.]").cast(f"array<{EXACT}>")
        transaction = filled(F.when(~read, F.get(head, _TRANSACTION)))
        message, end = (F.split(F.when(word == each, body["values"]), "\t") for each in ("m", "e"))
        return change(
            op=op,
            phase=F.when(read, Phase.SNAPSHOT).otherwise(Phase.STREAM),
            relation=F.when(
                b["table"].isNotNull(), group("relation", **{n: b[n] for n in ("database", "schema", "table")})
            ),
            key=F.when(
                op.isin(*Op.ROWS), kernel.pick(before, after, F.nullif(b["key"], F.array().cast("array<string>")))
            ),
            before=before,
            after=after,
            columns=columns,
            position=F.concat(numbers, F.array(order.cast(EXACT))),
            transaction=group(
                "transaction",
                ids=F.when(transaction.isNotNull(), F.array(transaction)),
                order=order,
                last=F.when(~read, F.get(head, _LAST) == "1"),
            ),
            committed_at=at_micros(F.when(~read, F.get(head, _COMMITTED)).try_cast("bigint")),
            origin=b["origin"],
            statement=F.when(word == "q", body["values"]).when(op == Op.TRUNCATE, _truncate(b)),
            extra=kernel.note(
                body["facts"]["rest"],
                {
                    **{name: kernel.quote(F.get(message, n)).cast("string") for n, name in enumerate(_MESSAGE)},
                    # JSON already.
                    **{name: F.get(end, n) for n, name in enumerate(_END)},
                },
            ),
        )

    def problem(self, body: Stage, row: Column, change: Change) -> Column:
        image = F.when(change["op"] == Op.DELETE, change["before"]).otherwise(change["after"])
        return (
            F.when(change["op"].isNull(), F.lit("no line of a spool"))
            .when(
                change["op"].isin(*Op.ROWS) & body["body"]["table"].isNull(), F.lit("of a relation that is not known")
            )
            .when(change["op"].isin(*Op.ROWS) & image.isNull(), F.lit("fewer values than columns"))
            .when(~body["word"].isin(*SNAPSHOT) & change["position"].isNull(), F.lit("no position"))
        )


def _truncate(relation: Column) -> Column:
    """STRING: the statement that says it, in the database's words; logs tell none, or one of many forms."""
    mark = F.when(relation["origin"]["kind"] == "postgresql", F.lit('"')).otherwise(F.lit("`"))
    parts = (F.coalesce(relation["schema"], relation["database"]), relation["table"])
    names = (F.concat(mark, F.replace(part, mark, F.concat(mark, mark)), mark) for part in parts)
    return F.concat(F.lit("TRUNCATE TABLE "), F.concat_ws(".", *names))
