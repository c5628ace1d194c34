"""What settings come to as one HTML page: figures of work, bytes, ages and runs, and every number.

Law: made of the result alone, the same for the same result; nothing is loaded, all text is escaped
(`bench.report`). Written whole or not at all.
Out of scope: what a figure draws (`bench.report`), text and JSON (`cli.output`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from impctl.app.results.amounts import duration_text, moment_text, number_text, size_text, span_text
from impctl.app.results.made import WrittenResult
from impctl.app.results.simulated import SimulatedSetting, SimulateResult
from impctl.app.workbench.output import write_whole
from impctl.bench.headlines import Headline
from impctl.bench.record import Cell, Chart, Figure, Label, Metric, Record
from impctl.bench.report import Page, render_page
from impctl.bench.summary import Section, Summary
from impctl.errors import StorageError

_OWN = "as in the file"
_HEADS = (
    *("Budget", "Trigger", "Runs", "Steps", "Work", "Age", "99%", "Worst", "Late", "State"),
    *("Reads", "Converts"),
)
_METHOD = (
    "Past commits run through the same scheduler and choice of state as real runs, in "
    "virtual time. No table rows are read.",
    "The time of a step is estimated from recorded runs of the query with as many rows "
    "of the same tables. Without a recorded run, the estimate uses the capture, or "
    "else default times. The extra cost that the choice of state expects, compared "
    "with the present state, is added.",
    "The age is that of the oldest change in a step when its run ends. Reads of join "
    "sides from files are estimates, counted for each query even if a run shares them.",
)


def write_page(path: Path, result: SimulateResult, reserved: Mapping[str, str]) -> WrittenResult:
    """Write the page; StorageError where that cannot be."""
    try:
        write_whole(path, render(result), reserved)
    except OSError as error:
        raise StorageError(
            f"The report could not be written to `{path}`: {error.strerror}",
            hint="name a file in a folder with write access",
        ) from error
    return WrittenResult("report", str(path))


def render(result: SimulateResult) -> str:
    """The page."""
    page = Page(
        command="simulate",
        kicker=result.source if result.late is None else f"{result.source}, late ({result.late})",
        title="Costs of other settings",
        facts=_facts(result),
        summary=Summary((), tuple(_headlines(result)), (_table(result),)),
        record=_record(result),
        here="In this replay",
        how="How these figures were computed",
        method=_METHOD,
        made="from one replay",
    )
    return render_page(page)


def _facts(result: SimulateResult) -> dict[str, str]:
    tables = (f"{name} {count:,}" for name, count in result.commits.items())
    return {
        "From": moment_text(result.since),
        "To": moment_text(result.until),
        "Commits": f"{sum(result.commits.values()):,} ({', '.join(tables)})",
        "Rows": f"{result.rows:,}",
        "Looks": f"every {duration_text(result.look_s * 1000)}",
        "Queries": str(len(result.costs_by)),
    }


def _headlines(result: SimulateResult) -> Iterator[Headline]:
    present = result.settings[0]
    over = span_text((result.until - result.since).total_seconds())
    yield Headline(duration_text(present.work_ms), "work with the setting as it is", f"in {over}")
    least = min(result.settings, key=lambda one: one.work_ms if one.steps else float("inf"))
    if least is not present and least.steps and present.work_ms:
        share = f"{least.work_ms / present.work_ms:.0%}"
        yield Headline(share, "of that work, with the cheapest setting", least.setting)
    found = result.recorded
    if found is not None and found.work_off is not None:
        where = f"{found.steps:,} steps since {moment_text(found.since)}"
        yield Headline(
            f"{found.work_off:+.0%}", "difference between the model and the recorded work", where
        )


def _table(result: SimulateResult) -> Section:
    rows = tuple(_row(one) for one in result.settings)
    late = [one.setting for one in result.settings if one.late]
    points = [f"Steps are late with: {'; '.join(late)}."] if late else []
    over = [one.setting for one in result.settings if one.over_budget]
    points += [f"Even the minimum exceeds the budget of: {'; '.join(over)}."] if over else []
    numbers = tuple(range(2, len(_HEADS)))
    return Section("Settings", (), tuple(points), _HEADS, numbers, rows)


def _row(one: SimulatedSetting) -> tuple[str, ...]:
    return (
        _budget(one),
        _trigger(one),
        f"{one.runs:,}",
        f"{one.steps:,}",
        duration_text(one.work_ms),
        *(_age(age) for age in (one.age_s, one.age_99_s, one.age_worst_s)),
        f"{one.late:,}",
        size_text(one.state_bytes),
        number_text(round(one.reads, 1)),
        str(one.conversions),
    )


def _age(seconds: float | None) -> str:
    return "" if seconds is None else duration_text(seconds * 1000)


def _budget(one: SimulatedSetting) -> str:
    if one.present:
        return "as it is"
    return "all kept" if one.disk_bytes is None else size_text(one.disk_bytes)


def _trigger(one: SimulatedSetting) -> str:
    return _OWN if one.trigger is None else one.trigger


def _record(result: SimulateResult) -> Record:
    """Figures and cells, in the form that figures are drawn from."""
    return Record(
        suite="simulate",
        title="",
        scale=1.0,
        repeat=0,
        seed=0,
        started=result.since.isoformat(),
        elapsed_s=0.0,
        noise=0.0,
        machine={},
        figures=_FIGURES,
        cells=(*_by_bytes(result.settings), *_by_trigger(result.settings)),
    )


_FIGURES = (
    Figure(
        "work",
        "Work by bytes of state and trigger",
        "Total time of all steps. With less state, tables are read more often.",
        Chart("state_bytes", ("work_ms",), ("trigger",)),
    ),
    Figure(
        "reads",
        "Reads of join sides by bytes of state and trigger",
        "Expected number of reads from files, for join sides that are not stored.",
        Chart("state_bytes", ("reads",), ("trigger",)),
    ),
    Figure(
        "age",
        "Age of sketches by trigger",
        "Age of the oldest change of a step when it is done: median, 99th percentile, maximum.",
        Chart("trigger", ("median_ms", "at_99_of_100_ms", "worst_ms"), log=("y",)),
    ),
    Figure(
        "runs",
        "Runs and steps by trigger",
        "Runs of a follower, and queries maintained in them.",
        Chart("trigger", ("runs", "steps"), log=("y",)),
    ),
)


def _by_bytes(settings: Sequence[SimulatedSetting]) -> Iterator[Cell]:
    """A point for each trigger and size of state; budgets may come to the same."""
    alike: dict[tuple[str, int], list[SimulatedSetting]] = {}
    for one in settings:
        alike.setdefault((_trigger(one), one.state_bytes), []).append(one)
    for (trigger, size), found in alike.items():
        note = "; ".join(one.setting for one in found)
        for figure, name, value in (
            ("work", "work_ms", found[0].work_ms),
            ("reads", "reads", found[0].reads),
        ):
            labels: dict[str, Label] = {"trigger": trigger, "state_bytes": size}
            yield Cell(figure, labels, _metrics({name: value}), note=note)


def _by_trigger(settings: Sequence[SimulatedSetting]) -> Iterator[Cell]:
    """A cell for each trigger, with the budget that comes first."""
    first: dict[str, SimulatedSetting] = {}
    for one in settings:
        first.setdefault(_trigger(one), one)
    for trigger, one in first.items():
        labels = {"trigger": trigger}
        ages = (one.age_s, one.age_99_s, one.age_worst_s)
        names = ("median_ms", "at_99_of_100_ms", "worst_ms")
        told = zip(names, ages, strict=True)
        known = {name: age * 1000 for name, age in told if age is not None}
        yield Cell("age", labels, _metrics(known), note=one.setting)
        counts = {"runs": float(one.runs), "steps": float(one.steps)}
        yield Cell("runs", labels, _metrics(counts), note=one.setting)


def _metrics(values: dict[str, float]) -> dict[str, Metric]:
    return {name: Metric(value, value, value, 0) for name, value in values.items()}
