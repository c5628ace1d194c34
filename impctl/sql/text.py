"""The SQL text: its tokens, its sqlglot tree, and the position of each node."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import accumulate
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokens import Token, TokenType  # type: ignore[attr-defined]  # re-exported silently

from impctl.errors import Location, NotReadError, QueryError
from impctl.expr.nodes import Span

Node = exp.Expression


# MAX RECURSION LEVEL n after the name (and columns) of a WITH entry, which sqlglot does not know:
# it is read, then blanked out, so that all other words keep their places.

_WORDS = ["MAX", "RECURSION", "LEVEL"]


class RecursionLimit(Struct, frozen=True):
    """A MAX RECURSION LEVEL clause: the number of levels, and its place."""

    most: int
    start: int
    end: int


def recursion_limits(tokens: Sequence[Token]) -> tuple[RecursionLimit, ...]:
    """All such clauses, in order."""
    result = []
    for index, number in enumerate(tokens[3:]):
        words = tokens[index : index + 3]
        is_number = number.token_type is TokenType.NUMBER and number.text.isdigit()
        are_words = all(word.token_type is TokenType.VAR for word in words)
        if is_number and are_words and [word.text.upper() for word in words] == _WORDS:
            result.append(RecursionLimit(int(number.text), words[0].start, number.end + 1))
    return tuple(result)


def without_recursion_limits(sql: str) -> str:
    """The text of a valid query with these clauses blanked."""
    if _WORDS[1] not in sql.upper():
        return sql
    for result in recursion_limits(Spark().tokenize(sql)):
        clause = sql[result.start : result.end]
        blanks = "".join(sign if sign.isspace() else " " for sign in clause)
        sql = sql[: result.start] + blanks + sql[result.end :]
    return sql


def by_entry(
    tree: Any, clauses: Sequence[RecursionLimit], words: Tokens, places: Mapping[int, Place]
) -> dict[int, RecursionLimit]:
    """The clauses by the `id` of their WITH entries, without those elsewhere."""
    by_word = {words.at(clause.start): clause for clause in clauses}
    result = {}
    for entry in tree.find_all(exp.CTE) if by_word else ():
        name = places.get(id(entry.args["alias"]))
        clause = None if name is None else by_word.get(words.at(name[1]))
        if clause is not None:
            result[id(entry)] = clause
    return result


# Comments that Spark and sqlglot may end at different places are refused, since the rest would be
# query to one and comment to the other. Source: Spark's SqlBaseLexer (SIMPLE_COMMENT,
# BRACKETED_COMMENT).


_COMMENT = re.compile(
    r"--(?P<line>[^\r\n]*)(?P<newline>\r?\n?)|/\*(?P<inside>.*?)(?P<end>\*/|\Z)|.", re.DOTALL
)


def ambiguous_comment(sql: str, words: Tokens) -> Place | None:
    """Place of a comment that Spark and sqlglot may end differently; comments are between
    tokens."""
    starts = (0, *(token.end + 1 for token in words.all))
    for start, end in zip(starts, (*words.starts, len(sql)), strict=True):
        for match in _COMMENT.finditer(sql, start, end):
            line, inside = match.group("line", "inside")
            # Spark continues such a comment on the next line.
            if match["newline"] and line.endswith("\\"):
                return match.start(), match.end("line")
            if inside is not None and (not match["end"] or "/*" in inside):
                return match.start(), end
    return None


# Places of sqlglot nodes: from a node's first to its last token, widened until parentheses match;
# computed once per tree, in linear time.

_SIGNS = {exp.Neg: TokenType.DASH, exp.BitwiseNot: TokenType.TILDE, exp.Not: TokenType.NOT}
"""Prefix operators, which have no place in sqlglot's tree."""

Place = tuple[int, int]
"""Offsets of the first character and of the one after the last."""


class Tokens(Struct, frozen=True):
    """Tokens of a text, in order, with their depth in parentheses."""

    all: tuple[Token, ...]
    starts: tuple[int, ...]
    depths: tuple[int, ...]
    """Before each token, and at the end."""

    def at(self, start: int) -> int:
        """Index of the first token that starts at or after the offset."""
        return bisect_left(self.starts, start)

    def before(self, start: int) -> Token | None:
        """The last token that starts before the offset."""
        position = self.at(start)
        return self.all[position - 1] if position > 0 else None

    def opened(self, end: int) -> int:
        """End of an opening parenthesis that follows, else `end`."""
        position = self.at(end)
        follows = self.all[position : position + 1]
        is_open = bool(follows) and follows[0].token_type is TokenType.L_PAREN
        return follows[0].end + 1 if is_open else end

    def prefixed(self, start: int, sign: TokenType) -> int:
        """Start of the sign in front, skipping opened parentheses; else `start`."""
        position = self.at(start) - 1
        while position >= 0 and self.all[position].token_type is TokenType.L_PAREN:
            position -= 1
        is_there = position >= 0 and self.all[position].token_type is sign
        return self.all[position].start if is_there else start

    def balanced(self, place: Place) -> Place:
        """The place widened until all its parentheses match."""
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
    words = tuple(tokens)
    steps = {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}
    depths = accumulate((steps.get(token.token_type, 0) for token in words), initial=0)
    return Tokens(words, tuple(token.start for token in words), tuple(depths))


