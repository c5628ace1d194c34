"""Links within communities, dense or not, and a few from one to another, as between friends.

Law: nodes of a community have numbers that follow each other, `COMMUNITY_NODES` of them, but for
the last one; every community is found from any other. No link twice, none from a node to itself.
Out of scope: networks of people with more about them (`large_joins.social`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.networks.shapes import Integers, drawn_links
from impctl.errors import UsageError

COMMUNITY_NODES = 100
OUTSIDE = 0.002
"""Of all links, those that lead from one community to another, those of a ring beside them."""

IsWanted = Callable[[Integers, Integers], npt.NDArray[np.bool_]]
"""Which pairs of nodes may be links."""


def community_links(links: int, nodes: int, seed: int) -> pa.Table:
    """So many links; UsageError where they are too few to connect, or more than there may be.

    `nodes` are made up to whole communities.
    """
    communities = max(round(nodes / COMMUNITY_NODES), 1)
    within = links - communities - round(OUTSIDE * links) if communities > 1 else links
    pairs = communities * COMMUNITY_NODES * (COMMUNITY_NODES - 1)
    if not communities <= within <= pairs // 2:
        raise UsageError(
            f"{communities} communities do not have {links} links",
            hint=f"ask for between {4 * communities} and {pairs // 2} rows, or for other groups",
        )
    random = np.random.default_rng(seed)
    inside = _distinct(pairs, within, random)
    src = inside // (COMMUNITY_NODES - 1)
    others = inside % (COMMUNITY_NODES - 1)
    dst = src // COMMUNITY_NODES * COMMUNITY_NODES + others
    dst += others >= src % COMMUNITY_NODES
    if communities > 1:
        out = _outside(communities, links - within, random)
        src, dst = np.append(src, out[0]), np.append(dst, out[1])
    return drawn_links(src, dst, seed)


def _outside(
    communities: int, links: int, random: np.random.Generator
) -> tuple[Integers, Integers]:
    """A ring of all communities, and what is left between any two."""
    nodes = communities * COMMUNITY_NODES
    ring = np.arange(communities, dtype=np.int64) * COMMUNITY_NODES

    def apart(one: Integers, other: Integers) -> npt.NDArray[np.bool_]:
        is_apart: npt.NDArray[np.bool_] = one // COMMUNITY_NODES != other // COMMUNITY_NODES
        return is_apart

    codes = with_drawn(ring * nodes + np.roll(ring, -1), links, nodes, apart, random)
    return codes // nodes, codes % nodes


def with_drawn(
    codes: Integers, size: int, nodes: int, is_wanted: IsWanted, random: np.random.Generator
) -> Integers:
    """Pairs as `one * nodes + other`, and others that are wanted, until there are so many."""
    # As many rounds as drawing finds what is there already, or what nobody wants.
    while len(codes) < size:
        one, other = random.integers(0, nodes, (2, 2 * (size - len(codes)) + 8))
        every = np.concatenate([codes, (one * nodes + other)[is_wanted(one, other)]])
        _, first = np.unique(every, return_index=True)
        codes = every[np.sort(first)]
    return codes[:size]


def _distinct(below: int, size: int, random: np.random.Generator) -> Integers:
    """So many different numbers, at most half of those below."""
    result = np.zeros(0, dtype=np.int64)
    while len(result) < size:
        more = random.integers(0, below, 2 * (size - len(result)) + 8)
        every = np.concatenate([result, more])
        _, first = np.unique(every, return_index=True)
        result = every[np.sort(first)][:size]
    return result
