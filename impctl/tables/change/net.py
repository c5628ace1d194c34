"""The net change: rows that went and came again left out.

Law: the sum of the weighted rows as a bag is what it was; no row is left on both sides. Rows are
the same where every column is, bit by bit: 0.0 and -0.0 are not, so nothing is lost that some
expression could tell apart.
Cost: one pass of grouping over the rows, which were read from files a moment ago.
Out of scope: reading them (`tables.change.file_diff`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from impctl.tables.rows import bare_rows

Weights = npt.NDArray[np.int64]

_WEIGHT = "weight"


def netted(table: pa.Table, weights: Weights) -> tuple[pa.Table, Weights]:
    """Each row once with the sum of its weights, those of sum 0 left out; in no order."""
    if not len(weights) or weights.min() > 0 or weights.max() < 0:
        return table, weights
    if not table.num_columns:
        total = int(weights.sum())
        return bare_rows(abs(total)), np.full(abs(total), np.sign(total), dtype=np.int64)
    names = table.column_names
    keys = [str(number) for number in range(len(names))]
    rows = table.rename_columns(keys).append_column(_WEIGHT, pa.array(weights))
    aggregate = rows.group_by(keys).aggregate([(_WEIGHT, "sum")])
    sums: Weights = aggregate.column(f"{_WEIGHT}_sum").to_numpy()
    left = np.flatnonzero(sums)
    kept = aggregate.select(keys).take(pa.array(left)).rename_columns(names)
    return kept.cast(table.schema), sums[left]
