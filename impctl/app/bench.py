"""Use case: what maintaining costs against recapture, and what a sketch saves.

Law: the sketch is checked against recapture before anything is timed; the baseline is the fastest
recapture, in a warm session, on the same version; every part of maintaining counts: opening the
table, its change feed, the engine and the durable commit. Changes are insertions of rows like the
table's own and, in turn, their deletion, so the table does not grow.
Out of scope: reports (`cli`), suites of the papers.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from impctl.aliases import AccessId, QueryName
from impctl.app.answers import answer_table
from impctl.app.capture import capture_query
from impctl.app.filters import filters_of
from impctl.app.isolated import Isolated
from impctl.app.maintainer import Maintainer, Moved, StepDone
from impctl.app.partners import partners_of
from impctl.app.passes import filled_circuit, recaptured
from impctl.app.prepared import PreparedQuery, prepare
from impctl.app.restored import chooser_for, chooser_of, chosen_way, restored_verdict
from impctl.app.results import BenchResult, Failure, Outcome
from impctl.app.scratch import scratch_copy
from impctl.app.state_meta import StateMeta
from impctl.app.workbench import Workbench
from impctl.bench.clock import median_of, spread
from impctl.bench.machine import describe_machine
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

_RECAPTURES = 3
"""Recaptures timed at most: one takes as long as hundreds of maintains."""

_WARM_UP = 4
"""Runs of a query that are not counted: Spark compiles and recompiles it in the first ones."""

_CHECKPOINT_EVERY = 10
"""Commits between two checkpoints of the log, as Spark's Delta writes them."""

_SEED = 7


def bench(
    bench: Workbench,
    queries: Sequence[QueryName] | None,
    *,
    delta_rows: Sequence[int],
    repeat: int,
) -> Outcome:
    """One result per query and size of change."""
    results: list[BenchResult] = []
    failures: list[Failure] = []
    facts = describe_machine()
    for spec in bench.queries(queries):
        with Isolated(failures, spec):
            tables = prepare(bench, spec).tables
            with scratch_copy(bench, tables) as scratch:
                results += _Measured(scratch, spec, facts).results(delta_rows, repeat)
    return Outcome(tuple(results), (), tuple(failures))


@dataclass(frozen=True, slots=True)
class _Run:
    """One maintain: its parts in milliseconds."""

    read_ms: float
    done: StepDone

    @property
    def total_ms(self) -> float:
        return self.read_ms + self.done.engine_ms + self.done.commit_ms


@dataclass(frozen=True, slots=True)
class _QueryTimes:
    """The query without and with its sketch, and a capture with its state; milliseconds."""

    plain_ms: float
    sketch_ms: float
    capture_ms: float | None


