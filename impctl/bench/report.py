"""A record as one self-contained HTML page: no network, no second file.

Law: the page is computed from the record alone and is the same for the same record. Without scripts
it still has the summary and every number. The template escapes all text of the record, and the
page's content security policy loads nothing and runs only the two scripts of the page.

A chart has one unit, and charts of one unit within a figure share their range. Points without a
place on the axes are counted and reported. Bars start at zero; a logarithmic axis gets points.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from importlib.util import find_spec
from itertools import groupby, product
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from impctl.bench.quantity import (
    SCALES,
    Unit,
    dimension_of,
    is_number,
    label_text,
    metric_text,
    named,
    number,
    plain_name,
    readable,
    spread_text,
    times,
    unit_of,
)
from impctl.bench.record import (
    LEAST,
    SINGLE,
    Cell,
    Chart,
    Figure,
    Label,
    Record,
    RecordKind,
)
from impctl.bench.summary import (
    PAIRS,
    FigureColumn,
    break_even_words,
    contests,
    label_column,
    labels_name,
    metric_column,
    range_text,
    summarize,
)
from impctl.errors import UsageError, count_text

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

LIBRARY = "chart.js-4.6.1.umd.min.js"
"""The chart library beside the template in `assets`, with its licence."""

_NAMED = 4
"""Maximum cases listed beside a chart."""


def render_report(record: Record) -> str:
    """Render the page of a record; UsageError without the template library."""
    check_templates()
    from markupsafe import Markup

    views = [_view(record, figure) for figure in record.figures]
    return _environment().get_template("report.html").render(
        record=record,
        title=record.title or record.suite,
        facts=_facts(record),
        summary=summarize(record),
        views=views,
        charts={
            f"{index}-{panel.number}": panel.chart
            for index, view in enumerate(views, 1)
            for panel in view["drawing"].panels
        },
        library=Markup(_asset(LIBRARY).strip()),
        noise=readable(record.noise, Unit.SHARE),
        least=readable(LEAST, Unit.SHARE),
        single=readable(SINGLE, Unit.SHARE),
    )  # fmt: skip


def check_templates() -> None:
    """Raise UsageError if the package that renders pages is not installed."""
    if find_spec("jinja2") is None:
        raise UsageError(
            "A report needs the package `jinja2`, which is not installed",
            code="extra_missing",
            hint="run `pip install 'jinja2>=3.1'`",
        )


def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        autoescape=True,
        loader=FunctionLoader(_asset),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"csp_hash": _csp_hash, "prose": _prose}
    environment.globals |= {
        "count_text": count_text,
        "groupby": _grouped,
        "palette": (*_WORDS, *_AMOUNTS),
    }
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


def _asset(name: str) -> str:
    return files("impctl.bench").joinpath("assets", name).read_text(encoding="utf-8")


def _csp_hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _prose(text: str) -> Markup:
    """Escape text in which backticks mark code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _grouped(rows: Iterable[Sequence[str]]) -> list[tuple[str, list[Sequence[str]]]]:
    return [(name, list(group)) for name, group in groupby(rows, key=lambda row: row[0])]


def _facts(record: Record) -> dict[str, str]:
    is_suite = record.kind is RecordKind.SUITE
    names: dict[int, list[str]] = {}
    for name, rows in record.tables.items():
        names.setdefault(rows, []).append(name)
    return {
        "Started": _moment(record.started),
        "Took": readable(record.elapsed_s * 1000, Unit.MS),
        "Scale": f"{times(record.scale)} the suite's rows" if is_suite else "",
        "Rows": "; ".join(f"{number(rows)} in {', '.join(named)}" for rows, named in names.items()),
        "Repeat": f"{count_text(record.repeat, 'run')} requested",
        "Seed": str(record.seed),
        "Noise": f"equal work took at most {readable(record.noise, Unit.SHARE)} longer",
        **_machine(record.machine),
    }


def _machine(machine: Mapping[str, str]) -> dict[str, str]:
    versions = dict(machine)
    cpu, cores, memory, commit, spark = (
        versions.pop(name, "") for name in ("cpu", "cores", "memory_gb", "commit", "spark")
    )
    cores = f"{cores} {'core' if cores == '1' else 'cores'}" if cores else ""
    memory = f"{memory} GB memory" if memory else ""
    return {
        "Commit": commit,
        "Machine": ", ".join(filter(None, (cpu, cores, memory))),
        "Spark": spark,
        "Versions": ", ".join(f"{name} {value}" for name, value in versions.items()),
    }


