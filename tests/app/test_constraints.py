"""CHECK constraints and NOT NULL as facts that need no re-check."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.app.conftest import ROWS
from tests.support.run_cli import Cli


@pytest.fixture
def summed(cli: Cli) -> Cli:
    """HAVING SUM(x) > 20 sketched on x: safe only as long as x is not negative."""
    text = cli.workload.read_text().replace("COUNT(*) > 2", "SUM(x) > 20")
    cli.workload.write_text(text.replace("sketch: {t: g}", "sketch: {t: x}"))
    return cli


def assumptions(cli: Cli) -> list[str]:
    (result,) = cli.good("capture", "--dry-run").results
    found = result["assumptions"]
    assert isinstance(found, list)
    return found


def test_statistics_are_an_assumption(summed: Cli) -> None:
    assert assumptions(summed) == ["t.x is nonnegative"]


@pytest.mark.parametrize("check", ["x >= 0", "x > 0 AND g < 100", "note = 'a' OR x > 0"])
def test_a_check_constraint_is_none(summed: Cli, table: str, tmp_path: Path, check: str) -> None:
    if check.startswith("note"):
        # An OR gives no sign: the fact from statistics stays an assumption.
        DeltaTable(table).alter.add_constraint({"c": "x > 0 OR g IS NULL"})
        assert assumptions(summed) == ["t.x is nonnegative"]
        return
    assert ROWS.num_rows == 10
    check = check.replace("g < 100", "(g IS NULL OR g < 100)")
    DeltaTable(table).alter.add_constraint({"c": check})
    assert assumptions(summed) == []


def test_a_check_of_a_double_lets_nan_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = pa.table({"g": [1, 2], "k": [1, 1], "d": [-10.0, -10.0]})
    path = str(tmp_path / "t")
    write_deltalake(path, rows)
    DeltaTable(path).alter.add_constraint({"c": "d <= 0"})
    nan = pa.array(np.array([math.copysign(math.nan, -1)]))
    write_deltalake(path, pa.table({"g": [1], "k": [5], "d": nan}), mode="append")
    file = tmp_path / "w.yaml"
    file.write_text(
        "version: 1\ntables: {t: {path: t}}\npartitions: {t: {k: {boundaries: [3]}}}\n"
        "queries: {q: {sql: 'SELECT g, SUM(d) s FROM t GROUP BY g HAVING SUM(d) < -5',"
        " sketch: {t: k}}}\n"
    )
    ran = Cli(capsys, file)("capture", "--dry-run")
    assert (ran.code, ran.error["code"]) == (3, "sketch_unsafe")
