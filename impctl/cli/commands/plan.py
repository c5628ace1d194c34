"""`impctl plan`: what `maintain` would do, without doing it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from impctl.cli.job import Job, display_of, on_workbench
from impctl.cli.options import (
    AsJson,
    DetailedExitcode,
    DiskGiven,
    DueTold,
    LargeChange,
    Look,
    MovingParams,
    Now,
    PolicyName,
    QueryNames,
    Quiet,
    StoreFolder,
    Strict,
    Verbose,
    WorkloadFile,
    settings_of,
)
from impctl.service.settings import DEFAULT_FILE, check_planned_look

if TYPE_CHECKING:
    from impctl.service.context import Workbench
    from impctl.service.results import Outcome


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
            from impctl.service.schedule.maintain_due import plan_due

            return plan_due(desk, tuple(query or ()), look=interval)
        from impctl.service.plan import plan

        return plan(desk, tuple(query or ()), strict=strict)

    settings = settings_of(workload, params=param, store=store, policy=policy, disk=disk, now=now)
    settings = replace(settings, large_change=large_change)
    display = display_of(json, quiet, verbose)
    return on_workbench("plan", display, settings, use_case, detailed=detailed_exitcode)
