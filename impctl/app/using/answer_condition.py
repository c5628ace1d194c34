"""A condition on the columns of an answer, as `query --where` gives it, or of a table.

Law: it is read as a WHERE over the answer would be, and asked of whole rows of the answer, after
ORDER BY and LIMIT. One that only Spark computes as Spark does is refused, whoever answers.
Out of scope: which rows are looked at for it (`compile.answers`).
"""

from __future__ import annotations

from collections.abc import Sequence

from impctl.app.results.subject import named_before
from impctl.data.schema import BOOLEAN, Column, Kind, Schema, SqlType, other
from impctl.errors import QueryError, UsageError
from impctl.expr.evaluate import find_blocker
from impctl.expr.nodes import Expr, substitute
from impctl.expr.types import type_of
from impctl.plan.nodes import Attribute, Project, Scan, Select
from impctl.sql.statement import parse_query
from impctl.types import AttributeId

_TABLE = "answer"
_QUERY = "query"
"""What the condition is called while it is read."""


def condition_on(
    outputs: Sequence[Attribute],
    text: str,
    zone: str,
    option: str = "--where",
    of: str = "the result",
) -> Expr:
    """The condition over the attributes of an answer; UsageError where it is none.

    `option` is what it was given by, `of` what it is a condition on: errors say so.
    """
    schema = Schema(tuple(Column(a.name, a.type or other("unknown")) for a in outputs))
    names = [name.lower() for name in schema.names]
    if len(set(names)) < len(names):
        raise UsageError(
            f"`{option}` needs unique column names in the result",
            hint="give the columns of the query different names with AS",
            code="where_ambiguous",
        )
    try:
        root = parse_query(
            f"SELECT * FROM {_TABLE} WHERE {text}", {_TABLE: schema}, name=_QUERY, zone=zone
        ).root
    except QueryError as error:
        raise UsageError(
            f"`{option}` cannot be read: {_of_condition(error.message)}",
            hint=f"write a condition on {', '.join(schema.names)}, such as "
            f"`{_example(schema.columns[0])}`"
            if schema.names
            else f"{of} has no columns",
            code="where_unread",
        ) from None
    select = root.child if isinstance(root, Project) else root
    if not isinstance(select, Select) or not isinstance(select.child, Scan):
        raise UsageError(
            f"`{option}` takes one condition on the columns of {of}",
            hint="remove subqueries, ORDER BY and LIMIT; `--limit` shows fewer rows",
            code="where_unread",
        )
    by_name = {a.name.lower(): a for a in outputs}
    shown: dict[AttributeId, Expr] = {
        a.id: by_name[a.name.lower()].ref() for a in select.child.attributes
    }
    condition = substitute(select.predicate, shown)
    objection = _objection(condition)
    if objection is not None:
        raise UsageError(
            f"`{option}` cannot be applied to {of}: {objection}",
            hint="compare each column with a value of the same type, and NULL with IS NULL",
            code="where_unread",
        )
    return condition


def _of_condition(message: str) -> str:
    """What is wrong, without the query that the condition is read in."""
    message = message.replace(f" in query `{_QUERY}`", "")
    return named_before(_QUERY, message).replace("its SQL cannot be parsed near", "near", 1)


_VALUES = {
    Kind.STRING: "'abc'",
    Kind.BOOLEAN: "true",
    Kind.DATE: "DATE '2026-01-31'",
    Kind.TIMESTAMP: "TIMESTAMP '2026-01-31 12:00:00Z'",
    Kind.TIMESTAMP_NTZ: "TIMESTAMP_NTZ '2026-01-31 12:00:00'",
}
"""A value as SQL writes it; of other types it is a number."""


def _example(column: Column) -> str:
    """A condition on the column that compares it with a value of its own type."""
    if column.type.kind is Kind.BINARY:
        return f"{column.name} IS NOT NULL"
    return f"{column.name} = {_VALUES.get(column.type.kind, '5')}"


def _objection(condition: Expr) -> str | None:
    """Why it has no truth, or none that the evaluator finds as Spark does."""
    blocker = find_blocker(condition)
    if blocker is not None:
        return blocker.reason
    result = type_of(condition)
    if result in (BOOLEAN, SqlType(Kind.NULL)):
        return None
    return f"a value of type `{result}` is neither true nor false"
