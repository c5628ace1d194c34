"""The state of every node of a plan, from its inputs up.

Law: a rule claims of its node only what `plan.safety.status` says the state means; a node with an
UNSAFE input is UNSAFE. Rules ask nothing of the plan's shape, so a plan is judged alike before and
after `plan.rules`.
Out of scope: choosing what to sketch (`plan.safety.choose`), minimising facts
(`plan.safety.verdict`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import assert_never

from impctl.data.schema import Kind
from impctl.expr.nodes import Call, ColumnRef, Expr, walk
from impctl.plan.expressions import expressions_of
from impctl.plan.functions import VOLATILE
from impctl.plan.nodes import (
    Aggregate,
    Distinct,
    Explode,
    Fixpoint,
    Join,
    Plan,
    Project,
    Recursive,
    Scan,
    Select,
    SetOperation,
    Sort,
    TopK,
    Window,
    Witness,
)
from impctl.plan.one_row import OneRow
from impctl.plan.safety.combining import combine, join
from impctl.plan.safety.direction import Columns, direction
from impctl.plan.safety.facts import Fact, Signs, signs_of_scan
from impctl.plan.safety.grouping import group
from impctl.plan.safety.ordering import first_rows, window
from impctl.plan.safety.preserved import find_objection
from impctl.plan.safety.recursion import recursion
from impctl.plan.safety.relation import Relation
from impctl.plan.safety.signs import learn, signs_of
from impctl.plan.safety.status import (
    NodeState,
    Status,
    equal_columns,
    refused,
    with_equalities,
)
from impctl.plan.safety.wording import Wording, condition_name, objection_text
from impctl.types import AttributeId, ColumnName


def state_of(
    node: Plan,
    inputs: list[NodeState],
    wording: Wording,
    *,
    has_rank_barriers: bool = False,
) -> NodeState:
    """The state of a node over its inputs' states, where it has no `changing_state`.

    A scan's is EXACT here, and `scan_state` tells more. `has_rank_barriers`: first ranks are
    barriers also where they could stay KEYED.
    """
    unsafe = next((state for state in inputs if state.status is Status.UNSAFE), None)
    if unsafe is not None:
        return unsafe
    state = _state(node, inputs, wording, has_rank_barriers=has_rank_barriers)
    return _without_loose_ties(node, inputs, state)


def _state(
    node: Plan, inputs: list[NodeState], wording: Wording, *, has_rank_barriers: bool
) -> NodeState:
    match node:
        case Scan() | OneRow():
            return NodeState(Status.EXACT, scan_columns(node, ()))
        case Select():
            return _select(node, inputs[0], wording)
        case Project():
            return project_state(node, inputs[0])
        case Join():
            return join(node, inputs[0], inputs[1], wording)
        case Aggregate():
            return group(node, inputs[0], wording)
        case Distinct():
            return _distinct(inputs[0], node)
        case SetOperation():
            combined = combine(node, inputs[0], inputs[1])
            if node.all or combined.status is Status.UNSAFE:
                return combined
            return _distinct(combined, node)
        case Recursive() | Fixpoint():
            return recursion(node, inputs)
        case Sort() | Witness():
            # What is run has no such node; it tells only which rows a sketch is kept for.
            return inputs[0]
        case TopK():
            return first_rows(node, inputs[0], wording, as_barrier=has_rank_barriers)
        case Explode():
            return _explode(node, inputs[0])
        case Window():
            return window(node, inputs[0], wording)
        case _:
            assert_never(node)


def _without_loose_ties(node: Plan, inputs: list[NodeState], state: NodeState) -> NodeState:
    """Refuse to reckon on with rows chosen among ties whose losers are not in the sketch too.

    Filtering them one by one is fine: a choice made at capture and another made at use combine to
    an answer of the query. Grouping or joining them mixes the two.
    """
    if isinstance(node, Scan | Select | Project | Sort) or state.status is Status.KEYED:
        return state
    for result in inputs:
        if result.ties is not None and result.status is not Status.EXACT:
            return refused(
                f"{result.ties.reason}, so the rows that the rest of the query needs are not fixed",
                result.ties.span,
            )
    return state


def changing_state(node: Plan) -> NodeState | None:
    """The state of a node with a call whose value changes from run to run; None without one."""
    for expr in expressions_of(node):
        for part in walk(expr):
            if isinstance(part, Call) and part.name.lower() in VOLATILE and not _is_clockless(part):
                return refused(f"`{part.name}` returns a different value on every run", part.span)
    return None


def _is_clockless(call: Call) -> bool:
    """`unix_timestamp(text)` only converts; without arguments it reads the clock."""
    return call.name.lower() == "unix_timestamp" and bool(call.arguments)


def scan_columns(node: Scan | OneRow, facts: Collection[Fact]) -> Columns:
    """What these facts say of a table's columns in one access."""
    if isinstance(node, OneRow):
        return equal_columns((), {})
    return equal_columns(node.attributes, signs_of_scan(node, facts))


