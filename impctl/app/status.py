"""Use case: what the store knows of each query, and how far behind its tables it is.

Law: reads the store and the tables' version numbers, nothing else; never starts Spark.
Out of scope: whether the sketch is right (`app.verify`).
"""

from __future__ import annotations

from collections.abc import Sequence

from impctl.aliases import QueryName
from impctl.app.isolated import Isolated
from impctl.app.results import Failure, Outcome, SketchEntry, StatusResult
from impctl.app.stored import definition
from impctl.app.workbench import Workbench
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
    history = store.history(spec.name, 1)
    pending, stale = _pending(bench, spec, stored)
    return StatusResult(
        spec.name,
        tuple(sketch_entry(sketch) for sketch in stored.sketches),
        stored.versions,
        pending,
        stale,
        stored.mode,
        policy,
        sum(run.bytes for run in store.run_refs(spec.name)),
        history[0].action if history else None,
        history[0].reason if history else None,
    )


def _pending(bench: Workbench, spec: QuerySpec, stored: StoredQuery) -> tuple[dict[str, int], bool]:
    """Versions committed since per table, and whether anything makes the sketch stale."""
    pending = {}
    stale = stored.fingerprint != definition(bench, spec)
    for pin in stored.pins:
        source = bench.source(pin.table)
        pending[pin.table] = max(source.version - pin.version, 0)
        stale |= source.version != pin.version or source.table_id != pin.table_id
    return pending, stale
