"""Use case: what maintaining costs against recapture, and what a sketch saves.

Law: the sketch is checked against recapture before anything is timed; the baseline is the fastest
recapture, in a warm session, on the same version. Changes are insertions and, in turn, their
deletion. Out of scope: how a change is made and timed (`app.measured`), suites (`app.suites`).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from impctl.aliases import QueryName
from impctl.app.follower import worse_of
from impctl.app.isolated import Isolated
from impctl.app.machine_facts import machine_facts
from impctl.app.measured import MeasuredQuery, measured_copy
from impctl.app.results import BenchResult, Failure, Outcome
from impctl.app.workbench import Workbench
from impctl.bench.clock import WARM_UP, median_of, spread

_RECAPTURES = 3
"""Recaptures timed at most: one takes as long as hundreds of maintains."""

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
    facts = machine_facts(bench)
    for spec in bench.queries(queries):
        with Isolated(failures, spec), measured_copy(bench, spec) as measured:
            results += _results(measured, delta_rows, repeat, facts)
    return Outcome(tuple(results), (), tuple(failures))


@dataclass(frozen=True, slots=True)
class _QueryTimes:
    """The query without and with its sketch, and a capture with its state; milliseconds."""

    plain_ms: float
    sketch_ms: float
    capture_ms: float | None


def _results(
    measured: MeasuredQuery, sizes: Sequence[int], repeat: int, facts: dict[str, str]
) -> list[BenchResult]:
    """Every size, the sketch checked first."""
    times = _query_times(measured)
    with measured.scratch.writing("bench"):
        return [_result(measured, size, repeat, times, facts) for size in sizes]


def _result(
    measured: MeasuredQuery, size: int, repeat: int, times: _QueryTimes, facts: dict[str, str]
) -> BenchResult:
    query = measured.prepared.spec.name
    measured.scratch.reporter.step(f"measuring {query} with {size} changes")
    rows = measured.rows_like_the_table(size, _SEED)
    checked = worse_of(*measured.checked_both_ways(rows))
    runs = [measured.maintain(rows, forth=turn % 2 == 0) for turn in range(repeat)]
    if repeat % 2:
        measured.maintain(rows, forth=False)
    recapture_ms = median_of(measured.recapture, min(repeat, _RECAPTURES))
    total = statistics.median(run.total_ms for run in runs)
    return BenchResult(
        query,
        size,
        total,
        statistics.median(run.read_ms for run in runs),
        statistics.median(run.done.engine_ms for run in runs),
        statistics.median(run.done.commit_ms for run in runs),
        recapture_ms,
        recapture_ms / total,
        checked.covers,
        checked.slack,
        repeat,
        spread([run.total_ms for run in runs]),
        times.plain_ms,
        times.sketch_ms,
        times.capture_ms,
        facts,
    )


def _query_times(measured: MeasuredQuery) -> _QueryTimes:
    plain = median_of(measured.answer, _RECAPTURES, warm_up=WARM_UP)
    sketched = median_of(lambda: measured.answer(measured.pruned()), _RECAPTURES, warm_up=WARM_UP)
    capture = median_of(measured.capture, _RECAPTURES) if measured.has_state else None
    return _QueryTimes(plain, sketched, capture)
