"""`impctl check`: is the workload file right, and can its queries have sketches?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from impctl.cli.job import Job, display_of, on_workbench
from impctl.cli.options import WORKLOAD_HELP, AsJson, QueryNames, Quiet, Verbose, settings_of
from impctl.errors import UsageError

if TYPE_CHECKING:
    from impctl.app.reporter import Reporter
    from impctl.app.results import Outcome
    from impctl.app.workbench import Workbench


def check(
    workload: Annotated[
        Path | None, typer.Argument(metavar="WORKLOAD", help=WORKLOAD_HELP, show_default=False)
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of workload files, and stop.")
    ] = False,
    query: QueryNames = None,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> Job:
    """Check the workload file and its queries.

    Example: impctl check workloads/running-example.yaml
    """
    display = display_of(json, quiet, verbose)
    if schema:
        return Job("check", display, _schema)
    if workload is None:
        raise UsageError("Command `check` needs a workload file", hint="give its path")

    def use_case(bench: Workbench) -> Outcome:
        from impctl.app.check import check

        return check(bench, tuple(query or ()))

    return on_workbench("check", display, settings_of(workload), use_case)


def _schema(reporter: Reporter) -> str:
    from impctl.app.check import schema_text

    return schema_text()
