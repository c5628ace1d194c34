"""Bring stored sketches up to the pinned versions of their tables."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from impctl.errors import EvaluationError, ImpctlError, RecaptureNeededError
from impctl.service.context import Context, Isolated, is_refused, remember_histories
from impctl.service.results import (
    ANSWER_OPEN,
    ANSWER_SAME,
    Failure,
    MaintainResult,
    MaintainStep,
    Outcome,
    TreeWork,
)
from impctl.service.settings import DEFAULT_BATCH_ROWS, disk_of, scrub_of
from impctl.service.stored import (
    catch_up,
    check_not_replaced_meanwhile,
    has_ending,
    is_captured_alike,
    is_current,
    moved_moments,
    still,
    stored_moments,
    stored_query,
)
from impctl.service.text import named_before
from impctl.stopwatch import Stopwatch
from impctl.workload.models import Policy, QuerySpec

if TYPE_CHECKING:
    from impctl.service.capture import Captured
    from impctl.service.context import Versions
    from impctl.service.decide import ReadChange, Stage, Stale, StaleQuery, TableDelta
    from impctl.service.kept_states import StateCache
    from impctl.service.maintenance_plan import QueryState
    from impctl.service.pinned import PinnedTables
    from impctl.service.prepare import PreparedQuery
    from impctl.service.result_changes import ChangeWriter, RecaptureChangeWriter
    from impctl.service.step import StepDone
    from impctl.service.table_deltas import ChangeRequest
    from impctl.store.records import StoredQuery, StoreReader
    from impctl.store.store import Store
    from impctl.tables.snapshot import Snapshot
    from impctl.types import AccessId, QueryName, TableName, TableVersion


# What was done with a stale query, or would be, told as the results that are shown. Law: one
# result per sketch; sketches of one query share what the run cost, and ranges are net over all
# steps. A stage that is only foreseen is told by the same code as one that was run.


def foreseen_results(tables: PinnedTables, task: StaleQuery, stage: Stage) -> list[MaintainResult]:
    from impctl.service.decide import changed_rows
    from impctl.service.step import StepDone

    stored = task.stored
    versions = tables.versions_of(pin.table for pin in stored.pins)
    changes = 0 if stage.is_recapture else changed_rows(stage.read)
    step = StepDone(stage.action, versions, changes=changes, read_ms=stage.read_ms)
    results = step_results(stored, stored.versions, [step], stage.reason_code, stage.reason)
    return [replace(result, foreseen=True, answer_changed=None) for result in results]


def with_ranges(
    ctx: Context, stored: StoredQuery, results: Sequence[MaintainResult]
) -> list[MaintainResult]:
    """Add how even the sketches' ranges are now, and the clock's values."""
    from impctl.service.advice import ranges_entry

    moments = stored_moments(stored)
    return [
        replace(
            result,
            ranges=ranges_entry(ctx, stored, result.table, result.attribute),
            moments=moments,
        )
        for result in results
    ]


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
    stored: StoredQuery, since: Versions, steps: Sequence[StepDone], code: str, reason: str
) -> list[MaintainResult]:
    """One result per sketch; they share the run's costs."""
    from impctl.service.table_deltas import refill_text

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
    for sketch in stored.sketches:
        added, removed = _net(steps, sketch.access)
        shown = tuple(
            MaintainStep(
                step.action,
                step.versions,
                step.added.get(sketch.access, ()),
                step.removed.get(sketch.access, ()),
                _changes([step]),
                step.read_ms + step.engine_ms + step.commit_ms,
                _answer_changed([step]),
            )
            for step in steps
        )
        result = MaintainResult(
            query=stored.query,
            table=sketch.table,
            attribute=sketch.attribute,
            total=sketch.partition.ranges,
            action=steps[-1].action,
            reason_code=code,
            reason="; ".join(filter(None, (reason, refilled, *notes))),
            since=since,
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
    stored: StoredQuery, captured: Captured, stage: Stage, elapsed_ms: float
) -> list[MaintainResult]:
    before = {(sketch.access, sketch.partition): sketch.ranges for sketch in stored.sketches}
    results = []
    for sketch in captured.sketches:
        old = before.get((sketch.access, sketch.partition))
        added = sketch.ranges.ids if old is None else sketch.ranges.minus(old).ids
        removed = () if old is None else old.minus(sketch.ranges).ids
        results.append(
            MaintainResult(
                query=stored.query,
                table=sketch.table,
                attribute=sketch.attribute,
                total=sketch.partition.ranges,
                action="recapture",
                reason_code=stage.reason_code,
                reason=stage.reason,
                since=stored.versions,
                versions=captured.versions,
                added=added,
                removed=removed,
                changes=None,
                elapsed_ms=elapsed_ms,
                read_ms=captured.spark_ms,
                engine_ms=captured.engine_ms,
                commit_ms=captured.commit_ms,
                answer_changed=ANSWER_OPEN,
            )
        )
    return results


