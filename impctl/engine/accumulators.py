"""What an aggregate remembers per group for one argument.

Law: every accumulator is an abelian group under `add`: deleting what was inserted leaves what was
before, so the order and batching of changes do not matter. Counts, and sums of integers and
decimals, are exact. Sums of doubles carry how far Spark's order-dependent sum may lie from ours:
n rows of total magnitude M are off by at most n * 2^-53 * M, plus our own compensated error.
NaN and infinities are counted apart, so that deleting them restores the finite sum.
State columns are named `<kind><argument>`; an absent column is all zero.
Out of scope: AVG (split into SUM and COUNT by the plan), variances (`engine.spread`), DISTINCT,
MIN and MAX.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from impctl.data.keys import Grouping
from impctl.data.schema import DOUBLE, LONG, Kind, SqlType
from impctl.data.vector import Ints, Vector
from impctl.engine import compensated, wide
from impctl.engine.partial_column import ROWS, SPECIALS, Meaning, PartialColumn
from impctl.errors import EvaluationError
from impctl.types import AttributeId
from impctl.values import dataclass

Values = dict[str, Any]
"""State columns by name; arrays of one length."""

_ROUNDING = 2.0**-53
_ALL_BUT_LOST = float(np.finfo(np.float64).max) * 0.99
_OVERFLOWS = np.errstate(over="ignore", invalid="ignore")
"""Of doubles an overflow is no mistake: it leaves bounds that are infinite, or NaN, and so open."""
_EXACT_DOUBLE = 2.0**53
_SPECIALS = ("nan", "pinf", "ninf")


@dataclass(frozen=True, slots=True)
class Count:
    """Rows whose argument is not NULL."""

    argument: AttributeId
    slot: int

    @property
    def columns(self) -> dict[str, Any]:
        """State columns and their NumPy types."""
        return {f"count{self.slot}": np.int64}

    def delta(self, vector: Vector, weights: Ints, grouping: Grouping) -> Values:
        """The change per group of a batch; shapes (groups,)."""
        counted = weights if vector.valid is None else np.where(vector.valid, weights, 0)
        return {f"count{self.slot}": grouping.sums(counted)}

    def add(self, old: Values, delta: Values) -> Values:
        """State after the change."""
        name = f"count{self.slot}"
        return {name: old[name] + delta[name]}

    def partial(self, table: Mapping[PartialColumn, Any], grouping: Grouping, sign: int) -> Values:
        """The change from partial aggregates, grouped again.

        `sign` is 1 where their rows came, -1 where they went.
        """
        counts = table[PartialColumn(Meaning.COUNT, self.slot)] * sign
        return {f"count{self.slot}": np.add.reduceat(counts[grouping.order], grouping.starts)}

    def value(self, state: Values, kind: SqlType) -> Vector:
        """COUNT's value."""
        return Vector(kind, state[f"count{self.slot}"])


@dataclass(frozen=True, slots=True)
class ExactSum:
    """Exact sum of an integral or decimal argument; `result` is SUM's type."""

    argument: AttributeId
    slot: int
    result: SqlType

    @property
    def columns(self) -> dict[str, Any]:
        return {f"high{self.slot}": np.int64, f"low{self.slot}": np.uint64}

    def delta(self, vector: Vector, weights: Ints, grouping: Grouping) -> Values:
        values = vector.values
        if vector.valid is not None:
            values = np.where(vector.valid, values, 0)
        sums = wide.grouped_sums(values, weights, grouping.order, grouping.starts)
        return self._columns(*wide.widen(sums))

    def _columns(self, high: Any, low: Any) -> Values:
        return {f"high{self.slot}": high, f"low{self.slot}": low}

    def add(self, old: Values, delta: Values) -> Values:
        high, low = f"high{self.slot}", f"low{self.slot}"
        return self._columns(*wide.add(old[high], old[low], delta[high], delta[low]))

    def partial(self, table: Mapping[PartialColumn, Any], grouping: Grouping, sign: int) -> Values:
        sums = table[PartialColumn(Meaning.SUM, self.slot)]
        signs = np.full(len(sums), sign, dtype=np.int64)
        return self._columns(
            *wide.widen(wide.grouped_sums(sums, signs, grouping.order, grouping.starts))
        )

    def value(self, state: Values, kind: SqlType) -> Vector:
        """SUM's value; EvaluationError where Spark's SUM would overflow."""
        values = wide.unwiden(state[f"high{self.slot}"], state[f"low{self.slot}"])
        if kind.kind is Kind.DECIMAL:
            over = len(values) > 0 and bool((np.abs(values) >= 10**kind.precision).any())
        else:
            over = values.dtype == object
        if over:
            raise EvaluationError(
                f"A SUM does not fit its type `{kind}`",
                code="arithmetic_overflow",
                hint="cast the argument to a wider DECIMAL; SUM fails in Spark too",
            )
        return Vector(kind, values)


