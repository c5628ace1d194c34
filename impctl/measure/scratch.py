"""A query on a scratch copy of its tables, captured, changed and maintained under a stopwatch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from impctl.errors import RecaptureNeededError, UnsupportedError, UsageError
from impctl.service.answer import answer_table
from impctl.service.capture import capture_query
from impctl.service.context import Context
from impctl.service.decide import SharedChanges, needs_of
from impctl.service.fill import capture_sketches_alone, filled_circuit, needed
from impctl.service.filters import Pruned, filters_of
from impctl.service.maintenance_plan import QueryState, chooser_for, chosen_plan, reopened
from impctl.service.prepare import PreparedQuery, prepare
from impctl.service.resolve import ReadChoice, read_choice, written_query
from impctl.service.step import Maintainer, StepDone
from impctl.sketch.sketch import MaintenanceMode, RangeSet, compare
from impctl.stopwatch import Stopwatch
from impctl.store.disk import BENCH_SCRATCH, scratch_folder
from impctl.tables.rows import read_rows
from impctl.tables.storage import local_path
from impctl.tables.write.maintenance import append_rows, checkpoint, clone_table, rewind

if TYPE_CHECKING:
    from impctl.service.pinned import PinnedTables
    from impctl.service.settings import Settings
    from impctl.store.records import StoredQuery
    from impctl.tables.snapshot import DataFile, Snapshot
    from impctl.types import AccessId, TableName
    from impctl.workload.models import QuerySpec, TableSpec


# Law: nothing under the user's tables or store is written. Data files are hard links if the file
# system permits, so a copy takes hardly any space; all of it is removed at the end.


@contextmanager
def scratch_copy(ctx: Context, tables: tuple[TableName, ...]) -> Iterator[Context]:
    """Open a context on clones of these tables, with its own store."""
    for table in tables:
        if local_path(ctx.workload.tables[table].path) is None:
            raise UsageError(
                f"Table `{table}` is not on the local disk, so `bench` cannot clone it",
                hint="copy the table to a local folder and point a workload at it",
            )
    with scratch_folder(BENCH_SCRATCH, folder_beside(ctx, tables)) as folder:
        specs: Mapping[TableName, TableSpec] = ctx.workload.tables
        cloned = dict(specs)
        for table in tables:
            ctx.reporter.step(f"cloning {table}")
            target = folder / table
            clone_table(specs[table].path, str(target))
            cloned[table] = replace(specs[table], path=str(target))
        workload = replace(ctx.workload, tables=cloned)
        settings: Settings = replace(ctx.settings, store=folder / "store", dry_run=False)
        scratch = Context(settings, workload, ctx.reporter)
        try:
            yield scratch
        finally:
            scratch.close()


def folder_beside(ctx: Context, tables: Iterable[TableName]) -> Path | None:
    """A folder on the tables' device, where hard links work; None if any folder will do."""
    for table in tables:
        path = local_path(ctx.workload.tables[table].path)
        if path is not None and os.access(Path(path).parent, os.W_OK):
            return Path(path).parent
    return None


# Changes go to the largest table, the first named of equal ones: the others are lookups.


def changed_table(pinned: PinnedTables, tables: Sequence[TableName]) -> TableName:
    """The largest of `tables`, which is to change; the first in the query's order if equal."""
    return max(tables, key=lambda table: pinned.snapshot(table).likely_rows)


# Law: equal snapshots and random states give equal rows; every row of the table is equally likely,
# and the values of a file are read at most once.


def sample_rows(snapshot: Snapshot, size: int, random: np.random.Generator) -> pa.Table:
    """Draw so many rows of the table, with all columns; UsageError for an empty table."""
    counts = [(file, _rows_of(snapshot, file)) for file in snapshot.files]
    filled = [(file, rows) for file, rows in counts if rows]
    if not filled:
        raise UsageError(
            f"Table `{snapshot.table}` is empty, so there are no rows to make changes from",
            code="bench_empty_table",
            hint="use a table with rows; `impctl bench --generate` writes some",
        )
    names = snapshot.schema.names
    weights = np.array([float(rows) for _, rows in filled])
    shares = random.multinomial(size, weights / weights.sum())
    parts = []
    for (file, _), share in zip(filled, shares.tolist(), strict=True):
        if share:
            rows = read_rows(snapshot, names, [file])
            parts.append(rows.take(pa.array(random.integers(0, len(rows), share))))
    return pa.concat_tables(parts)


