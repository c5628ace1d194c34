"""Whether sketches of chosen attributes are safe for a query, and why not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from operator import or_
from typing import TYPE_CHECKING, Self

from msgspec import Struct, field
from msgspec.structs import replace

from impctl.data.schema import Kind
from impctl.errors import InvariantError, UsageError
from impctl.expr.nodes import Span
from impctl.expr.types import type_of
from impctl.plan import nodes as p
from impctl.plan.functions import ORDER_DEPENDENT
from impctl.safety.direction import Refusal, SafetyState, Sketched, Status, Wording
from impctl.safety.facts import Fact, FactKind, FactSource
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

_OUTER = (p.JoinKind.LEFT, p.JoinKind.RIGHT, p.JoinKind.FULL)


def chosen_barriers(
    sketched: Sketched, by: PlanJudge, ranks: bool | None = None, keyed: bool | None = None
) -> tuple[bool, bool]:
    """Whether first ranks within keys are barriers, and whether fixpoints are KEYED, unless given.

    The choice never depends on the data: other barriers later would make another sketch. First
    ranks and fixpoints stay KEYED wherever some facts could make the rest of the plan safe; a
    fixpoint only if something above it can drop keys, since otherwise the sketches of a barrier are
    no larger and serve more queries."""
    keyed_options = (True, False) if by.has_fixpoints else (False,)
    rank_options = (False, True) if by.has_ranks else (False,)
    choices = [
        (has_barriers, has_keys)
        for has_keys in (keyed_options if keyed is None else (keyed,))
        for has_barriers in (rank_options if ranks is None else (ranks,))
    ]
    if len(choices) > 1:
        for has_barriers, has_keys in choices:
            result = by.of_all_facts(sketched, has_barriers, has_keys)
            is_safe = result.root.status is not Status.UNSAFE
            if is_safe and (keyed is not None or not has_keys or _can_drop_keys(result)):
                return has_barriers, has_keys
    return choices[-1]


def _can_drop_keys(analysis: Analysis) -> bool:
    """Whether something above a KEYED fixpoint can drop all rows of a key."""
    narrowed = {id(node) for node in _narrowed(analysis.nodes[0], is_narrowed=False)}
    pairs = zip(analysis.nodes, analysis.states, strict=True)
    return any(id(node) in narrowed and state.status is Status.KEYED for node, state in pairs)


def _narrowed(plan: p.Plan, *, is_narrowed: bool) -> Iterator[p.Fixpoint]:
    """The fixpoints below something that drops rows."""
    if isinstance(plan, p.Fixpoint):
        if is_narrowed:
            yield plan
        return
    match plan:
        case p.Project() | p.Sort() | p.Distinct() | p.Aggregate() | p.Window():
            pass
        case p.SetOperation(kind=p.SetKind.UNION):
            pass
        case p.Join(kind=kind) if kind in _OUTER:
            pass
        case _:
            is_narrowed = True
    for child in plan.inputs:
        yield from _narrowed(child, is_narrowed=is_narrowed)


def barrier_positions(analysis: Analysis) -> tuple[int, ...]:
    """Nodes that make sketched inputs exact: fixpoints, and top-k except as the last step."""
    last = 0
    while isinstance(analysis.nodes[last], p.Project | p.Sort):
        last += 1
    return tuple(
        position
        for position, (node, state) in enumerate(zip(analysis.nodes, analysis.states, strict=True))
        if state.status is Status.EXACT
        and (
            (isinstance(node, p.Fixpoint) and state.sketched)
            or (
                isinstance(node, p.TopK)
                and position != last
                and analysis.states[position + 1].status is not Status.EXACT
            )
        )
    )


def keyed_groups(plan: p.Plan, sketched: Sketched, by: PlanJudge) -> Iterator[frozenset[AccessId]]:
    """Per fixpoint that can be KEYED for some data, the accesses below it, which then share one
    sketch."""
    for has_rank_barriers in (False, True):
        result = by.of_all_facts(sketched, has_rank_barriers, True)
        for node, state in zip(plan.walk(), result.states, strict=True):
            if isinstance(node, p.Fixpoint) and state.status is Status.KEYED:
                yield state.sketched


class Judged(Struct, frozen=True, eq=False):
    """A node's state with those of all nodes below it."""

    state: SafetyState
    inputs: tuple[Judged, ...] = ()


