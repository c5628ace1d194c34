"""Whether the joins of a plan are maintained as trees, where they could be.

Law: both ways find the same sketches, so a choice may be a bad one, never a wrong one. It is made
once, at capture, and stored with the state, because a circuit is made for its state. By itself a
plan's joins are trees where a step is expected to take less time so; where both take about as long,
where the state of an index join would be far larger. What is not known leaves the index join. Of a
plan with several blocks all or none are trees.
Out of scope: fan-outs of tables (`tables.keys.fan_out`), where an index join finds partners
(`circuits.strategy`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Protocol

from impctl.circuits.trees.built import PlannedBlock
from impctl.circuits.trees.costs.sides import FanOuts
from impctl.circuits.trees.costs.times import STEP_ROWS
from impctl.circuits.trees.estimate import Estimate, Kept, estimate, together
from impctl.circuits.trees.shape import TreeShape
from impctl.circuits.trees.shaping import planned_blocks
from impctl.errors import ImpctlError
from impctl.plan.explain import expr_text, shortened
from impctl.plan.nodes import Plan
from impctl.types import TableName
from impctl.values import dataclass

_NOT_ESTIMATED = "its fan-out is unknown: a key is computed, or a node has several tables"
ALIKE = 0.1
"""Times that differ by less than such a share of the index join's are about the same."""
LARGER = 1.5
"""State so many times as large decides where times are about the same."""
_LONGEST = 80
"""Characters of a condition that are told."""


@dataclass(frozen=True, slots=True)
class TreeChoice:
    """What was chosen, why, and what it was chosen by where that was estimated.

    `blocks` are the plan's, where they were found for that; they need not be found again to build.
    """

    is_tree: bool
    reason: str
    estimate: Estimate | None = None
    blocks: tuple[PlannedBlock, ...] = field(default=(), repr=False, compare=False)


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
            blocks = planned_blocks(core, {})
            result = [
                estimate(one.block.joins, one.shape, self.rows, self.fan_outs)
                for one in blocks
                if one.block is not None and isinstance(one.shape, TreeShape)
            ]
        except ImpctlError as error:
            return TreeChoice(False, f"its fan-out is unknown: {error.message}")
        if not result:
            return TreeChoice(False, "none of its joins can be a tree")
        known = [one for one in result if one is not None]
        if len(known) < len(result):
            return TreeChoice(False, _NOT_ESTIMATED)
        both = together(known)
        return TreeChoice(is_better_as_tree(both), _told(both), both, blocks)


def is_better_as_tree(both: Estimate) -> bool:
    """By times where these differ; else by state."""
    if both.tree_ms <= (1.0 - ALIKE) * both.index_ms:
        return True
    is_alike = both.tree_ms <= (1.0 + ALIKE) * both.index_ms
    return is_alike and both.index_bytes >= LARGER * both.tree_bytes


def _told(both: Estimate) -> str:
    return (
        f"a changed row joins about {_about(both.joined)} rows, and touches about "
        f"{_about(both.touched)} rows in a tree. For {STEP_ROWS:,} changed rows, the estimate is "
        f"{_about(both.index_ms)} ms with an index and {_about(both.tree_ms)} ms with a tree. "
        f"The state has about {_megabytes(both.index_bytes)} and {_megabytes(both.tree_bytes)} MB"
        f"{_counted(both.kept)}"
    )


def _counted(kept: Sequence[Kept]) -> str:
    """Of which rows keys were counted, where not of all."""
    if not kept:
        return ""
    said = [
        f"{one.access.removesuffix('#1')} where {shortened(expr_text(one.condition), _LONGEST)} "
        f"({_percent(one.share)})"
        for one in kept
    ]
    return f"; keys were counted only for these rows: {', '.join(said)}"


def _percent(share: float) -> str:
    return f"{100.0 * share:.2g}%" if share < 0.995 else "100%"


def _megabytes(size: float) -> str:
    return f"{size / 1e6:.2g}" if size < 1e7 else f"{round(size / 1e6):,}"


def _about(number: float) -> str:
    """As many digits as an estimate is worth."""
    return f"{number:.1f}".removesuffix(".0") if number < 10 else f"{round(number):,}"
