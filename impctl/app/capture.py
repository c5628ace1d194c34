"""Use case: find the sketch of each query at the pinned versions, and the state to maintain it.

Law: the sketch covers the query's provenance at exactly the versions stored with it; sketch, state
and versions are stored in one transaction, or the store stays as it was. Where the query can be
maintained exactly, one pass gives both sketch and state.
Out of scope: which attribute (`app.preparing.choice`), later changes (`app.maintain`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from impctl.app.capturing.advice import warnings_of
from impctl.app.capturing.captured import Captured, capture_query, without_provenance
from impctl.app.capturing.cluster_forecast import ClusterForecasts
from impctl.app.capturing.entries import sketch_entry
from impctl.app.capturing.fill import COULD_NOT
from impctl.app.capturing.lineage_advice import followed_warnings
from impctl.app.capturing.stage import foreseen_capture
from impctl.app.capturing.state_advice import state_warnings
from impctl.app.maintaining.keeping.keep_to import keep_to_budget
from impctl.app.preparing.facts import assumption_text
from impctl.app.preparing.filters import filters_of
from impctl.app.preparing.prepared import PreparedQuery, prepare
from impctl.app.results.results import CaptureResult, Failure, LeftEntry, Outcome
from impctl.app.results.subject import named_before
from impctl.app.results.unsketched import unsketched_capture
from impctl.app.workbench.isolated import Isolated
from impctl.app.workbench.pinned import PinnedTables
from impctl.app.workbench.remembered import remember_histories
from impctl.app.workbench.workbench import Workbench
from impctl.data.memory import give_back
from impctl.safety.choose import counts_every_row
from impctl.store.reader import StoreReader
from impctl.store.records import StoredSketch
from impctl.types import QueryName


def capture(desk: Workbench, queries: Sequence[QueryName] | None) -> Outcome:
    """Capture the queries named (default: all); one result per query."""
    results: list[CaptureResult] = []
    failures: list[Failure] = []
    warnings: list[str] = []
    stored: list[tuple[PreparedQuery, tuple[StoredSketch, ...]]] = []
    specs = desk.queries(queries)
    if desk.settings.dry_run:
        held = desk.reading_store()
        for spec in specs:
            with Isolated(failures, spec):
                results.append(
                    foreseen_capture(desk, held, spec)
                    if spec.is_sketched
                    else unsketched_capture(spec.name)
                )
        return Outcome(tuple(results), (), tuple(failures))
    with desk.writing("capture") as store:
        for number, spec in enumerate(specs, start=1):
            if not spec.is_sketched:
                results.append(unsketched_capture(spec.name))
                desk.reporter.finished(results[-1], number, len(specs))
                continue
            desk.reporter.step(f"capturing {spec.name}", number, len(specs))
            with Isolated(failures, spec):
                prepared = prepare(desk, spec)
                captured = capture_query(
                    desk, store, prepared, code="asked", reason="capture was requested"
                )
                results.append(_result(desk.tables, prepared, captured))
                desk.reporter.finished(results[-1], number, len(specs))
                if captured.reason == COULD_NOT:
                    warnings.append(
                        f"query `{spec.name}` was captured without state, so every change of its "
                        f"tables recaptures it: {COULD_NOT}"
                    )
                if captured.no_answer:
                    warnings.append(_without_answer(prepared, captured.no_answer))
                if captured.no_provenance:
                    warnings.append(without_provenance(spec.name, captured.no_provenance))
                warnings += captured.lineage_warnings
                stored.append((prepared, captured.sketches))
            give_back()
        forecasts = ClusterForecasts(desk, store)
        for prepared, sketches in stored:
            warnings += _advice(desk, store, forecasts, prepared, sketches)
        if stored:
            warnings += remember_histories(desk, store, {})
            warnings += keep_to_budget(desk, store, has_captured=True)
    return Outcome(tuple(results), tuple(warnings), tuple(failures))


def _advice(
    desk: Workbench,
    store: StoreReader,
    forecasts: ClusterForecasts,
    prepared: PreparedQuery,
    sketches: Sequence[StoredSketch],
) -> list[str]:
    """What to know of what was stored; the capture stands, even where this cannot be told."""
    spec, failed = prepared.spec, list[Failure]()
    with Isolated(failed, spec):
        every_row = counts_every_row(prepared.query.root)
        skipping = list[str]()
        if not (every_row and spec.answer):
            # Whose result is kept need not skip anything.
            skipping = warnings_of(
                desk.tables, forecasts, spec.name, sketches, counts_every_row=every_row
            )
        lineage = followed_warnings(spec.name, store.run_refs(spec.name))
        return [*skipping, *lineage, *state_warnings(desk, store, prepared)]
    return [
        f"query `{spec.name}` was captured, but impctl could not estimate what its "
        f"sketch saves: {named_before(spec.name, failure.error.message)}"
        for failure in failed
    ]


def _without_answer(prepared: PreparedQuery, reason: str) -> str:
    return (
        f"the result of query `{prepared.spec.name}` is not materialized: {reason}; "
        "`query` reads through its sketch instead"
    )


def _result(tables: PinnedTables, prepared: PreparedQuery, captured: Captured) -> CaptureResult:
    return CaptureResult(
        query=prepared.spec.name,
        action="capture",
        sketches=tuple(sketch_entry(sketch) for sketch in captured.sketches),
        versions=captured.versions,
        mode=captured.mode.value,
        elapsed_ms=captured.elapsed_ms,
        spark_ms=captured.spark_ms,
        engine_ms=captured.engine_ms,
        considered=captured.candidates,
        left=tuple(_left(tables, prepared, captured)),
        assumptions=tuple(assumption_text(assumption) for assumption in captured.assumptions),
        moments=prepared.moments,
    )


def _left(tables: PinnedTables, prepared: PreparedQuery, captured: Captured) -> Iterator[LeftEntry]:
    """What the sketches leave to read, beside what was foreseen of the attributes chosen."""
    foreseen = {entry.table: entry.expected for entry in captured.candidates if entry.chosen}
    pruned = filters_of(tables, prepared, captured.sketches, captured.versions)
    for table in dict.fromkeys(sketch.table for sketch in captured.sketches):
        snapshot = tables.snapshot(table)
        yield LeftEntry(
            table=table,
            files=len(pruned.files[table]),
            files_total=len(snapshot.files),
            bytes=sum(file.size for file in pruned.files[table]),
            bytes_total=snapshot.bytes,
            expected=foreseen.get(table),
        )
