"""Use case: run a query through its sketch.

Law: the answer is the query's own at the pinned versions; the sketch only decides what is read.
Out of scope: proving that (`app.verify`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from impctl.app.preparing.given_values import GivenValues
from impctl.app.results.results import Outcome, QueryResult
from impctl.app.using.answering import Answered, answered
from impctl.app.using.older_versions import AtVersions
from impctl.app.using.recorded import record_use
from impctl.app.using.request import asked
from impctl.app.using.unread import Unread, unread_table
from impctl.app.workbench.workbench import Workbench
from impctl.app.writing.file import check_goal, write_answer
from impctl.stopwatch import Stopwatch
from impctl.workload.models import AnsweredBy, SketchUse


def query(
    desk: Workbench,
    query: str | None,
    params: GivenValues = (),
    sql: str | None = None,
    at: AtVersions | None = None,
    use: SketchUse = SketchUse.AUTO,
    by: AnsweredBy = AnsweredBy.AUTO,
    *,
    required: bool = False,
    where: str | None = None,
    limit: int | None = None,
    out: Path | None = None,
) -> Outcome:
    """The answer of one query, its sketch maintained first where it is stale.

    With `params` or another text the sketch may be that of another query. With `at` the answer is
    that of these versions, through the sketch stored for them, and nothing is maintained. `use`
    says whether to read through the sketch: where that pays, in any case, or not at all. Where
    there is none for now the query is answered without, unless it is `required`. `by` says who
    answers: what is kept, the engine or Spark; by default the quickest of those that can.
    With `where`, a condition on its columns, the rows of the answer for which that is true.
    `limit`: how many rows are shown, or written to the file `out`.
    """
    if out is not None:
        # Before anything that takes its time.
        check_goal(out)
    found = asked(desk, query, params, sql, at, use, required=required)
    if isinstance(found, Unread):
        if by in (AnsweredBy.STATE, AnsweredBy.ENGINE) or where is not None:
            raise found.refusal
        return _given_out(_as_it_stands(desk, found), limit, out, found.warnings)
    got = answered(desk, found, use, by, where)
    if got.read is not None:
        pruned, read = got.read.pruned, got.read.plain
        record_use(desk, got.found, pruned, read, command="query", elapsed_ms=got.elapsed_ms)
    return _given_out(_told(desk, got), limit, out, got.found.warnings)


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


def _given_out(
    result: QueryResult, limit: int | None, out: Path | None, warnings: tuple[str, ...]
) -> Outcome:
    """The rows asked for, in the file asked for."""
    result = replace(result, limit=limit, written=None if out is None else str(out))
    if out is not None:
        write_answer(result.shown, out)
    return Outcome((result,), warnings)


def _as_it_stands(desk: Workbench, found: Unread) -> QueryResult:
    """The answer of a query that only Spark can read."""
    desk.spark()
    desk.reporter.step(f"running {found.spec.name}")
    watch = Stopwatch()
    got = unread_table(desk, found)
    files = found.files(desk)
    return QueryResult(
        query=found.spec.name,
        answer=got,
        versions=found.versions,
        files_kept=files,
        files_total=files,
        elapsed_ms=watch.ms,
        action=found.action,
        reason=found.reason,
        spark_start_ms=desk.spark_start_ms,
        by=AnsweredBy.SPARK,
        by_reason="only Spark can read it",
    )
