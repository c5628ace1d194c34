"""What tuples and keys are worth: products of counts, sums multiplied by counts, and their changes.

Law: a tuple's value is the sum over the joined rows that extend it below: its own rows times the
product of its children's, and a slot times the counts of all others. A key's value is the sum over
its tuples. Every value is a function of what is stored, bit for bit the same whenever it is asked
for, so taking an old value away takes away exactly what was added. Counts that do not stay below
2^62 stop the step (`count_too_large`); sums of integers and decimals are exact in 128 bits; a sum
of doubles multiplied by a count is split by its digits, and what a product, a difference or a sum
may lose is added to its `drift`. NaN and infinities are counts, and multiply as counts.
State columns are those of `engine.accumulators`. Out of scope: which values meet (`way_up`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from impctl.data.keys import Grouping
from impctl.data.vector import Bools, Floats, Ints
from impctl.engine import compensated, wide
from impctl.engine.accumulators import Accumulator, Count, ExactSum, FloatSum, Values
from impctl.engine.aggregate_column import ROWS
from impctl.engine.extremes import Extreme
from impctl.errors import NotExactError

MOST_ROWS = 2.0**62
"""Joined rows that a count may stand for: differences of two such counts still fit 64 bits."""

_EXACT = 2.0**52
"""Half of where doubles stop to tell whole numbers apart, as `FloatSum` has it."""
_HEAD = ~((1 << 27) - 1)
"""The bits of a double but for the lower half of its digits."""
_UP = 1.0 + 2.0**-50
_OVERFLOWS = np.errstate(over="ignore", invalid="ignore")

Part = Accumulator | Extreme


def zeros(parts: Sequence[Part], length: int) -> Values:
    """The value of nothing, so many times."""
    result: Values = {ROWS: np.zeros(length, dtype=np.int64)}
    for part in parts:
        result.update({name: np.zeros(length, dtype=kind) for name, kind in part.columns.items()})
    return result


def product(counts: Sequence[Ints]) -> Ints:
    """Row by row the product of counts, none below zero; NotExactError at 2^62 and beyond."""
    result = counts[0]
    several = [count for count in counts[1:] if not bool((count == 1).all())]
    for count in several:
        # First of all: what has no partner must not seem too large on the way.
        result = np.where(count > 0, result, 0)
    for count in several:
        is_close = float(result.max()) * float(count.max()) >= MOST_ROWS
        if is_close and bool((result.astype(np.float64) * count >= MOST_ROWS).any()):
            raise count_too_large()
        result = result * count
    return result


def count_too_large() -> NotExactError:
    """The error for more joined rows than can be counted."""
    return NotExactError(
        "A group of a join has more than 2^62 joined rows",
        hint="recapture with `impctl capture`, or set `join: index`",
        code="count_too_large",
    )


def sum_too_large() -> NotExactError:
    """The error for a sum on the way up that does not fit 128 bits."""
    return NotExactError(
        "A sum over one table's rows with the same key does not fit in 38 digits",
        hint="recapture with `impctl capture`, or set `join: index`",
    )


def counted_in(old: Ints, change: Ints, grouping: Grouping) -> Ints:
    """Counts per group after the change of every row was added; NotExactError from 2^62 on."""
    delta = np.add.reduceat(change[grouping.order], grouping.starts)
    reach = float(np.abs(change).max()) * len(change) + float(old.max()) if len(old) else 0.0
    if reach >= MOST_ROWS:
        exact = np.add.reduceat(change.astype(np.float64)[grouping.order], grouping.starts)
        if bool((old.astype(np.float64) + exact >= MOST_ROWS).any()):
            raise count_too_large()
    return old + delta


def multiplied(part: Accumulator, values: Values, factor: Ints) -> Values:
    """The columns of one slot, each value as many times as `factor` says; shapes (n,)."""
    if bool((factor == 1).all()):
        return {name: values[name] for name in part.columns}
    if isinstance(part, Count):
        return {name: values[name] * factor for name in part.columns}
    if isinstance(part, ExactSum):
        high, low = part.columns
        sums = _times(wide.unwiden(values[high], values[low]), factor)
        return dict(zip((high, low), wide.widen(sums), strict=True))
    return _multiplied_doubles(part, values, factor)


@_OVERFLOWS
def _multiplied_doubles(part: FloatSum, values: Values, factor: Ints) -> Values:
    result = {
        name: values[name] * factor for name, kind in part.columns.items() if kind is np.int64
    }
    total, rest, size, drift = _names(part.slot)
    times = factor.astype(np.float64)
    sizes, is_exact = values[size] * times, np.zeros(len(factor), dtype=np.bool_)
    if part.integral:
        is_exact = sizes < _EXACT
    result[size] = np.where(is_exact, sizes, sizes * _UP)
    lost = np.where(is_exact, 0.0, sizes * compensated.DRIFT)
    result[drift] = (values[drift] * times + lost) * np.where(is_exact, 1.0, _UP)
    result[total], result[rest] = _split_product(values[total], values[rest], factor)
    if part.bounded:
        slack = f"slack{part.slot}"
        result[slack] = values[slack] * times * _UP
    return result


def _names(slot: int) -> tuple[str, str, str, str]:
    return f"sum{slot}", f"rest{slot}", f"size{slot}", f"drift{slot}"


def _times(sums: Any, factor: Ints) -> Any:
    """Exact products; int64 where that cannot overflow."""
    if sums.dtype != object and _largest(sums) * _largest(factor) < 2**62:
        return sums * factor
    return sums.astype(object) * factor.astype(object)


def _largest(values: Any) -> int:
    return max(abs(int(values.max())), abs(int(values.min()))) if len(values) else 0


def _split_product(high: Floats, low: Floats, factor: Ints) -> tuple[Floats, Floats]:
    """The pair `high + low` times a count, again as a pair; off by less than 2^-100 of it.

    A count beyond 2^53 is itself a pair. Halves are cut off in the bits, so nothing overflows that
    the product does not (Dekker's product otherwise).
    """
    times = factor.astype(np.float64)
    missing = (factor - times.astype(np.int64)).astype(np.float64)
    result = high * times
    mine, theirs = _head(high), _head(times)
    rest = mine * theirs - result
    rest = rest + mine * (times - theirs) + (high - mine) * theirs
    rest = rest + (high - mine) * (times - theirs)
    return compensated.two_sum(result, rest + (high * missing + low * times))


def _head(values: Floats) -> Floats:
    return (values.view(np.int64) & _HEAD).view(np.float64)


def changed(parts: Sequence[Part], after: Values, before: Values) -> Bools:
    """Where rows or any slot differ; NaN is a value like any other."""
    differs: Bools = after[ROWS] != before[ROWS]
    for part in parts:
        for name, kind in part.columns.items():
            new, old = after[name], before[name]
            if kind is np.float64:
                new, old = new.view(np.int64), old.view(np.int64)
            differs |= new != old
    return differs


def change(part: Accumulator, after: Values, before: Values, grouping: Grouping) -> Values:
    """The change of one slot per group, in the form that the part's `add` takes."""
    order, starts = grouping.order, grouping.starts
    if isinstance(part, Count):
        return {name: _sums(after, before, name, grouping) for name in part.columns}
    if isinstance(part, ExactSum):
        high, low = part.columns
        new, old = (wide.unwiden(value[high], value[low]) for value in (after, before))
        if new.dtype == object or old.dtype == object or max(map(_largest, (new, old))) >= 2**62:
            new, old = new.astype(object), old.astype(object)
        ones = np.ones(len(new), dtype=np.int64)
        totals = wide.grouped_sums(new - old, ones, order, starts)
        return dict(zip((high, low), wide.widen(totals), strict=True))
    return _change_of_doubles(part, after, before, grouping)


def _sums(after: Values, before: Values, name: str, grouping: Grouping) -> Any:
    return np.add.reduceat((after[name] - before[name])[grouping.order], grouping.starts)


@_OVERFLOWS
def _change_of_doubles(part: FloatSum, after: Values, before: Values, grouping: Grouping) -> Values:
    order, starts = grouping.order, grouping.starts

    def sums(name: str) -> Any:
        return _sums(after, before, name, grouping)

    result = {name: sums(name) for name, kind in part.columns.items() if kind is np.int64}
    total, rest, size, drift = _names(part.slot)
    pairs = compensated.add_pairs(after[total], after[rest], -before[total], -before[rest])
    result[total], result[rest] = compensated.grouped_pairs(
        pairs[0][order], pairs[1][order], starts
    )
    touched = _reach(after, before, size, grouping)
    slip = touched * (len(after[size]) * 2.0**-51)
    if part.integral and float(touched.sum()) < _EXACT:
        slip = np.zeros(len(touched))
    result[size], result[f"touched{part.slot}"] = sums(size) + slip, touched + slip
    result[drift] = sums(drift) + _reach(after, before, drift, grouping) * (
        len(after[drift]) * 2.0**-51
    )
    if part.bounded:
        slack = f"slack{part.slot}"
        reach = _reach(after, before, slack, grouping) * (1.0 + len(after[slack]) * 2.0**-51)
        result[slack] = sums(slack) + reach * (len(after[slack]) * 2.0**-51)
        result[f"reach{part.slot}"] = reach
    return result


def _reach(after: Values, before: Values, name: str, grouping: Grouping) -> Floats:
    """What came and what went together, per group."""
    both: Floats = np.add.reduceat((after[name] + before[name])[grouping.order], grouping.starts)
    return both


def clear_empty(state: Values, parts: Sequence[Part]) -> None:
    """What is left of a sum over nothing is rounding dust: clear it."""
    counts = {part.argument: part.slot for part in parts if isinstance(part, Count)}
    for part in parts:
        slot = counts.get(part.argument)
        empty = state[ROWS if slot is None else f"count{slot}"] == 0
        if isinstance(part, Count) or not bool(empty.any()):
            continue
        for name in part.columns:
            state[name] = np.where(empty, np.zeros(1, state[name].dtype), state[name])
