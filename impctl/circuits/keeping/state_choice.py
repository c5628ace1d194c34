"""The best modes of all pieces of one query, for every budget at once.

f(v, Z) is the frontier of the operators below v where Z is asked of v for each kind of change. For
each combination of modes of v's pieces, its own cost and demands are known by Z alone, so frontiers
of the inputs are added up; united over the combinations they are f(v, Z). Law: *exact* for trees.
A flow that several inputs read is paid once, for an assumed demand that no reader may exceed; the
least over all assumptions is exact too, as the true demand is among them. Where assumptions are too
many, `approximate` finds a choice that is only good, and is called that.
Thinned points make an answer dearer by at most `thin` for every operator with a choice or two
inputs on the way to the root; 0 is exact.
Out of scope: several queries (`many_queries`), the numbers in the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from impctl.circuits.keeping.approximate import improved
from impctl.circuits.keeping.frontier import Frontier, added, single, united
from impctl.circuits.keeping.graph import Demand, Graph, Work
from impctl.circuits.keeping.options import Asked, Option, Options
from impctl.values import dataclass

THIN = 0.001
"""The share of cost by which points must differ to be kept apart."""
MOST_ASSUMPTIONS = 4096
"""Demands on shared flows that are tried, in all."""
_MOST_PAIRS = 1 << 16
"""Pairs of demands of two readers that are looked at."""

Assumed = tuple[tuple[int, Asked], ...]
"""A demand for each of some shared flows."""


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """Undominated choices for one query, and whether no better one exists."""

    frontier: Frontier
    is_exact: bool


def choices_of(
    graph: Graph, *, thin: float = THIN, most_assumptions: int = MOST_ASSUMPTIONS
) -> Choices:
    """All choices worth making for the query, by rising bytes and falling cost a day."""
    asks_keys = any(piece.reads_below for piece in graph.pieces)
    options = [Options(graph, at, asks_keys=asks_keys) for at in range(len(graph.nodes))]
    if not graph.shared:
        return Choices(_Search(graph, options, thin, {}).root(), is_exact=True)
    possible = _possible(graph, options, most_assumptions)
    if possible is None:
        copied = _Search(graph, options, thin, {}, are_copied=True).root()
        return Choices(improved(graph, copied), is_exact=False)
    return Choices(_Search(graph, options, thin, possible).least(), is_exact=True)


class _Search:
    """Frontiers of one graph, each found once."""

    def __init__(
        self,
        graph: Graph,
        options: Sequence[Options],
        thin: float,
        possible: dict[int, tuple[Asked, ...]],
        *,
        are_copied: bool = False,
    ) -> None:
        """`possible` has the demands to try for each shared flow.

        `are_copied`: a shared flow is paid by each of its readers, as if everyone had one.
        """
        self._graph = graph
        self._options = options
        self._thin = thin
        self._possible = possible
        self._shared = () if are_copied else graph.shared
        self._below = _shared_below(graph, self._shared)
        self._found: dict[tuple[int, Asked, Assumed], Frontier | None] = {}
        self._sums: dict[tuple[tuple[int, ...], tuple[Asked, ...], Assumed], Frontier | None] = {}
        self._nothing = single()

    def root(self) -> Frontier:
        """The frontier where nothing is shared."""
        result = self._of(len(self._graph.nodes) - 1, _changes(self._graph), {})
        assert result is not None, "without assumptions everything may be asked"
        return result

    def least(self) -> Frontier:
        """The frontier over all assumptions."""
        top = len(self._graph.nodes) - 1
        result = []
        for assumed in _every(self._graph, self._possible):
            whole = self._of(top, _changes(self._graph), assumed)
            for at, demand in assumed.items():
                below = None if whole is None else self._of(at, demand, assumed)
                whole = None if whole is None or below is None else added(whole, below, self._thin)
            if whole is not None:
                result.append(((), 0, 0.0, whole))
        return united(result, self._thin)

    def _of(self, at: int, demand: Asked, assumed: dict[int, Asked]) -> Frontier | None:
        """f(v, Z); None where it asks more of a shared flow than is assumed."""
        key = (at, demand, self._assumed(at, assumed))
        if key not in self._found:
            self._found[key] = self._united(at, demand, assumed)
        return self._found[key]

    def _united(self, at: int, demand: Asked, assumed: dict[int, Asked]) -> Frontier | None:
        result = []
        for option in self._options[at].asked(demand):
            below = self._inputs(at, option, assumed)
            if below is not None:
                result.append((option.modes, option.bytes, option.cost, below))
        return united(result, self._thin) if result else None

    def _inputs(self, at: int, option: Option, assumed: dict[int, Asked]) -> Frontier | None:
        """The inputs of a node side by side, for what they are asked."""
        wires = self._graph.nodes[at].inputs
        key = (wires, option.asks, self._assumed(at, assumed))
        if key not in self._sums:
            self._sums[key] = self._summed(wires, option.asks, assumed)
        return self._sums[key]

    def _summed(
        self, wires: Sequence[int], asks: Sequence[Asked], assumed: dict[int, Asked]
    ) -> Frontier | None:
        result = self._nothing
        for wire, ask in zip(wires, asks, strict=True):
            if wire in self._shared:
                if any(one > most for one, most in zip(ask, assumed[wire], strict=True)):
                    return None
                continue
            below = self._of(wire, ask, assumed)
            if below is None:
                return None
            result = added(result, below, self._thin)
        return result

    def _assumed(self, at: int, assumed: dict[int, Asked]) -> Assumed:
        """What is assumed of the flows that the operators below a node read."""
        return tuple((wire, assumed[wire]) for wire in self._below[at])


def _changes(graph: Graph) -> Asked:
    return (int(Demand.DELTA),) * len(graph.kinds)


def _shared_below(graph: Graph, shared: Sequence[int]) -> list[tuple[int, ...]]:
    """Per node the shared flows that are read below it, without looking into these."""
    result: list[tuple[int, ...]] = []
    for node in graph.nodes:
        below: set[int] = set()
        for wire in node.inputs:
            below.update([wire] if wire in shared else result[wire])
        result.append(tuple(sorted(below)))
    return result


def _every(graph: Graph, possible: dict[int, tuple[Asked, ...]]) -> Iterator[dict[int, Asked]]:
    """Every assumption, in which flows that nothing but assumed ones decides are asked the most."""
    above = {at: _decided_by(graph, at) for at in possible}
    # Flows nearer the root first: they decide what is asked below.
    free = {at: possible[at] for at in possible if above[at] is None}
    for chosen in product(*free.values()):
        assumed = dict(zip(free, chosen, strict=True))
        for at in sorted(possible, reverse=True):
            readers = above[at]
            if readers is not None:
                asked = [_changes(graph), *(assumed[reader] for reader in readers)]
                assumed[at] = tuple(map(max, *asked)) if readers else asked[0]
        yield assumed


def _decided_by(graph: Graph, at: int) -> tuple[int, ...] | None:
    """The shared flows whose demands come down to a shared one as they are; None if others do."""
    result: list[int] = []
    waiting = [at]
    while waiting:
        below = waiting.pop()
        for reader, node in enumerate(graph.nodes):
            if below not in node.inputs:
                continue
            if node.work is not Work.ROWS:
                return None
            if reader in graph.shared:
                result.append(reader)
            else:
                waiting.append(reader)
    return tuple(result)


def _possible(
    graph: Graph, options: Sequence[Options], most: int
) -> dict[int, tuple[Asked, ...]] | None:
    """The demands that may come to each shared flow; None where there are too many to assume.

    What readers ask together is the greatest of what each asks, in every combination.
    """
    asked: list[set[Asked]] = [{_changes(graph)} for _ in graph.nodes]
    is_first = [True] * len(graph.nodes)
    result: dict[int, tuple[Asked, ...]] = {}
    total = 1
    for at in reversed(range(len(graph.nodes))):
        if at in graph.shared:
            result[at] = tuple(sorted(asked[at]))
            total *= len(result[at]) if _decided_by(graph, at) is None else 1
        if total > most or len(asked[at]) > most:
            return None
        every = [o.asks for demand in asked[at] for o in options[at].asked(demand)]
        for place, wire in enumerate(graph.nodes[at].inputs):
            asks = {one[place] for one in every}
            if not is_first[wire]:
                if len(asked[wire]) * len(asks) > _MOST_PAIRS:
                    return None
                asks = {tuple(map(max, a, b)) for a, b in product(asked[wire], asks)}
            asked[wire], is_first[wire] = asks, False
    return result
