"""How long the choice takes, and how much dearer simpler ways are, over the circuits of TPC-H.

By hand: `python -m tests.circuits.keeping.timing`. Processor time, the best of five. Sizes are by
rule (`tpch`), so ratios say how choices differ, not what a day of maintenance takes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from benchmarks.state.simpler_choices import SIMPLER_CHOICES
from impctl.placement.graph import Graph, Mode, graph_of
from impctl.placement.search import choices_of, choose, per_day
from tests.circuits.keeping import tpch

FIRST = ("q1", "q3", "q4", "q5", "q6", "q7", "q8", "q9", "q10", "q12", "q14", "q15", "q18", "q19")
SHARES = (0.0, 0.1, 0.25, 0.5, 0.6, 1.0)


def told(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def taken(work: Callable[[], object], times: int = 5) -> float:
    """Milliseconds."""
    result = []
    for _ in range(times):
        began = time.process_time()
        work()
        result.append((time.process_time() - began) * 1000)
    return min(result)


def main() -> None:
    graphs = {name: tpch.graph(name) for name in tpch.NAMES}
    first = {name: graphs[name] for name in FIRST}
    total = sum(max(p.sizes.values()) for g in first.values() for p in g.pieces)
    for name, graph in graphs.items():
        choices = choices_of(graph)
        kind = "exact" if choices.is_exact else "approximate"
        spent = taken(lambda graph=graph: choices_of(graph))  # type: ignore[misc]
        points = f"{len(graph.pieces)} pieces, {len(choices.frontier)} points"
        told(f"{name}: {points}, {kind}, {spent:.1f} ms")
    alone = taken(lambda: [choices_of(graph) for graph in first.values()])
    told(f"frontiers of 14 queries: {alone:.0f} ms")
    told(f"choose, 14 queries: {taken(lambda: choose(first, total // 4)):.0f} ms")
    many = {f"{name}.{at}": first[name] for at in range(8) for name in first}
    many = dict(list(many.items())[:100])
    told(f"choose, 100 queries: {taken(lambda: choose(many, 2 * total), 2):.0f} ms")
    for share in SHARES:
        told(f"{share:4.0%} of the bytes of each of 14: {', '.join(ratios(share))}")


def ratios(share: float) -> list[str]:
    """What each simpler choice costs over the best choice, where a piece is kept or rebuilt."""
    line = []
    graphs = [kept_or_rebuilt(name) for name in FIRST]
    budgets = [int(share * sum(max(p.sizes.values()) for p in graph.pieces)) for graph in graphs]
    best = 0.0
    for graph, budget in zip(graphs, budgets, strict=True):
        frontier = choices_of(graph).frontier
        best += float(frontier.cost[frontier.best_within(budget)])
    for name, simpler in SIMPLER_CHOICES.items():
        each = zip(graphs, budgets, strict=True)
        cost = sum(per_day(graph, simpler(graph, budget)) for graph, budget in each)
        line.append(f"{name} {cost / best:.2f}")
    return line


def kept_or_rebuilt(name: str) -> Graph:
    compiled = tpch.compiled(name)
    modes = (Mode.KEPT, Mode.REBUILT)
    return graph_of(compiled, tpch.KINDS, tpch.numbers(compiled), allowed=modes)


if __name__ == "__main__":
    main()
