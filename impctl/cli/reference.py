"""Write `docs/cli-reference.md` from the command line itself: `python -m impctl.cli.reference`.

Law: it has everything that `--help` says, in the same order, whatever the width of the terminal and
the release of the argument parser.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import typer

from impctl.cli.application import EXIT_CODES, Rows, Section, build_app, sections
from impctl.service.results import GRAVITY

HEAD = """\
# Command line reference

Written by `make docs` from the command line itself; do not edit.

`impctl COMMAND [WORKLOAD] [options]`. Results go to stdout, everything else to stderr. A flag wins
over its environment variable, the variable over the workload file, the file over the default.
"""


def reference_text() -> str:
    """Render the whole page."""
    command: Any = typer.main.get_command(build_app())
    context = command.context_class(command, info_name="impctl")
    of_commands, of_options = sections(command, context)
    parts = [HEAD, _commands(of_commands), _exit_codes(), "## impctl\n"]
    parts += [_options(rows) for _, rows in of_options]
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        inner_context = inner.context_class(inner, info_name=name, parent=context)
        parts.append(_command(name, inner, inner_context))
    return "\n".join(parts)


def _commands(groups: list[Section]) -> str:
    lines = ["## Commands\n"]
    for title, rows in groups:
        lines += [f"### {title}\n", "| command | what it does |", "|---|---|"]
        lines += [f"| [`{name}`](#impctl-{name}) | {text} |" for name, text in rows]
        lines.append("")
    return "\n".join(lines)


def _command(name: str, command: Any, context: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    usage = " ".join(["impctl", name, *(_argument_name(p) for p in arguments), "[options]"])
    lines = [f"## impctl {name}\n", f"{inspect.cleandoc(command.help)}\n", f"    {usage}\n"]
    for title, rows in sections(command, context)[1]:
        lines += [f"**{title}**\n", _options(rows)]
    example = str(command.epilog).partition("Example:")[2].strip()
    lines.append(f"Example: `{example}`\n")
    return "\n".join(lines)


def _options(rows: Rows) -> str:
    lines = ["| option | what it does |", "|---|---|"]
    lines += [f"| `{name.replace(', ', '`, `')}` | {text} |" for name, text in rows]
    return "\n".join(lines) + "\n"


def _argument_name(param: Any) -> str:
    name = str(param.metavar or param.name.upper())
    many = "..." if param.nargs == -1 else ""
    return f"{name}{many}" if param.required else f"[{name}{many}]"


def _exit_codes() -> str:
    rows = ["## Exit codes\n", "| code | meaning |", "|---|---|"]
    rows += [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES]
    order = ", ".join(map(str, GRAVITY))
    more = (
        f"If a run fails in several ways, its exit code is the first of {order} that\noccurs. An "
        "unsound sketch counts most, and failures that a later run may fix count least. The other\n"
        "queries of the run are still processed and shown.\n"
    )
    return "\n".join(rows) + "\n\n" + more


if __name__ == "__main__":
    sys.stdout.write(reference_text())
