"""What a run says of changes: how many rows they are, and what it lost or found anew.

Without a change feed, rows that a writer copied from file to file are no change. What counts as the
same row is decided by every column that the query reads, not by those that its way of maintaining
needs: a sketch kept by touch reads one column alone.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Cli, CliOf
from tests.support.running_example import write_running_example

ROWS = 4_000
WORKLOAD = """\
version: 1
tables: {t: {path: t}}
partitions:
  t: {g: {ranges: 50}}
queries:
  exact: {sql: "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 3000"}
  touch: {sql: "SELECT g, CORR(x, y) AS c FROM t GROUP BY g HAVING CORR(x, y) > 0.99"}
  shown: {sql: "SELECT g, x, y, note FROM t WHERE x < 3"}
store: .impctl
"""


@pytest.fixture
def cli(tmp_path: Path, cli_of: CliOf) -> Cli:
    numbers = list(range(ROWS))
    rows = {
        "g": [n // 40 for n in numbers],
        "x": [n % 97 for n in numbers],
        "y": [float(n * 7919 % 101) for n in numbers],
        "note": [f"n{n % 5}" for n in numbers],
        "other": numbers,
    }
    create_table(str(tmp_path / "t"), pa.table(rows), change_feed=False)
    return cli_of(WORKLOAD)


def maintained(cli: Cli, query: str) -> dict[str, object]:
    return cli.one("maintain", "--query", query)


@pytest.mark.slow
def test_a_deletion_of_few_rows_is_a_change_of_few_rows(cli: Cli) -> None:
    cli.good("capture", "--query", "exact")
    DeltaTable(str(cli.workload.parent / "t")).delete("other IN (5, 6, 3999)")
    assert [entry["rows"] for entry in cli.one("plan", "--query", "exact")["pending"]] == [3]
    result = maintained(cli, "exact")
    assert (result["action"], result["changes"]) == ("exact", 3)


def test_what_the_query_does_not_read_changes_nothing(cli: Cli) -> None:
    cli.good("capture", "--query", "exact")
    DeltaTable(str(cli.workload.parent / "t")).update({"other": "other + 1"})
    result = maintained(cli, "exact")
    assert (result["changes"], result["answer_changed"]) == (0, "no")


@pytest.mark.slow
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


@pytest.fixture
def demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    demo = Cli(capsys, write_running_example(tmp_path / "demo"))
    demo.good("capture")
    demo.good("apply", "s8")
    return demo


@pytest.mark.slow
def test_a_recapture_has_no_number_of_changes(demo: Cli, tmp_path: Path) -> None:
    file = tmp_path / "m.prom"
    foreseen = demo.good("maintain", "--policy", "full", "--dry-run").results
    done = demo.good("maintain", "--policy", "full", "--metrics", str(file)).results
    for result in (*foreseen, *done):
        assert (result["action"], result["changes"]) == ("recapture", None)
    samples = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    assert any(line.startswith("impctl_maintain_recaptured{") for line in samples)
    assert not any(line.startswith("impctl_maintain_changes{") for line in samples)
    (first, *_) = demo.good("status", "--runs", "1").results
    assert [run["changes"] for run in first["runs"]] == [None]


def test_what_was_carried_on_has_one(demo: Cli, tmp_path: Path) -> None:
    file = tmp_path / "m.prom"
    done = demo.good("maintain", "--policy", "strict", "--metrics", str(file)).results
    assert [result["changes"] for result in done] == [1, 1]
    assert 'impctl_maintain_changes{query="q_top"} 1.0' in file.read_text()
    (first, *_) = demo.good("status", "--runs", "2").results
    assert [(run["action"], run["changes"]) for run in first["runs"]] == [
        ("exact", 1),
        ("capture", None),
    ]


LINKED = """\
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
ANEW = "most rows of the recursion were deleted, so they were recomputed from its state"


@pytest.mark.slow
@pytest.mark.parametrize(("gone", "is_told"), [(39, False), (25, False), (4, True), (0, True)])
def test_it_is_told_where_most_rows_went(
    tmp_path: Path, cli_of: CliOf, gone: int, is_told: bool
) -> None:
    ends = list(range(40))
    create_table(str(tmp_path / "links"), pa.table({"src": ends, "dst": [end + 1 for end in ends]}))
    cli = cli_of(LINKED).captured()
    DeltaTable(str(tmp_path / "links")).delete(f"src = {gone}")
    ran = cli.good("maintain").results[0]
    assert (ANEW in ran["reason"]) is is_told
    assert sorted(cli.one("query", "--by", "engine")["rows"]) == [[n] for n in range(1, gone + 1)]


JOINED = """\
version: 1
tables: {t: {path: t}, u: {path: u}}
partitions: {t: {d: {boundaries: [1, 2, 3]}}, u: {r: {boundaries: [1, 2]}}}
queries:
  q: {sql: "SELECT u.r, SUM(t.x) AS s FROM t JOIN u ON t.g = u.g GROUP BY u.r HAVING SUM(t.x) > 40"}
store: s
"""


def rows_of(*values: int) -> pa.Table:
    return pa.table({"g": [1] * len(values), "d": [2] * len(values), "x": values})


def test_the_sketch_that_rested_on_a_broken_fact_is_named(tmp_path: Path, cli_of: CliOf) -> None:
    create_table(str(tmp_path / "t"), rows_of(30, 20))
    create_table(str(tmp_path / "u"), pa.table({"g": [1, 2], "r": [0, 2]}))
    cli = cli_of(JOINED)
    assert [one["table"] for one in cli.one("capture")["sketches"]] == ["t", "u"]

    write_deltalake(str(tmp_path / "t"), rows_of(7), mode="append")
    assert cli.good("maintain", "--policy", "full").document["warnings"] == []

    write_deltalake(str(tmp_path / "t"), rows_of(-5), mode="append")
    [warning] = cli.good("maintain").document["warnings"]
    assert "`t.x` >= 0" in warning
    assert warning.endswith("it no longer has a sketch on `t.d`")
