"""`impctl maintain`: bring sketches up to the current table versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from impctl.app.envvars import BATCH_ROWS
from impctl.cli.job import Job, display_of, on_workbench
from impctl.cli.options import (
    AsJson,
    DetailedExitcode,
    DryRun,
    Imbalance,
    LargeChange,
    LockTimeout,
    PolicyName,
    QueryNames,
    Quiet,
    SparkProfile,
    StoreFolder,
    Verbose,
    WorkloadFile,
    settings_of,
)

if TYPE_CHECKING:
    from impctl.app.results import Outcome
    from impctl.app.workbench import Workbench

BatchRows = Annotated[
    int | None,
    typer.Option(
        "--batch-rows",
        metavar="N",
        min=1,
        envvar=BATCH_ROWS,
        show_default=False,
        help="Changes that make up one batch of an eager query. Default: 1, every version.",
    ),
]


def maintain(
    workload: WorkloadFile,
    query: QueryNames = None,
    batch_rows: BatchRows = None,
    imbalance: Imbalance = None,
    large_change: LargeChange = None,
    store: StoreFolder = None,
    policy: PolicyName = None,
    lock_timeout: LockTimeout = None,
    spark_profile: SparkProfile = None,
    dry_run: DryRun = False,
    detailed_exitcode: DetailedExitcode = False,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> Job:
    """Bring each sketch up to the current table versions.

    From the change alone, without Spark, wherever that is possible; else as the policy says.

    Example: impctl maintain workloads/running-example.yaml --policy strict
    """

    def use_case(bench: Workbench) -> Outcome:
        from impctl.app.maintain import maintain

        return maintain(bench, tuple(query or ()), batch_rows=batch_rows)

    settings = settings_of(
        workload,
        store=store,
        policy=policy,
        lock_timeout=lock_timeout,
        spark_profile=spark_profile,
        dry_run=dry_run,
        imbalance=imbalance,
        large_change=large_change,
    )
    display = display_of(json, quiet, verbose)
    return on_workbench("maintain", display, settings, use_case, detailed=detailed_exitcode)
