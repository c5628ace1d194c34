"""Which of a query's tables the changes of a measurement go to.

Law: the largest one, of equal ones the one the query names first: the others are looked up.
Out of scope: what changes in it (`measure.drawn_rows`, `benchmarks.update_stream`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from impctl.service.pinned import PinnedTables
    from impctl.types import TableName


def changed_table(pinned: PinnedTables, tables: Sequence[TableName]) -> TableName:
    """The one of `tables`, in the order of the query, that is to change."""
    return max(tables, key=lambda table: pinned.snapshot(table).likely_rows)
