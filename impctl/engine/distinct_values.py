"""Which values of a group came or went as a whole: what DISTINCT inside an aggregate counts.

Law: a value counts once per group as long as it occurs there at all; equality is that of GROUP BY.
Cost: the pairs of group and value that changed.
Out of scope: what is made of the values (`engine.accumulators`).
"""

from __future__ import annotations

import numpy as np

from impctl.data.keys import group_rows, normalise
from impctl.data.schema import LONG, SqlType
from impctl.data.vector import Ints, Vector
from impctl.engine.arrangement import Arrangement
from impctl.engine.disagreement import never_held

_COUNT = "count"


class DistinctValues:
    """Copies of each value of one argument, per group."""

    def __init__(self, name: str, kind: SqlType) -> None:
        self.arrangement = Arrangement(name, (LONG, kind), _COUNT)

    def crossings(self, groups: Ints, values: Vector, weights: Ints) -> Ints:
        """Count a change in; +1 where a row brings its value into its group, -1 out of it.

        At most one row per pair of group and value says so; the others have 0; shape (rows,).
        """
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
