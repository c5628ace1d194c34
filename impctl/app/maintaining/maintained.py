"""Queries brought up to the pinned versions: those with nothing to do, and those that are stale.

Law: a run with nothing to do reads no SQL and loads no planner, unless a sketch is to be used; a
query that fails leaves its sketch as it was and does not stop the others.
Out of scope: what is done with a stale sketch (`app.maintaining.run`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from impctl.app.capturing.definition import is_captured_alike, stored_query
from impctl.app.capturing.drift import ranges_entry
from impctl.app.capturing.kept_ending import has_ending
from impctl.app.capturing.moments import moved_moments, still, stored_moments
from impctl.app.capturing.pins import catch_up, is_current
from impctl.app.maintaining.keeping.looks import is_asked_otherwise, pins_of
from impctl.app.results.results import ANSWER_SAME, Failure, MaintainResult, Outcome
from impctl.app.results.unsketched import unsketched_maintain
from impctl.app.workbench.histories import Texts
from impctl.app.workbench.isolated import Isolated
from impctl.app.workbench.remembered import remember_histories
from impctl.app.workbench.settings import disk_of, scrub_of
from impctl.app.workbench.workbench import Workbench
from impctl.errors import ImpctlError, RecaptureNeededError
from impctl.store.reader import StoreReader
from impctl.store.records import StoredQuery
from impctl.store.store import Store
from impctl.types import TableName, TableVersion
from impctl.workload.models import Policy, QuerySpec

if TYPE_CHECKING:
    # The engine takes longer to load than a run with nothing to do may last.
    from impctl.app.maintaining.kept_states import KeptStates


NO_NEW_VERSION = "no new version"


def maintain_queries(
    desk: Workbench,
    specs: Sequence[QuerySpec],
    batch_rows: int,
    kept: KeptStates | None = None,
    *,
    for_use: bool = False,
) -> Outcome:
    """These queries maintained, or what would be done with them; one result per query and table.

    `for_use` says that the sketches are going to be used: then the SQL is read even where no table
    moved, and a sketch captured under another reading of it is not current.
    """
    sketched = [spec for spec in specs if spec.is_sketched]
    outcome = _of_sketched(desk, sketched, batch_rows, kept, for_use=for_use)
    if len(sketched) == len(specs):
        return outcome
    without = [unsketched_maintain(spec.name) for spec in specs if not spec.is_sketched]
    done = [result for result in outcome.results if isinstance(result, MaintainResult)]
    return replace(outcome, results=_in_order(specs, [*done, *without]))


def _of_sketched(
    desk: Workbench,
    specs: Sequence[QuerySpec],
    batch_rows: int,
    kept: KeptStates | None,
    *,
    for_use: bool,
) -> Outcome:
    """The same for queries that are all to have a sketch."""
    if desk.settings.dry_run:
        return _foreseen(desk, specs, for_use=for_use)
    current = _all_current(desk, specs, for_use)
    if current is not None:
        # Who only uses a sketch does not wait for a writer.
        return Outcome(tuple(current), () if for_use else tuple(_kept_to_another(desk)))
    with desk.writing("maintain") as store:
        return _maintained(desk, store, specs, batch_rows, kept, for_use=for_use)


def _all_current(
    desk: Workbench, specs: Sequence[QuerySpec], for_use: bool
) -> list[MaintainResult] | None:
    """The results where nothing has to be written, so that a reader need not wait for a writer.

    None where something has to be done, or said, for some query.
    """
    store = desk.reading_store()
    results: list[MaintainResult] = []
    try:
        for spec in specs:
            stored = stored_query(desk, store, spec)
            catch_up(desk.tables, stored)
            if not has_nothing_to_do(desk, spec, stored, for_use=for_use):
                return None
            results += unchanged_results(desk, stored)
    except ImpctlError:
        # Some query cannot even be looked at: the run says so for that query alone.
        return None
    return results


def _foreseen(desk: Workbench, specs: Sequence[QuerySpec], *, for_use: bool) -> Outcome:
    """What would be done, decided with the store's reading half alone."""
    store = desk.reading_store()
    failures: list[Failure] = []
    results, stale = _sorted_out(desk, store, specs, failures, for_use)
    if stale and store is not None:
        from impctl.app.maintaining.decide import Decisions
        from impctl.app.maintaining.entries import foreseen_results

        for task, stage in Decisions(desk, store, failures).stages(stale):
            with Isolated(failures, task.spec):
                results += foreseen_results(desk.tables, task, stage)
    return Outcome(_in_order(specs, results), (), tuple(failures))


def _maintained(
    desk: Workbench,
    store: Store,
    specs: Sequence[QuerySpec],
    batch_rows: int,
    kept: KeptStates | None = None,
    *,
    for_use: bool,
) -> Outcome:
    failures: list[Failure] = []
    warnings: list[str] = []
    results, stale = _sorted_out(desk, store, specs, failures, for_use)
    if stale:
        # Planner and engine take longer to load than a run with nothing to do may last.
        from impctl.app.maintaining.run import StaleRun

        run = StaleRun(desk, store, batch_rows, failures, warnings, kept)
        carried = [*run.results(stale), *run.results_of_clock(stale)]
        results += carried
        if carried:
            # A run that failed for all leaves the store as it was.
            warnings += _remembered(desk, store, stale, run.decisions.shared.texts())
    is_asked = bool(stale) or (not for_use and _is_asked_otherwise(desk))
    if is_asked and disk_of(desk.settings, desk.workload) is not None:
        from impctl.app.maintaining.keeping.keep_to import keep_to_budget

        is_late = _is_late(desk, stale)
        warnings += keep_to_budget(desk, store, has_captured=False, is_late=is_late)
    warnings += _scrubbed(desk, store)
    return Outcome(_in_order(specs, results), tuple(warnings), tuple(failures))


