"""`maintain` over queries of which some can have no sketch."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Cli, CliOf

WORKLOAD = """\
version: 1
tables: {t: {path: t}}
partitions: {t: {g: {boundaries: [2]}}}
queries:
  safe: {sql: "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 5"}
  refused: {sql: "SELECT x, COUNT(*) AS n FROM t GROUP BY x ORDER BY n LIMIT 1"}
"""


@pytest.fixture
def cli(tmp_path: Path, cli_of: CliOf) -> Cli:
    create_table(str(tmp_path / "t"), pa.table({"g": [1, 2, 3], "x": [10, -20, 30]}))
    cli = cli_of(WORKLOAD)
    assert cli("capture").refusal == (3, "sketch_unsafe")
    return cli


@pytest.mark.parametrize("options", [(), ("--dry-run",), ("--due",), ("--query", "refused")])
def test_a_query_that_can_have_no_sketch_fails_only_strict_runs(
    cli: Cli, options: tuple[str, ...]
) -> None:
    told = {result["query"]: result for result in cli.good("maintain", *options).results}
    assert told["refused"]["reason_code"] == "sketch_unsafe"
    assert "refused: without a sketch, " in cli.text("maintain", *options)
    assert cli("maintain", "--strict", *options).refusal == (3, "sketch_unsafe")


def test_a_query_that_was_not_captured_fails_any_run(cli: Cli) -> None:
    cli.edit("refused:", "fresh: {sql: SELECT g FROM t WHERE g > 1}\n  refused:")
    assert cli("maintain").refusal == (7, "not_captured")
