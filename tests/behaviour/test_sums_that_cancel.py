"""Sums of doubles that cancel, verified against Spark, whose own value may be off.

Law: `verify --results` takes a stored value for right where it differs from Spark's by no more than
the roundings of what was added, and for wrong where it differs by more.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from impctl.service import verify
from impctl.service.verify import rounded_answer, same_rows
from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Cli

pytestmark = pytest.mark.spark

HUGE = [9 * 10**18, 1, 1, -9 * 10**18]
ROWS = pa.table(
    {
        "g": [1] * 4 + [2] * 4 + [3] * 4,
        "n": pa.array([*HUGE, 3, 4, 5, 7, -2, 2, 5, 6], pa.int64()),
        "x": [1e16, 1.0, 1.0, -1e16, 0.25, 0.5, 1.0, 2.0, -1e3, 1e3, 0.5, 0.125],
        "y": [1e9 + k for k in range(12)],
    }
)
VALUES = """
    AVG(n) AS average, SUM(x) AS total, SUM(x) FILTER (WHERE n <> 3) AS filtered,
    stddev(y) AS spread, var_pop(y) AS variance, SUM(x) + 1 AS shifted, -AVG(x) AS negated,
    3 * SUM(x) - COUNT(*) AS scaled, SUM(x) / COUNT(*) AS quotient,
    SUM(y) / (SUM(x) + 1) AS inverse, SUM(x) * SUM(x) AS product,
    abs(SUM(x)) AS size, sqrt(abs(SUM(x))) AS root,
    CASE WHEN g > 1 THEN SUM(x) ELSE AVG(x) END AS chosen, coalesce(SUM(x), 0D) AS filled
"""
SPREADS = (4, 5)
"""Of values far from zero variances are off by more."""
SHAPES = {
    "values": f"SELECT g, {' '.join(VALUES.split())} FROM t GROUP BY g",
    "nested": "SELECT MAX(s) AS a, SUM(s) AS b, AVG(s) AS c FROM"
    " (SELECT g, SUM(x) AS s FROM t WHERE id > 0 GROUP BY g)",
    "united": "SELECT g, SUM(x) AS v FROM t GROUP BY g UNION ALL SELECT g, 1D FROM t WHERE g = 2",
    "joined": "SELECT a.id, v FROM t AS a JOIN (SELECT g, SUM(x) AS v FROM t GROUP BY g) AS b"
    " ON a.g = b.g",
    "windowed": "SELECT id, SUM(x) OVER (PARTITION BY g) AS v FROM t",
    "ranked": "SELECT g, SUM(x) AS v FROM t GROUP BY g ORDER BY g LIMIT 2",
}
WORKLOAD = """\
version: 1
tables: {t: {path: t}}
partitions: {t: {g: {boundaries: [2, 3]}}}
defaults: {answer: true}
spark: {master: "local[2]"}
queries:
""" + "".join(f'  {name}: {{sql: "{sql}"}}\n' for name, sql in SHAPES.items())


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory, spark: Any) -> Path:
    folder = tmp_path_factory.mktemp("sums")
    rows = ROWS.append_column("id", pa.array(range(1, 13), pa.int64()))
    create_table(str(folder / "t"), rows)
    return folder


def test_roundings_are_no_errors_and_errors_are_found(
    sums: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ordinary values, which do not cancel, a part in a million is an error."""
    asked = {}

    def recorded(desk: Any, prepared: Any, versions: Any) -> Any:
        asked[prepared.spec.name] = result = rounded_answer(desk, prepared, versions)
        return result

    monkeypatch.setattr(verify, "rounded_answer", recorded)
    cli = Cli.over(capsys, sums, WORKLOAD).captured()
    for result in cli.verified(is_exact=False):
        assert result["answer_equal"] is True, result
    rows, errors = asked["values"]
    assert len(rows[0]) == 16
    for at, row in enumerate(rows):
        for column, value in enumerate(row):
            if row[0] != 2 or not isinstance(value, float):
                continue
            wrong = [list(one) for one in rows]
            wrong[at][column] = value * (1 + (1e-3 if column in SPREADS else 1e-6))
            assert not same_rows(wrong, rows, errors=errors), column


def test_the_answers_are_asked_for_with_errors_where_they_differ_alone(
    sums: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stored value that is wrong is reported."""
    kept = verify._kept

    def wrong(desk: Any, prepared: Any, stored: Any) -> Any:
        answer = kept(desk, prepared, stored)
        assert answer is not None
        rows = [(g, v + 1 if g == 2 else v) for g, v in answer.rows]
        return replace(answer, rows=tuple(rows))

    monkeypatch.setattr(verify, "_kept", wrong)
    cli = Cli.over(capsys, sums, WORKLOAD).captured("--query", "ranked")
    ran = cli("verify", "--results", "--query", "ranked")
    assert ran.error["code"] == "sketch_unsound"