def _kept_to_another(desk: Workbench) -> list[str]:
    """What a run with nothing to do has to say: a budget that is new is looked at."""
    if not _is_asked_otherwise(desk):
        return []
    from impctl.app.maintaining.keeping.keep_to import keep_to_budget

    with desk.writing("maintain") as store:
        return keep_to_budget(desk, store, has_captured=False)


def _is_asked_otherwise(desk: Workbench) -> bool:
    """Whether the workload or a flag asks for another choice of state than the last one; a cheap
    question, since runs with nothing to do ask it."""
    budget, store = disk_of(desk.settings, desk.workload), desk.reading_store()
    if budget is None or store is None:
        return False
    return is_asked_otherwise(store.chosen(), budget, pins_of(desk.sketched(None)))


def _is_late(desk: Workbench, stale: Sequence[tuple[QuerySpec, StoredQuery]]) -> bool:
    """Whether what was maintained waited longer than a bound allows."""
    from impctl.app.maintaining.due.looking import fresh_entry

    bounded = [
        (spec, stored) for spec, stored in stale if spec.trigger and spec.trigger.fresh_within
    ]
    result = [fresh_entry(desk, spec, stored) for spec, stored in bounded]
    return any(entry is not None and entry.late for entry in result)


def _remembered(
    desk: Workbench, store: Store, stale: Sequence[tuple[QuerySpec, StoredQuery]], texts: Texts
) -> list[str]:
    """What was committed to the tables, as numbers; what should not have been is told."""
    before: dict[TableName, TableVersion] = {}
    for _, stored in stale:
        for pin in stored.pins:
            before[pin.table] = min(pin.version, before.get(pin.table, pin.version))
    return remember_histories(desk, store, before, texts)


def _scrubbed(desk: Workbench, store: Store) -> list[str]:
    """What is wrong with state that no run used lately, so much of it as a run looks at."""
    try:
        errors: list[ImpctlError] = [e for _, e in store.scrub(scrub_of(desk.settings)).damaged]
    except ImpctlError as error:
        # What was maintained is committed: looking further may not undo it.
        errors = [error]
    return [f"{error.message}; {error.hint}" for error in errors]


def _sorted_out(
    desk: Workbench,
    store: StoreReader | None,
    specs: Sequence[QuerySpec],
    failures: list[Failure],
    for_use: bool,
) -> tuple[list[MaintainResult], list[tuple[QuerySpec, StoredQuery]]]:
    """The results of what is current, and what is stale; what fails adds its failure instead."""
    results: list[MaintainResult] = []
    stale: list[tuple[QuerySpec, StoredQuery]] = []
    for spec in specs:
        with Isolated(failures, spec):
            stored = _captured(desk, store, spec)
            catch_up(desk.tables, stored)
            if has_nothing_to_do(desk, spec, stored, for_use=for_use):
                results += unchanged_results(desk, stored)
            else:
                stale.append((spec, stored))
    return results, stale


def _captured(desk: Workbench, store: StoreReader | None, spec: QuerySpec) -> StoredQuery:
    """What the store has; what has nothing there is asked why, which takes the planner to say."""
    try:
        return stored_query(desk, store, spec)
    except RecaptureNeededError:
        from impctl.app.capturing.uncaptured import captured_query

        return captured_query(desk, store, spec)


def _in_order(
    specs: Sequence[QuerySpec], results: Sequence[MaintainResult]
) -> tuple[MaintainResult, ...]:
    """The results in the order of the queries asked for."""
    order = {spec.name: index for index, spec in enumerate(specs)}
    return tuple(sorted(results, key=lambda result: order[result.query]))


def has_nothing_to_do(
    desk: Workbench, spec: QuerySpec, stored: StoredQuery, *, for_use: bool = False
) -> bool:
    """Whether the sketch is current, so that no policy but `full` would do anything."""
    if desk.policy(spec) is Policy.FULL or not is_captured_alike(desk, spec, stored):
        return False
    if not is_current(stored, desk.tables) or moved_moments(desk, stored):
        return False
    return not (for_use and _is_read_otherwise(desk, spec, stored))


def _is_read_otherwise(desk: Workbench, spec: QuerySpec, stored: StoredQuery) -> bool:
    """Whether the query's SQL reads now as another plan than the sketch was captured for.

    Not where this very program took it up last, with the tables as they are.
    """
    if has_ending(desk.tables, stored):
        return False
    # Only who uses a sketch needs the planner anyway.
    from impctl.app.capturing.chosen_way import is_same_circuit
    from impctl.app.preparing.prepared import prepare

    return not is_same_circuit(desk, prepare(desk, spec, still(stored)), stored)


def unchanged_results(desk: Workbench, stored: StoredQuery) -> list[MaintainResult]:
    """What is said of a query that nothing was done with: one result per sketch."""
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
            ranges=ranges_entry(desk, stored, sketch.table, sketch.attribute),
        )
        for sketch in stored.sketches
    ]
