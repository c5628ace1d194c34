"""Fan-outs of the pinned tables, each key counted once per run.

Law: read from the columns of keys and conditions at the pinned versions; of two tables of which one
is large, the same sample of keys on both sides.
Out of scope: counting (`tables.fan_out`), what is made of it (`compile.jointree.cost`).
"""

from __future__ import annotations

from impctl.app.workbench.pinned import PinnedTables
from impctl.compile.jointree.cost import KeySide, SideSize
from impctl.tables.fan_out import KeyCounts, fan_out, one_in
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class PinnedFanOuts:
    """What the tables of a run say; TableError and HistoryGoneError where they cannot be read."""

    tables: PinnedTables

    def met(self, changed: KeySide, other: KeySide) -> float:
        """Rows, or tuples, of the other side that a changed row meets, in the mean."""
        share = one_in(self._rows(changed), self._rows(other))
        return fan_out(self._counts(changed, share), self._counts(other, share))

    def alone(self, side: KeySide) -> float:
        """Keys per row, at most one."""
        counts = self._counts(side, one_in(self._rows(side)))
        return min(counts.keys / max(counts.rows, 1), 1.0)

    def size(self, side: KeySide) -> SideSize:
        """Rows that its condition keeps, and what is different of them."""
        counts = self._counts(side, one_in(self._rows(side)))
        return SideSize(counts.rows, counts.share, counts.keys, counts.together)

    def _rows(self, side: KeySide) -> int:
        return self.tables.snapshot(side.table).likely_rows

    def _counts(self, side: KeySide, share: int) -> KeyCounts:
        return self.tables.key_counts(side.table, side.columns, share)
