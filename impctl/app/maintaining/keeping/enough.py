"""Sizes that are told as enough.

Law: what is told is never less than what is needed, and at most a hundredth more.
Out of scope: sizes as they are (`app.results.amounts`).
"""

from __future__ import annotations

from impctl.app.results.amounts import size_text


def enough_text(size: int) -> str:
    """A budget that holds so many bytes: three digits, rounded up."""
    digit = 10 ** max(0, len(str(size)) - 3)
    return size_text(-(-size // digit) * digit)
