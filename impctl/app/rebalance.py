"""Use case: even out the ranges of stored sketches, with as little of the table as that takes.

Law: the sketch over the new ranges holds all that the old one did at the same versions; sketch,
ranges, state and versions are stored in one transaction, and the sketches of earlier versions keep
the ranges they were captured with. Three ways, and every result says which was taken: the state
follows from the stored one (ranges merged, or split on a column that is grouped by); it follows
once the rows of the split ranges are read; or the whole state is captured anew, because a join or a
buffer of values does not tell what its rows come to under other ranges. Boundaries in the workload
file are the user's and stay, and so do ranges of which others would leave the largest one larger.
Out of scope: whether ranges have drifted (`app.capturing.drift`), choosing boundaries
(`app.capturing.new_ranges`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from impctl.app.capturing.chosen_way import check_circuit, chosen_way
from impctl.app.capturing.commit import commit_capture
from impctl.app.capturing.definition import check_definition, is_captured_alike, stored_query
from impctl.app.capturing.drift import has_own_boundaries
from impctl.app.capturing.entries import sketch_entry
from impctl.app.capturing.fill import filled_circuit
from impctl.app.capturing.moments import moved_moments
from impctl.app.capturing.new_ranges import NewRanges, new_ranges, split_rows
from impctl.app.capturing.pins import is_current, moved_meanwhile
from impctl.app.capturing.reopened import reopened
from impctl.app.capturing.taken_up import TakenUp
from impctl.app.maintain import maintain
from impctl.app.results.results import CaptureResult, Outcome
from impctl.app.workbench.isolated import Isolated
from impctl.app.workbench.workbench import Workbench
from impctl.compile.compile import Way
from impctl.compile.fill import RangeRows
from impctl.compile.session import (
    MaintainedQuery,
    TouchedQuery,
    can_rederive,
    needs_rows,
    rederived,
)
from impctl.sketch.partition import RangePartition
from impctl.sketch.sketch import FragmentSet, Mode
from impctl.stopwatch import Stopwatch
from impctl.store.reader import StoreReader
from impctl.store.records import RunRecord, StoredQuery
from impctl.store.store import Store
from impctl.types import AccessId, QueryName
from impctl.values import dataclass
from impctl.workload.models import QuerySpec


def rebalance(desk: Workbench, queries: Sequence[QueryName] | None) -> Outcome:
    """Bring the queries named (default: all) up to date, then even out their ranges."""
    specs = desk.sketched(queries)
    results: list[CaptureResult] = []
    if not specs:
        return Outcome()
    outcome = maintain(desk, [spec.name for spec in specs], for_use=True)
    failures = list(outcome.failures)
    failed = {failure.query for failure in failures}
    left = [spec for spec in specs if spec.name not in failed]
    if desk.settings.dry_run:
        held = desk.reading_store()
        for spec in left:
            with Isolated(failures, spec):
                results.append(_foreseen(desk, held, spec))
        return Outcome(tuple(results), outcome.warnings, tuple(failures))
    with desk.writing("capture") as store:
        for spec in left:
            with Isolated(failures, spec):
                results.append(_Rebalanced(desk, store, spec).result(store))
    return Outcome(tuple(results), outcome.warnings, tuple(failures))


@dataclass(frozen=True, slots=True)
class _Found:
    """Sketches and state under the new ranges, and how they came about."""

    fragments: Mapping[AccessId, FragmentSet]
    state: MaintainedQuery | TouchedQuery
    how: str
    uses_spark: bool = False


@dataclass(frozen=True, slots=True)
class _Change:
    """What is going to be done: partitions that get other ranges, and what is said of the rest."""

    taken: TakenUp
    moved: Mapping[RangePartition, NewRanges]
    kept: tuple[str, ...]


class _Rebalanced:
    """One query, at the pinned versions."""

    def __init__(self, desk: Workbench, store: StoreReader, spec: QuerySpec) -> None:
        self.desk = desk
        self.store = store
        self.watch = Stopwatch()
        self.stored = stored_query(desk, store, spec)
        check_definition(desk, spec, self.stored)
        if not is_current(self.stored, desk.tables) or moved_moments(desk, self.stored):
            raise moved_meanwhile(spec.name)
        result = reopened(desk, spec, self.stored)
        self.prepared, self.verdict = result.prepared, result.verdict
        self.partitions = result.partitions
        self.chooser, self.has_answer, self.way = result.chooser, result.meta.answer, result.way
        check_circuit(desk, self.prepared, self.way, self.stored)

    def result(self, store: Store) -> CaptureResult:
        """Even the ranges out where that is possible and worth it, and commit."""
        change = self._change()
        if isinstance(change, str):
            return self._left(change)
        moved = change.moved
        partitions = {
            access: _new(moved[p]) if p in moved else p for access, p in self.partitions.items()
        }
        way = self._way(partitions)
        before = {old: _largest(change.taken.range_rows, old) for old in moved}
        done = self._found(change.taken, moved, way, partitions)
        if done is None:
            return self._left("the engine could not build its state with other ranges")
        after = {old: _largest(done.state.range_rows, _new(moved[old])) for old in moved}
        if any(after[old] > rows for old, rows in before.items()):
            return self._left("other ranges would make the largest one larger")
        reason = "; ".join([*map(_moved_text, moved.values()), done.how, *change.kept])
        return self._committed(store, way, partitions, done, reason)

    def foreseen(self) -> CaptureResult:
        """What `result` would do, as far as the counts kept of the ranges tell."""
        change = self._change()
        if isinstance(change, str):
            return replace(self._left(change), foreseen=True, stored="even")
        reason = "; ".join([*map(_foreseen_text, change.moved.values()), *change.kept])
        return replace(self._left(reason), foreseen=True, stored="uneven")

    def _change(self) -> _Change | str:
        """What to do, or why nothing."""
        if self.way.mode is Mode.RECAPTURE:
            return "it is recaptured after every change, which also chooses its ranges again"
        taken = TakenUp(self.way, self.stored, self.store.load_runs(self.stored.query))
        own = [p for p in self._distinct() if has_own_boundaries(self.desk, p.table, p.attribute)]
        moved = self._moved(taken.range_rows, own)
        kept = [_own_text(partition) for partition in own]
        if not moved:
            others = ["splitting or merging ranges would not help"]
            told = others if len(own) < len(self._distinct()) else []
            return "; ".join([*told, *kept])
        return _Change(taken, moved, tuple(kept))

    def _way(self, partitions: Mapping[AccessId, RangePartition]) -> Way:
        """How the query is maintained over these ranges, with the same sides of joins kept."""
        return chosen_way(
            self.prepared, self.verdict, partitions, self.chooser, has_answer=self.has_answer
        )

    def _moved(
        self, counted: RangeRows, own: Sequence[RangePartition]
    ) -> dict[RangePartition, NewRanges]:
        """The partitions that get other ranges."""
        moved = {}
        for partition in self._distinct():
            if partition not in own:
                result = new_ranges(self.desk, partition, counted.counts(partition))
                if result is not None:
                    moved[partition] = result
        return moved

    def _distinct(self) -> list[RangePartition]:
        return list(dict.fromkeys(self.partitions.values()))

    def _found(
        self,
        taken: TakenUp,
        moved: Mapping[RangePartition, NewRanges],
        way: Way,
        partitions: Mapping[AccessId, RangePartition],
    ) -> _Found | None:
        if taken.session is None:
            return self._touched(taken, moved)
        assert way.compiled is not None
        if not can_rederive(way.compiled):
            filled = filled_circuit(self.desk, self.prepared, way, self.verdict, partitions)
            if filled is None:
                return None
            how = "state recaptured: it cannot be derived for other ranges"
            return _Found(filled.session.fragments(), filled.session, how, filled.uses_spark)
        (change,) = moved.values()
        reading = _Reading(self.desk, change)
        is_read = needs_rows(way.compiled, change.renumbering)
        columns = way.compiled.columns_of(change.renumbering.old.table) if is_read else ()
        rows = reading.rows(columns)
        session = rederived(
            taken.session, way.compiled, change.renumbering, rows if is_read else ()
        )
        reading.fill(session.range_rows, rows, taken.range_rows)
        return _Found(session.fragments(), session, reading.how(is_read))

    def _touched(self, taken: TakenUp, moved: Mapping[RangePartition, NewRanges]) -> _Found:
        """Touch mode remembers its sketch alone: every part of a split range is in it."""
        ((access, held),) = taken.fragments.items()
        (change,) = moved.values()
        reading = _Reading(self.desk, change)
        fragments = change.renumbering.fragments(held)
        query = TouchedQuery(change.renumbering.new, fragments)
        reading.fill(query.range_rows, reading.rows(()), taken.range_rows)
        how = "sketch derived from the stored one, including every part of a split range"
        return _Found({access: fragments}, query, how)

    def _committed(
        self,
        store: Store,
        way: Way,
        partitions: Mapping[AccessId, RangePartition],
        result: _Found,
        reason: str,
    ) -> CaptureResult:
        sketches = tuple(
            replace(s, partition=partitions[s.access], fragments=result.fragments[s.access])
            for s in self.stored.sketches
        )
        elapsed = self.watch.ms
        spark_ms = elapsed if result.uses_spark else 0.0
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
            self.desk,
            store,
            self.prepared,
            way,
            result.state,
            sketches,
            self.stored.assumptions,
            record,
        )
        whole = self.watch.ms
        return _result(
            replace(self.stored, sketches=sketches), "rebalance", reason, whole, spark_ms
        )

    def _left(self, reason: str) -> CaptureResult:
        elapsed = self.watch.ms
        return _result(self.stored, "none", reason, elapsed, 0.0)


class _Reading:
    """The rows of the split ranges, read at most once; counts what passes."""

    def __init__(self, desk: Workbench, change: NewRanges) -> None:
        self._desk = desk
        self._change = change
        self._counts = change.counts.copy()
        self._rows = 0

    def rows(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """The rows with these columns."""
        for table, fragments in split_rows(self._desk.tables, self._change, columns):
            self._counts += np.bincount(fragments, minlength=len(self._counts))
            self._rows += len(table)
            yield table

    def fill(self, counted: RangeRows, rows: Iterator[pa.Table], before: RangeRows) -> None:
        """Rows per new fragment, once what is left of `rows` has passed; estimates stay such."""
        for _ in rows:
            pass
        old, new = self._change.renumbering.old, self._change.renumbering.new
        if before.is_estimate(old):
            counted.estimate(new, self._counts)
        else:
            counted.fill(new, self._counts)

    def how(self, is_read: bool) -> str:
        """What the state was derived from."""
        if is_read:
            return f"state derived from the stored one and from {self._rows:,} rows of split ranges"
        return "state derived from the stored one"


def _foreseen(desk: Workbench, store: StoreReader | None, spec: QuerySpec) -> CaptureResult:
    """A dry run: ranges that would be split and merged, where the sketch is current."""
    stored = stored_query(desk, store, spec)
    assert store is not None
    is_of_now = is_current(stored, desk.tables) and not moved_moments(desk, stored)
    if is_of_now and is_captured_alike(desk, spec, stored):
        return _Rebalanced(desk, store, spec).foreseen()
    reason = "would be maintained first, and its ranges checked after that"
    result = _result(stored, "none", reason, 0.0, 0.0)
    return replace(result, foreseen=True, stored="stale")


def _result(
    stored: StoredQuery, action: str, reason: str, elapsed_ms: float, spark_ms: float
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


def _new(change: NewRanges) -> RangePartition:
    """The ranges as they will be."""
    return change.renumbering.new


def _largest(counted: RangeRows, partition: RangePartition) -> int:
    """Rows of the range with the most of them."""
    return int(counted.counts(partition)[:-1].max())


def _own_text(partition: RangePartition) -> str:
    name = f"{partition.table}.{partition.attribute}"
    return f"the workload file sets the `boundaries` of `{name}`, so they did not change"


def _foreseen_text(change: NewRanges) -> str:
    return f"would even out {_moved_text(change).removesuffix(' now')}"


def _moved_text(change: NewRanges) -> str:
    old, new = change.renumbering.old, change.renumbering.new
    return (
        f"`{old.table}.{old.attribute}`: of {old.ranges} ranges, {len(change.split)} split "
        f"and {change.merged} merged with neighbors, {new.ranges} in total now"
    )
