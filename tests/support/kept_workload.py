"""A workload whose answers are kept, over two Delta tables that change at random; DuckDB is asked.

Its doubles add up exactly in any order, so that two engines agree on every digit.
"""

from __future__ import annotations

import math
import random
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.store.records import StoredQuery
from impctl.store.store import Store
from impctl.tables.write.maintenance import create_table
from tests.support.change_reader import Answer, answer_of
from tests.support.duck import duck
from tests.support.made_once import CliOnce
from tests.support.run_cli import Cli

QUERIES = {
    "groups": "SELECT g, COUNT(*) AS n, SUM(d) AS s FROM a GROUP BY g HAVING COUNT(*) > 2",
    "plain": "SELECT s, d FROM a WHERE x > 2",
    "single": "SELECT DISTINCT g, s FROM a",
    "joined": "SELECT a.s, b.w FROM a JOIN b ON a.g = b.g WHERE a.x > 1",
    "top": "SELECT id, x FROM a ORDER BY x DESC NULLS LAST, id LIMIT 3",
    "eager": "SELECT g, MAX(x) AS m FROM a GROUP BY g",
    "tree_rows": "SELECT a.d, b.w FROM a LEFT JOIN b ON a.g = b.g WHERE a.x > 1",
    "tree_groups": "SELECT a.g, COUNT(*) AS n, SUM(c.d) AS s FROM a JOIN b ON a.g = b.g "
    "JOIN a c ON c.x = a.x GROUP BY a.g HAVING COUNT(*) > 5",
    "tree_first": "SELECT a.g, COUNT(*) AS n FROM a JOIN b ON a.g = b.g JOIN a c ON c.x = a.x "
    "GROUP BY a.g ORDER BY n DESC, a.g NULLS LAST LIMIT 2",
}

_HEAD = """\
version: 1
tables:
  a: {path: a}
  b: {path: b}
partitions:
  a:
    g: {boundaries: [2, 4]}
queries:
"""


def write_workload(folder: Path, names: tuple[str, ...] = tuple(QUERIES)) -> Path:
    """The tables, and the workload file beside them."""
    draw = random.Random(1)
    create_table(str(folder / "a"), rows_of_a(draw, 20))
    create_table(str(folder / "b"), rows_of_b(draw, 4))
    text = _HEAD
    for name in names:
        eager = "    maintain: eager\n" if name == "eager" else ""
        text += f"  {name}:\n    sql: {QUERIES[name]}\n    sketch: {{a: g}}\n{eager}"
        tree = "    join: tree\n" if name.startswith("tree") else ""
        text += f"    answer: true\n    policy: incremental\n{tree}"
    file = folder / "w.yaml"
    file.write_text(text + "store: .impctl\n")
    return file


@pytest.fixture
def kept(cli_once: CliOnce) -> Cli:
    """All queries captured, their answers kept."""
    return cli_once("kept", write_workload, Cli.captured)


def rows_of_a(draw: random.Random, count: int) -> pa.Table:
    numbers = [draw.randint(0, 10_000) for _ in range(count)]
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "g": pa.array(draw.choices([None, 0, 1, 2, 3, 4, 5], k=count), pa.int64()),
            "s": pa.array(draw.choices([None, "", "u", "v"], k=count), pa.string()),
            "x": pa.array(draw.choices([None, 0, 1, 2, 3, 4], k=count), pa.int64()),
            "d": pa.array(draw.choices([None, 0.5, -1.5, 2.0, math.nan], k=count), pa.float64()),
        }
    )


def rows_of_b(draw: random.Random, count: int) -> pa.Table:
    groups = pa.array(draw.choices([None, 0, 1, 2, 3], k=count), pa.int64())
    return pa.table({"g": groups, "w": pa.array(draw.choices("pqr", k=count), pa.string())})


def change(folder: Path, draw: random.Random) -> None:
    """One commit: rows that come, or go, or go and come back, or a table emptied."""
    kind = draw.random()
    if kind < 0.2:
        write_deltalake(str(folder / "b"), rows_of_b(draw, draw.randint(0, 3)), mode="append")
    elif kind < 0.3:
        DeltaTable(str(folder / "b")).delete(f"g = {draw.randint(0, 3)}")
    elif kind < 0.33:
        DeltaTable(str(folder / "a")).delete()
    elif kind < 0.6:
        DeltaTable(str(folder / "a")).delete(f"x = {draw.randint(0, 4)} OR id % 3 = 1")
    elif kind < 0.7:
        table = DeltaTable(str(folder / "a"))
        gone = table.to_pyarrow_table().filter(pa.compute.field("g") == 2)
        table.delete("g = 2")
        write_deltalake(str(folder / "a"), gone, mode="append")
    else:
        write_deltalake(str(folder / "a"), rows_of_a(draw, draw.randint(0, 9)), mode="append")


def grow(folder: Path) -> None:
    """A few rows more in `a`."""
    write_deltalake(str(folder / "a"), rows_of_a(random.Random(2), 5), mode="append")


def answer_at(folder: Path, name: str, versions: dict[str, int]) -> Answer:
    """What DuckDB answers over the tables at these versions."""
    with duck() as connection:
        for table in ("a", "b"):
            path = str(folder / table)
            version = versions.get(table, -1)
            version = DeltaTable(path).version() if version < 0 else version
            entry = (folder / table / "_delta_log" / f"{version:020}.json").stat()
            connection.register(table, _rows_at(path, version, entry.st_ino, entry.st_mtime_ns))
        return answer_of(connection.execute(QUERIES[name]).fetchall())


@lru_cache(maxsize=32)
def _rows_at(path: str, version: int, *entry: int) -> pa.Table:
    """The rows of a version; which one it is tells the file of its log entry."""
    return DeltaTable(path, version=version).to_pyarrow_table()


def fragments_by_access(held: StoredQuery) -> dict[str, set[int]]:
    """The fragments of each of a stored query's sketches."""
    return {sketch.access: set(sketch.fragments.ids) for sketch in held.sketches}


def stored(folder: Path, name: str, store: str = ".impctl") -> StoredQuery:
    """What the store has of a query."""
    with Store.open(folder / store, create=False) as held:
        result = held.load(name)
        assert result is not None
        return result