class Analysis(Struct, frozen=True, dict=True):
    """States of all nodes, in the order of `root.walk()`."""

    nodes: tuple[p.Plan, ...]
    judged: Judged

    @property
    def root(self) -> SafetyState:
        return self.judged.state

    @cached_property
    def states(self) -> tuple[SafetyState, ...]:
        result, pending = [], [self.judged]
        while pending:
            judged = pending.pop()
            result.append(judged.state)
            pending.extend(reversed(judged.inputs))
        return tuple(result)


class _CachedNode(Struct):
    """A node, its constant properties, and the results cached for it."""

    node: p.Plan
    is_at_root: bool
    """Nothing above drops rows."""
    inputs: tuple[_CachedNode, ...]
    accesses: frozenset[AccessId]
    changing: SafetyState | None
    """The state of a node whose values change from run to run."""
    concerning: int = 0
    """The bits of all facts about columns that this node and those below it read."""
    facts: list[tuple[int, Fact]] = field(default_factory=list)
    """For a scan: facts about its columns, each with its bit."""
    columns: dict[int, Columns] = field(default_factory=dict)
    """For a scan: what is known about its columns, by fact bits."""
    judged: dict[tuple[object, ...], Judged] = field(default_factory=dict)
    states: dict[tuple[object, ...], SafetyState] = field(default_factory=dict)
    distinct: dict[tuple[object, ...], list[SafetyState]] = field(default_factory=dict)

    def columns_of(self, known: int) -> Columns:
        """Columns of a scan if the facts `known` are true."""
        assert isinstance(self.node, p.Scan)
        known &= self.concerning
        result = self.columns.get(known)
        if result is None:
            facts = [fact for bit, fact in self.facts if bit & known]
            result = self.columns[known] = scan_columns(self.node, facts)
        return result

    def interned(self, state: SafetyState) -> SafetyState:
        """An equal earlier state, so that nodes above it are not judged again."""
        # Compare what differs most often first.
        rough = (state.status, state.sketched, frozenset(state.keys.items()))
        similar = self.distinct.setdefault(rough, [])
        for known in similar:
            if known == state:
                return known
        similar.append(state)
        return state


class _Request(Struct, frozen=True):
    sketched: Sketched
    """In order of the accesses, so that equal requests give equal keys."""
    known: int
    has_rank_barriers: bool
    has_keyed_fixpoints: bool
    leaves: Mapping[FixpointId, int] = field(default_factory=dict)
    """Inside a step: position of the column that the rows of its fixpoint are KEYED on."""

    def concerning(self, cached: _CachedNode) -> tuple[object, ...]:
        """The part of the request that the states of this node and those below depend on."""
        sketched: tuple[tuple[AccessId, ColumnName], ...] = ()
        if not cached.accesses.isdisjoint(self.sketched):
            sketched = tuple([s for s in self.sketched.items() if s[0] in cached.accesses])
        barriers = (self.has_rank_barriers, self.has_keyed_fixpoints)
        return sketched, self.known & cached.concerning, barriers, tuple(self.leaves.items())


