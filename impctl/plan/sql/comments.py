"""Comments that end in one place for Spark and in another for sqlglot.

Law: a comment is refused where the two may disagree about its end: what follows would be query to
one and comment to the other. Source: Spark's SqlBaseLexer (SIMPLE_COMMENT, BRACKETED_COMMENT).
Out of scope: words (`plan.sql.text`).
"""

from __future__ import annotations

from collections.abc import Iterator

from impctl.plan.sql.places import Place, Tokens


def doubtful_comment(sql: str, words: Tokens) -> Place | None:
    """Where such a comment stands; comments stand between the words."""
    for start, end in _gaps(sql, words):
        result = _doubtful(sql, start, end)
        if result is not None:
            return result
    return None


def _gaps(sql: str, words: Tokens) -> Iterator[Place]:
    """What lies before, between and behind the words."""
    at = 0
    for token in words.all:
        yield at, token.start
        at = token.end + 1
    yield at, len(sql)


def _doubtful(sql: str, start: int, end: int) -> Place | None:
    """The first doubtful comment of a gap."""
    at = start
    while at < end:
        opening = sql[at : at + 2]
        if opening == "--":
            line = sql.find("\n", at, end)
            close = end if line < 0 else line
            # To Spark the line goes on.
            if line >= 0 and sql[at:close].rstrip("\r").endswith("\\"):
                return at, close
        elif opening == "/*":
            close = sql.find("*/", at + 2, end)
            if close < 0 or sql.find("/*", at + 2, close) >= 0:
                return at, end
            close += 2
        else:
            close = at + 1
        at = close
    return None
