"""Use case: bring stored sketches up to the pinned versions of their tables.

Law: the best way that policy and plan allow, and every result says which and why; a recapture is
never silent. Policies: `auto` recaptures when nothing else works; `incremental` never recaptures
(exit 7 says what to do); `strict` takes only exact maintenance (exit 4 otherwise); `full` always
recaptures. A query that fails leaves its sketch as it was and does not stop the others; where only
its sketch fails on a row, a recapture too, and Spark answers the query, that is a warning. That a
query can have no sketch is a result, and a failure only where `--strict` asks for it. A run with
nothing to do reads no SQL, unless a sketch is to be used or a query has none.
Out of scope: what is done with a stale sketch (`app.maintaining.run`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from impctl.app.maintaining.maintained import maintain_queries
from impctl.app.preparing.refused import is_refused
from impctl.app.results.results import Failure, Outcome
from impctl.app.results.unsketched import unsketched_maintain
from impctl.app.workbench.settings import DEFAULT_BATCH_ROWS
from impctl.app.workbench.workbench import Workbench
from impctl.errors import EvaluationError, ImpctlError
from impctl.types import QueryName
from impctl.workload.models import Policy, QuerySpec

if TYPE_CHECKING:
    # The engine takes longer to load than a run with nothing to do may last.
    from impctl.app.maintaining.kept_states import KeptStates


def maintain(
    desk: Workbench,
    queries: Sequence[QueryName] | None,
    batch_rows: int | None = None,
    kept: KeptStates | None = None,
    *,
    for_use: bool = False,
) -> Outcome:
    """Maintain the queries named (default: all); one result per query and table.

    With `kept` the operator state stays in memory for a later run of this process. `for_use` says
    that the sketches are going to be used: then the SQL is read even where no table moved, and a
    sketch captured under another reading of it is not current.
    """
    specs = desk.queries(queries)
    return maintain_specs(desk, specs, batch_rows, kept, is_named=bool(queries), for_use=for_use)


def maintain_specs(
    desk: Workbench,
    specs: Sequence[QuerySpec],
    batch_rows: int | None = None,
    kept: KeptStates | None = None,
    *,
    is_named: bool,
    for_use: bool = False,
) -> Outcome:
    """The same for these queries, in their order; `is_named` says that somebody asked for each."""
    if desk.settings.changes is not None:
        from impctl.app.maintaining.change_files import check_change_files

        check_change_files(desk, specs, desk.settings.changes, is_named=is_named)
    size = DEFAULT_BATCH_ROWS if batch_rows is None else batch_rows
    outcome = maintain_queries(desk, specs, size, kept, for_use=for_use)
    if not (for_use or desk.settings.strict):
        outcome = _without_refused(desk, outcome)
    fails_on_rows = any(isinstance(one.error, EvaluationError) for one in outcome.failures)
    return _answered_by_spark(desk, outcome) if fails_on_rows and not for_use else outcome


def _without_refused(desk: Workbench, outcome: Outcome) -> Outcome:
    """The outcome with a result instead of a failure for each query that can have no sketch."""
    specs = {spec.name: spec for spec in desk.queries(None)}
    results, failures = [*outcome.results], list[Failure]()
    for failure in outcome.failures:
        error, query = failure.error, failure.query
        if query is not None and is_refused(specs[query], error):
            results.append(unsketched_maintain(query, error.code, error.message))
        else:
            failures.append(failure)
    return replace(outcome, results=tuple(results), failures=tuple(failures))


def _answered_by_spark(desk: Workbench, outcome: Outcome) -> Outcome:
    """The outcome without failures on rows that Spark does not evaluate for the answer.

    A subquery that divides by zero, for instance, fails where it is computed; Spark may find that
    no row is left to compare with it.
    """
    from impctl.app.preparing.prepared import prepare
    from impctl.app.using.answers import answer_table

    failures, warnings = [], [*outcome.warnings]
    for failure in outcome.failures:
        is_answered = False
        if isinstance(failure.error, EvaluationError) and failure.query is not None:
            (spec,) = desk.queries([failure.query])
            if desk.policy(spec) in (Policy.AUTO, Policy.FULL):
                try:
                    answer_table(desk, prepare(desk, spec), {})
                    is_answered = True
                except ImpctlError:
                    pass  # The failure says so already.
        if is_answered:
            warnings.append(
                f"query `{failure.query}` was not maintained: {failure.error.message}. Spark "
                "answers the query without its sketch, because the query does not need this row"
            )
        else:
            failures.append(failure)
    return replace(outcome, warnings=tuple(warnings), failures=tuple(failures))
