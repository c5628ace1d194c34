"""What a command asks for: a job, and how its progress is shown on stderr."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from msgspec import Struct
from msgspec.structs import replace

from impctl.cli.interrupt import delay_interrupts
from impctl.cli.streams import can_move, has_colour
from impctl.errors import StorageError, UsageError
from impctl.service.text import RowsFormat, duration_text, plain

if TYPE_CHECKING:
    from impctl.service.context import Context, Reporter
    from impctl.service.results import Outcome, Result
    from impctl.service.settings import Settings


# What a command asks for: a `Job`, made from its flags and run by the boundary. Law: making a job
# opens no file and imports no use case; both happen when it runs. So an error of the use case
# never passes through the argument parser, which would treat it as its own.


class Display(Struct, frozen=True):
    """How to show results. `verbosity`: -1 quiet, 0, 1 steps, 2 also traces and Spark's log."""

    json: bool = False
    verbosity: int = 0
    rows_format: RowsFormat = RowsFormat.TABLE
    escape_formulas: bool = False
    """Whether text in CSV is escaped so that spreadsheets do not evaluate it."""


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


def on_context(
    command: str,
    display: Display,
    settings: Settings,
    use_case: Callable[[Context], Outcome],
    *,
    detailed: bool = False,
) -> Job:
    """Make a job that opens the workload, runs `use_case` and closes it."""
    if detailed and command != "plan" and not settings.dry_run:
        raise UsageError(
            "Option `--detailed-exitcode` requires `--dry-run`",
            hint=f"add `--dry-run`, or use `impctl plan`; `{command}` itself ends with 0 when done",
        )
    return Job(command, display, partial(in_context, settings, use_case), detailed)


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


# The file of metrics. Law: it is written whole after the run, even if that failed; if it cannot be
# written, the run fails.


def with_metrics(outcome: Outcome, path: Path | None, text: Callable[[Outcome], str]) -> Outcome:
    """Write the metrics of the outcome; add a failure if that fails."""
    if path is None:
        return outcome
    from impctl.service.output import write_whole
    from impctl.service.results import Failure

    try:
        write_whole(path, text(outcome))
    except OSError as error:
        failed = StorageError(
            f"The metrics could not be written to `{path}`: {error.strerror}",
            hint="name a file in a folder with write access",
            code="metrics_not_written",
        )
        return replace(outcome, failures=(*outcome.failures, Failure(None, failed)))
    return outcome


def maintained_now(outcome: Outcome) -> str:
    """The metrics of a run of `maintain` that ends now."""
    from impctl.service.outcome import maintain_metrics

    return maintain_metrics(outcome, time.time())


# How far a run is, on stderr: a bar on a terminal, else plain lines and only with `-v`. A bar
# shows the current item, its number among all, the time so far and an estimate of the rest.
#
# A run that is known to be long, or to have no end, says also without `-v` what it begins with,
# and then once a minute where it is: in a log or a pipe it would look dead. Results that come one
# by one are shown as they come.
#
# Law: a bar is gone when the run ends, and never drawn where stderr is not a terminal, also under
# FORCE_COLOR; nothing is written after the run.

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
        place = f"{done} of {total}" if total > 1 else ""
        if done < total:
            place += f", {_left(self.seconds_left(done, total))}"
        self._show(result, place)

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
    place = f"[{number}/{total}] " if total else ""
    return f"{place}{plain(message)}"


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

        def show_alone(result: Result, place: str) -> None:
            progress.stop()
            show(result, place)
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
