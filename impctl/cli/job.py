"""The job of a command, its progress on stderr, and jobs that follow.

Law: making a job opens no file and imports no use case; running it does. So an error of the use
case never passes through the argument parser, which would handle it.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from impctl.cli.process import Display, can_move, discard_output, has_colour
from impctl.cli.signals import delay_interrupts, handle_alarm, set_alarm
from impctl.errors import UsageError
from impctl.service.memory_limit import memory_from
from impctl.service.settings import (
    DEFAULT_FILE,
    DEFAULT_INTERVAL,
    NOW,
    SHARED_STORE,
    FollowRequest,
    Settings,
    disk_from,
    is_shared_store,
    store_folder,
)
from impctl.service.text import RowsFormat, duration_text, plain

if TYPE_CHECKING:
    from impctl.service.context import Context, Reporter
    from impctl.service.results import ChangesResult, FollowedRun, Outcome, Result


class Job(Struct, frozen=True):
    """A command ready to run. `work` returns an outcome, a text to print unchanged, or None if it
    has printed everything; nothing else is printed to a terminal meanwhile. With `detailed`, a run
    that found work and did not do it exits with 2."""

    command: str
    display: Display
    work: Callable[[Reporter], Outcome | str | None]
    detailed: bool = False
    has_lines: bool = False
    """Whether `work` prints by itself, so that no bar may be drawn."""
    is_long: bool = False
    """Whether to report progress off a terminal too, because it may take long."""


def display_of(json: bool, quiet: bool, verbose: int) -> Display:
    """Read the common options."""
    if quiet and verbose:
        raise UsageError("`--quiet` and `--verbose` exclude each other", hint="give one of them")
    return Display(json, -1 if quiet else min(verbose, 2))


class Invocation(Struct, frozen=True, dict=True):
    """The common options of a command; makes its job."""

    command: str
    display: Display
    options: Mapping[str, Any]
    """The other common options that the command takes, as given."""

    @cached_property
    def settings(self) -> Settings:
        known = self.options.keys() & set(Settings.__struct_fields__)
        values = {"workload": DEFAULT_FILE} | {name: self.options[name] for name in known}
        memory = self.options.get("follow_memory", values.get("memory"))
        return settings_of(**values | {"memory": memory})

    @property
    def queries(self) -> tuple[str, ...]:
        """The queries named; none means all of the workload."""
        return tuple(self.options.get("query") or ())

    @property
    def query(self) -> str | None:
        """The only query named; None means the only one of the workload."""
        names = self.options["one_query"] or (None,)
        if len(names) > 1:
            raise UsageError(
                f"Command `{self.command}` takes one query, not {len(names)}",
                hint="give `--query` once",
            )
        return names[0]

    def job(self, work: Callable[[Reporter], Outcome | str], *, is_long: bool = False) -> Job:
        return Job(self.command, self.display, work, is_long=is_long)

    def on_context(self, use_case: Callable[[Context], Outcome]) -> Job:
        """Make a job that opens the workload, runs `use_case` and closes it."""
        detailed = self.options.get("detailed_exitcode", False)
        if detailed and self.command != "plan" and not self.settings.dry_run:
            raise UsageError(
                "Option `--detailed-exitcode` requires `--dry-run`",
                hint=f"add `--dry-run`, or use `impctl plan`; `{self.command}` itself ends with 0 "
                "when done",
            )
        work = partial(in_context, self.settings, use_case)
        return Job(self.command, self.display, work, detailed)


def settings_of(workload: Path, **arguments: Any) -> Settings:
    """Make settings from options and variables."""
    readers: Mapping[str, Callable[[Any], Any]] = {
        "store": store_folder,
        "memory": _memory,
        "disk": disk_from,
    }
    for name, read in readers.items():
        if arguments.get(name) is not None:
            arguments[name] = read(arguments[name])
    arguments["params"] = tuple(arguments.get("params") or ())
    arguments["now"] = arguments.get("now") or os.environ.get(NOW) or None
    arguments["shared_store"] = is_shared_store(os.environ.get(SHARED_STORE))
    return Settings(
        workload, **{name: value for name, value in arguments.items() if value is not None}
    )


def _memory(text: str) -> int:
    try:
        return memory_from(text)
    except ValueError:
        raise UsageError(
            f"`--memory` cannot be: {text}", hint="write a size such as 500MB, 2GB or 25%"
        ) from None


def in_context(
    settings: Settings, use_case: Callable[[Context], Outcome], reporter: Reporter
) -> Outcome:
    """Run `use_case` on the workload, opened before and closed after."""
    from impctl.service.context import open_context

    with open_context(settings, reporter) as ctx:
        outcome = use_case(ctx)
        delay_interrupts()
    if settings.dry_run:
        return replace(outcome, note="dry run: nothing was written")
    return outcome


def with_metrics(outcome: Outcome, path: Path | None, text: Callable[[Outcome], str]) -> Outcome:
    """Write the metrics of the outcome, even of a failed one; add a failure if that fails."""
    if path is None:
        return outcome
    from impctl.service.output import not_written, write_whole
    from impctl.service.results import Failure

    try:
        write_whole(path, text(outcome))
    except OSError as error:
        failed = not_written("The metrics", path, error, "metrics_not_written")
        return replace(outcome, failures=(*outcome.failures, Failure(None, failed)))
    return outcome


def maintained_now(outcome: Outcome) -> str:
    """The metrics of a run of `maintain` that ends now."""
    from impctl.service.results import maintain_metrics

    return maintain_metrics(outcome, time.time())


# Progress on stderr: a bar on a terminal, else lines, and those only with `-v`. A bar shows the
# current item, its number of all, the elapsed time and an estimate of the rest. Without `-v`, a run
# that is long or endless prints its first step and then the current one once a minute: otherwise it
# would look dead in a log or a pipe. Results are shown as they arrive. Law: a bar is gone when the
# run ends, and never drawn unless stderr is a terminal, even with FORCE_COLOR.

_MINUTE = 60.0
Show = Callable[["Result", str], None]
"""Shows a result with a remark on the progress, which is empty for a single result."""


class ResultReporter:
    """Shows results as they come, and no steps."""

    def __init__(self, show: Show, spark_log: str = "off") -> None:
        self.spark_log = spark_log
        self._show = show
        self._begun = time.monotonic()

    def step(self, message: str, number: int = 0, total: int = 0) -> None:
        """Show nothing."""

    def finished(self, result: Result, done: int, total: int) -> None:
        """Show the result with `3 of 22, about 2 min left`."""
        progress = f"{done} of {total}" if total > 1 else ""
        if done < total:
            progress += f", {_left(self.seconds_left(done, total))}"
        self._show(result, progress)

    def seconds_left(self, done: int, total: int) -> float:
        """Estimate the remaining time from the average so far."""
        return (time.monotonic() - self._begun) / done * (total - done)


class LineReporter(ResultReporter):
    """Prints a line per step."""

    def __init__(self, stream: TextIO, show: Show, spark_log: str = "off") -> None:
        super().__init__(show, spark_log)
        self._stream = stream

    def step(self, message: str, number: int = 0, total: int = 0) -> None:
        self._stream.write(f"{_line(message, number, total)}\n")
        self._stream.flush()


class PulseReporter(ResultReporter):
    """Prints the first step at once, then the current one every `every` seconds."""

    def __init__(self, stream: TextIO, show: Show, every: float = _MINUTE) -> None:
        super().__init__(show)
        self._stream = stream
        self._every = every
        self._at: str | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="impctl-pulse", daemon=True)

    def step(self, message: str, number: int = 0, total: int = 0) -> None:
        is_first = self._at is None
        self._at = _line(message, number, total)
        if is_first:
            self._write(self._at)
            self._thread.start()

    def end(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _beat(self) -> None:
        while not self._ended.wait(self._every):
            elapsed = duration_text((time.monotonic() - self._begun) * 1000)
            self._write(f"after {elapsed}: {self._at}")

    def _write(self, line: str) -> None:
        # If nobody reads, the run goes on: the end of the run reports it.
        with suppress(OSError, ValueError):
            self._stream.write(f"{line}\n")
            self._stream.flush()


def _left(seconds: float) -> str:
    return f"about {seconds:.0f} s left" if seconds < 90 else f"about {seconds / 60:.0f} min left"


def _line(message: str, number: int, total: int) -> str:
    prefix = f"[{number}/{total}] " if total else ""
    return f"{prefix}{plain(message)}"


@contextmanager
def reporting(
    display: Display,
    stream: TextIO,
    environment: Mapping[str, str],
    show: Show,
    *,
    has_lines: bool = False,
    is_long: bool = False,
) -> Iterator[Reporter]:
    """Make the reporter for the display and the stream. Results are passed to `show` as they come.
    With `has_lines` there is no bar."""
    can_draw = not has_lines and can_move(stream, environment)
    if display.verbosity > 0:
        yield LineReporter(stream, show, "warn" if display.verbosity > 1 else "off")
    elif display.verbosity < 0 or display.json or not (can_draw or is_long):
        yield ResultReporter(show)
    elif not can_draw:
        pulse = PulseReporter(stream, show)
        try:
            yield pulse
        finally:
            pulse.end()
    else:
        with _bar(stream, show, has_colour(stream, environment)) as reporter:
            yield reporter


@contextmanager
def _bar(stream: TextIO, show: Show, colour: bool) -> Iterator[Reporter]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        ProgressColumn,
        SpinnerColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
    )
    from rich.text import Text

    class LeftColumn(ProgressColumn):
        """Rich's estimate uses only the last 30 seconds, but an item may take longer."""

        def render(self, task: Task) -> Text:
            left = task.fields["ends"] - time.monotonic()
            return Text(_left(left) if left > 0 else "")

    console = Console(file=stream, no_color=not colour, highlight=False)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[place]}"),
        TimeElapsedColumn(),
        LeftColumn(),
    )
    # What is printed meanwhile goes to stdout, not to where the bar is.
    progress = Progress(*columns, console=console, transient=True, redirect_stdout=False)
    with progress:
        task = progress.add_task("starting", total=None, place="", ends=0.0)

        def show_alone(result: Result, remark: str) -> None:
            progress.stop()
            show(result, remark)
            progress.start()

        class BarReporter(ResultReporter):
            def step(self, message: str, number: int = 0, total: int = 0) -> None:
                progress.update(task, description=plain(message))
                if total > 1:
                    done = number - 1
                    left = self.seconds_left(done, total) if done else 0.0
                    place, ends = f"{number}/{total}", time.monotonic() + left
                    progress.update(task, completed=done, total=total, place=place, ends=ends)

        yield BarReporter(show_alone)


