"""Use case: recapture in Spark at the stored versions and compare.

Law: the oracle shares nothing with the maintained state but the partition; a sketch that lacks a
fragment of the accurate one is unsound (exit 5), one that has more has slack. A sketch that holds
one derivation of each row of a fixpoint has no accurate one: it is unsound where rows derived over
it are not all there are, and its slack is what no derivation uses. With results, the
query is also run with and without its sketch and the two answers compared as bags, and with them
the one that is kept; doubles may differ by what the order of a floating sum can make of them, and
rows that tie at a LIMIT by which of them there are. Of a LIMIT without an order, that leaves any of
more rows, only the number is compared, which is told. A query that only its sketch makes fail has
nothing to compare, which is told too.
What was found is recorded, where the store may be written, for `status` to tell.
Out of scope: mending what is wrong (`app.capture`).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from functools import cache
from typing import TypeVar

from impctl.app.capturing.chosen_way import restored_verdict
from impctl.app.capturing.definition import check_definition
from impctl.app.capturing.kept_ending import known_ending
from impctl.app.capturing.moments import stored_moments
from impctl.app.capturing.recapture import needed
from impctl.app.capturing.uncaptured import captured_query
from impctl.app.preparing.filters import filters_of
from impctl.app.preparing.prepared import PreparedQuery, prepare
from impctl.app.results.past_runs import VERIFIED, VERIFY
from impctl.app.results.results import Failure, Outcome, VerifyResult
from impctl.app.results.unsketched import ASKED_FOR_NONE
from impctl.app.using.answers import Answer, answer, answer_of
from impctl.app.using.kept_answer import kept_answer
from impctl.app.using.rounded import Rounded, rounded_answer
from impctl.app.using.same_rows import same_rows
from impctl.app.using.ties import cut_order
from impctl.app.workbench.isolated import Isolated
from impctl.app.workbench.workbench import Workbench
from impctl.errors import EvaluationError, RetryableError
from impctl.plan.properties import loose_columns
from impctl.sketch.sketch import compare
from impctl.stopwatch import Stopwatch
from impctl.store.records import RunRecord, StoredQuery
from impctl.types import QueryName
from impctl.workload.models import QuerySpec

_FAILS_IN_PART = (
    "query `{}` fails on groups that its sketch covers only in part, so it is answered "
    "without its sketch, and there is no result with it to compare"
)


def verify(
    desk: Workbench, queries: Sequence[QueryName] | None, *, results: bool = False
) -> Outcome:
    """One result per stored sketch; results_equal only where `results` asks for it."""
    result: list[VerifyResult] = []
    failures: list[Failure] = []
    warnings: list[str] = []
    specs = desk.sketched(queries)
    for number, spec in enumerate(specs, start=1):
        desk.reporter.step(f"verifying {spec.name}", number, len(specs))
        with Isolated(failures, spec):
            watch, at = Stopwatch(), time.time()
            verified = _verified(desk, spec, results)
            result += verified
            if results and any(one.results_equal is None for one in verified):
                warnings.append(_FAILS_IN_PART.format(spec.name))
            warnings += _recorded(desk, spec, verified, at, watch.ms)
    warnings += _left_out(desk, queries)
    return Outcome(tuple(result), tuple(warnings), tuple(failures))


def _left_out(desk: Workbench, queries: Sequence[QueryName] | None) -> list[str]:
    """That some have no sketch to look at, and are not among the results."""
    names = [f"`{spec.name}`" for spec in desk.queries(queries) if not spec.is_sketched]
    verb = "is" if len(names) == 1 else "are"
    listed = ", ".join(names)
    return [f"{listed} {verb} not verified: {ASKED_FOR_NONE}"] if names else []


def _recorded(
    desk: Workbench, spec: QuerySpec, verified: Sequence[VerifyResult], at: float, took: float
) -> list[str]:
    """Remember what was found; a store that is locked or may not be written is no failure."""
    if not verified:
        return []
    slack = sum(one.slack for one in verified)
    missing = sum(len(one.missing) for one in verified)
    is_sound = all(one.is_sound for one in verified)
    code = VERIFIED if is_sound else "sketch_unsound"
    reason = f"slack {slack}" if is_sound else "the sketch or its results were wrong"
    versions = verified[0].versions
    record = RunRecord(
        action=VERIFY,
        reason_code=code,
        reason=reason,
        started_at=at,
        elapsed_ms=took,
        read_ms=0,
        engine_ms=0,
        commit_ms=0,
        changes=0,
        added=slack,
        removed=missing,
        versions=versions,
    )
    try:
        desk.store().add_record(spec.name, record)
    except RetryableError as error:
        return [f"the verification of `{spec.name}` was not recorded: {error.message}"]
    return []


def _verified(desk: Workbench, spec: QuerySpec, results: bool) -> list[VerifyResult]:
    stored = captured_query(desk, desk.reading_store(), spec)
    check_definition(desk, spec, stored)
    prepared = prepare(desk, spec, stored_moments(stored))
    verdict, _ = restored_verdict(desk.tables, prepared, stored)
    desk.spark()
    desk.reporter.step(f"recapturing {spec.name}")
    held = {one.access: (one.partition, one.fragments) for one in stored.sketches}
    accurate = needed(desk, prepared, verdict, held, stored.versions)
    equal: bool | None = None
    counts_only, kept = False, None
    if results:
        equal, counts_only, kept = _results_equal(desk, prepared, stored)
    verified = []
    for sketch in stored.sketches:
        relation = compare(sketch.fragments, accurate[sketch.access])
        verified.append(
            VerifyResult(
                query=spec.name,
                table=sketch.table,
                attribute=sketch.attribute,
                total=sketch.partition.ranges,
                covers=relation.covers,
                slack=relation.slack,
                missing=relation.missing,
                extra=relation.extra,
                results_equal=equal,
                versions=stored.versions,
                moments=prepared.moments,
                counts_only=counts_only,
                answer_equal=kept,
            )
        )
    return verified


def _results_equal(
    desk: Workbench, prepared: PreparedQuery, stored: StoredQuery
) -> tuple[bool | None, bool, bool | None]:
    """Whether the answers are equal, whether only their numbers of rows could be compared, and
    whether the kept answer is (None without one).

    None where the query fails through its sketch alone, which nobody then uses.
    """
    desk.reporter.step(f"running {prepared.spec.name} with and without its sketch")
    pruned = filters_of(desk.tables, prepared, stored.sketches, stored.versions)
    without = answer(desk, prepared, stored.versions)
    try:
        with_sketch = answer(desk, prepared, stored.versions, pruned)
    except EvaluationError:
        with_sketch = None
    kept = _kept(desk, prepared, stored)
    if len(without.rows) == prepared.query.cut:
        # Any rows are right, once there are more than the LIMIT leaves.
        result = [None if one is None else len(one.rows) for one in (with_sketch, kept)]
        equal, is_kept = (None if n is None else n == len(without.rows) for n in result)
        return equal, True, is_kept
    loose = loose_columns(prepared.query.root)
    cut = None if loose else cut_order(prepared.query.root)

    @cache
    def rounded() -> Rounded | None:
        return rounded_answer(desk, prepared, stored.versions)

    def is_same(result: Answer | None) -> bool | None:
        if result is None:
            return None
        if same_rows(_without(result.rows, loose), _without(without.rows, loose)):
            return True
        if cut is not None and cut.are_both_right(result.rows, without.rows):
            return True
        # Sums that cancel: Spark says what they were made of.
        by_spark = rounded()
        if by_spark is None:
            return False
        rows, errors = by_spark
        return same_rows(
            _without(result.rows, loose),
            _without(rows, loose),
            errors=_without(errors, loose),
        )

    return is_same(with_sketch), False, is_same(kept)


def _kept(desk: Workbench, prepared: PreparedQuery, stored: StoredQuery) -> Answer | None:
    """The answer that is kept for the stored versions; None where none is."""
    store = desk.reading_store()
    if store is None or not stored.state_meta.get("answer"):
        return None
    # Told as `query` tells it, where nothing moved since.
    ending, plan = known_ending(desk.tables, stored), None
    if ending is None:
        plan = desk.memory.answer(prepared.planned)
        ending = plan.ending
    table = kept_answer(desk, store, stored.query, ending, stored.generation, plan=plan)
    return None if table is None else answer_of(table)


_Cell = TypeVar("_Cell")


def _without(
    rows: Sequence[Sequence[_Cell]], columns: Collection[int]
) -> Sequence[Sequence[_Cell]]:
    """The rows without the columns of which two runs need not agree."""
    if not columns:
        return rows
    return [[value for at, value in enumerate(row) if at not in columns] for row in rows]