@dataclass(frozen=True, slots=True)
class FloatSum:
    """Compensated sum of a double argument.

    Where every value is a whole number the sum is exact, in Spark too, as long as the magnitudes
    add up to less than 2^53. `integral` says that all are (AVG over integers); else those known to
    be are counted: never more than there are, so what was not looked at is not taken for whole.
    `bounded` says that values
    have bounds: these add up, and values of which nothing is known are counted apart.
    """

    argument: AttributeId
    slot: int
    integral: bool
    bounded: bool = False

    @property
    def columns(self) -> dict[str, Any]:
        names = ("sum", "rest", "size", "drift", *(("slack",) if self.bounded else ()))
        counts = (*_SPECIALS, *(("open",) if self.bounded else ()))
        counts = (*counts, *(() if self.integral else ("whole",)))
        floats = {f"{name}{self.slot}": np.float64 for name in names}
        return {**floats, **{f"{name}{self.slot}": np.int64 for name in counts}}

    @_OVERFLOWS
    def delta(self, vector: Vector, weights: Ints, grouping: Grouping) -> Values:
        values = vector.values
        if vector.valid is not None:
            values = np.where(vector.valid, values, 0.0)
        whole = self._whole(vector, weights, grouping)
        if not self.bounded:
            return {**self._delta(values, np.zeros(0), weights, grouping), **whole}
        errors = np.zeros(len(values)) if vector.error is None else vector.error
        if vector.valid is not None:
            errors = np.where(vector.valid, errors, 0.0)
        is_open = ~np.isfinite(errors)
        values, errors = np.where(is_open, 0.0, values), np.where(is_open, 0.0, errors)
        order, starts = grouping.order, grouping.starts
        bounds = errors[order]
        reach = np.add.reduceat(bounds * np.abs(weights[order]), starts)
        reach = reach * (1.0 + len(bounds) * 2.0**-51)
        slip = reach * (len(bounds) * 2.0**-51)
        return {
            **self._delta(values, errors, weights, grouping),
            **whole,
            f"slack{self.slot}": np.add.reduceat(bounds * weights[order], starts) + slip,
            f"reach{self.slot}": reach,
            f"open{self.slot}": np.add.reduceat(np.where(is_open, weights, 0)[order], starts),
        }

    def _delta(self, values: Any, errors: Any, weights: Ints, grouping: Grouping) -> Values:
        """The change of values that are known, within `errors` if there are any."""
        specials: Values = {}
        # One that is not finite shows in the sum of all.
        if not math.isfinite(float(values.sum())):
            finite = np.isfinite(values)
            specials = self._specials(values, weights, grouping)
            values = np.where(finite, values, 0.0)
        order, starts = grouping.order, grouping.starts
        values, signs = values[order], weights[order]
        sizes = np.abs(values)
        reach = np.add.reduceat(sizes, starts)
        sizes = sizes + errors[order] if self.bounded else sizes
        # Where rows only come, as in a capture, nothing is to be multiplied.
        is_plain = bool((weights == 1).all())
        if is_plain and not self.bounded:
            touched = net = reach
        else:
            touched = np.add.reduceat(sizes if is_plain else sizes * np.abs(signs), starts)
            net = touched if is_plain else np.add.reduceat(sizes * signs, starts)
        if self.integral and float(touched.sum()) < _EXACT_DOUBLE / 2:
            total = np.add.reduceat(values if is_plain else values * signs, starts)
            rest = np.zeros(len(total))
        else:
            total, rest = (
                compensated.grouped_sums(values, starts, reach)
                if is_plain
                else compensated.grouped_products(values, signs, starts)
            )
            slip = touched * (len(values) * 2.0**-51)
            touched, net = touched + slip, net + slip
        return {
            f"sum{self.slot}": total,
            f"rest{self.slot}": rest,
            f"size{self.slot}": net,
            f"drift{self.slot}": np.zeros(len(total)),
            f"touched{self.slot}": touched,
            **specials,
        }

    def _whole(self, vector: Vector, weights: Ints, grouping: Grouping) -> Values:
        """The change of how many values are surely whole numbers."""
        if self.integral:
            return {}
        is_whole = vector.values == np.rint(vector.values)
        if not bool(is_whole.any()):
            return {f"whole{self.slot}": np.zeros(grouping.groups, dtype=np.int64)}
        is_whole &= np.isfinite(vector.values)
        if vector.valid is not None:
            is_whole &= vector.valid
        if vector.error is not None:
            is_whole &= vector.error == 0
        return {f"whole{self.slot}": grouping.sums(np.where(is_whole, weights, 0))}

    def _specials(self, values: Any, signs: Any, grouping: Grouping) -> Values:
        kinds = (np.isnan(values), values == np.inf, values == -np.inf)
        return {
            f"{name}{self.slot}": np.add.reduceat(
                np.where(kind, signs, 0)[grouping.order], grouping.starts
            )
            for name, kind in zip(_SPECIALS, kinds, strict=True)
        }

    @_OVERFLOWS
    def add(self, old: Values, delta: Values) -> Values:
        names = [f"{name}{self.slot}" for name in ("sum", "rest", "size", "drift")]
        total, rest, size, drift = names
        high, low = compensated.add_pairs(old[total], old[rest], delta[total], delta[rest])
        touched = delta[f"touched{self.slot}"]
        # `size` stays an upper bound: every step adds what its own rounding could have lost.
        reach = old[size] + touched
        slip, lost = reach * (8 * _ROUNDING), (np.abs(old[total]) + touched) * compensated.DRIFT
        if self.integral:
            whole = reach < _EXACT_DOUBLE / 2
            slip, lost = np.where(whole, 0.0, slip), np.where(whole, 0.0, lost)
        added: Values = {
            total: high,
            rest: low,
            size: np.maximum(old[size] + delta[size] + slip, 0.0),
            drift: old[drift] + delta[drift] + lost,
            **self._widened(old, delta),
        }
        for name in (*_SPECIALS, *(() if self.integral else ("whole",))):
            change = delta.get(f"{name}{self.slot}")
            kept = old[f"{name}{self.slot}"]
            added[f"{name}{self.slot}"] = kept if change is None else kept + change
        return added

    def _widened(self, old: Values, delta: Values) -> Values:
        """What the bounds of the values come to, an upper bound as `size` is, and open values."""
        if not self.bounded:
            return {}
        slack, is_open = f"slack{self.slot}", f"open{self.slot}"
        slip = (old[slack] + delta[f"reach{self.slot}"]) * (8 * _ROUNDING)
        total = np.maximum(old[slack] + delta[slack] + slip, 0.0)
        return {slack: total, is_open: old[is_open] + delta[is_open]}

    @_OVERFLOWS
    def partial(self, table: Mapping[PartialColumn, Any], grouping: Grouping, sign: int) -> Values:
        """From Spark's partial sums and magnitudes, grouped again.

        Spark's partial sum is itself off by at most its rows times 2^-53 of its magnitude.
        """
        sums = table[PartialColumn(Meaning.SUM, self.slot)] * sign
        sizes = table[PartialColumn(Meaning.SIZE, self.slot)]
        rows = table[ROWS]
        total, rest = compensated.grouped_sums(sums[grouping.order], grouping.starts)
        lost = sizes * rows * (_ROUNDING * 1.01)
        if self.integral:
            lost = np.where(sizes < _EXACT_DOUBLE / 2, 0.0, lost)
        # Exact whole magnitudes stay exact; others are rounded up by what adding could lose.
        size = np.add.reduceat(sizes[grouping.order], grouping.starts)
        if not (self.integral and bool(np.all(size < _EXACT_DOUBLE / 2))):
            size = compensated.grouped_bound((sizes + lost)[grouping.order], grouping.starts)
        values = {
            f"sum{self.slot}": total,
            f"rest{self.slot}": rest,
            f"size{self.slot}": size if sign > 0 else -_at_least(sizes - lost, size, grouping),
            f"drift{self.slot}": compensated.grouped_bound(lost[grouping.order], grouping.starts),
            f"touched{self.slot}": size,
        }
        if not self.integral and sign < 0:
            # Which were whole is not told: all may have been.
            counts = table[PartialColumn(Meaning.COUNT, self.slot)]
            values[f"whole{self.slot}"] = -np.add.reduceat(counts[grouping.order], grouping.starts)
        for name, meaning in zip(_SPECIALS, SPECIALS, strict=True):
            counts = table.get(PartialColumn(meaning, self.slot))
            values[f"{name}{self.slot}"] = (
                np.zeros(grouping.groups, dtype=np.int64)
                if counts is None
                else np.add.reduceat(counts[grouping.order] * sign, grouping.starts)
            )
        return values

    def pair(self, state: Values) -> tuple[Any, Any]:
        """The sum of the finite values in twice the precision, off by at most the `drift`."""
        return state[f"sum{self.slot}"], state[f"rest{self.slot}"]

    def drift(self, state: Values) -> Any:
        """By how much the pair may be off, besides `compensated.DRIFT` of the magnitudes."""
        drift = state[f"drift{self.slot}"]
        return drift + state[f"slack{self.slot}"] if self.bounded else drift

    @_OVERFLOWS
    def value(self, state: Values, kind: SqlType) -> Vector:
        """SUM's value with the bound on how far Spark's may lie from it."""
        sums = state[f"sum{self.slot}"] + state[f"rest{self.slot}"]
        size, rows = state[f"size{self.slot}"], state["rows"]
        spread = rows * _ROUNDING * size * 1.01 + state[f"drift{self.slot}"]
        error = spread + np.abs(sums) * (2 * _ROUNDING)
        if self.bounded:
            error = (error + state[f"slack{self.slot}"]) * (1 + 8 * _ROUNDING)
        is_whole = self.integral | self._is_whole(state)
        if bool(is_whole.any()):
            # Whole numbers of small magnitude: Spark's sum is exact, and ours once rounded.
            exact = (size < _EXACT_DOUBLE / 2) & (state[f"drift{self.slot}"] < 0.25) & is_whole
            sums, error = np.where(exact, np.rint(sums), sums), np.where(exact, 0.0, error)
        sums, error = self._with_specials(sums, error, state)
        return Vector(DOUBLE, sums, None, error)

    def _is_whole(self, state: Values) -> Any:
        """Where all values are known to be whole numbers; shape (groups,)."""
        counted: Any = state.get(f"count{self.slot}", state["rows"])
        return state.get(f"whole{self.slot}", np.zeros(len(counted), np.int64)) == counted

    def _with_specials(self, sums: Any, error: Any, state: Values) -> tuple[Any, Any]:
        # Just below the greatest double, adding in another order may overflow.
        size = state[f"size{self.slot}"]
        lost = ~np.isfinite(sums) | ~np.isfinite(error) | (size > _ALL_BUT_LOST)
        is_open = state[f"open{self.slot}"] > 0 if self.bounded else np.zeros(len(sums), np.bool_)
        lost |= is_open
        if bool(lost.any()):
            sums, error = np.where(lost, 0.0, sums), np.where(lost, np.inf, error)
        nan, plus, minus = (state[f"{name}{self.slot}"] for name in _SPECIALS)
        if nan.any() or plus.any() or minus.any():
            is_nan = (nan > 0) | ((plus > 0) & (minus > 0))
            special = is_nan | (plus > 0) | (minus > 0)
            shown = np.where(is_nan, np.nan, np.where(plus > 0, np.inf, -np.inf))
            # Finite values that overflow may meet an infinity as one of the other sign: NaN then,
            # or not, by the order in which they are added.
            open_ended = np.where(lost & ~is_nan, np.inf, 0.0)
            sums, error = np.where(special, shown, sums), np.where(special, open_ended, error)
        return sums, error


