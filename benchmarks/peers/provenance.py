"""What rows carry so that their holder can tell whether they are still derivable.

Facts have a variable each, a fresh one whenever they come, so that one that is gone never returns.
Provenance is a whole number, 0 for none; what it means is the algebra's:

* absorption: a Boolean function of the variables, as a diagram;
* relative: a set of derivations, as bits. A derivation is a row, the row it comes from (none for a
  fact alone) and the fact's variable. A row holds while derivations lead to it from facts alone.

Law: `either` and `derived` are monotone, `without` distributes over `either`; nothing is negated,
so that what two peers know may be united in any order.
Out of scope: when provenance is sent (`tracked`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import NamedTuple, Protocol

from benchmarks.peers.diagrams import Diagrams
from benchmarks.peers.network import NUMBER_BYTES
from benchmarks.peers.programs import Row

_VARIABLE_BYTES = 4
_NODE_BYTES = 3 * _VARIABLE_BYTES
"""A variable and two nodes."""
_FORGET = 500_000


class Provenance(Protocol):
    """One algebra."""

    def base(self, variable: int, head: Row) -> int:
        """Of a row by a fact alone."""

    def derived(self, variable: int, head: Row, body: Row, value: int) -> int:
        """Of a row by a fact and a body with this provenance."""

    def either(self, one: int, other: int) -> int:
        """Of a row that both have come for."""

    def without(self, row: Row, value: int, removed: AbstractSet[int]) -> int:
        """The same after these facts are gone."""

    def holds(self, row: Row, value: int) -> bool:
        """Whether the row is derivable by this."""

    def variables(self, row: Row, value: int) -> Iterable[int]:
        """The facts that it speaks of."""

    def size(self, row: Row, value: int) -> int:
        """Its bytes, stored or sent."""

    def keep(self, values: Iterable[int]) -> None:
        """Between two steps: nobody holds others than these."""


class Absorption:
    """Boolean functions of facts."""

    def __init__(self, most_nodes: int) -> None:
        self._diagrams = Diagrams(most_nodes)
        self.either = self._diagrams.either

    def base(self, variable: int, head: Row) -> int:
        """The variable."""
        return self._diagrams.variable(variable)

    def derived(self, variable: int, head: Row, body: Row, value: int) -> int:
        """The variable and the body's."""
        return self._diagrams.both(self._diagrams.variable(variable), value)

    def without(self, row: Row, value: int, removed: AbstractSet[int]) -> int:
        """Variables false everywhere."""
        return self._diagrams.without(value, removed)

    def holds(self, row: Row, value: int) -> bool:
        """Every function but false does."""
        return value != 0

    def variables(self, row: Row, value: int) -> Iterable[int]:
        """Those that it depends on."""
        return self._diagrams.support(value)

    def size(self, row: Row, value: int) -> int:
        """Of its diagram."""
        return _NODE_BYTES * self._diagrams.size(value)

    def keep(self, values: Iterable[int]) -> None:
        """Free the other diagrams."""
        self._diagrams.keep(values)


class _Derivation(NamedTuple):
    head: Row
    body: Row
    """Empty where there is none."""
    variable: int


class Relative:
    """Sets of derivations; those of rows with one second column are numbered together."""

    def __init__(self) -> None:
        self._derivations: dict[int, list[_Derivation]] = defaultdict(list)
        self._bits: dict[_Derivation, int] = {}
        self._of_fact: dict[int, dict[int, int]] = defaultdict(dict)
        self._held: dict[tuple[Row, int], bool] = {}

    def base(self, variable: int, head: Row) -> int:
        """One derivation."""
        return self._bit(_Derivation(head, (), variable))

    def derived(self, variable: int, head: Row, body: Row, value: int) -> int:
        """The body's derivations and one more."""
        return value | self._bit(_Derivation(head, body, variable))

    def either(self, one: int, other: int) -> int:
        """All derivations."""
        return one | other

    def without(self, row: Row, value: int, removed: AbstractSet[int]) -> int:
        """Derivations by other facts.

        Those that no fact leads to any more stay: what leads to them may come by itself, from who
        believes that they are known here.
        """
        for variable in removed:
            value &= ~self._of_fact[variable].get(row[1], 0)
        return value

    def holds(self, row: Row, value: int) -> bool:
        """By a traversal of the derivations."""
        key = (row, value)
        result = self._held.get(key)
        if result is None:
            if len(self._held) >= _FORGET:
                self._held.clear()
            result = self._held[key] = row in self._derivable(row[1], value)
        return result

    def variables(self, row: Row, value: int) -> Iterable[int]:
        """Those of its derivations."""
        return {derivation.variable for derivation in self._of(row[1], value)}

    def size(self, row: Row, value: int) -> int:
        """Two rows and a variable per derivation."""
        return value.bit_count() * (2 * NUMBER_BYTES * len(row) + _VARIABLE_BYTES)

    def keep(self, values: Iterable[int]) -> None:
        """Derivations are numbered once and for all."""

    def _derivable(self, stable: int, value: int) -> set[Row]:
        heads = defaultdict(list)
        for derivation in self._of(stable, value):
            heads[derivation.body].append(derivation.head)
        result: set[Row] = set()
        stack: list[Row] = [()]
        while stack:
            for head in heads[stack.pop()]:
                if head not in result:
                    result.add(head)
                    stack.append(head)
        return result

    def _of(self, stable: int, value: int) -> Iterator[_Derivation]:
        derivations = self._derivations[stable]
        while value:
            low = value & -value
            yield derivations[low.bit_length() - 1]
            value ^= low

    def _bit(self, derivation: _Derivation) -> int:
        bit = self._bits.get(derivation)
        if bit is None:
            stable = derivation.head[1]
            bit = 1 << len(self._derivations[stable])
            self._derivations[stable].append(derivation)
            self._bits[derivation] = bit
            of_fact = self._of_fact[derivation.variable]
            of_fact[stable] = of_fact.get(stable, 0) | bit
        return bit
