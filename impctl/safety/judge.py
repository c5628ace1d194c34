"""Whether sketches of chosen attributes are safe for a query, and why not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Self

from msgspec import Struct, field
from msgspec.structs import replace

from impctl.data.schema import Kind
from impctl.errors import InvariantError, UsageError
from impctl.expr.nodes import Span, substitute
from impctl.expr.types import type_of
from impctl.plan.functions import ORDER_DEPENDENT
from impctl.plan.nodes import (
    Aggregate,
    Distinct,
    Fixpoint,
    Join,
    JoinKind,
    Plan,
    Project,
    Query,
    Recursive,
    Scan,
    Select,
    SetKind,
    SetOperation,
    Sort,
    TopK,
    Window,
    inputs_of,
    nodes_of,
    scans_of,
)
from impctl.safety.direction import Refusal, SafetyState, Status
from impctl.safety.facts import Fact, FactKind, FactSource
from impctl.safety.messages import Wording
from impctl.safety.transfer import (
    changing_state,
    first_rows_per_partition,
    grouped_keys,
    key_candidates,
    keyed_fixpoint,
    leaf,
    project_state,
    scan_columns,
    scan_state,
    state_of,
)
from impctl.types import AccessId, AttributeId, ColumnName, FixpointId, TableName

if TYPE_CHECKING:
    from impctl.safety.direction import Columns

# Which nodes are barriers, of those that could stay KEYED, too. Law: it never depends on what is
# known of the data today: other barriers later would be another sketch. First ranks within keys,
# and fixpoints, stay KEYED wherever some facts could make the rest of the plan safe with it; a
# fixpoint only where something above it can leave keys out, since else the sketches of a barrier
# are no larger and serve more queries.

_OUTER = (JoinKind.LEFT, JoinKind.RIGHT, JoinKind.FULL)


def chosen_barriers(
    sketched: Mapping[AccessId, ColumnName],
    by: PlanJudge,
    *,
    ranks: bool | None,
    keyed: bool | None,
) -> tuple[bool, bool]:
    """Whether first ranks are barriers, and whether fixpoints are KEYED; given ones stay."""
    ways = [
        (has_barriers, has_keys)
        for has_keys in _given(keyed, (True, False) if by.has_fixpoints else (False,))
        for has_barriers in _given(ranks, (False, True) if by.has_ranks else (False,))
    ]
    if len(ways) > 1:
        for has_barriers, has_keys in ways:
            result = by.of_all_facts(
                sketched, has_rank_barriers=has_barriers, has_keyed_fixpoints=has_keys
            )
            is_safe = result.root.status is not Status.UNSAFE
            if is_safe and (keyed is not None or not has_keys or _leaves_keys_out(result)):
                return has_barriers, has_keys
    return ways[-1]


def _given(given: bool | None, tried: tuple[bool, ...]) -> tuple[bool, ...]:
    return tried if given is None else (given,)


def _leaves_keys_out(analysis: Analysis) -> bool:
    """Whether something above a KEYED fixpoint can drop all rows of a key."""
    narrowed = {id(node) for node in _narrowed(analysis.nodes[0], is_narrowed=False)}
    pairs = zip(analysis.nodes, analysis.states, strict=True)
    return any(id(node) in narrowed and state.status is Status.KEYED for node, state in pairs)


def _narrowed(plan: Plan, *, is_narrowed: bool) -> Iterator[Fixpoint]:
    """The fixpoints with something above that drops rows."""
    if isinstance(plan, Fixpoint):
        if is_narrowed:
            yield plan
        return
    match plan:
        case Project() | Sort() | Distinct() | Aggregate() | Window():
            pass
        case SetOperation(kind=SetKind.UNION):
            pass
        case Join(kind=kind) if kind in _OUTER:
            pass
        case _:
            is_narrowed = True
    for child in inputs_of(plan):
        yield from _narrowed(child, is_narrowed=is_narrowed)


def barrier_positions(analysis: Analysis) -> tuple[int, ...]:
    """Nodes that make sketched inputs exact: fixpoints, and top-k that are not the last step."""
    last = 0
    while isinstance(analysis.nodes[last], Project | Sort):
        last += 1
    return tuple(
        position
        for position, (node, state) in enumerate(zip(analysis.nodes, analysis.states, strict=True))
        if state.status is Status.EXACT
        and (
            (isinstance(node, Fixpoint) and state.sketched)
            or (
                isinstance(node, TopK)
                and position != last
                and analysis.states[position + 1].status is not Status.EXACT
            )
        )
    )


def keyed_groups(
    plan: Plan, sketched: Mapping[AccessId, ColumnName], by: PlanJudge
) -> Iterator[frozenset[AccessId]]:
    """Per fixpoint that can be KEYED, the accesses below it, which share one sketch. Whatever is
    known of the data, and whether it is KEYED or not."""
    for ranks in (False, True):
        result = by.of_all_facts(sketched, has_rank_barriers=ranks, has_keyed_fixpoints=True)
        for node, state in zip(nodes_of(plan), result.states, strict=True):
            if isinstance(node, Fixpoint) and state.status is Status.KEYED:
                yield state.sketched


# One plan judged for many sketches and facts, each part of it once for what concerns that part.
# Law: what is found is what the rules (`safety.transfer`) find of every node again. A part of the
# plan is judged again only where the sketches of the accesses below it differ, or what is known
# of the columns they read, and a node only where the states of its inputs do; a query of many
# candidates would else cost their product. What is known is a number with one bit for each kind
# of fact of each column, so that what concerns a part is told by one `&`; who says it is no
# matter to a state.


class Judged(Struct, frozen=True, eq=False):
    """A node's state with those of everything below it."""

    state: SafetyState
    inputs: tuple[Judged, ...] = ()

    def flat(self) -> tuple[SafetyState, ...]:
        """All states, in the order of `nodes_of`."""
        result, left = [], [self]
        while left:
            judged = left.pop()
            result.append(judged.state)
            left.extend(reversed(judged.inputs))
        return tuple(result)


