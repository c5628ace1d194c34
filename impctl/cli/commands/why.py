"""`impctl why`: the rows of tables that a row of an answer is derived from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from impctl.app.workbench.settings import DEFAULT_FILE
from impctl.cli.commands.query import EscapeFormulas, RowLimit, RowsAs, display_of_rows
from impctl.cli.job import Job, display_of, on_workbench, one_query
from impctl.cli.options import (
    AsJson,
    LockTimeout,
    MemoryGiven,
    Now,
    OneQuery,
    Params,
    PolicyName,
    Quiet,
    SparkProfile,
    StoreFolder,
    Verbose,
    WorkloadFile,
    settings_of,
)
from impctl.errors import UsageError

if TYPE_CHECKING:
    from impctl.app.results.results import Outcome
    from impctl.app.workbench.workbench import Workbench

Row = Annotated[
    list[str] | None,
    typer.Option(
        "--row",
        metavar="NAME=VALUE",
        help="The row of the answer: values of its columns, several with commas between.",
    ),
]

Without = Annotated[
    list[str] | None,
    typer.Option(
        "--without",
        metavar="CONDITION",
        help="Rows that are not to be there, by a condition on columns of the query's only table; "
        "of several tables `TABLE: CONDITION`. Repeat for more.",
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
    """Tell which rows of tables a row of the answer stems from.

    With --row a smallest set that gives this row of the answer, where proved; else one of which no
    row can be left out, or all rows of its group: it is said which. With --without what would go of
    the answer, or come, if rows of tables were not there. The sketch is maintained first.

    Example: impctl why workloads/running-example.yaml --query q_top --row brand=Apple
    """
    name = one_query("why", names)
    if rows_as is not None and not without:
        raise UsageError(
            "`--format` goes with `--without` only",
            hint="`--json` prints what derives a row as one document",
        )

    def use_case(desk: Workbench) -> Outcome:
        from impctl.app.why import why

        given = (tuple(param or ()), tuple(row or ()), tuple(without or ()))
        return why(desk, name, *given, limit=limit)

    display = display_of_rows(display_of(json, quiet, verbose), rows_as, None, escape_formulas)
    settings = settings_of(
        workload,
        store=store,
        policy=policy,
        lock_timeout=lock_timeout,
        spark_profile=spark_profile,
        memory=memory,
        now=now,
    )
    return on_workbench("why", display, settings, use_case)
