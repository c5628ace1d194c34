"""`impctl doctor`: everything a run rests on, each finding with its fix."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from impctl.app.workbench.settings import DoctorRequest
from impctl.cli.completion import left_to_shell
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

if TYPE_CHECKING:
    from impctl.app.results.results import Outcome
    from impctl.app.workbench.reporter import Reporter

WithSpark = Annotated[
    bool, typer.Option("--spark", help="Spark reads a file of each table; else no JVM starts.")
]
State = Annotated[
    bool, typer.Option("--state/--no-state", help="Read all state; else only where it lies.")
]


def doctor(
    workload: Annotated[
        Path | None,
        typer.Argument(
            metavar="WORKLOAD",
            help=f"{WORKLOAD_HELP} Without it only software is looked at.",
            autocompletion=left_to_shell,
            show_default=False,
        ),
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(
            "--every",
            metavar="TIME",
            show_default=False,
            help="Time between two runs of `maintain`, such as 15m, 6h or 1d: does history last?",
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
    """Look for what is wrong, or soon will be, and say the fix.

    Looks at Java and packages, at the tables (features, change feed, history) and at the store.
    Ends with 0 unless there is a problem, then with the exit code of the gravest: 2 configuration,
    3 a table not supported, 6 retryable, 7 history or state gone.

    Example: impctl doctor workloads/running-example.yaml --every 1d
    """
    if workload is None and every is not None:
        raise UsageError("Option `--every` needs a workload file", hint="give its path")
    settings = None
    if workload is not None:
        settings = settings_of(workload, store=store, spark_profile=spark_profile)
    request = DoctorRequest(settings, every, spark, state)

    def work(reporter: Reporter) -> Outcome:
        from impctl.app.doctor import doctor

        return doctor(request, reporter)

    return Job("doctor", display_of(json, quiet, verbose), work)
