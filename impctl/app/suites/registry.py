"""The measures that a figure of a suite may name.

Law: a measure is a function from a ground to cells that keeps the law of `app.suites.ground`; its
name in a suite file is its key here, and `docs/suites.md` describes it. A new measure whose options
stand in labels has a line in `fingerprint._LABELLED`.
Out of scope: what each does (one file each beside this one).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from impctl.app.suites.capture_cost import measure_capture
from impctl.app.suites.deletions import measure_deletions
from impctl.app.suites.engine_cost import measure_engine
from impctl.app.suites.ground import Ground
from impctl.app.suites.maintain_cost import measure_maintain
from impctl.app.suites.memory import measure_memory
from impctl.app.suites.mixed import measure_mixed
from impctl.app.suites.query_cost import measure_query
from impctl.app.suites.strategies import measure_strategies
from impctl.bench.record import Cell

Measure = Callable[[Ground], Iterator[Cell]]

MEASURES: Mapping[str, Measure] = {
    "capture": measure_capture,
    "deletions": measure_deletions,
    "engine": measure_engine,
    "maintain": measure_maintain,
    "memory": measure_memory,
    "mixed": measure_mixed,
    "query": measure_query,
    "strategies": measure_strategies,
}
