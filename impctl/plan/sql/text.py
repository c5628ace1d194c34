"""The SQL text being read: its sqlglot tree, and the places of that tree's nodes in the text.

Law: every place is taken from token positions and checked against the text; none is guessed.
Functions stay as written, name and arguments in order, because sqlglot's own function classes
reorder and add arguments, and Spark is to be asked exactly what the user asked.
Out of scope: what the tree means (`plan.sql.statement` and its siblings).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from difflib import get_close_matches
from typing import Any

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokens import Token, TokenType  # type: ignore[attr-defined]  # re-exported silently

from impctl.errors import Location, NotReadError, QueryError
from impctl.expr.nodes import Span
from impctl.plan.sql.comments import doubtful_comment
from impctl.plan.sql.places import Place, Tokens, places_of, tokens_of
from impctl.plan.sql.recursive.levels import Levels, by_entry, levels_in, others
from impctl.values import dataclass

_SPECIAL_SYNTAX = ("CAST", "TRY_CAST", "EXTRACT", "TRIM", "SUBSTRING", "SUBSTR", "POSITION")
_CLAUSES = (
    *("SELECT", "FROM", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "UNION", "JOIN"),
    *("DISTINCT", "INNER", "LEFT", "CROSS", "QUALIFY", "BETWEEN"),
)
"""Words that a mistyped one may have meant."""

_FIRST_WORDS = frozenset({TokenType.SELECT, TokenType.WITH, TokenType.FROM, TokenType.L_PAREN})
_VARIABLE = re.compile(r"\$\{\S*?\}")
_TOKEN_DUMP = re.compile(r" but got <Token.*", re.DOTALL)
_CLASS_NAME = re.compile(r"<class '[\w.]*?(\w+)'>")
_WITHOUT_IT = "rewrite the query without it"
_REPHRASE = f"{_WITHOUT_IT}, or keep it without a sketch (`sketch: none`)"


class _PlainParser(Spark.Parser):  # type: ignore[misc, valid-type]  # set by a metaclass
    """Spark's grammar, but a function call is just its name and its arguments."""

    FUNCTIONS: dict[str, object] = {}  # noqa: RUF012  # sqlglot's way to configure a parser
    FUNCTION_PARSERS = {  # noqa: RUF012  # sqlglot's way to configure a parser
        **{
            name: parse
            for name, parse in Spark.Parser.FUNCTION_PARSERS.items()
            if name in _SPECIAL_SYNTAX
        },
        "OVERLAY": lambda parser: _overlay(parser),
    }
    UNARY_PARSERS = {  # noqa: RUF012  # sqlglot's way to configure a parser
        **Spark.Parser.UNARY_PARSERS,
        TokenType.PLUS: lambda parser: _positive(parser),
    }


def _positive(parser: Any) -> exp.Expression | None:
    """`+x` as the function that it is to Spark, which casts text; sqlglot itself drops the sign."""
    sign = parser._prev
    operand = parser._parse_unary()
    if operand is None:
        return None
    result = exp.Anonymous(this="positive", expressions=[operand])
    result.meta.update(start=sign.start, end=sign.end)
    return result


def _overlay(parser: Any) -> exp.Expression:
    """`overlay(s PLACING t FROM n FOR k)` as a call, which may be written with commas too."""
    name = parser._tokens[parser._index - 2]
    arguments = [
        parser._parse_bitwise(),
        *(
            parser._parse_bitwise()
            for word in ("PLACING", "FROM", "FOR")
            if parser._match(TokenType.COMMA) or parser._match_text_seq(word)
        ),
    ]
    written = [argument for argument in arguments if argument is not None]
    result = exp.Anonymous(this=name.text, expressions=written)
    result.meta.update(start=name.start, end=name.end)
    return result


def _words_of_calls(tokens: Sequence[Token]) -> list[Token]:
    """The tokens, with `window` before a bracket as the name of a function: to sqlglot it begins a
    clause, which names a window first."""
    result = []
    for token, behind in zip(tokens, (*tokens[1:], None), strict=True):
        is_call = behind is not None and behind.token_type is TokenType.L_PAREN
        if token.token_type is TokenType.WINDOW and is_call:
            token = Token(TokenType.VAR, token.text, token.line, token.col, token.start, token.end)
        result.append(token)
    return result


