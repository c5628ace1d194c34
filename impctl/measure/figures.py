"""What `bench` measures, as frozen values: figures, their cases, and how they are drawn.

The options of a figure are those of its measure, which checks them (`measure.ground`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from impctl.values import dataclass

if TYPE_CHECKING:
    from impctl.errors import Location
    from impctl.types import QueryName

OptionValue = int | float | str | bool | tuple[int | float | str, ...]
"""A single value or a list of them."""


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
    """The location of each option."""
