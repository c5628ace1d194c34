"""Exact sums: 128-bit integers, and doubles with a bound on the error."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from impctl.data.schema import DOUBLE
from impctl.data.vector import INT64_MAX, Floats, Ints, Vector
from impctl.engine.batch import Batch
from impctl.engine.operator import Operator
from impctl.errors import EvaluationError
from impctl.expr.error_bounds import between, ends, exactly, is_known, is_open, unsure_value

if TYPE_CHECKING:
    from impctl.types import AttributeId

# Exact sums in two 64-bit columns. Law: `high * 2^64 + low` is the exact sum; nothing wraps,
# because Spark's widest sums (decimal(38)) fit 127 bits and anything longer is refused.

Words = npt.NDArray[np.uint64]
_Columns = dict[str, Vector]
_LOW = (1 << 64) - 1
_LIMIT = 1 << 127


def widen(values: Any) -> tuple[Ints, Words]:
    """(high, low) of int64 values or Python integers."""
    if values.dtype != object:
        return values >> 63, values.view(np.uint64)
    for value in values:
        if not -_LIMIT <= value < _LIMIT:
            raise _too_wide()
    high = np.array([int(value) >> 64 for value in values], dtype=np.int64)
    low = np.array([int(value) & _LOW for value in values], dtype=np.uint64)
    return high, low


def add(high: Ints, low: Words, other_high: Ints, other_low: Words) -> tuple[Ints, Words]:
    """Column-wise sum with carry; EvaluationError where it leaves 128 bits."""
    total = low + other_low
    sums = high + other_high + (total < low).astype(np.int64)
    if bool((((high < 0) == (other_high < 0)) & ((sums < 0) != (high < 0))).any()):
        raise _too_wide()
    return sums, total


def _too_wide() -> EvaluationError:
    return EvaluationError(
        "A sum does not fit in 38 digits",
        code="arithmetic_overflow",
        hint="SUM also fails in Spark for this group; filter or scale the values",
    )


def unwiden(high: Ints, low: Words) -> Any:
    """The sums as int64 where all fit, else as Python integers."""
    narrow = low.view(np.int64)
    if bool(np.all(high == narrow >> 63)):
        return narrow
    return np.array([(int(h) << 64) | int(w) for h, w in zip(high, low, strict=True)], dtype=object)


def exact_grouped_sums(values: Any, weights: Ints, order: Any, starts: Any) -> Any:
    """Exact `sum(weight * value)` per group; int64 where that cannot overflow."""
    biggest = magnitude(values) * magnitude(weights) * max(len(weights), 1)
    if values.dtype == object or biggest > INT64_MAX:
        products = values.astype(object) * weights.astype(object)
        return np.add.reduceat(products[order], starts)
    products = values if bool((weights == 1).all()) else values * weights
    return np.add.reduceat(products[order], starts)


def magnitude(values: Any) -> int:
    return max(abs(int(values.max())), abs(int(values.min()))) if len(values) else 0


# Sums of doubles in twice the precision. Law: `high + low` lies within the returned bound of the
# true sum, whatever the order of additions. Two-sum is Knuth's; values are summed by slices of
# their digits, in a fixed number of passes. A column of pairs is reduced pairwise inside each
# group, in O(log(rows per group)) passes.

DRIFT = 2.0**-98
"""Relative error of one reduction, generously: pairwise in double-double depth * 2^-104."""
_SLICED = 18  # Bits of the row count of a group up to which sums by slices are within that error
_HEAD = ~((1 << 27) - 1)  # The bits of a double without the lower half of its digits
_FAR = 2.0**1000
"""Magnitudes far enough below the greatest double that powers above them are finite."""


def two_sum(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """(rounded sum, exact rest)."""
    total = a + b
    shadow = total - a
    return total, (a - (total - shadow)) + (b - shadow)


def two_product(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """(rounded product, exact rest), where nothing over- or underflows; by halves (Dekker)."""
    product = a * b
    (head_a, tail_a), (head_b, tail_b) = _halves(a), _halves(b)
    rest = (head_a * head_b - product) + head_a * tail_b + tail_a * head_b
    return product, rest + tail_a * tail_b


def _halves(values: Floats) -> tuple[Floats, Floats]:
    far = values * float((1 << 27) + 1)
    head = far - (far - values)
    return head, values - head


def add_pairs(
    high: Floats, low: Floats, other_high: Floats, other_low: Floats
) -> tuple[Floats, Floats]:
    """Column-wise sum of unevaluated pairs; error below 2^-104 of the operands' magnitudes."""
    total, rest = two_sum(high, other_high)
    tail, small = two_sum(low, other_low)
    rest = rest + tail
    total, rest = two_sum(total, rest)
    return two_sum(total, rest + small)


