"""Measure `rivals`: a query through its sketch against the other ways to the same answer.

`plain_ms` reads all files, `pruned_ms` those that the query's own conditions leave by statistics,
`sketch_ms` what `query` reads, which leaves the sketch away where it does not pay; all three by
Spark, choosing the files included. `view_ms` asks a materialized view kept by hand, a Parquet file
that Spark reads, where the query has one (`measure.kept_view`). `duckdb_plain_ms` and
`duckdb_sketch_ms` are DuckDB over all files, and over the text and files of `rewrite`.
Where the conditions leave every file, `pruned_ms` is `plain_ms`: the same run of the same files.
`files_share` and `bytes_share` are what is read with the sketch of all there is; `bytes_ratio` is
that over the bytes of files with a row of a group in the answer, where the query has a view. With
`appends` so many commits of `append_rows` rows each come first; `upkeep_ms` and `view_upkeep_ms`
are what one of them costs.
Law: all answers are compared before anything is timed, by runs that warm up too; what Spark does is
timed in turns in one session. Out of scope: what capturing and keeping sketches costs (`maintain`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from benchmarks.figures import SuiteCase
from benchmarks.kept_view import VIEW, KeptView, kept_view
from impctl.bench.record import Cell, Metric
from impctl.bench.timing import in_turns, milliseconds, warm_up
from impctl.measure.duckdb import (
    Metrics,
    NotOffered,
    ParquetSql,
    check_answer,
    duckdb_answers,
    duckdb_metrics,
)
from impctl.measure.kinds import single
from impctl.measure.scratch import MeasuredQuery, measured_copy
from impctl.service.filters import Pruned, filters_of
from impctl.service.resolve import ReadChoice
from impctl.service.results import rows_of
from impctl.service.verify import same_rows
from impctl.spark.predicates import local_name, rewrite_sql
from impctl.tables.rows import read_rows
from impctl.tables.snapshot import DataFile, bytes_of

_FEW_ROWS = 100
_FILES_AT_ONCE = 500
_ITS_FILE = "its file"


def measure_rivals(case: SuiteCase) -> Iterator[Cell]:
    """One cell."""
    case.only("appends", "append_rows")
    appends = case.whole_number("appends", 0, least=0)
    return _cells(case, appends, case.whole_number("append_rows", _FEW_ROWS))


def _cells(case: SuiteCase, appends: int, size: int) -> Iterator[Cell]:
    case.step(f"running {case.query.name} and its alternatives")
    with measured_copy(case.ctx, case.query) as measured:
        view = _View.of(measured)
        upkeep = _appended(case, measured, view, appends, size)
        read = measured.weighed()
        calls: dict[str, Callable[[], pa.Table]] = {"plain_ms": measured.answer}
        if _prunes(measured):
            calls["pruned_ms"] = lambda: measured.answer(_unsketched(measured))
        calls["sketch_ms"] = lambda: measured.answer(measured.weighed().pruned)
        if view is not None:
            calls["view_ms"] = view.answer
        case.step(f"comparing the answers of {case.query.name} and its alternatives")
        answers = {name: call() for name, call in calls.items()}
        for call in calls.values():
            warm_up(call, done=1)
        full = answers["plain_ms"]
        expected = rows_of(full)
        equal = all(same_rows(rows_of(answer), expected) for answer in answers.values())
        case.step(f"timing {case.query.name} and its alternatives in turns")
        times = in_turns(calls, case.repeat)
        times.setdefault("pruned_ms", times["plain_ms"])
        duckdb, note = duckdb_metrics(
            lambda connection: _duckdb(connection, measured, full, case.repeat)
        )
        metrics = {
            **duckdb,
            **times,
            "gain_ratio": Metric.quotient(times["plain_ms"], times["sketch_ms"]),
            **upkeep,
            **single(_left(measured, read)),
        }
        if view is not None:
            # Of other queries no group tells which of its rows are needed.
            metrics |= single(_beyond_need(measured, read, full))
        notes = [note, *read.unused.values()]
        yield case.cell(metrics, equal=equal, note="; ".join(filter(None, notes)))


def _duckdb(
    connection: ParquetSql, measured: MeasuredQuery, expected: pa.Table, turns: int
) -> Metrics:
    """DuckDB's times, if it has both ways and they give the expected rows."""
    calls, reason = duckdb_answers(connection, measured)
    if reason:
        raise NotOffered(reason)
    for call in calls.values():
        check_answer(call(), expected)
    return in_turns(calls, turns)