# Stale sketches brought up to date: each stage that was decided is carried out. Law: what is done
# is what `service.decide` says, and nothing is written before it has; a step that stops for a
# reason which the policy lets pass becomes a recapture. Steps of several queries are committed
# together, so that the disk is waited for once; each of them is whole or not there, and a result
# is told only of what was committed.

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
        kept: StateCache | None = None,
    ) -> None:
        from impctl.service.decide import Decisions
        from impctl.service.result_changes import change_files

        self.ctx = ctx
        self.store = store
        self.batch_rows = batch_rows
        self.failures = failures
        self.warnings = warnings
        self.kept = kept
        self.decisions = Decisions(ctx, store, failures, kept)
        self._files = change_files(ctx)
        self._written: dict[QueryName, list[str]] = {}
        self._start_reported = 0.0
        self._tasks = 0
        self._unreplaced: set[object] = set()
        """What was checked against the tables since a change was last read."""

    def results(self, stale: Stale) -> list[MaintainResult]:
        """Maintain or recapture each; a failing query is recorded."""
        results: list[MaintainResult] = []
        waiting = deque(self.decisions.opened(stale))
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
            is_passed = stored is not None and is_current(stored, self.ctx.tables)
            if stored is not None and is_passed and moved_moments(self.ctx, stored):
                late.append((spec, stored))
        return self.results(late) if late else []

    def _batch(self, waiting: deque[StaleQuery]) -> list[MaintainResult]:
        """As many tasks as fit into one commit, then their recaptures, which would delay others."""
        from impctl.service.decide import Stage

        stepped: list[tuple[StaleQuery, list[MaintainResult]]] = []
        again: list[tuple[StaleQuery, Stage]] = []
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
                        done = self._stepped(task)
                        if isinstance(done, Stage):
                            again.append((task, done))
                        else:
                            stepped.append((task, done))
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
                replace(one, elapsed_ms=one.elapsed_ms + share, commit_ms=one.commit_ms + share)
                for one in result
            ]
            if self.kept is not None and task.taken is not None:
                self.kept.keep(self.ctx, task.taken)
        for task, stage in again:
            with Isolated(self.failures, task.spec):
                results += self._recaptured(task, stage)
        return results

    def _spark_start(self) -> float:
        """Milliseconds of starting Spark since the last call."""
        before, self._start_reported = self._start_reported, self.ctx.spark_start_ms
        return self._start_reported - before

    def _stepped(self, task: StaleQuery) -> list[MaintainResult] | Stage:
        from impctl.service.decide import NOT_INCREMENTALLY

        stage = self.decisions.stage(task)
        if stage.is_recapture:
            return stage
        try:
            return self._advance(task, stage)
        except NOT_INCREMENTALLY as trouble:
            return self.decisions.instead(task, trouble)

    def _advance(self, task: StaleQuery, stage: Stage) -> list[MaintainResult]:
        from impctl.service.expiry import next_expiry
        from impctl.service.partners import partners_of
        from impctl.service.step import Maintainer

        taken = task.taken
        assert taken is not None
        since = dict(taken.versions)
        self._spark_start()
        if stage.is_grouped:
            watch = Stopwatch()
            pieces = [self._grouped(taken, stage.needs[0])]
            read_ms = watch.ms
        else:
            pieces, read_ms = self._pieces(task, stage.read), stage.read_ms
        size = self.decisions.size(stage.needs) if len(pieces) == 1 else None
        for result in stage.read:
            if result.changes.method == "file_diff":
                self._warn(file_diff_warning(self.ctx.tables.snapshot(result.need.table)))
        # Checked once after each reading.
        pins = tuple((pin.table, pin.table_id, pin.version) for pin in task.stored.pins)
        meta = task.stored.state_meta
        checked = (pins, repr(meta.get("marks")), repr(meta.get("files")))
        if stage.is_grouped or any(result.elapsed_ms for result in stage.read):
            self._unreplaced.clear()
        if checked not in self._unreplaced:
            check_not_replaced_meanwhile(task.stored, self.ctx.tables)
            self._unreplaced.add(checked)
        partners = partners_of(self.ctx, taken.way, taken.stored.partitions)
        writer = self._writer(task, taken)
        maintainer = Maintainer(
            self.store,
            taken,
            partners,
            self._spark_start,
            task.move,
            writer,
            partial(next_expiry, self.ctx),
        )
        steps = []
        for moved in pieces:
            done = maintainer.step(
                moved,
                read_ms=read_ms,
                reason_code=stage.reason_code,
                reason=stage.reason,
                changed_bytes=0 if size is None else size.bytes,
            )
            steps.append(done)
            read_ms = 0.0
        results = step_results(task.stored, since, steps, stage.reason_code, stage.reason)
        return self._with_files(with_ranges(self.ctx, taken.stored, results))

    def _writes_changes(self, task: StaleQuery) -> bool:
        """Whether changes of the query's answer are to be written; warns if they start over."""
        if task.spec.answer and not task.stored.state_meta.get("answer"):
            never = "" if task.taken is None else task.taken.way.no_answer
            self._warn(
                f"the result of query `{task.spec.name}` "
                + (
                    f"cannot be materialized ({never})"
                    if never
                    else "was not materialized before this run"
                )
                + ", so no file with its changes was written"
            )
            return False
        return task.spec.answer

    def _with_files(self, results: list[MaintainResult]) -> list[MaintainResult]:
        written = tuple(self._written.get(results[0].query, ())) if results else ()
        return [replace(result, change_files=written) for result in results]

    def _writer(self, task: StaleQuery, taken: QueryState) -> ChangeWriter | None:
        from impctl.service.result_changes import ChangeWriter

        if self._files is None or not self._writes_changes(task):
            return None
        before = None if task.move is None else task.move.answer
        written = self._written.setdefault(task.spec.name, [])
        return ChangeWriter(self._files, self.ctx.session_zone, taken.way, before, written)

    def _grouped(self, taken: QueryState, need: ChangeRequest) -> dict[TableName, TableDelta]:
        from impctl.service.decide import change_up_to
        from impctl.service.table_deltas import grouped_change
        from impctl.tables.changes import no_changes

        assert taken.way.compiled is not None
        grouped = grouped_change(
            self.ctx, taken.way.compiled, taken.stored.partitions, need, taken.stored.assumptions
        )
        nothing = no_changes(self.ctx.tables.snapshot(need.table, need.until), need.columns)
        return {
            need.table: replace(
                change_up_to(self.ctx.tables, need.table, nothing, need.until), grouped=grouped
            )
        }

    def _pieces(
        self, task: StaleQuery, read: Sequence[ReadChange]
    ) -> list[dict[TableName, TableDelta]]:
        """What each step processes: all tables at once, or eagerly a batch of one table."""
        from impctl.service.decide import change_up_to, changes_by_table
        from impctl.service.table_deltas import by_version

        if not task.is_eager or task.move is not None:
            return [changes_by_table(self.ctx.tables, read)]
        tables = self.ctx.tables
        return [
            {f.need.table: change_up_to(tables, f.need.table, piece.changes, piece.version)}
            for f in read
            for piece in by_version(f.changes, f.need.until, self.batch_rows)
        ]

    def _warn(self, warning: str) -> None:
        if warning not in self.warnings:
            self.warnings.append(warning)

    def _recaptured(self, task: StaleQuery, stage: Stage) -> list[MaintainResult]:
        from impctl.service.capture import capture_query, without_provenance
        from impctl.service.prepare import prepare

        trouble, reason = task.trouble, stage.reason
        self.ctx.reporter.step(f"recapturing {task.spec.name}: {reason}")
        watch, prepared = Stopwatch(), prepare(self.ctx, task.spec)
        writer = self._recapture_writer(task, prepared)
        captured = capture_query(
            self.ctx,
            self.store,
            prepared,
            code=stage.reason_code,
            reason=reason,
            tell=None if writer is None else writer.tell,
        )
        stored = self.store.load(task.spec.name)
        assert stored is not None
        lost = _lost(task.stored, stored)
        if lost or (trouble is not None and trouble.code != "not_incremental"):
            name = task.spec.name
            why = named_before(name, reason)
            self.warnings.append(f"query `{name}` was recaptured: {why}{lost}")
        if captured.way.no_provenance:
            self._warn(without_provenance(task.spec.name, captured.way.no_provenance))
        results = recapture_results(task.stored, captured, stage, watch.ms)
        return self._with_files(with_ranges(self.ctx, stored, results))

    def _recapture_writer(
        self, task: StaleQuery, prepared: PreparedQuery
    ) -> RecaptureChangeWriter | None:
        """The same for a recaptured answer; an error if it was not stored before."""
        from impctl.service.result_changes import RecaptureChangeWriter, lead_of, rows_kept

        if self._files is None or not self._writes_changes(task):
            return None
        # Steps before the failing one are committed.
        stored = self.store.load(task.spec.name)
        assert stored is not None
        before = rows_kept(self.ctx, self.store, task.spec, stored)
        lead = lead_of(stored, self.ctx.tables.versions_of(prepared.tables), prepared.moments)
        written = self._written.setdefault(task.spec.name, [])
        return RecaptureChangeWriter(self._files, self.ctx.session_zone, before, lead, written)


