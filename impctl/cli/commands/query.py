"""`impctl query`: run a query with its sketch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from impctl.cli.application import left_to_shell
from impctl.cli.help import OUTPUT
from impctl.cli.job import Display, Job, display_of, on_workbench, one_query
from impctl.cli.options import (
    AnswerFrom,
    AsJson,
    AtGiven,
    LockTimeout,
    MemoryGiven,
    Now,
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
    Where,
    WorkloadFile,
    settings_of,
)
from impctl.errors import UsageError
from impctl.service.formats import RowsFormat, ending_of
from impctl.service.settings import DEFAULT_FILE, AnsweredBy, SketchUse

if TYPE_CHECKING:
    from impctl.service.context import Workbench
    from impctl.service.results import Outcome

RowsAs = Annotated[
    RowsFormat | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        show_default=False,
        help="Format of printed rows: table, csv, json, jsonl or markdown. Default: table.",
        rich_help_panel=OUTPUT,
    ),
]

OutFile = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        show_default=False,
        help="Write the rows to this file. Its extension sets the format: .parquet, .csv or "
        ".jsonl. Default: print them.",
        autocompletion=left_to_shell,
        rich_help_panel=OUTPUT,
    ),
]

EscapeFormulas = Annotated[
    bool,
    typer.Option(
        "--escape-formulas",
        help="In CSV, put ' before text that starts with = + - @, to protect spreadsheets.",
        rich_help_panel=OUTPUT,
    ),
]

RowLimit = Annotated[
    int | None,
    typer.Option(
        "--limit",
        metavar="N",
        min=0,
        show_default=False,
        help="Print or write only the first N rows. Default: all.",
        rich_help_panel=OUTPUT,
    ),
]


def query(
    workload: WorkloadFile = DEFAULT_FILE,
    names: OneQuery = None,
    param: Params = None,
    sql: SqlGiven = None,
    at: AtGiven = None,
    sketch: SketchUsed = SketchUse.AUTO,
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

    def use_case(desk: Workbench) -> Outcome:
        from impctl.service.query import query

        asked = (name, tuple(param or ()), sql, tuple(at) if at else None, sketch, by)
        return query(
            desk,
            *asked,
            required=require_sketch,
            where=where,
            limit=limit,
            out=out,
            escape_formulas=escape_formulas,
        )

    display = display_of_rows(display_of(json, quiet, verbose), rows_as, out, escape_formulas)
    settings = settings_of(workload, store=store, policy=policy, memory=memory, now=now)
    settings = replace(settings, lock_timeout=lock_timeout, spark_profile=spark_profile)
    return on_workbench("query", display, settings, use_case)


def display_of_rows(
    display: Display, rows_as: RowsFormat | None, out: Path | None, escape_formulas: bool
) -> Display:
    """The display with the format of the rows; UsageError where the wishes exclude each other."""
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
