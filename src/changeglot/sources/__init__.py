"""Where messages come from."""

from __future__ import annotations

from changeglot.sources.base import MessageSource
from changeglot.sources.files import Files

SOURCES: dict[str, type[MessageSource]] = {"files": Files}