@dataclass(frozen=True, slots=True)
class SqlText:
    """A query's text with its tokens; `name` is what messages call the query."""

    name: str
    sql: str
    words: Tokens
    places: Mapping[int, Place] = field(default_factory=dict)
    """Of the tree's nodes, by their `id`; the reader holds the tree as long as the text."""
    levels: Mapping[int, Levels] = field(default_factory=dict)
    """MAX RECURSION LEVEL of WITH entries, by the `id` of their nodes."""

    @property
    def tokens(self) -> tuple[Token, ...]:
        """The words, in order."""
        return self.words.all

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
        place = self.places.get(id(node))
        if place is None:
            # A copy, or a node made on the way.
            place = places_of(node, self.words).get(id(node))
        return None if place is None else self.span(*place)

    def token_before(self, start: int) -> Token | None:
        """The last token that starts before the offset."""
        return self.words.before(start)

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
    ) -> NotReadError:
        """The refusal of a construct by its name."""
        error = self.error(
            f"Query `{self.name}` uses {construct}, which impctl does not support", place, hint=hint
        )
        return NotReadError(error.message, hint=error.hint, location=error.location)


def read_by_none(refusal: NotReadError) -> QueryError:
    """The refusal of what Spark does not run either: a mistake to mend, not a want of a sketch."""
    hint = refusal.hint
    if hint == _REPHRASE:
        hint = f"{_WITHOUT_IT}; Spark supports it, but does not run the recursion of this query"
    return QueryError(refusal.message, hint=hint, code=refusal.code, location=refusal.location)


def read_text(sql: str, name: str) -> tuple[SqlText, exp.Expression]:
    """The text with its tokens, and the tree of the one query in it."""
    dialect = Spark()
    empty = SqlText(name, sql, tokens_of(()))
    try:
        words = tokens_of(dialect.tokenize(sql))
    except TokenError:
        raise empty.error(
            f"The SQL of query `{name}` cannot be tokenized",
            None,
            hint="check for an unclosed quote or comment",
            code="query_syntax",
        ) from None
    text = SqlText(name, sql, words)
    _refuse_statements(text)
    _refuse_doubtful_text(text)
    _refuse_doubtful_tokens(text)
    clauses = levels_in(words.all)
    try:
        tokens = _words_of_calls(others(words.all, clauses))
        trees = _PlainParser(dialect=dialect).parse(tokens, sql)
    except ParseError as error:
        raise _syntax_error(text, error) from None
    result: list[Any] = [tree for tree in trees if tree is not None]
    tree = result[0] if len(result) == 1 else None
    if tree is None or not issubclass(type(tree), exp.Query):
        raise _not_a_query(text, text.span_of(tree))
    places = places_of(tree, words)
    levels = by_entry(tree, clauses, words, places)
    for clause in clauses:
        if clause not in levels.values():
            raise _misplaced(text, text.span(clause.start, clause.end))
    return replace(text, places=places, levels=levels), tree


def _refuse_statements(text: SqlText) -> None:
    """Refuses what is not one query before sqlglot sees it, because it warns about commands."""
    words = [token for token in text.tokens if token.token_type is not TokenType.SEMICOLON]
    if not words:
        raise text.error(
            f"Query `{text.name}` is empty",
            None,
            hint="write one SELECT statement",
            code="query_empty",
        )
    end = next((t.start for t in text.tokens if t.token_type is TokenType.SEMICOLON), len(text.sql))
    behind = [token for token in words if token.start > end]
    if behind:
        raise text.error(
            f"Query `{text.name}` contains several statements",
            text.span(behind[0].start, behind[0].end + 1),
            hint="write one statement per query",
        )
    if words[0].token_type not in _FIRST_WORDS:
        raise _not_a_query(text, text.span(words[0].start, words[0].end + 1))


