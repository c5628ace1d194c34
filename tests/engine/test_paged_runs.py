"""Runs that lie in pages: what is altered between the ends of a slice is found as well."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from impctl.data import pages
from impctl.engine.trace import Arrangement, slices
from impctl.errors import InvariantError
from tests.support.paged_tables import stream_of, sums_of, table_in

ROWS = 4000


def held(altered: str | None, row: int = 0) -> Arrangement:
    """Rows 0 to 3,999, value 1 each; of one the last bit of a column is another."""
    table = pa.table({"code": np.arange(ROWS) * 2, "rows": np.ones(ROWS, dtype=np.int64)})
    whole = stream_of(table)
    shown = bytearray(whole)
    content = pa.py_buffer(shown)
    result = table_in(content)
    if altered is not None:
        (chunk,) = result.column(altered).chunks
        shown[chunk.buffers()[1].address - content.address + 8 * row] ^= 1
    checked = pages.CheckedPages(content, sums_of(whole), lambda: InvariantError("altered"))
    arrangement = Arrangement("a", (), "rows")
    arrangement.load([(1, pages.PagedTable(result, checked))])
    return arrangement


@pytest.mark.parametrize("column", ["code", "rows"])
def test_all_of_a_slice_is_looked_at(column: str) -> None:
    everything = np.array([0]), np.array([2 * ROWS])
    _, codes, values = slices(held(None).runs, *everything, "rows")
    assert len(codes) == int(values.sum()) == ROWS
    with pytest.raises(InvariantError, match="altered"):
        slices(held(column, 1777).runs, *everything, "rows")
    few = np.array([0]), np.array([40])
    assert len(slices(held(column, 1777).runs, *few, "rows")[0]) == 20


@pytest.mark.parametrize("column", ["code", "rows"])
def test_what_is_merged_or_taken_whole_is_looked_at(column: str) -> None:
    with pytest.raises(InvariantError, match="altered"):
        held(column, 3999).whole()
    other = held(column, 3999)
    ones = {"rows": np.ones(ROWS, dtype=np.int64)}
    for start in (1, 3):
        other.put(np.arange(start, start + 2 * ROWS, 2), (), ones)
    with pytest.raises(InvariantError, match="altered"):
        other.put(np.arange(5, 5 + 2 * ROWS, 2), (), ones)
