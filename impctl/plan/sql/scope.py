"""What the names in one SELECT block stand for.

Law: a name means what Spark makes of it, without regard to case, or it is refused with its place
and near names; an ambiguous name is refused with its candidates. A name found only in an
enclosing block is a correlated one, and allowed only where the reader said so.
Out of scope: expressions (`parse_expr`), where relations come from (`parse_relation`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from enum import StrEnum

from sqlglot import exp

from impctl.errors import QueryError
from impctl.expr.nodes import ColumnRef, Expr, transform, walk
from impctl.plan.nodes import Attribute, JoinKind
from impctl.plan.sql.text import SqlText


@dataclass(frozen=True, slots=True)
class ScopeEntry:
    """One nameable column: its relation's name (lower case), its own name, and what it reads.

    A column merged by USING is nameable without its relation's name through one entry, and with
    it through another that `*` and plain names do not see.
    """

    relation: str | None
    name: str
    expr: Expr
    is_plain: bool = True

    def has_name(self, name: str) -> bool:
        return self.name.lower() == name.lower()


@dataclass(frozen=True, slots=True)
class Scope:
    """The columns a FROM clause offers, in the order of `*`; `outer` is the enclosing block."""

    entries: tuple[ScopeEntry, ...]
    relations: tuple[str, ...] = ()
    outer: Scope | None = None
    """Set only where correlated names are allowed."""

    def find(self, relation: str | None, name: str) -> tuple[ScopeEntry, ...]:
        """Entries of that name, counting one column once."""
        found: list[ScopeEntry] = []
        for entry in self.entries:
            fits = entry.is_plain if relation is None else entry.relation == relation
            if fits and entry.has_name(name) and entry.expr not in [e.expr for e in found]:
                found.append(entry)
        return tuple(found)

    def star(self, relation: str | None) -> tuple[ScopeEntry, ...]:
        """What `*` or `relation.*` stands for."""
        if relation is None:
            return tuple(entry for entry in self.entries if entry.is_plain)
        return tuple(entry for entry in self.entries if entry.relation == relation)

    def ids(self) -> frozenset[str]:
        """Identities of every column read here."""
        return frozenset(part.id for entry in self.entries for part in _refs(entry.expr))


def relation_scope(alias: str | None, attributes: Sequence[Attribute]) -> Scope:
    """The scope of one relation."""
    key = None if alias is None else alias.lower()
    entries = tuple(ScopeEntry(key, attribute.name, attribute.ref()) for attribute in attributes)
    return Scope(entries, () if key is None else (key,))


def nullable_scope(scope: Scope) -> Scope:
    """The scope once an outer join may have filled its columns with NULL."""

    def loosen(part: Expr) -> Expr | None:
        return replace(part, nullable=True) if isinstance(part, ColumnRef) else None

    entries = tuple(replace(entry, expr=transform(entry.expr, loosen)) for entry in scope.entries)
    return replace(scope, entries=entries)


def side_by_side(left: Scope, right: Scope) -> Scope:
    """The names of both."""
    return Scope((*left.entries, *right.entries), (*left.relations, *right.relations))


def joined_scope(kind: JoinKind, left: Scope, right: Scope, both: Scope) -> Scope:
    """The names after a join: without the right side's for SEMI and ANTI, NULL where outer."""
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
    """Which meaning a plain name takes when a FROM column and a select alias share it."""

    COLUMN = "column"
    ALIAS = "alias"
    GROUPED = "grouped"
    """A FROM column if it is a grouping expression, else the alias, else the FROM column."""


