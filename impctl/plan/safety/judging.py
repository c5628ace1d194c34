"""One plan judged for many sketches and facts, each part of it once for what concerns that part.

Law: what is found is what the rules (`plan.safety.transfer`) find of every node anew. A part of the
plan is judged again only where the sketches or facts of the tables below it differ, and a node only
where the states of its inputs do; a query of many candidates would else cost their product.
Out of scope: the rules, choosing what to judge (`plan.safety.choose`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from impctl.aliases import AccessId, ColumnName, TableName
from impctl.expr.nodes import substitute
from impctl.plan.nodes import (
    Plan,
    Project,
    Query,
    Scan,
    Select,
    Sort,
    TopK,
    Window,
    inputs_of,
    nodes_of,
)
from impctl.plan.safety.facts import Fact, FactKind, FactSource
from impctl.plan.safety.ordering import first_rows_per_partition
from impctl.plan.safety.status import NodeState, Status
from impctl.plan.safety.transfer import changing_call, project_state, state_of
from impctl.plan.safety.wording import Wording


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """A node's state with those of everything below it."""

    state: NodeState
    inputs: tuple[Judged, ...] = ()

    def flat(self) -> Iterator[NodeState]:
        """All states, in the order of `nodes_of`."""
        yield self.state
        for part in self.inputs:
            yield from part.flat()


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
        return tuple(self.judged.flat())


@dataclass(slots=True)
class _Place:
    """A node with what never changes of it, and what was found of it so far."""

    node: Plan
    at_root: bool
    """Nothing above drops rows."""
    inputs: tuple[_Place, ...]
    accesses: frozenset[AccessId]
    columns: Mapping[TableName, frozenset[ColumnName]]
    """Lower case, by table: those that are read below."""
    found: dict[tuple[object, ...], Judged] = field(default_factory=dict)
    states: dict[tuple[object, ...], NodeState] = field(default_factory=dict)
    distinct: dict[tuple[object, ...], list[NodeState]] = field(default_factory=dict)

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
    """What is judged: the sketches, the facts by table, and how first ranks are taken."""

    sketched: Mapping[AccessId, ColumnName]
    facts: Mapping[TableName, frozenset[Fact]]
    has_rank_barriers: bool
    about: dict[tuple[TableName, frozenset[ColumnName]], frozenset[Fact]] = field(
        default_factory=dict
    )
    """Facts of these columns, once they were looked for."""

    def concerning(self, place: _Place) -> tuple[object, ...]:
        """The part of it that the states from this place down depend on."""
        sketched: tuple[tuple[AccessId, ColumnName], ...] = ()
        if not place.accesses.isdisjoint(self.sketched):
            sketched = tuple(sorted(s for s in self.sketched.items() if s[0] in place.accesses))
        facts = tuple(self._facts(table, read) for table, read in place.columns.items())
        return sketched, facts, self.has_rank_barriers

    def _facts(self, table: TableName, read: frozenset[ColumnName]) -> frozenset[Fact]:
        found = self.about.get((table, read))
        if found is None:
            known = self.facts.get(table, frozenset())
            found = frozenset(fact for fact in known if fact.column.lower() in read)
            self.about[table, read] = found
        return found


class PlanJudge:
    """Judges sketches and facts for one plan; remembers what it found."""

    def __init__(self, root: Plan, wording: Wording) -> None:
        self.nodes = tuple(nodes_of(root))
        self.scans = tuple(node for node in self.nodes if isinstance(node, Scan))
        self.accesses = frozenset(scan.access for scan in self.scans)
        self.has_ranks = any(isinstance(n, TopK) and n.rank is not None for n in self.nodes)
        self._wording = wording
        self._root = _place(root, at_root=True)
        self._about_all: dict[tuple[TableName, frozenset[ColumnName]], frozenset[Fact]] = {}

    def of(
        self,
        sketched: Mapping[AccessId, ColumnName],
        facts: Collection[Fact],
        *,
        has_rank_barriers: bool = False,
    ) -> Analysis:
        """Judge every node, with these accesses sketched and these facts taken as true.

        `has_rank_barriers`: first ranks are barriers also where they could stay KEYED.
        """
        asked = _Asked(sketched, _by_table(facts), has_rank_barriers)
        return Analysis(self.nodes, self._judged(self._root, asked))

    def of_all_facts(self, sketched: Mapping[AccessId, ColumnName]) -> Analysis:
        """Judge every node as if all that a fact could say of a column were so."""
        asked = _Asked(sketched, self._all_facts, False, self._about_all)
        return Analysis(self.nodes, self._judged(self._root, asked))

    @cached_property
    def _all_facts(self) -> Mapping[TableName, frozenset[Fact]]:
        return _by_table(
            Fact(scan.table, attribute.name, kind, FactSource.PREDICATE)
            for scan in self.scans
            for attribute in scan.attributes
            for kind in FactKind
        )

    def _judged(self, place: _Place, asked: _Asked) -> Judged:
        key = asked.concerning(place)
        known = place.found.get(key)
        if known is None:
            inputs = tuple(self._judged(part, asked) for part in place.inputs)
            known = place.found[key] = Judged(self._state(place, inputs, asked), inputs)
        return known

    def _state(self, place: _Place, inputs: tuple[Judged, ...], asked: _Asked) -> NodeState:
        node = place.node
        if isinstance(node, Scan):
            about = asked.facts.get(node.table, ())
            return place.same(state_of(node, [], self._wording, asked.sketched, about))
        # States are kept as long as the places are, so one place has no two of one identity.
        key = (*(id(part.state) for part in inputs), asked.has_rank_barriers)
        state = place.states.get(key)
        if state is None:
            below = [part.state for part in inputs]
            barriers = asked.has_rank_barriers
            state = state_of(node, below, self._wording, has_rank_barriers=barriers)
            state = place.states[key] = place.same(state)
        if place.at_root and state.status is Status.UNSAFE:
            # It depends on more than the inputs' own states, so it is not kept by those.
            ranked = self._ranked(node, inputs)
            return state if ranked is None else place.same(ranked)
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
        if any(changing_call(part) is not None for part in parts):
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
    columns: dict[TableName, frozenset[ColumnName]] = {}
    for part in inputs:
        for table, read in part.columns.items():
            columns[table] = columns.get(table, frozenset()) | read
    if isinstance(node, Scan):
        accesses = frozenset({node.access})
        columns = {node.table: frozenset(a.name.lower() for a in node.attributes)}
    return _Place(node, at_root, inputs, accesses, columns)


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


def _by_table(facts: Iterable[Fact]) -> Mapping[TableName, frozenset[Fact]]:
    found: dict[TableName, set[Fact]] = {}
    for fact in facts:
        found.setdefault(fact.table, set()).add(fact)
    return {table: frozenset(about) for table, about in found.items()}
