"""Where the nodes of a sqlglot tree stand in the text.

Law: a place runs from a node's first to its last token, widened until every parenthesis in it has
its partner; it is computed once per tree, in time proportional to it.
Out of scope: lines and columns (`plan.sql.text`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from sqlglot import exp
from sqlglot.tokens import Token, TokenType  # type: ignore[attr-defined]  # re-exported silently

from impctl.values import dataclass

_SIGNS = {exp.Neg: TokenType.DASH, exp.BitwiseNot: TokenType.TILDE, exp.Not: TokenType.NOT}
"""The words that stand in front of what they are said of, and have no place of their own."""

Place = tuple[int, int]
"""Offsets of the first character and of the one after the last."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The words of a text, in order, and how deep in parentheses each of them stands."""

    all: tuple[Token, ...]
    starts: tuple[int, ...]
    depths: tuple[int, ...]
    """Before each token, and at the end."""

    def at(self, start: int) -> int:
        """Position of the first token that starts at the offset or after it."""
        return bisect_left(self.starts, start)

    def before(self, start: int) -> Token | None:
        """The last token that starts before the offset."""
        position = self.at(start)
        return self.all[position - 1] if position > 0 else None

    def opened(self, end: int) -> int:
        """The end of the opening parenthesis that follows, or `end` where none does."""
        position = self.at(end)
        follows = self.all[position : position + 1]
        is_open = bool(follows) and follows[0].token_type is TokenType.L_PAREN
        return follows[0].end + 1 if is_open else end

    def prefixed(self, start: int, sign: TokenType) -> int:
        """The start of the sign in front, outside of parentheses opened between; else `start`."""
        position = self.at(start) - 1
        while position >= 0 and self.all[position].token_type is TokenType.L_PAREN:
            position -= 1
        is_there = position >= 0 and self.all[position].token_type is sign
        return self.all[position].start if is_there else start

    def balanced(self, place: Place) -> Place:
        """The place widened until every parenthesis in it has its partner."""
        start, end = place
        first, behind = self.at(start), self.at(end)
        lowest = min(self.depths[first : behind + 1])
        if self.depths[first] > lowest:
            inside = next(i for i in range(first, -1, -1) if self.depths[i] == lowest)
            start = self.all[inside].start
        if self.depths[behind] > lowest:
            after = range(behind, len(self.all))
            closing = next((i for i in after if self.depths[i + 1] == lowest), None)
            end = end if closing is None else self.all[closing].end + 1
        return start, end


def tokens_of(tokens: Iterable[Token]) -> Tokens:
    """The tokens with what looking up places needs."""
    words = tuple(tokens)
    steps = {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}
    depths = accumulate((steps.get(token.token_type, 0) for token in words), initial=0)
    return Tokens(words, tuple(token.start for token in words), tuple(depths))


def places_of(tree: Any, tokens: Tokens) -> dict[int, Place]:
    """The place of every node of the tree that has one, by the node's `id`."""
    result: dict[int, Place] = {}
    for node in reversed(list(tree.walk(bfs=True))):
        parts: Sequence[Place] = [result[id(p)] for p in node.iter_expressions() if id(p) in result]
        own = _own_place(node, tokens)
        known = parts if own is None else [*parts, own]
        if known:
            start, end = min(a for a, _ in known), max(b for _, b in known)
            sign = _SIGNS.get(type(node))
            result[id(node)] = (start if sign is None else tokens.prefixed(start, sign), end)
    return {key: tokens.balanced(place) for key, place in result.items()}


def _own_place(node: Any, tokens: Tokens) -> Place | None:
    start, end = node.meta.get("start"), node.meta.get("end")
    if not isinstance(start, int) or not isinstance(end, int):
        return None
    # The arguments of a function may have no places, but its parentheses do.
    return (start, tokens.opened(end + 1) if isinstance(node, exp.Anonymous) else end + 1)
