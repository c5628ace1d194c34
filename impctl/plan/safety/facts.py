"""Sign and NULL facts about columns, and what they imply for expressions.

Law: a fact holds for every row of the table, hence also for every instance of it; all facts derived
here hold over the table and over the sketch alike. `nonnegative` reads "NULL, NaN or at least 0"
(NaN is the greatest value and does no harm there), `nonpositive` reads "NULL or at most 0" and so
excludes NaN.
Out of scope: where facts come from (constraints, statistics), facts of expressions
(`plan.safety.signs`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from decimal import Decimal
from enum import StrEnum
from typing import assert_never

from impctl.data.schema import DOUBLE, SqlType
from impctl.expr.nodes import ColumnRef, Compare, CompareOp, Expr, IsNull, Literal, Not
from impctl.plan.nodes import Scan
from impctl.types import AttributeId, ColumnName, TableName
from impctl.values import dataclass


class FactKind(StrEnum):
    NONNEGATIVE = "nonnegative"
    NONPOSITIVE = "nonpositive"
    NOT_NULL = "not null"
    NAN_FREE = "free of NaN"


class FactSource(StrEnum):
    CONSTRAINT = "constraint"
    """Said by a CHECK of the table and true of one version; asked again at every other."""
    STATISTICS = "statistics"
    """True of one version; later rows may break it, so a sketch that rests on it records it."""
    PREDICATE = "predicate"
    """Follows from the query's own conditions."""


def broken_by(kind: FactKind, column: ColumnRef) -> Expr:
    """The condition that is true of exactly those values of the column that break such a fact."""
    match kind:
        case FactKind.NOT_NULL:
            return IsNull(column)
        case FactKind.NONNEGATIVE:
            return Compare(CompareOp.LESS, column, _zero(column))
        case FactKind.NONPOSITIVE:
            # NaN is not at most 0.
            return Not(Compare(CompareOp.LESS_EQUAL, column, _zero(column)))
        case FactKind.NAN_FREE:
            return Compare(CompareOp.EQUAL, column, Literal(math.nan, DOUBLE))
        case _:
            assert_never(kind)


def _zero(column: ColumnRef) -> Literal:
    """Of the column's own type, so that nothing is cast before it is compared."""
    return Literal(0, column.type)


@dataclass(frozen=True, slots=True)
class Fact:
    """Something known about all values of a column."""

    table: TableName
    column: ColumnName
    kind: FactKind
    source: FactSource


_ZERO = Decimal(0)
_ENDLESS = Decimal("Infinity")


@dataclass(frozen=True, slots=True)
class Signs:
    """What is known about the values of an expression; False and None mean not known.

    `least` and `most` are whole numbers that bound what is not NULL; `most` excludes NaN.
    """

    nonnegative: bool = False
    nonpositive: bool = False
    nan_free: bool = False
    not_null: bool = False
    least: Decimal | None = None
    most: Decimal | None = None

    @property
    def bounds(self) -> tuple[Decimal, Decimal]:
        """The interval that holds every value but NULL, by signs and numbers; it may be endless."""
        low = -_ENDLESS if self.least is None else self.least
        high = _ENDLESS if self.most is None else self.most
        return (max(low, _ZERO) if self.nonnegative else low), (
            min(high, _ZERO) if self.nonpositive else high
        )

    def meet(self, other: Signs) -> Signs:
        """What holds whichever of the two describes the value."""
        return Signs(
            self.nonnegative and other.nonnegative,
            self.nonpositive and other.nonpositive,
            self.nan_free and other.nan_free,
            self.not_null and other.not_null,
            None if self.least is None or other.least is None else min(self.least, other.least),
            None if self.most is None or other.most is None else max(self.most, other.most),
        )

    def also(self, other: Signs) -> Signs:
        """What holds when both describe the value."""
        return Signs(
            self.nonnegative or other.nonnegative,
            self.nonpositive or other.nonpositive,
            self.nan_free or other.nan_free,
            self.not_null or other.not_null,
            max((x for x in (self.least, other.least) if x is not None), default=None),
            min((x for x in (self.most, other.most) if x is not None), default=None),
        )

    def unbounded(self) -> Signs:
        """Without the numbers."""
        return replace(self, least=None, most=None)

    def or_null(self) -> Signs:
        """The same of a value that may also be NULL."""
        return replace(self, not_null=False)


NOTHING = Signs()

KnownSigns = Mapping[AttributeId | Expr, Signs]
"""Facts by column identity, and for some whole expressions (`WHERE price * n >= 0`)."""


def may_be_nan(sql_type: SqlType | None, signs: Signs) -> bool:
    """Whether a value of this type may be NaN; an unknown type may."""
    if signs.nan_free:
        return False
    return sql_type is None or not (sql_type.is_numeric and not sql_type.is_fractional)


def signs_of_scan(scan: Scan, facts: Collection[Fact]) -> dict[AttributeId | Expr, Signs]:
    """Facts of a table's columns in one access."""
    about: dict[ColumnName, set[Fact]] = {}
    for fact in facts:
        if fact.table == scan.table:
            about.setdefault(fact.column.lower(), set()).add(fact)
    signs: dict[AttributeId | Expr, Signs] = {}
    for attribute in scan.attributes:
        result = about.get(attribute.name.lower(), set())
        signs[attribute.id] = _signs_of_column(attribute.type, result)
    return signs


def _signs_of_column(sql_type: SqlType | None, facts: Collection[Fact]) -> Signs:
    kinds = {fact.kind for fact in facts}
    is_number = sql_type is not None and sql_type.is_numeric
    exact = sql_type is not None and is_number and not sql_type.is_fractional
    # Statistics skip NaN, and so does a CHECK (x <= 0) of writers to whom a NaN with its sign bit
    # set is less than every number.
    nan_free = exact or FactKind.NAN_FREE in kinds
    return Signs(
        nonnegative=is_number and FactKind.NONNEGATIVE in kinds,
        nonpositive=is_number and FactKind.NONPOSITIVE in kinds and nan_free,
        nan_free=nan_free,
        not_null=FactKind.NOT_NULL in kinds,
    )
