"""Measure `query`: the query as it is and through its sketch, and what the sketch leaves to read.

No options. The time with the sketch has choosing the files in it, not looking for the sketch in a
store; `gain_ratio` is the time without over it. `files_share` and
`rows_share` are the files that are read and the rows in them, `fragments_share` the fragments that
the sketches hold, each of all there are.
Law: both results are compared before anything is timed, and both ways are warmed up and timed
in turns in one session. Out of scope: finding a sketch that serves (`benchmarks.measures.mixed`
counts it).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from impctl.bench.clock import in_turns, warm_up
from impctl.bench.record import Cell, Metric
from impctl.measure.kinds.duckdb_times import answer_beside
from impctl.measure.measured import MeasuredQuery, measured_copy
from impctl.measure.single import single
from impctl.service.spark_answer import answer_of
from impctl.service.verify import same_rows

if TYPE_CHECKING:
    from impctl.measure.ground import Ground
    from impctl.service.filters import Pruned


def measure_query(ground: Ground) -> Iterator[Cell]:
    """One cell."""
    ground.only()
    return _cells(ground)


def _cells(ground: Ground) -> Iterator[Cell]:
    ground.step(f"running {ground.query.name} with and without its sketch")
    with measured_copy(ground.desk, ground.query) as measured:
        pruned = measured.pruned()
        whole = measured.answer()
        answer = answer_of(measured.answer(pruned))
        equal = same_rows(answer.rows, answer_of(whole).rows)
        works = {
            "plain_ms": measured.answer,
            "sketch_ms": lambda: measured.answer(measured.pruned()),
        }
        for work in works.values():
            warm_up(work)
        times = in_turns(works, ground.repeat)
        without_ms, with_ms = Metric.of(times["plain_ms"]), Metric.of(times["sketch_ms"])
        beside = answer_beside(measured, whole, ground.repeat)
        metrics = {
            **beside.metrics,
            "plain_ms": without_ms,
            "sketch_ms": with_ms,
            "gain_ratio": Metric.quotient(without_ms, with_ms),
            **single(
                {
                    "files_share": pruned.files_kept / max(pruned.files_total, 1),
                    "rows_share": _rows_share(measured, pruned),
                    "fragments_share": _fragments_share(measured),
                }
            ),
        }
        yield ground.cell(metrics, equal=equal, note=beside.note)


def _rows_share(measured: MeasuredQuery, pruned: Pruned) -> float:
    """Rows in the files that are left, of all rows of the tables."""
    files = pruned.files
    total = sum(measured.scratch.tables.snapshot(table).rows or 0 for table in files)
    kept = sum(file.rows or 0 for chosen in files.values() for file in chosen)
    return kept / total if total else 0.0


def _fragments_share(measured: MeasuredQuery) -> float:
    """Fragments held, of all ranges of the sketched attributes."""
    sketches = measured.stored.sketches
    total = sum(sketch.partition.size for sketch in sketches)
    return sum(len(sketch.fragments) for sketch in sketches) / total if total else 0.0