def grouped_pairs(high: Floats, low: Floats, starts: Ints) -> tuple[Floats, Floats]:
    """Sum of each group's pairs; rows must be sorted so that groups start at `starts`."""
    rows = len(high)
    if len(starts) == rows:
        return high, low
    high, low = high.copy(), low.copy()
    owners = np.zeros(rows, dtype=np.int64)
    owners[starts[1:]] = 1
    owners = np.cumsum(owners)
    ranks = np.arange(rows, dtype=np.int64) - starts[owners]
    while len(high) > len(starts):
        odd = np.flatnonzero(ranks & 1)
        left = odd - 1
        total, rest = add_pairs(high[left], low[left], high[odd], low[odd])
        high[left], low[left] = total, rest
        kept = np.flatnonzero(~(ranks & 1).astype(np.bool_))
        high, low, ranks = high[kept], low[kept], ranks[kept] >> 1
    return high, low


def compensated_grouped_sums(
    values: Floats, starts: Ints, reach: Floats | None = None
) -> tuple[Floats, Floats]:
    """Sum of each group's values as pairs; values sorted by group. `reach` are the sums of their
    magnitudes, where known."""
    rows = len(values)
    if len(starts) == rows:
        return values, np.zeros(rows)
    sizes = np.diff(starts, append=rows)
    if reach is None:
        reach = np.add.reduceat(np.abs(values), starts)
    bits = int(sizes.max()).bit_length()
    if bits > _SLICED or not float(reach.max()) < _FAR:
        return grouped_pairs(values, np.zeros(rows), starts)
    return _sliced(values, starts, sizes, reach, bits)


def _sliced(
    values: Floats, starts: Ints, sizes: Ints, reach: Floats, bits: int
) -> tuple[Floats, Floats]:
    """The sums by slices of the values' digits (Rump's extraction): in three passes, not one for
    each doubling of a group.

    Adding and subtracting a power of two above twice the sum of a group's magnitudes leaves digits
    that add up without rounding in any order, and an exact rest. The second slice takes the rest's
    upper digits; below that remains less than 2^(2 `bits` - 105) of the power, whose sum is off by
    at most 2^(3 `bits` - 158) of it: 2^-102 of the magnitudes. One power serves all groups where
    that also holds of the smallest one.
    """
    power: Any = np.ldexp(1.0, int(np.frexp(reach.max())[1]) + 1)
    if not _serves_all(float(power), reach, bits):
        power = np.ldexp(1.0, np.frexp(reach)[1] + 1).repeat(sizes)
    first = values + power
    first -= power
    values = values - first
    power = power * 2.0 ** (bits - 52)
    second = values + power
    second -= power
    values -= second
    high, middle = np.add.reduceat(first, starts), np.add.reduceat(second, starts)
    high, low = two_sum(high, middle)
    return two_sum(high, low + np.add.reduceat(values, starts))


def _serves_all(power: float, reach: Floats, bits: int) -> bool:
    """Whether slices by this power are as exact for every group as by its own; a group of zeros is
    so by any power."""
    least = float(reach.min())
    if least == 0.0:
        some = reach[reach > 0.0]
        least = float(some.min()) if len(some) else power
    # By its own power a group is off by 2^(3 `bits` - 158) of at most four times its magnitudes.
    return power <= 4.0 * least * 2.0 ** (3 * (_SLICED - bits))


def grouped_products(values: Floats, weights: Ints, starts: Ints) -> tuple[Floats, Floats]:
    """Sum of `value * weight` per group as pairs; rows sorted by group. A product with a weight
    beyond one is split by its digits, so that both halves are exact."""
    if not len(weights) or int(np.abs(weights).max()) <= 1:
        return compensated_grouped_sums(values * weights, starts)
    # Cut off in the bits: nothing overflows, whatever the magnitude.
    head = (values.view(np.int64) & _HEAD).view(np.float64)
    # Halves that overlap would be rounded as single doubles where pairs are added.
    return grouped_pairs(*two_sum(head * weights, (values - head) * weights), starts)


