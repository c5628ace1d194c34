"""Rows of the small table; groups of two stand at the border of HAVING COUNT(*) > 2."""

from __future__ import annotations

import pyarrow as pa

ROWS = pa.table(
    {
        "g": pa.array([0, 0, 0, 1, 3, 3, 3, 5, 5, 7, None], pa.int32()),
        "x": pa.array([5, 15, 25, 5, 5, 15, 25, 5, 9, 15, 25], pa.int32()),
        "note": pa.array(list("abcdefghijk"), pa.string()),
    }
)


def more(group: int | None = 5, rows: int = 3, x: int | None = 1) -> pa.Table:
    """Rows of one group: three of group 5 bring it over the limit."""
    return pa.table(
        {
            "g": pa.array([group] * rows, pa.int32()),
            "x": pa.array([x] * rows, pa.int32()),
            "note": pa.array(["z"] * rows, pa.string()),
        }
    )
