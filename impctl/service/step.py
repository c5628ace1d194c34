"""Maintenance steps of stale queries: changes in, sketches and state committed."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from impctl.compile.session import Checkpoint, MaintainedQuery, TableChange, TouchedQuery
from impctl.data.vector import Vector, from_arrow
from impctl.engine.linear import range_ids_of
from impctl.errors import ImpctlError, count_text
from impctl.service.context import Context, Isolated, Versions
from impctl.service.decide import (
    NOT_INCREMENTALLY,
    Decider,
    Decision,
    Move,
    Stale,
    StaleQuery,
    TableDelta,
    change_up_to,
    check_assumptions,
)
from impctl.service.pinned import PinnedTables
from impctl.service.prepare import PreparedQuery, next_expiry, prepare
from impctl.service.results import (
    ANSWER_OPEN,
    ANSWER_SAME,
    Failure,
    MaintainResult,
    MaintainStep,
    TreeWork,
)
from impctl.service.stored import (
    StateMeta,
    check_not_replaced_meanwhile,
    depths,
    is_current,
    moved_moments,
    ranges_entry,
    stored_moments,
)
from impctl.service.text import named_before
from impctl.sketch.sketch import RangeSet
from impctl.sql.parameters import RUN_INSTANT
from impctl.stopwatch import Stopwatch
from impctl.store.records import (
    MaintainCommit,
    RunCost,
    RunKind,
    RunParts,
    RunRecord,
    SideRead,
    StoredQuery,
    StoredSketch,
    buffer_name,
)
from impctl.tables.changes import Changes, check_same_columns, no_changes
from impctl.tables.snapshot import Snapshot
from impctl.tables.source import other_history
from impctl.types import AccessId, ColumnName, TableName, TableVersion

if TYPE_CHECKING:
    import pyarrow as pa

    from impctl.compile.flows import Source
    from impctl.service.capture import BeforeCommit, Captured
    from impctl.service.maintenance_plan import QueryState
    from impctl.service.result_changes import ChangeFiles, ChangeWriter
    from impctl.service.state_cache import StateCache
    from impctl.store.store import Store


class StepDone(Struct, frozen=True):
    """What one step did and cost; ranges by access."""

    action: str
    versions: Versions
    added: Mapping[AccessId, tuple[int, ...]] = field(default_factory=dict)
    removed: Mapping[AccessId, tuple[int, ...]] = field(default_factory=dict)
    changes: int = 0
    changed_bytes: int = 0
    read_ms: float = 0.0
    engine_ms: float = 0.0
    commit_ms: float = 0.0
    unsure: int = 0
    refilled: tuple[int, int] = (0, 0)
    """Groups whose bounded buffer was refilled, and the rows read for that."""
    tree: TreeWork | None = None
    """The work of its join trees, if any."""
    note: str = ""
    """What expired and what was read for that, and whether a recursion was recomputed."""
    may_change_answer: bool = True
    parts: RunParts | None = None
    """Rows of its operators and side reads, where the engine stepped a circuit."""

    @property
    def total_ms(self) -> float:
        return self.read_ms + self.engine_ms + self.commit_ms


# Law: a step commits sketches, state and versions together or changes nothing. Assumptions are
# checked before anything is computed. A step never recaptures; RecaptureNeededError leaves that to
# the decision (`service.decide`).

_RECOMPUTED = "most rows of the recursion were deleted, so they were recomputed from its state"


class Maintainer:
    """Maintains a restored query step by step."""

    def __init__(
        self,
        ctx: Context,
        store: Store | None,
        state: QueryState,
        move: Move | None = None,
        writer: ChangeWriter | None = None,
        spark_start: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """With a `move` the only step follows the clock too. The answer's changes go to `writer`
        before each commit. Without a `store` nothing is committed: only the state in memory moves.
        `spark_start` is the part of a step's time that started Spark."""
        self.ctx = ctx
        self.store = store
        self.state = state
        self._move = move
        self._writer = writer
        self._spark_start = spark_start

    def step(
        self, deltas: Iterable[TableDelta], *, reason_code: str, reason: str, changed_bytes: int = 0
    ) -> StepDone:
        """Maintain with these tables' changes and commit; other tables keep their versions."""
        watch = Stopwatch()
        state, moved = self.state, {delta.table: delta for delta in deltas}
        check_assumptions(state.stored, moved.values())
        done = StepDone(
            str(state.plan.mode),
            self._versions_after(moved),
            changes=sum(change.rows for change in moved.values()),
            changed_bytes=changed_bytes,
            read_ms=sum(change.read_ms for change in moved.values()),
        )
        if self._writer is not None:
            self._writer.begin()
        grouped = [change.grouped for change in moved.values() if change.grouped is not None]
        if state.session is not None and grouped:
            (change,), unsure = grouped, state.session.unsure_rows()
            state.session.absorb(change.pass_, change.inserted, change.deleted, change.partition)
            done = replace(done, unsure=state.session.unsure_rows() - unsure)
            after = state.session.ranges()
        elif state.session is not None:
            done, after = self._compute(state.session, moved, done)
        else:
            after, count = self._touch(moved)
            done = replace(done, changes=done.changes + count)
        expired = ""
        if self._move is not None and self._move.is_of_expiry:
            count = done.changes - sum(change.rows for change in moved.values())
            count_read, total = len(self._move.files_read), sum(self._move.files.values())
            read = f"{count_read:,} of {count_text(total, 'file')}"
            verb = "was" if count_read == 1 else "were"
            expired = f"{count_text(count, 'row')} expired; {read} {verb} read for them"
        added, removed = _differences(state.ranges, after)
        done = replace(
            done,
            added=added,
            removed=removed,
            note="; ".join(filter(None, (expired, done.note))),
            may_change_answer=self._move is not None or may_change_answer(state, moved, after),
            engine_ms=watch.ms,
        )
        return self._commit(done, after, moved, reason_code, reason)

    def _compute(
        self, session: MaintainedQuery, moved: Mapping[TableName, TableDelta], done: StepDone
    ) -> tuple[StepDone, Mapping[AccessId, RangeSet]]:
        reader, compiled = None, session.compiled
        if compiled.distant:
            from impctl.service.fill import PartnerReader

            partitions = self.state.stored.partitions
            reader = PartnerReader(self.ctx, compiled, partitions, self._versions_after(moved))
            session.read_by(reader)
        before = session.circuit.spent
        unsure, (groups, rows) = session.unsure_rows(), session.refilled()
        work, filled, recomputed = session.tree_work(), session.refills(), session.recomputations()
        changes = {
            table: TableChange(change.changes.table, change.changes.weights, change.changes.shared)
            for table, change in moved.items()
            if change.rows
        }
        move, count = self._move, 0

        def table_rows(source: Source, keys: Mapping[ColumnName, Vector]) -> Iterable[pa.Table]:
            from impctl.service.fill import refill_rows

            change = moved.get(source.table)
            if change is not None:
                until = self.ctx.tables.snapshot(source.table, change.until)
                return refill_rows(until, source, keys)
            assert move is not None, "what did not change is not refilled"
            return refill_rows(move.tables.snapshot(source.table), source, keys)

        if move is None:
            session.step(changes, table_rows)
        else:
            count = session.move(changes, move.conditions, move.rows, table_rows, move.above)
        groups_after, rows_after = session.refilled()
        reads = [] if reader is None else list(reader.reads())
        for piece, after in session.refills().items():
            then = filled[piece]
            count_filled = after[0] - then[0]
            rows_read, ms = after[1] - then[1], after[2] - then[2]
            reads.append(SideRead(buffer_name(piece), count_filled, count_filled, rows_read, ms))
        tree = None
        if self.state.plan.has_tree:
            counts = zip(work, session.tree_work(), strict=True)
            tree = TreeWork(*(after - before for before, after in counts))
        done = replace(
            done,
            changes=done.changes + count,
            unsure=session.unsure_rows() - unsure,
            refilled=(groups_after - groups, rows_after - rows),
            note=_RECOMPUTED if session.recomputations() > recomputed else "",
            tree=tree,
            parts=RunParts(
                tuple(now - then for now, then in zip(session.circuit.spent, before, strict=True)),
                tuple(reads),
            ),
        )
        return done, session.ranges()

    def _versions_after(self, moved: Mapping[TableName, TableDelta]) -> Versions:
        return {**self.state.versions, **{table: change.until for table, change in moved.items()}}

    def _touch(
        self, moved: Mapping[TableName, TableDelta]
    ) -> tuple[Mapping[AccessId, RangeSet], int]:
        """The sketch with the ranges of all changed rows, and how many moved with the clock."""
        touched = self.state.maintained
        assert isinstance(touched, TouchedQuery)
        sketch = self.state.stored.sketches[0]
        if sketch.table in moved:
            changes = moved[sketch.table].changes
            touched.step(TableChange(changes.table, changes.weights))
        count = 0 if self._move is None else touched.move(self._move.moved_rows())
        return {sketch.access: touched.ranges}, count

    def _commit(
        self,
        done: StepDone,
        ranges: Mapping[AccessId, RangeSet],
        moved: Mapping[TableName, TableDelta],
        reason_code: str,
        reason: str,
    ) -> StepDone:
        watch = Stopwatch()
        state, stored = self.state, self.state.stored
        pins = tuple(
            pin
            if (change := moved.get(pin.table)) is None
            else replace(pin, version=change.until, schema_json=change.ending.schema_json)
            for pin in stored.pins
        )
        checkpoint: Checkpoint = state.maintained.checkpoint()
        meta = self._meta(done, moved, checkpoint)
        record = _record(done, reason_code, reason, self._cost(done, moved))
        commit = MaintainCommit(
            query=stored.query,
            expected_generation=stored.generation,
            pins=pins,
            sketches=tuple(ranges.items()),
            put_runs=checkpoint.put,
            drop_runs=checkpoint.drop,
            state_meta=meta.as_stored(),
            basis=meta.basis(pins),
            record=record,
        )
        if self._writer is not None:
            self._writer.write(stored, done.versions, meta.moments)
        generation = stored.generation
        if self.store is not None:
            generation = self.store.commit_maintain(commit)
        state.committed(commit, generation, meta)
        commit_ms = watch.ms
        if self.store is not None:
            self.store.add_commit_time(stored.query, record, commit_ms)
        return replace(done, commit_ms=commit_ms)

    def _meta(
        self, done: StepDone, moved: Mapping[TableName, TableDelta], checkpoint: Checkpoint
    ) -> StateMeta:
        meta, move = self.state.meta, self._move
        work = meta.work
        if done.tree is not None:
            more = {"changes": done.changes, **asdict(done.tree)}
            work = {name: work.get(name, 0) + count for name, count in more.items()}
        now = (meta if move is None else move).moments.get(RUN_INSTANT)
        is_between = any(change.ending.version != change.until for change in moved.values())
        marks = {table: change.mark for table, change in moved.items()}
        files = {table: change.files for table, change in moved.items()}
        return replace(
            meta if move is None else replace(meta, moments=move.moments, circuit=move.circuit),
            # Not computed between two versions.
            expires="" if now is None or is_between else next_expiry(self.ctx, done.versions, now),
            # Tables without a new mark keep none.
            marks={t: m for t, m in {**meta.marks, **marks}.items() if m is not None},
            files={t: m for t, m in {**meta.files, **files}.items() if m is not None},
            counters=dict(checkpoint.counters),
            unsure=meta.unsure + done.unsure,
            depths=depths(self.state.range_rows, meta.depths),
            work=work,
        )

    def _cost(self, done: StepDone, moved: Mapping[TableName, TableDelta]) -> RunCost:
        """The time of the step, without starting Spark and its commit."""
        start_ms = self._spark_start()
        is_grouped = any(change.grouped is not None for change in moved.values())
        compiled = self.state.plan.compiled
        asks_spark = is_grouped or (compiled is not None and compiled.asks_spark)
        return RunCost(
            kind=RunKind.GROUPED if is_grouped else RunKind.MAINTAIN,
            rows=done.changes,
            bytes=done.changed_bytes,
            elapsed_ms=max(0.0, done.read_ms + done.engine_ms - start_ms),
            spark=asks_spark,
            start_ms=start_ms,
            moved=tuple(sorted(moved)),
            # What Spark was waited for is in some operator's time, its start too.
            parts=None if asks_spark else done.parts,
            layout=self.state.meta.layout,
        )


