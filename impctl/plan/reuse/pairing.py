"""Two plans that differ in constants, compared node by node from the inputs up.

Law, for each pair of nodes over any one database: every row of the asked plan has a row of its own
in the captured plan whose lineage contains its lineage, with columns related as `columns` says.
Where `difference` is not None, the rows common to both are the same rows, and those that only the
captured plan has are told apart by these columns alone; the empty set means equal results.
Out of scope: safety (`plan.safety.verdict`); shapes (`plan.reuse.alignment`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import assert_never

from impctl.expr.nodes import ColumnRef, Expr, Span
from impctl.plan.fingerprint import is_same
from impctl.plan.functions import ORDER_DEPENDENT
from impctl.plan.nodes import (
    Aggregate,
    AggregateCall,
    ComputedColumn,
    Distinct,
    Explode,
    Fixpoint,
    Join,
    JoinKind,
    Plan,
    Project,
    Recursive,
    Scan,
    Select,
    SetKind,
    SetOperation,
    Sort,
    SortKey,
    TopK,
    Window,
    WindowCall,
    attributes_of,
    inputs_of,
)
from impctl.plan.one_row import OneRow
from impctl.plan.reuse.changed_columns import Difference, changed_columns
from impctl.plan.reuse.implication import find_gap
from impctl.plan.reuse.mismatch import Mismatch
from impctl.plan.safety.combining import branch
from impctl.plan.safety.direction import Columns, direction
from impctl.plan.safety.facts import Fact, KnownSigns
from impctl.plan.safety.grouping import relation_of
from impctl.plan.safety.judging import PlanJudge
from impctl.plan.safety.relation import Relation
from impctl.plan.safety.status import NodeState, Status
from impctl.plan.safety.wording import Wording, condition_name
from impctl.types import AttributeId
from impctl.values import dataclass

_WORDLESS = Wording("", {})

_EQUAL_RESULTS: frozenset[AttributeId] = frozenset()

_Judged = tuple[Difference, dict[AttributeId, Relation]]


class _Mismatched(Exception):
    def __init__(self, reason: str, asked: Span | None = None, captured: Span | None = None):
        super().__init__(reason)
        self.found = Mismatch(reason, asked, captured)


@dataclass(frozen=True, slots=True)
class _Pair:
    """What is known of a pair of nodes."""

    difference: Difference
    columns: Columns


def find_mismatch(asked: Plan, captured: Plan, facts: Collection[Fact]) -> Mismatch | None:
    """The first reason for which the captured provenance need not hold the asked one.

    Both plans have the same shape and identities (`plan.reuse.alignment.aligned`).
    """
    walker = _Walker(
        PlanJudge(asked, _WORDLESS).of({}, facts).states,
        PlanJudge(captured, _WORDLESS).of({}, facts).states,
    )
    try:
        walker.visit(asked, captured, is_last=True)
    except _Mismatched as mismatch:
        return mismatch.found
    return None


class _Walker:
    """Walks both plans side by side; positions are those of `nodes_of`, for the facts."""

    def __init__(self, asked: Sequence[NodeState], captured: Sequence[NodeState]) -> None:
        self._asked = asked
        self._captured = captured
        self._position = 0

    def visit(self, asked: Plan, captured: Plan, *, is_last: bool) -> _Pair:
        """The pair of these nodes; `is_last` while nothing above drops or combines rows."""
        position = self._position
        self._position += 1
        below = is_last and isinstance(asked, Project | Sort)
        children = zip(inputs_of(asked), inputs_of(captured), strict=True)
        inputs = [self.visit(left, right, is_last=below) for left, right in children]
        is_loose = self._asked[position].ties is not None
        if isinstance(asked, TopK) and not is_last and is_loose:
            raise _Mismatched(
                "which of the rows tied at a LIMIT inside the query are kept is not fixed"
            )
        difference, relations = _judged(asked, captured, inputs, is_loose)
        if difference is not None:
            relations = dict.fromkeys(relations, Relation.EQUAL)
        return _Pair(difference, Columns(relations, self._signs(position)))

    def _signs(self, position: int) -> KnownSigns:
        """Facts that hold of the rows of either plan."""
        here, there = (s[position].columns.signs for s in (self._asked, self._captured))
        return {key: signs.meet(there[key]) for key, signs in here.items() if key in there}


def _judged(asked: Plan, captured: Plan, inputs: list[_Pair], is_loose: bool) -> _Judged:
    """The rule of the node; `is_loose` says that a choice among ties decides on its rows."""
    match asked, captured:
        case (Scan(), Scan()) | (Recursive(), Recursive()) | (OneRow(), OneRow()):
            return _EQUAL_RESULTS, _all_equal(captured)
        case Fixpoint(), Fixpoint() if _is_one_kind(asked, captured):
            return _fixpoint(captured, inputs)
        case Select(), Select():
            return _select(asked, captured, inputs[0])
        case Project(), Project():
            return _project(asked, captured, inputs[0])
        case Join(), Join():
            return _join(asked, captured, *inputs)
        case Aggregate(), Aggregate():
            return _aggregate(asked, captured, inputs[0])
        case Distinct(), Distinct():
            _require_equal(inputs[0], "DISTINCT")
            return inputs[0].difference, _all_equal(captured)
        case SetOperation(), SetOperation():
            return _combine(asked, captured, *inputs)
        case Explode(), Explode():
            return _explode(asked, captured, inputs[0])
        case Sort(), Sort():
            return inputs[0].difference, dict(inputs[0].columns.relations)
        case TopK(), TopK():
            return _top(asked, captured, inputs[0])
        case Window(), Window():
            return _window(asked, captured, inputs[0], is_loose)
    raise _Mismatched("the queries differ in more than the constants in their conditions")


def _is_one_kind(asked: Fixpoint, captured: Fixpoint) -> bool:
    return asked.is_set == captured.is_set and asked.best == captured.best


def _fixpoint(captured: Fixpoint, inputs: list[_Pair]) -> _Judged:
    if any(pair.difference != _EQUAL_RESULTS for pair in inputs):
        raise _Mismatched(
            "the constants inside WITH RECURSIVE differ, which changes what it derives"
        )
    return _EQUAL_RESULTS, _all_equal(captured)


def _all_equal(node: Plan) -> dict[AttributeId, Relation]:
    return {attribute.id: Relation.EQUAL for attribute in attributes_of(node)}


def _select(asked: Select, captured: Select, child: _Pair) -> _Judged:
    _require_implied(asked.predicate, captured.predicate, child.columns, condition_name(captured))
    changed = changed_columns(asked.predicate, captured.predicate)
    return _union(child.difference, changed), dict(child.columns.relations)


def _require_implied(asked: Expr, captured: Expr, columns: Columns, name: str) -> None:
    gap = find_gap(asked, captured, columns)
    if gap is None:
        return
    if is_same(asked, captured):
        raise _Mismatched(
            f"the constants below {name} differ, which changes the values that it compares in",
            None,
            gap.span,
        )
    raise _Mismatched(
        f"{name} does not imply the condition the sketch was captured for:", asked.span, gap.span
    )


def _project(asked: Project, captured: Project, child: _Pair) -> _Judged:
    _require_alike(
        [output.expr for output in asked.outputs], [output.expr for output in captured.outputs]
    )
    renamed = _renamed(captured.outputs)
    relations = {
        output.attribute.id: direction(output.expr, child.columns) for output in captured.outputs
    }
    return _mapped(child.difference, renamed), relations


def _explode(asked: Explode, captured: Explode, child: _Pair) -> _Judged:
    _require_alike([asked.array], [captured.array])
    if (asked.function, asked.outer) != (captured.function, captured.outer):
        raise _Mismatched("the queries differ in more than the constants in their conditions")
    if direction(asked.array, child.columns) is not Relation.EQUAL:
        raise _Mismatched("LATERAL VIEW may expand other values")
    made = {attribute.id: Relation.EQUAL for attribute in captured.made}
    return child.difference, {**child.columns.relations, **made}


def _renamed(outputs: Sequence[ComputedColumn]) -> dict[AttributeId, AttributeId]:
    """Input columns that are put out as they are, with their new identities."""
    return {o.expr.id: o.attribute.id for o in outputs if isinstance(o.expr, ColumnRef)}


def _mapped(difference: Difference, renamed: dict[AttributeId, AttributeId]) -> Difference:
    if difference is None or not difference <= renamed.keys():
        return None
    return frozenset(renamed[column] for column in difference)


def _require_alike(asked: Sequence[Expr | None], captured: Sequence[Expr | None]) -> None:
    if len(asked) != len(captured):
        raise _Mismatched("the queries differ in more than the constants in their conditions")
    for here, there in zip(asked, captured, strict=True):
        if not is_same(here, there):
            raise _Mismatched(
                "outside of conditions, nothing may differ:",
                None if here is None else here.span,
                None if there is None else there.span,
            )


def _require_equal(child: _Pair, name: str) -> None:
    if any(relation is not Relation.EQUAL for relation in child.columns.relations.values()):
        raise _Mismatched(f"the constants differ, which changes the values that {name} compares")


def _join(asked: Join, captured: Join, left: _Pair, right: _Pair) -> _Judged:
    if (asked.kind, asked.null_aware) != (captured.kind, captured.null_aware):
        raise _Mismatched("the queries differ in more than the constants in their conditions")
    relations = {**left.columns.relations, **right.columns.relations}
    signs: KnownSigns = {**left.columns.signs, **right.columns.signs}
    both = Columns(relations, signs)
    unchanged = is_same(asked.condition, captured.condition)
    match captured.kind:
        case JoinKind.INNER | JoinKind.SEMI:
            if asked.condition is not None and captured.condition is not None:
                _require_implied(asked.condition, captured.condition, both, "the join")
            elif captured.condition is not None:
                raise _Mismatched(
                    "the queries differ in more than the constants in their conditions"
                )
            if captured.kind is JoinKind.INNER:
                changed = changed_columns(asked.condition, captured.condition)
                return _union(left.difference, right.difference, changed), relations
            plain = unchanged and right.difference == _EQUAL_RESULTS
            return (left.difference if plain else None), dict(left.columns.relations)
        case JoinKind.LEFT | JoinKind.ANTI:
            _require_kept(captured, unchanged, right, both)
            kept = left
        case JoinKind.RIGHT:
            _require_kept(captured, unchanged, left, both)
            kept = right
        case JoinKind.FULL:
            _require_kept(captured, unchanged, left, both)
            _require_kept(captured, unchanged, right, both)
            kept = left
        case _:
            assert_never(captured.kind)
    own = {attribute.id for attribute in attributes_of(captured)}
    return kept.difference, {column: rel for column, rel in relations.items() if column in own}


def _require_kept(node: Join, unchanged: bool, other: _Pair, both: Columns) -> None:
    """What a row's absence lets through must be the same in both queries."""
    name = node.kind.value.upper()
    if other.difference != _EQUAL_RESULTS:
        raise _Mismatched(
            f"the constants differ on the side of the {name} join that must be the same"
        )
    if not unchanged or not (node.condition is None or both.are_equal(node.condition)):
        raise _Mismatched(f"the constants differ, which changes what the {name} join matches on")


