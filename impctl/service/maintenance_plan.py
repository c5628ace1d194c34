"""How a query is maintained: verdict, join sides, circuit, restored state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from impctl.compile.buffers import FEWEST, KEEP_ALL, USUAL, BufferChoice, Buffers
from impctl.compile.build import with_answer
from impctl.compile.compile import (
    Dataflow,
    MaintenancePlan,
    plan_maintenance,
    plan_maintenance_of_answer,
)
from impctl.compile.flows import BlockedError, ChooseBySize, Chooser, StoredChoices, Strategy
from impctl.compile.jointree.cost import KeySide, TreeChoice, TreeChooser, TreesByFanOut
from impctl.compile.jointree.graph import NoTree, Reason, TreeShape
from impctl.compile.jointree.shape import tree_shapes, trees_id
from impctl.compile.session import MaintainedQuery, TouchedQuery
from impctl.data.pages import StoredTable
from impctl.engine.fixpoint.absorption import Absorbs, Shipping
from impctl.errors import ImpctlError, RecaptureNeededError, StateCorruptError, UnsupportedError
from impctl.rules.finalize import answer_plan
from impctl.safety.judge import Verdict, check_safety
from impctl.service.memory_limit import largest_side, memory_of
from impctl.service.prepare import (
    PreparedQuery,
    SketchedQuery,
    columns_assumed,
    constraint_facts,
    fact_of,
    kept_plan,
    prepare,
)
from impctl.service.stored import StateMeta, ending_to_store, stored_moments
from impctl.sketch.sketch import MaintenanceMode
from impctl.tables.changes import schema_change
from impctl.tables.sample import KeyCounts, fan_out, one_in
from impctl.workload.models import JoinStrategy, LineageMode, QuerySpec, StateKept

if TYPE_CHECKING:
    from impctl.compile.fill import RangeRows
    from impctl.expr.nodes import Span
    from impctl.service.context import Context, RangesByAccess, Versions
    from impctl.service.pinned import PinnedTables
    from impctl.store.records import MaintainCommit, StoredQuery
    from impctl.types import ColumnName, TableName


# Fan-outs of pinned tables, each key counted once per run. Law: read from the columns of keys and
# conditions at the pinned versions; if a table is large, from the same sample of keys on both
# sides.


class PinnedFanOuts(Struct, frozen=True):
    tables: PinnedTables

    def met(self, changed: KeySide, other: KeySide) -> float:
        share = one_in(self._rows(changed), self._rows(other))
        return fan_out(self._counts(changed, share), self._counts(other, share))

    def counts(self, side: KeySide) -> KeyCounts:
        return self._counts(side, one_in(self._rows(side)))

    def _rows(self, side: KeySide) -> int:
        return self.tables.snapshot(side.table).likely_rows

    def _counts(self, side: KeySide, share: int) -> KeyCounts:
        return self.tables.key_counts(side.table, side.columns, share)


# Join sides and trees. Law: a capture chooses as the workload requests, else by the tables; its
# choice holds until the next capture. Unless the file decides, joins with constants that move with
# the clock use the index, which moves them; a tree would be captured again.

_SIDES = {
    JoinStrategy.AUTO: None,
    JoinStrategy.INDEX: Strategy.INDEX,
    JoinStrategy.FILES: Strategy.FILES,
    JoinStrategy.SPARK: Strategy.SPARK,
    JoinStrategy.SPARK_UNFILTERED: Strategy.SPARK,
    JoinStrategy.TREE: None,
}


_PARTS_OF_BUDGET = 20
"""A side that may take this share of the budget is not built before it is known to pay."""


class JoinChooser(Struct, frozen=True):
    """Chooses for every join, and for blocks of joins that could be trees."""

    sides: Chooser
    trees: TreeChooser
    buffers: Buffers = USUAL
    """Buffer sizes of MIN, MAX and top-k."""
    absorbs: Absorbs | None = None
    """How recursion is kept by absorption; None for ranks."""


def chooser_for(ctx: Context, prepared: PreparedQuery, *, reads: bool = True) -> JoinChooser:
    """How a capture chooses: by the workload, else by the tables' sizes and fan-outs. Unless it
    `reads` rows, joins use an index. Under a budget the earlier choice holds; a first capture does
    not build sides that may take a good part of it, and those that pay are stored later."""
    tables, disk = ctx.tables, ctx.disk
    fits = largest_side(memory_of(ctx.settings, ctx.workload))
    if prepared.moves_above:
        disk = fits = None  # constants move with the clock through kept state
    largest = None if disk is None else disk // _PARTS_OF_BUDGET
    rows = {scan.table: tables.snapshot(scan.table).rows for scan in prepared.scans}
    requested = _requested(prepared)
    is_least = prepared.spec.state is StateKept.LEAST and not prepared.moves_above
    sides: Chooser = ChooseBySize(
        requested,
        rows.__getitem__,
        has_filter=_has_filter(prepared),
        from_files=largest,
        fits=fits,
        is_least=is_least,
    )
    before = None if disk is None else _described_earlier(ctx, prepared)
    if before is not None and requested is None:
        files, why = before.from_files, before.side_reasons
        sides = StoredChoices(before.distant, from_files=files, reasons=why, is_to_fill=True)
    return JoinChooser(
        sides,
        _trees(tables, prepared, reads=reads),
        buffer_sizes(
            prepared.spec,
            {} if before is None or prepared.spec.state is StateKept.KEEP else before.buffers,
            FEWEST if is_least else None,
        ),
        _absorbs(prepared),
    )


def _absorbs(prepared: PreparedQuery) -> Absorbs | None:
    requested = prepared.spec.provenance
    return None if requested is None else Absorbs(Shipping(requested.ship), requested.nodes)


def _requested(prepared: PreparedQuery) -> Strategy | None:
    """The workload's join strategy of the query; None if open."""
    match prepared.spec.state:
        case StateKept.KEEP:
            return Strategy.INDEX
        case StateKept.LEAST if not prepared.moves_above:
            return Strategy.FILES
    return _SIDES[prepared.spec.join]


