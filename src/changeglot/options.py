"""Options are dataclass fields that explain themselves."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from changeglot.errors import ConfigError

T = TypeVar("T")


def option(help: str, default: Any = dataclasses.MISSING, *, example: str = "", shown: bool = True) -> Any:
    """A dataclass field with a sentence of help; a secret is not `shown` in its repr.

    Any: a field of whatever type the class declares.
    """
    return dataclasses.field(default=default, repr=shown, metadata={"help": help, "example": example})


def words(help: str, *, shown: bool = True) -> Any:
    """A dataclass field of texts by name, none if not given; a secret is not `shown` in its repr. Any: as `option`."""
    return dataclasses.field(default_factory=dict, repr=shown, metadata={"help": help, "example": ""})


def options_of(cls: type) -> list[dataclasses.Field[Any]]:
    """The fields of `cls` that were declared with option()."""
    return [f for f in dataclasses.fields(cls) if "help" in f.metadata]


def required(of: dataclasses.Field[Any]) -> bool:
    return of.default is dataclasses.MISSING and of.default_factory is dataclasses.MISSING


def construct(cls: type[T], given: Any, path: str) -> T:
    """An instance of `cls` from words as a person writes them; every mistake with its path. Any: checked here."""
    hints = get_type_hints(cls)
    known = {f.name: f for f in options_of(cls)}
    given = mapping(given, path)
    word_in(given, known, path, "option")
    for name, each in known.items():
        if required(each) and name not in given:
            example = each.metadata["example"]
            raise ConfigError(f"{path}.{name}", "is missing", hint=each.metadata["help"] + (example and f": {example}"))
    return cls(**{name: _value(hints[name], value, f"{path}.{name}") for name, value in given.items()})


def mapping(value: Any, path: str) -> Mapping[str, Any]:
    """Any: as a person writes it."""
    if not isinstance(value, Mapping):
        raise ConfigError(path, "wants words with values, as `word: value`")
    return {str(name): each for name, each in value.items()}


def word_in(given: Iterable[str], known: Iterable[str], path: str, what: str = "word") -> None:
    """Raises the first of the given words that is none of those known, and what was probably meant."""
    for word in given:
        if word not in known:
            said = f"no such {what}"
            raise ConfigError(f"{path}.{word}" if path else word, said, hint=_meant(word, known, f"{what.title()}s: "))


def choice(value: Any, choices: Iterable[str], path: str) -> Any:
    """Any: as a person writes it; one of the choices comes out."""
    if value not in choices:
        said = "is missing" if value is None else f'no choice "{value}"'
        raise ConfigError(path, said, hint=_meant(str(value), choices, "Choose "))
    return value


def _meant(word: str, known: Iterable[str], otherwise: str) -> str:
    close = difflib.get_close_matches(word, list(known), 1)
    return f'Did you mean "{close[0]}"?' if close else f"{otherwise}{', '.join(sorted(known)) or 'none'}."


def _value(kind: Any, value: Any, path: str) -> Any:
    """`value` as `kind`. Any: types and values of all options pass through here."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return choice(value, inner, path)
    if origin is tuple:
        if isinstance(value, Mapping) or (isinstance(value, str) and get_origin(inner[0]) is not Literal):
            raise ConfigError(path, "wants a list")
        several = value if isinstance(value, list | tuple) else [value]
        return tuple(_value(inner[0], each, path) for each in several)
    if origin is not None and issubclass(origin, Mapping):
        return {name: str(each) for name, each in mapping(value, path).items()}
    if origin is UnionType and isinstance(value, Mapping):
        # Of a word or words with values: the latter.
        kind = next((each for each in inner if dataclasses.is_dataclass(each)), kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return construct(kind, value, path)
    if kind is bool and not isinstance(value, bool):
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if str(value).lower() not in words:
            raise ConfigError(path, f'"{value}" is neither true nor false')
        return words[str(value).lower()]
    if kind is int and (isinstance(value, bool) or not isinstance(value, int)):
        if not str(value).isdecimal():
            raise ConfigError(path, f'"{value}" is not a number')
        return int(value)
    if kind is str and not isinstance(value, str):
        raise ConfigError(path, f'"{value}" is not text')
    return value


def schema_of(cls: type) -> dict[str, Any]:
    """The JSON Schema of what `construct` takes for the class. Any: JSON."""
    hints = get_type_hints(cls)
    properties = {}
    for each in options_of(cls):
        about = {"description": each.metadata["help"]}
        if each.metadata["example"]:
            about["examples"] = [each.metadata["example"]]
        properties[each.name] = {**_schema(hints[each.name]), **about}
    needed = [each.name for each in options_of(cls) if required(each)]
    found = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**found, "required": needed} if needed else found


def _schema(kind: Any) -> dict[str, Any]:
    """Any: a type of an option, and JSON."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"enum": list(inner)}
    if origin is tuple:
        several = {"type": "array", "items": _schema(inner[0])}
        return {"anyOf": [_schema(inner[0]), several]} if get_origin(inner[0]) is Literal else several
    if origin is UnionType:
        return {"anyOf": [_schema(each) for each in inner if each is not type(None)]}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
    if dataclasses.is_dataclass(kind):
        assert isinstance(kind, type)
        return schema_of(kind)
    return {"type": {bool: "boolean", int: "integer"}.get(kind, "string")}
