"""A plan compiled into a circuit, or the reason why it cannot be maintained exactly."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict, Unpack

from msgspec import Struct, field
from msgspec.structs import replace

from impctl.compile.buffers import KEEP_ALL, BufferChoice, Buffers, Refilled
from impctl.compile.build import PlanBuilder
from impctl.compile.fill import Chain, nodes_to
from impctl.compile.flows import (
    BlockedError,
    Chooser,
    DistantJoin,
    Readable,
    SideChoice,
    Source,
    StoredChoices,
    Strategy,
)
from impctl.compile.joins import counted
from impctl.compile.jointree.decompose import last_top
from impctl.compile.jointree.graph import NoTree, TreeShape
from impctl.compile.jointree.shape import planned_blocks
from impctl.engine.circuit import Circuit
from impctl.plan.nodes import Aggregate, Plan, Scan, TopK
from impctl.plan.recursion import keyed_rows
from impctl.sketch.sketch import MaintenanceMode
from impctl.types import AccessId, AttributeId, ColumnName, TableName

if TYPE_CHECKING:
    from impctl.compile.jointree.build import PlannedBlock
    from impctl.compile.jointree.cost import TreeChoice
    from impctl.compile.provenance.absorbed import AbsorbedRows
    from impctl.engine.fixpoint.absorption import Absorbs
    from impctl.engine.result_rows import AnswerRows
    from impctl.expr.nodes import Span
    from impctl.rules.finalize import AnswerPlan
    from impctl.safety.judge import Verdict
    from impctl.sketch.sketch import RangePartition


class MaintenancePlan(Struct, frozen=True):
    """The best sound mode (exact, touch, recapture), the reason why no better one is possible with
    its place in the SQL, and the circuit if exact. `accesses` are all of the query's with their
    tables, also those that the circuit does not read; `core` is the plan that maintains the
    sketches, if not the query's own. `answer` computes the query's answer from the kept rows;
    `no_answer` says why there is none, if requested. `trees` is the choice of trees, if it was
    open. `no_provenance` says why recursion is not kept by absorption, if requested."""

    mode: MaintenanceMode
    reason: str
    span: Span | None = None
    compiled: Dataflow | None = None
    accesses: Mapping[AccessId, TableName] = field(default_factory=dict)
    core: Plan | None = None
    answer: AnswerPlan | None = None
    no_answer: str = ""
    trees: TreeChoice | None = None
    no_provenance: str = ""

    @property
    def provenance(self) -> str:
        """How functions of recursion are represented; empty if none are kept."""
        absorbed = () if self.compiled is None else self.compiled.absorbed
        return str(absorbed[0].operator.absorbs.ship) if absorbed else ""

    @property
    def shapes(self) -> tuple[TreeShape | NoTree, ...]:
        """The shape of each branch of the plan, or why it has none, where joins were to be
        trees."""
        return () if self.compiled is None else self.compiled.shapes

    @property
    def stored_answer(self) -> AnswerPlan | None:
        """The answer, if the state holds its rows one by one."""
        kept = None if self.compiled is None else self.compiled.kept
        return None if kept is None or kept.are_enumerated else self.answer

    @property
    def has_tree(self) -> bool:
        """Whether some joins are maintained without joining."""
        return any(isinstance(shape, TreeShape) for shape in self.shapes)

    def sides_by(self, strategy: Strategy) -> tuple[str, ...]:
        return () if self.compiled is None else self.compiled.sides_by(strategy)


class CompileOptions(TypedDict, total=False):
    """Keyword arguments of `compile_plan` that say what is kept, and how."""

    buffers: Buffers
    has_trees: bool
    absorbs: Absorbs | None


def plan_maintenance_of_answer(
    answer: AnswerPlan,
    verdict: Verdict,
    partitions: Mapping[AccessId, RangePartition],
    chooser: Chooser | None = None,
    **options: Unpack[CompileOptions],
) -> MaintenancePlan:
    """How sketches are maintained beside the rows of an answer; BlockedError if not exactly.
    `verdict` is that on `answer.kept`; for the rest see `compile_plan`."""
    plan = _exact(answer.kept, verdict, partitions, chooser, answer, **options)
    return replace(plan, core=answer.kept, answer=answer)


def plan_maintenance(
    core: Plan,
    full_verdict: Verdict,
    verdict: Verdict,
    partitions: Mapping[AccessId, RangePartition],
    chooser: Chooser | None = None,
    **options: Unpack[CompileOptions],
) -> MaintenancePlan:
    """Choose how the sketches of `partitions` (by access) are maintained for a safe plan. `core` is
    the plan without its output columns and `verdict` its verdict; `full_verdict` is that on
    the whole plan, which touch mode uses. For the rest see `compile_plan`. InvariantError if either
    verdict is unsafe."""
    full_verdict = full_verdict.required()
    try:
        return _exact(core, verdict, partitions, chooser, **options)
    except BlockedError as blocked:
        # Touch mode also needs that no other table changes, so there must be none.
        if not full_verdict.root_keyed or len(core.scans) != 1:
            return MaintenancePlan(MaintenanceMode.RECAPTURE, blocked.message, blocked.span)
        touch = "each group lies in one range, so the ranges of changed rows are added"
        return MaintenancePlan(MaintenanceMode.TOUCH, f"{blocked.message}; {touch}", blocked.span)


def _exact(
    core: Plan,
    verdict: Verdict,
    partitions: Mapping[AccessId, RangePartition],
    chooser: Chooser | None,
    answer: AnswerPlan | None = None,
    **options: Unpack[CompileOptions],
) -> MaintenancePlan:
    keys, barriers = verdict.required().key_columns, verdict.barrier_positions
    compiled = compile_plan(
        core, partitions, keys, chooser, barriers=barriers, answer=answer, **options
    )
    reason = "every operator is maintained incrementally"
    reason = f"{reason}; {compiled.note}" if compiled.note else reason
    return MaintenancePlan(MaintenanceMode.EXACT, reason, None, compiled)


# A plan that compiles is maintained exactly: the sketch equals a recapture's, unless a sum of
# doubles is too close to call, which widens it. A computation that the engine cannot do as Spark
# does is refused with its place in the SQL, never approximated. Compile after `rules` split AVG.

KeyColumns = Mapping[int, Mapping[AccessId, AttributeId]]

_TURNED_OUT = "it turned out small enough to keep"


class Dataflow(Struct, frozen=True, kw_only=True):
    """A circuit for one query: its sources, its sketched accesses, the sizes of their partitions.
    `sides` are the choices for the sides of all joins; `distant` are the joins and groupings with
    rows that are not kept, in circuit order."""

    sources: tuple[Source, ...]
    accesses: tuple[AccessId, ...]
    sizes: tuple[int, ...]
    circuit: Circuit
    chain: Chain | None  # None if only stepping with whole tables can fill the circuit
    sides: tuple[SideChoice, ...] = ()
    distant: tuple[DistantJoin, ...] = ()
    groupings: tuple[SideChoice, ...] = ()  # The choices for all groupings
    refills: tuple[Refilled, ...] = ()
    buffers: tuple[BufferChoice, ...] = ()
    """What is kept of first rows and of values of MIN and MAX."""
    owners: Mapping[str, Plan] = field(default_factory=dict)
    """The plan node that each piece of state serves, by the state's name."""
    note: str = ""  # What the bound on buffers means for the query; empty without one
    kept: AnswerRows | None = None  # The operator that keeps the answer's rows, if they are kept
    shapes: tuple[TreeShape | NoTree, ...] = ()
    """Where trees were requested, the shape of each branch of the plan, or why it has none."""
    absorbed: tuple[AbsorbedRows, ...] = ()  # The fixpoints that are kept by absorption

    @property
    def writes_joins(self) -> bool:
        """Whether rows of some join are written, perhaps more than those read."""
        enumerated = (isinstance(s, TreeShape) and s.joined is not None for s in self.shapes)
        return bool(self.sides) or any(enumerated)

    @property
    def tables(self) -> tuple[TableName, ...]:
        return tuple(dict.fromkeys(source.table for source in self.sources))

    def read_side(self, name: str) -> Readable:
        """The rows of a side that is not kept, or below groups that are not, by its name."""
        sides = (side for join in self.distant for side in join.sides)
        return next(side for side in sides if side.name == name)

    def sides_by(self, strategy: Strategy) -> tuple[str, ...]:
        """The join sides, and groupings, with this strategy."""
        return tuple(s.side for s in self.pieces if s.strategy is strategy)

    @property
    def pieces(self) -> tuple[SideChoice, ...]:
        """All that may be kept or read: the sides of joins, then groupings."""
        return (*self.sides, *self.groupings)

    def keeping(self, names: Collection[str]) -> Dataflow:
        """The same if the circuit keeps these sides, which it was to read."""
        if not names:
            return self
        sides = tuple(
            replace(side, strategy=Strategy.INDEX, reason=_TURNED_OUT)
            if side.side in names
            else side
            for side in self.sides
        )
        left = [
            replace(join, sides=tuple(side for side in join.sides if side.name not in names))
            for join in self.distant
        ]
        return replace(self, sides=sides, distant=tuple(join for join in left if join.sides))

    def turns(self) -> tuple[frozenset[int], ...]:
        """The positions of its sources in filling order; those that need not wait for each other
        are together (`Operator.first_inputs`)."""
        turn = [0] * len(self.sources)
        below: list[frozenset[int]] = []
        waits: list[tuple[frozenset[int], frozenset[int]]] = []

        def sources_of(wires: Iterable[int]) -> frozenset[int]:
            result = ({-1 - wire} if wire < 0 else below[wire] for wire in wires)
            return frozenset[int]().union(*result)

        for operator, wires in zip(self.circuit, self.circuit.wires, strict=True):
            below.append(sources_of(wires))
            first = sources_of(wires[input_] for input_ in operator.first_inputs)
            waits += [(first, below[-1] - first)] if first else []
        # As often as one may wait for another; no source waits for itself.
        for _ in self.sources:
            for first, others in waits:
                for other in others:
                    turn[other] = max(turn[other], 1 + max(turn[input_] for input_ in first))
        result = (
            frozenset(index for index, position in enumerate(turn) if position == number)
            for number in range(max(turn, default=-1) + 1)
        )
        return tuple(filter(None, result))

    @property
    def asks_spark(self) -> bool:
        """Whether Spark reads some rows that it does not keep."""
        return bool(self.sides_by(Strategy.SPARK))

    def columns_of(
        self, table: TableName, sources: Collection[int] | None = None
    ) -> tuple[ColumnName, ...]:
        """The columns of a table that some source, or one of the given ones, reads."""
        names = [
            name
            for index, source in enumerate(self.sources)
            if source.table == table and (sources is None or index in sources)
            for name in source.scan.table_columns
        ]
        return tuple(dict.fromkeys(names))


