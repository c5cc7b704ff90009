"""The shop whose changes are measured: four tables of ten columns each, in one topic.

Needs nothing but Python: Flink's environment reads it too.
"""

import json
from dataclasses import dataclass
from pathlib import Path

TABLES: dict[str, tuple[str, ...]] = {
    "orders": (
        *("id", "customer_id", "status", "amount", "currency"),
        *("created_at", "updated_at", "note", "qty", "paid"),
    ),
    "customers": (
        *("id", "email", "first_name", "last_name", "phone"),
        *("city", "created_at", "updated_at", "score", "active"),
    ),
    "products": (
        *("id", "sku", "title", "price", "weight"),
        *("category", "created_at", "updated_at", "stock", "visible"),
    ),
    "payments": (
        *("id", "order_id", "method", "amount", "fee"),
        *("reference", "created_at", "updated_at", "attempts", "settled"),
    ),
}

UNION: tuple[str, ...] = tuple(sorted({name for names in TABLES.values() for name in names}))
"""Every column of every table: the one schema under which Flink reads a topic of many tables."""

INTEGERS = frozenset({"customer_id", "order_id", "qty", "score", "stock", "attempts"})
DECIMALS = frozenset({"amount", "price", "weight", "fee"})
FLAGS = frozenset({"paid", "active", "visible", "settled"})

JDBC: dict[str, int] = {
    "bigint": -5,
    "int": 4,
    "decimal(12,2)": 3,
    "tinyint": -6,
    "datetime": 93,
    "varchar(255)": 12,
}


def mysql_type(column: str) -> str:
    """The declared type of a column, a key of `JDBC`."""
    if column == "id":
        return "bigint"
    if column in INTEGERS:
        return "int"
    if column in DECIMALS:
        return "decimal(12,2)"
    if column in FLAGS:
        return "tinyint"
    return "datetime" if column.endswith("_at") else "varchar(255)"


MYSQL_TYPES: dict[str, dict[str, str]] = {
    table: {name: mysql_type(name) for name in names} for table, names in TABLES.items()
}
JDBC_TYPES: dict[str, dict[str, int]] = {
    table: {name: JDBC[type_] for name, type_ in types.items()} for table, types in MYSQL_TYPES.items()
}


@dataclass(frozen=True)
class Data:
    """A folder of messages of the shop. `sizes` are the bytes of JSON, by kind."""

    folder: Path
    rows: int
    sizes: dict[str, int]

    @classmethod
    def load(cls, folder: Path) -> "Data":
        manifest = json.loads((folder / MANIFEST).read_text())
        return cls(folder, manifest["rows"], manifest["sizes"])

    def text(self, kind: str) -> Path:
        return self.folder / f"{kind}.txt"

    def parquet(self, kind: str) -> Path:
        return self.folder / f"{kind}.parquet"


MANIFEST = "manifest.json"
