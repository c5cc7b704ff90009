"""Capture: a database's rows and changes, recorded durably before the database may forget them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from changeglot.errors import MissingError

#: The modules of the databases, by the names of the sources: each has Server, Recorder and copy.
_PARTS = {"postgres": "changeglot.capture.postgres", "mysql": "changeglot.capture.mysql"}


def part(source: str) -> Any:
    """The module of a database, which is loaded when it is wanted: its client may not be installed. Any: a module."""
    try:
        return import_module(_PARTS[source])
    except ImportError as problem:
        said = f"capturing {source} wants a client that is not installed: {problem.name}"
        raise MissingError(said, hint=f'Type: pip install "changeglot[{source}]"') from problem
