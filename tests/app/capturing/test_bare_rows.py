"""Joins with a table of which no column is read: as many rows are joined as it has, no more."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Cli, CliOf

OUTER = "SELECT q.x, v.y FROM (SELECT t.x, t.k FROM t CROSS JOIN u) q LEFT JOIN v ON q.k = v.k"
FEW = "SELECT t.x, COUNT(*) n FROM t CROSS JOIN u GROUP BY t.x HAVING COUNT(*) < 10"


def rows(name: str, *values: int) -> pa.Table:
    keys = pa.array([value % 10 for value in values], pa.int64())
    return pa.table({"k": keys, name: pa.array(values, pa.int64())})


@pytest.fixture(params=["index", "files", "auto"])
def cli(request: pytest.FixtureRequest, tmp_path: Path, cli_of: CliOf) -> Cli:
    create_table(str(tmp_path / "t"), rows("x", 1, 2))
    create_table(str(tmp_path / "u"), rows("z", 5, 6))
    create_table(str(tmp_path / "v"), rows("y", 11))
    queries = "".join(
        f'  {name}: {{sql: "{sql}", sketch: {{t: x}}, join: {request.param}, answer: true, '
        "policy: incremental}\n"
        for name, sql in (("outer", OUTER), ("few", FEW))
    )
    return cli_of(
        "version: 1\ntables: {t: {path: t}, u: {path: u}, v: {path: v}}\n"
        f"partitions: {{t: {{x: {{boundaries: [2, 3]}}}}}}\nqueries:\n{queries}store: .impctl\n"
    ).captured()


def answer(cli: Cli, name: str) -> list[tuple[int, int | None]]:
    result = cli.one("query", "--by", "state", "--query", name)
    return sorted((tuple(row) for row in result["rows"]), key=repr)


def sketch(cli: Cli, name: str) -> list[int]:
    (result,) = cli.one("status", "--query", name)["sketches"]
    return list(result["fragments"])


@pytest.mark.slow
def test_each_row_is_joined_once(cli: Cli, tmp_path: Path) -> None:
    assert answer(cli, "few") == [(1, 2), (2, 2)]
    assert sketch(cli, "few") == [0, 1]
    assert answer(cli, "outer") == [(1, 11), (1, 11), (2, None), (2, None)]
    write_deltalake(str(tmp_path / "v"), rows("y", 12), mode="append")
    write_deltalake(str(tmp_path / "u"), rows("z", 7), mode="append")
    DeltaTable(str(tmp_path / "t")).delete("x = 1")
    cli.good("maintain")
    assert answer(cli, "few") == [(2, 3)]
    assert answer(cli, "outer") == [(2, 12), (2, 12), (2, 12)]
    DeltaTable(str(tmp_path / "u")).delete()
    cli.good("maintain")
    assert answer(cli, "few") == answer(cli, "outer") == []
    assert sketch(cli, "few") == sketch(cli, "outer") == []
