"""Rows once for every element of an array or a map: LATERAL VIEW, and a generator in SELECT.

Law: the columns it makes are as many as Spark makes, under the names that are written or Spark's
own; where how many there are is not certain, names are asked for. A generator in the SELECT list
takes apart the rows that WHERE lets through, so it is the LATERAL VIEW of a query over these; its
columns stand in its place in the list, and there is one such item in a list.
Out of scope: generators of other shapes (inline, stack, json_tuple), and inside other expressions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from impctl.data.schema import INTEGER, Kind, SqlType, from_spark
from impctl.errors import count_text
from impctl.expr.nodes import Expr, Span
from impctl.plan.nodes import Attribute, Explode, Plan
from impctl.plan.sql.call import arguments_of, function_name
from impctl.plan.sql.context import Reading, known_type
from impctl.plan.sql.expr import ExprReader
from impctl.plan.sql.scope import Names, Scope, relation_scope, side_by_side
from impctl.plan.sql.text import SqlText
from impctl.values import dataclass

_AS_VIEW = "`LATERAL VIEW explode(x) t AS element`"

_GENERATORS = {
    "explode": ("explode", False),
    "explode_outer": ("explode", True),
    "posexplode": ("posexplode", False),
    "posexplode_outer": ("posexplode", True),
}


def exploded(plan: Plan, scope: Scope, node: exp.Lateral, reading: Reading) -> tuple[Plan, Scope]:
    """The rows of `plan` taken apart, and the names of what they have then.

    QueryError where the form is refused.
    """
    alias = node.args.get("alias")
    names = [column.name for column in (alias.columns if alias is not None else [])]
    is_view = bool(node.args.get("view"))
    view = _Written("LATERAL VIEW", node.this, names, "LATERAL VIEW explode(x) t AS element")
    if not is_view or not is_generator(node.this):
        raise reading.text.unsupported(
            f"LATERAL VIEW of `{function_name(node.this) or node.this.key}`",
            node.this,
            hint="explode and posexplode are supported",
        )
    whole = _taken_apart(plan, scope, view, reading, outer=bool(node.args.get("outer")))
    called = None if alias is None or alias.this is None else (alias.this.name,)
    return whole, side_by_side(scope, relation_scope(called, whole.made))


def is_generator(node: exp.Expression) -> bool:
    """Whether it is a call that is read as one row for every element."""
    return function_name(node) in _GENERATORS


@dataclass(frozen=True, slots=True)
class Generated:
    """A generator of a SELECT list: its item, the rows taken apart, and the columns made."""

    item: exp.Expression
    plan: Explode

    @property
    def columns(self) -> list[tuple[str, Expr, Span | None]]:
        """What stands in the list in place of the item: name, value and place."""
        span = self.plan.span
        return [(each.name, each.ref(span), span) for each in self.plan.made]

    def refuse_beside(self, what: str, text: SqlText) -> None:
        """Refuse the generator in a query that has this too."""
        raise text.unsupported(
            f"`{self.plan.function}` in the SELECT list of a query with {what}",
            self.plan.span,
            hint=f"write {_AS_VIEW} after FROM, or expand the rows in a subquery in FROM",
        )


def read_generated(
    items: Sequence[exp.Expression], plan: Plan, scope: Scope, reading: Reading
) -> Generated | None:
    """The generator that is an item of the SELECT list; None without one."""
    result = [item for item in items if is_generator(_called(item))]
    if not result:
        return None
    if len(result) > 1:
        raise reading.text.unsupported(
            "several generator functions in one SELECT list",
            _called(result[1]),
            hint=f"write each as {_AS_VIEW} after FROM",
        )
    (item,) = result
    if isinstance(item, exp.Aliases):
        names = [part.name for part in item.expressions]
    else:
        names = [item.alias] if item.alias else []
    written = _Written("SELECT", _called(item), names, "SELECT explode(x) AS element")
    return Generated(item, _taken_apart(plan, scope, written, reading, outer=False))


def _called(item: exp.Expression) -> exp.Expression:
    """An item of a SELECT list without its alias or aliases."""
    inner = item.this if isinstance(item, exp.Aliases) else item.unalias()
    return inner if isinstance(inner, exp.Expression) else item


@dataclass(frozen=True, slots=True)
class _Written:
    """A generator as it is written: in which clause, the call, and the names for its columns."""

    clause: str
    call: exp.Expression
    names: list[str]
    example: str

    @property
    def what(self) -> str:
        """It, for messages."""
        return "a generator" if self.clause == "SELECT" else f"a {self.clause}"


def _taken_apart(
    plan: Plan, scope: Scope, written: _Written, reading: Reading, *, outer: bool
) -> Explode:
    call, text = written.call, reading.text
    name = function_name(call) or ""
    function, is_outer = _GENERATORS[name]
    arguments = arguments_of(call)
    if len(arguments) != 1:
        raise text.unsupported(f"{written.clause} of `{name}` with several values", call)
    array = ExprReader(reading, Names(text, scope), written.clause).read(arguments[0])
    made = _columns(written, function, known_type(array), reading)
    ids = reading.fresh("x", [attribute.name for attribute in made])
    made = tuple(replace(item, id=identity) for item, identity in zip(made, ids, strict=True))
    return Explode(plan, function, array, made, is_outer or outer, span=text.span_of(call))


def _columns(
    written: _Written, function: str, kind: SqlType | None, reading: Reading
) -> tuple[Attribute, ...]:
    """The columns made, without an identity yet: a place, then an element or a key and a value."""
    names = written.names
    place = ["pos"] if function == "posexplode" else []
    of_map = ["key", "value"]
    is_map = kind is not None and kind.kind is Kind.OTHER and kind.detail.startswith("map<")
    is_array = kind is not None and kind.kind is Kind.OTHER and kind.detail.startswith("array<")
    if not names and not is_map and not is_array:
        raise reading.text.unsupported(
            f"{written.what} without column names",
            written.call,
            hint=f"name the columns, as in `{written.example}`",
        )
    elements = len(names) - len(place) if names else (2 if is_map else 1)
    if elements not in (1, 2) or (is_map and elements != 2) or (is_array and elements != 1):
        raise reading.text.error(
            f"{written.clause} names {count_text(len(names), 'column')}, but `{function}` returns "
            "a different number",
            written.call,
            hint="name one column for an array, two for a map, and one more for a position",
        )
    own = [*place, *(of_map if elements == 2 else ["col"])]
    types = [*(INTEGER for _ in place), *_element_types(kind, elements)]
    return tuple(
        Attribute("", name, type_, nullable=True)
        for name, type_ in zip(names or own, types, strict=True)
    )


def _element_types(kind: SqlType | None, elements: int) -> list[SqlType | None]:
    """Of what is inside: None where it is not a plain type."""
    detail = "" if kind is None else kind.detail
    if elements == 1:
        return [from_spark(detail.removeprefix("array<").removesuffix(">"))]
    key, _, value = detail.removeprefix("map<").removesuffix(">").partition(",")
    return [from_spark(key), from_spark(value)]
