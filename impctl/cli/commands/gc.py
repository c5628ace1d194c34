"""`impctl gc`: remove old sketch versions and what killed runs left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from impctl.cli.help import LIMITS
from impctl.cli.job import Job, display_of, on_workbench
from impctl.cli.options import (
    AsJson,
    DryRun,
    LockTimeout,
    Quiet,
    StoreFolder,
    Verbose,
    WorkloadFile,
    settings_of,
)
from impctl.service.settings import DEFAULT_FILE

if TYPE_CHECKING:
    from impctl.service.context import Workbench
    from impctl.service.results import Outcome

Keep = Annotated[
    int | None,
    typer.Option(
        "--keep",
        metavar="N",
        min=1,
        show_default=False,
        help="Number of latest sketch versions to keep for each query. Default: 32.",
        rich_help_panel=LIMITS,
    ),
]


def gc(
    workload: WorkloadFile = DEFAULT_FILE,
    keep: Keep = None,
    store: StoreFolder = None,
    lock_timeout: LockTimeout = None,
    dry_run: DryRun = False,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> Job:
    """Delete old sketch versions and files left by interrupted runs.

    Also deletes sets of ranges that no sketch uses, state files that no run uses, and scratch
    folders beside tables.

    Example: impctl gc workloads/running-example.yaml --keep 8 --dry-run
    """

    def use_case(desk: Workbench) -> Outcome:
        from impctl.service.gc import gc

        return gc(desk, keep)

    settings = settings_of(workload, store=store, lock_timeout=lock_timeout, dry_run=dry_run)
    return on_workbench("gc", display_of(json, quiet, verbose), settings, use_case)
