"""A record as one self-contained HTML page: no network, no second file.

Law: the page is computed from the record alone and is the same for the same record. Without scripts
it still has the summary and every number. The template escapes all text of the record, and the
page's content security policy loads nothing and runs only the two scripts of the page.

A chart has one unit, in which its axis counts. Points without a place on the axes are counted and
reported. Bars start at zero; a logarithmic axis gets points.
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
from impctl.bench.record import LEAST, SINGLE, Cell, Chart, Figure, Label, Record, RecordKind
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
            f"{index}-{number}": panel.chart
            for index, view in enumerate(views, 1)
            for number, panel in enumerate(view["drawing"].panels)
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
        "palette": COLORS,
        "shapes": SHAPES,
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

COLORS = tuple(f"w{at}" for at in range(7))
"""Colours in the template's style."""

_KNOWN = {"maintain": 0, "with sketch": 0, "recapture": 1, "without sketch": 5}
"""The same metric has the same colour in every figure; others take the remaining ones."""

SHAPES = {
    "circle": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0",
    "rect": "M-4-4h8v8h-8z",
    "triangle": "M0-5L5 4H-5z",
    "rectRot": "M0-5L5 0L0 5L-5 0z",
    "crossRot": "M-4-4L4 4M4-4L-4 4",
    "star": "M-4-4L4 4M4-4L-4 4M0-5V5M-5 0H5",
    "cross": "M0-5V5M-5 0H5",
}
"""Names in the chart library, and paths in a legend; the last three are strokes."""

_DASHES = ((), (7, 4), (2, 3), (10, 3, 2, 3))
_FILLS = ("ff", "00", "66", "33")
"""Metrics of one group: dashes of lines, and opacity of bars and points as the end of a colour."""

_SIZES = {**SCALES, Unit.SHARE: ((0.01, "%"),), Unit.RATIO: ((1.0, "×"),)}
"""The units of an axis, largest first."""


class Panel(Struct, frozen=True):
    """One chart as its library takes it, except colours; `words` describe it."""

    title: str
    words: str
    chart: Mapping[str, Any]

    @property
    def datasets(self) -> list[dict[str, Any]]:
        datasets: list[dict[str, Any]] = self.chart["data"]["datasets"]
        return datasets


class Drawing(Struct, frozen=True):
    """The panels of a figure; `hidden` counts points without a place."""

    panels: tuple[Panel, ...]
    hidden: int

    @property
    def legend(self) -> list[dict[str, Any]]:
        """A dataset for each label, if there are several."""
        keys = {line["label"]: line for panel in self.panels for line in panel.datasets}
        return list(keys.values()) if len(keys) > 1 else []


def draw(chart: Chart, cells: Sequence[Cell]) -> Drawing:
    """Make a panel for each unit, with lines or bars for each metric and each group: the cells
    whose labels are equal, except x."""
    categories, places = _places(chart, cells)
    labels = (*chart.series, *_more_labels(chart, cells))
    groups = _ordered(_distinct(_key(cell, labels) for cell in cells))
    metrics = [name for name in chart.y if any(name in cell.metrics for cell in cells)]
    names = [
        ", ".join(
            named(n, value) for n, value in zip(labels, group, strict=True) if value is not None
        )
        for group in groups
    ]
    colors = _colors(names if len(groups) > 1 else [plain_name(name) for name in metrics])
    panels = []
    measured = sum(name in cell.metrics for cell in cells for name in metrics)
    drawn = 0
    for unit in _distinct(map(unit_of, metrics)):
        shown = [name for name in metrics if unit_of(name) is unit]
        lines = []
        for (index, group), (order, metric) in product(enumerate(groups), enumerate(shown)):
            members = [cell for cell in cells if _key(cell, labels) == group]
            points = _points(chart, places, members, metric)
            if not points:
                continue
            style = index if len(groups) > 1 else metrics.index(metric)
            words = (
                plain_name(metric) if len(metrics) > 1 else "",
                names[index] if len(groups) > 1 else "",
            )
            lines.append(
                {
                    "label": ", ".join(filter(None, words)) or plain_name(metric),
                    "data": points,
                    "color": colors[style],
                    "fill": _FILLS[order % len(_FILLS)] if categories and len(groups) > 1 else "ff",
                    "borderDash": () if categories else _DASHES[order % len(_DASHES)],
                    "pointStyle": list(SHAPES)[style % len(SHAPES)],
                }
            )
            drawn += len(points)
        if lines:
            title = ", ".join(map(plain_name, shown))
            about = f"Chart of {title} by {plain_name(chart.x)}"
            if len(groups) > 1:
                about += f", a line for each {', '.join(map(plain_name, labels))}"
            axis = title if len(shown) == 1 else dimension_of(unit)
            panel = _panel(chart, categories, unit, axis, lines)
            title = title if len(shown) < len(metrics) else ""
            panels.append(Panel(title, about, panel))
    return Drawing(tuple(panels), measured - drawn)


