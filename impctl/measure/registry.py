"""The measures of `impctl bench`: functions from a ground to cells (`measure.ground`).

Every label and metric that the cells of a measure may have is listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from impctl.measure.kinds.capture_cost import measure_capture
from impctl.measure.kinds.maintain_cost import measure_maintain
from impctl.measure.kinds.query_cost import measure_query
from impctl.measure.kinds.ways import measure_ways
from impctl.values import dataclass

if TYPE_CHECKING:
    from impctl.bench.record import Cell
    from impctl.measure.ground import Ground


@dataclass(frozen=True, slots=True)
class Drawable:
    """Labels that a measure adds to those of the case, and its metrics; `operators` says that
    there are more, named after operators (`join_bytes`)."""

    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    operators: bool = False

    def has(self, metric: str) -> bool:
        """May a cell have this metric?"""
        return metric in self.metrics or (self.operators and metric.endswith("_bytes"))


@dataclass(frozen=True, slots=True)
class Measure:
    """What a figure does with each case.

    `labelled` are options whose every value has cells of its own, which are labelled with it, or
    only adds a metric to one: not those of which a cell shows the effect of several, as `changes`
    of `memory`. A fingerprint leaves them out.
    """

    run: Callable[[Ground], Iterator[Cell]]
    labelled: tuple[str, ...]
    drawable: Drawable


MEASURES: Mapping[str, Measure] = {
    "capture": Measure(
        measure_capture,
        (),
        Drawable((), ("plain_ms", "recapture_ms", "capture_ms", "state_bytes")),
    ),
    "maintain": Measure(
        measure_maintain,
        ("changes", "shares"),
        Drawable(
            ("changes", "share", "kind"),
            (
                *("maintain_ms", "read_ms", "engine_ms", "commit_ms"),
                *("recapture_ms", "recapture_ratio", "state_bytes", "duckdb_ms"),
            ),
        ),
    ),
    "query": Measure(
        measure_query,
        (),
        Drawable(
            (),
            (
                *("plain_ms", "sketch_ms", "gain_ratio", "duckdb_plain_ms"),
                *("files_share", "rows_share", "fragments_share"),
            ),
        ),
    ),
    "ways": Measure(
        measure_ways,
        (),
        Drawable(
            ("way",),
            ("files_count", "wall_ms", "cpu_ms", "gain_ratio", "cpu_gain_ratio"),
        ),
    ),
}