def _moment(started: str) -> str:
    try:
        moment = datetime.fromisoformat(started)
    except ValueError:
        return started
    utc = moment if moment.tzinfo is None else moment.astimezone(UTC)
    return f"{utc:%Y-%m-%d %H:%M} UTC"


def _view(record: Record, figure: Figure) -> dict[str, Any]:
    """A figure as the template shows it, with a table of `size` rows."""
    cells = record.cells_of(figure.name)
    drawing = draw(figure.chart, cells)
    return {
        "figure": figure,
        "here": _measured_here(replace(record, figures=(figure,), cells=cells), figure),
        "drawing": drawing,
        "notes": tuple(_notes(record, figure, cells, drawing.hidden)),
        "columns": [column for column in _columns(cells) if any(map(any, column.fields))],
        "size": len(cells),
    }


def _measured_here(record: Record, figure: Figure) -> tuple[str, ...]:
    """What this run measured, beside the papers' claim; `own` has this figure only."""
    texts = [
        f"Speed-up {gain}: {range_text(compared)}."
        for pair, (gain, _) in PAIRS.items()
        if gain and (compared := contests(record, *pair))
    ]
    # The table shows the cases in which costs do not cross.
    evens = [(case, text) for (_, case), text in break_even_words(record).items()]
    crossed = [(case, text) for case, text in evens if not text.startswith("above")]
    if 0 < len(crossed) <= _NAMED:
        listed = "; ".join(f"{text} with {case}" if case else text for case, text in crossed)
        texts.append(f"Break-even: {listed}.")
    return tuple(texts) or _range_of_first_metric(record, figure)


def _range_of_first_metric(record: Record, figure: Figure) -> tuple[str, ...]:
    name = next(iter(figure.chart.y), "")
    medians = [cell.metrics[name].median for cell in record.cells if name in cell.metrics]
    finite = [value for value in medians if math.isfinite(value)]
    if not finite:
        return ()
    low, high = (metric_text(name, value) for value in (min(finite), max(finite)))
    text = low if low == high else f"{low} to {high}"
    return (f"{plain_name(name).capitalize()}: {text}.",)


def _notes(record: Record, figure: Figure, cells: Sequence[Cell], hidden: int) -> Iterable[str]:
    """Every note once, with its cells if they are few, and the noise around the figure."""
    about: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.note:
            about.setdefault(cell.note, []).append(cell)
    # More than a few notes are in the table only.
    for note, noted in about.items() if len(about) <= _NAMED else ():
        names = filter(None, (labels_name(figure, cell) for cell in noted))
        where = "; ".join(names) if len(noted) <= 3 else ""
        yield f"{where}: {note}" if where and len(noted) < len(cells) else note
    if hidden:
        yield (
            f"{number(hidden)} of the numbers in the table are not drawn, because "
            "they are not numbers or are zero on a logarithmic axis."
        )
    if cells and math.isfinite(record.figure_noise.get(figure.name, math.nan)):
        noise = readable(record.noise_of(figure.name), Unit.SHARE)
        yield f"Around this figure, equal work took at most {noise} longer."


def _columns(cells: Sequence[Cell]) -> list[FigureColumn]:
    def column(
        name: str, kind: str, text: Callable[[Cell], str], *, is_right: bool = False
    ) -> FigureColumn:
        return FigureColumn(name, kind, is_right, tuple((text(cell), "") for cell in cells))

    labels = _distinct(name for cell in cells for name in cell.labels)
    return [
        *(label_column(name, cells) for name in labels),
        *(metric_column(name, cells) for name in _distinct(n for c in cells for n in c.metrics)),
        column("runs", "", _runs, is_right=True),
        column("covers", "check", lambda cell: _check(cell.covers)),
        column("slack", "", lambda c: "" if c.slack is None else number(c.slack), is_right=True),
        column("equal", "check", lambda cell: _check(cell.equal)),
        column("note", "note", lambda cell: cell.note),
    ]


def _runs(cell: Cell) -> str:
    # A computed number has no runs.
    runs = sorted({metric.runs for metric in cell.metrics.values()} - {0})
    return "–".join(str(end) for end in dict.fromkeys((runs[0], runs[-1]))) if runs else ""


def _check(is_right: bool | None) -> str:
    return "" if is_right is None else "✓ yes" if is_right else "✗ no"


Key = tuple[Label | None, ...]

