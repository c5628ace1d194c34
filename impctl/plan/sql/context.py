"""What one reading of a query carries along: the text, the catalog, numbers not used yet.

Law: identities handed out are unique in the plan; accesses are numbered per table in the order
in which they are read, which is the order of the text but for common table expressions.
Out of scope: the reading itself (`parse` and its siblings).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field

from sqlglot import exp

from impctl.data.schema import Kind, SqlType
from impctl.expr.nodes import Expr, Span
from impctl.expr.types import is_nullable, type_of
from impctl.plan.live_rows import LiveRows
from impctl.plan.names import TableNames
from impctl.plan.nodes import Attribute, Catalog, Plan
from impctl.plan.sql.text import SqlText
from impctl.types import AccessId, AttributeId, FixpointId, TableName
from impctl.values import dataclass

MAX_ACCESSES = 1_000
"""WITH entries that use each other twice make 2 to the n of them."""


@dataclass(slots=True)
class Reading:
    """The only mutable thing in a reading: counters and the list of volatile constructs."""

    text: SqlText
    catalog: Catalog
    names: TableNames
    zone: str = "UTC"
    """The session's time zone."""
    volatile: list[tuple[str, Span | None]] = field(default_factory=list)
    read_entries: set[int] = field(default_factory=set)
    """WITH entries that something has read, by the `id` of their node in the text's tree."""
    unused: list[Plan] = field(default_factory=list)
    """What entries are that nothing has read."""
    mentions: dict[Span, TableName] = field(default_factory=dict)
    """Where the text names tables, and which."""
    fixpoints: dict[int, FixpointId] = field(default_factory=dict)
    """Of recursive WITH entries, by the `id` of their node."""
    live: Mapping[TableName, LiveRows] = field(default_factory=dict)
    """What tables with an expiry ask of their rows; looked up only for tables that are named."""
    _accesses: Counter[TableName] = field(default_factory=Counter)
    _nodes: int = 0

    def next_access(self, table: TableName) -> AccessId:
        """`table#n`, n from 1; QueryError where WITH entries multiply them without end."""
        self._accesses[table] += 1
        if self._accesses.total() > MAX_ACCESSES:
            raise self.text.unsupported(
                f"more than {MAX_ACCESSES:,} tables (those in WITH entries count once per use)",
                None,
            )
        return f"{table}#{self._accesses[table]}"

    def fixpoint_of(self, entry: exp.CTE) -> FixpointId:
        """The one identity of a recursive entry, wherever it is read."""
        result = self.fixpoints.get(id(entry))
        if result is None:
            result, again = entry.alias, 1
            while result in self.fixpoints.values():
                again += 1
                result = f"{entry.alias}:{again}"
            self.fixpoints[id(entry)] = result
        return result

    def fresh(self, letter: str, names: Sequence[str]) -> tuple[AttributeId, ...]:
        """Identities for the outputs of one new node, such as `p3.rev`."""
        self._nodes += 1
        seen: Counter[str] = Counter()
        result = []
        for name in names:
            seen[name.lower()] += 1
            again = f":{seen[name.lower()]}" if seen[name.lower()] > 1 else ""
            result.append(f"{letter}{self._nodes}.{name}{again}")
        return tuple(result)

    def note_volatile(self, name: str, span: Span | None) -> None:
        """Remembers a construct whose answer two runs need not share."""
        self.volatile.append((name, span))


def known_type(expr: Expr) -> SqlType | None:
    """The expression's type; None also for what only stands for an unknown type."""
    result = type_of(expr)
    if result is None or (result.kind is Kind.OTHER and "unknown" in result.detail):
        return None
    return result


def attribute_for(identity: AttributeId, name: str, expr: Expr) -> Attribute:
    """The output column that an expression computes."""
    return Attribute(identity, name, known_type(expr), is_nullable(expr))
