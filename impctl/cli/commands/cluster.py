"""`impctl cluster`: rewrite tables' files so that sketches leave files out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from impctl.cli.help import INPUT, SAFETY
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
from impctl.service.settings import DEFAULT_FILE

if TYPE_CHECKING:
    from impctl.service.context import Workbench
    from impctl.service.results import Outcome


def cluster(
    workload: WorkloadFile = DEFAULT_FILE,
    tables: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            metavar="NAME",
            help="Cluster this table, even without savings; can be repeated. "
            "Default: every table with savings.",
            rich_help_panel=INPUT,
        ),
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            "--by",
            metavar="ATTRIBUTE",
            help="Sort files by this column; repeat for a Z-order. Default: the sketched columns.",
            rich_help_panel=INPUT,
        ),
    ] = None,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            help="Continue even if clustering makes more sketches worse than better.",
            rich_help_panel=SAFETY,
        ),
    ] = False,
    store: StoreFolder = None,
    dry_run: DryRun = False,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> Job:
    """Re-cluster tables so that sketches skip more files.

    Files are sorted by the sketched attribute, or in Z-order by several. Rows do not change, and
    sketches remain valid. Each table gets a new version, and its old files remain until a VACUUM.
    Estimates are based on the stored sketches, so run `capture` first.

    Example: impctl cluster workloads/running-example.yaml --dry-run
    """

    def use_case(desk: Workbench) -> Outcome:
        from impctl.service.cluster import cluster

        return cluster(desk, tuple(tables or ()), tuple(by or ()), may_lose=yes)

    settings = settings_of(workload, store=store, dry_run=dry_run)
    return on_workbench("cluster", display_of(json, quiet, verbose), settings, use_case)
