"""The operators and flows of a circuit under construction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from impctl.compile.buffers import (
    KEEP_ALL,
    ONE_GROUP,
    OVER_MORE,
    BufferChoice,
    Buffers,
    Refilled,
    prefix_of,
)
from impctl.compile.flows import (
    COMPUTED,
    BlockedError,
    Chooser,
    Column,
    DistantJoin,
    Flow,
    SideChoice,
    SideFacts,
    Source,
    StoredChoices,
    Strategy,
    check,
    check_condition,
    read_by_engine,
    row_bytes,
    tables_of,
)
from impctl.data.schema import DOUBLE
from impctl.engine import linear
from impctl.engine.aggregate import AggregateOperator, GroupsRead
from impctl.engine.exact_sums import Parted, Rejoined, Sure
from impctl.engine.linear import Union, UnionBranch
from impctl.expr.nodes import Call, Expr
from impctl.plan import nodes as p
from impctl.rules.pushdown import is_narrowed

if TYPE_CHECKING:
    from impctl.engine.fixpoint.fixpoint import FixpointOperator
    from impctl.engine.operator import Operator
    from impctl.sketch.sketch import RangePartition
    from impctl.types import AccessId, AttributeId, FixpointId

LEFT_BEHIND = "the engine does not support using a sum of doubles above a LIMIT"


def bounds_of(flow: Flow) -> dict[AttributeId, AttributeId]:
    """The name of the bound's column for each column that has bounds."""
    return {name: f"{name}/bound" for name, _ in flow.columns if name in flow.approximate}


class TracedFixpoint(Struct, frozen=True):
    """A fixpoint that is sketched for the answer alone: its operator, its rows, and the accesses
    below it; `numbers` is the access that the numbers of its rows stand for."""

    node: p.Plan
    name: str
    numbers: AccessId
    operator: FixpointOperator
    rows: Flow
    accesses: tuple[AccessId, ...]


class FirstGrouping(Struct, frozen=True):
    """The lowest grouping: its operator, its plan node, and what each argument is computed from."""

    operator: AggregateOperator
    node: p.Aggregate
    arguments: Mapping[AttributeId, Expr]


