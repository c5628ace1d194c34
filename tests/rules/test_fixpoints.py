"""Rules for fixpoints: pruned columns, pushed filters, and fixpoints of the best rows only."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from impctl.expr import nodes as expressions
from impctl.plan import nodes
from impctl.plan.fingerprint import fingerprint
from impctl.plan.properties import indispensable
from impctl.plan.recursion import (
    approximate_columns,
    is_derived_from_one_row,
    is_linear,
    recursion_notes,
    stable_columns,
)
from impctl.rules.normalize import best_fixpoints
from impctl.rules.optimize import apply_rules, core_of, prune_columns
from impctl.rules.pushdown import push_selections, tied_columns
from tests.plan.catalogs import (
    CLOSURE,
    REACHED,
    cases,
    fixpoint_of,
    fixpoints_of,
    links,
    listed,
    net_plan,
    tree,
)
from tests.plan.random_fixpoints import make_bag_trial
from tests.support.random_cases import random_cases
from tests.support.reference_plan import ReferenceFailure, bag, evaluate


def test_fewer_columns_would_change_the_rows() -> None:
    """An unused column stays if it affects which rows of the other column exist."""
    plan = net_plan(CLOSURE + "SELECT x FROM c")
    (result,) = fixpoints_of(prune_columns(plan))
    assert [a.name for a in result.attributes] == ["x", "y"]
    assert len(result.base.attributes) == len(result.step.attributes) == 2
    (leaf,) = [node for node in result.walk() if isinstance(node, nodes.Recursive)]
    assert [a.name for a in leaf.attributes] == ["x", "y"]
    (core,) = fixpoints_of(core_of(plan))
    assert len(core.attributes) == 2
    assert prune_columns(core) == core


@pytest.mark.parametrize(("step", "stable", "linear"), cases("plans", "stable columns"))
def test_stable_columns_are_shared_by_all_rows_derived(step: str, stable: str, linear: str) -> None:
    """Steps of `c(x, y)`."""
    fixpoint = fixpoint_of(
        f"WITH RECURSIVE c(x, y) AS (SELECT src, dst FROM links UNION {step}) SELECT * FROM c"
    )
    names = {attribute.id: attribute.name for attribute in fixpoint.attributes}
    assert (" ".join(sorted(names[one] for one in stable_columns(fixpoint))) or "none") == stable
    assert is_linear(fixpoint) is (linear == "linear")


def test_equal_but_distinguishable_values_are_not_stable() -> None:
    """0.0 and -0.0 join, but a filter may distinguish them."""
    fixpoint = fixpoint_of(
        "WITH RECURSIVE c(w) AS (SELECT weight FROM links UNION "
        "SELECT l.weight FROM c JOIN links l ON c.w = l.weight) SELECT w FROM c"
    )
    assert stable_columns(fixpoint) == frozenset()


def test_a_value_that_a_union_may_convert_is_not_stable() -> None:
    fixpoint = fixpoint_of(
        "WITH RECURSIVE c(x) AS (SELECT src FROM links UNION "
        "(SELECT x FROM c WHERE x > 1 UNION ALL SELECT x FROM c)) SELECT x FROM c"
    )
    step = fixpoint.step
    assert isinstance(step, nodes.SetOperation)
    assert stable_columns(fixpoint) == {fixpoint.attributes[0].id}
    unknown = tuple(replace(attribute, type=None) for attribute in step.attributes)
    assert not stable_columns(replace(fixpoint, step=replace(step, attributes=unknown)))


def test_nested_queries_are_compared_in_linear_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each level would double the number of visited nodes."""
    query = "SELECT x, y, y AS k FROM c"
    for level in range(14):
        query = f"SELECT x, abs(y + y) AS y, abs(y + y) AS k FROM ({query}) q{level}"
    fixpoint = fixpoint_of(
        "WITH RECURSIVE c(x, y) AS (SELECT src, dst FROM links UNION "
        f"SELECT x, k FROM ({query}) q WHERE k = y) SELECT x, y FROM c"
    )
    visited = []
    meaning = expressions._meaning
    monkeypatch.setattr(
        expressions, "_meaning", lambda node: (visited.append(node), meaning(node))[1]
    )
    assert stable_columns(fixpoint) == {fixpoint.attributes[0].id}
    assert len(visited) < 1_000


