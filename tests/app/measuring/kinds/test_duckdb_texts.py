"""Texts of capture as DuckDB has them: what Spark's dialect alone knows is put otherwise."""

from __future__ import annotations

import pytest
from sqlglot import exp

from impctl.app.measuring.kinds.duckdb_recapture import _translated
from impctl.capture.render_expr import render_expr
from impctl.data.schema import LONG
from impctl.expr.nodes import ColumnRef
from impctl.expr.one_row import SEVERAL_ROWS, one_row


@pytest.mark.parametrize("rows", [1, 2])
def test_a_second_row_of_a_subquery_fails_there_too(rows: int) -> None:
    duckdb = pytest.importorskip("duckdb")
    check = render_expr(one_row(ColumnRef("q.n", LONG), None), {"q.n": "n"})
    counted = exp.select(exp.alias_(exp.Literal.number(rows), "n")).subquery("q")
    text = _translated(exp.select("n").from_(counted).where(check))
    if rows == 1:
        assert duckdb.sql(text).fetchall() == [(1,)]
    else:
        with pytest.raises(duckdb.Error, match=SEVERAL_ROWS):
            duckdb.sql(text).fetchall()