class CircuitBuilder(ABC):
    """Collects operators under unique names, each after those it reads."""

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
        MAX and top-k keep, if they can be refilled. Without `has_doubts`, first rows that may be
        unsure are refused."""
        self.chooser: Chooser = StoredChoices() if chooser is None else chooser
        self.sides: list[SideChoice] = []
        self.distant: list[DistantJoin] = []
        self.groupings: list[tuple[Operator, SideChoice]] = []
        self.is_passed = False  # Whether partial aggregates may fill the circuit
        self.operators: list[Operator] = []
        self.inputs: list[tuple[int, ...]] = []
        self.sources: list[Source] = []
        self._barrier_ids = None if barriers is None else frozenset(barriers)
        self.barriers: list[Flow] = []
        self.opened: list[TracedFixpoint] = []
        """Fixpoints whose rows are to be followed back, each after those below it."""
        self.taking_part: dict[int, Flow] = {}
        """The counted groups of a join tree, by the identity (`id`) of a top-k that gives fewer."""
        self.buffers = buffers
        self.has_doubts = has_doubts
        self.refills: list[Refilled] = []
        self.buffered_pieces: dict[str, BufferChoice] = {}
        """What is kept of first rows and extremes, by operator name."""
        self.keeps_all = False
        self.has_answer = False  # Whether the final rows are requested with their values
        self.sketched: Mapping[AccessId, RangePartition] = {}
        self.planted: dict[int, Flow] = {}
        """The flows of trees that stand for plan nodes, by the identity (`id`) of these."""
        self.leaf_flows: Mapping[FixpointId, Flow] = {}
        """What the leaves of a step stand for, if a step is built."""
        self.plan: p.Plan | None = None  # The whole plan, if that is built
        self.prefix = ""  # The prefix of all names
        self._named: dict[str, int] = {}

    @abstractmethod
    def build(self, plan: p.Plan, *, must_be_sure: bool) -> Flow:
        """The operators of a node and everything below it."""

    @abstractmethod
    def grouped(self, node: p.Aggregate, below: Flow, *, must_be_sure: bool) -> Flow:
        """The operators of a grouping over rows that are built already."""

    def put(self, operator: Operator, *inputs: Flow) -> int:
        """Append an operator; its position."""
        self.operators.append(operator)
        self.inputs.append(tuple(flow.wire for flow in inputs))
        return len(self.operators) - 1

    def name(self, kind: str) -> str:
        """A name no other operator of the circuit has."""
        number = self._named.get(kind, 0)
        self._named[kind] = number + 1
        return f"{self.prefix}{kind}{number}"

    def buffered(
        self, flow: Flow, name: str, *, is_grouped: bool, wanted: int | None = None
    ) -> int | None:
        """How many rows (`wanted` first rows) or values an operator of this name over this flow
        keeps, per group or in all; None is all of them."""
        prefix = prefix_of(self.operators, self.inputs, self.sources, flow)
        size, pinned = None, OVER_MORE
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
        prefix = prefix_of(self.operators, self.inputs, self.sources, flow)
        assert prefix is not None, "only what can be refilled is bounded"
        result = Refilled(operator, prefix, tuple(keys), len(flow.accesses))
        result.read_from_groups()
        self.refills.append(result)

    def is_barrier(self, node: p.TopK) -> bool:
        """Whether all first rows belong to the sketch, used above or not."""
        return self._barrier_ids is None or id(node) in self._barrier_ids

    def drop_unread(self) -> None:
        """Remove operators and sources that the last operator does not depend on. Above the last
        barrier of every access, nothing can change a sketch."""
        read = {len(self.operators) - 1}
        for wire in reversed(range(len(self.operators))):
            if wire in read:
                read.update(self.inputs[wire])
        wires = [index for index in range(len(self.operators)) if index in read]
        sources = [index for index in range(len(self.sources)) if -1 - index in read]
        moved = {old: new for new, old in enumerate(wires)}
        moved |= {-1 - old: -1 - new for new, old in enumerate(sources)}
        self.operators = [self.operators[wire] for wire in wires]
        self.inputs = [tuple(moved[wire] for wire in self.inputs[wire]) for wire in wires]
        self.sources = [self.sources[source] for source in sources]
        names = {keeper.name for op in self.operators for keeper in op.arrangements()}
        # The rows of a distant side are no state, and its filter has a separate name.
        names |= {side.name for op in self.operators for side in op.reads}
        self.sides = [choice for choice in self.sides if choice.side in names]
        kept_ids = {id(operator) for operator in self.operators}
        self.distant = [result for result in self.distant if id(result.operator) in kept_ids]
        self.groupings = [grouping for grouping in self.groupings if id(grouping[0]) in kept_ids]
        self.refills = [refill for refill in self.refills if id(refill.operator) in kept_ids]
        names = {name.partition(".")[0] for name in names}
        self.buffered_pieces = {n: piece for n, piece in self.buffered_pieces.items() if n in names}

    def select(self, flow: Flow, predicate: Expr, node: p.Plan, *, must_be_sure: bool) -> Flow:
        """The rows for which the predicate is true, or too close to call where that is sound."""
        if not predicate.columns <= flow.ids:
            raise BlockedError(LEFT_BEHIND, node.span)
        check_condition(predicate, node.span)
        wire = self.put(linear.SelectOperator(predicate, must_be_sure=must_be_sure), flow)
        rows = None if flow.rows is None else p.Select(flow.rows, predicate)
        return replace(flow, wire=wire, rows=rows)

    def project(
        self,
        flow: Flow,
        outputs: Sequence[tuple[AttributeId, Expr]],
        columns: tuple[Column, ...],
        node: p.Plan,
    ) -> Flow:
        """Computed columns; BlockedError if one is of a column that is not available here."""
        inexact, integral = set(), set()
        for name, expr in outputs:
            if not expr.columns <= flow.ids:
                raise BlockedError(LEFT_BEHIND, node.span)
            check(expr, node.span)
            unsure = expr.columns & flow.approximate
            if unsure:
                inexact.add(name)
            # Doubles rounded at a tie have a bound, too.
            may_round = any(isinstance(part, Call) for part in expr.walk())
            if unsure and unsure <= flow.integral and not may_round:
                integral.add(name)
        wire = self.put(linear.ProjectOperator(outputs), flow)
        rows = None if flow.rows is None else _projected(flow.rows, outputs, columns)
        bounds = (frozenset(inexact), rows, frozenset(integral))
        return Flow(wire, columns, flow.accesses, *bounds, is_plain=flow.is_plain)

    def sure(self, flow: Flow, names: Collection[AttributeId] | None = None) -> Flow:
        """The flow with these columns (default: all) exact, checked at every step."""
        names_to_check = flow.approximate & flow.ids
        names_to_check = names_to_check if names is None else names_to_check & frozenset(names)
        if not names_to_check:
            return flow
        left = flow.approximate - names_to_check
        wire = self.put(Sure(names_to_check), flow)
        return Flow(
            wire, flow.columns, flow.accesses, left, integral=flow.integral - names_to_check
        )

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
        integral: frozenset[AttributeId] = frozenset(),
    ) -> Flow:
        """The flow with these columns as bounds again; `integral` as of the flows before."""
        if not bounds:
            return flow
        bound_ids = set(bounds.values())
        columns = tuple(column for column in flow.columns if column[0] not in bound_ids)
        wire = self.put(Rejoined(bounds), flow)
        return Flow(
            wire, columns, flow.accesses, frozenset(bounds), integral=integral & bounds.keys()
        )

    def distinct(self, flow: Flow, columns: tuple[Column, ...], node: p.Plan) -> Flow:
        """Each row once, with the ranges of all its copies; no column has bounds."""
        _check_columns(flow, columns, node)
        flow = self.sure(flow)
        create = partial(
            AggregateOperator,
            self.name("distinct"),
            columns,
            (),
            accesses=len(flow.accesses),
            is_keyed=False,
            is_distinct=True,
        )
        wire, rows = self.put_groups(replace(flow, columns=columns), create(), create)
        # What the rows below have beside these columns is computed of them.
        rows = None if rows is None else p.Distinct(rows)
        return Flow(wire, columns, flow.accesses, rows=rows, is_plain=False)

    def put_groups(
        self, flow: Flow, grouping: AggregateOperator, create: Callable[[], AggregateOperator]
    ) -> tuple[int, p.Plan | None]:
        """Append a grouping over this flow, kept or read; its position, and the plan of the rows
        below if its groups can be read. `create` builds it with all values of its extremes."""
        pinned = _pinned(flow, grouping)
        readers = () if pinned else (Strategy.FILES,)
        is_whole = flow.rows is not None and not is_narrowed(flow.rows, grouping.group_keys)
        facts = SideFacts(
            grouping.piece,
            tables_of(flow.rows),
            row_bytes(grouping.keys, grouping.accesses),
            readers,
            is_grouping=True,
            pinned=pinned,
            is_passed=self.is_passed,
            is_whole=is_whole,
        )
        choice = replace(self.chooser.choose(facts), readers=readers, is_whole=is_whole)
        operator: Operator = grouping
        if choice.strategy is Strategy.FILES:
            operator = GroupsRead(flow.columns, create)
            below = read_by_engine(flow, grouping.piece, flow.columns, grouping.group_keys)
            self.distant.append(DistantJoin(operator, None, (below,)))
        self.groupings.append((operator, choice))
        return self.put(operator, flow), flow.rows if readers else None

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
        passed = tuple((name, name) for name, _ in columns)
        for flow, sign in zip(flows, signs or [1] * len(flows), strict=True):
            indexes = {access: index for index, access in enumerate(flow.accesses)}
            branches.append(UnionBranch(passed, tuple(map(indexes.get, accesses)), sign))
        inexact = frozenset().union(*(flow.approximate for flow in flows))
        integral = inexact.difference(*(flow.approximate - flow.integral for flow in flows))
        wire = self.put(Union(branches), *flows)
        return Flow(wire, columns, accesses, inexact, integral=integral)


def _check_columns(flow: Flow, columns: Sequence[Column], node: p.Plan | None = None) -> None:
    """BlockedError if a column is not available."""
    if not {name for name, _ in columns} <= flow.ids:
        raise BlockedError(LEFT_BEHIND, None if node is None else node.span)


def _pinned(flow: Flow, grouping: AggregateOperator) -> str:
    """Why the groups must be kept; empty if they need not be."""
    if flow.rows is None:
        return COMPUTED
    if not grouping.group_keys:
        return "it has one group, which every change needs"
    if not grouping.is_deterministic:
        return "sums of doubles and ties between them depend on earlier changes, not only on rows"
    return ""


def _projected(
    plan: p.Plan, outputs: Sequence[tuple[AttributeId, Expr]], columns: Sequence[Column]
) -> p.Project:
    kinds = dict(columns)
    named = [p.ComputedColumn(p.Attribute(name, name, kinds[name]), expr) for name, expr in outputs]
    return p.Project(plan, tuple(named))
