"""Files without a partner in a join are left out; none that holds a row of the answer ever is."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from impctl.app.preparing import joined_files
from impctl.app.preparing.filters import Pruned, filters_of
from impctl.app.preparing.prepared import prepare
from impctl.app.workbench.settings import Settings
from impctl.app.workbench.workbench import open_workbench
from impctl.tables.rows import read_rows
from impctl.tables.write.laid_out import create_laid_out_table
from tests.support.random_cases import few_then_rest
from tests.support.run_cli import Cli

FACTS = 200


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Sales by day, a file a day; days with their month, in files of a year or all in one."""
    days = np.arange(FACTS)
    sales = [pa.table({"day": np.full(50, day), "x": np.arange(50)}) for day in days]
    calendar = pa.table({"day": days, "month": days // 30, "odd": days % 2})
    create_laid_out_table(str(tmp_path / "sales"), sales)
    create_laid_out_table(
        str(tmp_path / "calendar"), (calendar.slice(at, 20) for at in range(0, FACTS, 20))
    )
    create_laid_out_table(str(tmp_path / "one"), [calendar])
    file = tmp_path / "w.yaml"
    join = "SELECT c.month, SUM(s.x) AS x FROM sales s JOIN {0} c ON s.day = c.day WHERE {1}"
    queries = {
        "month": join.format("calendar", "c.month = 2 GROUP BY c.month"),
        "read": join.format("one", "c.month = 2 GROUP BY c.month"),
        "asked": join.format("one", "c.day >= 190 GROUP BY c.month"),
        "kept": "SELECT s.day FROM sales s LEFT JOIN calendar c ON s.day = c.day AND c.month = 2",
    }
    lines = "\n".join(f'  {name}: {{sql: "{sql}"}}' for name, sql in queries.items())
    tables = ", ".join(f"{name}: {{path: {name}}}" for name in ("sales", "calendar", "one"))
    file.write_text(f"version: 1\ntables: {{{tables}}}\nqueries:\n{lines}\nstore: st\n")
    return Cli(capsys, file)


def left(cli: Cli, query: str) -> dict[str, int]:
    """Files that are read without any sketch, by table."""
    with open_workbench(Settings(cli.workload)) as desk:
        found = filters_of(desk.tables, prepare(desk, desk.workload.queries[query]), (), {})
        return {table: len(files) for table, files in found.files.items()}


def test_what_is_left_of_one_side_narrows_the_other(cli: Cli) -> None:
    # Month 2 has the days from 60 to 89, in files of the days 60-79 and 80-99.
    assert left(cli, "month") == {"sales": 40, "calendar": 2}


def test_a_condition_on_one_side_holds_of_the_other(cli: Cli) -> None:
    assert left(cli, "asked") == {"sales": 10, "one": 1}


def test_few_keys_are_read_where_the_other_side_is_large(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert left(cli, "read") == {"sales": FACTS, "one": 1}
    monkeypatch.setattr(joined_files, "_TIMES_AS_LARGE", 1)
    assert left(cli, "read") == {"sales": FACTS, "one": 1}
    assert left(cli, "month") == {"sales": 40, "calendar": 2}


def test_a_side_that_keeps_its_rows_is_read_whole(cli: Cli) -> None:
    assert left(cli, "kept") == {"sales": FACTS, "calendar": 2}


VALUES: dict[str, list[Any]] = {
    "whole": [None, *range(-3, 12)],
    "real": [None, math.nan, -0.0, 0.0, *(at / 2 for at in range(-3, 9)), math.inf, -math.inf],
    "text": [None, "", "a", "aa", "b", "\U0010ffff", "a" * 40, "a" * 39 + "b"],
}
TYPES = {"whole": pa.int64(), "real": pa.float64(), "text": pa.string()}


def drawn(rng: Random, kind: str, name: str) -> list[pa.Table]:
    """Files of rows whose keys lie close together more often than not."""
    files = []
    for _ in range(rng.randint(1, 6)):
        values = VALUES[kind]
        start = rng.randrange(len(values))
        near = values[start : start + rng.randint(1, 4)] + rng.sample(values, rng.randint(0, 1))
        size = rng.randint(1, 4)
        rows = {
            "k": pa.array([rng.choice(near) for _ in range(size)], TYPES[kind]),
            name: pa.array([rng.randint(0, 5) for _ in range(size)]),
        }
        files.append(pa.table(rows))
    return files


@few_then_rest(60, 2000)
@pytest.mark.parametrize("times", [0, 10**9], ids=["keys", "spans"])
@pytest.mark.parametrize("kind", list(VALUES))
def test_no_file_with_a_row_that_has_a_partner_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, times: int, cases: range
) -> None:
    monkeypatch.setattr(joined_files, "_TIMES_AS_LARGE", times)
    saved = 0
    for seed in cases:
        rng, folder = Random(seed), tmp_path / str(seed)
        create_laid_out_table(str(folder / "t"), drawn(rng, kind, "x"))
        create_laid_out_table(str(folder / "u"), drawn(rng, kind, "y"))
        most = rng.randint(0, 5)
        sql = f"SELECT t.x, u.y FROM t JOIN u ON t.k = u.k WHERE u.y < {most}"
        file = folder / "w.yaml"
        file.write_text(
            "version: 1\ntables: {t: {path: t}, u: {path: u}}\n"
            f'queries: {{q: {{sql: "{sql}"}}}}\n'
        )
        with open_workbench(Settings(file)) as desk:
            found = filters_of(desk.tables, prepare(desk, desk.workload.queries["q"]), (), {})
            t, u = (rows_by_file(desk, found, name) for name in ("t", "u"))
        keys = {key(row["k"]) for rows, _ in u for row in rows if row["y"] < most} - {None}
        wanted = {key(row["k"]) for rows, _ in t for row in rows} & keys
        for rows, is_kept in t:
            assert is_kept or not any(key(row["k"]) in wanted for row in rows), seed
        for rows, is_kept in u:
            needed = (key(row["k"]) in wanted and row["y"] < most for row in rows)
            assert is_kept or not any(needed), seed
        saved += found.files_total - found.files_kept
    assert saved > len(cases)


def rows_by_file(desk: Any, found: Pruned, table: str) -> list[tuple[list[dict[str, Any]], bool]]:
    snapshot = desk.tables.snapshot(table)
    kept = {file.uri for file in found.files[table]}
    return [
        (read_rows(snapshot, snapshot.schema.names, [file]).to_pylist(), file.uri in kept)
        for file in snapshot.files
    ]


def key(value: Any) -> Any:
    """What Spark takes for equal: NaN is NaN, -0.0 is 0.0."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value
