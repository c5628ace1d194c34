"""Explain what would be done with a query, and why."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, assert_never

from msgspec import Struct
from msgspec.structs import replace

from impctl.compile.answers import kept_rows
from impctl.compile.compile import MaintenancePlan
from impctl.compile.flows import SideChoice, Strategy, row_bytes
from impctl.compile.jointree import shape as join_trees_explain
from impctl.compile.jointree.graph import NoTree, Reason, TreeShape
from impctl.compile.jointree.shape import tree_shapes
from impctl.engine.fixpoint.absorption import EXTRA_MISSING, missing_package
from impctl.errors import ImpctlError, UnsafeSketchError, count_text
from impctl.expr.nodes import Span, walk
from impctl.plan.explain import PlanLine, describe
from impctl.plan.nodes import (
    Aggregate,
    Distinct,
    Explode,
    Fixpoint,
    Join,
    OneRow,
    Plan,
    Project,
    Recursive,
    Scan,
    Select,
    SetOperation,
    Sort,
    TopK,
    Window,
    Witness,
    nodes_of,
    scans_of,
)
from impctl.plan.recursion import keyed_rows, recursion_notes
from impctl.service.advice import BackwardFixpoint, backward_fixpoints
from impctl.service.capture import stored_sketches
from impctl.service.capture_plan import choose_sketches, judge_candidates, lineage_warnings
from impctl.service.context import Context, Isolated
from impctl.service.fill import is_loaded_here, loaded
from impctl.service.filters import filters_of, interval_texts
from impctl.service.maintenance_plan import (
    chooser_of,
    chosen_buffers,
    chosen_plan,
    plan_after_capture,
    why_not_bounded,
)
from impctl.service.prepare import PreparedQuery, kept_plan, prepare
from impctl.service.query import who_answers
from impctl.service.results import (
    AnswerEntry,
    BuffersEntry,
    CandidateEntry,
    ExpectedReading,
    ExplainResult,
    Failure,
    GroupsEntry,
    JoinSideEntry,
    Outcome,
    PlanEntry,
    TreeNodeEntry,
    TreeResultEntry,
)
from impctl.service.stored import StateMeta, is_captured_alike, provenance_kept
from impctl.sketch.sketch import MaintenanceMode
from impctl.spark.expressions import DIALECT
from impctl.spark.predicates import live_condition
from impctl.tables.snapshot import bytes_of, rows_in
from impctl.tables.storage import local_path
from impctl.workload.models import JoinStrategy, QuerySpec

if TYPE_CHECKING:
    from impctl.compile.buffers import BufferChoice
    from impctl.safety.judge import Verdict
    from impctl.service.context import Partitions
    from impctl.service.pinned import PinnedTables
    from impctl.store.records import StoredQuery, StoredSketch
    from impctl.types import AccessId, AttributeId, ColumnName, QueryName, TableName


# Law: writes nothing and never starts Spark; reads metadata, the store, a sample, and rows of small
# tables on the local disk. Every operator says how it would be maintained, every attribute whether
# it is safe, every refusal its position in the SQL.


def explain(ctx: Context, queries: Sequence[QueryName] | None) -> Outcome:
    """Explain each query (default: all)."""
    results: list[ExplainResult] = []
    warnings: list[str] = []
    failures: list[Failure] = []
    trials = Trials(ctx)
    for spec in ctx.queries(queries):
        with Isolated(failures, spec):
            results.append(_explained(ctx, spec, trials, warnings))
    warnings += extra_warnings([result.query for result in results if result.provenance])
    is_new = any(result.mode != "none" and result.state_bytes is None for result in results)
    note = f"next: impctl capture {ctx.workload.file}" if is_new else ""
    return Outcome(tuple(results), tuple(warnings), tuple(failures), note)


def _explained(ctx: Context, spec: QuerySpec, trials: Trials, warnings: list[str]) -> ExplainResult:
    prepared = prepare(ctx, spec)
    policy = str(ctx.policy(spec))
    try:
        chosen = choose_sketches(ctx, prepared)
    except UnsafeSketchError as unsafe:
        return ExplainResult(
            query=spec.name,
            mode="none",
            reason=unsafe.message,
            policy=policy,
            plan=plan_entries(ctx.tables, prepared, None, None),
            attributes=judge_candidates(ctx, prepared),
            trees=tree_entries(prepared, None, {}),
            answer=answer_entry(spec, None, None),
            answered=who_answers(ctx, prepared),
        )
    partitions = chosen.partitions(ctx, prepared)
    plan = plan_after_capture(ctx, prepared, chosen.verdict, partitions)
    warnings += lineage_warnings(ctx.tables, prepared, chosen)
    notes = kept_plan(prepared, chosen.verdict, partitions).notes
    keyed = keyed_rows(prepared.root, chosen.verdict.key_columns)
    pieces = stored_pieces(ctx, spec, plan)
    if pieces is not None:
        plan = plan_as_stored(prepared, chosen.verdict, partitions, plan, pieces.stored)
    return ExplainResult(
        query=spec.name,
        mode=plan.mode.value,
        reason=plan.reason,
        policy=policy,
        plan=plan_entries(ctx.tables, prepared, plan, pieces, notes, keyed),
        attributes=trials.tried(prepared, plan, partitions, chosen.candidates),
        joins=() if plan.compiled is None else tuple(map(_side, plan.compiled.sides)),
        groups=() if plan.compiled is None else tuple(map(_groups, plan.compiled.groupings)),
        buffers=buffer_entries(prepared, plan, pieces),
        trees=tree_entries(prepared, plan, partitions, None if pieces is None else pieces.pieces),
        state_bytes=None if pieces is None else pieces.bytes,
        answer=answer_entry(spec, plan, pieces),
        provenance=provenance_kept(spec, plan.provenance),
        answered=who_answers(ctx, prepared),
    )


def _groups(choice: SideChoice) -> GroupsEntry:
    return GroupsEntry(choice.side, choice.tables, choice.mode, choice.reason)


def _side(choice: SideChoice) -> JoinSideEntry:
    return JoinSideEntry(
        choice.side,
        choice.tables,
        choice.strategy.value,
        choice.mode,
        choice.reason,
        choice.rows,
        choice.bytes,
    )


# Buffers of first rows and of MIN and MAX. Law: stored state is shown as stored, with the reason of
# the choice; if nobody chose, with what prevents a bound.

_OPEN = "all are stored unless a budget is too small"
_LEAST = "requested"


def buffer_entries(
    prepared: PreparedQuery, plan: MaintenancePlan, pieces: StoredPieces | None
) -> tuple[BuffersEntry, ...]:
    if plan.compiled is None:
        return ()
    read = plan.sides_by(Strategy.FILES)
    chosen = chosen_buffers(prepared.spec, plan.compiled)
    meta = (
        StateMeta.read(pieces.stored.query, pieces.stored.state_meta)
        if pieces is not None
        else None
    )
    return tuple(
        BuffersEntry(
            buffer.piece,
            buffer.tables,
            "kept" if buffer.size is None else "bounded",
            buffer.size,
            buffer.piece in chosen,
            _reason(prepared, meta, buffer, is_chosen=buffer.piece in chosen),
            None if pieces is None else _bytes(pieces, buffer.piece),
        )
        for buffer in plan.compiled.buffers
        if buffer.piece not in read
    )


def _reason(
    prepared: PreparedQuery, meta: StateMeta | None, choice: BufferChoice, *, is_chosen: bool
) -> str:
    stored = "" if meta is None else meta.side_reasons.get(choice.piece, "")
    if is_chosen:
        return stored or _LEAST
    return why_not_bounded(prepared, meta, choice) or stored or _OPEN


def _bytes(pieces: StoredPieces, piece: str) -> int:
    names = (name for name in pieces.pieces if name == piece or name.startswith(f"{piece}."))
    return sum(pieces.pieces[name] for name in names)


_NODE = tuple(name for name in TreeNodeEntry.__struct_fields__ if name != "bytes")
# Join trees. Law: reported for every query with joins, whether it requests trees or not; what
# prevents one has its location.

_OF_NODE = re.compile(r"tree(?P<tree>\d+)\.tree\d+/(?P<node>\d+)\.")
"""Name of a tree node's state in the store."""


