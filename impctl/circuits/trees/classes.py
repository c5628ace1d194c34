"""Columns of several relations that conditions make equal, in classes.

Law: in every joined row all members of a class are equal, so that any one of them stands for all.
All integral types count as one type; other types must be the same, because equality of two types is
not transitive (`'01' = 1` and `'1' = 1`). A class is null-safe iff all its equalities are (`<=>`):
one `=` in it and no joined row has NULL there. Members may be computed, each of one relation.
Out of scope: equalities within one relation, which are conditions on its rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from impctl.data.schema import Kind
from impctl.expr.nodes import Call, ColumnRef, Compare, CompareOp, Expr, Span, columns_of, walk
from impctl.expr.types import groups_as_compared, type_of
from impctl.plan.functions import VOLATILE
from impctl.types import AttributeId
from impctl.values import dataclass

_EQUALITIES = (CompareOp.EQUAL, CompareOp.NULL_SAFE_EQUAL)


@dataclass(frozen=True, slots=True)
class Equality:
    """Two expressions, each over other relations, that a condition makes equal."""

    sides: tuple[Expr, Expr]
    null_safe: bool
    span: Span | None


@dataclass(frozen=True, slots=True)
class KeyClass:
    """Its members in the order of the SQL, with the relation of each."""

    members: tuple[tuple[int, Expr], ...]
    null_safe: bool

    @property
    def relations(self) -> frozenset[int]:
        return frozenset(relation for relation, _ in self.members)

    def has(self, expr: Expr) -> bool:
        """Whether the expression is a member."""
        return any(is_same(expr, member) for _, member in self.members)

    def members_in(self, relations: Collection[int]) -> tuple[Expr, ...]:
        """The members that these relations have."""
        return tuple(member for relation, member in self.members if relation in relations)


def is_same(one: Expr, other: Expr) -> bool:
    """Whether they are one column, or computed alike; a column may be NULL in one place only."""
    if isinstance(one, ColumnRef) and isinstance(other, ColumnRef):
        return one.id == other.id
    return one == other


def equality_of(condition: Expr, bounded: Collection[AttributeId]) -> Equality | None:
    """The equality that a condition states of values that can be looked up; None without one.

    Nothing is looked up by `bounded` columns.
    """
    if not isinstance(condition, Compare) or condition.op not in _EQUALITIES:
        return None
    one, other = condition.left, condition.right
    kind = type_of(one)
    if not groups_as_compared(kind, type_of(other)) or kind is None:
        return None
    if kind.kind in (Kind.OTHER, Kind.NULL) or columns_of(condition) & frozenset(bounded):
        return None
    if any(isinstance(part, Call) and part.name in VOLATILE for part in walk(condition)):
        return None
    return Equality((one, other), condition.op is CompareOp.NULL_SAFE_EQUAL, condition.span)


def classes_of(
    equalities: Sequence[tuple[Equality, tuple[int, int]]],
) -> tuple[KeyClass, ...]:
    """The classes that equalities between relations (each with those of its sides) lead to."""
    key_classes: list[KeyClass] = []
    for equality, owners in equalities:
        members = list(zip(owners, equality.sides, strict=True))
        null_safe = equality.null_safe
        for other in [one for one in key_classes if any(one.has(side) for side in equality.sides)]:
            key_classes.remove(other)
            members = [*other.members, *(new for new in members if not other.has(new[1]))]
            null_safe = null_safe and other.null_safe
        key_classes.append(KeyClass(tuple(members), null_safe))
    return tuple(sorted((_ordered(one) for one in key_classes), key=lambda one: one.members[0][0]))


def _ordered(key_class: KeyClass) -> KeyClass:
    """The members by relation; those of one relation in the order in which they came."""
    return KeyClass(tuple(sorted(key_class.members, key=lambda one: one[0])), key_class.null_safe)
