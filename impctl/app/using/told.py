"""A query answered by whoever can, and what is said of it.

Law: the answer is the query's own at the pinned versions; the sketch only decides what is read.
Out of scope: kept rows of which nothing moved (`app.using.at_once`), where the answer goes
(`app.query`).
"""

from __future__ import annotations

from contextlib import nullcontext

from impctl.app.preparing.given_values import GivenValues
from impctl.app.results.results import QueryResult
from impctl.app.using.answer_costs import rows_of
from impctl.app.using.answer_runs import record_answer, record_told
from impctl.app.using.answering import Answered, answered
from impctl.app.using.older_versions import AtVersions, still_there
from impctl.app.using.recorded import record_use, sums_of
from impctl.app.using.request import asked
from impctl.app.using.unread import Unread, unread_table
from impctl.app.workbench.workbench import Workbench
from impctl.stopwatch import Stopwatch
from impctl.workload.models import AnsweredBy, SketchUse


def told(
    desk: Workbench,
    query: str | None,
    params: GivenValues,
    sql: str | None,
    at: AtVersions | None,
    use: SketchUse,
    by: AnsweredBy,
    *,
    required: bool,
    where: str | None,
) -> tuple[QueryResult, tuple[str, ...]]:
    """The answer and warnings; arguments as for `app.query`."""
    result = asked(desk, query, params, sql, at, use, required=required)
    if isinstance(result, Unread):
        if by in (AnsweredBy.STATE, AnsweredBy.ENGINE) or where is not None:
            raise result.refusal
        return _as_it_stands(desk, result), result.warnings
    with nullcontext() if at is None else still_there():
        got = answered(desk, result, use, by, where)
    spec = got.found.prepared.spec
    if got.read is None:
        desk.count_answer(spec.name)
        store = desk.reading_store()
        # Of a condition on the answer only part is told.
        if store is not None and where is None:
            record_told(desk, store, spec, got.table, got.elapsed_ms)
    else:
        pruned, read = got.read.pruned, got.read.plain
        record_use(desk, got.found, pruned, read, command="query", elapsed_ms=got.elapsed_ms)
        files, _, read_bytes = sums_of(pruned)
        rows = sum(rows_of(own) for own in pruned.files.values())
        of_run = (files, rows, read_bytes)
        record_answer(desk, spec, got.by, of_run, got.elapsed_ms, got.start_ms)
    return _told(desk, got), got.found.warnings


def _told(desk: Workbench, got: Answered) -> QueryResult:
    """The answer, and how it was come by."""
    return QueryResult(
        query=got.found.prepared.spec.name,
        answer=got.table,
        versions=got.found.versions,
        files_kept=0 if got.read is None else got.read.pruned.files_kept,
        files_total=0 if got.read is None else got.read.pruned.files_total,
        elapsed_ms=got.elapsed_ms,
        action=got.found.action,
        reason=got.found.reason,
        reuse=got.found.reuse,
        spark_start_ms=desk.spark_start_ms,
        left_away={} if got.read is None else got.read.left_away,
        moments=got.found.prepared.moments,
        by=got.by,
        by_reason=got.why,
        quicker=got.quicker,
    )


def _as_it_stands(desk: Workbench, result: Unread) -> QueryResult:
    """The answer of a query that only Spark can read."""
    desk.spark()
    desk.reporter.step(f"running {result.spec.name}")
    watch = Stopwatch()
    got = unread_table(desk, result)
    files = result.files(desk)
    return QueryResult(
        query=result.spec.name,
        answer=got,
        versions=result.versions,
        files_kept=files,
        files_total=files,
        elapsed_ms=watch.ms,
        action=result.action,
        reason=result.reason,
        spark_start_ms=desk.spark_start_ms,
        by=AnsweredBy.SPARK,
        by_reason="only Spark can read it",
    )
