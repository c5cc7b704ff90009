"""A pipeline from a YAML file: every mistake with its path, and what was meant."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from changeglot.codecs import CODECS, codec, resolve
from changeglot.errors import ConfigError
from changeglot.options import construct
from changeglot.pipeline import Pipeline, Rule
from changeglot.sinks import SINKS
from changeglot.sources import SOURCES

T = TypeVar("T")

_WORDS = ("name", "source", "sink", "tables", "schema_change", "checkpoint")
_SCHEMA_CHANGES = ("evolve", "ignore", "exception")
_MODES = ("scd1", "append")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def load(path: str | Path) -> Pipeline:
    """The pipeline that the file tells."""
    import yaml

    path = Path(path)
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {(error.strerror or str(error)).lower()}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), "is not YAML", hint=str(error).replace("\n", " ")) from error
    return pipeline(content, name=path.stem)


def pipeline(content: Any, name: str) -> Pipeline:
    """The pipeline of plain dictionaries. Any: they come from a person, and are checked here."""
    words = _mapping(_filled(content, ""), "pipeline")
    _known(words, _WORDS, "")
    for needed in ("source", "sink"):
        if needed not in words:
            raise ConfigError(needed, "is missing", hint=f"A pipeline has a {needed}: {{type: ...}}.")
    source = dict(_mapping(words["source"], "source"))
    format_ = source.pop("format", "auto")
    options = _mapping(source.pop("options", {}), "source.options")
    if format_ != "auto":
        format_ = resolve(str(format_))
    for each in CODECS if format_ == "auto" else (format_,):
        codec(each, options)
    sink = _typed(SINKS, _mapping(words["sink"], "sink"), "sink")
    given = str(words.get("name", name))
    base = getattr(sink, "path", "")
    return Pipeline(
        name=given,
        source=_typed(SOURCES, source, "source"),
        sink=sink,
        checkpoint=str(words.get("checkpoint", f"{base.rstrip('/')}/_changeglot/{given}")),
        rules=_rules(words.get("tables", [{"match": "*"}])),
        format=format_,
        options=options,
        schema_change=_choice(words.get("schema_change", "evolve"), _SCHEMA_CHANGES, "schema_change"),
    )


def _rules(content: Any) -> tuple[Rule, ...]:
    """Any: as a person writes them."""
    if not isinstance(content, list) or not content:
        raise ConfigError("tables", "wants a list", hint="- match: shop.*")
    rules = []
    for number, each in enumerate(content):
        path = f"tables[{number}]"
        words = dict(_mapping(each, path))
        if "match" not in words:
            raise ConfigError(f"{path}.match", "is missing", hint="Name a table, or * for all.")
        modes = words.get("mode", "scd1")
        words["mode"] = tuple(modes) if isinstance(modes, list) else (modes,)
        for mode in words["mode"]:
            _choice(mode, _MODES, f"{path}.mode")
        if isinstance(words.get("keys"), str):
            raise ConfigError(f"{path}.keys", "wants a list of column names")
        words["keys"] = tuple(map(str, words.get("keys", ())))
        words["columns"] = {str(n): str(k) for n, k in _mapping(words.get("columns", {}), f"{path}.columns").items()}
        rules.append(construct(Rule, words, path))
    return tuple(rules)


def _typed(known: Mapping[str, type[T]], words: Mapping[str, Any], path: str) -> T:
    """Any: values of options as a person writes them."""
    kind = words.get("type")
    _choice(kind, tuple(known), f"{path}.type")
    cls = known[str(kind)]
    return construct(cls, {name: value for name, value in words.items() if name != "type"}, path)


def _choice(value: Any, choices: tuple[str, ...], path: str) -> Any:
    """Any: as a person writes it; one of the choices comes out."""
    if value not in choices:
        close = difflib.get_close_matches(str(value), choices, 1)
        said = "is missing" if value is None else f'no choice "{value}"'
        hint = f'Did you mean "{close[0]}"?' if close else f"Choose {', '.join(choices)}."
        raise ConfigError(path, said, hint=hint)
    return value


def _mapping(value: Any, path: str) -> Mapping[str, Any]:
    """Any: as a person writes it."""
    if not isinstance(value, Mapping):
        raise ConfigError(path, "wants words with values, as `word: value`")
    return value


def _known(words: Mapping[str, Any], known: tuple[str, ...], path: str) -> None:
    for word in words:
        if word not in known:
            close = difflib.get_close_matches(str(word), known, 1)
            hint = f'Did you mean "{close[0]}"?' if close else f"Words: {', '.join(known)}."
            raise ConfigError(f"{path}{word}", "no such word", hint=hint)


def _filled(value: Any, path: str) -> Any:
    """Every ${NAME} replaced by the variable of the environment. Any: YAML."""
    if isinstance(value, Mapping):
        return {key: _filled(each, f"{path}.{key}" if path else str(key)) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, f"{path}[{n}]") for n, each in enumerate(value)]
    if not isinstance(value, str):
        return value

    def variable(match: re.Match[str]) -> str:
        if match[1] not in os.environ:
            raise ConfigError(path, f"no variable {match[1]} in the environment", hint=f"Set {match[1]} and try again.")
        return os.environ[match[1]]

    return _VARIABLE.sub(variable, value)
