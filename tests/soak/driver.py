"""Draws and runs random operations, and checks every result and the whole store."""

from __future__ import annotations

import random
import re
import sqlite3
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from deltalake import DeltaTable
from msgspec import Struct, field

import impctl
from impctl.errors import ImpctlWarning
from impctl.service.context import open_context
from impctl.service.query import query
from impctl.service.results import QueryResult
from impctl.service.settings import QueryRequest, Settings
from impctl.sketch.sketch import MaintenanceMode, range_filter
from impctl.sql.statement import parse_query
from impctl.store.lock import lock_owner
from impctl.store.records import StoredQuery
from impctl.store.store import Store
from impctl.tables.snapshot import read_schema
from impctl.tables.statistics import prune
from impctl.types import AccessId
from impctl.workload.models import AnsweredBy
from tests.crash.processes import check_no_leftovers, end, materialized_rows, start, wait_until_open
from tests.plan.trials import accurate_sketches, fragment_of
from tests.soak.children import Child, moment
from tests.soak.place import SCHEMAS, TABLES, WORKLOAD, some_change, write_tables
from tests.soak.writer import Writer
from tests.support.reference_plan import Value, annotate

_LONG = re.compile(r"\b([0-9]+)L\b")

Answer = list[tuple[object, ...]]
Rows = list[dict[str, Value]]


def newest(folder: Path, table: str) -> int:
    return int(DeltaTable(str(folder / table)).version())


@lru_cache(maxsize=64)
def _scanned(path: str, version: int) -> pa.Table:
    return pa.table(DeltaTable(path, version=version).scan())


def rows_at(folder: Path, table: str, version: int) -> pa.Table:
    """All rows, read by deltalake."""
    return _scanned(str(folder / table), version)


def answer(sql: str, folder: Path, versions: dict[str, int]) -> Answer:
    """The rows of the query over all rows of the tables."""
    return answer_over(
        sql, {table: rows_at(folder, table, version) for table, version in versions.items()}
    )


def answer_through(sql: str, stored: StoredQuery, workload: Path) -> tuple[Answer, int]:
    """The rows of the query over its sketches' ranges, and the number of files skipped.

    Only here impctl decides what is read: files by their statistics, then rows by their range.
    """
    remaining: dict[str, pa.Table] = {}
    skipped = 0
    with open_context(Settings(workload)) as ctx:
        for table, version in stored.versions.items():
            (sketch,) = [s for s in stored.sketches if s.table == table]
            predicate = range_filter(sketch.ranges, sketch.partition)
            snapshot = ctx.tables.snapshot(table, version)
            files = prune(snapshot, [predicate])
            skipped += len(snapshot.files) - len(files)
            schema = SCHEMAS[table]
            tables = [pq.ParquetFile(file.uri).read().cast(schema) for file in files]
            rows = pa.concat_tables([schema.empty_table(), *tables])
            range_ids = set(sketch.ranges.ids)
            boundaries = tuple(sketch.partition.boundaries)
            values = rows[sketch.attribute].to_pylist()
            remaining[table] = rows.filter(
                pa.array(
                    [fragment_of(value, boundaries) in range_ids for value in values], pa.bool_()
                )
            )
    return answer_over(sql, remaining), skipped


def query_result(workload: Path, name: str, by: AnsweredBy) -> QueryResult:
    """The result of `query --by`."""
    with open_context(Settings(workload, lock_timeout=60)) as ctx:
        (result,) = query(ctx, QueryRequest(name), by).results
    assert isinstance(result, QueryResult)
    return result


def answer_over(sql: str, tables: Mapping[str, pa.Table]) -> Answer:
    """The rows of the query by SQLite, for which Spark's `9L` becomes `9`."""
    database = sqlite3.connect(":memory:")
    try:
        for table, rows in tables.items():
            database.execute(f"CREATE TABLE {table} ({', '.join(rows.column_names)})")
            placeholders = ", ".join("?" * rows.num_columns)
            values = zip(*(column.to_pylist() for column in rows.columns), strict=True)
            database.executemany(f"INSERT INTO {table} VALUES ({placeholders})", values)
        return database.execute(_LONG.sub(r"\1", sql)).fetchall()
    finally:
        database.close()


def same_answer(sql: str, result: Answer, other: Answer) -> bool:
    """Compare lists if the query has an ORDER BY (all are total here), else bags."""
    return result == other if "ORDER BY" in sql else Counter(result) == Counter(other)


