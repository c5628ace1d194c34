"""Two records of one suite: which cells became faster or slower, beyond what noise can make.

Law: a difference is told only where the runs of the two cells do not overlap and their medians
lie further apart than the noise of both records together; a ratio below 1 is less of the metric.
Cells that only one of the records has are listed, never dropped.
Out of scope: records of different suites or scales, which are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from impctl.bench.record import Cell, Label, Metric, Record
from impctl.errors import UsageError


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
    the runs that differ and may explain what changed.
    """

    suite: str
    noise: float
    changes: tuple[MetricChange, ...]
    only_old: tuple[CellPlace, ...]
    only_new: tuple[CellPlace, ...]
    differences: tuple[str, ...]


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
        tuple(CellPlace(c.figure, c.labels) for key, c in before.items() if key not in after),
        tuple(CellPlace(c.figure, c.labels) for key, c in after.items() if key not in before),
        _differences(old, new),
    )


def _check_comparable(old: Record, new: Record) -> None:
    for what, mine, theirs in (
        ("suites", old.suite, new.suite),
        ("scales", f"{old.scale:g}", f"{new.scale:g}"),
        ("seeds", str(old.seed), str(new.seed)),
    ):
        if mine != theirs:
            raise UsageError(
                f"The records are of different {what}: {mine} and {theirs}",
                code="records_differ",
                hint="run the suite twice with the same options, then compare",
            )


def _differences(old: Record, new: Record) -> tuple[str, ...]:
    facts = {"repeat": (str(old.repeat), str(new.repeat))}
    for name in dict.fromkeys((*old.machine, *new.machine)):
        facts[name] = (old.machine.get(name, "unknown"), new.machine.get(name, "unknown"))
    return tuple(
        f"{name}: {mine}, then {theirs}" for name, (mine, theirs) in facts.items() if mine != theirs
    )


def _key(cell: Cell) -> tuple[str, frozenset[tuple[str, Label]]]:
    return cell.figure, frozenset(cell.labels.items())


def _changes(old: Cell, new: Cell, noise: float) -> list[MetricChange]:
    """The metrics that both cells have."""
    found = []
    for name, before in old.metrics.items():
        after = new.metrics.get(name)
        if after is None:
            continue
        ratio = after.median / before.median if before.median else _from_nothing(after)
        verdict = _verdict(name, before, after, ratio, noise)
        found.append(
            MetricChange(old.figure, old.labels, name, before.median, after.median, ratio, verdict)
        )
    return found


def _from_nothing(after: Metric) -> float:
    return float("inf") if after.median else 1.0


def _verdict(name: str, old: Metric, new: Metric, ratio: float, noise: float) -> Verdict:
    grown = new.low > old.high and ratio > 1 + noise
    shrunk = new.high < old.low and ratio < 1 / (1 + noise)
    if not grown and not shrunk:
        return Verdict.SAME
    if name.endswith("_ratio"):
        return Verdict.FASTER if grown else Verdict.SLOWER
    if name.endswith("_ms"):
        return Verdict.SLOWER if grown else Verdict.FASTER
    return Verdict.MORE if grown else Verdict.LESS
