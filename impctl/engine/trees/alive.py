"""Tuples of a root that came alive or ceased to be, and the groups that they are of.

Law: what is told of a group's values one by one moves where a tuple is alive now and was not, or
the other way round; found once per step, whoever asks (`engine.trees.once`, `.ordered`).
Out of scope: when a tuple is alive (`engine.trees.way_up`).
"""

from __future__ import annotations

from typing import Self

from impctl.data.keys import Grouping
from impctl.data.vector import Ints
from impctl.engine.trees.keyed import Tuples
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class AliveChange:
    """The tuples of a step, `grouping` them by group; `came` is +1 where one is alive now, -1 where
    it was. `at` are the places of those, `owners` the numbers of their groups."""

    tuples: Tuples
    grouping: Grouping
    came: Ints
    at: Ints
    owners: Ints

    @classmethod
    def of(cls, tuples: Tuples, grouping: Grouping, came: Ints, numbers: Ints) -> Self:
        """`numbers` of the groups, of shape (groups,)."""
        at = came.nonzero()[0]
        owners = numbers[grouping.index()[at]] if len(at) else at
        return cls(tuples, grouping, came, at, owners)
