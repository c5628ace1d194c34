"""`docs/cli-reference.md`, written from the command line itself: `python -m impctl.cli.reference`.

Law: everything that `--help` says is here, in the order of `--help`, whatever the width of the
terminal and the release of the argument parser. Out of scope: explaining (the other documents).
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import typer

from impctl.app.results.ending import GRAVITY
from impctl.cli.application import build_app
from impctl.cli.exit_codes import EXIT_CODES

HEAD = """\
# Command line reference

Written by `make docs` from the command line itself; do not edit.

`impctl COMMAND [WORKLOAD] [options]`. Results go to stdout, everything else to stderr. A flag wins
over its environment variable, the variable over the workload file, the file over the default.
"""


def reference_text() -> str:
    """The whole page."""
    command: Any = typer.main.get_command(build_app())
    context = command.context_class(command, info_name="impctl")
    parts = [HEAD, _exit_codes(), "## impctl\n", _options(command, context)]
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        inner_context = inner.context_class(inner, info_name=name, parent=context)
        parts.append(_command(name, inner, inner_context))
    return "\n".join(parts)


def _command(name: str, command: Any, context: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    usage = " ".join(["impctl", name, *(_argument_name(p) for p in arguments), "[options]"])
    lines = [f"## impctl {name}\n", f"{inspect.cleandoc(command.help)}\n", f"    {usage}\n"]
    lines += [f"- `{_argument_name(p)}`: {p.help}" for p in arguments if p.help]
    lines += [""] if arguments else []
    example = str(command.epilog).partition("Example:")[2].strip()
    lines.append(_options(command, context))
    lines.append(f"Example: `{example}`\n")
    return "\n".join(lines)


def _options(command: Any, context: Any) -> str:
    rows = ["| option | what it does | variable |", "|---|---|---|"]
    rows += [
        f"| {_option_name(param)} | {_option_help(param)} | {_variable(param)} |"
        for param in command.get_params(context)
        if param.param_type_name == "option"
    ]
    return "\n".join(rows) + "\n"


def _option_name(param: Any) -> str:
    names = sorted(param.opts, key=len, reverse=True)
    value = "" if param.is_flag or param.count else f" {_value_name(param)}"
    return ", ".join(f"`{name}{value}`" if name == names[0] else f"`{name}`" for name in names)


def _value_name(param: Any) -> str:
    choices = _choices(param)
    return "\\|".join(choices) if choices else str(param.metavar or param.name.upper())


def _choices(param: Any) -> list[str]:
    """The values of a choice, from whichever of two places this release of Typer keeps them in."""
    described = getattr(getattr(param, "type_descriptor", None), "choices", None)
    found = described or getattr(getattr(param, "type", None), "choices", None) or ()
    return [str(getattr(choice, "value", choice)) for choice in found]


def _option_help(param: Any) -> str:
    text = str(param.help or "")
    default = param.default
    if default is None or isinstance(default, bool) or param.count or param.multiple:
        return text
    if "Default" in text or not param.show_default:
        return text
    return f"{text} Default: {getattr(default, 'value', default)}."


def _variable(param: Any) -> str:
    return f"`{param.envvar}`" if isinstance(param.envvar, str) else ""


def _argument_name(param: Any) -> str:
    name = str(param.metavar or param.name.upper())
    many = "..." if param.nargs == -1 else ""
    return f"{name}{many}" if param.required else f"[{name}{many}]"


def _exit_codes() -> str:
    rows = ["## Exit codes\n", "| code | meaning |", "|---|---|"]
    rows += [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES]
    order = ", ".join(map(str, GRAVITY))
    more = (
        f"With several failures in one run the first of {order} that occurs is the"
        " exit code:\nan unsound sketch counts most, what a later try may cure least. The other"
        " queries of the run are done\nand shown all the same.\n"
    )
    return "\n".join(rows) + "\n\n" + more


if __name__ == "__main__":
    sys.stdout.write(reference_text())
