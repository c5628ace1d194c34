"""The cyclic cores of bags: what has no tree before it is joined.

Law: with the bags of each core as one bag the bags are acyclic or have fewer cores, so that doing
so again comes to an end. An *ear*, whose shared classes all lie in one other bag, is on no cycle
and is left out, again and again; of the rest, bags in one biconnected component of the graph
between bags and classes are a core (where all components are single edges there is an ear).
Out of scope: the tree (`circuits.trees.rooted`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from impctl.circuits.trees.rooted import Bag
from impctl.values import dataclass

_Vertex = tuple[str, int]
_Arc = tuple[_Vertex, _Vertex]


def cyclic_cores(bags: Sequence[Bag]) -> tuple[frozenset[int], ...]:
    """The bags of each core, by position; none where all bags are acyclic. Cores may overlap."""
    left = without_ears(bags)
    arcs = [(("bag", bag), ("class", one)) for bag in left for one in sorted(bags[bag])]
    cores = [
        frozenset(at for arc in component for kind, at in arc if kind == "bag")
        for component in _components(arcs)
    ]
    return tuple(core for core in cores if len(core) > 1)


def without_ears(bags: Sequence[Bag]) -> tuple[int, ...]:
    """The bags that are left when every ear is gone; of acyclic ones none."""
    left = list(range(len(bags)))
    while True:
        ear = next((bag for bag in left if _is_ear(bag, left, bags)), None)
        if ear is None:
            return tuple(left)
        left.remove(ear)


def _is_ear(bag: int, left: Collection[int], bags: Sequence[Bag]) -> bool:
    others = [bags[other] for other in left if other != bag]
    shared = bags[bag] & frozenset().union(*others)
    return not others or any(shared <= other for other in others)


@dataclass(frozen=True, slots=True)
class _Search:
    """Depth first: when a vertex was reached, and the earliest vertex it leads back to."""

    beside: Mapping[_Vertex, Sequence[_Vertex]]
    reached: dict[_Vertex, int]
    earliest: dict[_Vertex, int]
    passed: list[_Arc]
    """Arcs of components that are not closed yet."""
    found: list[list[_Arc]]

    def visit(self, vertex: _Vertex, before: _Vertex | None) -> None:
        """Everything that is reached from here; as deep as there are bags and classes."""
        self.reached[vertex] = self.earliest[vertex] = len(self.reached)
        for other in self.beside[vertex]:
            if other == before:
                continue
            if other in self.reached:
                self.earliest[vertex] = min(self.earliest[vertex], self.reached[other])
                if self.reached[other] < self.reached[vertex]:
                    self.passed.append((vertex, other))
                continue
            self.passed.append((vertex, other))
            self.visit(other, vertex)
            self.earliest[vertex] = min(self.earliest[vertex], self.earliest[other])
            if self.earliest[other] >= self.reached[vertex]:
                start = self.passed.index((vertex, other))
                self.found.append(self.passed[start:])
                del self.passed[start:]


def _components(arcs: Sequence[_Arc]) -> list[list[_Arc]]:
    """The biconnected components, as arcs."""
    beside: dict[_Vertex, list[_Vertex]] = {}
    for one, other in arcs:
        beside.setdefault(one, []).append(other)
        beside.setdefault(other, []).append(one)
    search = _Search(beside, {}, {}, [], [])
    for vertex in beside:
        if vertex not in search.reached:
            search.visit(vertex, None)
    return search.found
