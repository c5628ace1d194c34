"""Joins by columns of one name: USING and NATURAL.

Law: the columns appear once and first in `*`, and first in `t.*`, as Spark orders them. Where Spark
pairs columns otherwise than by one name on each side, the join is refused.
Source: Spark's Analyzer, rule ResolveNaturalAndUsingJoin.
Out of scope: joins with ON (`plan.sql.relation`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from impctl.expr.nodes import And, Coalesce, Compare, CompareOp, Expr, Span
from impctl.plan.nodes import JoinKind
from impctl.plan.sql.scope import Names, Scope, ScopeEntry, joined_scope, side_by_side
from impctl.plan.sql.text import SqlText

Pairs = Sequence[tuple[ScopeEntry, ScopeEntry]]


def same_names(left: Scope, right: Scope, node: exp.Join, text: SqlText) -> Pairs | None:
    """The columns that USING or NATURAL pairs; None for any other join."""
    if str(node.args.get("method") or "").upper() == "NATURAL":
        return _natural(left, right, node, text)
    using = node.args.get("using") or []
    if not using:
        return None
    result = []
    for identifier in using:
        if not isinstance(identifier, exp.Identifier | exp.Column):
            raise text.unsupported("an expression in USING", identifier, hint="use ON instead")
        column = identifier if isinstance(identifier, exp.Column) else exp.column(identifier.copy())
        for side in (left, right):
            Names(text, side).column(column)
        result.append((left.find(None, column.name)[0], right.find(None, column.name)[0]))
    return result


def _natural(left: Scope, right: Scope, node: exp.Join, text: SqlText) -> Pairs:
    pairs = [(one, other) for one in left.star(None) for other in right.find(None, one.name)]
    counts = Counter(one.name.lower() for one, _ in pairs)
    if any(count > 1 for count in counts.values()) or any(a.name != b.name for a, b in pairs):
        # Spark pairs the first ones there, and tells upper from lower case.
        raise text.unsupported(
            "a NATURAL join whose sides have duplicate column names, or names that differ in case",
            node,
            hint="use USING or ON",
        )
    return pairs


def equal_names(pairs: Pairs, span: Span | None) -> Expr | None:
    """The condition that the columns of each pair are equal; None without pairs."""
    equals = tuple(Compare(CompareOp.EQUAL, a.expr, b.expr, span=span) for a, b in pairs)
    if not equals:
        return None
    return equals[0] if len(equals) == 1 else And(equals, span=span)


def merged_scope(kind: JoinKind, left: Scope, right: Scope, pairs: Pairs) -> Scope:
    """The names after the join: merged columns once, and first, in `*`; first in `t.*`, too."""
    seen = joined_scope(kind, left, right, side_by_side(left, right))
    count = len(left.entries)
    lefts = [left.entries.index(a) for a, _ in pairs]
    if kind in (JoinKind.SEMI, JoinKind.ANTI):
        return replace(seen, entries=_first(lefts, seen.entries))
    rights = [count + right.entries.index(b) for _, b in pairs]
    merged = [
        ScopeEntry(None, a.name, _merged_value(kind, seen.entries[i].expr, seen.entries[j].expr))
        for (a, _), i, j in zip(pairs, lefts, rights, strict=True)
    ]
    hidden = {*lefts, *rights}
    rest = tuple(
        replace(entry, is_plain=False) if position in hidden else entry
        for position, entry in enumerate(seen.entries)
    )
    return replace(seen, entries=(*merged, *_first([*lefts, *rights], rest)))


def _first(positions: Sequence[int], entries: Sequence[ScopeEntry]) -> tuple[ScopeEntry, ...]:
    """The entries at these positions, then all others."""
    others = [entry for place, entry in enumerate(entries) if place not in positions]
    return (*(entries[place] for place in positions), *others)


def _merged_value(kind: JoinKind, left: Expr, right: Expr) -> Expr:
    if kind is JoinKind.FULL:
        return Coalesce((left, right))
    return right if kind is JoinKind.RIGHT else left
