"""Variance and standard deviation from a count, a sum and a sum of squares.

Law: Spark's value lies within the reported error of ours, in whatever order its rows came together.
Spark updates a mean and a centred sum of squares M row by row and merges pairs of them (Chan, Golub
and LeVeque, "Algorithms for computing the sample variance", 1983). With S the sum of squares of n
rows, u = 2^-53 and L = 1 + log2 n, over any tree of merges:
- a mean's error e, times its rows a, grows by at most u * a * |mean| + 3 u * b * |difference of the
  two means| per merge with b rows. As a * |mean| <= sqrt(a S), and the smaller sides of all merges
  add up to at most L times every row, e <= u * sqrt(S) * (sqrt(n) + 8) * (7.1 + 3.1 sqrt(L));
- the exact contributions d^2 * a * b / (a + b) of all merges add up to M, and a * b / (a + b) to
  n * L at most, so errors of the differences d change the root of M by at most 2 e * sqrt(n L);
- values that Spark first rounds to doubles change that root by at most u * sqrt(S);
- rounding M itself costs a factor within (2 u) * n.
A group of one row is exactly 0. A group with NaN or an infinity is NaN.
Ours takes the square of the sum from the sum of squares, which are far larger than what is left
where values are far from zero. So squares of doubles are summed with what rounding took off each
(`residue`), and both in twice the precision. Where even that is further off than Spark's may be, as
sums by Spark are, the value is not known.
Out of scope: the sums themselves (`engine.accumulators`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from impctl.data.schema import DOUBLE, SqlType
from impctl.data.vector import Floats, Vector
from impctl.engine import wide
from impctl.engine.accumulators import Accumulator, Count, ExactSum, FloatSum, Values
from impctl.engine.compensated import DRIFT, add_pairs, two_product, two_sum
from impctl.expr.nodes import Expr, Literal, minus, plus, times
from impctl.values import dataclass

FUNCTIONS = frozenset({"var_pop", "variance", "stddev_pop", "stddev"})
"""The population's, and the sample's, which is NULL for one row."""

_UNIT = 2.0**-53
_MOST_ROWS = 2.0**32
"""Beyond so many rows in a group the first-order bounds above do not hold."""
_ROUGH = 2.0**-20
"""What may be wrong of a variance, where that is more than Spark's may be off by."""
_DUST = 2.0**-70
"""What larger values that went may have left in the sum of the squares of those that are there."""
_TINY = 1e-250
"""More than what products of denormal size may lose."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A function of `FUNCTIONS` over the argument of `count` and `total`.

    `squares` sums the argument's squares; its argument has twice the scale of `total`'s. `residues`
    sums what squares of doubles lost when they were rounded.
    """

    function: str
    count: Count
    total: ExactSum | FloatSum
    squares: ExactSum | FloatSum
    scale: int
    """Digits after the point of an exact argument."""
    residues: FloatSum | None = None

    @property
    def parts(self) -> tuple[Accumulator, ...]:
        """What is remembered for it; each sum with its own count, which tells when it is empty."""
        sums = (self.squares,) if self.residues is None else (self.squares, self.residues)
        counted = (part for one in sums for part in (Count(one.argument, one.slot), one))
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
        """The sum of squares about the mean, how far Spark's may be off, and where it is NaN."""
        is_nan = np.zeros(len(counts), dtype=np.bool_)
        with np.errstate(all="ignore"):
            if isinstance(self.total, ExactSum) and isinstance(self.squares, ExactSum):
                centred, squares = self._exactly(state, counts)
                own = centred * (2 * _UNIT)
            else:
                is_nan = ~np.isfinite(self.total.value(state, kind).values)
                centred, squares, own = self._from_doubles(state, kind, rows)
            slip = _slip(rows, squares, np.maximum(centred + own, 0.0))
            is_rough = (own > slip) & (own > _ROUGH * centred) & (own > _DUST * squares)
            error = np.where(is_rough, np.inf, own + slip)
            return np.maximum(centred, 0.0), error, is_nan

    def _from_doubles(
        self, state: Values, kind: SqlType, rows: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """Centred and whole sum of squares, and the error of the first."""
        total, squares, residues = self.total, self.squares, self.residues
        assert residues is not None, "doubles are squared with what rounding takes off"
        assert isinstance(total, FloatSum)
        assert isinstance(squares, FloatSum)
        whole = add_pairs(*squares.pair(state), *residues.pair(state))
        sums, drift = total.pair(state), total.drift(state)
        own = squares.drift(state) + residues.drift(state)
        result, summed = squares.value(state, kind), total.value(state, kind)
        if result.error is not None and summed.error is not None:
            # Whole numbers, whose sums are exact.
            exact = (result.error == 0) & (summed.error == 0)
            whole = np.where(exact, result.values, whole[0]), np.where(exact, 0.0, whole[1])
            sums = np.where(exact, summed.values, sums[0]), np.where(exact, 0.0, sums[1])
            own, drift = np.where(exact, 0.0, own), np.where(exact, 0.0, drift)
        shift = _divided(*two_product(sums[0], sums[0]), rows)
        shift = add_pairs(*shift, 2 * sums[0] * sums[1] / rows, np.zeros(len(rows)))
        high, low = add_pairs(*whole, -shift[0], -shift[1])
        centred = high + low
        own = own + (2 * np.abs(sums[0]) * drift + drift * drift) / rows
        own = own + (np.abs(whole[0]) + shift[0]) * (8 * DRIFT) + np.abs(centred) * (2 * _UNIT)
        # Squares beyond the greatest double are no part of the pairs.
        is_lost = ~np.isfinite(result.values)
        is_lost |= ~np.isfinite(residues.value(state, kind).values)
        centred = np.where(is_lost, np.inf, centred)
        return centred, np.maximum(whole[0], 0.0) + own, own * (1 + 16 * _UNIT) + _TINY

    def _exactly(self, state: Values, counts: Any) -> tuple[Floats, Floats]:
        """From exact sums, in Python integers: a loop over the changed groups."""
        sums, squares = (
            wide.unwiden(state[f"high{part.slot}"], state[f"low{part.slot}"]).tolist()
            for part in (self.total, self.squares)
        )
        unit = 10 ** (2 * self.scale)
        centred = [
            (n * square - total * total) / (n * unit) if n else 0.0
            for n, total, square in zip(counts.tolist(), sums, squares, strict=True)
        ]
        whole = [square / unit for square in squares]
        return np.array(centred, dtype=np.float64), np.array(whole, dtype=np.float64)


def residue(value: Expr) -> Expr:
    """What rounding takes off the square of a double, exactly (Dekker): v * v - fl(v * v)."""
    far = times(value, Literal(float((1 << 27) + 1), DOUBLE))
    head = minus(far, minus(far, value))
    tail = minus(value, head)
    off = minus(times(head, head), times(value, value))
    off = plus(off, times(Literal(2.0, DOUBLE), times(head, tail)))
    return plus(off, times(tail, tail))


def _divided(high: Floats, low: Floats, rows: Floats) -> tuple[Floats, Floats]:
    """A pair divided by numbers of rows, as a pair."""
    first = high / rows
    back = two_product(first, rows)
    return two_sum(first, ((high - back[0]) - back[1] + low) / rows)


def _slip(rows: Floats, squares: Floats, centred: Floats) -> Floats:
    """How far Spark's centred sum may lie from the true one, which is at most `centred`."""
    levels = 1 + np.log2(rows)
    size = np.sqrt(squares * (1 + 4 * _UNIT)) * _UNIT
    means = 2.2 * size * (np.sqrt(rows) + 8) * (7.1 + 3.1 * np.sqrt(levels))
    shift = means * np.sqrt(rows * levels) + size
    root = np.sqrt(centred) * (1 + 4 * _UNIT)
    slip = shift * (2 * root + shift) + (root + shift) ** 2 * (_UNIT * (2.1 * rows + 40))
    return np.where(rows > _MOST_ROWS, np.inf, slip * (1 + 2.0**-10) + _TINY)


def _rooted(value: Floats, error: Floats) -> tuple[Floats, Floats]:
    """The square root and its error; below the value it is the larger."""
    root = np.sqrt(value)
    low = np.sqrt(np.maximum(value - error, 0.0))
    high = np.sqrt(value + error)
    spread = np.maximum(root - low, high - root) + high * (8 * _UNIT)
    return root, np.where(error == 0, 0.0, spread)
