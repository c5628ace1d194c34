"""Binary decision diagrams: Boolean functions in one canonical form, reduced and ordered.

Law: equal functions are equal numbers, of one `Diagrams`. Variables are whole numbers and ordered
as such. Only monotone functions are made here, so that a variable that is gone is set to false,
and never negated.
How many nodes there are at once is bounded, and beyond the bound the work is given up (CutOff);
what is not needed any more is freed only when `keep` is told what is. Pure Python on purpose:
nothing has to be installed for a measurement.
Out of scope: order of variables chosen, negation.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from benchmarks.peers.network import CutOff

FALSE, TRUE = 0, 1
_FORGET = 300_000
"""Results remembered before all are forgotten."""


class Diagrams:
    """All functions of one simulation."""

    def __init__(self, most: int) -> None:
        last = 1 << 62  # after every variable
        self._nodes: list[tuple[int, int, int]] = [(last, 0, 0), (last, 1, 1)]
        self._known: dict[tuple[int, int, int], int] = {}
        self._either: dict[tuple[int, int], int] = {}
        self._both: dict[tuple[int, int], int] = {}
        self._supports: dict[int, frozenset[int]] = {FALSE: frozenset(), TRUE: frozenset()}
        self._free: list[int] = []
        self._most = most

    def variable(self, variable: int) -> int:
        """The function that is the variable."""
        return self._node(variable, FALSE, TRUE)

    def either(self, one: int, other: int) -> int:
        """One or the other."""
        if one == other or other == FALSE:
            return one
        if one == FALSE:
            return other
        if TRUE in (one, other):
            return TRUE
        key = (one, other) if one < other else (other, one)
        result = self._either.get(key)
        if result is None:
            variable, low, high, low2, high2 = self._split(one, other)
            result = self._node(variable, self.either(low, low2), self.either(high, high2))
            _remember(self._either, key, result)
        return result

    def both(self, one: int, other: int) -> int:
        """One and the other."""
        if one == other or other == TRUE:
            return one
        if one == TRUE:
            return other
        if FALSE in (one, other):
            return FALSE
        key = (one, other) if one < other else (other, one)
        result = self._both.get(key)
        if result is None:
            variable, low, high, low2, high2 = self._split(one, other)
            result = self._node(variable, self.both(low, low2), self.both(high, high2))
            _remember(self._both, key, result)
        return result

    def without(self, function: int, removed: AbstractSet[int]) -> int:
        """The function where these variables are false."""
        return self._without(function, removed, {})

    def support(self, function: int) -> frozenset[int]:
        """The variables that it depends on."""
        result = self._supports.get(function)
        if result is None:
            variable, low, high = self._nodes[function]
            result = self.support(low) | self.support(high) | {variable}
            self._supports[function] = result
        return result

    def size(self, function: int) -> int:
        """Its nodes, without the two ends."""
        return len(self._below((function,)))

    def keep(self, functions: Iterable[int]) -> None:
        """Free the nodes of all other functions, once most of the room is used up."""
        if 2 * len(self._known) < self._most:
            return
        kept = self._below(functions)
        for key, node in list(self._known.items()):
            if node not in kept:
                del self._known[key]
                self._supports.pop(node, None)
                self._free.append(node)
        self._either.clear()
        self._both.clear()

    def _below(self, functions: Iterable[int]) -> set[int]:
        seen: set[int] = set()
        stack = list(functions)
        while stack:
            one = stack.pop()
            if one > TRUE and one not in seen:
                seen.add(one)
                stack += self._nodes[one][1:]
        return seen

    def _without(self, function: int, removed: AbstractSet[int], known: dict[int, int]) -> int:
        if function <= TRUE or self.support(function).isdisjoint(removed):
            return function
        result = known.get(function)
        if result is None:
            variable, low, high = self._nodes[function]
            result = self._without(low, removed, known)
            if variable not in removed:
                result = self._node(variable, result, self._without(high, removed, known))
            known[function] = result
        return result

    def _split(self, one: int, other: int) -> tuple[int, int, int, int, int]:
        """The first variable of both, then either's functions where it is false and true."""
        (first, low, high), (second, low2, high2) = self._nodes[one], self._nodes[other]
        if first < second:
            return first, low, high, other, other
        if second < first:
            return second, one, one, low2, high2
        return first, low, high, low2, high2

    def _node(self, variable: int, low: int, high: int) -> int:
        if low == high:
            return low
        key = (variable, low, high)
        result = self._known.get(key)
        if result is None:
            if len(self._known) >= self._most:
                raise CutOff(f"stopped at {self._most:,} nodes of diagrams")
            if self._free:
                result = self._free.pop()
                self._nodes[result] = key
            else:
                result = len(self._nodes)
                self._nodes.append(key)
            self._known[key] = result
        return result


def _remember(known: dict[tuple[int, int], int], key: tuple[int, int], result: int) -> None:
    if len(known) >= _FORGET:
        known.clear()
    known[key] = result
