"""The passes over a snapshot: one that fills a circuit, one that finds the sketch alone.

Law: both read exactly the versions they are given, natively from the file list. The first gives
sketch and state, by the engine itself or from partial aggregates of Spark, whichever is quicker;
the second runs in Spark, is the fastest capture there is for the sketch, the oracle of `verify`
and the baseline of `bench`, and shares nothing with the engine but the partition.
Out of scope: the SQL (`capture`), the state (`compile.builder`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from impctl.app.capturing.chosen_way import capture_way, chosen_way
from impctl.app.capturing.fill_by_engine import is_loaded_here, loaded
from impctl.app.capturing.fill_by_spark import from_partials
from impctl.app.capturing.join_choice import chooser_for
from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.workbench.workbench import Workbench
from impctl.compile.compile import Compiled, Way
from impctl.compile.jointree.cost import TreesAsRecorded
from impctl.compile.session import MaintainedQuery
from impctl.engine.fixpoint.absorption import PROVENANCE_TOO_LARGE
from impctl.errors import EvaluationError, NotExactError, OutOfMemoryError
from impctl.safety.judge import Verdict
from impctl.sketch.partition import RangePartition
from impctl.sketch.sketch import Mode
from impctl.types import AccessId
from impctl.values import dataclass
from impctl.workload.models import JoinStrategy, Policy

COULD_NOT = (
    "the engine could not build its state (a join is too large, a row fails, or "
    "doubles are too close to compare)"
)
_NOT_BESIDE = "the engine could not build its state along with the sketch"
_BY_RANKS = "its recursion is maintained by ranks, not by absorption"
_STOPPED = (Policy.STRICT, Policy.INCREMENTAL)
"""Policies under which too large functions are an error."""
_AS_TREES = "its joins are trees, because their other inputs could not be stored"


@dataclass(frozen=True, slots=True)
class Filled:
    """A circuit that stands at the pinned version, and who filled it."""

    session: MaintainedQuery
    uses_spark: bool


def best_filled(
    desk: Workbench,
    prepared: PreparedQuery,
    way: Way,
    verdict: Verdict,
    partitions: Mapping[AccessId, RangePartition],
) -> tuple[Way, Filled | None]:
    """The circuit of the way filled, or of a lesser way where it cannot be; else recapture alone.

    What does not come to a state in memory is tried with joins as trees, where the workload leaves
    that open and these tell an answer that is asked for; and without the answer, for which less has
    to be sure. Recursion that is to be kept by absorption is kept by ranks where that takes too
    much: of nodes only where the policy lets it, else EvaluationError.
    """
    why, code = COULD_NOT, ""
    for tried, asked in _ways(desk, prepared, way, verdict, partitions):
        way = tried
        try:
            filled = filled_circuit(desk, asked, way, verdict, partitions)
        except (EvaluationError, OutOfMemoryError) as exceeded:
            if exceeded.code == PROVENANCE_TOO_LARGE and desk.policy(prepared.spec) in _STOPPED:
                raise
            why, code, filled = exceeded.message, f" [{exceeded.code}]", None
        if filled is not None:
            way = replace(way, compiled=filled.session.compiled)
            return _without_provenance(prepared, way, why, code), filled
    way = replace(way, mode=Mode.RECAPTURE, reason=why, compiled=None)
    return _without_provenance(prepared, way, why, code), None


def _without_provenance(prepared: PreparedQuery, way: Way, why: str, code: str) -> Way:
    """The way, with why recursion is not kept by absorption where it was to be."""
    if prepared.spec.provenance is None or way.provenance:
        return way
    if way.compiled is None:
        return replace(way, no_provenance=why + code)
    return replace(way, reason=f"{way.reason}; {_BY_RANKS}: {why}", no_provenance=why + code)


def _ways(
    desk: Workbench,
    prepared: PreparedQuery,
    way: Way,
    verdict: Verdict,
    partitions: Mapping[AccessId, RangePartition],
) -> Iterator[tuple[Way, PreparedQuery]]:
    """The way, then lesser ones, each with the query as it is asked for then."""
    yield way, prepared
    chooser = replace(chooser_for(desk, prepared, reads=False), absorbs=None)
    if way.provenance:
        alike = replace(chooser, trees=TreesAsRecorded(way.has_tree))
        has_answer = way.answer is not None
        way = chosen_way(prepared, verdict, partitions, alike, has_answer=has_answer)
        yield way, prepared
    planted = replace(chooser, trees=TreesAsRecorded(is_tree=True, reason=_AS_TREES))
    is_open = prepared.spec.join is JoinStrategy.AUTO and not way.has_tree
    if way.answer is not None and is_open:
        told = chosen_way(prepared, verdict, partitions, planted)
        if told.has_tree and told.answer is not None:
            yield replace(told, reason=f"{told.reason}; {_AS_TREES}"), prepared
    if way.answer is not None:
        prepared = replace(prepared, spec=replace(prepared.spec, answer=False))
        alike = replace(chooser, trees=TreesAsRecorded(way.has_tree))
        without = chosen_way(prepared, verdict, partitions, alike)
        yield replace(without, no_answer=_NOT_BESIDE), prepared
    if is_open:
        tree = chosen_way(prepared, verdict, partitions, planted)
        if tree.has_tree:
            said = way.no_answer if way.answer is None else _NOT_BESIDE
            yield replace(tree, reason=f"{tree.reason}; {_AS_TREES}", no_answer=said), prepared


def filled_circuit(
    desk: Workbench,
    prepared: PreparedQuery,
    way: Way,
    verdict: Verdict,
    partitions: Mapping[AccessId, RangePartition],
) -> Filled | None:
    """A session whose circuit, that of `way`, stands at the pinned versions of its tables.

    By the engine where that is quicker and possible; else from a pass of Spark; None where neither
    comes to a state, and the sketch alone has to be captured. OutOfMemoryError
    where the engine would take more memory than it may.
    """
    compiled = _compiled(way)
    if is_loaded_here(desk, compiled):
        session = loaded(desk, compiled, partitions)
        if session is not None:
            return Filled(session, uses_spark=compiled.asks_spark)
        if compiled.chain is None:
            return None
        # Part of the table already went through that circuit.
        compiled = _compiled(capture_way(desk, prepared, verdict, partitions))
    try:
        return Filled(from_partials(desk, compiled, partitions), uses_spark=True)
    except (EvaluationError, NotExactError):
        # The pass, or the engine on its result, met a value it cannot compute, or doubles too close
        # to call. If Spark cannot compute it either, the capture of the sketch alone says so.
        return None


def _compiled(way: Way) -> Compiled:
    assert way.compiled is not None
    return way.compiled