def compile_plan(
    root: Plan,
    sketched: Mapping[AccessId, RangePartition],
    key_columns: KeyColumns,
    chooser: Chooser | None = None,
    *,
    barriers: Collection[int] | None = None,
    buffers: Buffers = KEEP_ALL,
    answer: AnswerPlan | None = None,
    has_trees: bool = False,
    absorbs: Absorbs | None = None,
) -> Dataflow:
    """Compile a plan; BlockedError if it cannot be maintained exactly. The plan's rows are kept for
    an `answer`. If it `has_trees`, join trees serve the blocks that have one. `key_columns` gives
    for the i-th node of `root.walk()` the column, of a grouping or a fixpoint, that equals each
    access's partition attribute; `barriers` are the positions of barriers (default: every top-k
    that is not the last step); both are the verdict's. `chooser` decides which sides of joins are
    kept (default: all), `buffers` how many rows or values MIN, MAX and top-k keep if they can be
    refilled; `absorbs` keeps fixpoints by absorption."""
    nodes = tuple(root.walk())
    barrier_nodes = None if barriers is None else [nodes[position] for position in barriers]
    keyed_fixpoints = keyed_rows(root, key_columns)

    def compiled(
        top: Plan, keys: KeyColumns, blocks: Sequence[PlannedBlock] = (), *, has_doubts: bool = True
    ) -> Dataflow:
        rows = counted(top) if answer is None and not blocks else top
        chain = nodes_to(rows)
        keyed = {} if chain is None else _keyed(top, chain, sketched, keys)
        last, chosen = _last_and_barriers(top, barrier_nodes, answer)
        builder = PlanBuilder(
            sketched,
            keyed,
            last,
            chooser,
            barriers=chosen,
            buffers=buffers,
            has_doubts=has_doubts,
            answer=answer,
            blocks=blocks,
            keyed_rows=keyed_fixpoints,
            absorbs=absorbs,
        )
        flow = builder.root(rows, is_passed=chain is not None)
        if not flow.accesses:
            raise BlockedError("the query has no sketch to maintain", top.span)
        circuit = builder.circuit()
        passed = _passed(chain, builder, circuit, keyed)
        sizes = tuple(sketched[access].size for access in flow.accesses)
        return _dataflow(builder, circuit, flow.accesses, sizes, passed)

    # The barrier above all sketched accesses.
    covering = (n for n in barrier_nodes or () if sketched.keys() <= {s.access for s in n.scans})
    barrier = next(covering, None)

    def plain() -> Dataflow:
        if barrier is None or answer is not None:
            return compiled(root, key_columns)
        try:
            return compiled(root, key_columns, has_doubts=False)
        except BlockedError:
            # The rows of this barrier all count: nodes above it cannot change a sketch.
            return compiled(barrier, {})

    if not has_trees:
        return plain()
    blocks = planned_blocks(root, has_answer=answer is not None)
    has_tree = any(isinstance(block.shape, TreeShape) for block in blocks)
    result = compiled(root, {}, blocks) if has_tree else plain()
    return replace(result, shapes=tuple(block.shape for block in blocks))


