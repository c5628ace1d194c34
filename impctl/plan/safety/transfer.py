"""The state of every node of a plan, from its inputs up.

Law: a rule claims of its node only what `plan.safety.status` says the state means; a node with an
UNSAFE input is UNSAFE. Rules ask nothing of the plan's shape, so a plan is judged alike before and
after `plan.rules`.
Out of scope: choosing what to sketch (`plan.safety.choose`), minimising facts
(`plan.safety.verdict`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import assert_never

from impctl.aliases import AccessId, AttributeId, ColumnName
from impctl.data.schema import Kind
from impctl.expr.nodes import Call, ColumnRef, Expr, substitute, walk
from impctl.plan.functions import VOLATILE
from impctl.plan.nodes import (
    Aggregate,
    Distinct,
    Join,
    Plan,
    Project,
    Scan,
    Select,
    SetOperation,
    Sort,
    TopK,
    Window,
    Witness,
    expressions_of,
    inputs_of,
)
from impctl.plan.safety.combining import combine, join
from impctl.plan.safety.direction import Columns, Relation, direction
from impctl.plan.safety.facts import Fact, Signs, signs_of_scan
from impctl.plan.safety.grouping import group
from impctl.plan.safety.ordering import first_rows, first_rows_per_partition, window
from impctl.plan.safety.preserved import find_objection
from impctl.plan.safety.signs import learn, signs_of
from impctl.plan.safety.status import (
    NodeState,
    Status,
    equal_columns,
    refused,
    with_equalities,
)
from impctl.plan.safety.wording import Wording, condition_name, objection_text


@dataclass(frozen=True, slots=True)
class Analysis:
    """States of all nodes, in the order of `nodes_of(root)`."""

    nodes: tuple[Plan, ...]
    states: tuple[NodeState, ...]

    @property
    def root(self) -> NodeState:
        return self.states[0]


def analyse(
    root: Plan,
    sketched: Mapping[AccessId, ColumnName],
    facts: Collection[Fact],
    wording: Wording,
    *,
    has_rank_barriers: bool = False,
) -> Analysis:
    """Judge every node, with these accesses sketched and these facts taken as true.

    `has_rank_barriers`: first ranks are barriers also where they could stay KEYED.
    """
    walker = _Walker(sketched, facts, wording, has_rank_barriers, [], [])
    walker.visit(root, at_root=True)
    return Analysis(tuple(walker.nodes), tuple(walker.states))


@dataclass(slots=True)
class _Walker:
    sketched: Mapping[AccessId, ColumnName]
    facts: Collection[Fact]
    wording: Wording
    has_rank_barriers: bool
    nodes: list[Plan]
    states: list[NodeState]

    def visit(self, node: Plan, *, at_root: bool) -> NodeState:
        """Judge the node after its inputs; `at_root` while nothing above drops rows."""
        position = len(self.nodes)
        self.nodes.append(node)
        self.states.append(refused("not judged yet", None))
        below = at_root and isinstance(node, Project | Sort)
        inputs = [self.visit(part, at_root=below) for part in inputs_of(node)]
        state = self._judged(node, inputs)
        if at_root and state.status is Status.UNSAFE:
            ranked = self._ranked(node, position)
            state = ranked if ranked is not None else state
        self.states[position] = state
        return state

    def _judged(self, node: Plan, inputs: list[NodeState]) -> NodeState:
        changing = _changing_call(node)
        if changing is not None:
            return refused(f"`{changing.name}` gives another value on every run", changing.span)
        unsafe = next((state for state in inputs if state.status is Status.UNSAFE), None)
        if unsafe is not None:
            return unsafe
        return _without_loose_ties(node, inputs, self._state(node, inputs))

    def _ranked(self, node: Plan, position: int) -> NodeState | None:
        """`rank <= k` over a window, judged from the window's own input; None for the rest.

        Projections between the two work row by row, so the filter is read below them.
        """
        if not isinstance(node, Select):
            return None
        predicate, below = node.predicate, node.child
        between: list[Project] = []
        while isinstance(below, Project):
            between.append(below)
            predicate = substitute(predicate, {o.attribute.id: o.expr for o in below.outputs})
            below = below.child
        if not isinstance(below, Window):
            return None
        child = self.states[position + len(between) + 2]
        if child.status in (Status.UNSAFE, Status.EXACT) or child.ties is not None:
            return None
        parts: tuple[Plan, ...] = (node, below, *between)
        if any(_changing_call(part) is not None for part in parts):
            return None
        state = first_rows_per_partition(predicate, below, child, self.wording)
        if state is None or state.status is Status.UNSAFE:
            return state
        for part in reversed(between):
            state = _project(part, state)
        return state

    def _state(self, node: Plan, inputs: list[NodeState]) -> NodeState:
        match node:
            case Scan():
                return _scan(node, self.sketched, self.facts)
            case Select():
                return _select(node, inputs[0], self.wording)
            case Project():
                return _project(node, inputs[0])
            case Join():
                return join(node, inputs[0], inputs[1], self.wording)
            case Aggregate():
                return group(node, inputs[0], self.wording)
            case Distinct():
                return _distinct(inputs[0], node)
            case SetOperation():
                combined = combine(node, inputs[0], inputs[1])
                if node.all or combined.status is Status.UNSAFE:
                    return combined
                return _distinct(combined, node)
            case Sort() | Witness():
                # What is run has no such node; it tells only which rows a sketch is kept for.
                return inputs[0]
            case TopK():
                return first_rows(node, inputs[0], self.wording, as_barrier=self.has_rank_barriers)
            case Window():
                return window(node, inputs[0], self.wording)
            case _:
                assert_never(node)


def _without_loose_ties(node: Plan, inputs: list[NodeState], state: NodeState) -> NodeState:
    """Refuse to reckon on with rows chosen among ties whose losers are not in the sketch too.

    Filtering them one by one is fine: a choice made at capture and another made at use combine to
    an answer of the query. Grouping or joining them mixes the two.
    """
    if isinstance(node, Scan | Select | Project | Sort) or state.status is Status.KEYED:
        return state
    for found in inputs:
        if found.ties is not None and found.status is not Status.EXACT:
            return refused(
                f"{found.ties.reason}, so what the rest of the query needs is not fixed",
                found.ties.span,
            )
    return state


def _changing_call(node: Plan) -> Call | None:
    for expr in expressions_of(node):
        for part in walk(expr):
            if isinstance(part, Call) and part.name.lower() in VOLATILE and not _is_clockless(part):
                return part
    return None


def _is_clockless(call: Call) -> bool:
    """`unix_timestamp(text)` only converts; without arguments it reads the clock."""
    return call.name.lower() == "unix_timestamp" and bool(call.arguments)


def _scan(
    node: Scan, sketched: Mapping[AccessId, ColumnName], facts: Collection[Fact]
) -> NodeState:
    columns = equal_columns(node.attributes, signs_of_scan(node, facts))
    name = sketched.get(node.access)
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
    signs = learn(node.predicate, child.columns.signs)
    found = replace(child, columns=Columns(child.columns.relations, signs))
    if child.is_whole:
        return with_equalities(found, node.predicate)
    objection = find_objection(node.predicate, child.columns)
    if objection is None:
        return found
    text = objection_text(condition_name(node), objection, child.causes, wording)
    span = objection.atom.span if objection.atom.span is not None else node.span
    return refused(text, span)


def _project(node: Project, child: NodeState) -> NodeState:
    relations: dict[AttributeId, Relation] = {}
    signs: dict[AttributeId | Expr, Signs] = {}
    causes: dict[AttributeId, str] = {}
    renamed: dict[AttributeId, frozenset[AttributeId]] = {}
    for output in node.outputs:
        made, expr = output.attribute.id, output.expr
        relations[made] = direction(expr, child.columns)
        signs[made] = signs_of(expr, child.columns.signs)
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
        frozenset(min(renamed[column]) for column in found)
        for found in child.identifiers
        if found <= renamed.keys()
    )
    return replace(
        child,
        status=status,
        columns=Columns(relations, signs),
        keys=keys,
        identifiers=identifiers,
        causes=causes,
    )


def _distinct(child: NodeState, node: Distinct | SetOperation) -> NodeState:
    if not child.is_whole and not child.is_equal:
        return refused("DISTINCT compares values that can differ over part of a group", node.span)
    every = frozenset(child.columns.relations)
    return replace(child, identifiers=child.identifiers | {every})
