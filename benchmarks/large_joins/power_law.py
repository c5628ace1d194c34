"""A graph of which few nodes have most edges, as social networks have them.

An edge has a unique `id`, its insertion order, the nodes `src` and `dst`, and a `value`
from 0 to 999 that is one of its end, `dst`, and follows nothing: a condition on it keeps a share of
the ends. A node is drawn, at either end, with a chance that falls with
its rank so that degrees follow a power law; who has many followers follows many. Ranks are no
node's number.

Law: equal arguments give equal rows; no edge twice, none from a node to itself.
Out of scope: writing the table (`tables`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from impctl.errors import UsageError

Integers = npt.NDArray[np.int64]

VALUES = 1000
USUAL_EXPONENT = 2.2
"""Of the degrees in graphs of who knows whom, about."""

_BY_RANK = 40
"""Rounds of drawing by rank: where hubs have all their edges, any others make up the number."""


def power_law_graph(edges: int, nodes: int, exponent: float, seed: int) -> pa.Table:
    """The edges as a table of whole numbers of 64 bits; UsageError for what is no such graph."""
    if not 1 <= edges <= nodes * (nodes - 1) // 2:
        raise UsageError(
            f"A graph of {nodes} nodes is too small for {edges} edges",
            hint="ask for more nodes, or for fewer edges",
        )
    if not exponent > 1:
        raise UsageError(
            f"Degrees cannot follow a power law of exponent {exponent:g}",
            hint="give a number above 1; 2 to 3 is usual",
        )
    random = np.random.default_rng(seed)
    numbers = random.permutation(nodes)
    ends = pairs_of_ranks(edges, nodes, exponent, random)
    columns = {
        "id": np.arange(edges, dtype=np.int64),
        "src": numbers[ends // nodes],
        "dst": numbers[ends % nodes],
        "value": random.integers(0, VALUES, nodes, dtype=np.int64)[numbers[ends % nodes]],
    }
    return pa.table({name: pa.array(values) for name, values in columns.items()})


def ranks(size: int, nodes: int, exponent: float, random: np.random.Generator) -> Integers:
    """So many ranks from 0 on, low ones often: degrees then have this exponent."""
    weights = np.arange(1, nodes + 1, dtype=np.float64) ** (-1.0 / (exponent - 1.0))
    ends = np.cumsum(weights)
    integers: Integers = np.searchsorted(ends, random.random(size) * ends[-1], side="right")
    return integers.astype(np.int64)


def pairs_of_ranks(
    edges: int, nodes: int, exponent: float, random: np.random.Generator
) -> Integers:
    """So many different pairs of different ranks, `first * nodes + second`, in no order."""
    result = np.zeros(0, dtype=np.int64)
    # A round leaves only what it drew twice: some rounds, and never many more than `_BY_RANK`.
    for drawn in range(2 * _BY_RANK):
        size = 2 * (edges - len(result)) + 8
        sides = [
            ranks(size, nodes, exponent, random)
            if drawn < _BY_RANK
            else random.integers(0, nodes, size)
            for _ in range(2)
        ]
        fresh = (sides[0] * nodes + sides[1])[sides[0] != sides[1]]
        every = np.concatenate([result, fresh])
        _, first = np.unique(every, return_index=True)
        result = every[np.sort(first)][:edges]
        if len(result) == edges:
            break
    return np.asarray(random.permutation(result))
