"""Which tables become what: by name, with only some rows or columns, under other names, or masked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from changeglot import kernel
from changeglot.apply import types
from changeglot.errors import ConfigError
from changeglot.model import Op
from changeglot.options import choice, option, words
from changeglot.tables import matches

MASKS: dict[str, Callable[[Column], Column]] = {
    "sha256": lambda text: F.sha2(text, 256),
    "redact": lambda text: F.when(text.isNotNull(), F.lit("***")),
    "null": lambda text: F.nullif(text, text),
}
#: Words that stand for parts of a table's name.
WORDS = re.compile(r"\{(database|schema|table)\}")
IMAGES = ("key", "before", "after")
# What would let a filter do more than look at a row.
_FORBIDDEN = ("reflect", "java_method", "try_reflect", "input_file_name")


@dataclass(frozen=True)
class Rule:
    """What becomes of the tables that it matches."""

    match: str = option("database.table or database.schema.table; * and ? stand for any", example="shop.*")
    mode: tuple[Literal["scd1", "scd2", "append"], ...] = option(
        "scd1: current rows; scd2: history; append: the change log; or several", ("scd1",)
    )
    keys: tuple[str, ...] = option("columns of the key; else as the messages say", ())
    columns: Mapping[str, str] = words("types of columns, in the source's words, over what the messages say")
    into: str = option("table in the sink; {database}, {schema} and {table} stand for the source's", "")
    delete: Literal["hard", "soft"] = option("of scd1: deleted rows go, or stay with __deleted true", "hard")
    track: tuple[str, ...] = option("of scd2: columns a change of which begins a version; else all", ())
    filter: str = option("rows to take: a condition of SQL on the table's columns", "", example="country = 'DE'")
    project: tuple[str, ...] = option("columns to take; else all", ())
    rename: Mapping[str, str] = words("names of columns in the sink, by their names in the source")
    mask: Mapping[str, str] = words("columns to hide: sha256, redact or null")

    @property
    def types(self) -> dict[str, str]:
        """Spark's types of the columns that it declares."""
        return {name: types.column_type(kind) for name, kind in self.columns.items()}

    @property
    def shapes(self) -> bool:
        """Are changes other ones when they have passed it?"""
        return bool(self.filter or self.project or self.mask or self.rename)

    def takes(self, name: str) -> bool:
        return matches(self.match, name)

    def place(self, database: str | None, schema: str | None, table: str) -> tuple[str, ...]:
        """Where the table goes.

        >>> Rule("*", into="lake.{database}_{table}").place("shop", None, "my.orders")
        ('lake', 'shop_my.orders')
        """
        known = {"database": database or "", "schema": schema or "", "table": table}
        if not self.into:
            return tuple(part for part in known.values() if part)

        return tuple(filled(part, known) for part in self.into.split("."))

    def check(self, path: str) -> None:
        """Raises what is wrong with it that its types do not tell."""
        for name, how in self.mask.items():
            choice(how, tuple(MASKS), f"{path}.mask.{name}")
            if how != "sha256" and name in self.keys:
                raise ConfigError(f"{path}.mask.{name}", "is in the key, which it would make one", hint="Use sha256.")
        if len(set(self.rename.values())) < len(self.rename):
            raise ConfigError(f"{path}.rename", "gives two columns one name")
        if self.filter:
            names(self.filter, f"{path}.filter")

    def sink_name(self, column: str) -> str:
        return self.rename.get(column, column)

    def sink_columns(self, told: Mapping[str, str | None], key: tuple[str, ...]) -> dict[str, str | None]:
        """The columns that the sink's table is to have, and their types, of those that the changes tell."""
        kept = {n: k for n, k in told.items() if not self.project or n in self.project or n in key}
        hidden = {n: types.TEXT for n, how in self.mask.items() if how != "null"}
        return {self.sink_name(n): hidden.get(n, self.types.get(n, k)) for n, k in kept.items()}


class Ruled:
    """Has rules."""

    rules: tuple[Rule, ...]

    def rule(self, table: str) -> Rule | None:
        """The first that takes the table."""
        return next((rule for rule in self.rules if rule.takes(table)), None)