class PlanJudge:
    """Judges many combinations of sketches and facts for one plan, by the rules of
    `safety.transfer`.

    Results are cached, since a query of many candidates would otherwise cost their product: a part
    of the plan is judged again only if the sketches below it differ, or what is known about the
    columns it reads; a node only if the states of its inputs differ. Known facts are a number with
    one bit for each kind of fact about each column, whatever its source, so that one `&` selects
    those that concern a part."""

    def __init__(self, root: p.Plan, wording: Wording) -> None:
        self.nodes = tuple(root.walk())
        self.scans = tuple(node for node in self.nodes if isinstance(node, p.Scan))
        self.accesses = frozenset(scan.access for scan in self.scans)
        self.has_ranks = any(isinstance(n, p.TopK) and n.rank is not None for n in self.nodes)
        self.has_fixpoints = any(isinstance(node, p.Fixpoint) for node in self.nodes)
        self._wording = wording
        self._root = _cached_node(root, is_at_root=True)
        self.last_needed: frozenset[Fact] = frozenset()
        """The assumptions that the last sketch needed; the next probably needs the same."""
        self._readers = _readers(self._root)
        self._bits: dict[tuple[TableName, ColumnName, FactKind], int] = {}

    def of(
        self,
        sketched: Sketched,
        facts: Iterable[Fact],
        has_rank_barriers: bool = False,
        has_keyed_fixpoints: bool = False,
    ) -> Analysis:
        """Judge every node, with these accesses sketched and these facts true. `has_rank_barriers`:
        first ranks are barriers even where they could stay KEYED; `has_keyed_fixpoints`: fixpoints
        stay KEYED where they can."""
        return self.of_known(sketched, self.known(facts), has_rank_barriers, has_keyed_fixpoints)

    def of_known(
        self, sketched: Sketched, known: int, has_rank_barriers: bool, has_keyed_fixpoints: bool
    ) -> Analysis:
        """Like `of`, with the facts as bits of `known`."""
        ordered = dict(sorted(sketched.items()))
        request = _Request(ordered, known, has_rank_barriers, has_keyed_fixpoints)
        return Analysis(self.nodes, self._judged(self._root, request))

    def of_all_facts(
        self, sketched: Sketched, has_rank_barriers: bool, has_keyed_fixpoints: bool
    ) -> Analysis:
        """Judge every node as if every possible fact about a column were true."""
        return self.of_known(sketched, self._all_known, has_rank_barriers, has_keyed_fixpoints)

    def known(self, facts: Iterable[Fact]) -> int:
        """The bits of these facts; facts about columns that the plan does not read have none."""
        known = 0
        for fact in facts:
            bit = self._bits.get((fact.table, fact.column.lower(), fact.kind))
            known |= self._assigned_bit(fact) if bit is None else bit
        return known

    def _assigned_bit(self, fact: Fact) -> int:
        """Assign a bit to a new fact; 0 if nothing reads its column."""
        column = (fact.table, fact.column.lower())
        paths = self._readers.get(column, ())
        bit = 1 << len(self._bits) if paths else 0
        self._bits[*column, fact.kind] = bit
        for path in paths:
            path[-1].facts.append((bit, fact))
            for cached in path:
                cached.concerning |= bit
        return bit

    @cached_property
    def _all_known(self) -> int:
        return self.known(
            Fact(scan.table, attribute.name, kind, FactSource.PREDICATE)
            for scan in self.scans
            for attribute in scan.attributes
            for kind in FactKind
        )

    def _judged(self, cached: _CachedNode, request: _Request) -> Judged:
        key = request.concerning(cached)
        judged = cached.judged.get(key)
        if judged is None and request.has_keyed_fixpoints and isinstance(cached.node, p.Fixpoint):
            judged = self._keyed(cached.node, cached, request)
        if judged is None:
            inputs = tuple([self._judged(part, request) for part in cached.inputs])
            judged = Judged(self._state(cached, inputs, request), inputs)
        cached.judged[key] = judged
        return judged

    def _keyed(self, node: p.Fixpoint, cached: _CachedNode, request: _Request) -> Judged | None:
        """The fixpoint as KEYED on one of its columns; None if on none."""
        base = self._judged(cached.inputs[0], request)
        for key in key_candidates(node, base.state, request.sketched):
            leaves = {**request.leaves, node.id: key}
            step = self._judged(cached.inputs[1], replace(request, leaves=leaves))
            state = keyed_fixpoint(node, key, base.state, step.state)
            if state is not None:
                return Judged(cached.interned(state), (base, step))
        return None

    def _state(
        self, cached: _CachedNode, inputs: tuple[Judged, ...], request: _Request
    ) -> SafetyState:
        node = cached.node
        if cached.changing is not None:
            return cached.changing
        if isinstance(node, p.Scan):
            name = request.sketched.get(node.access)
            return cached.interned(scan_state(node, name, cached.columns_of(request.known)))
        if isinstance(node, p.Recursive):
            return cached.interned(leaf(node, request.leaves.get(node.fixpoint)))
        below = [part.state for part in inputs]
        unsafe = next((result for result in below if result.status is Status.UNSAFE), None)
        state = self._by_inputs(cached, below, request) if unsafe is None else unsafe
        if cached.is_at_root and state.status is Status.UNSAFE:
            # It depends on more than the inputs' states, so it is not cached by them.
            ranked = self._ranked(node, inputs)
            return state if ranked is None else cached.interned(ranked)
        return state

    def _by_inputs(
        self, cached: _CachedNode, inputs: list[SafetyState], request: _Request
    ) -> SafetyState:
        # States live as long as the cached node, so no two of them have the same `id`.
        key = (*map(id, inputs), request.has_rank_barriers)
        state = cached.states.get(key)
        if state is None:
            barriers = request.has_rank_barriers
            state = state_of(cached.node, inputs, self._wording, has_rank_barriers=barriers)
            state = cached.states[key] = cached.interned(state)
        return state

    def _ranked(self, node: p.Plan, inputs: tuple[Judged, ...]) -> SafetyState | None:
        """`rank <= k` over a window, judged from the window's input; None for anything else.
        Projections in between work row by row, so the filter is moved below them."""
        if not isinstance(node, p.Select):
            return None
        predicate, below, judged = node.predicate, node.child, inputs[0]
        between: list[p.Project] = []
        while isinstance(below, p.Project):
            between.append(below)
            predicate = predicate.substitute({o.attribute.id: o.expr for o in below.outputs})
            below, judged = below.child, judged.inputs[0]
        if not isinstance(below, p.Window):
            return None
        child = judged.inputs[0].state
        if child.status in (Status.UNSAFE, Status.EXACT) or child.ties is not None:
            return None
        parts: tuple[p.Plan, ...] = (node, below, *between)
        if any(changing_state(part) is not None for part in parts):
            return None
        state = first_rows_per_partition(predicate, below, child, self._wording)
        if state is None or state.status is Status.UNSAFE:
            return state
        for part in reversed(between):
            state = project_state(part, state)
        return state


