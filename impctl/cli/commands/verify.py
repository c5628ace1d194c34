"""`impctl verify`: compare stored sketches with recapture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from impctl.cli.help import INPUT
from impctl.cli.job import Job, display_of, on_workbench
from impctl.cli.options import (
    AsJson,
    MovingParams,
    QueryNames,
    Quiet,
    SparkProfile,
    StoreFolder,
    Verbose,
    WorkloadFile,
    settings_of,
)
from impctl.service.settings import DEFAULT_FILE

if TYPE_CHECKING:
    from impctl.service.context import Workbench
    from impctl.service.results import Outcome


def verify(
    workload: WorkloadFile = DEFAULT_FILE,
    query: QueryNames = None,
    param: MovingParams = None,
    results: Annotated[
        bool,
        typer.Option(
            "--results",
            help="Also run each query with and without its sketch and compare the results.",
            rich_help_panel=INPUT,
        ),
    ] = False,
    store: StoreFolder = None,
    spark_profile: SparkProfile = None,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> Job:
    """Compare stored sketches with a recapture (starts Spark).

    A sound sketch covers the accurate one. Additional ranges are over-approximation (slack). The
    exit code is 5 if a sketch is too small or a result differs.

    Example: impctl verify workloads/running-example.yaml --results
    """

    def use_case(desk: Workbench) -> Outcome:
        from impctl.service.verify import verify

        return verify(desk, tuple(query or ()), results=results)

    settings = settings_of(workload, params=param, store=store, spark_profile=spark_profile)
    return on_workbench("verify", display_of(json, quiet, verbose), settings, use_case)
