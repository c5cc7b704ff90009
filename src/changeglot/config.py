"""A pipeline from a YAML file: every mistake with its path, and what was meant."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from changeglot.apply.route import Rule
from changeglot.apply.schema import POLICIES
from changeglot.codecs import CODECS, codec, resolve
from changeglot.errors import ConfigError
from changeglot.held import Quarantine
from changeglot.options import choice, construct, mapping, schema_of, word_in
from changeglot.pipeline import Pipeline, first_lake
from changeglot.serve.options import Serve
from changeglot.sinks import SINKS
from changeglot.sinks.base import LakeSink
from changeglot.sinks.messages import MessageSink
from changeglot.sources import SOURCES
from changeglot.target import Upkeep

T = TypeVar("T")

_WORDS = ("name", "source", "sink", "tables", "schema_change", "quarantine", "upkeep", "serve", "checkpoint")
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
    words = mapping(_filled(content, ""), "pipeline")
    word_in(words, _WORDS, "")
    for needed in ("source", "sink"):
        if needed not in words:
            raise ConfigError(needed, "is missing", hint=f"A pipeline has a {needed}: {{type: ...}}.")
    source = dict(mapping(words["source"], "source"))
    format_ = source.pop("format", "auto")
    options = mapping(source.pop("options", {}), "source.options")
    if format_ != "auto":
        format_ = resolve(str(format_))
    for each in CODECS if format_ == "auto" else (format_,):
        codec(each, options)
    sinks = _sinks(words["sink"])
    given = str(words.get("name", name))
    return Pipeline(
        name=given,
        source=_typed(SOURCES, source, "source"),
        sinks=sinks,
        checkpoint=str(words["checkpoint"]) if "checkpoint" in words else _checkpoint(sinks, given),
        rules=_rules(words.get("tables", [{"match": "*"}])),
        format=format_,
        options=options,
        schema_change=choice(words.get("schema_change", "lenient"), POLICIES, "schema_change"),
        quarantine=construct(Quarantine, words.get("quarantine", {}), "quarantine"),
        upkeep=construct(Upkeep, words.get("upkeep", {}), "upkeep"),
        serve=construct(Serve, words.get("serve", {}), "serve"),
    )


def _sinks(content: Any) -> tuple[LakeSink | MessageSink, ...]:
    """Any: as a person writes them, one or a list."""
    several = isinstance(content, list)
    if several and not content:
        raise ConfigError("sink", "is empty", hint="A pipeline has a sink: {type: ...}, or a list of them.")
    made: list[LakeSink | MessageSink] = []
    for number, each in enumerate(content if several else [content]):
        path = f"sink[{number}]" if several else "sink"
        one = _typed(SINKS, mapping(each, path), path)
        if isinstance(one, MessageSink):
            one = replace(one, format=resolve(one.format))
            codec(one.format, {one.format: one.options})
            one.check_words(path)
        if one.name == "iceberg" and any(other.name == one.name for other in made):
            raise ConfigError(path, "is a second Iceberg sink, and a session has one", hint="Use two pipelines.")
        made.append(one)
    return tuple(made)


def _checkpoint(sinks: Sequence[LakeSink | MessageSink], name: str) -> str:
    """Beside the tables."""
    lake = first_lake(sinks)
    if lake is None:
        hint = "Name a folder for the pipeline's own notes: checkpoint: /var/lib/changeglot/shop"
        raise ConfigError("checkpoint", "is missing, and there are no tables beside which it could be", hint=hint)
    return f"{lake.path.rstrip('/')}/_changeglot/{name}"


def _rules(content: Any) -> tuple[Rule, ...]:
    """Any: as a person writes them."""
    if not isinstance(content, list) or not content:
        raise ConfigError("tables", "wants a list", hint="- match: shop.*")
    return tuple(construct(Rule, each, f"tables[{number}]") for number, each in enumerate(content))


def _typed(known: Mapping[str, type[T]], words: Mapping[str, Any], path: str) -> T:
    """Any: values of options as a person writes them."""
    cls = known[str(choice(words.get("type"), tuple(known), f"{path}.type"))]
    return construct(cls, {name: value for name, value in words.items() if name != "type"}, path)


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


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a pipeline's file, for editors. Any: JSON."""

    def either(known: Mapping[str, type], **more: Any) -> dict[str, Any]:
        """One of several kinds, by its type. Any: JSON."""
        kinds = []
        for name, cls in known.items():
            made = schema_of(cls)
            made["properties"] = {"type": {"const": name}, **made["properties"], **more}
            made["required"] = ["type", *made.get("required", ())]
            kinds.append(made)
        return {"oneOf": kinds}

    formats = {"description": "of the messages", "enum": ["auto", *CODECS]}
    options = {"description": "of the formats, by their names", "type": "object"}
    text = {"type": "string"}
    one_sink = either(SINKS)
    properties = {
        "name": {**text, "description": "of the pipeline; else that of the file"},
        "source": either(SOURCES, format=formats, options=options),
        "sink": {"anyOf": [one_sink, {"type": "array", "items": one_sink, "minItems": 1}]},
        "tables": {"type": "array", "items": schema_of(Rule)},
        "schema_change": {"enum": list(POLICIES)},
        "quarantine": schema_of(Quarantine),
        "upkeep": schema_of(Upkeep),
        "serve": schema_of(Serve),
        "checkpoint": {**text, "description": "folder of the pipeline's own notes; else beside the tables"},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A pipeline of changeglot",
        "type": "object",
        "properties": properties,
        "required": ["source", "sink"],
        "additionalProperties": False,
    }
