"""Explain what would be done with a query, and why; check which queries can have a sketch."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, assert_never

from msgspec import Struct
from msgspec.structs import replace

from impctl.compile.answers import kept_rows
from impctl.compile.compile import MaintenancePlan
from impctl.compile.flows import Strategy, row_bytes
from impctl.compile.jointree import shape as trees
from impctl.compile.jointree.graph import Reason, TreeShape
from impctl.engine.fixpoint.absorption import EXTRA_MISSING, missing_package
from impctl.errors import ImpctlError, UnsafeSketchError, count_text
from impctl.expr.nodes import Span
from impctl.plan import nodes as p
from impctl.plan.explain import describe
from impctl.plan.recursion import keyed_rows, recursion_notes
from impctl.safety.judge import Judges
from impctl.service.advice import BackwardFixpoint, backward_fixpoints
from impctl.service.capture import stored_sketches
from impctl.service.capture_plan import (
    CapturePlan,
    judge_candidates,
    lineage_warnings,
    plan_capture,
)
from impctl.service.context import Context, collect_results, is_refused
from impctl.service.fill import is_loaded_here, loaded
from impctl.service.filters import filters_of, interval_texts
from impctl.service.maintenance_plan import chooser_of, chosen_buffers, chosen_plan, why_not_bounded
from impctl.service.prepare import PreparedQuery, kept_plan, prepare
from impctl.service.query import who_answers
from impctl.service.results import (
    AnsweredEntry,
    AnswerEntry,
    BuffersEntry,
    CandidateEntry,
    CheckResult,
    ExpectedReading,
    ExplainResult,
    GroupsEntry,
    JoinSideEntry,
    Outcome,
    PlanEntry,
    TreeResultEntry,
)
from impctl.service.stored import StateMeta, is_captured_alike, provenance_kept
from impctl.sketch.sketch import MaintenanceMode
from impctl.spark.expressions import DIALECT
from impctl.spark.predicates import live_condition
from impctl.tables.snapshot import bytes_of, rows_in
from impctl.tables.storage import local_path
from impctl.workload.models import JoinStrategy, QuerySpec
from impctl.workload.schema import workload_json_schema

if TYPE_CHECKING:
    from impctl.store.records import StoredQuery, StoredSketch
    from impctl.types import QueryName, TableName


# Law: writes nothing and never starts Spark; reads metadata, the store, a sample, and rows of small
# tables on the local disk. Every operator says how it would be maintained, every attribute whether
# it is safe, every refusal its position in the SQL.


def explain(ctx: Context, queries: Sequence[QueryName] | None) -> Outcome:
    """Explain each query (default: all)."""
    results: list[ExplainResult] = []
    warnings: list[str] = []
    trials = Trials(ctx)

    def explained(spec: QuerySpec) -> Iterator[ExplainResult]:
        prepared = prepare(ctx, spec)
        assessment = assess(ctx, prepared, warnings)
        results.append(_Explanation(ctx, prepared, assessment).result(trials))
        yield results[-1]

    outcome = collect_results(ctx.queries(queries), explained)
    warnings += extra_warnings(result.query for result in results if result.provenance)
    is_new = any(result.mode != "none" and result.state_bytes is None for result in results)
    note = f"next: impctl capture {ctx.workload.file}" if is_new else ""
    return replace(outcome, warnings=tuple(warnings), note=note)


class Assessment(Struct, frozen=True):
    """What a capture would choose for a query; without it, why it can have no sketch."""

    candidates: tuple[CandidateEntry, ...]
    capture: CapturePlan | None = None
    refusal: UnsafeSketchError | None = None


def assess(
    ctx: Context, prepared: PreparedQuery, warnings: list[str], *, reads: bool = True
) -> Assessment:
    """Choose sketches and plan their maintenance, as a capture does; `reads`: from a sample."""
    judges = Judges()
    try:
        capture = plan_capture(ctx, prepared, every=True, reads=reads, judges=judges)
    except UnsafeSketchError as unsafe:
        return Assessment(judge_candidates(ctx, prepared, judges), refusal=unsafe)
    warnings += lineage_warnings(ctx.tables, capture)
    return Assessment(capture.candidates, capture)


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


class StoredPieces(Struct, frozen=True):
    """Stored state: bytes by piece name, and the fixpoints followed back from the answer."""

    stored: StoredQuery
    meta: StateMeta
    sizes: Mapping[str, int]
    followed: Sequence[BackwardFixpoint] = ()

    @property
    def bytes(self) -> int:
        return sum(self.sizes.values())


def _stored_pieces(ctx: Context, spec: QuerySpec, plan: MaintenancePlan) -> StoredPieces | None:
    """The stored state; None if the current query was not captured."""
    store = ctx.reading_store()
    stored = None if store is None else store.load(spec.name)
    if store is None or stored is None:
        return None
    is_of_way = stored.mode is plan.mode or _is_less(stored, plan)
    if not is_of_way or not is_captured_alike(ctx, spec, stored):
        return None
    sizes, runs = Counter[str](), store.run_refs(spec.name)
    for run in runs:
        sizes[run.arrangement] += run.bytes
    meta = StateMeta.read(stored.query, stored.state_meta)
    return StoredPieces(stored, meta, sizes, backward_fixpoints(runs))


def _is_less(stored: StoredQuery, plan: MaintenancePlan) -> bool:
    """Whether the capture could not fill the plan's state, by an error, memory or close doubles."""
    return stored.mode is MaintenanceMode.RECAPTURE and plan.mode is MaintenanceMode.EXACT


