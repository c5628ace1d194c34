"""`impctl maintain`: bring sketches up to the current table versions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from impctl.cli.application import left_to_shell
from impctl.cli.follow import follow_job, follow_request
from impctl.cli.help import LIMITS, MAINTENANCE, OUTPUT, SCHEDULE
from impctl.cli.job import Display, Job, display_of, on_workbench
from impctl.cli.metrics import (
    MetricsFile,
    check_metrics,
    failure_told,
    maintained_now,
    with_metrics,
)
from impctl.cli.options import (
    AsJson,
    DetailedExitcode,
    DiskGiven,
    DryRun,
    DueOnly,
    FollowMemory,
    Imbalance,
    LargeChange,
    LockTimeout,
    MovingParams,
    Now,
    PointName,
    PolicyName,
    QueryNames,
    Quiet,
    SparkProfile,
    StoreFolder,
    Strict,
    Verbose,
    WorkloadFile,
    due_use_case,
    seconds,
    settings_of,
)
from impctl.service.settings import (
    BATCH_ROWS,
    DEFAULT_FILE,
    SCRUB,
    DueRequest,
    FollowRequest,
    Settings,
    due_request,
)

if TYPE_CHECKING:
    from impctl.service.context import Workbench
    from impctl.service.results import Outcome

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
