"""What the store knows of each query: how far behind it is, and what its sketches saved."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from impctl.errors import RecaptureNeededError
from impctl.service.context import Context, collect_results
from impctl.service.results import (
    ANSWERS,
    COSTS_MORE,
    NOT_USED_YET,
    PAYS,
    VERIFIED,
    VERIFY,
    WHOLE_TABLES,
    GainResult,
    Outcome,
    PendingEntry,
    RunEntry,
    StatusResult,
    VerifiedEntry,
)
from impctl.service.stored import (
    catch_up,
    check_pins,
    expires,
    is_defined_alike,
    is_of_this_release,
    moved_moments,
    moved_text,
    provenance_kept,
    ranges_entries,
    sketch_entry,
    stored_moments,
    tree_record,
)
from impctl.store.ledger import Ledger, Uses
from impctl.tables.log import pending_size

if TYPE_CHECKING:
    from impctl.service.advice import ClusterForecasts
    from impctl.service.pinned import PinnedTables
    from impctl.store.reader import StoreReader
    from impctl.store.records import RunRecord, StoredQuery, TablePin
    from impctl.types import QueryName
    from impctl.workload.models import QuerySpec


# Status. Law: reads the store and the tables' logs, never a data file; never starts Spark.

DEFAULT_RUNS = 3
_LOOKED_BACK = 200
"""Runs searched for the last verification."""


def status(
    ctx: Context, queries: Sequence[QueryName] | None, *, runs: int = DEFAULT_RUNS
) -> Outcome:
    """One result per query; a query that was never captured has no sketches."""
    store = ctx.reading_store()
    return collect_results(ctx.queries(queries), lambda spec: [_status(ctx, store, spec, runs)])


def _status(ctx: Context, store: StoreReader | None, spec: QuerySpec, runs: int) -> StatusResult:
    from impctl.service.schedule.due import fresh_entry

    policy = str(ctx.policy(spec))
    if not spec.is_sketched:
        return StatusResult(query=spec.name, policy=policy)
    trigger = None if spec.trigger is None else spec.trigger.text
    stored = None if store is None else store.load(spec.name)
    if store is None or stored is None:
        result = StatusResult(query=spec.name, policy=policy)
        return replace(result, stale=True, mode=None, trigger=trigger)
    catch_up(ctx.tables, stored)
    history = store.history(spec.name, max(runs, _LOOKED_BACK))
    pending, reason = _pending(ctx, spec, stored)
    uses = Ledger(ctx.store_path).sums(spec.name)
    return StatusResult(
        query=spec.name,
        sketches=tuple(sketch_entry(sketch) for sketch in stored.sketches),
        versions=stored.versions,
        pending_versions=pending,
        stale=reason is not None,
        mode=stored.mode.value,
        policy=policy,
        state_bytes=sum(run.bytes for run in store.run_refs(spec.name)),
        last_action=history[0].action if history else None,
        last_reason=history[0].reason if history else None,
        stale_reason=reason,
        ranges=ranges_entries(ctx, stored),
        sketch_bytes=sum(len(sketch.ranges.to_bytes()) for sketch in stored.sketches),
        pending=tuple(_changes(ctx.tables, pin) for pin in stored.pins if pending[pin.table]),
        runs=tuple(map(_run, history[:runs])),
        verified=_verified(history),
        uses=uses.uses,
        last_use=None if uses.last is None else datetime.fromtimestamp(uses.last, UTC),
        bytes_skipped=uses.bytes_plain - uses.bytes,
        tree=tree_record(stored),
        moments=stored_moments(stored),
        materialized=bool(stored.state_meta.get("answer")),
        materialized_reads=uses.answers,
        provenance=provenance_kept(spec, str(stored.state_meta.get("provenance", ""))),
        fresh=fresh_entry(ctx, spec, stored),
        trigger=trigger,
        next_expiry=expires(stored) or None,
    )


def _changes(tables: PinnedTables, pin: TablePin) -> PendingEntry:
    source = tables.source(pin.table)
    versions, size = source.version - pin.version, None
    if source.table_id == pin.table_id:
        versions, size = max(versions, 0), pending_size(source, pin.version)
    if size is None:
        return PendingEntry(pin.table, pin.version, versions, None, None, None)
    return PendingEntry(pin.table, pin.version, versions, size.files, size.rows, size.bytes)


def _run(record: RunRecord) -> RunEntry:
    return RunEntry(
        record.action,
        record.reason_code,
        record.reason,
        datetime.fromtimestamp(record.started_at, UTC),
        record.elapsed_ms,
        None if record.action in WHOLE_TABLES else record.changes,
        record.versions,
    )


def _verified(history: Sequence[RunRecord]) -> VerifiedEntry | None:
    for record in history:
        if record.action == VERIFY:
            verified_at = datetime.fromtimestamp(record.started_at, UTC)
            return VerifiedEntry(
                record.reason_code == VERIFIED, record.added, verified_at, record.versions
            )
    return None


def _pending(
    ctx: Context, spec: QuerySpec, stored: StoredQuery
) -> tuple[dict[str, int], str | None]:
    """Versions committed since per table, and why the sketch is stale, if it is."""
    pending = {
        pin.table: max(ctx.tables.source(pin.table).version - pin.version, 0) for pin in stored.pins
    }
    if not is_defined_alike(ctx, spec, stored):
        return pending, "the query or its partitions changed since the capture; capture it again"
    if not is_of_this_release(stored.state_meta):
        return pending, "it was captured by another release of impctl; capture it again"
    try:
        check_pins(stored, ctx.tables)
    except RecaptureNeededError as replaced:
        return pending, f"{replaced.message}; capture it again"
    moved = moved_moments(ctx, stored)
    if moved:
        return pending, f"{moved_text(moved)}; run `maintain` to update the sketch"
    if any(pending.values()):
        return pending, "the table has newer versions; run `maintain` to update the sketch"
    return pending, None


# Gain. Law: counted from the ledger and the history of runs, without reading data or running
# queries; only the time saved is an estimate, and marked as such. Clustering is advised only where
# `cluster` would do it.

_ALL_RUNS = 1_000_000
_MS_PER_BYTE = 1e-5
"""Spark reads and groups about 100 MB a second on two cores (decision 0045)."""


def gain(ctx: Context, queries: Sequence[QueryName] | None, since: float | None) -> Outcome:
    """Report each query that was captured; uses of the last `since` seconds, or all."""
    store = ctx.reading_store()
    start = None if since is None else time.time() - since

    @cache
    def forecasts() -> ClusterForecasts:
        # Loaded for a hint only, because it takes longer than the rest.
        from impctl.service.advice import ClusterForecasts

        return ClusterForecasts(ctx, store)

    return collect_results(
        ctx.sketched(queries), lambda spec: [_gained(ctx, store, forecasts, spec, start)]
    )


def _gained(
    ctx: Context,
    store: StoreReader | None,
    forecasts: Callable[[], ClusterForecasts],
    spec: QuerySpec,
    start: float | None,
) -> GainResult:
    sums = Ledger(ctx.store_path).sums(spec.name, start or 0.0)
    runs = () if store is None else store.history(spec.name, _ALL_RUNS)
    counted = [r for r in runs if r.action != VERIFY and r.started_at >= (start or 0.0)]
    upkeep = sum(run.elapsed_ms for run in counted)
    stored = None if store is None else store.load(spec.name)
    read = () if stored is None or not sums.answers else stored.versions
    answers_bytes = sums.answers * sum(ctx.tables.snapshot(table).bytes for table in read)
    saved = (sums.bytes_plain - sums.bytes + answers_bytes) * _MS_PER_BYTE
    verdict = _verdict(sums, saved, upkeep)
    return GainResult(
        query=spec.name,
        since=None if start is None else datetime.fromtimestamp(start, UTC),
        uses=sums.uses,
        used=sums.used,
        last_use=None if sums.last is None else datetime.fromtimestamp(sums.last, UTC),
        files=sums.files,
        files_plain=sums.files_plain,
        rows=sums.rows,
        rows_plain=sums.rows_plain,
        bytes=sums.bytes,
        bytes_plain=sums.bytes_plain,
        query_ms=sums.elapsed_ms,
        upkeep_runs=len(counted),
        upkeep_ms=upkeep,
        saved_ms=saved,
        verdict=verdict,
        materialized_reads=sums.answers,
        answers_bytes=answers_bytes,
        hint=_hint(verdict, sums, len(counted), partial(_order_hint, forecasts, stored)),
    )


def _verdict(uses: Uses, saved: float, upkeep: float) -> str:
    if not uses.uses and not uses.answers:
        return NOT_USED_YET
    if saved >= upkeep:
        return PAYS
    return ANSWERS if uses.answers else COSTS_MORE


def _hint(verdict: str, uses: Uses, upkeep_runs: int, of_order: Callable[[], str]) -> str:
    if verdict == NOT_USED_YET and upkeep_runs <= 1:
        # Captured just now: there was no time to use it.
        return ""
    if verdict == NOT_USED_YET:
        return "stop maintaining the query, or maintain it only on request"
    if verdict in (PAYS, ANSWERS):
        return ""
    if uses.bytes > uses.bytes_plain / 2:
        return f"few files are skipped{of_order()}"
    if upkeep_runs <= uses.uses:
        return "it has been used too rarely to make up for its capture and maintenance"
    return "it is maintained more often than it is used; maintain it less often"


def _order_hint(forecasts: Callable[[], ClusterForecasts], stored: StoredQuery | None) -> str:
    """Whether clustering the query's tables would change that, as `cluster` computes it."""
    if stored is None:
        return ""
    name, sketches, reason = stored.query, stored.sketches, ""
    for table in dict.fromkeys(sketch.table for sketch in sketches):
        forecast = forecasts().of(table)
        if forecast is None:
            continue
        of_query = [sketch for sketch in forecast.sketches if sketch.query == name]
        if not forecast.obstacle and any(use.bytes_expected < use.bytes for use in of_query):
            return ": see the estimate of `impctl cluster --dry-run`"
        alone = next((sketch for sketch in sketches if forecasts().alone(name, sketch)), None)
        if alone is not None:
            by = f"--table {alone.table} --by {alone.attribute}"
            return f": `impctl cluster {by}` would change that for this sketch alone"
        reason = forecast.obstacle or "the order that helps other sketches does not help this one"
    return f", and clustering would not help: {reason}" if reason else ""