def filled(text: str, parts: Mapping[str, str | None]) -> str:
    """The text with {database}, {schema} and {table} as they are; nothing for one that is not there."""
    return WORDS.sub(lambda word: parts.get(word[1]) or "", text)


def names(condition: str, path: str = "filter") -> list[str]:
    """The columns that a condition looks at.

    >>> names("country = 'DE' AND amount > 10")
    ['amount', 'country']
    """
    import sqlglot
    from sqlglot import exp

    try:
        tree = sqlglot.parse_one(condition, read="spark")
    except sqlglot.errors.SqlglotError as error:
        raise ConfigError(path, "is no condition of SQL", hint=str(error).splitlines()[0]) from error
    called = {str(each.this).lower() for each in tree.find_all(exp.Anonymous)}
    if tree.find(exp.Query) or called & set(_FORBIDDEN):
        raise ConfigError(path, "may look at the row alone: no queries, no calls of Java")
    return sorted({each.name for each in tree.find_all(exp.Column)})


def routed(changes: DataFrame, rule: Rule, told: Mapping[str, str | None], key: tuple[str, ...]) -> DataFrame:
    """The changes that the rule takes, as it wants them. Nothing is cast before it is filtered."""
    if rule.filter:
        changes = _filtered(changes, rule, told)
    if rule.project:
        wanted = [*rule.project, *key]
        for image in IMAGES:
            changes = changes.withColumn(image, F.map_filter(image, lambda name, _: name.isin(wanted)))
        changes = changes.withColumn("columns", F.filter("columns", lambda column: column["name"].isin(wanted)))
    if rule.mask:
        for image in IMAGES:
            changes = changes.withColumn(image, F.transform_values(image, _masked(rule.mask)))
    if rule.rename:
        for image in IMAGES:
            changes = changes.withColumn(image, F.transform_keys(image, lambda name, _: _renamed(name, rule.rename)))
        named = F.transform("columns", lambda c: c.withField("name", _renamed(c["name"], rule.rename)))
        changes = changes.withColumn("columns", named)
    return changes


def _renamed(name: Column, rename: Mapping[str, str]) -> Column:
    for was, now in rename.items():
        name = F.when(name == was, F.lit(now)).otherwise(name)
    return name


def _masked(mask: Mapping[str, str]) -> Callable[[Column, Column], Column]:
    def masked(name: Column, text: Column) -> Column:
        for column, how in mask.items():
            text = F.when(name == column, MASKS[how](text)).otherwise(text)
        return text

    return masked


def _filtered(changes: DataFrame, rule: Rule, told: Mapping[str, str | None]) -> DataFrame:
    """Rows that come to meet the condition appear, rows that cease to are deleted; what cannot be told is taken."""
    looked = names(rule.filter)
    kinds = {**told, **rule.types}
    fields = changes.columns

    def judged(rows: DataFrame, image: Column, verdict: str) -> DataFrame:
        """Any column of the rows may be named as one of the table's: they are packed away meanwhile."""
        known = reduce(and_, (F.map_contains_key(image, name) for name in looked), F.lit(True))
        typed = (types.value(image[name], kinds.get(name) or types.TEXT).alias(name) for name in looked)
        packed = rows.select(F.struct("*").alias("__change"), known.alias("__known"), *typed)
        met = F.when(F.col("__known"), F.coalesce(F.expr(rule.filter), F.lit(False)))
        return packed.select("__change.*", met.alias(verdict))

    flagged = judged(changes, F.col("before"), "__was")
    flagged = judged(flagged, kernel.overlay(F.col("before"), F.col("after")), "__is")
    was, now = (F.coalesce(F.col(verdict), F.lit(True)) for verdict in ("__was", "__is"))
    op = F.col("op")
    leaves = (op == Op.UPDATE) & ~now & was
    taken = (
        F.when(op == Op.INSERT, now).when(op == Op.UPDATE, now | was).when(op == Op.DELETE, was).otherwise(F.lit(True))
    )
    kept = flagged.where(taken).withColumns(
        {
            "after": F.when(~leaves, F.col("after")),
            "op": F.when(leaves, F.lit(Op.DELETE)).otherwise(op),
        }
    )
    return kept.select(*fields)