def _lost(before: StoredQuery, after: StoredQuery) -> str:
    """Sketches that a recapture dropped, as text."""
    left = {(one.table, one.attribute) for one in after.sketches}
    gone = [one for one in before.sketches if (one.table, one.attribute) not in left]
    if not gone:
        return ""
    names = dict.fromkeys(f"`{one.table}.{one.attribute}`" for one in gone)
    return f"; it no longer has a sketch on {' and '.join(names)}"


# Queries brought up to the pinned versions: those with nothing to do, and those that are stale.
# Law: a run with nothing to do reads no SQL and loads no planner, unless a sketch is to be used;
# a query that fails leaves its sketch as it was and does not stop the others.

NO_NEW_VERSION = "no new version"


def maintain_queries(
    ctx: Context,
    specs: Sequence[QuerySpec],
    batch_rows: int,
    kept: StateCache | None = None,
    *,
    for_use: bool = False,
) -> Outcome:
    """Maintain these queries, or report what would be done; one result per query and table.
    `for_use`: the sketches are about to be used, so the SQL is read even if no table changed, and a
    sketch captured under another reading is not current."""
    sketched = [spec for spec in specs if spec.is_sketched]
    if ctx.settings.dry_run:
        outcome = _foreseen(ctx, sketched, for_use=for_use)
    elif (current := _all_current(ctx, sketched, for_use)) is not None:
        # Using a sketch does not wait for a writer.
        outcome = Outcome(tuple(current), () if for_use else tuple(_kept_to_another(ctx)))
    else:
        with ctx.writing("maintain") as store:
            outcome = _maintained(ctx, store, sketched, batch_rows, kept, for_use=for_use)
    if len(sketched) == len(specs):
        return outcome
    without = [MaintainResult(query=spec.name) for spec in specs if not spec.is_sketched]
    done = [result for result in outcome.results if isinstance(result, MaintainResult)]
    return replace(outcome, results=_in_order(specs, [*done, *without]))


