"""Whether the sketch of one query serves another: plans aligned and compared node by node."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, TypeVar, assert_never

from msgspec import Struct, field
from msgspec.structs import replace

from impctl.expr.nodes import ColumnRef, Expr, Span, transform
from impctl.plan.fingerprint import fingerprint, is_same, template
from impctl.plan.functions import ORDER_DEPENDENT
from impctl.plan.nodes import (
    Aggregate,
    AggregateCall,
    AggregateOutput,
    Attribute,
    ComputedColumn,
    Distinct,
    Explode,
    Fixpoint,
    Join,
    JoinKind,
    OneRow,
    Plan,
    Project,
    Query,
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
    Witness,
    attributes_of,
    inputs_of,
    nodes_of,
    scans_of,
    with_inputs,
)
from impctl.reuse.implication import Difference, changed_columns, find_gap
from impctl.rules.optimize import core_of
from impctl.safety.direction import Columns, Relation, SafetyState, Status, direction
from impctl.safety.judge import PlanJudge, Verdict, check_safety, verdict_of_core
from impctl.safety.messages import Wording, condition_name
from impctl.safety.transfer import branch, relation_of
from impctl.types import AccessId, AttributeId, ColumnName, FixpointId

if TYPE_CHECKING:
    from impctl.safety.facts import Fact, KnownSigns


# Two plans of one shape brought to the same column identities, so that nodes can be compared.
# Law: `aligned` keeps the plan's meaning and changes identities only; it answers None where the
# plans differ in operators, tables, or the number of columns anywhere, hence are no instances of
# one template.

Names = Mapping[AttributeId, AttributeId]


def aligned(plan: Plan, model: Plan) -> Plan | None:
    """The plan with the column and access ids of `model`; None where shapes differ."""
    names: dict[AttributeId, AttributeId] = {}
    nodes, models = list(nodes_of(plan)), list(nodes_of(model))
    if len(nodes) != len(models):
        return None
    for node, other in zip(nodes, models, strict=True):
        if not _is_alike(node, other):
            return None
        own, theirs = list(_made(node)), list(_made(other))
        if len(own) != len(theirs):
            return None
        for left, right in zip(own, theirs, strict=True):
            names[left.id] = right.id
    fixpoints = _fixpoints_between(nodes, models)
    if fixpoints is None:
        return None
    return _Renaming(names, accesses_between(plan, model), fixpoints).plan(plan)


def accesses_between(plan: Plan, model: Plan) -> dict[AccessId, AccessId]:
    """For plans of one shape: the access of `model` for each access of `plan`."""
    pairs = zip(scans_of(plan), scans_of(model), strict=True)
    return {scan.access: other.access for scan, other in pairs}


def _fixpoints_between(
    nodes: Sequence[Plan], models: Sequence[Plan]
) -> dict[FixpointId, FixpointId] | None:
    """The model's fixpoint for each, by nodes of one kind; None where they do not match one to
    one."""
    pairs: dict[FixpointId, FixpointId] = {}
    for node, other in zip(nodes, models, strict=True):
        match node, other:
            case Recursive(), Recursive():
                own, theirs = node.fixpoint, other.fixpoint
            case Fixpoint(), Fixpoint():
                own, theirs = node.id, other.id
            case _:
                continue
        if pairs.setdefault(own, theirs) != theirs:
            return None
    return pairs if len(set(pairs.values())) == len(pairs) else None


def _is_alike(node: Plan, other: Plan) -> bool:
    if type(node) is not type(other) or len(inputs_of(node)) != len(inputs_of(other)):
        return False
    if isinstance(node, Scan) and isinstance(other, Scan):
        names = [attribute.name.lower() for attribute in node.attributes]
        return node.table.lower() == other.table.lower() and names == [
            attribute.name.lower() for attribute in other.attributes
        ]
    return True


def _made(node: Plan) -> Iterable[Attribute]:
    """The columns that a node makes, in order."""
    match node:
        case Scan() | SetOperation() | Recursive() | Fixpoint():
            return node.attributes
        case Project():
            return (output.attribute for output in node.outputs)
        case Aggregate():
            return attributes_of(node)
        case Window():
            return (call.attribute for call in node.calls)
        case Explode():
            return node.made
        case TopK():
            return () if node.rank is None else (node.rank.attribute,)
        case Select() | Join() | Distinct() | Sort() | Witness() | OneRow():
            return ()
        case _:
            assert_never(node)


_Made = TypeVar("_Made", ComputedColumn, AggregateOutput, WindowCall)


class _Renaming:
    def __init__(
        self,
        names: Names,
        accesses: Mapping[AccessId, AccessId],
        fixpoints: Mapping[FixpointId, FixpointId],
    ) -> None:
        self._names = names
        self._accesses = accesses
        self._fixpoints = fixpoints

    def plan(self, node: Plan) -> Plan:
        inputs = tuple(self.plan(child) for child in inputs_of(node))
        return self._own(with_inputs(node, inputs))

    def _own(self, node: Plan) -> Plan:
        match node:
            case Scan():
                return replace(
                    node,
                    access=self._accesses[node.access],
                    attributes=tuple(self._attribute(a) for a in node.attributes),
                )
            case Select():
                return replace(node, predicate=self._expr(node.predicate))
            case Project():
                outputs = (replace(o, expr=self._expr(o.expr)) for o in node.outputs)
                return replace(node, outputs=tuple(self._labelled(o) for o in outputs))
            case Join():
                return replace(node, condition=self._optional(node.condition))
            case Aggregate():
                keys = (replace(key, expr=self._expr(key.expr)) for key in node.keys)
                calls = (replace(o, call=self._call(o.call)) for o in node.aggregates)
                return replace(
                    node,
                    keys=tuple(self._labelled(key) for key in keys),
                    aggregates=tuple(self._labelled(o) for o in calls),
                )
            case SetOperation():
                return replace(node, attributes=tuple(self._attribute(a) for a in node.attributes))
            case Sort():
                return replace(node, order=self._order(node.order))
            case TopK():
                rank = None if node.rank is None else self._labelled(self._window(node.rank))
                return replace(node, order=self._order(node.order), rank=rank)
            case Window():
                calls_ = (self._window(call) for call in node.calls)
                return replace(node, calls=tuple(self._labelled(call) for call in calls_))
            case Witness():
                parts = tuple(self._expr(part) for part in node.partition_by)
                orders = tuple(self._order(order) for order in node.orders)
                return replace(node, partition_by=parts, orders=orders)
            case Explode():
                made = tuple(self._attribute(attribute) for attribute in node.made)
                return replace(node, array=self._expr(node.array), made=made)
            case Recursive() | Fixpoint():
                return self._recursion(node)
            case Distinct() | OneRow():
                return node
            case _:
                assert_never(node)

    def _recursion(self, node: Recursive | Fixpoint) -> Plan:
        made = tuple(self._attribute(attribute) for attribute in node.attributes)
        if isinstance(node, Recursive):
            return replace(node, fixpoint=self._fixpoints[node.fixpoint], attributes=made)
        return replace(node, id=self._fixpoints[node.id], attributes=made)

    def _attribute(self, attribute: Attribute) -> Attribute:
        return replace(attribute, id=self._names[attribute.id])

    def _labelled(self, made: _Made) -> _Made:
        return replace(made, attribute=self._attribute(made.attribute))

    def _call(self, call: AggregateCall) -> AggregateCall:
        arguments = tuple(self._expr(argument) for argument in call.arguments)
        return replace(call, arguments=arguments, condition=self._optional(call.condition))

    def _window(self, call: WindowCall) -> WindowCall:
        return replace(
            call,
            arguments=tuple(self._expr(part) for part in call.arguments),
            partition_by=tuple(self._expr(part) for part in call.partition_by),
            order=self._order(call.order),
        )

    def _order(self, order: tuple[SortKey, ...]) -> tuple[SortKey, ...]:
        return tuple(replace(key, expr=self._expr(key.expr)) for key in order)

    def _optional(self, expr: Expr | None) -> Expr | None:
        return None if expr is None else self._expr(expr)

    def _expr(self, expr: Expr) -> Expr:
        def swap(part: Expr) -> Expr | None:
            if not isinstance(part, ColumnRef):
                return None
            return replace(part, id=self._names.get(part.id, part.id))

        return transform(expr, swap)


# Why a captured sketch need not hold what another query asks for, and where it shows. Law: a
# reason names the first place found, in the texts of both.


class Mismatch(Struct, frozen=True):
    """Why the captured rows need not contain the requested ones; spans are places in either
    text."""

    reason: str
    asked: Span | None = None
    captured: Span | None = None

    def text(self, requested_sql: str, captured_sql: str) -> str:
        """The reason, with both texts where they are known."""
        there = Wording(captured_sql, {}).slice(self.captured)
        here = Wording(requested_sql, {}).slice(self.asked)
        if not there:
            return self.reason
        now = f", but the query says `{here}`" if here else ""
        return f"{self.reason} `{there}`{now}"


# Fixpoints that two plans have in common, whatever stands above them. Law: where a fixpoint is a
# barrier of the plan that was captured, its sketches hold derivations of all its rows. So
# wherever else there is an equal fixpoint (same base and step, constants in them and columns), it
# has the same rows over these sketches as over the tables, and so has any query that reads no
# other rows by a sketch. A fixpoint that is keyed is no barrier: some of its rows are there.


def has_similar_recursion(requested: Plan, captured: Plan) -> bool:
    """Whether some fixpoints of both differ at most in constants of conditions."""
    own = {template(node) for _, node in _fixpoints(requested)}
    return bool(own) and any(template(node) in own for _, node in _fixpoints(captured))


def shared_fixpoint_accesses(
    requested: Plan, captured: Plan, barriers: Collection[int]
) -> Mapping[AccessId, AccessId]:
    """By access of the requested plan below a fixpoint that is also one of the captured plan's
    `barriers` (by position in `nodes_of`): the access of the captured plan in its place."""
    held: dict[str, Fixpoint] = {}
    for at, node in _fixpoints(captured):
        if at in barriers:
            held.setdefault(fingerprint(node), node)
    result: dict[AccessId, AccessId] = {}
    for node, other in _equal_ones(requested, held):
        # An outer one comes before those in it, and has all that they have.
        for scan, model in zip(scans_of(node), scans_of(other), strict=True):
            result.setdefault(scan.access, model.access)
    return _without_others(requested, result, held)


def _equal_ones(plan: Plan, held: Mapping[str, Fixpoint]) -> Iterator[tuple[Fixpoint, Fixpoint]]:
    for _, node in _fixpoints(plan):
        other = held.get(fingerprint(node))
        if other is not None:
            yield node, other


def _without_others(
    plan: Plan, result: Mapping[AccessId, AccessId], held: Mapping[str, Fixpoint]
) -> dict[AccessId, AccessId]:
    """Without accesses that the plan also has outside of these fixpoints."""
    inside = set(
        chain.from_iterable(map(id, scans_of(node)) for node, _ in _equal_ones(plan, held))
    )
    outside = {scan.access for scan in scans_of(plan) if id(scan) not in inside}
    return {own: other for own, other in result.items() if own not in outside}


def _fixpoints(plan: Plan) -> Iterator[tuple[int, Fixpoint]]:
    """The fixpoints with their positions; none whose base or step reads rows of one around it."""
    for at, node in enumerate(nodes_of(plan)):
        if isinstance(node, Fixpoint) and _is_closed(node):
            yield at, node


def _is_closed(fixpoint: Fixpoint) -> bool:
    own = {node.id for node in nodes_of(fixpoint) if isinstance(node, Fixpoint)}
    return all(node.fixpoint in own for node in nodes_of(fixpoint) if isinstance(node, Recursive))


# Two plans that differ in constants, compared node by node from the inputs up. Law, for each pair
# of nodes over any one database: every row of the asked plan has a row of its own in the captured
# plan whose lineage contains its lineage, with columns related as `columns` says. Where
# `difference` is not None, the rows common to both are the same rows, and those that only the
# captured plan has are told apart by these columns alone; the empty set means equal results.

_WORDLESS = Wording("", {})

_EQUAL_RESULTS: frozenset[AttributeId] = frozenset()

_Judged = tuple[Difference, dict[AttributeId, Relation]]


class _Mismatched(Exception):
    def __init__(self, reason: str, requested: Span | None = None, captured: Span | None = None):
        super().__init__(reason)
        self.mismatch = Mismatch(reason, requested, captured)


class _Pair(Struct, frozen=True):
    """What is known of a pair of nodes."""

    difference: Difference
    columns: Columns


def find_mismatch(requested: Plan, captured: Plan, facts: Collection[Fact]) -> Mismatch | None:
    """The first reason why the captured provenance need not contain the requested one. Both plans
    have the same shape and ids (`reuse.verdict.aligned`)."""
    walker = _Walker(
        PlanJudge(requested, _WORDLESS).of({}, facts).states,
        PlanJudge(captured, _WORDLESS).of({}, facts).states,
    )
    try:
        walker.visit(requested, captured, is_last=True)
    except _Mismatched as error:
        return error.mismatch
    return None


class _Walker:
    """Walks both plans side by side; positions are those of `nodes_of`, for the facts."""

    def __init__(self, requested: Sequence[SafetyState], captured: Sequence[SafetyState]) -> None:
        self._requested = requested
        self._captured = captured
        self._position = 0

    def visit(self, requested: Plan, captured: Plan, *, is_last: bool) -> _Pair:
        """The pair of these nodes; `is_last` while nothing above drops or combines rows."""
        position = self._position
        self._position += 1
        below = is_last and isinstance(requested, Project | Sort)
        children = zip(inputs_of(requested), inputs_of(captured), strict=True)
        inputs = [self.visit(left, right, is_last=below) for left, right in children]
        is_loose = self._requested[position].ties is not None
        if isinstance(requested, TopK) and not is_last and is_loose:
            raise _Mismatched(
                "which of the rows tied at a LIMIT inside the query are kept is not fixed"
            )
        difference, relations = _judged(requested, captured, inputs, is_loose)
        if difference is not None:
            relations = dict.fromkeys(relations, Relation.EQUAL)
        return _Pair(difference, Columns(relations, self._signs(position)))

    def _signs(self, position: int) -> KnownSigns:
        """Facts that hold of the rows of either plan."""
        here, there = (s[position].columns.signs for s in (self._requested, self._captured))
        return {key: signs.meet(there[key]) for key, signs in here.items() if key in there}


def _judged(requested: Plan, captured: Plan, inputs: list[_Pair], is_loose: bool) -> _Judged:
    """The rule of the node; `is_loose` says that a choice among ties decides on its rows."""
    match requested, captured:
        case (Scan(), Scan()) | (Recursive(), Recursive()) | (OneRow(), OneRow()):
            return _EQUAL_RESULTS, _all_equal(captured)
        case Fixpoint(), Fixpoint() if _is_one_kind(requested, captured):
            return _fixpoint(captured, inputs)
        case Select(), Select():
            return _select(requested, captured, inputs[0])
        case Project(), Project():
            return _project(requested, captured, inputs[0])
        case Join(), Join():
            return _join(requested, captured, *inputs)
        case Aggregate(), Aggregate():
            return _aggregate(requested, captured, inputs[0])
        case Distinct(), Distinct():
            _require_equal(inputs[0], "DISTINCT")
            return inputs[0].difference, _all_equal(captured)
        case SetOperation(), SetOperation():
            return _combine(requested, captured, *inputs)
        case Explode(), Explode():
            return _explode(requested, captured, inputs[0])
        case Sort(), Sort():
            return inputs[0].difference, dict(inputs[0].columns.relations)
        case TopK(), TopK():
            return _top(requested, captured, inputs[0])
        case Window(), Window():
            return _window(requested, captured, inputs[0], is_loose)
    raise _Mismatched("the queries differ in more than the constants in their conditions")


def _is_one_kind(requested: Fixpoint, captured: Fixpoint) -> bool:
    return requested.is_set == captured.is_set and requested.best == captured.best


def _fixpoint(captured: Fixpoint, inputs: list[_Pair]) -> _Judged:
    if any(pair.difference != _EQUAL_RESULTS for pair in inputs):
        raise _Mismatched(
            "the constants inside WITH RECURSIVE differ, which changes what it derives"
        )
    return _EQUAL_RESULTS, _all_equal(captured)


def _all_equal(node: Plan) -> dict[AttributeId, Relation]:
    return {attribute.id: Relation.EQUAL for attribute in attributes_of(node)}


def _select(requested: Select, captured: Select, child: _Pair) -> _Judged:
    _require_implied(
        requested.predicate, captured.predicate, child.columns, condition_name(captured)
    )
    changed = changed_columns(requested.predicate, captured.predicate)
    return _union(child.difference, changed), dict(child.columns.relations)


def _require_implied(requested: Expr, captured: Expr, columns: Columns, name: str) -> None:
    gap = find_gap(requested, captured, columns)
    if gap is None:
        return
    if is_same(requested, captured):
        raise _Mismatched(
            f"the constants below {name} differ, which changes the values that it compares in",
            None,
            gap.span,
        )
    raise _Mismatched(
        f"{name} does not imply the condition the sketch was captured for:",
        requested.span,
        gap.span,
    )


def _project(requested: Project, captured: Project, child: _Pair) -> _Judged:
    _require_alike(
        [output.expr for output in requested.outputs], [output.expr for output in captured.outputs]
    )
    renamed = _renamed(captured.outputs)
    relations = {
        output.attribute.id: direction(output.expr, child.columns) for output in captured.outputs
    }
    return _mapped(child.difference, renamed), relations


def _explode(requested: Explode, captured: Explode, child: _Pair) -> _Judged:
    _require_alike([requested.array], [captured.array])
    if (requested.function, requested.outer) != (captured.function, captured.outer):
        raise _Mismatched("the queries differ in more than the constants in their conditions")
    if direction(requested.array, child.columns) is not Relation.EQUAL:
        raise _Mismatched("LATERAL VIEW may expand other values")
    made = {attribute.id: Relation.EQUAL for attribute in captured.made}
    return child.difference, {**child.columns.relations, **made}


def _renamed(outputs: Sequence[ComputedColumn]) -> dict[AttributeId, AttributeId]:
    """Input columns that are output unchanged, with their new ids."""
    return {o.expr.id: o.attribute.id for o in outputs if isinstance(o.expr, ColumnRef)}


def _mapped(difference: Difference, renamed: dict[AttributeId, AttributeId]) -> Difference:
    if difference is None or not difference <= renamed.keys():
        return None
    return frozenset(renamed[column] for column in difference)


def _require_alike(requested: Sequence[Expr | None], captured: Sequence[Expr | None]) -> None:
    if len(requested) != len(captured):
        raise _Mismatched("the queries differ in more than the constants in their conditions")
    for here, there in zip(requested, captured, strict=True):
        if not is_same(here, there):
            raise _Mismatched(
                "outside of conditions, nothing may differ:",
                None if here is None else here.span,
                None if there is None else there.span,
            )


def _require_equal(child: _Pair, name: str) -> None:
    if any(relation is not Relation.EQUAL for relation in child.columns.relations.values()):
        raise _Mismatched(f"the constants differ, which changes the values that {name} compares")


def _join(requested: Join, captured: Join, left: _Pair, right: _Pair) -> _Judged:
    if (requested.kind, requested.null_aware) != (captured.kind, captured.null_aware):
        raise _Mismatched("the queries differ in more than the constants in their conditions")
    relations = {**left.columns.relations, **right.columns.relations}
    signs: KnownSigns = {**left.columns.signs, **right.columns.signs}
    both = Columns(relations, signs)
    unchanged = is_same(requested.condition, captured.condition)
    match captured.kind:
        case JoinKind.INNER | JoinKind.SEMI:
            if requested.condition is not None and captured.condition is not None:
                _require_implied(requested.condition, captured.condition, both, "the join")
            elif captured.condition is not None:
                raise _Mismatched(
                    "the queries differ in more than the constants in their conditions"
                )
            if captured.kind is JoinKind.INNER:
                changed = changed_columns(requested.condition, captured.condition)
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


def _aggregate(requested: Aggregate, captured: Aggregate, child: _Pair) -> _Judged:
    _require_alike([key.expr for key in requested.keys], [key.expr for key in captured.keys])
    _require_alike_calls(requested, captured)
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
        # Groups are whole, but these calls may return different results on every run.
        relations = dict.fromkeys(relations, Relation.EQUAL)
        difference = None
    return difference, {**relations, **dict.fromkeys(loose, Relation.UNKNOWN)}


def _require_alike_calls(requested: Aggregate, captured: Aggregate) -> None:
    here, there = ([output.call for output in node.aggregates] for node in (requested, captured))
    if requested.grouping_sets != captured.grouping_sets or len(here) != len(there):
        raise _Mismatched("the queries differ in more than the constants in their conditions")
    for left, right in zip(here, there, strict=True):
        if (left.function, left.distinct) != (right.function, right.distinct):
            raise _Mismatched("the queries differ in more than the constants in their conditions")
        _require_alike(_parts(left), _parts(right))


def _parts(call: AggregateCall) -> list[Expr | None]:
    return [*call.arguments, call.condition]


def _combine(requested: SetOperation, captured: SetOperation, left: _Pair, right: _Pair) -> _Judged:
    if (requested.kind, requested.all) != (captured.kind, captured.all):
        raise _Mismatched("the queries differ in more than the constants in their conditions")
    sides = ((captured.left, left), (captured.right, right))
    here, there = (
        branch(captured, side, SafetyState(Status.CONTAINED, pair.columns)).columns.relations
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


def _top(requested: TopK, captured: TopK, child: _Pair) -> _Judged:
    _require_alike_order(requested.order, captured.order)
    _require_alike(requested.partition_by, captured.partition_by)
    if len({None if top.rank is None else top.rank.function for top in (requested, captured)}) > 1:
        raise _Mismatched("the queries differ in more than the constants in their conditions")
    if requested.offset != captured.offset:
        raise _Mismatched("OFFSET must be the same")
    if child.difference != _EQUAL_RESULTS:
        raise _Mismatched("the constants below LIMIT differ, so other rows may be among the first")
    if captured.count is not None and (requested.count is None or requested.count > captured.count):
        many = "all rows" if requested.count is None else f"{requested.count} rows"
        raise _Mismatched(
            f"LIMIT asks for {many}, but the sketch covers only {captured.count}", requested.span
        )
    same = requested.count == captured.count
    return (_EQUAL_RESULTS if same else None), _all_equal(captured)


def _require_alike_order(requested: Sequence[SortKey], captured: Sequence[SortKey]) -> None:
    if [(k.descending, k.nulls_first) for k in requested] != [
        (k.descending, k.nulls_first) for k in captured
    ]:
        raise _Mismatched("the queries differ in more than the constants in their conditions")
    _require_alike([key.expr for key in requested], [key.expr for key in captured])


def _window(requested: Window, captured: Window, child: _Pair, is_loose: bool) -> _Judged:
    for here, there in zip(requested.calls, captured.calls, strict=True):
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


# Whether the sketch of one query serves another: of other constants, or over the same recursion.
# Law (Niu et al., provenance-based data skipping, section on reuse, with top-k, set operations
# and windows added): `allowed` means that over any one database the provenance of the asked query
# lies in that of the captured one, barriers included, and that sketches of these attributes are
# safe for the asked query itself; so its answer over the sketch is its answer over the tables.
# Safety is judged again, because constants decide it (`WHERE v > 0` makes a sum monotone). Unsure
# is no. What a query only puts out decides nothing about its provenance: the cores are compared.
# Of queries that have no more in common than a recursion the sketches below it serve, no others.

_LOOKED_AT = "a LIMIT of the query reads"
_OTHER = "the queries differ in more than the constants in their conditions"
_OTHER_RECURSION = "the constants inside WITH RECURSIVE differ, which changes what it derives"
_SAME_RECURSION = "it holds all rows that the same recursion needs"
_NO_LONGER_SAFE = "the sketch is no longer safe for the query it was captured for"
_UNREAD = "the recursion that both queries share reads no table that has a sketch"
_KEYED = "its recursion is keyed, so the sketch holds only the rows that its own result needs"


class ReuseVerdict(Struct, frozen=True):
    """Whether the sketch may be used, and why (not); `span` is a place in the requested query.
    `accesses`: per access of the requested query that a sketch may serve, the captured one with
    that sketch."""

    allowed: bool
    reason: str
    span: Span | None = None
    accesses: Mapping[AccessId, AccessId] = field(default_factory=dict)


def check_reuse(
    requested: Query,
    captured: Query,
    sketched: Mapping[AccessId, ColumnName],
    facts: Collection[Fact],
) -> ReuseVerdict:
    """Judge using sketches of `sketched[access of captured]` for the requested query. `facts` must
    be true of the very versions that the sketch stands for and the query reads."""
    core, model = core_of(requested.root), core_of(captured.root)
    plan = aligned(core, model)
    is_alike = has_similar_recursion(core, model)
    result = ReuseVerdict(False, _OTHER_RECURSION if is_alike else _OTHER)
    if plan is not None:
        result = _of_one_template(requested, captured, core, model, plan, sketched, facts)
    if result.allowed or not is_alike:
        return result
    other = _of_one_recursion(requested, captured, core, model, sketched, facts)
    if other is None or not (other.allowed or plan is None):
        return result
    return other


def _of_one_template(
    requested: Query,
    captured: Query,
    core: Plan,
    model: Plan,
    plan: Plan,
    sketched: Mapping[AccessId, ColumnName],
    facts: Collection[Fact],
) -> ReuseVerdict:
    """Judge plans of one shape; `plan` is the core with the ids of the captured one's."""
    accesses = accesses_between(core, model)
    own = {here: sketched[there] for here, there in accesses.items() if there in sketched}
    safety = check_safety(requested, own, facts)
    if not safety.safe:
        reason = f"with these constants the sketch is not safe: {safety.reason}"
        return ReuseVerdict(False, reason, safety.span)
    before = check_safety(captured, sketched, facts)
    if not before.safe:
        return ReuseVerdict(False, f"{_NO_LONGER_SAFE}: {before.reason}")
    here = verdict_of_core(safety, requested, core, own)
    there = verdict_of_core(before, captured, model, sketched)
    for core_verdict in (here, there):
        if not core_verdict.safe:
            return ReuseVerdict(False, core_verdict.reason, core_verdict.span)
    if not set(here.barrier_positions) <= set(there.barrier_positions):
        what = "a recursion derives" if _lacks_recursion(model, here, there) else _LOOKED_AT
        return ReuseVerdict(False, f"the sketch does not have the rows that {what}")
    if fingerprint(plan) == fingerprint(model):
        # Other output columns of one of them may need barriers, so this is not checked first.
        return ReuseVerdict(
            True, "it was captured for the same conditions and limits", None, accesses
        )
    held = shared_fixpoint_accesses(core, model, there.barrier_positions)
    if sketched and all(held.get(access) == accesses[access] for access in own):
        return ReuseVerdict(True, _SAME_RECURSION, None, accesses)
    result = find_mismatch(plan, model, facts)
    if result is not None:
        return ReuseVerdict(False, result.text(requested.sql, captured.sql), result.asked)
    reason = "the query needs only rows that the sketch was captured for"
    return ReuseVerdict(True, reason, None, accesses)


