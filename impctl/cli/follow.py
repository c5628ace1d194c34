"""Jobs that follow: lines as runs come, and an orderly end on a signal."""

from __future__ import annotations

import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from impctl.cli.interrupt import handle_alarm, set_alarm
from impctl.cli.job import Display, Job
from impctl.cli.options import check_metrics, maintained_now, with_metrics
from impctl.cli.streams import give_up
from impctl.errors import UsageError
from impctl.service.settings import DEFAULT_INTERVAL, FollowRequest, Settings
from impctl.service.text import RowsFormat

if TYPE_CHECKING:
    from impctl.service.context import Reporter
    from impctl.service.results import ChangesResult, FollowedRun, Outcome


_SIGNALS = (signal.SIGTERM, signal.SIGINT)

GRACE = 10.0
"""Seconds for the run under way: most take less than one; one that has Spark recapture may not."""


class Stopping:
    """Notes which signal asked the process to end; `stopping` installs one."""

    def __init__(self, wake: tuple[socket.socket, socket.socket], signals: Sequence[int]) -> None:
        """`signals` are those that ask; `wake` a pair that ends the waiting."""
        self._reader, self._writer = wake
        self._signals = signals
        self.signal: int | None = None

    @property
    def is_asked(self) -> bool:
        return self.signal is not None

    def ask(self, number: int = signal.SIGTERM) -> None:
        """Ask to end, as the signal does."""
        self.signal = number
        self._writer.send(b"x")

    def wait(self, seconds: float) -> None:
        """Wait, or until asked."""
        select.select([self._reader], [], [], seconds)

    @contextmanager
    def working(self) -> Iterator[None]:
        """One run; Spark puts a SIGINT handler of its own in place when it starts."""
        try:
            yield
        finally:
            self.install()

    def install(self) -> None:
        """Have the signals come here; on the main thread only, as Python will have it."""
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
    """The signals handled as long as the block runs."""
    # Not a pipe, on which Windows cannot wait.
    wake = socket.socketpair()
    wake[1].setblocking(False)
    is_main = threading.current_thread() is threading.main_thread()
    asking = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before: dict[int, Callable[..., Any] | int | None] = {
        number: signal.getsignal(number) for number in asking
    }
    result = Stopping(wake, asking)
    rang = handle_alarm(signal.SIG_DFL) if is_main else None
    result.install()
    try:
        yield result
    finally:
        if is_main:
            set_alarm(0)
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            handle_alarm(rang)
        wake[0].close()
        wake[1].close()


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
        from impctl.cli.output.text import json_line, text_line
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
        from impctl.cli.output.rows import ChangeLines
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