def _all_current(
    ctx: Context, specs: Sequence[QuerySpec], for_use: bool
) -> list[MaintainResult] | None:
    """The results if nothing has to be written, so that a reader need not wait for a writer. None
    if something has to be done or reported for some query."""
    store = ctx.reading_store()
    results: list[MaintainResult] = []
    try:
        for spec in specs:
            stored = stored_query(ctx, store, spec)
            catch_up(ctx.tables, stored)
            if not has_nothing_to_do(ctx, spec, stored, for_use=for_use):
                return None
            results += unchanged_results(ctx, stored)
    except ImpctlError:
        # Some query cannot even be checked: the run reports that for this query alone.
        return None
    return results


def _foreseen(ctx: Context, specs: Sequence[QuerySpec], *, for_use: bool) -> Outcome:
    store = ctx.reading_store()
    failures: list[Failure] = []
    results, stale = _sorted_out(ctx, store, specs, failures, for_use)
    if stale and store is not None:
        from impctl.service.decide import Decisions

        for task, stage in Decisions(ctx, store, failures).stages(stale):
            with Isolated(failures, task.spec):
                results += foreseen_results(ctx.tables, task, stage)
    return Outcome(_in_order(specs, results), (), tuple(failures))


def _maintained(
    ctx: Context,
    store: Store,
    specs: Sequence[QuerySpec],
    batch_rows: int,
    kept: StateCache | None = None,
    *,
    for_use: bool,
) -> Outcome:
    failures: list[Failure] = []
    warnings: list[str] = []
    results, stale = _sorted_out(ctx, store, specs, failures, for_use)
    if stale:
        run = StaleRun(ctx, store, batch_rows, failures, warnings, kept)
        carried = [*run.results(stale), *run.results_of_clock(stale)]
        results += carried
        if carried:
            # A run that failed for all leaves the store as it was.
            before: dict[TableName, TableVersion] = {}
            for pin in (pin for _, stored in stale for pin in stored.pins):
                before[pin.table] = min(pin.version, before.get(pin.table, pin.version))
            warnings += remember_histories(ctx, store, before, run.decisions.shared.texts())
    is_asked = bool(stale) or (not for_use and _is_asked_otherwise(ctx))
    if is_asked and disk_of(ctx.settings, ctx.workload) is not None:
        from impctl.service.budget.choice import keep_to_budget

        is_late = _is_late(ctx, stale)
        warnings += keep_to_budget(ctx, store, has_captured=False, is_late=is_late)
    warnings += _scrubbed(ctx, store)
    return Outcome(_in_order(specs, results), tuple(warnings), tuple(failures))


