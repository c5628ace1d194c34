"""The commands: their options, their help, and the use case of each.

Law: a command does nothing when called; it returns a `Job`, which the boundary runs. What cannot
hold together is refused before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from msgspec.structs import replace

from impctl.cli.job import (
    Invocation,
    Job,
    follow_changes_job,
    follow_job,
    follow_request,
    in_context,
    maintained_now,
    with_metrics,
)
from impctl.cli.options import (
    COMMON,
    COMPLETION_VARIABLE,
    EXAMPLE_DATA,
    INPUT,
    LIMITS,
    MAINTENANCE,
    MEASUREMENT,
    OUTPUT,
    SAFETY,
    SCHEDULE,
    STORE_AND_SPARK,
    complete_path,
    complete_update,
    seconds,
    takes,
    workload_argument,
)
from impctl.cli.process import Display
from impctl.errors import ImpctlError, UsageError
from impctl.service.settings import (
    DEFAULT_FILE,
    DISK,
    AnsweredBy,
    Example,
    GenerateRequest,
    MeasureRequest,
    QueryRequest,
    SimulateRequest,
    SketchPolicy,
    check_planned_look,
    check_scheduled,
)
from impctl.service.text import RowsFormat, ending_of

if TYPE_CHECKING:
    from impctl.service.context import Context, Reporter
    from impctl.service.results import Outcome
    from impctl.service.settings import Settings

# Commands that begin: init, doctor, check, explain.


@takes(...)
def init(
    run: Invocation,
    reporter: Reporter,
    tables: list[str] | None = typer.Argument(
        None,
        metavar="TABLE",
        help="Delta tables: folders or URIs. With --demo: the folder to create.",
        rich_help_panel=INPUT,
        autocompletion=complete_path,
    ),
    out: Path | None = OUTPUT.option("--out FILE: File to write. Default: impctl.yaml."),
    demo: bool = INPUT.option("--demo: Create a small table and a workload file to try out."),
    force: bool = SAFETY.option("--force: Overwrite an existing file."),
) -> Outcome:
    """Create a workload file for Delta tables, or a demo.

    Example: impctl init --demo
    """
    paths = tuple(tables or ())
    if demo and (len(paths) > 1 or out is not None):
        raise UsageError(
            "`--demo` takes one folder and no `--out`", hint="give `impctl init --demo FOLDER`"
        )
    if not demo and not paths:
        raise UsageError(
            "Command `init` needs the path of a Delta table",
            hint="give one or more, or `--demo` for a table to try things on",
        )
    from impctl.service.init import init, init_demo

    if demo:
        return init_demo(Path(paths[0] if paths else "impctl-demo"), reporter, force=force)
    return init(paths, DEFAULT_FILE if out is None else out, reporter, force=force)


@takes(..., "store", "spark_profile")
def doctor(
    run: Invocation,
    reporter: Reporter,
    workload: Path | None = workload_argument(None, "Default: check only the installed software."),
    every: str | None = SCHEDULE.option(
        "--every TIME: Check that history is kept long enough if `maintain` runs at this "
        "interval, such as 15m, 6h or 1d."
    ),
    spark: bool = STORE_AND_SPARK.option(
        "--spark: Let Spark read a file of each table. Default: start no JVM."
    ),
    state: bool = STORE_AND_SPARK.option(
        "--state/--no-state: Verify all state files. With --no-state, verify only their metadata. "
        "Default: --state.",
        default=True,
    ),
) -> Outcome:
    """Diagnose problems and suggest fixes.

    Checks Java and packages, the tables (features, change feed, history) and the store. Without
    problems the exit code is 0. Otherwise it is that of the most serious problem: 2 configuration,
    3 table not supported, 6 retryable, 7 history or state removed.

    Example: impctl doctor workloads/running-example.yaml --every 1d
    """
    if workload is None and every is not None:
        raise UsageError("Option `--every` needs a workload file", hint="give its path")
    from impctl.service.doctor import doctor

    settings = None if workload is None else run.settings
    return doctor(settings, reporter, every, spark=spark, state=state)


@takes("workload", "query", ..., "strict", "now")
def check(
    run: Invocation,
    schema: bool = OUTPUT.option("--schema: Print the JSON Schema of workload files and exit."),
) -> Job:
    """Check a workload file and its queries.

    A query that cannot have a sketch is reported. It is a failure only with --strict.

    Example: impctl check workloads/running-example.yaml
    """

    def print_schema(reporter: Reporter) -> str:
        from impctl.service.explain import schema_text

        return schema_text()

    def use_case(ctx: Context) -> Outcome:
        from impctl.service.explain import check

        return check(ctx, run.queries, strict=run.settings.strict)

    return run.job(print_schema) if schema else run.on_context(use_case)


@takes("workload", "query", "now", "store", "policy", ...)
def explain(run: Invocation, ctx: Context) -> Outcome:
    """Show how each query is sketched and maintained, or why not.

    Example: impctl explain workloads/running-example.yaml --query q_top
    """
    from impctl.service.explain import explain

    return explain(ctx, run.queries)


# Commands for every day: capture, maintain, plan, status.

_METRICS = OUTPUT.option(
    "--metrics FILE: Write metrics for the textfile collector of Prometheus to this file."
)
_INTERVAL = SCHEDULE.option(
    "--interval DURATION: With --follow: pause between checks of the tables, such as 500ms or 1m. "
    "Default: 5s. With --due: time until the next run. Default: 1m.",
    parser=seconds,
)


@takes(
    *("workload", "query", "params", "now", "store", "policy", "lock_timeout", "spark_profile"),
    *("memory", "disk", ..., "dry_run", "detailed_exitcode"),
)
def capture(
    run: Invocation,
    ctx: Context,
    rebalance: bool = MAINTENANCE.option(
        "--rebalance: Instead of capturing, split heavy ranges of the stored sketches and merge "
        "light ones."
    ),
) -> Outcome:
    """Capture the sketch of each query.

    With --rebalance, impctl keeps the sketches and evens out their ranges.

    Example: impctl capture workloads/running-example.yaml --query q_top
    """
    if rebalance:
        from impctl.service.rebalance import rebalance as even_out

        return even_out(ctx, run.queries)
    from impctl.service.capture import capture

    return capture(ctx, run.queries)


@takes(
    *("workload", "query", "params", ..., "imbalance", "large_change", "now", "store", "policy"),
    *("lock_timeout", "spark_profile", "follow_memory", "disk", "changes", "scrub", "strict"),
    *("dry_run", "detailed_exitcode"),
)
def maintain(
    run: Invocation,
    batch_rows: int | None = MAINTENANCE.option(
        "--batch-rows N: Number of changes per batch for eager queries. Default: 1, i.e. every "
        "table version.",
        min=1,
    ),
    due: bool = SCHEDULE.option(
        "--due: Maintain only queries that are due now, according to their triggers."
    ),
    point: str | None = SCHEDULE.option(
        "--point NAME: Maintain only queries whose trigger has this event (`point`)."
    ),
    follow: bool = SCHEDULE.option(
        "--follow: Run until stopped: maintain whenever tables change, and print one line per run."
    ),
    interval: float | None = _INTERVAL,
    pending_rows: int | None = SCHEDULE.option(
        "--pending-rows N: With --follow, for queries without a trigger: wait for N changed rows, "
        "at most 1m. Default: do not wait.",
        min=1,
    ),
    max_wait: float | None = SCHEDULE.option(
        "--max-wait DURATION: With --follow, for queries without a trigger: maintain within this "
        "time. Prefer the trigger `fresh_within` in the workload file.",
        parser=seconds,
    ),
    max_runs: int | None = SCHEDULE.option(
        "--max-runs N: With --follow: stop after N runs that had something to do. Default: never.",
        min=1,
    ),
    metrics: Path | None = _METRICS,
) -> Job:
    """Update each sketch to the current table versions.

    Where possible, impctl reads only the changes and does not start Spark. With --follow, it runs
    until SIGTERM stops it.

    Example: impctl maintain workloads/running-example.yaml --policy strict
    """
    check_scheduled(due, point, interval, run.queries, follow=follow)
    pause = None if due else interval
    following = follow_request(follow, pause, pending_rows, max_wait, max_runs)
    if following is not None:
        return follow_job(run, batch_rows, following, metrics)
    file = None if run.settings.dry_run else metrics

    def maintained(ctx: Context) -> Outcome:
        if point is not None:
            from impctl.service.schedule.daemon import maintain_point

            return maintain_point(ctx, point, batch_rows)
        if due:
            from impctl.service.schedule.daemon import maintain_due

            return maintain_due(ctx, run.queries, batch_rows, look=interval)
        from impctl.service.maintain import maintain

        return maintain(ctx, run.queries, batch_rows=batch_rows)

    def use_case(ctx: Context) -> Outcome:
        from impctl.service.output import check_output
        from impctl.service.results import failed

        if file is not None:
            check_output(file, ctx.reserved)
        try:
            outcome = maintained(ctx)
        except ImpctlError as error:
            with_metrics(failed(error), file, maintained_now)
            raise
        return with_metrics(outcome, file, maintained_now)

    return run.on_context(use_case)


@takes(
    *("workload", "query", "params", "large_change", "now", "store", "policy", "disk"),
    *(..., "detailed_exitcode", "strict"),
)
def plan(
    run: Invocation,
    due: bool = SCHEDULE.option("--due: Show when each query is due next, and why."),
    interval: float | None = SCHEDULE.option(
        "--interval DURATION: With --due: time until the next run of `maintain --due`, such as 1m "
        "or 1h. Default: 1m.",
        parser=seconds,
    ),
) -> Job:
    """Show what `maintain` would do, without doing it.

    Shows pending changes, the estimated cost and the reasons. Writes nothing, takes no lock and
    does not start Spark. As in `check`, a query that cannot have a sketch is a failure only with
    --strict. With --due, shows when each query is due next.

    Example: impctl plan workloads/running-example.yaml --detailed-exitcode
    """
    check_planned_look(due, interval)

    def use_case(ctx: Context) -> Outcome:
        if due:
            from impctl.service.schedule.daemon import plan_due

            return plan_due(ctx, run.queries, look=interval)
        from impctl.service.plan import plan

        return plan(ctx, run.queries, strict=run.settings.strict)

    return run.on_context(use_case)


@takes("workload", "query", "params", "now", "store", "policy", "imbalance", ...)
def status(
    run: Invocation,
    ctx: Context,
    runs: int = OUTPUT.option(
        "--runs N: Number of recent runs to show. Default: 3.", default=3, min=0
    ),
) -> Outcome:
    """Show stored sketches, pending changes and recent runs.

    Example: impctl status workloads/running-example.yaml
    """
    from impctl.service.status import status

    return status(ctx, run.queries, runs=runs)


# Commands that answer a query: query, rewrite, changes, why.

_PARAM = INPUT.option(
    "--param NAME=VALUE: Set a named parameter of the query; can be repeated. Default: the value "
    "in the workload file."
)
_SQL = INPUT.option(
    "--sql TEXT: Use this SQL over the workload's tables instead of a query in the file."
)
_AT = INPUT.option(
    "--at VERSION: Use the sketch stored for this table version. With several tables, repeat the "
    "option with TABLE=VERSION."
)
_REQUIRE_SKETCH = SAFETY.option(
    "--require-sketch: Fail if there is no sketch. Default: continue without one and print a "
    "warning."
)
_FORMAT = OUTPUT.option(
    "--format FORMAT: Format of printed rows: table, csv, json, jsonl or markdown. Default: table."
)
_OUT = OUTPUT.option(
    "--out FILE: Write the rows to this file. Its extension sets the format: .parquet, .csv or "
    ".jsonl. Default: print them."
)
_ESCAPE_FORMULAS = OUTPUT.option(
    "--escape-formulas: In CSV, put ' before text that starts with = + - @, to protect "
    "spreadsheets."
)
_LIMIT = OUTPUT.option("--limit N: Print or write only the first N rows. Default: all.", min=0)


@takes(
    *("workload", "one_query", ..., "now", "store", "policy", "lock_timeout", "spark_profile"),
    "memory",
)
def query(
    run: Invocation,
    param: list[str] | None = _PARAM,
    sql: str | None = _SQL,
    at: list[str] | None = _AT,
    sketch: SketchPolicy = MAINTENANCE.option(
        "--sketch WHEN: When to use the sketch: auto (if it saves more than it costs), always or "
        "never. Default: auto.",
        default=SketchPolicy.AUTO,
    ),
    require_sketch: bool = _REQUIRE_SKETCH,
    by: AnsweredBy = MAINTENANCE.option(
        "--by SOURCE: What answers the query: state (the materialized result), engine, spark or "
        "auto (the fastest of these). Default: auto.",
        default=AnsweredBy.AUTO,
    ),
    where: str | None = OUTPUT.option(
        "--where CONDITION: Return only result rows that meet this condition on result columns, "
        "such as `key = 5`. Default: all rows."
    ),
    rows_as: RowsFormat | None = _FORMAT,
    out: Path | None = _OUT,
    escape_formulas: bool = _ESCAPE_FORMULAS,
    limit: int | None = _LIMIT,
) -> Job:
    """Answer a query from its materialized result or through its sketch.

    If tables have new versions, the sketch is maintained first. Without a sketch, impctl scans the
    full tables and prints a warning. By default, a sketch that costs more than it saves is not used
    (see --sketch). A materialized result is tried first, then the engine, then Spark (see --by).

    With --param or --sql, impctl may reuse the sketch of another query that differs only in
    constants, or has the same recursion. With --at, it uses the sketch stored for older versions.

    Example: impctl query workloads/running-example.yaml --query q_top
    """
    name = run.query

    def use_case(ctx: Context) -> Outcome:
        from impctl.service.query import query

        versions = tuple(at) if at else None
        request = QueryRequest(name, tuple(param or ()), sql, versions, sketch, require_sketch)
        return query(
            ctx, request, by, where=where, limit=limit, out=out, escape_formulas=escape_formulas
        )

    return _showing_rows(run, rows_as, out, escape_formulas).on_context(use_case)


def _showing_rows(
    run: Invocation, rows_as: RowsFormat | None, out: Path | None, escape_formulas: bool
) -> Invocation:
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
        return run
    if run.display.json:
        raise UsageError(
            "`--json` excludes `--format`: it prints the whole run as one document",
            hint="give one of them; `--format json` prints the rows alone",
        )
    display = replace(run.display, rows_format=rows_as, escape_formulas=escape_formulas)
    return replace(run, display=display)


@takes("workload", "one_query", ..., "now", "store", "policy", "lock_timeout", "spark_profile")
def rewrite(
    run: Invocation,
    param: list[str] | None = _PARAM,
    sql: str | None = _SQL,
    at: list[str] | None = _AT,
    files: Path | None = OUTPUT.option(
        "--files FILE: Write the list of data files that the SQL reads in each table to this file "
        "(JSON)."
    ),
    sketch: SketchPolicy = MAINTENANCE.option(
        "--sketch WHEN: When to put the sketch into the SQL: auto (if it saves more than it "
        "costs), always or never. Default: always.",
        default=SketchPolicy.ALWAYS,
        envvar=None,
    ),
    require_sketch: bool = _REQUIRE_SKETCH,
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
    name = run.query

    def use_case(ctx: Context) -> Outcome:
        from impctl.service.rewrite import rewrite

        versions = tuple(at) if at else None
        request = QueryRequest(name, tuple(param or ()), sql, versions, sketch, require_sketch)
        return rewrite(ctx, request, files)

    return run.on_context(use_case)


@takes("workload", "one_query", ..., "follow_memory", "now", "store", "spark_profile")
def changes(
    run: Invocation,
    since: list[str] | None = INPUT.option(
        "--since VERSION: Show changes since this table version. With several tables, repeat the "
        "option with TABLE=VERSION. Default: the version of the stored result."
    ),
    whole: bool = INPUT.option(
        "--all: Show the whole materialized result, each row as an insert. With --follow, show it "
        "first."
    ),
    rows_as: RowsFormat | None = _FORMAT,
    out: Path | None = _OUT,
    escape_formulas: bool = _ESCAPE_FORMULAS,
    limit: int | None = _LIMIT,
    follow: bool = SCHEDULE.option("--follow: Run until stopped, and show changes as they occur."),
    interval: float | None = _INTERVAL,
    max_runs: int | None = SCHEDULE.option(
        "--max-runs N: With --follow: stop after N checks that found changes. Default: never.",
        min=1,
    ),
) -> Job:
    """Show inserted and deleted rows of a materialized result.

    The query needs `answer: true`. The changes are those from the versions in the store to the
    current versions. Each row has `_change` (insert or delete) and `_copies`. Rows with sums of
    doubles also have `_sure`, which is false if the sum depends on the order of addition. Deletes
    are shown first. The command only reads: it does not start Spark and does not wait for a writer.
    `maintain --changes` writes the same rows for each of its steps.

    Example: impctl changes workloads/running-example.yaml --query q_top --since 0
    """
    name, run = run.query, _showing_rows(run, rows_as, out, escape_formulas)
    request = follow_request(follow, interval, None, None, max_runs)
    if request is not None:
        options = {"--since": since, "--out": out, "--limit": limit}
        return follow_changes_job(run, request, options, whole=whole)
    versions = tuple(since) if since else None

    def use_case(ctx: Context) -> Outcome:
        from impctl.service.changes import changes

        return changes(
            ctx, name, versions, whole=whole, limit=limit, out=out, escape_formulas=escape_formulas
        )

    return run.on_context(use_case)


@takes(
    *("workload", "one_query", ..., "store", "policy", "lock_timeout", "spark_profile", "memory"),
    "now",
)
def why(
    run: Invocation,
    row: list[str] | None = INPUT.option(
        "--row NAME=VALUE: The result row to explain, by values of its columns, separated by "
        "commas."
    ),
    without: list[str] | None = INPUT.option(
        "--without CONDITION: Remove the source rows that meet this condition; can be repeated. "
        "With several tables, write `TABLE: CONDITION`."
    ),
    param: list[str] | None = _PARAM,
    rows_as: RowsFormat | None = _FORMAT,
    escape_formulas: bool = _ESCAPE_FORMULAS,
    limit: int | None = _LIMIT,
) -> Job:
    """Show which source rows produced a result row.

    With --row, shows a smallest set of source rows that produces this result row, if impctl can
    prove that it is smallest. Otherwise shows a set in which every row is needed, or all rows of
    the group. The output names which of the three it is. With --without, shows which results would
    disappear or appear if you removed source rows. If tables have new versions, the sketch is
    maintained first.

    Example: impctl why workloads/running-example.yaml --query q_top --row brand=Apple
    """
    name = run.query
    if rows_as is not None and not without:
        raise UsageError(
            "`--format` goes with `--without` only",
            hint="`--json` prints what derives a row as one document",
        )

    def use_case(ctx: Context) -> Outcome:
        from impctl.service.why import why

        arguments = (tuple(param or ()), tuple(row or ()), tuple(without or ()))
        return why(ctx, name, *arguments, limit=limit)

    return _showing_rows(run, rows_as, None, escape_formulas).on_context(use_case)


# Commands that judge: simulate, gain, verify.


@takes("workload", "query", ..., "store")
def simulate(
    run: Invocation,
    since: float | None = INPUT.option(
        "--since DURATION: Replay the commits of this period up to now, such as 12h or 30d. "
        "Default: all known commits.",
        parser=seconds,
    ),
    disk: list[str] | None = LIMITS.option(
        "--disk SIZE: Disk limit for the state, such as 500MB, or `all` for no limit; can be "
        "repeated. Default: `budget` in the workload file.",
        envvar=None,
    ),
    trigger: list[str] | None = SCHEDULE.option(
        "--trigger TRIGGER: Trigger for all queries, such as `fresh_within: 10m`; can be "
        "repeated. Default: the triggers in the workload file."
    ),
    interval: float | None = SCHEDULE.option(
        "--interval DURATION: Time between checks of the tables, such as 1s or 1m. Default: 5s.",
        parser=seconds,
    ),
) -> Job:
    """Replay past commits under other budgets and triggers.

    For each setting, shows how many runs there would have been, how long they would have taken, and
    how stale sketches would have become. Reads no rows, does not start Spark and changes nothing.

    Example: impctl simulate workloads/running-example.yaml --trigger 'fresh_within: 10m'
    """
    request = SimulateRequest(since, tuple(disk or ()), tuple(trigger or ()), interval)
    # The variable is the present limit, as for other commands; the flag is for the settings.
    run = replace(run, options={**run.options, "disk": os.environ.get(DISK) or None})

    def use_case(ctx: Context) -> Outcome:
        from impctl.service.schedule.simulate import simulate

        return simulate(ctx, run.queries, request)

    return run.on_context(use_case)


@takes("workload", "query", ..., "store")
def gain(
    run: Invocation,
    ctx: Context,
    since: float | None = INPUT.option(
        "--since DURATION: Count uses of this period up to now, such as 12h or 7d. Default: all "
        "uses.",
        parser=seconds,
    ),
    metrics: Path | None = _METRICS,
) -> Outcome:
    """Show bytes and files skipped, and the cost of maintenance.

    The store counts each use by `query`, `rewrite` and data frames, based on file statistics.

    Example: impctl gain workloads/running-example.yaml --since 7d
    """
    from impctl.service.output import check_output
    from impctl.service.results import gain_metrics
    from impctl.service.status import gain

    if metrics is not None:
        check_output(metrics, ctx.reserved)
    return with_metrics(gain(ctx, run.queries, since), metrics, gain_metrics)


@takes("workload", "query", "params", ..., "store", "spark_profile")
def verify(
    run: Invocation,
    ctx: Context,
    results: bool = INPUT.option(
        "--results: Also run each query with and without its sketch and compare the results."
    ),
) -> Outcome:
    """Compare stored sketches with a recapture (starts Spark).

    A sound sketch covers the accurate one. Additional ranges are over-approximation (slack). The
    exit code is 5 if a sketch is too small or a result differs.

    Example: impctl verify workloads/running-example.yaml --results
    """
    from impctl.service.verify import verify

    return verify(ctx, run.queries, results=results)


# Commands that write tables and files: apply, cluster, gc, bench, completion.


@takes("workload", ..., "dry_run")
def apply(
    run: Invocation,
    updates: list[str] | None = typer.Argument(
        None,
        metavar="UPDATE",
        help="Updates to commit, in this order.",
        autocompletion=complete_update,
        rich_help_panel=INPUT,
    ),
    all_updates: bool = INPUT.option("--all: Commit all updates in the file, in order."),
    again: bool = INPUT.option("--again: Commit a batch even if its table already contains it."),
) -> Job:
    """Commit update batches from the workload file to its tables.

    Each batch creates a new version of its table. No other command changes rows of your tables. A
    batch is skipped if its table already contains it, with the same name and content.

    Example: impctl apply workloads/running-example.yaml s8
    """
    names = tuple(updates or ())
    if all_updates == bool(names):
        raise UsageError(
            "Command `apply` needs the names of updates, or `--all`",
            hint="name updates after the workload file, or give `--all`, not both",
        )

    def use_case(ctx: Context) -> Outcome:
        from impctl.service.apply import apply

        return apply(ctx, names, all_updates=all_updates, again=again)

    return run.on_context(use_case)


@takes("workload", ..., "store", "dry_run")
def cluster(
    run: Invocation,
    ctx: Context,
    tables: list[str] | None = INPUT.option(
        "--table NAME: Cluster this table, even without savings; can be repeated. Default: every "
        "table with savings."
    ),
    by: list[str] | None = INPUT.option(
        "--by ATTRIBUTE: Sort files by this column; repeat for a Z-order. Default: the sketched "
        "columns.",
        envvar=None,
    ),
    yes: bool = SAFETY.option(
        "--yes: Continue even if clustering makes more sketches worse than better."
    ),
) -> Outcome:
    """Re-cluster tables so that sketches skip more files.

    Files are sorted by the sketched attribute, or in Z-order by several. Rows do not change, and
    sketches remain valid. Each table gets a new version, and its old files remain until a VACUUM.
    Estimates are based on the stored sketches, so run `capture` first.

    Example: impctl cluster workloads/running-example.yaml --dry-run
    """
    from impctl.service.advice import cluster

    return cluster(ctx, tuple(tables or ()), tuple(by or ()), may_lose=yes)


@takes("workload", ..., "store", "lock_timeout", "dry_run")
def gc(
    run: Invocation,
    ctx: Context,
    keep: int | None = LIMITS.option(
        "--keep N: Number of latest sketch versions to keep for each query. Default: 32.", min=1
    ),
) -> Outcome:
    """Delete old sketch versions and files left by interrupted runs.

    Also deletes sets of ranges that no sketch uses, state files that no run uses, and scratch
    folders beside tables.

    Example: impctl gc workloads/running-example.yaml --keep 8 --dry-run
    """
    from impctl.service.gc import gc

    return gc(ctx, keep)


_GOES_WITH: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("--query", "--delta-rows", "--repeat", "--only", "--out"), ("a workload",)),
    "--report": ("a workload", "a record"),
    **dict.fromkeys(
        ("--example", "--table", "--rows", "--groups", "--sorted", "--seed"), ("`--generate`",)
    ),
}
"""What each option goes with. Options that a variable may set are not listed and never refused."""


@takes(..., "store", "spark_profile")
def bench(
    run: Invocation,
    workload: Path | None = workload_argument(None, "With --report, also a record (JSON)."),
    query: list[str] | None = COMMON["query"][1],
    delta_rows: list[int] | None = MEASUREMENT.option(
        "--delta-rows N: Rows per change, for a workload; can be repeated. Default: 10, 100 and "
        "1000 rows, and 1% and 10% of the table.",
        min=1,
    ),
    repeat: int | None = MEASUREMENT.option(
        "--repeat N: Number of runs per measurement. Default: 3.", min=1
    ),
    only: list[str] | None = MEASUREMENT.option(
        "--only FIGURE: Only this figure; can be repeated. Default: all figures."
    ),
    out: Path | None = OUTPUT.option(
        "--out FILE: Write the record of the measurements to this file (JSON)."
    ),
    report: Path | None = OUTPUT.option(
        "--report FILE: Write a report with the figures to this file (HTML)."
    ),
    compare: tuple[Path, Path] | None = INPUT.option(
        "--compare OLD NEW: Compare two records instead of measuring."
    ),
    generate: Path | None = EXAMPLE_DATA.option(
        "--generate FOLDER: Write an example table to this folder instead of measuring."
    ),
    example: Example | None = EXAMPLE_DATA.option(
        "--example NAME: With --generate: the table to write: orders, running, synthetic, crimes "
        "or tpch. Default: synthetic."
    ),
    table: str | None = EXAMPLE_DATA.option(
        "--table NAME: With --generate: folder name of the table. Default: chosen by the example."
    ),
    rows: int | None = EXAMPLE_DATA.option(
        "--rows N: With --generate: number of rows. Default: chosen by the example.", min=1
    ),
    groups: int | None = EXAMPLE_DATA.option(
        "--groups N: With --generate: number of distinct values of column `a`. Default: chosen by "
        "the example.",
        min=1,
    ),
    sort_rows: bool = EXAMPLE_DATA.option("--sorted: With --generate: sort rows by column `a`."),
    seed: int | None = EXAMPLE_DATA.option("--seed N: With --generate: random seed. Default: 1."),
    source: Path | None = EXAMPLE_DATA.option(
        "--source FILE: With --generate: source data of the table: a Parquet file (crimes) or a "
        "folder (tpch)."
    ),
) -> Job:
    """Measure what sketches of a workload cost and save (starts Spark).

    The figures are changes, skipping, capture and ways. impctl measures on copies of your tables.
    With --generate, it writes an example table instead. With --compare, it shows the differences
    between two records.

    Example: impctl bench workload.yaml --only changes --out changes.json
    """
    if [workload, generate, compare].count(None) != 2:
        raise UsageError(
            "Command `bench` needs either a workload file, `--generate` or `--compare`",
            hint="give one of them",
        )
    for_measuring = (query, delta_rows, repeat, only, out, report)
    for_generating = (example, table, rows, groups, sort_rows, seed)
    options = dict(zip(_GOES_WITH, for_measuring + for_generating, strict=True))
    work: Callable[[Reporter], Outcome]
    if compare is not None:
        what, work = "`--compare`", partial(_compare, *compare)
    elif generate is not None:
        kind, first = example or Example.SYNTHETIC, 1 if seed is None else seed
        request = GenerateRequest(generate, kind, table, rows, groups, sort_rows, first, source)
        what, work = "`--generate`", partial(_generate, request)
    elif workload is not None and workload.suffix == ".json":
        what, work = "a record", partial(_report, workload, report)
    else:
        figures = MeasureRequest(tuple(only or ()), repeat, out, report)
        sizes = tuple(delta_rows or ())
        what, work = (
            "a workload",
            partial(_measure, run.settings, figures, tuple(query or ()), sizes),
        )
    for name, value in options.items():
        if value not in (None, False) and what not in _GOES_WITH[name]:
            raise UsageError(
                f"Option `{name}` does not go with {what}",
                hint=f"remove it; it goes with {' and '.join(_GOES_WITH[name])}",
            )
    return run.job(work, is_long=True)


def _measure(
    settings: Settings,
    figures: MeasureRequest,
    queries: tuple[str, ...],
    sizes: tuple[int, ...],
    reporter: Reporter,
) -> Outcome:
    def use_case(ctx: Context) -> Outcome:
        reporter.step(f"measuring {settings.workload}")
        from impctl.measure.run import run_workload

        return run_workload(ctx, figures, queries, delta_rows=sizes)

    return in_context(settings, use_case, reporter)


def _report(record: Path, target: Path | None, reporter: Reporter) -> Outcome:
    from impctl.measure.files import report_file

    if target is None:
        raise UsageError(
            f"File `{record}` is a record, which is not measured again",
            hint="give `--report FILE` for its page, or `--compare OLD NEW`",
        )
    return report_file(record, target, reporter)


def _compare(old: Path, new: Path, reporter: Reporter) -> Outcome:
    from impctl.measure.files import compare_files

    return compare_files(old, new, reporter)


def _generate(request: GenerateRequest, reporter: Reporter) -> Outcome:
    from impctl.measure.files import generate

    return generate(request, reporter)


Shell = StrEnum("Shell", ("bash", "zsh", "fish"))


def completion(
    shell: Shell = typer.Argument(
        ..., help="Shell to complete for: bash, zsh or fish.", rich_help_panel=INPUT
    ),
) -> Job:
    """Print the shell completion script.

    Load it when the shell starts. For bash, add this line to ~/.bashrc: eval "$(impctl completion
    bash)".

    Example: impctl completion bash
    """

    def work(reporter: Reporter) -> str:
        # Typer gives the scripts no public name.
        from typer.completion import get_completion_script  # type: ignore[attr-defined]  # as above

        return get_completion_script(
            prog_name="impctl", complete_var=COMPLETION_VARIABLE, shell=shell.value
        )

    return Job("completion", Display(), work)
