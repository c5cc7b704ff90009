"""Where changes go."""

from __future__ import annotations

from changeglot.sinks.base import LakeSink
from changeglot.sinks.delta import Delta
from changeglot.sinks.iceberg import Iceberg

SINKS: dict[str, type[LakeSink]] = {"delta": Delta, "iceberg": Iceberg}
