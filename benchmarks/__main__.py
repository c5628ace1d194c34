"""`python -m benchmarks SUITE`: measures a suite; output and exit codes are `impctl bench`'s."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.run import SuiteRequest, list_suites, run_suite
from impctl.cli.boundary import run
from impctl.cli.job import Invocation, Job
from impctl.cli.options import takes
from impctl.errors import UsageError
from impctl.service.settings import MeasureRequest


@takes(..., "spark_profile")
def measure(
    command: Invocation,
    suite: Annotated[
        str | None, typer.Argument(help="Name of a suite, or the file of one (YAML).")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this figure; can be repeated.")
    ] = None,
    scale: Annotated[
        float | None, typer.Option(help="Share of the full size. Default: as the suite says.")
    ] = None,
    repeat: Annotated[
        int | None, typer.Option(min=1, help="Runs per measurement. Default: as the suite says.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the tables. Default: .impctl/suites/SUITE.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            envvar="IMPCTL_CRIMES",
            help="What tables are made from: a Parquet file (crimes), a folder (tpch) or a list "
            "of links (network).",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the record to this file (JSON).")] = None,
    report: Annotated[Path | None, typer.Option(help="Write the page to this file (HTML).")] = None,
    list_all: Annotated[bool, typer.Option("--list", help="List the suites.")] = False,
) -> Job:
    """Measure a suite of figures. `benchmarks/README.md` describes the suites."""
    if list_all and command.display.json:
        raise UsageError("`--list` prints text", hint="do not use `--json` with it")
    if list_all:
        return Job("benchmarks", command.display, list_suites)
    if suite is None:
        raise UsageError("A suite is required", hint="`python -m benchmarks --list` lists them")
    figures = MeasureRequest(tuple(only or ()), repeat, out, report)
    request = SuiteRequest(suite, scale, data, source, command.settings.spark_profile, figures)
    return Job("benchmarks", command.display, partial(run_suite, request), is_long=True)


def main(arguments: Sequence[str]) -> int:
    """Measure as the arguments say; the exit code."""
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(measure.parser_function)
    return run(app, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
