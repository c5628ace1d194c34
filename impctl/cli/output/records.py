"""Records and their comparisons as lines of text, readable at 80 columns.

Law: a table per figure, numbers to the right with their unit, then break-even and what the papers
print. Out of scope: which columns a table has, and the words of its values
(`measure.figure_tables`); streams (`cli.output.text`).
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from math import isfinite

from impctl.errors import count_text
from impctl.measure.figure_tables import (
    FigureTable,
    figure_tables,
    heading,
    metric_text,
    value_text,
)
from impctl.service.results import Record, RecordComparison, RecordKind
from impctl.service.text import duration_text

_WIDTH = 80


def record_lines(record: Record) -> list[str]:
    """The run in a line, then its figures."""
    checked = sum(1 for cell in record.cells if cell.covers is not None or cell.equal is not None)
    lines = [
        f"{record.suite}: {count_text(len(record.cells), 'cell')} of "
        f"{count_text(len(record.figures), 'figure')}, {checked:,} checked, "
        f"{_scale_text(record)}{duration_text(record.elapsed_s * 1000)}, noise {record.noise:.0%}"
    ]
    for table in figure_tables(record):
        lines += ["", *_figure_lines(table)]
    return lines


def _scale_text(record: Record) -> str:
    return f"scale {record.scale:g}, " if record.kind is RecordKind.SUITE else ""


def comparison_lines(comparison: RecordComparison) -> list[str]:
    """What differs beyond the noise, then what could not be compared."""
    places = {(change.figure, tuple(change.labels.items())) for change in comparison.changes}
    lines = [
        f"{comparison.suite}: {count_text(len(comparison.changes), 'metric')} of "
        f"{count_text(len(places), 'cell')} compared, noise {comparison.noise:.0%}"
    ]
    lines += [f"  wrong: {_place(cell.figure, cell.labels)}" for cell in comparison.wrong]
    edited = "the query, partition, option or data differ"
    lines += [
        f"  not compared, {edited}: {_place(cell.figure, cell.labels)}"
        for cell in comparison.edited
    ]
    judged = [change for change in comparison.changes if change.verdict != "unjudged"]
    if len(judged) < len(comparison.changes):
        lines.append("  times of different machines are not compared, only ratios and sizes")
    differing = [change for change in judged if change.verdict != "same"]
    for change in differing:
        before = metric_text(change.metric, change.old)
        after = metric_text(change.metric, change.new)
        lines.append(
            f"  {change.verdict}: {_place(change.figure, change.labels)}: "
            f"{heading(change.metric)} {before}, then {after}"
            + (f" ({change.ratio:.2f})" if isfinite(change.ratio) else "")
        )
    if judged and not differing:
        lines.append("  nothing differs beyond the noise")
    for which, places_only in (("old", comparison.only_old), ("new", comparison.only_new)):
        lines += [
            f"  only in the {which} record: {_place(cell.figure, cell.labels)}"
            for cell in places_only
        ]
    return lines + [f"  differs between the runs: {fact}" for fact in comparison.differences]


def _figure_lines(table: FigureTable) -> list[str]:
    figure = table.figure
    lines = [f"{figure.name}: {figure.title}"]
    lines += [f"  {line}" for line in _table(table)]
    for text in _break_even_texts(table.break_evens):
        lines += _wrapped(text)
    if figure.claim:
        source = f" ({figure.source})" if figure.source else ""
        lines += _wrapped(f"papers: {' '.join(figure.claim.split())}{source}")
    return lines


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="    ")


def _table(table: FigureTable) -> list[str]:
    rows = [[heading(name) for name in (*table.labels, *table.metrics)]]
    rows += [[value_text(table, at, value) for at, value in enumerate(row)] for row in table.rows]
    columns = range(len(rows[0]))
    is_text = [any(isinstance(row[at], str) for row in table.rows) for at in columns]
    widths = [max(len(row[at]) for row in rows) for at in columns]
    return [_aligned(row, widths, is_text) for row in rows]


def _aligned(row: Sequence[str], widths: Sequence[int], is_text: Sequence[bool]) -> str:
    cells = [
        cell.ljust(width) if left else cell.rjust(width)
        for cell, width, left in zip(row, widths, is_text, strict=True)
    ]
    return "  ".join(cells).rstrip()


def _break_even_texts(result: Sequence[tuple[str, str]]) -> list[str]:
    """A line per case that breaks even somewhere, or one for all of these where they agree."""
    texts = {text for _, text in result}
    if len(result) > 1 and len(texts) == 1:
        return [f"break-even, {len(result)} equal cases: {texts.pop()}"]
    return [
        f"break-even, {case}: {text}" if case else f"break-even: {text}" for case, text in result
    ]


def _place(figure: str, labels: Mapping[str, str | int | float]) -> str:
    return ", ".join([figure, *(f"{name} {value}" for name, value in labels.items())])
