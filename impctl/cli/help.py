"""`--help`: commands and options grouped by use, as panels on a terminal, else as plain text.

Every command, argument and option is in exactly one group. A terminal and a pipe get the same words
in the same order. Rich is loaded only to draw on a terminal, so help in a pipe costs nothing more.
Both look right on a dark and on a light background: text is in the terminal's own colour.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from impctl.cli.output.terminal import can_move, has_colour
from impctl.cli.plain_values import LightCommand, LightGroup

COMMAND_GROUPS: Mapping[str, tuple[str, ...]] = {
    "Set up": ("init", "doctor", "check", "explain"),
    "Daily": ("capture", "maintain", "query", "rewrite", "changes", "status"),
    "Understand": ("plan", "simulate", "why", "gain", "verify"),
    "Housekeeping": ("apply", "cluster", "gc", "bench", "completion"),
}

INPUT = "Input"
MAINTENANCE = "Sketch and maintenance"
SCHEDULE = "Schedule"
MEASUREMENT = "Measurement"
EXAMPLE_DATA = "Example data"
LIMITS = "Limits"
STORE_AND_SPARK = "Store and Spark"
SAFETY = "Safety and exit codes"
OUTPUT = "Output"
OPTION_GROUPS = (
    *(INPUT, MAINTENANCE, SCHEDULE, MEASUREMENT, EXAMPLE_DATA, LIMITS),
    *(STORE_AND_SPARK, SAFETY, OUTPUT),
)
"""In the order of `--help`. Each command has those that it has options for."""
OPTIONS = "Options"
"""The only group of options that stand before the command."""

_NAME_WIDTH = 24
"""Columns for names, at most."""
_WIDEST = 140
"""Columns of a panel, at most: longer lines are hard to read."""

Rows = list[tuple[str, str]]
Section = tuple[str, Rows]
"""A title, and the name and the text of each entry."""


class Command(LightCommand):
    """A command whose options are grouped in its help."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the groups."""
        _write_groups(self, ctx, formatter)


class CommandGroup(LightGroup):
    """The command line itself, whose help lists commands in groups."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the groups."""
        _write_groups(self, ctx, formatter)


def grouped_options(command: Any, context: Any) -> dict[str, list[Any]]:
    """The arguments and options of a command by group, in the order of the groups."""
    is_root = isinstance(command, CommandGroup)
    # Only `--help` and what Typer adds before the command come without a group.
    default = OPTIONS if is_root else OUTPUT
    groups: dict[str, list[Any]] = {name: [] for name in (*OPTION_GROUPS, OPTIONS)}
    for param in command.get_params(context):
        groups[getattr(param, "rich_help_panel", None) or default].append(param)
    return {name: params for name, params in groups.items() if params}


def value_name(param: Any) -> str:
    """What stands for the value of an argument or option; empty for a flag."""
    if param.param_type_name == "option" and (param.is_flag or param.count):
        return ""
    return str(param.metavar or param.name.upper())


def sections(command: Any, context: Any) -> tuple[list[Section], list[Section]]:
    """The groups of commands, and those of arguments and options."""
    commands = command.commands if isinstance(command, CommandGroup) else {}
    of_commands = [
        (title, [(name, _purpose(commands[name])) for name in names if name in commands])
        for title, names in COMMAND_GROUPS.items()
    ]
    of_options = [
        (title, [(_name(param), _text(param)) for param in params])
        for title, params in grouped_options(command, context).items()
    ]
    return [section for section in of_commands if section[1]], of_options


def _purpose(command: Any) -> str:
    return str(command.help).partition("\n\n")[0].replace("\n", " ").removesuffix(".")


def _name(param: Any) -> str:
    if param.param_type_name == "argument":
        many = "..." if param.nargs == -1 else ""
        return f"{param.metavar or param.name.upper()}{many}"
    names = ", ".join(sorted(param.opts, key=len))
    negative = "".join(f" / {name}" for name in param.secondary_opts)
    return f"{names}{negative} {value_name(param)}".rstrip()


def _text(param: Any) -> str:
    variable = f" [env: {param.envvar}]" if param.envvar else ""
    return f"{param.help}{variable}"


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
    own = _width_of_names([("", rows)])
    # The spacing makes up for shorter names, so that the texts of all groups begin in one column.
    formatter.write_dl(rows, col_max=_NAME_WIDTH, col_spacing=2 + names_width - own)


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
                # It leaves two columns free at the right end, and a panel takes four.
                formatter = context.formatter_class(width=width - 2)
                _write_rows(rows, _width_of_names(part), formatter)
                body = Text(formatter.getvalue().rstrip("\n"))
                body.highlight_regex(r"(?m)^\S.*?(?=  |$)", "bold")
                heading = Text(title, style="bold default")
                console.print(Panel(body, title=heading, title_align="left", border_style="cyan"))
    return capture.get()
