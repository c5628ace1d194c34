"""Measure `processes`: `impctl maintain` in processes of its own, warm and cold, by what is kept.

Options: `tables` that change; `share` of their rows, in each of twice as many changes as runs;
`ways`, and `budgets` (shares of all state, or bytes from 1,000 on). Cold: the state and the tables
are taken out of the system's cache before.

Law: as measure `state`; the process reads what a user's does, and its memory is its own peak.
Out of scope: the process (`fresh_process`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from msgspec import Struct

from benchmarks.figures import SuiteCase
from benchmarks.fresh_process import ProcessRun, maintain_afresh
from benchmarks.state.held_back import Change, commit, moving_tables, reduced_copy, share_of_each
from benchmarks.state.kept_by import (
    BOUNDED,
    CHOSEN,
    KEPT,
    READ,
    Declared,
    brought_to,
    captured_under,
    expecting,
    stored_bytes,
)
from impctl.bench.record import Cell, Label, Metric
from impctl.measure.scratch import AgainstRecapture, MeasuredQuery, scratch_copy
from impctl.service.context import Context
from impctl.service.prepare import prepare
from impctl.types import TableName

_BYTES = 1000
_CATALOG = ".sqlite"


class _Run(Struct, frozen=True):
    warm: tuple[ProcessRun, ...]
    cold: tuple[ProcessRun, ...]
    stored: int
    checked: AgainstRecapture


def measure_processes(case: SuiteCase) -> Iterator[Cell]:
    """A cell per way and budget."""
    case.only("tables", "share", "ways", "budgets")
    tables = moving_tables(case)
    share = share_of_each(case, 0.0001, _changes(case))
    ways = case.choices("ways", (KEPT, CHOSEN, READ), (KEPT, CHOSEN))
    return _cells(case, tables, share, ways, case.numbers("budgets", (1.0,)))


def _changes(case: SuiteCase) -> int:
    """One for each run, warm and cold; the first process compiles what it imports, and is none."""
    return 2 * case.repeat + 1


def _cells(
    case: SuiteCase,
    tables: Sequence[TableName],
    share: float,
    ways: Sequence[str],
    budgets: Sequence[float],
) -> Iterator[Cell]:
    with reduced_copy(case, tables, (share,) * _changes(case)) as (base, moving, changes):
        for way, budget in product(ways, budgets):
            if way not in BOUNDED and budget != budgets[0]:
                continue
            case.step(f"{way} within {budget:g}" if way in BOUNDED else way)
            labels: dict[str, Label] = {"way": way, "budget": budget if way in BOUNDED else 1}
            yield _told(case, labels, _run(case, base, moving, changes, share, way, budget))


def _run(
    case: SuiteCase,
    base: Context,
    moving: Sequence[TableName],
    changes: Sequence[Change],
    share: float,
    way: str,
    budget: float,
) -> _Run:
    spec = case.query
    with scratch_copy(base, prepare(base, spec).tables) as scratch:
        present = {table: scratch.tables.snapshot(table).likely_rows for table in moving}
        rows = {table: Declared(max(1, round(present[table] * share))) for table in moving}
        with expecting(scratch, rows) as ctx:
            with ctx.writing("bench"):
                captured_under(ctx, spec, None)
                full = stored_bytes(ctx, spec)
                most = budget if budget >= _BYTES else budget * full
                brought_to(ctx, spec, way, round(most))
                stored = stored_bytes(ctx, spec)
            runs = [
                _maintained(ctx, case, each, is_cold=index % 2 == 1)
                for index, each in enumerate(changes)
            ]
            for table in moving:
                ctx.tables.advance(table)
            with ctx.writing("bench"):
                checked = MeasuredQuery(ctx, prepare(ctx, spec)).checked()
    return _Run(tuple(runs[2::2]), tuple(runs[1::2]), stored, checked)


def _maintained(ctx: Context, case: SuiteCase, change: Change, *, is_cold: bool) -> ProcessRun:
    commit(ctx, change)
    for table in change:
        ctx.tables.advance(table)
    if is_cold:
        _drop_from_cache(ctx.store_path.parent)
    return maintain_afresh(ctx, case.query)


def _drop_from_cache(folder: Path) -> None:
    """Drop every file below the folder from the system's cache, if the system can do that.

    A catalog is skipped: closing it would release the locks of others in this process.
    """
    advise = getattr(os, "posix_fadvise", None)
    if advise is None:
        return
    os.sync()
    for file in folder.rglob("*"):
        if file.is_file() and _CATALOG not in file.name:
            handle = os.open(file, os.O_RDONLY)
            try:
                advise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)


def _told(case: SuiteCase, labels: dict[str, Label], run: _Run) -> Cell:
    metrics = {
        "process_ms": Metric.of([one.elapsed_ms for one in run.warm]),
        "cold_ms": Metric.of([one.elapsed_ms for one in run.cold]),
        "process_bytes": Metric.of([one.peak_bytes for one in (*run.warm, *run.cold)]),
        "stored_bytes": Metric.of([run.stored]),
    }
    return case.cell(metrics, labels, checked=run.checked)