def test_a_filter_distinguishing_zeros_stays() -> None:
    """A set has only one of 0.0 and -0.0."""
    sql = (
        "WITH RECURSIVE c(w, n) AS (SELECT weight, src FROM links UNION "
        "SELECT c.w, l.dst FROM c JOIN links l ON c.n = l.src) SELECT w FROM c WHERE {}"
    )
    for condition, is_pushed in (("w = 0.0D", True), ("CAST(w AS STRING) = '-0.0'", False)):
        (result,) = fixpoints_of(push_selections(net_plan(sql.format(condition))))
        assert ("select" in tree(result)) is is_pushed


@pytest.mark.parametrize(("parts", "stable"), [(8, {"x"}), (9, set())])
def test_steps_with_too_many_combinations_are_skipped(parts: int, stable: set[str]) -> None:
    """Nine parts on each side are more than 64 combinations."""
    side = " UNION ALL ".join(f"SELECT x, y + {number} AS y FROM c" for number in range(parts))
    fixpoint = fixpoint_of(
        "WITH RECURSIVE c(x, y) AS (SELECT src, dst FROM links UNION "
        f"SELECT a.x, b.y FROM ({side}) a JOIN ({side}) b ON a.x = b.x) SELECT * FROM c"
    )
    names = {attribute.id: attribute.name for attribute in fixpoint.attributes}
    assert {names[one] for one in stable_columns(fixpoint)} == stable
    assert not is_linear(fixpoint)


def test_filters_on_stable_columns_move_into_the_base() -> None:
    plan = push_selections(net_plan(CLOSURE + "SELECT y FROM c WHERE x = 1 AND y > 3"))
    assert tree(plan).splitlines()[:5] == [
        "project y",
        "  select y > 3",
        "    fixpoint c, each row once: x, y",
        "      project src, dst",
        "        select src = 1",
    ]
    assert push_selections(plan) == plan


@pytest.mark.parametrize(
    "condition", ["y = 1", "x = y", "x + y > 3", "1 = 0", "x > 0 OR y > 0", "x = rand()"]
)
def test_other_filters_stay(condition: str) -> None:
    (result,) = fixpoints_of(
        push_selections(net_plan(f"{CLOSURE}SELECT 1 FROM c WHERE {condition}"))
    )
    assert "select" not in tree(result)


def test_no_access_below_a_fixpoint_is_indispensable() -> None:
    """A step may add rows without it."""
    assert indispensable(net_plan(REACHED + "SELECT n FROM r")) == frozenset()


def test_a_column_of_a_fixpoint_is_tied_to_no_table() -> None:
    plan = apply_rules(net_plan(REACHED + "SELECT 1 FROM r JOIN nodes m ON r.n = m.n"))
    assert {tied.column.access for tied in tied_columns(plan)} == set()


def test_sums_of_doubles_are_followed_through_a_plan() -> None:
    plan = net_plan(
        "SELECT s + 1, src, m FROM (SELECT src, SUM(weight) s, MAX(weight) m FROM links "
        "GROUP BY src) UNION ALL SELECT weight, src, weight FROM links"
    )
    first, second, third = (attribute.id for attribute in plan.attributes)
    assert approximate_columns(plan) == {first}
    assert second != third


@random_cases(20, 40, 2000)
def test_columns_are_pruned_in_all_parts(cases: range) -> None:
    fewer = 0
    for seed in cases:
        root = make_bag_trial(seed).root
        (before,), (after,) = (fixpoints_of(plan) for plan in (root, prune_columns(root)))
        leaves = [node for node in after.step.walk() if isinstance(node, nodes.Recursive)]
        widths = {len(part.attributes) for part in (after, after.base, after.step, *leaves)}
        assert widths == {len(after.attributes)}, seed
        assert set(after.attributes) <= set(before.attributes)
        fewer += len(after.attributes) < len(before.attributes)
        assert is_derived_from_one_row(after)
    assert fewer > len(cases) // 20


