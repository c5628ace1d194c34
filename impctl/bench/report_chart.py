"""What a figure draws: panels of points, from cells and a chart alone.

Law: a point is drawn where its cell has a finite number with a place on the axes, and what is not
drawn is counted; a panel has one unit, so no panel has two scales; panels of one unit have one
range, so they compare. Bars only stand on zero: a logarithmic axis gets points instead.
Out of scope: colours and pixels (the page's script), tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from impctl.bench.quantity import (
    Unit,
    dimension_of,
    is_number,
    label_text,
    named,
    plain_name,
    readable,
    spread_text,
    unit_of,
)
from impctl.bench.record import Cell, Chart, Label, Metric
from impctl.values import dataclass

Place = float | int
"""Where a point lies along x: a number, or the position of its category."""


@dataclass(frozen=True, slots=True)
class ChartPoint:
    """`text` is what a reader is told of it, `value` its number alone."""

    x: Place
    y: float
    low: float
    high: float
    value: str
    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """The points of one group and metric, by their positions in the drawing's lists."""

    group: int
    metric: int
    points: tuple[ChartPoint, ...]


@dataclass(frozen=True, slots=True)
class Axis:
    """`low` and `high` hold every point of every panel with this unit."""

    title: str
    unit: str
    log: bool
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart; `title` is empty where it is the only one."""

    title: str
    y: Axis
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A figure's panels and what they share; `hidden` counts points without a place.

    `categories` is empty where x is a number. `ordered` says that the groups are amounts.
    """

    x: Axis
    categories: tuple[str, ...]
    group_title: str
    groups: tuple[str, ...]
    ordered: bool
    metrics: tuple[str, ...]
    panels: tuple[Panel, ...]
    hidden: int

    def as_json(self) -> dict[str, Any]:
        """Plain values, all of them finite."""
        return asdict(self)


Key = tuple[Label | None, ...]


def draw(chart: Chart, cells: Sequence[Cell]) -> Drawing:
    """The panels of a figure, one for each unit and value of a label that is on no axis."""
    places = _Places.of(chart, cells)
    keys = _ordered(_distinct(_key(cell, chart.series) for cell in cells))
    metrics = tuple(name for name in chart.y if any(name in cell.metrics for cell in cells))
    facets = facet_labels(chart, cells)
    units = _by_unit(metrics)
    shown = [
        _Facet(_panel_title(title, names, units), unit, names, held)
        for unit, names in units.items()
        for title, held in _by_facet(facets, cells).items()
    ]
    drawn = [_lines(facet, chart, metrics, keys, places) for facet in shown]
    panels = []
    for facet, lines in zip(shown, drawn, strict=True):
        same = [
            point
            for other, result in zip(shown, drawn, strict=True)
            if other.unit is facet.unit
            for line in result
            for point in line.points
        ]
        if lines:
            panels.append(Panel(facet.title, _y_axis(facet, chart, same), tuple(lines)))
    points = [point for lines in drawn for line in lines for point in line.points]
    measured = sum(name in cell.metrics for cell in cells for name in metrics)
    return Drawing(
        x=_x_axis(chart, [point.x for point in points], places),
        categories=places.categories,
        group_title=", ".join(plain_name(name) for name in chart.series),
        groups=tuple(_key_text(chart.series, key) for key in keys),
        ordered=all(is_number(value) for key in keys for value in key) and len(chart.series) == 1,
        metrics=tuple(plain_name(name) for name in metrics),
        panels=tuple(panels),
        hidden=measured - len(points),
    )


def facet_labels(chart: Chart, cells: Sequence[Cell]) -> tuple[str, ...]:
    """Labels without which two cells would be one point."""
    chosen: list[str] = []
    others = _distinct(name for cell in cells for name in cell.labels)
    for name in others:
        known = (chart.x, *chart.series, *chosen)
        if name in known:
            continue
        before = len({_key(cell, known) for cell in cells})
        if before < len(cells) and len({_key(cell, (*known, name)) for cell in cells}) > before:
            chosen.append(name)
    return tuple(chosen)


