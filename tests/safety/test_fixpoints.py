"""Safety of fixpoints: accepted sketches never change the result, and why barriers are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest
from msgspec import Struct, field
from msgspec.structs import replace

from impctl.errors import UnsafeSketchError
from impctl.plan.lineage import for_all, for_answer
from impctl.plan.nodes import Fixpoint, Plan, Query, TopK
from impctl.rules.optimize import apply_rules, core_of
from impctl.safety import judge
from impctl.safety.choose import choose_attributes
from impctl.safety.direction import Status
from impctl.safety.facts import Fact, FactKind, FactSource
from impctl.safety.judge import Verdict, carried_verdict, check_safety, states_of
from tests.plan import trials
from tests.plan.catalogs import (
    BY_COST,
    BY_REGION,
    CLOSURE,
    COSTS,
    KEYED,
    REACHED,
    links,
    read_net,
    ruled,
)
from tests.plan.random_fixpoints import is_for_answer, make_keyed_bag_trial, make_keyed_trial
from tests.support.random_cases import more_seeds, random_cases
from tests.support.reference_plan import ReferenceFailure, annotate, bag, evaluate


class Example(Struct, frozen=True):
    """A query over a few rows, its sketched accesses, and the results over sketches."""

    sql: str
    links: Sequence[Mapping[str, Any]]
    answer: set[tuple[Any, ...]]
    naive: set[tuple[Any, ...]] | None
    """The result over a sketch of the result's lineage alone; None if it is correct."""
    reason: str = ""
    """Why a sketch of the result's lineage is refused; empty if that is not tested."""
    column: Mapping[str, str] = field(default_factory=lambda: BY_REGION)
    """Column by access; each value is a range."""


EXAMPLES = {
    "CE-R1": Example(
        CLOSURE + "SELECT x, COUNT(*) FROM c GROUP BY x HAVING COUNT(*) = 1",
        links((1, 2, "A"), (3, 4, "A"), (3, 5, "B")),
        {(1, 1)},
        {(1, 1), (3, 1)},
        "HAVING compares `COUNT(*)`",
    ),
    "CE-R2": Example(
        REACHED + "SELECT n FROM nodes WHERE n NOT IN (SELECT n FROM r)",
        links((1, 2), (2, 3)),
        {(1,), (4,)},
        {(1,), (2,), (3,), (4,)},
        "NOT EXISTS or NOT IN keeps rows without a match",
    ),
    "CE-R9": Example(
        COSTS
        + "SELECT l.dst, r.c + l.cost FROM r JOIN links l ON r.n = l.src WHERE r.c < 0) "
        + "SELECT n, MIN(c) FROM r GROUP BY n HAVING MIN(c) > 3",
        links((1, 2, "A", 5), (1, 2, "B", 1), (1, 3, "A", 4)),
        {(3, 4)},
        {(2, 5), (3, 4)},
        "HAVING compares `MIN(",
    ),
    "AVG": Example(
        COSTS
        + "SELECT l.dst, r.c FROM r JOIN links l ON r.n = l.src) "
        + "SELECT n, AVG(c) FROM r GROUP BY n HAVING AVG(c) > 4",
        links((1, 2, "A", 5), (1, 2, "B", 1), (1, 3, "A", 6)),
        {(3, 6.0)},
        {(2, 5.0), (3, 6.0)},
        "AVG(",
    ),
    "CE-R8": Example(
        "WITH RECURSIVE r(t, n) AS (SELECT t, n FROM seeds UNION SELECT r.t, l.dst FROM r "
        "JOIN links l ON r.n = l.src AND r.t = l.cost) "
        "SELECT t, COUNT(*) FROM r GROUP BY t HAVING COUNT(*) <= 2",
        links((1, 2, "A", 1), (1, 2, "A", 2), (1, 3, "A", 2)),
        {(1, 2)},
        {(1, 2), (2, 1)},
        column={"links#1": "cost"},
    ),
    "no more than reached": Example(
        REACHED + "SELECT n FROM r",
        links((1, 2, "A"), (2, 3, "B"), (3, 2, "C"), (7, 8, "D")),
        {(2,), (3,)},
        None,
    ),
}
NODES = [{"n": n, "kind": "x"} for n in (1, 2, 3, 4)]
SEEDS = [{"t": 1, "n": 1}, {"t": 2, "n": 1}]