def _rows_of(snapshot: Snapshot, file: DataFile) -> int:
    """Rows of the file that are not deleted; counted if the log does not say."""
    if file.rows is None:
        return len(read_rows(snapshot, (), [file]))
    return file.rows - (0 if file.deleted is None else len(file.deleted))


# What a writer leaves behind, so that no reader is charged for it. Law: every tenth commit gets a
# checkpoint of the log, like Spark's writer, and the disk is synced: else our first sync would wait
# for the table's data.

_CHECKPOINT_EVERY = 10


def sync_commit(tables: PinnedTables, table: TableName, commits: int) -> None:
    """After commit number `commits`, checkpoint the log when it is time, and sync the disk."""
    if commits % _CHECKPOINT_EVERY == 0:
        checkpoint(tables.source(table).path)
    os.sync()


# One maintained query in one process. Law: a step is what `maintain` does once its process is up:
# find the newest versions, read changes, run the engine, commit durably. State stays in memory and
# the caller holds the store's lock; starting a process, loading state, locking and deciding do not
# count (`benchmarks.fresh_process` measures them).


class AgainstRecapture(Struct, frozen=True):
    """The sketches of a query compared with recapture."""

    covers: bool
    slack: int


def worse_of(left: AgainstRecapture, right: AgainstRecapture) -> AgainstRecapture:
    return AgainstRecapture(left.covers and right.covers, max(left.slack, right.slack))


# Maintenance is timed from following the log to the durable commit, without writing the change.
# Changes insert rows like the table's, and delete them by restoring, so that the table does not
# grow.


