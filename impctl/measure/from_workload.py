"""The figures of a workload file: what its queries' sketches cost and save on the user's data.

Law: every query asked for is a case of every figure under its own name, at the full size of its
tables; nothing is generated. Without sizes of a change there are both rows and shares of the
table, so that a break-even is told on small and on large tables.
Out of scope: measuring (`measure.run`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from impctl.errors import Location
from impctl.measure.figures import CaseSpec, ChartSpec, FigureSpec, OptionValue

if TYPE_CHECKING:
    from impctl.workload.models import QuerySpec, Workload

_CHANGES = (10, 100, 1000)
_SHARES = (0.01, 0.1)
REPEAT = 3
"""Runs of each thing: a small workload takes about a minute with them."""

SEED = 1


def figures_of(
    workload: Workload, queries: Sequence[QuerySpec], delta_rows: Sequence[int] = ()
) -> tuple[FigureSpec, ...]:
    """The figures of these queries; `delta_rows`, where given, are all the sizes of a change."""
    cases = tuple(CaseSpec(spec.name, {"query": spec.name}, spec.location) for spec in queries)
    place = Location(workload.file, 1, 1)
    return (
        _changes(cases, tuple(delta_rows), place),
        _skipping(cases, place),
        _capture(cases, place),
        _ways(cases, place),
    )


def _changes(
    cases: tuple[CaseSpec, ...], delta_rows: tuple[int, ...], place: Location
) -> FigureSpec:
    sizes: dict[str, OptionValue] = {"changes": _CHANGES, "shares": _SHARES}
    if delta_rows:
        sizes = {"changes": delta_rows}
    return FigureSpec(
        name="changes",
        title="Size of a change",
        about="Updating a sketch after a change of its table, by maintaining it and by "
        "recapturing it. The rows of a change are sampled from the table.",
        claim="",
        source="",
        measure="maintain",
        options=sizes,
        cases=cases,
        chart=ChartSpec("changes", ("maintain_ms", "recapture_ms"), ("query",), ("x", "y")),
        location=place,
    )


def _skipping(cases: tuple[CaseSpec, ...], place: Location) -> FigureSpec:
    return FigureSpec(
        name="skipping",
        title="What a sketch saves",
        about="The query without its sketch and with it, and the rows that remain to read with "
        "the sketch.",
        claim="",
        source="",
        measure="query",
        options={},
        cases=cases,
        chart=ChartSpec("query", ("plain_ms", "sketch_ms", "rows_share"), (), ()),
        location=place,
    )


def _capture(cases: tuple[CaseSpec, ...], place: Location) -> FigureSpec:
    return FigureSpec(
        name="capture",
        title="First capture",
        about="Capturing sketch and state once, compared with the query and with a recapture of "
        "the sketch alone.",
        claim="",
        source="",
        measure="capture",
        options={},
        cases=cases,
        chart=ChartSpec("query", ("plain_ms", "recapture_ms", "capture_ms"), (), ()),
        location=place,
    )


def _ways(cases: tuple[CaseSpec, ...], place: Location) -> FigureSpec:
    return FigureSpec(
        name="ways",
        title="Ways to the answer",
        about="The same answer from the materialized result, by impctl's engine, by DuckDB and by "
        "Spark, in one warm process. Speed-ups are against Spark over all files.",
        claim="",
        source="",
        measure="ways",
        options={},
        cases=cases,
        chart=ChartSpec("way", ("files_count", "wall_ms", "cpu_ms"), ("query",), ("y",)),
        location=place,
    )
