"""Programs written anew, as slowly as can be, and facts drawn for them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from impctl.bench.peers.programs import Fact, Paths, Program, Reach, Regions, Row

Answer = Callable[[Iterable[Fact]], set[Row]]
Drawn = Callable[[], Fact]

COST, HOPS = 2, 3


def closure(links: Iterable[Fact]) -> set[Row]:
    """Pairs (x, y) with a way from x to y, by Warshall."""
    found = {(src, dst) for src, dst, *_ in links}
    nodes = {node for pair in found for node in pair}
    for middle in nodes:
        for one in nodes:
            for other in nodes:
                if (one, middle) in found and (middle, other) in found:
                    found.add((one, other))
    return found


def least_paths(links: Iterable[Fact], columns: Iterable[int]) -> set[Row]:
    """Per pair and column its least value, by Floyd; a hop is a cost of 1."""
    found: set[Row] = set()
    for column in columns:
        least: dict[tuple[int, int], int] = {}
        for src, dst, cost in links:
            value = cost if column == COST else 1
            least[src, dst] = min(least.get((src, dst), value), value)
        nodes = {node for pair in least for node in pair}
        for middle in nodes:
            for one in nodes:
                for other in nodes:
                    if (one, middle) in least and (middle, other) in least:
                        value = least[one, middle] + least[middle, other]
                        least[one, other] = min(least.get((one, other), value), value)
        found |= {(*pair, column, value) for pair, value in least.items()}
    return found


def regions_by_hand(program: Regions, triggered: Iterable[Fact]) -> set[Row]:
    """Each region by itself: sensors are added until none is near a triggered one of it."""
    awake = {sensor for (sensor,) in triggered}
    found: set[Row] = set()
    for start, regions in program.seeds.items():
        for region in regions if start in awake else ():
            members = {start}
            for _ in range(len(program.near) + 1):
                members |= {n for one in members & awake for n in program.near[one]}
            found |= {(sensor, region) for sensor in members}
    return found


def drawn_program(kind: str, rng: random.Random) -> tuple[Program, Answer, Drawn]:
    """A program of that kind over few nodes, its answer by hand, and who draws its facts."""
    nodes = range(rng.choice((3, 5, 7)))

    def node() -> int:
        return rng.choice(nodes)

    if kind == "reach":
        return Reach(), closure, lambda: (node(), node())
    if kind == "regions":
        pairs = [(a, b) for a in nodes for b in nodes if a < b and rng.random() < 0.4]
        both = {*pairs, *((b, a) for a, b in pairs)}
        near = {a: tuple(b for b in nodes if (a, b) in both) for a in nodes}
        program = Regions(near, {0: (0,), node(): (1, 2)})
        return program, lambda facts: regions_by_hand(program, facts), lambda: (node(),)
    columns = (COST,) if kind == "cheapest" else (COST, HOPS)
    return (
        Paths(columns),
        lambda facts: least_paths(list(facts), columns),
        lambda: (node(), node(), rng.choice((1, 1, 2, 5))),
    )
