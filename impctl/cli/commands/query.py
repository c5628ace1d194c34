"""`impctl query`: run a query with its sketch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from impctl.app.workbench.settings import DEFAULT_FILE, AnsweredBy, SketchUse
from impctl.app.writing.formats import RowsFormat, ending_of
from impctl.cli.completion import left_to_shell
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

if TYPE_CHECKING:
    from impctl.app.results.results import Outcome
    from impctl.app.workbench.workbench import Workbench

RowsAs = Annotated[
    RowsFormat | None,
    typer.Option(
        "--format",
        show_default=False,
        help="How the rows are printed. Default: table.",
    ),
]

OutFile = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        show_default=False,
        help="Write the rows to this file instead: .parquet, .csv or .jsonl, as it ends.",
        autocompletion=left_to_shell,
    ),
]

EscapeFormulas = Annotated[
    bool,
    typer.Option(
        "--escape-formulas",
        help="In CSV: put ' before texts that begin with = + - @, for spreadsheets.",
    ),
]

RowLimit = Annotated[
    int | None,
    typer.Option(
        "--limit",
        metavar="N",
        min=0,
        show_default=False,
        help="Print or write the first N rows only. Default: all.",
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
    """Answer the query: from its kept rows, or through its sketch.

    The sketch is maintained first where its tables have new versions. With --param or --sql it may
    be that of another query that differs in constants, or has the same recursion; with --at it is
    the one stored for older versions. A sketch that costs more than it saves is left away
    (--sketch); without one whole tables are read, with a warning. Kept rows answer first, else the
    engine or Spark (--by).

    Example: impctl query workloads/running-example.yaml --query q_top
    """
    name = one_query("query", names)

    def use_case(desk: Workbench) -> Outcome:
        from impctl.app.query import query

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
