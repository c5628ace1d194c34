"""The check of a subquery used as a value: true, or a failure that says what happened."""

from __future__ import annotations

import numpy as np
import pytest

from impctl.data.schema import LONG
from impctl.data.vector import Vector
from impctl.errors import EvaluationError, QueryError
from impctl.expr.evaluate import Condition, find_blocker
from impctl.expr.nodes import ColumnRef
from impctl.expr.signature import ONE_ROW, one_row
from impctl.plan.functions import AGGREGATES, SCALARS
from tests.plan.catalogs import read

CHECK = one_row(ColumnRef("q.rows", LONG, nullable=False), None)


def outcome(*counts: int) -> list[bool]:
    rows = Vector(LONG, np.array(counts, dtype=np.int64))
    return Condition(CHECK).truth({"q.rows": rows}, len(counts)).sure_true().tolist()


def test_it_drops_nothing() -> None:
    assert find_blocker(CHECK) is None
    assert outcome(0, 1, 1) == [True, True, True]
    assert outcome() == []


def test_a_second_row_fails_the_query() -> None:
    with pytest.raises(EvaluationError, match="More than one row returned by a subquery") as caught:
        outcome(1, 2)
    assert caught.value.code == "subquery_of_several_rows"
    assert "MAX(...)" in (caught.value.hint or "")


def test_no_query_can_call_it() -> None:
    assert ONE_ROW not in SCALARS | AGGREGATES
    with pytest.raises(QueryError) as caught:
        read(f"SELECT sid FROM sales WHERE {ONE_ROW}(sid)")
    assert caught.value.code == "function_unknown"
