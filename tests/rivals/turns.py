"""impctl and a rival step by step on the same rows, answers compared after each.

Law: a turn is a step of both, one after the other, who is first changing from turn to turn; nothing
is timed before both answers were right. Figures are medians, ratios those of medians.
Out of scope: how a rival is started.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from benchmarks.trees.streams import Step
from tests.rivals.pairs import Pairs, Tree
from tests.rivals.peer import Peer, PeerFailedError


class DifferentAnswersError(Exception):
    """Somebody's answer or sketch is not what the rows come to."""


@dataclass(frozen=True)
class Turns:
    """How many steps are taken before the clock counts, how many are timed, rows of each."""

    warm: int
    timed: int
    changed: int = 1_000


@dataclass(frozen=True)
class Compared:
    """Median milliseconds of a step; `rest_ms` is the rival's processor time of an idle second."""

    tree_ms: float
    rival_cpu_ms: float
    rival_wall_ms: float
    rest_ms: float

    @property
    def ratio(self) -> float:
        """The rival's processor time by the tree's."""
        return self.rival_cpu_ms / self.tree_ms

    def text(self) -> str:
        return (
            f"tree {self.tree_ms:.2f} ms, rival {self.rival_cpu_ms:.1f} ms "
            f"(wall {self.rival_wall_ms:.1f}, {self.rest_ms:.1f} in a second at rest): "
            f"{self.ratio:.1f} times"
        )


def compared(pairs: Pairs, turns: Turns, start: Callable[[int], Peer], *, keeps: bool) -> Compared:
    """The medians; `start` gets what a sum has to be above.

    With `keeps` impctl keeps the answer's rows beside its sketches, else its sketches alone.
    DifferentAnswersError, PeerFailedError.
    """
    steps, tables = pairs.steps(turns.changed), pairs.tables()
    tree = Tree(pairs, tables, keeps=keeps)
    with start(pairs.least) as peer:
        say(f"{pairs}: {peer.facts}")
        groups = pairs.groups(tables)
        peer.step(tables, {}, groups)
        _check(tree, tables)
        times = []
        for at in range(turns.warm + turns.timed):
            step = next(steps)
            tables.update(step.after)
            times.append(_turn(tree, peer, step, tables, is_first=at % 2 == 0))
        rest_ms = peer.rest()
    middle = [statistics.median(part) for part in zip(*times[turns.warm :], strict=True)]
    return Compared(*middle, rest_ms)


def _turn(
    tree: Tree, peer: Peer, step: Step, tables: Mapping[str, pa.Table], *, is_first: bool
) -> tuple[float, float, float]:
    groups = tree.pairs.groups(tables)
    tree_ms = tree.step(step) if is_first else 0.0
    taken = peer.step(step.came, step.went, groups)
    tree_ms = tree_ms if is_first else tree.step(step)
    _check(tree, tables)
    return tree_ms, taken.cpu_ms, taken.wall_ms


def _check(tree: Tree, tables: Mapping[str, pa.Table]) -> None:
    if not tree.is_right(tables):
        raise DifferentAnswersError("impctl's answer or a sketch of it is wrong")


def report(goal: float, cells: Iterable[tuple[str, Callable[[], Compared], bool]]) -> int:
    """Say every cell's text; 0 where each that counts reaches the goal, 1 where answers differ.

    A goal that is missed is said and is no failure: figures of a machine in use are no verdict.
    """
    for name, measure, counts in cells:
        try:
            result = measure()
        except (DifferentAnswersError, PeerFailedError) as error:
            say(f"{name}: {error}")
            return 1
        missed = counts and result.ratio < goal
        say(f"{name}: {result.text()}" + (f"; the goal of {goal:.0f} is missed" if missed else ""))
    return 0


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
