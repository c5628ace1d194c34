"""A network of routers: transit nodes in the middle, each with stubs, small networks, below it.

With the parameters of the paper that the suite `recursion` is after, whose generator (GT-ITM) is
nowhere to be had: domains of four transit nodes, three stubs each, eight nodes a stub, so that 100
nodes are one domain; costs are 50 between transit nodes, 10 between one and a stub, 2 in a stub.
More nodes are more transit nodes, all in one ring.

Law: every link has one back. The network is connected: stubs by a tree of their own, each with one
link up, transit nodes in a ring; what links are left over are drawn, most of them within stubs, so
that a denser network has more ways and no longer reach.
Out of scope: which links go and come (`measure`).
"""

from __future__ import annotations

import random as randomness

import numpy as np
import pyarrow as pa

from benchmarks.networks.shapes import links_table
from impctl.errors import UsageError

STUBS, STUB_NODES = 3, 8
"""Of a transit node, and of each stub."""
NODES_OF_TRANSIT = 1 + STUBS * STUB_NODES
TRANSIT_COST, UP_COST, STUB_COST = 50, 10, 2
DENSE = 4
"""Links per node, both ways counted; a sparse network has half."""

_WITHIN_STUB = 0.8
"""Of the links left over; others are between transit nodes or from a stub to a second one."""


def transit_stub_links(links: int, nodes: int, seed: int) -> pa.Table:
    """So many links (two less one where odd); as many whole transit nodes as `nodes` allow.

    UsageError where they do not connect the nodes, or are more than the shape has.
    """
    transits = max(round(nodes / NODES_OF_TRANSIT), 1)
    network = _Network(transits, randomness.Random(seed))
    if links // 2 < len(network.pairs):
        raise UsageError(
            f"{links} links do not connect {transits * NODES_OF_TRANSIT} nodes",
            hint=f"ask for {2 * len(network.pairs)} rows, or for fewer groups, which are the nodes",
        )
    network.fill(links // 2)
    pairs = sorted(network.pairs.items())
    both = [(a, b, cost) for (a, b), cost in pairs] + [(b, a, cost) for (a, b), cost in pairs]
    network.random.shuffle(both)
    src, dst, cost = (np.array(part, dtype=np.int64) for part in zip(*both, strict=True))
    return links_table(src, dst, cost)


class _Network:
    """Pairs of nodes with their costs; loops here are over nodes and links, hundreds of them."""

    def __init__(self, transits: int, random: randomness.Random) -> None:
        self.random = random
        self.pairs: dict[tuple[int, int], int] = {}
        self._transits = range(transits)
        for node in self._transits:
            self._link(node, (node + 1) % transits, TRANSIT_COST)
        self._stubs = [
            range(first, first + STUB_NODES)
            for first in range(transits, transits * NODES_OF_TRANSIT, STUB_NODES)
        ]
        for number, stub in enumerate(self._stubs):
            self._link(number // STUBS, random.choice(stub), UP_COST)
            for node in stub[1:]:
                self._link(random.randrange(stub[0], node), node, STUB_COST)

    def fill(self, pairs: int) -> None:
        """Draw links until there are so many pairs."""
        most = len(self._stubs) * STUB_NODES * (STUB_NODES - 1) // 2
        if pairs > most + len(self._stubs):
            nodes = NODES_OF_TRANSIT * len(self._transits)
            raise UsageError(
                f"{2 * pairs} links are too many for {nodes} nodes",
                hint="ask for fewer rows, or for more groups, which are the nodes",
            )
        while len(self.pairs) < pairs:
            stub, draw = self.random.choice(self._stubs), self.random.random()
            if draw < _WITHIN_STUB:
                one, other = self.random.sample(stub, 2)
                self._link(one, other, STUB_COST)
            elif draw < (1 + _WITHIN_STUB) / 2:
                one, other = (self.random.choice(self._transits) for _ in range(2))
                self._link(one, other, TRANSIT_COST)
            else:
                self._link(self.random.choice(self._transits), self.random.choice(stub), UP_COST)

    def _link(self, one: int, other: int, cost: int) -> None:
        """Nothing where there is that link, or no link to be."""
        if one != other:
            self.pairs.setdefault((min(one, other), max(one, other)), cost)
