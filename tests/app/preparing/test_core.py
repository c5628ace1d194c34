"""A query whose plan shows that a sketch is safe, and the plan that the sketch is kept by does not.

The subquery is grouped by the sketched column, which the core drops before the join; the value that
is left may tie. Without the check in `choose` this ends as a mistake in impctl.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from impctl.tables.write.maintenance import create_table
from tests.plan.reuse.reuse_trials import ReuseTally, run_reuse_trial
from tests.support.run_cli import CliOf

WORKLOAD = """\
version: 1
tables: {t: {path: t}, u: {path: u}}
partitions: {t: {g: {boundaries: [2, 3]}}}
queries:
  q:
    sql: >-
      SELECT q.g, q.m, u.y
      FROM (SELECT g, upper(max_by(s, p)) m, min(p) a FROM t GROUP BY g) q
      LEFT JOIN u ON q.m < u.s WHERE q.a > 1
store: .impctl
"""


def test_it_is_refused_with_its_reason(tmp_path: Path, cli_of: CliOf) -> None:
    rows = {"g": [1, 1, 2], "p": [1, 5, 3], "s": ["a", "b", "c"]}
    create_table(str(tmp_path / "t"), pa.table(rows))
    create_table(str(tmp_path / "u"), pa.table({"s": ["b", "z"], "y": [1, 2]}))
    ran = cli_of(WORKLOAD)("capture", "--dry-run")
    assert ran.refusal == (3, "sketch_unsafe")
    assert "depends on the order of rows" in ran.error["message"]


def test_no_other_query_may_use_its_sketch() -> None:
    tally = ReuseTally()
    run_reuse_trial(33_034_575, tally)
    (reason,) = tally.refusals
    assert reason.startswith("the contents of a sketch cannot be determined")


def test_another_attribute_is_tried(cli_of: CliOf, tmp_path: Path) -> None:
    """`h` is grouped on as well, and the join reads it, so the core keeps it."""
    rows = {"g": [1, 1, 2], "h": [1, 1, 2], "p": [1, 5, 3], "s": ["a", "b", "c"]}
    create_table(str(tmp_path / "t"), pa.table(rows))
    create_table(str(tmp_path / "u"), pa.table({"s": ["b", "z"], "y": [1, 2]}))
    cli = cli_of(
        WORKLOAD.replace(
            "{t: {g: {boundaries: [2, 3]}}}", "{t: {g: {boundaries: [2]}, h: {boundaries: [2]}}}"
        )
        .replace("SELECT q.g,", "SELECT q.g, q.h,")
        .replace("SELECT g,", "SELECT g, h,")
        .replace("GROUP BY g", "GROUP BY g, h")
        .replace("q.m < u.s", "q.m < u.s AND q.h = u.y")
    )
    assert [s["attribute"] for s in cli.one("capture", "--dry-run")["sketches"]] == ["h"]
    told = {c["attribute"]: c for c in cli.one("explain")["attributes"]}
    assert told["g"]["reason"].startswith("the contents of a sketch cannot be determined"), told