WALKS = (
    "WITH RECURSIVE c(x, y, l, cost) AS (SELECT src, dst, 1, cost FROM links UNION ALL "
    "SELECT c.x, n.dst, c.l + 1, c.cost + n.cost FROM c JOIN links n ON c.y = n.src "
    "WHERE c.l < 3) "
)


@pytest.mark.parametrize(
    ("above", "kept"),
    [
        ("SELECT COUNT(*) FROM c", "y l"),
        ("SELECT 1 FROM c", "y l"),
        ("SELECT x FROM c", "x y l"),
        ("SELECT y FROM c", "y l"),
        ("SELECT SUM(cost) FROM c", "y l cost"),
        ("SELECT DISTINCT y, x FROM c", "x y l"),
        ("SELECT x, y, l, cost FROM c", "x y l cost"),
    ],
)
def test_unused_columns_are_pruned(above: str, kept: str) -> None:
    plan = prune_columns(net_plan(WALKS + above))
    (result,) = fixpoints_of(plan)
    assert [a.name for a in result.attributes] == kept.split()
    assert prune_columns(plan) == plan


def test_one_column_stays_if_none_is_used() -> None:
    sql = (
        "WITH RECURSIVE r(a, b) AS (SELECT n, n FROM nodes UNION ALL SELECT r.a, r.b FROM r "
        "CROSS JOIN links) SELECT COUNT(*) FROM r"
    )
    (result,) = fixpoints_of(prune_columns(net_plan(sql)))
    assert [a.name for a in result.attributes] == ["a"]


def test_columns_of_a_union_stay() -> None:
    """No SELECT is in between, so columns match by position."""
    fixpoint = fixpoint_of(
        "WITH RECURSIVE r(a, b) AS (SELECT n, n FROM nodes UNION ALL SELECT a, b FROM r) "
        "SELECT a, b FROM r"
    )
    leaves = [
        nodes.Recursive(
            fixpoint.id, tuple(replace(a, id=f"{side}.{a.name}") for a in fixpoint.attributes)
        )
        for side in "xy"
    ]
    both = tuple(replace(a, id=f"u.{a.name}") for a in fixpoint.attributes)
    bare = replace(
        fixpoint,
        step=nodes.SetOperation(nodes.SetKind.UNION, True, leaves[0], leaves[1], both),
    )
    (first, _) = fixpoint.attributes
    root = nodes.Project(bare, (nodes.ComputedColumn(replace(first, id="out"), first.ref()),))
    (after,) = fixpoints_of(prune_columns(root))
    assert (after.step, after.attributes) == (bare.step, bare.attributes)


def test_unused_columns_of_a_set_stay() -> None:
    (result,) = fixpoints_of(
        prune_columns(net_plan(WALKS.replace("UNION ALL", "UNION") + "SELECT y FROM c"))
    )
    assert [a.name for a in result.attributes] == ["x", "y", "l", "cost"]


def test_a_filter_on_a_stable_column_moves_into_the_base() -> None:
    core = core_of(net_plan(WALKS + "SELECT y FROM c WHERE x = 1 AND y > 2"))
    (result,) = fixpoints_of(core)
    assert "select src = 1" in tree(result.base)
    assert "select y > 2" in tree(core).partition("fixpoint")[0]
    fixpoint = fixpoint_of(WALKS + "SELECT y FROM c")
    names = {a.id: a.name for a in fixpoint.attributes}
    assert {names[column] for column in stable_columns(fixpoint)} == {"x"}
    assert is_linear(fixpoint)
    assert is_derived_from_one_row(fixpoint)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("SELECT n + 1 FROM r", True),
        ("(SELECT n + 1 FROM r UNION ALL SELECT n + 2 FROM r)", True),
        ("(SELECT n + 1 FROM r UNION ALL SELECT n FROM nodes)", False),
        ("SELECT a.n FROM r a JOIN r b ON a.n = b.n", False),
        ("SELECT n + 1 FROM r WHERE n IN (SELECT src FROM links)", True),
    ],
)
def test_rows_derived_from_one_row(step: str, expected: bool) -> None:  # noqa: FBT001
    sql = f"WITH RECURSIVE r(n) AS (SELECT n FROM nodes UNION {step}) SELECT n FROM r"
    assert is_derived_from_one_row(fixpoint_of(sql)) is expected