# Law: stored state is maintained as the capture left it, whatever would be chosen today: state that
# did not fit into memory may have become trees, or lack the answer, and a budget may have had join
# sides read.

_NO_ANSWER = "the capture could not store it along with the sketch"


def _plan_as_stored(query: CapturePlan, pieces: StoredPieces) -> MaintenancePlan:
    """The plan of the stored state; that which a capture would choose now, if they agree."""
    meta, prepared, spec, plan = pieces.meta, query.prepared, query.prepared.spec, query.plan
    if _is_less(pieces.stored, plan):
        no_answer = meta.way if spec.answer else ""
        return MaintenancePlan(
            pieces.stored.mode,
            meta.way,
            accesses=plan.accesses,
            core=plan.core,
            no_answer=no_answer,
        )
    by_spark, from_files = plan.sides_by(Strategy.SPARK), plan.sides_by(Strategy.FILES)
    has_same_sides = {*meta.distant} == {*by_spark} and {*meta.from_files} == {*from_files}
    has_same_sides &= meta.provenance == plan.provenance
    has_same_sides &= meta.buffers == chosen_buffers(spec, plan.compiled)
    has_same_answer = meta.answer == (plan.answer is not None)
    if bool(meta.trees) == plan.has_tree and has_same_answer and has_same_sides:
        return plan
    result = chosen_plan(query, chooser_of(prepared, meta), has_answer=meta.answer)
    if result.has_tree == plan.has_tree:
        # The reason also holds for the stored state.
        result = replace(result, trees=plan.trees)
    is_left_out = spec.answer and not meta.answer
    return replace(
        result, reason=meta.way, no_answer=_NO_ANSWER if is_left_out else result.no_answer
    )


# What is shown of a query. Law: says what is chosen and stored and decides nothing. State is shown
# only if it belongs to the query as it is now, and then as stored.

_OPEN = "all are stored unless a budget is too small"
_LEAST = "requested"
_OF_NODE = re.compile(r"tree(?P<tree>\d+)\.tree\d+/(?P<node>\d+)\.")
"""Name of a tree node's state in the store."""
_LEAVES = {
    p.Scan: "changes enter here, each row with its range",
    p.Recursive: "rows of the enclosing fixpoint",
    p.OneRow: "constant rows",
}


