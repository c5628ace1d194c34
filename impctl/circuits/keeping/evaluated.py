"""What a choice of modes costs in truth: the graph walked from its root, plainly.

Law: a flow that several inputs read is computed once, for all that is asked of it. Reads of the
same tables in one run are made once for all queries that are evaluated together: the longest of
them is paid.
Out of scope: finding a good choice (`state_choice`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from impctl.circuits.keeping.demands import own
from impctl.circuits.keeping.graph import Demand, Graph, Mode, Work
from impctl.types import TableName
from impctl.values import dataclass

Modes = Mapping[str, Mode]
"""The mode of each piece, by its name."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds per run of each kind of change: work, and reads by the tables read together."""

    work: tuple[float, ...]
    reads: tuple[Mapping[tuple[TableName, ...], float], ...]

    @property
    def per_kind(self) -> tuple[float, ...]:
        """Milliseconds in all, per run."""
        both = zip(self.work, self.reads, strict=True)
        return tuple(work + sum(reads.values()) for work, reads in both)


def evaluate(graph: Graph, modes: Modes) -> Cost:
    """What runs of each kind of change cost with every piece in its mode."""
    result = [_run(graph, modes, kind) for kind in range(len(graph.kinds))]
    return Cost(tuple(work for work, _ in result), tuple(reads for _, reads in result))


def per_day(graph: Graph, modes: Modes) -> float:
    """Milliseconds a day that are expected."""
    costs = evaluate(graph, modes).per_kind
    return sum(kind.rate * cost for kind, cost in zip(graph.kinds, costs, strict=True))


def per_day_together(graphs: Sequence[Graph], modes: Sequence[Modes]) -> float:
    """Milliseconds a day of queries maintained in the same runs, which share their reads.

    All graphs must have the same kinds of change.
    """
    costs = [evaluate(graph, chosen) for graph, chosen in zip(graphs, modes, strict=True)]
    total = 0.0
    for at, kind in enumerate(graphs[0].kinds if graphs else ()):
        longest: dict[tuple[TableName, ...], float] = {}
        for cost in costs:
            for source, read in cost.reads[at].items():
                # What is read from no table is the query's own.
                shared = max if source else _sum
                longest[source] = shared(longest.get(source, 0.0), read)
        work = sum(cost.work[at] for cost in costs)
        total += kind.rate * (work + sum(longest.values()))
    return total


def _sum(one: float, other: float) -> float:
    return one + other


def _run(
    graph: Graph, modes: Modes, kind: int
) -> tuple[float, Mapping[tuple[TableName, ...], float]]:
    """Work and reads of one run, without what queries share."""
    asked = [Demand.DELTA] * len(graph.nodes)
    work = 0.0
    reads: dict[tuple[TableName, ...], float] = {}
    for at in reversed(range(len(graph.nodes))):
        node = graph.nodes[at]
        below = node.inputs or (at,)
        active = [graph.active[wire][kind] for wire in below]
        chosen = [modes[piece.name] for piece in node.pieces]
        result = own(node, active, chosen, kind, asked[at])
        work += result.work
        for source, read in result.reads:
            reads[source] = reads.get(source, 0.0) + read
        if node.work is not Work.SCAN:
            for wire, demand in zip(node.inputs, result.asks, strict=True):
                asked[wire] = max(asked[wire], demand)
    return work, reads
