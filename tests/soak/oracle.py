"""What is right: answers by SQLite over all rows, sketches by the slow reference.

Law: rows come from deltalake's own scan; the right answer is computed without any part of impctl, a
sketch with its parser only. What impctl says (`asked`) is fetched here, too, to be held
against them. Out of scope: when to look (`tests.soak.driver`).
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from impctl.plan.nodes import scans_of
from impctl.service.context import open_workbench
from impctl.service.query import query
from impctl.service.results import QueryResult
from impctl.service.settings import Settings
from impctl.sketch.sketch import range_filter
from impctl.sql.statement import parse_query
from impctl.store.records import StoredQuery
from impctl.tables.prune import prune
from impctl.tables.schema import read_schema
from impctl.types import AccessId
from impctl.workload.models import AnsweredBy
from tests.plan.trials import accurate_sketches, fragment_of
from tests.soak.place import SCHEMAS
from tests.support.reference_expr import Value
from tests.support.reference_plan import annotate

_LONG = re.compile(r"\b([0-9]+)L\b")

Answer = list[tuple[object, ...]]
Rows = list[dict[str, Value]]


def newest(folder: Path, table: str) -> int:
    return int(DeltaTable(str(folder / table)).version())


@lru_cache(maxsize=64)
def _scanned(path: str, version: int) -> pa.Table:
    return pa.table(DeltaTable(path, version=version).scan())


def rows_at(folder: Path, table: str, version: int) -> pa.Table:
    """All rows, by deltalake."""
    return _scanned(str(folder / table), version)


def answer(sql: str, folder: Path, versions: dict[str, int]) -> Answer:
    """The rows of the query over all rows of the tables."""
    return answer_over(
        sql, {table: rows_at(folder, table, version) for table, version in versions.items()}
    )


def answer_through(sql: str, stored: StoredQuery, workload: Path) -> tuple[Answer, int]:
    """The rows of the query over what its sketches leave, and how many files they leave out.

    Only here impctl says what is left: files by their statistics, then rows by their fragment.
    """
    left: dict[str, pa.Table] = {}
    skipped = 0
    with open_workbench(Settings(workload)) as desk:
        for table, version in stored.versions.items():
            (sketch,) = [s for s in stored.sketches if s.table == table]
            wanted = range_filter(sketch.fragments, sketch.partition)
            snapshot = desk.tables.snapshot(table, version)
            files = prune(snapshot, [wanted])
            skipped += len(snapshot.files) - len(files)
            schema = SCHEMAS[table]
            read = [pq.ParquetFile(file.uri).read().cast(schema) for file in files]
            rows = pa.concat_tables([schema.empty_table(), *read])
            held = set(sketch.fragments.ids)
            boundaries = tuple(sketch.partition.boundaries)
            values = rows[sketch.attribute].to_pylist()
            left[table] = rows.filter(
                pa.array([fragment_of(value, boundaries) in held for value in values], pa.bool_())
            )
    return answer_over(sql, left), skipped


def asked(workload: Path, name: str, by: AnsweredBy) -> QueryResult:
    """What `query --by` gives out."""
    with open_workbench(Settings(workload, lock_timeout=60)) as desk:
        outcome = query(desk, name, by=by)
        (result,) = outcome.results
        assert isinstance(result, QueryResult)
        return result


def answer_over(sql: str, tables: Mapping[str, pa.Table]) -> Answer:
    """The rows of the query, by SQLite, which knows Spark's `9L` as `9`."""
    database = sqlite3.connect(":memory:")
    try:
        for table, rows in tables.items():
            database.execute(f"CREATE TABLE {table} ({', '.join(rows.column_names)})")
            places = ", ".join("?" * rows.num_columns)
            values = zip(*(column.to_pylist() for column in rows.columns), strict=True)
            database.executemany(f"INSERT INTO {table} VALUES ({places})", values)
        return database.execute(_LONG.sub(r"\1", sql)).fetchall()
    finally:
        database.close()


def same_answer(sql: str, mine: Answer, other: Answer) -> bool:
    """As lists where the query has an order (all ours are total), else as bags."""
    return mine == other if "ORDER BY" in sql else Counter(mine) == Counter(other)


class Recapture:
    """Accurate sketches at stored versions, each found once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: dict[str, tuple[object, dict[AccessId, set[int]]]] = {}

    def accurate(self, sql: str, stored: StoredQuery) -> dict[AccessId, set[int]]:
        """The fragments of the provenance of the query's text, over the stored ranges."""
        partitions = {
            s.access: (s.attribute, tuple(s.partition.boundaries)) for s in stored.sketches
        }
        key = (sql, tuple(sorted(stored.versions.items())), tuple(partitions.items()))
        known = self._found.get(stored.query)
        if known is not None and known[0] == key:
            return known[1]
        deltas = {
            table: DeltaTable(str(self._folder / table), version=version)
            for table, version in stored.versions.items()
        }
        catalog = {
            table: read_schema(delta.schema().to_json(), is_mapped=False).schema
            for table, delta in deltas.items()
        }
        root = parse_query(sql, catalog).root
        tables: dict[str, Rows] = {
            table: rows_at(self._folder, table, version).to_pylist()
            for table, version in stored.versions.items()
        }
        assert {scan.table for scan in scans_of(root)} == set(tables)
        result = accurate_sketches(annotate(root, tables), root, tables, partitions)
        self._found[stored.query] = key, result
        return result