class Recapture:
    """Accurate sketches at stored versions, cached."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: dict[str, tuple[object, dict[AccessId, set[int]]]] = {}

    def accurate(self, sql: str, stored: StoredQuery) -> dict[AccessId, set[int]]:
        """The ranges of the query's provenance, in the stored partitions."""
        partitions = {
            s.access: (s.attribute, tuple(s.partition.boundaries)) for s in stored.sketches
        }
        key = (sql, tuple(sorted(stored.versions.items())), tuple(partitions.items()))
        cached = self._found.get(stored.query)
        if cached is not None and cached[0] == key:
            return cached[1]
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
        assert {scan.table for scan in root.scans} == set(tables)
        result = accurate_sketches(annotate(root, tables), root, tables, partitions)
        self._found[stored.query] = key, result
        return result


_DEFINITIONS = yaml.safe_load(WORKLOAD)["queries"]
_SQL = {name: query["sql"] for name, query in _DEFINITIONS.items()}
QUERIES = tuple(_SQL)
MATERIALIZED = tuple(name for name, query in _DEFINITIONS.items() if query.get("answer", True))
"""Queries with materialized results."""
LEAST = 5
_PATIENT = ("--lock-timeout", "60")
_KILLED = (
    *(
        ("maintain",),
        ("maintain",),
        ("capture",),
        ("capture", "--rebalance"),
        ("gc", "--keep", "1"),
    ),
    ("rewrite", "--query", "both"),
    ("query", "--query", "regions", "--by", "state"),
)
_WEIGHTS = {
    "commit": 29,
    "maintain": 10,
    "maintain_process": 1,
    "rewrite": 14,
    "ask_state": 5,
    "ask_engine": 2,
    "ask_beside": 2,
    "rewrite_others_constants": 6,
    "rewrite_beside": 4,
    "capture": 3,
    "rebalance": 2,
    "gc": 4,
    "kill": 15,
    "kill_process": 1,
    "two_at_once": 2,
}
"""The number of each operation in a hundred."""


