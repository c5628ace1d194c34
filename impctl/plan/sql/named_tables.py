"""The tables that a text names, for a query that is run as it stands and never planned.

Law: only what is surely one query that reads is given names; a name that may be another table's
is refused.
Out of scope: what the query means (`plan.sql.statement`).
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from impctl.plan.functions import (
    AGGREGATES,
    FOREIGN,
    GENERATORS,
    ORDER_DEPENDENT,
    SCALARS,
    TIME_WINDOWS,
    VOLATILE,
    WINDOW_ONLY,
)
from impctl.plan.sql.text import read_text
from impctl.types import QueryName, TableName

_DENIED = (
    exp.QueryTransform,
    exp.Into,
    exp.DML,
    exp.DDL,
    exp.Drop,
    exp.Command,
    exp.Placeholder,
    exp.Parameter,
    exp.SessionParameter,
    exp.Version,
)
_KNOWN = (
    AGGREGATES | GENERATORS | ORDER_DEPENDENT | SCALARS | TIME_WINDOWS | VOLATILE | WINDOW_ONLY
) - FOREIGN


def named_tables(
    sql: str, known: Iterable[TableName], *, name: QueryName
) -> tuple[TableName, ...] | None:
    """Those of the `known` tables that the text names; None where it names any other, or may do
    more than read.

    Raises QueryError for a text that is not one query.
    """
    _, tree = read_text(sql, name)
    if any(_may_do_more(node) for node in tree.walk()):
        return None
    by_lower = {table.lower(): table for table in known}
    common = {entry.alias.lower() for entry in tree.find_all(exp.CTE)}
    result: dict[TableName, None] = {}
    for table in tree.find_all(exp.Table):
        if not isinstance(table.this, exp.Identifier):
            if str(table.this.name).lower() not in GENERATORS:
                return None
            continue
        written = table.name.lower()
        is_plain = not table.args.get("db") and not table.args.get("catalog")
        if is_plain and written in by_lower:
            result[by_lower[written]] = None
        elif not is_plain or written not in common:
            return None
    return tuple(result)


def _may_do_more(node: object) -> bool:
    """Whether a part of a query may do more than read the newest rows: runs a program, calls what
    nobody knows here, writes, stands for another value or version."""
    if isinstance(node, _DENIED):
        return True
    if isinstance(node, exp.CTE):
        return not isinstance(node.this, exp.Query)
    if isinstance(node, exp.Dot):
        return isinstance(node.expression, exp.Func)
    if isinstance(node, exp.Anonymous):
        # A name in quotes is an identifier here, not a text.
        return not isinstance(node.this, str) or node.this.lower() not in _KNOWN
    return False
