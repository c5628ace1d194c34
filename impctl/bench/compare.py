"""Compare two records of one suite: which cells became faster or slower beyond the noise.

Law: a difference is reported only beyond the band (`band_of`) of the noise that both records had
around the figure. A ratio below 1 is less of the metric. Times of different machines are not
judged, because they distinguish the machines; ratios and sizes are. Cells that only one record has,
or that measured something else under the same labels, are listed, never dropped; wrong ones of the
new record come before numbers. Records of different suites, scales or tables are refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from impctl.bench.record import band_of, side_of
from impctl.errors import UsageError

if TYPE_CHECKING:
    from impctl.bench.record import Cell, Label, Metric, Record

_MACHINE = ("cpu", "cores")
"""Facts that must agree if times are to be compared."""


class Difference(StrEnum):
    """How a metric changed: faster or slower for times and ratios, less or more for sizes, unjudged
    for times of two machines."""

    SAME = "same"
    FASTER = "faster"
    SLOWER = "slower"
    LESS = "less"
    MORE = "more"
    UNJUDGED = "unjudged"


class MetricChange(Struct, frozen=True):
    """One metric of one cell in both records; `ratio` is new over old."""

    figure: str
    labels: Mapping[str, Label]
    metric: str
    old: float
    new: float
    ratio: float
    verdict: Difference


class CellPlace(Struct, frozen=True):
    figure: str
    labels: Mapping[str, Label]


class RecordComparison(Struct, frozen=True, kw_only=True):
    """All metrics of matched cells, and cells without a partner. `noise` is that of both whole runs
    together; `differences` names facts of the runs that differ and may explain changes. `wrong` are
    cells of the new record whose check failed, `edited` cells in both records that measured another
    query, partition, option or data."""

    suite: str
    noise: float
    changes: tuple[MetricChange, ...]
    only_old: tuple[CellPlace, ...]
    only_new: tuple[CellPlace, ...]
    differences: tuple[str, ...]
    wrong: tuple[CellPlace, ...] = ()
    edited: tuple[CellPlace, ...] = ()


def compare_records(old: Record, new: Record) -> RecordComparison:
    """Compare the new record with the old one."""
    _check_comparable(old, new)
    before = {_key(cell): cell for cell in old.cells}
    after = {_key(cell): cell for cell in new.cells}
    pairs = [(cell, after[key]) for key, cell in before.items() if key in after]
    same = [(cell, other) for cell, other in pairs if not _is_edited(cell, other)]
    machines = all(old.machine.get(fact) == new.machine.get(fact) for fact in _MACHINE)
    changes = [change for pair in same for change in _changes(old, new, pair, machines)]
    return RecordComparison(
        suite=new.suite,
        noise=_together(old.noise, new.noise),
        changes=tuple(changes),
        only_old=_places(cell for key, cell in before.items() if key not in after),
        only_new=_places(cell for key, cell in after.items() if key not in before),
        differences=_differences(old, new),
        wrong=_places(cell for cell in new.cells if cell.covers is False or cell.equal is False),
        edited=_places(cell for cell, other in pairs if _is_edited(cell, other)),
    )


def _together(old: float, new: float) -> float:
    return (1 + old) * (1 + new) - 1


def _is_edited(old: Cell, new: Cell) -> bool:
    """Whether both name what they measured, and it differs."""
    known = old.fingerprint and new.fingerprint
    return bool(known) and old.fingerprint != new.fingerprint


def _places(cells: Iterable[Cell]) -> tuple[CellPlace, ...]:
    return tuple(CellPlace(cell.figure, cell.labels) for cell in cells)


def _check_comparable(old: Record, new: Record) -> None:
    for fact, before, after in (
        ("kinds", str(old.kind), str(new.kind)),
        ("suites", old.suite, new.suite),
        ("scales", f"{old.scale:g}", f"{new.scale:g}"),
        ("seeds", str(old.seed), str(new.seed)),
        *_rows(old, new),
    ):
        if before != after:
            raise UsageError(
                f"The records differ in {fact}: {before} and {after}",
                code="records_differ",
                hint="measure twice with the same options, then compare",
            )


def _rows(old: Record, new: Record) -> list[tuple[str, str, str]]:
    """The sizes of the tables in both records: scale does not determine them for source data."""
    both = [name for name in old.tables if name in new.tables]
    return [
        (f"sizes of table `{name}`", f"{old.tables[name]:,} rows", f"{new.tables[name]:,} rows")
        for name in both
    ]


def _differences(old: Record, new: Record) -> tuple[str, ...]:
    facts = {"repeat": (str(old.repeat), str(new.repeat))}
    for name in dict.fromkeys((*old.machine, *new.machine)):
        facts[name] = (old.machine.get(name, "unknown"), new.machine.get(name, "unknown"))
    differing = (
        f"{name}: {before}, then {after}"
        for name, (before, after) in facts.items()
        if before != after
    )
    failed = (f"failed in the new one: {text}" for text in new.failures if text not in old.failures)
    return (*differing, *failed)


def _key(cell: Cell) -> tuple[str, frozenset[tuple[str, Label]]]:
    return cell.figure, frozenset(cell.labels.items())


def _changes(
    old: Record, new: Record, pair: tuple[Cell, Cell], is_one_machine: bool
) -> list[MetricChange]:
    first, second = pair
    noise = _together(old.noise_of(first.figure), new.noise_of(first.figure))
    result = []
    for name, before in first.metrics.items():
        after = second.metrics.get(name)
        if after is None:
            continue
        judged = is_one_machine or not name.endswith("_ms")
        verdict = _verdict(name, before, after, noise) if judged else Difference.UNJUDGED
        medians = before.median, after.median, _over(after.median, before.median)
        result.append(MetricChange(first.figure, first.labels, name, *medians, verdict))
    if first.slack is not None and second.slack is not None:
        result.append(_slack_change(first, first.slack, second.slack))
    return result


def _slack_change(old: Cell, before: int, after: int) -> MetricChange:
    """Compare unneeded ranges, which are no measurement, so any difference counts."""
    ratio = _over(after, before)
    verdict = Difference.SAME
    if before != after:
        verdict = Difference.MORE if after > before else Difference.LESS
    return MetricChange(old.figure, old.labels, "slack", before, after, ratio, verdict)


def _over(after: float, before: float) -> float:
    """New over old; infinite if old is zero."""
    if before:
        return after / before
    return math.inf if after else 1.0


def _verdict(name: str, old: Metric, new: Metric, noise: float) -> Difference:
    side = side_of(old, new, band_of(name, old, new, noise))
    if side == 0:
        return Difference.SAME
    if name.endswith("_ratio"):
        return Difference.FASTER if side > 0 else Difference.SLOWER
    if name.endswith("_ms"):
        return Difference.SLOWER if side > 0 else Difference.FASTER
    return Difference.MORE if side > 0 else Difference.LESS
