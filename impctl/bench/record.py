"""What one run measured, as a record and as JSON text; and what differs between two records."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct, ValidationError, convert, field, to_builtins

from impctl.errors import UsageError

# Law: a record is complete: machine, versions, commit, seed, scale and noise stand beside the
# numbers. A metric's name ends in its unit (`_ms`, `_bytes`, `_rows`, `_count`, `_share`,
# `_ratio`); only `_ratio` is better when larger.

RECORD_FORMAT = 1

Label = str | int | float
"""What distinguishes cells: `groups: 50`, `changes: 1000`, `strategy: eager`."""


class RecordKind(StrEnum):
    """What was measured: a suite has a scale, a workload tables as they are."""

    SUITE = "suite"
    WORKLOAD = "workload"


class Metric(Struct, frozen=True):
    """The median, least and greatest of `runs` measurements; one run or a computed number has no
    spread."""

    median: float
    low: float
    high: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Metric:
        """Summarize measurements, at least one."""
        import statistics  # every command loads what a record is, and hardly one makes any

        return cls(statistics.median(values), min(values), max(values), len(values))

    @classmethod
    def quotient(cls, over: Metric, under: Metric) -> Metric:
        """Divide by `under`, which is positive: medians by medians, so that all three agree where
        they are shown; least and greatest are what the runs of both allow."""
        return cls(
            over.median / under.median,
            over.low / under.high,
            over.high / under.low,
            min(over.runs, under.runs),
        )


class Cell(Struct, frozen=True):
    """One point of one figure. `covers` says whether the sketch covered recapture before anything
    was timed, None without a sketch to check; `slack` counts unneeded ranges. `equal` says whether
    results with and without sketch were equal. `note` is a remark on this cell.
    `fingerprint` stands for what labels omit: the query, its partition, the options, the data; it
    is empty in records from before there was one."""

    figure: str
    labels: Mapping[str, Label]
    metrics: Mapping[str, Metric]
    covers: bool | None = None
    slack: int | None = None
    equal: bool | None = None
    note: str = ""
    fingerprint: str = ""


class Chart(Struct, frozen=True):
    """How cells become lines: `x` is a label, `y` are metrics, with a line per metric and `series`.
    `log` names the axes ("x", "y") on a logarithmic scale. A text label makes bars."""

    x: str
    y: tuple[str, ...]
    series: tuple[str, ...] = ()
    log: tuple[str, ...] = ()


class Figure(Struct, frozen=True):
    """A figure of a report; `claim` is what the papers print, `source` where (empty: nothing)."""

    name: str
    title: str
    about: str
    chart: Chart
    claim: str = ""
    source: str = ""


class Record(Struct, frozen=True, kw_only=True):
    """One run: `started` is an ISO 8601 time in UTC. `noise` is the share by which equal work took
    longer at its slowest than at its fastest over the whole run, `figure_noise` that right before
    and after a figure. `suite` is the name of the suite or the workload, as `kind` says. `tables`
    has the rows of every table that queries read, before any change: scale does not determine them
    if there is a minimum size or source data. `failures` lists everything that could not be
    measured, one sentence each. A run that is planned has no more than its first five fields."""

    suite: str
    title: str
    scale: float
    repeat: int
    seed: int
    started: str = ""
    elapsed_s: float = 0.0
    noise: float = 0.0
    machine: Mapping[str, str] = field(default_factory=dict)
    figures: tuple[Figure, ...] = ()
    cells: tuple[Cell, ...] = ()
    failures: tuple[str, ...] = ()
    format: int = RECORD_FORMAT
    tables: Mapping[str, int] = field(default_factory=dict)
    figure_noise: Mapping[str, float] = field(default_factory=dict)
    kind: RecordKind = RecordKind.SUITE

    def cells_of(self, figure: str) -> tuple[Cell, ...]:
        """The cells of one figure, in the order measured."""
        return tuple(cell for cell in self.cells if cell.figure == figure)

    def noise_of(self, figure: str) -> float:
        """The noise around a figure, else that of the whole run."""
        noise = self.figure_noise.get(figure, self.noise)
        return noise if math.isfinite(noise) and noise > 0 else 0.0


# The noise rule of reports and comparisons. Law: two metrics differ only if their runs do not
# interleave and their medians lie further apart than the band. The band of times and ratios is the
# noise, but at least a tenth, since two yardsticks may agree by chance, and at least half if either
# has a single run; sizes have hardly any.

SINGLE = 0.5
"""Band of a time measured once: single runs of Spark differ by that much."""

LEAST = 0.1
"""Minimum band of times, however quiet the machine seemed: noise comes from few yardsticks."""

UNSTEADY = 0.25
"""Noise from which the reader is warned."""

_EXACT = 0.01
"""Band of sizes and counts, which do not depend on the machine."""


def band_of(metric: str, left: Metric, right: Metric, noise: float) -> float:
    """The share by which the medians of this metric may differ for no reason."""
    if not metric.endswith(("_ms", "_ratio")):
        return _EXACT
    return max(noise, SINGLE if min(left.runs, right.runs) < 2 else LEAST)


def side_of(left: Metric, right: Metric, band: float) -> int:
    """1 if `right` is more than `left` beyond the band, -1 if it is less, else 0."""
    if right.low > left.high and right.median > left.median * (1 + band):
        return 1
    if right.high < left.low and left.median > right.median * (1 + band):
        return -1
    return 0


# JSON. Law: reading what was written gives the same record. A file that is no record, or of a newer
# format, is refused with one sentence; older formats and the envelope of `impctl bench --json` are
# read.

_ADDED = frozenset({"tables", "figure_noise", "kind", "fingerprint"})
"""Fields that older records of this format lack."""


def record_to_json(record: Record) -> str:
    """Convert the record to an indented JSON document."""
    return json.dumps(_plain(to_builtins(record)), indent=1, allow_nan=False) + "\n"


def record_from_json(text: str, name: str) -> Record:
    """Read a record from JSON; UsageError, with `name` for the file, if it is none."""
    try:
        document = _unwrapped(json.loads(text))
    except ValueError:
        raise _foreign(name, "it is not JSON") from None
    if not isinstance(document, dict) or "suite" not in document or "cells" not in document:
        raise _foreign(name, "it has no suite and cells")
    version = document.get("format")
    if not isinstance(version, int):
        raise _foreign(name, "it does not name its format")
    if version > RECORD_FORMAT:
        raise UsageError(
            f"Record `{name}` has a format that this impctl does not support: {version}",
            code="record_newer",
            hint=f"this impctl reads format {RECORD_FORMAT}; use the impctl that wrote the record",
        )
    try:
        # Not strict, so that "NaN" is a number where one belongs.
        record = convert(document, Record, strict=False)
    except ValidationError:
        record = None
    if record is None or not _is_written(_plain(to_builtins(record)), document):
        raise _foreign(name, "parts of it are missing or have another type")
    return record


def _foreign(name: str, why: str) -> UsageError:
    return UsageError(
        f"File `{name}` is not a record of `impctl bench`: {why}",
        code="record_foreign",
        hint="give a file that `impctl bench WORKLOAD --out FILE` wrote",
    )


def _unwrapped(document: Any) -> Any:
    """The record inside the envelope of `--json`; any other document unchanged."""
    if isinstance(document, dict) and isinstance(document.get("results"), list):
        records = [r for r in document["results"] if isinstance(r, dict) and "cells" in r]
        return records[0] if len(records) == 1 else document
    return document


def number_or_name(value: float) -> float | str:
    """The number, or the name of one that JSON lacks."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _plain(value: Any) -> Any:
    """Replace numbers that JSON lacks by their names."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return number_or_name(value) if isinstance(value, float) else value


def _is_written(written: Any, document: Any) -> bool:
    """Whether the document has all that was written; it may have more, and lack what was added."""
    if isinstance(written, dict):
        return all(
            _is_written(value, document[name]) if name in document else name in _ADDED
            for name, value in written.items()
        )
    if isinstance(written, list):
        return all(map(_is_written, written, document))
    return bool(written == document) and isinstance(written, bool) is isinstance(document, bool)


# Two records of one suite compared: which cells became faster or slower beyond the noise. Law: a
# difference is reported only beyond the band (`band_of`) of the noise that both records had around
# the figure. A ratio below 1 is less of the metric. Times of different machines are not judged,
# because they distinguish the machines; ratios and sizes are. Cells that only one record has, or
# that measured something else under the same labels, are listed, never dropped; wrong ones of the
# new record come before numbers. Records of different suites, scales or tables are refused.

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
