"""Durations as people write them: `500ms`, `5s`, `2m`, `1h`, `7d`, in flags and in files.

Law: a duration is positive and finite, in seconds; one parser serves flags and files alike. A file
names the unit, since a bare number there would be guessed at; a flag without one is in seconds.
Out of scope: what Delta writes (`tables.change.retention`), showing measured times
(`app.results.amounts`).
"""

from __future__ import annotations

import re
from functools import lru_cache

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
DURATION_PATTERN = r"[0-9]+(\.[0-9]+)?[ ]*(ms|s|m|h|d)"
"""As a file writes it, for its JSON Schema."""

_TEXT = re.compile(r"([0-9]+(?:\.[0-9]+)?)[ ]*(ms|s|m|h|d|)")
_LONGEST = 1e9


def seconds_in(text: str, *, needs_unit: bool = False) -> float | None:
    """The seconds that `text` means; None where it is no duration."""
    found = _TEXT.fullmatch(text.strip())
    if found is None or (needs_unit and not found[2]):
        return None
    value = float(found[1]) * UNITS.get(found[2], 1.0)
    return value if 0 < value < _LONGEST else None


@lru_cache(maxsize=64)  # few are written, again and again
def written(seconds: float) -> str:
    """The duration as a file would write it, in the largest unit that makes it a whole number."""
    for unit, size in reversed(UNITS.items()):
        count = round(seconds / size)
        if count and abs(count * size - seconds) < 1e-9 * max(1.0, seconds):
            return f"{count}{unit}"
    return f"{seconds:.3f}s"