def test_a_bag_stays_a_bag() -> None:
    for text in ("", " MAX RECURSION LEVEL 9"):
        sql = WALKS.replace("cost)", f"cost){text}", 1) + "SELECT y FROM c WHERE x = 1"
        (result,) = fixpoints_of(apply_rules(net_plan(sql)))
        assert not result.is_set
        assert result.levels == (9 if text else None)


_ADDED = ("r.c + l.cost", "l.cost + r.c", "r.c - l.cost", "r.c", "r.c + r.n", "r.c + r.p")
_COMPARED = ("greatest(r.c, l.cost)", "least(l.cost, r.c)", "r.c * 2", "r.c + l.cost * r.c")
_OTHERS = ("r.p", "l.dst", "r.p + 1", "r.n", "r.c", "l.cost", "l.dst + r.n")
_CONDITIONS = (
    "r.c < 3", "r.c + l.cost <= 4", "4 > r.c", "r.c > 1", "r.c % 2 = 0", "r.p < 3", "r.n <> 3",
    "l.cost > 0", "r.c = l.cost", "r.c < l.src", "r.c < r.p", "r.c IS NOT NULL",
)  # fmt: skip
_ABOVE = [text for (text,) in listed("plans", "above best rows")]


def _random_query(rng: random.Random) -> str:
    value = rng.choice(_ADDED if rng.random() < 0.75 else _COMPARED)
    other = rng.choice(_OTHERS)
    conditions = rng.sample(_CONDITIONS, rng.choice((0, 0, 1, 1, 2)))
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    columns = f"l.dst, CAST({other} AS BIGINT), CAST({value} AS BIGINT)"
    if rng.random() < 0.15:
        # A constant in the other column: values alone, without ties.
        columns = f"l.dst, 1L, CAST({value.replace('r.p', 'r.n')} AS BIGINT)"
    return (
        "WITH RECURSIVE r(n, p, c) AS (SELECT dst, src, CAST(cost AS BIGINT) FROM links"
        f" WHERE src < 2 UNION SELECT {columns} FROM r JOIN links l ON r.n = l.src{where}) "
        + rng.choice(_ABOVE)
    )


def _random_links(rng: random.Random) -> list[dict[str, Any]]:
    """Links without cycles, so that recursion ends. Some costs are negative or NULL."""
    result = []
    for _ in range(rng.randint(4, 11)):
        src = rng.randrange(4)
        cost = rng.choice((None, -2, -1, 0, 0, 1, 1, 2, 3))
        result.append((src, rng.randint(src + 1, 5), rng.choice("AB"), cost))
    return links(*result)


def _has_best(plan: nodes.Plan) -> bool:
    return any(isinstance(node, nodes.Fixpoint) and node.best for node in plan.walk())


def _is_changed(seed: int) -> bool | None:
    """Whether the rule changes the result; None if it does not change the plan."""
    rng = random.Random(f"best {seed}")
    plan, tables = net_plan(_random_query(rng)), {"links": _random_links(rng)}
    after = best_fixpoints(plan)
    if after == plan:
        return None
    try:
        before = bag(evaluate(plan, tables))
    except ReferenceFailure:
        return None
    return bag(evaluate(after, tables)) != before or bag(evaluate(apply_rules(plan), tables)) != (
        before
    )


