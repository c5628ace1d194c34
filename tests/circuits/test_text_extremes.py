"""The greatest text of a group, NULL beside others, as state that is taken up again."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from impctl.compile.compile import Compiled, compile_plan
from impctl.compile.session import MaintainedQuery, TableChange
from impctl.data.schema import INTEGER, STRING, Column, Schema
from impctl.plan.nodes import scans_of
from impctl.rules.optimize import apply_rules
from impctl.sketch.partition import RangePartition
from impctl.sql.statement import parse_query
from tests.support.restored_query import Stored, restored

CATALOG = {"t": Schema((Column("g", INTEGER), Column("s", STRING)))}
FIRST = "SELECT g, MAX(s) m FROM t GROUP BY g ORDER BY m NULLS FIRST LIMIT 1"


def compiled() -> Compiled:
    root = apply_rules(parse_query(FIRST, CATALOG).root)
    (scan,) = scans_of(root)
    return compile_plan(root, {scan.access: RangePartition("t", "g", INTEGER, (1, 2))}, {})


def change(*rows: tuple[int, str | None, int]) -> dict[str, TableChange]:
    groups, texts, weights = zip(*rows, strict=True)
    table = pa.table({"g": pa.array(groups, pa.int32()), "s": pa.array(texts, pa.string())})
    return {"t": TableChange(table, np.array(weights, dtype=np.int64))}


def test_null_beside_a_text_stays_null_when_the_state_is_taken_up_again() -> None:
    session = MaintainedQuery(compiled())
    session.step(change((1, None, 1), (0, "a", 1)))
    assert [kept.ids for kept in session.fragments().values()] == [(1,)]
    again = restored(session, Stored(), MaintainedQuery(compiled()))
    again.step(change((1, None, -1), (2, "b", 1)))
    assert [kept.ids for kept in again.fragments().values()] == [(0,)]