def places_of(tree: Any, tokens: Tokens) -> dict[int, Place]:
    """Place of every node that has one, by the node's `id`."""
    result: dict[int, Place] = {}
    for node in reversed(list(tree.walk(bfs=True))):
        parts: Sequence[Place] = [result[id(p)] for p in node.iter_expressions() if id(p) in result]
        own = _own_place(node, tokens)
        inner = parts if own is None else [*parts, own]
        if inner:
            start, end = min(a for a, _ in inner), max(b for _, b in inner)
            sign = _SIGNS.get(type(node))
            result[id(node)] = (start if sign is None else tokens.prefixed(start, sign), end)
    return {key: tokens.balanced(place) for key, place in result.items()}


def _own_place(node: Any, tokens: Tokens) -> Place | None:
    start, end = node.meta.get("start"), node.meta.get("end")
    if not isinstance(start, int) or not isinstance(end, int):
        return None
    # The arguments of a function may have no places, but its parentheses do.
    return (start, tokens.opened(end + 1) if isinstance(node, exp.Anonymous) else end + 1)


# The text of a query: its sqlglot tree and the places of its nodes, from token positions checked
# against the text. Functions stay as written, since sqlglot's function classes reorder and add
# arguments.

_SPECIAL_SYNTAX = ("CAST", "TRY_CAST", "EXTRACT", "TRIM", "SUBSTRING", "SUBSTR", "POSITION")
_CLAUSES = (
    *("SELECT", "FROM", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "UNION", "JOIN"),
    *("DISTINCT", "INNER", "LEFT", "CROSS", "QUALIFY", "BETWEEN"),
)
"""Possible meanings of a mistyped word."""

_FIRST_WORDS = frozenset({TokenType.SELECT, TokenType.WITH, TokenType.FROM, TokenType.L_PAREN})
_VARIABLE = re.compile(r"\$\{\S*?\}")
_TOKEN_DUMP = re.compile(r" but got <Token.*", re.DOTALL)
_CLASS_NAME = re.compile(r"<class '[\w.]*?(\w+)'>")
_WITHOUT_IT = "rewrite the query without it"
_REPHRASE = f"{_WITHOUT_IT}, or keep it without a sketch (`sketch: none`)"


class _PlainParser(Spark.Parser):  # type: ignore[misc, valid-type]  # set by a metaclass
    """Spark's grammar, but a function call is just a name and arguments."""

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


def _positive(parser: Any) -> Node | None:
    """`+x` as Spark's function, which casts text; sqlglot drops the sign."""
    sign = parser._prev
    operand = parser._parse_unary()
    if operand is None:
        return None
    result = exp.Anonymous(this="positive", expressions=[operand])
    result.meta.update(start=sign.start, end=sign.end)
    return result


def _overlay(parser: Any) -> Node:
    """`overlay(s PLACING t FROM n FOR k)` as a call; commas are allowed too."""
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
    """The tokens, with `window` before a bracket as a function name, not a clause."""
    result = []
    for token, behind in zip(tokens, (*tokens[1:], None), strict=True):
        is_call = behind is not None and behind.token_type is TokenType.L_PAREN
        if token.token_type is TokenType.WINDOW and is_call:
            token = Token(TokenType.VAR, token.text, token.line, token.col, token.start, token.end)
        result.append(token)
    return result


class SqlText(Struct, frozen=True):
    """A query's text and tokens; `name` is used in messages."""

    name: str
    sql: str
    words: Tokens
    places: Mapping[int, Place] = field(default_factory=dict)
    """Of the tree's nodes, by `id`; the reader keeps the tree as long as the text."""
    levels: Mapping[int, RecursionLimit] = field(default_factory=dict)
    """MAX RECURSION LEVEL of WITH entries, by the `id` of their nodes."""

    @property
    def tokens(self) -> tuple[Token, ...]:
        return self.words.all

    @property
    def file(self) -> str:
        return f"query `{self.name}`"

    def span(self, start: int, end: int) -> Span:
        """Span from `start` to `end` (exclusive), with line and column."""
        before = self.sql[:start]
        line_start = before.rfind("\n") + 1
        return Span(start, end, before.count("\n") + 1, start - line_start + 1)

    def span_of(self, node: Any) -> Span | None:
        """Span from a node's first to its last token, parentheses balanced."""
        if node is None:
            return None
        place = self.places.get(id(node))
        if place is None:
            # A copy, or a new node.
            place = places_of(node, self.words).get(id(node))
        return None if place is None else self.span(*place)

    def place_of(self, word: str) -> Span | None:
        """First place of a word, ignoring case; for nodes that lost their place."""
        token = next((t for t in self.tokens if t.text.lower() == word), None)
        return None if token is None else self.span(token.start, token.end + 1)

    def written(self, span: Span) -> str:
        return " ".join(self.sql[span.start : span.end].split())

    def error(
        self,
        message: str,
        place: Node | Span | None,
        *,
        hint: str | None = None,
        code: str | None = None,
    ) -> QueryError:
        """A QueryError at a node or span (the text's beginning without a place)."""
        span = self.span_of(place) if isinstance(place, Node) else place
        line, column = (span.line, span.column) if span is not None else (1, 1)
        location = Location(self.file, line, column)
        return QueryError(message, hint=hint, code=code, location=location)

    def unsupported(
        self, construct: str, place: Node | Span | None, *, hint: str = _REPHRASE
    ) -> NotReadError:
        error = self.error(
            f"Query `{self.name}` uses {construct}, which impctl does not support", place, hint=hint
        )
        return NotReadError(error.message, hint=error.hint, location=error.location)


