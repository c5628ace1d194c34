"""Options that the measures of state have in common: the tables that change, and how much of them.

Law: what cannot be held back is refused with its place, before any table is touched.
Out of scope: holding rows back (`state.held_back`).
"""

from __future__ import annotations

from impctl.measure.ground import Ground
from impctl.types import TableName


def moving_tables(ground: Ground, wanted: str = "tables of the workload") -> tuple[TableName, ...]:
    """Option `tables`; WorkloadError, which says what is `wanted`, for none or for unknown ones."""
    tables = ground.texts("tables")
    if not tables or not set(tables) <= ground.desk.workload.tables.keys():
        raise ground.refuse("tables", wanted)
    return tables


def share_of_each(ground: Ground, usual: float, changes: int) -> float:
    """Option `share`, of each of so many changes; WorkloadError where they leave no rows."""
    share = ground.numbers("share", (usual,))[0]
    if not 0 < share * changes < 1:
        raise ground.refuse("share", "a share of the rows, less than all of them in all changes")
    return share
