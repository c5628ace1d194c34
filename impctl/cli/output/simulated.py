"""What settings come to over commits of the past, as a table and lines of text.

Law: the present setting is the first row; what a figure rests on stands below the table. Where a
terminal is too narrow for the table, each setting has lines of its own.
Out of scope: JSON (`cli.output.json`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from impctl.cli.output.table import table_lines
from impctl.cli.output.wrapped import wrapped
from impctl.errors import count_text
from impctl.service.results import RecordedRuns, SimulatedSetting, SimulateResult
from impctl.service.text import duration_text, moment_text, number_text, plain, size_text, span_text

if TYPE_CHECKING:
    from impctl.service.formats import TextColumn

_TOLD_BY = {
    "runs": "from recorded runs",
    "capture": "from captures, because no run is recorded",
    "priors": "from default times",
}


def simulated_lines(result: SimulateResult, width: int | None) -> list[str]:
    """What was replayed, the table, and what it rests on."""
    lines = wrapped(plain(_head(result)), width, "", "  ")
    table = table_lines(_columns(result.settings))
    if width is None or all(len(line) <= width for line in table):
        lines += ["", *table, ""]
    else:
        for one in result.settings:
            lines += _block(one, width)
    for text in _notes(result):
        lines += wrapped(plain(text), width, "  ", "    ")
    return lines


def _head(result: SimulateResult) -> str:
    count = sum(result.commits.values())
    days = span_text((result.until - result.since).total_seconds())
    late = "" if result.late is None else f", rows late ({result.late})"
    return (
        f"{count_text(count, 'commit')} with {count_text(result.rows, 'row')} in {days} replayed,"
        f" from {moment_text(result.since)}, by {result.source}{late};"
        f" a check every {duration_text(result.look_s * 1000)}"
    )


def _columns(settings: Sequence[SimulatedSetting]) -> list[TextColumn]:
    # Most commands print no table, and need nothing of what writes one.
    from impctl.service.formats import TextColumn

    def column(name: str, texts: Iterator[str], *, is_number: bool = True) -> TextColumn:
        return TextColumn(name, is_number, list(texts))

    return [
        column("setting", (one.setting for one in settings), is_number=False),
        column("runs", (f"{one.runs:,}" for one in settings)),
        column("steps", (f"{one.steps:,}" for one in settings)),
        column("work", (duration_text(one.work_ms) for one in settings)),
        column("age", (_age(one.age_s) for one in settings)),
        column("99%", (_age(one.age_99_s) for one in settings)),
        column("worst", (_age(one.age_worst_s) for one in settings)),
        column("late", (f"{one.late:,}" for one in settings)),
        column("state", (size_text(one.state_bytes) for one in settings)),
        column("reads", (number_text(round(one.reads, 1)) for one in settings)),
        column("converts", (str(one.conversions) for one in settings)),
    ]


def _block(one: SimulatedSetting, width: int) -> list[str]:
    """A setting in words."""
    work = f"{count_text(one.runs, 'run')}, {count_text(one.steps, 'step')}"
    age = f"age {_age(one.age_s)}, 99% {_age(one.age_99_s)}, worst {_age(one.age_worst_s)}"
    reads = number_text(round(one.reads, 1))
    texts = (
        f"{work}, {duration_text(one.work_ms)} of work, {one.late:,} late",
        age,
        f"state {size_text(one.state_bytes)}, reads {reads}, converts {one.conversions}",
    )
    lines = wrapped(plain(f"{one.setting}:"), width, "", "  ")
    for text in texts:
        lines += wrapped(plain(text), width, "  ", "    ")
    return lines


def _age(seconds: float | None) -> str:
    return "-" if seconds is None else duration_text(seconds * 1000)


def _notes(result: SimulateResult) -> Iterator[str]:
    told = Counter(result.costs_by.values())
    queries = {by: f"{told[by]} {'query' if told[by] == 1 else 'queries'}" for by in told}
    parts = [f"{queries[by]} {text}" for by, text in _TOLD_BY.items() if told[by]]
    yield f"work: {'; '.join(parts)}"
    over = [one.setting for one in result.settings if one.over_budget]
    if over:
        yield f"over budget even with the minimum of state: {'; '.join(over)}"
    if result.recorded is None:
        none = "no recorded runs of this time to compare the model with"
        yield (
            none if result.late is None else "no recorded run had rows that arrived late like this"
        )
    else:
        yield _recorded(result.recorded)


def _recorded(result: RecordedRuns) -> str:
    off = "" if result.work_off is None else f" ({_share(result.work_off)})"
    return (
        f"recorded since {moment_text(result.since)}: {count_text(result.runs, 'run')},"
        f" {count_text(result.steps, 'step')}, {duration_text(result.work_ms)};"
        f" the model: {count_text(result.model_runs, 'run')} ({_share(result.runs_off)}),"
        f" {count_text(result.model_steps, 'step')} ({_share(result.steps_off)}),"
        f" {duration_text(result.model_work_ms)}{off}"
    )


def _share(off: float) -> str:
    return f"{off:+.0%}"