def _dataflow(
    builder: PlanBuilder,
    circuit: Circuit,
    accesses: tuple[AccessId, ...],
    sizes: tuple[int, ...],
    chain: Chain | None,
) -> Dataflow:
    return Dataflow(
        sources=tuple(builder.sources),
        accesses=accesses,
        sizes=sizes,
        circuit=circuit,
        chain=chain,
        sides=tuple(builder.sides),
        distant=tuple(builder.distant),
        groupings=tuple(choice for _, choice in builder.groupings),
        refills=tuple(builder.refills),
        buffers=tuple(builder.buffered_pieces.values()),
        owners=builder.owners(),
        note=_note(builder),
        kept=builder.kept,
        absorbed=tuple(builder.absorbed),
    )


def _passed(
    chain: tuple[Plan, ...] | None,
    builder: PlanBuilder,
    circuit: Circuit,
    keyed: Mapping[int, AttributeId],
) -> Chain | None:
    """The pass that can fill the circuit, if any: answers without a grouping, and groups read, need
    rows."""
    first = builder.first_grouping
    needs_rows = builder.has_answer if first is None else first.operator.needs_rows
    if chain is None or needs_rows or builder.distant:
        return None
    scan = chain[0]
    assert isinstance(scan, Scan)
    key = None
    if first is not None and id(first.node) in keyed:
        key = [attribute.id for attribute in first.node.attributes].index(keyed[id(first.node)])
    return Chain(scan, chain[-1], circuit, first, key)