class Analysis(Struct, frozen=True, dict=True):
    """States of all nodes, in the order of `nodes_of(root)`."""

    nodes: tuple[Plan, ...]
    judged: Judged

    @property
    def root(self) -> SafetyState:
        return self.judged.state

    @cached_property
    def states(self) -> tuple[SafetyState, ...]:
        return self.judged.flat()


class _Place(Struct):
    """A node with what never changes of it, and the results cached for it."""

    node: Plan
    at_root: bool
    """Nothing above drops rows."""
    inputs: tuple[_Place, ...]
    accesses: frozenset[AccessId]
    changing: SafetyState | None
    """The state of a node whose values change from run to run."""
    concerning: int = 0
    """The bits of all facts that concern the columns read from here down."""
    facts: list[tuple[int, Fact]] = field(default_factory=list)
    """For a scan: facts that concern its columns, each with its bit."""
    columns: dict[int, Columns] = field(default_factory=dict)
    """For a scan: what is known of its columns, by fact bits."""
    found: dict[tuple[object, ...], Judged] = field(default_factory=dict)
    states: dict[tuple[object, ...], SafetyState] = field(default_factory=dict)
    distinct: dict[tuple[object, ...], list[SafetyState]] = field(default_factory=dict)

    def columns_of(self, known: int) -> Columns:
        """Columns of a scan where these facts are known."""
        assert isinstance(self.node, Scan)
        known &= self.concerning
        result = self.columns.get(known)
        if result is None:
            facts = [fact for bit, fact in self.facts if bit & known]
            result = self.columns[known] = scan_columns(self.node, facts)
        return result

    def same(self, state: SafetyState) -> SafetyState:
        """An equal earlier state, so that what rests on it need not be judged again."""
        # What differs most often separates most of them before all is compared.
        rough = (state.status, state.sketched, frozenset(state.keys.items()))
        alike = self.distinct.setdefault(rough, [])
        for known in alike:
            if known == state:
                return known
        alike.append(state)
        return state


