"""A query on a scratch copy, captured, to be changed and maintained under a stopwatch.

Law: every part of maintaining counts: opening the table, its change feed, the engine and the
durable commit; writing the change itself does not. Changes are insertions of rows like the
table's own, and their deletion by going back, so that the table does not grow.
Out of scope: what is repeated and compared (`app.bench`, `app.suites`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from impctl.aliases import AccessId, TableName
from impctl.app.answers import answer_table
from impctl.app.capture import capture_query
from impctl.app.filters import Pruned, filters_of
from impctl.app.maintainer import Maintainer, Moved, StepDone
from impctl.app.partners import partners_of
from impctl.app.passes import filled_circuit, recaptured
from impctl.app.prepared import PreparedQuery, prepare
from impctl.app.restored import chooser_for, chooser_of, chosen_way, restored_verdict
from impctl.app.state_meta import StateMeta
from impctl.app.workbench import Workbench
from impctl.errors import RecaptureNeededError, UnsupportedError, UsageError
from impctl.sketch.fragments import FragmentSet
from impctl.sketch.mode import Mode
from impctl.sketch.sketch import Comparison, compare
from impctl.store.store import Store
from impctl.tables.changes import read_changes
from impctl.tables.commit_mark import commit_mark
from impctl.tables.rewind import append_rows, checkpoint, rewind
from impctl.tables.rows import read_rows
from impctl.tables.snapshot import Snapshot
from impctl.workload.models import QuerySpec

_CHECKPOINT_EVERY = 10
"""Commits between two checkpoints of the log, as Spark's Delta writes them."""


@dataclass(frozen=True, slots=True)
class MaintainRun:
    """One maintain: its parts in milliseconds."""

    read_ms: float
    done: StepDone

    @property
    def total_ms(self) -> float:
        return self.read_ms + self.done.engine_ms + self.done.commit_ms


class MeasuredQuery:
    """One query on its scratch copy; maintain only while the copy's store is locked (`writing`)."""

    def __init__(self, scratch: Workbench, spec: QuerySpec) -> None:
        self.scratch = scratch
        self.prepared: PreparedQuery = prepare(scratch, spec)
        store = scratch.store()
        capture_query(scratch, store, self.prepared, code="asked", reason="bench")
        self.maintainer = self._maintainer(store)
        # The changes go to the largest table: the others are looked up.
        self.table: TableName = max(
            self.maintainer.tables, key=lambda table: scratch.snapshot(table).rows or 0
        )
        self._ending: Snapshot = scratch.snapshot(self.table)

    def _maintainer(self, store: Store) -> Maintainer:
        name = self.prepared.spec.name
        stored = store.load(name)
        assert stored is not None
        self.verdict, self.partitions = restored_verdict(self.scratch, self.prepared, stored)
        chooser = chooser_of(self.prepared, StateMeta.read(name, stored.state_meta))
        way = chosen_way(self.prepared, self.verdict, self.partitions, chooser)
        if way.mode is Mode.RECAPTURE:
            raise UnsupportedError(
                f"Query `{name}` can only be recaptured, so there is nothing to compare: "
                f"{way.reason}",
                code="not_incremental",
                hint="`impctl explain` says what stands in the way",
                location=self.prepared.place(way.span),
            )
        return Maintainer(store, way, stored, partners_of(self.scratch, way, self.partitions))

    @property
    def has_state(self) -> bool:
        """Whether a capture fills operator state too."""
        return self.maintainer.session is not None

    def maintain(self, rows: pa.Table, *, forth: bool) -> MaintainRun:
        """Commit the change, then maintain: read, engine and commit."""
        table = self.table
        self._commit(rows, forth=forth)
        started = time.perf_counter()
        source = self.scratch.advance(table)
        until = source.version
        need = self.maintainer.need(table, until, per_version=False)
        changes = read_changes(
            source, need.since, until, need.columns, table_id=need.table_id, known=self._ending
        )
        assert changes.ending is not None
        self._ending = changes.ending
        mark = commit_mark(source, until)
        read_ms = (time.perf_counter() - started) * 1000
        if changes.rows != len(rows):
            raise RecaptureNeededError(
                f"The clone of `{table}` shows {changes.rows} changes instead of {len(rows)}",
                code="bench_disturbed",
                hint="run `impctl bench` again",
            )
        moved = {table: Moved(changes, until, self._ending, mark, lambda: self._ending)}
        done = self.maintainer.step(moved, read_ms=read_ms, reason_code="bench", reason="bench")
        return MaintainRun(read_ms, done)

    def _commit(self, rows: pa.Table, *, forth: bool) -> None:
        source = self.scratch.source(self.table)
        if forth:
            append_rows(source.path, rows)
        else:
            rewind(source.path, source.version - 1)
        if source.version % _CHECKPOINT_EVERY == 0:
            checkpoint(source.path)
        # The table's writer pays for its own data: else our first sync would wait for it.
        os.sync()

    def checked(self) -> Sequence[Comparison]:
        """Every maintained sketch against recapture."""
        accurate = self.recapture()
        return [compare(held, accurate[a]) for a, held in self.maintainer.fragments.items()]

    def recapture(self) -> Mapping[AccessId, FragmentSet]:
        """The accurate sketches at the table's version, by Spark; nothing is stored."""
        return recaptured(self.scratch, self.prepared, self.verdict, self.partitions)

    def capture(self) -> None:
        """Sketch and state in one pass, without storing them."""
        chooser = chooser_for(self.scratch, self.prepared)
        way = chosen_way(self.prepared, self.verdict, self.partitions, chooser)
        filled_circuit(self.scratch, self.prepared, way, self.verdict, self.partitions)

    def pruned(self) -> Pruned:
        """What the captured sketches leave to read."""
        stored = self.maintainer.stored
        return filters_of(self.scratch, self.prepared.scans, stored.sketches, stored.versions)

    def answer(self, pruned: Pruned | None = None) -> pa.Table:
        """The query's result at the captured versions, read through `pruned` where given."""
        versions = self.maintainer.stored.versions
        return answer_table(self.scratch, self.prepared, versions, pruned)

    def rows_like_the_table(self, size: int, seed: int) -> pa.Table:
        """So many rows drawn from all over the table, file by file."""
        snapshot = self.scratch.snapshot(self.table)
        if not snapshot.rows:
            raise UsageError(
                f"Table `{snapshot.table}` is empty, so there are no rows to make changes from",
                code="bench_empty_table",
                hint="bench a table with rows; `impctl bench --generate` writes some",
            )
        random = np.random.default_rng(seed + size)
        names = snapshot.schema.names
        files = [file for file in snapshot.files if file.rows]
        weights = np.array([float(file.rows or 0) for file in files])
        shares = random.multinomial(size, weights / weights.sum())
        parts = []
        for file, share in zip(files, shares.tolist(), strict=True):
            if share:
                held = read_rows(snapshot, names, [file])
                parts.append(held.take(pa.array(random.integers(0, len(held), share))))
        return pa.concat_tables(parts)
