"""Rebalance: even out the ranges of stored sketches."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from impctl.compile.session import MaintainedQuery, TouchedQuery, converted_session, needs_rows
from impctl.data.vector import Ints, from_arrow
from impctl.service.capture import commit_capture
from impctl.service.context import Context, collect_results
from impctl.service.fill import filled_circuit
from impctl.service.maintain import maintain
from impctl.service.maintenance_plan import (
    QueryState,
    Reopened,
    check_circuit,
    chosen_plan,
    reopened,
)
from impctl.service.partitions import values_within, wanted_ranges
from impctl.service.results import CaptureResult, Outcome
from impctl.service.stored import (
    check_definition,
    has_own_boundaries,
    is_up_to_date,
    moved_meanwhile,
    sketch_entry,
    stored_query,
)
from impctl.sketch.boundaries import evened, heavy_ranges
from impctl.sketch.sketch import (
    BoundaryValue,
    MaintenanceMode,
    RangePartition,
    RangeSet,
    Renumbering,
    exact_filter,
)
from impctl.stopwatch import Stopwatch
from impctl.store.records import RunRecord, StoredQuery
from impctl.tables.rows import read_batches
from impctl.tables.statistics import prune

if TYPE_CHECKING:
    from impctl.compile.fill import RangeRows
    from impctl.store.reader import StoreReader
    from impctl.store.store import Store
    from impctl.types import AccessId, ColumnName, QueryName
    from impctl.workload.models import QuerySpec


# New ranges from stored counts. Law: only heavy ranges are read, and only files that may have their
# rows; counts of other ranges follow from the stored ones. The new counts are exact.


def new_ranges(ctx: Context, partition: RangePartition, counts: Ints) -> Renumbering | None:
    """Better ranges; None where these are even, or as even as the sample can make them."""
    count = wanted_ranges(ctx, partition)
    ids = heavy_ranges(counts[:-1], count)
    sample: list[BoundaryValue] = []
    if len(ids):
        sample = values_within(ctx, partition, RangeSet.of(ids.tolist(), partition.size))
    new = evened(partition, counts, count, sample)
    return None if new == partition else Renumbering(partition, new)


class _SplitRows:
    """The rows of the split ranges, read at most once, with the counts of the new ranges."""

    def __init__(self, ctx: Context, change: Renumbering, before: RangeRows) -> None:
        self._ctx = ctx
        self._change = change
        self._before = before
        self._counts = change.carried(before.counts(change.old))
        self.count = 0

    def read(self, columns: Sequence[ColumnName]) -> Iterator[pa.Table]:
        """The rows with at least `columns`."""
        old, new, split = self._change.old, self._change.new, _split(self._change)
        if not len(split):
            return
        snapshot = self._ctx.tables.snapshot(old.table)
        names = tuple(dict.fromkeys((*columns, old.attribute)))
        for rows in read_batches(snapshot, names, prune(snapshot, [exact_filter(split, old)])):
            values = from_arrow(rows.column(old.attribute), old.type)
            chosen = np.flatnonzero(self._change.targets[old.range_ids_of(values)] < 0)
            ranges = new.range_ids_of(values.take(chosen))
            self._counts += np.bincount(ranges, minlength=len(self._counts))
            self.count += len(chosen)
            yield rows.take(pa.array(chosen))

    def fill(self, counted: RangeRows, rows: Iterator[pa.Table]) -> None:
        """Rows per new range once the rest of `rows` was read; estimates stay estimates."""
        for _ in rows:
            pass
        if self._before.is_estimate(self._change.old):
            counted.estimate(self._change.new, self._counts)
        else:
            counted.fill(self._change.new, self._counts)


def _split(change: Renumbering) -> RangeSet:
    """Old ranges whose rows must be read."""
    return RangeSet.from_mask(change.targets < 0)


# Law: the new sketch holds all that the old one did at the same versions; sketch, ranges, state and
# versions are stored in one transaction, and sketches of earlier versions keep their ranges. Every
# result names its way: the state follows from the stored one (ranges merged, or split on a grouping
# column); it follows after reading the rows of split ranges; or it is captured again, because a
# join or a buffer of values does not determine it. Boundaries of the file are the user's and stay,
# as do ranges of which others would leave the largest one larger.


def rebalance(ctx: Context, queries: Sequence[QueryName] | None) -> Outcome:
    """Maintain the named queries (default: all), then even out their ranges."""
    specs = ctx.sketched(queries)
    if not specs:
        return Outcome()
    outcome = maintain(ctx, [spec.name for spec in specs], for_use=True)
    failed = {failure.query for failure in outcome.failures}
    current = [spec for spec in specs if spec.name not in failed]
    if ctx.settings.dry_run:
        reading = ctx.reading_store()
        done = collect_results(current, lambda spec: [_planned(ctx, reading, spec)])
    else:
        with ctx.writing("capture") as store:
            done = collect_results(
                current, lambda spec: [_Rebalance(ctx, store, spec).result(store)]
            )
    failures = (*outcome.failures, *done.failures)
    return Outcome(done.results, outcome.warnings, failures)


_Change = tuple[QueryState, Mapping["RangePartition", Renumbering], tuple[str, ...]]
_Rebuilt = tuple["Mapping[AccessId, RangeSet]", MaintainedQuery | TouchedQuery, str, bool]
"""Sketches and state under the new ranges, how they were made, and whether Spark was used."""


class _Rebalance:
    def __init__(self, ctx: Context, store: StoreReader, spec: QuerySpec) -> None:
        self.ctx = ctx
        self.store = store
        self.watch = Stopwatch()
        self.stored = stored_query(ctx, store, spec)
        check_definition(ctx, spec, self.stored)
        if not is_up_to_date(ctx, spec, self.stored):
            raise moved_meanwhile(spec.name)
        self.query = reopened(ctx, spec, self.stored)
        check_circuit(ctx, self.query, self.stored)

    def result(self, store: Store) -> CaptureResult:
        """Even the ranges out where possible and worth it, and commit."""
        change = self._change()
        if isinstance(change, str):
            return self._unchanged(change)
        query_state, moved, remarks = change
        new = {old: ranges.new for old, ranges in moved.items()}
        partitions = {access: new.get(old, old) for access, old in self.query.partitions.items()}
        query = replace(self.query, partitions=partitions)
        # The same join sides are stored.
        query = replace(query, plan=chosen_plan(query, query.chooser, has_answer=query.meta.answer))
        before = {old: _largest(query_state.range_rows, old) for old in moved}
        rebalanced = self._rebuilt(query_state, moved, query)
        if rebalanced is None:
            return self._unchanged("the engine could not build its state with other ranges")
        ranges, state, how, uses_spark = rebalanced
        if any(_largest(state.range_rows, new[old]) > rows for old, rows in before.items()):
            return self._unchanged("other ranges would make the largest one larger")
        reason = "; ".join([*map(_moved_text, moved.values()), how, *remarks])
        sketches = tuple(
            replace(s, partition=partitions[s.access], ranges=ranges[s.access])
            for s in self.stored.sketches
        )
        elapsed = self.watch.ms
        spark_ms = elapsed if uses_spark else 0.0
        record = RunRecord(
            action="rebalance",
            reason_code="asked",
            reason=reason,
            started_at=time.time(),
            elapsed_ms=elapsed,
            read_ms=spark_ms,
            engine_ms=elapsed - spark_ms,
            versions=self.stored.versions,
        )
        assumptions = self.stored.assumptions
        prepared, plan = query.prepared, query.plan
        commit_capture(self.ctx, store, prepared, plan, state, sketches, assumptions, record)
        stored = replace(self.stored, sketches=sketches)
        return _result(stored, "rebalance", reason, self.watch.ms, spark_ms)

    def planned(self) -> CaptureResult:
        """The expected `result`, by the stored counts of the ranges."""
        change = self._change()
        if isinstance(change, str):
            return replace(self._unchanged(change), dry_run=True, stored="even")
        _, moved, remarks = change
        texts = [f"would even out {_moved_text(m).removesuffix(' now')}" for m in moved.values()]
        reason = "; ".join([*texts, *remarks])
        return replace(self._unchanged(reason), dry_run=True, stored="uneven")

    def _change(self) -> _Change | str:
        """The restored query, partitions with new ranges and remarks on others; or why none."""
        if self.query.plan.mode is MaintenanceMode.RECAPTURE:
            return "it is recaptured after every change, which also chooses its ranges again"
        state = QueryState(self.query.plan, self.stored, self.store.load_runs(self.stored.query))
        moved, remarks, is_even = {}, [], False
        for partition in dict.fromkeys(self.query.partitions.values()):
            table, attribute = partition.table, partition.attribute
            if has_own_boundaries(self.ctx, table, attribute):
                remarks.append(
                    f"the workload file sets the `boundaries` of `{table}.{attribute}`, "
                    "so they did not change"
                )
                continue
            ranges = new_ranges(self.ctx, partition, state.range_rows.counts(partition))
            is_even |= ranges is None
            if ranges is not None:
                moved[partition] = ranges
        if not moved:
            reasons = ["splitting or merging ranges would not help"] if is_even else []
            return "; ".join([*reasons, *remarks])
        return state, moved, tuple(remarks)

    def _rebuilt(
        self, state: QueryState, moved: Mapping[RangePartition, Renumbering], query: Reopened
    ) -> _Rebuilt | None:
        """Sketches and state of the query with its new partitions."""
        if state.session is None:
            # Touch mode stores only its sketch: it takes every part of a split range.
            ((access, stored),) = state.ranges.items()
            (change,) = moved.values()
            split = _SplitRows(self.ctx, change, state.range_rows)
            ranges = change.ranges(stored)
            touched = TouchedQuery(change.new, ranges)
            split.fill(touched.range_rows, split.read(()))
            how = "sketch derived from the stored one, including every part of a split range"
            return {access: ranges}, touched, how, False
        compiled = query.plan.compiled
        assert compiled is not None
        if compiled.chain is None:
            filled = filled_circuit(self.ctx, query, query.plan)
            if filled is None:
                return None
            how = "state recaptured: it cannot be derived for other ranges"
            return filled.session.ranges(), filled.session, how, filled.uses_spark
        (change,) = moved.values()
        split = _SplitRows(self.ctx, change, state.range_rows)
        is_read = needs_rows(compiled, change)
        rows = split.read(compiled.columns_of(change.old.table) if is_read else ())
        session = converted_session(state.session, compiled, change, rows if is_read else ())
        split.fill(session.range_rows, rows)
        how = "state derived from the stored one"
        if is_read:
            how += f" and from {split.count:,} rows of split ranges"
        return session.ranges(), session, how, False

    def _unchanged(self, reason: str) -> CaptureResult:
        return _result(self.stored, "none", reason, self.watch.ms)


def _planned(ctx: Context, store: StoreReader | None, spec: QuerySpec) -> CaptureResult:
    stored = stored_query(ctx, store, spec)
    assert store is not None
    if is_up_to_date(ctx, spec, stored):
        return _Rebalance(ctx, store, spec).planned()
    reason = "would be maintained first, and its ranges checked after that"
    return replace(_result(stored, "none", reason), dry_run=True, stored="stale")


def _result(
    stored: StoredQuery, action: str, reason: str, elapsed_ms: float = 0.0, spark_ms: float = 0.0
) -> CaptureResult:
    return CaptureResult(
        query=stored.query,
        action=action,
        sketches=tuple(sketch_entry(sketch) for sketch in stored.sketches),
        versions=stored.versions,
        mode=stored.mode.value,
        elapsed_ms=elapsed_ms,
        spark_ms=spark_ms,
        engine_ms=elapsed_ms - spark_ms,
        reason=reason,
    )


def _largest(counted: RangeRows, partition: RangePartition) -> int:
    return int(counted.counts(partition)[:-1].max())


def _moved_text(change: Renumbering) -> str:
    old, new, targets = change.old, change.new, change.targets
    _, sizes = np.unique(targets[targets >= 0], return_counts=True)
    # Old ranges that share a new one with others.
    merged = int(sizes[sizes > 1].sum())
    return (
        f"`{old.table}.{old.attribute}`: of {old.ranges} ranges, {len(_split(change))} split "
        f"and {merged} merged with neighbors, {new.ranges} in total now"
    )
