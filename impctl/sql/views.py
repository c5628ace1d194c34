"""Expands views of the workload file in SQL texts, and finds the tables that a text names."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct
from sqlglot import exp
from sqlglot.tokens import TokenType  # type: ignore[attr-defined]  # re-exported silently

from impctl.data.schema import quoted
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
from impctl.sql.names import FullName, TableNames
from impctl.sql.relations import is_entry
from impctl.sql.text import Node, SqlText, read_text
from impctl.types import QueryName, TableName

if TYPE_CHECKING:
    from impctl.expr.nodes import Span

# Views of the workload file become WITH entries at the start of the text, one per view; a view sees
# tables and other views, never WITH entries of the query. Entries get names that occur in none of
# the texts, unless the name can mean nothing else there. Places in the new text map back to the
# original texts.

Views = Mapping[FullName, tuple[TableName, str]]
"""Name and SELECT text of each view, by full name."""

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class SourceRange(Struct, frozen=True):
    """Text from `start` on, taken from `source` on in the view, or in the query (None)."""

    start: int
    view: TableName | None
    source: int


class ExpandedSql(Struct, frozen=True):
    """A text without views, and the sources of its stretches; none where nothing changed."""

    sql: str
    stretches: tuple[SourceRange, ...] = ()

    def written_at(self, line: int, column: int) -> tuple[TableName | None, int]:
        """View, or None for the query, and the offset in its text."""
        lines = self.sql.split("\n")
        offset = sum(len(text) + 1 for text in lines[: line - 1]) + column - 1
        if not self.stretches:
            return None, offset
        index = bisect_right(self.stretches, offset, key=lambda stretch: stretch.start) - 1
        result = self.stretches[max(index, 0)]
        return result.view, result.source + max(0, offset - result.start)


class _Use(Struct, frozen=True):
    """A place that names a view; `node` is None for a column's qualifier."""

    span: Span
    view: FullName
    node: exp.Table | None


class _Read(Struct, frozen=True):
    """A parsed text: its tokens, the views it names, its WITH entries."""

    name: TableName | None
    text: SqlText
    uses: tuple[_Use, ...]
    entries: frozenset[str]
    head: int
    """Number of words that begin its WITH clause: 0 without one."""

    @property
    def body(self) -> int:
        words = [t for t in self.text.tokens if t.token_type is not TokenType.SEMICOLON]
        return int(words[-1].end) + 1


def view_label(view: TableName) -> str:
    return f"view {view}"


def expand_views(sql: str, views: Views, names: TableNames, *, name: QueryName) -> ExpandedSql:
    """Add the views that a text needs as WITH entries. QueryError for a cycle of views (with its
    place in the view's text), and as of `parse_query`."""
    if not any("`" in full[-1] or full[-1] in sql.lower() for full in views):
        return ExpandedSql(sql)
    query = _read(sql, None, views, names, name)
    if not query.uses:
        return ExpandedSql(sql)
    needed: dict[FullName, _Read] = {}
    for use in query.uses:
        _need(use.view, views, names, needed, ())
    called = _entry_names(query, needed, views)
    writer = _TextWriter([], [])
    tokens = query.text.tokens
    start = int(tokens[query.head - 1].end) + 1 if query.head else int(tokens[0].start)
    writer.copy(query, 0, start, called)
    writer.add(" " if query.head else "WITH ")
    for position, (full, view) in enumerate(needed.items()):
        writer.add(f"{', ' if position else ''}{called[full]} AS (\n")
        writer.copy(view, 0, view.body, called)
        writer.add("\n)")
    writer.add("," if query.head else " ")
    writer.copy(query, start, len(sql), called)
    return ExpandedSql("".join(writer.texts), tuple(writer.stretches))


def _read(sql: str, view: TableName | None, views: Views, names: TableNames, called: str) -> _Read:
    text, tree = read_text(sql, called)
    entries = frozenset(entry.alias.lower() for entry in tree.find_all(exp.CTE))
    return _Read(view, text, tuple(_uses(text, tree, views, names)), entries, _head(text))


