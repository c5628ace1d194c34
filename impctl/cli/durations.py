"""Durations as flags take them: `500ms`, `5s`, `2m`, `1h`, `7d`, or seconds without a unit.

Law: a flag means what a file means by the same text. Out of scope: reading them
(`workload.models`), showing them (`cli.output.wording`).
"""

from __future__ import annotations

import typer

from impctl.service.settings import seconds_in


def seconds(text: str | float) -> float:
    """The seconds that `text` means; typer.BadParameter (usage error) for anything else."""
    value = seconds_in(str(text))
    if value is None:
        raise typer.BadParameter(
            f"`{text}` is not a duration; write one as 500ms, 5s, 2m, 1h or 7d"
        )
    return value