def _union(*differences: Difference) -> Difference:
    result = _EQUAL_RESULTS
    for difference in differences:
        if difference is None:
            return None
        result |= difference
    return result


def _aggregate(asked: Aggregate, captured: Aggregate, child: _Pair) -> _Judged:
    _require_alike([key.expr for key in asked.keys], [key.expr for key in captured.keys])
    _require_alike_calls(asked, captured)
    for key in captured.keys:
        if not child.columns.are_equal(key.expr):
            raise _Mismatched("the constants differ, which changes values used for grouping")
    relations = {key.attribute.id: Relation.EQUAL for key in captured.keys}
    loose: list[AttributeId] = []
    for output in captured.aggregates:
        relations[output.attribute.id] = relation_of(output.call, child.columns, _WORDLESS)[0]
        if output.call.function in ORDER_DEPENDENT:
            loose.append(output.attribute.id)
    everywhere = set(range(len(captured.keys)))
    for chosen in captured.grouping_sets or ():
        everywhere &= set(chosen)
    keys = [key for index, key in enumerate(captured.keys) if index in everywhere]
    difference = _mapped(child.difference, _renamed(keys))
    if difference is not None and loose:
        # Groups are whole, but these calls may answer differently on every run.
        relations = dict.fromkeys(relations, Relation.EQUAL)
        difference = None
    return difference, {**relations, **dict.fromkeys(loose, Relation.UNKNOWN)}


