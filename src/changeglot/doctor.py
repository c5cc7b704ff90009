"""The command that examines a pipeline's source: what a person sees of it, and what a script reads. Needs no Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from changeglot.capture import part
from changeglot.capture.findings import Finding
from changeglot.pipeline import Pipeline
from changeglot.sources.capture import Captured

#: Who examines, by the names of the sources: each has `examine`.
_DOCTORS = {"postgres": "changeglot.capture.pgdoctor", "mysql": "changeglot.capture.mydoctor"}
_MARKS = {"good": "ok", "warn": "warn", "bad": "BAD"}


def examine(pipeline: Pipeline) -> list[Finding]:
    """What was found at the source, which is not changed; nothing of one that is no database."""
    source = pipeline._source
    if not isinstance(source, Captured):
        return []
    # Tells what to install if its client is missing.
    part(source.name)
    found: list[Finding] = import_module(_DOCTORS[source.name]).examine(source.server, source.folder)
    return found


def healthy(findings: Sequence[Finding]) -> bool:
    """Whether nothing is bad."""
    return all(each.state != "bad" for each in findings)


def told(findings: Sequence[Finding], source: str) -> str:
    """A line for each, what to do about it below, and a line that sums up."""
    if not findings:
        return f"nothing to examine: the source is {source}. changeglot check tells what the pipeline would do."
    lines = []
    for each in findings:
        lines.append(f"{_MARKS[each.state]:<4}  {each.what}: {each.found}")
        if each.fix:
            lines.append(f"      {each.fix}")
    counts = Counter(each.state for each in findings)
    lines.append(f"{counts['bad']} bad, {counts['warn']} to look at, {counts['good']} well")
    return "\n".join(lines)


def as_data(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """What a script reads. Any: JSON."""
    return [each._asdict() for each in findings]