def _kept_to_another(ctx: Context) -> list[str]:
    if not _is_asked_otherwise(ctx):
        return []
    from impctl.service.budget.choice import keep_to_budget

    with ctx.writing("maintain") as store:
        return keep_to_budget(ctx, store, has_captured=False)


def _is_asked_otherwise(ctx: Context) -> bool:
    """Whether workload or flags require another choice of state; cheap, since idle runs ask."""
    from impctl.service.stored import has_new_requirements, pins_of

    budget, store = disk_of(ctx.settings, ctx.workload), ctx.reading_store()
    if budget is None or store is None:
        return False
    return has_new_requirements(store.chosen(), budget, pins_of(ctx.sketched(None)))


def _is_late(ctx: Context, stale: Sequence[tuple[QuerySpec, StoredQuery]]) -> bool:
    """Whether maintenance came later than a bound allows."""
    from impctl.service.schedule.due import fresh_entry

    bounded = [
        (spec, stored) for spec, stored in stale if spec.trigger and spec.trigger.fresh_within
    ]
    result = [fresh_entry(ctx, spec, stored) for spec, stored in bounded]
    return any(entry is not None and entry.late for entry in result)


def _scrubbed(ctx: Context, store: Store) -> list[str]:
    """Damage to state that no run used lately, checked in part per run."""
    try:
        errors: list[ImpctlError] = [e for _, e in store.scrub(scrub_of(ctx.settings)).damaged]
    except ImpctlError as error:
        # Maintenance is committed: a failing check may not undo it.
        errors = [error]
    return [f"{error.message}; {error.hint}" for error in errors]


