"""Expressions that know no format."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F

from changeglot import kernel

EXACT = "DECIMAL(20,0)"


def quoted(*parts: str) -> str:
    """A name of SQL: what is in the parts is a name and nothing else.

    >>> quoted("shop", "a`b")
    '`shop`.`a``b`'
    """
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def lookup(table: Mapping[str, str], word: Column) -> Column:
    """What the table says of the word; NULL if it says nothing."""
    by_meaning: dict[str, list[str]] = {}
    for name, meaning in table.items():
        by_meaning.setdefault(meaning, []).append(name)
    found: Column | None = None
    for meaning, names in by_meaning.items():
        hit = word == names[0] if len(names) == 1 else word.isin(names)
        found = F.when(hit, F.lit(meaning)) if found is None else found.when(hit, F.lit(meaning))
    return F.lit(None).cast("string") if found is None else found


def filled(text: Column) -> Column:
    """The text, NULL if it is empty."""
    return F.when(text != "", text)


def exact(text: Column) -> Column:
    """DECIMAL(20,0) of a text of digits; NULL of any other."""
    return text.try_cast(EXACT)


def sequence(*parts: Column) -> Column:
    """A position of its parts, up to the first that is NULL; NULL without a first."""
    return kernel.leading(F.array(*(part.cast(EXACT) for part in parts)))


# The years 1 to 9999, in microseconds: what Spark, Python and the databases all have.
_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_999


def at_micros(micros: Column) -> Column:
    """TIMESTAMP of a BIGINT of microseconds since 1970; NULL outside the years 1 to 9999."""
    return F.when(micros.between(_FIRST, _LAST), F.timestamp_micros(micros))


def at_millis(millis: Column) -> Column:
    """TIMESTAMP of a BIGINT of milliseconds since 1970; NULL outside the years 1 to 9999."""
    return F.when(millis.between(_FIRST // 1000, _LAST // 1000), F.timestamp_micros(millis * 1000))


def at_number(number: Column, unit: int) -> Column:
    """TIMESTAMP of a text with a number of `unit` microseconds, cut to the microsecond; NULL if it is none."""
    exact_micros = F.try_multiply(number.try_cast("DECIMAL(30,9)"), F.lit(unit))
    return at_micros(F.floor(exact_micros).try_cast("BIGINT"))


def nanos_of(number: Column, unit: int) -> Column:
    """INT: the nanoseconds, 1 to 999, that at_number cuts; NULL if there are none."""
    nanos = F.try_multiply(number.try_cast("DECIMAL(30,9)"), F.lit(unit * 1000))
    rest = F.pmod(F.floor(nanos), F.lit(1000)).try_cast("int")
    return F.when(rest > 0, rest)


def seconds_of(moment: Column) -> Column:
    """BIGINT seconds since 1970 of a TIMESTAMP, cut toward the past."""
    return F.floor(F.unix_micros(moment) / F.lit(1_000_000)).cast("bigint")


def millis_of(moment: Column) -> Column:
    """BIGINT milliseconds since 1970 of a TIMESTAMP, cut toward the past."""
    return F.unix_millis(moment)


def clock_text(moment: Column, zone: str = "UTC") -> Column:
    """`2024-01-02 03:04:05.5`: what a clock in the zone shows, whatever the session's zone is."""
    local = moment if zone == "UTC" else F.from_utc_timestamp(moment, zone)
    epoch = F.lit("1970-01-01 00:00:00").cast("timestamp_ntz")
    return F.timestamp_add("MICROSECOND", F.unix_micros(local), epoch).cast("string")


def at_clock(text: Column, zone: str = "UTC") -> Column:
    """TIMESTAMP of what a clock in the zone shows; NULL if the text is no such thing."""
    utc = F.concat(F.replace(text, F.lit("T"), F.lit(" ")), F.lit("Z")).try_cast("timestamp")
    return utc if zone == "UTC" else F.to_utc_timestamp(utc, zone)


def json_text(text: Column) -> Column:
    """The JSON text of a STRING that needs no escape."""
    return F.concat(F.lit('"'), text, F.lit('"'))


def row_of_task() -> Column:
    """BIGINT: which of its task's rows it is, from 0. Not for a stream, which Spark does not let number its rows."""
    return F.monotonically_increasing_id().bitwiseAND(F.lit((1 << 33) - 1))


def varying(number: int) -> Column:
    """BIGINT: the number, which is another one with each batch.

    Text, and nothing that Spark knows to be always the same: it would write the number into the code that it compiles,
    and compile that anew with each batch.
    """
    nothing = F.when(F.spark_partition_id() < 0, "")
    return F.concat_ws("", F.lit(str(number)), nothing).cast("bigint")
