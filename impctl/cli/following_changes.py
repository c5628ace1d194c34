"""The job of `changes --follow`: rows on stdout as they come and go, and an end in order.

Law: as for `cli.following`: what a look found is written whole and flushed before the next one.
Out of scope: how it ends (`cli.following`), formats (`cli.output.answer`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from impctl.cli.following import until_asked
from impctl.cli.job import Display, Job
from impctl.cli.stopping import Stopping
from impctl.errors import UsageError
from impctl.service.formats import RowsFormat
from impctl.service.settings import FollowRequest, Settings

if TYPE_CHECKING:
    from impctl.service.context import Reporter
    from impctl.service.results import ChangesResult, FollowedRun


def follow_changes_job(
    settings: Settings,
    display: Display,
    query: str | None,
    request: FollowRequest,
    given: Mapping[str, object],
    *,
    whole: bool,
) -> Job:
    """The job that tells of changes until it is asked to end; UsageError for flags against it."""
    against = [name for name, value in given.items() if value is not None]
    if display.rows_format in (RowsFormat.JSON, RowsFormat.MARKDOWN):
        against.append(f"--format {display.rows_format}")
    if against:
        raise UsageError(
            f"Options `--follow` and `{against[0]}` exclude each other",
            hint="rows go to stdout as they change; for a pipe, use `--format jsonl` or `csv`",
        )

    def work(reporter: Reporter) -> None:
        from impctl.cli.output.changes import ChangeLines
        from impctl.service.changes import follow_changes

        def watch(stop: Stopping, show: Callable[[ChangesResult, FollowedRun], None]) -> None:
            follow_changes(
                settings,
                query,
                request,
                whole=whole,
                reporter=reporter,
                stop=stop,
                show=show,
            )

        until_asked(watch, ChangeLines(sys.stdout, sys.stderr, display).write)

    return Job("changes", display, work, has_lines=True, is_long=True)