@pytest.mark.parametrize("name", EXAMPLES)
def test_sketches_need_the_barrier(name: str) -> None:
    example = EXAMPLES[name]
    root = read_net(example.sql).root
    verdict = check_safety(Query("", root), example.column, ())
    assert verdict.safe
    assert any(isinstance(list(root.walk())[p], Fixpoint) for p in verdict.barrier_positions)
    assert _over(example, barriers=True) == example.answer
    naive = _over(example, barriers=False)
    assert naive == (example.answer if example.naive is None else example.naive)


def _over(example: Example, *, barriers: bool) -> set[tuple[Any, ...]]:
    root = read_net(example.sql).root
    tables: Any = {"links": example.links, "nodes": NODES, "seeds": SEEDS}
    partitions: Any = {
        access: (column, tuple(sorted({row[column] for row in tables[access[:-2]]})))
        for access, column in example.column.items()
    }
    result = annotate(root, tables)
    assert {row for row, _ in result.rows} == example.answer
    sketches = trials.accurate_sketches(result, root, tables, partitions, barriers=barriers)
    return set(evaluate(root, tables, trials.instances_of(root, tables, partitions, sketches)))


def _verdict(sql: str, **columns: str) -> Verdict:
    """`links2="region"` sketches the second access of links."""
    return check_safety(read_net(sql), {f"{k[:-1]}#{k[-1]}": c for k, c in columns.items()}, ())


STEP_OVER = (
    "WITH RECURSIVE r(n) AS (SELECT dst FROM links WHERE src = 1 UNION "
    "SELECT {head} FROM r JOIN (SELECT src, MAX(dst) AS top, COUNT(*) AS many FROM links "
    "GROUP BY src {having}) q ON r.n = q.src) SELECT n FROM r"
)


@pytest.mark.parametrize(
    ("head", "having", "reason"),
    [
        # Groups by a column that is not sketched are contained; their keys may be passed on.
        ("q.src", "", None),
        ("q.src", "HAVING COUNT(*) > 1", None),
        ("q.src", "HAVING COUNT(*) < 2", "HAVING compares"),
        ("q.top", "", "WITH RECURSIVE derives rows by `n`, which can be smaller"),
        ("q.many", "", "WITH RECURSIVE derives rows by `n`, which can be smaller"),
    ],
)
def test_nonrecursive_parts_follow_the_usual_rules(
    head: str, having: str, reason: str | None
) -> None:
    sql = STEP_OVER.format(head=head, having=having)
    verdict = _verdict(sql, links2="region")
    assert verdict.safe is (reason is None)
    if reason is not None:
        assert verdict.reason.startswith(reason)
        assert verdict.span is not None
    # Complete groups, or a table without a sketch, may pass on any value.
    assert _verdict(sql, links2="src").safe
    assert _verdict(sql, links1="region").safe


@pytest.mark.parametrize(
    "above",
    [
        "SELECT AVG(n) FROM r",
        "SELECT kind FROM nodes WHERE n NOT IN (SELECT n FROM r)",
        "SELECT n % 2, COUNT(*) FROM r GROUP BY n % 2 HAVING COUNT(*) < 3",
        "SELECT n FROM r ORDER BY n LIMIT 2",
        "SELECT n.kind FROM nodes n LEFT JOIN r ON n.n = r.n WHERE r.n IS NULL",
    ],
)
@pytest.mark.parametrize("union", ["UNION", "UNION ALL"])
def test_any_query_may_use_a_fixpoint(above: str, union: str) -> None:
    sql = REACHED.replace("UNION", union) + above
    assert _verdict(sql, links1="region", links2="cost").safe


