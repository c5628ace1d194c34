"""Links both ways between friends in circles, each around one who knows all of it.

As lists of friends are collected around a few persons: those of ten persons among 4,000 on
Facebook (McAuley and Leskovec, 2012) were the model; sizes fall off as the root of their place.
Law: the people of a circle have numbers that follow each other, the first one knows all of them;
every circle is found from any other. No link twice, none from a node to itself.
Out of scope: communities in which nobody knows all (`communities`).
"""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.networks.communities import OUTSIDE, with_drawn
from benchmarks.networks.shapes import Integers, drawn_links
from impctl.errors import UsageError

CIRCLE_NODES = 400
"""Nodes of a circle in the mean."""


def circle_links(links: int, nodes: int, seed: int) -> pa.Table:
    """So many links, or one less, as each goes both ways; UsageError where they are too few to
    connect, or more than half of those there may be."""
    sizes = _sizes(nodes)
    starts = np.cumsum(sizes) - sizes
    circle = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
    codes = _connected(starts, circle)
    pairs = links // 2
    outside = round(OUTSIDE * pairs) if len(sizes) > 1 else 0
    most = int((sizes * (sizes - 1) // 4).sum())
    if not len(codes) + outside <= pairs <= most:
        raise UsageError(
            f"Circles of {nodes} nodes do not have {links} links",
            hint=f"ask for between {2 * (nodes + nodes // 100 + 2)} and {2 * most} rows, or for "
            "other groups",
        )
    random = np.random.default_rng(seed)

    of_two = partial(_ordered_pairs, circle, False)
    codes = with_drawn(codes, len(codes) + outside, nodes, of_two, random)
    codes = with_drawn(codes, pairs, nodes, partial(_ordered_pairs, circle, True), random)
    src, dst = codes // nodes, codes % nodes
    return drawn_links(np.concatenate([src, dst]), np.concatenate([dst, src]), seed)


def _ordered_pairs(
    circle: Integers, together: bool, one: Integers, other: Integers
) -> npt.NDArray[np.bool_]:
    """Which pairs are of one circle, or of two, each only in one order."""
    wanted: npt.NDArray[np.bool_] = (one < other) & ((circle[one] == circle[other]) == together)
    return wanted


def _sizes(nodes: int) -> Integers:
    """How many people each circle has, the largest one first."""
    shares = np.arange(1, max(nodes // CIRCLE_NODES, 1) + 1) ** -0.5
    sizes: Integers = (shares / shares.sum() * nodes).astype(np.int64)
    sizes[0] += nodes - sizes.sum()
    return sizes


def _connected(starts: Integers, circle: Integers) -> Integers:
    """From the first of each circle to its people, and a ring of all who are first."""
    nodes = len(circle)
    people = np.setdiff1d(np.arange(nodes, dtype=np.int64), starts)
    ring = np.sort(np.stack([starts, np.roll(starts, -1)]), axis=0)
    ring = np.unique(ring[0] * nodes + ring[1]) if len(starts) > 1 else starts[:0]
    return np.concatenate([starts[circle[people]] * nodes + people, ring])
