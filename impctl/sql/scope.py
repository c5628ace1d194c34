"""What the names in one SELECT block refer to."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace
from sqlglot import exp

from impctl.data.schema import Kind, SqlType
from impctl.expr.nodes import ColumnRef, Expr, Span
from impctl.expr.types import is_nullable, type_of
from impctl.plan.nodes import Attribute, Catalog, ComputedColumn, JoinKind, LiveRows, Plan
from impctl.sql.text import Node, SqlText

if TYPE_CHECKING:
    from impctl.errors import QueryError
    from impctl.sql.names import TableNames
    from impctl.types import AccessId, AttributeId, FixpointId, TableName

# State of reading one query: text, catalog, unused numbers. Identities are unique in the plan;
# accesses are numbered per table in reading order, the order of the text except for common table
# expressions.

MAX_ACCESSES = 1_000
"""WITH entries that use each other twice multiply to 2 to the n."""


class ParseContext(Struct):
    """What a query is read with: text, catalog, visible WITH entries, and what has been read so
    far, which the contexts of all queries of a text share."""

    text: SqlText
    catalog: Catalog
    names: TableNames
    read_query: Callable[[Node, ParseContext], Plan]
    zone: str = "UTC"
    common_tables: Mapping[str, CommonTable] = field(default_factory=dict)
    """By lower-case name."""
    volatile: list[tuple[str, Span | None]] = field(default_factory=list)
    read_entries: set[int] = field(default_factory=set)
    """WITH entries that were read, by the `id` of their node in the tree."""
    unused: list[Plan] = field(default_factory=list)
    """Plans of entries that were not read."""
    mentions: dict[Span, TableName] = field(default_factory=dict)
    """Places in the text that name tables."""
    fixpoints: dict[int, FixpointId] = field(default_factory=dict)
    """Recursive WITH entries, by the `id` of their node."""
    live: Mapping[TableName, LiveRows] = field(default_factory=dict)
    """Expiry conditions of tables; looked up only for tables that are named."""
    _accesses: Counter[TableName] = field(default_factory=Counter)
    _nodes: Iterator[int] = field(default_factory=partial(itertools.count, 1))

    def plan_of(self, query: Node) -> Plan:
        """The plan of a query that sees the same WITH entries."""
        return self.read_query(query, self)

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
        """Id of a recursive entry, the same wherever it is read."""
        name = self.fixpoints.get(id(entry))
        if name is None:
            name, number = entry.alias, 1
            while name in self.fixpoints.values():
                number += 1
                name = f"{entry.alias}:{number}"
            self.fixpoints[id(entry)] = name
        return name

    def fresh(self, letter: str, names: Sequence[str]) -> tuple[AttributeId, ...]:
        """Ids for the outputs of one new node, such as `p3.rev`."""
        node = next(self._nodes)
        seen: Counter[str] = Counter()
        result = []
        for name in names:
            seen[name.lower()] += 1
            again = f":{seen[name.lower()]}" if seen[name.lower()] > 1 else ""
            result.append(f"{letter}{node}.{name}{again}")
        return tuple(result)

    def computed(
        self, letter: str, columns: Sequence[tuple[str, Expr]]
    ) -> tuple[ComputedColumn, ...]:
        """Output columns of one new node from their names and expressions."""
        ids = self.fresh(letter, [name for name, _ in columns])
        pairs = zip(ids, columns, strict=True)
        return tuple(
            ComputedColumn(attribute_for(i, name, expr), expr) for i, (name, expr) in pairs
        )

    def note_volatile(self, name: str, span: Span | None) -> None:
        self.volatile.append((name, span))


class CommonTable(Struct, frozen=True):
    """A WITH entry and what is visible there."""

    node: exp.CTE
    context: ParseContext
    read: Callable[[Node], Plan] | None = None
    """For an entry that reads itself: its rows, for the place that names it."""

    def plan(self, reference: Node) -> Plan:
        """Read the entry again, for the place that names it."""
        return self.context.plan_of(self.node.this) if self.read is None else self.read(reference)


def known_type(expr: Expr) -> SqlType | None:
    """The expression's type; None also for a placeholder of an unknown type."""
    result = type_of(expr)
    if result is None or (result.kind is Kind.OTHER and "unknown" in result.detail):
        return None
    return result


def attribute_for(identity: AttributeId, name: str, expr: Expr) -> Attribute:
    return Attribute(identity, name, known_type(expr), is_nullable(expr))


# What an unknown table name may have meant, for error messages only: a table, or a WITH entry,
# including the enclosing one, which is unknown inside itself without RECURSIVE.


def table_hint(node: exp.Table, written: str, known: Iterable[str]) -> str | None:
    """A hint for an unknown name, from the `known` tables and entries; None without an idea."""
    around = list(_around(node)) if len(node.parts) == 1 else []
    for entry in around:
        if entry.alias.lower() == written.lower():
            return f"write WITH RECURSIVE: without it `{entry.alias}` is unknown inside itself"
    hint = did_you_mean(written, [*known, *(entry.alias for entry in around)])
    for entry in around:
        is_recursive = entry.parent is not None and entry.parent.args.get("recursive")
        if hint is not None and f"`{entry.alias}`" in hint and not is_recursive:
            return f"{hint} An entry that reads itself needs WITH RECURSIVE"
    return hint


