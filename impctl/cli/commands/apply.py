"""`impctl apply`: commit update batches of the workload to its tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from impctl.cli.application import complete_update
from impctl.cli.help import INPUT
from impctl.cli.job import Job, display_of, on_workbench
from impctl.cli.options import AsJson, DryRun, Quiet, Verbose, WorkloadFile, settings_of
from impctl.errors import UsageError
from impctl.service.settings import DEFAULT_FILE

if TYPE_CHECKING:
    from impctl.service.context import Workbench
    from impctl.service.results import Outcome


def apply(
    workload: WorkloadFile = DEFAULT_FILE,
    updates: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="UPDATE",
            help="Updates to commit, in this order.",
            autocompletion=complete_update,
            rich_help_panel=INPUT,
        ),
    ] = None,
    all_updates: Annotated[
        bool,
        typer.Option(
            "--all", help="Commit all updates in the file, in order.", rich_help_panel=INPUT
        ),
    ] = False,
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="Commit a batch even if its table already contains it.",
            rich_help_panel=INPUT,
        ),
    ] = False,
    dry_run: DryRun = False,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> Job:
    """Commit update batches from the workload file to its tables.

    Each batch creates a new version of its table. No other command changes rows of your tables. A
    batch is skipped if its table already contains it, with the same name and content.

    Example: impctl apply workloads/running-example.yaml s8
    """
    names = tuple(updates or ())
    if all_updates == bool(names):
        raise UsageError(
            "Command `apply` needs the names of updates, or `--all`",
            hint="name updates after the workload file, or give `--all`, not both",
        )

    def use_case(desk: Workbench) -> Outcome:
        from impctl.service.apply import apply

        return apply(desk, names, all_updates=all_updates, again=again)

    settings = settings_of(workload, dry_run=dry_run)
    return on_workbench("apply", display_of(json, quiet, verbose), settings, use_case)