def _cached_node(node: p.Plan, *, is_at_root: bool) -> _CachedNode:
    is_below_at_root = is_at_root and isinstance(node, p.Project | p.Sort)
    inputs = tuple(_cached_node(part, is_at_root=is_below_at_root) for part in node.inputs)
    accesses = frozenset[AccessId]().union(*(part.accesses for part in inputs))
    if isinstance(node, p.Scan):
        accesses = frozenset({node.access})
    return _CachedNode(node, is_at_root, inputs, accesses, changing_state(node))


_ReadersByColumn = dict[tuple[TableName, ColumnName], list[tuple[_CachedNode, ...]]]


def _readers(root: _CachedNode) -> _ReadersByColumn:
    """By table and column in lower case, the paths from the root to each scan that reads it."""
    result: _ReadersByColumn = {}
    pending: list[tuple[_CachedNode, ...]] = [(root,)]
    while pending:
        path = pending.pop()
        node = path[-1].node
        if isinstance(node, p.Scan):
            for name in {attribute.name.lower() for attribute in node.attributes}:
                result.setdefault((node.table, name), []).append(path)
        pending.extend((*path, part) for part in path[-1].inputs)
    return result


class Judges:
    """The judges of a query's plans, one per plan."""

    def __init__(self) -> None:
        self._known: list[tuple[p.Plan, PlanJudge]] = []

    def of(self, query: p.Query) -> PlanJudge:
        for root, judge in self._known:
            if root is query.root:
                return judge
        new = PlanJudge(query.root, Wording.of(query.sql, query.root))
        self._known.append((query.root, new))
        return new


