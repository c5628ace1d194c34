"""Measure `recursion`: a step of a recursive query's circuit, and asking anew, over rows in memory.

Options: `changes`, rows that go with one step and come with the next (1, 100, 1,000), of the table
`changed` (the largest); `steps` of either kind that are timed (the repeats, or more); `ranges` of
every sketch (1,000); `sources`, where the query asks what all nodes below that number reach
(`search: reach`) or at what least cost (`paths`): then searches written for it take part; `duckdb`,
a text in DuckDB's own words for the same answer, where it would not end with the query's.
Runs that ask anew are the repeats, at most three.
Law: before anything is timed, and after the last step, the answer that the circuit keeps and its
sketches are compared with those of a circuit filled anew; the answers of all others, too. Times are
processor times, of all threads, but those that are called `wall`; `duckdb_answer_ms` is the lesser
of DuckDB's two, run by run. Ratios are of processor time, but `duckdb_answer_ratio`, which is of
that lesser time, and `duckdb_wall_ratio`. All have the rows in memory, so nobody reads a table.
What is not installed, or cannot run the text, is named in the note.
Out of scope: reading changes, commits (`maintain`), peers (`peer_cost`), files (`rewritten_cost`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, nullcontext
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from benchmarks.figures import SuiteCase
from benchmarks.recursion.circuit import Kept, RecursiveQuery, recursive_query
from benchmarks.recursion.searches import PATHS, REACH, has_scipy, searched, searched_by_scipy
from impctl.bench.record import Cell, Metric
from impctl.measure.duckdb import ParquetSql, SqlFailed
from impctl.measure.kinds import CallTimes, cpu_of, single, timed, wall_of
from impctl.measure.scratch import AgainstRecapture, worse_of
from impctl.types import TableName

_ASKED_ANEW = 3

Asked = Callable[[], tuple[pa.Table, CallTimes]]

_DUCKDB = "duckdb"
_ROWS = "held_"
_RATIOS = {
    "anew_ratio": "anew_ms",
    "duckdb_answer_ratio": "duckdb_answer_ms",
    "duckdb_cpu_ratio": "duckdb_cpu_ms",
    "search_ratio": "search_ms",
    "scipy_ratio": "scipy_ms",
}


class _Options(Struct, frozen=True, kw_only=True):
    changes: tuple[int, ...]
    changed: TableName | None
    steps: int
    ranges: int
    sources: int
    search: str
    duckdb: str


class _Checks(Struct):
    """What comparing has found so far."""

    sketches: list[AgainstRecapture]
    answers: list[bool]


def measure_recursion(case: SuiteCase) -> Iterator[Cell]:
    """A cell per number of changes."""
    case.only("changes", "changed", "duckdb", "ranges", "search", "sources", "steps")
    (search,) = case.choices("search", (REACH, PATHS), (REACH,))
    options = _Options(
        changes=case.whole_numbers("changes", (1, 100, 1000)),
        changed=case.text("changed", "") or None,
        steps=max(case.whole_number("steps", 1), case.repeat),
        ranges=case.whole_number("ranges", 1000),
        sources=case.whole_number("sources", 0, least=0),
        search=search,
        duckdb=case.text("duckdb", "") or case.query.sql,
    )
    return _cells(case, options)


def _cells(case: SuiteCase, options: _Options) -> Iterator[Cell]:
    case.step(f"reading the tables of {case.query.name}")
    query = recursive_query(case, options.ranges)
    changed = options.changed or max(query.tables, key=lambda table: len(query.tables[table]))
    if changed not in query.tables:
        raise case.refuse("changed", f"a table that query `{case.query.name}` reads")
    connection = ParquetSql.open()
    with nullcontext() if connection is None else closing(connection):
        kept = query.filled(query.tables)
        for changes in options.changes:
            if changes > len(query.tables[changed]):
                rows = f"{len(query.tables[changed]):,}"
                note = f"not run: `{changed}` has {rows} rows"
                yield case.cell({}, {"changes": changes}, note=note)
            else:
                case.step(f"{changes} rows of {changed}")
                yield _cell(case, options, query, kept, connection, changed, changes)


def _cell(
    case: SuiteCase,
    options: _Options,
    query: RecursiveQuery,
    kept: Kept,
    connection: ParquetSql | None,
    changed: TableName,
    changes: int,
) -> Cell:
    table = query.tables[changed]
    random = np.random.default_rng([case.seed, changes])
    checks, notes = _Checks([], []), list[str]()
    goes = _drawn(table, changes, random)
    deleted = table.filter(goes)
    kept.step(changed, deleted, -1)
    now = {**query.tables, changed: table.filter(pc.invert(goes))}
    others = _asked_anew(case, options, query, kept, connection, now, checks, notes)
    kept.step(changed, deleted, 1)
    delete_times, come = list[CallTimes](), list[CallTimes]()
    # All are drawn first: what reads the whole table between two steps empties the caches.
    batches = [table.filter(_drawn(table, changes, random)) for _ in range(options.steps)]
    for deleted in batches:
        delete_times.append(kept.step(changed, deleted, -1))
        come.append(kept.step(changed, deleted, 1))
    filling = _compared(query, kept, query.tables, checks)
    metrics = {
        "delete_ms": cpu_of(delete_times),
        "insert_ms": cpu_of(come),
        "delete_wall_ms": wall_of(delete_times),
        "insert_wall_ms": wall_of(come),
        **_asked_metrics(others),
    }
    metrics |= ratios(metrics, _RATIOS, "delete_ms")
    metrics |= ratios(metrics, {"duckdb_wall_ratio": "duckdb_wall_ms"}, "delete_wall_ms")
    facts = {"state_bytes": kept.state_bytes, "answer_rows": len(kept.answer())}
    metrics |= single({**facts, "capture_ms": filling.cpu_ms})
    return case.cell(
        metrics,
        {"changes": changes},
        checked=reduce(worse_of, checks.sketches),
        equal=all(checks.answers),
        note="; ".join(notes),
    )


def _drawn(rows: pa.Table, size: int, random: np.random.Generator) -> pa.Array:
    """Which rows are among so many drawn."""
    goes = np.zeros(len(rows), dtype=bool)
    goes[random.choice(len(rows), size, replace=False)] = True
    return pa.array(goes)


def _asked_anew(
    case: SuiteCase,
    options: _Options,
    query: RecursiveQuery,
    kept: Kept,
    connection: ParquetSql | None,
    now: Mapping[TableName, pa.Table],
    checks: _Checks,
    notes: list[str],
) -> dict[str, list[CallTimes]]:
    """What all take that ask anew over the rows as they are `now`, their answers compared."""
    answer = kept.answer()
    runs = min(case.repeat, _ASKED_ANEW)
    result = {"anew": [_compared(query, kept, now, checks) for _ in range(runs)]}
    for name, run_other in _others(case, options, now, connection, notes).items():
        try:
            run_other()
            several = [run_other() for _ in range(runs)]
        except SqlFailed as error:
            notes.append(f"DuckDB cannot run the text: {error}")
            continue
        checks.answers += [are_same_rows(answer, rows) for rows, _ in several]
        result[name] = [took for _, took in several]
    return result


def _asked_metrics(times: Mapping[str, list[CallTimes]]) -> dict[str, Metric]:
    """Processor times, and of DuckDB, which works on all cores, those on the wall, too."""
    result = {f"{name}_ms": cpu_of(runs) for name, runs in times.items() if name != _DUCKDB}
    if duckdb := times.get(_DUCKDB):
        result["duckdb_answer_ms"] = Metric.of([min(run.cpu_ms, run.wall_ms) for run in duckdb])
        result["duckdb_cpu_ms"] = cpu_of(duckdb)
        result["duckdb_wall_ms"] = wall_of(duckdb)
    return result


def _others(
    case: SuiteCase,
    options: _Options,
    now: Mapping[TableName, pa.Table],
    connection: ParquetSql | None,
    notes: list[str],
) -> dict[str, Asked]:
    """Who else is asked, by name."""
    result: dict[str, Asked] = {}
    if connection is None:
        notes.append("DuckDB is not installed")
    else:
        duckdb = DuckDb(connection, options.duckdb)
        for table, rows in now.items():
            duckdb.put(table, rows)
        result[_DUCKDB] = duckdb.asked
    sources, search = options.sources, options.search
    if sources:
        links = max(now.values(), key=len)
        result["search"] = lambda: searched(links, sources, search)
        if has_scipy():
            result["scipy"] = lambda: searched_by_scipy(links, sources, search)
        else:
            notes.append("scipy is not installed")
    return result


def _compared(
    query: RecursiveQuery, kept: Kept, now: Mapping[TableName, pa.Table], checks: _Checks
) -> CallTimes:
    """The circuit beside one that is filled anew, and what filling took."""
    refilled = query.filled(now)
    checks.sketches.append(kept.against(refilled))
    checks.answers.append(are_same_rows(kept.answer(), refilled.answer()))
    return refilled.filling


def ratios(metrics: Mapping[str, Metric], over: Mapping[str, str], under: str) -> dict[str, Metric]:
    """Divide metrics by the one named `under`, if both exist and that took any time."""
    if under not in metrics or metrics[under].low <= 0:
        return {}
    return {
        name: Metric.quotient(metrics[other], metrics[under])
        for name, other in over.items()
        if other in metrics
    }


class DuckDb:
    """A connection that has the rows of the query's tables in memory."""

    def __init__(self, connection: ParquetSql, sql: str) -> None:
        self._connection = connection
        self._sql = sql

    def put(self, table: TableName, rows: pa.Table) -> None:
        """Replace the rows of a table; SqlFailed where DuckDB cannot. This is not timed."""
        self._connection.put(_ROWS + table, rows)
        self._connection.change(
            f'CREATE OR REPLACE TABLE "{table}" AS SELECT * FROM "{_ROWS}{table}"'
        )

    def asked(self) -> tuple[pa.Table, CallTimes]:
        """The answer and its time; SqlFailed where DuckDB cannot."""
        return timed(lambda: self._connection.run(self._sql))


def are_same_rows(one: pa.Table, other: pa.Table) -> bool:
    """The same rows as often, in any order, whatever their columns are called."""
    if one.num_columns != other.num_columns or len(one) != len(other):
        return False
    names = [str(index) for index in range(one.num_columns)]
    keys = [(name, "ascending") for name in names]
    left = one.rename_columns(names)
    right = other.rename_columns(names).cast(left.schema)
    return bool(left.sort_by(keys).equals(right.sort_by(keys)))
