"""Parses SQL text into a plan that means what Spark makes of the text; other text is refused with
the construct's name, its place and a hint. Only sqlglot's tokenizer and grammar are used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from sqlglot import exp

from impctl.errors import Location, NotReadError, QueryError
from impctl.plan.functions import TIME_WINDOWS
from impctl.plan.nodes import Catalog, Fixpoint, LiveRows, Plan, Query
from impctl.plan.properties import deciding_functions
from impctl.sql.names import TableNames
from impctl.sql.recursive import is_refused_by_spark, read_unused, with_common_tables
from impctl.sql.scope import ParseContext
from impctl.sql.select import ordered, read_select, read_set_operation
from impctl.sql.text import Node, SqlText, as_invalid_query, read_text

if TYPE_CHECKING:
    from impctl.types import QueryName, TableName

NO_EXPIRY: Mapping[TableName, LiveRows] = MappingProxyType({})

MAX_DEPTH = 500
"""Maximum depth of a query's tree; our own bound, since a host may raise the interpreter's."""

_WRAPPER_PARTS = frozenset({"this", "order", "limit", "offset", "with"})


def parse_query(
    sql: str,
    catalog: Catalog,
    *,
    name: QueryName = "query",
    zone: str = "UTC",
    names: TableNames | None = None,
    live: Mapping[TableName, LiveRows] = NO_EXPIRY,
) -> Query:
    """Plan one SELECT statement (or set operation) over the catalog's tables. `zone` is the
    session's time zone, `names` other names of tables, `live` the expiry of tables. Raises
    QueryError with line and column."""
    try:
        text, tree = read_text(sql, name)
        if any(depth > MAX_DEPTH for depth in _depths(tree)):
            raise _too_deep(name)
        known = names or TableNames.of(catalog)
        context = ParseContext(text, catalog, known, _read_query, zone, live=live)
        root = _root(tree, context)
    except RecursionError:
        raise _too_deep(name) from None
    if not root.scans:
        raise text.error(
            f"Query `{name}` reads no table",
            tree,
            hint="add a table in FROM, or remove the query from the workload",
        )
    mentions = tuple((span, table) for span, table in context.mentions.items())
    named = {table: live.get(table) for _, table in mentions}
    live_rows = tuple((table, rows) for table, rows in named.items() if rows is not None)
    volatile = (*context.volatile, *deciding_functions(root))
    unused = (node for plan in context.unused for node in plan.walk())
    derived = tuple(node for node in unused if isinstance(node, Fixpoint))
    return Query(sql, root, volatile, mentions, live=live_rows, unused=derived)


def _refuse_time_windows(tree: Node, text: SqlText) -> None:
    """Refuse `window(...)` and the like first: they add columns that other parts may name."""
    for call in tree.find_all(exp.Anonymous):
        if call.name.lower() in TIME_WINDOWS:
            raise text.unsupported(f"the function `{call.name.lower()}`", call)


def _root(tree: Node, context: ParseContext) -> Plan:
    """The whole plan; the class of a refusal says who may run the query."""
    try:
        _refuse_time_windows(tree, context.text)
        return _read_query(tree, context)
    except NotReadError as refusal:
        if is_refused_by_spark(tree):
            raise as_invalid_query(refusal) from None
        raise


def _too_deep(name: QueryName) -> QueryError:
    return QueryError(
        f"Query `{name}` is nested too deeply",
        hint="split it into WITH entries or views",
        location=Location(f"query `{name}`", 1, 1),
    )


def _depths(tree: Node) -> Iterator[int]:
    """Depth of every node; a chain of AND or OR counts once, since it is read in a loop."""
    waiting = [(tree, 1)]
    while waiting:
        node, depth = waiting.pop()
        yield depth
        for child in node.iter_expressions():
            chained = isinstance(node, exp.Connector) and type(child) is type(node)
            waiting.append((child, depth if chained else depth + 1))


def _read_query(node: Node, context: ParseContext) -> Plan:
    """Read any query, and check that its unused WITH entries are queries too."""
    context = with_common_tables(node, context)
    plan = _read_body(node, context)
    read_unused(node, context)
    return plan


def _read_body(node: Node, context: ParseContext) -> Plan:
    match node:
        case exp.Select():
            return read_select(node, context)
        case exp.SetOperation():
            return read_set_operation(node, context)
        case exp.Subquery() | exp.Paren():
            for key, value in node.args.items():
                if value and key.rstrip("_") not in _WRAPPER_PARTS:
                    text = context.text
                    raise text.unsupported(f"{key.upper()} on a query in parentheses", node)
            return ordered(node, _read_query(node.this, context), context)
    raise context.text.unsupported(f"{node.key.upper()} as a query", node)
