"""Bring stored sketches up to the pinned versions of their tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from impctl.errors import EvaluationError, ImpctlError, RecaptureNeededError
from impctl.service.context import Context, Isolated, remember_histories, split_refused
from impctl.service.results import ANSWER_SAME, Failure, MaintainResult, Outcome
from impctl.service.settings import DEFAULT_BATCH_ROWS
from impctl.service.stored import (
    catch_up,
    has_ending,
    is_up_to_date,
    ranges_entry,
    still,
    stored_moments,
    stored_query,
)
from impctl.workload.models import Policy, QuerySpec

if TYPE_CHECKING:
    from impctl.service.state_cache import StateCache
    from impctl.store.reader import StoreReader
    from impctl.store.records import StoredQuery
    from impctl.store.store import Store
    from impctl.types import QueryName, TableName, TableVersion


# Law: a run takes the best way that policy and plan permit; every result says which and why, and a
# recapture is never silent. Policies: `auto` recaptures when nothing else works; `incremental`
# never recaptures (exit 7 with a hint); `strict` takes only exact maintenance (else exit 4); `full`
# always recaptures. A query that fails keeps its sketch and does not stop the others. If only its
# sketch fails on a row, a recapture does too, and Spark answers the query, that is a warning. A
# query that can have no sketch is a result, and a failure only with `--strict`.


def maintain(
    ctx: Context,
    queries: Sequence[QueryName] | None,
    batch_rows: int | None = None,
    cache: StateCache | None = None,
    *,
    for_use: bool = False,
) -> Outcome:
    """Maintain the named queries, by default all. `cache` keeps operator state between runs."""
    specs = ctx.queries(queries)
    return maintain_specs(ctx, specs, batch_rows, cache, is_named=bool(queries), for_use=for_use)


def maintain_specs(
    ctx: Context,
    specs: Sequence[QuerySpec],
    batch_rows: int | None = None,
    cache: StateCache | None = None,
    *,
    is_named: bool,
    for_use: bool = False,
) -> Outcome:
    """The same for these queries, in their order; `is_named` if each was named by the user.
    `for_use`: the sketches are about to be used, so the SQL is read even if no table changed, and a
    sketch captured under another reading is not current."""
    if ctx.settings.changes is not None:
        from impctl.service.result_changes import check_change_files

        check_change_files(ctx, specs, ctx.settings.changes, is_named=is_named)
    size = DEFAULT_BATCH_ROWS if batch_rows is None else batch_rows
    outcome = _maintained(ctx, specs, size, cache, for_use)
    if not (for_use or ctx.settings.strict):
        refused, failures = split_refused(ctx, outcome.failures)
        unsketched = [
            MaintainResult(query=spec.name, reason_code=error.code, reason=error.message)
            for spec, error in refused
        ]
        results = (*outcome.results, *unsketched)
        outcome = replace(outcome, results=results, failures=tuple(failures))
    fails_on_rows = any(isinstance(failure.error, EvaluationError) for failure in outcome.failures)
    return _answered_by_spark(ctx, outcome) if fails_on_rows and not for_use else outcome


def _answered_by_spark(ctx: Context, outcome: Outcome) -> Outcome:
    """Remove failures on rows that Spark does not evaluate for the answer. A subquery that divides
    by zero, for instance, fails where it is computed; Spark may have no row left to compare with
    it."""
    from impctl.service.answer import answer_table
    from impctl.service.prepare import prepare

    failures, warnings = [], [*outcome.warnings]
    for failure in outcome.failures:
        is_answered = False
        if isinstance(failure.error, EvaluationError) and failure.query is not None:
            spec = ctx.query(failure.query)
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


# Law: a run with nothing to do reads no SQL and loads no planner unless a sketch is to be used.

NO_NEW_VERSION = "no new version"


def _maintained(
    ctx: Context,
    specs: Sequence[QuerySpec],
    batch_rows: int,
    cache: StateCache | None,
    for_use: bool,
) -> Outcome:
    """Maintain these queries, or report what would be done; one result per query and table."""
    sketched = [spec for spec in specs if spec.is_sketched]
    if ctx.settings.dry_run:
        outcome = _planned(ctx, sketched, for_use)
    elif (current := _all_current(ctx, sketched, for_use)) is not None:
        # Using a sketch does not wait for a writer.
        warnings: list[str] = []
        if not for_use and _needs_new_choice(ctx):
            from impctl.service.budget.choice import keep_to_budget

            with ctx.writing("maintain") as store:
                warnings = keep_to_budget(ctx, store, has_captured=False)
        outcome = Outcome(tuple(current), tuple(warnings))
    else:
        with ctx.writing("maintain") as store:
            outcome = _maintain_stale(ctx, store, sketched, batch_rows, cache, for_use)
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


def _planned(ctx: Context, specs: Sequence[QuerySpec], for_use: bool) -> Outcome:
    store = ctx.reading_store()
    failures: list[Failure] = []
    results, stale = _current_and_stale(ctx, store, specs, failures, for_use)
    if stale and store is not None:
        from impctl.service.decide import Decider
        from impctl.service.step import planned_results

        for decision in Decider(ctx, store, failures).decide_all(stale):
            with Isolated(failures, decision.task.spec):
                results += planned_results(ctx.tables, decision)
    return Outcome(_in_order(specs, results), (), tuple(failures))


def _maintain_stale(
    ctx: Context,
    store: Store,
    specs: Sequence[QuerySpec],
    batch_rows: int,
    cache: StateCache | None,
    for_use: bool,
) -> Outcome:
    failures: list[Failure] = []
    warnings: list[str] = []
    results, stale = _current_and_stale(ctx, store, specs, failures, for_use)
    if stale:
        from impctl.service.step import StaleRun

        run = StaleRun(ctx, store, batch_rows, failures, warnings, cache)
        carried = [*run.results(stale), *run.results_of_clock(stale)]
        results += carried
        if carried:
            # A run that failed for all leaves the store as it was.
            before: dict[TableName, TableVersion] = {}
            for pin in (pin for _, stored in stale for pin in stored.pins):
                before[pin.table] = min(pin.version, before.get(pin.table, pin.version))
            warnings += remember_histories(ctx, store, before)
    is_asked = bool(stale) or (not for_use and _needs_new_choice(ctx))
    if is_asked and ctx.disk is not None:
        from impctl.service.budget.choice import keep_to_budget
        from impctl.service.schedule.due import fresh_entry

        # Whether maintenance ran later than a bound allows.
        bounded = [item for item in stale if item[0].trigger and item[0].trigger.fresh_within]
        late = [fresh_entry(ctx, spec, stored) for spec, stored in bounded]
        is_late = any(entry is not None and entry.late for entry in late)
        warnings += keep_to_budget(ctx, store, has_captured=False, is_late=is_late)
    warnings += _scrub_warnings(ctx, store)
    return Outcome(_in_order(specs, results), tuple(warnings), tuple(failures))


def _needs_new_choice(ctx: Context) -> bool:
    """Whether workload or flags require another choice of state; cheap, since idle runs ask."""
    from impctl.service.stored import has_new_requirements, pins_of

    budget, store = ctx.disk, ctx.reading_store()
    if budget is None or store is None:
        return False
    return has_new_requirements(store.chosen(), budget, pins_of(ctx.sketched(None)))


def _scrub_warnings(ctx: Context, store: Store) -> list[str]:
    """Damage to state that no run used lately, checked in part per run."""
    try:
        most = ctx.settings.scrub * 1_000_000
        errors: list[ImpctlError] = [error for _, error in store.scrub(most).damaged]
    except ImpctlError as error:
        # Maintenance is committed: a failing check may not undo it.
        errors = [error]
    return [f"{error.message}; {error.hint}" for error in errors]


def _current_and_stale(
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
            try:
                stored = stored_query(ctx, store, spec)
            except RecaptureNeededError:
                from impctl.service.capture import captured_query

                stored = captured_query(ctx, store, spec)
            catch_up(ctx.tables, stored)
            if has_nothing_to_do(ctx, spec, stored, for_use=for_use):
                results += unchanged_results(ctx, stored)
            else:
                stale.append((spec, stored))
    return results, stale


def _in_order(
    specs: Sequence[QuerySpec], results: Sequence[MaintainResult]
) -> tuple[MaintainResult, ...]:
    order = {spec.name: index for index, spec in enumerate(specs)}
    return tuple(sorted(results, key=lambda result: order[result.query]))


def has_nothing_to_do(
    ctx: Context, spec: QuerySpec, stored: StoredQuery, *, for_use: bool = False
) -> bool:
    """Whether the sketch is current, so that no policy but `full` would do anything."""
    if ctx.policy(spec) is Policy.FULL or not is_up_to_date(ctx, spec, stored):
        return False
    return not (for_use and _has_new_plan(ctx, spec, stored))


def _has_new_plan(ctx: Context, spec: QuerySpec, stored: StoredQuery) -> bool:
    """Whether the query's SQL now yields another plan than the captured one. Not checked if this
    program restored it last, with the same tables."""
    if has_ending(ctx.tables, stored):
        return False
    # Only the use of a sketch needs the planner anyway.
    from impctl.service.maintenance_plan import is_same_circuit
    from impctl.service.prepare import prepare

    return not is_same_circuit(ctx, prepare(ctx, spec, still(stored)), stored)


def unchanged_results(ctx: Context, stored: StoredQuery) -> list[MaintainResult]:
    return [
        MaintainResult(
            query=stored.query,
            table=sketch.table,
            attribute=sketch.attribute,
            total=sketch.partition.ranges,
            reason_code="up_to_date",
            reason=NO_NEW_VERSION,
            since=stored.versions,
            versions=stored.versions,
            answer_changed=ANSWER_SAME,
            moments=stored_moments(stored),
            ranges=ranges_entry(ctx, stored, sketch.table, sketch.attribute),
        )
        for sketch in stored.sketches
    ]