def tree_entries(
    prepared: PreparedQuery,
    plan: MaintenancePlan | None,
    partitions: Partitions,
    pieces: Mapping[str, int] | None = None,
) -> tuple[TreeResultEntry, ...]:
    """Entries for blocks of joins at the top; `plan` None: no safe sketch; `pieces`: bytes by
    name."""
    core = prepared.core if plan is None or plan.core is None else plan.core
    sketched = {access: partition.attribute for access, partition in partitions.items()}
    used = () if plan is None else plan.shapes
    sizes = iter(_sizes(pieces or {}))
    return tuple(
        _entry(
            shape, prepared, plan, sketched, next(sizes, {}) if isinstance(shape, TreeShape) else {}
        )
        for shape in used or tree_shapes(core)
        if not (isinstance(shape, NoTree) and shape.reason is Reason.ONE_TABLE)
    )


def _sizes(pieces: Mapping[str, int]) -> Iterator[dict[int, int]]:
    result = defaultdict[int, Counter[int]](Counter)
    for name, size in pieces.items():
        match = _OF_NODE.match(name)
        if match is not None:
            result[int(match["tree"])][int(match["node"])] += size
    yield from (nodes for _, nodes in sorted(result.items()))


def _entry(
    shape: TreeShape | NoTree,
    prepared: PreparedQuery,
    plan: MaintenancePlan | None,
    sketched: Mapping[AccessId, ColumnName],
    sizes: Mapping[int, int],
) -> TreeResultEntry:
    if isinstance(shape, NoTree):
        return TreeResultEntry(False, f"none: {shape.text}", prepared.place(shape.span))
    is_used = plan is not None and plan.has_tree
    tree_entry = join_trees_explain.tree_entry(shape, sketched)
    entry = TreeResultEntry(
        is_used,
        _why_tree(prepared, plan),
        mode=tree_entry.mode,
        height=tree_entry.height,
        nodes=tuple(
            TreeNodeEntry(**{name: getattr(node, name) for name in _NODE}, bytes=sizes.get(node.at))
            for node in tree_entry.nodes
        ),
        drawn=join_trees_explain.tree_lines(tree_entry),
    )
    estimate = None if plan is None or plan.trees is None else plan.trees.estimate
    if estimate is None:
        return entry
    return replace(
        entry,
        joined=estimate.joined,
        touched=estimate.touched,
        index_ms=estimate.index_ms,
        tree_ms=estimate.tree_ms,
        index_bytes=round(estimate.index_bytes),
        tree_bytes=round(estimate.tree_bytes),
    )


