"""How a sketch is kept up to date, by name.

Law: a mode is stored with the sketch, and its text never changes its meaning.
Out of scope: which mode a query has (`circuits.way`).
"""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """Ways to maintain, best first."""

    EXACT = "exact"
    TOUCH = "touch"
    RECAPTURE = "recapture"