class _Request(Struct, frozen=True):
    """A request: the sketches, what is known, and how first ranks are treated."""

    sketched: Mapping[AccessId, ColumnName]
    """In order of the accesses, so that equal requests give equal keys."""
    known: int
    has_rank_barriers: bool
    has_keyed_fixpoints: bool
    leaves: Mapping[FixpointId, int] = field(default_factory=dict)
    """Inside a step: position of the column that the rows of its fixpoint are KEYED on."""

    def concerning(self, place: _Place) -> tuple[object, ...]:
        """The part of it that the states from this place down depend on."""
        sketched: tuple[tuple[AccessId, ColumnName], ...] = ()
        if not place.accesses.isdisjoint(self.sketched):
            sketched = tuple([s for s in self.sketched.items() if s[0] in place.accesses])
        barriers = (self.has_rank_barriers, self.has_keyed_fixpoints)
        return sketched, self.known & place.concerning, barriers, tuple(self.leaves.items())


class PlanJudge:
    """Judges sketches and facts for one plan; remembers its results."""

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
        `has_keyed_fixpoints`: fixpoints stay KEYED where they can."""
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
        """Like `of`, with the facts as bits of `known`."""
        own = dict(sorted(sketched.items()))
        request = _Request(own, known, has_rank_barriers, has_keyed_fixpoints)
        return Analysis(self.nodes, self._judged(self._root, request))

    def of_all_facts(
        self,
        sketched: Mapping[AccessId, ColumnName],
        *,
        has_rank_barriers: bool = False,
        has_keyed_fixpoints: bool = False,
    ) -> Analysis:
        """Judge every node as if every possible fact about a column were true."""
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
        """Assign a bit to a new fact; 0 where nothing reads its column."""
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

    def _judged(self, place: _Place, request: _Request) -> Judged:
        key = request.concerning(place)
        known = place.found.get(key)
        if known is None and request.has_keyed_fixpoints and isinstance(place.node, Fixpoint):
            known = self._keyed(place.node, place, request)
        if known is None:
            inputs = tuple([self._judged(part, request) for part in place.inputs])
            known = Judged(self._state(place, inputs, request), inputs)
        place.found[key] = known
        return known

    def _keyed(self, node: Fixpoint, place: _Place, request: _Request) -> Judged | None:
        """The fixpoint as KEYED on one of its columns; None where on none."""
        base, step = place.inputs
        first = self._judged(base, request)
        for key in key_candidates(node, first.state, request.sketched):
            leaves = {**request.leaves, node.id: key}
            other = self._judged(step, replace(request, leaves=leaves))
            state = keyed_fixpoint(node, key, first.state, other.state)
            if state is not None:
                return Judged(place.same(state), (first, other))
        return None

    def _state(self, place: _Place, inputs: tuple[Judged, ...], request: _Request) -> SafetyState:
        node = place.node
        if place.changing is not None:
            return place.changing
        if isinstance(node, Scan):
            name = request.sketched.get(node.access)
            return place.same(scan_state(node, name, place.columns_of(request.known)))
        if isinstance(node, Recursive):
            return place.same(leaf(node, request.leaves.get(node.fixpoint)))
        below = [part.state for part in inputs]
        unsafe = next((result for result in below if result.status is Status.UNSAFE), None)
        state = self._by_inputs(place, below, request) if unsafe is None else unsafe
        if place.at_root and state.status is Status.UNSAFE:
            # It depends on more than the inputs' own states, so it is not cached by those.
            ranked = self._ranked(node, inputs)
            return state if ranked is None else place.same(ranked)
        return state

    def _by_inputs(
        self, place: _Place, inputs: list[SafetyState], request: _Request
    ) -> SafetyState:
        # States live as long as the places, so no two states of a place have one `id`.
        key = (*map(id, inputs), request.has_rank_barriers)
        state = place.states.get(key)
        if state is None:
            barriers = request.has_rank_barriers
            state = state_of(place.node, inputs, self._wording, has_rank_barriers=barriers)
            state = place.states[key] = place.same(state)
        return state

    def _ranked(self, node: Plan, inputs: tuple[Judged, ...]) -> SafetyState | None:
        """`rank <= k` over a window, judged from the window's own input; None for anything else.
        Projections between the two work row by row, so the filter is read below them."""
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
    """Judges of a query's plans: its own, and the one its sketch is kept by."""

    def __init__(self) -> None:
        self._known: list[tuple[Plan, PlanJudge]] = []

    def of(self, query: Query) -> PlanJudge:
        for root, judge in self._known:
            if root is query.root:
                return judge
        made = PlanJudge(query.root, Wording.of(query.sql, query.root))
        self._known.append((query.root, made))
        return made


