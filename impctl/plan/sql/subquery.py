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
        if error.code not in ("column_unknown", "table_unknown"):
            raise
        outside = (
            "a subquery with grouping, DISTINCT ON, LIMIT or a set operation cannot name columns "
            "of the enclosing query"
        )
        hint = outside if error.hint is None else f"{error.hint}; {outside}"
        raise QueryError(
            error.message, hint=hint, code=error.code, location=error.location
        ) from None