def _why_tree(prepared: PreparedQuery, plan: MaintenancePlan | None) -> str:
    if prepared.spec.join is JoinStrategy.TREE:
        return "requested"
    if plan is None or plan.trees is None:
        return "possible; request it with `join: tree`"
    if plan.has_tree:
        return f"chosen: {plan.trees.reason}"
    return f"possible, not chosen: {plan.trees.reason}; request it with `join: tree`"


# Law: stored state is maintained as the capture left it, whatever would be chosen today: state that
# did not fit into memory may have become trees, or lack the answer, and a budget may have had join
# sides read.

_NO_ANSWER = "the capture could not store it along with the sketch"


def plan_as_stored(
    prepared: PreparedQuery,
    verdict: Verdict,
    partitions: Partitions,
    plan: MaintenancePlan,
    stored: StoredQuery,
) -> MaintenancePlan:
    """The plan of the stored state; `plan`, which a capture would choose now, if they agree."""
    meta = StateMeta.read(stored.query, stored.state_meta)
    if is_less(stored, plan):
        no_answer = meta.way if prepared.spec.answer else ""
        return MaintenancePlan(
            stored.mode, meta.way, accesses=plan.accesses, core=plan.core, no_answer=no_answer
        )
    by_spark, from_files = plan.sides_by(Strategy.SPARK), plan.sides_by(Strategy.FILES)
    has_same_sides = {*meta.distant} == {*by_spark} and {*meta.from_files} == {*from_files}
    has_same_sides &= meta.provenance == plan.provenance
    has_same_sides &= meta.buffers == chosen_buffers(prepared.spec, plan.compiled)
    has_same_answer = meta.answer == (plan.answer is not None)
    if bool(meta.trees) == plan.has_tree and has_same_answer and has_same_sides:
        return plan
    chooser = chooser_of(prepared, meta)
    result = chosen_plan(prepared, verdict, partitions, chooser, has_answer=meta.answer)
    if result.has_tree == plan.has_tree:
        # The reason also holds for the stored state.
        result = replace(result, trees=plan.trees)
    is_left_out = prepared.spec.answer and not meta.answer
    return replace(
        result, reason=meta.way, no_answer=_NO_ANSWER if is_left_out else result.no_answer
    )


