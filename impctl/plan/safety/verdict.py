"""Whether sketches of chosen attributes are safe for a query, and why not.

Law: `safe` means that for every range partition on these attributes and all sketches that cover the
query's provenance, the query over the sketched tables gives the answer it gives over the tables.
The test is sound, not complete: unsure is unsafe. Where a top-k is not the last step, the
provenance includes its first rows, ties at the last place too (`barrier_positions`). There is one
judgement of facts: a plan with the same rows is judged by what the first one rests on (`carried`),
and only a safe verdict tells what to capture and maintain.
Out of scope: which attribute to take (`plan.safety.choose`), capturing (`capture`, `maintain`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field, replace
from typing import Self

from impctl.errors import InvariantError, UsageError
from impctl.expr.nodes import Span
from impctl.plan.functions import ORDER_DEPENDENT
from impctl.plan.nodes import (
    Aggregate,
    Distinct,
    Fixpoint,
    Plan,
    Project,
    Query,
    Sort,
    scans_of,
)
from impctl.plan.safety.barriers import barrier_positions, chosen_barriers
from impctl.plan.safety.facts import Fact, FactKind, FactSource
from impctl.plan.safety.grouping import grouped_keys
from impctl.plan.safety.judging import Analysis, Judges, PlanJudge
from impctl.plan.safety.status import NodeState, Refusal, Status
from impctl.types import AccessId, AttributeId, ColumnName
from impctl.values import dataclass

__all__ = [
    "Fact",
    "FactKind",
    "FactSource",
    "Refusal",
    "Status",
    "Verdict",
    "carried",
    "check_kept",
    "check_safety",
    "node_states",
    "of_core",
    "states_of",
]


_CUT = (
    "truncate it to the hour or the day, for example `date_trunc('hour', now())` or "
    "`current_date`; impctl can maintain sketches over that"
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the sketches are safe, and what capture and maintenance may make of it.

    `keyed`: per access, the root's output columns that equal its partition attribute.
    `key_columns`: for an Aggregate at that position of `nodes_of(root)`, per access the grouping
    output that equals its partition attribute: all rows of a group lie in one fragment. For a
    fixpoint that is KEYED the column that all accesses below have in common, and one sketch.
    `root_keyed`: touch maintenance is allowed.
    `facts`: all that it rests on; `assumptions`: those of them that are from statistics and must be
    checked again for every later version. `barrier_positions`: nodes whose rows' lineage belongs to
    the sketch even if the rows are dropped above, among them first ranks within keys where
    `has_rank_barriers`, and no fixpoints that are KEYED, as where `has_keyed_fixpoints` those are
    that can be. `ties`: why several answers are right, if so.
    """

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
        """This verdict; InvariantError where it is unsafe, which tells nothing of barriers."""
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
    """Judge sketches of `sketched[access]` for all these accesses together.

    `has_rank_barriers` and `has_keyed_fixpoints` as of a verdict before; by themselves, as
    `plan.safety.barriers` chooses.
    `judges` remember what they found, for further sketches of the same plans.
    """
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
    judge = _Judge(query, sketched, *barriers, by)
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


@dataclass(frozen=True, slots=True)
class _Judge:
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
        """Whether the facts that the plan's judge tells by these bits are enough."""
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
    """The verdict on another plan of the same rows, by the facts of the first one.

    It may be unsafe: a plan without the column that keeps groups whole has less to show for it.
    InvariantError where the first one is unsafe.
    """
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
    """`check_safety`, and unsafe too where the core, by which a sketch is kept, does not show it.

    `core`: a plan of the same rows without the columns that only go out (`rules.core_of`).
    """
    verdict = check_safety(query, sketched, facts, judges=judges)
    if not verdict.safe or core == query.root:
        return verdict
    kept = of_core(verdict, query, core, sketched, judges)
    return verdict if kept.safe else kept


def of_core(
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


def carried(verdict: Verdict, query: Query, sketched: Mapping[AccessId, ColumnName]) -> Verdict:
    """The verdict on another plan of the same rows, resting on the facts of the first one.

    InvariantError where either is unsafe: with fewer facts than it was accepted with, a plan seems
    to have no barriers.
    """
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
    judge: _Judge, sure: Collection[Fact], facts: Collection[Fact]
) -> tuple[Fact, ...]:
    """A smallest set (none can be left out) of the statistics facts that still proves safety.

    Of several such sets the one without the earliest facts: each is left out in turn if the others
    are enough. Many sketches of a plan need the same ones, so those found last are tried first.
    """
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


def _is_smallest(judge: _Judge, needed: _Tried, tried: _Tried, base: int) -> bool:
    """Whether this is what `_smallest` finds of the facts tried."""
    if not judge.is_safe(base | _together(needed)):
        return False
    for place, item in enumerate(needed):
        later = tried[tried.index(item) + 1 :]
        if judge.is_safe(base | _together(needed[:place]) | _together(later)):
            return False
    return True


def _smallest(judge: _Judge, tried: _Tried, kept: int) -> _Tried:
    """What is left of the facts tried while these are kept; many are dropped at once."""
    if judge.is_safe(kept):
        return []
    if len(tried) == 1:
        return tried
    first, second = tried[: len(tried) // 2], tried[len(tried) // 2 :]
    left = _smallest(judge, first, kept | _together(second))
    return [*left, *_smallest(judge, second, kept | _together(left))]


_Tried = list[tuple[Fact, int]]
"""Facts with their bits."""


def _together(facts: _Tried) -> int:
    known = 0
    for _, bit in facts:
        known |= bit
    return known


def _accepted(judge: _Judge, analysis: Analysis, facts: Collection[Fact]) -> Verdict:
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
) -> tuple[NodeState, ...]:
    """The states of all nodes, in the order of `nodes_of`, as an accepted query was judged."""
    result = verdict.required()
    barriers = (result.has_rank_barriers, result.has_keyed_fixpoints)
    judge = _Judge(query, sketched, *barriers, Judges().of(query))
    return judge.of(result.facts).states


def node_states(
    query: Query, sketched: Mapping[AccessId, ColumnName], facts: Collection[Fact]
) -> Analysis:
    """The states behind a verdict, node by node, for `explain` and tests."""
    return Judges().of(query).of(sketched, facts)
