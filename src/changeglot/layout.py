"""Lays a codec's expressions out as stages of a DataFrame: decode, encode, translate, detect.

Each stage is a `select` of its own: Spark then computes what it holds once, and generates code for all of it. Batch and
streaming alike: there is no action in here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, reduce
from operator import methodcaller
from typing import Any

from pyspark import SparkContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.utils import is_remote

from changeglot import kernel
from changeglot.codecs import CODECS, SEEN, codec, evidence, format_of
from changeglot.codecs.base import Codec, Decoder, Stage, half, lost
from changeglot.columns import quoted
from changeglot.errors import ConfigError
from changeglot.model import CHANGE, COLUMNS, VERDICT, Change
from changeglot.tables import Tables

#: Options by format and name. Any: values as a person writes them.
Options = Mapping[str, Mapping[str, Any]]
#: What makes one DataFrame of another.
Step = Callable[[DataFrame], DataFrame]

# Names of the columns that the stages pass on.
_KEY, _VALUE, _FORMAT, _ORDINAL, _ROW = "__key", "__value", "__format", "__ordinal", "__row"
_COLUMNS, _BEFORE, _AFTER, _PROBLEM, _PART = (
    "__declared",
    "__old_row",
    "__new_row",
    "__wrong",
    "__part",
)
_OP = "__op"
_NO_FORMAT = "not a message of any format"


def decode(
    messages: DataFrame,
    format: str = "auto",
    *,
    tables: Tables | None = None,
    options: Options | None = None,
) -> DataFrame:
    """The changes that the messages tell, a row each: CHANGE's fields, VERDICT's, and the other columns of `messages`.

    `messages` has a column `value` (BINARY or STRING) and maybe `key`. A message that cannot be read gives one row with
    a `problem` and the message in `raw`; one that says nothing (empty, or a tombstone) gives none.
    """
    if format == "auto":
        return _decode(messages, [codec(name, options, tables) for name in CODECS], auto=True)
    return decode_by(codec(format, options, tables), messages)


def decode_by(decoder: Decoder, messages: DataFrame) -> DataFrame:
    """What `decode` gives, of messages that all are the decoder's."""
    return _decode(messages, [decoder], auto=False)


def _others(df: DataFrame) -> list[str]:
    return [name for name in df.columns if name not in ("key", "value")]


def _messages(df: DataFrame) -> DataFrame:
    if "value" not in df.columns:
        raise ConfigError("messages", "no column `value`", hint="Kafka's rows and lines of text have one.")
    clash = set(_others(df)) & {*CHANGE.fieldNames(), *VERDICT.fieldNames(), "lost", "spoken", "part"}
    if clash:
        raise ConfigError(
            "messages",
            f"a column is named `{min(clash)}`, as one of a change",
            hint="Rename it first.",
        )
    kernel.prepare(df.sparkSession)
    key = F.col("key").cast("binary") if "key" in df.columns else F.lit(None).cast("binary")
    others = [F.col(quoted(name)) for name in _others(df)]
    value = F.col("value").cast("binary")
    kept = df.select(*others, key.alias(_KEY), value.alias(_VALUE))
    return kept.where(F.octet_length(_VALUE) > 0)


def _seen(codecs: Mapping[str, Codec]) -> tuple[Step, Step]:
    """To the messages comes what is seen of them, and the format that this makes them."""
    bare = F.when(F.col(_VALUE) == F.lit(b"default"), F.lit(b'"default"')).otherwise(F.col(_VALUE))
    seen = methodcaller("withColumn", "__seen", kernel.read(bare, SEEN))
    return seen, methodcaller("withColumn", _FORMAT, format_of(codecs, F.col("__seen")))


def _after(df: DataFrame, steps: Iterable[Step]) -> DataFrame:
    return reduce(lambda made, step: step(made), steps, df)


def _case(codecs: Mapping[str, Decoder], columns: Mapping[str, Column]) -> Column:
    """The column of the codec that a row's format names; with one codec, its own."""
    if len(codecs) == 1:
        return columns[next(iter(codecs))]
    found: Column | None = None
    for name in codecs:
        hit = F.col(_FORMAT) == name
        found = F.when(hit, columns[name]) if found is None else found.when(hit, columns[name])
    assert found is not None
    return found


def _held(column: Column) -> Column:
    """The column, below which Spark pushes no filter: it would compute all of the column for the filter once more."""
    # Always true, but not deterministic.
    return F.when(F.spark_partition_id() >= 0, column)


