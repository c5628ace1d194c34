"""One plan judged for many sketches and facts, each part of it once for what concerns that part.

Law: what is found is what the rules (`plan.safety.transfer`) find of every node anew. A part of the
plan is judged again only where the sketches of the accesses below it differ, or what is known of
the columns they read, and a node only where the states of its inputs do; a query of many candidates
would else cost their product. What is known is a number with one bit for each kind of fact of each
column, so that what concerns a part is told by one `&`; who says it is no matter to a state.
Out of scope: the rules, choosing what to judge (`plan.safety.choose`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from functools import cached_property

from impctl.expr.nodes import substitute
from impctl.plan.nodes import (
    Fixpoint,
    Plan,
    Project,
    Query,
    Recursive,
    Scan,
    Select,
    Sort,
    TopK,
    Window,
    inputs_of,
    nodes_of,
)
from impctl.plan.safety.direction import Columns
from impctl.plan.safety.facts import Fact, FactKind, FactSource
from impctl.plan.safety.ordering import first_rows_per_partition
from impctl.plan.safety.recursion import key_candidates, keyed_fixpoint, leaf
from impctl.plan.safety.status import NodeState, Status
from impctl.plan.safety.transfer import (
    changing_state,
    project_state,
    scan_columns,
    scan_state,
    state_of,
)
from impctl.plan.safety.wording import Wording
from impctl.types import AccessId, ColumnName, FixpointId, TableName
from impctl.values import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """A node's state with those of everything below it."""

    state: NodeState
    inputs: tuple[Judged, ...] = ()

    def flat(self) -> tuple[NodeState, ...]:
        """All states, in the order of `nodes_of`."""
        result, left = [], [self]
        while left:
            judged = left.pop()
            result.append(judged.state)
            left.extend(reversed(judged.inputs))
        return tuple(result)


@dataclass(frozen=True)
class Analysis:
    """States of all nodes, in the order of `nodes_of(root)`."""

    nodes: tuple[Plan, ...]
    judged: Judged

    @property
    def root(self) -> NodeState:
        return self.judged.state

    @cached_property
    def states(self) -> tuple[NodeState, ...]:
        return self.judged.flat()