_WORDS = tuple(f"w{at}" for at in range(7))
_AMOUNTS = tuple(f"a{at}" for at in range(5))
"""Colours in the template's style: distinct hues for words, a ramp for amounts."""

_KNOWN = {
    **dict.fromkeys(("maintain", "incremental", "with sketch"), 0),
    "recapture": 1,
    **dict.fromkeys(("none", "without sketch"), 5),
}
"""The same thing has the same colour in every figure; others take the remaining ones."""

_SHAPES = (
    ("circle", "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0"),
    ("rect", "M-4-4h8v8h-8z"),
    ("triangle", "M0-5L5 4H-5z"),
    ("rectRot", "M0-5L5 0L0 5L-5 0z"),
    ("crossRot", "M-4-4L4 4M4-4L-4 4"),
    ("star", "M-4-4L4 4M4-4L-4 4M0-5V5M-5 0H5"),
    ("cross", "M0-5V5M-5 0H5"),
)
"""Names in the chart library, and paths in a legend; the last three are strokes."""

_BAR = "M-12-5h24v10h-24z"
_DASHES = ((), (7, 4), (2, 3), (10, 3, 2, 3))
_FILLS = (("ff", 1.0), ("00", 0.0), ("66", 0.4), ("33", 0.2))
"""Metrics of one group: opacity as the last two digits of a colour, and as a number."""


class LegendKey(Struct, frozen=True):
    """An entry of a legend: what it hides, and its mark; without a `color` it is grey."""

    value: str
    name: str
    color: str
    dash: tuple[int, ...] | None
    path: str
    opacity: float


class KeyGroup(Struct, frozen=True):
    """Groups or metrics in a legend."""

    title: str
    keys: tuple[LegendKey, ...]


class Panel(Struct, frozen=True):
    """One chart as its library takes it, except colours; `words` describe it."""

    number: int
    title: str
    unit: Unit
    words: str
    chart: Mapping[str, Any]


class Drawing(Struct, frozen=True):
    """The panels of a figure and their shared legend; `hidden` counts points without a place."""

    keys: tuple[KeyGroup, ...]
    panels: tuple[Panel, ...]
    hidden: int

    @property
    def rows(self) -> list[list[Panel]]:
        """The panels of one unit each."""
        return [list(row) for _, row in groupby(self.panels, key=lambda panel: panel.unit)]


class _ChartLine(Struct, frozen=True):
    """The points of one group and metric, by their positions in the figure's lists."""

    group: int
    metric: int
    points: tuple[dict[str, Any], ...]


def draw(chart: Chart, cells: Sequence[Cell]) -> Drawing:
    """Make a panel for each unit and each value of labels that are neither x nor series."""
    categories, places = _places(chart, cells)
    groups = _ordered(_distinct(_key(cell, chart.series) for cell in cells))
    metrics = [name for name in chart.y if any(name in cell.metrics for cell in cells)]
    labels = facet_labels(chart, cells)
    facets = _ordered(_distinct(_key(cell, labels) for cell in cells))
    parts: dict[tuple[Unit, Key], list[_ChartLine]] = {}
    for unit, facet in product(_distinct(map(unit_of, metrics)), facets):
        for (index, group), (metric, name) in product(enumerate(groups), enumerate(metrics)):
            if unit_of(name) is unit:
                keys = (*labels, *chart.series)
                members = [cell for cell in cells if _key(cell, keys) == (*facet, *group)]
                if points := _points(chart, places, members, name):
                    line = _ChartLine(index, metric, points)
                    parts.setdefault((unit, facet), []).append(line)
    every = [line for lines in parts.values() for line in lines]
    values = sorted({point["x"] for line in every for point in line.points})
    look = _Look(
        chart=chart,
        x=_category_axis(chart, categories) if categories else _place_axis(chart, values),
        groups=tuple(", ".join(_texts(label_text, chart.series, group)) for group in groups),
        metrics=tuple(map(plain_name, metrics)),
        is_ordered=len(chart.series) == 1 and all(is_number(group[0]) for group in groups),
        has_metrics=any(len({line.metric for line in lines}) > 1 for lines in parts.values()),
        is_across=bool(categories),
        has_bars=bool(categories) and "y" not in chart.log,
    )
    panels: list[Panel] = []
    for (unit, facet), lines in parts.items():
        names = [name for name in metrics if unit_of(name) is unit]
        same = [point for line in every if metrics[line.metric] in names for point in line.points]
        title = plain_name(names[0]) if len(names) == 1 else dimension_of(unit)
        y = _value_axis(title, unit, "y" in chart.log, same)
        words = [", ".join(map(plain_name, names))] if len(names) < len(metrics) else []
        words += [text] if (text := ", ".join(_texts(named, labels, facet))) else []
        panels.append(_panel(len(panels), ": ".join(words), unit, look, lines, y))
    measured = sum(name in cell.metrics for cell in cells for name in metrics)
    drawn = sum(len(line.points) for line in every)
    return Drawing(look.legend(), tuple(panels), measured - drawn)