def _sorted_out(
    ctx: Context,
    store: StoreReader | None,
    specs: Sequence[QuerySpec],
    failures: list[Failure],
    for_use: bool,
) -> tuple[list[MaintainResult], list[tuple[QuerySpec, StoredQuery]]]:
    results: list[MaintainResult] = []
    stale: list[tuple[QuerySpec, StoredQuery]] = []
    for spec in specs:
        with Isolated(failures, spec):
            stored = _captured(ctx, store, spec)
            catch_up(ctx.tables, stored)
            if has_nothing_to_do(ctx, spec, stored, for_use=for_use):
                results += unchanged_results(ctx, stored)
            else:
                stale.append((spec, stored))
    return results, stale


def _captured(ctx: Context, store: StoreReader | None, spec: QuerySpec) -> StoredQuery:
    try:
        return stored_query(ctx, store, spec)
    except RecaptureNeededError:
        from impctl.service.capture import captured_query

        return captured_query(ctx, store, spec)


def _in_order(
    specs: Sequence[QuerySpec], results: Sequence[MaintainResult]
) -> tuple[MaintainResult, ...]:
    order = {spec.name: index for index, spec in enumerate(specs)}
    return tuple(sorted(results, key=lambda result: order[result.query]))


def has_nothing_to_do(
    ctx: Context, spec: QuerySpec, stored: StoredQuery, *, for_use: bool = False
) -> bool:
    """Whether the sketch is current, so that no policy but `full` would do anything."""
    if ctx.policy(spec) is Policy.FULL or not is_captured_alike(ctx, spec, stored):
        return False
    if not is_current(stored, ctx.tables) or moved_moments(ctx, stored):
        return False
    return not (for_use and _is_read_otherwise(ctx, spec, stored))


def _is_read_otherwise(ctx: Context, spec: QuerySpec, stored: StoredQuery) -> bool:
    """Whether the query's SQL now yields another plan than the captured one. Not checked if this
    program restored it last, with the same tables."""
    if has_ending(ctx.tables, stored):
        return False
    # Only the use of a sketch needs the planner anyway.
    from impctl.service.maintenance_plan import is_same_circuit
    from impctl.service.prepare import prepare

    return not is_same_circuit(ctx, prepare(ctx, spec, still(stored)), stored)


def unchanged_results(ctx: Context, stored: StoredQuery) -> list[MaintainResult]:
    from impctl.service.advice import ranges_entry

    return [
        MaintainResult(
            query=stored.query,
            table=sketch.table,
            attribute=sketch.attribute,
            total=sketch.partition.ranges,
            action="none",
            reason_code="up_to_date",
            reason=NO_NEW_VERSION,
            since=stored.versions,
            versions=stored.versions,
            added=(),
            removed=(),
            changes=0,
            elapsed_ms=0.0,
            read_ms=0.0,
            engine_ms=0.0,
            commit_ms=0.0,
            answer_changed=ANSWER_SAME,
            moments=stored_moments(stored),
            ranges=ranges_entry(ctx, stored, sketch.table, sketch.attribute),
        )
        for sketch in stored.sketches
    ]


