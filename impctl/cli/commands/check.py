"""`impctl check`: is the workload file right, and can its queries have sketches?"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from impctl.cli.help import OUTPUT
from impctl.cli.job import Job, display_of, in_workbench
from impctl.cli.options import (
    AsJson,
    Now,
    QueryNames,
    Quiet,
    Strict,
    Verbose,
    WorkloadFile,
    settings_of,
)
from impctl.service.settings import DEFAULT_FILE

if TYPE_CHECKING:
    from impctl.service.context import Reporter, Workbench
    from impctl.service.results import Outcome


def check(
    workload: WorkloadFile = DEFAULT_FILE,
    schema: Annotated[
        bool,
        typer.Option(
            "--schema",
            help="Print the JSON Schema of workload files and exit.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    query: QueryNames = None,
    strict: Strict = False,
    now: Now = None,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> Job:
    """Check a workload file and its queries.

    A query that cannot have a sketch is reported. It is a failure only with --strict.

    Example: impctl check workloads/running-example.yaml
    """
    display = display_of(json, quiet, verbose)
    if schema:
        return Job("check", display, _schema)
    return Job("check", display, partial(_check, workload, tuple(query or ()), strict, now))


def _check(
    workload: Path, queries: tuple[str, ...], strict: bool, now: str | None, reporter: Reporter
) -> Outcome:
    def use_case(desk: Workbench) -> Outcome:
        from impctl.service.check import check

        return check(desk, queries, strict=strict)

    return in_workbench(settings_of(workload, now=now), use_case, reporter)


def _schema(reporter: Reporter) -> str:
    from impctl.service.check import schema_text

    return schema_text()
