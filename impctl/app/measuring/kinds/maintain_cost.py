"""Measure `maintain`: what a change costs, maintained incrementally and by recapture.

Options: `changes` (rows) and `shares` (of the table changed), sizes of a change; `kind` (insert,
delete, both; delete_old, rows the table always had, by `changes` only): which changes count;
several are cells of their own, labelled `kind`. `key` (`id`): the column by which `delete_old`
tells rows apart. `processes`: sizes out of `changes` for which `impctl maintain` is also started
anew, as a timer would, three times per kind: `process_ms` is all that takes, `maintain_ms` a step
in a process that is up and holds state and lock (`app.measuring.follower`).
Law: for every size the maintained sketch is compared with recapture before anything is timed, with
the change and after it was taken back, and a cell carries the check of its kind; what the processes
stored is compared after them. The baseline is the fastest way to recapture the sketch, timed per
case on the table without the change, which favours it where changes are large; it is warmed up
until it ran four times, those of the checks counted, or for ten seconds more. A deletion takes back
what was inserted before, but for `delete_old` (`old_rows`). A cell's note has the number of ranges
where the table had no values for all that were asked for.
Out of scope: how a change is made and timed (`app.measuring.measured`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from impctl.app.measuring.follower import AgainstRecapture, Followed, Follower, worse_of
from impctl.app.measuring.ground import Ground
from impctl.app.measuring.kinds.duckdb_times import Beside, recapture_beside
from impctl.app.measuring.kinds.fresh_process import maintain_afresh
from impctl.app.measuring.kinds.old_rows import old_rows_deleted
from impctl.app.measuring.measured import MeasuredQuery, measured_copy
from impctl.bench.clock import milliseconds, warm_up
from impctl.bench.record import Cell, Label, Metric
from impctl.errors import ImpctlError
from impctl.values import dataclass

OLD = "delete_old"
KINDS = ("insert", "delete", "both", OLD)
"""`both` is an insertion and a deletion that takes it back."""

_CHANGES = (10, 50, 100, 500, 1000)
"""Sizes that the papers call realistic."""

_RECAPTURES = 3
"""Recaptures timed at most: one takes as long as hundreds of maintains."""

_PROCESSES = 3
"""Processes started for a change and for its way back."""


@dataclass(frozen=True, slots=True)
class _Options:
    changes: tuple[int, ...]
    processes: tuple[int, ...]
    shares: tuple[float, ...]
    kinds: tuple[str, ...]
    key: str


@dataclass(frozen=True, slots=True)
class _Size:
    """A change of so many rows, checked by kind and maintained: each run with its kind."""

    rows: int
    share: float
    checked: Mapping[str, AgainstRecapture]
    runs: Sequence[tuple[str, Followed]]
    state_bytes: int
    processes: Sequence[tuple[str, float]] = ()
    """Milliseconds of each fresh process, with its kind."""


def measure_maintain(ground: Ground) -> Iterator[Cell]:
    """Cells for every size and kind of change."""
    ground.only("changes", "shares", "kind", "processes", "key")
    shares = ground.numbers("shares")
    changes = ground.whole_numbers("changes", () if shares else _CHANGES)
    processes = ground.whole_numbers("processes")
    if not set(processes) <= set(changes):
        raise ground.refuse("processes", "sizes that also occur in `changes`")
    kinds = ground.choices("kind", KINDS, ("both",))
    if OLD in kinds and shares:
        raise ground.refuse(
            "shares", f"not measured where `kind` has `{OLD}`: its rows are of one file"
        )
    return _cells(ground, _Options(changes, processes, shares, kinds, ground.key()))


def _cells(ground: Ground, options: _Options) -> Iterator[Cell]:
    ground.step(f"capturing {ground.query.name}")
    with measured_copy(ground.desk, ground.query) as measured:
        sizes = _sizes(measured, options)
        found: list[_Size] = []
        failure: ImpctlError | None = None
        with measured.scratch.writing("bench"):
            try:
                for size, share in sizes.items():
                    found.append(_size(ground, measured, size, share, options))
            except ImpctlError as error:
                failure = error
            # Last and warm: a cold baseline would flatter us.
            recaptures = _recaptures(ground, measured, len(found)) if found else []
            turns = min(ground.repeat, _RECAPTURES)
            # After a failure nobody knows whether the change is still there.
            beside = recapture_beside(measured, turns) if failure is None else Beside()
            note = "; ".join(text for text in (_missing_ranges(measured), beside.note) if text)
            beside = replace(beside, note=note)
        if failure is None:
            try:
                found = [_with_processes(ground, measured, entry, options) for entry in found]
            except ImpctlError as error:
                failure = error
        for entry in found:
            for kind in options.kinds:
                yield _cell(ground, entry, kind, recaptures, beside, len(options.kinds) > 1)
        if failure is not None:
            raise failure


def _sizes(measured: MeasuredQuery, options: _Options) -> dict[int, float]:
    """Rows of every change, and their share of the table; small ones first."""
    total = measured.scratch.tables.snapshot(measured.table).rows or 0
    sizes = {size: size / total if total else 0.0 for size in options.changes}
    for share in options.shares:
        size = max(1, round(share * total))
        sizes[size] = _real_share(share, size, total)
    return dict(sorted(sizes.items()))


def _real_share(share: float, size: int, total: int) -> float:
    """The share asked for, or the real one where a table is too small to be divided like that."""
    return size / total if total and abs(size - share * total) > 0.005 * size else share


def _size(
    ground: Ground, measured: MeasuredQuery, size: int, share: float, options: _Options
) -> _Size:
    """One size: checked, then maintained forth and back in turn; last, old rows deleted."""
    ground.step(f"{ground.query.name} with {size} changes")
    rows = measured.rows_like_the_table(size, ground.seed)
    inserted, deleted = measured.checked_both_ways(rows)
    checked = {"insert": inserted, "delete": deleted, "both": worse_of(inserted, deleted)}
    runs = []
    for _ in range(ground.repeat):
        runs.append(("insert", measured.maintain(rows, forth=True)))
        runs.append(("delete", measured.maintain(rows, forth=False)))
    if OLD in options.kinds:
        checked[OLD], steps = old_rows_deleted(
            measured, options.key, size, ground.repeat, ground.seed
        )
        runs += [(OLD, step) for step in steps]
    return _Size(size, share, checked, runs, measured.follower.state_bytes)


def _with_processes(
    ground: Ground, measured: MeasuredQuery, entry: _Size, options: _Options
) -> _Size:
    """The size with the times of fresh processes, where they were asked for; the store is free."""
    if entry.rows not in options.processes:
        return entry
    ground.step(f"{ground.query.name} with {entry.rows} changes, each in a new process")
    scratch = measured.scratch
    rows = measured.rows_like_the_table(entry.rows, ground.seed)
    times: list[tuple[str, float]] = []
    for turn in range(2 * _PROCESSES):
        forth = turn % 2 == 0
        measured.commit(rows, forth=forth)
        scratch.tables.advance(measured.table)
        run = maintain_afresh(scratch, ground.query)
        times.append(("insert" if forth else "delete", run.elapsed_ms))
    stored = Follower(scratch, measured.prepared).checked(measured.unchanged)
    checked = {kind: worse_of(held, stored) for kind, held in entry.checked.items()}
    return replace(entry, processes=times, checked=checked)


def _missing_ranges(measured: MeasuredQuery) -> str:
    """How many ranges there are, where that is fewer than the suite asks for."""
    parts = measured.scratch.workload.partitions
    asked = {(part.table.lower(), part.column.lower()): part.ranges for part in parts}
    found = {}
    for part in measured.partitions.values():
        wanted = asked.get((part.table.lower(), part.attribute.lower()))
        if wanted is not None and part.ranges < wanted:
            name = f"{part.table}.{part.attribute}"
            found[name] = f"{part.ranges:,} of {wanted:,} ranges of {name} in use"
    return "; ".join(found.values())


def _recaptures(ground: Ground, measured: MeasuredQuery, sizes: int) -> list[float]:
    """Times of the baseline; the checks made one recapture per size and one without a change."""
    ground.step(f"recapturing {ground.query.name}")
    warm_up(measured.recapture, done=sizes + 1)
    return [milliseconds(measured.recapture) for _ in range(min(ground.repeat, _RECAPTURES))]


def _cell(
    ground: Ground,
    entry: _Size,
    kind: str,
    recaptures: Sequence[float],
    beside: Beside,
    labelled: bool,
) -> Cell:
    labels: dict[str, Label] = {"changes": entry.rows, "share": float(f"{entry.share:.3g}")}
    if labelled:
        labels["kind"] = kind
    runs = [run for way, run in entry.runs if _is_counted(way, kind)]
    maintain, recapture = Metric.of([run.total_ms for run in runs]), Metric.of(recaptures)
    metrics = {
        "maintain_ms": maintain,
        "read_ms": Metric.of([run.read_ms for run in runs]),
        "engine_ms": Metric.of([run.done.engine_ms for run in runs]),
        "commit_ms": Metric.of([run.done.commit_ms for run in runs]),
        "recapture_ms": recapture,
        "recapture_ratio": Metric.quotient(recapture, maintain),
        "state_bytes": Metric.of([entry.state_bytes]),
        **beside.metrics,
    }
    processes = [time for way, time in entry.processes if _is_counted(way, kind)]
    if processes:
        metrics["process_ms"] = Metric.of(processes)
    return ground.cell(metrics, labels, checked=entry.checked[kind], note=beside.note)


def _is_counted(way: str, kind: str) -> bool:
    """Whether a run counts for cells of this kind."""
    return way == kind or (kind == "both" and way != OLD)
