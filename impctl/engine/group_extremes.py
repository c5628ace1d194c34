"""The extremes of an aggregate's groups: all values kept, or the best of them with refill.

Law: after `change` every touched group has its least and greatest values as if all of them were
kept. A group whose buffer is used up while it still has values is asked for; what comes is checked
against the group's count. Cost: the changed values and, bounded, the buffers they are in.
Out of scope: ranks (`engine.extremes`), buffers (`engine.best_values`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from impctl.data.vector import Bools, Ints, Vector
from impctl.engine.accumulators import Values
from impctl.engine.batch import Batch
from impctl.engine.best_values import BestValues
from impctl.engine.extremes import Extreme, OrderedCounts, ranks_of
from impctl.engine.refill import Refill, no_refill, owners_of, refill_differs, stored_edges
from impctl.types import AttributeId
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Touched:
    """Changed groups: their numbers, the group of each row, their keys and the keys' columns."""

    groups: Ints
    owners: Ints
    leaders: Sequence[Vector]
    names: tuple[AttributeId, ...]


class Extremes:
    """The state of all MIN and MAX of one aggregate."""

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

    def change(self, batch: Batch, asked: Touched, old: Values, new: Values) -> Values:
        """The extremes after the change; `new` has the groups' counts already."""
        result: Values = {}
        for extreme, counts in self._kept.items():
            owners, ranks, weights = _ranked(extreme, batch, asked.owners)
            counts.add(asked.groups[owners], ranks, weights)
            touched = np.unique(owners)
            best = old[extreme.name].copy()
            best[touched] = counts.best(asked.groups[touched])
            result[extreme.name] = best
        lacking = np.zeros(len(asked.groups), dtype=np.bool_)
        for extreme, values in self._bounded.items():
            lacking |= self._bounded_change(extreme, values, batch, asked, old, new, result)
        if bool(lacking.any()):
            self._refilled(np.flatnonzero(lacking), asked, new, result)
        return result

    def _bounded_change(
        self,
        extreme: Extreme,
        values: BestValues,
        batch: Batch,
        asked: Touched,
        old: Values,
        new: Values,
        result: Values,
    ) -> Bools:
        """Which groups have values, but none in their buffer."""
        owners, ranks, weights = _ranked(extreme, batch, asked.owners)
        best, edges = old[extreme.name].copy(), old[extreme.edge].copy()
        known = stored_edges(edges)
        # What lies beyond the edge is no buffer's matter, and most changes do.
        inside = np.flatnonzero(ranks <= known[owners])
        owners, ranks, weights = owners[inside], ranks[inside], weights[inside]
        if len(asked.groups) == 1:
            # All rows are one group: nothing has to be sorted to know it.
            touched, index = owners[:1], owners
        else:
            touched, index = np.unique(owners, return_inverse=True)
        known = known[touched]
        state = values.change(asked.groups[touched], known, index, ranks, weights)
        best[touched], edges[touched] = state.ranks, stored_edges(state.edges)
        result[extreme.name], result[extreme.edge] = best, edges
        lacking = np.zeros(len(asked.groups), dtype=np.bool_)
        lacking[touched] = ~state.is_found & (new[f"count{extreme.slot}"][touched] > 0)
        return lacking

    def _refilled(self, at: Ints, asked: Touched, new: Values, result: Values) -> None:
        """Fill the buffers of these groups, where they are empty, from their rows."""
        keys = [key.take(at) for key in asked.leaders]
        owners_of_rows, rows = owners_of(keys, len(at), self.refill(keys), asked.names)
        for extreme, values in self._bounded.items():
            owners, ranks, weights = _ranked(extreme, rows, owners_of_rows)
            counts = np.zeros(len(at), dtype=np.int64)
            np.add.at(counts, owners, weights)
            if bool((counts != new[f"count{extreme.slot}"][at]).any()):
                raise refill_differs()
            groups = asked.groups[at]
            values.clear(groups)
            state = values.refill(groups, owners, ranks, weights)
            result[extreme.name][at] = state.ranks
            result[extreme.edge][at] = stored_edges(state.edges)

    def clear(self) -> None:
        """Forget the values of extremes that are to be kept whole."""
        for counts in self._kept.values():
            counts.clear()

    def count(self, batch: Batch, groups: Ints) -> None:
        """Count values in that are to be kept, without a change: `groups` has that of each row."""
        for extreme, counts in self._kept.items():
            rows, ranks, weights = _ranked(extreme, batch, np.arange(len(batch)))
            counts.add(groups[rows], ranks, weights)

    def settled(self, groups: Ints, state: Values) -> Values:
        """Keep the best of values that are all there, where not all are kept: their edges.

        Raises where values that are kept are not as many as the groups, which are all, count.
        """
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
