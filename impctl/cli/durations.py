"""Durations as people write them: `500ms`, `5s`, `2m`, `1h`, `7d`, or seconds without a unit.

Law: a duration is positive and finite, in seconds. Out of scope: showing them
(`cli.output.wording`).
"""

from __future__ import annotations

import re

import typer

_UNITS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_TEXT = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)")


def seconds(text: str | float) -> float:
    """The seconds that `text` means; typer.BadParameter (usage error) for anything else."""
    found = _TEXT.fullmatch(str(text).strip())
    value = 0.0 if found is None else float(found[1]) * _UNITS[found[2]]
    if not 0 < value < 1e9:
        raise typer.BadParameter(f"`{text}` is no duration; write one as 500ms, 5s, 2m, 1h or 7d")
    return value
