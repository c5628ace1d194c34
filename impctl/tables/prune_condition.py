"""Which files of a snapshot a condition leaves, by statistics and partition values alone.

Law: a file is left out only where the condition is true of none of its rows, in SQL's three-valued
logic and by Spark's order of values: NaN is greater than all others and not in the statistics,
-0.0 equals 0.0, a text maximum that may be cut is unknown, and so is whatever is not told. What is
not looked into (arithmetic, functions, casts, other types than the column's) may be anything.
Out of scope: ranges of sketches (`tables.prune`), which conditions a plan has
(`plan.properties`).
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from impctl.data.schema import Column, Kind, SqlType
from impctl.data.vector import INT64_MAX, INT64_MIN
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
from impctl.tables.bounds import ColumnBounds, Flags, Values
from impctl.tables.snapshot import DataFile, Snapshot
from impctl.tables.statistics import file_bounds
from impctl.types import AttributeId, ColumnName
from impctl.values import dataclass

_SAME_VALUES = frozenset({Kind.STRING, Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMP_NTZ})
"""Types whose constants are compared as they are with a column of the very type."""


@dataclass(frozen=True, slots=True, eq=False)
class _Outcomes:
    """What a condition may be of some row of each file, shape (files,); NULL never matters."""

    may_be_true: Flags
    may_be_false: Flags

    @property
    def negated(self) -> _Outcomes:
        return _Outcomes(self.may_be_false, self.may_be_true)


def prune_by_condition(
    snapshot: Snapshot, condition: Expr, columns: Mapping[AttributeId, ColumnName]
) -> tuple[DataFile, ...]:
    """The files that may hold a row of which the condition is true.

    `columns`: the column that each attribute in the condition is.
    """
    kept = _Judge(snapshot, columns, {}).of(condition).may_be_true
    return snapshot.files_at(kept)


@dataclass(frozen=True, slots=True)
class _Judge:
    """One snapshot's statistics, looked up once per column."""

    snapshot: Snapshot
    columns: Mapping[AttributeId, ColumnName]
    known: dict[AttributeId, tuple[Column, ColumnBounds] | None]

    def of(self, condition: Expr) -> _Outcomes:
        """The condition over the rows of every file."""
        match condition:
            case And(operands=operands):
                result = [self.of(operand) for operand in operands]
                return _Outcomes(
                    np.logical_and.reduce([one.may_be_true for one in result]),
                    np.logical_or.reduce([one.may_be_false for one in result]),
                )
            case Or(operands=operands):
                return self.of(And(tuple(Not(operand) for operand in operands))).negated
            case Not(operand=operand):
                return self.of(operand).negated
            case Compare(op=op, left=ColumnRef() as left, right=Literal() as right):
                return self._compared(op, left, right)
            case Compare(op=op, left=Literal() as left, right=ColumnRef() as right):
                return self._compared(op.mirrored, right, left)
            case InList(operand=ColumnRef() as left, options=options):
                return self._listed(left, options)
            case IsNull(operand=ColumnRef() as operand):
                return self._missing(operand)
            case Literal(value=bool() as value):
                return self._everywhere(value, not value)
            case Literal(value=None):
                return self._everywhere(False, False)
        return self._anything()

    def _everywhere(self, may_be_true: bool, may_be_false: bool) -> _Outcomes:
        files = len(self.snapshot.files)
        return _Outcomes(np.full(files, may_be_true), np.full(files, may_be_false))

    def _anything(self) -> _Outcomes:
        return self._everywhere(True, True)

    def _bounds(self, ref: ColumnRef) -> tuple[Column, ColumnBounds] | None:
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

    def _missing(self, ref: ColumnRef) -> _Outcomes:
        """IS NULL, and `<=> NULL`."""
        bounds = self._bounds(ref)
        if bounds is None:
            return self._anything()
        return _Outcomes(bounds[1].may_hold_null, ~bounds[1].is_all_null)

    def _listed(self, ref: ColumnRef, options: tuple[Expr, ...]) -> _Outcomes:
        """IN, which is several equalities.

        All are brought to one type first, so constants of another sort may round the column.
        """
        is_alike = all(
            option.type == ref.type or (option.type.is_integral and ref.type.is_integral)
            if isinstance(option, Literal)
            else False
            for option in options
        )
        if not is_alike:
            return self._anything()
        return self.of(Or(tuple(Compare(CompareOp.EQUAL, ref, option) for option in options)))

    def _compared(self, op: CompareOp, ref: ColumnRef, literal: Literal) -> _Outcomes:
        is_null_safe = op is CompareOp.NULL_SAFE_EQUAL
        if literal.value is None:
            return self._missing(ref) if is_null_safe else self._everywhere(False, False)
        result = self._bounds(ref)
        value = None if result is None else _canonical(literal, result[0].type)
        if result is None or value is None:
            return self._anything()
        op = CompareOp.EQUAL if is_null_safe else op
        bounds, is_filled = result[1], ~result[1].is_all_null
        may_be_false = is_filled & _may_be_false(op, bounds, value)
        return _Outcomes(
            is_filled & _may_hold(op, bounds, value),
            may_be_false | bounds.may_hold_null if is_null_safe else may_be_false,
        )