def _differences(
    before: Mapping[AccessId, RangeSet], after: Mapping[AccessId, RangeSet]
) -> tuple[dict[AccessId, tuple[int, ...]], dict[AccessId, tuple[int, ...]]]:
    """Ranges that entered and left the sketch of each access."""
    added = {access: after[access].minus(before[access]).ids for access in after}
    removed = {access: before[access].minus(after[access]).ids for access in after}
    return added, removed


def _record(done: StepDone, reason_code: str, reason: str, cost: RunCost) -> RunRecord:
    """The step's history record; its own commit is not timed yet when it is written."""
    work = "" if done.tree is None else done.tree.text
    parts = (reason, refill_text(*done.refilled), work, done.note)
    return RunRecord(
        action=done.action,
        reason_code=reason_code,
        reason="; ".join(filter(None, parts)),
        started_at=time.time(),
        elapsed_ms=done.read_ms + done.engine_ms,
        read_ms=done.read_ms,
        engine_ms=done.engine_ms,
        changes=done.changes,
        added=sum(len(result) for result in done.added.values()),
        removed=sum(len(result) for result in done.removed.values()),
        versions=dict(done.versions),
        cost=cost,
    )


def refill_text(groups: int, rows: int) -> str:
    """The refilling, as in history and results; empty if there was none."""
    if groups == 0:
        return ""
    # A grouping's state refills what lies above it; then no row was read.
    origin = f" from {count_text(rows, 'row')} of the table" if rows else ""
    return f"refilled the buffers of {count_text(groups, 'group')}{origin}"


