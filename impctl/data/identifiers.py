"""Names of tables and columns as they stand in SQL.

Law: any name can stand there, whatever characters it has; what is written in parts is read back in
the same parts. Out of scope: what a name stands for (`plan.names`).
"""

from __future__ import annotations

import re

_PART = re.compile(r"`((?:[^`]|``)+)`|([A-Za-z0-9_]+)")


def quoted(name: str) -> str:
    """The name in backticks, as Spark and Delta's constraints write it."""
    return "`" + name.replace("`", "``") + "`"


def name_parts(written: str) -> tuple[str, ...] | None:
    """The parts of a name such as `main.shop.sales`, backticks taken off; None for no such name."""
    parts: list[str] = []
    position = 0
    while True:
        match = _PART.match(written, position)
        if match is None:
            return None
        parts.append(match[2] if match[1] is None else match[1].replace("``", "`"))
        position = match.end()
        if position == len(written):
            return tuple(parts)
        if written[position] != ".":
            return None
        position += 1
