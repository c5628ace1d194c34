"""How two sketches over one partition compare.

Law: `covers` is the promise (a sketch may be too large, never too small); slack is the excess.
Out of scope: how a sketch is found (`capture`) or kept (`store`).
"""

from __future__ import annotations

from impctl.sketch.fragments import FragmentSet
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Comparison:
    """One sketch held against the accurate one: `missing` is unsound, `extra` is slack."""

    missing: tuple[int, ...]
    extra: tuple[int, ...]

    @property
    def covers(self) -> bool:
        return not self.missing

    @property
    def slack(self) -> int:
        return len(self.extra)


def compare(held: FragmentSet, accurate: FragmentSet) -> Comparison:
    """How `held` relates to `accurate`; both over the same partition."""
    return Comparison(accurate.minus(held).ids, held.minus(accurate).ids)
