"""Words that Canal and DataWorks share."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

#: What a DDL statement is called, by how it begins. TRUNCATE is an op of its own.
DDL_WORDS = ("CREATE", "ALTER", "ERASE", "RENAME", "CINDEX", "DINDEX", "QUERY")

_BEGINNINGS = {
    "CINDEX": r"CREATE\s+(UNIQUE\s+|FULLTEXT\s+|SPATIAL\s+)?INDEX\b",
    "DINDEX": r"DROP\s+INDEX\b",
    "CREATE": r"CREATE\s+(TEMPORARY\s+)?TABLE\b",
    "ERASE": r"DROP\s+(TEMPORARY\s+)?TABLE\b",
    "RENAME": r"RENAME\s+TABLE\b",
    "ALTER": r"ALTER\s+TABLE\b",
}


def ddl_word(statement: Column) -> Column:
    """STRING, never NULL: QUERY where nothing closer fits."""
    found = F.lit("QUERY")
    for word, pattern in reversed(_BEGINNINGS.items()):
        found = F.when(statement.rlike(rf"(?i)^\s*{pattern}"), F.lit(word)).otherwise(found)
    return found
