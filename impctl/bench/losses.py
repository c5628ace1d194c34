"""Where a sketch does not pay: what lost, what is larger than needed, what has to be kept.

Law: every loss beyond the noise is told or counted; a winner is never mentioned here.
Out of scope: what won (`summary`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

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
    STATE,
    TREE,
    UNUSED,
    VIEW,
    WITH,
    WITHOUT,
    Contest,
    by_case,
    cell_name,
    contests,
    ends,
    workload_contests,
)
from impctl.bench.quantity import Unit, is_number, number, readable, times, unit_of

if TYPE_CHECKING:
    from impctl.bench.record import Record

_LISTED = 6
"""Cases named of one kind at most: the tables hold all of them."""


def losses(record: Record) -> tuple[str, ...]:
    """One sentence for each case where a sketch lost, then slack and state."""
    return (
        *_lost(contests(record, MAINTAIN, RECAPTURE), "Recapture was faster than maintaining"),
        *_lost(contests(record, MAINTAIN, DUCKDB_RECAPTURE), "Recapture in DuckDB was faster"),
        *_lost(contests(record, WITH, WITHOUT), "The query was slower with its sketch"),
        *_lost(
            contests(record, WITH, PRUNED),
            "The query was slower with its sketch than with statistics alone",
        ),
        *_lost(
            contests(record, WITH, VIEW), "A manually maintained view was faster than the sketch"
        ),
        *_lost(
            contests(record, WITH, DUCKDB_WITHOUT),
            "The query in DuckDB was faster than Spark with the sketch",
        ),
        *_lost(
            contests(record, DUCKDB_WITH, DUCKDB_WITHOUT),
            "The query in DuckDB was slower with the sketch",
        ),
        *_lost(
            contests(record, FROM_STATE, VIEW),
            "A manually maintained view was faster than the materialized result",
        ),
        *_lost(
            contests(record, FROM_STATE, DUCKDB_WITHOUT),
            "The query in DuckDB was faster than the materialized result",
        ),
        *_lost(
            contests(record, BY_ENGINE, DUCKDB_WITHOUT),
            "The query in DuckDB was faster than the engine with the sketch",
        ),
        *_lost(
            contests(record, BY_ENGINE, WITH),
            "With the sketch, Spark was faster than the engine",
        ),
        *_lost(contests(record, TREE, INDEX), "The index join was faster than the tree"),
        *_lost(
            contests(record, TREE, DUCKDB_RECAPTURE),
            "Running the query again in DuckDB was faster than a step of the tree",
        ),
        *_lost(workload_contests(record, UNUSED), "The workload was faster without a sketch"),
        *_lost(
            workload_contests(record, RECAPTURED),
            "The workload was faster with recaptured sketches",
        ),
        *_undecided(record),
        *_slack(record),
        *_state(record),
    )


def _undecided(record: Record) -> list[str]:
    """Slower, but not beyond the noise: neither a loss nor a win, and not to be passed over."""
    pairs = ((MAINTAIN, RECAPTURE), (WITH, WITHOUT), (WITH, PRUNED))
    result = [contest for pair in pairs for contest in contests(record, *pair)]
    for way in (UNUSED, RECAPTURED):
        result += workload_contests(record, way)
    slower = [contest for contest in result if contest.ratio < 1 and not contest.is_lost]
    if not slower:
        return []
    worst, _ = ends(slower)
    return [
        f"Not decided: {_cells(len(slower))} slower with a sketch, but within the noise or "
        f"the spread of the runs. The slowest was {times(worst.ratio)} as fast "
        f"({worst.full_name}), where equal work may take {readable(worst.band, Unit.SHARE)} "
        "longer."
    ]


def _lost(result: Sequence[Contest], says: str) -> list[str]:
    """One sentence for each figure with a loss: its cases, and how bad each is at its worst."""
    figures: dict[str, list[str]] = {}
    for (name, case), group in by_case(result).items():
        lost = [contest for contest in group if contest.is_lost]
        if lost:
            worst = min(lost, key=lambda contest: contest.ratio)
            at = f" at {worst.place}" if len(lost) > 1 else ""
            told = f"{_where(group, lost)} ({times(worst.ratio)} as fast{at})"
            figures.setdefault(name, []).append(f"{case} {told}" if case else told)
    titles = {contest.figure.name: contest.figure.title for contest in result}
    return [f"{says} in “{titles[name]}”: {_listed(cases)}." for name, cases in figures.items()]


def _listed(cases: Sequence[str]) -> str:
    rest = len(cases) - _LISTED
    more = [f"and {rest} more in its table"] if rest > 0 else []
    return "; ".join([*cases[:_LISTED], *more])


def _where(group: Sequence[Contest], lost: Sequence[Contest]) -> str:
    """`from 100,000 changes on` where every larger x is lost too, else the places themselves."""
    name = lost[0].figure.chart.x
    if len(lost) == len(group):
        return (
            "everywhere" if len(group) > 1 else f"at {lost[0].place}" if lost[0].place else "there"
        )
    values = [(_x(contest, name), contest) for contest in group]
    if all(value is not None for value, _ in values):
        in_order = [contest for _, contest in sorted(values, key=lambda pair: pair[0] or 0.0)]
        ending = in_order[-len(lost) :]
        if all(contest.is_lost for contest in ending) and len(lost) > 1:
            return f"from {ending[0].place} on"
    places = [contest.place for contest in lost]
    return f"at {' and '.join(places) if len(places) < 3 else ', '.join(places[:_LISTED])}"


def _x(contest: Contest, name: str) -> float | None:
    value = contest.cell.labels.get(name)
    return float(value) if is_number(value) else None


def _slack(record: Record) -> list[str]:
    held = [(cell.slack, cell) for cell in record.cells if cell.slack]
    if not held:
        return []
    slack, cell = max(held, key=lambda pair: pair[0])
    return [
        f"Sketches larger than needed: {_cells(len(held))} with slack, the most "
        f"{number(slack)} {'range' if slack == 1 else 'ranges'} "
        f"({cell_name(record, cell)}). A sketch with slack is correct, but skips less."
    ]


def _state(record: Record) -> list[str]:
    held = [
        (cell.metrics[STATE].median, cell)
        for cell in record.cells
        if STATE in cell.metrics and math.isfinite(cell.metrics[STATE].median)
    ]
    if not held:
        return []
    size, cell = max(held, key=lambda pair: pair[0])
    if size <= 0:
        return []
    return [
        f"State is stored: at most {readable(size, unit_of(STATE))} "
        f"({cell_name(record, cell)}). If that is too much, recapture stores none."
    ]


def _cells(count: int) -> str:
    return "1 cell" if count == 1 else f"{number(count)} cells"
