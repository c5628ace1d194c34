"""`impctl query`: run a query with its sketch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from impctl.app.workbench.settings import DEFAULT_FILE, AnsweredBy, SketchUse
from impctl.cli.job import Job, display_of, on_workbench, one_query
from impctl.cli.options import (
    AnswerFrom,
    AsJson,
    AtGiven,
    LockTimeout,
    OneQuery,
    Params,
    PolicyName,
    Quiet,
    SketchRequired,
    SketchUsed,
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


def query(
    workload: WorkloadFile = DEFAULT_FILE,
    names: OneQuery = None,
    param: Params = None,
    sql: SqlGiven = None,
    at: AtGiven = None,
    sketch: SketchUsed = SketchUse.AUTO,
    require_sketch: SketchRequired = False,
    by: AnswerFrom = AnsweredBy.AUTO,
    store: StoreFolder = None,
    policy: PolicyName = None,
    lock_timeout: LockTimeout = None,
    spark_profile: SparkProfile = None,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> Job:
    """Answer the query: from its kept rows, or through its sketch.

    The sketch is maintained first where its tables have new versions. With --param or --sql it may
    be the sketch of another query that differs in constants; the smallest one allowed is taken.
    With --at the answer is that of older versions, through the sketch stored for them, if any.
    Where a sketch would cost more than it saves it is left away, which is told (--sketch). Where
    there is none for now the whole tables are read, with a warning (--require-sketch: an error).
    Rows that are kept (`answer: true`) answer at once; else the engine or Spark, whichever is
    likely to be quicker (--by).

    Example: impctl query workloads/running-example.yaml --query q_top
    """
    name = one_query("query", names)

    def use_case(desk: Workbench) -> Outcome:
        from impctl.app.query import query

        given, versions = tuple(param or ()), tuple(at) if at else None
        return query(desk, name, given, sql, versions, sketch, by, required=require_sketch)

    settings = settings_of(
        workload,
        store=store,
        policy=policy,
        lock_timeout=lock_timeout,
        spark_profile=spark_profile,
    )
    return on_workbench("query", display_of(json, quiet, verbose), settings, use_case)
