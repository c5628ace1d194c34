"""The passes over a snapshot: one that fills a circuit, one that finds the sketch alone.

Law: both read exactly the versions they are given, natively from the file list. The first gives
sketch and state, by the engine itself or from partial aggregates of Spark, whichever is quicker;
the second runs in Spark, is the fastest capture there is for the sketch, the oracle of `verify`
and the baseline of `bench`, and shares nothing with the engine but the partition.
Out of scope: the SQL (`capture`), the state (`circuits.partials`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from impctl.aliases import AccessId
from impctl.app.capturing.chosen_way import capture_way
from impctl.app.capturing.fill_by_engine import is_loaded_here, loaded
from impctl.app.capturing.fill_by_spark import _from_partials
from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.workbench.workbench import Workbench
from impctl.circuits.compile import Compiled
from impctl.circuits.session import MaintainedQuery
from impctl.circuits.way import Way
from impctl.errors import EvaluationError, NotExactError
from impctl.plan.safety.verdict import Verdict
from impctl.sketch.partition import RangePartition
from impctl.values import dataclass

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class Filled:
    """A circuit that stands at the pinned version, and who filled it."""

    session: MaintainedQuery
    uses_spark: bool


def filled_circuit(
    desk: Workbench,
    prepared: PreparedQuery,
    way: Way,
    verdict: Verdict,
    partitions: Mapping[AccessId, RangePartition],
) -> Filled | None:
    """A session whose circuit, that of `way`, stands at the pinned versions of its tables.

    By the engine where that is quicker and possible; else from a pass of Spark; None where neither
    comes to a state, and the sketch alone has to be captured.
    """
    compiled = _compiled(way)
    if is_loaded_here(desk, compiled):
        session = loaded(desk, compiled, partitions)
        if session is not None:
            return Filled(session, uses_spark=bool(compiled.distant))
        if compiled.chain is None:
            return None
        # Part of the table already went through that circuit.
        compiled = _compiled(capture_way(desk.tables, prepared, verdict, partitions))
    try:
        return Filled(_from_partials(desk, compiled, partitions), uses_spark=True)
    except (EvaluationError, NotExactError):
        # The pass, or the engine on its result, met a value it cannot compute, or doubles too close
        # to call. If Spark cannot compute it either, the capture of the sketch alone says so.
        return None


def _compiled(way: Way) -> Compiled:
    assert way.compiled is not None
    return way.compiled
