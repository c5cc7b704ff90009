"""Electric's shape logs as a source of Spark: of a real Electric, or of `changeglot serve`.

A stream's offsets, in its checkpoint, are of each shape its handle, its offset and its epoch. The log of a handle never
changes: what is between two offsets of it is the same however often it is asked for, and after whatever crash.

A handle may die (409, must-refetch). What its log told since is lost then, but not what the rows are: they are read
again under another handle, and what the mirror has and is not among them is gone. So three things hold:

- *An epoch is one reading from the first row on.* It has a number, greater than all before, that orders its messages
  after all of theirs. It begins with a must-refetch, which ends all rows of earlier ones: the first epoch too, since a
  lost checkpoint looks the same. Rows that are read again are of a newer epoch, and stay.
- *A batch that begins an epoch after another goes to the end of the log*, as it was when the batch was planned. Rows
  and what ends those that are gone come in one batch, and a snapshot older than what the mirror had does no harm.
- *A handle that dies between planning and reading leaves its batch short*, down to nothing, and never fails it: what
  the batch lacks is in the rows of the next epoch, which the next batch begins, since the handle is refused then too.
  So that nothing is ended whose rows did not come, the must-refetch is given last, when all else was read. Its place
  orders it first. A run that ends looks once more whether its handles live before it does.

What is given to Spark is an answer of the server as it came, a row each: the JVM takes it apart.
"""

from __future__ import annotations

from importlib.util import find_spec

from pyspark.sql import SparkSession

from changeglot.electric.datasource import ShapeSource
from changeglot.errors import MissingError


def register(spark: SparkSession) -> None:
    """Makes `format("changeglot-electric")` known to the session."""
    if find_spec("pyarrow") is None:
        raise MissingError(
            "Spark's data sources in Python need pyarrow, which is not installed",
            hint="pip install 'changeglot[electric]', here and wherever Spark's workers run.",
        )
    spark.dataSource.register(ShapeSource)
