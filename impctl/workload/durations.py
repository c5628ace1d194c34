"""Durations as people write them: `500ms`, `5s`, `2m`, `1h`, `7d` or `1 hour`, in flags and files.

Law: a duration is positive and finite, in seconds; one parser serves flags and files alike. A file
names the unit, since a bare number there would be guessed at; a flag without one is in seconds.
Out of scope: what Delta writes (`tables.change.retention`), showing measured times
(`app.results.amounts`).
"""

from __future__ import annotations

import re
from functools import lru_cache

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
WORDS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86_400.0}
"""The same in words, of which there may be several: `1 hour`, `2 days`."""
DURATION_PATTERN = rf"[0-9]+(\.[0-9]+)?[ ]*(ms|s|m|h|d|({'|'.join(WORDS)})s?)"
"""As a file writes it, for its JSON Schema."""

_TEXT = re.compile(rf"([0-9]+(?:\.[0-9]+)?)[ ]*(?:(ms|s|m|h|d|)|({'|'.join(WORDS)})s?)")
_LONGEST = 1e9


def seconds_in(text: str, *, needs_unit: bool = False) -> float | None:
    """The seconds that `text` means; None where it is no duration."""
    match = _TEXT.fullmatch(text.strip())
    if match is None or (needs_unit and not match[2] and not match[3]):
        return None
    value = float(match[1]) * (WORDS[match[3]] if match[3] else UNITS.get(match[2], 1.0))
    return value if 0 < value < _LONGEST else None


@lru_cache(maxsize=64)  # few are written, again and again
def written(seconds: float) -> str:
    """The duration as a file would write it, in the largest unit that makes it a whole number."""
    for unit, size in reversed(UNITS.items()):
        count = round(seconds / size)
        if count and abs(count * size - seconds) < 1e-9 * max(1.0, seconds):
            return f"{count}{unit}"
    return f"{seconds:.3f}s"