@pytest.mark.parametrize(
    "step",
    [
        "SELECT r.n + 1 FROM r LEFT JOIN links l ON r.n = l.src",
        "SELECT r.n + 1 FROM r WHERE r.n NOT IN (SELECT l.dst FROM links l)",
    ],
)
def test_rows_without_a_match_forbid_a_sketch_of_the_table(step: str) -> None:
    sql = f"WITH RECURSIVE r(n) AS (SELECT n FROM nodes UNION {step}) SELECT n FROM r"
    assert not _verdict(sql, links1="src").safe
    assert _verdict(sql, nodes1="kind").safe


def test_ties_in_the_base_forbid_sketches() -> None:
    sql = (
        "WITH RECURSIVE r(n) AS (SELECT n FROM (SELECT n, kind FROM nodes ORDER BY kind LIMIT 1) "
        "UNION SELECT l.dst FROM r JOIN links l ON r.n = l.src) SELECT n FROM r"
    )
    assert not _verdict(sql, nodes1="kind").safe
    verdict = _verdict(sql, links1="src")
    assert not verdict.safe
    assert "the rows that the recursion derives are not fixed" in verdict.reason
    assert _verdict(sql).ties is not None


def test_barriers_need_a_sketch_below() -> None:
    sql = REACHED + "SELECT r.n FROM r JOIN nodes n ON r.n = n.n"
    assert _verdict(sql, nodes1="kind").barrier_positions == ()
    nodes = list(read_net(sql).root.walk())
    (position,) = _verdict(sql, links2="src").barrier_positions
    assert isinstance(nodes[position], Fixpoint)


def test_top_k_in_the_base_is_another_barrier() -> None:
    sql = (
        "WITH RECURSIVE r(n) AS (SELECT n FROM (SELECT n FROM nodes ORDER BY n LIMIT 1) "
        "UNION SELECT l.dst FROM r JOIN links l ON r.n = l.src) SELECT n FROM r"
    )
    nodes = list(read_net(sql).root.walk())
    barrier_positions = _verdict(sql, nodes1="n", links1="src").barrier_positions
    assert {type(nodes[position]) for position in barrier_positions} == {Fixpoint, TopK}


def test_facts_must_hold_for_both_parts() -> None:
    sql = (
        "WITH RECURSIVE r(n) AS (SELECT n FROM seeds UNION "
        "SELECT l.dst FROM r JOIN links l ON r.n = l.src) "
        "SELECT m.n FROM r JOIN nodes m ON r.n < m.n GROUP BY m.n HAVING SUM(r.n) > 5"
    )
    of_base, of_step = (
        [Fact(table, column, kind, FactSource.CONSTRAINT) for kind in FactKind]
        for table, column in (("seeds", "n"), ("links", "dst"))
    )
    kept = [FactKind.NONNEGATIVE, FactKind.NOT_NULL]
    of_base, of_step = ([one for one in facts if one.kind in kept] for facts in (of_base, of_step))

    def is_safe(facts: list[Fact]) -> bool:
        return check_safety(read_net(sql), {"nodes#1": "kind"}, facts).safe

    assert is_safe([*of_base, *of_step])
    assert not is_safe(of_base)
    assert not is_safe(of_step)


COUNTED = (
    "WITH RECURSIVE r(n) AS (SELECT dst FROM links WHERE src = 1 UNION ALL "
    "SELECT l.dst FROM r JOIN links l ON r.n = l.src) SELECT n, COUNT(*) FROM r GROUP BY n"
)


def test_one_derivation_of_each_row_is_not_enough() -> None:
    """CE-R5: two paths lead to 4; a sketch with only one of them counts one."""
    tables: Any = {"links": links((1, 2, "A"), (1, 3, "A"), (2, 4, "B"), (3, 4, "C"))}
    query = read_net(COUNTED)
    verdict = check_safety(query, BY_REGION, ())
    assert verdict.safe
    (position,) = verdict.barrier_positions
    assert isinstance(list(query.root.walk())[position], Fixpoint)
    partitions: Any = dict.fromkeys(BY_REGION, ("region", ("A", "B", "C")))
    sketches = trials.accurate_sketches(
        annotate(query.root, tables), query.root, tables, partitions
    )
    instances = trials.instances_of(query.root, tables, partitions, sketches)
    assert set(evaluate(query.root, tables, instances)) == {(2, 1), (3, 1), (4, 2)}
    witness = dict.fromkeys(BY_REGION, range(3))
    assert bag(evaluate(query.root, tables, witness)) == bag([(2, 1), (3, 1), (4, 1)])


