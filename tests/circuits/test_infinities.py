"""Sums of doubles that overflow beside an infinity: NaN or infinite to Spark, by the order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from impctl.compile.compile import compile_plan
from impctl.compile.session import MaintainedQuery, TableChange
from impctl.data.schema import INTEGER
from impctl.plan.nodes import scans_of
from impctl.rules.optimize import apply_rules
from impctl.safety.judge import check_safety
from impctl.sketch.partition import RangePartition
from impctl.sql.statement import parse_query
from tests.support.random_queries import ARROW, SCHEMA

BY_G = RangePartition("t", "g", INTEGER, (1, 2))
DOWN = (1e308, 1e308, -math.inf)
"""Infinite, and with minus infinity NaN, which is greater than any number."""


def table_of(doubles: Sequence[float]) -> pa.Table:
    rows = [{"id": 1, "g": 1, "s": "a", "x": 1, "d": d, "m": None} for d in doubles]
    return pa.Table.from_pylist(rows, schema=ARROW)


def kept(condition: str, *batches: Sequence[float]) -> bool:
    """Whether group 1 is in the sketch after the first batch was loaded and the others came."""
    query = parse_query(f"SELECT g FROM t GROUP BY g HAVING {condition}", {"t": SCHEMA})
    query = replace(query, root=apply_rules(query.root))
    (scan,) = scans_of(query.root)
    verdict = check_safety(query, {scan.access: "g"}, [])
    assert verdict.safe
    partitions = {scan.access: BY_G}
    circuit = compile_plan(
        query.root, partitions, verdict.key_columns, barriers=verdict.barrier_positions
    )
    session = MaintainedQuery(circuit)
    session.load([("t", table_of(batches[0]))])
    for batch in batches[1:]:
        session.step({"t": TableChange(table_of(batch), np.ones(len(batch), dtype=np.int64))})
    (result,) = session.fragments().values()
    return bool(result.ids)


@pytest.mark.parametrize(
    "condition", ["SUM(d) > 5", "AVG(d) > 5", "SUM(d) + 1 > 5", "SUM(d) * 2 > 5", "SUM(d) < 5"]
)
def test_what_overflows_beside_an_infinity_is_open(condition: str) -> None:
    assert kept(condition, DOWN)
    assert kept(condition, DOWN[:2], DOWN[2:])
    assert kept(condition, DOWN[2:], DOWN[:2])


def test_the_other_sign_too() -> None:
    assert kept("SUM(d) > CAST(1e308 AS DOUBLE) * 10", [-1e308, -1e308, math.inf])


def test_just_below_the_greatest_double_is_open() -> None:
    assert kept("SUM(d) > 5", [0.9e308, 0.89e308, -math.inf])


def test_what_cannot_overflow_is_told() -> None:
    assert not kept("SUM(d) > 5", [1e3, -math.inf])
    assert kept("SUM(d) < 5", [1e3, -math.inf])
    assert not kept("SUM(d) < 5", [*DOWN, math.nan])