def _described_earlier(ctx: Context, prepared: PreparedQuery) -> StateMeta | None:
    """The present state's description; None without such pieces."""
    store = ctx.reading_store()
    stored = None if store is None else store.load(prepared.spec.name)
    if stored is None or stored.mode is not MaintenanceMode.EXACT:
        return None
    try:
        meta = StateMeta.read(stored.query, stored.state_meta)
    except StateCorruptError:
        # A capture repairs that.
        return None
    return None if meta.trees else meta


def _trees(tables: PinnedTables, prepared: PreparedQuery, *, reads: bool) -> TreeChooser:
    join = prepared.spec.join
    if join is not JoinStrategy.AUTO:
        return TreeChoice(join is JoinStrategy.TREE, f"as set by `join: {join}`")
    if prepared.spec.state is StateKept.LEAST:
        return TreeChoice(False, "`state: least` stores only what is needed")
    if prepared.moves_above:
        return TreeChoice(False, "time-dependent constants need an index")
    if not reads:
        return TreeChoice(False, "its fan-out is not known")
    weights = {scan.table: tables.snapshot(scan.table).likely_rows for scan in prepared.scans}
    return TreesByFanOut(PinnedFanOuts(tables), weights)


def chooser_of(prepared: PreparedQuery, meta: StateMeta) -> JoinChooser:
    """The choice of the stored state."""
    sides = StoredChoices(meta.distant, _has_filter(prepared), meta.from_files, meta.side_reasons)
    is_tree = prepared.spec.join is JoinStrategy.TREE or bool(meta.trees)
    absorbs = _absorbs(prepared) if meta.provenance else None
    return JoinChooser(
        sides, TreeChoice(is_tree), buffer_sizes(prepared.spec, meta.buffers), absorbs
    )


