"""The SQL text being read: its sqlglot tree, and the places of that tree's nodes in the text.

Law: every place is taken from token positions and checked against the text; none is guessed.
Functions stay as written, name and arguments in order, because sqlglot's own function classes
reorder and add arguments, and Spark is to be asked exactly what the user asked.
Out of scope: what the tree means (`plan.parse` and its siblings).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokens import Token, TokenType  # type: ignore[attr-defined]  # re-exported silently

from impctl.errors import Location, QueryError
from impctl.expr.nodes import Span

_SPECIAL_SYNTAX = ("CAST", "TRY_CAST", "EXTRACT", "TRIM", "SUBSTRING", "SUBSTR", "POSITION")
_FIRST_WORDS = frozenset({TokenType.SELECT, TokenType.WITH, TokenType.FROM, TokenType.L_PAREN})
_TOKEN_DUMP = re.compile(r" but got <Token.*", re.DOTALL)
_CLASS_NAME = re.compile(r"<class '[\w.]*?(\w+)'>")
_REPHRASE = "rewrite the query without it, or leave the query out of the workload"


class _PlainParser(Spark.Parser):  # type: ignore[misc, valid-type]  # set by a metaclass
    """Spark's grammar, but a function call is just its name and its arguments."""

    FUNCTIONS: dict[str, object] = {}  # noqa: RUF012  # sqlglot's way to configure a parser
    FUNCTION_PARSERS = {
        name: parse
        for name, parse in Spark.Parser.FUNCTION_PARSERS.items()
        if name in _SPECIAL_SYNTAX
    }


@dataclass(frozen=True, slots=True)
class SqlText:
    """A query's text with its tokens; `name` is what messages call the query."""

    name: str
    sql: str
    tokens: tuple[Token, ...]

    @property
    def file(self) -> str:
        return f"query `{self.name}`"

    def span(self, start: int, end: int) -> Span:
        """The stretch from `start` to `end` (exclusive), with its line and column."""
        before = self.sql[:start]
        line_start = before.rfind("\n") + 1
        return Span(start, end, before.count("\n") + 1, start - line_start + 1)

    def span_of(self, node: Any) -> Span | None:
        """Where a node stands: from its first to its last token, parentheses balanced."""
        if node is None:
            return None
        places = [place for part in node.walk() if (place := _place(part)) is not None]
        if not places:
            return None
        start = min(first for first, _ in places)
        end = max(last for _, last in places)
        return self.span(*self._balanced(start, end + 1))

    def token_before(self, start: int) -> Token | None:
        """The last token that starts before the offset."""
        position = self._token_at(start)
        return self.tokens[position - 1] if position > 0 else None

    def _token_at(self, start: int) -> int:
        """Position of the first token that starts at the offset or after it."""
        return bisect_left(self.tokens, start, key=lambda token: token.start)

    def place_of(self, word: str) -> Span | None:
        """Where a word first stands, without regard to case; for nodes that lost their place."""
        for token in self.tokens:
            if token.text.lower() == word:
                return self.span(token.start, token.end + 1)
        return None

    def written(self, span: Span) -> str:
        """The text of a span, runs of blanks made one blank."""
        return " ".join(self.sql[span.start : span.end].split())

    def error(
        self,
        message: str,
        place: exp.Expression | Span | None,
        *,
        hint: str | None = None,
        code: str | None = None,
    ) -> QueryError:
        """A QueryError at a node or span of this text (its beginning when there is no place)."""
        span = self.span_of(place) if isinstance(place, exp.Expression) else place
        line, column = (span.line, span.column) if span is not None else (1, 1)
        location = Location(self.file, line, column)
        return QueryError(message, hint=hint, code=code, location=location)

    def unsupported(
        self, construct: str, place: exp.Expression | Span | None, *, hint: str = _REPHRASE
    ) -> QueryError:
        """The refusal of a construct by its name."""
        return self.error(
            f"Query `{self.name}` uses {construct}, which impctl does not read", place, hint=hint
        )

    def _balanced(self, start: int, end: int) -> tuple[int, int]:
        """The stretch widened until every parenthesis in it has its partner."""
        first, behind = self._token_at(start), self._token_at(end)
        closers, openers = _unmatched(self.tokens[first:behind])
        if closers:
            before = self.tokens[:first][::-1]
            start = _partner(before, TokenType.L_PAREN, TokenType.R_PAREN, closers, start)
        if openers:
            after = self.tokens[behind:]
            end = _partner(after, TokenType.R_PAREN, TokenType.L_PAREN, openers, end - 1) + 1
        return start, end


