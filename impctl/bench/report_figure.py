"""One figure of a report as HTML: what it shows, its chart, the papers' claim, notes, its table.

Law: the chart takes the keyboard and says in words what it shows, and the table holds all of it;
all text of the record is escaped. Out of scope: what is drawn where (`report_chart`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING

from impctl.bench.break_even_words import break_even_words
from impctl.bench.contest import (
    BY_ENGINE,
    DUCKDB_RECAPTURE,
    DUCKDB_WITH,
    DUCKDB_WITHOUT,
    FROM_STATE,
    INDEX,
    MAINTAIN,
    PRUNED,
    RECAPTURE,
    RECAPTURED,
    TREE,
    UNUSED,
    VIEW,
    WITH,
    WITHOUT,
    contests,
    labels_name,
    workload_contests,
)
from impctl.bench.quantity import Unit, number, plain_name, readable, unit_of
from impctl.bench.report_chart import Drawing, draw
from impctl.bench.report_table import table
from impctl.bench.report_text import prose
from impctl.bench.summary import range_text

if TYPE_CHECKING:
    from impctl.bench.record import Cell, Figure, Record

_NAMED = 4
"""Cases that fit beside a chart."""


def anchor(index: int) -> str:
    """What links to a figure name: its place, since a name may hold anything."""
    return f"figure-{index + 1}"


def figure_section(
    record: Record, figure: Figure, index: int, here: str = "Measured here"
) -> tuple[str, Drawing | None]:
    """The section, and what its script draws; None where nothing was measured.

    `here` heads what the record says of the figure.
    """
    cells = record.cells_of(figure.name)
    drawing = draw(figure.chart, cells) if cells else None
    if drawing is not None and not drawing.panels:
        drawing = None
    parts = [
        f'<section class="figure" id="{anchor(index)}" aria-labelledby="title-{index}">',
        f'<h2 id="title-{index}"><span class="count">{index + 1}</span> {prose(figure.title)}</h2>',
        f'<p class="about">{prose(figure.about)}</p>' if figure.about else "",
        '<div class="beside">',
        _charts(figure, drawing, index),
        _aside(record, figure, here),
        "</div>",
        _notes(record, figure, drawing),
        _cells_table(figure, cells),
        "</section>",
    ]
    return "\n".join(part for part in parts if part), drawing


def measured_here(record: Record, figure: Figure) -> tuple[str, ...]:
    """What this run says where the papers' claim stands beside it."""
    own = replace(record, figures=(figure,), cells=record.cells_of(figure.name))
    compared = {
        "Speed-up over recapture": contests(own, MAINTAIN, RECAPTURE),
        "Speed-up over recapture in DuckDB": contests(own, MAINTAIN, DUCKDB_RECAPTURE),
        "Speed-up of the query with its sketch": contests(own, WITH, WITHOUT),
        "Speed-up of that over statistics alone": contests(own, WITH, PRUNED),
        "Speed-up of that over a manually maintained view": contests(own, WITH, VIEW),
        "Speed-up of that over DuckDB": contests(own, WITH, DUCKDB_WITHOUT),
        "Speed-up of the materialized result over a manually maintained view": contests(
            own, FROM_STATE, VIEW
        ),
        "Speed-up of the engine with the sketch over DuckDB": contests(
            own, BY_ENGINE, DUCKDB_WITHOUT
        ),
        "Speed-up of DuckDB with the sketch": contests(own, DUCKDB_WITH, DUCKDB_WITHOUT),
        "Speed-up of the tree over the index join": contests(own, TREE, INDEX),
        "Speed-up of the tree over running DuckDB again": contests(own, TREE, DUCKDB_RECAPTURE),
        "Speed-up over no sketch": workload_contests(own, UNUSED),
        "Speed-up over recaptured sketches": workload_contests(own, RECAPTURED),
    }
    texts = [f"{says}: {range_text(result)}." for says, result in compared.items() if result]
    texts += _crossings(own)
    return tuple(texts) or _range(own, figure)


def _crossings(own: Record) -> list[str]:
    """Where costs cross; that they do not is in the table."""
    evens = [(case, text) for (_, case), text in break_even_words(own).items()]
    crossed = [(case, text) for case, text in evens if not text.startswith("above")]
    if not crossed or len(crossed) > _NAMED:
        return []
    listed = "; ".join(f"{text} with {case}" if case else text for case, text in crossed)
    return [f"Break-even: {listed}."]


