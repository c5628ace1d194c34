"""The command line: its commands and its version.

Law: importing this module imports no use case and no data library, so that `--help` is fast; a
command line that names a command builds that one alone.
Out of scope: the entry point (`cli.main`), running commands and reporting errors (`cli.boundary`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import chain
from typing import Annotated

import typer

from impctl.cli.exit_codes import exit_code_text
from impctl.cli.help import COMMAND_GROUPS, Command, CommandGroup

COMMANDS = tuple(chain.from_iterable(COMMAND_GROUPS.values()))
"""In the order of `--help`. Each has a file of its name in `cli.commands`, and in it a function of
its name."""


def build_app(commands: Sequence[str] = COMMANDS) -> typer.Typer:
    """The command line with these commands, all of them for whoever asks for help."""
    app = typer.Typer(
        cls=CommandGroup,
        help="Capture, use and incrementally maintain provenance sketches over Delta tables.",
        epilog=f"\b\nExit codes:\n{exit_code_text()}",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_root)
    for name in commands:
        command = _function(name)
        text = command.__doc__
        app.command(name, cls=Command, epilog=_example(text), help=_purpose(text))(command)
    return app


def commands_for(arguments: Sequence[str]) -> Sequence[str]:
    """The commands that these words can lead to."""
    return arguments[:1] if arguments and arguments[0] in COMMANDS else COMMANDS


def _function(name: str) -> Callable[..., object]:
    result: Callable[..., object] = getattr(import_module(f"impctl.cli.commands.{name}"), name)
    return result


def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show versions of impctl and the software it uses.")
    ] = False,
) -> None:
    if version:
        from impctl.cli.version import version_text

        typer.echo(version_text())
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


def _purpose(docstring: str | None) -> str:
    return (docstring or "").partition("Example:")[0].strip()


def _example(docstring: str | None) -> str:
    return f"\b\nExample:\n  {(docstring or '').partition('Example:')[2].strip()}"