def _decode(messages: DataFrame, decoders: Iterable[Decoder], *, auto: bool) -> DataFrame:
    # Columns live in a JVM, or in none.
    steps, told = _stages(tuple(decoders), auto, (is_remote(), SparkContext._gateway))
    return _after(_messages(messages), steps).select(*told, *(F.col(quoted(name)) for name in _others(messages)))


@lru_cache(maxsize=100)
def _stages(decoders: tuple[Decoder, ...], auto: bool, _home: object) -> tuple[list[Step], tuple[Column, ...]]:
    """What makes changes of messages, and then the columns to take: made once for each home of columns.

    Python says every part of an expression to the JVM: that takes longer than what Spark then does with it.
    """
    codecs = {each.name: each for each in decoders}
    message: Stage = {"key": F.col(_KEY), "value": F.col(_VALUE)}
    steps: list[Step] = []
    unread: Column = F.lit(None).cast("string")
    if auto:
        unknown = F.when(F.col(_FORMAT).isNull(), F.lit(_NO_FORMAT))
        steps += _seen({name: each for name, each in codecs.items() if isinstance(each, Codec)})
        steps.append(methodcaller("withColumn", "__unread", F.coalesce(F.col("__seen")["problem"], unknown)))
        steps.append(methodcaller("drop", "__seen"))
        unread = F.col("__unread")
    else:
        steps.append(methodcaller("withColumn", _FORMAT, F.lit(next(iter(codecs)))))

    # What the message holds.
    bodies: dict[str, Stage] = {}
    read: dict[str, Column] = {}
    for name, each in codecs.items():
        bodies[name] = {}
        for part, column in each.body(message).items():
            place = f"__{name}_{part}"
            read[place] = _held(F.when(F.col(_FORMAT) == name, column) if auto else column)
            bodies[name][part] = F.col(place)
    steps.append(methodcaller("withColumns", read))
    for name, each in codecs.items():
        silent = each.silent(bodies[name])
        if silent is not None:
            steps.append(methodcaller("where", ~F.coalesce(silent, F.lit(False))))

    opened: dict[str, Column] = {}
    for name, each in codecs.items():
        for part, column in each.opened(bodies[name]).items():
            opened[f"__{name}_{part}"] = column
            bodies[name][part] = F.col(f"__{name}_{part}")
    if opened:
        steps.append(methodcaller("withColumns", opened))

    # One row a change.
    rows = {name: array for name, each in codecs.items() if (array := each.rows(bodies[name])) is not None}
    if rows:
        (name, array), *more = rows.items()
        assert not more, "rows of two formats have two types"
        array = F.when(F.col(_FORMAT) == name, array) if auto else array
        steps.append(methodcaller("select", "*", F.posexplode_outer(array).alias(_ORDINAL, _ROW)))
        bodies[name]["ordinal"] = F.col(_ORDINAL)
    else:
        steps.append(methodcaller("withColumns", {_ORDINAL: F.lit(None).cast("int"), _ROW: F.lit(None)}))
    row = F.col(_ROW)

    ops = {name: each.op(bodies[name]) for name, each in codecs.items()}
    steps.append(methodcaller("withColumn", _OP, _case(codecs, ops)))
    op = F.col(_OP)
    found = {name: each.columns(bodies[name], row, op) for name, each in codecs.items()}
    steps.append(methodcaller("withColumn", _COLUMNS, _case(codecs, found)))
    images = {name: each.images(bodies[name], row, op, F.col(_COLUMNS)) for name, each in codecs.items()}
    both = {
        _BEFORE: _case(codecs, {name: pair[0] for name, pair in images.items()}),
        _AFTER: _case(codecs, {name: pair[1] for name, pair in images.items()}),
    }
    steps.append(methodcaller("withColumns", both))

    before, after = F.col(_BEFORE)["values"], F.col(_AFTER)["values"]
    changes = {name: each.change(bodies[name], op, F.col(_COLUMNS), before, after) for name, each in codecs.items()}
    fields = CHANGE.fieldNames()
    cases = {f"__c_{field}": _case(codecs, {n: c[field] for n, c in changes.items()}) for field in fields}
    steps.append(methodcaller("withColumns", cases))
    told: Change = {field: F.col(f"__c_{field}") for field in fields}
    wrong = {name: each.problem(bodies[name], row, told) for name, each in codecs.items()}
    unreadable = _case(codecs, {name: body["body"]["problem"] for name, body in bodies.items()})
    images_bad = F.coalesce(F.col(_BEFORE)["problem"], F.col(_AFTER)["problem"])
    problem = F.coalesce(unread, unreadable, images_bad, _case(codecs, wrong))
    steps.append(methodcaller("withColumn", _PROBLEM, _held(problem)))

    good, bad = F.col(_PROBLEM).isNull(), F.col(_PROBLEM).isNotNull()
    raw = F.struct(F.col(_KEY).alias("key"), F.col(_VALUE).alias("value"))
    taken = (
        *(F.when(good, told[field]).alias(field) for field in fields),
        F.col(_FORMAT).alias("format"),
        F.coalesce(F.col(_ORDINAL), F.lit(0)).alias("ordinal"),
        F.col(_PROBLEM).alias("problem"),
        F.when(bad, raw).alias("raw"),
    )
    return steps, taken