@pytest.mark.parametrize(("kind", "is_fixed"), [("UNION", True), ("UNION ALL", False)])
def test_columns_do_not_identify_rows_of_a_bag(kind: str, *, is_fixed: bool) -> None:
    """Two equal rows may be numbered in either order, and a join makes that visible."""
    sql = (
        f"WITH RECURSIVE r(n, l) AS (SELECT dst, 1 FROM links WHERE src = 1 {kind} "
        "SELECT l.dst, r.l + 1 FROM r JOIN links l ON r.n = l.src WHERE r.l < 3) "
        "SELECT m.kind FROM (SELECT n, ROW_NUMBER() OVER (ORDER BY n, l) AS k FROM r) q "
        "JOIN nodes m ON m.n = q.k"
    )
    verdict = check_safety(read_net(sql), {**BY_REGION, "nodes#1": "kind"}, ())
    assert verdict.safe is is_fixed
    assert is_fixed or "row_number" in verdict.reason


def check(cases: Iterable[int], make: Callable[[int], trials.Trial]) -> None:
    """Run the trials; all rows of a group must be in the range of its key."""
    unruled, ruled = trials.Tally(by_status={}), trials.Tally()
    keyed = groups = 0
    for seed in cases:
        trials.run_trial(seed, unruled, make=make)
        trials.run_trial(seed, ruled, make=make, rewrite=apply_rules)
        trial = make(seed)
        verdict = check_safety(Query("", trial.root), trial.sketched, trial.facts)
        if verdict.safe and trials.keyed_positions(trial.root, verdict):
            keyed += 1
            with suppress(ReferenceFailure):
                groups += trials.check_keys(trial.root, trial, verdict)
    assert min(unruled.accepted, ruled.accepted) > unruled.trials // 2
    assert keyed > unruled.trials // 3
    assert groups > unruled.trials
    assert {Status.EXACT, Status.KEYED, Status.CONTAINED} <= {*(unruled.by_status or ())}


@pytest.mark.slow
@random_cases(67, 78, 4000, first=5_000_000, also=more_seeds("safety of keyed sets"))
def test_trials_of_sets(cases: Iterable[int]) -> None:
    check(cases, make_keyed_trial)


@pytest.mark.slow
@random_cases(67, 78, 4000, first=5_000_000, also=more_seeds("safety of keyed bags"))
def test_trials_of_bags(cases: Iterable[int]) -> None:
    check(cases, make_keyed_bag_trial)


@pytest.mark.parametrize(
    ("make", "seeds"), [(make_keyed_trial, (2, 13)), (make_keyed_bag_trial, (19, 29))]
)
def test_trials_whose_step_changes_the_key(
    make: Callable[[int], trials.Trial], seeds: Sequence[int]
) -> None:
    tally = trials.Tally()
    for seed in seeds:
        trials.run_trial(5_000_000 + seed, tally, make=make)
    assert tally.accepted == len(seeds)


@pytest.mark.parametrize("make", [make_keyed_trial, make_keyed_bag_trial], ids=["set", "bag"])
@random_cases(25, 43, 2000, first=5_000_000)
def test_plan_and_core_have_the_same_keyed_fixpoints(
    cases: range, make: Callable[[int], trials.Trial]
) -> None:
    """Captures use the core, queries the plan that is run."""
    for seed in cases:
        trial = make(seed)
        planned = Query("", apply_rules(trial.root))
        verdict = check_safety(planned, trial.sketched, trial.facts)
        if not verdict.safe:
            continue
        core = core_of(trial.root)
        core_judge = judge.Judges().of(Query("", core))
        sketched = {a: c for a, c in trial.sketched.items() if a in core_judge.accesses}
        result = check_safety(
            Query("", core),
            sketched,
            verdict.facts,
            has_rank_barriers=verdict.has_rank_barriers,
            has_keyed_fixpoints=verdict.has_keyed_fixpoints,
        )
        if result.safe:
            assert _groups(core, result) == _groups(planned.root, verdict), seed


