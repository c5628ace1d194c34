"""Use case: tell which rows of a kept answer came and went since the store's versions.

Law: only reads: no lock is taken, the store and the tables stay as they are, Spark is not started.
Applied to the answer of the versions before, what is told gives the answer of those after, copy for
copy. Out of scope: how it is found (`app.using.changed`), files per step (`app.maintain`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from impctl.app.results.changed import ChangesResult
from impctl.app.results.results import Outcome
from impctl.app.using.changed import Answer, Changed, changed_since
from impctl.app.using.older_versions import AtVersions
from impctl.app.using.only_query import only_query
from impctl.app.workbench.workbench import Workbench
from impctl.app.writing.file import check_goal, write_answer
from impctl.errors import RetryableError, UsageError
from impctl.stopwatch import Stopwatch
from impctl.types import QueryName
from impctl.workload.models import QuerySpec

_ATTEMPTS = 10
"""Times that other processes may move the rows on while they are being read."""


def changes(
    desk: Workbench,
    query: QueryName | None,
    since: AtVersions | None = None,
    *,
    whole: bool = False,
    limit: int | None = None,
    out: Path | None = None,
    escape_formulas: bool = False,
) -> Outcome:
    """What came and went of one query's answer between the store's versions and now.

    With `since` from these versions on; `whole` tells the answer itself, as the store has it.
    `limit`: how many rows are shown, or written to the file `out`, with `escape_formulas` so that
    a spreadsheet computes nothing.
    """
    if whole and since is not None:
        raise UsageError(
            "`--all` excludes `--since`: it returns the current materialized result only",
            hint="remove one of them; `impctl query --at` answers at older versions",
        )
    if out is not None:
        # Before anything that takes its time.
        check_goal(out, desk.reserved)
    (spec,) = desk.queries([query if query is not None else only_query(desk)])
    watch = Stopwatch()
    match = _found(desk, spec, since, whole=whole)
    result = result_of(spec.name, match, watch.ms)
    result = replace(result, limit=limit, written=None if out is None else str(out))
    if out is not None:
        write_answer(result.shown, out, escape_formulas=escape_formulas)
    return Outcome((result,))


def _found(desk: Workbench, spec: QuerySpec, since: AtVersions | None, *, whole: bool) -> Changed:
    if since is not None:
        return changed_since(desk, spec, since)
    for attempt in range(_ATTEMPTS):
        try:
            answer = Answer(desk, spec)
            return answer.whole(desk) if whole else answer.next(desk)
        except RetryableError as error:
            if error.code != "sketch_moved" or attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError


def result_of(query: QueryName, result: Changed, elapsed_ms: float) -> ChangesResult:
    """The changes as they are told."""
    return ChangesResult(
        answer=result.changes,
        query=query,
        since=result.since,
        versions=result.versions,
        elapsed_ms=elapsed_ms,
        by=result.by,
        by_reason=result.why,
        moments=result.moments,
    )