def _unmatched(tokens: Sequence[Token]) -> tuple[int, int]:
    """How many closing and opening parentheses have no partner among the tokens."""
    closers = openers = 0
    for token in tokens:
        if token.token_type is TokenType.L_PAREN:
            openers += 1
        elif token.token_type is TokenType.R_PAREN:
            closers, openers = (closers, openers - 1) if openers else (closers + 1, 0)
    return closers, openers


def _partner(
    tokens: Sequence[Token], wanted: TokenType, other: TokenType, count: int, default: int
) -> int:
    """Offset of the `count`-th unmatched `wanted` parenthesis along the tokens."""
    depth = count
    for token in tokens:
        if token.token_type is wanted:
            depth -= 1
            if depth == 0:
                return token.start
        elif token.token_type is other:
            depth += 1
    return default


def _place(node: Any) -> tuple[int, int] | None:
    start, end = node.meta.get("start"), node.meta.get("end")
    return (start, end) if isinstance(start, int) and isinstance(end, int) else None


def read_text(sql: str, name: str) -> tuple[SqlText, exp.Expression]:
    """The text with its tokens, and the tree of the one query in it."""
    dialect = Spark()
    empty = SqlText(name, sql, ())
    try:
        tokens = tuple(dialect.tokenize(sql))
    except TokenError:
        raise empty.error(
            f"The SQL of query `{name}` cannot be split into words",
            None,
            hint="look for an unclosed quote or comment",
            code="query_syntax",
        ) from None
    text = SqlText(name, sql, tokens)
    _refuse_statements(text)
    _refuse_doubtful_tokens(text)
    try:
        trees = _PlainParser(dialect=dialect).parse(list(tokens), sql)
    except ParseError as error:
        raise _syntax_error(text, error) from None
    found: list[Any] = [tree for tree in trees if tree is not None]
    tree = found[0] if len(found) == 1 else None
    if tree is None or not issubclass(type(tree), exp.Query):
        raise _not_a_query(text, text.span_of(tree))
    return text, tree


def _refuse_statements(text: SqlText) -> None:
    """Refuses what is not one query before sqlglot sees it, because it warns about commands."""
    words = [token for token in text.tokens if token.token_type is not TokenType.SEMICOLON]
    if not words:
        raise text.error(
            f"Query `{text.name}` is empty",
            None,
            hint="give one SELECT statement",
            code="query_empty",
        )
    end = next((t.start for t in text.tokens if t.token_type is TokenType.SEMICOLON), len(text.sql))
    behind = [token for token in words if token.start > end]
    if behind:
        raise text.error(
            f"Query `{text.name}` holds several statements",
            text.span(behind[0].start, behind[0].end + 1),
            hint="give each statement its own query",
        )
    if words[0].token_type not in _FIRST_WORDS:
        raise _not_a_query(text, text.span(words[0].start, words[0].end + 1))


def _not_a_query(text: SqlText, span: Span | None) -> QueryError:
    return text.error(
        f"Query `{text.name}` is not a SELECT statement",
        span,
        hint="impctl sketches queries; changes to tables go under `updates`",
        code="query_not_select",
    )


def _syntax_error(text: SqlText, error: ParseError) -> QueryError:
    first = error.errors[0] if error.errors else {}
    highlight = str(first.get("highlight") or "")
    line, last = first.get("line") or 1, first.get("col") or 1
    column = max(int(last) - max(len(highlight), 1) + 1, 1)
    near = f" near `{highlight}`" if highlight else ""
    reason = _TOKEN_DUMP.sub("", str(first.get("description") or error))
    reason = _CLASS_NAME.sub(lambda found: found.group(1).upper(), reason).rstrip(".")
    return QueryError(
        f"The SQL of query `{text.name}` cannot be read{near}: {reason}",
        hint="check the statement in Spark SQL first",
        code="query_syntax",
        location=Location(text.file, int(line), column),
    )


def _refuse_doubtful_tokens(text: SqlText) -> None:
    """Refuses spellings that Spark and sqlglot read differently."""
    for before, token in zip(text.tokens, text.tokens[1:], strict=False):
        if before.token_type is TokenType.STRING and token.token_type is TokenType.STRING:
            raise text.unsupported(
                "two string literals side by side",
                text.span(before.start, token.end + 1),
                hint="write one literal; a quote inside a literal is written `\\'`",
            )
        if before.token_type is TokenType.NOT and text.sql[before.start] == "!":
            raise text.unsupported(
                "the operator `!`",
                text.span(before.start, before.end + 1),
                hint="write NOT instead",
            )
