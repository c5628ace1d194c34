"""What a query is left to read: files by the ranges of its sketch, by its own conditions, and by
partners in a join; none that holds a row of the answer is ever left out.

By hand: `IMPCTL_FUZZ=10` and `-m "slow or not slow"` for 2,000 cases.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path, PurePath
from random import Random
from shutil import rmtree
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from impctl.service import filters as joined_files
from impctl.service.context import open_workbench
from impctl.service.filters import Pruned, filters_of
from impctl.service.prepare import prepare
from impctl.service.settings import Settings
from impctl.tables.write.maintenance import create_laid_out_table
from tests.support.random_cases import random_cases
from tests.support.run_cli import Cli, CliOf

FACTS = 200


@pytest.fixture
def cli(tmp_path: Path, cli_of: CliOf) -> Cli:
    """Sales by day, a file a day; days with their month, in files of a year or all in one."""
    days = np.arange(FACTS)
    sales = [pa.table({"day": np.full(50, day), "x": np.arange(50)}) for day in days]
    calendar = pa.table({"day": days, "month": days // 30, "odd": days % 2})
    create_laid_out_table(str(tmp_path / "sales"), sales)
    create_laid_out_table(
        str(tmp_path / "calendar"), (calendar.slice(at, 20) for at in range(0, FACTS, 20))
    )
    create_laid_out_table(str(tmp_path / "one"), [calendar])
    join = "SELECT c.month, SUM(s.x) AS x FROM sales s JOIN {0} c ON s.day = c.day WHERE {1}"
    queries = {
        "month": join.format("calendar", "c.month = 2 GROUP BY c.month"),
        "read": join.format("one", "c.month = 2 GROUP BY c.month"),
        "asked": join.format("one", "c.day >= 190 GROUP BY c.month"),
        "kept": "SELECT s.day FROM sales s LEFT JOIN calendar c ON s.day = c.day AND c.month = 2",
    }
    lines = "\n".join(f'  {name}: {{sql: "{sql}"}}' for name, sql in queries.items())
    tables = ", ".join(f"{name}: {{path: {name}}}" for name in ("sales", "calendar", "one"))
    return cli_of(f"version: 1\ntables: {{{tables}}}\nqueries:\n{lines}\nstore: st\n")


def left(cli: Cli, query: str) -> dict[str, int]:
    """Files that are read without any sketch, by table."""
    with open_workbench(Settings(cli.workload)) as desk:
        filters = filters_of(desk.tables, prepare(desk, desk.workload.queries[query]), (), {})
        return {table: len(files) for table, files in filters.files.items()}


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


@pytest.mark.slow
def test_a_side_that_keeps_its_rows_is_read_whole(cli: Cli) -> None:
    assert left(cli, "kept") == {"sales": FACTS, "calendar": 2}


VALUES: dict[str, list[Any]] = {
    "whole": [None, *range(-3, 12)],
    "real": [None, math.nan, -0.0, 0.0, *(at / 2 for at in range(-3, 9)), math.inf, -math.inf],
    "text": [None, "", "a", "aa", "b", "\U0010ffff", "a" * 40, "a" * 39 + "b"],
}
TYPES = {"whole": pa.int64(), "real": pa.float64(), "text": pa.string()}


WAYS = {"keys": 0, "spans": 10**9}
"""How many times as large a side must be for keys of the other one to be read."""


def drawn(rng: Random, name: str) -> list[pa.Table]:
    """Files of rows whose keys, one of each kind, lie close together more often than not."""
    files = []
    for _ in range(rng.randint(1, 6)):
        size = rng.randint(1, 4)
        rows = {name: pa.array([rng.randint(0, 5) for _ in range(size)])}
        for kind, values in VALUES.items():
            start = rng.randrange(len(values))
            near = values[start : start + rng.randint(1, 4)] + rng.sample(values, rng.randint(0, 1))
            rows[kind] = pa.array([rng.choice(near) for _ in range(size)], TYPES[kind])
        files.append(pa.table(rows))
    return files


@pytest.mark.slow
@random_cases(10, 17, 200)
def test_no_file_with_a_row_that_has_a_partner_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cases: range
) -> None:
    """Two tables serve every kind of key and both ways: writing them is most of the cost."""
    saved = Counter[tuple[str, str]]()
    for seed in cases:
        rng, folder = Random(seed), tmp_path / str(seed)
        tables = {"t": drawn(rng, "x"), "u": drawn(rng, "y")}
        for name, files in tables.items():
            create_laid_out_table(str(folder / name), files)
        most = {kind: rng.randint(0, 5) for kind in VALUES}
        with open_workbench(Settings(workload_of(folder, most))) as desk:
            for kind in VALUES:
                prepared = prepare(desk, desk.workload.queries[kind])
                for way, times in WAYS.items():
                    monkeypatch.setattr(joined_files, "_TIMES_AS_LARGE", times)
                    filters = filters_of(desk.tables, prepared, (), {})
                    t, u = (rows_by_file(filters, name, tables[name], kind) for name in tables)
                    assert not lost(t, u, most[kind]), (seed, kind, way)
                    saved[kind, way] += filters.files_total - filters.files_kept
        rmtree(folder)
    assert all(saved[kind, way] > len(cases) for kind in VALUES for way in WAYS), saved


def workload_of(folder: Path, most: dict[str, int]) -> Path:
    """A query for each kind of key, named like it."""
    join = "SELECT t.x, u.y FROM t JOIN u ON t.{0} = u.{0} WHERE u.y < {1}"
    queries = (f'{kind}: {{sql: "{join.format(kind, at)}"}}' for kind, at in most.items())
    file = folder / "w.yaml"
    tables = "{t: {path: t}, u: {path: u}}"
    file.write_text(f"version: 1\ntables: {tables}\nqueries: {{{', '.join(queries)}}}\n")
    return file


Files = list[tuple[list[dict[str, Any]], bool]]
"""The rows of each file, as they were written, and whether it is kept."""


def rows_by_file(pruned: Pruned, table: str, files: list[pa.Table], kind: str) -> Files:
    kept = {PurePath(file.uri).name for file in pruned.files[table]}
    return [
        (
            [{**row, "k": key(row[kind])} for row in rows.to_pylist()],
            f"part-{at:05d}.parquet" in kept,
        )
        for at, rows in enumerate(files)
    ]


def lost(t: Files, u: Files, most: int) -> bool:
    """Whether a file is left out that holds a row of the join."""
    keys = {row["k"] for rows, _ in u for row in rows if row["y"] < most} - {None}
    wanted = {row["k"] for rows, _ in t for row in rows} & keys
    return any(row["k"] in wanted for rows, is_kept in t for row in rows if not is_kept) or any(
        row["k"] in wanted and row["y"] < most for rows, is_kept in u for row in rows if not is_kept
    )


def key(value: Any) -> Any:
    """What Spark takes for equal: NaN is NaN, -0.0 is 0.0."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