class _Measured:
    """One query on its scratch copy."""

    def __init__(self, scratch: Workbench, spec: QuerySpec, facts: dict[str, str]) -> None:
        self.scratch = scratch
        self.facts = facts
        self.prepared: PreparedQuery = prepare(scratch, spec)
        store = scratch.store()
        capture_query(scratch, store, self.prepared, code="asked", reason="bench")
        self.maintainer = self._maintainer(store)
        # The changes go to the largest table: the others are looked up.
        self.table = max(self.maintainer.tables, key=lambda t: scratch.snapshot(t).rows or 0)
        self.ending: Snapshot = scratch.snapshot(self.table)

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

    def results(self, sizes: Sequence[int], repeat: int) -> list[BenchResult]:
        """Every size, the sketch checked first."""
        times = self._query_times()
        with self.scratch.writing("bench"):
            return [self._result(size, repeat, times) for size in sizes]

    def _result(self, size: int, repeat: int, times: _QueryTimes) -> BenchResult:
        self.scratch.reporter.step(f"measuring {self.prepared.spec.name} with {size} changes")
        rows = self._rows_like_the_table(size)
        self._once(rows, forth=True)
        relations = self._checked()
        self._once(rows, forth=False)
        runs = [self._once(rows, forth=turn % 2 == 0) for turn in range(repeat)]
        if repeat % 2:
            self._once(rows, forth=False)
        recapture_ms = median_of(self._recapture, min(repeat, _RECAPTURES))
        total = statistics.median(run.total_ms for run in runs)
        return BenchResult(
            self.prepared.spec.name,
            size,
            total,
            statistics.median(run.read_ms for run in runs),
            statistics.median(run.done.engine_ms for run in runs),
            statistics.median(run.done.commit_ms for run in runs),
            recapture_ms,
            recapture_ms / total,
            all(relation.covers for relation in relations),
            sum(relation.slack for relation in relations),
            repeat,
            spread([run.total_ms for run in runs]),
            times.plain_ms,
            times.sketch_ms,
            times.capture_ms,
            self.facts,
        )

    def _once(self, rows: pa.Table, *, forth: bool) -> _Run:
        """Commit the change, then maintain: read, engine and commit."""
        table = self.table
        source = self.scratch.source(table)
        if forth:
            append_rows(source.path, rows)
        else:
            rewind(source.path, source.version - 1)
        if source.version % _CHECKPOINT_EVERY == 0:
            checkpoint(source.path)
        # The table's writer pays for its own data: else our first sync would wait for it.
        os.sync()
        started = time.perf_counter()
        source = self.scratch.advance(table)
        until = source.version
        need = self.maintainer.need(table, until, per_version=False)
        changes = read_changes(
            source, need.since, until, need.columns, table_id=need.table_id, known=self.ending
        )
        assert changes.ending is not None
        self.ending = changes.ending
        mark = commit_mark(source, until)
        read_ms = (time.perf_counter() - started) * 1000
        if changes.rows != len(rows):
            raise RecaptureNeededError(
                f"The clone of `{table}` shows {changes.rows} changes instead of {len(rows)}",
                code="bench_disturbed",
                hint="run `impctl bench` again",
            )
        moved = {table: Moved(changes, until, self.ending, mark, lambda: self.ending)}
        done = self.maintainer.step(moved, read_ms=read_ms, reason_code="bench", reason="bench")
        return _Run(read_ms, done)

    def _checked(self) -> list[Comparison]:
        """Every sketch against recapture."""
        accurate = self._recapture()
        return [compare(held, accurate[a]) for a, held in self.maintainer.fragments.items()]

    def _recapture(self) -> Mapping[AccessId, FragmentSet]:
        return recaptured(self.scratch, self.prepared, self.verdict, self.partitions)

    def _query_times(self) -> _QueryTimes:
        versions = self.maintainer.stored.versions
        stored = self.maintainer.stored
        pruned = filters_of(self.scratch, self.prepared.scans, stored.sketches, stored.versions)
        plain = median_of(
            lambda: answer_table(self.scratch, self.prepared, versions),
            _RECAPTURES,
            warm_up=_WARM_UP,
        )
        sketched = median_of(
            lambda: answer_table(self.scratch, self.prepared, versions, pruned),
            _RECAPTURES,
            warm_up=_WARM_UP,
        )
        return _QueryTimes(plain, sketched, self._capture_time())

    def _capture_time(self) -> float | None:
        """Sketch and state in one pass, without storing them; None where there is no state."""
        if self.maintainer.session is None:
            return None

        def capture() -> None:
            chooser = chooser_for(self.scratch, self.prepared)
            way = chosen_way(self.prepared, self.verdict, self.partitions, chooser)
            filled_circuit(self.scratch, self.prepared, way, self.verdict, self.partitions)

        return median_of(capture, _RECAPTURES)

    def _rows_like_the_table(self, size: int) -> pa.Table:
        """So many rows drawn from all over the table, file by file."""
        snapshot = self.scratch.snapshot(self.table)
        if not snapshot.rows:
            raise UsageError(
                f"Table `{snapshot.table}` is empty, so there are no rows to make changes from",
                code="bench_empty_table",
                hint="bench a table with rows; `impctl bench --generate` writes some",
            )
        random = np.random.default_rng(_SEED + size)
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