def facet_labels(chart: Chart, cells: Sequence[Cell]) -> tuple[str, ...]:
    """Labels without which two cells would be one point."""
    chosen: list[str] = []
    for name in _distinct(name for cell in cells for name in cell.labels):
        known = (chart.x, *chart.series, *chosen)
        if name in known:
            continue
        before = len({_key(cell, known) for cell in cells})
        if before < len(cells) and len({_key(cell, (*known, name)) for cell in cells}) > before:
            chosen.append(name)
    return tuple(chosen)


def _places(chart: Chart, cells: Sequence[Cell]) -> tuple[tuple[str, ...], Mapping[Label, float]]:
    """Categories, if x has any, and the place of each label along x."""
    values = _distinct(cell.labels[chart.x] for cell in cells if chart.x in cell.labels)
    # A single number makes no line: it is named like a category.
    if len(values) > 1 and all(map(is_number, values)):
        return (), {value: value for value in values if "x" not in chart.log or value > 0}
    texts = {value: label_text(chart.x, value) for value in values}
    categories = tuple(_distinct(texts.values()))
    return categories, {value: categories.index(text) for value, text in texts.items()}


def _points(
    chart: Chart, places: Mapping[Label, float], cells: Sequence[Cell], name: str
) -> tuple[dict[str, Any], ...]:
    """Points in the order of x: `at` and `text` are for a tooltip, `value` stands beside a bar."""
    points = []
    is_log = "y" in chart.log
    for cell in cells:
        metric, label = cell.metrics.get(name), cell.labels.get(chart.x)
        if metric is None or label is None or label not in places:
            continue
        if not math.isfinite(metric.median) or (is_log and metric.median <= 0):
            continue
        low = metric.low if math.isfinite(metric.low) else metric.median
        value, spread = metric_text(name, metric.median), spread_text(metric, unit_of(name))
        points.append(
            {
                "x": places[label],
                "y": _six(metric.median),
                "low": _six(metric.median if is_log and low <= 0 else low),
                "high": _six(metric.high if math.isfinite(metric.high) else metric.median),
                "at": f"{plain_name(chart.x)} {label_text(chart.x, label)}",
                "value": value,
                "text": f"{value} ({spread} in {metric.runs} runs)" if spread else value,
            }
        )
    return tuple(sorted(points, key=lambda point: point["x"]))