def grouped_bound(magnitudes: Any, starts: Ints) -> Floats:
    """An upper bound of each group's sum of non-negative values."""
    if len(magnitudes) == 0:
        return np.zeros(0)
    sums = np.add.reduceat(magnitudes, starts)
    return np.asarray(sums * (1.0 + len(magnitudes) * 2.0**-52), dtype=np.float64)


class _ColumnOperator(Operator):
    """Replaces columns row by row; nothing is changed where there are no rows."""

    is_rowwise = True
    computed: Collection[AttributeId] = ()  # Columns of the output that are none of the input

    def passes(self, column: AttributeId) -> AttributeId | None:
        return None if column in self.computed else column

    def step(self, batch: Batch) -> Batch:
        if len(batch) == 0:
            return batch
        columns = dict(batch.columns)
        self._replace(columns)
        return Batch(columns, batch.weights, batch.tags)

    @abstractmethod
    def _replace(self, columns: _Columns) -> None: ...


# Error bounds as plain columns, because state holds none. Identity: `Parted` splits each of its
# columns into value and bound, `Rejoined` undoes that. `Spanned` gives the least and the greatest
# value within the bound, `Narrowed` a value between them. `Sure` passes exact values and fails on
# others. Linear, no state; cost: the batch. NULL has a bound like any value; exact columns have
# bounds of zero.


class Parted(_ColumnOperator):
    """Turns bounds into columns; `bounds` names the bound column of each column that has one."""

    def __init__(self, bounds: Mapping[AttributeId, AttributeId]) -> None:
        self.bounds = dict(bounds)
        self.computed = {*self.bounds, *self.bounds.values()}

    def _replace(self, columns: _Columns) -> None:
        for name, bound in self.bounds.items():
            result = columns[name]
            error = np.zeros(len(result)) if result.error is None else result.error
            columns[name] = Vector(result.type, result.values, result.valid)
            columns[bound] = Vector(DOUBLE, error)


class Rejoined(_ColumnOperator):
    """The inverse of `Parted`."""

    def __init__(self, bounds: Mapping[AttributeId, AttributeId]) -> None:
        self.bounds = self.computed = dict(bounds)

    def _replace(self, columns: _Columns) -> None:
        for name, bound in self.bounds.items():
            result, error = columns[name], columns.pop(bound)
            columns[name] = Vector(result.type, result.values, result.valid, error.values)


class Sure(_ColumnOperator):
    """These columns as exact ones; NotExactError for a row where one is not."""

    def __init__(self, names: Iterable[AttributeId]) -> None:
        self.names = tuple(sorted(names))

    def _replace(self, columns: _Columns) -> None:
        for name in self.names:
            if not is_known(columns[name]):
                raise unsure_value("A value used to join, group or compare whole rows")
            columns[name] = exactly(columns[name])


class _Spans(_ColumnOperator):
    """`spans` names the columns of both ends for each column that has bounds."""

    def __init__(self, spans: Mapping[AttributeId, tuple[AttributeId, AttributeId]]) -> None:
        self.spans = dict(spans)
        self.computed = {*self.spans, *(name for pair in self.spans.values() for name in pair)}


class Spanned(_Spans):
    """Replaces each column that has bounds by its two ends. An unknown value has the least double
    and NaN, the greatest value."""

    def _replace(self, columns: _Columns) -> None:
        for name, (low, high) in self.spans.items():
            result = columns.pop(name)
            lost = is_open(result)
            least, most = ends(result)
            columns[low] = Vector(DOUBLE, np.where(lost, -np.inf, least.values), result.valid)
            columns[high] = Vector(DOUBLE, np.where(lost, np.nan, most.values), result.valid)


class Narrowed(_Spans):
    """Replaces both ends by the middle value with its bound."""

    def _replace(self, columns: _Columns) -> None:
        for name, (low, high) in self.spans.items():
            least, most = columns.pop(low), columns.pop(high)
            columns[name] = between(least.values, most.values, least.valid)
