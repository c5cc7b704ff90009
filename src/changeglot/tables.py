"""What a format does not carry and a person knows: keys and types, by table."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from changeglot import kernel
from changeglot.errors import ConfigError
from changeglot.model import COLUMNS


@dataclass(frozen=True)
class Table:
    """A table's key and the types of its columns, as declared."""

    key: tuple[str, ...] = ()
    columns: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Tables:
    """Tables by name: `orders`, `shop.orders` or `shop.public.orders` (database, schema, table; no tenant).

    In a name, * and ? stand for any. Of several that fit a table the last counts.
    """

    by_name: tuple[tuple[str, Table], ...] = ()

    @classmethod
    def load(cls, path: str | Path) -> Tables:
        """From a YAML file: `tables: {shop.orders: {key: [id], columns: {id: bigint}}}`."""
        import yaml

        try:
            content = yaml.safe_load(Path(path).read_text("utf-8"))
        except OSError as e:
            raise ConfigError(str(path), f"cannot be read: {e.strerror}") from e
        except yaml.YAMLError as e:
            raise ConfigError(str(path), "is not YAML", hint=str(e).replace("\n", " ")) from e
        if not isinstance(content, dict) or set(content) != {"tables"}:
            raise ConfigError(str(path), "wants one word at its top, `tables`")
        return cls.of(content["tables"], path=f"{path}: tables")

    @classmethod
    def of(cls, tables: Mapping[str, Any], path: str = "tables") -> Tables:
        """From plain dictionaries. Any: they come from a person, and are checked here."""
        if not isinstance(tables, Mapping):
            raise ConfigError(path, "wants tables by name")
        found = []
        for name, table in tables.items():
            at = f"{path}.{name}"
            if not isinstance(table, Mapping):
                raise ConfigError(at, "wants `key` and `columns`")
            unknown = set(table) - {"key", "columns"}
            if unknown:
                raise ConfigError(f"{at}.{min(unknown)}", "no such word", hint="Words: key, columns.")
            key = table.get("key") or []
            columns = table.get("columns") or {}
            if isinstance(key, str) or not isinstance(key, Iterable):
                raise ConfigError(f"{at}.key", "wants a list of column names")
            if not isinstance(columns, Mapping):
                raise ConfigError(f"{at}.columns", "wants types by column name")
            pairs = tuple((str(column), str(kind)) for column, kind in columns.items())
            found.append((str(name), Table(tuple(map(str, key)), pairs)))
        return cls(tuple(found))

    @property
    def has_keys(self) -> bool:
        return any(table.key for _, table in self.by_name)

    @property
    def has_columns(self) -> bool:
        return any(table.columns for _, table in self.by_name)

    def key_of(self, relation: Column) -> Column:
        """ARRAY<STRING>: the names of the relation's key, NULL if not known."""
        return self._case(
            relation,
            {n: F.array(*map(F.lit, t.key)) for n, t in self.by_name if t.key},
            "array<string>",
        )

    def columns_of(self, relation: Column) -> Column:
        """COLUMNS of the relation, NULL if not known."""
        known = {}
        for name, table in self.by_name:
            if table.columns:
                facts = [
                    F.struct(
                        F.lit(column),
                        F.lit(kind),
                        F.lit(None),
                        F.lit(column not in table.key),
                        F.lit(None),
                    )
                    for column, kind in table.columns
                ]
                known[name] = F.array(*facts).cast(COLUMNS)
        return self._case(relation, known, COLUMNS.simpleString())

    def complete(self, columns: Column, relation: Column) -> Column:
        """COLUMNS with what is known here laid over what the message said."""
        if not self.has_columns:
            return columns
        return kernel.merge(self.columns_of(relation), columns)

    @staticmethod
    def _case(relation: Column, values: Mapping[str, Column], kind: str) -> Column:
        found = F.lit(None).cast(kind)
        full = F.concat_ws(".", relation["database"], relation["schema"], relation["table"])
        for name, value in values.items():
            fits = (_fits(each, name) for each in (full, relation["table"]))
            found = F.when(reduce(or_, fits), value).otherwise(found)
        return found


def matches(pattern: str, name: str) -> bool:
    """Does the table's name fit? `*` stands for any text, `?` for any character, all others for themselves.

    >>> matches("shop.*", "shop.orders"), matches("shop.[a]?", "shop.[a]b"), matches("[a]", "a")
    (True, True, False)
    """
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))


def _fits(text: Column, name: str) -> Column:
    """As `matches`."""
    if not set(name) & {"*", "?"}:
        return text == name
    escaped = re.sub(r"([%_\\])", r"\\\1", name)
    return text.like(escaped.replace("*", "%").replace("?", "_"))