def _has_filter(prepared: PreparedQuery) -> bool:
    return prepared.spec.join is not JoinStrategy.SPARK_UNFILTERED


# Law: a stored sketch is used or maintained only while its query is safe under its stored
# assumptions; besides these only the table's CHECKs are believed. The core is judged by all facts
# behind the whole plan's verdict.

_ASKED = "as set by `buffer`"
_ALL_ASKED = "as set by `join: index` or `state: keep`"
_BESIDE_CLOCK = "its time-dependent constants update stored rows"
_UNCOUNTED = "the number of groups is unknown until the next capture"
_WITNESSES = "the sketch holds only witnesses where these suffice, see `impctl explain`"


def buffer_sizes(
    spec: QuerySpec, of_piece: Mapping[str, int], of_group: int | None = None
) -> Buffers:
    """The sizes by the workload, else these and the usual ones."""
    match spec.buffer:
        case None:
            return replace(USUAL, of_group=of_group, of_piece=of_piece)
        case int(size):
            return Buffers.of(size)
    return KEEP_ALL


def chosen_buffers(spec: QuerySpec, compiled: Dataflow | None) -> Mapping[str, int]:
    """Buffer sizes of pieces that were bounded without the workload requesting it."""
    if spec.buffer is not None or compiled is None:
        return {}
    read = compiled.sides_by(Strategy.FILES)
    return {
        choice.piece: choice.size
        for choice in compiled.buffers
        if choice.size is not None and not choice.pinned and choice.piece not in read
    }


def why_not_bounded(prepared: PreparedQuery, meta: StateMeta | None, choice: BufferChoice) -> str:
    """Why no budget may bound a piece, by its state's description; empty if one may."""
    if prepared.spec.buffer is not None:
        return _ASKED
    if choice.pinned:
        return choice.pinned
    if prepared.moves_above:
        return _BESIDE_CLOCK
    if prepared.spec.join is JoinStrategy.INDEX or prepared.spec.state is StateKept.KEEP:
        return _ALL_ASKED
    is_counted = meta is None or choice.is_values or choice.piece in meta.buffer_groups
    return "" if is_counted else _UNCOUNTED


def chosen_plan(
    query: SketchedQuery, chooser: JoinChooser, *, has_answer: bool = True
) -> MaintenancePlan:
    """How the query's sketches are maintained, under the whole plan's verdict. By the plan of the
    answer's rows if it is requested and possible; else by the core plan, as for state captured
    without (`has_answer` is false). UnsupportedError if recursion cannot be kept by absorption as
    requested."""
    prepared = query.prepared
    scans = (*prepared.scans, *prepared.query.root.scans)
    accesses = {scan.access: scan.table for scan in scans}
    plan, by_core, why, is_planned = None, None, "", False
    if prepared.spec.join is JoinStrategy.TREE:
        core = kept_plan(query).core
        is_planned = any(isinstance(shape, TreeShape) for shape in tree_shapes(core))
        if not is_planned:
            # An impossible requested tree is refused, whatever happens to the answer.
            by_core = _by_core(query, chooser)
    if prepared.spec.answer and has_answer:
        result = _by_answer(query, chooser, must_be_tree=is_planned)
        if isinstance(result, MaintenancePlan):
            plan = replace(result, accesses=accesses)
        else:
            why = result
    if plan is None:
        if by_core is None:
            by_core = _by_core(query, chooser)
        plan = replace(by_core, accesses=accesses, no_answer=why)
    if chooser.absorbs is not None:
        _check_provenance(prepared, plan)
    return plan


