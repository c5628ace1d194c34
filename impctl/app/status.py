"""Use case: what the store knows of each query, and how far behind its tables it is.

Law: reads the store and the tables' version numbers, nothing else; never starts Spark.
Out of scope: whether the sketch is right (`app.verify`).
"""

from __future__ import annotations

from collections.abc import Sequence

from impctl.aliases import QueryName
from impctl.app.drift import ranges_entries
from impctl.app.isolated import Isolated
from impctl.app.results import Failure, Outcome, SketchEntry, StatusResult
from impctl.app.stored import catch_up, check_pins, is_defined_alike
from impctl.app.workbench import Workbench
from impctl.errors import TableRecreatedError
from impctl.store.records import StoredQuery, StoredSketch
from impctl.store.store import Store
from impctl.workload.models import QuerySpec


def status(bench: Workbench, queries: Sequence[QueryName] | None) -> Outcome:
    """One result per query; a query that was never captured has no sketches."""
    store = bench.reading_store()
    results: list[StatusResult] = []
    failures: list[Failure] = []
    for spec in bench.queries(queries):
        with Isolated(failures, spec):
            results.append(_status(bench, store, spec))
    return Outcome(tuple(results), (), tuple(failures))


def sketch_entry(sketch: StoredSketch) -> SketchEntry:
    """A stored sketch as results show it."""
    return SketchEntry(
        sketch.table, sketch.attribute, sketch.fragments.ids, sketch.partition.ranges
    )


def _status(bench: Workbench, store: Store | None, spec: QuerySpec) -> StatusResult:
    stored = None if store is None else store.load(spec.name)
    policy = str(bench.policy(spec))
    if store is None or stored is None:
        return StatusResult(spec.name, (), {}, {}, True, None, policy, 0)
    catch_up(bench, stored)
    history = store.history(spec.name, 1)
    pending, reason = _pending(bench, spec, stored)
    return StatusResult(
        spec.name,
        tuple(sketch_entry(sketch) for sketch in stored.sketches),
        stored.versions,
        pending,
        reason is not None,
        stored.mode.value,
        policy,
        sum(run.bytes for run in store.run_refs(spec.name)),
        history[0].action if history else None,
        history[0].reason if history else None,
        reason,
        ranges_entries(bench, stored),
    )


def _pending(
    bench: Workbench, spec: QuerySpec, stored: StoredQuery
) -> tuple[dict[str, int], str | None]:
    """Versions committed since per table, and why the sketch is stale, if it is."""
    pending = {
        pin.table: max(bench.source(pin.table).version - pin.version, 0) for pin in stored.pins
    }
    if not is_defined_alike(bench, spec, stored):
        return pending, "the query or its partitions changed since the capture; capture it again"
    try:
        check_pins(stored, bench)
    except TableRecreatedError as replaced:
        return pending, f"{replaced.message}; capture it again"
    if any(pending.values()):
        return pending, "the table has newer versions; `maintain` brings the sketch up to date"
    return pending, None
