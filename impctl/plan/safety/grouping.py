"""Aggregates: whole groups where the partition attribute is grouped on, else one relation each.

Law: groups over a contained input are contained if every grouping expression is EQUAL; an aggregate
is then AT_MOST or AT_LEAST only as `relation_of` allows. Sums need a known sign, because what a
sketch leaves out may have either. Sums of doubles are compared as if exact: Spark's own result
depends on the order of rows with or without a sketch.
Out of scope: DISTINCT (`plan.safety.transfer`).
"""

from __future__ import annotations

from dataclasses import replace

from impctl.data.schema import Kind
from impctl.expr.nodes import ColumnRef, Expr
from impctl.expr.types import type_of
from impctl.plan.functions import TIE_DEPENDENT
from impctl.plan.nodes import Aggregate, AggregateCall, Attribute
from impctl.plan.safety.direction import Columns, direction
from impctl.plan.safety.facts import NOTHING, KnownSigns, Signs, may_be_nan
from impctl.plan.safety.relation import Relation
from impctl.plan.safety.signs import learn, signs_of
from impctl.plan.safety.status import Keys, NodeState, Refusal, Status, equal_columns, refused
from impctl.plan.safety.wording import Wording
from impctl.types import AccessId, AttributeId

LARGEST = frozenset({"max", "bool_or", "any", "some"})
SMALLEST = frozenset({"min", "bool_and", "every"})
_NONNEGATIVE = frozenset(
    {"count", "count_if", "approx_count_distinct", "stddev", "stddev_samp", "stddev_pop",
     "std", "variance", "var_samp", "var_pop"}
)  # fmt: skip


def group(node: Aggregate, child: NodeState, wording: Wording) -> NodeState:
    """The state of an aggregate over its child's state."""
    identifiers = _identifiers(node)
    ties = child.ties if child.ties is not None else _order_dependence(node, wording)
    base = NodeState(
        Status.EXACT,
        child.columns.once(lambda: _grouped(node, child.columns), node),
        sketched=child.sketched,
        identifiers=identifiers,
        ties=ties,
    )
    if child.status is Status.EXACT:
        return base
    keys = grouped_keys(node, child)
    if child.status is Status.KEYED and len(keys) == len(child.keys):
        return replace(base, status=Status.KEYED, keys=keys)
    return _contained_groups(node, child, base, wording)


def _grouped(node: Aggregate, columns: Columns) -> Columns:
    attributes = (*(k.attribute for k in node.keys), *(a.attribute for a in node.aggregates))
    return equal_columns(attributes, _signs_of_outputs(node, columns.signs))


def grouped_keys(node: Aggregate, child: NodeState) -> Keys:
    """Per access of a KEYED child, the outputs grouped on that equal its partition attribute."""
    if child.status is not Status.KEYED:
        return {}
    everywhere = set(range(len(node.keys)))
    for chosen in node.grouping_sets or ():
        everywhere &= set(chosen)
    result: dict[AccessId, frozenset[AttributeId]] = {}
    for access, columns in child.keys.items():
        outputs = frozenset(
            key.attribute.id
            for index, key in enumerate(node.keys)
            if index in everywhere and isinstance(key.expr, ColumnRef) and key.expr.id in columns
        )
        if outputs:
            result[access] = outputs
    return result


def _identifiers(node: Aggregate) -> frozenset[frozenset[AttributeId]]:
    if node.grouping_sets is not None:
        return frozenset()
    return frozenset({frozenset(key.attribute.id for key in node.keys)})


def _order_dependence(node: Aggregate, wording: Wording) -> Refusal | None:
    """What is open where rows tie; other values that are open decide nothing in a judged plan."""
    for output in node.aggregates:
        if output.call.function in TIE_DEPENDENT:
            text = wording.call(output)
            return Refusal(f"`{text}` depends on the order of rows", output.call.span)
    return None


def _contained_groups(
    node: Aggregate, child: NodeState, base: NodeState, wording: Wording
) -> NodeState:
    relations: dict[AttributeId, Relation] = {}
    causes: dict[AttributeId, str] = {}
    for key in node.keys:
        if not child.columns.are_equal(key.expr):
            what = wording.text(key.expr)
            return refused(
                f"GROUP BY uses `{what}`, whose value over some rows can differ from its value "
                "over all of them",
                key.expr.span if key.expr.span is not None else node.span,
            )
        relations[key.attribute.id] = Relation.EQUAL
    for output in node.aggregates:
        relation, cause = relation_of(output.call, child.columns, wording)
        relations[output.attribute.id] = relation
        if cause:
            causes[output.attribute.id] = cause
    columns = Columns(relations, base.columns.signs)
    return replace(base, status=Status.CONTAINED, columns=columns, causes=causes)


