"""Without a change feed, rows that a writer copied from file to file are no change.

What counts as the same row is decided by every column that the query reads, not by those that its
way of maintaining needs: a sketch kept by touch reads one column alone.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from impctl.tables.write.create import create_table
from tests.support.run_cli import Cli

ROWS = 4_000
WORKLOAD = """\
version: 1
tables: {t: {path: t}}
partitions:
  t: {g: {fragments: 50}}
queries:
  exact: {sql: "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 3000"}
  touch: {sql: "SELECT g, CORR(x, y) AS c FROM t GROUP BY g HAVING CORR(x, y) > 0.99"}
  shown: {sql: "SELECT g, x, y, note FROM t WHERE x < 3"}
store: .impctl
"""


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    numbers = list(range(ROWS))
    rows = {
        "g": [n // 40 for n in numbers],
        "x": [n % 97 for n in numbers],
        "y": [float(n * 7919 % 101) for n in numbers],
        "note": [f"n{n % 5}" for n in numbers],
        "other": numbers,
    }
    create_table(str(tmp_path / "t"), pa.table(rows), change_feed=False)
    file = tmp_path / "w.yaml"
    file.write_text(WORKLOAD)
    return Cli(capsys, file)


def maintained(cli: Cli, query: str) -> dict[str, object]:
    (result,) = cli.good("maintain", "--query", query).results
    return result


def test_a_deletion_of_few_rows_is_a_change_of_few_rows(cli: Cli) -> None:
    cli.good("capture", "--query", "exact")
    DeltaTable(str(cli.workload.parent / "t")).delete("other IN (5, 6, 3999)")
    (planned,) = cli.good("plan", "--query", "exact").results
    assert [entry["rows"] for entry in planned["pending"]] == [3]
    result = maintained(cli, "exact")
    assert (result["action"], result["changes"]) == ("exact", 3)


def test_what_the_query_does_not_read_changes_nothing(cli: Cli) -> None:
    cli.good("capture", "--query", "exact")
    DeltaTable(str(cli.workload.parent / "t")).update({"other": "other + 1"})
    result = maintained(cli, "exact")
    assert (result["changes"], result["answer_changed"]) == (0, "no")


def test_a_column_that_only_goes_out_may_change_the_answer(cli: Cli) -> None:
    """The circuit does not read `note`, and the answer does."""
    cli.good("capture", "--query", "shown")
    DeltaTable(str(cli.workload.parent / "t")).update({"note": "'new'"}, predicate="other = 1")
    result = maintained(cli, "shown")
    assert (result["changes"], result["answer_changed"]) == (2, "maybe")


@pytest.mark.spark
def test_touch_adds_the_ranges_of_rows_of_which_another_column_changed(cli: Cli) -> None:
    cli.good("capture", "--query", "touch")
    DeltaTable(str(cli.workload.parent / "t")).update(
        {"y": "CAST(x AS DOUBLE)"}, predicate="g = 60"
    )
    result = maintained(cli, "touch")
    assert (result["action"], len(result["added"])) == ("touch", 1)
    cli.good("verify", "--query", "touch", "--results")