def _require_alike_calls(asked: Aggregate, captured: Aggregate) -> None:
    here, there = ([output.call for output in node.aggregates] for node in (asked, captured))
    if asked.grouping_sets != captured.grouping_sets or len(here) != len(there):
        raise _Mismatched("the queries differ in more than the constants in their conditions")
    for left, right in zip(here, there, strict=True):
        if (left.function, left.distinct) != (right.function, right.distinct):
            raise _Mismatched("the queries differ in more than the constants in their conditions")
        _require_alike(_parts(left), _parts(right))


def _parts(call: AggregateCall) -> list[Expr | None]:
    return [*call.arguments, call.condition]


def _combine(asked: SetOperation, captured: SetOperation, left: _Pair, right: _Pair) -> _Judged:
    if (asked.kind, asked.all) != (captured.kind, captured.all):
        raise _Mismatched("the queries differ in more than the constants in their conditions")
    sides = (
        (captured.left, left),
        (captured.right, right),
    )
    here, there = (
        branch(captured, side, NodeState(Status.CONTAINED, pair.columns)).columns.relations
        for side, pair in sides
    )
    equal = left.difference == right.difference == _EQUAL_RESULTS
    relations = dict(here)
    is_bag_union = captured.kind is SetKind.UNION and captured.all
    if captured.kind is SetKind.UNION:
        relations = {column: relation.meet(there[column]) for column, relation in here.items()}
    if captured.kind is SetKind.EXCEPT and right.difference != _EQUAL_RESULTS:
        raise _Mismatched("the constants differ, which changes the rows that EXCEPT removes")
    compared = (here,) if captured.kind is SetKind.EXCEPT else (here, there)
    if not is_bag_union and any(
        relation is not Relation.EQUAL for side in compared for relation in side.values()
    ):
        raise _Mismatched(
            f"the constants differ, which changes the values that {captured.kind.upper()} compares"
        )
    return (_EQUAL_RESULTS if equal else None), relations


