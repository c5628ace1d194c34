"""UNION, EXCEPT and INTERSECT.

Law: columns match by position and get the common type, decimals without one that to which Spark
rounds both; a side of another type is cast explicitly, and sides of other types are refused.
Out of scope: the sides themselves (`plan.sql.select`).
"""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from impctl.data.schema import DOUBLE, INTEGRAL, Kind, SqlType
from impctl.errors import count_text
from impctl.expr.nodes import Cast, Expr
from impctl.expr.types import common_type, rounded_type
from impctl.plan.nodes import (
    Attribute,
    ComputedColumn,
    Plan,
    Project,
    SetKind,
    SetOperation,
    attributes_of,
)
from impctl.plan.sql.expr import ExprReader
from impctl.plan.sql.order import limited, read_order
from impctl.plan.sql.relation import Environment, refuse_parts
from impctl.plan.sql.scope import Names, relation_scope

_KINDS: dict[type[exp.Expression], SetKind] = {
    exp.Union: SetKind.UNION,
    exp.Except: SetKind.EXCEPT,
    exp.Intersect: SetKind.INTERSECT,
}
_PARTS = frozenset({"this", "expression", "distinct", "order", "limit", "offset", "with"})


def read_set_operation(node: exp.SetOperation, environment: Environment) -> Plan:
    """The plan of a set operation with its ORDER BY and LIMIT; long chains are walked."""
    chain = [node]
    while isinstance(chain[-1].this, type(node)) and not _has_tail(chain[-1].this):
        chain.append(chain[-1].this)
    plan = environment.read_query(chain[-1].this, environment)
    for link in reversed(chain):
        plan = _combined(link, plan, environment)
    return ordered(node, plan, environment)


def _has_tail(node: exp.Expression) -> bool:
    return any(node.args.get(name) for name in ("order", "limit", "offset", "with", "with_"))


def ordered(node: exp.Expression, plan: Plan, environment: Environment) -> Plan:
    """A finished query under an ORDER BY or LIMIT of its own, which sees its columns only."""
    reading = environment.reading
    scope = relation_scope(None, attributes_of(plan))

    def ordinal(item: exp.Expression) -> Expr | None:
        if not (isinstance(item, exp.Literal) and not item.is_string and item.name.isdigit()):
            return None
        position = int(item.name)
        if not 1 <= position <= len(scope.entries):
            raise reading.text.error(
                f"ORDER BY {position} is not a column of the query, which has {len(scope.entries)}",
                item,
                hint=f"use a number from 1 to {len(scope.entries)}",
            )
        return scope.entries[position - 1].expr

    reader = ExprReader(reading, Names(reading.text, scope), "ORDER BY")
    return limited(plan, read_order(node, reader, ordinal))


def _combined(node: exp.SetOperation, left: Plan, environment: Environment) -> Plan:
    refuse_parts(node, _PARTS, environment, "a set operation")
    refuse_misread(node, environment)
    reading = environment.reading
    right = environment.read_query(node.expression, environment)
    lefts, rights = attributes_of(left), attributes_of(right)
    if len(lefts) != len(rights):
        raise reading.text.error(
            f"A set operation combines {count_text(len(lefts), 'column')} with {len(rights)}",
            node.expression,
            hint="select the same number of columns on both sides",
        )
    kind = _KINDS[type(node)]
    types = [
        _common(a, b, node.expression, environment) for a, b in zip(lefts, rights, strict=True)
    ]
    ids = reading.fresh("u", [attribute.name for attribute in lefts])
    outputs = tuple(
        Attribute(identity, a.name, wanted, _is_nullable(kind, a, b))
        for identity, a, b, wanted in zip(ids, lefts, rights, types, strict=True)
    )
    return SetOperation(
        kind,
        not node.args.get("distinct"),
        _cast_to(left, types, environment),
        _cast_to(right, types, environment),
        outputs,
        span=reading.text.span_of(node),
    )


def refuse_misread(node: exp.SetOperation, environment: Environment) -> None:
    """INTERSECT binds tighter than UNION and EXCEPT, which group to the left; not every sqlglot
    that impctl runs with reads them so. What stands in brackets is a Subquery."""
    loose = (exp.Union, exp.Except)
    sides = (node.this, node.expression) if isinstance(node, exp.Intersect) else (node.expression,)
    if any(isinstance(side, loose) for side in sides):
        raise environment.reading.text.unsupported(
            "INTERSECT next to UNION or EXCEPT without parentheses",
            node,
            hint="put parentheses around the set operation to evaluate first",
        )


def _is_nullable(kind: SetKind, left: Attribute, right: Attribute) -> bool:
    match kind:
        case SetKind.UNION:
            return left.nullable or right.nullable
        case SetKind.EXCEPT:
            return left.nullable
        case SetKind.INTERSECT:
            return left.nullable and right.nullable


def _common(
    left: Attribute, right: Attribute, place: exp.Expression, environment: Environment
) -> SqlType | None:
    if left.type is None or right.type is None:
        return None
    result = _wider(left.type, right.type)
    if result is None:
        text = environment.reading.text
        raise text.unsupported(
            f"a set operation of `{left.type}` and `{right.type}` in column `{left.name}`",
            place,
            hint="cast one side so that both have the same type",
        )
    return result


def _wider(left: SqlType, right: SqlType) -> SqlType | None:
    kinds = {left.kind, right.kind}
    if Kind.FLOAT in kinds and kinds & INTEGRAL:
        # Under ANSI rules Spark takes DOUBLE here, so that no digit of the integer is lost.
        return DOUBLE
    result = common_type(left, right)
    return rounded_type(left, right) if result is None else result


def _cast_to(plan: Plan, types: list[SqlType | None], environment: Environment) -> Plan:
    attributes = attributes_of(plan)
    changed = [
        wanted is not None and wanted != attribute.type
        for attribute, wanted in zip(attributes, types, strict=True)
    ]
    if not any(changed):
        return plan
    ids = environment.reading.fresh("p", [attribute.name for attribute in attributes])
    outputs = []
    for identity, attribute, wanted, change in zip(ids, attributes, types, changed, strict=True):
        expr: Expr = attribute.ref()
        if change and wanted is not None:
            expr = Cast(expr, wanted)
        kind = wanted if wanted is not None else attribute.type
        outputs.append(ComputedColumn(replace(attribute, id=identity, type=kind), expr))
    return Project(plan, tuple(outputs))
