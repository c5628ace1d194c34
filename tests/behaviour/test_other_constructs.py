"""What the engine does not maintain yet is answered honestly: touch where keyed, else recapture,
else refused by name; and the answers stay right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Cli

WORKLOAD = """\
version: 1
tables:
  t: {path: t}
  names: {path: names}
partitions:
  t:
    g: {boundaries: [2, 4, 6]}
    x: {boundaries: [10, 20]}
queries:
  median: {sql: "SELECT g, MEDIAN(x) AS m FROM t GROUP BY g HAVING MEDIAN(x) > 10", sketch: {t: g}}
  distinct:
    sql: SELECT g, COUNT(DISTINCT x) n FROM t GROUP BY g HAVING COUNT(DISTINCT x) < 3
    sketch: {t: g}
  hashed: {sql: "SELECT g FROM t WHERE md5(note) > '' GROUP BY g HAVING MAX(x) > 1", sketch: {t: x}}
  most: {sql: "SELECT g, MAX(x) AS m FROM t GROUP BY g HAVING MAX(x) > 20", sketch: {t: x}}
  top: {sql: "SELECT g, COUNT(*) AS n FROM t GROUP BY g ORDER BY n DESC, g LIMIT 1", sketch: {t: g}}
  join:
    sql: |
      SELECT n.name, SUM(t.x) AS s FROM t JOIN names n ON t.g = n.g
      GROUP BY n.name HAVING COUNT(*) > 2
    sketch: {t: x}
store: .impctl
"""
EXPECTED = {
    "median": "touch",
    "distinct": "exact",
    "hashed": "recapture",
    "most": "exact",
    "top": "exact",
    "join": "exact",
}


@pytest.fixture
def cli(tmp_path: Path, table: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    create_table(str(tmp_path / "names"), pa.table({"g": [0, 1, 3, 5], "name": list("abca")}))
    return Cli.over(capsys, tmp_path, WORKLOAD)


@pytest.mark.spark
def test_touched_or_recaptured_and_always_sound(cli: Cli, table: str, spark: Any) -> None:
    captured = cli.good("capture").results
    assert {r["query"]: r["mode"] for r in captured} == EXPECTED
    cli.verified(is_exact=False)
    more = pa.table({"g": [7, 7, 7, 5], "x": [30, 31, 32, 50], "note": list("abcd")})
    write_deltalake(table, more, mode="append")
    maintained = cli.good("maintain").results
    assert {r["query"]: r["action"] for r in maintained} == EXPECTED
    assert all(r["reason"] for r in maintained)
    cli.verified(is_exact=False)
    DeltaTable(table).delete("g = 0 OR g = 7")
    cli.good("maintain")
    cli.verified(is_exact=False)


@pytest.mark.spark
def test_policies_forbid_what_they_say(cli: Cli, table: str, spark: Any) -> None:
    cli.good("capture", "--query", "hashed", "--query", "median")
    write_deltalake(table, pa.table({"g": [7], "x": [30], "note": ["a"]}), mode="append")
    ran = cli("maintain", "--query", "hashed", "--policy", "incremental")
    assert (ran.code, ran.error["code"]) == (7, "not_incremental")
    assert "md5" in ran.error["message"]
    assert ran.error["location"]["line"] == 14
    ran = cli("maintain", "--query", "median", "--policy", "strict")
    assert (ran.code, ran.error["code"]) == (4, "policy_refused")
    ran = cli.good("maintain", "--query", "median", "--policy", "full")
    assert ran.results[0]["action"] == "recapture"


def test_explain_names_what_blocks_exact_maintenance(cli: Cli) -> None:
    result = {r["query"]: r for r in cli.good("explain").results}
    assert "MEDIAN" in result["median"]["reason"].upper()
    assert any(line["why"] for line in result["hashed"]["plan"])
    assert "every operator" in result["join"]["reason"]
