"""`impctl gain`: what sketches left out, and what they cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from impctl.cli.help import INPUT
from impctl.cli.job import Job, display_of, on_workbench
from impctl.cli.metrics import MetricsFile, check_metrics, with_metrics
from impctl.cli.options import (
    AsJson,
    QueryNames,
    Quiet,
    StoreFolder,
    Verbose,
    WorkloadFile,
    seconds,
    settings_of,
)
from impctl.service.settings import DEFAULT_FILE

if TYPE_CHECKING:
    from impctl.service.context import Workbench
    from impctl.service.results import Outcome


def gain(
    workload: WorkloadFile = DEFAULT_FILE,
    query: QueryNames = None,
    since: Annotated[
        float | None,
        typer.Option(
            "--since",
            metavar="DURATION",
            parser=seconds,
            show_default=False,
            help="Count uses of this period up to now, such as 12h or 7d. Default: all uses.",
            rich_help_panel=INPUT,
        ),
    ] = None,
    metrics: MetricsFile = None,
    store: StoreFolder = None,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> Job:
    """Show bytes and files skipped, and the cost of maintenance.

    The store counts each use by `query`, `rewrite` and data frames, based on file statistics.

    Example: impctl gain workloads/running-example.yaml --since 7d
    """

    def use_case(desk: Workbench) -> Outcome:
        from impctl.service.gain import gain
        from impctl.service.metrics import gain_metrics

        if metrics is not None:
            check_metrics(metrics, desk.reserved)
        return with_metrics(gain(desk, tuple(query or ()), since), metrics, gain_metrics)

    settings = settings_of(workload, store=store)
    return on_workbench("gain", display_of(json, quiet, verbose), settings, use_case)