def compile_answer(answer: AnswerPlan, *, has_trees: bool = False) -> Dataflow:
    """Compile the circuit of a query's answer alone, without a sketch; raises BlockedError. As for
    `compile_plan`: the state is the part of the state there that has the rows."""
    last, _ = _last_and_barriers(answer.kept, None, answer)
    blocks = planned_blocks(answer.kept, has_answer=True) if has_trees else ()
    chooser = StoredChoices(is_to_fill=True)
    builder = PlanBuilder({}, {}, last, chooser, answer=answer, blocks=blocks)
    builder.root(answer.kept)
    return _dataflow(builder, Circuit(builder.operators, builder.inputs), (), (), None)


def _note(builder: PlanBuilder) -> str:
    size = builder.buffers.of_group
    if size is None:
        return ""
    parts = []
    if builder.refills:
        subject = "MIN, MAX and top-k over one table's rows or over groups"
        parts.append(f"{subject} keep the best {size}")
    if builder.keeps_all:
        parts.append("those over joins keep everything, because only the query could refill them")
    return "; ".join(parts)


def _last_and_barriers(
    root: Plan, barriers: Collection[Plan] | None, answer: AnswerPlan | None
) -> tuple[TopK | None, list[int] | None]:
    """The top-k that is the query's last step, and the identities of those whose rows all count. If
    an answer needs its exact rows or ranks, ties are broken, and a barrier adds them to the
    sketch."""
    last = last_top(root)
    chosen = None if barriers is None else [id(node) for node in barriers]
    if last is None or answer is None or (answer.ending.cuts and last.rank is None):
        return last, chosen
    return None, None if chosen is None else [*chosen, id(last)]


def _keyed(
    root: Plan,
    chain: tuple[Plan, ...],
    sketched: Mapping[AccessId, RangePartition],
    key_columns: KeyColumns,
) -> Mapping[int, AttributeId]:
    """The Aggregate nodes, by identity, whose groups have one range each, with the key."""
    scan = chain[0]
    assert isinstance(scan, Scan)
    partition = sketched.get(scan.access)
    if partition is None:
        return {}
    result: dict[int, AttributeId] = {}
    groupings = [node for node in chain if isinstance(node, Aggregate)]
    for position, node in enumerate(root.walk()):
        key = key_columns.get(position, {}).get(scan.access)
        if key is None or not any(node is grouping for grouping in groupings):
            continue
        types = {attribute.id: attribute.type for attribute in node.attributes}
        if types.get(key) == partition.type:
            result[id(node)] = key
    return result