def _around(node: Node) -> Iterator[exp.CTE]:
    """The WITH entries around the node, the innermost first."""
    outer = node.parent
    while outer is not None:
        if isinstance(outer, exp.CTE):
            yield outer
        outer = outer.parent


# Names in one SELECT block, resolved as in Spark regardless of case. Unknown names are refused with
# similar ones, ambiguous names with the candidates. A name of an enclosing block is correlated, and
# must be allowed by the reader. A table without an alias is called by its full name or the end of
# it (`main.shop.sales.x`, `sales.x`).

Qualifier = tuple[str, ...]
"""Parts of a relation's name in lower case: an alias has one, a table three."""


class ScopeEntry(Struct, frozen=True):
    """One nameable column: its relation's name, its name, and what it reads. A column merged by
    USING has one entry without a relation name, and another with it that `*` and plain names do not
    see."""

    relation: Qualifier | None
    name: str
    expr: Expr
    is_plain: bool = True

    def is_of(self, relation: Qualifier | None) -> bool:
        """Whether the column can be called with this qualifier, or with none."""
        if relation is None:
            return self.is_plain
        return self.relation is not None and is_called(self.relation, relation)


class Scope(Struct, frozen=True):
    """Columns of a FROM clause, in the order of `*`; `outer` is the enclosing block."""

    entries: tuple[ScopeEntry, ...]
    relations: tuple[Qualifier, ...] = ()
    outer: Scope | None = None
    """Set only where correlated names are allowed."""

    def find(self, relation: Qualifier | None, name: str) -> tuple[ScopeEntry, ...]:
        """Entries of that name, each column once."""
        result: list[ScopeEntry] = []
        for entry in self.entries:
            fits = entry.is_of(relation) and entry.name.lower() == name.lower()
            if fits and entry.expr not in [other.expr for other in result]:
                result.append(entry)
        return tuple(result)

    def star(self, relation: Qualifier | None) -> tuple[ScopeEntry, ...]:
        """Columns of `*` or `relation.*`."""
        return tuple(entry for entry in self.entries if entry.is_of(relation))

    def has(self, relation: Qualifier) -> bool:
        return any(is_called(name, relation) for name in self.relations)

    def ids(self) -> frozenset[str]:
        return frozenset[str]().union(*(entry.expr.columns for entry in self.entries))


class FromSource(Struct, frozen=True):
    """Result of a FROM clause: a plan, and the names of its columns."""

    plan: Plan
    scope: Scope


def is_called(relation: Qualifier, name: Qualifier) -> bool:
    """Whether the name is the relation's or a suffix of it."""
    return relation[-len(name) :] == name


def relation_scope(name: Sequence[str] | None, attributes: Sequence[Attribute]) -> Scope:
    """Scope of one relation; `name` is its alias as the only part, or its full name."""
    key = None if name is None else tuple(part.lower() for part in name)
    entries = tuple(ScopeEntry(key, attribute.name, attribute.ref()) for attribute in attributes)
    return Scope(entries, () if key is None else (key,))


def nullable_scope(scope: Scope) -> Scope:
    """The scope after an outer join may have filled its columns with NULL."""

    def loosen(part: Expr) -> Expr | None:
        return replace(part, nullable=True) if isinstance(part, ColumnRef) else None

    entries = tuple(replace(entry, expr=entry.expr.transform(loosen)) for entry in scope.entries)
    return replace(scope, entries=entries)


def side_by_side(left: Scope, right: Scope) -> Scope:
    return Scope((*left.entries, *right.entries), (*left.relations, *right.relations))


def joined_scope(kind: JoinKind, left: Scope, right: Scope, both: Scope) -> Scope:
    """Names after a join: only the left side's for SEMI and ANTI, nullable where outer."""
    match kind:
        case JoinKind.SEMI | JoinKind.ANTI:
            return left
        case JoinKind.INNER:
            return both
        case JoinKind.LEFT:
            return side_by_side(left, nullable_scope(right))
        case JoinKind.RIGHT:
            return side_by_side(nullable_scope(left), right)
        case JoinKind.FULL:
            return nullable_scope(both)


class Prefer(StrEnum):
    """Meaning of a plain name that is both a FROM column and a select alias."""

    COLUMN = "column"
    ALIAS = "alias"
    GROUPED = "grouped"
    """A FROM column if it is a grouping expression, else the alias, else the FROM column."""


