"""Whether the joins of a plan are maintained as trees, where they could be.

Law: both ways find the same sketches, so a choice may be a bad one, never a wrong one. It is made
once, at capture, and stored with the state, because a circuit is made for its state. By itself a
plan's joins are trees where a change writes several times as many joined rows as a tree would touch
tuples; what is not known leaves the index join. Of a plan with several blocks all or none are
trees.
Out of scope: fan-outs of tables (`tables.keys.fan_out`), where an index join finds partners
(`circuits.strategy`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from impctl.aliases import TableName
from impctl.circuits.trees.estimate import Estimate, FanOuts, estimate
from impctl.circuits.trees.shape import TreeShape
from impctl.circuits.trees.shaping import planned_blocks
from impctl.errors import ImpctlError
from impctl.plan.nodes import Plan
from impctl.values import dataclass

_NOT_ESTIMATED = "its fan-out is not known: a key is computed, or a node has several tables"
DEARER = 4
"""A touched tuple costs some four joined rows: 0.8 to 1.8 us where these take 0.17 to 0.64."""


@dataclass(frozen=True, slots=True)
class TreeChoice:
    """What was chosen, why, and what it was chosen by where that was estimated."""

    is_tree: bool
    reason: str
    estimate: Estimate | None = None


class TreeChooser(Protocol):
    """Chooses for a plan of which some block has a tree."""

    def choose(self, core: Plan) -> TreeChoice:
        """The choice for a plan; trees where it has none are no choice at all."""
        ...


@dataclass(frozen=True, slots=True)
class TreesAsRecorded:
    """The choice of the capture."""

    is_tree: bool
    reason: str = "as captured"

    def choose(self, core: Plan) -> TreeChoice:
        """What the capture chose."""
        return TreeChoice(self.is_tree, self.reason)


@dataclass(frozen=True, slots=True)
class TreesByFanOut:
    """Trees where changes would be joined many to many; `rows` weighs the tables that change."""

    fan_outs: FanOuts
    rows: Mapping[TableName, int]

    def choose(self, core: Plan) -> TreeChoice:
        """The choice, with both estimates of all blocks that have a tree."""
        try:
            found = [
                estimate(one.block.joins, one.shape, self.rows, self.fan_outs)
                for one in planned_blocks(core, {})
                if one.block is not None and isinstance(one.shape, TreeShape)
            ]
        except ImpctlError as error:
            return TreeChoice(False, f"its fan-out is not known: {error.message}")
        if not found:
            return TreeChoice(False, "no joins of it have a tree")
        known = [one for one in found if one is not None]
        if len(known) < len(found):
            return TreeChoice(False, _NOT_ESTIMATED)
        both = Estimate(sum(one.joined for one in known), sum(one.touched for one in known))
        is_tree = both.joined >= DEARER * both.touched
        return TreeChoice(is_tree, _told(both), both)


def _told(both: Estimate) -> str:
    return (
        f"a changed row is joined to some {_about(both.joined)}, "
        f"and as a tree touches some {_about(both.touched)}"
    )


def _about(number: float) -> str:
    """As many digits as an estimate is worth."""
    return f"{number:.1f}".removesuffix(".0") if number < 10 else f"{round(number):,}"