def _groups(root: Plan, verdict: Verdict) -> set[frozenset[str]]:
    return {
        frozenset(verdict.key_columns[position])
        for position in trials.keyed_positions(root, verdict)
    }


PAIRS = (
    "WITH RECURSIVE r(t, n) AS (SELECT cost, dst FROM links WHERE src = 1 UNION "
    "SELECT {} FROM r JOIN r o ON {}) "
)
BEST = (
    "WITH RECURSIVE r(t, n, v) AS (SELECT cost, dst, src FROM links WHERE src = 1 UNION "
    "SELECT r.t, l.dst, r.v + l.src FROM r JOIN links l ON r.n = l.src) "
)
LEVELS = (
    "WITH RECURSIVE r(t, n, k) AS (SELECT cost, dst, 1 FROM links WHERE src = 1 UNION ALL "
    "SELECT r.t, l.dst, k + 1 FROM r JOIN links l ON r.n = l.src AND r.t = l.cost WHERE k < 4) "
)
FEW = "SELECT t, COUNT(*) FROM r GROUP BY t HAVING COUNT(*) <= 1"


def _keyed_verdict(sql: str, sketched: Mapping[str, str]) -> tuple[Query, Verdict]:
    query = ruled(sql)
    return query, check_safety(query, sketched, ())


@pytest.mark.parametrize(
    ("sql", "sketched"),
    [
        (KEYED + FEW, BY_COST),
        (KEYED + "SELECT t FROM r GROUP BY t HAVING AVG(n) > 3", BY_COST),
        (KEYED + "SELECT t FROM r WHERE n = 9", BY_COST),
        (KEYED + "SELECT t FROM r WHERE n = 9 ORDER BY t LIMIT 1", BY_COST),
        (KEYED + "SELECT t, n FROM r WHERE n NOT IN (SELECT n FROM nodes)", BY_COST),
        (KEYED + "SELECT t FROM (SELECT t, n, COUNT(*) OVER (PARTITION BY t) AS k FROM r) x "
         "WHERE k = 2", BY_COST),
        # The step joins rows of all keys of a table without a sketch.
        (KEYED.replace(" AND r.t = l.cost", "") + FEW, {"links#1": "cost"}),
        (KEYED.replace("SELECT r.t, l.dst", "SELECT l.cost, l.dst") + FEW, BY_COST),
        # Rows derived from two rows of one key.
        (PAIRS.format("r.t, o.n", "r.n < o.n AND r.t = o.t") + FEW, {"links#1": "cost"}),
        (PAIRS.format("o.t, r.n", "r.n < o.n AND r.t = o.t") + FEW, {"links#1": "cost"}),
        # The best rows of groups within a key.
        (BEST + "SELECT t, n, MIN(v) FROM r GROUP BY t, n HAVING MIN(v) < 4", {"links#1": "cost"}),
        # UNION ALL: each row as often as it is derived.
        (LEVELS + FEW, BY_COST),
        # The step groups by the key.
        (KEYED.replace("JOIN links l", "JOIN (SELECT cost, src, MAX(dst) AS dst FROM links "
                       "GROUP BY cost, src) l") + FEW, BY_COST),
    ],
)  # fmt: skip
def test_fixpoint_is_keyed_if_its_query_selects_keys(sql: str, sketched: Mapping[str, str]) -> None:
    query, verdict = _keyed_verdict(sql, sketched)
    assert verdict.safe, verdict.reason
    (position,) = trials.keyed_positions(query.root, verdict)
    assert set(verdict.key_columns[position]) == {*sketched}
    assert not any(
        isinstance(node, Fixpoint)
        for index, node in enumerate(query.root.walk())
        if index in verdict.barrier_positions
    )


