"""Jobs that follow: lines as runs come, and an orderly end on a signal."""

from __future__ import annotations

import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from impctl.cli.interrupt import handle_alarm, set_alarm
from impctl.cli.job import Job, maintained_now, with_metrics
from impctl.cli.streams import discard_output
from impctl.errors import UsageError
from impctl.service.settings import DEFAULT_INTERVAL, FollowRequest
from impctl.service.text import RowsFormat

if TYPE_CHECKING:
    from impctl.cli.options import Invocation
    from impctl.service.context import Reporter
    from impctl.service.results import ChangesResult, FollowedRun, Outcome

# SIGTERM and SIGINT end a following process in order: a run under way is finished, if it is
# short. Law: the first signal asks; a run that goes on longer than the grace after it, or a
# second signal, is given up by KeyboardInterrupt, which leaves every query with its last commit.
# Handlers are put back at the end, and a signal that the surroundings have switched off stays
# off.

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

GRACE = 10.0
"""Seconds for the current run. Most take less than one, but a recapture by Spark may not finish."""


class Stopping:
    """Records the signal that asked the process to stop; `stopping` installs one."""

    def __init__(self, wake: tuple[socket.socket, socket.socket], signals: Sequence[int]) -> None:
        """Use `wake`, a pair of sockets, to interrupt waiting when one of `signals` arrives."""
        self._reader, self._writer = wake
        self._signals = signals
        self.signal: int | None = None

    @property
    def is_asked(self) -> bool:
        return self.signal is not None

    def ask(self, number: int = signal.SIGTERM) -> None:
        """Ask to stop, as a signal does."""
        self.signal = number
        self._writer.send(b"x")

    def wait(self, seconds: float) -> None:
        """Wait, at most until asked to stop."""
        select.select([self._reader], [], [], seconds)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Enclose a run: Spark installs its own SIGINT handler when it starts, so ours is
        reinstalled."""
        try:
            yield
        finally:
            self.install()

    def install(self) -> None:
        """Handle the signals; Python allows this on the main thread only."""
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
                signal.signal(number, self._handle)
            handle_alarm(self._give_up)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.is_asked:
            raise KeyboardInterrupt
        self.ask(number)
        set_alarm(GRACE)

    def _give_up(self, number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt


@contextmanager
def stopping() -> Iterator[Stopping]:
    """Handle signals while the block runs."""
    # Not a pipe, on which Windows cannot wait.
    wake = socket.socketpair()
    wake[1].setblocking(False)
    is_main = threading.current_thread() is threading.main_thread()
    before: dict[int, Callable[..., Any] | int | None] = {
        number: handler
        for number in _SIGNALS
        if (handler := signal.getsignal(number)) != signal.SIG_IGN
    }
    result = Stopping(wake, [*before])
    alarm_before = handle_alarm(signal.SIG_DFL) if is_main else None
    result.install()
    try:
        yield result
    finally:
        if is_main:
            set_alarm(0)
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            handle_alarm(alarm_before)
        wake[0].close()
        wake[1].close()


# What following jobs share: lines as runs come, and an end in order; `maintain --follow` is one.
# Law: SIGTERM ends it with exit code 0, as service managers expect of a service that was stopped;
# SIGINT as it ends every command. Where the reader of stdout goes away, there is nobody to follow
# for; where a line cannot be written, the process ends after its run, since none could tell the
# rest.

T = TypeVar("T")


def follow_request(
    follow: bool,
    interval: float | None,
    pending_rows: int | None,
    max_wait: float | None,
    max_runs: int | None,
) -> FollowRequest | None:
    """Read the options of `--follow`; None without it. UsageError if another one requires it."""
    if follow:
        pause = DEFAULT_INTERVAL if interval is None else interval
        return FollowRequest(pause, pending_rows, max_wait, max_runs)
    names = ("--interval", "--pending-rows", "--max-wait", "--max-runs")
    for name, value in zip(names, (interval, pending_rows, max_wait, max_runs), strict=True):
        if value is not None:
            raise UsageError(f"Option `{name}` requires `--follow`", hint="add it")
    return None


def follow_job(
    command: Invocation, batch_rows: int | None, request: FollowRequest, metrics: Path | None
) -> Job:
    """Make the job that maintains until it is stopped: a line per run, flushed before the next one
    begins."""
    settings, is_json = command.settings, command.display.json
    if settings.dry_run or command.options["detailed_exitcode"]:
        other = "--dry-run" if settings.dry_run else "--detailed-exitcode"
        raise UsageError(
            f"Options `--follow` and `{other}` exclude each other",
            hint="use `impctl plan` to see what would be done",
        )

    def work(reporter: Reporter) -> None:
        from impctl.cli.output.text import run_line
        from impctl.service.output import check_output
        from impctl.service.schedule.daemon import follow

        if metrics is not None:
            check_output(metrics, {"the workload file": str(settings.workload)})

        def write(outcome: Outcome, run: FollowedRun) -> None:
            outcome = with_metrics(outcome, metrics, maintained_now)
            if is_json:
                write_document("maintain", outcome, run)
            else:
                sys.stdout.write(run_line(outcome, run) + "\n")
                sys.stdout.flush()

        queries = command.queries
        watch = partial(follow, settings, queries, request, batch_rows=batch_rows)
        until_asked(partial(watch, reporter=reporter), write)

    return Job("maintain", command.display, work, has_lines=True, is_long=True)


def write_document(command: str, outcome: Outcome, run: FollowedRun) -> None:
    """Print one run as a JSON document on a line."""
    from impctl.cli.output.json import JsonOutput
    from impctl.service.outcome import most_severe

    output = JsonOutput(command, sys.stdout, run)
    for result in outcome.results:
        output.show(result)
    output.end(outcome, most_severe(outcome))
    sys.stdout.flush()


def until_asked(watch: Callable[..., None], write: Callable[[T, FollowedRun], None]) -> None:
    """Run `watch(stop, show)`, which shows results through `write`, until a signal arrives."""
    with stopping() as stop:

        def show(result: T, run: FollowedRun) -> None:
            try:
                write(result, run)
            except BrokenPipeError:
                discard_output(sys.stdout.fileno())
                stop.ask()

        try:
            watch(stop=stop, show=show)
        except KeyboardInterrupt:
            if stop.signal != signal.SIGTERM:
                raise
        if stop.signal == signal.SIGINT:
            raise KeyboardInterrupt


def follow_changes_job(
    command: Invocation, request: FollowRequest, given: Mapping[str, object], *, whole: bool
) -> Job:
    """Make the job that prints rows as they change, until it is stopped; UsageError for options
    that exclude it. All rows are in one format, so that a CSV has its names once."""
    display, query = command.display, command.query
    against = [name for name, value in given.items() if value is not None]
    if display.rows_format in (RowsFormat.JSON, RowsFormat.MARKDOWN):
        against.append(f"--format {display.rows_format}")
    if against:
        raise UsageError(
            f"Options `--follow` and `{against[0]}` exclude each other",
            hint="rows go to stdout as they change; for a pipe, use `--format jsonl` or `csv`",
        )

    def work(reporter: Reporter) -> None:
        from impctl.cli.output.text import TextOutput
        from impctl.service.changes import follow_changes
        from impctl.service.results import Outcome

        output = TextOutput(sys.stdout, sys.stderr, display)

        def write(result: ChangesResult, run: FollowedRun) -> None:
            if display.json:
                write_document("changes", Outcome((result,)), run)
            else:
                output.show(result)
                sys.stdout.flush()

        settings = command.settings
        watch = partial(follow_changes, settings, query, request, whole=whole, reporter=reporter)
        until_asked(watch, write)

    return Job("changes", display, work, has_lines=True, is_long=True)
