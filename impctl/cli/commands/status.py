"""`impctl status`: what the store knows, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from impctl.cli.help import OUTPUT
from impctl.cli.job import Job, display_of, on_workbench
from impctl.cli.options import (
    AsJson,
    Imbalance,
    MovingParams,
    Now,
    PolicyName,
    QueryNames,
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


def status(
    workload: WorkloadFile = DEFAULT_FILE,
    query: QueryNames = None,
    param: MovingParams = None,
    now: Now = None,
    store: StoreFolder = None,
    policy: PolicyName = None,
    imbalance: Imbalance = None,
    runs: Annotated[
        int,
        typer.Option(
            "--runs",
            metavar="N",
            min=0,
            show_default=False,
            help="Number of recent runs to show. Default: 3.",
            rich_help_panel=OUTPUT,
        ),
    ] = 3,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> Job:
    """Show stored sketches, pending changes and recent runs.

    Example: impctl status workloads/running-example.yaml
    """

    def use_case(desk: Workbench) -> Outcome:
        from impctl.service.status import status

        return status(desk, tuple(query or ()), runs=runs)

    settings = settings_of(
        workload, params=param, store=store, policy=policy, imbalance=imbalance, now=now
    )
    return on_workbench("status", display_of(json, quiet, verbose), settings, use_case)
