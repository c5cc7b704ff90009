"""How a table follows its source: which columns it gets, by the pipeline's policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from changeglot.apply import types
from changeglot.apply.ddl import Amendment
from changeglot.errors import ChangeglotError

#: evolve: as the source, renames and drops too. lenient: what is new is added, nothing is taken away. ignore: stays as
#: it is. exception: stop.
POLICIES = ("evolve", "lenient", "ignore", "exception")


class SchemaChange(ChangeglotError):
    """The source's table changed in a way that the pipeline was not told to follow."""


@dataclass(frozen=True)
class Evolution:
    """What is to be done to a table, in this order, and the columns that it then has."""

    columns: Mapping[str, str]
    rename: Mapping[str, str] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    add: Mapping[str, str] = field(default_factory=dict)
    widen: Mapping[str, str] = field(default_factory=dict)

    @property
    def steps(self) -> list[tuple[str, str, str | None]]:
        """What happens, as (kind, column, what it becomes)."""
        return [
            *(("rename", was, now) for was, now in self.rename.items()),
            *(("drop", name, None) for name in self.drop),
            *(("add", name, kind) for name, kind in self.add.items()),
            *(("widen", name, kind) for name, kind in self.widen.items()),
        ]


def evolution(
    table: str,
    known: Mapping[str, str],
    told: Mapping[str, str | None],
    amendments: Sequence[Amendment],
    policy: str,
) -> Evolution:
    """What becomes of a table with the columns `known` whose changes tell of the columns `told`; None: of no type.

    >>> evolution("t", {"a": "int"}, {"a": "bigint", "b": None}, [], "lenient").steps
    [('add', 'b', 'string'), ('widen', 'a', 'bigint')]
    >>> evolution("t", {"a": "int"}, {"b": "int"}, [Amendment("1", "a", "b")], "evolve").steps
    [('rename', 'a', 'b')]
    """
    if policy == "ignore":
        return Evolution(known)
    columns = dict(known)
    rename: dict[str, str] = {}
    drop: list[str] = []
    if policy in ("evolve", "exception"):
        for each in amendments:
            if each.was not in columns:
                continue
            if each.now is None or each.now in columns:
                del columns[each.was]
                drop.append(each.was)
            else:
                columns = {each.now if name == each.was else name: kind for name, kind in columns.items()}
                rename[each.was] = each.now
    add = {name: kind or types.TEXT for name, kind in told.items() if name not in columns}
    widen = {}
    for name, kind in told.items():
        if name in add or kind is None or columns[name] == types.TEXT:
            continue
        wider = types.wider(columns[name], kind)
        if wider is None and policy == "evolve":
            raise SchemaChange(
                f'"{table}": column "{name}" was {columns[name]} and is {kind}, which no type holds both of',
                hint=f"Declare it under columns, as {name}: text, for a new table; or set schema_change to lenient.",
            )
        if wider is not None and wider != columns[name]:
            widen[name] = wider
    found = Evolution({**columns, **add, **widen}, rename, tuple(drop), add, widen)
    if policy == "exception" and found.steps:
        steps = ", ".join(f"{kind} {name}" for kind, name, _ in found.steps)
        raise SchemaChange(f'"{table}" changed: {steps}', hint="Set schema_change to evolve or lenient.")
    spelt: dict[str, str] = {}
    for name in found.columns:
        if (other := spelt.setdefault(name.lower(), name)) != name:
            raise SchemaChange(
                f'"{table}" has columns "{other}" and "{name}", which tables cannot tell apart',
                hint="Rename one of them with `rename`.",
            )
    return found
