"""Use case: tell which rows of tables a row of an answer is derived from, and what needs some.

Law: no table is touched. The sketch is brought up to date first, as for `query`; then its state
tells, where recursion is kept by absorption, or the engine reads through it. Spark is not started
for what is told.
Out of scope: finding it (`app.using.kept_functions`, `derived_row`, `answer_without`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from impctl.app.preparing.given_values import GivenValues
from impctl.app.results.changed import STATE
from impctl.app.results.foreseen import ENGINE
from impctl.app.results.results import Outcome
from impctl.app.results.why import WhyResult, WithoutResult
from impctl.app.using.answer_without import answer_without
from impctl.app.using.derived_row import derived_row
from impctl.app.using.fresh_sketch import Fresh
from impctl.app.using.kept_functions.row import row_from_state
from impctl.app.using.kept_functions.without import without_from_state
from impctl.app.using.only_query import only_query
from impctl.app.using.request import asked
from impctl.app.using.row_given import RowGiven
from impctl.app.using.unread import Unread
from impctl.app.workbench.workbench import Workbench
from impctl.errors import UsageError
from impctl.stopwatch import Stopwatch
from impctl.types import QueryName
from impctl.workload.models import Lineage, SketchUse


def why(
    desk: Workbench,
    query: QueryName | None,
    params: GivenValues = (),
    row: RowGiven = (),
    without: Sequence[str] = (),
    *,
    limit: int | None = None,
) -> Outcome:
    """What derives the row of the answer with these values, or what would go without some rows.

    `row` has values of columns of the answer, `without` conditions on rows of its tables; one of
    them is given. `limit`: how many rows are told.
    """
    if query is not None:
        # Before anything else is said of a query that is not there.
        desk.queries([query])
    if bool(row) == bool(without):
        raise UsageError(
            "`why` takes either a row of the result or rows to remove, not both",
            hint="give `--row NAME=VALUE`, or `--without CONDITION`",
            code="why_of_what",
        )
    match = _asked(desk, query, params)
    watch = Stopwatch()
    if without:
        return Outcome((_without(desk, match, without, limit, watch),), match.warnings)
    told = row_from_state(desk, match, row) or derived_row(desk, match, row)
    result = WhyResult(
        query=match.prepared.spec.name,
        row=told.row,
        claim=str(told.derivation.claim),
        rows=told.rows[:limit],
        row_count=len(told.rows),
        lineage=told.lineage,
        limit=limit,
        versions=match.versions,
        files_kept=told.files,
        files_total=told.files_total,
        elapsed_ms=watch.ms,
        action=match.action,
        reason=match.reason,
        moments=match.prepared.moments,
        by=_by(is_from_state=told.from_state),
    )
    return Outcome((result,), match.warnings)


def _asked(desk: Workbench, query: QueryName | None, params: GivenValues) -> Fresh:
    """The query with sketches that hold the whole lineage; NotReadError for what is not read."""
    (spec,) = desk.queries([query if query is not None else only_query(desk)])
    use = SketchUse.NEVER if spec.lineage is Lineage.WITNESS else SketchUse.ALWAYS
    result = asked(desk, spec.name, params, None, None, use)
    if isinstance(result, Unread):
        raise result.refusal
    if use is SketchUse.NEVER:
        reason = "its sketch holds only witnesses (`lineage: witness`), not all relevant rows"
        return replace(result, reason=reason)
    return result


def _by(*, is_from_state: bool) -> str:
    return STATE if is_from_state else ENGINE


def _without(
    desk: Workbench,
    result: Fresh,
    without: Sequence[str],
    limit: int | None,
    watch: Stopwatch,
) -> WithoutResult:
    told = without_from_state(desk, result, without) or answer_without(desk, result, without)
    return WithoutResult(
        query=result.prepared.spec.name,
        answer=told.changes,
        limit=limit,
        without=told.conditions,
        removed=told.removed,
        versions=result.versions,
        files_kept=told.files,
        files_total=told.files_total,
        elapsed_ms=watch.ms,
        action=result.action,
        reason=result.reason,
        moments=result.prepared.moments,
        by=_by(is_from_state=told.from_state),
    )
