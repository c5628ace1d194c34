"""A circle of relations built as one operator that looks rows up.

Law: the flow has the rows of the circle, with the columns that are asked for and the fragments of
all its relations. Relations that are one table under the same conditions, with the same ranges, are
kept once: their rows are the same under other names.
Out of scope: what is a circle (`circuits.trees.circles`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import chain

from impctl.circuits.flows import Column, Flow, known_type, known_type_of, refuse_approximate
from impctl.circuits.plumbing import Plumbing
from impctl.circuits.trees.shape import CircleRows
from impctl.engine.jointree.cyclic import Circle, Probe, Probed
from impctl.expr.nodes import ColumnRef, Expr, conjuncts, substitute
from impctl.plan.nodes import Plan, Scan, Select, attributes_of
from impctl.sketch.partition import RangePartition
from impctl.types import AccessId, AttributeId
from impctl.values import dataclass

_Source = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Relation:
    """A relation's rows, and what is kept of them, in the form that relations with the same
    `source` share: by `names` of the table's columns."""

    flow: Flow
    source: _Source
    forms: tuple[Expr, ...]
    names: Mapping[AttributeId, Expr]
    keys: tuple[tuple[int, Expr], ...]
    """Per class the form of the column of it."""


def build_circle(
    builder: Plumbing,
    name: str,
    circle: CircleRows,
    asked: Collection[AttributeId],
    rows: Plan,
    sketched: Mapping[AccessId, RangePartition],
) -> Flow:
    """The joined rows with the columns that are asked for; `rows` is the plan that they are of."""
    relations = [
        _relation(builder, at, plan, circle, frozenset(asked), sketched)
        for at, plan in enumerate(circle.plans)
    ]
    stores = list(dict.fromkeys(one.source for one in relations))
    flows, inputs, back = [], [], []
    for at, one in enumerate(relations):
        # Relations of one store keep the same columns, in the same order.
        alike = (other.forms for other in relations if other.source == one.source)
        forms = list(dict.fromkeys(chain.from_iterable(alike)))
        exprs = [substitute(form, dict(one.names)) for form in forms]
        columns = tuple(
            (f"{name}/{at}.{place}", known_type_of(expr, rows.span))
            for place, expr in enumerate(exprs)
        )
        outputs = [(column, expr) for (column, _), expr in zip(columns, exprs, strict=True)]
        flow = builder.project(one.flow, outputs, columns, rows)
        refuse_approximate(flow, "looking up", rows.span)
        flows.append(flow)
        classes = tuple((class_, forms.index(form)) for class_, form in one.keys)
        inputs.append(Probed(columns, classes, len(flow.accesses), stores.index(one.source)))
        back += [
            (expr.id, ColumnRef(*column))
            for expr, column in zip(exprs, columns, strict=True)
            if isinstance(expr, ColumnRef) and expr.id in asked
        ]
    kept = tuple(ref.id for _, ref in back)
    probe = Probe(name, Circle(tuple(inputs), circle.null_safe, kept))
    columns_kept: tuple[Column, ...] = tuple((ref.id, ref.type) for _, ref in back)
    accesses = tuple(access for flow in flows for access in flow.accesses)
    result = Flow(builder.put(probe, *flows), columns_kept, accesses)
    named: tuple[Column, ...] = tuple((own, ref.type) for own, ref in back)
    return builder.project(result, list(back), named, rows)


def _relation(
    builder: Plumbing,
    at: int,
    plan: Plan,
    circle: CircleRows,
    asked: frozenset[AttributeId],
    sketched: Mapping[AccessId, RangePartition],
) -> _Relation:
    flow = builder.build(plan, must_be_sure=True)
    forms: dict[AttributeId, Expr] = {}
    names: dict[AttributeId, Expr] = {}
    source: _Source = (at,)
    scan = plan
    predicates: list[Expr] = []
    while isinstance(scan, Select):
        predicates += conjuncts(scan.predicate)
        scan = scan.child
    if isinstance(scan, Scan):
        for attribute in scan.attributes:
            kind = known_type(attribute.type, scan.span)
            forms[attribute.id] = ColumnRef(f"column {attribute.name}", kind)
            names[f"column {attribute.name}"] = ColumnRef(attribute.id, kind)
        alike = frozenset(_form(part, forms) for part in predicates)
        source = (scan.table, frozenset(names), alike, sketched.get(scan.access))
    kept: list[Expr] = [expr for _, expr in circle.keys[at]]
    kinds = {a.id: known_type(a.type, plan.span) for a in attributes_of(plan)}
    kept += [ColumnRef(one, kinds[one]) for one in sorted(asked & kinds.keys())]
    own = tuple(_form(expr, forms) for expr in kept)
    keys = tuple((class_, _form(expr, forms)) for class_, expr in circle.keys[at])
    return _Relation(flow, source, own, names, keys)


def _form(expr: Expr, forms: Mapping[AttributeId, Expr]) -> Expr:
    """The expression by the names of the table's columns, wherever in the SQL it stands."""
    return substitute(expr, dict(forms))
