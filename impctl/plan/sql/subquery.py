"""What every place that reads a subquery needs: its form without parentheses, and its plan.

Law: a subquery read on its own sees nothing of the enclosing query.
Out of scope: what a subquery means where it stands (`plan.sql.condition`, `plan.sql.single_value`).
"""

from __future__ import annotations

from sqlglot import exp

from impctl.errors import QueryError
from impctl.plan.nodes import Plan
from impctl.plan.sql.expr import ExprReader
from impctl.plan.sql.relation import Environment

UNKNOWN = frozenset({"column_unknown", "table_unknown"})
"""Codes of a name that is not there."""
_OUTSIDE = (
    "a subquery with grouping, DISTINCT ON, LIMIT or a set operation cannot refer to columns of "
    "the enclosing query"
)
_CONSTRUCTS = (
    ("laterals", "LATERAL VIEW"),
    ("qualify", "QUALIFY"),
    ("with", "WITH"),
    ("group", "GROUP BY"),
    ("having", "HAVING"),
    ("windows", "WINDOW"),
    ("limit", "LIMIT"),
    ("offset", "OFFSET"),
    ("order", "ORDER BY"),
    ("sort", "SORT BY"),
    ("distinct", "DISTINCT"),
)
"""By the part of the query that holds it."""


def bare(node: exp.Expression) -> exp.Expression:
    """The expression without parentheses round it."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def unwrapped(query: exp.Expression) -> exp.Expression:
    """The query without parentheses that add nothing to it."""
    while isinstance(query, exp.Subquery | exp.Paren) and not query.args.get("alias"):
        if isinstance(query, exp.Subquery) and any(
            query.args.get(name) for name in ("order", "limit", "offset", "with", "with_")
        ):
            break
        query = query.this
    return query


def closed(query: exp.Expression, reader: ExprReader, environment: Environment) -> Plan:
    """A subquery read on its own; it cannot see the enclosing query's columns."""
    try:
        return environment.read_query(query, environment)
    except QueryError as error:
        raise seen_from_inside(error, query, reader) from None


def seen_from_inside(error: QueryError, query: exp.Expression, reader: ExprReader) -> QueryError:
    """The failure to read a subquery on its own: a name it lacks may be the enclosing query's."""
    if error.code not in UNKNOWN:
        return error
    column = next((c for c in query.find_all(exp.Column) if _stands_at(c, error, reader)), None)
    if column is not None and _reads(reader, column):
        construct, name = _construct(query), column.sql("spark")
        beside = f" with {construct}" if construct else " that cannot be joined directly"
        return reader.text.unsupported(
            f"`{name}` of the enclosing query in a subquery{beside}",
            column,
            hint="join the subquery's tables in FROM, or keep the query without a sketch "
            "(`sketch: none`)",
        )
    hint = _OUTSIDE if error.hint is None else f"{error.hint}; {_OUTSIDE}"
    return QueryError(error.message, hint=hint, code=error.code, location=error.location)


def _stands_at(column: exp.Column, error: QueryError, reader: ExprReader) -> bool:
    span, place = reader.text.span_of(column), error.location
    if span is None or place is None:
        return False
    return (span.line, span.column) == (place.line, place.column)


def _reads(reader: ExprReader, column: exp.Column) -> bool:
    """Whether the enclosing query has the column, though it may not be read just there."""
    try:
        reader.read(column)
    except QueryError as error:
        return error.code not in UNKNOWN
    return True


def _construct(query: exp.Expression) -> str | None:
    """What keeps a subquery from being joined directly, as SQL calls it."""
    if isinstance(query, exp.SetOperation):
        return "a set operation"
    present = {name.rstrip("_") for name, value in query.args.items() if value}
    return next((words for name, words in _CONSTRUCTS if name in present), None)