def scan_state(node: Scan, name: ColumnName | None, columns: Columns) -> NodeState:
    """The state of an access that is sketched on the column of that name, or is not."""
    if name is None:
        return NodeState(Status.EXACT, columns)
    # Column pruning may have dropped the attribute, and types impctl does not know may count
    # different values as equal (collations): what is left is still a part of the table.
    keys = frozenset(
        a.id
        for a in node.attributes
        if a.name.lower() == name.lower() and a.type is not None and a.type.kind is not Kind.OTHER
    )
    return NodeState(
        Status.KEYED if keys else Status.CONTAINED,
        columns,
        sketched=frozenset({node.access}),
        keys={node.access: keys} if keys else {},
    )


def _select(node: Select, child: NodeState, wording: Wording) -> NodeState:
    own = child.columns
    columns = own.once(lambda: Columns(own.relations, learn(node.predicate, own.signs)), node)
    result = replace(child, columns=columns)
    if child.is_whole:
        return with_equalities(result, node.predicate)
    objection = find_objection(node.predicate, child.columns)
    if objection is None:
        return result
    text = objection_text(condition_name(node), objection, child.causes, wording)
    span = objection.atom.span if objection.atom.span is not None else node.span
    return refused(text, span)


def _explode(node: Explode, child: NodeState) -> NodeState:
    """Each row by itself; a row that is there twice is taken apart twice, so none is told apart."""
    if not child.is_whole and direction(node.array, child.columns) is not Relation.EQUAL:
        return refused(
            f"`{node.function}` expands a value that can differ over part of a group",
            node.span,
        )
    made = {attribute.id: Relation.EQUAL for attribute in node.made}
    columns = Columns({**child.columns.relations, **made}, child.columns.signs)
    return replace(child, columns=columns, identifiers=frozenset())


def project_state(node: Project, child: NodeState) -> NodeState:
    """The state of a projection over its child's state."""
    causes: dict[AttributeId, str] = {}
    renamed: dict[AttributeId, frozenset[AttributeId]] = {}
    for output in node.outputs:
        made, expr = output.attribute.id, output.expr
        if isinstance(expr, ColumnRef):
            renamed[expr.id] = renamed.get(expr.id, frozenset()) | {made}
            if expr.id in child.causes:
                causes[made] = child.causes[expr.id]
    keys = {
        access: frozenset().union(*(renamed.get(column, frozenset()) for column in columns))
        for access, columns in child.keys.items()
    }
    status = child.status
    if status is Status.KEYED and not all(keys.values()):
        status, keys = Status.CONTAINED, {}
    identifiers = frozenset(
        frozenset(min(renamed[column]) for column in result)
        for result in child.identifiers
        if result <= renamed.keys()
    )
    return replace(
        child,
        status=status,
        columns=child.columns.once(lambda: _projected(node, child.columns), node),
        keys=keys,
        identifiers=identifiers,
        causes=causes,
    )


def _projected(node: Project, columns: Columns) -> Columns:
    relations: dict[AttributeId, Relation] = {}
    signs: dict[AttributeId | Expr, Signs] = {}
    for output in node.outputs:
        relations[output.attribute.id] = direction(output.expr, columns)
        signs[output.attribute.id] = signs_of(output.expr, columns.signs)
    return Columns(relations, signs)


def _distinct(child: NodeState, node: Distinct | SetOperation) -> NodeState:
    if not child.is_whole and not child.is_equal:
        return refused("DISTINCT compares values that can differ over part of a group", node.span)
    every = frozenset(child.columns.relations)
    return replace(child, identifiers=child.identifiers | {every})