def relation_of(call: AggregateCall, columns: Columns, wording: Wording) -> tuple[Relation, str]:
    """How the aggregate over part of a group compares with it over all; and why if unknown."""
    if call.condition is not None:
        if not columns.are_equal(call.condition):
            return Relation.UNKNOWN, f"its FILTER reads `{wording.text(call.condition)}`"
        columns = Columns(columns.relations, learn(call.condition, columns.signs))
    if call.distinct and not all(columns.are_equal(x) for x in call.arguments):
        return Relation.UNKNOWN, "it counts distinct values that may differ"
    match call.function, call.arguments:
        case "count", arguments:
            unsure = any(direction(x, columns) is Relation.UNKNOWN for x in arguments)
            return (Relation.UNKNOWN if unsure else Relation.AT_MOST), ""
        case (("grouping" | "grouping_id"), _):
            # Says which grouping set the row belongs to, whatever rows there are.
            return Relation.EQUAL, ""
        case "count_if", (argument,):
            equal = columns.are_equal(argument)
            return (Relation.AT_MOST if equal else Relation.UNKNOWN), ""
        case "sum", (argument,):
            return _of_sum(argument, columns, wording)
        case name, (argument,) if name in LARGEST:
            return _of_extreme(argument, columns, Relation.AT_MOST), ""
        case name, (argument,) if name in SMALLEST:
            return _of_extreme(argument, columns, Relation.AT_LEAST), ""
        case _:
            return Relation.UNKNOWN, ""


def _of_sum(argument: Expr, columns: Columns, wording: Wording) -> tuple[Relation, str]:
    relation, signs = direction(argument, columns), signs_of(argument, columns.signs)
    if signs.nonnegative and relation in (Relation.EQUAL, Relation.AT_MOST):
        return Relation.AT_MOST, ""
    if signs.nonpositive and relation in (Relation.EQUAL, Relation.AT_LEAST):
        return Relation.AT_LEAST, ""
    if signs.nonnegative or signs.nonpositive:
        return Relation.UNKNOWN, ""
    cause = f"it is not known that `{wording.text(argument)}` is never negative"
    return Relation.UNKNOWN, cause


def _of_extreme(argument: Expr, columns: Columns, wanted: Relation) -> Relation:
    relation, result = direction(argument, columns), type_of(argument)
    if result is None or result.kind is Kind.OTHER:
        return Relation.UNKNOWN
    return wanted if relation in (Relation.EQUAL, wanted) else Relation.UNKNOWN


def _signs_of_outputs(node: Aggregate, known: KnownSigns) -> dict[AttributeId | Expr, Signs]:
    result: dict[AttributeId | Expr, Signs] = {}
    for key in node.keys:
        signs = signs_of(key.expr, known)
        result[key.attribute.id] = signs if node.grouping_sets is None else signs.or_null()
    for output in node.aggregates:
        never_empty = bool(node.keys) and node.grouping_sets is None
        result[output.attribute.id] = _signs_of_call(
            output.call, output.attribute, known, never_empty=never_empty
        )
    return result


def _signs_of_call(
    call: AggregateCall, attribute: Attribute, known: KnownSigns, *, never_empty: bool
) -> Signs:
    if call.function in ("count", "count_if"):
        return Signs(nonnegative=True, nan_free=True, not_null=True)
    if call.function in _NONNEGATIVE:
        return Signs(nonnegative=True)
    if call.function not in ("sum", "avg", "mean", "min", "max") or len(call.arguments) != 1:
        return NOTHING
    if call.condition is not None:
        known = learn(call.condition, known)
    argument = signs_of(call.arguments[0], known)
    is_extreme = call.function in ("min", "max")
    clean = not may_be_nan(attribute.type, NOTHING) or _stays_clean(call.function, argument)
    return Signs(
        nonnegative=argument.nonnegative,
        nonpositive=argument.nonpositive,
        nan_free=clean,
        not_null=argument.not_null and never_empty and call.condition is None,
        least=argument.least if is_extreme else None,
        most=argument.most if is_extreme else None,
    )


def _stays_clean(function: str, argument: Signs) -> bool:
    """Whether NaN-free doubles give a NaN-free result: a sum must not meet both infinities."""
    if function in ("min", "max"):
        return argument.nan_free
    return argument.nan_free and (argument.nonnegative or argument.nonpositive)
