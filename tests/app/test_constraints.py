"""CHECK constraints and NOT NULL as facts that need no re-check."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

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
