"""Two records of one suite: which cells became faster or slower, beyond what noise can make.

Law: a difference is told only where the runs of the two cells do not overlap and their medians
lie further apart than noise can make: the noise of both records together, half where one of them
has a single run, next to nothing for sizes. A ratio below 1 is less of the metric. Cells that only
one of the records has are listed, never dropped; wrong ones of the new record come before numbers.
Out of scope: records of different suites, scales or tables, which are refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from impctl.bench.record import Cell, Label, Metric, Record
from impctl.errors import UsageError

_SINGLE = 0.5
"""Band of a time that was measured once: Spark alone makes one run differ by that from the next."""

_EXACT = 0.01
"""Band of sizes and counts, which do not depend on how quick the machine is."""


class Verdict(StrEnum):
    """What became of a metric; the first three of times and ratios, the others of sizes."""

    SAME = "same"
    FASTER = "faster"
    SLOWER = "slower"
    LESS = "less"
    MORE = "more"


@dataclass(frozen=True, slots=True)
class MetricChange:
    """One metric of one cell in both records; `ratio` is new over old."""

    figure: str
    labels: Mapping[str, Label]
    metric: str
    old: float
    new: float
    ratio: float
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class CellPlace:
    """A cell by its figure and labels."""

    figure: str
    labels: Mapping[str, Label]


@dataclass(frozen=True, slots=True)
class RecordComparison:
    """All metrics of matched cells, and cells without a partner.

    `noise` is the share by which medians may differ for no reason; `differences` names facts of
    the runs that differ and may explain what changed. `wrong` are cells of the new record whose
    check failed.
    """

    suite: str
    noise: float
    changes: tuple[MetricChange, ...]
    only_old: tuple[CellPlace, ...]
    only_new: tuple[CellPlace, ...]
    differences: tuple[str, ...]
    wrong: tuple[CellPlace, ...] = ()


def compare_records(old: Record, new: Record) -> RecordComparison:
    """What changed from the old record to the new one."""
    _check_comparable(old, new)
    before = {_key(cell): cell for cell in old.cells}
    after = {_key(cell): cell for cell in new.cells}
    noise = (1 + old.noise) * (1 + new.noise) - 1
    changes = [
        change
        for key, cell in before.items()
        if key in after
        for change in _changes(cell, after[key], noise)
    ]
    return RecordComparison(
        new.suite,
        noise,
        tuple(changes),
        _places(cell for key, cell in before.items() if key not in after),
        _places(cell for key, cell in after.items() if key not in before),
        _differences(old, new),
        _places(cell for cell in new.cells if cell.covers is False or cell.equal is False),
    )


def _places(cells: Iterable[Cell]) -> tuple[CellPlace, ...]:
    return tuple(CellPlace(cell.figure, cell.labels) for cell in cells)


def _check_comparable(old: Record, new: Record) -> None:
    for what, mine, theirs in (
        ("suites", old.suite, new.suite),
        ("scales", f"{old.scale:g}", f"{new.scale:g}"),
        ("seeds", str(old.seed), str(new.seed)),
        *_rows(old, new),
    ):
        if mine != theirs:
            raise UsageError(
                f"The records are of different {what}: {mine} and {theirs}",
                code="records_differ",
                hint="run the suite twice with the same options, then compare",
            )


def _rows(old: Record, new: Record) -> list[tuple[str, str, str]]:
    """The sizes of the tables that both measured: a source of data is as large as it is."""
    both = [name for name in old.tables if name in new.tables]
    return [
        (f"sizes of table `{name}`", f"{old.tables[name]:,} rows", f"{new.tables[name]:,}")
        for name in both
    ]


def _differences(old: Record, new: Record) -> tuple[str, ...]:
    facts = {"repeat": (str(old.repeat), str(new.repeat))}
    for name in dict.fromkeys((*old.machine, *new.machine)):
        facts[name] = (old.machine.get(name, "unknown"), new.machine.get(name, "unknown"))
    differing = (
        f"{name}: {mine}, then {theirs}" for name, (mine, theirs) in facts.items() if mine != theirs
    )
    failed = (f"failed in the new one: {text}" for text in new.failures if text not in old.failures)
    return (*differing, *failed)


def _key(cell: Cell) -> tuple[str, frozenset[tuple[str, Label]]]:
    return cell.figure, frozenset(cell.labels.items())


def _changes(old: Cell, new: Cell, noise: float) -> list[MetricChange]:
    """The metrics that both cells have."""
    found = []
    for name, before in old.metrics.items():
        after = new.metrics.get(name)
        if after is None:
            continue
        ratio = _over(after.median, before.median)
        verdict = _verdict(name, before, after, ratio, _band(name, before, after, noise))
        found.append(
            MetricChange(old.figure, old.labels, name, before.median, after.median, ratio, verdict)
        )
    if old.slack is not None and new.slack is not None:
        found.append(_slack_change(old, old.slack, new.slack))
    return found


def _slack_change(old: Cell, before: int, after: int) -> MetricChange:
    """Fragments held without need: no measurement, so any difference counts."""
    ratio = _over(after, before)
    verdict = Verdict.SAME if before == after else Verdict.MORE if after > before else Verdict.LESS
    return MetricChange(old.figure, old.labels, "slack", before, after, ratio, verdict)


def _over(after: float, before: float) -> float:
    """New over old; what came from nothing is infinitely more."""
    if before:
        return after / before
    return math.inf if after else 1.0


def _band(name: str, old: Metric, new: Metric, noise: float) -> float:
    """The share by which the medians may differ for no reason."""
    if not name.endswith(("_ms", "_ratio")):
        return _EXACT
    return max(noise, _SINGLE) if min(old.runs, new.runs) < 2 else noise


def _verdict(name: str, old: Metric, new: Metric, ratio: float, band: float) -> Verdict:
    grown = new.low > old.high and ratio > 1 + band
    shrunk = new.high < old.low and ratio < 1 / (1 + band)
    if not grown and not shrunk:
        return Verdict.SAME
    if name.endswith("_ratio"):
        return Verdict.FASTER if grown else Verdict.SLOWER
    if name.endswith("_ms"):
        return Verdict.SLOWER if grown else Verdict.FASTER
    return Verdict.MORE if grown else Verdict.LESS