class Names(Struct, frozen=True):
    """Name resolution for one clause: FROM columns, and select aliases where Spark sees them."""

    text: SqlText
    scope: Scope
    aliases: Mapping[str, tuple[Expr, ...]] = field(default_factory=dict)
    """By lower-case name."""
    prefer: Prefer = Prefer.COLUMN
    grouped: Collection[Expr] = ()

    def column(self, node: exp.Column, *, in_aggregate: bool = False) -> Expr:
        """Resolve a column; the span of the result is the written name."""
        name, *more = parts = [part.name for part in node.parts]
        result = self._qualified(node, parts) if more else self._plain(node, name, in_aggregate)
        return replace(result, span=self.text.span_of(node))

    def _plain(self, node: exp.Column, name: str, in_aggregate: bool) -> Expr:
        columns = self.scope.find(None, name)
        aliased = self.aliases.get(name.lower(), ())
        if aliased and in_aggregate:
            if self.prefer is Prefer.ALIAS or not columns:
                raise self.text.unsupported(
                    f"the select alias `{name}` inside an aggregate function",
                    node,
                    hint="Spark does not accept it either; compute it in a subquery, or qualify "
                    "the column",
                )
            aliased = ()
        if aliased and (not columns or self._takes_alias(columns)):
            if len(aliased) > 1:
                raise self._ambiguous(node, name, [name] * len(aliased))
            return aliased[0]
        result = columns
        if not columns and self.scope.outer is not None:
            result = self.scope.outer.find(None, name)
        if not result:
            raise self._unknown(node, [name])
        return self._one(node, name, result)

    def _qualified(self, node: exp.Column, parts: Sequence[str]) -> Expr:
        """Like Spark: first the longest relation name, then shorter ones with a field of a
        column."""
        lower = tuple(part.lower() for part in parts)
        outer = self.scope.outer
        for scope in (self.scope,) if outer is None else (self.scope, outer):
            for count in range(len(parts) - 1, -1, -1):
                result = scope.find(lower[:count] or None, parts[count])
                if result and count == len(parts) - 1:
                    if scope is not self.scope:
                        self._refuse_hidden(node, lower[:count])
                    return self._one(node, parts[count], result)
                if result:
                    raise self.text.unsupported(
                        f"the nested field `{'.'.join(parts)}`",
                        node,
                        hint="impctl reads top-level columns only; store the field in its own "
                        "column",
                    )
        raise self._unknown(node, parts)

    def _one(self, node: exp.Column, name: str, result: Sequence[ScopeEntry]) -> Expr:
        if len(result) > 1:
            raise self._ambiguous(node, name, [_qualified(entry) for entry in result])
        return result[0].expr

    def _refuse_hidden(self, node: exp.Column, relation: Qualifier) -> None:
        """Rewritten texts use the last part of a table's name, so no inner relation may have the
        same."""
        if len(relation) > 1 and any(name[-1] == relation[-1] for name in self.scope.relations):
            raise self.text.unsupported(
                f"a column of an outer table named `{relation[-1]}`, which is also the name of an "
                "inner table",
                node,
                hint="give each of the two tables its own alias",
            )

    def _takes_alias(self, columns: Sequence[ScopeEntry]) -> bool:
        is_grouped = any(entry.expr in self.grouped for entry in columns)
        return self.prefer is Prefer.ALIAS or (self.prefer is Prefer.GROUPED and not is_grouped)

    def _ambiguous(self, node: exp.Column, name: str, candidates: Iterable[str]) -> QueryError:
        listed = ", ".join(f"`{candidate}`" for candidate in candidates)
        return self.text.error(
            f"Column `{name}` is ambiguous in query `{self.text.name}`: {listed}",
            node,
            hint="write the table's name before the column",
            code="column_ambiguous",
        )

    def _unknown(self, node: exp.Column, parts: Sequence[str]) -> QueryError:
        if [part.lower() for part in parts] == ["grouping__id"]:
            return self.text.unsupported("`grouping__id`", node, hint="write grouping_id()")
        relation = tuple(part.lower() for part in parts[:-1]) or None
        if relation is not None and not any(is_called(r, relation) for r in self._relations()):
            written = ".".join(parts[:-1])
            known = [name[-1] for name in self._relations()]
            if len(parts) > 2:
                known = [".".join(name) for name in self._relations()]
            return self.text.error(
                f"Query `{self.text.name}` has no table `{written}` in its FROM clause",
                node,
                hint=did_you_mean(written, known) or "use the table's alias",
                code="table_unknown",
            )
        names = [
            entry.name for entry in self.scope.entries if relation is None or entry.is_of(relation)
        ]
        where = f" in `{'.'.join(parts[:-1])}`" if relation is not None else ""
        return self.text.error(
            f"Column `{parts[-1]}` is unknown{where} in query `{self.text.name}`",
            node,
            hint=did_you_mean(parts[-1], names) or f"known columns: {_listed(names)}",
            code="column_unknown",
        )

    def _relations(self) -> tuple[Qualifier, ...]:
        outer = self.scope.outer.relations if self.scope.outer is not None else ()
        return (*self.scope.relations, *outer)


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """A hint naming the nearest known names; None when nothing is near."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    near = get_close_matches(name.lower(), list(by_lower), n=3, cutoff=0.6)
    if not near:
        return None
    return "did you mean " + " or ".join(f"`{by_lower[match]}`" for match in near) + "?"


def _qualified(entry: ScopeEntry) -> str:
    return entry.name if entry.relation is None else f"{entry.relation[-1]}.{entry.name}"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:8])
    return shown + (", ..." if len(names) > 8 else "") if names else "none"