# Whether sketches of chosen attributes are safe for a query, and why not. Law: `safe` means that
# for every range partition on these attributes and all sketches that cover the query's
# provenance, the query over the sketched tables gives the answer it gives over the tables. The
# test is sound, not complete: unsure is unsafe. Where a top-k is not the last step, the
# provenance includes its first rows, ties at the last place too (`barrier_positions`). There is
# one judgement of facts: a plan with the same rows is judged by what the first one rests on
# (`carried`), and only a safe verdict tells what to capture and maintain.

__all__ = [
    "Fact",
    "FactKind",
    "FactSource",
    "Refusal",
    "Status",
    "Verdict",
    "carried_verdict",
    "check_kept",
    "check_safety",
    "node_states",
    "verdict_of_core",
    "states_of",
]


_CUT = (
    "truncate it to the hour or the day, for example `date_trunc('hour', now())` or "
    "`current_date`; impctl can maintain sketches over that"
)


class Verdict(Struct, frozen=True):
    """Whether the sketches are safe, and how capture and maintenance may use them. `keyed`: per
    access, the root's output columns that equal its partition attribute. `key_columns`: for an
    Aggregate at that position of `nodes_of(root)`, per access the grouping output that equals its
    partition attribute: all rows of a group are in one range. For a KEYED fixpoint, the column that
    all accesses below share, with one sketch. `root_keyed`: touch maintenance is allowed. `facts`:
    everything it rests on; `assumptions`: those from statistics, which must be checked again for
    every later version. `barrier_positions`: nodes whose rows' lineage belongs to the sketch even
    if the rows are dropped above, among them first ranks within keys where `has_rank_barriers`, and
    no KEYED fixpoints; where `has_keyed_fixpoints`, all that can be are KEYED. `ties`: why several
    answers are right, if so."""

    safe: bool
    status: Status
    reason: str
    span: Span | None = None
    keyed: Mapping[AccessId, frozenset[AttributeId]] = field(default_factory=dict)
    key_columns: Mapping[int, Mapping[AccessId, AttributeId]] = field(default_factory=dict)
    root_keyed: bool = False
    facts: tuple[Fact, ...] = ()
    has_rank_barriers: bool = False
    has_keyed_fixpoints: bool = False
    barrier_positions: tuple[int, ...] = ()
    ties: Refusal | None = None

    @property
    def assumptions(self) -> tuple[Fact, ...]:
        """The facts that a later version of a table may break."""
        return tuple(fact for fact in self.facts if fact.source is FactSource.STATISTICS)

    def required(self) -> Self:
        """This verdict; InvariantError where it is unsafe, since it knows no barriers then."""
        if self.safe:
            return self
        raise InvariantError(
            "The contents of a sketch were requested for a plan without a safe sketch: "
            f"{self.reason}"
        )

    @property
    def barriers(self) -> int:
        """Number of nodes whose lineage must be kept besides the result's."""
        return len(self.barrier_positions)


def check_safety(
    query: Query,
    sketched: Mapping[AccessId, ColumnName],
    facts: Collection[Fact],
    *,
    has_rank_barriers: bool | None = None,
    has_keyed_fixpoints: bool | None = None,
    judges: Judges | None = None,
) -> Verdict:
    """Judge sketches of `sketched[access]` for all these accesses together. `has_rank_barriers` and
    `has_keyed_fixpoints` as of an earlier verdict; by default `safety.judge` chooses. `judges`
    remember their results for further sketches of the same plans."""
    by = (Judges() if judges is None else judges).of(query)
    _refuse_unknown(by.accesses, sketched)
    if query.nondeterministic and sketched:
        name, span = query.nondeterministic[0]
        reason = f"`{name}` returns a different result on every run"
        if name in ORDER_DEPENDENT:
            reason = (
                f"`{name}` has several correct results, and the rows of the query depend on which "
                "one is used"
            )
        reason = f"{reason}; {_CUT}" if name in ("now", "current_timestamp") else reason
        return Verdict(False, Status.UNSAFE, reason, span)
    barriers = chosen_barriers(sketched, by, ranks=has_rank_barriers, keyed=has_keyed_fixpoints)
    judge = _SketchJudge(query, sketched, *barriers, by)
    # Facts only ever help, so what is unsafe by all of them is so by the sure ones too.
    result = judge.of(facts)
    refusal = result.root.refusal
    if refusal is not None:
        return Verdict(False, Status.UNSAFE, refusal.reason, refusal.span)
    sure = [fact for fact in facts if fact.source is not FactSource.STATISTICS]
    result = judge.of(sure)
    if result.root.status is not Status.UNSAFE:
        return _accepted(judge, result, sure)
    known = [*sure, *_needed_assumptions(judge, sure, facts)]
    return _accepted(judge, judge.of(known), known)