@pytest.mark.parametrize(
    ("sql", "sketched"),
    [
        # The query above selects all keys.
        (KEYED + "SELECT t, COUNT(*) FROM r GROUP BY t", BY_COST),
        (KEYED + "SELECT DISTINCT t FROM r UNION SELECT n FROM nodes", BY_COST),
        # Groups are not by the key.
        (KEYED + "SELECT n FROM r GROUP BY n HAVING COUNT(*) <= 1", BY_COST),
        (KEYED + "SELECT n FROM nodes WHERE n NOT IN (SELECT n FROM r)", BY_COST),
        # The base has rows of all keys, but the step does not.
        (KEYED + FEW, {"links#2": "cost"}),
        # The key is not the sketched column, or has different ranges.
        (KEYED + FEW, {"links#1": "cost", "links#2": "region"}),
        (KEYED + FEW, dict.fromkeys(BY_COST, "region")),
        (KEYED.replace(" AND r.t = l.cost", "") + FEW, BY_COST),
        # Rows derived from rows of two keys.
        (PAIRS.format("r.t, o.n", "r.n < o.n") + FEW, {"links#1": "cost"}),
        (PAIRS.format("o.t, r.n", "r.n < o.n") + FEW, {"links#1": "cost"}),
        # A column that equals the sketched one but has another type.
        (KEYED.replace("cost, dst FROM links WHERE src = 1", "src, dst FROM links WHERE src = cost")
         + FEW, BY_COST),
        # The best rows of groups with rows of any key.
        (BEST + "SELECT n, MIN(v) FROM r GROUP BY n HAVING MIN(v) < 4", {"links#1": "cost"}),
        # Two tables.
        (KEYED.replace("SELECT cost, dst FROM links WHERE src = 1", "SELECT t, n FROM seeds")
         .replace("r.t = l.cost", "r.t = l.src") + FEW, {"seeds#1": "t", "links#1": "src"}),
    ],
)  # fmt: skip
def test_other_fixpoints_are_barriers(sql: str, sketched: Mapping[str, str]) -> None:
    query, verdict = _keyed_verdict(sql, sketched)
    assert verdict.safe, verdict.reason
    assert trials.keyed_positions(query.root, verdict) == frozenset()
    assert any(isinstance(list(query.root.walk())[p], Fixpoint) for p in verdict.barrier_positions)


CE_R8 = {"links": links((1, 2, "A", 1), (1, 2, "A", 2), (2, 3, "A", 2))}
"""Key 1 reaches one node, key 2 two, so the result is key 1 alone."""


@pytest.mark.parametrize(
    ("sketches", "answer"),
    [
        ({"links#1": {1}, "links#2": {1}}, {(1, 1)}),
        ({"links#1": {1, 2}, "links#2": {1, 2}}, {(1, 1)}),
        # A different sketch for one access, which the rule never uses.
        ({"links#1": {1, 2}, "links#2": {1}}, {(1, 1), (2, 1)}),
    ],
)
def test_all_accesses_need_the_same_sketch(
    sketches: Mapping[str, set[int]], answer: set[tuple[int, int]]
) -> None:
    root = read_net(KEYED + FEW).root
    partitions: Any = dict.fromkeys(BY_COST, ("cost", (1, 2)))
    assert set(evaluate(root, CE_R8)) == {(1, 1)}
    assert (
        set(evaluate(root, CE_R8, trials.instances_of(root, CE_R8, partitions, sketches))) == answer
    )


def test_keyed_sketch_has_the_keys_of_the_result() -> None:
    query, verdict = _keyed_verdict(KEYED + FEW, BY_COST)
    result = trials.without_keyed(query.root, verdict, annotate(query.root, CE_R8))
    partitions: Any = dict.fromkeys(BY_COST, ("cost", (1, 2)))
    sketches = trials.accurate_sketches(result, query.root, CE_R8, partitions)
    assert sketches == {"links#1": {1}, "links#2": set()}
    assert trials.evened(query.root, verdict, sketches) == {"links#1": {1}, "links#2": {1}}


