"""A workload with materialized results over changing tables, and access to its store."""

from __future__ import annotations

import json
import math
import random
import sqlite3
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from msgspec import Struct, field

from impctl.store.records import RunRecord, StoredQuery
from impctl.store.store import Store
from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Cli, CliOnce


@cache
def _database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={"threads": 1})


def duck() -> duckdb.DuckDBPyConnection:
    """A connection with separate tables and settings."""
    return _database().cursor()


CHANGE_COLUMNS = ("_change", "_copies", "_sure")

Answer = Counter[tuple[object, ...]]


def identity(value: object) -> object:
    """A key that is equal only for identical values: bit for bit, except NaN."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else struct.pack("d", value)
    return ("null",) if value is None else value


def rows_of(table: pa.Table) -> list[tuple[object, ...]]:
    """The rows without the columns that describe the change."""
    columns = [
        [identity(value) for value in table.column(index).to_pylist()]
        for index, name in enumerate(table.column_names)
        if name not in CHANGE_COLUMNS
    ]
    return list(zip(*columns, strict=True))


def applied(answer: Answer, changes: pa.Table, label: str = "") -> Answer:
    """The result after the changes, which must not delete missing rows."""
    after = answer.copy()
    kinds, copies = changes["_change"].to_pylist(), changes["_copies"].to_pylist()
    for row, kind, count in zip(rows_of(changes), kinds, copies, strict=True):
        assert count > 0, label
        if kind == "delete":
            assert after[row] >= count, f"{label} {row} was not there"
        after[row] += count if kind == "insert" else -count
    return +after


class Reader(Struct, dict=True):
    """A reader of a query's change files, with the result at the commit that it has reached."""

    folder: Path
    answer: Answer
    commit: int
    versions: Mapping[str, int]
    taken: list[str] = field(default_factory=list)

    def read(self, until: int) -> None:
        """Apply every file up to this commit; there must be exactly one for each."""
        while self.commit < until:
            (path,) = self.folder.glob(f"{self.commit + 1:06}_*.parquet")
            table = pq.read_table(path)
            metadata = self.said(table)
            assert metadata["commit"] == self.commit + 1
            assert metadata["since"] == self.versions, path
            self.answer = applied(self.answer, table)
            self.commit, self.versions = metadata["commit"], metadata["versions"]
            self.taken.append(path.name)

    @staticmethod
    def said(table: pa.Table) -> dict[str, Any]:
        result = json.loads(table.schema.metadata[b"impctl"])
        assert isinstance(result, dict)
        return result


def answer_of(rows: Sequence[Sequence[object]]) -> Answer:
    """The rows of a query engine as a result."""
    return Counter(tuple(identity(value) for value in row) for row in rows)


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
    """All queries captured, with materialized results."""
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
    """Make one commit: insert or delete rows, delete and reinsert them, or empty a table."""
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
        deleted = table.to_pyarrow_table().filter(pa.compute.field("g") == 2)
        table.delete("g = 2")
        write_deltalake(str(folder / "a"), deleted, mode="append")
    else:
        write_deltalake(str(folder / "a"), rows_of_a(draw, draw.randint(0, 9)), mode="append")


def grow(folder: Path) -> None:
    """Append a few rows to `a`."""
    write_deltalake(str(folder / "a"), rows_of_a(random.Random(2), 5), mode="append")


def answer_at(folder: Path, name: str, versions: dict[str, int]) -> Answer:
    """The result of DuckDB over the tables at these versions."""
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
    """The rows of a version; `entry` identifies the file of its log entry."""
    return DeltaTable(path, version=version).to_pyarrow_table()


def fragments_by_access(query: StoredQuery) -> dict[str, set[int]]:
    """The ranges of each of a stored query's sketches."""
    return {sketch.access: set(sketch.ranges.ids) for sketch in query.sketches}


def stored(folder: Path, name: str, store: str = ".impctl") -> StoredQuery:
    """The query as it is in the store."""
    with Store.open(folder / store, create=False) as opened:
        result = opened.load(name)
        assert result is not None
        return result


def log_entry(table: str | Path, version: int) -> Path:
    return Path(table) / "_delta_log" / f"{version:020}.json"


def set_time(table: str | Path, version: int, seconds: float) -> None:
    """Set the time of a commit, in seconds since 1970, truncated to milliseconds."""
    entry = log_entry(table, version)
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        if "commitInfo" in action:
            action["commitInfo"]["timestamp"] = int(seconds * 1000)
    entry.write_text("".join(json.dumps(action) + "\n" for action in actions))


def in_catalog(root: Path, sql: str, values: Sequence[object] = ()) -> list[Any]:
    """Run a statement on the catalog, as another program would."""
    with closing(sqlite3.connect(root / "catalog.sqlite", isolation_level=None)) as connection:
        return connection.execute(sql, values).fetchall()


def as_first_format(root: Path) -> None:
    """Change the store to format 9."""
    for statement in ("ALTER TABLE cost DROP COLUMN layout", "PRAGMA user_version = 9"):
        in_catalog(root, statement)


def run_record(action: str, **fields: Any) -> RunRecord:
    """The record of a run that took no time and changed nothing, except for these fields."""
    nothing: dict[str, Any] = {
        "reason_code": "test",
        "reason": "",
        "started_at": 0.0,
        "elapsed_ms": 0.0,
        "versions": {},
    }
    return RunRecord(action=action, **{**nothing, **fields})
