"""What one run measured: cells with labels and metrics, and the figures that show them.

Law: a record is complete in itself: machine, versions, commit, seed, scale and noise stand beside
the numbers, and reading what was written gives the same record. A metric's name ends in its unit
(`_ms`, `_bytes`, `_rows`, `_count`, `_share`, `_ratio`); only `_ratio` is better when larger.
Out of scope: measuring (`measure`), comparing, drawing, judging (`bench`'s other files).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, field
from enum import StrEnum

from impctl.values import dataclass

RECORD_FORMAT = 1

Label = str | int | float
"""What tells a cell from its neighbours: `groups: 50`, `changes: 1000`, `strategy: eager`."""


class RecordKind(StrEnum):
    """What a record was measured from: a suite has a scale, a workload tables as they are."""

    SUITE = "suite"
    WORKLOAD = "workload"


@dataclass(frozen=True, slots=True)
class Metric:
    """A median with the least and greatest of its `runs` measurements; one run has no spread, and
    a number that was reckoned has none."""

    median: float
    low: float
    high: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Metric:
        """The metric of some measurements, at least one."""
        import statistics  # every command loads what a record is, and hardly one makes any

        return cls(statistics.median(values), min(values), max(values), len(values))

    @classmethod
    def quotient(cls, over: Metric, under: Metric) -> Metric:
        """One by the other, above zero: of the medians, so that it agrees with both where all
        three are shown; least and greatest are what the runs of both allow."""
        return cls(
            over.median / under.median,
            over.low / under.high,
            over.high / under.low,
            min(over.runs, under.runs),
        )


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of one figure.

    `covers` says that the sketch was compared with recapture before anything was timed, None where
    a cell has no sketch to check; `slack` counts fragments held without need. `equal` says that
    results with and without sketch were compared. `note` is what a reader must know of this cell.
    `fingerprint` stands for what labels leave out: the query, its partition, the options, the data;
    it is empty in records from before there was one.
    """

    figure: str
    labels: Mapping[str, Label]
    metrics: Mapping[str, Metric]
    _: KW_ONLY
    covers: bool | None = None
    slack: int | None = None
    equal: bool | None = None
    note: str = ""
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """How cells become lines: `x` is a label, `y` are metrics, a line per metric and `series`.

    `log` names the axes ("x", "y") on a logarithmic scale. A label that is text makes bars.
    """

    x: str
    y: tuple[str, ...]
    series: tuple[str, ...] = ()
    log: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a report; `claim` is what the papers print, `source` where (empty: nothing)."""

    name: str
    title: str
    about: str
    chart: Chart
    claim: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One run: `started` is an ISO 8601 time in UTC.

    `noise` is the share by which equal work took longer at its slowest than at its quickest, over
    the whole run; `figure_noise` is the same of the two times right before and after a figure.

    `suite` is the name of the suite, or of the workload, as `kind` tells.

    `tables` has the rows of every table that queries read, as they were before any change: a scale
    does not tell them where there is a least size or a source.

    `failures` names what could not be measured, one sentence each: nothing is left out in silence.
    """

    suite: str
    title: str
    scale: float
    repeat: int
    seed: int
    started: str
    elapsed_s: float
    noise: float
    machine: Mapping[str, str]
    figures: tuple[Figure, ...]
    cells: tuple[Cell, ...]
    failures: tuple[str, ...] = ()
    format: int = field(default=RECORD_FORMAT)
    tables: Mapping[str, int] = field(default_factory=dict)
    figure_noise: Mapping[str, float] = field(default_factory=dict)
    kind: RecordKind = RecordKind.SUITE

    def cells_of(self, figure: str) -> tuple[Cell, ...]:
        """The cells of one figure, in the order they were measured."""
        return tuple(cell for cell in self.cells if cell.figure == figure)

    def noise_of(self, figure: str) -> float:
        """The noise around a figure; that of the whole run where a record has no other."""
        noise = self.figure_noise.get(figure, self.noise)
        return noise if math.isfinite(noise) and noise > 0 else 0.0
