"""Rebalance: even out the ranges of stored sketches."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from impctl.compile.session import (
    MaintainedQuery,
    TouchedQuery,
    can_rederive,
    converted_session,
    needs_rows,
)
from impctl.data.vector import Ints, from_arrow
from impctl.service.capture import commit_capture
from impctl.service.context import Context, Isolated
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
from impctl.sketch.sketch import MaintenanceMode, RangeSet, Renumbering, exact_filter
from impctl.stopwatch import Stopwatch
from impctl.store.records import RunRecord, StoredQuery
from impctl.tables.rows import read_batches
from impctl.tables.statistics import prune

if TYPE_CHECKING:
    from impctl.compile.fill import RangeRows
    from impctl.service.pinned import PinnedTables
    from impctl.sketch.sketch import BoundaryValue, RangeIds, RangePartition
    from impctl.store.reader import StoreReader
    from impctl.store.store import Store
    from impctl.types import AccessId, ColumnName, QueryName
    from impctl.workload.models import QuerySpec


# New ranges from stored counts. Law: only heavy ranges are read, and only files that may have their
# rows; counts of other ranges follow from the stored ones. The new counts are exact.


class NewRanges(Struct, frozen=True):
    """The new range of each old one, and the counts that the old ones give: without split
    ranges."""

    renumbering: Renumbering
    counts: Ints

    @property
    def split(self) -> RangeSet:
        """Old ranges whose rows must be read."""
        return RangeSet.from_mask(self.renumbering.targets < 0)

    @property
    def merged(self) -> int:
        """Old ranges that share a new one with others."""
        targets = self.renumbering.targets
        _, sizes = np.unique(targets[targets >= 0], return_counts=True)
        return int(sizes[sizes > 1].sum())


def new_ranges(ctx: Context, partition: RangePartition, counts: Ints) -> NewRanges | None:
    """Better ranges; None where these are even, or as even as the sample can make them."""
    wanted = wanted_ranges(ctx, partition)
    rows = counts[:-1]
    ids = heavy_ranges(rows, wanted)
    sample: list[BoundaryValue] = []
    if len(ids):
        sample = values_within(ctx, partition, RangeSet.of(ids.tolist(), partition.size))
    new = evened(partition, counts, wanted, sample)
    if new == partition:
        return None
    renumbering = Renumbering(partition, new)
    return NewRanges(renumbering, renumbering.carried(counts))


def split_rows(
    tables: PinnedTables, change: NewRanges, columns: Sequence[ColumnName]
) -> Iterator[tuple[pa.Table, RangeIds]]:
    """The rows of the split ranges, each with its new range; at least `columns`."""
    if not len(change.split):
        return
    old, new = change.renumbering.old, change.renumbering.new
    snapshot = tables.snapshot(old.table)
    names = tuple(dict.fromkeys((*columns, old.attribute)))
    files = prune(snapshot, [exact_filter(change.split, old)])
    for rows in read_batches(snapshot, names, files):
        values = from_arrow(rows.column(old.attribute), old.type)
        split = np.flatnonzero(change.renumbering.targets[old.range_ids_of(values)] < 0)
        yield rows.take(pa.array(split)), new.range_ids_of(values.take(split))


# Law: the new sketch holds all that the old one did at the same versions; sketch, ranges, state and
# versions are stored in one transaction, and sketches of earlier versions keep their ranges. Every
# result names its way: the state follows from the stored one (ranges merged, or split on a grouping
# column); it follows after reading the rows of split ranges; or it is captured again, because a
# join or a buffer of values does not determine it. Boundaries of the file are the user's and stay,
# as do ranges of which others would leave the largest one larger.


def rebalance(ctx: Context, queries: Sequence[QueryName] | None) -> Outcome:
    """Maintain the named queries (default: all), then even out their ranges."""
    specs = ctx.sketched(queries)
    results: list[CaptureResult] = []
    if not specs:
        return Outcome()
    outcome = maintain(ctx, [spec.name for spec in specs], for_use=True)
    failures = list(outcome.failures)
    failed = {failure.query for failure in failures}
    current = [spec for spec in specs if spec.name not in failed]
    if ctx.settings.dry_run:
        reading = ctx.reading_store()
        for spec in current:
            with Isolated(failures, spec):
                results.append(_planned(ctx, reading, spec))
        return Outcome(tuple(results), outcome.warnings, tuple(failures))
    with ctx.writing("capture") as store:
        for spec in current:
            with Isolated(failures, spec):
                results.append(_Rebalance(ctx, store, spec).result(store))
    return Outcome(tuple(results), outcome.warnings, tuple(failures))


_Change = tuple[QueryState, "Mapping[RangePartition, NewRanges]", tuple[str, ...]]
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
        new = {old: ranges.renumbering.new for old, ranges in moved.items()}
        partitions = {access: new.get(old, old) for access, old in self.query.partitions.items()}
        query = replace(self.query, partitions=partitions)
        # The same join sides are stored.
        query = replace(query, plan=chosen_plan(query, query.chooser, has_answer=query.meta.answer))
        before = {old: _largest(query_state.range_rows, old) for old in moved}
        rebalanced = self._rebuilt(query_state, moved, query)
        if rebalanced is None:
            return self._unchanged("the engine could not build its state with other ranges")
        _, state, how, _ = rebalanced
        if any(_largest(state.range_rows, new[old]) > rows for old, rows in before.items()):
            return self._unchanged("other ranges would make the largest one larger")
        reason = "; ".join([*map(_moved_text, moved.values()), how, *remarks])
        return self._commit(store, query, rebalanced, reason)

    def planned(self) -> CaptureResult:
        """The expected `result`, by the stored counts of the ranges."""
        change = self._change()
        if isinstance(change, str):
            return replace(self._unchanged(change), foreseen=True, stored="even")
        _, moved, remarks = change
        texts = [f"would even out {_moved_text(m).removesuffix(' now')}" for m in moved.values()]
        reason = "; ".join([*texts, *remarks])
        return replace(self._unchanged(reason), foreseen=True, stored="uneven")

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
        self,
        state: QueryState,
        moved: Mapping[RangePartition, NewRanges],
        query: Reopened,
    ) -> _Rebuilt | None:
        """Sketches and state of the query with its new partitions."""
        if state.session is None:
            # Touch mode stores only its sketch: it takes every part of a split range.
            ((access, stored),) = state.ranges.items()
            (change,) = moved.values()
            reading = _Reading(self.ctx, change)
            ranges = change.renumbering.ranges(stored)
            touched = TouchedQuery(change.renumbering.new, ranges)
            reading.fill(touched.range_rows, reading.rows(()), state.range_rows)
            how = "sketch derived from the stored one, including every part of a split range"
            return {access: ranges}, touched, how, False
        compiled = query.plan.compiled
        assert compiled is not None
        if not can_rederive(compiled):
            filled = filled_circuit(self.ctx, query, query.plan)
            if filled is None:
                return None
            how = "state recaptured: it cannot be derived for other ranges"
            return filled.session.ranges(), filled.session, how, filled.uses_spark
        (change,) = moved.values()
        reading = _Reading(self.ctx, change)
        is_read = needs_rows(compiled, change.renumbering)
        columns = compiled.columns_of(change.renumbering.old.table) if is_read else ()
        rows = reading.rows(columns)
        session = converted_session(
            state.session, compiled, change.renumbering, rows if is_read else ()
        )
        reading.fill(session.range_rows, rows, state.range_rows)
        return session.ranges(), session, reading.how(is_read), False

    def _commit(
        self,
        store: Store,
        query: Reopened,
        rebalanced: _Rebuilt,
        reason: str,
    ) -> CaptureResult:
        ranges, state, _, uses_spark = rebalanced
        sketches = tuple(
            replace(s, partition=query.partitions[s.access], ranges=ranges[s.access])
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
            commit_ms=0.0,
            changes=0,
            added=0,
            removed=0,
            versions=self.stored.versions,
        )
        commit_capture(
            self.ctx,
            store,
            query.prepared,
            query.plan,
            state,
            sketches,
            self.stored.assumptions,
            record,
        )
        stored = replace(self.stored, sketches=sketches)
        return _result(stored, "rebalance", reason, self.watch.ms, spark_ms)

    def _unchanged(self, reason: str) -> CaptureResult:
        return _result(self.stored, "none", reason, self.watch.ms)


class _Reading:
    """The rows of the split ranges, read at most once, with counts."""

    def __init__(self, ctx: Context, change: NewRanges) -> None:
        self._ctx = ctx
        self._change = change
        self._counts = change.counts.copy()
        self._rows = 0

    def rows(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        for table, ranges in split_rows(self._ctx.tables, self._change, columns):
            self._counts += np.bincount(ranges, minlength=len(self._counts))
            self._rows += len(table)
            yield table

    def fill(self, counted: RangeRows, rows: Iterator[pa.Table], before: RangeRows) -> None:
        """Rows per new range once the rest of `rows` was read; estimates stay estimates."""
        for _ in rows:
            pass
        old, new = self._change.renumbering.old, self._change.renumbering.new
        if before.is_estimate(old):
            counted.estimate(new, self._counts)
        else:
            counted.fill(new, self._counts)

    def how(self, is_read: bool) -> str:
        if is_read:
            return f"state derived from the stored one and from {self._rows:,} rows of split ranges"
        return "state derived from the stored one"


def _planned(ctx: Context, store: StoreReader | None, spec: QuerySpec) -> CaptureResult:
    stored = stored_query(ctx, store, spec)
    assert store is not None
    if is_up_to_date(ctx, spec, stored):
        return _Rebalance(ctx, store, spec).planned()
    reason = "would be maintained first, and its ranges checked after that"
    return replace(_result(stored, "none", reason), foreseen=True, stored="stale")


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


def _moved_text(change: NewRanges) -> str:
    old, new = change.renumbering.old, change.renumbering.new
    return (
        f"`{old.table}.{old.attribute}`: of {old.ranges} ranges, {len(change.split)} split "
        f"and {change.merged} merged with neighbors, {new.ranges} in total now"
    )
