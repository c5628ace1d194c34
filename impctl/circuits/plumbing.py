"""The plumbing of a circuit under construction: operators, wires, names, and the usual pieces.

Law: an operator is put after those it reads, under a name no other has; what a piece gives is a
flow that tells its columns and accesses. What is no operator of its own is put together from
others: DISTINCT is a grouping without functions.
Out of scope: which plan node becomes which operators (`circuits.build`, `joins`, `sets`,
`first_rows`, which all stand on this).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from impctl.circuits.flows import (
    BlockedError,
    Column,
    Flow,
    Source,
    check,
    check_condition,
)
from impctl.circuits.reading.groups import chosen_groups
from impctl.circuits.reading.readable import DistantJoin
from impctl.circuits.refills import (
    KEEP_ALL,
    ONE_GROUP,
    OVER_MORE,
    BufferChoice,
    Buffers,
    Prefix,
    Refilled,
    prefix_of,
)
from impctl.circuits.strategy import AsRecorded, Chooser, SideChoice
from impctl.data.schema import DOUBLE
from impctl.engine import linear
from impctl.engine.aggregate import Aggregate
from impctl.engine.exact_sums import Parted, Rejoined, Sure
from impctl.engine.fixpoint.fixpoint import Fixpoint as FixpointOperator
from impctl.engine.linear import Branch, Union
from impctl.engine.operator import Operator
from impctl.expr.nodes import Call, Expr, columns_of, walk
from impctl.plan.nodes import Aggregate as PlanAggregate
from impctl.plan.nodes import Attribute, ComputedColumn, Distinct, Plan, Project, Select, TopK
from impctl.types import AccessId, AttributeId, FixpointId
from impctl.values import dataclass

_LEFT_BEHIND = "the engine does not support using a sum of doubles above a LIMIT"


def bounds_of(flow: Flow) -> dict[AttributeId, AttributeId]:
    """The name of its bound's column for each column that has bounds."""
    return {name: f"{name}/bound" for name, _ in flow.columns if name in flow.approximate}


@dataclass(frozen=True, slots=True)
class Opened:
    """A fixpoint that is sketched for the answer alone: its operator, its rows, and the accesses
    below it; `numbers` is the access that the numbers of its rows stand for."""

    node: Plan
    name: str
    numbers: AccessId
    operator: FixpointOperator
    rows: Flow
    accesses: tuple[AccessId, ...]


