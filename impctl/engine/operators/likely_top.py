"""The rows that may be among the first of an order by a value known within a bound.

Identity: as of `engine.operators.top`; the rows are those whose best value is no worse than the
`size`-th of all worst values, of all rows or of each group. Every row that is among the first for
some values within the bounds is one of them: `size` rows are surely as good as that border. Where
standings are counted, the border is the `size`-th of worst values picked one after the other, each
the first among rows whose best value lies beyond the one before: so many values surely differ.
State: all rows by group, in the order of their best values. Cost: the changed rows, and of the
groups they are in the rows up to the border. A bound that is no number may stand for any value, NaN
too; NULL is NULL for sure. Ties at the border are all kept, so later sort keys have no say. Asked
for the first rows for sure, it fails where these are more.
Not to be confused with Top, whose values are exact: here rows may be too many, never too few.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from impctl.data.keys import start_of, starts_in
from impctl.data.schema import DOUBLE, LONG, SqlType
from impctl.data.vector import INT64_MAX, INT64_MIN, Bools, Ints, Vector
from impctl.engine.batch import Batch, empty_batch
from impctl.engine.operators.top import Cut, First, Limit, Top
from impctl.engine.order_codes import OrderKey, codes_of
from impctl.expr.error_bounds import unsure_value
from impctl.types import AttributeId


class LikelyTop(Top):
    """As many as `size`, as `cut` counts, and those that may be better than one of them.

    `bound` is the column with the bound of the sort key, None for an exact one; `has_more` says
    that later keys would decide among ties. With `is_sure` they must be no others than the first
    rows, else NotExactError: no more than `size`, but for what ties for sure (RANK, DENSE).
    """

    def __init__(
        self,
        name: str,
        columns: Sequence[tuple[AttributeId, SqlType]],
        key: OrderKey,
        bound: AttributeId | None,
        size: int,
        accesses: int,
        *,
        partition: Sequence[AttributeId] = (),
        cut: Cut = Cut.ROW,
        has_more: bool = False,
        is_sure: bool = False,
    ) -> None:
        self._worst = f"{name}/worst"
        super().__init__(
            name,
            (*columns, (self._worst, LONG)),
            [key],
            Limit(size, Cut.RANK),
            accesses,
            partition=partition,
        )
        self._bound = bound
        self._has_more = has_more
        self._rows_count = cut is not Cut.DENSE
        self._must_end = cut is Cut.ROW
        self._is_sure = is_sure
        self._unsure_rows = 0

    def step(self, batch: Batch) -> Batch:
        """What the change does to the rows that may be first."""
        if len(batch) == 0:
            return empty_batch(self._accesses)
        worst = Vector(LONG, self._reached(batch, is_best=False))
        return super().step(Batch({**batch.columns, self._worst: worst}, batch.weights, batch.tags))

    @property
    def can_output(self) -> bool:
        # What is unsure of them would be counted once more, or fail.
        return False

    @property
    def unsure_rows(self) -> int:
        return self._unsure_rows

    def _codes(self, batch: Batch) -> Ints:
        return self._reached(batch, is_best=True)

    def _reached(self, batch: Batch, *, is_best: bool) -> Ints:
        """Codes of the best or the worst value within the bound."""
        key = self.order[0]
        value = batch.columns[key.column]
        if self._bound is None:
            return codes_of(value, key)
        error = batch.columns[self._bound].values
        is_open = ~np.isfinite(error)
        # The better end is the greater one where the order descends.
        sign = 1.0 if is_best == key.descending else -1.0
        with np.errstate(invalid="ignore", over="ignore"):
            moved = np.nextafter(value.values + sign * np.where(is_open, 0.0, error), sign * np.inf)
        ends = np.where(error == 0.0, value.values, moved)
        codes = codes_of(Vector(DOUBLE, ends, value.valid), key)
        end = INT64_MIN + 1 if is_best else INT64_MAX - 1
        return np.where(is_open & value.validity(), end, codes)

    def _counted(
        self, owners: Ints, rows: Batch, is_sure: Bools, limits: Ints, groups: int
    ) -> Bools:
        border = self._border(owners[is_sure], rows.take(np.flatnonzero(is_sure)), groups)
        return border < limits

    def _border(self, owners: Ints, rows: Batch, groups: int) -> Ints:
        """The worst code that `size` rows, or standings, of a group surely reach; INT64_MAX for
        fewer."""
        borders = np.full(groups, INT64_MAX)
        if not len(rows):
            return borders
        if not self._rows_count:
            return self._standings_border(owners, rows, groups)
        worst = rows.columns[self._worst].values
        order = np.lexsort((worst, owners))
        owners, worst = owners[order], worst[order]
        reached: Ints = np.cumsum(rows.weights[order])
        starts = starts_in(owners)
        before = (reached - rows.weights[order])[start_of(starts)]
        is_full = reached - before >= self.limit.size
        np.minimum.at(borders, owners[is_full], worst[is_full])
        return borders

    def _standings_border(self, owners: Ints, rows: Batch, groups: int) -> Ints:
        """Of values that differ for sure the `size`-th: no other choice finds as many before it."""
        best, worst = rows.columns[self._code].values, rows.columns[self._worst].values
        # A round finds one standing of every group, so there are `size` of them at most.
        for number in range(self.limit.size):
            borders = np.full(groups, INT64_MAX)
            np.minimum.at(borders, owners, worst)
            if number + 1 == self.limit.size:
                return borders
            beyond = np.flatnonzero(best > borders[owners])
            owners, best, worst = owners[beyond], best[beyond], worst[beyond]
            if not len(owners):
                break
        return np.full(groups, INT64_MAX)

    def _standings(self, owners: Ints, rows: Batch, groups: int) -> Ints:
        """How many values, at most, these rows of each group have.

        Rows whose bounds overlap, one after the other, may have one value each; a row by itself
        and exact rows that tie have one, unless later keys tell these apart.
        """
        best, worst = rows.columns[self._code].values, rows.columns[self._worst].values
        order = np.lexsort((best, owners))
        owners, best, worst = owners[order], best[order], worst[order]
        # By rank within all codes, so that the rows of a group lie beyond those of the one before.
        codes = np.unique(np.concatenate([best, worst]))
        first = owners * np.int64(len(codes)) + np.searchsorted(codes, best)
        last = owners * np.int64(len(codes)) + np.searchsorted(codes, worst)
        reached = np.maximum.accumulate(last)
        starts = np.ones(len(owners), dtype=np.bool_)
        starts[1:] = first[1:] > reached[:-1]
        places = np.flatnonzero(starts)
        copies = np.add.reduceat(rows.weights[order], places)
        is_open = np.logical_or.reduceat((best != worst) | self._has_more, places)
        result = np.zeros(groups, dtype=np.int64)
        np.add.at(result, owners[places], np.where(is_open, copies, 1))
        return result

    def _cut(self, owners: Ints, rows: Batch, groups: int) -> First:
        borders = self._border(owners, rows, groups)
        kept = np.flatnonzero(rows.columns[self._code].values <= borders[owners])
        owners, rows = owners[kept], rows.take(kept)
        counts = np.zeros(groups, dtype=np.int64)
        if self._rows_count:
            np.add.at(counts, owners, rows.weights)
        elif len(rows):
            counts = self._standings(owners, rows, groups)
        beyond = np.maximum(counts - self.limit.size, 0)
        # Where bounds are not zero, what seems to tie may be told apart by Spark.
        is_open = self._has_more | (
            rows.columns[self._worst].values != rows.columns[self._code].values
        )
        has_open = np.zeros(groups, dtype=np.bool_)
        has_open[owners[is_open]] = True
        if self._is_sure and beyond[has_open | self._must_end].any():
            raise unsure_value("The choice of the first rows")
        self._unsure_rows += int(beyond[has_open].sum())
        return First(owners, rows, borders)
