"""How many of a thing there are, in words.

Law: one of a thing is told in the singular, any other number in the plural; thousands are apart.
Out of scope: sizes and durations (`app.results.amounts`).
"""

from __future__ import annotations


def count_text(count: int, noun: str, plural: str | None = None) -> str:
    """`1 change`, `1,000 changes`; a noun that takes no `s` comes with its `plural`."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"
