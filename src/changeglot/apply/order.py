"""One total order of a source's changes, as text that sorts: by it alone, never by chance or by the clock.

1. A snapshot's row comes before every change of the stream: it may be older than what the stream has told. A source
   that knows at which position it read a row says so, and the row comes there.
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
#: STRUCT<position ARRAY<DECIMAL(20, 0)>, epoch INT>: at which position of which log a row was read.
READ = "__read"


def order(change: Change, place: Column, read: Column | None = None) -> Column:
    """STRING, never NULL: sorts as the changes are ordered; `place` is text that sorts as the transport does.

    `read`: a READ of a source that knows the position of every row.
    """
    if read is None:
        first, position = F.when(change["phase"] == Phase.SNAPSHOT, "0").otherwise("1"), change["position"]
    else:
        # Of a number a letter comes first, which sorts after a digit.
        first = F.when(read["epoch"] > 0, number(read["epoch"].cast("string"))).otherwise("1")
        position = F.coalesce(change["position"], read["position"])
    # A space sorts before a dot, and a dot before a letter: a shorter position before those that it begins.
    return F.concat_ws(
        " ",
        first,
        F.coalesce(kernel.sortable(position), F.lit("")),
        F.coalesce(number(change["transaction"]["order"].cast("string")), F.lit("")),
        place,
    )


def place(*numbers: Column) -> Column:
    """STRING that sorts as the numbers do, one after the other."""
    return F.concat_ws(".", *(number(each.cast("string")) for each in numbers))


def number(digits: Column) -> Column:
    """STRING that sorts as the number does, which is whole and not negative: a letter for how long it is before it."""
    return F.concat(F.chr(F.length(digits) + 64), digits)
