"""Values in the order of a key, per group: extremes of text, and what stands beside an extreme.

Law: `first` gives exactly the values of those rows of a group whose key is least (or, reversed,
greatest); several where rows tie, each once. Rows whose key is NULL do not count. Order as
Spark's: text and binary by bytes, NaN the greatest double, -0.0 equals 0.0. State: rows by group
and the weakly ordered code of their key (`engine.order_codes`), and how often each code occurs.
Cost: the rows changed; per changed group a look-up, and the rows that share the first one's code
(text: its first eight bytes).
Out of scope: extremes of what has a rank of 64 bits (`engine.extremes`), which cost less.
"""

from __future__ import annotations

from copy import copy
from typing import Self

import numpy as np

from impctl.data.keys import group_rows, key_codes
from impctl.data.schema import LONG, SqlType
from impctl.data.vector import Ints, Vector
from impctl.engine.batch import Batch
from impctl.engine.disagreement import never_held
from impctl.engine.extremes import OrderedCounts
from impctl.engine.order_codes import OrderKey, codes_of, exact_ranks
from impctl.engine.row_index import RowIndex
from impctl.errors import NotExactError
from impctl.types import AttributeId
from impctl.values import dataclass

_GROUP, _CODE, _KEY, _VALUE = "group", "code", "key", "value"
_MOST_TIES = 64
"""Different values beside one extreme; each becomes a row that the query may have."""


@dataclass(frozen=True, slots=True)
class First:
    """The value of one argument where another is least, or with `reverse` greatest.

    MIN and MAX are their own key. `slot` is that of the key's count.
    """

    key: AttributeId
    value: AttributeId
    slot: int
    value_slot: int
    reverse: bool

    @property
    def name(self) -> str:
        return f"{'last' if self.reverse else 'first'}{self.slot}.{self.value_slot}"

    @property
    def is_own_key(self) -> bool:
        return self.key == self.value


class OrderedValues:
    """The state of one `First`; types are those of its key and its value."""

    def __init__(self, name: str, first: First, key: SqlType, value: SqlType) -> None:
        self._order = OrderKey(_KEY, first.reverse, nulls_first=False)
        self._has_value = not first.is_own_key
        columns = [(_GROUP, LONG), (_CODE, LONG), (_KEY, key)]
        columns += [(_VALUE, value)] if self._has_value else []
        self._rows = RowIndex(f"{name}.rows", columns, (_GROUP, _CODE), 0)
        self._counts = OrderedCounts(f"{name}.codes")

    def add(self, groups: Ints, keys: Vector, values: Vector, weights: Ints) -> None:
        """Count a change in; one entry per row."""
        known = np.flatnonzero(keys.validity())
        if not len(known):
            return
        groups, keys, weights = groups[known], keys.take(known), weights[known]
        codes = codes_of(keys, self._order)
        columns = {_GROUP: Vector(LONG, groups), _CODE: Vector(LONG, codes), _KEY: keys}
        if self._has_value:
            columns[_VALUE] = values.take(known)
        batch = Batch(columns, weights, ())
        self._rows.add(batch, self._rows.codes_of(batch))
        self._counts.add(groups, codes, weights)

    def first(self, groups: Ints) -> tuple[Ints, Vector | None]:
        """(position in `groups`, value), by position; each of the groups has a known key.

        None for no groups. NotExactError where too many values tie.
        """
        if not len(groups):
            return np.zeros(0, dtype=np.int64), None
        keys = [Vector(LONG, groups), Vector(LONG, self._counts.best(groups))]
        result = self._rows.find(key_codes(keys, len(groups)), keys)
        values = result.rows.columns[_KEY]
        owners = result.owners
        parts = [Vector(LONG, owners), values]
        if self._has_value:
            parts.append(result.rows.columns[_VALUE])
        grouping = group_rows(parts, len(owners))
        weights = np.add.reduceat(result.rows.weights[grouping.order], grouping.starts)
        if bool((weights < 0).any()):
            raise never_held("values")
        alive = grouping.first[weights > 0]
        alive = alive[np.argsort(owners[alive], kind="stable")]
        alive = self._least(owners, values, alive)
        owners = owners[alive]
        _refuse_many(owners)
        return owners, parts[-1].take(alive)

    def _least(self, owners: Ints, keys: Vector, alive: Ints) -> Ints:
        """Of these rows, sorted by owner, those with their owner's least key."""
        if len(alive) == len(np.unique(owners[alive])):
            return alive
        ranks = exact_ranks(keys.take(alive), self._order)
        starts = np.flatnonzero(np.diff(owners[alive], prepend=-1))
        best = np.minimum.reduceat(ranks, starts)
        least: Ints = alive[ranks == np.repeat(best, np.diff(starts, append=len(alive)))]
        return least

    def as_it_stands(self) -> Self:
        """The same state, to be read while this one goes on. Cost: its runs, not their rows."""
        result = copy(self)
        result._rows = self._rows.as_it_stands()
        result._counts = self._counts.as_it_stands()
        return result

    @property
    def arrangements(self) -> tuple[RowIndex, OrderedCounts]:
        return (self._rows, self._counts)


def _refuse_many(owners: Ints) -> None:
    if len(owners) and int(np.bincount(owners).max()) > _MOST_TIES:
        raise NotExactError(
            f"More than {_MOST_TIES} values tie in MIN_BY or MAX_BY of one group",
            hint="recapture with `impctl capture`, or break the ties in MIN_BY or MAX_BY",
        )
