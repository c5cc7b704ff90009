"""Current rows: a mirror of the source's table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from changeglot.apply.order import ORDER
from changeglot.apply.rows import CARRIED, GONE, SINCE, given, s, t

#: Of a soft delete: true in rows that the source no longer has.
DELETED = "__deleted"


def columns(of: Mapping[str, str], *, soft: bool) -> dict[str, str]:
    """The table's columns: the source's, and what applying needs."""
    return {**of, ORDER: "string", **({DELETED: "boolean"} if soft else {})}


def merge(rows: DataFrame, table: str, key: Sequence[str], of: Mapping[str, str], *, soft: bool) -> None:
    """Each row's last state laid into the table, unless the table has a later one.

    Columns that a row does not carry keep what is stored; after an end of the row within the batch there is nothing to
    keep.
    """
    same = F.lit(True)
    for name in key:
        same = same & (s(name) == t(name))
    later = s(ORDER) > t(ORDER)
    carried = {name: F.array_contains(s(CARRIED), name) | s(SINCE).isNotNull() for name in of}
    put = {name: F.when(carried[name], s(name)).otherwise(t(name)) for name in of if name not in key}
    put[ORDER] = s(ORDER)
    new = {**{name: s(name) for name in of}, ORDER: s(ORDER)}
    writer = given(rows).mergeInto(table, same)
    if soft:
        writer = writer.whenMatched(later & s(GONE)).update({ORDER: s(ORDER), DELETED: F.lit(True)})
        put |= {name: F.when(carried[name] | t(DELETED), s(name)).otherwise(t(name)) for name in put if name in of}
        put[DELETED] = F.lit(False)
        new[DELETED] = s(GONE)
        writer = writer.whenMatched(later).update(put).whenNotMatched().insert(new)
    else:
        writer = writer.whenMatched(later & s(GONE)).delete().whenMatched(later).update(put)
        writer = writer.whenNotMatched(~s(GONE)).insert(new)
    writer.merge()