@random_cases(80, 118, 6000, also="171 383 501 592 1083")
def test_best_rows_keep_results(cases: Sequence[int]) -> None:
    result = [_is_changed(seed) for seed in cases]
    assert True not in result, cases[result.index(True)]
    assert result.count(False) > len(cases) // 8


PATHS = (
    "WITH RECURSIVE r(x, y, p, c) AS (SELECT src, dst, region, CAST(cost AS BIGINT) FROM links"
    " UNION SELECT r.x, l.dst, {}, CAST({} AS BIGINT) FROM r JOIN links l ON r.y = l.src{}) "
)
PLAIN = PATHS.format("concat(r.p, l.region)", "r.c + l.cost", "")
CHEAPEST = "SELECT x, y, min(c) FROM r GROUP BY x, y"
BACK = (
    "SELECT r.x, r.y, r.p FROM r JOIN (SELECT x, y, min(c) AS c FROM r GROUP BY x, y) m"
    " ON r.x = m.x AND r.y = m.y AND r.c = m.c"
)


def _best(sql: str) -> list[str]:
    return [str(fixpoint.best) for fixpoint in fixpoints_of(apply_rules(net_plan(sql)))]


@pytest.mark.parametrize(
    ("sql", "best"),
    [
        (PLAIN + CHEAPEST, ["best min 3 by 0, 1"]),
        (PLAIN + BACK, ["best min 3 by 0, 1"] * 2),
        (PLAIN + "SELECT x, max(c) FROM r GROUP BY x", ["best max 3 by 0, 1"]),
        (PLAIN + "SELECT min(c) FROM r WHERE x = 1 AND y = 9", ["best min 3 by 0, 1"]),
        (PATHS.format("l.region", "r.c + l.cost", " WHERE r.c < 9") + CHEAPEST, None),
        (PATHS.format("'A'", "least(r.c, l.cost)", " WHERE r.p = 'A'")
         + "SELECT x, y, max(c) FROM r GROUP BY x, y", ["best max 3 by 0, 1, 2 null"]),
        (PATHS.format("l.region", "r.c + l.cost", " WHERE r.p = 'A'") + CHEAPEST,
         ["best min 3 by 0, 1, 2"]),
    ],
)  # fmt: skip
def test_best_rows(sql: str, best: list[str] | None) -> None:
    assert _best(sql) == (["best min 3 by 0, 1"] if best is None else best)
    core = core_of(net_plan(sql))
    assert _has_best(core)
    assert apply_rules(core) == core


def _refusals() -> Iterator[tuple[str, str]]:
    step = PATHS.format
    yield step("r.p", "r.c + l.cost", " WHERE r.c % 2 = 0") + CHEAPEST, "read `c`"
    yield step("r.p", "r.c + l.cost", " WHERE r.c > 2") + CHEAPEST, "read `c`"
    yield step("CAST(r.c AS STRING)", "r.c + l.cost", "") + CHEAPEST, "`p` is computed from"
    yield step("r.p", "r.c * 2", "") + CHEAPEST, "by more than adding to it"
    yield step("r.p", "greatest(r.c, l.cost)", "") + CHEAPEST, "GREATEST or LEAST, one"
    yield step("'A'", "least(r.c, l.cost)", " WHERE r.p = 'A'") + CHEAPEST, "could replace the `c`"
    yield step("'A'", "greatest(r.c + l.cost, 1)", " WHERE r.p = 'A'") + CHEAPEST, "both adds"
    yield PLAIN + "SELECT x, y, min(c), sum(c) FROM r GROUP BY x, y", "SUM needs all of them"
    yield PLAIN + "SELECT x, y, min(c), count(*) FROM r GROUP BY x, y", "COUNT needs all of them"
    yield PLAIN + "SELECT x, min(greatest(c, 2)) FROM r GROUP BY x", "turn NULL into a value"
    yield PLAIN + "SELECT x, max(least(c, y) + 1) FROM r GROUP BY x", "turn NULL into a value"
    yield PLAIN + "SELECT x, min(y) FROM r GROUP BY x", "`y` by more than adding to it"
    yield PLAIN + "SELECT x, min(p) FROM r GROUP BY x", "`p` is of type string"
    yield (
        "WITH RECURSIVE r(n, c) AS (SELECT dst, weight FROM links UNION SELECT l.dst,"
        " r.c + l.weight FROM r JOIN links l ON r.n = l.src) SELECT n, min(c) FROM r GROUP BY n",
        "`c` has type double",
    )
    yield (
        "WITH RECURSIVE r(x, y, c) AS (SELECT src, dst, CAST(cost AS BIGINT) FROM links UNION"
        " SELECT a.x, b.y, a.c + b.c FROM r a JOIN r b ON a.y = b.x)"
        " SELECT x, y, min(c) FROM r GROUP BY x, y",
        "read twice",
    )


