"""What tuples and keys of a join tree are worth: counts, sums, extremes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from msgspec import Struct

from impctl.data.keys import Grouping, group_rows, key_codes
from impctl.data.schema import INTEGRAL, TEMPORAL, Kind, SqlType
from impctl.data.vector import Bools, Floats, Ints, Vector, concat, from_stored
from impctl.engine import exact_sums
from impctl.engine.accumulators import (
    ROWS,
    Accumulator,
    Count,
    DistinctValues,
    ExactSum,
    Firsts,
    FloatSum,
    Values,
    parts_of,
)
from impctl.engine.extremes import Extreme
from impctl.engine.trace import Arrangement, Located, Run, find_in
from impctl.errors import NotExactError
from impctl.types import AttributeId

if TYPE_CHECKING:
    from impctl.engine.jointree.spec import JoinTree

# Tuples, and state by the columns of a tuple or of its key. Law: where a key is one column of
# integers that is never NULL, its code determines it, and a `KeyedState` keeps no key column.

_NARROW_DIGITS = 18
Columns = Mapping[AttributeId, Vector]


class Tuples(Struct, frozen=True):
    """Different tuples, ascending by the codes of their columns; `codes` of shape (n,)."""

    codes: Ints
    columns: Columns

    def __len__(self) -> int:
        return len(self.codes)

    def vectors(self, names: Sequence[AttributeId]) -> list[Vector]:
        return [self.columns[name] for name in names]

    def between(self, start: int, end: int) -> Tuples:
        """The tuples from one place to before another; nothing is copied."""
        columns = {name: column.between(start, end) for name, column in self.columns.items()}
        return Tuples(self.codes[start:end], columns)

    def take(self, positions: Ints) -> Tuples:
        columns = {name: column.take(positions) for name, column in self.columns.items()}
        return Tuples(self.codes[positions], columns)


def stacked(lots: Sequence[Tuples]) -> Tuples:
    if len(lots) == 1:
        return lots[0]
    columns = {name: concat([lot.columns[name] for lot in lots]) for name in lots[0].columns}
    return Tuples(np.concatenate([lot.codes for lot in lots]), columns)


def different(
    names: Sequence[AttributeId], parts: Sequence[tuple[int, Columns]]
) -> tuple[Tuples, Ints]:
    """The different tuples among several lots of (length, columns), and each row's place there.
    Codes are those of `names` in this order. A tuple in two lots counts once."""
    length = sum(size for size, _ in parts)
    filled = [columns for size, columns in parts if size]
    vectors = [concat([columns[name] for columns in filled]) for name in names] if filled else []
    grouping = group_rows(vectors, length)
    columns = {name: v.take(grouping.first) for name, v in zip(names, vectors, strict=False)}
    return Tuples(grouping.codes, columns), grouping.index()


class KeyedState:
    """An arrangement by columns of these types; `alive` and `columns` as in `Arrangement`."""

    def __init__(
        self,
        name: str,
        types: Sequence[SqlType],
        alive: str,
        columns: Callable[[], Mapping[str, Any]] | None = None,
        *,
        has_null: bool,
    ) -> None:
        self._is_determined = len(types) == 0 or (
            len(types) == 1 and not has_null and _is_whole(types[0])
        )
        self._types = tuple(types)
        self.arrangement = Arrangement(name, () if self._is_determined else types, alive, columns)

    def snapshot_copy(self) -> Self:
        result = copy(self)
        result.arrangement = self.arrangement.snapshot_copy()
        return result

    def find(self, codes: Ints, keys: Sequence[Vector]) -> Located:
        return self.arrangement.find(codes, () if self._is_determined else keys)

    def read(self, located: Located, columns: Mapping[str, Any]) -> Values:
        """These state columns of located keys; zero where there is no row."""
        return {
            name: self.arrangement.gather(located, name, kind) for name, kind in columns.items()
        }

    def put(self, codes: Ints, keys: Sequence[Vector], values: Values, rows: Bools) -> None:
        """Replace the rows of the marked keys; `codes` ascending."""
        positions = rows.nonzero()[0]
        if len(positions) == len(codes):
            self.arrangement.put(codes, () if self._is_determined else keys, values)
        elif len(positions):
            kept = [] if self._is_determined else [key.take(positions) for key in keys]
            self.arrangement.put(
                codes[positions], kept, {n: value[positions] for n, value in values.items()}
            )

    def places(self, among: Ints, stored: Sequence[Vector], codes: Ints, keys: Any) -> Ints:
        """Positions of keys among others, given by ascending codes; -1 for absent ones."""
        if self._is_determined:
            stored, keys = (), ()
        run = Run(0, among, tuple(key.to_arrow() for key in stored), {})
        return find_in(run, self.arrangement.key_types, codes, keys)

    def is_same(self, among: Ints, keys: Sequence[Vector]) -> bool:
        """Whether the keys are exactly those of the given codes, in order; False where checking is
        expensive."""
        if not self._is_determined or len(keys) != 1 or len(keys[0]) != len(among):
            return False
        return bool((key_codes(keys, len(among)) == among).all())

    def whole(self, columns: Mapping[str, Any]) -> tuple[Ints, list[Vector], Values]:
        """All living rows: codes, key columns and state columns. Cost: the state."""
        run = self.arrangement.whole()
        if run is None:
            return np.zeros(0, dtype=np.int64), [], {}
        keys = [from_stored(k, t) for k, t in zip(run.keys, self._types, strict=False)]
        if self._is_determined:
            keys = [Vector(kind, run.codes) for kind in self._types]
        values = {
            name: run.values.get(name, np.zeros(len(run), dtype=kind))
            for name, kind in columns.items()
        }
        return run.codes, keys, values


def _is_whole(kind: SqlType) -> bool:
    """Whether every value of the type is one 64-bit integer."""
    is_narrow = kind.kind is Kind.DECIMAL and kind.precision <= _NARROW_DIGITS
    return kind.kind in INTEGRAL or kind.kind in TEMPORAL or is_narrow


# Tuples of a root that became or ceased to be alive, and their groups. Law: only these change the
# values that are counted one by one; computed once per step for all readers.


class AliveChange(Struct, frozen=True):
    """The tuples of a step, `grouping` them by group. `signs` is +1 where a tuple became alive, -1
    where it no longer is. `positions` are theirs, `owners` the numbers of their groups."""

    tuples: Tuples
    grouping: Grouping
    signs: Ints
    positions: Ints
    owners: Ints

    @classmethod
    def of(cls, tuples: Tuples, grouping: Grouping, signs: Ints, numbers: Ints) -> Self:
        positions = signs.nonzero()[0]
        owners = numbers[grouping.index()[positions]] if len(positions) else positions
        return cls(tuples, grouping, signs, positions, owners)


# Values that count once per group: DISTINCT at the root. Law: a group has a value of a column that
# the root keeps iff a living tuple of the group has it. Tuples that become or cease to be alive are
# counted per group and value; where a count crosses zero, the value is added to the group or taken
# away. Equality is that of GROUP BY; NULL does not count; a count below zero is an error. Cost:
# those tuples.


class OnceColumn(Struct, frozen=True):
    """A kept column of the root whose values count once, and its aggregates per group."""

    kept: AttributeId
    values: DistinctValues
    parts: tuple[Accumulator, ...]

    def add(self, new: Values, old: Values, change: AliveChange) -> None:
        column, positions = change.tuples.columns[self.kept], change.positions
        weights = np.zeros(len(change.tuples), dtype=np.int64)
        if len(positions):
            crossings = self.values.crossings(
                change.owners, column.take(positions), change.signs[positions]
            )
            weights[positions] = crossings
        for part in self.parts:
            new.update(part.add(old, part.delta(column, weights, change.grouping)))


def once_columns(tree: JoinTree, name: str) -> Sequence[OnceColumn]:
    """The root's columns of distinct values, with state named after `name` and numbered."""
    kinds = dict(tree.root.kept)
    parts = [part for part in parts_of(tree.columns) if not isinstance(part, Extreme)]
    return tuple(
        OnceColumn(
            kept,
            DistinctValues(f"{name}.distinct{index}", kinds[kept]),
            tuple(part for part in parts if part.argument == argument),
        )
        for index, (argument, kept) in enumerate(tree.once)
    )


