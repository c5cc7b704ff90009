"""Changes as plain Python values, so that they can be compared and kept in files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from changeglot.model import CHANGE
from changeglot.tables import Tables

GOLDEN = Path(__file__).parent / "golden"


def plain(value: Any) -> Any:
    """Any: a value of any column, as JSON has it. Numbers keep their digits; a struct of nothing is nothing."""
    if isinstance(value, Row):
        fields = {name: plain(part) for name, part in value.asDict().items()}
        kept = {name: part for name, part in fields.items() if part is not None}
        return kept or None
    if isinstance(value, dict):
        return {name: plain(part) for name, part in sorted(value.items())}
    if isinstance(value, list):
        return [plain(part) for part in value]
    if isinstance(value, Decimal):
        return int(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat() if value.tzinfo else value.replace(tzinfo=UTC).isoformat()
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "backslashreplace")
    return value


def changes_of(df: DataFrame, by: str) -> dict[str, list[dict[str, Any]]]:
    """The rows' changes by the column `by`, in order; what is NULL is left out, save NULL values in an image."""
    found: dict[str, list[dict[str, Any]]] = {}
    # Timestamps as text of UTC, whatever the zone of this machine is.
    times = {f.name: F.date_format(f.name, "yyyy-MM-dd HH:mm:ss.SSSSSS") for f in CHANGE if "_at" in f.name}
    for row in df.withColumns(times).collect():
        told = {name: plain(row[name]) for name in (*CHANGE.fieldNames(), "problem") if name in row}
        found.setdefault(row[by], []).append({name: part for name, part in told.items() if part is not None})
    return found


def same_json(left: str, right: str) -> bool:
    """Equal members and values; numbers digit for digit, members in any order."""

    def read(text: str) -> Any:
        return json.loads(text, parse_int=lambda n: ("number", n), parse_float=lambda n: ("number", n))

    return bool(read(left) == read(right))


class Golden:
    """A golden file: a message from a document, and the changes that it tells."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.format = path.parent.name
        self.name = f"{path.parent.name}/{path.stem}"
        self.content: dict[str, Any] = json.loads(path.read_text("utf-8"))

    @property
    def setting(self) -> str:
        """Messages of one setting can be decoded together."""
        return json.dumps([self.format, self.content.get("options"), self.content.get("tables")])


def goldens() -> list[Golden]:
    return [Golden(path) for path in sorted(GOLDEN.glob("*/*.json"))]


def by_setting() -> dict[str, list[Golden]]:
    groups: dict[str, list[Golden]] = {}
    for golden in goldens():
        groups.setdefault(golden.setting, []).append(golden)
    return groups


def arguments(setting: str) -> tuple[str, Mapping[str, Mapping[str, Any]], Tables | None]:
    """Format, options and tables of a setting."""
    name, options, tables = json.loads(setting)
    return name, {name: options} if options else {}, Tables.of(tables) if tables else None


def messages(spark: SparkSession, golden: list[Golden]) -> DataFrame:
    rows = [
        (g.name, None if (key := g.content.get("key")) is None else key.encode(), g.content["message"].encode())
        for g in golden
    ]
    return spark.createDataFrame(rows, "name string, key binary, value binary").coalesce(1)
