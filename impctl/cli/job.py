"""What a command asks for: a `Job`, made from its flags and run by the boundary.

Law: making a job opens no file and imports no use case; both happen when it runs. So an error of
the use case never passes through the argument parser, which would treat it as its own.
Out of scope: rendering and exit codes (`cli.boundary`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from impctl.cli.interrupt import telling
from impctl.errors import UsageError
from impctl.service.formats import RowsFormat
from impctl.values import dataclass

if TYPE_CHECKING:
    from impctl.service.context import Reporter, Workbench
    from impctl.service.results import Outcome
    from impctl.service.settings import Settings


@dataclass(frozen=True, slots=True)
class Display:
    """How to show things; `verbosity`: -1 quiet, 0, 1 steps, 2 traces and Spark's log too."""

    json: bool = False
    verbosity: int = 0
    rows_format: RowsFormat = RowsFormat.TABLE
    escape_formulas: bool = False
    """Whether texts in CSV are kept from being formulas."""


@dataclass(frozen=True, slots=True)
class Job:
    """A command ready to run; `work` gives an outcome, or one text that is printed as it is.

    None says that all was printed as it came; nothing else goes to a terminal meanwhile.

    With `detailed` a run that found something to do, and did not do it, ends with exit code 2.
    """

    command: str
    display: Display
    work: Callable[[Reporter], Outcome | str | None]
    detailed: bool = False
    has_lines: bool = False
    """Whether `work` prints by itself, so that no bar may be drawn."""
    is_long: bool = False
    """Whether it may take so long that it says where it is off a terminal, too."""


def display_of(json: bool, quiet: bool, verbose: int) -> Display:
    """The display that the common flags ask for."""
    if quiet and verbose:
        raise UsageError("`--quiet` and `--verbose` exclude each other", hint="give one of them")
    return Display(json, -1 if quiet else min(verbose, 2))


def on_workbench(
    command: str,
    display: Display,
    settings: Settings,
    use_case: Callable[[Workbench], Outcome],
    *,
    detailed: bool = False,
) -> Job:
    """A job that opens the workload first and closes it after `use_case`."""
    if detailed and command != "plan" and not settings.dry_run:
        raise UsageError(
            "Option `--detailed-exitcode` requires `--dry-run`",
            hint=f"add `--dry-run`, or use `impctl plan`; `{command}` itself ends with 0 when done",
        )

    def work(reporter: Reporter) -> Outcome:
        return in_workbench(settings, use_case, reporter)

    return Job(command, display, work, detailed)


def in_workbench(
    settings: Settings, use_case: Callable[[Workbench], Outcome], reporter: Reporter
) -> Outcome:
    """What `use_case` gives on the workload, which is opened first and closed after it."""
    from impctl.service.context import open_workbench

    with open_workbench(settings, reporter) as desk:
        outcome = use_case(desk)
        telling()
    if not settings.dry_run:
        return outcome
    return replace(outcome, note="dry run: nothing was written")


def one_query(command: str, names: list[str] | None) -> str | None:
    """The query of a command that takes one; None leaves it to a workload with a single query."""
    if names is not None and len(names) > 1:
        raise UsageError(
            f"Command `{command}` takes one query, not {len(names)}", hint="give `--query` once"
        )
    return names[0] if names else None
