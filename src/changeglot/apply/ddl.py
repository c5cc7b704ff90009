"""What a statement of SQL changes in a table's columns.

Statements are text of strangers: nothing of them is run, and only so much of one is read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

LONGEST = 64 * 1024
_DIALECTS = {
    "mysql": "mysql",
    "mariadb": "mysql",
    "oceanbase": "mysql",
    "tidb": "mysql",
    "postgresql": "postgres",
    "postgres": "postgres",
    "oracle": "oracle",
    "sqlserver": "tsql",
    "sybase_ase": "tsql",
}


@dataclass(frozen=True)
class Amendment:
    """A column that has another name now, or is gone: `now` None. `order`: where among the changes that happened."""

    order: str
    was: str
    now: str | None


def amendments(statement: str, order: str, source: str | None = None) -> list[Amendment] | None:
    """The renames and drops that the statement tells, in its order; None if it cannot be read.

    Columns that it adds, and their types, are told by the rows that have them.

    >>> amendments("ALTER TABLE t RENAME COLUMN a TO b, DROP COLUMN c, ADD d INT", "7", "mysql")
    [Amendment(order='7', was='a', now='b'), Amendment(order='7', was='c', now=None)]
    >>> amendments("ALTER TABLE t CHANGE `a b` `c` INT", "7")
    [Amendment(order='7', was='a b', now='c')]
    >>> amendments("DROP TABLE t", "7"), amendments("ALTER ALTER", "7")
    ([], None)
    >>> amendments("ALTER TABLE T RENAME COLUMN a TO B", "7", "oracle")
    [Amendment(order='7', was='A', now='B')]
    """
    import sqlglot
    from sqlglot import exp

    # It tells each statement that it cannot read.
    logging.getLogger("sqlglot").setLevel(logging.CRITICAL)
    if len(statement) > LONGEST:
        return None
    dialect = _DIALECTS.get((source or "").lower(), "mysql")
    try:
        parsed = sqlglot.parse(statement, read=dialect)
    except (sqlglot.errors.SqlglotError, RecursionError):
        return None
    if not parsed or any(each is None or isinstance(each, exp.Command) for each in parsed):
        return None
    return [
        Amendment(order, was, now)
        for each in parsed
        if isinstance(each, exp.Alter)
        for was, now in _actions(each.args.get("actions") or [], dialect)
    ]


def _actions(actions: Sequence[Any], dialect: str) -> Iterator[tuple[str, str | None]]:
    """Any: the library's tree has no types that say more."""
    from sqlglot import exp

    def name(of: Any) -> str:
        """As the database stores it: some change the case of a name without quotes."""
        identifier = of.find(exp.Identifier)
        case = {"oracle": str.upper, "postgres": str.lower}.get(dialect, str)
        return str(identifier.name if identifier.args.get("quoted") else case(identifier.name))

    for action in actions:
        if isinstance(action, exp.RenameColumn):
            yield name(action.this), name(action.args["to"])
        elif isinstance(action, exp.Drop) and action.args.get("kind") == "COLUMN":
            for column in action.args.get("tables") or [action.this]:
                yield name(column), None
        elif isinstance(action, exp.ModifyColumn) and action.args.get("rename_from") is not None:
            was, now = name(action.args["rename_from"]), name(action.this)
            if was != now:
                yield was, now


def amended(rows: DataFrame, images: Sequence[str], order: str, amendments: Sequence[Amendment]) -> DataFrame:
    """The rows, those from before an amendment with the names that it gave; `order` and `images` name columns."""
    return rows.withColumns({image: renamed(F.col(image), F.col(order), amendments) for image in images})


def renamed(image: Column, order: Column, amendments: Sequence[Amendment]) -> Column:
    """The image of a change of that order, under the names that later amendments gave."""
    if not amendments:
        return image
    # One step after the other in one expression: each nested in the next, it would grow threefold by every one of them.
    steps = F.array(
        *(
            F.struct(
                F.lit(each.order).alias("order"),
                F.lit(each.was).alias("was"),
                F.lit(each.now).cast("string").alias("now"),
            )
            for each in amendments
        )
    )
    return F.reduce(
        steps, image, lambda found, step: F.when(order < step["order"], _renamed(found, step)).otherwise(found)
    )


def _renamed(image: Column, by: Column) -> Column:
    # Where the row has both, the new name's value stands.
    gone = by["now"].isNull() | F.map_contains_key(image, F.coalesce(by["now"], by["was"]))
    free = F.map_filter(image, lambda name, _: (name != by["was"]) | ~gone)
    return F.transform_keys(free, lambda name, _: F.when(name == by["was"], by["now"]).otherwise(name))