class MeasuredQuery:
    """A query restored from the store of a scratch copy; `captured` makes one. Maintain only while
    that store is locked (`writing`). A query that can only be recaptured has a sketch, but `state`
    and `follow` raise UnsupportedError."""

    def __init__(self, scratch: Context, prepared: PreparedQuery) -> None:
        self.scratch = scratch
        self.prepared = prepared
        stored = scratch.store().load(prepared.spec.name)
        assert stored is not None, "a follower loads the captured state"
        self.query = reopened(scratch, prepared.spec, stored)
        self.verdict, self.partitions = self.query.verdict, self.query.partitions
        self._captured = stored
        self._way = self.query.plan
        self._state: QueryState | None = None
        if self._way.mode is not MaintenanceMode.RECAPTURE:
            runs = scratch.store().load_runs(stored.query)
            self._state = QueryState(self._way, stored, runs)

    @cached_property
    def table(self) -> TableName:
        """The table that is to change."""
        return changed_table(self.scratch.tables, self.prepared.tables)

    @property
    def state(self) -> QueryState:
        """The state that processes changes; UnsupportedError if the query can only be
        recaptured."""
        if self._state is None:
            raise UnsupportedError(
                f"Query `{self._captured.query}` can only be recaptured, so there is nothing to "
                f"compare: {self._way.reason}",
                code="not_incremental",
                hint="`impctl explain` shows the reason",
                location=self.prepared.place(self._way.span),
            )
        return self._state

    @property
    def stored(self) -> StoredQuery:
        return self._captured if self._state is None else self._state.stored

    @property
    def has_state(self) -> bool:
        """Whether a capture fills operator state too."""
        return self._state is not None and self._state.session is not None

    def follow(self) -> StepDone | None:
        """Maintain the sketch to the newest versions; None if it is current."""
        watch = Stopwatch()
        for table in self.state.tables:
            self.scratch.tables.advance(table)
        shared = SharedChanges(self.scratch.tables, self.scratch.reporter)
        deltas = [shared.delta(need) for need in needs_of(self.scratch.tables, self.state)]
        if not deltas:
            return None
        deltas[0] = replace(deltas[0], read_ms=watch.ms)
        maintainer = Maintainer(self.scratch, self.scratch.store(), self.state)
        return maintainer.step(deltas, reason_code="bench", reason="bench")

    def checked(self, accurate: Mapping[AccessId, RangeSet] | None = None) -> AgainstRecapture:
        """Compare the sketches with those given, else with recapture at their versions."""
        sketches = {sketch.access: sketch.ranges for sketch in self.stored.sketches}
        if accurate is None:
            accurate = needed(self.scratch, self.query, sketches, self.stored.versions)
        relations = [compare(ranges, accurate[access]) for access, ranges in sketches.items()]
        return AgainstRecapture(all(r.covers for r in relations), sum(r.slack for r in relations))

    def recapture(self) -> Mapping[AccessId, RangeSet]:
        """Compute the accurate sketches by Spark's fastest pass; nothing is stored."""
        return capture_sketches_alone(self.scratch, self.query, self.stored.versions)

    @property
    def state_bytes(self) -> int:
        """Bytes of operator state in memory; 0 without any."""
        session = None if self._state is None else self._state.session
        return 0 if session is None else session.state_bytes()

    def maintain(self, rows: pa.Table, *, forth: bool) -> StepDone:
        """Commit the change, then maintain: read, engine and commit."""
        self.commit(rows, forth=forth)
        return self.followed(len(rows))

    def followed(self, expected: int) -> StepDone:
        """Maintain the commits; RecaptureNeededError unless they have `expected` changed rows."""
        step = self.follow()
        changes = 0 if step is None else step.changes
        if step is None or changes != expected:
            raise RecaptureNeededError(
                f"The clone of `{self.table}` has {changes} changes instead of {expected}",
                code="bench_disturbed",
                hint="run `impctl bench` again",
            )
        return step

    def commit(self, rows: pa.Table, *, forth: bool) -> None:
        """Insert the rows, or revert the last commit, without maintaining."""
        source = self.scratch.tables.source(self.table)
        if forth:
            append_rows(source.path, rows)
        else:
            rewind(source.path, source.version - 1)
        sync_commit(self.scratch.tables, self.table, source.version)

    def checked_both_ways(self, rows: pa.Table) -> tuple[AgainstRecapture, AgainstRecapture]:
        """Compare sketches with recapture after this change, and after it was reverted."""
        self.maintain(rows, forth=True)
        inserted = self.checked()
        self.maintain(rows, forth=False)
        return inserted, self.checked(self.unchanged)

    @cached_property
    def unchanged(self) -> Mapping[AccessId, RangeSet]:
        """The accurate sketches without any change: reverting one restores the same rows."""
        return self.recapture()

    def capture(self) -> None:
        """Compute sketch and state in one pass, without storing them."""
        chooser = chooser_for(self.scratch, self.prepared)
        filled_circuit(self.scratch, self.query, chosen_plan(self.query, chooser))

    def pruned(self) -> Pruned:
        """What remains to read with the captured sketches."""
        stored = self.stored
        return filters_of(self.scratch.tables, self.prepared, stored.sketches, stored.versions)

    def weighed(self) -> ReadChoice:
        """What `query` reads with sketches that pay, and without."""
        stored = self.stored
        return read_choice(self.scratch.tables, self.prepared, stored.sketches, stored.versions)

    def written(self) -> tuple[str, Pruned]:
        """The text that `rewrite` prints, and the files that it reads."""
        tables, stored, prepared = self.scratch.tables, self.stored, self.prepared
        query, sketches = prepared.query, stored.sketches
        return written_query(tables, prepared, query, sketches, stored.versions, has_files=True)

    def answer(self, pruned: Pruned | None = None) -> pa.Table:
        """The query's result at the captured versions, read through `pruned` if given."""
        return answer_table(self.scratch, self.prepared, self.stored.versions, pruned)

    def rows_like_the_table(self, size: int, seed: int) -> pa.Table:
        """Draw so many rows from all over the table, file by file."""
        snapshot = self.scratch.tables.snapshot(self.table)
        return sample_rows(snapshot, size, np.random.default_rng(seed + size))


def captured(scratch: Context, spec: QuerySpec) -> MeasuredQuery:
    """Capture the query at the pinned versions of its tables, and restore it."""
    prepared = prepare(scratch, spec)
    capture_query(scratch, scratch.store(), prepared, code="asked", reason="bench")
    return MeasuredQuery(scratch, prepared)


@contextmanager
def measured_copy(ctx: Context, spec: QuerySpec) -> Iterator[MeasuredQuery]:
    """Capture the query on a scratch copy of its tables, which is removed at the end."""
    with scratch_copy(ctx, prepare(ctx, spec).tables) as scratch:
        yield captured(scratch, spec)