class _Look(Struct, frozen=True, kw_only=True):
    """What panels of a figure share: the axis x, and colours, shapes, dashes and fills of lines.
    `is_ordered` says that groups are amounts, `has_metrics` that a panel has several metrics."""

    chart: Chart
    x: Mapping[str, Any]
    groups: tuple[str, ...]
    metrics: tuple[str, ...]
    is_ordered: bool
    has_metrics: bool
    is_across: bool
    has_bars: bool

    def dataset(self, line: _ChartLine, *, has_values: bool) -> dict[str, Any]:
        """A line or bars for the chart library; the page's script adds the colours."""
        group, metric = self.groups[line.group], self.metrics[line.metric]
        name = line.group if len(self.groups) > 1 else line.metric
        data = [dict(point) for point in line.points]
        for point in data:
            if self.is_across:
                point["x"], point["y"] = point["y"], point["x"]
            if not has_values:
                del point["value"]
        return {
            "label": f"{metric}, {group}" if group and self.has_metrics else group or metric,
            "keys": [f"group{line.group}", f"metric{line.metric}"],
            "data": data,
            "color": self._color(line.group, line.metric),
            "fill": _FILLS[self._variant(line.metric)][0] if self.is_across else "ff",
            "borderDash": _DASHES[line.metric % len(_DASHES)] if self.has_metrics else (),
            "pointStyle": _SHAPES[name % len(_SHAPES)][0],
        }

    @property
    def series(self) -> str:
        return ", ".join(map(plain_name, self.chart.series))

    def legend(self) -> tuple[KeyGroup, ...]:
        """Groups if there are several, metrics if a chart has several."""
        groups = []
        if len(self.groups) > 1:
            keys = [self._key("group", index, 0, name) for index, name in enumerate(self.groups)]
            groups.append(KeyGroup(self.series, tuple(keys)))
        if self.has_metrics:
            keys = [self._key("metric", 0, index, name) for index, name in enumerate(self.metrics)]
            groups.append(KeyGroup("", tuple(keys)))
        return tuple(groups)

    def _key(self, kind: str, group: int, metric: int, name: str) -> LegendKey:
        is_grey = kind == "metric" and len(self.groups) > 1
        path = _SHAPES[(group + metric) % len(_SHAPES)][1]
        if self.is_across:
            path = _BAR if self.has_bars else _SHAPES[0][1] if is_grey else path
        elif is_grey:
            path = ""
        dash = _DASHES[metric % len(_DASHES)] if kind == "metric" else ()
        return LegendKey(
            f"{kind}{group + metric}",
            name,
            "" if is_grey else self._color(group, metric),
            None if self.is_across else dash,
            path,
            _FILLS[self._variant(metric)][1] if kind == "metric" and self.is_across else 1.0,
        )

    def _variant(self, metric: int) -> int:
        """The second metric of a group is an outline, others are partly filled."""
        return metric % len(_FILLS) if len(self.groups) > 1 and self.has_metrics else 0

    def _color(self, group: int, metric: int) -> str:
        has_groups = len(self.groups) > 1
        names, key = (self.groups, group) if has_groups else (self.metrics, metric)
        if has_groups and self.is_ordered:
            if len(names) > len(_AMOUNTS):
                return _AMOUNTS[key % len(_AMOUNTS)]
            return _AMOUNTS[round(key * (len(_AMOUNTS) - 1) / (len(names) - 1))]
        if names[key] in _KNOWN:
            return _WORDS[_KNOWN[names[key]]]
        others = [name for name in names if name not in _KNOWN]
        free = _WORDS
        if len(others) < len(names):
            free = tuple(
                color for index, color in enumerate(_WORDS) if index not in _KNOWN.values()
            )
        return free[others.index(names[key]) % len(free)]


def _panel(
    position: int,
    title: str,
    unit: Unit,
    look: _Look,
    lines: Sequence[_ChartLine],
    y: Mapping[str, Any],
) -> Panel:
    x = look.x
    words = [
        f"Chart of {', '.join(_distinct(look.metrics[line.metric] for line in lines))} "
        f"by {plain_name(look.chart.x)}",
        f"for {title}" if title else "",
        f"a line for each {look.series}" if len(look.groups) > 1 else "",
    ]
    categories = len(x.get("labels", ()))
    has_values = look.has_bars and len(lines) * categories <= 24
    thickness = len(lines) * 24 + 16 if look.has_bars else 36
    axis = "y" if look.is_across else "x"
    return Panel(
        position,
        title,
        unit,
        ", ".join(filter(None, words)),
        {
            "type": "bar" if look.has_bars else "line",
            "height": 76 + categories * thickness if look.is_across else None,
            "data": {"datasets": [look.dataset(line, has_values=has_values) for line in lines]},
            "options": {
                "indexAxis": axis,
                "hasValues": has_values,
                "showLine": not look.is_across,
                "elements": {"point": {"radius": 6 if look.is_across else 4}},
                "scales": {"x": y, "y": x} if look.is_across else {"x": x, "y": y},
                "layout": {"padding": {"right": 64 if has_values else 12, "top": 8}},
                "interaction": {"mode": "nearest", "axis": axis, "intersect": False},
            },
        },
    )


def _category_axis(chart: Chart, categories: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "category",
        "labels": [text if len(text) <= 26 else f"{text[:25]}…" for text in categories],
        "offset": True,
        "title": {"display": True, "text": plain_name(chart.x)},
        "grid": {"display": False},
        "border": {"display": False},
        "ticks": {"autoSkip": False},
    }