_CUT = (
    "truncate it to the hour or the day, for example `date_trunc('hour', now())` or "
    "`current_date`; impctl can maintain sketches over that"
)


class Verdict(Struct, frozen=True):
    """Whether the sketches are safe, and how capture and maintenance may use them. Only a safe
    verdict says what to capture and maintain.

    - `safe`: for every range partition on these attributes and all sketches that cover the query's
      provenance, the query over the sketched tables returns its answer over the tables. The test is
      sound, not complete: unsure is unsafe.
    - `keyed`: per access, the root's output columns that equal its partition attribute.
    - `key_columns`: for an Aggregate at that position of `root.walk()`, per access the grouping
      output that equals its partition attribute, so that all rows of a group are in one range. For
      a KEYED fixpoint, the column that all accesses below share, with one sketch.
    - `root_keyed`: touch maintenance is allowed.
    - `facts`: everything it rests on; `assumptions`: those from statistics.
    - `barrier_positions`: nodes whose rows' lineage belongs to the sketch even if the rows are
      dropped above: fixpoints that are not KEYED, and top-k that are not the last step, with ties
      at the last rank. `has_rank_barriers`: first ranks within keys too; `has_keyed_fixpoints`: all
      fixpoints that can be KEYED are.
    - `ties`: why several answers are correct, if so."""

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
        """This verdict; InvariantError if it is unsafe, since its barriers are unknown then."""
        if self.safe:
            return self
        raise InvariantError(
            "The contents of a sketch were requested for a plan without a safe sketch: "
            f"{self.reason}"
        )

    @property
    def barriers(self) -> int:
        """Number of nodes whose lineage belongs to the sketch besides the result's."""
        return len(self.barrier_positions)


def check_safety(
    query: p.Query,
    sketched: Sketched,
    facts: Collection[Fact],
    *,
    has_rank_barriers: bool | None = None,
    has_keyed_fixpoints: bool | None = None,
    judges: Judges | None = None,
) -> Verdict:
    """Judge sketches of `sketched[access]` for all these accesses together. `has_rank_barriers` and
    `has_keyed_fixpoints` come from an earlier verdict; see `chosen_barriers`. `judges` cache
    results for further sketches of the same plans."""
    by = (Judges() if judges is None else judges).of(query)
    unknown = [access for access in sketched if access not in by.accesses]
    if unknown:
        raise UsageError(
            f"The query has no table access `{unknown[0]}`",
            code="unknown_access",
            hint=f"the query's accesses are: {', '.join(sorted(by.accesses))}",
        )
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
    barriers = chosen_barriers(sketched, by, has_rank_barriers, has_keyed_fixpoints)
    judge = _SketchJudge(query, sketched, barriers, by)
    # Facts only help, so what is unsafe with all of them is unsafe with the sure ones.
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
    """Everything that a plan is judged by except the facts. `barriers`: see `chosen_barriers`."""

    query: p.Query
    sketched: Sketched
    barriers: tuple[bool, bool]
    by: PlanJudge

    def of(self, facts: Collection[Fact]) -> Analysis:
        return self.by.of(self.sketched, facts, *self.barriers)

    def is_safe(self, known: int) -> bool:
        """Whether the facts with these bits suffice."""
        analysis = self.by.of_known(self.sketched, known, *self.barriers)
        return analysis.root.status is not Status.UNSAFE


def judged_by(
    verdict: Verdict, query: p.Query, sketched: Sketched, judges: Judges | None = None
) -> Verdict:
    """The verdict on another plan of the same rows, by the facts of the first verdict. It may be
    unsafe, for example if the plan lacks the column that keeps groups whole. InvariantError if the
    first verdict is unsafe."""
    return check_safety(
        query,
        sketched,
        verdict.required().facts,
        has_rank_barriers=verdict.has_rank_barriers,
        has_keyed_fixpoints=verdict.has_keyed_fixpoints,
        judges=judges,
    )


