"""Which way to an answer was the quickest, case by case: where each rival wins.

Law: every case is told once, with the way whose median was least and how far the next one lies
behind; where that is within the noise, both are named and neither is said to win.
Out of scope: what the ways are (`benchmarks.measures.answer_ways`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from impctl.bench.band import side_of, time_band
from impctl.bench.contest import (
    BY_ENGINE,
    DUCKDB_WITH,
    DUCKDB_WITHOUT,
    FROM_STATE,
    VIEW,
    WITH,
    WITHOUT,
    labels_name,
)
from impctl.bench.quantity import Unit, plain_name, readable, times

if TYPE_CHECKING:
    from impctl.bench.record import Cell, Figure, Metric, Record

_WAYS: Mapping[str, str] = {
    WITH: "Spark with the sketch",
    WITHOUT: "Spark without sketch",
}
"""What a way is called here where its metric's own name does not say who answers."""


def quickest(record: Record) -> tuple[str, ...]:
    """A sentence for each case that was answered from state, by the engine and by others."""
    return tuple(
        _told(record, figure, cell)
        for figure in record.figures
        for cell in record.cells_of(figure.name)
        if FROM_STATE in cell.metrics and BY_ENGINE in cell.metrics
    )


def _told(record: Record, figure: Figure, cell: Cell) -> str:
    ways = (FROM_STATE, BY_ENGINE, VIEW, DUCKDB_WITH, DUCKDB_WITHOUT, WITH, WITHOUT)
    result = [
        (cell.metrics[way], _WAYS.get(way, plain_name(way))) for way in ways if _has(cell, way)
    ]
    result.sort(key=lambda pair: pair[0].median)
    (first, name), (second, other), *rest = result
    case = labels_name(figure, cell)
    others = "; ".join(
        f"{words} {times(metric.median / first.median)} as long" for metric, words in rest
    )
    won = _is_won(record, cell, first, second)
    what = (
        f"{name} ({readable(first.median, Unit.MS)}), then {other}, "
        f"{times(second.median / first.median)} as long"
        if won
        else f"{name} ({readable(first.median, Unit.MS)}) or {other}, within the noise"
    )
    return f"{case}: {what}; {others}." if others else f"{case}: {what}."


def _has(cell: Cell, way: str) -> bool:
    return way in cell.metrics and cell.metrics[way].median > 0


def _is_won(record: Record, cell: Cell, first: Metric, second: Metric) -> bool:
    return side_of(first, second, time_band(first, second, record.noise_of(cell.figure))) > 0
