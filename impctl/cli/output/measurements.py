"""Records of measurements and simulations as text, readable at 80 columns."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING

from impctl.cli.output.text import table_lines
from impctl.errors import count_text
from impctl.measure.files import FigureTable, figure_tables, metric_text, plain_name
from impctl.service.results import (
    Record,
    RecordComparison,
    RecordedRuns,
    RecordKind,
    SimulatedSetting,
    SimulateResult,
)
from impctl.service.text import duration_text, moment_text, number_text, size_text, span_text

if TYPE_CHECKING:
    from impctl.cli.output.text import Text
    from impctl.service.formats import TextColumn

# Records and their comparisons. Law: a table per figure, numbers to the right with their unit, then
# break-even and the claims of the papers.

_WIDTH = 80


def record_lines(record: Record) -> list[str]:
    """Render a record: the run in a line, then its figures."""
    checked = sum(1 for cell in record.cells if cell.covers is not None or cell.equal is not None)
    scale = f"scale {record.scale:g}, " if record.kind is RecordKind.SUITE else ""
    lines = [
        f"{record.suite}: {count_text(len(record.cells), 'case')} measured for "
        f"{count_text(len(record.figures), 'figure')}, {checked:,} checked, "
        f"{scale}{duration_text(record.elapsed_s * 1000)}, noise {record.noise:.0%}"
    ]
    for table in figure_tables(record):
        lines += ["", *_figure_lines(table)]
    return lines


def comparison_lines(comparison: RecordComparison) -> list[str]:
    """Render differences beyond the noise, then what was not compared."""
    places = {(change.figure, tuple(change.labels.items())) for change in comparison.changes}
    lines = [
        f"{comparison.suite}: {count_text(len(comparison.changes), 'metric')} of "
        f"{count_text(len(places), 'case')} compared, noise {comparison.noise:.0%}"
    ]
    lines += [f"wrong: {_place(cell.figure, cell.labels)}" for cell in comparison.wrong]
    edited = "not compared, the query, partition, option or data differ"
    lines += [f"{edited}: {_place(cell.figure, cell.labels)}" for cell in comparison.edited]
    judged = [change for change in comparison.changes if change.verdict != "unjudged"]
    if len(judged) < len(comparison.changes):
        lines.append("times of different machines are not compared, only ratios and sizes")
    differing = [change for change in judged if change.verdict != "same"]
    for change in differing:
        before = metric_text(change.metric, change.old)
        after = metric_text(change.metric, change.new)
        lines.append(
            f"{change.verdict}: {_place(change.figure, change.labels)}: "
            f"{plain_name(change.metric)} {before}, then {after}"
            + (f" ({change.ratio:.2f})" if isfinite(change.ratio) else "")
        )
    if judged and not differing:
        lines.append("nothing differs beyond the noise")
    for which, cells in (("old", comparison.only_old), ("new", comparison.only_new)):
        only = f"only in the {which} record"
        lines += [f"{only}: {_place(cell.figure, cell.labels)}" for cell in cells]
    return lines + [f"differs between the runs: {fact}" for fact in comparison.differences]


def _figure_lines(table: FigureTable) -> list[str]:
    figure = table.figure
    lines = [f"{figure.name}: {figure.title}"]
    lines += [f"  {line}" for line in _table(table)]
    texts = _break_even_texts(table.break_evens)
    if figure.claim:
        source = f" ({figure.source})" if figure.source else ""
        texts.append(f"papers: {' '.join(figure.claim.split())}{source}")
    for text in texts:
        lines += textwrap.wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="    ")
    return lines


def _table(table: FigureTable) -> list[str]:
    columns = []
    for column in table.columns:
        texts = (column.name, *(text or "-" for text, _ in column.fields))
        width = max(map(len, texts))
        columns.append([t.rjust(width) if column.is_right else t.ljust(width) for t in texts])
    return ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]


def _break_even_texts(result: Sequence[tuple[str, str]]) -> list[str]:
    """A line per case with a break-even, or a single one if all agree."""
    texts = {text for _, text in result}
    if len(result) > 1 and len(texts) == 1:
        return [f"break-even, {len(result)} equal cases: {texts.pop()}"]
    return [
        f"break-even, {case}: {text}" if case else f"break-even: {text}" for case, text in result
    ]


def _place(figure: str, labels: Mapping[str, str | int | float]) -> str:
    return ", ".join([figure, *(f"{name} {value}" for name, value in labels.items())])


# `simulate`. Law: the present setting is the first row; the basis of the figures is below the
# table. If the terminal is too narrow for the table, each setting has separate lines.

_COSTS_BY = {
    "runs": "from recorded runs",
    "capture": "from captures, because no run is recorded",
    "priors": "from default times",
}


def render_simulated(result: SimulateResult, out: Text) -> None:
    """Print what was replayed, the settings, and the basis of the figures."""
    days = span_text((result.until - result.since).total_seconds())
    out.line(
        f"{count_text(sum(result.commits.values()), 'commit')} with"
        f" {count_text(result.rows, 'row')} in {days} replayed,"
        f" from {moment_text(result.since)}, by {result.source};"
        f" a check every {duration_text(result.look_s * 1000)}"
    )
    table = table_lines(_columns(result.settings))
    if out.width is None or all(len(line) <= out.width for line in table):
        for line in ("", *table, ""):
            out.raw(line)
    else:
        for setting in result.settings:
            _render_setting(setting, out)
    counts = Counter(result.costs_by.values())
    costs = (
        f"{count_text(counts[by], 'query', 'queries')} {text}"
        for by, text in _COSTS_BY.items()
        if counts[by]
    )
    out.detail(f"work: {'; '.join(costs)}")
    over = [setting.setting for setting in result.settings if setting.over_budget]
    if over:
        out.detail(f"over budget even with the minimum of state: {'; '.join(over)}")
    if result.recorded is None:
        out.detail("no recorded runs of this time to compare the model with")
    else:
        out.detail(_recorded(result.recorded))


def _columns(settings: Sequence[SimulatedSetting]) -> list[TextColumn]:
    from impctl.service.formats import TextColumn

    names = "setting runs steps work age 99% worst late state reads converts"
    rows = [_texts(setting) for setting in settings]
    return [
        TextColumn(name, name != "setting", list(texts))
        for name, texts in zip(names.split(), zip(*rows, strict=True), strict=True)
    ]


def _texts(setting: SimulatedSetting) -> tuple[str, ...]:
    """The cells of a row."""
    return (
        setting.setting,
        f"{setting.runs:,}",
        f"{setting.steps:,}",
        duration_text(setting.work_ms),
        *map(_age, (setting.age_s, setting.age_99_s, setting.age_worst_s)),
        f"{setting.late:,}",
        size_text(setting.state_bytes),
        number_text(round(setting.reads, 1)),
        str(setting.conversions),
    )


def _render_setting(setting: SimulatedSetting, out: Text) -> None:
    name, _, _, work, age, age_99, worst, late, state, reads, converts = _texts(setting)
    out.line(f"{name}:")
    runs = f"{count_text(setting.runs, 'run')}, {count_text(setting.steps, 'step')}"
    out.detail(f"{runs}, {work} of work, {late} late")
    out.detail(f"age {age}, 99% {age_99}, worst {worst}")
    out.detail(f"state {state}, reads {reads}, converts {converts}")


def _age(seconds: float | None) -> str:
    return "-" if seconds is None else duration_text(seconds * 1000)


def _recorded(result: RecordedRuns) -> str:
    off = "" if result.work_off is None else f" ({result.work_off:+.0%})"
    return (
        f"recorded since {moment_text(result.since)}: {count_text(result.runs, 'run')},"
        f" {count_text(result.steps, 'step')}, {duration_text(result.work_ms)};"
        f" the model: {count_text(result.model_runs, 'run')} ({result.runs_off:+.0%}),"
        f" {count_text(result.model_steps, 'step')} ({result.steps_off:+.0%}),"
        f" {duration_text(result.model_work_ms)}{off}"
    )
