"""Options are dataclass fields that explain themselves."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from changeglot.errors import ConfigError

T = TypeVar("T")


def option(help: str, default: Any = dataclasses.MISSING, *, example: str = "") -> Any:
    """A dataclass field with a sentence of help. Any: a field of whatever type the class declares."""
    return dataclasses.field(default=default, metadata={"help": help, "example": example})


def options_of(cls: type) -> list[dataclasses.Field[Any]]:
    """The fields of `cls` that were declared with option()."""
    return [f for f in dataclasses.fields(cls) if "help" in f.metadata]


def construct(cls: type[T], given: Mapping[str, Any], path: str) -> T:
    """An instance of `cls` from words as a person writes them; every mistake with its path."""
    hints = get_type_hints(cls)
    known = {f.name for f in options_of(cls)}
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            words = ", ".join(sorted(known)) or "none"
            hint = f'Did you mean "{close[0]}"?' if close else f"Options: {words}."
            raise ConfigError(f"{path}.{name}", "no such option", hint=hint)
        values[name] = _value(hints[name], value, f"{path}.{name}")
    return cls(**values)


def _value(kind: Any, value: Any, path: str) -> Any:
    """`value` as `kind`. Any: types and values of all options pass through here."""
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        if value not in choices:
            raise ConfigError(path, f'no choice "{value}"', hint=f"Choose {', '.join(choices)}.")
    elif kind is bool and not isinstance(value, bool):
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if str(value).lower() not in words:
            raise ConfigError(path, f'"{value}" is neither true nor false')
        return words[str(value).lower()]
    elif kind is str and not isinstance(value, str):
        raise ConfigError(path, f'"{value}" is not text')
    return value
