"""Links between people: communities without a centre, and circles around one person.

Law: people of a community or circle have successive numbers, and every community or circle can be
reached from every other. No link twice, none from a node to itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa
import rustworkx

from benchmarks.networks.shapes import Integers, drawn_links, ends
from impctl.errors import UsageError

COMMUNITY_NODES = 100
CIRCLE_NODES = 400
"""Mean number of people in a circle."""
OUTSIDE = 0.002
"""The share of links between communities, without a ring of all of them."""

Pairs = tuple[Integers, Integers]
RandomGraph = Callable[..., rustworkx.PyGraph | rustworkx.PyDiGraph]


def community_links(links: int, nodes: int, seed: int) -> pa.Table:
    """Directed links within communities of 100 nodes, a ring of the communities and a few others.

    `nodes` are rounded to whole communities. UsageError for fewer links than connect these, or for
    more than half of the possible ones.
    """
    communities = max(round(nodes / COMMUNITY_NODES), 1)
    within = links - communities - round(OUTSIDE * links) if communities > 1 else links
    possible = COMMUNITY_NODES * (COMMUNITY_NODES - 1)
    if not communities <= within <= communities * possible // 2:
        most = communities * possible // 2
        raise UsageError(
            f"{communities} communities do not have {links} links",
            hint=f"ask for between {4 * communities} and {most} rows, or for other groups",
        )
    graph = rustworkx.directed_gnm_random_graph
    random = np.random.default_rng(seed)
    sizes = np.full(communities, COMMUNITY_NODES)
    starts = np.cumsum(sizes) - sizes
    counts = _shared_out(within, np.full(communities, possible), random)
    pairs = list(_inside(starts, sizes, counts, graph, random))
    if communities > 1:
        ring = starts, np.roll(starts, -1)
        outside = links - within - communities
        pairs += [ring, _outside(sizes, ring, outside, graph, random)]
    src, dst = (np.concatenate(part) for part in zip(*pairs, strict=True))
    return drawn_links(src, dst, seed)


def circle_links(links: int, nodes: int, seed: int) -> pa.Table:
    """Links both ways between friends in circles, each around one person who knows all of it.

    The model are the lists of friends of ten persons among 4,000 on Facebook (McAuley and Leskovec,
    2012); the size of a circle falls with the root of its rank. There is one link less if `links`
    is odd. UsageError for fewer links than connect the nodes, or for more than half of the possible
    ones.
    """
    sizes = _circle_sizes(nodes)
    starts = np.cumsum(sizes) - sizes
    ring = starts[:-1], starts[1:]
    if len(starts) > 2:
        ring = np.append(ring[0], starts[0]), np.append(ring[1], starts[-1])
    spokes = np.repeat(starts, sizes - 1), np.setdiff1d(np.arange(nodes, dtype=np.int64), starts)
    connected = len(ring[0]) + len(spokes[0])
    outside = round(OUTSIDE * (links // 2)) if len(starts) > 1 else 0
    within = links // 2 - connected - outside
    possible = (sizes - 1) * (sizes - 2) // 2
    most = int((sizes * (sizes - 1) // 4).sum())
    if within < 0 or links // 2 > most:
        raise UsageError(
            f"Circles of {nodes} nodes do not have {links} links",
            hint=f"ask for between {2 * (nodes + nodes // 100 + 2)} and {2 * most} rows, or for "
            "other groups",
        )
    graph = rustworkx.undirected_gnm_random_graph
    random = np.random.default_rng(seed)
    counts = _shared_out(within, possible, random)
    pairs = [spokes, ring, *_inside(starts + 1, sizes - 1, counts, graph, random)]
    pairs.append(_outside(sizes, ring, outside, graph, random))
    one, other = (np.concatenate(part) for part in zip(*pairs, strict=True))
    return drawn_links(np.concatenate([one, other]), np.concatenate([other, one]), seed)


def _circle_sizes(nodes: int) -> Integers:
    """The number of people in each circle, the largest one first."""
    shares = np.arange(1, max(nodes // CIRCLE_NODES, 1) + 1) ** -0.5
    sizes: Integers = (shares / shares.sum() * nodes).astype(np.int64)
    sizes[0] += nodes - sizes.sum()
    return sizes


def _shared_out(links: int, possible: Integers, random: np.random.Generator) -> Integers:
    """Numbers of links per group, as if they were drawn from all possible ones."""
    counts: Integers = random.multivariate_hypergeometric(possible, links, method="marginals")
    return counts


def _inside(
    starts: Integers,
    sizes: Integers,
    counts: Integers,
    graph: RandomGraph,
    random: np.random.Generator,
) -> Iterable[Pairs]:
    """Random links of each group."""
    for start, size, count in zip(starts.tolist(), sizes.tolist(), counts.tolist(), strict=True):
        src, dst = ends(graph(size, count, seed=_seed(random)))
        yield src + start, dst + start


def _outside(
    sizes: Integers, ring: Pairs, count: int, graph: RandomGraph, random: np.random.Generator
) -> Pairs:
    """Random links between different groups that are not in the ring."""
    nodes = int(sizes.sum())
    group = np.repeat(np.arange(len(sizes)), sizes)
    # At least nearly half of all pairs are between groups.
    src, dst = ends(graph(nodes, 4 * count + 64, seed=_seed(random)))
    codes = np.concatenate([ring[0] * nodes + ring[1], ring[1] * nodes + ring[0]])
    in_ring = np.isin(src * nodes + dst, codes)
    chosen = np.flatnonzero((group[src] != group[dst]) & ~in_ring)[:count]
    assert len(chosen) == count, "more pairs were drawn than are needed"
    return src[chosen], dst[chosen]


def _seed(random: np.random.Generator) -> int:
    return int(random.integers(1 << 32))