def check_with_core(
    query: p.Query,
    core: p.Plan,
    sketched: Sketched,
    facts: Collection[Fact],
    judges: Judges | None = None,
) -> Verdict:
    """Like `check_safety`, and also unsafe if the core, by which a sketch is maintained, is not
    proved safe. `core`: a plan of the same rows without output-only columns
    (`rules.optimize.core_of`)."""
    verdict = check_safety(query, sketched, facts, judges=judges)
    if not verdict.safe or core == query.root:
        return verdict
    core_verdict = verdict_of_core(verdict, query, core, sketched, judges)
    return verdict if core_verdict.safe else core_verdict


def verdict_of_core(
    verdict: Verdict, query: p.Query, core: p.Plan, sketched: Sketched, judges: Judges | None = None
) -> Verdict:
    """The verdict on the core of an accepted query."""
    core_verdict = judged_by(verdict, replace(query, root=core), sketched, judges)
    if core_verdict.safe:
        return core_verdict
    return replace(
        core_verdict, reason=f"the contents of a sketch cannot be determined: {core_verdict.reason}"
    )


def carried_verdict(verdict: Verdict, query: p.Query, sketched: Sketched) -> Verdict:
    """The safe verdict on another plan of the same rows, by the facts of the first verdict.
    InvariantError if either is unsafe."""
    return judged_by(verdict, query, sketched).required()


def _needed_assumptions(
    judge: _SketchJudge, sure: Collection[Fact], facts: Collection[Fact]
) -> tuple[Fact, ...]:
    """A minimal set of the statistics facts that proves safety: facts are dropped in order if the
    others suffice. Many sketches of a plan need the same set, so the last one is tried first."""
    base = judge.by.known(sure)
    tried = [
        (fact, bit)
        for fact in dict.fromkeys(facts)
        if fact.source is FactSource.STATISTICS and (bit := judge.by.known((fact,)))
    ]
    if not tried:
        return ()
    needed = [item for item in tried if item[0] in judge.by.last_needed]
    if not _is_minimal(judge, needed, tried, base):
        needed = _minimal(judge, tried, base)
    result = tuple(fact for fact, _ in needed)
    judge.by.last_needed = frozenset(result)
    return result


def _is_minimal(judge: _SketchJudge, needed: _Tried, tried: _Tried, base: int) -> bool:
    """Whether `_minimal` would return `needed`."""
    if not judge.is_safe(base | _bits_of(needed)):
        return False
    for index, item in enumerate(needed):
        later = tried[tried.index(item) + 1 :]
        if judge.is_safe(base | _bits_of(needed[:index]) | _bits_of(later)):
            return False
    return True


