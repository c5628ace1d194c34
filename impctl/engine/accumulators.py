"""What an aggregate keeps per group for one argument, and the columns it outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from msgspec import Struct

from impctl.data.keys import Grouping, group_rows, normalise
from impctl.data.schema import DOUBLE, LONG, Kind, SqlType
from impctl.data.vector import Bools, Floats, Ints, Vector, all_null, concat
from impctl.engine import exact_sums
from impctl.engine.batch import Batch, never_held
from impctl.engine.exact_sums import DRIFT, add_pairs, two_product, two_sum
from impctl.engine.extremes import (
    BestValues,
    Extreme,
    FirstValue,
    OrderedCounts,
    OrderedValues,
    ranks_of,
)
from impctl.engine.lookups import Refill, no_refill, owners_of, refill_differs, stored_edges
from impctl.engine.trace import Arrangement, RowIndex
from impctl.errors import EvaluationError, NotExactError
from impctl.expr.nodes import Expr, Literal, minus, plus, times

if TYPE_CHECKING:
    from impctl.types import AttributeId


# Columns of partial aggregates. Law: a pass over rows outside the engine gives, per group, exactly
# these columns; a grouping's accumulators determine which.


class Meaning(StrEnum):
    """What is counted or summed over the rows of a group."""

    ROWS = "rows"  # All rows
    COUNT = "count"  # Rows whose argument is not NULL
    SUM = "sum"  # The argument; of doubles only the finite ones, as specials are counted apart
    SIZE = "size"  # The magnitude of a double argument
    NAN = "nan"  # Rows whose argument is NaN; likewise for the infinities
    PLUS_INFINITY = "pinf"
    MINUS_INFINITY = "ninf"


class PartialColumn(Struct, frozen=True):
    """A column of partial aggregates; `slot` is that of the accumulator of the argument."""

    meaning: Meaning
    slot: int = 0

    @property
    def name(self) -> str:
        """A name that no other column of the pass has."""
        return f"{self.meaning}{self.slot}"


PARTIAL_ROWS = PartialColumn(Meaning.ROWS)
SPECIALS = (Meaning.NAN, Meaning.PLUS_INFINITY, Meaning.MINUS_INFINITY)


# Values that a group gains or loses: DISTINCT inside an aggregate. Law: a value counts once per
# group while it occurs there; equality is that of GROUP BY. Cost: the changed pairs of group and
# value.

_COUNT = "count"


class DistinctValues:
    """Copies of each value of one argument, per group."""

    def __init__(self, name: str, kind: SqlType) -> None:
        self.arrangement = Arrangement(name, (LONG, kind), _COUNT)

    def crossings(self, groups: Ints, values: Vector, weights: Ints) -> Ints:
        """Count a change; +1 where a row brings its value into its group, -1 out of it. At most one
        row per pair of group and value has such a sign, others 0; shape (rows,)."""
        result = np.zeros(len(groups), dtype=np.int64)
        rows = np.flatnonzero(values.validity())
        if not len(rows):
            return result
        keys = [Vector(LONG, groups[rows]), normalise(values.take(rows))]
        grouping = group_rows(keys, len(rows))
        change = np.add.reduceat(weights[rows][grouping.order], grouping.starts)
        leaders = [key.take(grouping.first) for key in keys]
        located = self.arrangement.find(grouping.codes, leaders)
        old = self.arrangement.gather(located, _COUNT)
        new = old + change
        if bool((new < 0).any()):
            raise never_held("values")
        moved = np.flatnonzero(change)
        self.arrangement.put(
            grouping.codes[moved], [key.take(moved) for key in leaders], {_COUNT: new[moved]}
        )
        result[rows[grouping.first]] = (new > 0).astype(np.int64) - (old > 0)
        return result


# The state of an aggregate per group and argument. Law: every accumulator is an abelian group under
# `add`: deleting what was inserted restores the state, so order and batching of changes do not
# matter. Counts, and sums of integers and decimals, are exact. A sum of doubles carries a bound on
# its distance from Spark's order-dependent sum: n rows of total magnitude M are off by at most n *
# 2^-53 * M, plus our compensated error. NaN and infinities are counted apart, so deleting them
# restores the finite sum. State columns are named `<kind><argument>`; an absent column is all zero.

Values = dict[str, Any]  # State columns by name, arrays of one length

_ROUNDING = 2.0**-53
_ALL_BUT_LOST = float(np.finfo(np.float64).max) * 0.99
_OVERFLOWS = np.errstate(over="ignore", invalid="ignore")
"""An overflow of doubles is no error: it leaves bounds that are infinite or NaN, and so open."""
_EXACT_DOUBLE = 2.0**53


class Count(Struct, frozen=True):
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
        name = f"count{self.slot}"
        return {name: old[name] + delta[name]}

    def partial(self, table: Mapping[PartialColumn, Any], grouping: Grouping, sign: int) -> Values:
        """The change from partial aggregates, grouped again; `sign` is 1 for inserted rows, -1 for
        deleted."""
        counts = table[PartialColumn(Meaning.COUNT, self.slot)] * sign
        return {f"count{self.slot}": np.add.reduceat(counts[grouping.order], grouping.starts)}

    def value(self, state: Values, kind: SqlType) -> Vector:
        return Vector(kind, state[f"count{self.slot}"])


class ExactSum(Struct, frozen=True):
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
        sums = exact_sums.exact_grouped_sums(values, weights, grouping.order, grouping.starts)
        return self._columns(*exact_sums.widen(sums))

    def _columns(self, high: Any, low: Any) -> Values:
        return {f"high{self.slot}": high, f"low{self.slot}": low}

    def add(self, old: Values, delta: Values) -> Values:
        high, low = f"high{self.slot}", f"low{self.slot}"
        return self._columns(*exact_sums.add(old[high], old[low], delta[high], delta[low]))

    def partial(self, table: Mapping[PartialColumn, Any], grouping: Grouping, sign: int) -> Values:
        sums = table[PartialColumn(Meaning.SUM, self.slot)]
        signs = np.full(len(sums), sign, dtype=np.int64)
        sums = exact_sums.exact_grouped_sums(sums, signs, grouping.order, grouping.starts)
        return self._columns(*exact_sums.widen(sums))

    def value(self, state: Values, kind: SqlType) -> Vector:
        """SUM's value; EvaluationError where Spark's SUM would overflow."""
        values = exact_sums.unwiden(state[f"high{self.slot}"], state[f"low{self.slot}"])
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


class FloatSum(Struct, frozen=True):
    """Compensated sum of a double argument.

    Where every value is a whole number the sum is exact, in Spark too, as long as the magnitudes
    add up to less than 2^53. `integral` says that all are (AVG over integers); otherwise those
    known to be are counted, never too many: an unchecked value does not count as whole.

    `bounded` says that values have bounds. These add up; values without a known bound are counted
    apart.
    """

    argument: AttributeId
    slot: int
    integral: bool
    bounded: bool = False

    @property
    def columns(self) -> dict[str, Any]:
        names = ("sum", "rest", "size", "drift", *(("slack",) if self.bounded else ()))
        counts = (*SPECIALS, *(("open",) if self.bounded else ()))
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
        # Where rows are only inserted, as in a capture, nothing is to be multiplied.
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
                exact_sums.compensated_grouped_sums(values, starts, reach)
                if is_plain
                else exact_sums.grouped_products(values, signs, starts)
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
            for name, kind in zip(SPECIALS, kinds, strict=True)
        }

    @_OVERFLOWS
    def add(self, old: Values, delta: Values) -> Values:
        names = [f"{name}{self.slot}" for name in ("sum", "rest", "size", "drift")]
        total, rest, size, drift = names
        high, low = exact_sums.add_pairs(old[total], old[rest], delta[total], delta[rest])
        touched = delta[f"touched{self.slot}"]
        # `size` stays an upper bound: every step adds what its own rounding could have lost.
        reach = old[size] + touched
        slip, lost = reach * (8 * _ROUNDING), (np.abs(old[total]) + touched) * exact_sums.DRIFT
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
        for name in (*SPECIALS, *(() if self.integral else ("whole",))):
            change = delta.get(f"{name}{self.slot}")
            kept = old[f"{name}{self.slot}"]
            added[f"{name}{self.slot}"] = kept if change is None else kept + change
        return added

    def _widened(self, old: Values, delta: Values) -> Values:
        """The total of the values' bounds, an upper bound as `size` is, and the number of open
        values."""
        if not self.bounded:
            return {}
        slack, is_open = f"slack{self.slot}", f"open{self.slot}"
        slip = (old[slack] + delta[f"reach{self.slot}"]) * (8 * _ROUNDING)
        total = np.maximum(old[slack] + delta[slack] + slip, 0.0)
        return {slack: total, is_open: old[is_open] + delta[is_open]}

    @_OVERFLOWS
    def partial(self, table: Mapping[PartialColumn, Any], grouping: Grouping, sign: int) -> Values:
        """The change from Spark's partial sums and magnitudes, grouped again. Spark's partial sum
        is off by at most its rows times 2^-53 of its magnitude."""
        sums = table[PartialColumn(Meaning.SUM, self.slot)] * sign
        sizes = table[PartialColumn(Meaning.SIZE, self.slot)]
        rows = table[PARTIAL_ROWS]
        total, rest = exact_sums.compensated_grouped_sums(sums[grouping.order], grouping.starts)
        lost = sizes * rows * (_ROUNDING * 1.01)
        if self.integral:
            lost = np.where(sizes < _EXACT_DOUBLE / 2, 0.0, lost)
        # Exact whole magnitudes stay exact; others are rounded up by what adding could lose.
        size = np.add.reduceat(sizes[grouping.order], grouping.starts)
        if not (self.integral and bool(np.all(size < _EXACT_DOUBLE / 2))):
            size = exact_sums.grouped_bound((sizes + lost)[grouping.order], grouping.starts)
        values = {
            f"sum{self.slot}": total,
            f"rest{self.slot}": rest,
            f"size{self.slot}": size if sign > 0 else -_at_least(sizes - lost, size, grouping),
            f"drift{self.slot}": exact_sums.grouped_bound(lost[grouping.order], grouping.starts),
            f"touched{self.slot}": size,
        }
        if not self.integral and sign < 0:
            # Unknown how many were whole: possibly all.
            counts = table[PartialColumn(Meaning.COUNT, self.slot)]
            values[f"whole{self.slot}"] = -np.add.reduceat(counts[grouping.order], grouping.starts)
        for name in SPECIALS:
            counts = table.get(PartialColumn(name, self.slot))
            values[f"{name}{self.slot}"] = (
                np.zeros(grouping.groups, dtype=np.int64)
                if counts is None
                else np.add.reduceat(counts[grouping.order] * sign, grouping.starts)
            )
        return values

    def pair(self, state: Values) -> tuple[Any, Any]:
        """The sum of the finite values in twice the precision, off by at most `drift`."""
        return state[f"sum{self.slot}"], state[f"rest{self.slot}"]

    def drift(self, state: Values) -> Any:
        """The pair's error besides `exact_sums.DRIFT` of the magnitudes."""
        drift = state[f"drift{self.slot}"]
        return drift + state[f"slack{self.slot}"] if self.bounded else drift

    @_OVERFLOWS
    def value(self, state: Values, kind: SqlType) -> Vector:
        """SUM's value with the bound on its distance from Spark's."""
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
        counted: Any = state.get(f"count{self.slot}", state["rows"])
        return state.get(f"whole{self.slot}", np.zeros(len(counted), np.int64)) == counted

    def _with_specials(self, sums: Any, error: Any, state: Values) -> tuple[Any, Any]:
        # Just below the greatest double, adding in another order may overflow.
        size = state[f"size{self.slot}"]
        lost = ~np.isfinite(sums) | ~np.isfinite(error) | (size > _ALL_BUT_LOST)
        if self.bounded:
            lost |= state[f"open{self.slot}"] > 0
        if bool(lost.any()):
            sums, error = np.where(lost, 0.0, sums), np.where(lost, np.inf, error)
        nan, plus, minus = (state[f"{name}{self.slot}"] for name in SPECIALS)
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
    """A lower bound on the sum of these magnitudes per group, where `bound` is an upper one. A
    magnitude is reduced only by what it surely contained. Whole magnitudes stay exact."""
    total = np.add.reduceat(np.maximum(sizes, 0.0)[grouping.order], grouping.starts)
    is_whole = (total == bound) & (total < _EXACT_DOUBLE / 2) & (total == np.rint(total))
    slip = bound * (len(sizes) * 2.0 * _ROUNDING)
    return np.where(is_whole, total, np.maximum(total - slip, 0.0))