class _SketchJudge(Struct, frozen=True):
    """Everything a plan is judged by but the facts."""

    query: Query
    sketched: Mapping[AccessId, ColumnName]
    has_rank_barriers: bool
    has_keyed_fixpoints: bool
    by: PlanJudge

    def of(self, facts: Collection[Fact]) -> Analysis:
        """The states of all nodes, with these facts taken as true."""
        return self._by(self.by.known(facts))

    def is_safe(self, known: int) -> bool:
        """Whether the facts of these bits are enough."""
        return self._by(known).root.status is not Status.UNSAFE

    def _by(self, known: int) -> Analysis:
        return self.by.of_known(
            self.sketched,
            known,
            has_rank_barriers=self.has_rank_barriers,
            has_keyed_fixpoints=self.has_keyed_fixpoints,
        )


def judged_by(
    verdict: Verdict,
    query: Query,
    sketched: Mapping[AccessId, ColumnName],
    judges: Judges | None = None,
) -> Verdict:
    """The verdict on another plan of the same rows, by the facts of the first one. It may be
    unsafe: a plan without the column that keeps groups whole has less to show for it.
    InvariantError where the first one is unsafe."""
    return check_safety(
        query,
        sketched,
        verdict.required().facts,
        has_rank_barriers=verdict.has_rank_barriers,
        has_keyed_fixpoints=verdict.has_keyed_fixpoints,
        judges=judges,
    )


def check_kept(
    query: Query,
    core: Plan,
    sketched: Mapping[AccessId, ColumnName],
    facts: Collection[Fact],
    judges: Judges | None = None,
) -> Verdict:
    """Like `check_safety`, and unsafe too where the core, by which a sketch is kept, is not proved
    safe. `core`: a plan of the same rows without output-only columns (`rules.optimize.core_of`)."""
    verdict = check_safety(query, sketched, facts, judges=judges)
    if not verdict.safe or core == query.root:
        return verdict
    kept = verdict_of_core(verdict, query, core, sketched, judges)
    return verdict if kept.safe else kept


def verdict_of_core(
    verdict: Verdict,
    query: Query,
    core: Plan,
    sketched: Mapping[AccessId, ColumnName],
    judges: Judges | None = None,
) -> Verdict:
    """The accepted query's verdict on its core; where that is unsafe, the reason says so."""
    kept = judged_by(verdict, replace(query, root=core), sketched, judges)
    if kept.safe:
        return kept
    return replace(kept, reason=f"the contents of a sketch cannot be determined: {kept.reason}")


def carried_verdict(
    verdict: Verdict, query: Query, sketched: Mapping[AccessId, ColumnName]
) -> Verdict:
    """The verdict on another plan of the same rows, resting on the facts of the first one.
    InvariantError where either is unsafe: with fewer facts than it was accepted with, a plan seems
    to have no barriers."""
    return judged_by(verdict, query, sketched).required()


def _refuse_unknown(known: Collection[AccessId], sketched: Mapping[AccessId, ColumnName]) -> None:
    for access in sketched:
        if access not in known:
            raise UsageError(
                f"The query has no table access `{access}`",
                code="unknown_access",
                hint=f"the query's accesses are: {', '.join(sorted(known))}",
            )


