"""Commands that capture sketches and maintain them: capture, maintain, plan, simulate, verify."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from impctl.cli.application import INPUT, LIMITS, MAINTENANCE, OUTPUT, SCHEDULE, left_to_shell
from impctl.cli.follow import follow_job, follow_request
from impctl.cli.job import Display, Job, display_of, on_workbench
from impctl.cli.options import (
    AsJson,
    DetailedExitcode,
    DiskGiven,
    Disks,
    DryRun,
    DueOnly,
    DueTold,
    FollowMemory,
    Imbalance,
    LargeChange,
    LockTimeout,
    Look,
    Looks,
    MemoryGiven,
    MetricsFile,
    MovingParams,
    Now,
    PointName,
    PolicyName,
    QueryNames,
    Quiet,
    Since,
    SparkProfile,
    StoreFolder,
    Strict,
    Triggers,
    Verbose,
    WorkloadFile,
    check_metrics,
    due_use_case,
    failure_told,
    maintained_now,
    seconds,
    settings_of,
    with_metrics,
)
from impctl.service.settings import (
    BATCH_ROWS,
    DEFAULT_FILE,
    DISK,
    SCRUB,
    DueRequest,
    FollowRequest,
    Settings,
    check_planned_look,
    due_request,
    simulate_request,
)

if TYPE_CHECKING:
    from impctl.service.context import Workbench
    from impctl.service.results import Outcome


Rebalance = Annotated[
    bool,
    typer.Option(
        "--rebalance",
        help="Instead of capturing, split heavy ranges of the stored sketches and merge "
        "light ones.",
        rich_help_panel=MAINTENANCE,
    ),
]


def capture(
    workload: WorkloadFile = DEFAULT_FILE,
    query: QueryNames = None,
    param: MovingParams = None,
    now: Now = None,
    store: StoreFolder = None,
    policy: PolicyName = None,
    lock_timeout: LockTimeout = None,
    spark_profile: SparkProfile = None,
    memory: MemoryGiven = None,
    disk: DiskGiven = None,
    rebalance: Rebalance = False,
    dry_run: DryRun = False,
    detailed_exitcode: DetailedExitcode = False,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> Job:
    """Capture the sketch of each query.

    With --rebalance, impctl keeps the sketches and evens out their ranges.

    Example: impctl capture workloads/running-example.yaml --query q_top
    """

    def use_case(desk: Workbench) -> Outcome:
        if rebalance:
            from impctl.service.rebalance import rebalance as even_out

            return even_out(desk, tuple(query or ()))
        from impctl.service.capture import capture

        return capture(desk, tuple(query or ()))

    settings = settings_of(
        workload,
        params=param,
        store=store,
        policy=policy,
        lock_timeout=lock_timeout,
        spark_profile=spark_profile,
        memory=memory,
        disk=disk,
        now=now,
        dry_run=dry_run,
    )
    display = display_of(json, quiet, verbose)
    return on_workbench("capture", display, settings, use_case, detailed=detailed_exitcode)


BatchRows = Annotated[
    int | None,
    typer.Option(
        "--batch-rows",
        metavar="N",
        min=1,
        envvar=BATCH_ROWS,
        show_default=False,
        help="Number of changes per batch for eager queries. Default: 1, i.e. every table version.",
        rich_help_panel=MAINTENANCE,
    ),
]

Follow = Annotated[
    bool,
    typer.Option(
        "--follow",
        help="Run until stopped: maintain whenever tables change, and print one line per run.",
        rich_help_panel=SCHEDULE,
    ),
]

Interval = Annotated[
    float | None,
    typer.Option(
        "--interval",
        metavar="DURATION",
        parser=seconds,
        show_default=False,
        help="With --follow: pause between checks of the tables, such as 500ms or 1m. Default: 5s. "
        "With --due: time until the next run. Default: 1m.",
        rich_help_panel=SCHEDULE,
    ),
]

PendingRows = Annotated[
    int | None,
    typer.Option(
        "--pending-rows",
        metavar="N",
        min=1,
        show_default=False,
        help="With --follow, for queries without a trigger: wait for N changed rows, at most 1m. "
        "Default: do not wait.",
        rich_help_panel=SCHEDULE,
    ),
]

MaxWait = Annotated[
    float | None,
    typer.Option(
        "--max-wait",
        metavar="DURATION",
        parser=seconds,
        show_default=False,
        help="With --follow, for queries without a trigger: maintain within this time. Prefer the "
        "trigger `fresh_within` in the workload file.",
        rich_help_panel=SCHEDULE,
    ),
]

MaxRuns = Annotated[
    int | None,
    typer.Option(
        "--max-runs",
        metavar="N",
        min=1,
        show_default=False,
        help="With --follow: stop after N runs that had something to do. Default: never.",
        rich_help_panel=SCHEDULE,
    ),
]


Changes = Annotated[
    Path | None,
    typer.Option(
        "--changes",
        metavar="FOLDER",
        show_default=False,
        help="Write inserted and deleted rows of materialized results to this folder, one Parquet "
        "file per query and step.",
        autocompletion=left_to_shell,
        rich_help_panel=OUTPUT,
    ),
]


Scrub = Annotated[
    int | None,
    typer.Option(
        "--scrub",
        metavar="MB",
        min=0,
        envvar=SCRUB,
        show_default=False,
        help="Verify up to this many MB of state that no run has used for a day; 0 for none. "
        "Default: 64.",
        rich_help_panel=LIMITS,
    ),
]


def maintain(
    workload: WorkloadFile = DEFAULT_FILE,
    query: QueryNames = None,
    param: MovingParams = None,
    batch_rows: BatchRows = None,
    imbalance: Imbalance = None,
    large_change: LargeChange = None,
    now: Now = None,
    store: StoreFolder = None,
    policy: PolicyName = None,
    lock_timeout: LockTimeout = None,
    spark_profile: SparkProfile = None,
    memory: FollowMemory = None,
    disk: DiskGiven = None,
    due: DueOnly = False,
    point: PointName = None,
    follow: Follow = False,
    interval: Interval = None,
    pending_rows: PendingRows = None,
    max_wait: MaxWait = None,
    max_runs: MaxRuns = None,
    metrics: MetricsFile = None,
    changes: Changes = None,
    scrub: Scrub = None,
    strict: Strict = False,
    dry_run: DryRun = False,
    detailed_exitcode: DetailedExitcode = False,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> Job:
    """Update each sketch to the current table versions.

    Where possible, impctl reads only the changes and does not start Spark. With --follow, it runs
    until SIGTERM stops it.

    Example: impctl maintain workloads/running-example.yaml --policy strict
    """
    settings = settings_of(workload, params=param, store=store, memory=memory, disk=disk, now=now)
    settings = replace(settings, policy=policy, changes=changes, strict=strict, dry_run=dry_run)
    settings = replace(settings, lock_timeout=lock_timeout, spark_profile=spark_profile)
    settings = replace(settings, imbalance=imbalance, large_change=large_change, scrub=scrub)
    asked = due_request(due, point, interval, tuple(query or ()), follow=follow)
    request = follow_request(follow, asked.pause, pending_rows, max_wait, max_runs)
    display = display_of(json, quiet, verbose)
    return _job(settings, display, asked, request, batch_rows, metrics, detailed=detailed_exitcode)


def _job(
    settings: Settings,
    display: Display,
    asked: DueRequest,
    request: FollowRequest | None,
    batch_rows: int | None,
    metrics: Path | None,
    *,
    detailed: bool,
) -> Job:
    if request is not None:
        names = asked.queries
        return follow_job(settings, display, names, batch_rows, request, metrics, detailed=detailed)
    use_case = _use_case(asked, batch_rows, None if settings.dry_run else metrics)
    return on_workbench("maintain", display, settings, use_case, detailed=detailed)


def _use_case(
    asked: DueRequest, batch_rows: int | None, metrics: Path | None
) -> Callable[[Workbench], Outcome]:
    maintained = due_use_case(asked, batch_rows)

    def use_case(desk: Workbench) -> Outcome:
        if metrics is not None:
            check_metrics(metrics, desk.reserved)
        with failure_told(metrics):
            outcome = maintained(desk)
        return with_metrics(outcome, metrics, maintained_now)

    return use_case


def plan(
    workload: WorkloadFile = DEFAULT_FILE,
    query: QueryNames = None,
    param: MovingParams = None,
    large_change: LargeChange = None,
    now: Now = None,
    store: StoreFolder = None,
    policy: PolicyName = None,
    disk: DiskGiven = None,
    due: DueTold = False,
    interval: Look = None,
    detailed_exitcode: DetailedExitcode = False,
    strict: Strict = False,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> Job:
    """Show what `maintain` would do, without doing it.

    Shows pending changes, the estimated cost and the reasons. Writes nothing, takes no lock and
    does not start Spark. As in `check`, a query that cannot have a sketch is a failure only with
    --strict. With --due, shows when each query is due next.

    Example: impctl plan workloads/running-example.yaml --detailed-exitcode
    """
    check_planned_look(due, interval)

    def use_case(desk: Workbench) -> Outcome:
        if due:
            from impctl.service.schedule.daemon import plan_due

            return plan_due(desk, tuple(query or ()), look=interval)
        from impctl.service.plan import plan

        return plan(desk, tuple(query or ()), strict=strict)

    settings = settings_of(workload, params=param, store=store, policy=policy, disk=disk, now=now)
    settings = replace(settings, large_change=large_change)
    display = display_of(json, quiet, verbose)
    return on_workbench("plan", display, settings, use_case, detailed=detailed_exitcode)


def simulate(
    workload: WorkloadFile = DEFAULT_FILE,
    query: QueryNames = None,
    since: Since = None,
    disk: Disks = None,
    trigger: Triggers = None,
    interval: Looks = None,
    store: StoreFolder = None,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> Job:
    """Replay past commits under other budgets and triggers.

    For each setting, shows how many runs there would have been, how long they would have taken, and
    how stale sketches would have become. Reads no rows, does not start Spark and changes nothing.

    Example: impctl simulate workloads/running-example.yaml --trigger 'fresh_within: 10m'
    """
    request = simulate_request(since, disk or (), trigger or (), interval)

    def use_case(desk: Workbench) -> Outcome:
        from impctl.service.schedule.simulate import simulate

        return simulate(desk, tuple(query or ()), request)

    # What the variable says holds now, as it does for other commands; the flag is for settings.
    settings = settings_of(workload, store=store, disk=os.environ.get(DISK) or None)
    return on_workbench("simulate", display_of(json, quiet, verbose), settings, use_case)


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
