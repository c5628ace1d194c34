"""The command line: its commands and its version.

Law: importing this module imports no use case and no data library, so that `--help` is fast.
Out of scope: the entry point (`cli.main`), running commands and reporting errors (`cli.boundary`).
"""

from __future__ import annotations

from typing import Annotated

import typer

from impctl.cli.commands.apply import apply
from impctl.cli.commands.bench import bench
from impctl.cli.commands.capture import capture
from impctl.cli.commands.changes import changes
from impctl.cli.commands.check import check
from impctl.cli.commands.cluster import cluster
from impctl.cli.commands.completion import completion
from impctl.cli.commands.doctor import doctor
from impctl.cli.commands.explain import explain
from impctl.cli.commands.gain import gain
from impctl.cli.commands.gc import gc
from impctl.cli.commands.init import init
from impctl.cli.commands.maintain import maintain
from impctl.cli.commands.plan import plan
from impctl.cli.commands.query import query
from impctl.cli.commands.rewrite import rewrite
from impctl.cli.commands.status import status
from impctl.cli.commands.verify import verify
from impctl.cli.exit_codes import exit_code_text
from impctl.cli.version import version_text

COMMANDS = (
    init,
    check,
    capture,
    apply,
    plan,
    maintain,
    rewrite,
    query,
    changes,
    status,
    explain,
    verify,
    bench,
    cluster,
    gain,
    gc,
    doctor,
    completion,
)
"""In the order of `--help`: the order in which a newcomer meets them."""


def build_app() -> typer.Typer:
    """The whole command line."""
    app = typer.Typer(
        help="Capture, use and incrementally maintain provenance sketches over Delta tables.",
        epilog=f"\b\nExit codes:\n{exit_code_text()}",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_root)
    for command in COMMANDS:
        app.command(epilog=_example(command.__doc__), help=_purpose(command.__doc__))(command)
    return app


def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show versions of impctl and what it runs on.")
    ] = False,
) -> None:
    if version:
        typer.echo(version_text())
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


def _purpose(docstring: str | None) -> str:
    return (docstring or "").partition("Example:")[0].strip()


def _example(docstring: str | None) -> str:
    return f"\b\nExample:\n  {(docstring or '').partition('Example:')[2].strip()}"