def _by_answer(
    query: SketchedQuery, chooser: JoinChooser, *, must_be_tree: bool
) -> MaintenancePlan | str:
    """How sketches are maintained beside the answer's rows, or why these are not stored. If a tree
    cannot list them, joins are no trees, unless they must be."""
    answer = answer_plan(query.prepared.planned)
    answering = partial(
        plan_maintenance_of_answer,
        answer,
        query.verdict_of(answer.kept),
        query.partitions,
        chooser.sides,
        buffers=chooser.buffers,
        absorbs=chooser.absorbs,
    )
    choice = chooser.trees.choose(answer.kept)
    if choice.is_tree:
        try:
            plan = answering(has_trees=True)
            texts = [shape.text for shape in plan.shapes if isinstance(shape, NoTree)]
            why = f"a join tree cannot list its rows: {texts[0]}" if texts else ""
            if plan.has_tree:
                return plan if must_be_tree else replace(plan, trees=choice)
        except BlockedError as blocked:
            why = blocked.message
        if must_be_tree:
            return why
        choice = replace(
            choice, is_tree=False, reason=f"a join tree cannot materialize its result: {why}"
        )
    try:
        return replace(answering(), trees=choice)
    except BlockedError as blocked:
        return blocked.message


def _by_core(query: SketchedQuery, chooser: JoinChooser) -> MaintenancePlan:
    prepared, materialized, of_whole = query.prepared, kept_plan(query), query.verdict
    if materialized.has_witnesses:
        # Touch relies on lineage: an unchanged row replaces a deleted witness.
        of_whole = replace(of_whole, root_keyed=False)
    choose = partial(
        plan_maintenance,
        materialized.core,
        of_whole,
        materialized.core_verdict,
        query.partitions,
        chooser.sides,
        buffers=chooser.buffers,
        absorbs=chooser.absorbs,
    )
    if prepared.spec.join is JoinStrategy.TREE:
        plan = _with_trees(prepared, choose)
    else:
        plan = _trees_or_not(choose, chooser.trees.choose(materialized.core))
    reason = f"{plan.reason}; {_WITNESSES}" if materialized.has_witnesses else plan.reason
    return replace(plan, reason=reason, core=materialized.core)


def _with_trees(prepared: PreparedQuery, choose: Callable[..., MaintenancePlan]) -> MaintenancePlan:
    """The plan by trees; UnsupportedError if joins work only otherwise."""
    plan = choose(has_trees=True)
    if plan.has_tree:
        return plan
    if plan.compiled is None:
        plain = choose()
        if plain.compiled is None:
            return plain
        raise _no_tree(prepared, plan.reason, plan.span)
    for shape in plan.shapes:
        if isinstance(shape, NoTree) and shape.reason is not Reason.ONE_TABLE:
            raise _no_tree(prepared, shape.text, shape.span)
    return plan


def _trees_or_not(choose: Callable[..., MaintenancePlan], choice: TreeChoice) -> MaintenancePlan:
    """The plan as chosen, without trees if the engine has no circuit with them."""
    if choice.is_tree:
        plan = choose(has_trees=True)
        if plan.has_tree:
            return replace(plan, trees=choice)
        choice = replace(
            choice, is_tree=False, reason=f"a join tree cannot maintain it: {plan.reason}"
        )
    return replace(choose(), trees=choice)


def _no_tree(prepared: PreparedQuery, why: str, span: Span | None) -> UnsupportedError:
    return UnsupportedError(
        f"Query `{prepared.spec.name}` sets `join: tree`, but its joins cannot form a tree: {why}",
        code="no_join_tree",
        hint="use `join: index`, or remove `join`",
        location=prepared.place(span),
    )


def _check_provenance(prepared: PreparedQuery, plan: MaintenancePlan) -> None:
    """UnsupportedError if no recursion of the query is kept by absorption."""
    if plan.provenance:
        return
    why = plan.reason if plan.compiled is None else "it has no WITH RECURSIVE with UNION"
    raise UnsupportedError(
        f"Query `{prepared.spec.name}` sets `provenance: absorption`, but cannot have it: {why}",
        code="no_provenance",
        hint="remove `provenance`: ranks maintain the same sketch",
        location=prepared.place(plan.span) or prepared.spec.location,
    )


