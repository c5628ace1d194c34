"""Use case: bring stored sketches up to the pinned versions of their tables.

Law: the best way that policy and plan allow, and every result says which and why; a recapture is
never silent. Policies: `auto` recaptures when nothing else works; `incremental` never recaptures
(exit 7 says what to do); `strict` takes only exact maintenance (exit 4 otherwise); `full` always
recaptures. A query that fails leaves its sketch as it was and does not stop the others. A run with
nothing to do reads no SQL, unless a sketch is to be used.
Out of scope: what is done with a stale sketch (`app.stale`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from impctl.aliases import QueryName
from impctl.app.drift import ranges_entry
from impctl.app.isolated import Isolated
from impctl.app.results import Failure, MaintainResult, Outcome
from impctl.app.settings import DEFAULT_BATCH_ROWS
from impctl.app.stored import catch_up, is_captured_alike, is_current, stored_query
from impctl.app.workbench import Workbench
from impctl.errors import ImpctlError
from impctl.store.records import StoredQuery
from impctl.store.store import Store
from impctl.workload.models import Policy, QuerySpec

if TYPE_CHECKING:
    # The engine takes longer to load than a run with nothing to do may last.
    from impctl.app.kept import KeptStates


def maintain(
    bench: Workbench,
    queries: Sequence[QueryName] | None,
    batch_rows: int | None = None,
    kept: KeptStates | None = None,
    *,
    for_use: bool = False,
) -> Outcome:
    """Maintain the queries named (default: all); one result per query and table.

    With `kept` the operator state stays in memory for a later run of this process. `for_use` says
    that the sketches are going to be used: then the SQL is read even where no table moved, and a
    sketch captured under another reading of it is not current.
    """
    specs = bench.queries(queries)
    size = DEFAULT_BATCH_ROWS if batch_rows is None else batch_rows
    if bench.settings.dry_run:
        return _maintained(bench, bench.reading_store(), specs, size, for_use=for_use)
    current = _all_current(bench, specs, for_use)
    if current is not None:
        return Outcome(tuple(current))
    with bench.writing("maintain") as store:
        return _maintained(bench, store, specs, size, kept, for_use=for_use)


def _all_current(
    bench: Workbench, specs: Sequence[QuerySpec], for_use: bool
) -> list[MaintainResult] | None:
    """The results where nothing has to be written, so that a reader need not wait for a writer.

    None where something has to be done, or said, for some query.
    """
    store = bench.reading_store()
    results: list[MaintainResult] = []
    try:
        for spec in specs:
            stored = stored_query(bench, store, spec)
            catch_up(bench, stored)
            if not has_nothing_to_do(bench, spec, stored, for_use=for_use):
                return None
            results += _unchanged(bench, stored)
    except ImpctlError:
        # Some query cannot even be looked at: the run says so for that query alone.
        return None
    return results


def _maintained(
    bench: Workbench,
    store: Store | None,
    specs: Sequence[QuerySpec],
    batch_rows: int,
    kept: KeptStates | None = None,
    *,
    for_use: bool,
) -> Outcome:
    results: list[MaintainResult] = []
    failures: list[Failure] = []
    warnings: list[str] = []
    stale: list[tuple[QuerySpec, StoredQuery]] = []
    for spec in specs:
        with Isolated(failures, spec):
            stored = stored_query(bench, store, spec)
            catch_up(bench, stored)
            if has_nothing_to_do(bench, spec, stored, for_use=for_use):
                results += _unchanged(bench, stored)
            else:
                stale.append((spec, stored))
    if stale and store is not None:
        # Planner and engine take longer to load than a run with nothing to do may last.
        from impctl.app.stale import StaleRun

        run = StaleRun(bench, store, batch_rows, failures, warnings, kept)
        results += run.foreseen(stale) if bench.settings.dry_run else run.results(stale)
    order = {spec.name: index for index, spec in enumerate(specs)}
    results.sort(key=lambda result: order[result.query])
    return Outcome(tuple(results), tuple(warnings), tuple(failures))


def has_nothing_to_do(
    bench: Workbench, spec: QuerySpec, stored: StoredQuery, *, for_use: bool = False
) -> bool:
    """Whether the sketch is current, so that no policy but `full` would do anything."""
    if bench.policy(spec) is Policy.FULL or not is_captured_alike(bench, spec, stored):
        return False
    return is_current(stored, bench) and not (for_use and _is_read_otherwise(bench, spec, stored))


def _is_read_otherwise(bench: Workbench, spec: QuerySpec, stored: StoredQuery) -> bool:
    """Whether the query's SQL reads now as another plan than the sketch was captured for."""
    # Only who uses a sketch needs the planner anyway.
    from impctl.app.prepared import prepare
    from impctl.app.restored import is_same_circuit

    return not is_same_circuit(bench, prepare(bench, spec), stored)


def _unchanged(bench: Workbench, stored: StoredQuery) -> list[MaintainResult]:
    return [
        MaintainResult(
            query=stored.query,
            table=sketch.table,
            attribute=sketch.attribute,
            total=sketch.partition.ranges,
            action="none",
            reason_code="up_to_date",
            reason="no new version",
            since=stored.versions,
            versions=stored.versions,
            added=(),
            removed=(),
            changes=0,
            elapsed_ms=0.0,
            read_ms=0.0,
            engine_ms=0.0,
            commit_ms=0.0,
            ranges=ranges_entry(bench, stored, sketch.table, sketch.attribute),
        )
        for sketch in stored.sketches
    ]
