"""Conditions of shapes: PostgreSQL's SQL, as far as Electric has it, compiled to vectorised filters.

What a client sends reaches nothing but the columns of its table: it is parsed, every part is looked up in the tables
below, and what is not there is refused. Nothing of it is ever run as SQL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import pyarrow as pa
import sqlglot
from sqlglot import exp

from changeglot.serve.typed import (
    FAMILIES,
    NUMBERS,
    Refused,
    Typed,
    Value,
    all_of,
    as_float,
    call,
    cast,
    constant,
    elements,
    paired,
    read,
    regular,
    settled,
)

#: Of a condition: characters, and how deep its parts lie.
LENGTH, DEPTH = 50_000, 100
#: Families by PostgreSQL's words in a cast.
_CASTS: Final = {
    "INT": "integer", "BIGINT": "integer", "SMALLINT": "integer", "TEXT": "text", "VARCHAR": "text", "CHAR": "text",
    "DOUBLE": "float", "FLOAT": "float", "DECIMAL": "decimal", "BOOLEAN": "boolean", "DATE": "date",
    "TIMESTAMP": "timestamp", "TIMESTAMPTZ": "timestamptz", "UUID": "text", "NAME": "text",
}  # fmt: skip
_COMPARED: Final[dict[type[exp.Expr], str]] = {
    exp.EQ: "equal", exp.NEQ: "not_equal", exp.LT: "less", exp.LTE: "less_equal", exp.GT: "greater",
    exp.GTE: "greater_equal",
}  # fmt: skip
_TURNED: Final[dict[type[exp.Expr], type[exp.Expr]]] = {
    exp.LT: exp.GT,
    exp.GT: exp.LT,
    exp.LTE: exp.GTE,
    exp.GTE: exp.LTE,
    exp.EQ: exp.EQ,
    exp.NEQ: exp.NEQ,
}
_RECKONED: Final[dict[type[exp.Expr], str]] = {
    exp.Add: "add_checked",
    exp.Sub: "subtract_checked",
    exp.Mul: "multiply_checked",
}
_BITS: Final[dict[type[exp.Expr], str]] = {
    exp.BitwiseAnd: "bit_wise_and",
    exp.BitwiseOr: "bit_wise_or",
    exp.BitwiseXor: "bit_wise_xor",
}
#: Texts and names in quotes; or a parameter.
_PARTS: Final = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\$(\d{1,9})""")
#: What a part may say beside `this` and `expression`: what is not looked at may not be there.
_ARGS: Final[dict[type[exp.Expr], set[str]]] = {
    exp.Literal: {"is_string"}, exp.Column: {"table", "db", "catalog"}, exp.Between: {"low", "high", "symmetric"},
    exp.Cast: {"to"}, exp.Array: {"value_constructor"}, exp.Div: {"typed"}, exp.DPipe: {"safe"},
    exp.Greatest: {"ignore_nulls"}, exp.Least: {"ignore_nulls"},
}  # fmt: skip


def compiled(
    where: str, params: Mapping[str, str], columns: Mapping[str, str]
) -> tuple[Callable[[pa.Table], pa.Array], frozenset[str]]:
    """The filter, BOOLEAN or NULL of each row, and the columns that it looks at. Raises Refused.

    `columns`: Delta's types by name.
    """
    tree = parsed(where)
    compiler = _Compiler(params, columns)
    made = compiler.boolean(tree)
    if unused := set(params) - compiler.used:
        raise Refused(f"parameter ${min(unused)} is given and does not stand in the condition")
    return partial(_evaluated, made.value), frozenset(compiler.looked)


def _placed(part: re.Match[str]) -> str:
    """A parameter in a form that the parser does not take for the begin of a quoted text; all else as it is."""
    return f":p{part[1]} " if part[1] else part[0]


