"""Fixpoints of UNION ALL judged: what is accepted changes no answer, nor how often a row comes."""

from __future__ import annotations

from typing import Any

import pytest

from impctl.plan.nodes import Fixpoint, nodes_of
from impctl.plan.rules.order import apply_rules
from impctl.plan.safety.status import Status
from impctl.plan.safety.verdict import check_safety
from tests.plan.bag_plans import make_bag_trial
from tests.plan.network import links, read
from tests.plan.trials import Tally, Violation, accurate_sketches, instances_of, run_trial
from tests.support.random_cases import random_cases
from tests.support.reference_plan import annotate, bag, evaluate

_FIRST_SEED = 5_000_000
_ENOUGH = 5_000
"""Trials within which a broken rule must show."""


@random_cases(67, 160, 4000, first=_FIRST_SEED)
def test_accepted_sketches_never_change_the_answer(cases: range) -> None:
    tally = Tally(by_status={})
    for seed in cases:
        run_trial(seed, tally, make=make_bag_trial)
    assert tally.accepted > tally.trials // 3
    assert tally.failed < tally.trials // 50
    assert {Status.EXACT, Status.KEYED} <= set(tally.by_status or ())


@random_cases(67, 160, 3000, first=_FIRST_SEED)
def test_they_are_right_after_the_plan_rules_too(cases: range) -> None:
    tally = Tally()
    for seed in cases:
        run_trial(seed, tally, make=make_bag_trial, rewrite=apply_rules)
    assert tally.accepted > tally.trials // 3


def test_a_fixpoint_without_the_derivations_of_its_own_rows_is_found_out() -> None:
    tally = Tally()

    def run_all() -> None:
        for seed in range(_FIRST_SEED, _FIRST_SEED + _ENOUGH):
            run_trial(seed, tally, make=make_bag_trial, barriers=False)

    with pytest.raises(Violation):
        run_all()


COUNTED = (
    "WITH RECURSIVE r(n) AS (SELECT dst FROM links WHERE src = 1 UNION ALL "
    "SELECT l.dst FROM r JOIN links l ON r.n = l.src) SELECT n, COUNT(*) FROM r GROUP BY n"
)


def test_one_derivation_of_each_row_is_not_enough() -> None:
    """CE-R5: two ways lead to 4; a sketch that holds one of them counts one."""
    tables: Any = {"links": links((1, 2, "A"), (1, 3, "A"), (2, 4, "B"), (3, 4, "C"))}
    query = read(COUNTED)
    columns = {"links#1": "region", "links#2": "region"}
    verdict = check_safety(query, columns, ())
    assert verdict.safe
    (position,) = verdict.barrier_positions
    assert isinstance(list(nodes_of(query.root))[position], Fixpoint)
    partitions: Any = {access: (column, ("A", "B", "C")) for access, column in columns.items()}
    found = annotate(query.root, tables)
    sketches = accurate_sketches(found, query.root, tables, partitions)
    instances = instances_of(query.root, tables, partitions, sketches)
    assert set(evaluate(query.root, tables, instances)) == {(2, 1), (3, 1), (4, 2)}
    witness = dict.fromkeys(columns, range(3))
    assert bag(evaluate(query.root, tables, witness)) == bag([(2, 1), (3, 1), (4, 1)])


@pytest.mark.parametrize(
    "above",
    ["SELECT AVG(n) FROM r", "SELECT kind FROM nodes WHERE n NOT IN (SELECT n FROM r)"],
)
def test_anything_may_stand_above(above: str) -> None:
    sql = COUNTED.replace("SELECT n, COUNT(*) FROM r GROUP BY n", above)
    assert check_safety(read(sql), {"links#1": "region", "links#2": "cost"}, ()).safe


@pytest.mark.parametrize(("kind", "is_fixed"), [("UNION", True), ("UNION ALL", False)])
def test_rows_of_a_bag_are_not_told_apart_by_their_columns(kind: str, *, is_fixed: bool) -> None:
    """Two that are equal may be numbered either way, and a table joined tells them apart then."""
    sql = (
        f"WITH RECURSIVE r(n, l) AS (SELECT dst, 1 FROM links WHERE src = 1 {kind} "
        "SELECT l.dst, r.l + 1 FROM r JOIN links l ON r.n = l.src WHERE r.l < 3) "
        "SELECT m.kind FROM (SELECT n, ROW_NUMBER() OVER (ORDER BY n, l) AS k FROM r) q "
        "JOIN nodes m ON m.n = q.k"
    )
    columns = {"links#1": "region", "links#2": "region", "nodes#1": "kind"}
    verdict = check_safety(read(sql), columns, ())
    assert verdict.safe is is_fixed
    assert is_fixed or "row_number" in verdict.reason
