"""The rows of an answer as one Arrow table, and the forms in which programs take them.

Law: the table keeps the engine's types, order and duplicate names. Python values are made on
request only, and showing the table never changes it.
"""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from impctl.errors import EvaluationError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

RowValue = bool | int | float | str | Decimal | date | datetime | bytes | None
"""A value of a result row; lists and structs are lists and dictionaries."""


def rows_of(table: pa.Table) -> tuple[tuple[RowValue, ...], ...]:
    try:
        columns = [column.to_pylist() for column in table.columns]
    except (OverflowError, ValueError) as error:
        raise EvaluationError(
            "A date or time of the result is before year 1 or after year 9999, which "
            "Python does not support",
            hint="get the result as Arrow (`to_arrow`) or as text (`impctl query --format csv`)",
            code="beyond_python",
        ) from error
    return tuple(zip(*columns, strict=True)) if columns else ()


class ArrowAnswer(Struct, frozen=True, kw_only=True, dict=True):
    """An answer that DuckDB, Polars and pandas read through its Arrow stream. `limit`: how many
    rows are shown or written, None for all; `written`: the file they went to."""

    answer: pa.Table
    limit: int | None = None
    written: str | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.row_count} rows of {', '.join(self.columns)}>"

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.answer.column_names)

    @cached_property
    def rows(self) -> tuple[tuple[RowValue, ...], ...]:
        """Return all rows as Python values; EvaluationError for a year that Python lacks."""
        return rows_of(self.answer)

    @property
    def row_count(self) -> int:
        return int(self.answer.num_rows)

    @property
    def shown(self) -> pa.Table:
        if self.limit is None or self.limit >= len(self.answer):
            return self.answer
        return self.answer.slice(0, self.limit)

    def to_arrow(self) -> pa.Table:
        return self.answer

    def to_pandas(self) -> Any:
        if find_spec("pandas") is None:
            raise UsageError(
                "The result cannot be converted to pandas, which is not installed",
                hint="run `pip install pandas`, or get the result with `to_arrow`",
                code="pandas_missing",
            )
        return self.answer.to_pandas()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.answer.__arrow_c_stream__(requested_schema)
