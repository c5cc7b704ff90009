"""What changeglot knows of its formats, for people and for machines. Needs no Spark session."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from changeglot.codecs import CODECS, codec, lost_between, resolve
from changeglot.codecs.base import Codec, Loss
from changeglot.options import options_of

WIDTH = 100


@dataclass(frozen=True)
class Told:
    """The same twice: text for people, and data for JSON. Any: whatever JSON can say."""

    text: str
    data: Any


def formats() -> Told:
    """All formats, a sentence each."""
    data = [{"format": name, "is": _sentence(kind), "aliases": list(kind.aliases)} for name, kind in CODECS.items()]
    text = listing((name, _sentence(kind)) for name, kind in CODECS.items())
    more = "changeglot explain FORMAT tells of one, FROM TO what is lost between two, --matrix of all pairs."
    return Told(f"{text}\n\n{more}", data)


def one(name: str) -> Told:
    """A format: its words, what it loses, its options."""
    kind = CODECS[resolve(name)]
    words = _words(kind)
    unspoken = sorted(words.keys() - kind.speaks)
    losses = codec(name).losses
    options = [
        {
            "option": o.name,
            "default": o.default,
            "choices": _choices(kind, o.name),
            "help": o.metadata["help"],
        }
        for o in options_of(kind)
    ]
    data = {
        "format": kind.name,
        "is": _sentence(kind),
        "aliases": list(kind.aliases),
        "reads": words,
        "writes": sorted(kind.speaks),
        "losses": _data(losses),
        "options": options,
    }
    parts = [
        fill(" ".join(dict.fromkeys((f"{kind.name}:", _sentence(kind), inspect.getdoc(kind) or "")))),
        fill(f"Also called {', '.join(kind.aliases)}.") if kind.aliases else "",
        "Operations, and its words for them:",
        listing(
            (op, ", ".join(words.get(op, ())) or "told in another way")
            for op in (*words, *sorted(kind.speaks - words.keys()))
        ),
        fill(f"Read, but never written: {', '.join(unspoken)}.") if unspoken else "",
        "What it cannot carry:",
        listing((loss.field, loss.why) for loss in losses),
        "Options (--option):" if options else "It has no options.",
        listing(
            (
                f"{kind.name}.{o['option']}={o['default']}",
                f"{o['help']}{' (' + ', '.join(o['choices']) + ')' if o['choices'] else ''}",
            )
            for o in options
        ),
    ]
    return Told("\n\n".join(part for part in parts if part).replace(":\n\n", ":\n"), data)


def pair(source: str, target: str) -> Told:
    """What is lost of messages in one format when they are written in another."""
    of, to = resolve(source), resolve(target)
    losses = lost_between(of, to)
    head = f"{to} cannot carry these fields of what {of} says:" if losses else f"{to} carries all that {of} says."
    text = f"{head}\n{listing((loss.field, loss.why) for loss in losses)}".strip()
    return Told(text, {"from": of, "to": to, "losses": _data(losses)})


def matrix() -> Told:
    """How many fields each format loses of each."""
    lost = {of: {to: [loss.field for loss in lost_between(of, to)] for to in CODECS} for of in CODECS}
    rows = [(of, *(str(len(fields)) if fields else "." for fields in row.values())) for of, row in lost.items()]
    text = table(("from \\ to", *CODECS), rows, right=range(1, len(CODECS) + 1))
    legend = "Fields of a change that are lost, or not always whole; changeglot explain FROM TO names them."
    return Told(f"{text}\n\n{legend}", lost)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """Columns as wide as their widest cell, under a head.

    >>> print(table(("format", "n"), [("canal", "10"), ("oms", "7")], right={1}))
    format   n
    canal   10
    oms      7
    """
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    return "\n".join(map(line, (head, *rows)))


def listing(items: Iterable[tuple[str, str]]) -> str:
    """Names with what is said of them, wrapped, in two columns."""
    pairs = list(items)
    width = max((len(name) for name, _ in pairs if len(name) <= 30), default=0)
    lines = []
    for name, said in pairs:
        margin = " " * (width + 4)
        first = f"  {name:<{width}}  "
        if len(name) > width:
            lines.append(f"  {name}")
            first = margin
        lines.append(textwrap.fill(said, WIDTH, initial_indent=first, subsequent_indent=margin))
    return "\n".join(lines)


def fill(text: str) -> str:
    """The text as one paragraph."""
    return textwrap.fill(" ".join(text.split()), WIDTH)


def _sentence(kind: type[Codec]) -> str:
    """What the format is: the first line of its module, or of the class where a module has two."""
    module = sys.modules[kind.__module__]
    alone = [c for c in CODECS.values() if c.__module__ == kind.__module__] == [kind]
    told = inspect.getdoc(module if alone else kind) or ""
    return told.split("\n\n")[0].replace("\n", " ")


def _words(kind: type[Codec]) -> dict[str, list[str]]:
    """The format's words by op, as its module tells them."""
    module = sys.modules[kind.__module__]
    found: dict[str, list[str]] = {}
    for name in ("OPS", "CONTROLS"):
        for word, op in getattr(module, name, {}).items():
            found.setdefault(op, []).append(word)
    return found


def _choices(kind: type[Codec], name: str) -> list[str]:
    hint = get_type_hints(kind)[name]
    return list(get_args(hint)) if get_origin(hint) is Literal else []


def _data(losses: Iterable[Loss]) -> list[dict[str, str]]:
    return [{"field": loss.field, "why": loss.why} for loss in losses]