def _top(asked: TopK, captured: TopK, child: _Pair) -> _Judged:
    _require_alike_order(asked.order, captured.order)
    _require_alike(asked.partition_by, captured.partition_by)
    if len({None if top.rank is None else top.rank.function for top in (asked, captured)}) > 1:
        raise _Mismatched("the queries differ in more than the constants in their conditions")
    if asked.offset != captured.offset:
        raise _Mismatched("OFFSET must be the same")
    if child.difference != _EQUAL_RESULTS:
        raise _Mismatched("the constants below LIMIT differ, so other rows may be among the first")
    if captured.count is not None and (asked.count is None or asked.count > captured.count):
        many = "all rows" if asked.count is None else f"{asked.count} rows"
        raise _Mismatched(
            f"LIMIT asks for {many}, but the sketch covers only {captured.count}", asked.span
        )
    same = asked.count == captured.count
    return (_EQUAL_RESULTS if same else None), _all_equal(captured)


def _require_alike_order(asked: Sequence[SortKey], captured: Sequence[SortKey]) -> None:
    if [(k.descending, k.nulls_first) for k in asked] != [
        (k.descending, k.nulls_first) for k in captured
    ]:
        raise _Mismatched("the queries differ in more than the constants in their conditions")
    _require_alike([key.expr for key in asked], [key.expr for key in captured])


def _window(asked: Window, captured: Window, child: _Pair, is_loose: bool) -> _Judged:
    for here, there in zip(asked.calls, captured.calls, strict=True):
        if (here.function, here.frame) != (there.function, there.frame):
            raise _Mismatched("the queries differ in more than the constants in their conditions")
        _require_alike(
            [*here.arguments, *here.partition_by], [*there.arguments, *there.partition_by]
        )
        _require_alike_order(here.order, there.order)
    added = {call.attribute.id: Relation.UNKNOWN for call in captured.calls}
    whole = child.difference is not None and all(
        child.difference <= _partitions(call) for call in captured.calls
    )
    if not whole or is_loose:
        return None, {**child.columns.relations, **added}
    return child.difference, {**child.columns.relations, **added}


def _partitions(call: WindowCall) -> frozenset[AttributeId]:
    return frozenset(expr.id for expr in call.partition_by if isinstance(expr, ColumnRef))