def _may_be_false(op: CompareOp, bounds: ColumnBounds, value: BoundaryValue | Fraction) -> Flags:
    """Where some value, NULL left aside, does not compare so."""
    opposite = op.opposite
    if opposite is None:
        return np.ones(len(bounds), dtype=np.bool_)
    return _may_hold(opposite, bounds, value)


def _may_hold(op: CompareOp, bounds: ColumnBounds, value: BoundaryValue | Fraction) -> Flags:
    """Where some value between the bounds, or NaN where it may be there, compares so."""
    (lows, own), (highs, _) = _beside(bounds.lows, value), _beside(bounds.highs, value)
    match op:
        case CompareOp.LESS:
            result = ~bounds.has_low | (lows < own)
        case CompareOp.LESS_EQUAL:
            result = ~bounds.has_low | (lows <= own)
        case CompareOp.GREATER:
            result = bounds.may_be_nan | ~bounds.has_high | (highs > own)
        case CompareOp.GREATER_EQUAL:
            result = bounds.may_be_nan | ~bounds.has_high | (highs >= own)
        case CompareOp.EQUAL:
            below = ~bounds.has_low | (lows <= own)
            result = below & (~bounds.has_high | (highs >= own))
        case _:
            is_it_alone = bounds.has_low & (lows == own) & bounds.has_high & (highs == own)
            result = bounds.may_be_nan | ~is_it_alone
    return np.asarray(result, dtype=np.bool_)


def _beside(values: Values, value: BoundaryValue | Fraction) -> tuple[Values, Any]:
    """Both in a form in which NumPy compares them exactly: one by one where it would round."""
    if values.dtype == np.int64 and isinstance(value, int) and INT64_MIN <= value <= INT64_MAX:
        return values, value
    if values.dtype == np.float64 and isinstance(value, float):
        return values, value
    return values.astype(np.object_), np.array(value, dtype=np.object_)


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
        result = float(value) if is_exact else None
        return None if result is None or result != result else result
    if isinstance(value, float) or other.is_fractional:
        return None
    if kind.is_integral:
        return _exact(Fraction(value)) if _fits_beside(other) else None
    if kind.kind is Kind.DECIMAL and _fits_together(kind, other):
        return _exact(Fraction(value) * 10**kind.scale)
    return None


def _exact(value: Fraction) -> int | Fraction:
    """The same number, whole where it can be: fractions are slow to compare."""
    return value.numerator if value.denominator == 1 else value


def _fits_beside(other: SqlType) -> bool:
    """Whether an integer column and this constant have a decimal that holds both exactly."""
    return other.is_integral or (other.kind is Kind.DECIMAL and 20 + other.scale <= 38)


def _fits_together(kind: SqlType, other: SqlType) -> bool:
    """Whether the two decimals have a common one that holds both exactly."""
    digits, scale = (19, 0) if other.is_integral else (other.precision, other.scale)
    wider = max(kind.scale, scale)
    return max(kind.precision - kind.scale, digits - scale) + wider <= 38