def as_invalid_query(refusal: NotReadError) -> QueryError:
    """The error for a query that Spark does not run either."""
    hint = refusal.hint
    if hint == _REPHRASE:
        hint = f"{_WITHOUT_IT}; Spark supports it, but does not run the recursion of this query"
    return QueryError(refusal.message, hint=hint, code=refusal.code, location=refusal.location)


def read_text(sql: str, name: str) -> tuple[SqlText, Node]:
    """Parse a text into its tokens and the tree of its one query."""
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
    clauses = recursion_limits(words.all)
    rest = [t for t in words.all if not any(c.start <= t.start < c.end for c in clauses)]
    try:
        trees = _PlainParser(dialect=dialect).parse(_words_of_calls(rest), sql)
    except ParseError as error:
        raise _syntax_error(text, error) from None
    queries: list[Any] = [tree for tree in trees if tree is not None]
    tree = queries[0] if len(queries) == 1 else None
    if tree is None or not issubclass(type(tree), exp.Query):
        raise _not_a_query(text, text.span_of(tree))
    places = places_of(tree, words)
    levels = by_entry(tree, clauses, words, places)
    for clause in clauses:
        if clause not in levels.values():
            raise text.error(
                f"Query `{name}` has MAX RECURSION LEVEL in the wrong place",
                text.span(clause.start, clause.end),
                hint="write it after the name and columns of a WITH RECURSIVE entry, before AS",
                code="query_syntax",
            )
    return replace(text, places=places, levels=levels), tree


def _refuse_statements(text: SqlText) -> None:
    """Refuse anything but one query before sqlglot sees it, because it warns about commands."""
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
    near = get_close_matches(word.upper(), _CLAUSES, n=1, cutoff=0.75)
    is_typed_well = not near or near[0] == word.upper()
    return None if is_typed_well else f"did you mean {near[0]}?"


def _refuse_doubtful_text(text: SqlText) -> None:
    """Refuse text that Spark reads otherwise: variables, and comments that end elsewhere."""
    variable = _VARIABLE.search(text.sql)
    if variable is not None:
        raise text.unsupported(
            f"`{variable.group()}`, a variable that Spark replaces before it parses the query",
            text.span(*variable.span()),
            hint="write its value, or use a parameter (`:name`)",
        )
    comment = ambiguous_comment(text.sql, text.words)
    if comment is not None:
        raise text.unsupported(
            "a comment that Spark may end elsewhere",
            text.span(*comment),
            hint="do not end a `--` line with a backslash, and do not nest comments",
        )


def _refuse_doubtful_tokens(text: SqlText) -> None:
    """Refuse spellings that Spark and sqlglot read differently."""
    for before, token in zip((None, *text.tokens), text.tokens, strict=False):
        if before is not None and before.token_type is token.token_type is TokenType.STRING:
            raise text.unsupported(
                "two adjacent string literals",
                text.span(before.start, token.end + 1),
                hint="write one literal; escape a quote inside it as `\\'`",
            )
        result = _ambiguous(text.sql[token.start], token)
        if result is not None:
            construct, hint = result
            raise text.unsupported(construct, text.span(token.start, token.end + 1), hint=hint)


def _ambiguous(first: str, token: Token) -> tuple[str, str] | None:
    """What a token is that Spark and sqlglot read differently, and what to write instead."""
    match token.token_type:
        case TokenType.NOT if first == "!":
            return "the operator `!`", "use NOT instead"
        case TokenType.HEX_STRING if first == "0":
            construct = "a number with 0x, which Spark reads as a name"
            return construct, "write X'1F' for bytes, or decimal digits"
        case TokenType.PIPE_GT:
            # In Spark each step reads the rows of the previous one; sqlglot makes one SELECT.
            return "the pipe operator `|>`", "use nested SELECTs"
        case TokenType.PARAMETER:
            # sqlglot reads the version in `t@v3` as a second name of the table.
            hint = "remove the version, because impctl pins versions itself"
            construct = f"`{first}`, a version of a table or a variable"
            return construct, f"{hint}, and use `:name` for a parameter"
    return None