def _not_a_query(text: SqlText, span: Span | None) -> QueryError:
    return text.error(
        f"Query `{text.name}` is not a SELECT statement",
        span,
        hint="impctl captures sketches of queries; changes to tables go under `updates`",
        code="query_not_select",
    )


def _syntax_error(text: SqlText, error: ParseError) -> QueryError:
    first = error.errors[0] if error.errors else {}
    highlight = str(first.get("highlight") or "")
    line, last = first.get("line") or 1, first.get("col") or 1
    column = max(int(last) - max(len(highlight), 1) + 1, 1)
    near = f" near `{highlight}`" if highlight else ""
    reason = _TOKEN_DUMP.sub("", str(first.get("description") or error))
    reason = _CLASS_NAME.sub(lambda result: result.group(1).upper(), reason).rstrip(".")
    return QueryError(
        f"The SQL of query `{text.name}` cannot be parsed{near}: {reason}",
        hint=_clause_meant(highlight) or "first check that Spark SQL accepts the statement",
        code="query_syntax",
        location=Location(text.file, int(line), column),
    )


def _clause_meant(word: str) -> str | None:
    """The hint for a mistyped word that begins a clause."""
    near = get_close_matches(word.upper(), _CLAUSES, n=1, cutoff=0.75)
    is_typed_well = not near or near[0] == word.upper()
    return None if is_typed_well else f"did you mean {near[0]}?"


def _refuse_doubtful_text(text: SqlText) -> None:
    """Refuses what Spark sees another text in: variables, and comments that end elsewhere."""
    variable = _VARIABLE.search(text.sql)
    if variable is not None:
        raise text.unsupported(
            f"`{variable.group()}`, a variable that Spark replaces before it parses the query",
            text.span(*variable.span()),
            hint="write its value, or use a parameter (`:name`)",
        )
    comment = doubtful_comment(text.sql, text.words)
    if comment is not None:
        raise text.unsupported(
            "a comment that Spark may end elsewhere",
            text.span(*comment),
            hint="do not end a `--` line with a backslash, and do not nest comments",
        )


def _misplaced(text: SqlText, span: Span) -> QueryError:
    return text.error(
        f"Query `{text.name}` has MAX RECURSION LEVEL in the wrong place",
        span,
        hint="write it after the name and columns of a WITH RECURSIVE entry, before AS",
        code="query_syntax",
    )


def _refuse_doubtful_tokens(text: SqlText) -> None:
    """Refuses spellings that Spark and sqlglot read differently."""
    for before, token in zip((None, *text.tokens), text.tokens, strict=False):
        if before is not None and _are_strings(before, token):
            raise text.unsupported(
                "two adjacent string literals",
                text.span(before.start, token.end + 1),
                hint="write one literal; escape a quote inside it as `\\'`",
            )
        result = _doubtful(text.sql[token.start], token)
        if result is not None:
            what, hint = result
            raise text.unsupported(what, text.span(token.start, token.end + 1), hint=hint)


def _are_strings(before: Token, token: Token) -> bool:
    return before.token_type is TokenType.STRING and token.token_type is TokenType.STRING


def _doubtful(first: str, token: Token) -> tuple[str, str] | None:
    """What a token is that begins so, and what to write instead, where readers differ."""
    match token.token_type:
        case TokenType.NOT if first == "!":
            return "the operator `!`", "use NOT instead"
        case TokenType.HEX_STRING if first == "0":
            return (
                "a number with 0x, which Spark reads as a name"
            ), "write X'1F' for bytes, or decimal digits"
        case TokenType.PIPE_GT:
            # To Spark each step reads the rows of the one before; sqlglot makes them one SELECT.
            return "the pipe operator `|>`", "use nested SELECTs"
        case TokenType.PARAMETER:
            # sqlglot reads the version in `t@v3` as a second name of the table.
            what = f"`{first}`, a version of a table or a variable"
            return (
                what,
                "remove the version, because impctl pins versions itself, and use `:name` for a "
                "parameter",
            )
    return None