class Plumbing(ABC):
    """Collects operators; each after those it reads."""

    def __init__(
        self,
        chooser: Chooser | None = None,
        *,
        barriers: Collection[int] | None = None,
        buffers: Buffers = KEEP_ALL,
        has_doubts: bool = True,
    ) -> None:
        """`barriers` are identities (`id`) of top-k whose rows all count (default: of every one).

        `chooser` decides which sides of joins are kept (default: all); `buffers` bound what MIN,
        MAX and top-k keep, where they can be refilled. Without `has_doubts` first rows
        that may turn out to be unsure are refused in advance.
        """
        self.chooser: Chooser = AsRecorded() if chooser is None else chooser
        self.sides: list[SideChoice] = []
        self.distant: list[DistantJoin] = []
        self.groupings: list[tuple[Operator, SideChoice]] = []
        self.is_passed = False
        """Whether partial aggregates may fill what is built."""
        self.operators: list[Operator] = []
        self.inputs: list[tuple[int, ...]] = []
        self.sources: list[Source] = []
        self._barrier_ids = None if barriers is None else frozenset(barriers)
        self.barriers: list[Flow] = []
        self.opened: list[Opened] = []
        """Fixpoints whose rows are to be followed back, each after those below it."""
        self.taking_part: dict[int, Flow] = {}
        """The groups of a join tree whose rows count, by the identity (`id`) of a top-k that gives
        fewer."""
        self.buffers = buffers
        self.has_doubts = has_doubts
        self.refills: list[Refilled] = []
        self.buffered_pieces: dict[str, BufferChoice] = {}
        """What is kept of first rows and extremes, by the names of their operators."""
        self.keeps_all = False
        self.has_answer = False
        """Whether the rows at the end are asked for with their values."""
        self.given: Mapping[FixpointId, Flow] = {}
        """What the leaves of a step stand for, where it is a step that is built."""
        self.plan: Plan | None = None
        """The whole plan, where that is what is built."""
        self.prefix = ""
        """What all names begin with."""
        self._named: dict[str, int] = {}

    @abstractmethod
    def build(self, plan: Plan, *, must_be_sure: bool) -> Flow:
        """The operators of a node and everything below it."""

    @abstractmethod
    def grouped(self, node: PlanAggregate, below: Flow, *, must_be_sure: bool) -> Flow:
        """The operators of a grouping over rows that are built already."""

    def put(self, operator: Operator, *inputs: Flow) -> int:
        """Append an operator; its position."""
        self.operators.append(operator)
        self.inputs.append(tuple(flow.at for flow in inputs))
        return len(self.operators) - 1

    def name(self, kind: str) -> str:
        """A name no other operator of the circuit has."""
        number = self._named.get(kind, 0)
        self._named[kind] = number + 1
        return f"{self.prefix}{kind}{number}"

    def buffered(
        self, flow: Flow, name: str, *, is_grouped: bool, wanted: int | None = None
    ) -> int | None:
        """How much an operator of this name over this flow keeps, of each group or of all; None is
        all. So many first rows are `wanted`, or values without."""
        prefix, size, pinned = self._prefix(flow), None, OVER_MORE
        if prefix is not None:
            size = self.buffers.size_of(name, is_grouped=is_grouped)
            pinned = "" if is_grouped else ONE_GROUP
        origin = None if prefix is None else prefix.origin
        tables = (origin.table,) if isinstance(origin, Source) else ()
        self.buffered_pieces[name] = BufferChoice(
            name, tables, size, wanted or 1, pinned, is_values=wanted is None
        )
        return size

    def refill(self, operator: Operator, flow: Flow, keys: Sequence[AttributeId]) -> None:
        """Note that the operator, over this flow, can run out of rows."""
        prefix = self._prefix(flow)
        assert prefix is not None, "only what can be refilled is bounded"
        result = Refilled(operator, prefix, tuple(keys), len(flow.accesses))
        result.read_from_groups()
        self.refills.append(result)

    def _prefix(self, flow: Flow) -> Prefix | None:
        return prefix_of(self.operators, self.inputs, self.sources, flow)

    def is_barrier(self, node: TopK) -> bool:
        """Whether all first rows belong to the sketch, used above or not."""
        return self._barrier_ids is None or id(node) in self._barrier_ids

    def drop_unread(self) -> None:
        """Forget operators and sources that the last operator does not depend on.

        Above the last barrier of every access, nothing can change a sketch.
        """
        read = {len(self.operators) - 1}
        for at in reversed(range(len(self.operators))):
            if at in read:
                read.update(self.inputs[at])
        kept = [at for at in range(len(self.operators)) if at in read]
        sources = [at for at in range(len(self.sources)) if -1 - at in read]
        moved = {old: new for new, old in enumerate(kept)}
        moved |= {-1 - old: -1 - new for new, old in enumerate(sources)}
        self.operators = [self.operators[at] for at in kept]
        self.inputs = [tuple(moved[wire] for wire in self.inputs[at]) for at in kept]
        self.sources = [self.sources[at] for at in sources]
        names = {keeper.name for op in self.operators for keeper in op.arrangements()}
        # The rows of a distant side are no state, and its filter has a name of its own.
        names |= {side.name for op in self.operators for side in op.reads}
        self.sides = [choice for choice in self.sides if choice.side in names]
        kept_ids = {id(operator) for operator in self.operators}
        self.distant = [result for result in self.distant if id(result.operator) in kept_ids]
        self.groupings = [grouping for grouping in self.groupings if id(grouping[0]) in kept_ids]
        self.refills = [refill for refill in self.refills if id(refill.operator) in kept_ids]
        names = {name.partition(".")[0] for name in names}
        self.buffered_pieces = {n: one for n, one in self.buffered_pieces.items() if n in names}

    def select(self, flow: Flow, predicate: Expr, node: Plan, *, must_be_sure: bool) -> Flow:
        """The rows for which the predicate is true, or too close to call where that is sound."""
        if not columns_of(predicate) <= flow.ids:
            raise BlockedError(_LEFT_BEHIND, node.span)
        check_condition(predicate, node.span)
        at = self.put(linear.Select(predicate, must_be_sure=must_be_sure), flow)
        plan, computed = (
            None if rows is None else Select(rows, predicate) for rows in (flow.plan, flow.computed)
        )
        return replace(flow, at=at, plan=plan, computed=computed)

    def project(
        self,
        flow: Flow,
        outputs: Sequence[tuple[AttributeId, Expr]],
        columns: tuple[Column, ...],
        node: Plan,
    ) -> Flow:
        """Computed columns; BlockedError where one is of a column that did not come this far."""
        inexact, whole = set(), set()
        for name, expr in outputs:
            if not columns_of(expr) <= flow.ids:
                raise BlockedError(_LEFT_BEHIND, node.span)
            check(expr, node.span)
            unsure = columns_of(expr) & flow.approximate
            if unsure:
                inexact.add(name)
            if unsure and unsure <= flow.whole and not _may_round(expr):
                whole.add(name)
        at = self.put(linear.Project(outputs), flow)
        plan, computed = (
            None if rows is None else _projected(rows, outputs, columns)
            for rows in (flow.plan, flow.computed)
        )
        bounds = (frozenset(inexact), plan, frozenset(whole))
        return Flow(at, columns, flow.accesses, *bounds, computed=computed)

    def sure(self, flow: Flow, names: Collection[AttributeId] | None = None) -> Flow:
        """The flow with these columns (default: all) exact, which is found at every step."""
        wanted = flow.approximate & flow.ids
        wanted = wanted if names is None else wanted & frozenset(names)
        if not wanted:
            return flow
        left = flow.approximate - wanted
        at = self.put(Sure(wanted), flow)
        return Flow(at, flow.columns, flow.accesses, left, whole=flow.whole - wanted)

    def parted(self, flow: Flow) -> tuple[Flow, dict[AttributeId, AttributeId]]:
        """The flow with error bounds as columns, which state can hold, and their names."""
        bounds = bounds_of(flow)
        if not bounds:
            return flow, bounds
        columns = (*flow.columns, *((bound, DOUBLE) for bound in bounds.values()))
        return Flow(self.put(Parted(bounds), flow), columns, flow.accesses), bounds

    def rejoined(
        self,
        flow: Flow,
        bounds: Mapping[AttributeId, AttributeId],
        whole: frozenset[AttributeId] = frozenset(),
    ) -> Flow:
        """The flow with these columns as bounds again; `whole` as of the flows before."""
        if not bounds:
            return flow
        gone = set(bounds.values())
        columns = tuple(column for column in flow.columns if column[0] not in gone)
        at = self.put(Rejoined(bounds), flow)
        return Flow(at, columns, flow.accesses, frozenset(bounds), whole=whole & bounds.keys())

    def distinct(self, flow: Flow, columns: tuple[Column, ...], node: Plan) -> Flow:
        """Each row once, with the fragments of all its copies; no column has bounds."""
        _check_columns(flow, columns, node)
        flow = self.sure(flow)
        made = partial(
            Aggregate,
            self.name("distinct"),
            columns,
            (),
            accesses=len(flow.accesses),
            is_keyed=False,
            is_distinct=True,
        )
        at, rows = self.put_groups(replace(flow, columns=columns), made(), made)
        # What the rows below have beside these columns is computed of them.
        computed = None if rows is None else Distinct(rows)
        return Flow(at, columns, flow.accesses, computed=computed)

    def put_groups(
        self, flow: Flow, kept: Aggregate, made: Callable[[], Aggregate]
    ) -> tuple[int, Plan | None]:
        """Append a grouping over this flow, kept or read; its position, and the plan of the rows
        below where its groups can be read.

        `made` gives it anew, with all values of its extremes.
        """
        result = chosen_groups(self.chooser, flow, kept, made, is_passed=self.is_passed)
        self.groupings.append((result.operator, result.choice))
        if result.distant is not None:
            self.distant.append(result.distant)
        at = self.put(result.operator, flow)
        return at, flow.rows if result.choice.readers else None

    def union(
        self,
        flows: Sequence[Flow],
        columns: tuple[Column, ...],
        accesses: tuple[AccessId, ...],
        *,
        signs: Sequence[int] | None = None,
    ) -> Flow:
        """The sum of flows that all have these columns, their tags by access."""
        for flow in flows:
            _check_columns(flow, columns)
        branches = []
        for flow, sign in zip(flows, signs or [1] * len(flows), strict=True):
            place = {access: at for at, access in enumerate(flow.accesses)}
            tags = tuple(place.get(access) for access in accesses)
            branches.append(Branch(tuple((name, name) for name, _ in columns), tags, sign))
        inexact = frozenset().union(*(flow.approximate for flow in flows))
        whole = inexact.difference(*(flow.approximate - flow.whole for flow in flows))
        at = self.put(Union(branches), *flows)
        return Flow(at, columns, accesses, inexact, whole=whole)


def _check_columns(flow: Flow, columns: Sequence[Column], node: Plan | None = None) -> None:
    """BlockedError where one did not come this far."""
    if not {name for name, _ in columns} <= flow.ids:
        raise BlockedError(_LEFT_BEHIND, None if node is None else node.span)


def _may_round(expr: Expr) -> bool:
    """Whether what is computed of an exact value may have a bound: doubles rounded at a tie."""
    return any(isinstance(part, Call) for part in walk(expr))


def _projected(
    plan: Plan, outputs: Sequence[tuple[AttributeId, Expr]], columns: Sequence[Column]
) -> Project:
    kinds = dict(columns)
    named = [ComputedColumn(Attribute(name, name, kinds[name]), expr) for name, expr in outputs]
    return Project(plan, tuple(named))
