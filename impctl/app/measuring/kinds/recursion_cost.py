"""Measure `recursion`: a step of a recursive query's circuit, and asking anew, over rows in memory.

Options: `changes`, rows that go with one step and come with the next (1, 100, 1,000), of the table
`changed` (the largest); `ranges` of every sketch (1,000); `sources`, where the query asks
what all nodes below that number reach: then searches written for it take part. Runs are the
repeats, those that ask anew at most three.
Law: before anything is timed, and after the last step, the answer that the circuit keeps and its
sketches are compared with those of a circuit filled anew; the answers of all others, too. Times of
the engine and of searches are processor times; `duckdb_answer_ms` is the lesser of DuckDB's
processor time and its wall time on all cores. All of them have the rows in memory, so nobody reads
a table.
What is not installed, or cannot run the text, is named in the note.
Out of scope: reading changes, commits (`maintain`), peers (`peer_cost`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, nullcontext
from functools import reduce

import numpy as np
import pyarrow as pa

from impctl.aliases import TableName
from impctl.app.measuring.follower import AgainstRecapture, worse_of
from impctl.app.measuring.ground import Ground
from impctl.app.measuring.recursion.anew import (
    DuckDb,
    has_scipy,
    searched,
    searched_by_scipy,
)
from impctl.app.measuring.recursion.circuit import Kept, RecursiveQuery, recursive_query
from impctl.app.measuring.single import single
from impctl.bench.parquet_sql import ParquetSql, SqlFailed
from impctl.bench.record import Cell, Metric
from impctl.values import dataclass

_ASKED_ANEW = 3

Asked = Callable[[], tuple[pa.Table, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    changes: tuple[int, ...]
    changed: TableName | None
    ranges: int
    sources: int


@dataclass(slots=True)
class _Checks:
    """What comparing has found so far."""

    sketches: list[AgainstRecapture]
    answers: list[bool]


def measure_recursion(ground: Ground) -> Iterator[Cell]:
    """A cell per number of changes."""
    ground.only("changes", "changed", "ranges", "sources")
    options = _Options(
        changes=ground.whole_numbers("changes", (1, 100, 1000)),
        changed=ground.text("changed", "") or None,
        ranges=ground.whole_number("ranges", 1000),
        sources=ground.whole_number("sources", 0, least=0),
    )
    return _cells(ground, options)


def _cells(ground: Ground, options: _Options) -> Iterator[Cell]:
    ground.step(f"reading the tables of {ground.query.name}")
    query = recursive_query(ground, options.ranges)
    changed = options.changed or max(query.tables, key=lambda table: len(query.tables[table]))
    if changed not in query.tables:
        raise ground.refuse("changed", f"a table that query `{ground.query.name}` reads")
    connection = ParquetSql.open()
    with nullcontext() if connection is None else closing(connection):
        kept = query.filled(query.tables)
        for changes in options.changes:
            if changes > len(query.tables[changed]):
                rows = f"{len(query.tables[changed]):,}"
                note = f"not run: `{changed}` has {rows} rows"
                yield ground.cell({}, {"changes": changes}, note=note)
            else:
                ground.step(f"{changes} rows of {changed}")
                yield _cell(ground, options, query, kept, connection, changed, changes)


def _cell(
    ground: Ground,
    options: _Options,
    query: RecursiveQuery,
    kept: Kept,
    connection: ParquetSql | None,
    changed: TableName,
    changes: int,
) -> Cell:
    whole = query.tables[changed]
    random = np.random.default_rng([ground.seed, changes])
    checks, notes = _Checks([], []), list[str]()
    went, left = _split(whole, changes, random)
    kept.step(changed, went, -1)
    now = {**query.tables, changed: left}
    times = _asked_anew(ground, options, query, kept, connection, now, checks, notes)
    kept.step(changed, went, 1)
    fill = _compared(query, kept, query.tables, checks)
    times |= {"delete_ms": [], "insert_ms": []}
    for _ in range(ground.repeat):
        went, left = _split(whole, changes, random)
        times["delete_ms"].append(kept.step(changed, went, -1))
        times["insert_ms"].append(kept.step(changed, went, 1))
    _compared(query, kept, query.tables, checks)
    metrics = {name: Metric.of(found) for name, found in times.items() if found}
    for other in ("anew_ms", "duckdb_answer_ms", "search_ms", "scipy_ms"):
        if other in metrics and metrics["delete_ms"].low > 0:
            name = other.replace("_ms", "_ratio")
            metrics[name] = Metric.quotient(metrics[other], metrics["delete_ms"])
    facts = {"state_bytes": kept.state_bytes, "answer_rows": len(kept.answer())}
    metrics |= single({**facts, "capture_ms": fill})
    return ground.cell(
        metrics,
        {"changes": changes},
        checked=reduce(worse_of, checks.sketches),
        equal=all(checks.answers),
        note="; ".join(notes),
    )


def _split(rows: pa.Table, size: int, random: np.random.Generator) -> tuple[pa.Table, pa.Table]:
    """So many rows drawn, and the others."""
    goes = np.zeros(len(rows), dtype=bool)
    goes[random.choice(len(rows), size, replace=False)] = True
    return rows.filter(pa.array(goes)), rows.filter(pa.array(~goes))


def _asked_anew(
    ground: Ground,
    options: _Options,
    query: RecursiveQuery,
    kept: Kept,
    connection: ParquetSql | None,
    now: Mapping[TableName, pa.Table],
    checks: _Checks,
    notes: list[str],
) -> dict[str, list[float]]:
    """Milliseconds of all that ask anew over the rows as they are `now`, their answers compared."""
    answer = kept.answer()
    found: dict[str, list[float]] = {"anew_ms": []}
    runs = min(ground.repeat, _ASKED_ANEW)
    for _ in range(runs):
        found["anew_ms"].append(_compared(query, kept, now, checks))
    for name, asked in _others(ground, options, now, connection, notes).items():
        try:
            asked()
            several = [asked() for _ in range(runs)]
        except SqlFailed as error:
            notes.append(f"DuckDB cannot run the text: {error}")
            continue
        checks.answers += [are_same_rows(answer, rows) for rows, _ in several]
        found[name] = [ms for _, ms in several]
    return found


def _others(
    ground: Ground,
    options: _Options,
    now: Mapping[TableName, pa.Table],
    connection: ParquetSql | None,
    notes: list[str],
) -> dict[str, Asked]:
    """Who else is asked, by the metric of its times."""
    found: dict[str, Asked] = {}
    if connection is None:
        notes.append("DuckDB is not installed")
    else:
        duckdb = DuckDb(connection, ground.query.sql)
        for table, rows in now.items():
            duckdb.put(table, rows)
        found["duckdb_answer_ms"] = duckdb.asked
    sources = options.sources
    if sources:
        links = max(now.values(), key=len)
        found["search_ms"] = lambda: searched(links, sources)
        if has_scipy():
            found["scipy_ms"] = lambda: searched_by_scipy(links, sources)
        else:
            notes.append("scipy is not installed")
    return found


def _compared(
    query: RecursiveQuery, kept: Kept, now: Mapping[TableName, pa.Table], checks: _Checks
) -> float:
    """The circuit beside one that is filled anew, and the milliseconds that filling took."""
    anew = query.filled(now)
    checks.sketches.append(kept.against(anew))
    checks.answers.append(are_same_rows(kept.answer(), anew.answer()))
    return anew.filled_ms


def are_same_rows(one: pa.Table, other: pa.Table) -> bool:
    """The same rows as often, in any order, whatever their columns are called."""
    if one.num_columns != other.num_columns or len(one) != len(other):
        return False
    names = [str(at) for at in range(one.num_columns)]
    keys = [(name, "ascending") for name in names]
    left = one.rename_columns(names)
    right = other.rename_columns(names).cast(left.schema)
    return bool(left.sort_by(keys).equals(right.sort_by(keys)))
