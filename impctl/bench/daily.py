"""A table with a date column split into a base and the batches of its last days.

Law: base and batches together are the table, each row once; rows without a date stay in the base.
Out of scope: reading and writing files.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from impctl.errors import UsageError


def split_last_days(table: pa.Table, column: str, days: int) -> tuple[pa.Table, list[pa.Table]]:
    """The rows before the last `days` days on which there are rows, and a batch for each day."""
    if column not in table.column_names:
        raise UsageError(
            f"The data has no column `{column}`",
            hint=f"its columns: {', '.join(f'`{name}`' for name in table.column_names)}",
        )
    if not pa.types.is_temporal(table.schema.field(column).type):
        raise UsageError(
            f"Column `{column}` has no dates",
            hint="name a column of dates or timestamps",
        )
    day = pc.cast(table[column], pa.date32()).combine_chunks().cast(pa.int32())
    known = pc.drop_null(day).to_numpy(zero_copy_only=False)
    last = np.unique(known)[-days:] if days > 0 else np.array([], dtype=np.int32)
    batches = [table.filter(pc.equal(day, int(number))) for number in last]
    if not len(last):
        return table, []
    is_base = pc.fill_null(pc.less(day, int(last[0])), True)
    return table.filter(is_base), batches