# SIGTERM and SIGINT end a following process after its current run, if that is short. Law: the first
# signal asks to stop. A run that exceeds the grace period, or a second signal, raises
# KeyboardInterrupt, which keeps the last commit of every query. Handlers are restored at the end,
# and a signal that the environment ignores stays ignored.

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


# Jobs that follow. Law: SIGTERM ends one with exit code 0, as service managers expect, and SIGINT
# as it ends every command. The process ends if the reader of stdout is gone, and after its run if a
# line cannot be written.

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
        from impctl.cli.output.outcome import run_line
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
    from impctl.cli.output.outcome import JsonOutput
    from impctl.service.results import most_severe

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
    command: Invocation, request: FollowRequest, options: Mapping[str, object], *, whole: bool
) -> Job:
    """Make the job that prints rows as they change, until it is stopped; UsageError for options
    that exclude it. All rows are in one format, so that a CSV has its names once."""
    display, query = command.display, command.query
    against = [name for name, value in options.items() if value is not None]
    if display.rows_format in (RowsFormat.JSON, RowsFormat.MARKDOWN):
        against.append(f"--format {display.rows_format}")
    if against:
        raise UsageError(
            f"Options `--follow` and `{against[0]}` exclude each other",
            hint="rows go to stdout as they change; for a pipe, use `--format jsonl` or `csv`",
        )

    def work(reporter: Reporter) -> None:
        from impctl.cli.output.outcome import TextOutput
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
