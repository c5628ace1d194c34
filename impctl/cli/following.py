"""What following jobs share: lines as runs come, and an end in order; `maintain --follow` is one.

Law: SIGTERM ends it with exit code 0, as service managers expect of a service that was stopped;
SIGINT as it ends every command. Where the reader of stdout goes away, there is nobody to follow
for; where a line cannot be written, the process ends after its run, since none could tell the
rest. Out of scope: signals themselves (`cli.stopping`), lines (`cli.output.follow`).
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from impctl.cli.job import Display, Job
from impctl.cli.metrics import check_metrics, maintained_now, with_metrics
from impctl.cli.stopping import Stopping, stopping
from impctl.cli.streams import give_up
from impctl.errors import UsageError
from impctl.service.settings import DEFAULT_INTERVAL, FollowRequest, Settings

if TYPE_CHECKING:
    from impctl.service.context import Reporter
    from impctl.service.results import FollowedRun, Outcome

T = TypeVar("T")


def follow_request(
    follow: bool,
    interval: float | None,
    pending_rows: int | None,
    max_wait: float | None,
    max_runs: int | None,
) -> FollowRequest | None:
    """What the flags ask for; None without `--follow`. UsageError for flags that need another."""
    given = {
        "--interval": interval,
        "--pending-rows": pending_rows,
        "--max-wait": max_wait,
        "--max-runs": max_runs,
    }
    if not follow:
        lonely = [name for name, value in given.items() if value is not None]
        if lonely:
            raise UsageError(f"Option `{lonely[0]}` requires `--follow`", hint="add it")
        return None
    return FollowRequest(
        DEFAULT_INTERVAL if interval is None else interval,
        pending_rows,
        max_wait,
        max_runs,
    )


def follow_job(
    settings: Settings,
    display: Display,
    queries: Sequence[str],
    batch_rows: int | None,
    request: FollowRequest,
    metrics: Path | None = None,
    *,
    detailed: bool = False,
) -> Job:
    """The job that maintains until it is asked to end."""
    if settings.dry_run or detailed:
        other = "--dry-run" if settings.dry_run else "--detailed-exitcode"
        raise UsageError(
            f"Options `--follow` and `{other}` exclude each other",
            hint="use `impctl plan` to see what would be done",
        )

    def work(reporter: Reporter) -> None:
        from impctl.cli.output.follow import json_line, text_line
        from impctl.service.schedule.daemon import follow

        if metrics is not None:
            check_metrics(metrics, {"the workload file": str(settings.workload)})
        line = json_line if display.json else text_line

        def write(outcome: Outcome, run: FollowedRun) -> None:
            line(with_metrics(outcome, metrics, maintained_now), run, sys.stdout)

        def watch(stop: Stopping, show: Callable[[Outcome, FollowedRun], None]) -> None:
            follow(
                settings,
                queries,
                request,
                batch_rows=batch_rows,
                reporter=reporter,
                stop=stop,
                show=show,
            )

        until_asked(watch, write)

    return Job("maintain", display, work, has_lines=True, is_long=True)


def until_asked(
    watch: Callable[[Stopping, Callable[[T, FollowedRun], None]], None],
    write: Callable[[T, FollowedRun], None],
) -> None:
    """Have `watch` show what it finds by `write`, as long as nobody asks it to end."""
    with stopping() as stop:

        def show(result: T, run: FollowedRun) -> None:
            try:
                write(result, run)
            except BrokenPipeError:
                give_up(sys.stdout.fileno())
                stop.ask()

        try:
            watch(stop, show)
        except KeyboardInterrupt:
            if stop.signal != signal.SIGTERM:
                raise
        if stop.signal == signal.SIGINT:
            raise KeyboardInterrupt