@dataclass(slots=True)
class _Place:
    """A node with what never changes of it, and what was found of it so far."""

    node: Plan
    at_root: bool
    """Nothing above drops rows."""
    inputs: tuple[_Place, ...]
    accesses: frozenset[AccessId]
    changing: NodeState | None
    """The state of a node whose values change from run to run."""
    concerning: int = 0
    """The bits of all facts that concern the columns read from here down."""
    facts: list[tuple[int, Fact]] = field(default_factory=list)
    """Of a scan: those that concern its columns, each with its bit."""
    columns: dict[int, Columns] = field(default_factory=dict)
    """Of a scan: what is known of its columns, by the bits of what is known."""
    found: dict[tuple[object, ...], Judged] = field(default_factory=dict)
    states: dict[tuple[object, ...], NodeState] = field(default_factory=dict)
    distinct: dict[tuple[object, ...], list[NodeState]] = field(default_factory=dict)

    def columns_of(self, known: int) -> Columns:
        """Of a scan, its columns where this is known."""
        assert isinstance(self.node, Scan)
        known &= self.concerning
        result = self.columns.get(known)
        if result is None:
            facts = [fact for bit, fact in self.facts if bit & known]
            result = self.columns[known] = scan_columns(self.node, facts)
        return result

    def same(self, state: NodeState) -> NodeState:
        """An equal state found before, so that what rests on it need not be judged again."""
        # What differs most often tells most of them apart before all is compared.
        rough = (state.status, state.sketched, frozenset(state.keys.items()))
        alike = self.distinct.setdefault(rough, [])
        for known in alike:
            if known == state:
                return known
        alike.append(state)
        return state


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is judged: the sketches, what is known, and how first ranks are taken."""

    sketched: Mapping[AccessId, ColumnName]
    """In order of the accesses, so that equal ones give equal keys."""
    known: int
    has_rank_barriers: bool
    has_keyed_fixpoints: bool
    leaves: Mapping[FixpointId, int] = field(default_factory=dict)
    """Inside a step: the place of the column that the rows of its fixpoint are KEYED on."""

    def concerning(self, place: _Place) -> tuple[object, ...]:
        """The part of it that the states from this place down depend on."""
        sketched: tuple[tuple[AccessId, ColumnName], ...] = ()
        if not place.accesses.isdisjoint(self.sketched):
            sketched = tuple([s for s in self.sketched.items() if s[0] in place.accesses])
        barriers = (self.has_rank_barriers, self.has_keyed_fixpoints)
        return sketched, self.known & place.concerning, barriers, tuple(self.leaves.items())


class PlanJudge:
    """Judges sketches and facts for one plan; remembers what it found."""

    def __init__(self, root: Plan, wording: Wording) -> None:
        self.nodes = tuple(nodes_of(root))
        self.scans = tuple(node for node in self.nodes if isinstance(node, Scan))
        self.accesses = frozenset(scan.access for scan in self.scans)
        self.has_ranks = any(isinstance(n, TopK) and n.rank is not None for n in self.nodes)
        self.has_fixpoints = any(isinstance(node, Fixpoint) for node in self.nodes)
        self._wording = wording
        self._root = _place(root, at_root=True)
        self.last_needed: frozenset[Fact] = frozenset()
        """The assumptions that the last sketch needed; a guess at those of the next."""
        self._readers = _readers(self._root)
        self._bits: dict[tuple[TableName, ColumnName, FactKind], int] = {}

    def of(
        self,
        sketched: Mapping[AccessId, ColumnName],
        facts: Iterable[Fact],
        *,
        has_rank_barriers: bool = False,
        has_keyed_fixpoints: bool = False,
    ) -> Analysis:
        """Judge every node, with these accesses sketched and these facts taken as true.

        `has_rank_barriers`: first ranks are barriers also where they could stay KEYED;
        `has_keyed_fixpoints`: fixpoints stay KEYED where they can.
        """
        known = self.known(facts)
        return self.of_known(
            sketched,
            known,
            has_rank_barriers=has_rank_barriers,
            has_keyed_fixpoints=has_keyed_fixpoints,
        )

    def of_known(
        self,
        sketched: Mapping[AccessId, ColumnName],
        known: int,
        *,
        has_rank_barriers: bool = False,
        has_keyed_fixpoints: bool = False,
    ) -> Analysis:
        """`of`, with the facts as `known` tells them."""
        own = dict(sorted(sketched.items()))
        asked = _Asked(own, known, has_rank_barriers, has_keyed_fixpoints)
        return Analysis(self.nodes, self._judged(self._root, asked))

    def of_all_facts(
        self,
        sketched: Mapping[AccessId, ColumnName],
        *,
        has_rank_barriers: bool = False,
        has_keyed_fixpoints: bool = False,
    ) -> Analysis:
        """Judge every node as if all that a fact could say of a column were so."""
        return self.of_known(
            sketched,
            self._all_known,
            has_rank_barriers=has_rank_barriers,
            has_keyed_fixpoints=has_keyed_fixpoints,
        )

    def known(self, facts: Iterable[Fact]) -> int:
        """The bits of these facts; those of columns that the plan does not read have none."""
        known = 0
        for fact in facts:
            about = (fact.table, fact.column.lower(), fact.kind)
            bit = self._bits.get(about)
            known |= self._learned(fact) if bit is None else bit
        return known

    def _learned(self, fact: Fact) -> int:
        """A bit of its own for a fact that is met for the first time; 0 where nobody reads it."""
        column = (fact.table, fact.column.lower())
        ways = self._readers.get(column, ())
        bit = 1 << len(self._bits) if ways else 0
        self._bits[*column, fact.kind] = bit
        for way in ways:
            way[-1].facts.append((bit, fact))
            for place in way:
                place.concerning |= bit
        return bit

    @cached_property
    def _all_known(self) -> int:
        return self.known(
            Fact(scan.table, attribute.name, kind, FactSource.PREDICATE)
            for scan in self.scans
            for attribute in scan.attributes
            for kind in FactKind
        )

    def _judged(self, place: _Place, asked: _Asked) -> Judged:
        key = asked.concerning(place)
        known = place.found.get(key)
        if known is None and asked.has_keyed_fixpoints and isinstance(place.node, Fixpoint):
            known = self._keyed(place.node, place, asked)
        if known is None:
            inputs = tuple([self._judged(part, asked) for part in place.inputs])
            known = Judged(self._state(place, inputs, asked), inputs)
        place.found[key] = known
        return known

    def _keyed(self, node: Fixpoint, place: _Place, asked: _Asked) -> Judged | None:
        """The fixpoint as KEYED on one of its columns; None where it is on none."""
        base, step = place.inputs
        first = self._judged(base, asked)
        for key in key_candidates(node, first.state, asked.sketched):
            leaves = {**asked.leaves, node.id: key}
            other = self._judged(step, replace(asked, leaves=leaves))
            state = keyed_fixpoint(node, key, first.state, other.state)
            if state is not None:
                return Judged(place.same(state), (first, other))
        return None

    def _state(self, place: _Place, inputs: tuple[Judged, ...], asked: _Asked) -> NodeState:
        node = place.node
        if place.changing is not None:
            return place.changing
        if isinstance(node, Scan):
            name = asked.sketched.get(node.access)
            return place.same(scan_state(node, name, place.columns_of(asked.known)))
        if isinstance(node, Recursive):
            return place.same(leaf(node, asked.leaves.get(node.fixpoint)))
        below = [part.state for part in inputs]
        unsafe = next((result for result in below if result.status is Status.UNSAFE), None)
        state = self._by_inputs(place, below, asked) if unsafe is None else unsafe
        if place.at_root and state.status is Status.UNSAFE:
            # It depends on more than the inputs' own states, so it is not kept by those.
            ranked = self._ranked(node, inputs)
            return state if ranked is None else place.same(ranked)
        return state

    def _by_inputs(self, place: _Place, inputs: list[NodeState], asked: _Asked) -> NodeState:
        # States are kept as long as the places are, so one place has no two of one identity.
        key = (*map(id, inputs), asked.has_rank_barriers)
        state = place.states.get(key)
        if state is None:
            barriers = asked.has_rank_barriers
            state = state_of(place.node, inputs, self._wording, has_rank_barriers=barriers)
            state = place.states[key] = place.same(state)
        return state

    def _ranked(self, node: Plan, inputs: tuple[Judged, ...]) -> NodeState | None:
        """`rank <= k` over a window, judged from the window's own input; None for the rest.

        Projections between the two work row by row, so the filter is read below them.
        """
        if not isinstance(node, Select):
            return None
        predicate, below, judged = node.predicate, node.child, inputs[0]
        between: list[Project] = []
        while isinstance(below, Project):
            between.append(below)
            predicate = substitute(predicate, {o.attribute.id: o.expr for o in below.outputs})
            below, judged = below.child, judged.inputs[0]
        if not isinstance(below, Window):
            return None
        child = judged.inputs[0].state
        if child.status in (Status.UNSAFE, Status.EXACT) or child.ties is not None:
            return None
        parts: tuple[Plan, ...] = (node, below, *between)
        if any(changing_state(part) is not None for part in parts):
            return None
        state = first_rows_per_partition(predicate, below, child, self._wording)
        if state is None or state.status is Status.UNSAFE:
            return state
        for part in reversed(between):
            state = project_state(part, state)
        return state


def _place(node: Plan, *, at_root: bool) -> _Place:
    below = at_root and isinstance(node, Project | Sort)
    inputs = tuple(_place(part, at_root=below) for part in inputs_of(node))
    accesses = frozenset[AccessId]().union(*(part.accesses for part in inputs))
    if isinstance(node, Scan):
        accesses = frozenset({node.access})
    return _Place(node, at_root, inputs, accesses, changing_state(node))


_Ways = dict[tuple[TableName, ColumnName], list[tuple[_Place, ...]]]


def _readers(root: _Place) -> _Ways:
    """By table and column in lower case, the places from the root to each scan that reads it."""
    result: _Ways = {}
    left: list[tuple[_Place, ...]] = [(root,)]
    while left:
        way = left.pop()
        node = way[-1].node
        if isinstance(node, Scan):
            for name in {attribute.name.lower() for attribute in node.attributes}:
                result.setdefault((node.table, name), []).append(way)
        left.extend((*way, part) for part in way[-1].inputs)
    return result


class Judges:
    """A judge per plan that a query is judged by: its own, and the one its sketch is kept by."""

    def __init__(self) -> None:
        self._known: list[tuple[Plan, PlanJudge]] = []

    def of(self, query: Query) -> PlanJudge:
        """The judge of the query's plan."""
        for root, judge in self._known:
            if root is query.root:
                return judge
        made = PlanJudge(query.root, Wording.of(query.sql, query.root))
        self._known.append((query.root, made))
        return made
