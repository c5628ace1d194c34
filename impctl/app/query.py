"""Use case: run a query through its sketch.

Law: the answer is the query's own at the pinned versions; the sketch only decides what is read.
Out of scope: proving that (`app.verify`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from impctl.app.results.results import Outcome, QueryResult
from impctl.app.using.at_once import told_at_once
from impctl.app.workbench.workbench import Workbench
from impctl.app.writing.file import check_goal, write_answer
from impctl.workload.models import AnsweredBy, SketchUse

if TYPE_CHECKING:
    from impctl.app.preparing.given_values import GivenValues
    from impctl.app.using.older_versions import AtVersions


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
    escape_formulas: bool = False,
) -> Outcome:
    """The answer of one query, its sketch maintained first where it is stale.

    With `params` or another text the sketch may be that of another query. With `at` the answer is
    that of these versions, through the sketch stored for them, and nothing is maintained. `use`
    says whether to read through the sketch: where that pays, in any case, or not at all. Where
    there is none for now the query is answered without, unless it is `required`. `by` says who
    answers: what is kept, the engine or Spark; by default the quickest of those that can.
    With `where`, a condition on its columns, the rows of the answer for which that is true.
    `limit`: how many rows are shown, or written to the file `out`, with `escape_formulas` so that
    a spreadsheet computes nothing.
    """
    if out is not None:
        # Before anything that takes its time.
        check_goal(out, desk.reserved)
    is_plain = not params and sql is None and at is None and not required
    if is_plain and use is SketchUse.AUTO and by in (AnsweredBy.AUTO, AnsweredBy.STATE):
        known = told_at_once(desk, query, where)
        if known is not None:
            return _given_out(known, limit, out, (), escape_formulas=escape_formulas)
    # Planner and engine take longer to load than telling what is kept.
    from impctl.app.using.told import told

    result, warnings = told(desk, query, params, sql, at, use, by, required=required, where=where)
    return _given_out(result, limit, out, warnings, escape_formulas=escape_formulas)


def _given_out(
    result: QueryResult,
    limit: int | None,
    out: Path | None,
    warnings: tuple[str, ...],
    *,
    escape_formulas: bool,
) -> Outcome:
    """The rows asked for, in the file asked for."""
    result = replace(result, limit=limit, written=None if out is None else str(out))
    if out is not None:
        write_answer(result.shown, out, escape_formulas=escape_formulas)
    return Outcome((result,), warnings)
