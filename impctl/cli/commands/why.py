"""`impctl why`: the rows of tables that a row of an answer is derived from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from impctl.cli.commands.query import EscapeFormulas, RowLimit, RowsAs, display_of_rows
from impctl.cli.help import INPUT
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
from impctl.service.settings import DEFAULT_FILE

if TYPE_CHECKING:
    from impctl.service.context import Workbench
    from impctl.service.results import Outcome

Row = Annotated[
    list[str] | None,
    typer.Option(
        "--row",
        metavar="NAME=VALUE",
        help="The result row to explain, by values of its columns, separated by commas.",
        rich_help_panel=INPUT,
    ),
]

Without = Annotated[
    list[str] | None,
    typer.Option(
        "--without",
        metavar="CONDITION",
        help="Remove the source rows that meet this condition; can be repeated. "
        "With several tables, write `TABLE: CONDITION`.",
        rich_help_panel=INPUT,
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

    def use_case(desk: Workbench) -> Outcome:
        from impctl.service.why import why

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