@dataclass(frozen=True, slots=True)
class Names:
    """Name resolution for one clause: FROM columns, and select aliases where Spark sees them."""

    text: SqlText
    scope: Scope
    aliases: Mapping[str, tuple[Expr, ...]] = field(default_factory=dict)
    """By lower-case name."""
    prefer: Prefer = Prefer.COLUMN
    grouped: Collection[Expr] = ()

    def column(self, node: exp.Column, *, in_aggregate: bool = False) -> Expr:
        """What a written column reads; its span is the written name."""
        parts = [part.name for part in node.parts]
        span = self.text.span_of(node)
        if len(parts) > 2:
            raise self._nested(node, parts)
        relation = parts[0].lower() if len(parts) == 2 else None
        found = self._meaning(node, relation, parts[-1], in_aggregate)
        return replace(found, span=span)

    def _meaning(
        self, node: exp.Column, relation: str | None, name: str, in_aggregate: bool
    ) -> Expr:
        own = self.scope.find(relation, name)
        aliased = () if relation is not None else self.aliases.get(name.lower(), ())
        if aliased and in_aggregate:
            if self.prefer is Prefer.ALIAS or not own:
                raise self._alias_in_aggregate(node, name)
            aliased = ()
        if aliased and (not own or self._takes_alias(own)):
            if len(aliased) > 1:
                raise self._ambiguous(node, name, [name] * len(aliased))
            return aliased[0]
        if len(own) > 1:
            raise self._ambiguous(node, name, [_qualified(entry) for entry in own])
        if own:
            return own[0].expr
        if self.scope.outer is not None:
            outer = self.scope.outer.find(relation, name)
            if len(outer) > 1:
                raise self._ambiguous(node, name, [_qualified(entry) for entry in outer])
            if outer:
                return outer[0].expr
        raise self._unknown(node, relation, name)

    def _takes_alias(self, own: Sequence[ScopeEntry]) -> bool:
        match self.prefer:
            case Prefer.COLUMN:
                return False
            case Prefer.ALIAS:
                return True
            case Prefer.GROUPED:
                return not any(entry.expr in self.grouped for entry in own)

    def _alias_in_aggregate(self, node: exp.Column, name: str) -> QueryError:
        return self.text.unsupported(
            f"the select alias `{name}` inside an aggregate function",
            node,
            hint="Spark does not take it either: compute it in a subquery, or qualify the column",
        )

    def _ambiguous(self, node: exp.Column, name: str, candidates: Iterable[str]) -> QueryError:
        listed = ", ".join(f"`{candidate}`" for candidate in candidates)
        return self.text.error(
            f"Column `{name}` is ambiguous in query `{self.text.name}`: {listed}",
            node,
            hint="put the name of the table before the column",
            code="column_ambiguous",
        )

    def _unknown(self, node: exp.Column, relation: str | None, name: str) -> QueryError:
        if relation is not None:
            holder = self.scope.find(None, relation)
            if relation not in self.scope.relations and holder:
                return self._nested(node, [relation, name])
        if relation is not None and relation not in self._relations():
            return self.text.error(
                f"Query `{self.text.name}` names no table `{node.table}` in its FROM clause",
                node,
                hint=did_you_mean(node.table, self._relations()) or "use the table's alias",
                code="table_unknown",
            )
        names = [
            entry.name
            for entry in self.scope.entries
            if relation is None or entry.relation == relation
        ]
        where = f" in `{node.table}`" if relation is not None else ""
        return self.text.error(
            f"Column `{name}` is unknown{where} in query `{self.text.name}`",
            node,
            hint=did_you_mean(name, names) or f"known columns: {_listed(names)}",
            code="column_unknown",
        )

    def _relations(self) -> tuple[str, ...]:
        outer = self.scope.outer.relations if self.scope.outer is not None else ()
        return (*self.scope.relations, *outer)

    def _nested(self, node: exp.Column, parts: Sequence[str]) -> QueryError:
        return self.text.unsupported(
            f"the nested field `{'.'.join(parts)}`",
            node,
            hint="impctl reads top-level columns only; store the field in a column of its own",
        )


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """A hint naming the nearest known names; None when nothing is near."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    near = get_close_matches(name.lower(), list(by_lower), n=3, cutoff=0.6)
    if not near:
        return None
    return "did you mean " + " or ".join(f"`{by_lower[match]}`" for match in near) + "?"


def _qualified(entry: ScopeEntry) -> str:
    return entry.name if entry.relation is None else f"{entry.relation}.{entry.name}"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:8])
    return shown + (", ..." if len(names) > 8 else "") if names else "none"


def _refs(expr: Expr) -> Iterable[ColumnRef]:
    return [part for part in walk(expr) if isinstance(part, ColumnRef)]