def test_carried_verdict_keeps_its_choice() -> None:
    """A plan that selects all keys keeps the choice of the plan that was accepted."""
    query, verdict = _keyed_verdict(KEYED + "SELECT t FROM r WHERE n = 9", BY_COST)
    above = Query("", next(node for node in query.root.walk() if isinstance(node, Fixpoint)))
    assert trials.keyed_positions(above.root, carried_verdict(verdict, above, BY_COST)) == {0}
    assert trials.keyed_positions(above.root, check_safety(above, BY_COST, ())) == frozenset()


@pytest.mark.parametrize("name", [name for name in EXAMPLES if EXAMPLES[name].reason])
def test_unsafe_result_lineage_is_refused_with_a_reason(name: str) -> None:
    example = EXAMPLES[name]
    query = read_net(example.sql)
    marked = replace(query, root=for_answer(query.root))
    assert is_for_answer(marked.root)
    verdict = check_safety(marked, BY_REGION, ())
    assert not verdict.safe
    assert example.reason in verdict.reason
    assert for_all(marked.root) == query.root
    for wanted in ({}, {"links": "region"}):
        with pytest.raises(UnsafeSketchError, match="not safe") as error:
            choose_attributes(marked, {"links": ["region"], "nodes": []}, (), wanted)
        assert "`lineage: all`" in str(error.value.hint)


def test_useless_hints_are_not_given() -> None:
    query = read_net(REACHED + "SELECT n, rand() AS x FROM r WHERE n > 1")
    marked = replace(query, root=for_answer(query.root))
    with pytest.raises(UnsafeSketchError) as error:
        choose_attributes(marked, {"links": ["region"]}, (), {})
    assert "lineage" not in str(error.value.hint)


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
def test_queries_safe_over_part_of_a_table_are_safe(name: str) -> None:
    query = read_net(ALLOWED[name])
    for plan in (for_answer(apply_rules(query.root)), for_answer(core_of(query.root))):
        marked = replace(query, root=plan)
        verdict = check_safety(marked, BY_REGION, ())
        assert verdict.safe, verdict.reason
        nodes = list(plan.walk())
        states = states_of(verdict, marked, BY_REGION)
        of_fixpoints = [s for n, s in zip(nodes, states, strict=True) if isinstance(n, Fixpoint)]
        assert [state.status for state in of_fixpoints] == [Status.CONTAINED] * len(of_fixpoints)
        assert not any(
            isinstance(nodes[position], Fixpoint) for position in verdict.barrier_positions
        )


def test_fixpoint_without_a_sketch_stays_exact() -> None:
    query = read_net(REACHED + "SELECT k.n FROM nodes k WHERE k.n NOT IN (SELECT n FROM r)")
    marked = replace(query, root=for_answer(query.root))
    verdict = check_safety(marked, {"nodes#1": "kind"}, ())
    assert verdict.safe, verdict.reason


def test_bags_and_best_rows_keep_their_barriers() -> None:
    bag = read_net(
        "WITH RECURSIVE r(n, k) AS (SELECT dst, 1 FROM links UNION ALL SELECT l.dst, k + 1 FROM r "
        "JOIN links l ON r.n = l.src WHERE k < 3) SELECT n FROM r"
    )
    assert for_answer(bag.root) == bag.root
    sql = COSTS + "SELECT l.dst, CAST(r.c + 1 AS INT) FROM r JOIN links l ON r.n = l.src) "
    query = read_net(sql + "SELECT n, MIN(c) FROM r GROUP BY n")
    best = apply_rules(query.root)
    assert any(isinstance(node, Fixpoint) and node.best is not None for node in best.walk())
    assert for_answer(best) == best
    # Also if the rule is applied after the plan was marked.
    marked = replace(query, root=apply_rules(for_answer(query.root)))
    assert not is_for_answer(marked.root)
    verdict = check_safety(marked, BY_REGION, ())
    assert verdict.safe
    assert verdict.barriers == 1