def _more_labels(chart: Chart, cells: Sequence[Cell]) -> tuple[str, ...]:
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
) -> list[dict[str, Any]]:
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
                "y": metric.median,
                "low": metric.median if is_log and low <= 0 else low,
                "high": metric.high if math.isfinite(metric.high) else metric.median,
                "at": f"{plain_name(chart.x)} {label_text(chart.x, label)}",
                "value": value,
                "text": f"{value} ({spread} in {metric.runs} runs)" if spread else value,
            }
        )
    return sorted(points, key=lambda point: point["x"])


def _colors(names: Sequence[str]) -> list[str]:
    others = [name for name in names if name not in _KNOWN]
    used = _KNOWN.values() if len(others) < len(names) else ()
    free = [color for index, color in enumerate(COLORS) if index not in used]
    return [
        COLORS[_KNOWN[name]] if name in _KNOWN else free[others.index(name) % len(free)]
        for name in names
    ]


def _panel(
    chart: Chart,
    categories: Sequence[str],
    unit: Unit,
    title: str,
    lines: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """A chart for the library: horizontal bars of categories, or points if the axis is logarithmic;
    else lines. Coordinates become amounts of the units in which the axes count."""
    points = [point for line in lines for point in line["data"]]
    ends = [value for point in points for value in (point["low"], point["y"], point["high"])]
    is_log = "y" in chart.log
    size, y = _axis(title, unit, ends, is_log=is_log)
    y |= {"beginAtZero": not is_log, "border": {"display": False}}
    has_bars = bool(categories) and not is_log
    x_size = 1.0
    if categories:
        x: dict[str, Any] = {
            "type": "category",
            "labels": [text if len(text) <= 26 else f"{text[:25]}…" for text in categories],
            "offset": True,
            "title": {"display": True, "text": plain_name(chart.x)},
            "ticks": {"autoSkip": False},
        }
    else:
        # A count of rows has its unit in its name already.
        x_unit = Unit.NONE if unit_of(chart.x) is Unit.ROWS else unit_of(chart.x)
        values = [point["x"] for point in points]
        x_size, x = _axis(plain_name(chart.x), x_unit, values, is_log="x" in chart.log)
    x["grid"] = {"display": False}
    for point in points:
        point["x"] = _six(point["x"] / x_size)
        point |= {name: _six(point[name] / size) for name in ("y", "low", "high")}
        if categories:
            point["x"], point["y"] = point["y"], point["x"]
    has_values = has_bars and len(lines) * len(categories) <= 24
    thickness = len(lines) * 24 + 16 if has_bars else 36
    return {
        "type": "bar" if has_bars else "line",
        "height": 76 + len(categories) * thickness if categories else None,
        "data": {"datasets": lines},
        "options": {
            "indexAxis": "y" if categories else "x",
            "hasValues": has_values,
            "showLine": not categories,
            "elements": {"point": {"radius": 6 if categories else 4}},
            "scales": {"x": y, "y": x} if categories else {"x": x, "y": y},
            "layout": {"padding": {"right": 64 if has_values else 12, "top": 8}},
            "interaction": {
                "mode": "nearest",
                "axis": "y" if categories else "x",
                "intersect": False,
            },
        },
    }


def _axis(
    name: str, unit: Unit, values: Sequence[float], *, is_log: bool
) -> tuple[float, dict[str, Any]]:
    """The size of the unit in which the axis counts, and the axis, which includes these values."""
    least, greatest = min(values), max(values)
    limit = least if is_log else max(-least, greatest)
    sizes = _SIZES.get(unit, ((1.0, ""),))
    size, ending = next((step for step in sizes if limit >= step[0]), sizes[-1])
    words = ", ".join(filter(None, (ending, "log scale" if is_log else "")))
    return size, {
        "type": "logarithmic" if is_log else "linear",
        "title": {"display": True, "text": f"{name} ({words})" if words else name},
        "suggestedMin": _six(least / size),
        "suggestedMax": _six(greatest / size),
        "ticks": {"maxRotation": 0, "maxTicksLimit": 7},
    }


def _six(value: float) -> float:
    """Six digits, which are more than a chart shows."""
    return float(f"{value:.6g}")


def _key(cell: Cell, labels: Sequence[str]) -> Key:
    return tuple(cell.labels.get(name) for name in labels)


def _ordered(keys: list[Key]) -> list[Key]:
    """Amounts by size, anything else in its given order."""
    if all(is_number(value) for key in keys for value in key):
        return sorted(keys, key=lambda key: [value for value in key if not isinstance(value, str)])
    return keys


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))
