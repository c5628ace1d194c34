"""What the sketches of each query skipped, and what keeping them cost.

Law: counted from the ledger and the history of runs, without reading data or running queries; only
the time saved is an estimate, and marked as such. Clustering is advised only where `cluster` would
do it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from typing import TYPE_CHECKING

from impctl.service.context import Context, collect_results
from impctl.service.results import (
    ANSWERS,
    COSTS_MORE,
    NOT_USED_YET,
    PAYS,
    VERIFY,
    GainResult,
    Outcome,
)
from impctl.store.ledger import Ledger, Uses

if TYPE_CHECKING:
    from impctl.service.advice import ClusterForecasts
    from impctl.store.reader import StoreReader
    from impctl.store.records import StoredQuery
    from impctl.types import QueryName
    from impctl.workload.models import QuerySpec

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
        kept_answers=sums.answers,
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
    name, sketches, said = stored.query, stored.sketches, ""
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
        said = forecast.obstacle or "the order that helps other sketches does not help this one"
    return f", and clustering would not help: {said}" if said else ""