def _needed_assumptions(
    judge: _SketchJudge, sure: Collection[Fact], facts: Collection[Fact]
) -> tuple[Fact, ...]:
    """A minimal set (each fact is needed) of the statistics facts that still proves safety. Of
    several such sets the one without the earliest facts: each is dropped in turn if the others are
    enough. Many sketches of a plan need the same set, so the last one is tried first."""
    base = judge.by.known(sure)
    tried = [
        (fact, bit)
        for fact in dict.fromkeys(facts)
        if fact.source is FactSource.STATISTICS and (bit := judge.by.known((fact,)))
    ]
    if not tried:
        return ()
    needed = [item for item in tried if item[0] in judge.by.last_needed]
    if not _is_smallest(judge, needed, tried, base):
        needed = _smallest(judge, tried, base)
    result = tuple(fact for fact, _ in needed)
    judge.by.last_needed = frozenset(result)
    return result


def _is_smallest(judge: _SketchJudge, needed: _Tried, tried: _Tried, base: int) -> bool:
    """Whether `_smallest` would return this set for the facts tried."""
    if not judge.is_safe(base | _together(needed)):
        return False
    for place, item in enumerate(needed):
        later = tried[tried.index(item) + 1 :]
        if judge.is_safe(base | _together(needed[:place]) | _together(later)):
            return False
    return True