def encode(
    changes: DataFrame,
    format: str,
    *,
    tables: Tables | None = None,
    options: Options | None = None,
) -> DataFrame:
    """The messages that tell the changes: `key`, `value` (BINARY), `spoken`, `part`, `lost`, `problem`, `raw`, others.

    `changes` is what decode gives, or lines of a change log.
    `spoken` is true for a message to send; `part` tells which of its change's messages it is, from 0. A change that the
    format has no word for, and a row with a `problem`, passes through with no message and `spoken` false. `lost` names
    the fields of the change that the format does not carry.
    """
    each = codec(format, options, tables)
    kernel.prepare(changes.sparkSession)
    own = set(CHANGE.fieldNames())
    if missing := own - set(changes.columns):
        raise ConfigError("changes", f"no column `{min(missing)}`", hint="Pass what decode gives, or a change log.")
    if changes.schema["columns"].dataType == T.StringType():
        # So a change log has them.
        changes = changes.withColumn("columns", F.from_json("columns", COLUMNS))
    others = [n for n in changes.columns if n not in own | set(VERDICT.fieldNames())]
    change: Change = {field: F.col(quoted(field)) for field in CHANGE.fieldNames()}

    staged = changes
    for name in ("problem", "raw"):
        if name not in staged.columns:
            staged = staged.withColumn(name, F.lit(None).cast(VERDICT[name].dataType))
    spoken = F.coalesce(each.tells(change), F.lit(False)) & F.col("problem").isNull()
    told = {field: column for field, column in each.told(change).items() if field not in change}
    staged = staged.withColumns({"__spoken": spoken, **{f"__t_{field}": column for field, column in told.items()}})
    change |= {field: F.col(f"__t_{field}") for field in told}
    staged = staged.withColumn("__lost", F.when(F.col("problem").isNull(), lost(each, change)))
    parts = each.parts(change)
    part: Change = change
    if parts is not None:
        words = F.when(F.col("__spoken"), parts).otherwise(F.array(F.lit("")))
        staged = staged.select("*", F.posexplode(words).alias("__n", _PART))
        halves = half(change, F.col(_PART))
        halved = [field for field in ("op", "key", "before", "after", "old", "new") if field in halves]
        staged = staged.withColumns({f"__c_{field}": halves[field] for field in halved})
        part = {**halves, **{field: F.col(f"__c_{field}") for field in halved}}
    else:
        staged = staged.withColumns({"__n": F.lit(0), _PART: F.lit("")})
    staged = staged.withColumn(_COLUMNS, each.declared(part))
    key, value = each.message(part, F.col(_COLUMNS), F.col(_PART), change)
    nothing = F.array().cast("array<string>")
    return staged.select(
        F.when(F.col("__spoken"), key).alias("key"),
        F.when(F.col("__spoken"), value).alias("value"),
        F.col("__spoken").alias("spoken"),
        F.col("__n").alias("part"),
        F.when(F.col("__n") == 0, F.coalesce(F.col("__lost"), nothing)).otherwise(nothing).alias("lost"),
        "problem",
        "raw",
        *(F.col(quoted(name)) for name in others),
    )


def translate(
    messages: DataFrame,
    to: str,
    format: str = "auto",
    *,
    tables: Tables | None = None,
    options: Options | None = None,
) -> DataFrame:
    """The messages told in the format `to`: what encode gives of what decode gives."""
    return encode(decode(messages, format, tables=tables, options=options), to, tables=tables, options=options)


def detect(messages: DataFrame) -> DataFrame:
    """`messages` with `format`, the name of each one's format or NULL, and `evidence`, the members that prove it."""
    codecs = {name: codec(name) for name in CODECS}
    others = [F.col(quoted(name)) for name in _others(messages)]
    seen = _after(_messages(messages), _seen(codecs))
    why = F.coalesce(
        evidence(codecs, F.col("__seen"), F.col(_FORMAT)),
        F.col("__seen")["problem"],
        F.lit(_NO_FORMAT),
    )
    return seen.select(
        *others,
        F.col(_KEY).alias("key"),
        F.col(_VALUE).alias("value"),
        F.col(_FORMAT).alias("format"),
        why.alias("evidence"),
    )
