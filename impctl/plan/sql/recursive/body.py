"""What stands between the brackets of a WITH entry.

Law: as all places, it is taken from the words of the text, none guessed; the entry's rows are those
of this stretch by itself, so another query of the same rows may stand there instead.
"""

from __future__ import annotations

from sqlglot import exp
from sqlglot.tokens import TokenType  # type: ignore[attr-defined]  # re-exported silently

from impctl.expr.nodes import Span
from impctl.plan.sql.text import SqlText


def body_of(entry: exp.CTE, text: SqlText) -> Span | None:
    """The stretch from behind the opening bracket up to the closing one; None where it is lost."""
    alias = entry.args["alias"]
    # A list of columns may come first.
    ends = [name.meta.get("end") for name in (alias.this, *alias.columns)]
    if any(end is None for end in ends):
        return None
    behind = max(ends)
    depth, start = 0, 0
    for word in text.tokens:
        if word.start <= behind:
            continue
        if word.token_type is TokenType.L_PAREN:
            start = start if depth else word.end + 1
            depth += 1
        elif word.token_type is TokenType.R_PAREN and depth:
            depth -= 1
            if not depth:
                return text.span(start, word.start)
    return None
