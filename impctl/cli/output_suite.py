"""Records of suites and their comparisons as lines of text, readable at 80 columns.

Law: a table per figure, numbers to the right with their unit, then break-even and what the papers
print. Out of scope: which columns a table has (`app.suites.summary`), streams (`output_text`).
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from math import isfinite

from impctl.app.amounts import duration_text, number_text, size_text
from impctl.app.results import Record, RecordComparison
from impctl.app.suites.summary import BreakEven, FigureSummary, summaries
from impctl.cli.wording import count_text

_WIDTH = 80

_Value = str | int | float | None


def record_lines(record: Record) -> list[str]:
    """The run in a line, then its figures."""
    checked = sum(1 for cell in record.cells if cell.covers is not None or cell.equal is not None)
    lines = [
        f"{record.suite}: {count_text(len(record.cells), 'cell')} of "
        f"{count_text(len(record.figures), 'figure')}, {checked:,} checked, "
        f"scale {record.scale:g}, {duration_text(record.elapsed_s * 1000)}, "
        f"noise {record.noise:.0%}"
    ]
    for summary in summaries(record):
        lines += ["", *_figure_lines(summary)]
    return lines


def comparison_lines(comparison: RecordComparison) -> list[str]:
    """What differs beyond the noise, then what could not be compared."""
    places = {(change.figure, tuple(change.labels.items())) for change in comparison.changes}
    lines = [
        f"{comparison.suite}: {count_text(len(comparison.changes), 'metric')} of "
        f"{count_text(len(places), 'cell')} compared, noise {comparison.noise:.0%}"
    ]
    lines += [f"  wrong: {_place(cell.figure, cell.labels)}" for cell in comparison.wrong]
    edited = "of another query, partition, option or data"
    lines += [
        f"  not compared, {edited}: {_place(cell.figure, cell.labels)}"
        for cell in comparison.edited
    ]
    judged = [change for change in comparison.changes if change.verdict != "unjudged"]
    if len(judged) < len(comparison.changes):
        lines.append("  times are not judged, they are of two machines: only ratios and sizes are")
    differing = [change for change in judged if change.verdict != "same"]
    for change in differing:
        before = value_text(change.metric, change.old)
        after = value_text(change.metric, change.new)
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


def heading(name: str) -> str:
    """A metric's name without its unit, which its values carry; labels as they are."""
    for unit in ("_ms", "_bytes", "_rows", "_share"):
        name = name.removesuffix(unit)
    return name.replace("_", " ")


def value_text(name: str, value: _Value) -> str:
    """A value with the unit that its name ends in."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if name.endswith("_ms"):
        return duration_text(value)
    if name.endswith("_bytes"):
        return size_text(round(value))
    if name.endswith("share"):
        return _percent(value)
    return number_text(value)


def _figure_lines(summary: FigureSummary) -> list[str]:
    figure = summary.figure
    lines = [f"{figure.name}: {figure.title}"]
    lines += [f"  {line}" for line in _table(summary)]
    for text in _break_even_texts(summary.break_evens):
        lines += _wrapped(text)
    if figure.claim:
        source = f" ({figure.source})" if figure.source else ""
        lines += _wrapped(f"papers: {' '.join(figure.claim.split())}{source}")
    return lines


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="    ")


def _table(summary: FigureSummary) -> list[str]:
    names = (*summary.labels, *summary.metrics)
    rows = [[heading(name) for name in names]]
    rows += [
        [value_text(name, value) for name, value in zip(names, row, strict=True)]
        for row in summary.rows
    ]
    is_text = [any(isinstance(row[at], str) for row in summary.rows) for at in range(len(names))]
    widths = [max(len(row[at]) for row in rows) for at in range(len(names))]
    return [_aligned(row, widths, is_text) for row in rows]


def _aligned(row: Sequence[str], widths: Sequence[int], is_text: Sequence[bool]) -> str:
    cells = [
        cell.ljust(width) if left else cell.rjust(width)
        for cell, width, left in zip(row, widths, is_text, strict=True)
    ]
    return "  ".join(cells).rstrip()


def _break_even_texts(found: Sequence[BreakEven]) -> list[str]:
    """A line per case that breaks even somewhere, or one for all of these where they agree."""
    texts = [_break_even_text(even) for even in found]
    if len(texts) > 1 and len(set(texts)) == 1:
        return [f"break-even, {len(texts)} cases alike: {texts[0]}"]
    heads = [
        ", ".join(f"{name} {value_text('', value)}" for name, value in even.labels.items())
        for even in found
    ]
    return [
        f"break-even, {head}: {text}" if head else f"break-even: {text}"
        for head, text in zip(heads, texts, strict=True)
    ]


def _break_even_text(found: BreakEven) -> str:
    """Where recapture becomes cheaper, in the words of what was measured."""
    if found.at is not None:
        return f"at {_size(found.size, found.at)}"
    if found.beyond is not None:
        return f"beyond {_size(found.size, found.beyond)}, the largest measured"
    return f"below {_size(found.size, found.before or 0)}, the smallest measured"


def _size(label: str, value: float) -> str:
    return f"{_percent(value)} of the table" if label == "share" else f"{value:,.0f} changed rows"


def _percent(share: float) -> str:
    return f"{number_text(100 * share)}%"


def _place(figure: str, labels: Mapping[str, str | int | float]) -> str:
    return ", ".join([figure, *(f"{name} {value}" for name, value in labels.items())])
