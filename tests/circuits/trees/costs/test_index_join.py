"""What index joins of tables keep whose keys are spread evenly, counted by hand."""

from __future__ import annotations

import pyarrow as pa
import pytest

from impctl.compile.flows import row_bytes
from impctl.compile.jointree.cost import PAIR_BYTES, IndexCost, index_cost
from impctl.compile.jointree.decompose import Block, block_of
from impctl.data.schema import LONG
from impctl.engine.jointree.spec import Mode
from tests.circuits.trees.drawn import core
from tests.circuits.trees.test_estimate import PATH, OfRows, rows

TABLES = OfRows({"r": rows(10, 3), "s": rows(10, 4, b=20), "t": rows(20, 5)})


def cost(sql: str, mode: Mode = Mode.RING) -> IndexCost | None:
    block = block_of(core(sql))
    assert isinstance(block, Block)
    return index_cost(block.joins, mode, TABLES)


def held(count: int, columns: int, accesses: int = 1) -> int:
    """Bytes of so many rows of whole numbers."""
    return count * row_bytes([(str(at), LONG) for at in range(columns)], accesses)


@pytest.mark.parametrize(("mode", "pairs"), [(Mode.RING, 170), (Mode.BITS, 0)])
def test_tables_are_kept_and_what_is_joined_before_the_last_join(mode: Mode, pairs: int) -> None:
    """30, 40 and 100 rows, and 120 of the first two; with groups a range of each table's row."""
    result = cost(PATH, mode)
    assert result is not None
    kept = held(30, 1) + held(40, 3) + held(100, 1) + held(120, 4, 2)
    assert result.bytes == kept + pairs * PAIR_BYTES


def test_rows_pass_the_joins_from_their_table_on() -> None:
    result = cost(PATH)
    assert result is not None
    each = {one.scan.table: (one.joins, one.kept, one.last) for one in result.accesses}
    assert each == {"r": (2, 4.0, 20.0), "s": (2, 3.0, 15.0), "t": (1, 0.0, 6.0)}


def test_null_meets_null_where_the_join_says_so() -> None:
    """Three rows of each table, one of them NULL."""
    three = pa.table({"a": pa.array([1, 2, None], pa.int64()), "d": [1, 2, 3]})
    tables = OfRows({"r": three, "s": three})
    for op, met in (("=", 2 / 3), ("<=>", 1.0)):
        block = block_of(core(f"SELECT r.d FROM r JOIN s ON r.a {op} s.a"))
        assert isinstance(block, Block)
        result = index_cost(block.joins, Mode.BITS, tables)
        assert result is not None
        assert [one.last for one in result.accesses] == pytest.approx([met, met])


def test_other_joins_are_not_estimated() -> None:
    outer = "SELECT r.d FROM r LEFT JOIN s ON r.a = s.a GROUP BY r.d HAVING COUNT(s.d) > 1"
    assert cost(outer) is None