# Whether a step may change the answer, counting all columns. Law: `False` only if no database with
# these two states gives two answers. A sketch that covers both states' provenance gives both
# answers (`docs/soundness.md`); if it has no changed row, it reads the same rows of both. So ranges
# decide, never values.


def may_change_answer(
    state: QueryState, moved: Mapping[TableName, TableDelta], after: Mapping[AccessId, RangeSet]
) -> bool:
    """Whether the answer may differ between the sketches `after` the step and before it."""
    schemas = {pin.table: pin.schema_json for pin in state.stored.pins}
    if any(change.ending.schema_json != schemas[table] for table, change in moved.items()):
        return True
    changed = {table: change for table, change in moved.items() if change.rows}
    if not changed:
        return False
    if state.session is None:
        return True
    for access, table in state.plan.accesses.items():
        if table not in changed:
            continue
        partition, change = state.stored.partitions.get(access), changed[table]
        if partition is None or change.grouped is not None:
            # Without a sketch, or if the rows are not available.
            return True
        changes = change.changes
        column = from_arrow(changes.table.column(partition.attribute), partition.type)
        # In a range of the sketch before or after the step.
        mask = state.ranges[access].union(after[access]).to_mask()
        if mask[range_ids_of(partition, column, changes.shared)].any():
            return True
    return False


