"""What was computed of something that never changes, kept for the next who asks the same of it.

Law: whoever asks gets what he would have computed himself; nobody changes what he got. What is
found is dropped with what it was computed of, and only the latest few are held, so that a hundred
questions of which no two are alike hold no more than a few answers.
Out of scope: what is worth asking once (the operators without state, `engine.operators`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")

_HELD = 8
"""Answers held at once; each may be as large as what it was computed of."""


class Once:
    """Answers by question; a question says all that its answer depends on besides the subject."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[Hashable, Any] = {}

    def of(self, question: Hashable, make: Callable[[], T]) -> T:
        """The answer, made now if it is not held."""
        if question in self._found:
            known: T = self._found[question]
            return known
        made = make()
        while len(self._found) >= _HELD:
            del self._found[next(iter(self._found))]
        self._found[question] = made
        return made


def once(shared: Once | None, question: Hashable, make: Callable[[], T]) -> T:
    """The answer of what others share, or made for the only one who asks."""
    return make() if shared is None else shared.of(question, make)
