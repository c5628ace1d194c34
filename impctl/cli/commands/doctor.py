"""`impctl doctor`: everything a run rests on, each finding with its fix."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from impctl.cli.application import left_to_shell
from impctl.cli.help import INPUT, SCHEDULE, STORE_AND_SPARK
from impctl.cli.job import Job, display_of
from impctl.cli.options import (
    WORKLOAD_HELP,
    AsJson,
    Quiet,
    SparkProfile,
    StoreFolder,
    Verbose,
    settings_of,
)
from impctl.errors import UsageError
from impctl.service.settings import DoctorRequest

if TYPE_CHECKING:
    from impctl.service.context import Reporter
    from impctl.service.results import Outcome

WithSpark = Annotated[
    bool,
    typer.Option(
        "--spark",
        help="Let Spark read a file of each table. Default: start no JVM.",
        rich_help_panel=STORE_AND_SPARK,
    ),
]
State = Annotated[
    bool,
    typer.Option(
        "--state/--no-state",
        show_default=False,
        help="Verify all state files. With --no-state, verify only their metadata. "
        "Default: --state.",
        rich_help_panel=STORE_AND_SPARK,
    ),
]


def doctor(
    workload: Annotated[
        Path | None,
        typer.Argument(
            metavar="WORKLOAD",
            help=f"{WORKLOAD_HELP} Default: check only the installed software.",
            autocompletion=left_to_shell,
            show_default=False,
            rich_help_panel=INPUT,
        ),
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(
            "--every",
            metavar="TIME",
            show_default=False,
            help="Check that history is kept long enough if `maintain` runs at this interval, such "
            "as 15m, 6h or 1d.",
            rich_help_panel=SCHEDULE,
        ),
    ] = None,
    spark: WithSpark = False,
    state: State = True,
    store: StoreFolder = None,
    spark_profile: SparkProfile = None,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> Job:
    """Diagnose problems and suggest fixes.

    Checks Java and packages, the tables (features, change feed, history) and the store. Without
    problems the exit code is 0. Otherwise it is that of the most serious problem: 2 configuration,
    3 table not supported, 6 retryable, 7 history or state removed.

    Example: impctl doctor workloads/running-example.yaml --every 1d
    """
    if workload is None and every is not None:
        raise UsageError("Option `--every` needs a workload file", hint="give its path")
    settings = None
    if workload is not None:
        settings = settings_of(workload, store=store, spark_profile=spark_profile)
    request = DoctorRequest(settings, every, spark, state)

    def work(reporter: Reporter) -> Outcome:
        from impctl.service.doctor import doctor

        return doctor(request, reporter)

    return Job("doctor", display_of(json, quiet, verbose), work)