# Results. Law: one result per sketch; sketches of a query share the run's cost, and ranges are net
# over all steps. Planned and executed decisions are reported by the same code.


def planned_results(tables: PinnedTables, decision: Decision) -> list[MaintainResult]:
    stored = decision.task.stored
    step = StepDone(
        decision.action,
        tables.versions_of(stored.versions),
        changes=sum(delta.rows for delta in decision.deltas),
        read_ms=sum(delta.read_ms for delta in decision.deltas),
    )
    results = step_results(stored, [step], decision.reason_code, decision.reason)
    return [replace(result, dry_run=True, answer_changed=None) for result in results]


def file_diff_warning(snapshot: Snapshot) -> str:
    """Why whole files were compared, and what helps."""
    table = snapshot.table
    if snapshot.has_change_feed:
        return (
            f"whole files of table `{table}` were compared, because its change feed does "
            "not cover all of this change. The feed was off, the log names deletion vectors or "
            "lacks details of a file, or another writer than Spark copied, added or removed files"
        )
    return (
        f"whole files of table `{table}` were compared, because it has no change feed for "
        "all of these versions; set `delta.enableChangeDataFeed` to true on it"
    )


def step_results(
    before: StoredQuery,
    steps: Sequence[StepDone],
    code: str,
    reason: str,
    sketches: Sequence[StoredSketch] | None = None,
) -> list[MaintainResult]:
    """One result per sketch, of a recapture per new one; they share the run's costs."""
    unsure = sum(step.unsure for step in steps)
    if unsure:
        reason = (
            f"{reason}; {unsure} groups stay in the sketch because a sum of doubles is too "
            "close to its limit"
        )
    refilled_groups, refilled_rows = map(sum, zip(*(step.refilled for step in steps), strict=True))
    refilled = refill_text(refilled_groups, refilled_rows)
    notes = dict.fromkeys(step.note for step in steps)
    trees = [step.tree for step in steps if step.tree is not None]
    results = []
    for sketch in before.sketches if sketches is None else sketches:
        added, removed = _net(steps, sketch.access)
        shown = tuple(
            MaintainStep(
                step.action,
                step.versions,
                step.added.get(sketch.access, ()),
                step.removed.get(sketch.access, ()),
                _changes([step]),
                step.total_ms,
                _answer_changed([step]),
            )
            for step in steps
        )
        result = MaintainResult(
            query=before.query,
            table=sketch.table,
            attribute=sketch.attribute,
            total=sketch.partition.ranges,
            action=steps[-1].action,
            reason_code=code,
            reason="; ".join(filter(None, (reason, refilled, *notes))),
            since=before.versions,
            versions=steps[-1].versions,
            added=added,
            removed=removed,
            changes=_changes(steps),
            elapsed_ms=sum(step.elapsed_ms for step in shown),
            read_ms=sum(step.read_ms for step in steps),
            engine_ms=sum(step.engine_ms for step in steps),
            commit_ms=sum(step.commit_ms for step in steps),
            steps=shown if len(shown) > 1 else (),
            refilled_groups=refilled_groups,
            refilled_rows=refilled_rows,
            tree=TreeWork(
                sum(tree.touched for tree in trees),
                sum(tree.flips for tree in trees),
                sum(tree.pairs for tree in trees),
            )
            if trees
            else None,
            answer_changed=_answer_changed(steps),
        )
        results.append(result)
    return results


