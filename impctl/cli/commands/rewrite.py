"""`impctl rewrite`: print a query with its sketch applied."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from impctl.app.workbench.settings import DEFAULT_FILE, SketchUse
from impctl.cli.job import Job, display_of, on_workbench, one_query
from impctl.cli.options import (
    AsJson,
    AtGiven,
    LockTimeout,
    Now,
    OneQuery,
    Params,
    PolicyName,
    Quiet,
    SketchRequired,
    SketchWritten,
    SparkProfile,
    SqlGiven,
    StoreFolder,
    Verbose,
    WorkloadFile,
    settings_of,
)

if TYPE_CHECKING:
    from impctl.app.results.results import Outcome
    from impctl.app.workbench.workbench import Workbench


FilesFile = Annotated[
    Path | None,
    typer.Option(
        "--files",
        metavar="FILE",
        show_default=False,
        help="Write which data files of each table the text reads, as JSON.",
    ),
]


def rewrite(
    workload: WorkloadFile = DEFAULT_FILE,
    names: OneQuery = None,
    param: Params = None,
    sql: SqlGiven = None,
    at: AtGiven = None,
    files: FilesFile = None,
    sketch: SketchWritten = SketchUse.ALWAYS,
    require_sketch: SketchRequired = False,
    now: Now = None,
    store: StoreFolder = None,
    policy: PolicyName = None,
    lock_timeout: LockTimeout = None,
    spark_profile: SparkProfile = None,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> Job:
    """Print the query with its sketch as range predicates.

    The sketch is maintained first where its tables have new versions. With --param or --sql it may
    be that of another query that differs in constants, or has the same recursion; the smallest one
    allowed is taken. The text is right for the table versions told with it; after a change rewrite
    again. With --at it is the text for older versions, from the sketch stored for them; nothing is
    maintained. Where there is no sketch for now it is the query itself, with a warning
    (--require-sketch: an error). With --files readers that know no Delta, such as DuckDB, learn
    which files to read. With --sketch auto the sketch is left away where asking its ranges of every
    row would cost more than it saves, as where the groups that pass lie scattered.

    Example: impctl rewrite workloads/running-example.yaml --query q_top > q_top.sql
    """
    name = one_query("rewrite", names)

    def use_case(desk: Workbench) -> Outcome:
        from impctl.app.rewrite import rewrite

        given, versions = tuple(param or ()), tuple(at) if at else None
        return rewrite(desk, name, given, sql, versions, files, sketch, required=require_sketch)

    settings = settings_of(
        workload,
        store=store,
        policy=policy,
        lock_timeout=lock_timeout,
        spark_profile=spark_profile,
        now=now,
    )
    return on_workbench("rewrite", display_of(json, quiet, verbose), settings, use_case)
