"""Commands that only report: check, explain, status, gain, doctor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from impctl.cli.application import INPUT, OUTPUT, SCHEDULE, STORE_AND_SPARK, complete_path
from impctl.cli.job import Job, display_of, on_context
from impctl.cli.options import (
    WORKLOAD_HELP,
    AsJson,
    Imbalance,
    MetricsFile,
    MovingParams,
    Now,
    PolicyName,
    QueryNames,
    Quiet,
    SparkProfile,
    StoreFolder,
    Strict,
    Verbose,
    WorkloadFile,
    check_metrics,
    option,
    seconds,
    settings_of,
    with_metrics,
)
from impctl.errors import UsageError
from impctl.service.settings import DEFAULT_FILE, DoctorRequest

if TYPE_CHECKING:
    from impctl.service.context import Context, Reporter
    from impctl.service.results import Outcome


def check(
    workload: WorkloadFile = DEFAULT_FILE,
    schema: Annotated[
        bool,
        option("--schema", OUTPUT, "Print the JSON Schema of workload files and exit."),
    ] = False,
    query: QueryNames = None,
    strict: Strict = False,
    now: Now = None,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> Job:
    """Check a workload file and its queries.

    A query that cannot have a sketch is reported. It is a failure only with --strict.

    Example: impctl check workloads/running-example.yaml
    """
    display = display_of(json, quiet, verbose)

    def print_schema(reporter: Reporter) -> str:
        from impctl.service.check import schema_text

        return schema_text()

    if schema:
        return Job("check", display, print_schema)

    def use_case(ctx: Context) -> Outcome:
        from impctl.service.check import check

        return check(ctx, tuple(query or ()), strict=strict)

    return on_context("check", display, settings_of(workload, now=now), use_case)


def explain(
    workload: WorkloadFile = DEFAULT_FILE,
    query: QueryNames = None,
    now: Now = None,
    store: StoreFolder = None,
    policy: PolicyName = None,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> Job:
    """Show how each query is sketched and maintained, or why not.

    Example: impctl explain workloads/running-example.yaml --query q_top
    """

    def use_case(ctx: Context) -> Outcome:
        from impctl.service.explain import explain

        return explain(ctx, tuple(query or ()))

    settings = settings_of(workload, store=store, policy=policy, now=now)
    return on_context("explain", display_of(json, quiet, verbose), settings, use_case)


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
        option("--runs N", OUTPUT, "Number of recent runs to show. Default: 3.", min=0),
    ] = 3,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> Job:
    """Show stored sketches, pending changes and recent runs.

    Example: impctl status workloads/running-example.yaml
    """

    def use_case(ctx: Context) -> Outcome:
        from impctl.service.status import status

        return status(ctx, tuple(query or ()), runs=runs)

    settings = settings_of(
        workload, params=param, store=store, policy=policy, imbalance=imbalance, now=now
    )
    return on_context("status", display_of(json, quiet, verbose), settings, use_case)


def gain(
    workload: WorkloadFile = DEFAULT_FILE,
    query: QueryNames = None,
    since: Annotated[
        float | None,
        option(
            "--since DURATION",
            INPUT,
            "Count uses of this period up to now, such as 12h or 7d. Default: all uses.",
            parser=seconds,
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

    def use_case(ctx: Context) -> Outcome:
        from impctl.service.gain import gain
        from impctl.service.outcome import gain_metrics

        if metrics is not None:
            check_metrics(metrics, ctx.reserved)
        return with_metrics(gain(ctx, tuple(query or ()), since), metrics, gain_metrics)

    settings = settings_of(workload, store=store)
    return on_context("gain", display_of(json, quiet, verbose), settings, use_case)


WithSpark = Annotated[
    bool,
    option(
        "--spark", STORE_AND_SPARK, "Let Spark read a file of each table. Default: start no JVM."
    ),
]
State = Annotated[
    bool,
    option(
        "--state/--no-state",
        STORE_AND_SPARK,
        "Verify all state files. With --no-state, verify only their metadata. Default: --state.",
    ),
]


def doctor(
    workload: Annotated[
        Path | None,
        typer.Argument(
            metavar="WORKLOAD",
            help=f"{WORKLOAD_HELP} Default: check only the installed software.",
            autocompletion=complete_path,
            rich_help_panel=INPUT,
        ),
    ] = None,
    every: Annotated[
        str | None,
        option(
            "--every TIME",
            SCHEDULE,
            "Check that history is kept long enough if `maintain` runs at this interval, such "
            "as 15m, 6h or 1d.",
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