def _head(text: SqlText) -> int:
    words = [token.text.upper() for token in text.tokens[:2]]
    return 0 if words[:1] != ["WITH"] else len(words) if words[1:] == ["RECURSIVE"] else 1


def _uses(text: SqlText, tree: Node, views: Views, names: TableNames) -> Iterator[_Use]:
    nodes: list[exp.Table | exp.Column] = [*tree.find_all(exp.Table), *tree.find_all(exp.Column)]
    for node in nodes:
        is_table = isinstance(node, exp.Table)
        parts = list(node.parts if is_table else node.parts[:-1])
        full = names.full([piece.name for piece in parts])
        if full not in views or (len(parts) == 1 and (not is_table or is_entry(node))):
            continue
        first, last = text.span_of(parts[0]), text.span_of(parts[-1])
        if full is not None and first is not None and last is not None:
            table = node if isinstance(node, exp.Table) else None
            yield _Use(text.span(first.start, last.end), full, table)


def _need(
    full: FullName,
    views: Views,
    names: TableNames,
    needed: dict[FullName, _Read],
    above: tuple[FullName, ...],
) -> None:
    """Add a view after those it needs."""
    if full in needed:
        return
    name, sql = views[full]
    read = _read(sql, name, views, names, view_label(name))
    for use in read.uses:
        if use.view in (*above, full):
            circle = [*above, full][[*above, full].index(use.view) :]
            listed = " -> ".join(f"`{views[view][0]}`" for view in (*circle, use.view))
            raise read.text.error(
                f"Views depend on each other in a cycle: {listed}",
                use.span,
                hint="change one of them to read only tables",
                code="view_circle",
            )
        _need(use.view, views, names, needed, (*above, full))
    needed[full] = read


def _entry_names(
    query: _Read, needed: Mapping[FullName, _Read], views: Views
) -> dict[FullName, str]:
    """Names of the views' entries: the views' own names where that is safe."""
    texts = (query, *needed.values())
    entries = frozenset[str]().union(*(read.entries for read in texts))
    everything = "\n".join(read.text.sql for read in texts).lower()
    result: dict[FullName, str] = {}
    for full in needed:
        name = views[full][0]
        if _PLAIN.fullmatch(name) and name.lower() not in entries:
            result[full] = name
            continue
        base, number = re.sub(r"\W", "_", f"view_{full[-1]}"), 1
        while f"{base}_{number}" in everything or f"{base}_{number}" in result.values():
            number += 1
        result[full] = f"{base}_{number}"
    return result


class _TextWriter(Struct, frozen=True):
    texts: list[str]
    stretches: list[SourceRange]

    def add(self, text: str, view: TableName | None = None, source: int = 0) -> None:
        self.stretches.append(SourceRange(sum(map(len, self.texts)), view, source))
        self.texts.append(text)

    def copy(self, read: _Read, start: int, end: int, called: Mapping[FullName, str]) -> None:
        """Copy the text from `start` to `end`, views under the names of their entries."""
        sql = read.text.sql
        inside = [use for use in read.uses if start <= use.span.start < end]
        for use in sorted(inside, key=lambda use: use.span.start):
            self.add(sql[start : use.span.start], read.name, start)
            written = sql[use.span.start : use.span.end]
            self.add(_renamed(use, written, called[use.view]), read.name, use.span.start)
            start = use.span.end
        self.add(sql[start:end], read.name, start)


def _renamed(use: _Use, written: str, called: str) -> str:
    """Replacement for a view's name; columns use the last part of it."""
    name = quoted(use.view[-1])
    if use.node is None:
        return name
    if written.lower() == called.lower():
        return written
    return called if use.node.alias else f"{called} AS {name}"


# Names of tables in a query that is run without a plan. Only a text that is surely one reading
# query is given names; a name that may be another table's is refused.

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
    """The `known` tables that the text names; None if it names another, or may do more than read.
    QueryError for a text that is not one query."""
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
    """Whether a part of a query may do more than read current rows: run a program, call an unknown
    function, write, or read another version or a variable."""
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
