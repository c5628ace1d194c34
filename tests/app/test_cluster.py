"""`impctl cluster`: files in order, rows as they were, sketches right without a new capture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.tables.rows import read_rows
from impctl.tables.source import open_source
from impctl.tables.write import cluster as writing
from impctl.tables.write.laid_out import create_laid_out_table
from tests.support.made_once import MadeOnce
from tests.support.run_cli import Cli

FILES, EACH, GROUPS = 40, 500, 1000
BY_G = "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 10000"
BY_H = "SELECT h, COUNT(*) AS n FROM t WHERE h >= 900 GROUP BY h"


def rows() -> pa.Table:
    """Groups anywhere, the last hundredth of them heavy; NaN, -0.0 and NULL among the values."""
    random = np.random.default_rng(11)
    count = FILES * EACH
    g, h = random.integers(0, GROUPS, count), random.integers(0, GROUPS, count)
    f = random.normal(size=count)
    f[::7], f[1::7] = np.nan, -0.0
    return pa.table(
        {
            "g": g,
            "h": pa.array(h, mask=random.random(count) < 0.02),
            "x": (g >= GROUPS - GROUPS // 100) * 1000 + 1,
            "f": f,
            "long": ["x" * 40 + str(value) for value in g],
        }
    )


@pytest.fixture
def cli(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, made_once: MadeOnce
) -> Cli:
    # Files of a table this small would all be one.
    monkeypatch.setattr(writing, "_LEAST_BYTES", 1 << 14)

    def write(folder: Path) -> None:
        everything = rows()
        parts = (everything.slice(at, EACH) for at in range(0, FILES * EACH, EACH))
        create_laid_out_table(str(folder / "t"), parts)
        (folder / "w.yaml").write_text(
            "version: 1\ntables: {t: {path: t}}\nstore: st\nqueries:\n"
            f'  g: {{sql: "{BY_G}", sketch: {{t: g}}}}\n  h: {{sql: "{BY_H}", sketch: {{t: h}}}}\n'
        )

    return Cli(capsys, made_once.folder("cluster", write) / "w.yaml")


def bag(cli: Cli) -> list[str]:
    """All rows, in an order of their own; NaN is written as a word."""
    snapshot = open_source("t", str(cli.workload.parent / "t")).snapshot()
    return sorted(map(repr, read_rows(snapshot, snapshot.schema.names).to_pylist()))


@pytest.mark.slow
def test_files_come_into_order_and_sketches_stay(cli: Cli) -> None:
    cli.good("capture", "--query", "g")
    before = bag(cli)
    captured = cli.good("status", "--query", "g").results[0]["sketches"]
    [planned] = cli.good("cluster", "--dry-run").results
    assert (planned["action"], planned["by"], planned["foreseen"]) == ("none", ["g"], True)
    assert DeltaTable(str(cli.workload.parent / "t")).version() == 0
    [done] = cli.good("cluster").results
    assert (done["action"], done["version"], done["by"]) == ("cluster", 1, ["g"])
    [sketch] = done["sketches"]
    assert sketch["files"] > FILES - 4, "before, hardly a file was left out"
    assert sketch["files_after"] <= 3
    assert sketch["bytes_after"] < sketch["bytes"] / 8
    assert sketch["files_expected"] <= 3
    assert bag(cli) == before
    [maintained] = cli.good("maintain", "--query", "g").results
    assert maintained["action"] in ("none", "incremental", "exact"), maintained
    assert cli.good("status", "--query", "g").results[0]["sketches"] == captured
    again = cli.good("cluster").results[0]
    assert again["action"] == "none", "there is nothing more to gain"


@pytest.mark.slow
def test_several_attributes_give_a_z_order(cli: Cli) -> None:
    cli.good("capture")
    [done] = cli.good("cluster", "--table", "t").results
    assert sorted(done["by"]) == ["g", "h"]
    left = {entry["query"]: entry for entry in done["sketches"]}
    assert left["g"]["files_after"] < FILES / 2
    assert left["h"]["bytes_after"] < left["h"]["bytes"] * 0.6


@pytest.mark.parametrize("column", ["f", "long"])
def test_what_statistics_do_not_tell_is_never_left_out(cli: Cli, column: str) -> None:
    """NaN and long texts have no bounds: nothing is gained, and nothing is wrong."""
    cli.good("capture")
    before = bag(cli)
    [done] = cli.good("cluster", "--table", "t", "--by", column).results
    assert done["by"] == [column]
    assert bag(cli) == before
    assert all(entry["files_after"] for entry in done["sketches"])


def test_columns_and_tables_that_are_not_there(cli: Cli) -> None:
    assert cli("cluster", "--table", "u").error["code"] == "cluster_table_unknown"
    assert cli("cluster", "--table", "t", "--by", "nope").error["code"] == "column_unknown"
    assert cli("cluster", "--by", "g").code != 0
    ran = cli("cluster", "--table", "t")
    assert ran.code != 0, "without a sketch nothing tells by which column"
    assert "--by" in ran.error["hint"]
    ran = cli.good("cluster")
    assert ran.results == []
    assert "impctl capture" in ran.document["warnings"][0]


def test_a_partition_column_is_refused(cli: Cli) -> None:
    folder = cli.workload.parent
    parted = pa.table({"p": [1, 2] * 50, "g": list(range(100))})
    write_deltalake(str(folder / "u"), parted, partition_by=["p"])
    file = cli.workload.read_text().replace("{t: {path: t}}", "{t: {path: t}, u: {path: u}}")
    cli.workload.write_text(file)
    assert cli("cluster", "--table", "u", "--by", "p").error["code"] == "table_not_clusterable"
    [done] = cli.good("cluster", "--table", "u", "--by", "g").results
    assert done["version"] == 1


def test_another_writer_that_comes_first(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that another writer deletes meanwhile do not come back."""
    cli.good("capture", "--query", "g")
    path = str(cli.workload.parent / "t")
    checked = writing.check_clusterable

    def meanwhile(*given: object) -> None:
        checked(*given)  # type: ignore[arg-type]  # passed through
        if DeltaTable(path).version() == 0:
            DeltaTable(path).delete("g = 5")

    monkeypatch.setattr(writing, "check_clusterable", meanwhile)
    ran = cli("cluster", "--table", "t")
    left = open_source("t", path).snapshot()
    assert 5 not in read_rows(left, ["g"]).column("g").to_pylist()  # noqa: PLR2004
    assert ran.code != 0
    assert ran.error["code"] == "retryable"
