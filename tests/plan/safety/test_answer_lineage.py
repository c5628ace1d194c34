"""Fixpoints of which the answer's lineage counts alone: what is accepted never changes the answer.

Law 3.4: over sketches with all derivations of the rows that the answer stems from, and over wider
ones, the answer is that over the tables, wherever the rules allow what stands above over part of a
table (test_trials.py). The counter-examples are refused, and would be wrong.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from impctl.errors import UnsafeSketchError
from impctl.plan.lineage import for_all, for_answer
from impctl.plan.nodes import Fixpoint, nodes_of
from impctl.rules.optimize import apply_rules, core_of
from impctl.safety.choose import choose_attributes
from impctl.safety.direction import Status
from impctl.safety.judge import check_safety, states_of
from tests.plan.answer_plans import is_for_answer
from tests.plan.network import BY_REGION, CLOSURE, COSTS, REACHED, read
from tests.plan.safety.test_fixpoints import EXAMPLES


@pytest.mark.parametrize("name", [name for name in EXAMPLES if EXAMPLES[name].reason])
def test_what_would_be_wrong_is_refused_with_what_does_it(name: str) -> None:
    """That it would be wrong is shown by test_fixpoints.py."""
    example = EXAMPLES[name]
    query = read(example.sql)
    asked = replace(query, root=for_answer(query.root))
    assert is_for_answer(asked.root)
    verdict = check_safety(asked, BY_REGION, ())
    assert not verdict.safe
    assert example.reason in verdict.reason
    assert for_all(asked.root) == query.root
    for wanted in ({}, {"links": "region"}):
        with pytest.raises(UnsafeSketchError, match="not safe") as caught:
            choose_attributes(asked, {"links": ["region"], "nodes": []}, (), wanted)
        assert "`lineage: all`" in str(caught.value.hint)


def test_a_hint_that_would_not_help_is_not_given() -> None:
    sql = REACHED + "SELECT n, rand() AS x FROM r WHERE n > 1"
    query = read(sql)
    asked = replace(query, root=for_answer(query.root))
    with pytest.raises(UnsafeSketchError) as caught:
        choose_attributes(asked, {"links": ["region"]}, (), {})
    assert "lineage" not in str(caught.value.hint)


ALLOWED = {
    "a filter": REACHED + "SELECT n FROM r WHERE n > 3",
    "a join": REACHED + "SELECT k.n FROM nodes k JOIN r ON k.n = r.n",
    "enough rows": CLOSURE + "SELECT x, COUNT(*) FROM c GROUP BY x HAVING COUNT(*) > 2",
    "first rows": REACHED + "SELECT n FROM r ORDER BY n LIMIT 2",
    "MIN below a bound": COSTS
    + "SELECT l.dst, l.cost FROM r JOIN links l ON r.n = l.src) "
    + "SELECT n, MIN(c) FROM r GROUP BY n HAVING MIN(c) < 3",
    "one recursion over another": REACHED[:-1]
    + ", s(n) AS (SELECT n FROM r WHERE n > 2 UNION SELECT l.dst FROM s JOIN links l "
    "ON s.n = l.src) SELECT n FROM s WHERE n > 4",
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_stands_above_part_of_a_table_may_stand_here(name: str) -> None:
    query = read(ALLOWED[name])
    root = for_answer(apply_rules(query.root))
    for plan in (root, for_answer(core_of(query.root))):
        asked = replace(query, root=plan)
        verdict = check_safety(asked, BY_REGION, ())
        assert verdict.safe, verdict.reason
        nodes = list(nodes_of(plan))
        states = states_of(verdict, asked, BY_REGION)
        own = [s for n, s in zip(nodes, states, strict=True) if isinstance(n, Fixpoint)]
        assert [state.status for state in own] == [Status.CONTAINED] * len(own)
        assert not any(isinstance(nodes[at], Fixpoint) for at in verdict.barrier_positions)


def test_what_has_no_sketch_below_stays_exact() -> None:
    query = read(REACHED + "SELECT k.n FROM nodes k WHERE k.n NOT IN (SELECT n FROM r)")
    asked = replace(query, root=for_answer(query.root))
    verdict = check_safety(asked, {"nodes#1": "kind"}, ())
    assert verdict.safe, verdict.reason


def test_bags_and_best_rows_keep_their_barriers() -> None:
    bag = read(
        "WITH RECURSIVE r(n, k) AS (SELECT dst, 1 FROM links UNION ALL SELECT l.dst, k + 1 FROM r "
        "JOIN links l ON r.n = l.src WHERE k < 3) SELECT n FROM r"
    )
    assert for_answer(bag.root) == bag.root
    sql = COSTS + "SELECT l.dst, CAST(r.c + 1 AS INT) FROM r JOIN links l ON r.n = l.src) "
    query = read(sql + "SELECT n, MIN(c) FROM r GROUP BY n")
    best = apply_rules(query.root)
    assert any(isinstance(node, Fixpoint) and node.best is not None for node in nodes_of(best))
    assert for_answer(best) == best
    # Where a rule finds that out later than the plan was marked, too.
    marked = replace(query, root=apply_rules(for_answer(query.root)))
    assert not is_for_answer(marked.root)
    verdict = check_safety(marked, BY_REGION, ())
    assert verdict.safe
    assert verdict.barriers == 1
