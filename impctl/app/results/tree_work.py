"""What join trees did: in one run, and since the capture.

Law: values only. Out of scope: doing it (`engine.jointree`), printing.
"""

from __future__ import annotations

from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class TreeWork:
    """`touched` tuples, `flips` of their being live, `pairs` of tuple and fragment told."""

    touched: int
    flips: int
    pairs: int


@dataclass(frozen=True, slots=True)
class TreeRecord:
    """What the trees of a query have done for all `changes` since the capture.

    `expected` tuples were to be touched per changed row by the capture's estimate; None where the
    trees were asked for, so nobody estimated.
    """

    changes: int
    touched: int
    flips: int
    pairs: int
    expected: float | None

    @property
    def touched_each(self) -> float | None:
        """Tuples touched per changed row; None before the first."""
        return self.touched / self.changes if self.changes else None


def work_text(work: TreeWork | None) -> str:
    """What a run's reason says of it; empty without a tree."""
    if work is None:
        return ""
    return f"trees: {work.touched:,} tuples touched, {work.flips:,} flips, {work.pairs:,} pairs"
