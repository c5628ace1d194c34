"""`impctl capture`: find the sketch of each query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from impctl.cli.help import MAINTENANCE
from impctl.cli.job import Job, display_of, on_workbench
from impctl.cli.options import (
    AsJson,
    DetailedExitcode,
    DiskGiven,
    DryRun,
    LockTimeout,
    MemoryGiven,
    MovingParams,
    Now,
    PolicyName,
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
