"""Commands that answer a query: query, rewrite, changes, why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec.structs import replace

from impctl.cli.application import INPUT, OUTPUT, SCHEDULE
from impctl.cli.commands.sketches import Interval
from impctl.cli.follow import follow_changes_job, follow_request
from impctl.cli.job import Display, Job, display_of, on_context, one_query
from impctl.cli.options import (
    AnswerFrom,
    AsJson,
    AtGiven,
    FollowMemory,
    LockTimeout,
    MemoryGiven,
    Now,
    OneQuery,
    Params,
    PolicyName,
    Quiet,
    SketchRequired,
    SketchUsed,
    SketchWritten,
    SparkProfile,
    SqlGiven,
    StoreFolder,
    Verbose,
    Where,
    WorkloadFile,
    file_option,
    option,
    settings_of,
)
from impctl.errors import UsageError
from impctl.service.settings import DEFAULT_FILE, AnsweredBy, SketchPolicy
from impctl.service.text import RowsFormat, ending_of

if TYPE_CHECKING:
    from impctl.service.context import Context
    from impctl.service.results import Outcome


RowsAs = Annotated[
    RowsFormat | None,
    option(
        "--format FORMAT",
        OUTPUT,
        "Format of printed rows: table, csv, json, jsonl or markdown. Default: table.",
    ),
]

OutFile = Annotated[
    Path | None,
    file_option(
        "--out FILE",
        OUTPUT,
        "Write the rows to this file. Its extension sets the format: .parquet, .csv or "
        ".jsonl. Default: print them.",
    ),
]

EscapeFormulas = Annotated[
    bool,
    option(
        "--escape-formulas",
        OUTPUT,
        "In CSV, put ' before text that starts with = + - @, to protect spreadsheets.",
    ),
]

RowLimit = Annotated[
    int | None,
    option("--limit N", OUTPUT, "Print or write only the first N rows. Default: all.", min=0),
]


def query(
    workload: WorkloadFile = DEFAULT_FILE,
    names: OneQuery = None,
    param: Params = None,
    sql: SqlGiven = None,
    at: AtGiven = None,
    sketch: SketchUsed = SketchPolicy.AUTO,
    require_sketch: SketchRequired = False,
    by: AnswerFrom = AnsweredBy.AUTO,
    where: Where = None,
    rows_as: RowsAs = None,
    out: OutFile = None,
    escape_formulas: EscapeFormulas = False,
    limit: RowLimit = None,
    now: Now = None,
    store: StoreFolder = None,
    policy: PolicyName = None,
    lock_timeout: LockTimeout = None,
    spark_profile: SparkProfile = None,
    memory: MemoryGiven = None,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> Job:
    """Answer a query from its materialized result or through its sketch.

    If tables have new versions, the sketch is maintained first. Without a sketch, impctl scans the
    full tables and prints a warning. By default, a sketch that costs more than it saves is not used
    (see --sketch). A materialized result is tried first, then the engine, then Spark (see --by).

    With --param or --sql, impctl may reuse the sketch of another query that differs only in
    constants, or has the same recursion. With --at, it uses the sketch stored for older versions.

    Example: impctl query workloads/running-example.yaml --query q_top
    """
    name = one_query("query", names)

    def use_case(ctx: Context) -> Outcome:
        from impctl.service.query import query

        arguments = (name, tuple(param or ()), sql, tuple(at) if at else None, sketch, by)
        return query(
            ctx,
            *arguments,
            required=require_sketch,
            where=where,
            limit=limit,
            out=out,
            escape_formulas=escape_formulas,
        )

    display = display_of_rows(display_of(json, quiet, verbose), rows_as, out, escape_formulas)
    settings = settings_of(workload, store=store, policy=policy, memory=memory, now=now)
    settings = replace(settings, lock_timeout=lock_timeout, spark_profile=spark_profile)
    return on_context("query", display, settings, use_case)


def display_of_rows(
    display: Display, rows_as: RowsFormat | None, out: Path | None, escape_formulas: bool
) -> Display:
    """Add the format of the rows; UsageError if options exclude each other."""
    ending = None if out is None else ending_of(out)
    if escape_formulas and rows_as is not RowsFormat.CSV and ending != ".csv":
        raise UsageError(
            "`--escape-formulas` is for CSV alone",
            hint="give `--format csv`, or name a file that ends in .csv (`--out FILE`)",
        )
    if out is not None and rows_as is not None:
        raise UsageError(
            "`--out` excludes `--format`: the ending of the file says how it is written",
            hint="give one of them; without `--out` rows go to stdout",
        )
    if rows_as is None:
        return display
    if display.json:
        raise UsageError(
            "`--json` excludes `--format`: it prints the whole run as one document",
            hint="give one of them; `--format json` prints the rows alone",
        )
    return replace(display, rows_format=rows_as, escape_formulas=escape_formulas)


FilesFile = Annotated[
    Path | None,
    option(
        "--files FILE",
        OUTPUT,
        "Write the list of data files that the SQL reads in each table to this file (JSON).",
    ),
]


def rewrite(
    workload: WorkloadFile = DEFAULT_FILE,
    names: OneQuery = None,
    param: Params = None,
    sql: SqlGiven = None,
    at: AtGiven = None,
    files: FilesFile = None,
    sketch: SketchWritten = SketchPolicy.ALWAYS,
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

    def use_case(ctx: Context) -> Outcome:
        from impctl.service.rewrite import rewrite

        given, versions = tuple(param or ()), tuple(at) if at else None
        return rewrite(ctx, name, given, sql, versions, files, sketch, required=require_sketch)

    settings = settings_of(workload, store=store, policy=policy, now=now)
    settings = replace(settings, lock_timeout=lock_timeout, spark_profile=spark_profile)
    return on_context("rewrite", display_of(json, quiet, verbose), settings, use_case)


Since = Annotated[
    list[str] | None,
    option(
        "--since VERSION",
        INPUT,
        "Show changes since this table version. With several tables, repeat the option with "
        "TABLE=VERSION. Default: the version of the stored result.",
    ),
]

FollowAnswer = Annotated[
    bool,
    option("--follow", SCHEDULE, "Run until stopped, and show changes as they occur."),
]

MaxLooks = Annotated[
    int | None,
    option(
        "--max-runs N",
        SCHEDULE,
        "With --follow: stop after N checks that found changes. Default: never.",
        min=1,
    ),
]

WholeAnswer = Annotated[
    bool,
    option(
        "--all",
        INPUT,
        "Show the whole materialized result, each row as an insert. With --follow, show it first.",
    ),
]


def changes(
    workload: WorkloadFile = DEFAULT_FILE,
    names: OneQuery = None,
    since: Since = None,
    whole: WholeAnswer = False,
    rows_as: RowsAs = None,
    out: OutFile = None,
    escape_formulas: EscapeFormulas = False,
    limit: RowLimit = None,
    follow: FollowAnswer = False,
    interval: Interval = None,
    max_runs: MaxLooks = None,
    memory: FollowMemory = None,
    now: Now = None,
    store: StoreFolder = None,
    spark_profile: SparkProfile = None,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> Job:
    """Show inserted and deleted rows of a materialized result.

    The query needs `answer: true`. The changes are those from the versions in the store to the
    current versions. Each row has `_change` (insert or delete) and `_copies`. Rows with sums of
    doubles also have `_sure`, which is false if the sum depends on the order of addition. Deletes
    are shown first. The command only reads: it does not start Spark and does not wait for a writer.
    `maintain --changes` writes the same rows for each of its steps.

    Example: impctl changes workloads/running-example.yaml --query q_top --since 0
    """
    name = one_query("changes", names)
    display = display_of_rows(display_of(json, quiet, verbose), rows_as, out, escape_formulas)
    settings = settings_of(
        workload, store=store, spark_profile=spark_profile, memory=memory, now=now
    )
    request = follow_request(follow, interval, None, None, max_runs)
    if request is not None:
        given = {"--since": since, "--out": out, "--limit": limit}
        return follow_changes_job(settings, display, name, request, given, whole=whole)

    def use_case(ctx: Context) -> Outcome:
        from impctl.service.changes import changes

        versions = tuple(since) if since else None
        return changes(
            ctx,
            name,
            versions,
            whole=whole,
            limit=limit,
            out=out,
            escape_formulas=escape_formulas,
        )

    return on_context("changes", display, settings, use_case)


Row = Annotated[
    list[str] | None,
    option(
        "--row NAME=VALUE",
        INPUT,
        "The result row to explain, by values of its columns, separated by commas.",
    ),
]

Without = Annotated[
    list[str] | None,
    option(
        "--without CONDITION",
        INPUT,
        "Remove the source rows that meet this condition; can be repeated. "
        "With several tables, write `TABLE: CONDITION`.",
    ),
]


def why(
    workload: WorkloadFile = DEFAULT_FILE,
    names: OneQuery = None,
    row: Row = None,
    without: Without = None,
    param: Params = None,
    rows_as: RowsAs = None,
    escape_formulas: EscapeFormulas = False,
    limit: RowLimit = None,
    store: StoreFolder = None,
    policy: PolicyName = None,
    lock_timeout: LockTimeout = None,
    spark_profile: SparkProfile = None,
    memory: MemoryGiven = None,
    now: Now = None,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> Job:
    """Show which source rows produced a result row.

    With --row, shows a smallest set of source rows that produces this result row, if impctl can
    prove that it is smallest. Otherwise shows a set in which every row is needed, or all rows of
    the group. The output names which of the three it is. With --without, shows which results would
    disappear or appear if you removed source rows. If tables have new versions, the sketch is
    maintained first.

    Example: impctl why workloads/running-example.yaml --query q_top --row brand=Apple
    """
    name = one_query("why", names)
    if rows_as is not None and not without:
        raise UsageError(
            "`--format` goes with `--without` only",
            hint="`--json` prints what derives a row as one document",
        )

    def use_case(ctx: Context) -> Outcome:
        from impctl.service.why import why

        given = (tuple(param or ()), tuple(row or ()), tuple(without or ()))
        return why(ctx, name, *given, limit=limit)

    display = display_of_rows(display_of(json, quiet, verbose), rows_as, None, escape_formulas)
    settings = settings_of(workload, store=store, policy=policy, memory=memory, now=now)
    settings = replace(settings, lock_timeout=lock_timeout, spark_profile=spark_profile)
    return on_context("why", display, settings, use_case)
