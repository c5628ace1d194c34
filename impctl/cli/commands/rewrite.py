"""`impctl rewrite`: print a query with its sketch applied."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from impctl.cli.help import OUTPUT
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
from impctl.service.settings import DEFAULT_FILE, SketchUse

if TYPE_CHECKING:
    from impctl.service.context import Workbench
    from impctl.service.results import Outcome


FilesFile = Annotated[
    Path | None,
    typer.Option(
        "--files",
        metavar="FILE",
        show_default=False,
        help="Write the list of data files that the SQL reads in each table to this file (JSON).",
        rich_help_panel=OUTPUT,
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
    """Print a query with its sketch as range predicates.

    If tables have new versions, the sketch is maintained first. The SQL is valid for the table
    versions reported with it, so rewrite again after a change. Without a sketch, the command prints
    the query itself and a warning (with --require-sketch, it fails).

    With --param or --sql, impctl may reuse the sketch of another query that differs only in
    constants, or has the same recursion. It uses the smallest sketch that is safe. With --at, it
    uses the sketch stored for older versions and maintains nothing.

    Use --files for readers without Delta support, such as DuckDB. With --sketch auto, a sketch is
    not used if checking its ranges for every row costs more than it saves. An example is a query
    whose qualifying groups are scattered.

    Example: impctl rewrite workloads/running-example.yaml --query q_top > q_top.sql
    """
    name = one_query("rewrite", names)

    def use_case(desk: Workbench) -> Outcome:
        from impctl.service.rewrite import rewrite

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