def _appended(
    case: SuiteCase, measured: MeasuredQuery, view: _View | None, appends: int, size: int
) -> dict[str, Metric]:
    """Small commits after the load, each followed by the sketch and by the view."""
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(appends):
        rows = measured.rows_like_the_table(size, case.seed + number)
        measured.commit(rows, forth=True)
        ours.append(measured.followed(len(rows)).total_ms)
        if view is not None:
            theirs.append(view.bring_on(rows))
    result = {"upkeep_ms": ours, "view_upkeep_ms": theirs}
    return {name: Metric.of(times) for name, times in result.items() if times}


def _left(measured: MeasuredQuery, read: ReadChoice) -> dict[str, float]:
    """Shares of what there is that are read."""
    snapshot = measured.scratch.tables.snapshot(measured.table)
    kept = read.pruned.files[measured.table]
    return {
        "files_share": len(kept) / max(len(snapshot.files), 1),
        "bytes_share": bytes_of(kept) / max(bytes_of(snapshot.files), 1),
    }


def _beyond_need(measured: MeasuredQuery, read: ReadChoice, full: pa.Table) -> dict[str, float]:
    """Bytes read over those of files with a row of a group in the answer, where there are any."""
    needed = _needed(measured, full)
    kept = read.pruned.files[measured.table]
    return {"bytes_ratio": bytes_of(kept) / bytes_of(needed)} if needed else {}


def _unsketched(measured: MeasuredQuery) -> Pruned:
    """What remains to read by the query's own conditions, without any sketch."""
    return filters_of(measured.scratch.tables, measured.prepared, (), measured.stored.versions)


def _prunes(measured: MeasuredQuery) -> bool:
    """Whether the query's own conditions leave a file out."""
    kept = _unsketched(measured).files
    tables = measured.scratch.tables
    return any(len(files) < len(tables.snapshot(table).files) for table, files in kept.items())


def _needed(measured: MeasuredQuery, full: pa.Table) -> list[DataFile]:
    """Files with a row of a group in the answer; none where the answer has no column to tell."""
    snapshot = measured.scratch.tables.snapshot(measured.table)
    names = [name for name in full.column_names if snapshot.schema.find(name) is not None]
    if not names:
        return []
    answer = full.select(names)
    result: set[int] = set()
    for start in range(0, len(snapshot.files), _FILES_AT_ONCE):
        files = snapshot.files[start : start + _FILES_AT_ONCE]
        parts = [read_rows(snapshot, names, [file]) for file in files]
        numbers = np.repeat(np.arange(start, start + len(parts)), [len(part) for part in parts])
        rows = pa.concat_tables(parts).append_column(_ITS_FILE, pa.array(numbers))
        partners = answer.cast(rows.select(names).schema)
        result.update(rows.join(partners, names, join_type="left semi")[_ITS_FILE].to_pylist())
    return [snapshot.files[number] for number in sorted(result)]


class _View(Struct, frozen=True):
    """The view of one query, beside the copy of its table."""

    measured: MeasuredQuery
    kept: KeptView

    @classmethod
    def of(cls, measured: MeasuredQuery) -> _View | None:
        """The view, filled; None where the query has none."""
        kept = kept_view(rewrite_sql(measured.prepared.query, {}, is_local=True))
        if kept is None or len(measured.prepared.tables) != 1:
            return None
        result = cls(measured, kept)
        result._write(result._run(kept.definition))
        return result

    @property
    def _file(self) -> Path:
        return self.measured.scratch.store_path.parent / f"{VIEW}.parquet"

    def answer(self) -> pa.Table:
        """The query's answer through the view."""
        from impctl.spark.run import run_sql

        spark = self.measured.scratch.spark()
        views = {VIEW: spark.read.parquet(str(self._file))}
        return run_sql(spark, self.kept.through, views, versions={})

    def bring_on(self, rows: pa.Table) -> float:
        """Milliseconds of reading, adding and writing."""
        return milliseconds(lambda: self._write(self.kept.added(pq.read_table(self._file), rows)))

    def _run(self, sql: str) -> pa.Table:
        from impctl.spark.run import run_sql
        from impctl.spark.snapshots import snapshot_frame

        scratch, table = self.measured.scratch, self.measured.table
        name = local_name(self.measured.prepared.query, table)
        views = {name: snapshot_frame(scratch.spark(), scratch.tables.snapshot(table))}
        return run_sql(scratch.spark(), sql, views, versions={})

    def _write(self, rows: pa.Table) -> None:
        pq.write_table(rows, self._file)