Accumulator = Count | ExactSum | FloatSum


def takes_bounds(part: object) -> bool:
    """Whether the argument may have bounds, for COUNT or for a SUM with bounds."""
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
    if kind.is_fractional:
        return FloatSum(argument, slot, integral, bounded)
    return ExactSum(argument, slot, result if result != DOUBLE else LONG)


# Outputs of a grouping that are found by an order. Law: there is an output row for every
# combination of values that Spark may take where rows tie. These are a function of the state alone,
# so a retracted row equals the emitted one. A group without a known key has NULL.

_MOST_ROWS = 1_000_000
"""Rows that the values of all changed groups may combine to, beyond one for each."""


Picked = Mapping[FirstValue, tuple[Ints, Vector | None]]
"""Values of groups, and the position of each one's owner before them. Of changed groups, 0 to n-1
own a group's old row, n to 2n-1 its new one."""


class Firsts:
    """Every `FirstValue` among the outputs of one grouping, with its state."""

    def __init__(
        self, name: str, columns: Sequence[AggregateColumn], types: Mapping[AttributeId, SqlType]
    ) -> None:
        self._outputs = [
            (column.id, column.type, column.accumulator)
            for column in columns
            if isinstance(column.accumulator, FirstValue)
        ]
        self._states = {
            first: OrderedValues(
                f"{name}.{first.name}", first, types[first.key], types[first.value]
            )
            for _, _, first in self._outputs
        }

    def __bool__(self) -> bool:
        return bool(self._outputs)

    @property
    def arguments(self) -> list[AttributeId]:
        return [name for first in self._states for name in (first.key, first.value)]

    @property
    def arrangements(self) -> tuple[RowIndex | OrderedCounts, ...]:
        return tuple(part for state in self._states.values() for part in state.arrangements)

    def nothing(self) -> Picked:
        return {first: (np.zeros(0, dtype=np.int64), None) for first in self._states}

    def step(
        self,
        batch: Batch,
        groups: Ints,
        grouping: Grouping,
        old: Mapping[str, Any],
        new: Mapping[str, Any],
    ) -> Picked:
        """Count a change of these groups; the values before and after."""
        if not self._states:
            return {}
        before = self.of(groups, old)
        self.add(batch.columns, groups[grouping.index()], batch.weights)
        return before_and_after(before, self.of(groups, new), len(groups))

    def add(self, columns: Mapping[AttributeId, Vector], groups: Ints, weights: Ints) -> None:
        """Count a change, given each row's group number."""
        for first, state in self._states.items():
            state.add(groups, columns[first.key], columns[first.value], weights)

    def of(self, groups: Ints, counts: Mapping[str, Any]) -> Picked:
        """The values of groups, by their numbers and their state."""
        result: dict[FirstValue, tuple[Ints, Vector | None]] = {}
        for first, state in self._states.items():
            known = np.flatnonzero(counts[f"count{first.slot}"] > 0)
            owners, values = state.first(groups[known])
            result[first] = known[owners], values
        return result

    def snapshot_copy(self) -> Self:
        result = copy(self)
        result._states = {first: state.snapshot_copy() for first, state in self._states.items()}
        return result

    def spread_out(self, batch: Batch, picked: Picked, exists: Bools | None = None) -> Batch:
        """The existing rows with the values added; a row with several values is repeated."""
        length = len(batch)
        origin = np.arange(length) if exists is None else np.flatnonzero(exists)
        fewest = len(origin)
        result: dict[AttributeId, Vector] = {}
        for name, kind, first in self._outputs:
            owners, values = picked[first]
            sizes = np.bincount(owners, minlength=length).astype(np.int64)
            starts = np.cumsum(sizes) - sizes
            copies = np.maximum(sizes[origin], 1)
            if int(copies.sum()) - fewest > _MOST_ROWS:
                raise NotExactError(
                    "Tied values of MIN_BY or MAX_BY combine to too many rows",
                    hint="recapture with `impctl capture`, or break the ties in MIN_BY or MAX_BY",
                )
            rows = np.repeat(np.arange(len(origin)), copies)
            within = np.arange(len(rows)) - np.repeat(np.cumsum(copies) - copies, copies)
            origin = origin[rows]
            result = {other: vector.take(rows) for other, vector in result.items()}
            result[name] = _picked(values, starts[origin] + within, sizes[origin] > 0, kind)
        repeated = batch.take(origin)
        return Batch({**repeated.columns, **result}, repeated.weights, repeated.tags)