def _changes(steps: Sequence[StepDone]) -> int | None:
    """Changed rows; None if a step read whole tables instead."""
    if any(step.action == "recapture" for step in steps):
        return None
    return sum(step.changes for step in steps)


def _answer_changed(steps: Sequence[StepDone]) -> str:
    return ANSWER_OPEN if any(step.may_change_answer for step in steps) else ANSWER_SAME


def _net(steps: Sequence[StepDone], access: AccessId) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ranges that entered and left an access's sketch over all steps."""
    change = Counter[int]()
    for step in steps:
        change.update(step.added.get(access, ()))
        change.subtract(step.removed.get(access, ()))
    added = tuple(sorted(f for f, sign in change.items() if sign > 0))
    removed = tuple(sorted(f for f, sign in change.items() if sign < 0))
    return added, removed


def recapture_results(
    before: StoredQuery, captured: Captured, elapsed_ms: float
) -> list[MaintainResult]:
    """One result per new sketch; a sketch with other ranges counts as added whole."""
    known = {(sketch.access, sketch.partition): sketch.ranges for sketch in before.sketches}
    old = {
        sketch.access: known.get(
            (sketch.access, sketch.partition), RangeSet.of((), sketch.partition.size)
        )
        for sketch in captured.sketches
    }
    new = {sketch.access: sketch.ranges for sketch in captured.sketches}
    added, removed = _differences(old, new)
    record = captured.record
    step = StepDone(
        "recapture",
        record.versions,
        added,
        removed,
        read_ms=record.read_ms,
        engine_ms=record.engine_ms,
        commit_ms=record.commit_ms,
    )
    sketches, code, reason = captured.sketches, record.reason_code, record.reason
    results = step_results(before, [step], code, reason, sketches)
    return [replace(result, elapsed_ms=elapsed_ms) for result in results]