def parsed(where: str) -> exp.Expr:
    """The condition as a tree. Raises Refused."""
    if len(where) > LENGTH:
        raise Refused(f"is longer than {LENGTH} characters")
    try:
        trees = sqlglot.parse(_PARTS.sub(_placed, where), read="postgres")
    except (sqlglot.errors.SqlglotError, RecursionError) as error:
        raise Refused("could not be parsed") from error
    except (ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
        # A parser that stumbles over a text has not parsed it.
        raise Refused("could not be parsed") from error
    if len(trees) != 1 or trees[0] is None:
        raise Refused("is not one condition")
    tree = trees[0]
    if tree.find(exp.Query, exp.Subquery, exp.Exists):
        raise Refused("holds a subquery, which this server does not follow")
    return tree


def _evaluated(value: Value, rows: pa.Table) -> pa.Array:
    """BOOLEAN or NULL of each row. A row for which something has no result (1/0) has NULL."""
    try:
        made = value(rows)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if rows.num_rows <= 1:
            return pa.nulls(rows.num_rows, pa.bool_())
        half = rows.num_rows // 2
        return pa.concat_arrays([_evaluated(value, rows.slice(0, half)), _evaluated(value, rows.slice(half))])
    if isinstance(made, pa.Scalar):
        return pa.array([made.as_py()] * rows.num_rows, pa.bool_())
    return made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made


class _Compiler:
    def __init__(self, params: Mapping[str, str], columns: Mapping[str, str]) -> None:
        self.params, self.columns = params, columns
        self.used: set[str] = set()
        self.looked: set[str] = set()
        self.depth = 0
        self.ways: dict[type[exp.Expr], Callable[[Any], Typed]] = {
            exp.Paren: lambda node: self.part(node.this),
            exp.Column: self._column,
            exp.Literal: self._literal,
            exp.Boolean: lambda node: constant(node.this, "boolean"),
            exp.Null: lambda _: Typed("unknown", constant(None, "unknown").value),
            exp.Placeholder: self._parameter,
            exp.And: lambda node: self._logic("and_kleene", node),
            exp.Or: lambda node: self._logic("or_kleene", node),
            exp.Not: lambda node: Typed("boolean", call("invert", self.boolean(node.this).value)),
            **dict.fromkeys(_COMPARED, self._compared),
            **dict.fromkeys(_RECKONED, self._reckoned),
            **dict.fromkeys(_BITS, self._bits),
            exp.Div: self._reckoned,
            exp.Pow: self._power,
            exp.Neg: self._negated,
            exp.Is: self._is,
            exp.NullSafeEQ: lambda node: self._distinct(node, same=True),
            exp.NullSafeNEQ: lambda node: self._distinct(node, same=False),
            exp.In: self._in,
            exp.Between: self._between,
            exp.Like: lambda node: self._like(node, any_case=False),
            exp.ILike: lambda node: self._like(node, any_case=True),
            exp.DPipe: self._beside,
            exp.Cast: self._cast,
            exp.Lower: lambda node: Typed("text", call("utf8_lower", self.text(node.this).value)),
            exp.Upper: lambda node: Typed("text", call("utf8_upper", self.text(node.this).value)),
            exp.Coalesce: lambda node: self._of_several("coalesce", node),
            exp.Greatest: lambda node: self._of_several("max_element_wise", node),
            exp.Least: lambda node: self._of_several("min_element_wise", node),
        }

    def part(self, node: exp.Expr) -> Typed:
        if (way := self.ways.get(type(node))) is None:
            raise Refused(f"{_named(node)} is not known")
        said = {name for name, value in node.args.items() if value} - _ARGS.get(type(node), set())
        if unknown := said - {"this", "expression", "expressions", "negate"}:
            raise Refused(f"{_named(node)} says {min(unknown)}, which is not known")
        self.depth += 1
        if self.depth > DEPTH:
            raise Refused("is nested too deep")
        made = way(node)
        self.depth -= 1
        return Typed("boolean", call("invert", made.value)) if node.args.get("negate") else made

    def boolean(self, node: exp.Expr) -> Typed:
        part = settled(self.part(node), "boolean")
        if part.family != "boolean":
            raise Refused(f"{_named(node)} is {part.family}, where true or false is wanted")
        return part

    def text(self, node: exp.Expr) -> Typed:
        part = settled(self.part(node))
        if part.family != "text":
            raise Refused(f"{_named(node)} is {part.family}, where text is wanted")
        return part

    def _column(self, node: exp.Column) -> Typed:
        identifier = node.this
        # PostgreSQL folds names without quotes to lower case.
        name = node.name if getattr(identifier, "quoted", False) else node.name.lower()
        if node.table or node.db or name not in self.columns:
            raise Refused(f'there is no column "{name[:100]}"')
        self.looked.add(name)
        kind = self.columns[name]
        family = "decimal" if kind.startswith("decimal") else FAMILIES[kind]
        return Typed(family, lambda rows: rows.column(name))

    def _literal(self, node: exp.Literal) -> Typed:
        if node.is_string:
            return Typed("unknown", constant(node.this, "unknown").value, node.this)
        text = str(node.this)
        if re.fullmatch(r"\d+", text) and int(text) < 2**63:
            return constant(int(text), "integer")
        return constant(read(text, "decimal"), "decimal")

    def _parameter(self, node: exp.Placeholder) -> Typed:
        number = str(node.name).removeprefix("p")
        if number not in self.params:
            raise Refused(f"parameter ${number[:10]} is not given")
        self.used.add(number)
        return Typed("unknown", constant(self.params[number], "unknown").value, self.params[number])

    def _logic(self, name: str, node: exp.Connector) -> Typed:
        return Typed("boolean", all_of(name, [self.boolean(each).value for each in node.flatten()]))

    def _compared(self, node: exp.Binary) -> Typed:
        for way, one, other in (
            (type(node), node.this, node.expression),
            (_TURNED[type(node)], node.expression, node.this),
        ):
            if isinstance(other, exp.Any):
                return self._of_list(way, self.part(one), other.this, "or_kleene")
            if isinstance(other, exp.Anonymous) and str(other.this).lower() == "all" and len(other.expressions) == 1:
                return self._of_list(way, self.part(one), other.expressions[0], "and_kleene")
        return _comparison(type(node), self.part(node.this), self.part(node.expression))

    def _of_list(self, way: type[exp.Expr], one: Typed, of: exp.Expr, name: str) -> Typed:
        """Compared with any or all of a list."""
        each = [_comparison(way, one, other).value for other in self._listed(of)]
        return Typed("boolean", all_of(name, [constant(name == "and_kleene", "boolean").value, *each]))

    def _listed(self, node: exp.Expr) -> list[Typed]:
        while isinstance(node, exp.Paren):
            node = node.this
        if isinstance(node, exp.Cast):
            return self._listed(node.this)
        if isinstance(node, exp.Array):
            return [self.part(each) for each in node.expressions]
        text = self.part(node).text if isinstance(node, exp.Literal | exp.Placeholder) else None
        if text is None or not re.fullmatch(r"\s*\{.*\}\s*", text, re.DOTALL):
            raise Refused("ANY and ALL want a list: ARRAY[...], or a text like '{1,2}'")
        return [
            Typed("unknown", constant(each, "unknown").value, each) if each is not None else constant(None, "unknown")
            for each in elements(text.strip())
        ]

    def _reckoned(self, node: exp.Binary) -> Typed:
        one, other = paired(self.part(node.this), self.part(node.expression))
        if one.family not in NUMBERS or other.family not in NUMBERS:
            raise Refused(f"{_named(node)} wants numbers")
        name = "divide_checked" if isinstance(node, exp.Div) else _RECKONED[type(node)]
        family = one.family if one.family == other.family else "decimal"
        if name == "divide_checked" and family == "decimal":
            one, other, family = as_float(one), as_float(other), "float"
        return Typed(family, call(name, one.value, other.value))

    def _bits(self, node: exp.Binary) -> Typed:
        one, other = (settled(self.part(each), "integer") for each in (node.this, node.expression))
        if one.family != "integer" or other.family != "integer":
            raise Refused(f"{_named(node)} wants whole numbers")
        return Typed("integer", call(_BITS[type(node)], one.value, other.value))

    def _power(self, node: exp.Pow) -> Typed:
        one, other = (settled(self.part(each), "float") for each in (node.this, node.expression))
        return Typed("float", call("power", as_float(one).value, as_float(other).value))

    def _negated(self, node: exp.Neg) -> Typed:
        part = self.part(node.this)
        if part.family not in NUMBERS:
            raise Refused("- wants a number")
        return Typed(part.family, call("negate_checked", part.value))

    def _is(self, node: exp.Is) -> Typed:
        part, word = self.part(node.this), node.expression
        if isinstance(word, exp.Null) or str(getattr(word, "name", "")).upper() == "UNKNOWN":
            return Typed("boolean", call("is_null", settled(part).value))
        if isinstance(word, exp.Boolean):
            truth = settled(part, "boolean")
            if truth.family != "boolean":
                raise Refused(f"IS {str(word.this).upper()} wants true or false")
            known = call("fill_null", truth.value, lambda _: not word.this)
            return Typed("boolean", known if word.this else call("invert", known))
        raise Refused(f"IS {word.sql()[:50]} is not known")

    def _distinct(self, node: exp.Binary, *, same: bool) -> Typed:
        one, other = paired(self.part(node.this), self.part(node.expression))
        equal = call("fill_null", call("equal", one.value, other.value), lambda _: False)
        made = call("or_", equal, call("and_", *(call("is_null", each.value) for each in (one, other))))
        return Typed("boolean", made if same else call("invert", made))

    def _in(self, node: exp.In) -> Typed:
        if node.args.get("query") or node.args.get("unnest") or node.args.get("field"):
            raise Refused("IN wants a list of values")
        one = self.part(node.this)
        each = [_comparison(exp.EQ, one, self.part(other)).value for other in node.expressions]
        if not each:
            raise Refused("IN wants a list of values")
        return Typed("boolean", all_of("or_kleene", each))

    def _between(self, node: exp.Between) -> Typed:
        one = self.part(node.this)
        low, high = self.part(node.args["low"]), self.part(node.args["high"])

        def within(least: Typed, most: Typed) -> Value:
            bounds = (_comparison(exp.GTE, one, least).value, _comparison(exp.LTE, one, most).value)
            return call("and_kleene", *bounds)

        made = within(low, high)
        if node.args.get("symmetric"):
            made = call("or_kleene", made, within(high, low))
        return Typed("boolean", made)

    def _like(self, node: exp.Binary, *, any_case: bool) -> Typed:
        pattern = self.part(node.expression).text
        if pattern is None:
            raise Refused("LIKE wants a pattern that is a text")
        # RE2 takes no longer for any pattern than its length.
        whole = f"(?s{'i' if any_case else ''})^{regular(pattern)}$"
        return Typed("boolean", call("match_substring_regex", self.text(node.this).value, pattern=whole))

    def _beside(self, node: exp.DPipe) -> Typed:
        parts = [cast(settled(self.part(each)), "text").value for each in (node.this, node.expression)]
        empty = pa.scalar("", pa.large_string())
        return Typed("text", call("binary_join_element_wise", *parts, lambda _: empty))

    def _cast(self, node: exp.Cast) -> Typed:
        kind = node.to.this
        name = kind.name if isinstance(kind, exp.DataType.Type) else str(kind)
        if name not in _CASTS or node.args.get("format"):
            raise Refused(f"a cast to {node.to.sql(dialect='postgres')[:50]} is not known")
        return cast(self.part(node.this), _CASTS[name])

    def _of_several(self, name: str, node: exp.Func) -> Typed:
        parts = [self.part(each) for each in (node.this, *node.expressions) if each is not None]
        known = next((each for each in parts if each.family != "unknown"), None)
        parts = [settled(each, known.family if known else "text") for each in parts]
        for each in parts[1:]:
            paired(parts[0], each)
        families = {each.family for each in parts}
        family = "float" if "float" in families else "decimal" if "decimal" in families else parts[0].family
        return Typed(family, call(name, *(each.value for each in parts)))


def _comparison(way: type[exp.Expr], one: Typed, other: Typed) -> Typed:
    one, other = paired(one, other)
    return Typed("boolean", call(_COMPARED[way], one.value, other.value))


def _named(node: exp.Expr) -> str:
    """What a part of a condition is called in an answer."""
    try:
        text = node.sql(dialect="postgres")
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        text = type(node).__name__
    return f'"{text[:80]}"'