def before_and_after(before: Picked, after: Picked, groups: int) -> Picked:
    """The values of `groups` groups: those of their old rows, then those of their new ones."""
    picked = {}
    for first, (old_owners, old) in before.items():
        new_owners, new = after[first]
        parts = [values for values in (old, new) if values is not None]
        rows = np.concatenate([old_owners, new_owners + groups])
        picked[first] = (rows, concat(parts) if parts else None)
    return picked


def _picked(values: Vector | None, positions: Ints, is_known: Bools, kind: SqlType) -> Vector:
    if values is None or not len(values):
        return all_null(kind, len(positions))
    result = values.take(np.where(is_known, positions, 0))
    # The stored type may be another integral type with the same values.
    if bool(is_known.all()):
        return Vector(kind, result.values, result.valid)
    return Vector(kind, result.values, result.validity() & is_known)


# Variance and standard deviation from a count, a sum and a sum of squares.
#
# Law: Spark's value lies within the reported error of ours, in whatever order its rows came
# together. Spark updates a mean and a centred sum of squares M row by row and merges pairs of
# them (Chan, Golub and LeVeque, "Algorithms for computing the sample variance", 1983). With S the
# sum of squares of n rows, u = 2^-53 and L = 1 + log2 n, over any tree of merges:
# - a mean's error e, times its rows a, grows by at most u * a * |mean| + 3 u * b * |difference of
#   the two means| per merge with b rows. As a * |mean| <= sqrt(a S), and the smaller sides of all
#   merges add up to at most L times every row, e <= u * sqrt(S) * (sqrt(n) + 8) * (7.1 + 3.1
#   sqrt(L));
# - the exact contributions d^2 * a * b / (a + b) of all merges add up to M, and a * b / (a + b)
#   to n * L at most, so errors of the differences d change the root of M by at most 2 e * sqrt(n
#   L);
# - values that Spark first rounds to doubles change that root by at most u * sqrt(S);
# - rounding M itself costs a factor within (2 u) * n. A group of one row is exactly 0. A group
#   with NaN or an infinity is NaN. Ours takes the square of the sum from the sum of squares,
#   which are far larger than what is left where values are far from zero. So squares of doubles
#   are summed with what rounding took off each (`residue`), and both in twice the precision.
#   Where even that is further off than Spark's may be, as sums by Spark are, the value is not
#   known. Out of scope: the sums themselves (`engine.accumulators`).

