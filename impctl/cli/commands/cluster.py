"""`impctl cluster`: rewrite tables' files so that sketches leave files out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from impctl.app.workbench.settings import DEFAULT_FILE
from impctl.cli.job import Job, display_of, on_workbench
from impctl.cli.options import (
    AsJson,
    DryRun,
    Quiet,
    StoreFolder,
    Verbose,
    WorkloadFile,
    settings_of,
)

if TYPE_CHECKING:
    from impctl.app.results.results import Outcome
    from impctl.app.workbench.workbench import Workbench


def cluster(
    workload: WorkloadFile = DEFAULT_FILE,
    tables: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            metavar="NAME",
            help="Only this table, whatever it gains; repeat for more. Default: all that gain.",
        ),
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            "--by",
            metavar="ATTRIBUTE",
            help="Order files by this column; repeat for a Z-order. Default: those sketched.",
        ),
    ] = None,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Go on even if more sketches would read more than less."),
    ] = False,
    store: StoreFolder = None,
    dry_run: DryRun = False,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> Job:
    """Rewrite tables' files so that their sketches leave files out.

    Sorted by the sketched attribute, or in Z-order of several. No row changes and sketches stay
    right; each table becomes a new version, and its old files stay until a VACUUM. Expected figures
    come from the sketches that are stored: capture first.

    Example: impctl cluster workloads/running-example.yaml --dry-run
    """

    def use_case(desk: Workbench) -> Outcome:
        from impctl.app.cluster import cluster

        return cluster(desk, tuple(tables or ()), tuple(by or ()), may_lose=yes)

    settings = settings_of(workload, store=store, dry_run=dry_run)
    return on_workbench("cluster", display_of(json, quiet, verbose), settings, use_case)
