"""Current rows: a mirror of the source's table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from changeglot.apply.order import ORDER
from changeglot.apply.rows import CARRIED, GONE, ORDERS, SINCE, TOLD, given, s, sets, t

#: Of a soft delete: true in rows that the source no longer has.
DELETED = "__deleted"
#: The column of a table that had rows of which not all was told at once: when each of the other columns was told.
#: Tables of sources that always tell whole rows do not have it.
PARTS = {ORDERS: "map<string,string>"}


def columns(of: Mapping[str, str], *, soft: bool) -> dict[str, str]:
    """The table's columns: the source's, and what applying needs."""
    return {**of, ORDER: "string", **({DELETED: "boolean"} if soft else {})}


def merge(
    rows: DataFrame,
    table: str,
    same: Column,
    key: Sequence[str],
    of: Mapping[str, str],
    *,
    soft: bool,
    parts: bool,
    whole: bool = False,
) -> None:
    """Each row's last state laid into the table; nothing is laid over what was told later.

    With `whole` the rows are as `rows.last` gives them, else as `rows.folded` does. Columns that a row does not carry
    keep what is stored, unless it began anew. With `parts` the table has PARTS, and each column is decided by when it
    was told: a change that comes late still fills what no later one has told.
    """
    later = s(ORDER) > t(ORDER)
    carried = {name: F.array_contains(s(CARRIED), name) for name in of}
    anew = s(SINCE).isNotNull() | (t(DELETED) if soft else F.lit(False))
    others = [name for name in of if name not in key]
    put = {name: s(name) if whole else F.when(carried[name] | anew, s(name)).otherwise(t(name)) for name in others}
    put[ORDER] = s(ORDER)
    new = {**{name: s(name) for name in of}, ORDER: s(ORDER)}
    gone: dict[str, Column] = {ORDER: s(ORDER), DELETED: F.lit(True)}
    if soft:
        put[DELETED] = F.lit(False)
        new[DELETED] = s(GONE)
    if parts:
        put[ORDERS] = F.lit(None).cast(PARTS[ORDERS])
        gone[ORDERS] = put[ORDERS]
        new[ORDERS] = F.when(~s(TOLD), _orders({n: _told(n, carried[n]) for n in put if n in of}, s(ORDER)))
    writer = given(rows).mergeInto(table, same)
    over = writer.whenMatched(later & s(GONE))
    writer = over.update(sets(gone)) if soft else over.delete()
    writer = writer.whenMatched(later & s(TOLD) if parts else later).update(sets(put))
    if parts:
        writer = writer.whenMatched(later | t(ORDERS).isNotNull()).update(sets(_by_column(put, of, carried, soft=soft)))
    writer = writer.whenNotMatched().insert(sets(new)) if soft else writer.whenNotMatched(~s(GONE)).insert(sets(new))
    writer.merge()


def _told(name: str, carried: Column) -> Column:
    """When the given row tells the column: NULL if it does not. A row that began anew tells that there is nothing."""
    return F.when(carried, F.coalesce(s(ORDERS)[name], s(ORDER))).otherwise(s(SINCE))


def _orders(told: Mapping[str, Column], order: Column) -> Column:
    """When each column was told, of those that were not told at `order`; never: the empty text."""
    # Without a lambda: in one, Iceberg's merge does not find the columns.
    whens = {name: F.coalesce(when, F.lit("")) for name, when in told.items()}
    each = (F.when(when != order, F.struct(F.lit(name), when)) for name, when in whens.items())
    some = F.array_compact(F.array(*each))
    return F.when(F.size(some) > 0, F.map_from_entries(some))


def _by_column(
    put: Mapping[str, Column], of: Mapping[str, str], carried: Mapping[str, Column], *, soft: bool
) -> dict[str, Column]:
    order = F.greatest(s(ORDER), t(ORDER))
    found: dict[str, Column] = {}
    told: dict[str, Column] = {}
    for name in (name for name in put if name in of):
        now, before = _told(name, carried[name]), F.coalesce(t(ORDERS)[name], t(ORDER))
        takes = F.coalesce(now > before, F.lit(False))
        if soft:
            takes = takes | (t(DELETED) & (s(ORDER) > t(ORDER)))
        found[name] = F.when(takes, s(name)).otherwise(t(name))
        told[name] = F.when(takes, now).otherwise(before)
    found |= {ORDER: order, ORDERS: _orders(told, order)}
    if soft:
        found[DELETED] = F.when(s(ORDER) > t(ORDER), F.lit(False)).otherwise(t(DELETED))
    return found