FUNCTIONS = frozenset({"var_pop", "variance", "stddev_pop", "stddev"})
"""The functions over the population and over the sample; the latter are NULL for one row."""

_UNIT = 2.0**-53
_MOST_ROWS_EXACT = 2.0**32  # Rows in a group beyond which the first-order bounds above do not hold
_ROUGH = 2.0**-20  # Relative error allowed for a variance where that is more than Spark's own error
_DUST = 2.0**-70
"""Share of deleted larger values that may remain in the sum of squares of the others."""
_TINY = 1e-250  # An upper bound on what products of denormal size lose


class Spread(Struct, frozen=True):
    """A function of `FUNCTIONS` over the argument of `count` and `total`. `squares` sums the
    argument's squares; its argument has twice the scale of `total`'s. `residues` sums the rounding
    errors of squares of doubles."""

    function: str
    count: Count
    total: ExactSum | FloatSum
    squares: ExactSum | FloatSum
    scale: int  # Digits after the point of an exact argument
    residues: FloatSum | None = None

    @property
    def parts(self) -> tuple[Accumulator, ...]:
        """Its accumulators; each sum has its own count, which is zero if it is empty."""
        sums = (self.squares,) if self.residues is None else (self.squares, self.residues)
        counted = (part for total in sums for part in (Count(total.argument, total.slot), total))
        return (self.count, self.total, *counted)

    def value(self, state: Values, kind: SqlType) -> Vector:
        """The value with its error; NULL over too few rows."""
        counts = state[f"count{self.count.slot}"]
        is_sample = self.function in ("variance", "stddev")
        valid = counts > (1 if is_sample else 0)
        rows = np.maximum(counts, 1).astype(np.float64)
        centred, error, is_nan = self._centred(state, kind, counts, rows)
        divisor = np.maximum(rows - 1, 1) if is_sample else rows
        with np.errstate(over="ignore", invalid="ignore"):
            value, error = centred / divisor, error / divisor
            error = np.where(error == 0, 0.0, error * (1 + 8 * _UNIT) + value * (4 * _UNIT))
            if self.function.startswith("stddev"):
                value, error = _rooted(value, error)
        lost = ~np.isfinite(value) | ~np.isfinite(error)
        value, error = np.where(lost, 0.0, value), np.where(lost, np.inf, error)
        single = counts == 1
        value, error = np.where(single, 0.0, value), np.where(single, 0.0, error)
        value, error = np.where(is_nan, np.nan, value), np.where(is_nan, 0.0, error)
        return Vector(DOUBLE, value, None if bool(valid.all()) else valid, error)

    def _centred(self, state: Values, kind: SqlType, counts: Any, rows: Floats) -> Any:
        """The sum of squares about the mean, the bound on Spark's error, and where it is NaN."""
        is_nan = np.zeros(len(counts), dtype=np.bool_)
        with np.errstate(all="ignore"):
            if isinstance(self.total, ExactSum) and isinstance(self.squares, ExactSum):
                centred, squares = self._exactly(state, counts)
                own_error = centred * (2 * _UNIT)
            else:
                is_nan = ~np.isfinite(self.total.value(state, kind).values)
                centred, squares, own_error = self._from_doubles(state, kind, rows)
            slip = _slip(rows, squares, np.maximum(centred + own_error, 0.0))
            is_rough = (
                (own_error > slip) & (own_error > _ROUGH * centred) & (own_error > _DUST * squares)
            )
            error = np.where(is_rough, np.inf, own_error + slip)
            return np.maximum(centred, 0.0), error, is_nan

    def _from_doubles(
        self, state: Values, kind: SqlType, rows: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """Centered and uncentered sums of squares, and the error of the first."""
        total, squares, residues = self.total, self.squares, self.residues
        assert residues is not None, "doubles are squared with what rounding takes off"
        assert isinstance(total, FloatSum)
        assert isinstance(squares, FloatSum)
        uncentred = add_pairs(*squares.pair(state), *residues.pair(state))
        sums, drift = total.pair(state), total.drift(state)
        own_error = squares.drift(state) + residues.drift(state)
        result, summed = squares.value(state, kind), total.value(state, kind)
        if result.error is not None and summed.error is not None:
            # Whole numbers, whose sums are exact.
            exact = (result.error == 0) & (summed.error == 0)
            uncentred = (
                np.where(exact, result.values, uncentred[0]),
                np.where(exact, 0.0, uncentred[1]),
            )
            sums = np.where(exact, summed.values, sums[0]), np.where(exact, 0.0, sums[1])
            own_error, drift = np.where(exact, 0.0, own_error), np.where(exact, 0.0, drift)
        shift = _divided(*two_product(sums[0], sums[0]), rows)
        shift = add_pairs(*shift, 2 * sums[0] * sums[1] / rows, np.zeros(len(rows)))
        high, low = add_pairs(*uncentred, -shift[0], -shift[1])
        centred = high + low
        own_error = own_error + (2 * np.abs(sums[0]) * drift + drift * drift) / rows
        own_error = (
            own_error
            + (np.abs(uncentred[0]) + shift[0]) * (8 * DRIFT)
            + np.abs(centred) * (2 * _UNIT)
        )
        # Squares beyond the greatest double are no part of the pairs.
        is_lost = ~np.isfinite(result.values)
        is_lost |= ~np.isfinite(residues.value(state, kind).values)
        centred = np.where(is_lost, np.inf, centred)
        return (
            centred,
            np.maximum(uncentred[0], 0.0) + own_error,
            own_error * (1 + 16 * _UNIT) + _TINY,
        )

    def _exactly(self, state: Values, counts: Any) -> tuple[Floats, Floats]:
        """From exact sums, in Python integers: a loop over the changed groups."""
        sums, squares = (
            exact_sums.unwiden(state[f"high{part.slot}"], state[f"low{part.slot}"]).tolist()
            for part in (self.total, self.squares)
        )
        unit = 10 ** (2 * self.scale)
        centred = [
            (n * square - total * total) / (n * unit) if n else 0.0
            for n, total, square in zip(counts.tolist(), sums, squares, strict=True)
        ]
        uncentred = [square / unit for square in squares]
        return np.array(centred, dtype=np.float64), np.array(uncentred, dtype=np.float64)


def residue(value: Expr) -> Expr:
    """The rounding error of the square of a double, exactly (Dekker): v * v - fl(v * v)."""
    far = times(value, Literal(float((1 << 27) + 1), DOUBLE))
    head = minus(far, minus(far, value))
    tail = minus(value, head)
    off = minus(times(head, head), times(value, value))
    off = plus(off, times(Literal(2.0, DOUBLE), times(head, tail)))
    return plus(off, times(tail, tail))


def _divided(high: Floats, low: Floats, rows: Floats) -> tuple[Floats, Floats]:
    first = high / rows
    back = two_product(first, rows)
    return two_sum(first, ((high - back[0]) - back[1] + low) / rows)


def _slip(rows: Floats, squares: Floats, centred: Floats) -> Floats:
    """The distance of Spark's centered sum from the true one, which is at most `centred`."""
    levels = 1 + np.log2(rows)
    size = np.sqrt(squares * (1 + 4 * _UNIT)) * _UNIT
    means = 2.2 * size * (np.sqrt(rows) + 8) * (7.1 + 3.1 * np.sqrt(levels))
    shift = means * np.sqrt(rows * levels) + size
    root = np.sqrt(centred) * (1 + 4 * _UNIT)
    slip = shift * (2 * root + shift) + (root + shift) ** 2 * (_UNIT * (2.1 * rows + 40))
    return np.where(rows > _MOST_ROWS_EXACT, np.inf, slip * (1 + 2.0**-10) + _TINY)


def _rooted(value: Floats, error: Floats) -> tuple[Floats, Floats]:
    """The square root and its error; below the value the error is larger."""
    root = np.sqrt(value)
    low = np.sqrt(np.maximum(value - error, 0.0))
    high = np.sqrt(value + error)
    spread = np.maximum(root - low, high - root) + high * (8 * _UNIT)
    return root, np.where(error == 0, 0.0, spread)


# Law: an output column is a function of the group's state alone.

ROWS = "rows"  # The state column with a group's rows

Part = Accumulator | Extreme | Spread | FirstValue  # The source of an output's value


class AggregateColumn(Struct, frozen=True):
    """An output: the part that gives its value, NULL where `guard` counts nothing."""

    id: AttributeId
    type: SqlType
    accumulator: Part | None  # None is COUNT(*)
    guard: Count | None


def parts_of(columns: Sequence[AggregateColumn]) -> tuple[Accumulator | Extreme, ...]:
    """The accumulators of these columns, each once."""
    result: dict[Accumulator | Extreme, None] = {}
    for column in columns:
        part = column.accumulator
        for one in part.parts if isinstance(part, Spread) else (column.guard, part):
            if one is not None and not isinstance(one, FirstValue | Spread):
                result.setdefault(one)
    return tuple(result)


def outputs_of(columns: Sequence[AggregateColumn], state: Values) -> dict[AttributeId, Vector]:
    """The values of these columns, one per group of `state`; none for a `FirstValue`."""
    values: dict[AttributeId, Vector] = {}
    for column in columns:
        if column.accumulator is None:
            values[column.id] = Vector(column.type, state[ROWS])
            continue
        if isinstance(column.accumulator, FirstValue):
            continue
        value = column.accumulator.value(state, column.type)
        valid = value.valid
        if column.guard is not None:
            valid = state[f"count{column.guard.slot}"] > 0
        if valid is not None and bool(valid.all()):
            valid = None
        values[column.id] = Vector(column.type, value.values, valid, value.error)
    return values


def clear_empty(state: Values, accumulators: Sequence[Accumulator | Extreme]) -> None:
    """Set the sum over nothing to zero: what is left of it is rounding error."""
    counts = {a.argument: a.slot for a in accumulators if isinstance(a, Count)}
    for accumulator in accumulators:
        slot = counts.get(accumulator.argument)
        empty = state[ROWS if slot is None else f"count{slot}"] == 0
        if not bool(empty.any()) or isinstance(accumulator, Count):
            continue
        for name in accumulator.columns:
            state[name] = np.where(empty, np.zeros(1, state[name].dtype), state[name])


# Extremes per group: all values kept, or the best of them with refill. Law: after `change` every
# touched group has its least and greatest values as if all were kept. A group with values but an
# empty buffer is refilled, and the refill checked against the group's count. Cost: the changed
# values and, if bounded, their buffers.


class ChangedGroups(Struct, frozen=True):
    """Changed groups: their numbers, the group of each row, their keys and the key columns."""

    groups: Ints
    owners: Ints
    leaders: Sequence[Vector]
    names: tuple[AttributeId, ...]


class Extremes:
    def __init__(self, name: str, parts: Sequence[Extreme]) -> None:
        self.parts = tuple(parts)
        self.refill: Refill = no_refill
        self._kept = {
            part: OrderedCounts(f"{name}.{part.name}") for part in parts if part.size is None
        }
        self._bounded = {
            part: BestValues(f"{name}.{part.name}", part.size)
            for part in parts
            if part.size is not None
        }

    def change(self, batch: Batch, changed: ChangedGroups, old: Values, new: Values) -> Values:
        """The extremes after the change; `new` already has the groups' counts."""
        result: Values = {}
        for extreme, counts in self._kept.items():
            owners, ranks, weights = _ranked(extreme, batch, changed.owners)
            counts.change(changed.groups[owners], ranks, weights)
            touched = np.unique(owners)
            best = old[extreme.name].copy()
            best[touched] = counts.best(changed.groups[touched])
            result[extreme.name] = best
        lacking = np.zeros(len(changed.groups), dtype=np.bool_)
        for extreme, values in self._bounded.items():
            lacking |= self._bounded_change(extreme, values, batch, changed, old, new, result)
        if bool(lacking.any()):
            self._refilled(np.flatnonzero(lacking), changed, new, result)
        return result

    def _bounded_change(
        self,
        extreme: Extreme,
        values: BestValues,
        batch: Batch,
        changed: ChangedGroups,
        old: Values,
        new: Values,
        result: Values,
    ) -> Bools:
        """Groups that have values, but none in their buffer."""
        owners, ranks, weights = _ranked(extreme, batch, changed.owners)
        best, edges = old[extreme.name].copy(), old[extreme.edge].copy()
        known = stored_edges(edges)
        # What lies beyond the edge is no buffer's matter, and most changes do.
        inside = np.flatnonzero(ranks <= known[owners])
        owners, ranks, weights = owners[inside], ranks[inside], weights[inside]
        if len(changed.groups) == 1:
            # All rows are one group: nothing has to be sorted to know it.
            touched, index = owners[:1], owners
        else:
            touched, index = np.unique(owners, return_inverse=True)
        known = known[touched]
        state = values.change(changed.groups[touched], known, index, ranks, weights)
        best[touched], edges[touched] = state.ranks, stored_edges(state.edges)
        result[extreme.name], result[extreme.edge] = best, edges
        lacking = np.zeros(len(changed.groups), dtype=np.bool_)
        lacking[touched] = ~state.is_found & (new[f"count{extreme.slot}"][touched] > 0)
        return lacking

    def _refilled(self, lacking: Ints, changed: ChangedGroups, new: Values, result: Values) -> None:
        keys = [key.take(lacking) for key in changed.leaders]
        owners_of_rows, rows = owners_of(keys, len(lacking), self.refill(keys), changed.names)
        for extreme, values in self._bounded.items():
            owners, ranks, weights = _ranked(extreme, rows, owners_of_rows)
            counts = np.zeros(len(lacking), dtype=np.int64)
            np.add.at(counts, owners, weights)
            if bool((counts != new[f"count{extreme.slot}"][lacking]).any()):
                raise refill_differs()
            groups = changed.groups[lacking]
            state = values.refill(groups, owners, ranks, weights)
            result[extreme.name][lacking] = state.ranks
            result[extreme.edge][lacking] = stored_edges(state.edges)

    def clear(self) -> None:
        """Remove the values of extremes that are not bounded."""
        for counts in self._kept.values():
            counts.clear()

    def count(self, batch: Batch, groups: Ints) -> None:
        """Count values of unbounded extremes without reporting a change; `groups` has each row's
        group."""
        for extreme, counts in self._kept.items():
            rows, ranks, weights = _ranked(extreme, batch, np.arange(len(batch)))
            counts.change(groups[rows], ranks, weights)

    def settled(self, groups: Ints, state: Values) -> Values:
        """Keep the best values of bounded extremes, once all values have been counted: their edges.
        Raises an error where kept values do not match the count of the groups, which are all
        groups."""
        for extreme, counts in self._kept.items():
            owners, _, number = counts.all_of(groups)
            result = np.zeros(len(groups), dtype=np.int64)
            np.add.at(result, owners, number)
            if bool((result != state[f"count{extreme.slot}"]).any()):
                raise refill_differs()
        return {
            extreme.edge: stored_edges(values.shed(groups))
            for extreme, values in self._bounded.items()
        }

    def arrangements(self) -> tuple[OrderedCounts, ...]:
        return (*self._kept.values(), *(values.counts for values in self._bounded.values()))


def _ranked(extreme: Extreme, batch: Batch, owners: Ints) -> tuple[Ints, Ints, Ints]:
    """Group, rank and weight of every row that has a value."""
    if len(batch) == 0:
        nothing = np.zeros(0, dtype=np.int64)
        return nothing, nothing, nothing
    vector = batch.columns[extreme.argument]
    rows = np.flatnonzero(vector.validity())
    ranks = ranks_of(vector.take(rows), reverse=extreme.reverse)
    return owners[rows], ranks, batch.weights[rows]
