"""What stands between the brackets of a WITH entry.

Law: as all places, it is taken from the words of the text, none guessed; the entry's rows are those
of this stretch by itself, so another query of the same rows may stand there instead.
"""

from __future__ import annotations

from itertools import dropwhile

from sqlglot import exp
from sqlglot.tokens import TokenType  # type: ignore[attr-defined]  # re-exported silently

from impctl.expr.nodes import Span
from impctl.plan.sql.text import SqlText


def body_of(entry: exp.CTE, text: SqlText) -> Span | None:
    """The stretch from behind the opening bracket up to the closing one; None where it is lost."""
    name = entry.args["alias"].this
    behind = name.meta.get("end")
    if behind is None:
        return None
    words = (word for word in text.tokens if word.start > behind)
    # A list of columns may come first, and it has no AS in it.
    opening = next(
        (word for word in dropwhile(_is_before_as, words) if word.token_type is TokenType.L_PAREN),
        None,
    )
    if opening is None:
        return None
    depth = 0
    for word in text.tokens:
        if word.start < opening.start:
            continue
        depth += (word.token_type is TokenType.L_PAREN) - (word.token_type is TokenType.R_PAREN)
        if not depth:
            return text.span(opening.end + 1, word.start)
    return None


def _is_before_as(word: object) -> bool:
    return getattr(word, "token_type", None) is not TokenType.ALIAS
