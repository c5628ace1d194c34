"""The measures that a figure of a suite may name.

Law: a measure is a function from a ground to cells that keeps the law of `app.measuring.ground`;
its name in a suite file is its key here, and `docs/suites.md` describes it. A new measure whose
options stand in labels has a line in `fingerprint._LABELLED`.
Out of scope: what each does (one file each beside this one).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from impctl.app.measuring.ground import Ground
from impctl.app.measuring.kinds.capture_cost import measure_capture
from impctl.app.measuring.kinds.deletions import measure_deletions
from impctl.app.measuring.kinds.engine_cost import measure_engine
from impctl.app.measuring.kinds.maintain_cost import measure_maintain
from impctl.app.measuring.kinds.memory import measure_memory
from impctl.app.measuring.kinds.mixed import measure_mixed
from impctl.app.measuring.kinds.query_cost import measure_query
from impctl.app.measuring.kinds.strategies import measure_strategies
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