def _place_axis(chart: Chart, values: Sequence[float]) -> dict[str, Any]:
    # A count of rows needs no second "rows" on every tick.
    unit = unit_of(chart.x) if unit_of(chart.x) is not Unit.ROWS else Unit.NONE
    low, high = (values[0], values[-1]) if values else (0.0, 1.0)
    title = plain_name(chart.x)
    if "x" in chart.log:
        # Room beside the outermost points, or their marks are cut in half.
        low, high = low / 1.15, high * 1.15
        # Few values are the ticks themselves: no line suggests a point in between.
        is_few = len(values) <= 8 and all(
            after / before >= 1.45 for before, after in zip(values, values[1:], strict=False)
        )
        ticks = values if is_few else _decades(low, high)
        axis = _number_axis(title, unit, low, high, ticks, is_log=True)
    else:
        step = _nice((high - low) / 4 or 1.0, unit=unit)
        starts_at_zero = 0 <= low <= 0.4 * high
        low = 0 if starts_at_zero else low - 0.04 * (high - low)
        high += 0.02 * (high - low)
        axis = _number_axis(title, unit, low, high, _steps(low, high, step), is_log=False)
    return {**axis, "grid": {"display": False}, "border": {"display": True}}


def _value_axis(
    title: str, unit: Unit, is_log: bool, points: Sequence[Mapping[str, float]]
) -> dict[str, Any]:
    """The axis of metrics, from zero unless logarithmic; it includes the ranges of runs."""
    low = min(min(point["low"], point["y"]) for point in points)
    high = max(max(point["high"], point["y"]) for point in points)
    if is_log:
        low, high = _nice(low), _nice(high, is_up=True)
        if low == high:
            low, high = low / 2, high * 2
        return _number_axis(title, unit, low, high, _decades(low, high), is_log=True)
    low, high = min(low, 0), max(high, 0)
    step = _nice((high - low) / 4 or 1.0, unit=unit)
    low, high = math.floor(low / step) * step, math.ceil(high / step or 1) * step
    return _number_axis(title, unit, low, high, _steps(low, high, step), is_log=False)


def _number_axis(
    title: str, unit: Unit, low: float, high: float, ticks: Sequence[float], *, is_log: bool
) -> dict[str, Any]:
    return {
        "type": "logarithmic" if is_log else "linear",
        "title": {"display": True, "text": f"{title} (log scale)" if is_log else title},
        "min": low,
        "max": high,
        "border": {"display": False},
        "ticks": {"maxRotation": 0, "maxTicksLimit": 7},
        "given": [{"value": value, "text": _tick(value, unit)} for value in ticks],
    }


def _tick(value: float, unit: Unit) -> str:
    if not value:
        return "0"
    if unit in (Unit.NONE, Unit.ROWS):
        for size, letter in ((1e9, "G"), (1e6, "M")):
            if abs(value) >= size:
                return f"{number(value / size)}{letter}"
        return number(value)
    if unit is Unit.RATIO:
        return f"{number(value)}×"
    return readable(value, unit)


def _steps(low: float, high: float, step: float) -> list[float]:
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [count * step for count in range(first, last + 1)]


def _decades(low: float, high: float) -> list[float]:
    """Round values on a logarithmic axis, more of them in a small range."""
    decades = math.log10(high / low)
    steps = (1,) if decades >= 3 else (1, 3) if decades >= 1.8 else (1, 2, 5)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [step * 10.0**power for power in powers for step in steps]
    return [value for value in values if low * 0.999 <= value <= high * 1.001]


def _nice(value: float, *, is_up: bool = False, unit: Unit = Unit.NONE) -> float:
    """The next 1, 2 or 5 times a power of ten below or above, in the unit of the axis."""
    # Steps of 200,000 ms would read 3.33 min.
    size = next((size for size, _ in SCALES.get(unit, ()) if value * 4 >= size), 1.0)
    power = 10.0 ** math.floor(math.log10(value / size)) * size
    steps = [step * power for step in (1, 2, 5, 10)]
    if is_up:
        return next(step for step in steps if step >= value * 0.999)
    return next(step for step in reversed(steps) if step <= value * 1.001)


def _six(value: float) -> float:
    """Six digits, which are more than a chart shows."""
    return float(f"{value:.6g}")


def _key(cell: Cell, labels: Sequence[str]) -> Key:
    return tuple(cell.labels.get(name) for name in labels)


def _texts(text: Callable[[str, Label], str], labels: Sequence[str], key: Key) -> Iterable[str]:
    pairs = zip(labels, key, strict=True)
    return (text(name, value) for name, value in pairs if value is not None)


def _ordered(keys: list[Key]) -> list[Key]:
    """Amounts by size, anything else in its given order."""
    if all(is_number(value) for key in keys for value in key):
        return sorted(keys, key=lambda key: [value for value in key if not isinstance(value, str)])
    return keys


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))