@dataclass(frozen=True, slots=True)
class _Facet:
    title: str
    unit: Unit
    metrics: tuple[str, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class _Places:
    """Where x values lie: categories in the order they came, or numbers as they are."""

    categories: tuple[str, ...]
    log: bool

    @classmethod
    def of(cls, chart: Chart, cells: Sequence[Cell]) -> _Places:
        values = _distinct(cell.labels[chart.x] for cell in cells if chart.x in cell.labels)
        # A single number makes no line: it is named like a category.
        if len(values) > 1 and all(is_number(value) for value in values):
            return cls((), "x" in chart.log)
        return cls(tuple(_distinct(label_text(chart.x, value) for value in values)), False)

    def place(self, chart: Chart, cell: Cell) -> Place | None:
        value = cell.labels.get(chart.x)
        if value is None:
            return None
        if self.categories:
            return self.categories.index(label_text(chart.x, value))
        if isinstance(value, str) or (self.log and value <= 0):
            return None
        return value


def _lines(
    facet: _Facet, chart: Chart, metrics: Sequence[str], keys: Sequence[Key], places: _Places
) -> list[Line]:
    result = []
    for group, key in enumerate(keys):
        cells = [cell for cell in facet.cells if _key(cell, chart.series) == key]
        for name in facet.metrics:
            points = [
                point
                for cell in cells
                if name in cell.metrics
                and (point := _point(cell.metrics[name], places.place(chart, cell), facet, chart))
            ]
            if points:
                points.sort(key=lambda point: point.x)
                result.append(Line(group, metrics.index(name), tuple(points)))
    return result


def _point(metric: Metric, x: Place | None, facet: _Facet, chart: Chart) -> ChartPoint | None:
    if x is None or not math.isfinite(metric.median):
        return None
    if "y" in chart.log and metric.median <= 0:
        return None
    low = metric.low if math.isfinite(metric.low) else metric.median
    high = metric.high if math.isfinite(metric.high) else metric.median
    if "y" in chart.log and low <= 0:
        low = metric.median
    spread = spread_text(metric, facet.unit)
    value = readable(metric.median, facet.unit)
    text = f"{value} ({spread} in {metric.runs} runs)" if spread else value
    return ChartPoint(x, metric.median, low, high, value, text)


def _panel_title(facet: str, names: Sequence[str], units: Mapping[Unit, Sequence[str]]) -> str:
    """What the panel holds of the figure: metrics where others have their own panels, and cells."""
    metrics = ", ".join(map(plain_name, names)) if len(units) > 1 else ""
    return ": ".join(text for text in (metrics, facet) if text)


def _y_axis(facet: _Facet, chart: Chart, points: Sequence[ChartPoint]) -> Axis:
    title = dimension_of(facet.unit)
    if len(facet.metrics) == 1:
        title = plain_name(facet.metrics[0])
    low = min(min(point.low, point.y) for point in points)
    high = max(max(point.high, point.y) for point in points)
    return Axis(title, facet.unit.value, "y" in chart.log, low, high)


def _x_axis(chart: Chart, values: Sequence[Place], places: _Places) -> Axis:
    title = plain_name(chart.x)
    # Labels are text to read: a count of rows needs no second "rows" on every tick.
    unit = unit_of(chart.x) if unit_of(chart.x) is not Unit.ROWS else Unit.NONE
    return Axis(title, unit.value, places.log, min(values, default=0), max(values, default=0))


def _by_unit(metrics: Sequence[str]) -> dict[Unit, tuple[str, ...]]:
    units = _distinct(unit_of(name) for name in metrics)
    return {unit: tuple(name for name in metrics if unit_of(name) is unit) for unit in units}


def _by_facet(labels: Sequence[str], cells: Sequence[Cell]) -> Mapping[str, tuple[Cell, ...]]:
    keys = _ordered(_distinct(_key(cell, labels) for cell in cells))
    return {
        ", ".join(
            named(name, value) for name, value in zip(labels, key, strict=True) if value is not None
        ): tuple(cell for cell in cells if _key(cell, labels) == key)
        for key in keys
    }


def _key(cell: Cell, labels: Sequence[str]) -> Key:
    return tuple(cell.labels.get(name) for name in labels)


def _key_text(labels: Sequence[str], key: Key) -> str:
    texts = [
        label_text(name, value)
        for name, value in zip(labels, key, strict=True)
        if value is not None
    ]
    return ", ".join(texts)


def _ordered(keys: list[Key]) -> list[Key]:
    """Amounts by size, anything else in the order it came."""
    if all(is_number(value) for key in keys for value in key):
        return sorted(keys, key=lambda key: [value for value in key if not isinstance(value, str)])
    return keys


def _distinct(values: Any) -> list[Any]:
    return list(dict.fromkeys(values))
