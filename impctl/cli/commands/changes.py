"""`impctl changes`: the rows of a kept answer that came and went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from impctl.cli.commands.query import (
    EscapeFormulas,
    OutFile,
    RowLimit,
    RowsAs,
    display_of_rows,
)
from impctl.cli.follow import follow_changes_job, follow_request
from impctl.cli.help import INPUT, SCHEDULE
from impctl.cli.job import Job, display_of, on_workbench, one_query
from impctl.cli.options import (
    AsJson,
    FollowMemory,
    Now,
    OneQuery,
    Quiet,
    SparkProfile,
    StoreFolder,
    Verbose,
    WorkloadFile,
    settings_of,
)
from impctl.service.settings import DEFAULT_FILE

if TYPE_CHECKING:
    from impctl.cli.commands.maintain import Interval
    from impctl.service.context import Workbench
    from impctl.service.results import Outcome

Since = Annotated[
    list[str] | None,
    typer.Option(
        "--since",
        metavar="VERSION",
        help="Show changes since this table version. With several tables, repeat the option with "
        "TABLE=VERSION. Default: the version of the stored result.",
        rich_help_panel=INPUT,
    ),
]

FollowAnswer = Annotated[
    bool,
    typer.Option(
        "--follow",
        help="Run until stopped, and show changes as they occur.",
        rich_help_panel=SCHEDULE,
    ),
]

MaxLooks = Annotated[
    int | None,
    typer.Option(
        "--max-runs",
        metavar="N",
        min=1,
        show_default=False,
        help="With --follow: stop after N checks that found changes. Default: never.",
        rich_help_panel=SCHEDULE,
    ),
]

WholeAnswer = Annotated[
    bool,
    typer.Option(
        "--all",
        help="Show the whole materialized result, each row as an insert. With --follow, show it "
        "first.",
        rich_help_panel=INPUT,
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

    def use_case(desk: Workbench) -> Outcome:
        from impctl.service.changes import changes

        versions = tuple(since) if since else None
        return changes(
            desk,
            name,
            versions,
            whole=whole,
            limit=limit,
            out=out,
            escape_formulas=escape_formulas,
        )

    return on_workbench("changes", display, settings, use_case)
