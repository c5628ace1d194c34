"""Inputs that equal columns join in a circle, and what their rows are asked by.

A *class* is a set of columns of several inputs that must be equal; a joined row *binds* a class
once it has a row of an input with a column of it. Law: which sets of columns an input is asked by
follows from the classes alone, so the same inputs always have the same state.
Out of scope: rows (`engine.probing.stores`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from impctl.data.schema import SqlType
from impctl.errors import InvariantError
from impctl.types import AttributeId
from impctl.values import dataclass

Class = int
Places = tuple[int, ...]
"""Columns of an input, ascending."""


@dataclass(frozen=True, slots=True)
class Probed:
    """One input: its columns, the class of some of them, and how many sketched accesses it has.

    `classes` are (class, place in `columns`), ascending, each class once. Inputs of one `store`
    have the same rows in every batch, their columns alike place by place.
    """

    columns: tuple[tuple[AttributeId, SqlType], ...]
    classes: tuple[tuple[Class, int], ...]
    accesses: int
    store: int

    @property
    def bound(self) -> frozenset[Class]:
        """The classes it has a column of."""
        return frozenset(one for one, _ in self.classes)

    def column_of(self, one: Class) -> AttributeId:
        """Its column of a class that it has."""
        return next(self.columns[place][0] for own, place in self.classes if own == one)

    def asked_by(self, classes: frozenset[Class]) -> tuple[tuple[Class, ...], Places]:
        """Those of the classes that it has, and its columns of them, ascending by place."""
        shared = sorted((place, one) for one, place in self.classes if one in classes)
        return tuple(one for _, one in shared), tuple(place for place, _ in shared)


@dataclass(frozen=True, slots=True)
class Circle:
    """All inputs; `null_safe[c]` says that NULL equals NULL in class c, `outputs` which columns
    joined rows have."""

    inputs: tuple[Probed, ...]
    null_safe: tuple[bool, ...]
    outputs: tuple[AttributeId, ...]

    def bound_by(self, joined: frozenset[int]) -> frozenset[Class]:
        """The classes that rows of these inputs bind."""
        return frozenset().union(*(self.inputs[at].bound for at in joined))

    def following(self, joined: frozenset[int]) -> tuple[int, ...]:
        """The inputs that may come next: one of which all classes are bound, else all that share
        one; InvariantError where none does."""
        bound = self.bound_by(joined)
        left = [at for at in range(len(self.inputs)) if at not in joined]
        whole = [at for at in left if self.inputs[at].bound <= bound]
        some = whole[:1] or [at for at in left if self.inputs[at].bound & bound]
        if left and not some:
            raise InvariantError("inputs that are probed are connected by equal columns")
        return tuple(some)

    def asked(self) -> Iterator[tuple[int, Places]]:
        """Every input with the columns that it may be asked by, each once."""
        result: set[tuple[int, Places]] = set()
        waiting = [frozenset({at}) for at in range(len(self.inputs))]
        seen = set(waiting)
        while waiting:
            joined = waiting.pop()
            bound = self.bound_by(joined)
            for at in self.following(joined):
                result.add((at, self.inputs[at].asked_by(bound)[1]))
                more = joined | {at}
                if more not in seen:
                    seen.add(more)
                    waiting.append(more)
        yield from sorted(result)

    def stores(self) -> tuple[tuple[int, ...], ...]:
        """The inputs of each store, by its number."""
        count = 1 + max(one.store for one in self.inputs)
        members = [
            tuple(at for at, one in enumerate(self.inputs) if one.store == store)
            for store in range(count)
        ]
        for places in members:
            kinds = {tuple(kind for _, kind in self.inputs[at].columns) for at in places}
            if len(kinds) != 1 or len({self.inputs[at].accesses for at in places}) != 1:
                raise InvariantError("inputs of one store have the same rows")
        return tuple(members)


def needed_places(circle: Circle, members: Sequence[int]) -> frozenset[int]:
    """The columns of a store that no input of it has a use for while they are NULL."""
    plain = [
        frozenset(place for one, place in circle.inputs[at].classes if not circle.null_safe[one])
        for at in members
    ]
    return frozenset.intersection(*plain)
