"""The formats, by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any
from zoneinfo import ZoneInfo

from pyspark.sql import Column
from pyspark.sql import functions as F

from changeglot import kernel
from changeglot.codecs.arcion import Arcion
from changeglot.codecs.base import Codec, Loss
from changeglot.codecs.canal import Canal
from changeglot.codecs.dataworks import Dataworks
from changeglot.codecs.electric import Electric
from changeglot.codecs.oms import Oms, OmsTyped
from changeglot.codecs.shareplex import Shareplex
from changeglot.errors import ConfigError, UnknownFormat
from changeglot.options import construct
from changeglot.tables import Tables

CODECS: dict[str, type[Codec]] = {
    "electric": Electric,
    "oms": Oms,
    "oms-typed": OmsTyped,
    "canal": Canal,
    "dataworks": Dataworks,
    "shareplex": Shareplex,
    "arcion": Arcion,
}

#: What is looked at to tell the formats apart, in one read.
SEEN = f"""
    `self=.`: {kernel.VALUE},
    prevStruct: STRUCT<`self=.`: {kernel.KIND}, `light=__light_type`: {kernel.KIND}>,
    postStruct: STRUCT<`self=.`: {kernel.KIND}, `light=__light_type`: {kernel.KIND}>,
    allMetaData: {kernel.KIND}, recordType: {kernel.KIND}, version: {kernel.KIND},
    payload: STRUCT<`self=.`: {kernel.KIND}, op: {kernel.VALUE}, source: {kernel.KIND}, timestamp: {kernel.KIND},
        before: {kernel.KIND}, after: {kernel.KIND}>,
    meta: STRUCT<`self=.`: {kernel.KIND}, op: {kernel.KIND}>,
    headers: STRUCT<`self=.`: {kernel.KIND}, operation: {kernel.KIND}, control: {kernel.KIND}, event: {kernel.KIND}>,
    type: {kernel.VALUE}, isDdl: {kernel.KIND}, mysqlType: {kernel.KIND}, sqlType: {kernel.KIND},
    pkNames: {kernel.KIND}, data: {kernel.KIND}, key: {kernel.KIND},
    source: STRUCT<`self=.`: {kernel.KIND}, connector: {kernel.KIND}>, op: {kernel.VALUE},
    before: {kernel.KIND}, after: {kernel.KIND}
"""


def resolve(name: str) -> str:
    """The name in CODECS that a person means: case does not count, and the documents' names are known."""
    names = {alias: known for known, cls in CODECS.items() for alias in (known, *cls.aliases)}
    wanted = name.strip().lower()
    if wanted not in names:
        close = difflib.get_close_matches(wanted, names, 1)
        words = ", ".join(CODECS)
        hint = f'Did you mean "{names[close[0]]}"?' if close else f"Formats: {words}."
        raise UnknownFormat("format", f'no format "{name}"', hint=hint)
    return names[wanted]


def codec(name: str, options: Mapping[str, Mapping[str, Any]] | None = None, tables: Tables | None = None) -> Codec:
    """The codec of that name with its options. Any: values as a person writes them."""
    known = resolve(name)
    given = {resolve(k): v for k, v in (options or {}).items()}.get(known, {})
    made = construct(CODECS[known], given, known)
    if zone := getattr(made, "zone", ""):
        try:
            ZoneInfo(zone)
        except (KeyError, ValueError) as e:
            raise ConfigError(f"{known}.zone", f'no zone "{zone}"', hint="Name one as Asia/Shanghai or UTC.") from e
    if tables:
        object.__setattr__(made, "tables", tables)
    return made


def format_of(codecs: Mapping[str, Codec], seen: Column) -> Column:
    """STRING: the name of the codec that knows the message; NULL if none does."""
    found = F.lit(None).cast("string")
    for name, each in reversed(list(codecs.items())):
        found = F.when(F.coalesce(each.detect(seen), F.lit(False)), F.lit(name)).otherwise(found)
    return found


def evidence(codecs: Mapping[str, Codec], seen: Column, name: Column) -> Column:
    """STRING: the members by which the codec knew the message."""
    found = F.lit(None).cast("string")
    for known, each in codecs.items():
        marks = []
        for mark in each.marks:
            value = seen
            for part in mark.split("."):
                value = value[part]
            marks.append(F.when(value.isNotNull(), F.lit(mark.replace("light", "__light_type"))))
        found = F.when(name == known, F.concat_ws(", ", *marks)).otherwise(found)
    return found


def lost_between(source: str, target: str) -> list[Loss]:
    """What `target` may lose of what `source` carries: its losses, less what `source` never has; to itself, nothing."""
    if resolve(source) == resolve(target):
        return []
    never = {loss.field for loss in codec(source).losses if _gone(loss)}
    return [loss for loss in codec(target).losses if loss.field not in never]


def _gone(loss: Loss) -> bool:
    return loss.becomes.__name__ == "nothing"
