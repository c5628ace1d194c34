"""The way that a query is maintained in, where a capture came to another one than it would now.

Law: what is stored is maintained as the capture left it, whatever would be chosen today: a state
that did not fit in memory may be one of trees, or without the answer, and a budget may have had
sides of joins read.
Out of scope: whether what is stored is of the query as it stands (`plan_lines.kept_state`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from impctl.app.capturing.chosen_way import chosen_buffers, chosen_way
from impctl.app.capturing.join_choice import chooser_of
from impctl.app.capturing.meta import StateMeta
from impctl.app.examining.plan_lines import is_less
from impctl.app.preparing.prepared import PreparedQuery
from impctl.compile.compile import Way
from impctl.compile.flows import Strategy
from impctl.safety.judge import Verdict
from impctl.sketch.partition import RangePartition
from impctl.store.records import StoredQuery
from impctl.types import AccessId

_NO_ANSWER = "the capture could not store it along with the sketch"


def way_as_stored(
    prepared: PreparedQuery,
    verdict: Verdict,
    partitions: Mapping[AccessId, RangePartition],
    way: Way,
    stored: StoredQuery,
) -> Way:
    """The way of the stored state; `way`, which a capture would choose now, where they agree."""
    meta = StateMeta.read(stored.query, stored.state_meta)
    if is_less(stored, way):
        no_answer = meta.way if prepared.spec.answer else ""
        return Way(stored.mode, meta.way, accesses=way.accesses, core=way.core, no_answer=no_answer)
    by_spark, from_files = way.sides_by(Strategy.SPARK), way.sides_by(Strategy.FILES)
    has_same_sides = {*meta.distant} == {*by_spark} and {*meta.from_files} == {*from_files}
    has_same_sides &= meta.provenance == way.provenance
    has_same_sides &= meta.buffers == chosen_buffers(prepared.spec, way.compiled)
    has_same_answer = meta.answer == (way.answer is not None)
    if bool(meta.trees) == way.has_tree and has_same_answer and has_same_sides:
        return way
    chooser = chooser_of(prepared, meta)
    result = chosen_way(prepared, verdict, partitions, chooser, has_answer=meta.answer)
    if result.has_tree == way.has_tree:
        # Why there is none, or one, is as true of what is stored.
        result = replace(result, trees=way.trees)
    is_left_out = prepared.spec.answer and not meta.answer
    return replace(
        result, reason=meta.way, no_answer=_NO_ANSWER if is_left_out else result.no_answer
    )
