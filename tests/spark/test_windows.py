"""Windows kept by the engine: after each batch the sketch is what a recapture by Spark finds."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from impctl.plan.nodes import scans_of
from impctl.rules.optimize import apply_rules
from impctl.safety.judge import check_safety
from impctl.spark.sketches import capture_sketches
from impctl.sql.statement import parse_query
from tests.circuits.test_windows import QUERIES, SALES, anew, changes, planned, random_row, table_of
from tests.support.random_cases import quarter_then_rest

pytestmark = pytest.mark.spark

BATCHES = 4


def frame_of(spark, rows):
    """Spark Connect guesses no types where there are no rows."""
    if rows:
        return spark.createDataFrame(table_of(rows))
    columns = ", ".join(f"{column.name} {column.type}" for column in SALES.columns)
    return spark.createDataFrame([], columns)


@pytest.mark.parametrize("name", quarter_then_rest(QUERIES))
def test_after_each_batch_the_sketch_is_the_recaptured_one(spark, name):
    rng = random.Random(f"{name} 7")
    rows = [random_row(rng) for _ in range(20)]
    session = anew(name, rows)
    query = parse_query(QUERIES[name][0], {"sales": SALES})
    query = replace(query, root=apply_rules(query.root))
    partitions = planned(name)[2]
    sketched = {access: result.attribute for access, result in partitions.items()}
    verdict = check_safety(query, sketched, [])
    seen = 0
    for _ in range(BATCHES):
        session.step({"sales": changes(rng, rows)})
        frame = frame_of(spark, rows)
        own = {scan.access: frame for scan in scans_of(query.root)}
        wanted = capture_sketches(spark, query, verdict, partitions, own)
        for access, result in session.fragments().items():
            assert set(result.ids) == set(wanted[access].ids), (name, rows)
            seen += len(result.ids)
    assert seen > 0
