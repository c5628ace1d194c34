"""How far a run is, on stderr: a bar on a terminal, else plain lines and only with `-v`.

Law: a bar is gone when the run ends, and never drawn where stderr is not a terminal, also under
FORCE_COLOR. Out of scope: results and warnings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO

from impctl.app.workbench.reporter import Reporter, SilentReporter
from impctl.cli.job import Display
from impctl.cli.output.terminal import can_move, has_colour
from impctl.cli.output.wording import plain


class LineReporter:
    """A line per step."""

    def __init__(self, stream: TextIO, spark_log: str = "off") -> None:
        self._stream = stream
        self.spark_log = spark_log

    def step(self, message: str, done: int = 0, total: int = 0) -> None:
        """`[2/3] message`."""
        place = f"[{done}/{total}] " if total else ""
        self._stream.write(f"{place}{plain(message)}\n")
        self._stream.flush()


@contextmanager
def reporting(
    display: Display, stream: TextIO, environment: Mapping[str, str]
) -> Iterator[Reporter]:
    """The reporter that suits the display and the stream, for the length of a run."""
    if display.verbosity > 0:
        yield LineReporter(stream, "warn" if display.verbosity > 1 else "off")
    elif display.verbosity < 0 or display.json or not can_move(stream, environment):
        yield SilentReporter()
    else:
        with _bar(stream, has_colour(stream, environment)) as reporter:
            yield reporter


@contextmanager
def _bar(stream: TextIO, colour: bool) -> Iterator[Reporter]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(file=stream, no_color=not colour, highlight=False)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=None)

        class BarReporter:
            spark_log = "off"

            def step(self, message: str, done: int = 0, total: int = 0) -> None:
                progress.update(
                    task, description=plain(message), completed=done, total=total or None
                )

        yield BarReporter()