# Values of a group found by an order: extremes of text, MIN_BY and MAX_BY, at the root. Law: the
# first value among a group's joined rows is the first among its living tuples, because the root
# keeps the value and its order, and neither depends on the number of copies. An argument of no
# other aggregate is counted by tuples, to know whether there is any. Cost: the tuples that became
# or ceased to be alive, and the lookups of `engine.extremes` for every touched group.


class OrderedColumns:
    """Kept columns of the root that are ordered per group; none where no call needs them."""

    def __init__(self, tree: JoinTree, name: str) -> None:
        kinds, self._kept = dict(tree.root.kept), dict(tree.ordered)
        types = {argument: kinds[kept] for argument, kept in tree.ordered}
        self.firsts = Firsts(name, tree.columns, types)
        known = {argument for node in tree.nodes for argument, _ in node.arguments}
        self.counts = tuple(
            part
            for part in parts_of(tree.columns)
            if isinstance(part, Count) and part.argument in self._kept.keys() - known
        )

    def __bool__(self) -> bool:
        return bool(self.firsts)

    def add(self, new: Values, old: Values, change: AliveChange) -> None:
        """Count the tuples, and write to `new` how many of them have a value."""
        kept_columns, positions = change.tuples.columns, change.positions
        columns = {argument: kept_columns[kept] for argument, kept in self._kept.items()}
        for part in self.counts:
            delta = part.delta(columns[part.argument], change.signs, change.grouping)
            new.update(part.add(old, delta))
        if len(positions):
            selected = {name: column.take(positions) for name, column in columns.items()}
            self.firsts.add(selected, change.owners, change.signs[positions])