class _Explanation:
    """Builds the result of a query from the stored plan, or else from that of a capture."""

    def __init__(self, ctx: Context, prepared: PreparedQuery, assessment: Assessment) -> None:
        self._ctx = ctx
        self._prepared, self._spec = prepared, prepared.spec
        self._nodes = tuple(prepared.root.walk())
        self._assessment, self._capture = assessment, assessment.capture
        self._pieces: StoredPieces | None = None
        self._plan: MaintenancePlan | None = None
        if self._capture is not None:
            self._plan = self._capture.plan
            self._pieces = _stored_pieces(ctx, self._spec, self._plan)
            if self._pieces is not None:
                self._plan = _plan_as_stored(self._capture, self._pieces)
        self._compiled = None if self._plan is None else self._plan.compiled

    def result(self, trials: Trials) -> ExplainResult:
        plan, pieces, compiled = self._plan, self._pieces, self._compiled
        refusal, attributes = self._assessment.refusal, self._assessment.candidates
        mode, reason = "none", "" if refusal is None else refusal.message
        if plan is not None and self._capture is not None:
            mode, reason = plan.mode.value, plan.reason
            attributes = trials.tried(self._capture, plan)
        return ExplainResult(
            query=self._spec.name,
            mode=mode,
            reason=reason,
            policy=str(self._ctx.policy(self._spec)),
            plan=tuple(self._operators()),
            attributes=attributes,
            joins=tuple(
                JoinSideEntry(s.side, s.tables, s.strategy.value, s.mode, s.reason, s.rows, s.bytes)
                for s in (() if compiled is None else compiled.sides)
            ),
            groups=tuple(
                GroupsEntry(group.side, group.tables, group.mode, group.reason)
                for group in (() if compiled is None else compiled.groupings)
            ),
            buffers=tuple(self._buffers()),
            trees=tuple(self._trees()),
            state_bytes=None if pieces is None else pieces.bytes,
            answer=answer_entry(self._spec, plan, pieces),
            provenance=None if plan is None else provenance_kept(self._spec, plan.provenance),
            answered=who_answers(self._ctx, self._prepared),
        )

    # Buffers of first rows and of MIN and MAX, with the reason of the choice; if nobody chose, with
    # what prevents a bound.

    def _buffers(self) -> Iterator[BuffersEntry]:
        plan, pieces, compiled = self._plan, self._pieces, self._compiled
        if plan is None or compiled is None:
            return
        read, meta = plan.sides_by(Strategy.FILES), None if pieces is None else pieces.meta
        chosen = chosen_buffers(self._spec, compiled)
        for buffer in compiled.buffers:
            piece, is_chosen = buffer.piece, buffer.piece in chosen
            if piece in read:
                continue
            reason = "" if meta is None else meta.side_reasons.get(piece, "")
            if is_chosen:
                reason = reason or _LEAST
            else:
                reason = why_not_bounded(self._prepared, meta, buffer) or reason or _OPEN
            yield BuffersEntry(
                piece,
                buffer.tables,
                "kept" if buffer.size is None else "bounded",
                buffer.size,
                is_chosen,
                reason,
                None if pieces is None else _bytes(pieces, piece),
            )

    # Join trees: reported for every query with joins, whether it requests trees or not; what
    # prevents one has its location.

    def _trees(self) -> Iterator[TreeResultEntry]:
        """The blocks of joins at the top."""
        plan = self._plan
        core = self._prepared.core if plan is None or plan.core is None else plan.core
        sizes = iter(self._tree_sizes())
        for shape in (() if plan is None else plan.shapes) or trees.tree_shapes(core):
            if isinstance(shape, TreeShape):
                yield self._tree(shape, next(sizes, {}))
            elif shape.reason is not Reason.ONE_TABLE:
                location = self._prepared.place(shape.span)
                yield TreeResultEntry(False, f"none: {shape.text}", location)

    def _tree_sizes(self) -> list[Counter[int]]:
        """For each tree, the stored bytes by node."""
        result = defaultdict[int, Counter[int]](Counter)
        for name, size in () if self._pieces is None else self._pieces.sizes.items():
            match = _OF_NODE.match(name)
            if match is not None:
                result[int(match["tree"])][int(match["node"])] += size
        return [nodes for _, nodes in sorted(result.items())]

    def _tree(self, shape: TreeShape, sizes: Mapping[int, int]) -> TreeResultEntry:
        plan = self._plan
        columns = {} if self._capture is None else self._capture.attributes
        nodes = trees.tree_nodes(shape, columns, sizes)
        entry = TreeResultEntry(
            plan is not None and plan.has_tree,
            self._why_tree(),
            mode=str(shape.mode),
            height=shape.height,
            nodes=nodes,
            drawn=trees.tree_lines(shape, nodes),
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

    def _why_tree(self) -> str:
        plan = self._plan
        if self._spec.join is JoinStrategy.TREE:
            return "requested"
        if plan is None or plan.trees is None:
            return "possible; request it with `join: tree`"
        if plan.has_tree:
            return f"chosen: {plan.trees.reason}"
        return f"possible, not chosen: {plan.trees.reason}; request it with `join: tree`"

    # The plan line by line.

    def _operators(self) -> Iterator[PlanEntry]:
        """Entries in the order of `walk()`."""
        plan, notes = self._plan, self._notes()
        blocking = None
        if plan is not None and plan.mode is not MaintenanceMode.EXACT:
            blocking = _blocking(self._nodes, plan.span)
        sizes, read, pushed = self._state_by_position(), self._read(), self._pushed()
        for position, (depth, node, operator, detail) in enumerate(describe(self._prepared.root)):
            why = ""
            if plan is not None:
                is_blocking = position == blocking
                why = plan.reason if is_blocking else _why(node, plan, is_read=position in read)
            yield PlanEntry(
                depth=depth,
                operator=operator,
                detail=detail,
                how="" if plan is None else plan.mode.value,
                why="; ".join(filter(None, (why, *(texts.get(position) for texts in notes)))),
                place=self._prepared.place(node.span),
                state_bytes=sizes.get(position),
                pushed=pushed.get(position, ()),
            )

    def _notes(self) -> tuple[Mapping[int, str], ...]:
        """Remarks by position: on what a capture keeps, on stored lineage, on recursion."""
        root, sketched = self._prepared.root, self._capture
        if sketched is None:
            return (recursion_notes(root, ()),)
        return (
            kept_plan(sketched).notes,
            self._lineage_by_position(),
            recursion_notes(root, keyed_rows(root, sketched.verdict.key_columns)),
        )

    @property
    def _owners(self) -> Mapping[str, p.Plan]:
        return {} if self._compiled is None else self._compiled.owners

    def _state_by_position(self) -> dict[int, int]:
        if self._compiled is None or self._pieces is None:
            return {}
        sizes = dict.fromkeys(range(len(self._nodes)), 0)
        for name, owner in self._owners.items():
            position = self._position(owner)
            if position is not None:
                sizes[position] += self._pieces.sizes.get(name, 0)
        return sizes

    def _lineage_by_position(self) -> dict[int, str]:
        result = {}
        for fixpoint in () if self._pieces is None else self._pieces.followed:
            owner = self._owners.get(f"{fixpoint.name}.rows")
            position = None if owner is None else self._position(owner)
            if position is not None:
                result[position] = fixpoint.note
        return result

    def _read(self) -> frozenset[int | None]:
        """Positions of groupings and DISTINCTs whose groups are read when they change."""
        groupings = () if self._compiled is None else self._compiled.groupings
        read = {choice.side for choice in groupings if choice.strategy is Strategy.FILES}
        return frozenset(
            self._position(owner)
            for name, owner in self._owners.items()
            # A semi join also owns the DISTINCT made for it, and its sides are shown instead.
            if name.partition(".")[0] in read and isinstance(owner, p.Aggregate | p.Distinct)
        )

    def _position(self, owner: p.Plan) -> int | None:
        """The operator of the whole plan that corresponds to one of its core."""
        alike = [index for index, node in enumerate(self._nodes) if type(node) is type(owner)]
        matching = [
            position
            for position in alike
            if self._nodes[position].span == owner.span and owner.span is not None
        ]
        return matching[0] if matching else alike[0] if len(alike) == 1 else None

    def _pushed(self) -> dict[int, tuple[str, ...]]:
        """What scans and filters apply early, by position."""
        tables, prepared, ranges = self._ctx.tables, self._prepared, self._ranges()
        result: dict[int, tuple[str, ...]] = {}
        for position, node in enumerate(self._nodes):
            if isinstance(node, p.Scan):
                total = len(tables.snapshot(node.table).schema.names)
                texts = [f"reads {len(node.attributes)} of {count_text(total, 'column')}"]
                live = dict(prepared.query.live).get(node.table)
                if live is not None:
                    condition = live_condition(live).sql(DIALECT)
                    texts.append(f"rows expire: at {prepared.now} a row is live if {condition}")
                result[position] = (*texts, *ranges.get(node.access, ()))
            elif isinstance(node, p.Select) and isinstance(node.child, p.Scan):
                result[position] = ("pushed down to the scan",)
        return result

    def _ranges(self) -> dict[str, tuple[str, ...]]:
        """The ranges of each sketched access and their files; none if history is gone."""
        if self._pieces is None:
            return {}
        tables, prepared, stored = self._ctx.tables, self._prepared, self._pieces.stored
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
                total = count_text(totals[scan.table], "file")
                files = f"{len(pruned.files[scan.table])} of {total}"
                result[scan.access] = (f"with the sketch: {texts}; Spark reads {files}",)
        return result


def _bytes(pieces: StoredPieces, piece: str) -> int:
    names = (name for name in pieces.sizes if name == piece or name.startswith(f"{piece}."))
    return sum(pieces.sizes[name] for name in names)


def _why(node: p.Plan, plan: MaintenancePlan, *, is_read: bool) -> str:
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


def _in_tree(node: p.Plan, plan: MaintenancePlan) -> str:
    """How a join tree maintains this join or grouping; empty for other nodes."""
    accesses = {scan.access for scan in node.scans}
    trees = (shape for shape in plan.shapes if isinstance(shape, TreeShape))
    if not any(accesses <= {a for part in tree.nodes for a in part.accesses} for tree in trees):
        return ""
    match node:
        case p.Join():
            return "part of the join tree, shown separately: writes no joined row"
        case p.Aggregate():
            return "its groups are those of the join tree"
    return ""


def _exactly(node: p.Plan, plan: MaintenancePlan) -> str:
    match node:
        case p.Scan() | p.Recursive() | p.OneRow():
            return _LEAVES[type(node)]
        case p.Explode():
            return "processed by Spark"
        case p.Select() | p.Project() | p.Sort():
            return "processes each changed row by itself, stores nothing"
        case p.Join():
            return "joins changed rows of one side with the rows of the other, see its sides"
        case p.Aggregate():
            return "stores a row per group and counts per group and range"
        case p.Distinct():
            return "stores how often each row occurs"
        case p.SetOperation():
            return (
                "processes each changed row by itself"
                if node.all
                else "stores how often each row occurs"
            )
        case p.TopK():
            return "stores the first rows and candidates to follow them"
        case p.Window() if any(call.order for call in node.calls):
            return "stores its rows and sorts a window partition again when a row of it changes"
        case p.Window():
            return (
                "stores its rows and a value per window partition; a new value applies to all "
                "its rows"
            )
        case p.Fixpoint() if plan.provenance:
            return (
                "stores its rows, and which table rows derive each; `why` uses them "
                f"(provenance by absorption, {plan.provenance})"
            )
        case p.Fixpoint():
            return "stores its rows, each with the round that derived it"
        case p.Witness():
            return "stores the deciding rows and candidates to follow them"
        case _:
            assert_never(node)


def _blocking(nodes: tuple[p.Plan, ...], span: Span | None) -> int:
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


def _spans_of(node: p.Plan) -> Iterator[Span | None]:
    yield node.span
    match node:
        case p.Select():
            yield from (part.span for part in node.predicate.walk())
        case p.Project():
            yield from (part.span for out in node.outputs for part in out.expr.walk())
        case p.Aggregate():
            yield from (part.span for key in node.keys for part in key.expr.walk())
            yield from (output.call.span for output in node.aggregates)
        case p.Window():
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
        state_bytes=None if stored is None else stored.sizes.get(rows.name, 0),
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

    def tried(self, query: CapturePlan, plan: MaintenancePlan) -> tuple[CandidateEntry, ...]:
        """The candidates, the chosen ones with what their sketches read by this plan."""
        ctx, compiled, prepared = self._ctx, plan.compiled, query.prepared
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
            return query.candidates
        self._rows_left -= rows
        ctx.reporter.step(f"running the capture of {prepared.spec.name} without storing it")
        try:
            session = loaded(ctx, compiled, query.partitions)
        except ImpctlError:
            return query.candidates  # `capture` reports what is wrong
        if session is None:
            return query.candidates
        read = _reading(ctx, prepared, stored_sketches(query, session.ranges()))
        return tuple(
            replace(entry, expected=read[entry.table])
            if entry.chosen and entry.table in read
            else entry
            for entry in query.candidates
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


# Law: checks every query, whatever is wrong with another; writes nothing and does not start Spark.
# A query that can have no sketch is a finding, and a failure only with `strict`; an invalid one is
# a failure.


def check(
    ctx: Context, queries: Sequence[QueryName] | None = None, *, strict: bool = False
) -> Outcome:
    """Check each query (default: all); `strict`: every one must have a sketch."""
    warnings: list[str] = []
    outcome = collect_results(
        ctx.queries(queries), lambda spec: _checked(ctx, spec, warnings, strict=strict)
    )
    known = ctx.workload.queries
    warnings += extra_warnings(
        result.query
        for result in outcome.results
        if isinstance(result, CheckResult)
        and result.supported
        and known[result.query].provenance is not None
    )
    old = [spec for spec in ctx.workload.partitions if spec.is_old_key]
    if old:
        warnings.append(f"{old[0].location}: the key `fragments` is now called `ranges`; rename it")
    return replace(outcome, warnings=tuple(warnings))


def schema_text() -> str:
    """The JSON Schema of the workload file, for editors."""
    return json.dumps(workload_json_schema(), indent=2) + "\n"


def _checked(
    ctx: Context, spec: QuerySpec, warnings: list[str], *, strict: bool
) -> Iterator[CheckResult]:
    answered: AnsweredEntry | None = None
    query: Assessment | None = None
    refusal: ImpctlError | None = None
    try:
        prepared = prepare(ctx, spec)
        answered = who_answers(ctx, prepared)
        if spec.is_sketched:
            query = assess(ctx, prepared, warnings, reads=False)
            refusal = query.refusal
    except ImpctlError as error:
        refusal = error
    if refusal is not None and not is_refused(spec, refusal):
        raise refusal
    if not spec.is_sketched:
        yield CheckResult(spec.name, answered=answered)
        return
    plan = None if query is None or query.capture is None else query.capture.plan
    result = CheckResult(
        spec.name,
        candidates=() if query is None else query.candidates,
        answer=answer_entry(spec, plan, None),
        answered=answered,
    )
    if plan is not None:
        yield replace(result, supported=True, mode=plan.mode.value, reason=plan.reason)
        return
    assert refusal is not None, "a query without a plan was refused"
    reason, hint, location = refusal.message, refusal.hint, refusal.location
    yield replace(result, mode=None, reason=reason, hint=hint, place=location)
    if strict:
        raise refusal
