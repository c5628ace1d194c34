"""`impctl.open`: a workload file opened for a program or a notebook.

Law: what is wrong with the arguments or the file is said here, before anything is done; Spark is
neither started nor changed. Out of scope: what can be done with it (`api.open_workload`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from impctl.api.open_workload import OpenWorkload
from impctl.api.opened import Progress
from impctl.api.surroundings import Given, settings_from
from impctl.service.context import SessionBeside, open_workbench
from impctl.service.settings import Policy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AnyPath = str | os.PathLike[str]


def open(
    workload: AnyPath,
    *,
    store: AnyPath | None = None,
    policy: Policy | Literal["auto", "incremental", "strict", "full"] | None = None,
    spark: SparkSession | None = None,
    spark_profile: AnyPath | None = None,
    lock_timeout: float | None = None,
    imbalance: float | None = None,
    large_change: int | None = None,
    memory: str | None = None,
    progress: Progress | None = None,
) -> OpenWorkload:
    """Open a workload file; WorkloadError lists everything that is wrong with it.

    Arguments mean what the command line's options of the same names mean; without them the
    `IMPCTL_*` variables, the workload file and the defaults hold, in this order.

    What needs Spark runs in a new session beside `spark`, else beside the one that is running;
    where none is, Spark is started and stays up. The caller's session is never changed or stopped.
    `progress` is called with each step before it starts: a line, its number, and of how many.
    """
    given = Given(store, policy, lock_timeout, spark_profile, imbalance, large_change, memory)
    settings = settings_from(workload, given, os.environ)
    sessions = SessionBeside(spark)
    with open_workbench(settings):
        return OpenWorkload(settings, sessions, progress)
