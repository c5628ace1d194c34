"""`impctl simulate`: what other budgets and triggers would have come to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from impctl.cli.job import Job, display_of, on_workbench
from impctl.cli.options import (
    ArrivalsFile,
    AsJson,
    Disks,
    Late,
    Looks,
    QueryNames,
    Quiet,
    ReportFile,
    Since,
    StoreFolder,
    Triggers,
    Verbose,
    WorkloadFile,
    settings_of,
)
from impctl.service.settings import DEFAULT_FILE, DISK, simulate_request

if TYPE_CHECKING:
    from impctl.service.context import Workbench
    from impctl.service.results import Outcome


def simulate(
    workload: WorkloadFile = DEFAULT_FILE,
    query: QueryNames = None,
    since: Since = None,
    arrivals: ArrivalsFile = None,
    late: Late = None,
    disk: Disks = None,
    trigger: Triggers = None,
    interval: Looks = None,
    report: ReportFile = None,
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
    request = simulate_request(since, arrivals, disk or (), trigger or (), interval, report, late)

    def use_case(desk: Workbench) -> Outcome:
        from impctl.service.schedule.simulate import simulate

        return simulate(desk, tuple(query or ()), request)

    # What the variable says holds now, as it does for other commands; the flag is for settings.
    settings = settings_of(workload, store=store, disk=os.environ.get(DISK) or None)
    return on_workbench("simulate", display_of(json, quiet, verbose), settings, use_case)