DAYS = 80

WORKLOAD = """\
version: 1
tables: {t: {path: t}}
partitions: {t: {day: {}, g: {}}}
queries:
  late: {sql: "SELECT g, SUM(x) s FROM t WHERE day >= 78 GROUP BY g", sketch: {t: g}}
  twice: {sql: "SELECT a.g FROM t a JOIN t b ON a.g = b.g WHERE a.day = 3", sketch: {t: g}}
store: .impctl
"""


@pytest.fixture
def daily(tmp_path: Path, cli_of: CliOf) -> Cli:
    """A table sorted by day, a file a day; every other day's sum is large."""
    days = (
        pa.table({"day": [day] * 4, "g": [1, 2, 3, 4], "x": [400 if day % 2 == 0 else 1] * 4})
        for day in range(DAYS)
    )
    create_laid_out_table(str(tmp_path / "t"), days)
    text = WORKLOAD.replace("{day: {}, g: {}}", "{day: {ranges: 100}, g: {ranges: 9}}")
    return cli_of(text).captured()


def files_left(daily: Cli, query: str) -> int:
    result = daily.one("rewrite", "--query", query)
    assert result["files_total"] == DAYS
    return int(result["files_kept"])


@pytest.mark.slow
def test_a_condition_leaves_files_out(daily: Cli) -> None:
    assert files_left(daily, "late") == 2


@pytest.mark.slow
def test_an_access_without_the_condition_needs_all_files(daily: Cli) -> None:
    assert files_left(daily, "twice") == DAYS
