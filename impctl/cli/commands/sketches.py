"""Commands that capture sketches and maintain them: capture, maintain, plan, simulate, verify."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec.structs import replace

from impctl.cli.application import INPUT, LIMITS, MAINTENANCE, OUTPUT, SCHEDULE
from impctl.cli.follow import follow_job, follow_request
from impctl.cli.job import Job, display_of, on_context
from impctl.cli.options import (
    AsJson,
    CheckInterval,
    DetailedExitcode,
    DiskGiven,
    Disks,
    DryRun,
    DueInterval,
    DueOnly,
    FollowMemory,
    Imbalance,
    LargeChange,
    LockTimeout,
    MemoryGiven,
    MetricsFile,
    MovingParams,
    Now,
    PointName,
    PolicyName,
    QueryNames,
    Quiet,
    ShowDue,
    Since,
    SparkProfile,
    StoreFolder,
    Strict,
    Triggers,
    Verbose,
    WorkloadFile,
    check_metrics,
    due_use_case,
    file_option,
    maintained_now,
    metrics_on_failure,
    option,
    seconds,
    settings_of,
    with_metrics,
)
from impctl.service.settings import (
    BATCH_ROWS,
    DEFAULT_FILE,
    DISK,
    SCRUB,
    check_planned_look,
    due_request,
    simulate_request,
)

if TYPE_CHECKING:
    from impctl.service.context import Context
    from impctl.service.results import Outcome


Rebalance = Annotated[
    bool,
    option(
        "--rebalance",
        MAINTENANCE,
        "Instead of capturing, split heavy ranges of the stored sketches and merge light ones.",
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

    def use_case(ctx: Context) -> Outcome:
        if rebalance:
            from impctl.service.rebalance import rebalance as even_out

            return even_out(ctx, tuple(query or ()))
        from impctl.service.capture import capture

        return capture(ctx, tuple(query or ()))

    settings = settings_of(workload, params=param, store=store, memory=memory, disk=disk, now=now)
    settings = replace(settings, policy=policy, dry_run=dry_run)
    settings = replace(settings, lock_timeout=lock_timeout, spark_profile=spark_profile)
    display = display_of(json, quiet, verbose)
    return on_context("capture", display, settings, use_case, detailed=detailed_exitcode)


BatchRows = Annotated[
    int | None,
    option(
        "--batch-rows N",
        MAINTENANCE,
        "Number of changes per batch for eager queries. Default: 1, i.e. every table version.",
        min=1,
        envvar=BATCH_ROWS,
    ),
]

Follow = Annotated[
    bool,
    option(
        "--follow",
        SCHEDULE,
        "Run until stopped: maintain whenever tables change, and print one line per run.",
    ),
]

Interval = Annotated[
    float | None,
    option(
        "--interval DURATION",
        SCHEDULE,
        "With --follow: pause between checks of the tables, such as 500ms or 1m. Default: 5s. "
        "With --due: time until the next run. Default: 1m.",
        parser=seconds,
    ),
]

PendingRows = Annotated[
    int | None,
    option(
        "--pending-rows N",
        SCHEDULE,
        "With --follow, for queries without a trigger: wait for N changed rows, at most 1m. "
        "Default: do not wait.",
        min=1,
    ),
]

MaxWait = Annotated[
    float | None,
    option(
        "--max-wait DURATION",
        SCHEDULE,
        "With --follow, for queries without a trigger: maintain within this time. Prefer the "
        "trigger `fresh_within` in the workload file.",
        parser=seconds,
    ),
]

MaxRuns = Annotated[
    int | None,
    option(
        "--max-runs N",
        SCHEDULE,
        "With --follow: stop after N runs that had something to do. Default: never.",
        min=1,
    ),
]


Changes = Annotated[
    Path | None,
    file_option(
        "--changes FOLDER",
        OUTPUT,
        "Write inserted and deleted rows of materialized results to this folder, one Parquet "
        "file per query and step.",
    ),
]


Scrub = Annotated[
    int | None,
    option(
        "--scrub MB",
        LIMITS,
        "Verify up to this many MB of state that no run has used for a day; 0 for none. "
        "Default: 64.",
        min=0,
        envvar=SCRUB,
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
    due_queries = due_request(due, point, interval, tuple(query or ()), follow=follow)
    request = follow_request(follow, due_queries.pause, pending_rows, max_wait, max_runs)
    display = display_of(json, quiet, verbose)
    if request is not None:
        queries, detailed = due_queries.queries, detailed_exitcode
        return follow_job(
            settings, display, queries, batch_rows, request, metrics, detailed=detailed
        )
    maintained = due_use_case(due_queries, batch_rows)
    file = None if dry_run else metrics

    def use_case(ctx: Context) -> Outcome:
        if file is not None:
            check_metrics(file, ctx.reserved)
        with metrics_on_failure(file):
            outcome = maintained(ctx)
        return with_metrics(outcome, file, maintained_now)

    return on_context("maintain", display, settings, use_case, detailed=detailed_exitcode)


def plan(
    workload: WorkloadFile = DEFAULT_FILE,
    query: QueryNames = None,
    param: MovingParams = None,
    large_change: LargeChange = None,
    now: Now = None,
    store: StoreFolder = None,
    policy: PolicyName = None,
    disk: DiskGiven = None,
    due: ShowDue = False,
    interval: DueInterval = None,
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

    def use_case(ctx: Context) -> Outcome:
        if due:
            from impctl.service.schedule.daemon import plan_due

            return plan_due(ctx, tuple(query or ()), look=interval)
        from impctl.service.plan import plan

        return plan(ctx, tuple(query or ()), strict=strict)

    settings = settings_of(workload, params=param, store=store, policy=policy, disk=disk, now=now)
    settings = replace(settings, large_change=large_change)
    display = display_of(json, quiet, verbose)
    return on_context("plan", display, settings, use_case, detailed=detailed_exitcode)


def simulate(
    workload: WorkloadFile = DEFAULT_FILE,
    query: QueryNames = None,
    since: Since = None,
    disk: Disks = None,
    trigger: Triggers = None,
    interval: CheckInterval = None,
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

    def use_case(ctx: Context) -> Outcome:
        from impctl.service.schedule.simulate import simulate

        return simulate(ctx, tuple(query or ()), request)

    # What the variable says holds now, as it does for other commands; the flag is for settings.
    settings = settings_of(workload, store=store, disk=os.environ.get(DISK) or None)
    return on_context("simulate", display_of(json, quiet, verbose), settings, use_case)


def verify(
    workload: WorkloadFile = DEFAULT_FILE,
    query: QueryNames = None,
    param: MovingParams = None,
    results: Annotated[
        bool,
        option(
            "--results",
            INPUT,
            "Also run each query with and without its sketch and compare the results.",
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

    def use_case(ctx: Context) -> Outcome:
        from impctl.service.verify import verify

        return verify(ctx, tuple(query or ()), results=results)

    settings = settings_of(workload, params=param, store=store, spark_profile=spark_profile)
    return on_context("verify", display_of(json, quiet, verbose), settings, use_case)
