"""Use case: run a query through its sketch.

Law: the answer is the query's own at the pinned versions; the sketch only decides what is read.
Out of scope: proving that (`app.verify`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from impctl.app.preparing.given_values import GivenValues
from impctl.app.results.results import Outcome, QueryResult
from impctl.app.using.answers import answer_table
from impctl.app.using.older_versions import AtVersions
from impctl.app.using.recorded import record_use
from impctl.app.using.request import asked
from impctl.app.using.unread import Unread, unread_table
from impctl.app.using.worth import what_is_read
from impctl.app.workbench.workbench import Workbench
from impctl.app.writing.file import check_goal, write_answer
from impctl.stopwatch import Stopwatch
from impctl.workload.models import SketchUse


def query(
    desk: Workbench,
    query: str | None,
    params: GivenValues = (),
    sql: str | None = None,
    at: AtVersions | None = None,
    use: SketchUse = SketchUse.AUTO,
    *,
    required: bool = False,
    limit: int | None = None,
    out: Path | None = None,
) -> Outcome:
    """The answer of one query, its sketch maintained first where it is stale.

    With `params` or another text the sketch may be that of another query. With `at` the answer is
    that of these versions, through the sketch stored for them, and nothing is maintained. `use`
    says whether to read through the sketch: where that pays, in any case, or not at all. Where
    there is none for now the query is answered without, unless it is `required`. `limit`: how many
    rows are shown, or written to the file `out`.
    """
    if out is not None:
        # Before anything that takes its time.
        check_goal(out)
    found = asked(desk, query, params, sql, at, use, required=required)
    if isinstance(found, Unread):
        return _given_out(_as_it_stands(desk, found), limit, out, found.warnings)
    read = what_is_read(desk.tables, found, use)
    desk.spark()
    desk.reporter.step(f"running {found.prepared.spec.name}")
    watch = Stopwatch()
    got = answer_table(desk, found.prepared, found.versions, read.pruned)
    elapsed = watch.ms
    record_use(desk, found, read.pruned, read.plain, command="query", elapsed_ms=elapsed)
    result = QueryResult(
        query=found.prepared.spec.name,
        answer=got,
        versions=found.versions,
        files_kept=read.pruned.files_kept,
        files_total=read.pruned.files_total,
        elapsed_ms=elapsed,
        action=found.action,
        reason=found.reason,
        reuse=found.reuse,
        spark_start_ms=desk.spark_start_ms,
        left_away=read.left_away,
        moments=found.prepared.moments,
    )
    return _given_out(result, limit, out, found.warnings)


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
    )