def _range(own: Record, figure: Figure) -> tuple[str, ...]:
    """Least and greatest of the first metric, where nothing is compared."""
    name = next(iter(figure.chart.y), "")
    held = [cell.metrics[name].median for cell in own.cells if name in cell.metrics]
    finite = [value for value in held if math.isfinite(value)]
    if not finite:
        return ()
    low, high = (readable(value, unit_of(name)) for value in (min(finite), max(finite)))
    told = low if low == high else f"{low} to {high}"
    return (f"{plain_name(name).capitalize()}: {told}.",)


def _charts(figure: Figure, drawing: Drawing | None, index: int) -> str:
    if drawing is None:
        return '<div class="charts"><p class="empty">Nothing was measured here.</p></div>'
    rows = []
    for unit in dict.fromkeys(panel.y.unit for panel in drawing.panels):
        boxes = [
            _chart(figure, drawing, index, at)
            for at, panel in enumerate(drawing.panels)
            if panel.y.unit == unit
        ]
        few = " one" if len(boxes) == 1 else ""
        rows.append(f'<div class="panels{few}">{"".join(boxes)}</div>')
    return (
        f'<div class="charts"><div class="legend" data-legend="{index}"></div>{"".join(rows)}</div>'
    )


def _chart(figure: Figure, drawing: Drawing, index: int, at: int) -> str:
    panel = drawing.panels[at]
    title = f'<p class="panel">{escape(panel.title)}</p>' if panel.title else ""
    words = _in_words(figure, drawing, at)
    return (
        f'<div class="chart">{title}<div class="canvas">'
        # An image would be read as it stands: an application is given the arrow keys.
        '<canvas role="application" aria-roledescription="chart" tabindex="0" '
        f'data-figure="{index}" data-panel="{at}" aria-label="{escape(words)}"></canvas>'
        "</div></div>"
    )


def _in_words(figure: Figure, drawing: Drawing, at: int) -> str:
    panel = drawing.panels[at]
    metrics = [drawing.metrics[line.metric] for line in panel.lines]
    parts = [
        f"Chart of {', '.join(dict.fromkeys(metrics))} by {drawing.x.title}",
        f"for {panel.title}" if panel.title else "",
        f"a line for each {drawing.group_title}" if len(drawing.groups) > 1 else "",
    ]
    told = ", ".join(part for part in parts if part)
    return (
        f"{figure.title}. {told}. Use the arrow keys to read its points; the table below "
        "has every number."
    )


def _aside(record: Record, figure: Figure, title: str) -> str:
    here = "".join(f"<p>{prose(text)}</p>" for text in measured_here(record, figure))
    parts = [f'<div class="here"><h3>{escape(title)}</h3>{here}</div>' if here else ""]
    if figure.claim:
        source = f"<cite>{prose(figure.source)}</cite>" if figure.source else ""
        parts.append(
            f'<div class="claim"><h3>The papers report</h3>'
            f"<blockquote><p>{prose(figure.claim)}</p></blockquote>{source}</div>"
        )
    result = "".join(parts)
    return f"<aside>{result}</aside>" if result else ""


def _notes(record: Record, figure: Figure, drawing: Drawing | None) -> str:
    """Every note once, with the cells it is about where these are few, and the noise around."""
    cells = record.cells_of(figure.name)
    about: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.note:
            about.setdefault(cell.note, []).append(cell)
    notes = []
    if len(about) > _NAMED:
        about = {}  # So many are no news of this figure: each stands in the table.
    for note, held in about.items():
        names = [labels_name(figure, cell) for cell in held]
        where = "; ".join(name for name in names if name) if len(held) <= 3 else ""
        notes.append(f"{where}: {note}" if where and len(held) < len(cells) else note)
    if drawing is not None and drawing.hidden:
        notes.append(
            f"{number(drawing.hidden)} of the numbers in the table are not drawn, because "
            "they are not numbers or are zero on a logarithmic axis."
        )
    if cells and math.isfinite(record.figure_noise.get(figure.name, math.nan)):
        noise = readable(record.noise_of(figure.name), Unit.SHARE)
        notes.append(f"Around this figure, equal work took at most {noise} longer.")
    if not notes:
        return ""
    return f'<ul class="notes">{"".join(f"<li>{prose(note)}</li>" for note in notes)}</ul>'


def _cells_table(figure: Figure, cells: Sequence[Cell]) -> str:
    if not cells:
        return ""
    count = "1 row" if len(cells) == 1 else f"{number(len(cells))} rows"
    caption = f"{figure.title}: every number"
    return (
        f'<details class="cells" open><summary>Every number ({count})</summary>'
        f"{table(cells, caption)}</details>"
    )
