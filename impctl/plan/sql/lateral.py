"""LATERAL VIEW: the rows of FROM once for every element of an array or a map.

Law: the columns it makes are as many as Spark makes, under the names that are written or Spark's
own; where how many there are is not certain, names are asked for.
Out of scope: generators of other shapes (inline, stack, json_tuple), and those in SELECT.
"""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from impctl.data.schema import INTEGER, Kind, SqlType, from_spark
from impctl.plan.nodes import Attribute, Explode, Plan
from impctl.plan.sql.call import arguments_of, function_name
from impctl.plan.sql.context import Reading, known_type
from impctl.plan.sql.expr import ExprReader
from impctl.plan.sql.scope import Names, Scope, relation_scope, side_by_side

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
    text = reading.text
    name = function_name(node.this) or node.this.key
    if not node.args.get("view") or name not in _GENERATORS:
        raise text.unsupported(
            f"LATERAL VIEW of `{name}`", node.this, hint="explode and posexplode are read"
        )
    function, is_outer = _GENERATORS[name]
    arguments = arguments_of(node.this)
    if len(arguments) != 1:
        raise text.unsupported(f"LATERAL VIEW of `{name}` of several values", node.this)
    array = ExprReader(reading, Names(text, scope), "LATERAL VIEW").read(arguments[0])
    kind = known_type(array)
    alias = node.args.get("alias")
    names = [column.name for column in (alias.columns if alias is not None else [])]
    made = _columns(names, function, kind, node, reading)
    ids = reading.fresh("x", [attribute.name for attribute in made])
    made = tuple(replace(item, id=identity) for item, identity in zip(made, ids, strict=True))
    outer = is_outer or bool(node.args.get("outer"))
    whole = Explode(plan, function, array, made, outer, span=text.span_of(node.this))
    called = None if alias is None or alias.this is None else (alias.this.name,)
    return whole, side_by_side(scope, relation_scope(called, made))


def _columns(
    names: list[str],
    function: str,
    kind: SqlType | None,
    node: exp.Lateral,
    reading: Reading,
) -> tuple[Attribute, ...]:
    """The columns made, without an identity yet: a place, then an element or a key and a value."""
    place = ["pos"] if function == "posexplode" else []
    of_map = ["key", "value"]
    is_map = kind is not None and kind.kind is Kind.OTHER and kind.detail.startswith("map<")
    is_array = kind is not None and kind.kind is Kind.OTHER and kind.detail.startswith("array<")
    if not names and not is_map and not is_array:
        raise reading.text.unsupported(
            "a LATERAL VIEW without names for its columns",
            node.this,
            hint="name them, as in `LATERAL VIEW explode(x) t AS element`",
        )
    elements = len(names) - len(place) if names else (2 if is_map else 1)
    if elements not in (1, 2) or (is_map and elements != 2) or (is_array and elements != 1):
        raise reading.text.error(
            f"LATERAL VIEW names {len(names)} columns, `{function}` makes another number",
            node.this,
            hint="name one column for an array, two for a map, one more for a position",
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
