"""What a suite file says, as frozen values: data to generate, a workload over it, figures.

Law: a value here is complete and checked as far as the file alone allows, as in `models`; sizes are
those of the file at scale 1, applied by whoever generates. Out of scope: what a measure does with
its options (`app.measuring`), how a figure is drawn (`bench`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from impctl.aliases import QueryName
from impctl.errors import Location
from impctl.values import dataclass
from impctl.workload.models import Workload

OptionValue = int | float | str | bool | tuple[int | float | str, ...]
"""A single value or a list of them."""


@dataclass(frozen=True, slots=True)
class DataSpec:
    """A table to generate below the suite's data folder.

    `rows` is at scale 1 and shrinks with the scale, not below `least`; `options` are those of the
    example (groups, sorted, seed, ...). `source` is the file or folder an example is made from.
    """

    name: str
    example: str
    rows: int | None
    least: int
    options: Mapping[str, OptionValue]
    source: str | None
    location: Location


@dataclass(frozen=True, slots=True)
class CaseSpec:
    """One line or group of bars of a figure: a query and the labels its cells carry."""

    query: QueryName
    labels: Mapping[str, str | int | float]
    location: Location


@dataclass(frozen=True, slots=True)
class ChartSpec:
    """`x` is a label, `y` are metrics, `series` labels, `log` axes on a logarithmic scale."""

    x: str
    y: tuple[str, ...]
    series: tuple[str, ...]
    log: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FullSpec:
    """What a figure has at full size alone: options that win over its own, and more cases."""

    options: Mapping[str, OptionValue] = field(default_factory=dict)
    cases: tuple[CaseSpec, ...] = ()
    places: Mapping[str, Location] = field(default_factory=dict)
    """Where each option stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureSpec:
    """What to measure (`measure`, shaped by `options`), on which cases, and how to draw it."""

    name: str
    title: str
    about: str
    claim: str
    source: str
    measure: str
    options: Mapping[str, OptionValue]
    cases: tuple[CaseSpec, ...]
    chart: ChartSpec
    location: Location
    places: Mapping[str, Location] = field(default_factory=dict)
    """Where each option stands."""
    full: FullSpec = field(default_factory=FullSpec)

    def at(self, scale: float) -> FigureSpec:
        """The figure as a run of that scale measures it."""
        if scale < 1:
            return self
        return replace(
            self,
            options={**self.options, **self.full.options},
            cases=(*self.cases, *self.full.cases),
            places={**self.places, **self.full.places},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A whole suite file; `scale` and `repeat` are what holds where no flag says otherwise."""

    name: str
    title: str
    file: str
    seed: int
    scale: float
    repeat: int
    data: Mapping[str, DataSpec]
    workload: Workload
    figures: tuple[FigureSpec, ...]
