"""changeglot: change data capture on Spark that speaks every format.

The names are found when they are asked for: `changeglot --help` need not wait for Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from changeglot._version import __version__

if TYPE_CHECKING:
    from changeglot.codecs import CODECS, lost_between
    from changeglot.errors import ChangeglotError
    from changeglot.kernel import prepare
    from changeglot.layout import decode, detect, encode, translate
    from changeglot.local import session
    from changeglot.model import CHANGE
    from changeglot.pipeline import Pipeline
    from changeglot.tables import Tables

_HOMES = {
    "CHANGE": "model",
    "CODECS": "codecs",
    "ChangeglotError": "errors",
    "Pipeline": "pipeline",
    "Tables": "tables",
    "decode": "layout",
    "detect": "layout",
    "encode": "layout",
    "lost_between": "codecs",
    "prepare": "kernel",
    "session": "local",
    "translate": "layout",
}

__all__ = [
    "CHANGE",
    "CODECS",
    "ChangeglotError",
    "Pipeline",
    "Tables",
    "__version__",
    "decode",
    "detect",
    "encode",
    "lost_between",
    "prepare",
    "session",
    "translate",
]


def __getattr__(name: str) -> Any:
    """The public name, from the module that has it. Any: whatever it is."""
    if name not in _HOMES:
        raise AttributeError(f"module 'changeglot' has no attribute '{name}'")
    value = getattr(import_module(f"changeglot.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