def _minimal(judge: _SketchJudge, tried: _Tried, known: int) -> _Tried:
    """Those of `tried` that are needed besides `known`; many are dropped at once."""
    if judge.is_safe(known):
        return []
    if len(tried) == 1:
        return tried
    first, second = tried[: len(tried) // 2], tried[len(tried) // 2 :]
    left = _minimal(judge, first, known | _bits_of(second))
    return [*left, *_minimal(judge, second, known | _bits_of(left))]


_Tried = list[tuple[Fact, int]]


def _bits_of(facts: _Tried) -> int:
    return reduce(or_, (bit for _, bit in facts), 0)


def _accepted(judge: _SketchJudge, analysis: Analysis, facts: Collection[Fact]) -> Verdict:
    root = analysis.root
    assumed = tuple(fact for fact in facts if fact.source is FactSource.STATISTICS)
    return Verdict(
        True,
        root.status,
        _why_safe(analysis, assumed),
        keyed=root.keys,
        key_columns=_key_columns(analysis),
        root_keyed=_is_root_keyed(judge.query.root, analysis, judge.sketched),
        facts=tuple(facts),
        has_rank_barriers=judge.barriers[0],
        has_keyed_fixpoints=judge.barriers[1],
        barrier_positions=barrier_positions(analysis),
        ties=root.ties,
    )


def _why_safe(analysis: Analysis, assumed: tuple[Fact, ...]) -> str:
    """Why the sketches are safe, as one sentence."""
    if not analysis.root.sketched:
        return "no table has a sketch"
    keyed = any(
        isinstance(node, p.Aggregate) and state.status is Status.KEYED
        for node, state in zip(analysis.nodes, analysis.states, strict=True)
    )
    if keyed:
        return "each group lies in one range, because the query groups by this column"
    facts = dict.fromkeys(f"`{fact.table}.{fact.column}` is {fact.kind}" for fact in assumed)
    reason = "skipped rows cannot affect the result"
    return f"{reason} while {', '.join(facts)}" if facts else reason


def _key_columns(analysis: Analysis) -> dict[int, dict[AccessId, AttributeId]]:
    keyed: dict[int, dict[AccessId, AttributeId]] = {}
    for position, node in enumerate(analysis.nodes):
        if isinstance(node, p.Aggregate):
            # Nodes are in preorder: a node's first input follows it.
            keys = grouped_keys(node, analysis.states[position + 1])
            if keys:
                keyed[position] = {access: min(columns) for access, columns in keys.items()}
        elif isinstance(node, p.Fixpoint) and analysis.states[position].status is Status.KEYED:
            keys = analysis.states[position].keys
            keyed[position] = {access: min(columns) for access, columns in keys.items()}
    return keyed


def _is_root_keyed(root: p.Plan, analysis: Analysis, sketched: Sketched) -> bool:
    scans = root.scans
    tables = [scan.table for scan in scans if scan.access in sketched]
    if len(tables) != 1 or sum(scan.table == tables[0] for scan in scans) != 1:
        return False
    position = 0
    while analysis.states[position].status is not Status.KEYED:
        if not isinstance(analysis.nodes[position], p.Project | p.Sort | p.Aggregate | p.Distinct):
            return False
        position += 1
    return True


def states_of(verdict: Verdict, query: p.Query, sketched: Sketched) -> tuple[SafetyState, ...]:
    """The states of all nodes, in the order of `walk()`, as an accepted query was judged."""
    result = verdict.required()
    barriers = (result.has_rank_barriers, result.has_keyed_fixpoints)
    return Judges().of(query).of(sketched, result.facts, *barriers).states


def node_states(query: p.Query, sketched: Sketched, facts: Collection[Fact]) -> Analysis:
    """The states of all nodes without rank barriers or KEYED fixpoints."""
    return Judges().of(query).of(sketched, facts)


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
    **dict.fromkeys(("curdate", "current_date", "current_time", "current_timestamp"), _MOMENT),
    **dict.fromkeys(("localtime", "localtimestamp", "now", "unix_timestamp"), _MOMENT),
}
"""Hints by the function whose result differs from run to run."""
_OTHER_RUNS = "remove it from the query, or compute it from the query's result"
_WITHOUT = "`sketch: none` keeps the query in the file without a sketch"


def hint_of(query: p.Query, verdict: Verdict, would_serve: Sequence[str]) -> str:
    """What to do about a query without a safe sketch; `would_serve` are columns (`table.column`)
    that are safe but no candidates."""
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


def _is_of_window(query: p.Query, verdict: Verdict) -> bool:
    """Whether a window function is the obstacle."""
    return verdict.span is not None and any(
        verdict.span in (node.span, *(call.span for call in node.calls))
        for node in query.root.walk()
        if isinstance(node, p.Window)
    )


def _added_text(query: p.Query) -> str:
    """The first SUM or AVG of text, as the query has it; empty without one."""
    for node in query.root.walk():
        for output in node.aggregates if isinstance(node, p.Aggregate) else ():
            call = output.call
            is_sum = call.function in ("sum", "avg") and len(call.arguments) == 1
            result = type_of(call.arguments[0]) if is_sum else None
            if result is not None and result.kind is Kind.STRING:
                span = call.span
                return f"`{query.sql[span.start : span.end]}`" if span else f"`{call.function}`"
    return ""
