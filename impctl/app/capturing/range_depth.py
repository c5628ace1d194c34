"""How evenly the ranges of one partition are filled, as the store keeps it beside a query's state.

Law: a plain record, so that what reads the store needs no workbench for it.
Out of scope: what the numbers mean (`app.capturing.drift`).
"""

from __future__ import annotations

from impctl.types import ColumnName, TableName
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class RangeDepth:
    """How evenly one partition's ranges are filled.

    `at_capture` is the imbalance when the ranges were chosen, 0 for a table without rows.
    """

    table: TableName
    attribute: ColumnName
    ranges: int
    rows: int
    largest: int
    at_capture: float