# Optional packages that a query needs. Law: nothing is imported. A missing package is no error of
# the file, and the sketch may be readable; capture and maintenance here will fail, which is
# reported in advance.


def extra_warnings(queries: Iterable[QueryName]) -> tuple[str, ...]:
    names = ", ".join(f"`{name}`" for name in queries)
    missing = missing_package() if names else None
    if missing is None:
        return ()
    text = f"{names} cannot be captured here: {missing.message}; {missing.hint} [{EXTRA_MISSING}]"
    return (text,)


# The plan line by line. Law: says what is chosen and stored and decides nothing. State is shown
# only if it belongs to the query as it is now.

_NO_NOTES: Mapping[int, str] = {}


class StoredPieces(Struct, frozen=True):
    """Stored state: bytes by piece name, and the fixpoints followed back from the answer."""

    stored: StoredQuery
    pieces: Mapping[str, int]
    followed: Sequence[BackwardFixpoint] = ()

    @property
    def bytes(self) -> int:
        return sum(self.pieces.values())


def stored_pieces(ctx: Context, spec: QuerySpec, plan: MaintenancePlan) -> StoredPieces | None:
    """The stored state; None if the current query was not captured."""
    store = ctx.reading_store()
    stored = None if store is None else store.load(spec.name)
    if store is None or stored is None:
        return None
    is_of_way = stored.mode is plan.mode or is_less(stored, plan)
    if not is_of_way or not is_captured_alike(ctx, spec, stored):
        return None
    pieces, runs = Counter[str](), store.run_refs(spec.name)
    for run in runs:
        pieces[run.arrangement] += run.bytes
    return StoredPieces(stored, pieces, backward_fixpoints(runs))


def is_less(stored: StoredQuery, plan: MaintenancePlan) -> bool:
    """Whether the capture could not fill the plan's state, by an error, memory or close doubles."""
    return stored.mode is MaintenanceMode.RECAPTURE and plan.mode is MaintenanceMode.EXACT


def plan_entries(
    tables: PinnedTables,
    prepared: PreparedQuery,
    plan: MaintenancePlan | None,
    pieces: StoredPieces | None,
    notes: Mapping[int, str] = _NO_NOTES,
    keyed: Collection[AttributeId] = (),
) -> tuple[PlanEntry, ...]:
    """Lines in the order of `nodes_of`, with `notes` by position and `keyed` columns of
    fixpoints."""
    nodes = tuple(nodes_of(prepared.root))
    blocking = (
        None if plan is None or plan.mode is MaintenanceMode.EXACT else _blocking(nodes, plan.span)
    )
    sizes, read = _state_by_position(nodes, plan, pieces), _read(nodes, plan)
    pushed = _pushed(tables, prepared, nodes, pieces)
    more = (notes, _lineage_by_position(nodes, plan, pieces), recursion_notes(prepared.root, keyed))
    entries = []
    lines = _flat(describe(prepared.root), 0)
    for position, ((depth, line), node) in enumerate(zip(lines, nodes, strict=True)):
        is_blocking, is_read = position == blocking, position in read
        why = _why(node, plan, is_blocking=is_blocking, is_read=is_read)
        entries.append(
            PlanEntry(
                depth=depth,
                operator=line.operator,
                detail=line.detail,
                how="" if plan is None else plan.mode.value,
                why="; ".join(filter(None, (why, *(texts.get(position) for texts in more)))),
                place=prepared.place(line.span),
                state_bytes=sizes.get(position),
                pushed=pushed.get(position, ()),
            )
        )
    return tuple(entries)