def _of_one_recursion(
    requested: Query,
    captured: Query,
    core: Plan,
    model: Plan,
    sketched: Mapping[AccessId, ColumnName],
    facts: Collection[Fact],
) -> ReuseVerdict | None:
    """Judge what the sketches contain of fixpoints that both queries have; None where that is
    nothing. Sketches restrict only reads below these; everything else is read whole."""
    before = check_safety(captured, sketched, facts)
    there = verdict_of_core(before, captured, model, sketched) if before.safe else before
    if not there.safe:
        return ReuseVerdict(False, f"{_NO_LONGER_SAFE}: {there.reason}")
    held = shared_fixpoint_accesses(core, model, there.barrier_positions)
    accesses = {here: other for here, other in held.items() if other in sketched}
    if not accesses:
        if not shared_fixpoint_accesses(core, model, range(len(list(nodes_of(model))))):
            return None
        return ReuseVerdict(False, _KEYED if there.has_keyed_fixpoints else _UNREAD)
    own = {here: sketched[other] for here, other in accesses.items()}
    # As barriers, whatever the requested query could make of them: the sketches are for those.
    safety = check_safety(requested, own, facts, has_keyed_fixpoints=False)
    here = verdict_of_core(safety, requested, core, own) if safety.safe else safety
    if not here.safe:
        return ReuseVerdict(
            False, f"for the recursion that both queries share: {here.reason}", here.span
        )
    left = any(other not in accesses.values() for other in sketched)
    rest = "; the other tables of the sketch are read in full" if left else ""
    return ReuseVerdict(True, f"{_SAME_RECURSION}{rest}", None, accesses)


def _lacks_recursion(plan: Plan, here: Verdict, there: Verdict) -> bool:
    lacking = set(here.barrier_positions) - set(there.barrier_positions)
    return any(isinstance(n, Fixpoint) for at, n in enumerate(nodes_of(plan)) if at in lacking)
