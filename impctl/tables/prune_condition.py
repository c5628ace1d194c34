"""Which files of a snapshot a condition leaves, by statistics and partition values alone.

Law: a file is left out only where the condition is true of none of its rows, in SQL's three-valued
logic and by Spark's order of values: NaN is greater than all others and not in the statistics,
-0.0 equals 0.0, a text maximum that may be cut is unknown, and so is whatever is not told. What is
not looked into (arithmetic, functions, casts, other types than the column's) may be anything.
Out of scope: ranges of sketches (`tables.prune`), which conditions a plan has
(`plan.scan_conditions`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from impctl.aliases import AttributeId, ColumnName
from impctl.data.schema import Column, Kind, SqlType
from impctl.expr.nodes import (
    And,
    ColumnRef,
    Compare,
    CompareOp,
    Expr,
    InList,
    IsNull,
    Literal,
    Not,
    Or,
)
from impctl.sketch.partition import BoundaryValue
from impctl.tables.snapshot import DataFile, Snapshot
from impctl.tables.statistics import FileBounds, file_bounds

_NEGATED = {
    CompareOp.EQUAL: CompareOp.NOT_EQUAL,
    CompareOp.NOT_EQUAL: CompareOp.EQUAL,
    CompareOp.LESS: CompareOp.GREATER_EQUAL,
    CompareOp.LESS_EQUAL: CompareOp.GREATER,
    CompareOp.GREATER: CompareOp.LESS_EQUAL,
    CompareOp.GREATER_EQUAL: CompareOp.LESS,
}
_SAME_VALUES = frozenset({Kind.STRING, Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMP_NTZ})
"""Types whose constants are compared as they are with a column of the very type."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a condition may be of some row of a file; that it may be NULL never matters."""

    may_be_true: bool
    may_be_false: bool

    @property
    def negated(self) -> _Outcome:
        return _Outcome(self.may_be_false, self.may_be_true)


_ANYTHING = _Outcome(True, True)
_NULL = _Outcome(False, False)


def prune_by_condition(
    snapshot: Snapshot, condition: Expr, columns: Mapping[AttributeId, ColumnName]
) -> tuple[DataFile, ...]:
    """The files that may hold a row of which the condition is true.

    `columns`: the column that each attribute in the condition is.
    """
    judge = _Judge(snapshot, columns, {})
    return tuple(
        file for at, file in enumerate(snapshot.files) if judge.of(condition, at).may_be_true
    )


@dataclass(frozen=True, slots=True)
class _Judge:
    """One snapshot's statistics, looked up once per column."""

    snapshot: Snapshot
    columns: Mapping[AttributeId, ColumnName]
    known: dict[AttributeId, tuple[Column, tuple[FileBounds, ...]] | None]

    def of(self, condition: Expr, at: int) -> _Outcome:
        """The condition over the rows of the file at this position."""
        match condition:
            case And(operands=operands):
                found = [self.of(operand, at) for operand in operands]
                return _Outcome(
                    all(one.may_be_true for one in found), any(one.may_be_false for one in found)
                )
            case Or(operands=operands):
                found = [self.of(operand, at) for operand in operands]
                return _Outcome(
                    any(one.may_be_true for one in found), all(one.may_be_false for one in found)
                )
            case Not(operand=operand):
                return self.of(operand, at).negated
            case Compare(op=op, left=ColumnRef() as left, right=Literal() as right):
                return self._compared(op, left, right, at)
            case Compare(op=op, left=Literal() as left, right=ColumnRef() as right):
                return self._compared(op.mirrored, right, left, at)
            case InList(operand=ColumnRef() as left, options=options):
                return self._listed(left, options, at)
            case IsNull(operand=ColumnRef() as operand):
                found_of = self._bounds(operand)
                if found_of is None:
                    return _ANYTHING
                bounds = found_of[1][at]
                return _Outcome(bounds.may_hold_null, not bounds.is_all_null)
            case Literal(value=bool() as value):
                return _Outcome(value, not value)
            case Literal(value=None):
                return _NULL
        return _ANYTHING

    def _bounds(self, ref: ColumnRef) -> tuple[Column, tuple[FileBounds, ...]] | None:
        """The column and its bounds by file; None where it is of another type at this version."""
        if ref.id not in self.columns:
            return None
        if ref.id not in self.known:
            column = self.snapshot.column(self.columns[ref.id])
            is_told = column.type == ref.type and column.name not in self.snapshot.columns.opaque
            self.known[ref.id] = (
                (column, file_bounds(self.snapshot, column.name)) if is_told else None
            )
        return self.known[ref.id]

    def _listed(self, ref: ColumnRef, options: tuple[Expr, ...], at: int) -> _Outcome:
        """IN: true where one of them may be equal; false is not looked into.

        All are brought to one type first, so constants of another sort may round the column.
        """
        is_alike = all(
            option.type == ref.type or (option.type.is_integral and ref.type.is_integral)
            if isinstance(option, Literal)
            else False
            for option in options
        )
        if not is_alike:
            return _ANYTHING
        equal = [Compare(CompareOp.EQUAL, ref, option) for option in options]
        return _Outcome(any(self.of(one, at).may_be_true for one in equal), True)

    def _compared(self, op: CompareOp, ref: ColumnRef, literal: Literal, at: int) -> _Outcome:
        found = self._bounds(ref)
        if found is None:
            return _ANYTHING
        column, every = found
        bounds = every[at]
        if literal.value is None:
            if op is CompareOp.NULL_SAFE_EQUAL:
                return _Outcome(bounds.may_hold_null, not bounds.is_all_null)
            return _NULL
        value = _canonical(literal, column.type)
        if value is None:
            return _ANYTHING
        if op is CompareOp.NULL_SAFE_EQUAL:
            equal = self._compared(CompareOp.EQUAL, ref, literal, at)
            return _Outcome(equal.may_be_true, equal.may_be_false or bounds.may_hold_null)
        if bounds.is_all_null:
            return _NULL
        return _Outcome(_may_hold(op, bounds, value), _may_hold(_NEGATED[op], bounds, value))


