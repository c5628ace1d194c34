"""`impctl explain`: whether, how and why (not)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from impctl.cli.job import Job, display_of, on_workbench
from impctl.cli.options import (
    AsJson,
    Now,
    PolicyName,
    QueryNames,
    Quiet,
    StoreFolder,
    Verbose,
    WorkloadFile,
    settings_of,
)
from impctl.service.settings import DEFAULT_FILE

if TYPE_CHECKING:
    from impctl.service.context import Workbench
    from impctl.service.results import Outcome


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

    def use_case(desk: Workbench) -> Outcome:
        from impctl.service.explain import explain

        return explain(desk, tuple(query or ()))

    settings = settings_of(workload, store=store, policy=policy, now=now)
    return on_workbench("explain", display_of(json, quiet, verbose), settings, use_case)
