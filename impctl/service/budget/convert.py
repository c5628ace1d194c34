"""State brought to another choice of what is kept, in one commit."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Self

from impctl.compile.flows import AsRecorded, Source, Strategy
from impctl.compile.session import Checkpoint, MaintainedQuery, buffer_groups, hand_over, sides_of
from impctl.engine.trace import RowIndex
from impctl.service.maintenance_plan import chosen_buffers, chosen_way
from impctl.service.partners import FilePartners
from impctl.service.query_state import TakenUp
from impctl.service.stored import StateMeta, check_not_replaced_meanwhile
from impctl.service.table_deltas import rows_with
from impctl.stopwatch import Stopwatch
from impctl.store.records import MaintainCommit, RunCost, RunKind, RunRecord
from impctl.values import dataclass

if TYPE_CHECKING:
    import pyarrow as pa

    from impctl.data.vector import Vector
    from impctl.service.budget.costs import Opened
    from impctl.service.context import Workbench
    from impctl.store.store import Store
    from impctl.types import ColumnName

CONVERTED = "state_converted"


@dataclass(frozen=True, slots=True)
class Wanted:
    """How a query's state is to be kept: sides of joins and groups that the engine reads from
    files, and how many of the best rows or values are kept of pieces that are bounded. All others
    but sides that Spark reads are kept."""

    from_files: tuple[str, ...] = ()
    buffers: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def now(cls, query: Opened) -> Self:
        """As it is kept."""
        meta = query.as_stored.meta
        return cls(query.compiled.sides_by(Strategy.FILES), meta.buffers)

    def moved(self, other: Wanted) -> set[str]:
        """Pieces that the other keeps otherwise."""
        mine, theirs = (
            {**dict.fromkeys(one.from_files, 0), **one.buffers} for one in (self, other)
        )
        return {name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name)}


def convert(
    desk: Workbench, store: Store, query: Opened, wanted: Wanted, reasons: Mapping[str, str]
) -> None:
    """Keep the query's state as is wanted.

    `reasons` say why, by piece; those of what is kept otherwise now go into the history.
    Raises HistoryGoneError where a piece is to be kept again whose tables cannot be read any more,
    RetryableError where another took the place of one.
    """
    watch, at = Stopwatch(), time.time()
    held = query.as_stored
    runs = store.load_runs(query.stored.query)
    taken = TakenUp(held.way, query.stored, runs)
    assert taken.session is not None
    by_spark = query.compiled.sides_by(Strategy.SPARK)
    recorded = held.chooser.sides
    sides = AsRecorded(by_spark, recorded.has_filter, wanted.from_files, reasons)
    chooser = replace(held.chooser, sides=sides, buffers=wanted.buffers, buffer=None)
    way = chosen_way(
        held.prepared, held.verdict, held.partitions, chooser, has_answer=held.meta.answer
    )
    assert way.compiled is not None
    after = MaintainedQuery(way.compiled)
    after.restore(runs, held.meta.counters, is_converted=True)
    partners = FilePartners(desk, query.compiled, held.partitions, query.stored.versions)
    taken.session.read_by(partners)

    def table_rows(source: Source, keys: Mapping[ColumnName, Vector]) -> Iterator[pa.Table]:
        table = source.table
        return rows_with(desk.tables.snapshot(table, query.stored.versions[table]), source, keys)

    hand_over(taken.session, after, partners.whole, table_rows)
    check_not_replaced_meanwhile(query.stored, desk.tables)
    _commit(store, query, taken.session, after, (watch, at), reasons)


def _commit(
    store: Store,
    query: Opened,
    before: MaintainedQuery,
    after: MaintainedQuery,
    begun: tuple[Stopwatch, float],
    reasons: Mapping[str, str],
) -> None:
    checkpoint, stored = after.checkpoint(), query.stored
    kept = {keeper.name for keeper in after.keepers()}
    refs = store.run_refs(stored.query)
    gone = [(run.arrangement, run.sequence) for run in refs if run.arrangement not in kept]
    buffers = chosen_buffers(query.as_stored.prepared.spec, after.compiled)
    wanted = Wanted(after.compiled.sides_by(Strategy.FILES), buffers)
    meta = replace(_meta(query, before, wanted, checkpoint), side_reasons=dict(reasons))
    moved = wanted.moved(Wanted.now(query))
    told = {name: f" bounded to the best {size:,}" for name, size in buffers.items()}
    reason = "; ".join(
        f"{side}{told.get(side, '')}: {why}" for side, why in reasons.items() if side in moved
    )
    commit = MaintainCommit(
        query=stored.query,
        expected_generation=stored.generation,
        pins=stored.pins,
        put_runs=checkpoint.put,
        drop_runs=(*checkpoint.drop, *gone),
        state_meta=meta.as_stored(),
        basis=meta.basis(stored.pins),
        record=_record(query, begun, reason, _recapture(store, query, meta, begun[0].ms)),
        # Nothing was maintained: when that was tells how long changes may have waited.
        at=stored.maintained_at,
    )
    store.commit_maintain(commit)


def _meta(
    query: Opened, before: MaintainedQuery, wanted: Wanted, checkpoint: Checkpoint
) -> StateMeta:
    """What is told of the state, with the rows of sides and the groups that were kept."""
    meta = query.as_stored.meta
    held = {name: one.rows for name, one in sides_of(before).items() if isinstance(one, RowIndex)}
    whole = [one for one in before.circuit if one.piece and not one.reads]
    held |= {one.piece: len(one.group_codes()) for one in whole if one.piece in wanted.from_files}
    rows = {**meta.read_rows, **held}
    whole = [one for one in whole if one.piece not in meta.buffers]
    sizes = {**meta.group_bytes, **{one.piece: query.bytes_of(one) for one in whole}}
    left_out = {*wanted.from_files, *wanted.buffers}
    return replace(
        meta,
        from_files=wanted.from_files,
        buffers=wanted.buffers,
        buffer_groups=buffer_groups(before),
        read_rows={name: rows[name] for name in wanted.from_files if name in rows},
        group_bytes={name: size for name, size in sizes.items() if name in left_out},
        counters=dict(checkpoint.counters),
    )


def _recapture(store: Store, query: Opened, after: StateMeta, ms: float) -> RunCost | None:
    """What a recapture takes at most with state kept as it is now: one as it was before, and this.

    None where one was recorded already, or none as it was before.
    """
    costs = [one for one in store.costs(query.stored.query) if one.kind is RunKind.RECAPTURE]
    before = [one for one in costs if one.layout == query.as_stored.meta.layout]
    if not before or any(one.layout == after.layout for one in costs):
        return None
    return replace(before[0], elapsed_ms=before[0].elapsed_ms + ms, layout=after.layout)


def _record(
    query: Opened, begun: tuple[Stopwatch, float], reason: str, cost: RunCost | None
) -> RunRecord:
    watch, at = begun
    return RunRecord(
        action="convert",
        reason_code=CONVERTED,
        reason=reason,
        started_at=at,
        elapsed_ms=watch.ms,
        read_ms=0.0,
        engine_ms=watch.ms,
        commit_ms=0.0,
        changes=0,
        added=0,
        removed=0,
        versions=dict(query.stored.versions),
        cost=cost,
    )
