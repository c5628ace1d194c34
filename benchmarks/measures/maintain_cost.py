"""Measure `maintain` of suites: that of workloads (`impctl.measure`), with two more options.

`kind: delete_old` deletes rows that the table always had, by `changes` only; `key` (`id`) is the
column that identifies rows. `processes`: sizes out of `changes` for which `impctl maintain` is also
started anew, as a timer would, three times per kind: `process_ms` is all that takes. What the
processes stored is compared after them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.figures import SuiteCase
from benchmarks.fresh_process import maintain_afresh
from benchmarks.old_rows import old_rows_deleted
from impctl.bench.record import Cell, Metric
from impctl.measure.kinds import (
    KINDS,
    MaintainedChange,
    change_cell,
    duckdb_recapture_with_note,
    measure_maintain,
    recapture_times,
)
from impctl.measure.scratch import AgainstRecapture, MeasuredQuery, measured_copy

OLD = "delete_old"
_CHANGES = (10, 50, 100, 500, 1000)
"""Sizes that the papers call realistic."""
_PROCESSES = 3
"""Processes started for a change and for its way back."""


class _Processes(Struct, frozen=True):
    """Milliseconds of fresh processes by kind of change, and the check of what they stored."""

    times: Mapping[str, Sequence[float]]
    checked: AgainstRecapture


def measure_suite_maintain(case: SuiteCase) -> Iterator[Cell]:
    """Cells for every size and kind of change."""
    case.only("changes", "shares", "kind", "processes", "key")
    kinds = case.choices("kind", (*KINDS, OLD), ("both",))
    changes = case.whole_numbers("changes")
    processes = case.whole_numbers("processes")
    if not set(processes) <= set(changes):
        raise case.refuse("processes", "sizes that also occur in `changes`")
    shares = case.numbers("shares")
    if OLD in kinds and shares:
        raise case.refuse(
            "shares", f"not measured where `kind` has `{OLD}`: its rows are of one file"
        )
    if OLD in kinds and not changes:
        raise case.refuse("changes", f"given where `kind` has `{OLD}`")
    new_kinds = tuple(kind for kind in kinds if kind != OLD)
    sizes = changes if changes or shares else _CHANGES
    others = measure_maintain(case, sizes, shares, new_kinds)
    cells = _cells(case, others if new_kinds else iter(()), kinds, processes)
    old = _old_rows(case, changes, case.key(), labelled=len(kinds) > 1)
    return chain(cells, old if OLD in kinds else ())


def _cells(
    case: SuiteCase, others: Iterator[Cell], kinds: tuple[str, ...], processes: tuple[int, ...]
) -> Iterator[Cell]:
    afresh = {size: _processes(case, size) for size in processes}
    for cell in others:
        labels = dict(cell.labels)
        kind = str(labels.get("kind", kinds[0]))
        if len(kinds) > 1:
            labels["kind"] = kind
        yield _with_processes(replace(cell, labels=labels), kind, afresh)


def _with_processes(cell: Cell, kind: str, afresh: Mapping[int, _Processes]) -> Cell:
    size = cell.labels["changes"]
    if not isinstance(size, int) or size not in afresh:
        return cell
    run = afresh[size]
    times = [time for way, of_way in run.times.items() if kind in (way, "both") for time in of_way]
    return replace(
        cell,
        metrics={**cell.metrics, "process_ms": Metric.of(times)},
        covers=bool(cell.covers) and run.checked.covers,
        slack=max(cell.slack or 0, run.checked.slack),
    )


def _processes(case: SuiteCase, size: int) -> _Processes:
    case.step(f"{case.query.name} with {size} changes, each in a new process")
    times: dict[str, list[float]] = {"insert": [], "delete": []}
    with measured_copy(case.ctx, case.query) as measured:
        unchanged = measured.unchanged
        rows = measured.rows_like_the_table(size, case.seed)
        for turn in range(2 * _PROCESSES):
            forth = turn % 2 == 0
            measured.commit(rows, forth=forth)
            measured.scratch.tables.advance(measured.table)
            run = maintain_afresh(measured.scratch, case.query)
            times["insert" if forth else "delete"].append(run.elapsed_ms)
        stored = MeasuredQuery(measured.scratch, measured.prepared)
        return _Processes(times, stored.checked(unchanged))


def _old_rows(
    case: SuiteCase, changes: tuple[int, ...], key: str, *, labelled: bool
) -> Iterator[Cell]:
    with measured_copy(case.ctx, case.query) as measured:
        total = measured.scratch.tables.snapshot(measured.table).rows or 0
        with measured.scratch.writing("bench"):
            runs = [_old(case, measured, key, size, total) for size in sorted(changes)]
            recaptures = recapture_times(case, measured, len(runs))
            duckdb = duckdb_recapture_with_note(case, measured)
        for change in runs:
            yield change_cell(case, change, OLD, recaptures, duckdb, is_labelled=labelled)


def _old(
    case: SuiteCase, measured: MeasuredQuery, key: str, size: int, total: int
) -> MaintainedChange:
    checked, steps = old_rows_deleted(measured, key, size, case.repeat, case.seed)
    runs = [(OLD, step) for step in steps]
    share = size / total if total else 0.0
    return MaintainedChange(size, share, {OLD: checked}, runs, measured.state_bytes)
