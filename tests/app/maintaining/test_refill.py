"""Bounded buffers on real Delta tables: refilled by a pruned read, without a JVM, and told."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.data.schema import DOUBLE, STRING, SqlType
from impctl.data.vector import from_arrow
from impctl.tables.prune import prune_to_values
from impctl.tables.rows import read_rows
from impctl.tables.source import open_source
from impctl.tables.write.maintenance import create_table
from tests.support.made_once import CliOnce
from tests.support.run_cli import Cli

LEAST = "SELECT g, MIN(x) m FROM t GROUP BY g HAVING MIN(x) < 100"
TOP = "SELECT q.g FROM (SELECT g, x FROM t ORDER BY x LIMIT 3) q WHERE q.g > 0"
JOINED = "SELECT a.g, MIN(b.x) m FROM t a JOIN t b ON a.g = b.g GROUP BY a.g HAVING MIN(b.x) < 9"


def part(group: int, *values: int) -> pa.Table:
    return pa.table({"g": pa.array([group] * len(values), pa.int64()), "x": pa.array(values)})


def write_groups(folder: Path) -> Path:
    """Three files of one group each; every query with a buffer of one and with everything."""
    path = str(folder / "t")
    create_table(path, part(1, 1, 3, 5, 7, 9, 11))
    write_deltalake(path, part(2, 2, 4, 6, 8, 10, 12), mode="append")
    write_deltalake(path, part(3, 20, 21, 22, 23), mode="append")
    lines = ["version: 1", "tables: {t: {path: t}}", "queries:"]
    for name, sql in (("least", LEAST), ("top", TOP), ("joined", JOINED)):
        # As a tree the join would keep everything too, and not say so by its bound.
        common = f'sql: "{sql}", sketch: {{t: g}}, policy: incremental, join: index'
        lines.append(f"  {name}: {{{common}, buffer: 1}}")
        lines.append(f"  {name}_all: {{{common}}}")
        lines.append(f"  {name}_eager: {{{common}, buffer: 1, maintain: eager}}")
    lines += ["partitions: {t: {g: {boundaries: [2, 3]}}}", "store: .impctl"]
    file = folder / "w.yaml"
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.fixture
def cli(cli_once: CliOnce) -> Cli:
    """All queries captured."""

    def capture(cli: Cli) -> None:
        assert {result["mode"] for result in cli.good("capture").results} == {"exact"}

    return cli_once("refill", write_groups, capture)


def sketches(cli: Cli) -> dict[str, object]:
    result = {r["query"]: r["sketches"] for r in cli.good("status").results}
    return {name: [s["fragments"] for s in entries] for name, entries in result.items()}


@pytest.mark.slow
def test_a_used_up_group_is_read_again_and_no_other(cli: Cli) -> None:
    tmp_path = cli.workload.parent
    DeltaTable(str(tmp_path / "t")).delete("x IN (1, 3, 5)")
    result = {r["query"]: r for r in cli.good("maintain").results}
    assert result["least"]["action"] == "exact"
    # Only the file of group 1 can hold its rows: three are left of six.
    assert (result["least"]["refilled_groups"], result["least"]["refilled_rows"]) == (1, 3)
    assert "refilled the buffers of 1 group from 3 rows" in result["least"]["reason"]
    assert (result["joined"]["refilled_groups"], result["least_all"]["refilled_groups"]) == (0, 0)
    status = {r["query"]: r for r in cli.good("status").results}
    assert "refilled the buffers of 1 group" in status["least"]["last_reason"]


@pytest.mark.slow
def test_bounded_eager_and_unbounded_agree_after_every_batch(cli: Cli) -> None:
    tmp_path = cli.workload.parent
    path = str(tmp_path / "t")
    refilled = 0
    for turn, rows in enumerate([part(1, 2), part(3, 0, 1), part(2, 50)]):
        # Two versions per run: an eager query has to refill at the first one, not at the end.
        DeltaTable(path).delete(f"x < {3 * turn + 3}")
        write_deltalake(path, rows, mode="append")
        results = cli.good("maintain").results
        refilled += sum(r["refilled_groups"] for r in results)
        held = sketches(cli)
        for name in ("least", "top", "joined"):
            assert held[name] == held[f"{name}_all"] == held[f"{name}_eager"], (turn, held)
    assert refilled > 5


@pytest.mark.slow
def test_a_refill_that_fails_leaves_everything_as_it_was(cli: Cli) -> None:
    tmp_path = cli.workload.parent
    table = DeltaTable(str(tmp_path / "t"))
    table.delete("x IN (1, 3, 5)")
    names = {Path(uri) for uri in DeltaTable(str(tmp_path / "t")).file_uris()}
    before = sketches(cli)
    for name in names:
        shutil.move(name, tmp_path / name.name)
    failed = cli("maintain", "--query", "least")
    assert failed.code != 0
    assert sketches(cli) == before
    for name in names:
        shutil.move(tmp_path / name.name, name)
    assert cli.one("maintain", "--query", "least")["refilled_groups"] == 1
    cli.good("maintain")
    held = sketches(cli)
    assert held["least"] == held["least_all"]


def test_explain_says_what_a_bound_means(cli: Cli) -> None:
    reasons = {r["query"]: r["reason"] for r in cli.good("explain").results}
    assert "keep the best 1" in reasons["least"]
    assert "keep everything, because only the query could refill them" in reasons["joined"]
    assert reasons["least_all"] == "every operator is maintained incrementally"


@pytest.mark.slow
def test_another_bound_is_another_state(cli: Cli) -> None:
    file = cli.workload
    file.write_text(file.read_text().replace("buffer: 1,", "buffer: 2,").replace("1}", "2}"))
    (failure,) = [cli("maintain", "--query", "least_eager")]
    assert failure.error["code"] == "definition_changed"


def test_files_that_cannot_hold_a_value_are_not_read(tmp_path: Path) -> None:
    """Texts go by their bytes, and -0.0 is 0.0; without a column that is asked for, all are."""
    for text, number in (("a", -0.0), ("d", 3.0), ("é", 5.0)):
        rows = pa.table({"s": [text, f"{text}b"], "d": [number, number]})
        write_deltalake(str(tmp_path), rows, mode="append")
    snapshot = open_source("t", str(tmp_path)).snapshot()

    def result(column: str, kind: SqlType, *values: object) -> list[object]:
        asked = {column: from_arrow(pa.array(values), kind)}
        kept = prune_to_values(snapshot, asked)
        return sorted(read_rows(snapshot, ["s"], kept).column("s").to_pylist())

    assert result("s", STRING, "é", "bb") == ["é", "éb"]
    assert result("d", DOUBLE, 0.0) == ["a", "ab"]
    assert len(prune_to_values(snapshot, {})) == 3