def by_version(
    changes: Changes, until: TableVersion, batch_rows: int
) -> list[tuple[TableVersion, Changes]]:
    """Cut the change into batches of whole versions with at least `batch_rows` rows each; the last
    batch may be smaller. Each has the version that it reaches, the last one `until`."""
    if changes.ends is None or changes.rows == 0:
        return [(until, changes)]
    batches: list[tuple[TableVersion, Changes]] = []
    start, last = 0, len(changes.weights)
    for version, end in changes.ends.items():
        if start < end and (end == last or end - start >= batch_rows):
            part = changes.table.slice(start, end - start)
            reached = until if end == last else version
            batches.append((reached, Changes(part, changes.weights[start:end], changes.method)))
            start = end
    return batches


# Running decisions. Law: a run does what `service.decide` decided and writes nothing before that. A
# step that stops for a reason that the policy permits becomes a recapture. Steps of several queries
# share one commit, hence one sync; each is whole or absent, and only committed steps are reported.

_TOGETHER_MS = 1_000.0
"""How long steps wait for a common commit: work that a killed process repeats."""


class StaleRun:
    """The stale queries of one run; failures and warnings go to the caller's lists."""

    def __init__(
        self,
        ctx: Context,
        store: Store,
        batch_rows: int,
        failures: list[Failure],
        warnings: list[str],
        cache: StateCache | None = None,
    ) -> None:
        self.ctx = ctx
        self.store = store
        self.batch_rows = batch_rows
        self.failures = failures
        self.warnings = warnings
        self.cache = cache
        self.decider = Decider(ctx, store, failures, cache)
        self._files: ChangeFiles | None = None
        self._start_reported = 0.0
        self._tasks = 0
        self._unreplaced: set[object] = set()
        """Values checked against the tables since a change was last read."""

    def results(self, stale: Stale) -> list[MaintainResult]:
        """Maintain or recapture each; a failing query is recorded."""
        results: list[MaintainResult] = []
        waiting = deque(self.decider.opened(stale))
        self._tasks = len(waiting)
        while waiting:
            results += self._batch(waiting)
        return results

    def results_of_clock(self, stale: Stale) -> list[MaintainResult]:
        """Move current sketches on with the clock: eager queries pass the versions first."""
        late = []
        for spec, before in stale:
            if not stored_moments(before):
                continue
            stored = self.store.load(spec.name)
            if stored is None or not is_current(stored, self.ctx.tables):
                continue
            if moved_moments(self.ctx, stored):
                late.append((spec, stored))
        return self.results(late) if late else []

    def _batch(self, waiting: deque[StaleQuery]) -> list[MaintainResult]:
        """As many tasks as fit into one commit, then their recaptures, which would delay others."""
        stepped: list[tuple[StaleQuery, list[MaintainResult]]] = []
        again: list[Decision] = []
        sync_ms = 0.0
        try:
            # The steps of several tasks are one commit; one task alone has its own per step.
            with self.store.together() if len(waiting) > 1 else nullcontext():
                watch = Stopwatch()
                is_time = True
                while waiting and is_time:
                    task = waiting.popleft()
                    number = self._tasks - len(waiting)
                    self.ctx.reporter.step(f"maintaining {task.spec.name}", number, self._tasks)
                    with Isolated(self.failures, task.spec):
                        decision = self.decider.decide(task)
                        try:
                            if not decision.is_recapture:
                                stepped.append((task, self._advance(decision)))
                        except NOT_INCREMENTALLY as trouble:
                            decision = self.decider.instead(task, trouble)
                        if decision.is_recapture:
                            again.append(decision)
                    is_time = watch.ms < _TOGETHER_MS
                watch = Stopwatch()
            sync_ms = watch.ms
        except ImpctlError as error:
            self.failures += [Failure(task.spec.name, error) for task, _ in stepped]
            stepped = []
        results: list[MaintainResult] = []
        for task, result in stepped:
            share = sync_ms / len(stepped)
            results += [
                replace(step, elapsed_ms=step.elapsed_ms + share, commit_ms=step.commit_ms + share)
                for step in result
            ]
            if self.cache is not None and task.state is not None:
                self.cache.keep(self.ctx, task.state)
        for decision in again:
            with Isolated(self.failures, decision.task.spec):
                results += self._recapture(decision)
        return results

    def _spark_start(self) -> float:
        """Milliseconds of starting Spark since the last call."""
        before, self._start_reported = self._start_reported, self.ctx.spark_start_ms
        return self._start_reported - before

    def _advance(self, decision: Decision) -> list[MaintainResult]:
        task, state = decision.task, decision.task.state
        assert state is not None
        self._spark_start()
        pieces = self._pieces(decision, state)
        changed_bytes = self.decider.changed_bytes(decision) if len(pieces) == 1 else 0
        for delta in decision.deltas:
            if delta.changes.method == "file_diff":
                self._warn(file_diff_warning(delta.ending))
        # Checked once after each reading.
        pins = tuple((pin.table, pin.table_id, pin.version) for pin in task.stored.pins)
        meta = task.stored.state_meta
        checked = (pins, repr(meta.get("marks")), repr(meta.get("files")))
        if decision.is_grouped or any(delta.read_ms for delta in decision.deltas):
            self._unreplaced.clear()
        if checked not in self._unreplaced:
            check_not_replaced_meanwhile(task.stored, self.ctx.tables)
            self._unreplaced.add(checked)
        writer, files = None, self._files_for(task)
        if files is not None:
            from impctl.service.result_changes import ChangeWriter

            answer = None if task.move is None else task.move.answer
            writer = ChangeWriter(files.write, self.ctx.session_zone, state.plan, answer)
        maintainer = Maintainer(self.ctx, self.store, state, task.move, writer, self._spark_start)
        steps = [
            maintainer.step(
                deltas,
                reason_code=decision.reason_code,
                reason=decision.reason,
                changed_bytes=changed_bytes,
            )
            for deltas in pieces
        ]
        results = step_results(task.stored, steps, decision.reason_code, decision.reason)
        return self._reported(state.stored, results)

    def _files_for(self, task: StaleQuery) -> ChangeFiles | None:
        """Where changes of the query's answer are to be written, if anywhere; warns if they start
        over."""
        if self.ctx.settings.changes is None:
            return None
        if task.spec.answer and not task.stored.state_meta.get("answer"):
            never = "" if task.state is None else task.state.plan.no_answer
            self._warn(
                f"the result of query `{task.spec.name}` "
                + (
                    f"cannot be materialized ({never})"
                    if never
                    else "was not materialized before this run"
                )
                + ", so no file with its changes was written"
            )
            return None
        if not task.spec.answer:
            return None
        if self._files is None:
            from impctl.service.result_changes import ChangeFiles

            self._files = ChangeFiles(self.ctx.settings.changes.absolute())
        return self._files

    def _reported(
        self, stored: StoredQuery, results: Sequence[MaintainResult]
    ) -> list[MaintainResult]:
        """Add how even the sketches' ranges are now, the clock's values and the files written."""
        written = () if self._files is None else self._files.written.get(stored.query, ())
        return [
            replace(
                result,
                ranges=ranges_entry(self.ctx, stored, result.table, result.attribute),
                moments=stored_moments(stored),
                change_files=tuple(written),
            )
            for result in results
        ]

    def _pieces(self, decision: Decision, state: QueryState) -> list[Sequence[TableDelta]]:
        """What each step processes: all tables at once, or eagerly a batch of one table."""
        task, tables = decision.task, self.ctx.tables
        if decision.is_grouped:
            from impctl.service.fill import grouped_change

            assert state.plan.compiled is not None
            need, watch, stored = decision.needs[0], Stopwatch(), state.stored
            before, after = (
                tables.snapshot(need.table, number) for number in (need.since, need.until)
            )
            check_same_columns(before.columns, before.version, after, need.columns)
            if need.mark is not None and before.mark.digest != need.mark.digest:
                raise other_history(tables.source(need.table))
            grouped = grouped_change(
                self.ctx, state.plan.compiled, stored.partitions, before, after, stored.assumptions
            )
            nothing = no_changes(after, need.columns)
            return [[change_up_to(tables, need.table, nothing, need.until, watch.ms, grouped)]]
        if not task.is_eager or task.move is not None:
            return [decision.deltas]
        pieces: list[Sequence[TableDelta]] = []
        for delta in decision.deltas:
            read_ms = delta.read_ms
            for version, changes in by_version(delta.changes, delta.until, self.batch_rows):
                pieces.append([change_up_to(tables, delta.table, changes, version, read_ms)])
                read_ms = 0.0
        return pieces

    def _warn(self, warning: str) -> None:
        if warning not in self.warnings:
            self.warnings.append(warning)

    def _recapture(self, decision: Decision) -> list[MaintainResult]:
        from impctl.service.capture import capture_query, without_provenance

        task, reason, trouble = decision.task, decision.reason, decision.task.trouble
        self.ctx.reporter.step(f"recapturing {task.spec.name}: {reason}")
        watch, prepared = Stopwatch(), prepare(self.ctx, task.spec)
        write, files = None, self._files_for(task)
        if files is not None:
            write = self._recapture_writer(files, prepared)
        captured = capture_query(
            self.ctx,
            self.store,
            prepared,
            code=decision.reason_code,
            reason=reason,
            before_commit=write,
        )
        stored = self.store.load(task.spec.name)
        assert stored is not None
        dropped = _dropped_text(task.stored, stored)
        if dropped or (trouble is not None and trouble.code != "not_incremental"):
            why = named_before(task.spec.name, reason)
            self.warnings.append(f"query `{task.spec.name}` was recaptured: {why}{dropped}")
        without = captured.planned.plan.no_provenance
        if without:
            self._warn(without_provenance(task.spec.name, without))
        results = recapture_results(task.stored, captured, watch.ms)
        return self._reported(stored, results)

    def _recapture_writer(self, files: ChangeFiles, prepared: PreparedQuery) -> BeforeCommit:
        """Writes the changes since the newest stored result; earlier steps are committed."""
        from impctl.service.result_changes import lead_of, recapture_changes, stored_rows

        spec, zone = prepared.spec, self.ctx.session_zone
        stored = self.store.load(spec.name)
        assert stored is not None
        before = stored_rows(self.ctx, self.store, spec, stored)
        versions = self.ctx.tables.versions_of(prepared.tables)
        lead = lead_of(stored, versions, prepared.moments)
        return lambda plan, state: files.write(
            lead, recapture_changes(spec.name, before, plan, state, zone)
        )


def _dropped_text(before: StoredQuery, after: StoredQuery) -> str:
    """Sketches that a recapture dropped, as text."""
    left = {(sketch.table, sketch.attribute) for sketch in after.sketches}
    dropped = [sketch for sketch in before.sketches if (sketch.table, sketch.attribute) not in left]
    if not dropped:
        return ""
    names = dict.fromkeys(f"`{sketch.table}.{sketch.attribute}`" for sketch in dropped)
    return f"; it no longer has a sketch on {' and '.join(names)}"