@pytest.mark.parametrize(("sql", "reason"), list(_refusals()))
def test_reasons_to_keep_all_rows(sql: str, reason: str) -> None:
    root = apply_rules(net_plan(sql))
    assert not _has_best(root)
    notes = recursion_notes(root)
    (result,) = (notes[i] for i, node in enumerate(root.walk()) if isinstance(node, nodes.Fixpoint))
    assert "keeps rows that MIN or MAX does not need: " in result
    assert reason in result


def test_a_condition_on_one_value_affects_the_other() -> None:
    """Where a short but expensive path stops, one that is longer and cheaper goes on."""
    sql = (
        "WITH RECURSIVE r(n, h, c) AS (SELECT dst, 1L, CAST(cost AS BIGINT) FROM links"
        " WHERE src = 1 UNION SELECT l.dst, r.h + 1L, CAST(r.c + l.cost AS BIGINT)"
        " FROM r JOIN links l ON r.n = l.src {}) SELECT n, min(c), min(h) FROM r GROUP BY n"
    )
    assert _best(sql.format("")) == ["best min 2, min 1 by 0"]
    assert _best(sql.format("WHERE r.c < 10")) == ["None"]


def test_conditions_on_costs_need_more_than_the_best_rows() -> None:
    """1 -> 2 costs 1 or 2, 2 -> 3 costs 1. Only paths with an even cost continue."""
    sql = (
        "WITH RECURSIVE r(n, c) AS (SELECT dst, CAST(cost AS BIGINT) FROM links WHERE src = 1"
        " UNION SELECT l.dst, CAST(r.c + l.cost AS BIGINT) FROM r JOIN links l ON r.n = l.src"
        " WHERE r.c % 2 = 0) SELECT n, min(c) FROM r GROUP BY n"
    )
    rows = links((1, 2, "A", 1), (1, 2, "A", 2), (2, 3, "A", 1))
    plan = net_plan(sql)
    assert bag(evaluate(apply_rules(plan), {"links": rows})) == bag([(2, 1), (3, 3)])
    (fixpoint,) = fixpoints_of(plan)
    wrong = _with_best(plan, nodes.BestOnly((0,), (nodes.BestValue(1),)))
    assert bag(evaluate(wrong, {"links": rows})) == bag([(2, 1)])
    assert fingerprint(wrong) != fingerprint(plan)
    assert fixpoint.best is None


def _with_best(plan: nodes.Plan, best: nodes.BestOnly) -> nodes.Plan:
    if isinstance(plan, nodes.Fixpoint):
        return replace(plan, best=best)
    return plan.map_inputs(lambda child: _with_best(child, best))


def test_only_filters_on_groups_move() -> None:
    """A filter on `x` removes whole groups. One on `p`, also stable, would remove better rows."""
    sql = PATHS.format("r.p", "r.c + l.cost", "") + BACK + " AND r.{} = {}"
    by_group, by_other = (
        fixpoints_of(apply_rules(net_plan(sql.format(*pair))))[0]
        for pair in (("x", "1"), ("p", "'A'"))
    )
    assert "Select" in {type(node).__name__ for node in by_group.base.walk()}
    assert "Select" not in {type(node).__name__ for node in by_other.base.walk()}
