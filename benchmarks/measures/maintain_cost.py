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

from benchmarks.fresh_process import maintain_afresh
from benchmarks.old_rows import old_rows_deleted
from impctl.bench.record import Cell, Label, Metric
from impctl.measure.figures import CaseContext
from impctl.measure.kinds import (
    KINDS,
    duckdb_recapture_with_note,
    measure_maintain,
    metrics_of,
    recapture_times,
)
from impctl.measure.scratch import AgainstRecapture, RestoredQuery, measured_copy

OLD = "delete_old"
_OWN = ("changes", "shares", "kind")
_PROCESSES = 3
"""Processes started for a change and for its way back."""


class _Processes(Struct, frozen=True):
    """Milliseconds of fresh processes by kind of change, and the check of what they stored."""

    times: Mapping[str, Sequence[float]]
    checked: AgainstRecapture


def measure_suite_maintain(ground: CaseContext) -> Iterator[Cell]:
    """Cells for every size and kind of change."""
    ground.only(*_OWN, "processes", "key")
    kinds = ground.choices("kind", (*KINDS, OLD), ("both",))
    changes = ground.whole_numbers("changes")
    processes = ground.whole_numbers("processes")
    if not set(processes) <= set(changes):
        raise ground.refuse("processes", "sizes that also occur in `changes`")
    if OLD in kinds and ground.numbers("shares"):
        raise ground.refuse(
            "shares", f"not measured where `kind` has `{OLD}`: its rows are of one file"
        )
    if OLD in kinds and not changes:
        raise ground.refuse("changes", f"given where `kind` has `{OLD}`")
    options = {name: value for name, value in ground.figure.options.items() if name in _OWN}
    own = tuple(kind for kind in kinds if kind != OLD)
    options["kind"] = own
    others = measure_maintain(replace(ground, figure=replace(ground.figure, options=options)))
    cells = _cells(ground, others if own else iter(()), kinds, processes)
    old = _old_rows(ground, changes, ground.key(), labelled=len(kinds) > 1)
    return chain(cells, old if OLD in kinds else ())


def _cells(
    ground: CaseContext, others: Iterator[Cell], kinds: tuple[str, ...], processes: tuple[int, ...]
) -> Iterator[Cell]:
    afresh = {size: _processes(ground, size) for size in processes}
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


def _processes(ground: CaseContext, size: int) -> _Processes:
    ground.step(f"{ground.query.name} with {size} changes, each in a new process")
    times: dict[str, list[float]] = {"insert": [], "delete": []}
    with measured_copy(ground.ctx, ground.query) as measured:
        unchanged = measured.unchanged
        rows = measured.rows_like_the_table(size, ground.seed)
        for turn in range(2 * _PROCESSES):
            forth = turn % 2 == 0
            measured.commit(rows, forth=forth)
            measured.scratch.tables.advance(measured.table)
            run = maintain_afresh(measured.scratch, ground.query)
            times["insert" if forth else "delete"].append(run.elapsed_ms)
        stored = RestoredQuery(measured.scratch, measured.prepared)
        return _Processes(times, stored.checked(unchanged))


def _old_rows(
    ground: CaseContext, changes: tuple[int, ...], key: str, *, labelled: bool
) -> Iterator[Cell]:
    with measured_copy(ground.ctx, ground.query) as measured:
        total = measured.scratch.tables.snapshot(measured.table).rows or 0
        with measured.scratch.writing("bench"):
            runs = {
                size: old_rows_deleted(measured, key, size, ground.repeat, ground.seed)
                for size in sorted(changes)
            }
            recaptures = recapture_times(ground, measured, len(runs))
            beside = duckdb_recapture_with_note(ground, measured)
        for size, (checked, steps) in runs.items():
            share = float(f"{size / total if total else 0.0:.3g}")
            labels: dict[str, Label] = {"changes": size, "share": share}
            if labelled:
                labels["kind"] = OLD
            metrics = metrics_of(steps, recaptures, measured.follower.state_bytes)
            metrics = {**metrics, **beside.metrics}
            yield ground.cell(metrics, labels, checked=checked, note=beside.note)
