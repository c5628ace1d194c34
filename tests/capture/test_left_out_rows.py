"""What a capture finds does not depend on rows that conditions or partners leave out.

By the slow reference over random plans and tables: rows of which a condition right above their
access is not true, and rows without a partner where columns are tied, are taken away, as their
files are by `service.filters`; lineage and passes find the same fragments.
By hand: `IMPCTL_FUZZ=10` and `-m "slow or not slow"` for ten times as many cases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from random import Random

from impctl.errors import QueryError
from impctl.expr.nodes import And
from impctl.plan.nodes import Plan, Query, Scan, TopK, nodes_of, scans_of
from impctl.plan.properties import scan_conditions
from impctl.rules.optimize import apply_rules
from impctl.rules.pushdown import tied_columns
from impctl.safety.judge import check_safety
from impctl.spark.capture import PassKind, SketchPass, sketch_passes
from tests.capture.test_against_reference import counted_in, sketches_of, values_found
from tests.plan.trials import Trial, fragment_of, make_barrier_trial, make_trial
from tests.support.random_cases import random_cases
from tests.support.reference_expr import ReferenceFailure, ReferenceLimit, identity, is_true

Seen = dict[str, list[int]]


def meeting(scan: Scan, root: Plan, trial: Trial, rng: Random) -> list[int]:
    """The rows of an access that its conditions let through, and some of the others."""
    conditions, rows = scan_conditions(root).get(scan.access, ()), trial.tables[scan.table]

    def is_met(at: int) -> bool:
        row = {a.id: rows[at][a.name] for a in scan.attributes}
        return is_true(And(conditions), row) if conditions else True

    return [at for at in range(len(rows)) if is_met(at) or rng.random() < 0.2]


def tied(root: Plan, trial: Trial, seen: Seen, rng: Random) -> int:
    """Takes away rows whose value no row that is left has on the other side; how many."""
    tables = {scan.access: trial.tables[scan.table] for scan in scans_of(root)}
    gone = 0
    for tie in [*tied_columns(root)] * 2:
        mine, other = tie.column, tie.to
        theirs = {tables[other.access][at][other.attribute.name] for at in seen[other.access]}
        values = {identity(value) for value in theirs if value is not None}
        own = seen[mine.access]
        seen[mine.access] = [
            at
            for at in own
            if identity(tables[mine.access][at][mine.attribute.name]) in values
            or rng.random() < 0.2
        ]
        gone += len(own) - len(seen[mine.access])
    return gone


def check(trial: Trial, rng: Random, count: Counter[str]) -> None:
    root = apply_rules(trial.root)
    query = Query("", root)
    verdict = check_safety(query, trial.sketched, trial.facts)
    counted = counted_in(root, verdict)
    tops = {at for at, node in enumerate(nodes_of(root)) if isinstance(node, TopK)}
    if not verdict.safe or (verdict.ties is not None and not tops <= counted):
        return

    sketches = partial(sketches_of, root, trial, counted)
    try:
        accurate = sketches()
        seen = {scan.access: meeting(scan, root, trial, rng) for scan in scans_of(root)}
        whole = sum(len(trial.tables[scan.table]) for scan in scans_of(root))
        count["by conditions"] += whole - sum(map(len, seen.values()))
        assert sketches(seen) == accurate, root
        count["by partners"] += tied(root, trial, seen, rng)
        assert sketches(seen) == accurate, root
        for pass_ in sketch_passes(query, verdict, trial.columns(root)):
            if pass_.way is not PassKind.COLLECTED:
                same_by(pass_, trial, seen, accurate)
                count[pass_.way] += 1
    except (QueryError, ReferenceFailure, ReferenceLimit):
        count["failed"] += 1


def same_by(pass_: SketchPass, trial: Trial, seen: Seen, accurate: dict[str, set[int]]) -> None:
    for access, values in values_found(pass_, trial, seen).items():
        boundaries = trial.partitions[access][1]
        assert {fragment_of(value, boundaries) for value in values} == accurate[access], pass_


def run(cases: Collection[int], makes: tuple[Callable[[int], Trial], ...]) -> Counter[str]:
    count: Counter[str] = Counter()
    for seed in cases:
        for make in makes:
            check(make(seed), Random(seed), count)
    return count


@random_cases(
    67,
    234,
    800,
    also="78 83 84 88 107 109 110 116 154 163 202 227 235 245 258 274 283 304 309 326 348 374 "
    "382 383 415 418 421 444 474 475 493 499 502 508 514 547 562 594",
)
def test_rows_left_out_change_no_sketch(cases: Collection[int]) -> None:
    count = run(cases, (make_trial, make_barrier_trial))
    assert count["by conditions"] > len(cases) // 4, count
    assert count["by partners"] > len(cases) // 10, count
    for way in (PassKind.ROWS, PassKind.KEYED, PassKind.GROUPS):
        assert count[way] > len(cases) // 20, count