def _at_least(sizes: Any, bound: Any, grouping: Grouping) -> Any:
    """A lower bound on the sum of these magnitudes per group, of which `bound` is an upper one.

    What is taken off a magnitude may only be what was certainly in it. Whole ones stay exact.
    """
    total = np.add.reduceat(np.maximum(sizes, 0.0)[grouping.order], grouping.starts)
    is_whole = (total == bound) & (total < _EXACT_DOUBLE / 2) & (total == np.rint(total))
    slip = bound * (len(sizes) * 2.0 * _ROUNDING)
    return np.where(is_whole, total, np.maximum(total - slip, 0.0))


Accumulator = Count | ExactSum | FloatSum


def takes_bounds(part: object) -> bool:
    """Whether the argument may have bounds: to count it, or to sum it with them."""
    return isinstance(part, Count) or (isinstance(part, FloatSum) and part.bounded)


def sum_of(
    argument: AttributeId,
    slot: int,
    kind: SqlType,
    result: SqlType,
    *,
    integral: bool,
    bounded: bool = False,
) -> ExactSum | FloatSum:
    """The accumulator for SUM over an argument of this type."""
    if kind.is_fractional:
        return FloatSum(argument, slot, integral, bounded)
    return ExactSum(argument, slot, result if result != DOUBLE else LONG)