def _flat(line: PlanLine, depth: int) -> Iterator[tuple[int, PlanLine]]:
    yield depth, line
    for child in line.children:
        yield from _flat(child, depth + 1)


def _why(node: Plan, plan: MaintenancePlan | None, *, is_blocking: bool, is_read: bool) -> str:
    if plan is None:
        return ""
    if is_blocking:
        return plan.reason
    match plan.mode:
        case MaintenanceMode.EXACT if is_read:
            return "reads the rows of changed groups, stores a filter of keys; see its groups"
        case MaintenanceMode.EXACT:
            return _in_tree(node, plan) or _exactly(node, plan)
        case MaintenanceMode.TOUCH:
            return "adds the ranges of changed rows, computes nothing"
        case MaintenanceMode.RECAPTURE:
            return "recomputed with the whole query"
        case _:
            assert_never(plan.mode)


def _in_tree(node: Plan, plan: MaintenancePlan) -> str:
    """How a join tree maintains this join or grouping; empty for other nodes."""
    accesses = {scan.access for scan in scans_of(node)}
    trees = (shape for shape in plan.shapes if isinstance(shape, TreeShape))
    if not any(accesses <= {a for part in tree.nodes for a in part.accesses} for tree in trees):
        return ""
    match node:
        case Join():
            return "part of the join tree, shown separately: writes no joined row"
        case Aggregate():
            return "its groups are those of the join tree"
    return ""


_LEAVES = {
    Scan: "changes enter here, each row with its range",
    Recursive: "rows of the enclosing fixpoint",
    OneRow: "constant rows",
}


def _exactly(node: Plan, plan: MaintenancePlan) -> str:
    match node:
        case Scan() | Recursive() | OneRow():
            return _LEAVES[type(node)]
        case Explode():
            return "processed by Spark"
        case Select() | Project() | Sort():
            return "processes each changed row by itself, stores nothing"
        case Join():
            return "joins changed rows of one side with the rows of the other, see its sides"
        case Aggregate():
            return "stores a row per group and counts per group and range"
        case Distinct():
            return "stores how often each row occurs"
        case SetOperation():
            return (
                "processes each changed row by itself"
                if node.all
                else "stores how often each row occurs"
            )
        case TopK():
            return "stores the first rows and candidates to follow them"
        case Window() if any(call.order for call in node.calls):
            return "stores its rows and sorts a window partition again when a row of it changes"
        case Window():
            return (
                "stores its rows and a value per window partition; a new value applies to all "
                "its rows"
            )
        case Fixpoint() if plan.provenance:
            return (
                "stores its rows, and which table rows derive each; `why` uses them "
                f"(provenance by absorption, {plan.provenance})"
            )
        case Fixpoint():
            return "stores its rows, each with the round that derived it"
        case Witness():
            return "stores the deciding rows and candidates to follow them"
        case _:
            assert_never(node)


def _state_by_position(
    nodes: tuple[Plan, ...], plan: MaintenancePlan | None, pieces: StoredPieces | None
) -> dict[int, int]:
    if plan is None or plan.compiled is None or pieces is None:
        return {}
    sizes = dict.fromkeys(range(len(nodes)), 0)
    for name, owner in plan.compiled.owners.items():
        position = _position(nodes, owner)
        if position is not None:
            sizes[position] += pieces.pieces.get(name, 0)
    return sizes


