"""A change that takes most of a recursion's rows away: maintain says that the rest came anew."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from impctl.tables.write.create import create_table
from tests.support.run_cli import Cli

WORKLOAD = """\
version: 1
tables: {links: {path: links}}
partitions: {links: {src: {boundaries: [10, 20, 30]}}}
queries:
  reach:
    sql: >-
      WITH RECURSIVE r(n) AS (SELECT dst FROM links WHERE src = 0
      UNION SELECT l.dst FROM r JOIN links l ON r.n = l.src) SELECT n FROM r
    sketch: {links: src}
    policy: incremental
store: st
"""
ANEW = "most rows of the recursion went out, so they were found anew from its state"


@pytest.mark.parametrize(("gone", "is_told"), [(39, False), (25, False), (4, True), (0, True)])
def test_it_is_told_where_most_rows_went(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], gone: int, is_told: bool
) -> None:
    ends = list(range(40))
    create_table(str(tmp_path / "links"), pa.table({"src": ends, "dst": [end + 1 for end in ends]}))
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    cli = Cli(capsys, tmp_path / "w.yaml")
    cli.good("capture")
    DeltaTable(str(tmp_path / "links")).delete(f"src = {gone}")
    ran = cli.good("maintain").results[0]
    assert (ANEW in ran["reason"]) is is_told
    (found,) = cli.good("query", "--by", "engine").results
    assert sorted(found["rows"]) == [[n] for n in range(1, gone + 1)]