class Soak(Struct, dict=True):
    """One store and the log of its operations."""

    folder: Path
    seed: int
    writer: Writer
    done: Counter[str] = field(default_factory=Counter)
    slack: Counter[str] = field(default_factory=Counter)
    log: list[str] = field(default_factory=list)
    answers: int = 0
    sketches: int = 0

    def __post_init__(self) -> None:
        """Create the tables and capture."""
        self._draw = random.Random(self.seed)
        self._workload = write_tables(self.folder, self._draw)
        self._store = self.folder / ".impctl"
        self._open = impctl.open(self._workload, lock_timeout=60)
        self._recapture = Recapture(self.folder)
        self._versions: dict[str, dict[str, int]] = {}
        self._spans: dict[tuple[str, ...], float] = {}
        self._used: dict[str, str] = {}
        self._children = 0
        with self._noted("capture"):
            self._open.capture()
            self.check()

    def run(self, operations: int) -> None:
        """Run this many operations, then the final checks."""
        for number in range(operations):
            (name,) = self._draw.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
            with self._noted(f"{number} {name}"):
                act: Callable[[], None] = getattr(self, f"_{name}")
                act()
                self.done[name] += 1
                self.check()
        with self._noted("the end"):
            self._finish()

    @contextmanager
    def _noted(self, label: str) -> Iterator[None]:
        """Add the seed and the last operations to an error in the block."""
        self.log.append(label)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ImpctlWarning)
                yield
        except Exception as error:
            error.add_note(f"seed {self.seed}, the last of {len(self.log)}: {self.log[-12:]}")
            raise

    # Operations

    def _commit(self) -> None:
        self._begin_commit()
        self.writer.finish()

    def _begin_commit(self) -> None:
        rows = {t: rows_at(self.folder, t, newest(self.folder, t)).num_rows for t in TABLES}
        change = some_change(self._draw, self.folder, rows)
        table = Path(change.path).name
        self.log[-1] += f": {change.kind} {table} {change.text or ''} {change.updates or ''}"
        self.done[f"commit {change.kind}"] += 1
        self.writer.begin(change)

    def _maintain(self) -> None:
        names = self._some_queries()
        if self._draw.random() < 0.3:
            self._begin_commit()
        for result in self._open.maintain(*names):
            self.done[f"maintain {result.action}"] += 1
        self.writer.finish()

    def _maintain_process(self) -> None:
        process = start(self._workload, "maintain", *_PATIENT)
        done = end(process)
        assert done.code == 0, done.document

    def _capture(self) -> None:
        self._open.capture(*self._some_queries())

    def _rebalance(self) -> None:
        self._open.rebalance(*self._some_queries())

    def _gc(self) -> None:
        child = self._child("gc", "--keep", str(self._draw.randint(1, 4)))
        self._finish_child(child)

    def _rewrite(self) -> None:
        self.check_answer(self._draw.choice(QUERIES))

    def _rewrite_others_constants(self) -> None:
        """Rewrite with another constant, which may or may not reuse the sketch."""
        least = self._draw.randint(3, 9)
        if self._draw.random() < 0.5:
            self.check_answer("by_shop", least)
            return
        sql = f"SELECT shop, COUNT(*) AS n FROM orders GROUP BY shop HAVING COUNT(*) > {least}"
        self._check_rewritten(sql, self._open.rewrite(sql=sql))

    def _rewrite_beside(self) -> None:
        """Rewrite while another process maintains and a third one commits."""
        child = self._child("maintain", *_PATIENT)
        self._begin_commit()
        for _ in range(2):
            self.check_answer(self._draw.choice(QUERIES))
        self._finish_child(child)
        self.writer.finish()

    def _ask_state(self) -> None:
        self.check_query(self._draw.choice(MATERIALIZED), AnsweredBy.STATE)

    def _ask_engine(self) -> None:
        self.check_query(self._draw.choice(QUERIES), AnsweredBy.ENGINE)

    def _ask_beside(self) -> None:
        """Query the state while one process maintains all queries and another commits."""
        child = self._child("maintain", *_PATIENT)
        self._begin_commit()
        for name in self._draw.sample(MATERIALIZED, 2):
            self.check_query(name, AnsweredBy.STATE)
        self._finish_child(child)
        self.writer.finish()

    def _two_at_once(self) -> None:
        commands = (("maintain", *_PATIENT), ("capture", *_PATIENT), ("gc", *_PATIENT), ("status",))
        running = [self._child(*words) for words in self._draw.sample(commands, 2)]
        self._begin_commit()
        for child in running:
            self._finish_child(child)
        self.writer.finish()

    def _kill(self) -> None:
        if self._draw.random() < 0.7:
            self._commit()
        words = self._draw.choice(_KILLED)
        is_concurrent = self._draw.random() < 0.2
        child = self._child(*words)
        if is_concurrent:
            self._begin_commit()
        shot = child.kill_after(moment(self._draw, self._spans.get(words, 0.2)))
        self._note_shot(words, shot.code, shot.seconds)
        self.writer.finish()

    def _kill_process(self) -> None:
        self._commit()
        words = self._draw.choice(_KILLED)
        process = start(self._workload, *words)
        opened = wait_until_open(process, self._store)
        time.sleep(moment(self._draw, self._spans.get(words, 0.2)))
        process.kill()
        process.communicate()
        self._note_shot(words, process.returncode, time.monotonic() - opened)

    def _note_shot(self, words: tuple[str, ...], code: int, seconds: float) -> None:
        assert code in (0, -9), (words, code)
        self.log[-1] += f" {' '.join(words)} -> {code}"
        self.done["shots"] += 1
        if code == 0:
            self._spans[words] = min(seconds, self._spans.get(words, seconds))
            return
        self.done[f"killed {' '.join(words[:2])}"] += 1
        self.done["killed"] += 1
        owner = lock_owner(self._store)
        self.done["killed with the lock"] += owner is not None and owner.is_dead

    def _child(self, *words: str) -> Child:
        self._children += 1
        return Child(self._workload, self.folder / f"child{self._children % 4}", *words)

    def _finish_child(self, child: Child) -> None:
        code = child.end()
        assert code == 0, (code, child.log.read_text())

    def _some_queries(self) -> tuple[str, ...]:
        """All queries, as `()`, or a few."""
        if self._draw.random() < 0.5:
            return ()
        return tuple(self._draw.sample(QUERIES, self._draw.randint(1, 3)))

    # Checks

    def check_answer(self, name: str, least: int | None = None) -> None:
        before = {table: newest(self.folder, table) for table in TABLES}
        params = None if least is None else {"least": least}
        result = self._open.rewrite(name, params=params)
        assert all(version >= before[t] for t, version in result.versions.items())
        if least is not None:
            self.done[f"reuse {result.reuse and result.reuse.query}"] += 1
        self._check_rewritten(_SQL[name].replace(":least", str(least or LEAST)), result)

    def _check_rewritten(self, sql: str, result: impctl.RewriteResult) -> None:
        versions = dict(result.versions)
        expected = answer(sql, self.folder, versions)
        rewritten = answer(result.sql, self.folder, versions)
        assert same_answer(sql, rewritten, expected), (result.sql, versions, rewritten, expected)
        self.answers += 1
        self.done["answers with rows"] += bool(expected)
        self.done["answers with ranges"] += bool(result.intervals)

    def check_query(self, name: str, by: AnsweredBy) -> None:
        """Check that the result is correct at its versions, which are not older than the query."""
        before = {table: newest(self.folder, table) for table in TABLES}
        result = query_result(self._workload, name, by)
        versions = dict(result.versions)
        assert all(version >= before[t] for t, version in versions.items())
        assert result.by == by, result
        sql = _SQL[name].replace(":least", str(LEAST))
        expected = answer(sql, self.folder, versions)
        assert same_answer(sql, [*result.rows], expected), (
            name,
            by,
            versions,
            result.rows,
            expected,
        )
        self.answers += 1
        self.done["answers with rows"] += bool(expected)

    def check(self) -> None:
        """Check everything stored and the output of `status`."""
        status_by_query = {result.query: result for result in self._open.status()}
        assert set(status_by_query) == set(QUERIES)
        with Store.open(self._store, create=False) as open_store:
            for name in QUERIES:
                stored = open_store.load(name)
                assert stored is not None, name
                assert bool(open_store.load_runs(name)) == (
                    stored.mode is not MaintenanceMode.RECAPTURE
                )
                before = self._versions.get(name, stored.versions)
                assert all(stored.versions[t] >= version for t, version in before.items()), name
                self._versions[name] = stored.versions
                assert status_by_query[name].versions == stored.versions
                current = {t: newest(self.folder, t) for t in stored.versions}
                assert status_by_query[name].stale == (stored.versions != current)
                self._check_sketch(stored)

    def _check_sketch(self, stored: StoredQuery) -> None:
        sql = _SQL[stored.query].replace(":least", str(LEAST))
        accurate = self._recapture.accurate(sql, stored)
        is_exact = stored.mode is MaintenanceMode.EXACT
        assert accurate
        for sketch in stored.sketches:
            stored_ids, expected = set(sketch.ranges.ids), accurate[sketch.access]
            assert expected <= stored_ids, (
                stored.query,
                sketch.attribute,
                expected,
                stored_ids,
                stored.versions,
            )
            self.sketches += 1
            self.slack[f"{stored.query} {stored.mode}"] += len(stored_ids - expected)
            assert stored_ids == expected or not is_exact, (
                stored.query,
                sketch.attribute,
                expected,
                stored_ids,
            )
        self._check_use(sql, stored)

    def _check_use(self, sql: str, stored: StoredQuery) -> None:
        """Check that reading through the sketches, and the materialized rows, give the result at
        the sketches' versions."""
        state = repr((stored.versions, stored.sketches))
        if self._used.get(stored.query) != state:
            expected = answer(sql, self.folder, stored.versions)
            result, skipped = answer_through(sql, stored, self._workload)
            assert same_answer(sql, result, expected), (
                stored.query,
                stored.versions,
                result,
                expected,
            )
            if stored.query in MATERIALIZED:
                rows = materialized_rows(stored, self._workload)
                assert same_answer(sql, rows, expected), (
                    stored.query,
                    stored.versions,
                    rows,
                    expected,
                )
                self.done["kept answers"] += 1
                self.done["kept answers with rows"] += bool(rows)
            self._used[stored.query] = state
            self.done["uses of stored sketches"] += 1
            self.done["files left out"] += skipped

    def _finish(self) -> None:
        """Check that maintenance converges and that `gc` leaves nothing behind."""
        self._open.maintain()
        self.check()
        assert {result.action for result in self._open.maintain()} == {"none"}
        assert not any(result.stale for result in self._open.status())
        for name in QUERIES:
            self.check_answer(name)
            self.check_query(name, AnsweredBy.STATE if name in MATERIALIZED else AnsweredBy.ENGINE)
        self._finish_child(self._child("gc", "--keep", "1"))
        check_no_leftovers(self._store)
        self.check()
