"""What the two streams can show: colour, and lines that move.

Law: NO_COLOR and TERM=dumb turn colour off, FORCE_COLOR turns it on, else a terminal has it;
lines move on a terminal only, whatever the variables say, so that logs stay readable.
Out of scope: what is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO


def has_colour(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether escape codes for colour may be written to `stream`."""
    if environment.get("NO_COLOR") or environment.get("TERM") == "dumb":
        return False
    return bool(environment.get("FORCE_COLOR")) or stream.isatty()


def can_move(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether a bar may be drawn on `stream`."""
    return stream.isatty() and environment.get("TERM") != "dumb"


def marked(word: str, colour: str) -> str:
    """The word in a colour, by its number."""
    return f"\x1b[{colour}m{word}\x1b[0m"


def unmarked(word: str, colour: str) -> str:
    """The word as it is."""
    return word
