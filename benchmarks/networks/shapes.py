"""Links in plain shapes: grids, chains, forests, random ones, and those of a power law.

Grids and random links are graphs of rustworkx. It has no power law with a given number of links, no
bushy trees of equal size, and no networks of routers (`transit_stub`).

Law: no link twice, none from a node to itself; links are in random order unless they are a chain or
were read from a list. Costs are drawn from 1 to 10.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import rustworkx

from benchmarks.large_joins.power_law import USUAL_EXPONENT, pairs_of_ranks
from impctl.errors import UsageError

Integers = npt.NDArray[np.int64]

COSTS = 10
TREE_NODES = 10_000
"""Nodes of each tree of a forest, unless it is said."""


class Shape(StrEnum):
    """What a network looks like; `given` are links that somebody else's list holds."""

    TRANSIT_STUB = "transit_stub"
    GRID = "grid"
    CHAIN = "chain"
    FOREST = "forest"
    RANDOM = "random"
    POWER_LAW = "power_law"
    COMMUNITIES = "communities"
    CIRCLES = "circles"
    SENSORS = "sensors"
    ALARMS = "alarms"
    WORKED_EXAMPLE = "worked_example"
    GIVEN = "given"


def grid_links(links: int, seed: int) -> pa.Table:
    """Both ways between neighbours of a square field, the largest with at most so many links.

    UsageError below eight links, which a field of two by two has.
    """
    _at_least(links, 8, Shape.GRID)
    side = 2
    while 4 * side * (side + 1) <= links:
        side += 1
    grid = rustworkx.generators.directed_grid_graph(side, side, bidirectional=True)
    return drawn_links(*ends(grid), seed)


def chain_links(links: int, seed: int) -> pa.Table:
    """From each node to the next one, in order."""
    _at_least(links, 1, Shape.CHAIN)
    src = np.arange(links, dtype=np.int64)
    return links_table(src, src + 1, _costs(links, np.random.default_rng(seed)))


def forest_links(links: int, tree_nodes: int, seed: int) -> pa.Table:
    """From parents to children in trees of so many nodes each, numbered tree after tree.

    A node's parent is drawn from those of its tree before it: trees are bushy, some dozens deep.
    The tree of a node is its number divided by `tree_nodes`, and its root the first number.
    """
    _at_least(min(links, tree_nodes - 1), 1, Shape.FOREST)
    random = np.random.default_rng(seed)
    nodes = np.arange(links, dtype=np.int64)
    dst = nodes + nodes // (tree_nodes - 1) + 1
    within = dst % tree_nodes
    src = dst - within + (random.random(links) * within).astype(np.int64)
    return drawn_links(src, dst, seed)


def random_links(links: int, nodes: int, seed: int) -> pa.Table:
    """Any pairs of different nodes, each as likely as another."""
    _fits(links, nodes, nodes * (nodes - 1), Shape.RANDOM)
    graph = rustworkx.directed_gnm_random_graph(nodes, links, seed=seed)
    return drawn_links(*ends(graph), seed)


def power_law_links(links: int, nodes: int, seed: int) -> pa.Table:
    """Few nodes have most links, at either end, as in `large_joins.power_law`."""
    _fits(links, nodes, nodes * (nodes - 1) // 2, Shape.POWER_LAW)
    random = np.random.default_rng(seed)
    numbers = random.permutation(nodes)
    ends = pairs_of_ranks(links, nodes, USUAL_EXPONENT, random)
    return drawn_links(numbers[ends // nodes], numbers[ends % nodes], seed)


def worked_example_links() -> pa.Table:
    """The four links of the example of Liu et al., figures 2 to 5: A to B, B to C, C to A and B."""
    src = np.array([0, 1, 2, 2], dtype=np.int64)
    return links_table(src, np.array([1, 2, 0, 1], dtype=np.int64), np.ones(4, dtype=np.int64))


def ends(graph: rustworkx.PyGraph | rustworkx.PyDiGraph) -> tuple[Integers, Integers]:
    """Where the edges of a graph start and end."""
    pairs = np.asarray(graph.edge_list(), dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def drawn_links(src: Integers, dst: Integers, seed: int) -> pa.Table:
    """The table of links in no order, with costs."""
    random = np.random.default_rng([seed, 1])
    order = random.permutation(len(src))
    return links_table(src[order], dst[order], _costs(len(src), random))


def links_table(src: Integers, dst: Integers, cost: Integers) -> pa.Table:
    """The table of links in this order."""
    ids = np.arange(len(src), dtype=np.int64)
    columns = {"id": ids, "src": src, "dst": dst, "cost": cost}
    return pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})


def _costs(size: int, random: np.random.Generator) -> Integers:
    return random.integers(1, COSTS + 1, size, dtype=np.int64)


def _at_least(value: int, least: int, shape: Shape) -> None:
    if value < least:
        raise UsageError(
            f"A network of shape `{shape}` has at least {least} links",
            hint="ask for more rows, or for larger groups",
        )


def _fits(links: int, nodes: int, most: int, shape: Shape) -> None:
    _at_least(links, 1, shape)
    if links > most:
        raise UsageError(
            f"{nodes} nodes are too few for {links} links of shape `{shape}`",
            hint="ask for more groups, which are the nodes, or for fewer rows",
        )
