"""Columns that no filter in Parquet is asked about, because it would lose rows.

Law: the rows and their values are those of the frame; a condition on a guarded column is never
handed down to the files, where NaN and the sign of zero are told otherwise than in Spark
(`tables.hidden_values`). Every other column's conditions are, as before.
A setting would do it for the whole session, all its columns and other programs' reads.
Out of scope: guarding in SQL text (`capture.use`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from impctl.data.schema import quoted
from impctl.types import ColumnName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def guarded(frame: DataFrame, columns: Collection[ColumnName]) -> DataFrame:
    """The frame with these of its columns guarded."""
    from pyspark.sql import functions as F

    if not columns:
        return frame
    kept = [(name, F.col(quoted(name))) for name in frame.columns]
    return frame.select(
        # The value itself, in a form that Spark neither simplifies nor translates for Parquet.
        *(
            F.coalesce(value, value).alias(name) if name in columns else value
            for name, value in kept
        )
    )
