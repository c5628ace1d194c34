"""The fewest variables that make a decision diagram true.

Law: of a monotone function no fewer variables make it true. Cost: its nodes, each looked at once.
Out of scope: what variables stand for (`absorption`).
"""

from __future__ import annotations

from typing import Any

_Fewest = tuple[int, tuple[int, ...] | None]
"""How many variables, and which; None where nothing makes it true."""


def fewest_true(function: Any) -> tuple[int, ...] | None:
    """The variables of a diagram of `oxidd`; None where it is false."""
    best: dict[Any, _Fewest] = {}
    left = [function]
    while left:
        node = left[-1]
        if node in best:
            left.pop()
            continue
        parts = node.cofactors()
        if parts is None:
            best[node] = (0, ()) if node.satisfiable() else (0, None)
            continue
        missing = [part for part in parts if part not in best]
        left += missing
        if not missing:
            best[node] = _better(node, *(best[part] for part in parts))
    return best[function][1]


def _better(node: Any, high: _Fewest, low: _Fewest) -> _Fewest:
    """What makes a node true: with its own variable, or without."""
    if low[1] is not None and (high[1] is None or low[0] <= high[0] + 1):
        return low
    if high[1] is None:
        return 0, None
    return high[0] + 1, (*high[1], node.node_var())