def _may_hold(op: CompareOp, bounds: FileBounds, value: BoundaryValue | Fraction) -> bool:
    """Whether some value between the bounds, or NaN where it may be there, compares so."""
    low, high = bounds.minimum, bounds.maximum
    match op:
        case CompareOp.LESS:
            return low is None or low < value  # type: ignore[operator]  # one column, one value type
        case CompareOp.LESS_EQUAL:
            return low is None or low <= value  # type: ignore[operator]  # as above
        case CompareOp.GREATER:
            return bounds.may_be_nan or high is None or high > value  # type: ignore[operator]  # as above
        case CompareOp.GREATER_EQUAL:
            return bounds.may_be_nan or high is None or high >= value  # type: ignore[operator]  # as above
        case CompareOp.EQUAL:
            below = low is None or low <= value  # type: ignore[operator]  # as above
            return below and (high is None or high >= value)  # type: ignore[operator]  # as above
        case _:
            return bounds.may_be_nan or not (low == value == high)


def _canonical(literal: Literal, kind: SqlType) -> BoundaryValue | Fraction | None:
    """The constant in the column's canonical form (see `data.vector`); None where Spark brings
    the two to a type that rounds, or where they are not numbers of one sort."""
    value, other = literal.value, literal.type
    if kind.kind in _SAME_VALUES:
        if other.kind is not kind.kind or isinstance(value, bool):
            return None
        return value if isinstance(value, int | str) else None
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    if kind.is_fractional:
        # A constant of another sort becomes a float or a double; few whole numbers do so exactly.
        most = 1 << (24 if kind.kind is Kind.FLOAT else 53)
        is_exact = isinstance(value, float) or (isinstance(value, int) and abs(value) <= most)
        found = float(value) if is_exact else None
        return None if found is None or found != found else found
    if isinstance(value, float) or other.is_fractional:
        return None
    if kind.is_integral:
        return Fraction(value) if _fits_beside(other) else None
    if kind.kind is Kind.DECIMAL and _fits_together(kind, other):
        return Fraction(value) * Fraction(10**kind.scale)
    return None


def _fits_beside(other: SqlType) -> bool:
    """Whether an integer column and this constant have a decimal that holds both exactly."""
    return other.is_integral or (other.kind is Kind.DECIMAL and 20 + other.scale <= 38)


def _fits_together(kind: SqlType, other: SqlType) -> bool:
    """Whether the two decimals have a common one that holds both exactly."""
    digits, scale = (19, 0) if other.is_integral else (other.precision, other.scale)
    wider = max(kind.scale, scale)
    return max(kind.precision - kind.scale, digits - scale) + wider <= 38
