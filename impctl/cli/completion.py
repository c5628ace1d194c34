"""What is completed beyond commands and options: names from the workload file on the same line.

Law: imports what it needs only when a shell asks, and answers nothing rather than fail, since
whatever is written then lands in somebody's prompt.
Out of scope: printing the scripts (`cli.commands.completion`).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import typer

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
