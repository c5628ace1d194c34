"""Use case: recapture in Spark at the stored versions and compare.

Law: the oracle shares nothing with the maintained state but the partition; a sketch that lacks a
fragment of the accurate one is unsound (exit 5), one that has more has slack. With results, the
query is also run with and without its sketch and the two answers compared as bags; doubles may
differ by what the order of a floating sum can make of them.
What was found is recorded, where the store may be written, for `status` to tell.
Out of scope: mending what is wrong (`app.capture`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from decimal import Decimal

from impctl.aliases import QueryName
from impctl.app.answers import answer
from impctl.app.filters import filters_of
from impctl.app.isolated import Isolated
from impctl.app.passes import recaptured
from impctl.app.past_runs import VERIFIED, VERIFY
from impctl.app.prepared import PreparedQuery, prepare
from impctl.app.restored import restored_verdict
from impctl.app.results import Cell, Failure, Outcome, VerifyResult
from impctl.app.stored import check_definition, stored_query
from impctl.app.workbench import Workbench
from impctl.errors import RetryableError
from impctl.sketch.sketch import compare
from impctl.store.records import RunRecord, StoredQuery
from impctl.workload.models import QuerySpec

_RELATIVE = 1e-9
"""Doubles closer than this count as equal: two orders of one sum never differ by more in practice,
and a wrong group differs by far more."""

_ABSOLUTE = 1e-12
"""What is left of a sum that cancels to nothing."""


def verify(
    bench: Workbench, queries: Sequence[QueryName] | None, *, results: bool = False
) -> Outcome:
    """One result per stored sketch; results_equal only where `results` asks for it."""
    found: list[VerifyResult] = []
    failures: list[Failure] = []
    warnings: list[str] = []
    for spec in bench.queries(queries):
        with Isolated(failures, spec):
            start, at = time.perf_counter(), time.time()
            verified = _verified(bench, spec, results)
            found += verified
            took = (time.perf_counter() - start) * 1000
            warnings += _recorded(bench, spec, verified, at, took)
    return Outcome(tuple(found), tuple(warnings), tuple(failures))


def _recorded(
    bench: Workbench, spec: QuerySpec, verified: Sequence[VerifyResult], at: float, took: float
) -> list[str]:
    """Remember what was found; a store that is locked or may not be written is no failure."""
    if not verified:
        return []
    slack = sum(one.slack for one in verified)
    missing = sum(len(one.missing) for one in verified)
    is_sound = all(one.covers and one.results_equal is not False for one in verified)
    code = VERIFIED if is_sound else "sketch_unsound"
    reason = f"slack {slack}" if is_sound else "the sketch or its results were wrong"
    versions = verified[0].versions
    record = RunRecord(VERIFY, code, reason, at, took, 0, 0, 0, 0, slack, missing, versions)
    store = bench.reading_store()
    assert store is not None
    try:
        store.add_record(spec.name, record)
    except RetryableError as error:
        return [f"the verification of `{spec.name}` was not recorded: {error.message}"]
    return []


def _verified(bench: Workbench, spec: QuerySpec, results: bool) -> list[VerifyResult]:
    stored = stored_query(bench, bench.reading_store(), spec)
    check_definition(bench, spec, stored)
    prepared = prepare(bench, spec)
    verdict, partitions = restored_verdict(bench, prepared, stored)
    bench.spark()
    bench.reporter.step(f"recapturing {spec.name}")
    accurate = recaptured(bench, prepared, verdict, partitions, stored.versions)
    equal = _results_equal(bench, prepared, stored) if results else None
    verified = []
    for sketch in stored.sketches:
        relation = compare(sketch.fragments, accurate[sketch.access])
        verified.append(
            VerifyResult(
                spec.name,
                sketch.table,
                sketch.attribute,
                sketch.partition.ranges,
                relation.covers,
                relation.slack,
                relation.missing,
                relation.extra,
                equal,
                stored.versions,
            )
        )
    return verified


def _results_equal(bench: Workbench, prepared: PreparedQuery, stored: StoredQuery) -> bool:
    bench.reporter.step(f"running {prepared.spec.name} with and without its sketch")
    pruned = filters_of(bench, prepared.scans, stored.sketches, stored.versions)
    with_sketch = answer(bench, prepared, stored.versions, pruned)
    without = answer(bench, prepared, stored.versions)
    return same_rows(with_sketch.rows, without.rows)


def same_rows(left: Sequence[Sequence[Cell]], right: Sequence[Sequence[Cell]]) -> bool:
    """Whether two results are one bag, doubles compared with a tolerance."""
    if len(left) != len(right):
        return False
    mine, theirs = _by_exact_part(left), _by_exact_part(right)
    if mine.keys() != theirs.keys():
        return False
    return all(_same_doubles(mine[part], theirs[part]) for part in mine)


def _by_exact_part(
    rows: Sequence[Sequence[Cell]],
) -> dict[tuple[str, ...], list[tuple[float, ...]]]:
    """The doubles of rows that are alike in everything else."""
    found: dict[tuple[str, ...], list[tuple[float, ...]]] = {}
    for row in rows:
        part = tuple(map(_exact_part, row))
        doubles = tuple(cell for cell in row if isinstance(cell, float))
        found.setdefault(part, []).append(doubles)
    return found


def _exact_part(cell: Cell) -> str:
    if isinstance(cell, float):
        return "double"
    if isinstance(cell, Decimal) and cell.is_finite():
        return f"decimal {cell.as_integer_ratio()}"
    return repr(cell)


def _same_doubles(left: list[tuple[float, ...]], right: list[tuple[float, ...]]) -> bool:
    """Whether rows of doubles can be paired so that each pair is close."""
    if len(left) != len(right):
        return False
    pairs = zip(sorted(left, key=_numeric), sorted(right, key=_numeric), strict=True)
    if all(_close_rows(mine, theirs) for mine, theirs in pairs):
        return True
    # Near ties in one column may order the next one differently: look for partners one by one.
    open_rows = list(right)
    for row in left:
        partner = next((other for other in open_rows if _close_rows(row, other)), None)
        if partner is None:
            return False
        open_rows.remove(partner)
    return True


def _numeric(row: tuple[float, ...]) -> tuple[tuple[bool, float], ...]:
    """An order of doubles with NaN last."""
    return tuple((math.isnan(value), 0.0 if math.isnan(value) else value) for value in row)


def _close_rows(left: tuple[float, ...], right: tuple[float, ...]) -> bool:
    return all(_close(mine, theirs) for mine, theirs in zip(left, right, strict=True))


def _close(left: float, right: float) -> bool:
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) and math.isnan(right)
    return math.isclose(left, right, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