def _lineage_by_position(
    nodes: tuple[Plan, ...], plan: MaintenancePlan | None, pieces: StoredPieces | None
) -> dict[int, str]:
    if plan is None or plan.compiled is None or pieces is None:
        return {}
    owners = plan.compiled.owners
    named = {followed.note: owners.get(f"{followed.name}.rows") for followed in pieces.followed}
    result = {n: _position(nodes, owner) for n, owner in named.items() if owner is not None}
    return {position: note for note, position in result.items() if position is not None}


def _read(nodes: tuple[Plan, ...], plan: MaintenancePlan | None) -> frozenset[int]:
    """Positions of groupings and DISTINCTs whose groups are read when they change."""
    if plan is None or plan.compiled is None:
        return frozenset()
    read = {
        grouping.side for grouping in plan.compiled.groupings if grouping.strategy is Strategy.FILES
    }
    result = (
        _position(nodes, owner)
        for name, owner in plan.compiled.owners.items()
        # A semi join also owns the DISTINCT made for it, and its sides are shown instead.
        if name.partition(".")[0] in read and isinstance(owner, Aggregate | Distinct)
    )
    return frozenset(position for position in result if position is not None)


def _position(nodes: tuple[Plan, ...], owner: Plan) -> int | None:
    """The operator of the whole plan that corresponds to one of its core."""
    alike = [index for index, node in enumerate(nodes) if type(node) is type(owner)]
    matching = [
        position
        for position in alike
        if nodes[position].span == owner.span and owner.span is not None
    ]
    return matching[0] if matching else alike[0] if len(alike) == 1 else None


def _pushed(
    tables: PinnedTables,
    prepared: PreparedQuery,
    nodes: tuple[Plan, ...],
    pieces: StoredPieces | None,
) -> dict[int, tuple[str, ...]]:
    ranges = {} if pieces is None else _ranges(tables, prepared, pieces.stored)
    result: dict[int, tuple[str, ...]] = {}
    for position, node in enumerate(nodes):
        if isinstance(node, Scan):
            total = len(tables.snapshot(node.table).schema.names)
            columns = f"reads {len(node.attributes)} of {count_text(total, 'column')}"
            texts = [columns]
            live = dict(prepared.query.live).get(node.table)
            if live is not None:
                condition = live_condition(live).sql(DIALECT)
                texts.append(f"rows expire: at {prepared.now} a row is live if {condition}")
            result[position] = (*texts, *ranges.get(node.access, ()))
        elif isinstance(node, Select) and isinstance(node.child, Scan):
            result[position] = ("pushed down to the scan",)
    return result


def _ranges(
    tables: PinnedTables, prepared: PreparedQuery, stored: StoredQuery
) -> dict[str, tuple[str, ...]]:
    """The ranges of each sketched access and their files; none if history is gone."""
    try:
        pruned = filters_of(tables, prepared, stored.sketches, stored.versions)
        totals = {
            scan.table: len(tables.snapshot(scan.table, stored.versions[scan.table]).files)
            for scan in prepared.scans
        }
    except ImpctlError:
        return {}
    result: dict[str, tuple[str, ...]] = {}
    for scan in prepared.scans:
        if scan.access in pruned.filters:
            texts = " or ".join(interval_texts(pruned.filters[scan.access])) or "no row"
            files = f"{len(pruned.files[scan.table])} of {count_text(totals[scan.table], 'file')}"
            result[scan.access] = (f"with the sketch: {texts}; Spark reads {files}",)
    return result


def _blocking(nodes: tuple[Plan, ...], span: Span | None) -> int:
    """Position of the lowest node with the blocking expression; else the root."""
    if span is None:
        return 0
    result = [
        position
        for position, node in enumerate(nodes)
        for part in _spans_of(node)
        if part is not None and part.start <= span.start and span.end <= part.end
    ]
    return result[-1] if result else 0