def plan_after_capture(
    ctx: Context, query: SketchedQuery, *, reads: bool = True
) -> MaintenancePlan:
    """How the query's sketches are maintained after a capture at the pinned versions. Unless it
    `reads` rows, what depends on fan-outs uses the index join."""
    return chosen_plan(query, chooser_for(ctx, query.prepared, reads=reads))


def is_same_circuit(ctx: Context, prepared: PreparedQuery, stored: StoredQuery) -> bool:
    """Whether the query has the plan that the stored sketch was captured for. Whether witnesses
    suffice also depends on facts, such as CHECKs added or dropped."""
    if stored.state_meta.get("answer"):
        circuit = with_answer(ctx.memory.circuit(ctx.memory.answer(prepared.planned).kept))
        return prepared.spec.answer and bool(stored.state_meta.get("circuit") == circuit)
    core = prepared.core
    if prepared.spec.lineage is not LineageMode.ALL:
        try:
            core = kept_plan(restored_query(ctx.tables, prepared, stored)).core
        except RecaptureNeededError:
            return False
    return bool(stored.state_meta.get("circuit") == ctx.memory.circuit(core))


def restored_query(
    tables: PinnedTables, prepared: PreparedQuery, stored: StoredQuery
) -> SketchedQuery:
    """The query with its stored sketches' partitions; RecaptureNeededError if no longer safe."""
    sketched = {sketch.access: sketch.attribute for sketch in stored.sketches}
    facts = [*constraint_facts(tables, prepared.scans), *map(fact_of, stored.assumptions)]
    verdict = check_safety(prepared.planned, sketched, facts)
    if not verdict.safe:
        raise RecaptureNeededError(
            f"The stored sketch is no longer safe for the query: {verdict.reason}",
            code="no_longer_safe",
            hint="run `impctl capture`",
        )
    return SketchedQuery(prepared, verdict, stored.partitions)


# Stored queries planned again. Law: reads the SQL, the tables' metadata and the store's description
# of the state, but no state and no change. The plan is that of the present file, with the capture's
# moments and choices; `check_circuit` says whether the state fits it.


class Reopened(SketchedQuery, frozen=True, kw_only=True):
    meta: StateMeta
    chooser: JoinChooser
    plan: MaintenancePlan

    @property
    def core_verdict(self) -> Verdict:
        """The verdict on the core of the plan that sketches are maintained by."""
        return kept_plan(self).core_verdict


def reopened(
    ctx: Context, spec: QuerySpec, stored: StoredQuery, *, is_of_now: bool = False
) -> Reopened:
    """Plan the stored query again; RecaptureNeededError if it is no longer safe. Clock constants
    are those of the capture, or if it `is_of_now` those of the run."""
    prepared = prepare(ctx, spec, None if is_of_now else stored_moments(stored))
    query = restored_query(ctx.tables, prepared, stored)
    meta = StateMeta.read(stored.query, stored.state_meta)
    chooser = chooser_of(prepared, meta)
    plan = chosen_plan(query, chooser, has_answer=meta.answer)
    return Reopened(
        prepared, query.verdict, query.partitions, meta=meta, chooser=chooser, plan=plan
    )