# Values of tuples and keys: products of counts, sums multiplied by counts, and their changes. Law:
# a tuple's value is the sum over the joined rows that extend it below: its own rows times the
# product of its children's, and a slot times the counts of all others. A key's value is the sum
# over its tuples. Every value is a function of stored state, to the bit, so subtracting an old
# value removes exactly what was added. Counts beyond 2^62 stop the step (`count_too_large`). Sums
# of integers and decimals are exact in 128 bits. A sum of doubles multiplied by a count is split by
# its digits, and what products, differences and sums may lose is added to its `drift`. NaN and
# infinities are counts, and multiply as counts. State columns are those of `engine.accumulators`.

MOST_ROWS = 2.0**62
"""Joined rows that a count may stand for: differences of two such counts still fit 64 bits."""

_EXACT = 2.0**52  # Half the bound to which doubles represent all integers, as in `FloatSum`
_HEAD = ~((1 << 27) - 1)  # The bits of a double without the lower half of its digits
_UP = 1.0 + 2.0**-50
_OVERFLOWS = np.errstate(over="ignore", invalid="ignore")

Part = Accumulator | Extreme


def zeros(parts: Sequence[Part], length: int) -> Values:
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
    return NotExactError(
        "A group of a join has more than 2^62 joined rows",
        hint="recapture with `impctl capture`, or set `join: index`",
        code="count_too_large",
    )


def sum_too_large() -> NotExactError:
    return NotExactError(
        "A sum over one table's rows with the same key does not fit in 38 digits",
        hint="recapture with `impctl capture`, or set `join: index`",
    )


def counted_in(old: Ints, change: Ints, grouping: Grouping) -> Ints:
    """Counts per group after adding every row's change; NotExactError from 2^62 on."""
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
        sums = _times(exact_sums.unwiden(values[high], values[low]), factor)
        return dict(zip((high, low), exact_sums.widen(sums), strict=True))
    return _multiplied_doubles(part, values, factor)


@_OVERFLOWS
def _multiplied_doubles(part: FloatSum, values: Values, factor: Ints) -> Values:
    counts = (name for name, kind in part.columns.items() if kind is np.int64)
    result = {name: values[name] * factor for name in counts}
    total, rest, size, drift = _names(part.slot)
    times = factor.astype(np.float64)
    sizes, is_exact = values[size] * times, np.zeros(len(factor), dtype=np.bool_)
    if part.integral:
        is_exact = sizes < _EXACT
    result[size] = np.where(is_exact, sizes, sizes * _UP)
    lost = np.where(is_exact, 0.0, sizes * exact_sums.DRIFT)
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
    if sums.dtype != object and exact_sums.magnitude(sums) * exact_sums.magnitude(factor) < 2**62:
        return sums * factor
    return sums.astype(object) * factor.astype(object)


def _split_product(high: Floats, low: Floats, factor: Ints) -> tuple[Floats, Floats]:
    """The pair `high + low` times a count, again as a pair; off by less than 2^-100 of it. A count
    beyond 2^53 is itself a pair. Values are split in the bits, so nothing overflows that the
    product does not (Dekker's product otherwise)."""
    times = factor.astype(np.float64)
    missing = (factor - times.astype(np.int64)).astype(np.float64)
    result = high * times
    left, right = _head(high), _head(times)
    rest = left * right - result
    rest = rest + left * (times - right) + (high - left) * right
    rest = rest + (high - left) * (times - right)
    return exact_sums.two_sum(result, rest + (high * missing + low * times))


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
        new, old = (exact_sums.unwiden(value[high], value[low]) for value in (after, before))
        if (
            new.dtype == object
            or old.dtype == object
            or max(map(exact_sums.magnitude, (new, old))) >= 2**62
        ):
            new, old = new.astype(object), old.astype(object)
        ones = np.ones(len(new), dtype=np.int64)
        totals = exact_sums.exact_grouped_sums(new - old, ones, order, starts)
        return dict(zip((high, low), exact_sums.widen(totals), strict=True))
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
    pairs = exact_sums.add_pairs(after[total], after[rest], -before[total], -before[rest])
    result[total], result[rest] = exact_sums.grouped_pairs(pairs[0][order], pairs[1][order], starts)
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
    both: Floats = np.add.reduceat((after[name] + before[name])[grouping.order], grouping.starts)
    return both