def _smallest(judge: _SketchJudge, tried: _Tried, kept: int) -> _Tried:
    """The facts tried that are needed beside those kept; many are dropped at once."""
    if judge.is_safe(kept):
        return []
    if len(tried) == 1:
        return tried
    first, second = tried[: len(tried) // 2], tried[len(tried) // 2 :]
    left = _smallest(judge, first, kept | _together(second))
    return [*left, *_smallest(judge, second, kept | _together(left))]


_Tried = list[tuple[Fact, int]]


def _together(facts: _Tried) -> int:
    known = 0
    for _, bit in facts:
        known |= bit
    return known


def _accepted(judge: _SketchJudge, analysis: Analysis, facts: Collection[Fact]) -> Verdict:
    root = analysis.root
    assumed = tuple(fact for fact in facts if fact.source is FactSource.STATISTICS)
    return Verdict(
        True,
        root.status,
        _praise(analysis, assumed),
        keyed=root.keys,
        key_columns=_key_columns(analysis),
        root_keyed=_is_root_keyed(judge.query.root, analysis, judge.sketched),
        facts=tuple(facts),
        has_rank_barriers=judge.has_rank_barriers,
        has_keyed_fixpoints=judge.has_keyed_fixpoints,
        barrier_positions=barrier_positions(analysis),
        ties=root.ties,
    )


def _praise(analysis: Analysis, assumed: tuple[Fact, ...]) -> str:
    """Why the sketches are safe, as one sentence."""
    if not analysis.root.sketched:
        return "no table has a sketch"
    keyed = any(
        isinstance(node, Aggregate) and state.status is Status.KEYED
        for node, state in zip(analysis.nodes, analysis.states, strict=True)
    )
    if keyed:
        return "each group lies in one range, because the query groups by this column"
    held = ", ".join(
        dict.fromkeys(f"`{fact.table}.{fact.column}` is {fact.kind}" for fact in assumed)
    )
    reason = "skipped rows cannot affect the result"
    return f"{reason} while {held}" if held else reason


def _key_columns(analysis: Analysis) -> dict[int, dict[AccessId, AttributeId]]:
    keyed: dict[int, dict[AccessId, AttributeId]] = {}
    for position, node in enumerate(analysis.nodes):
        if isinstance(node, Aggregate):
            # Nodes are in preorder, so a node's first input follows it directly.
            keys = grouped_keys(node, analysis.states[position + 1])
            if keys:
                keyed[position] = {access: min(columns) for access, columns in keys.items()}
        elif isinstance(node, Fixpoint) and analysis.states[position].status is Status.KEYED:
            keys = analysis.states[position].keys
            keyed[position] = {access: min(columns) for access, columns in keys.items()}
    return keyed


def _is_root_keyed(root: Plan, analysis: Analysis, sketched: Mapping[AccessId, ColumnName]) -> bool:
    scans = scans_of(root)
    tables = [scan.table for scan in scans if scan.access in sketched]
    if len(tables) != 1 or sum(scan.table == tables[0] for scan in scans) != 1:
        return False
    position = 0
    while analysis.states[position].status is not Status.KEYED:
        if not isinstance(analysis.nodes[position], Project | Sort | Aggregate | Distinct):
            return False
        position += 1
    return True


def states_of(
    verdict: Verdict, query: Query, sketched: Mapping[AccessId, ColumnName]
) -> tuple[SafetyState, ...]:
    """The states of all nodes, in the order of `nodes_of`, as an accepted query was judged."""
    result = verdict.required()
    barriers = (result.has_rank_barriers, result.has_keyed_fixpoints)
    judge = _SketchJudge(query, sketched, *barriers, Judges().of(query))
    return judge.of(result.facts).states


def node_states(
    query: Query, sketched: Mapping[AccessId, ColumnName], facts: Collection[Fact]
) -> Analysis:
    """The states behind a verdict, node by node, for `explain` and tests."""
    return Judges().of(query).of(sketched, facts)


# What to do about a query that no sketch is safe for: a hint for each reason. Law: a hint names
# only what would help: a column to sketch is one that was judged and is safe.

_MOMENT = "pass the time as a parameter (`:day` in the SQL, its value under `params`)"
_ONE_ANSWER = {
    "percentile_approx": "use `percentile`, which has exactly one result",
    "approx_percentile": "use `percentile`, which has exactly one result",
    "first": "use MIN_BY with a column that orders the rows",
    "last": "use MAX_BY with a column that orders the rows",
    "any_value": "use MIN or MAX, which have exactly one result",
    "collect_list": "compare COUNT of its argument instead, and only return the list",
    "collect_set": "compare COUNT(DISTINCT ...) instead, and only return the set",
    "mode": "use GROUP BY with COUNT(*) and ORDER BY ... LIMIT 1",
    **dict.fromkeys(
        (
            "curdate",
            "current_date",
            "current_time",
            "current_timestamp",
            "localtime",
            "localtimestamp",
            "now",
            "unix_timestamp",
        ),
        _MOMENT,
    ),
}
"""Hints by the construct whose answer differs from run to run."""
_OTHER_RUNS = "remove it from the query, or compute it from the query's result"
_WITHOUT = "`sketch: none` keeps the query in the file without a sketch"


def hint_of(query: Query, verdict: Verdict, would_serve: Sequence[str]) -> str:
    """What to do; `would_serve` are columns (`table.column`) that are safe but no candidates."""
    if query.nondeterministic:
        name = query.nondeterministic[0][0].lower()
        return f"{_ONE_ANSWER.get(name, _OTHER_RUNS)}; {_WITHOUT}"
    if would_serve:
        listed = " or ".join(f"`{column}`" for column in would_serve)
        return f"add {listed} under `partitions` in the workload file; a sketch on it is safe"
    if _is_of_window(query, verdict):
        return (
            "a window function can use a sketch on a PARTITION BY column: add PARTITION BY if a "
            f"result per partition is acceptable; {_WITHOUT}"
        )
    text = _added_text(query)
    if text:
        return (
            f"{text} adds up text; cast it to a number first, for example CAST(x AS DECIMAL(18, 2))"
        )
    if "never negative" in verdict.reason:
        return (
            "if it never is, add a constraint such as CHECK (x >= 0) to the table, or group by a "
            f"column and sketch that; {_WITHOUT}"
        )
    return f"a column in GROUP BY is usually safe; {_WITHOUT}"


def _is_of_window(query: Query, verdict: Verdict) -> bool:
    """Whether a window function is the obstacle."""
    return verdict.span is not None and any(
        verdict.span in (node.span, *(call.span for call in node.calls))
        for node in nodes_of(query.root)
        if isinstance(node, Window)
    )


def _added_text(query: Query) -> str:
    """The first SUM or AVG of text, as the query has it; empty without one."""
    for node in nodes_of(query.root):
        for output in node.aggregates if isinstance(node, Aggregate) else ():
            call = output.call
            is_sum = call.function in ("sum", "avg") and len(call.arguments) == 1
            result = type_of(call.arguments[0]) if is_sum else None
            if result is not None and result.kind is Kind.STRING:
                span = call.span
                return f"`{query.sql[span.start : span.end]}`" if span else f"`{call.function}`"
    return ""