def check_circuit(ctx: Context, query: Reopened, stored: StoredQuery) -> None:
    """RecaptureNeededError if the stored state does not fit the circuit built now."""
    prepared, plan, meta = query.prepared, query.plan, query.meta
    is_same = is_same_circuit(ctx, prepared, stored) and meta.trees == trees_id(plan.shapes)
    # Pieces that are read store only a filter: taken for kept, they would be empty.
    is_same &= {*meta.from_files} == {*plan.sides_by(Strategy.FILES)}
    # A buffer has the best rows: in a larger one they would be taken for all.
    is_same &= meta.buffers == chosen_buffers(prepared.spec, plan.compiled)
    is_same &= meta.provenance == plan.provenance
    # Older builds kept rows of results that the engine does not compute exactly.
    is_same &= bool(stored.state_meta.get("answer")) == (plan.answer is not None)
    if plan.mode is stored.mode and is_same:
        return
    name = prepared.spec.name
    if stored.mode is MaintenanceMode.RECAPTURE and is_same:
        raise RecaptureNeededError(
            f"Query `{name}` has no state that `maintain` could update: {meta.way}",
            code="not_incremental",
            hint="use policy `auto` to let `maintain` recapture it",
        )
    for pin in stored.pins:
        try:
            before = ctx.tables.snapshot(pin.table, pin.version)
        except ImpctlError:
            continue
        changed = schema_change(before, ctx.tables.snapshot(pin.table))
        if changed is not None:
            # `SELECT *` now means other columns.
            raise changed
    raise RecaptureNeededError(
        f"The state of query `{name}` was written for a different circuit than this "
        "version of impctl builds",
        code="engine_changed",
        hint=f"run `impctl capture {ctx.workload.file} --query {name}`",
    )


# Stored queries with their state in memory. Law: in memory is what one commit of the store has, and
# it moves only with the next (`committed`). Nothing here accesses the store.

StoredRuns = Mapping[str, Sequence[tuple[int, StoredTable]]]
"""The stored state: per arrangement its runs, ascending by sequence."""


class QueryState:
    def __init__(
        self,
        plan: MaintenancePlan,
        stored: StoredQuery,
        runs: StoredRuns,
        reads: Mapping[TableName, tuple[ColumnName, ...]] = MappingProxyType({}),
    ) -> None:
        """`plan` is exact or touch, `runs` the state at the commit of `stored`. `reads` are all
        columns that the query reads of each table, if known."""
        self.reads = reads
        self.plan = plan
        self.stored = stored
        meta = StateMeta.read(stored.query, stored.state_meta)
        self.meta = replace(meta, ending=ending_to_store(plan.stored_answer))
        self.ranges: RangesByAccess = {sketch.access: sketch.ranges for sketch in stored.sketches}
        self.maintained: MaintainedQuery | TouchedQuery
        if plan.mode is MaintenanceMode.EXACT:
            assert plan.compiled is not None
            self.maintained = MaintainedQuery(plan.compiled)
            self.maintained.restore(runs, self.meta.counters)
        else:
            (sketch,) = stored.sketches
            self.maintained = TouchedQuery(sketch.partition, sketch.ranges)
            self.maintained.restore(runs)

    @property
    def tables(self) -> tuple[TableName, ...]:
        return tuple(self.versions)

    @property
    def versions(self) -> Versions:
        return self.stored.versions

    @property
    def session(self) -> MaintainedQuery | None:
        """The circuit of exact maintenance."""
        return self.maintained if isinstance(self.maintained, MaintainedQuery) else None

    @property
    def range_rows(self) -> RangeRows:
        return self.maintained.range_rows

    def columns_of(self, table: TableName) -> tuple[ColumnName, ...]:
        if self.session is not None:
            columns: Sequence[str] = self.session.compiled.columns_of(table)
        else:
            columns = (self.stored.sketches[0].attribute,)
        return tuple(dict.fromkeys((*columns, *columns_assumed(self.stored.assumptions, table))))

    def committed(self, commit: MaintainCommit, generation: int, meta: StateMeta) -> None:
        """Note that the store now has the state in memory, as of this commit."""
        self.maintained.saved()
        self.ranges, self.meta = dict(commit.sketches), meta
        self.stored = replace(
            self.stored,
            pins=commit.pins,
            sketches=tuple(
                replace(sketch, ranges=self.ranges[sketch.access])
                for sketch in self.stored.sketches
            ),
            state_meta=commit.state_meta,
            generation=generation,
            maintained_at=commit.at,
        )
