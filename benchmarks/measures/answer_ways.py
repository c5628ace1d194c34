"""Measure `answers`: every way to a grouped query's answer, after each of some small changes.

Options `changes` (1,000 rows) and `batches` (6): rows like the table's own come, and go again with
the next batch. Of each batch `maintain_ms` is what bringing sketch and kept answer up to date
takes, which `state_ms` (the kept rows read), `by_engine_ms` (the engine over the sketch),
`sketch_ms` (Spark over it) and `duckdb_sketch_ms` (DuckDB over the text and files of `rewrite`)
contain. `plain_ms` is Spark over all files, `duckdb_plain_ms` DuckDB. `view_ms` is a view kept by
hand: the feed read, counted in (`view_upkeep_ms` so far), and asked, all in DuckDB's memory, so
that it is never written anywhere. `files_share` is what the sketch leaves to read.
Law: each answer that is timed is compared with Spark's of the same batch, doubles within a
tolerance; all ways are warm, and each lists the table's files itself. Without DuckDB its ways are
missing, and a note says so.
Out of scope: starting a process, what capturing costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pyarrow as pa
from msgspec import Struct, field
from msgspec.structs import replace

from benchmarks.figures import SuiteCase
from benchmarks.signed_view import SignedView, signed_view
from impctl.bench.record import Cell, Metric
from impctl.bench.timing import warm_up
from impctl.measure.duckdb import ParquetSql, duckdb_answers, same_answer
from impctl.measure.kinds import by_engine, from_state, single
from impctl.measure.scratch import MeasuredQuery, measured_copy
from impctl.service.result_changes import not_materialized
from impctl.spark.predicates import rewrite_sql
from impctl.stopwatch import Stopwatch
from impctl.tables.changes import read_changes

_MAINTAIN = "maintain_ms"
_PLAIN = "plain_ms"
_WHOLE = frozenset({_PLAIN, "duckdb_plain_ms"})
"""Ways that need nothing to be maintained."""
_FEWEST_BATCHES = 2
"""One that comes and one that goes."""


def measure_answers(case: SuiteCase) -> Iterator[Cell]:
    """One cell."""
    case.only("changes", "batches")
    batches = case.whole_number("batches", 6, least=_FEWEST_BATCHES)
    return _cells(case, case.whole_number("changes", 1000), batches)


def _cells(case: SuiteCase, changes: int, batches: int) -> Iterator[Cell]:
    case.step(f"answering {case.query.name} in every way")
    spec = replace(case.query, answer=True)
    connection = ParquetSql.open()
    with measured_copy(case.ctx, spec) as measured:
        if not measured.stored.state_meta.get("answer"):
            raise not_materialized(spec)
        if connection is None:
            yield _cell(case, _Ways(measured), changes, batches, "DuckDB is not installed")
            return
        with closing(connection):
            ways = _Ways(measured)
            note = ways.add_duckdb(connection)
            yield _cell(case, ways, changes, batches, note)


def _cell(case: SuiteCase, ways: _Ways, changes: int, batches: int, note: str) -> Cell:
    measured = ways.measured
    rows = measured.rows_like_the_table(changes, case.seed)
    ways.warmed_up(rows)
    case.step(f"timing {batches} batches of {case.query.name}")
    times: dict[str, list[float]] = {}
    equal = True
    for batch in range(batches):
        rows = measured.rows_like_the_table(changes, case.seed + batch // 2 + 1)
        result, is_equal = ways.after(rows, forth=batch % 2 == 0)
        equal &= is_equal
        for name, elapsed in result.items():
            times.setdefault(name, []).append(elapsed)
    metrics = {name: Metric.of(result) for name, result in times.items()}
    return case.cell({**metrics, **single(_left(measured))}, equal=equal, note=note)


def _left(measured: MeasuredQuery) -> dict[str, float]:
    read = measured.weighed().pruned
    return {"files_share": read.files_kept / max(read.files_total, 1)}


class _Ways(Struct):
    """The ways to the answer, by the metric that tells their time."""

    measured: MeasuredQuery
    view: SignedView | None = None
    works: dict[str, Callable[[], pa.Table]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        measured = self.measured
        self.works = {
            "state_ms": lambda: from_state(measured),
            "by_engine_ms": lambda: by_engine(measured, measured.weighed().pruned),
            "sketch_ms": lambda: measured.answer(measured.weighed().pruned),
            _PLAIN: measured.answer,
        }

    def add_duckdb(self, connection: ParquetSql) -> str:
        """DuckDB's ways too, as far as it has them; what to say of others."""
        calls, reason = duckdb_answers(connection, self.measured)
        self.works |= calls
        if "duckdb_plain_ms" not in calls:
            return reason
        calls["duckdb_plain_ms"]()  # so that the view is made of all files
        sql = rewrite_sql(self.measured.prepared.query, {}, is_local=True)
        self.view = signed_view(connection, sql)
        if self.view is None:
            return "there is no manually maintained view for this query"
        return reason

    def warmed_up(self, rows: pa.Table) -> None:
        """A change there and back, and each way until Spark has compiled it."""
        for forth in (True, False):
            self.after(rows, forth=forth)
        for work in self.works.values():
            warm_up(work, done=2)

    def after(self, rows: pa.Table, *, forth: bool) -> tuple[dict[str, float], bool]:
        """The change made; milliseconds of each way, and whether all gave one answer."""
        measured = self.measured
        measured.commit(rows, forth=forth)
        maintained = measured.followed(len(rows)).total_ms
        times = {_MAINTAIN: maintained}
        answers: dict[str, pa.Table] = {}
        if self.view is not None:
            times |= self._viewed(self.view, answers)
        for name, work in self.works.items():
            measured.scratch.tables.forget_files(measured.table)
            watch = Stopwatch()
            answers[name] = work()
            times[name] = watch.ms + (0.0 if name in _WHOLE else maintained)
        expected = answers[_PLAIN]
        return times, all(same_answer(answer, expected) for answer in answers.values())

    def _viewed(self, view: SignedView, answers: dict[str, pa.Table]) -> dict[str, float]:
        """The view brought on by the newest commit's feed, and asked."""
        source = self.measured.scratch.tables.source(self.measured.table)
        watch = Stopwatch()
        changes = read_changes(source, source.version - 1, source.version, view.columns)
        view.bring_on(changes.table, pa.array(changes.weights))
        brought = watch.ms
        answers["view_ms"] = view.answer()
        return {"view_upkeep_ms": brought, "view_ms": watch.ms}
