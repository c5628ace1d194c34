"""Measure `maintain`: what a change costs, maintained incrementally and by recapture.

Options: `changes` (rows) and `shares` (of the table changed), sizes of a change; `kind` (insert,
delete, both): which changes count; several are cells of their own, labelled `kind`. `maintain_ms`
is a step in a process that is up and holds state and lock (`measure.follower`).
Law: for every size the maintained sketch is compared with recapture before anything is timed, with
the change and after it was taken back, and a cell carries the check of its kind. The baseline is
the fastest way to recapture the sketch, timed per case on the table without the change, which
favours it where changes are large; it is warmed up until it ran four times, those of the checks
counted, or for ten seconds more. A deletion takes back what was inserted before. A cell's note has
the number of ranges where the table had no values for all that were asked for.
Out of scope: how a change is made and timed (`measure.measured`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from impctl.bench.clock import milliseconds, warm_up
from impctl.bench.record import Cell, Label, Metric
from impctl.errors import ImpctlError
from impctl.measure.follower import AgainstRecapture, Followed, worse_of
from impctl.measure.kinds.duckdb_times import Beside, recapture_beside
from impctl.measure.measured import MeasuredQuery, measured_copy
from impctl.values import dataclass

if TYPE_CHECKING:
    from impctl.measure.ground import Ground

KINDS = ("insert", "delete", "both")
"""`both` is an insertion and a deletion that takes it back."""

_CHANGES = (10, 50, 100, 500, 1000)
"""Sizes that the papers call realistic."""

_RECAPTURES = 3
"""Recaptures timed at most: one takes as long as hundreds of maintains."""


@dataclass(frozen=True, slots=True)
class _Options:
    changes: tuple[int, ...]
    shares: tuple[float, ...]
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Size:
    """A change of so many rows, checked by kind and maintained: each run with its kind."""

    rows: int
    share: float
    checked: Mapping[str, AgainstRecapture]
    runs: Sequence[tuple[str, Followed]]
    state_bytes: int


def measure_maintain(ground: Ground) -> Iterator[Cell]:
    """Cells for every size and kind of change."""
    ground.only("changes", "shares", "kind")
    shares = ground.numbers("shares")
    changes = ground.whole_numbers("changes", () if shares else _CHANGES)
    kinds = ground.choices("kind", KINDS, ("both",))
    return _cells(ground, _Options(changes, shares, kinds))


def _cells(ground: Ground, options: _Options) -> Iterator[Cell]:
    ground.step(f"capturing {ground.query.name}")
    with measured_copy(ground.desk, ground.query) as measured:
        sizes = _sizes(measured, options)
        result: list[_Size] = []
        failure: ImpctlError | None = None
        with measured.scratch.writing("bench"):
            try:
                for size, share in sizes.items():
                    result.append(_size(ground, measured, size, share))
            except ImpctlError as error:
                failure = error
            # Last and warm: a cold baseline would flatter us.
            recaptures = recapture_times(ground, measured, len(result)) if result else []
            # After a failure nobody knows whether the change is still there.
            beside = duckdb_beside(ground, measured) if failure is None else Beside()
        for entry in result:
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


def _size(ground: Ground, measured: MeasuredQuery, size: int, share: float) -> _Size:
    """One size: checked, then maintained forth and back in turn."""
    ground.step(f"{ground.query.name} with {size} changes")
    rows = measured.rows_like_the_table(size, ground.seed)
    inserted, deleted = measured.checked_both_ways(rows)
    checked = {"insert": inserted, "delete": deleted, "both": worse_of(inserted, deleted)}
    runs = []
    for _ in range(ground.repeat):
        runs.append(("insert", measured.maintain(rows, forth=True)))
        runs.append(("delete", measured.maintain(rows, forth=False)))
    return _Size(size, share, checked, runs, measured.follower.state_bytes)


def duckdb_beside(ground: Ground, measured: MeasuredQuery) -> Beside:
    """DuckDB's recapture, with a note on missing ranges too."""
    beside = recapture_beside(measured, min(ground.repeat, _RECAPTURES))
    note = "; ".join(text for text in (_missing_ranges(measured), beside.note) if text)
    return replace(beside, note=note)


def _missing_ranges(measured: MeasuredQuery) -> str:
    """How many ranges there are, where that is fewer than the workload asks for."""
    parts = measured.scratch.workload.partitions
    asked = {(part.table.lower(), part.column.lower()): part.ranges for part in parts}
    result = {}
    for part in measured.partitions.values():
        wanted = asked.get((part.table.lower(), part.attribute.lower()))
        if wanted is not None and part.ranges < wanted:
            name = f"{part.table}.{part.attribute}"
            result[name] = f"{part.ranges:,} of {wanted:,} ranges of {name} in use"
    return "; ".join(result.values())


def recapture_times(ground: Ground, measured: MeasuredQuery, sizes: int) -> list[float]:
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
    runs = [run for way, run in entry.runs if kind in (way, "both")]
    metrics = metrics_of(runs, recaptures, entry.state_bytes)
    metrics = {**metrics, **beside.metrics}
    return ground.cell(metrics, labels, checked=entry.checked[kind], note=beside.note)


def metrics_of(
    runs: Sequence[Followed], recaptures: Sequence[float], state_bytes: int
) -> dict[str, Metric]:
    """The metrics of steps, beside recaptures."""
    maintain, recapture = Metric.of([run.total_ms for run in runs]), Metric.of(recaptures)
    return {
        "maintain_ms": maintain,
        "read_ms": Metric.of([run.read_ms for run in runs]),
        "engine_ms": Metric.of([run.done.engine_ms for run in runs]),
        "commit_ms": Metric.of([run.done.commit_ms for run in runs]),
        "recapture_ms": recapture,
        "recapture_ratio": Metric.quotient(recapture, maintain),
        "state_bytes": Metric.of([state_bytes]),
    }
