"""One total order of a source's changes, as text that sorts: by it alone, never by chance or by the clock.

1. A snapshot's row comes before every change of the stream: it may be older than what the stream has told.
2. The position in the source's log.
3. The order within the transaction.
4. The transport's own place: what came later in a file or a partition is later.

A format without positions is ordered by the transport alone. That is right as long as the transport keeps the changes
of one row in order, as a partitioned topic does and a folder of files in the order they were written.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from changeglot import kernel
from changeglot.model import Change, Phase

#: Columns that every applied table has beside the source's own.
ORDER = "__order"


def order(change: Change, place: Column) -> Column:
    """STRING, never NULL: sorts as the changes are ordered; `place` is text that sorts as the transport does."""
    snapshot = F.when(change["phase"] == Phase.SNAPSHOT, "0").otherwise("1")
    # A space sorts before a dot, and a dot before a letter: a shorter position before those that it begins.
    return F.concat_ws(
        " ",
        snapshot,
        F.coalesce(kernel.sortable(change["position"]), F.lit("")),
        F.coalesce(number(change["transaction"]["order"].cast("string")), F.lit("")),
        place,
    )


def place(*numbers: Column) -> Column:
    """STRING that sorts as the numbers do, one after the other."""
    return F.concat_ws(".", *(number(each.cast("string")) for each in numbers))


def number(digits: Column) -> Column:
    """STRING that sorts as the number does, which is whole and not negative: a letter for how long it is before it."""
    return F.concat(F.chr(F.length(digits) + 64), digits)