def _spans_of(node: Plan) -> Iterator[Span | None]:
    yield node.span
    match node:
        case Select():
            yield from (part.span for part in walk(node.predicate))
        case Project():
            yield from (part.span for out in node.outputs for part in walk(out.expr))
        case Aggregate():
            yield from (part.span for key in node.keys for part in walk(key.expr))
            yield from (output.call.span for output in node.aggregates)
        case Window():
            yield from (call.span for call in node.calls)
        case _:
            return


# The cost of materializing a result. Law: before the capture a bound or a size per row, never a
# guess; stored state is counted. Rows that a join tree lists need nothing.


def answer_entry(
    spec: QuerySpec, plan: MaintenancePlan | None, stored: StoredPieces | None
) -> AnswerEntry | None:
    if not spec.answer:
        return None
    if plan is None:
        return AnswerEntry(False, "the query has no safe sketch, which a materialized result needs")
    if plan.answer is None:
        return AnswerEntry(False, plan.no_answer)
    is_lying = plan.stored_answer is not None
    rows = kept_rows(plan.answer.ending).rows
    first = plan.answer.ending.first
    is_cut = first is not None and first.order and first.count is not None
    return AnswerEntry(
        kept=True,
        reason="",
        columns=tuple(attribute.name for attribute in plan.answer.ending.columns),
        row_bytes=row_bytes(rows.columns, 0) if is_lying else 0,
        most_rows=first.count + first.offset if is_cut and first and first.count else None,
        state_bytes=None if stored is None else stored.pieces.get(rows.name, 0),
    )


# What a sketch will skip, by a capture that stores nothing. The engine runs it in memory if that
# takes at most about two seconds and the tables are on the local disk; otherwise the estimate from
# a sample is shown (`service.estimate`).

MOST_ROWS = 6_000_000
"""Rows of a query's tables, at most: the engine reads about three million a second."""
_MOST_ROWS_OF_RUN = 3 * MOST_ROWS


class Trials:
    """The trials of one `explain`, together at most a few seconds."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._rows_left = _MOST_ROWS_OF_RUN

    def tried(
        self,
        prepared: PreparedQuery,
        plan: MaintenancePlan,
        partitions: Partitions,
        candidates: Sequence[CandidateEntry],
    ) -> tuple[CandidateEntry, ...]:
        """The candidates, the chosen ones with what their sketches read."""
        ctx, compiled = self._ctx, plan.compiled
        snapshots = [ctx.tables.snapshot(table) for table in prepared.tables]
        rows = sum(snapshot.likely_rows for snapshot in snapshots)
        if (
            plan.mode is not MaintenanceMode.EXACT
            or compiled is None
            or compiled.asks_spark
            or not 0 < rows <= min(MOST_ROWS, self._rows_left)
            or any(local_path(snapshot.path) is None for snapshot in snapshots)
            or not is_loaded_here(ctx, compiled)
        ):
            return tuple(candidates)
        self._rows_left -= rows
        ctx.reporter.step(f"running the capture of {prepared.spec.name} without storing it")
        try:
            session = loaded(ctx, compiled, partitions)
        except ImpctlError:
            return tuple(candidates)  # `capture` reports what is wrong
        if session is None:
            return tuple(candidates)
        read = _reading(ctx, prepared, stored_sketches(prepared, partitions, session.ranges()))
        return tuple(
            replace(entry, expected=read[entry.table])
            if entry.chosen and entry.table in read
            else entry
            for entry in candidates
        )


def _reading(
    ctx: Context, prepared: PreparedQuery, sketches: Sequence[StoredSketch]
) -> dict[TableName, ExpectedReading]:
    pruned = filters_of(ctx.tables, prepared, sketches, ctx.tables.versions_of(prepared.tables))
    result = {}
    for table in {sketch.table for sketch in sketches}:
        snapshot, files = ctx.tables.snapshot(table), pruned.files[table]
        result[table] = ExpectedReading(
            files=len(files),
            files_low=len(files),
            files_high=len(files),
            files_total=len(snapshot.files),
            rows=rows_in(snapshot, files) or 0,
            bytes=bytes_of(files),
            is_measured=True,
        )
    return result
