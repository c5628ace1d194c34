"""Searches of a graph written for one query: by arrays here, and by scipy where it is installed.

From all nodes below `sources`: `reach` finds what a link or more lead to, `paths` the least sum of
costs of a way of a link or more. By arrays `reach` goes breadth first, `paths` round by round from
the nodes that became cheaper (Bellman and Ford); scipy has `breadth_first_order` and `dijkstra`.
Law: a search makes its index of links first, which has to be made whenever links change, and that
is timed with it.
Out of scope: comparing answers (`measures.recursion_cost`).
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from impctl.measure.kinds import CallTimes, timed

Integers = npt.NDArray[np.int64]

REACH, PATHS = "reach", "paths"

_FAR = np.iinfo(np.int64).max


def has_scipy() -> bool:
    """Whether somebody installed it: nothing needs it."""
    return find_spec("scipy") is not None


def searched(rows: pa.Table, sources: int, search: str) -> tuple[pa.Table, CallTimes]:
    """What the search finds by arrays, and what that took."""
    if search == PATHS:
        return timed(lambda: _least_costs(rows, sources))
    return timed(lambda: _reached(rows, sources))


def searched_by_scipy(rows: pa.Table, sources: int, search: str) -> tuple[pa.Table, CallTimes]:
    """The same by `scipy.sparse.csgraph`; its import is not timed."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import breadth_first_order, dijkstra

    def run() -> pa.Table:
        src, dst = _ends(rows)
        nodes = _nodes(src, dst)
        # One more node, from which a link leads wherever one leads from a source.
        first, costs = _first_links(rows, sources)
        starts, ends = np.append(src, np.full(len(first), nodes)), np.append(dst, first)
        weights = np.append(_costs(rows), costs) if search == PATHS else np.ones(len(starts))
        links = csr_matrix((weights, (starts, ends)), shape=(nodes + 1, nodes + 1))
        if search == PATHS:
            far = dijkstra(links, indices=nodes)[:nodes]
            result = np.flatnonzero(np.isfinite(far))
            return _table(result, far[result].astype(np.int64))
        order = breadth_first_order(links, nodes, return_predecessors=False)
        return _table(np.sort(order[order < nodes]).astype(np.int64))

    return timed(run)


def _reached(rows: pa.Table, sources: int) -> pa.Table:
    links = _Links(rows)
    result = np.zeros(links.nodes, dtype=bool)
    front = np.arange(min(sources, links.nodes))
    # A round per hop.
    while len(front):
        _, indexes = links.of(front)
        nexts = links.ends[indexes]
        front = np.unique(nexts[~result[nexts]])
        result[front] = True
    return _table(np.flatnonzero(result).astype(np.int64))


def _least_costs(rows: pa.Table, sources: int) -> pa.Table:
    links = _Links(rows)
    costs = _costs(rows)[links.order]
    least = np.full(links.nodes, _FAR, dtype=np.int64)
    front, first = _first_links(rows, sources)
    least[front] = first
    # As many rounds as links of a cheapest way.
    while len(front):
        lengths, indexes = links.of(front)
        ends, sums = links.ends[indexes], np.repeat(least[front], lengths) + costs[indexes]
        cheaper = sums < least[ends]
        ends, sums = ends[cheaper], sums[cheaper]
        np.minimum.at(least, ends, sums)
        front = np.unique(ends)
    result = np.flatnonzero(least < _FAR)
    return _table(result.astype(np.int64), least[result])


class _Links:
    """Links by where they start."""

    def __init__(self, rows: pa.Table) -> None:
        src, dst = _ends(rows)
        self.nodes = _nodes(src, dst)
        self.order = np.argsort(src, kind="stable")
        self.ends = dst[self.order]
        self._first = np.searchsorted(src[self.order], np.arange(self.nodes + 1))

    def of(self, front: Integers) -> tuple[Integers, Integers]:
        """How many links each of these nodes has, and where they are, node after node."""
        first = self._first[front]
        lengths = self._first[front + 1] - first
        within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return lengths, np.repeat(first, lengths) + within


def _first_links(rows: pa.Table, sources: int) -> tuple[Integers, Integers]:
    """Where links of the sources lead, each node once, and the least cost to there."""
    src, dst = _ends(rows)
    of_sources = np.flatnonzero(src < sources)
    ends, costs = dst[of_sources], _costs(rows)[of_sources]
    order = np.lexsort((costs, ends))
    nodes, first = np.unique(ends[order], return_index=True)
    return nodes, costs[order][first]


def _nodes(src: Integers, dst: Integers) -> int:
    return int(max(src.max(initial=-1), dst.max(initial=-1))) + 1


def _ends(rows: pa.Table) -> tuple[Integers, Integers]:
    return rows.column("src").to_numpy(), rows.column("dst").to_numpy()


def _costs(rows: pa.Table) -> Integers:
    result: Integers = rows.column("cost").to_numpy()
    return result


def _table(nodes: Integers, costs: Integers | None = None) -> pa.Table:
    if costs is None:
        return pa.table({"n": pa.array(nodes)})
    return pa.table({"n": pa.array(nodes), "cost": pa.array(costs)})
