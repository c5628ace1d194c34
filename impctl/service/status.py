"""What the store knows of each query, and how far behind its tables it is.

Law: reads the store and the tables' logs, never a data file; never starts Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec.structs import replace

from impctl.errors import RecaptureNeededError
from impctl.service.context import Context, collect_results
from impctl.service.results import (
    VERIFIED,
    VERIFY,
    WHOLE_TABLES,
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
from impctl.store.ledger import Ledger
from impctl.tables.log import pending_size

if TYPE_CHECKING:
    from impctl.service.pinned import PinnedTables
    from impctl.store.reader import StoreReader
    from impctl.store.records import RunRecord, StoredQuery, TablePin
    from impctl.types import QueryName
    from impctl.workload.models import QuerySpec

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
        bytes_left_out=uses.bytes_plain - uses.bytes,
        tree=tree_record(stored),
        moments=stored_moments(stored),
        keeps_answer=bool(stored.state_meta.get("answer")),
        kept_answers=uses.answers,
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
