"""`impctl init`: a first workload file, from tables that are there or with a demo of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from impctl.cli.application import left_to_shell
from impctl.cli.help import INPUT, OUTPUT, SAFETY
from impctl.cli.job import Job, display_of
from impctl.errors import UsageError
from impctl.service.settings import InitRequest

if TYPE_CHECKING:
    from impctl.cli.options import AsJson, Quiet, Verbose
    from impctl.service.context import Reporter
    from impctl.service.results import Outcome


def init(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TABLE",
            help="Delta tables: folders or URIs. With --demo: the folder to create.",
            show_default=False,
            rich_help_panel=INPUT,
            autocompletion=left_to_shell,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            show_default=False,
            help="File to write. Default: impctl.yaml.",
            autocompletion=left_to_shell,
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    demo: Annotated[
        bool,
        typer.Option(
            "--demo",
            help="Create a small table and a workload file to try out.",
            rich_help_panel=INPUT,
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite an existing file.", rich_help_panel=SAFETY)
    ] = False,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> Job:
    """Create a workload file for Delta tables, or a demo.

    Example: impctl init --demo
    """
    request = _request(tables or [], out, demo, force)

    def work(reporter: Reporter) -> Outcome:
        from impctl.service.init import init

        return init(request, reporter)

    return Job("init", display_of(json, quiet, verbose), work)


def _request(tables: list[str], out: Path | None, demo: bool, force: bool) -> InitRequest:
    if demo:
        if len(tables) > 1 or out is not None:
            raise UsageError(
                "`--demo` takes one folder and no `--out`", hint="give `impctl init --demo FOLDER`"
            )
        folder = Path(tables[0]) if tables else Path("impctl-demo")
        return InitRequest(demo=folder, force=force)
    if not tables:
        raise UsageError(
            "Command `init` needs the path of a Delta table",
            hint="give one or more, or `--demo` for a table to try things on",
        )
    return InitRequest(tuple(tables), out, None, force)