# Use case: bring stored sketches up to the pinned versions of their tables. Law: the best way
# that policy and plan allow, and every result says which and why; a recapture is never silent.
# Policies: `auto` recaptures when nothing else works; `incremental` never recaptures (exit 7 says
# what to do); `strict` takes only exact maintenance (exit 4 otherwise); `full` always recaptures.
# A query that fails leaves its sketch as it was and does not stop the others; where only its
# sketch fails on a row, a recapture too, and Spark answers the query, that is a warning. That a
# query can have no sketch is a result, and a failure only where `--strict` asks for it. A run
# with nothing to do reads no SQL, unless a sketch is to be used or a query has none.


def maintain(
    ctx: Context,
    queries: Sequence[QueryName] | None,
    batch_rows: int | None = None,
    kept: StateCache | None = None,
    *,
    for_use: bool = False,
) -> Outcome:
    """Maintain the named queries, by default all. `kept` keeps operator state between runs."""
    specs = ctx.queries(queries)
    return maintain_specs(ctx, specs, batch_rows, kept, is_named=bool(queries), for_use=for_use)


def maintain_specs(
    ctx: Context,
    specs: Sequence[QuerySpec],
    batch_rows: int | None = None,
    kept: StateCache | None = None,
    *,
    is_named: bool,
    for_use: bool = False,
) -> Outcome:
    """The same for these queries, in their order; `is_named` if each was named by the user."""
    if ctx.settings.changes is not None:
        from impctl.service.result_changes import check_change_files

        check_change_files(ctx, specs, ctx.settings.changes, is_named=is_named)
    size = DEFAULT_BATCH_ROWS if batch_rows is None else batch_rows
    outcome = maintain_queries(ctx, specs, size, kept, for_use=for_use)
    if not (for_use or ctx.settings.strict):
        outcome = _without_refused(ctx, outcome)
    fails_on_rows = any(isinstance(one.error, EvaluationError) for one in outcome.failures)
    return _answered_by_spark(ctx, outcome) if fails_on_rows and not for_use else outcome


def _without_refused(ctx: Context, outcome: Outcome) -> Outcome:
    specs = {spec.name: spec for spec in ctx.queries(None)}
    results, failures = [*outcome.results], list[Failure]()
    for failure in outcome.failures:
        error, query = failure.error, failure.query
        if query is not None and is_refused(specs[query], error):
            results.append(
                MaintainResult(query=query, reason_code=error.code, reason=error.message)
            )
        else:
            failures.append(failure)
    return replace(outcome, results=tuple(results), failures=tuple(failures))


def _answered_by_spark(ctx: Context, outcome: Outcome) -> Outcome:
    """Remove failures on rows that Spark does not evaluate for the answer. A subquery that divides
    by zero, for instance, fails where it is computed; Spark may have no row left to compare with
    it."""
    from impctl.service.prepare import prepare
    from impctl.service.spark_answer import answer_table

    failures, warnings = [], [*outcome.warnings]
    for failure in outcome.failures:
        is_answered = False
        if isinstance(failure.error, EvaluationError) and failure.query is not None:
            (spec,) = ctx.queries([failure.query])
            if ctx.policy(spec) in (Policy.AUTO, Policy.FULL):
                try:
                    answer_table(ctx, prepare(ctx, spec), {})
                    is_answered = True
                except ImpctlError:
                    pass  # The failure reports it already.
        if is_answered:
            warnings.append(
                f"query `{failure.query}` was not maintained: {failure.error.message}. Spark "
                "answers the query without its sketch, because the query does not need this row"
            )
        else:
            failures.append(failure)
    return replace(outcome, warnings=tuple(warnings), failures=tuple(failures))
