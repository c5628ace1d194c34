"""Circuits of queries WITH RECURSIVE: rows and sketches, compared with the slow reference."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

from impctl.compile.compile import Dataflow, compile_plan
from impctl.compile.flows import BlockedError
from impctl.compile.session import MaintainedQuery, TableChange
from impctl.data.schema import DOUBLE, LONG, Column, Schema
from impctl.engine.fixpoint.absorption import NOTHING
from impctl.engine.fixpoint.fixpoint import Backward, FixpointOperator, UnionAllFixpoint
from impctl.engine.fixpoint.rows import NumberedFixpointRows
from impctl.engine.operator import LEVEL_LIMITS
from impctl.errors import EvaluationError, NotExactError, UnsupportedError
from impctl.plan.lineage import for_answer, is_sketched_for_answer
from impctl.plan.nodes import Distinct, Fixpoint, JoinKind, Plan, Query, Recursive, TopK
from impctl.plan.recursion import keyed_rows
from impctl.rules.finalize import answer_plan
from impctl.rules.optimize import apply_rules, core_of
from impctl.rules.witnesses import witnessed
from impctl.safety.judge import check_safety
from impctl.sketch.sketch import RangePartition
from impctl.sql.statement import parse_query
from impctl.types import AccessId, AttributeId
from tests.compile import cases as moving_cases
from tests.compile.cases import changes_of, partitions_of, table_of, whole_table
from tests.compile.test_plans import several_cases
from tests.plan.catalogs import fixpoints_of
from tests.plan.random_fixpoints import (
    kept_by_witnesses,
    make_answer_trial,
    make_bag_trial,
    make_fixpoint_trial,
    make_keyed_bag_trial,
    make_keyed_trial,
)
from tests.plan.trials import Trial, accurate_sketches, instances_of
from tests.support.carried_queries import (
    BOUNDARIES,
    Case,
    Drawn,
    Row,
    Stored,
    range_id,
    restored,
    rows_kept,
    sketches_of,
)
from tests.support.random_cases import random_cases, seen_in
from tests.support.recursive_circuits import (
    Derivation,
    closure,
    least_fixpoint,
    low_weights,
    range_ids_of,
    ranked_rows,
    reach,
    right_linear,
    same_generation,
    weights_of,
)
from tests.support.recursive_circuits import Row as Ground
from tests.support.reference_plan import (
    ReferenceFailure,
    ReferenceLimit,
    annotate,
    bag,
    evaluate,
)

COLUMNS = {"links": ("a", "b", "f"), "seeds": ("a", "f")}
"""f is the number of its range; NULL is in the last one."""

REACH = "WITH RECURSIVE r(n) AS (SELECT a FROM seeds UNION {}) "
JOINED = "SELECT l.b FROM r JOIN links l ON r.n = l.a"
PAIRS = "WITH RECURSIVE r(x, y) AS (SELECT a, b FROM links UNION {}) SELECT x, y FROM r"
NODES = 6
SIZES = {"links": 6, "seeds": 2}


def some_row(rng: random.Random, name: str) -> Row:
    def random_node() -> int | None:
        return rng.randrange(NODES) if rng.random() > 0.05 else None

    values = {column: random_node() for column in COLUMNS[name] if column != "f"}
    return {**values, "f": rng.choice((None, 0, 1, 2, 3))}


DRAWN = Drawn(COLUMNS, some_row)
change_of = DRAWN.change_of

QUERIES = {
    "reach": REACH.format(JOINED) + "SELECT n FROM r",
    "right-linear": PAIRS.format("SELECT l.a, r.y FROM links l JOIN r ON l.b = r.x"),
    "closure": PAIRS.format("SELECT p.x, q.y FROM r p JOIN r q ON p.y = q.x"),
    "one source of all": PAIRS.format("SELECT r.x, l.b FROM r JOIN links l ON r.y = l.a")
    + " WHERE x = 1",
    "same generation": "WITH RECURSIVE s(x, y) AS (SELECT a, a FROM seeds UNION SELECT u.a, d.a"
    " FROM links u JOIN s ON u.b = s.x JOIN links d ON s.y = d.b) SELECT x, y FROM s",
    "branches": REACH.format(
        f"SELECT * FROM ({JOINED} UNION ALL SELECT b FROM links WHERE b = 1"
        " UNION ALL SELECT l.a FROM r JOIN links l ON l.b = r.n WHERE l.a < 2) x"
    )
    + "SELECT n FROM r",
    "levels": "WITH RECURSIVE r(n, k) AS (SELECT a, CAST(0 AS BIGINT) FROM seeds UNION SELECT l.b,"
    " k + CAST(1 AS BIGINT) FROM r JOIN links l ON n = l.a WHERE k < 3) SELECT n, k FROM r",
    "IN": REACH.format("SELECT b FROM links WHERE a IN (SELECT n FROM r)") + "SELECT n FROM r",
    "optional side": REACH.format(
        "SELECT coalesce(l.b, r.n - CAST(1 AS BIGINT)) FROM r LEFT JOIN links l ON r.n = l.a"
        " WHERE r.n > 0"
    )
    + "SELECT n FROM r",
    "groups in the step": REACH.format(
        "SELECT m.b FROM r JOIN (SELECT a, max(b) AS b, count(*) AS c FROM links GROUP BY a) m"
        " ON r.n = m.a WHERE m.c < 4"
    )
    + "SELECT n FROM r",
    "a group as base": "WITH RECURSIVE r(n) AS (SELECT max(a) FROM seeds UNION "
    f"{JOINED}) SELECT n FROM r",
    "counted": REACH.format(JOINED) + "SELECT count(*) AS c FROM r HAVING count(*) < 4",
    "not reached": REACH.format(JOINED)
    + "SELECT s.a FROM seeds s WHERE s.a NOT IN (SELECT n FROM r WHERE n IS NOT NULL)",
    "joined above": REACH.format(JOINED)
    + "SELECT l.a, l.b FROM links l JOIN r ON l.b = r.n WHERE l.a > 2",
    "twice": REACH.format(JOINED) + "SELECT p.n, q.n FROM r p JOIN r q ON p.n = q.n + 1",
    "first rows": REACH.format(JOINED) + "SELECT n FROM r ORDER BY n DESC LIMIT 2",
    "a constant": f"WITH RECURSIVE r(n) AS (SELECT 1L UNION {JOINED}) SELECT n FROM r",
    "constants": "WITH RECURSIVE r(n) AS ((SELECT 1L UNION SELECT CAST(NULL AS BIGINT)) UNION"
    f" SELECT * FROM ({JOINED} UNION ALL SELECT 3L) x) SELECT n FROM r",
    "one row beside": "SELECT l.a, c.k FROM links l JOIN (SELECT 2L AS k) c ON l.b = c.k"
    " WHERE EXISTS (SELECT 1) AND l.a IN (SELECT 1L UNION ALL SELECT 3L)",
    "one row on the left": "SELECT k, count(b) AS c FROM (SELECT 2L AS k) LEFT JOIN links ON a = k"
    " GROUP BY k",
}
EXCEPT_LINKS = {"optional side": ("seeds",)}
"""The tables whose accesses may be sketched, if not all."""


def case_of(name: str) -> Case:
    return case_of_sql(QUERIES[name], EXCEPT_LINKS.get(name, tuple(COLUMNS)))


def case_of_sql(sql: str, tables: Collection[str]) -> Case:
    """The query with sketches of all accesses to these tables."""
    return DRAWN.case(sql, tables)


def test_ranges_are_counted_by_derivations() -> None:
    """One link twice and a seed: the range stays until both copies are deleted."""
    case = case_of("reach")
    query = MaintainedQuery(case.compiled(with_answer=False))
    link, seed = {"a": 1, "b": 2, "f": 3}, {"a": 1, "f": 0}
    links = next(s.access for s in case.core.scans if s.table == "links")
    query.step({"seeds": change_of("seeds", [seed], [1])})
    for weights, ranges in (([1, 1], {3}), ([-1], {3}), ([-1], set())):
        query.step({"links": change_of("links", [link] * len(weights), weights)})
        assert sketches_of(query)[links] == ranges


ONE_JOIN = {
    "reach",
    "right-linear",
    "one source of all",
    "IN",
    "groups in the step",
    "a group as base",
    "counted",
    "not reached",
    "joined above",
    "twice",
    "first rows",
    "a constant",
}
"""Queries whose steps are one join with plain columns."""


@pytest.mark.parametrize("name", [name for name, sql in QUERIES.items() if "RECURSIVE" in sql])
def test_which_steps_run_as_plain_joins(name: str) -> None:
    circuit = case_of(name).compiled(with_answer=True).circuit
    result = [one._plain is not None for one in circuit if isinstance(one, FixpointOperator)]
    assert result
    assert set(result) == {name in ONE_JOIN}


PROGRAMS = {
    "reach": reach,
    "right-linear": right_linear,
    "closure": closure,
    "same generation": same_generation,
}


def ground_of(tables: Mapping[str, Sequence[Row]]) -> dict[str, Counter[Ground]]:
    """The tables in the form that the reference programs read."""
    return {
        table: Counter(tuple(row[column] for column in COLUMNS[table]) for row in rows)
        for table, rows in tables.items()
    }


def test_uncertain_fixpoint_rows_fail() -> None:
    """A sum that is too close to call is an error."""
    kinds = [Column("g", LONG), Column("x", DOUBLE)]
    sql = "SELECT sum(x) AS s FROM t GROUP BY g"
    base = parse_query(sql, {"t": Schema(tuple(kinds))}).root
    (column,) = base.attributes
    leaf = Recursive("f", (replace(column, id="leaf"),))
    root = Fixpoint("f", base, leaf, (replace(column, id="f.s"),), True)
    (scan,) = root.scans
    partition = RangePartition("t", "g", LONG, BOUNDARIES)
    query = MaintainedQuery(compile_plan(root, {scan.access: partition}, {}))

    def change(*values: float) -> dict[str, TableChange]:
        rows = pa.table({"g": pa.array([1] * len(values)), "x": pa.array(values)})
        return {"t": TableChange(rows, np.ones(len(values), dtype=np.int64))}

    query.step(change(1.0, 2.0))
    assert sketches_of(query) == {scan.access: {1}}
    with pytest.raises(NotExactError):
        query.step(change(0.1, 0.2))


def _distinct_step(node: Fixpoint) -> Fixpoint:
    return replace(node, step=Distinct(node.step))


def _optional(node: Fixpoint) -> Fixpoint:
    step = node.step
    return replace(node, step=replace(step, child=replace(step.child, kind=JoinKind.RIGHT)))


def _nested(node: Fixpoint) -> Fixpoint:
    inner = Recursive("inner", node.attributes)
    return replace(node, step=Fixpoint("inner", node.step, inner, node.attributes, True))


def _foreign_step(node: Fixpoint) -> Fixpoint:
    return replace(node, step=Recursive("elsewhere", node.attributes))


def _nonlinear_step(_: Fixpoint) -> Fixpoint:
    (closure,) = fixpoints_of(case_of("closure").query.root)
    return replace(closure, is_set=False)


def _base_as_step(node: Fixpoint) -> Fixpoint:
    return replace(node, step=node.base, is_set=False)


@pytest.mark.parametrize(
    ("is_bag", "other", "reason"),
    [
        (False, _distinct_step, "Distinct over rows of"),
        (False, _optional, "the optional side of a right outer join"),
        (False, _nested, "Fixpoint over rows of"),
        (False, _foreign_step, "inside another self"),
        (True, _nonlinear_step, "rows made of none of its rows or of two"),
        (True, _base_as_step, "rows made of none of its rows or of two"),
        (True, _distinct_step, "Distinct over rows of"),
    ],
)
def test_unsupported_steps_are_named_in_the_error(
    is_bag: bool, other: Callable[[Fixpoint], Fixpoint], reason: str
) -> None:
    case = case_of_sql(CIRCLES.format(""), ()) if is_bag else case_of("reach")
    (node,) = fixpoints_of(case.query.root)
    with pytest.raises(BlockedError, match=reason):
        compile_plan(other(node), case.sketched, {})


BAG_REACH = (
    "WITH RECURSIVE r(n, k) AS (SELECT a, CAST(0 AS BIGINT) FROM seeds UNION ALL {} WHERE r.k < 3) "
)
NEXT = "r.k + CAST(1 AS BIGINT)"
BAG_JOINED = f"SELECT l.b, {NEXT} FROM r JOIN links l ON r.n = l.a"
BAG_QUERIES = {
    "walks": BAG_REACH.format(BAG_JOINED) + "SELECT n, k FROM r",
    "how many": BAG_REACH.format(BAG_JOINED) + "SELECT n, count(*) AS c FROM r GROUP BY n",
    "one of few": BAG_REACH.format(BAG_JOINED)
    + "SELECT k, count(*) AS c FROM r GROUP BY k HAVING count(*) < 4",
    "a column less": BAG_REACH.format(BAG_JOINED) + "SELECT k FROM r",
    "sources": "WITH RECURSIVE r(x, y, k) AS (SELECT a, b, CAST(1 AS BIGINT) FROM links UNION ALL"
    f" SELECT r.x, l.b, {NEXT} FROM r JOIN links l ON r.y = l.a WHERE r.k < 3)"
    " SELECT y, k FROM r WHERE x = 1",
    "two parts": BAG_REACH.format(
        f"SELECT * FROM ({BAG_JOINED} WHERE r.k < 2 UNION ALL"
        f" SELECT l.a, {NEXT} FROM r JOIN links l ON l.b = r.n) x"
    )
    .replace(" WHERE r.k < 3)", ")")
    .replace("= r.n)", "= r.n WHERE r.k < 2)")
    + "SELECT n, k FROM r",
    "optional side": BAG_REACH.format(f"SELECT l.b, {NEXT} FROM r LEFT JOIN links l ON r.n = l.a")
    + "SELECT n, k FROM r",
    "half of them": BAG_REACH.format(
        f"SELECT r.n, {NEXT} FROM r LEFT SEMI JOIN links l ON r.n = l.a"
    )
    + "SELECT n, k FROM r",
    "groups in the step": BAG_REACH.format(
        f"SELECT m.b, {NEXT} FROM r JOIN (SELECT a, max(b) AS b FROM links GROUP BY a) m"
        " ON r.n = m.a"
    )
    + "SELECT n, k FROM r",
    "not reached": BAG_REACH.format(BAG_JOINED)
    + "SELECT s.a FROM seeds s WHERE s.a NOT IN (SELECT n FROM r WHERE n IS NOT NULL AND k > 0)",
    "twice": BAG_REACH.format(BAG_JOINED)
    + "SELECT p.n, q.k FROM r p JOIN r q ON p.n = q.n + CAST(1 AS BIGINT) WHERE p.k > 1",
    "as deep as said": BAG_REACH.format(BAG_JOINED).replace(
        "r(n, k)", "r(n, k) MAX RECURSION LEVEL 4"
    )
    + "SELECT n, k FROM r",
}


def bag_case(name: str) -> Case:
    return case_of_sql(BAG_QUERIES[name], EXCEPT_LINKS.get(name, tuple(COLUMNS)))


@pytest.mark.parametrize(
    ("name", "is_bag"),
    [
        *((name, False) for name in QUERIES),
        *(pytest.param(name, True, marks=pytest.mark.slow) for name in BAG_QUERIES),
    ],
)
@random_cases(2, 3, 12)
def test_sketches_and_rows_match_the_reference(name: str, is_bag: bool, cases: range) -> None:
    case = bag_case(name) if is_bag else case_of(name)
    label, most = ("bags ", (1, 3, 5)) if is_bag else ("", (1, 3, 6))
    for seed in cases:
        with_answer = seed % 2 == 0
        rng = random.Random(f"{label}{name} {seed}")
        tables = DRAWN.some_tables(rng, SIZES)
        compiled = partial(case.compiled, with_answer=with_answer)
        for query in DRAWN.carried(rng, tables, compiled, 5, most):
            assert sketches_of(query) == case.expected(tables), seed
            if with_answer:
                expected_rows = bag(evaluate(case.query.root, tables))
                assert rows_kept(query, case.ruled) == expected_rows, seed


CIRCLES = "WITH RECURSIVE r(n){} AS (SELECT a FROM seeds UNION ALL SELECT l.b FROM r JOIN links l "
CIRCLES += "ON r.n = l.a) SELECT n FROM r"


def tables_with_links(*links: tuple[int, int]) -> Mapping[str, Sequence[Row]]:
    return {"links": [{"a": a, "b": b, "f": 1} for a, b in links], "seeds": [{"a": 1, "f": 0}]}


@pytest.mark.parametrize("has_cycle", [True, False])
@pytest.mark.parametrize(("levels", "most"), [("", 100), (" MAX RECURSION LEVEL 7", 7)])
def test_cycles_in_tables_stop_at_the_limit(levels: str, most: int, has_cycle: bool) -> None:
    """The cycle exists when the circuit is filled, or a change closes it."""
    case = case_of_sql(CIRCLES.format(levels), tuple(COLUMNS))
    query = MaintainedQuery(case.compiled(with_answer=False))
    tables = tables_with_links((1, 2), (2, 3), *([(3, 1)] if has_cycle else []))
    if not has_cycle:
        query.load(DRAWN.whole(tables))
        assert sketches_of(query) == case.expected(tables)
    change = {"links": change_of("links", tables_with_links((3, 1))["links"], [1])}
    with pytest.raises(UnsupportedError, match=f"limit of {most} levels") as caught:
        query.load(DRAWN.whole(tables)) if has_cycle else query.step(change)
    assert caught.value.code == "recursion_limit"


@pytest.mark.parametrize(
    ("text", "most"), [("", LEVEL_LIMITS.levels), (" MAX RECURSION LEVEL 250", 250)]
)
def test_queries_set_their_limits(text: str, most: int) -> None:
    circuit = case_of_sql(CIRCLES.format(text), ("links",)).compiled(with_answer=False).circuit
    (levels,) = (one for one in circuit if isinstance(one, UnionAllFixpoint))
    assert levels.limits == replace(LEVEL_LIMITS, levels=most)


def test_unused_columns_are_not_kept() -> None:
    """Except a column that the step needs to compute another one."""
    lonely = BAG_QUERIES["sources"].replace("SELECT y, k FROM r WHERE x = 1", "SELECT k FROM r")
    for sql, names in ((BAG_QUERIES["a column less"], ["n", "k"]), (lonely, ["y", "k"])):
        (node,) = fixpoints_of(case_of_sql(sql, ()).core)
        assert [a.name for a in node.attributes] == names


@pytest.mark.slow
@random_cases(0, 6, 1_000, also="5 12 16 28 59 62 70 78 87 106 108 109 128 132 138 142 143 146")
def test_sketches_of_random_plans_with_a_fixpoint(cases: Sequence[int]) -> None:
    with_a_fixpoint(cases, make_fixpoint_trial)


@pytest.mark.slow
@random_cases(0, 8, 1_000, also="2 14 17 18 31 34 64 72 76 90 94 114 127 130 146")
def test_sketches_of_random_plans_with_a_fixpoint_of_a_bag(cases: Sequence[int]) -> None:
    with_a_fixpoint(cases, make_bag_trial)


def with_a_fixpoint(cases: Sequence[int], make: Callable[[int], Trial]) -> None:
    counts = several_cases(cases, make)
    assert counts["exact"] > len(cases) // 3, counts
    for kind in ("Fixpoint", "inner", "Aggregate", "TopK", "union", "semi", "anti", "left"):
        assert counts[f"with {kind}"] > len(cases) // 50, counts


@pytest.mark.slow
@random_cases(0, 8, 1_000, also="0 1 4 25 39 45 52 56 59 61 64 103 127")
def test_sketches_of_random_plans_with_keyed_fixpoints(cases: Sequence[int]) -> None:
    with_keys(cases, make_keyed_trial)


@random_cases(0, 11, 1_000, also="15 32 37 73 80 85 86 118")
def test_sketches_of_random_plans_with_keyed_bag_fixpoints(cases: Sequence[int]) -> None:
    with_keys(cases, make_keyed_bag_trial)


def with_keys(cases: Sequence[int], make: Callable[[int], Trial]) -> None:
    """One sketch for all accesses below: the ranges of the keys of the used rows."""
    counts = several_cases(cases, make)
    assert counts["exact"] > len(cases) // 2, counts
    assert counts["exact"] - counts["with barrier"] > len(cases) // 2, counts
    for kind in ("Aggregate", "TopK", "semi", "anti", "tree", "groups read"):
        assert counts[f"with {kind}"] > len(cases) // 50, counts


def test_keyed_fixpoints_store_no_ranges() -> None:
    """The state of base and step has no ranges, because a row's key determines its range."""
    tried = 0
    for trial in map(make_keyed_trial, range(40)):
        if not _keys(trial):
            continue
        root = apply_rules(trial.root)
        verdict = check_safety(Query("", root), trial.sketched, trial.facts)
        compiled = compile_plan(
            root, partitions_of(trial), verdict.key_columns, barriers=verdict.barrier_positions
        )
        (fixpoint,) = (one for one in compiled.circuit if isinstance(one, FixpointOperator))
        assert fixpoint.form[2] == (0, 0)
        tried += 1
    assert tried > 10


def test_keyed_accesses_need_equal_ranges() -> None:
    trial, accesses = next(
        (one, keys)
        for one in map(make_keyed_trial, range(100))
        for keys in _keys(one).values()
        if len(keys) > 1
    )
    root, partitions = apply_rules(trial.root), partitions_of(trial)
    verdict = check_safety(Query("", root), trial.sketched, trial.facts)
    partition = partitions[accesses[0]]
    partitions[accesses[0]] = replace(partition, boundaries=(*partition.boundaries, 1000))
    with pytest.raises(BlockedError, match="with different ranges"):
        compile_plan(root, partitions, verdict.key_columns, barriers=verdict.barrier_positions)


def _keys(trial: Trial) -> Mapping[AttributeId, tuple[AccessId, ...]]:
    root = apply_rules(trial.root)
    verdict = check_safety(Query("", root), trial.sketched, trial.facts)
    return keyed_rows(root, verdict.key_columns) if verdict.safe else {}


NARROW = {
    "reach": QUERIES["reach"] + " WHERE n > 2",
    "right-linear": QUERIES["right-linear"] + " WHERE x = 1",
    "closure": QUERIES["closure"] + " WHERE x < 3 AND y > 2",
    "same generation": QUERIES["same generation"] + " WHERE x < y",
    "two and a link": PAIRS.format(
        "SELECT p.x, l.b FROM r p JOIN r q ON p.y = q.x JOIN links l ON q.y = l.a"
    )
    + " WHERE x < 3 AND y > 2",
}
"""Queries with reference programs, filtered on columns that steps change."""
ABOVE = {
    **{f"narrow {name}": sql for name, sql in NARROW.items()},
    "narrow branches": QUERIES["branches"] + " WHERE n > 2",
    "narrow levels": QUERIES["levels"] + " WHERE k = 2",
    "narrow constants": QUERIES["constants"] + " WHERE n > 1",
    "narrow optional side": QUERIES["optional side"] + " WHERE n > 2",
    "enough": PAIRS.replace("SELECT x, y FROM r", "SELECT x FROM r GROUP BY x")
    .format("SELECT r.x, l.b FROM r JOIN links l ON r.y = l.a")
    .replace("GROUP BY x", "GROUP BY x HAVING count(*) > 2"),
    "least": REACH.format(JOINED) + "SELECT min(n) AS m FROM r HAVING min(n) < 2",
    "over another": REACH.format(JOINED)[:-1] + ", s(n) AS (SELECT n FROM r WHERE n > 2 UNION"
    " SELECT l.a FROM s JOIN links l ON s.n = l.b) SELECT n FROM s WHERE n < 3",
    "beside another": REACH.format(JOINED)[:-1] + ", s(n) AS (SELECT a FROM seeds UNION"
    " SELECT l.a FROM s JOIN links l ON s.n = l.b JOIN r ON r.n = l.a) SELECT n FROM s"
    " WHERE n > 2",
    "a bag over a set": REACH.format(JOINED)[:-1] + ", w(n, k) AS (SELECT n, 1L FROM r WHERE"
    " n > 1 UNION ALL SELECT l.b, k + 1L FROM w JOIN links l ON w.n = l.a WHERE k < 2)"
    " SELECT n FROM w WHERE n < 3",
    "first rows above": REACH.format(JOINED)
    + "SELECT l.b FROM (SELECT n FROM r ORDER BY n LIMIT 2) t JOIN links l ON t.n = l.a"
    " WHERE l.b > 1",
}
EVERY = {n: sql for n, sql in QUERIES.items() if "RECURSIVE" in sql} | ABOVE
Tables = Mapping[str, Sequence[Row]]


def answer_case(sql: str, tables: Sequence[str] = tuple(COLUMNS)) -> Case:
    """The query with the plan that maintains a sketch of the answer's lineage."""
    case = case_of_sql(sql, tables)
    query = replace(case.query, root=for_answer(apply_rules(case.query.root)))
    return Case(query, case.sketched, for_answer(case.core))


def is_barrier(node: Plan) -> bool:
    """Top-k and fixpoints that are not sketched for the answer."""
    if isinstance(node, Fixpoint):
        return not is_sketched_for_answer(node)
    return isinstance(node, TopK)


def compiled(case: Case, *, with_answer: bool = False) -> Dataflow:
    answer = answer_plan(case.query) if with_answer else None
    root = case.core if answer is None else answer.kept
    barriers = [position for position, node in enumerate(root.walk()) if is_barrier(node)]
    return compile_plan(root, case.sketched, {}, barriers=barriers, answer=answer)


def random_small_tables(rng: random.Random) -> dict[str, list[Row]]:
    return DRAWN.some_tables(rng, dict.fromkeys(COLUMNS, 6))


@pytest.mark.parametrize("name", EVERY)
@random_cases(2, 3, 16)
def test_sketches_match_the_answers_lineage(name: str, cases: range) -> None:
    smaller = 0
    # Queries without filters are tried half as often.
    for seed in cases if name in ABOVE else cases[list(EVERY).index(name) % 2 :: 2]:
        smaller += one_query(name, seed, with_answer=seed % 2 == 0)
    assert smaller or name not in ABOVE


def one_query(name: str, seed: int, *, with_answer: bool) -> int:
    """Returns how often its sketches were smaller than those with a barrier."""
    rng, smaller = random.Random(f"answer {name} {seed}"), 0
    case = answer_case(EVERY[name], EXCEPT_LINKS.get(name.removeprefix("narrow "), tuple(COLUMNS)))
    tables, compile_case = (
        random_small_tables(rng),
        partial(compiled, case, with_answer=with_answer),
    )
    for query in DRAWN.carried(rng, tables, compile_case, 5):
        result = annotate(case.core, tables, whole_windows=True)
        expected = case.fragments(result, tables, is_barrier)
        assert sketches_of(query) == expected, seed
        smaller += expected != case.fragments(result, tables)
        if with_answer:
            assert rows_kept(query, case.query) == bag(evaluate(case.query.root, tables)), seed
    return smaller


@random_cases(0, 12, 1_000, also="4 8 11 28 40 78 93 108 110 116 123 126 128 142 144 167")
def test_sketches_of_random_plans_for_the_answer_alone(cases: Sequence[int]) -> None:
    counts = several_cases(cases, make_answer_trial)
    assert counts["exact"] > len(cases) // 3, counts
    for kind in ("Fixpoint", "inner", "Aggregate", "TopK", "union", "semi", "left"):
        assert counts[f"with {kind}"] > len(cases) // 50, counts


# Participating rows.


def two_and_a_link(tables: Mapping[str, Counter[Ground]], rows: frozenset[Ground]) -> Any:
    """A row derived from two rows and a link, whose range counts once."""
    links = tables["links"].items()
    for (a, b, f), weight in links:
        yield Derivation((a, b), (), ((0, (a, b, f)),), weight)
    for p, q in product(rows, rows):
        if None not in (p[1], q[0]) and p[1] == q[0]:
            for link, weight in links:
                if None not in (q[1], link[0]) and q[1] == link[0]:
                    yield Derivation((p[0], link[1]), (p, q), ((1, link),), weight)


RULES = {**PROGRAMS, "two and a link": two_and_a_link}
IN_ANSWER = {
    "two and a link": lambda row: None not in row and row[0] < 3 and row[1] > 2,
    "reach": lambda row: row[0] is not None and row[0] > 2,
    "right-linear": lambda row: row[0] == 1,
    "closure": lambda row: None not in row and row[0] < 3 and row[1] > 2,
    "same generation": lambda row: None not in row and row[0] < row[1],
}


def participating(
    derivations: Sequence[Derivation], answer: frozenset[Ground]
) -> frozenset[Ground]:
    """The rows of the answer, and recursively all rows that their derivations use."""
    result = answer
    while True:
        larger = result | {b for one in derivations if one.head in result for b in one.bodies}
        if larger == result:
            return result
        result = larger


def numbers_of(fixpoint: FixpointOperator) -> dict[int, Ground]:
    """The rows by their numbers."""
    rows = fixpoint.output()
    columns = [column.to_arrow().to_pylist() for column in rows.columns.values()]
    numbers = rows.tags[0].expand(np.arange(len(rows)), rows.weights).ranges.tolist()
    keys = list(zip(*columns, strict=True))
    assert len(set(numbers)) == len(keys)
    return dict(zip(numbers, keys, strict=True))


def counted(query: MaintainedQuery) -> Counter[object]:
    result: Counter[object] = Counter()
    for access, counts in enumerate(query.merge.counts):
        result |= Counter(
            {(access, range_id): int(counts[range_id]) for range_id in counts.nonzero()[0].tolist()}
        )
    return result


def check_parts(query: MaintainedQuery, name: str, tables: Tables) -> None:
    ground = ground_of(tables)
    rows = least_fixpoint(RULES[name], ground)
    derivations = list(RULES[name](ground, rows))
    expected = participating(derivations, frozenset(filter(IN_ANSWER[name], rows)))
    fixpoints = [one for one in query.circuit if isinstance(one, FixpointOperator)]
    (backward,) = (one for one in fixpoints if isinstance(one, Backward))
    (forward,) = (one for one in fixpoints if not isinstance(one, Backward))
    stored = ranked_rows(forward.rows)
    ranks = {row: rank for row, (rank, _, _) in stored.items()}
    assert {row: every for row, (_, every, _) in stored.items()} == weights_of(derivations)
    # A rank that is not the maximum over all bodies is detected here before rows are wrong.
    assert {row: low for row, (_, _, low) in stored.items()} == low_weights(derivations, ranks)
    numbers = numbers_of(forward)
    assert set(numbers.values()) == ranks.keys() == rows
    kept = {number for (number,) in ranked_rows(backward.rows)}
    assert {numbers[one] for one in kept - {NOTHING}} == expected
    used = [one for one in derivations if one.head in expected]
    assert counted(query) == range_ids_of(used, lambda leaf: range_id({"f": leaf[-1]}))


def check_steps(name: str, seed: int, *, most: int | None = None, steps: int = 20) -> None:
    """With `most`, there are only that many row numbers."""
    rng = random.Random(f"parts {name} {seed}")
    case, stored = answer_case(NARROW[name]), Stored()
    tables, query = random_small_tables(rng), MaintainedQuery(compiled(case))
    if most is None:
        query.load(DRAWN.whole(tables))
    else:
        tables = {table: [] for table in COLUMNS}
    for _ in range(steps):
        for one in query.circuit:
            rows = getattr(one, "rows", None)
            if isinstance(rows, NumberedFixpointRows) and most is not None:
                rows.most = most
        query.step(DRAWN.some_changes(rng, tables, (1, 3, 6)))
        check_parts(query, name, tables)
        if rng.random() < 0.2:
            query = restored(query, stored, MaintainedQuery(compiled(case)))


@pytest.mark.slow
@pytest.mark.parametrize("name", NARROW)
@random_cases(1, 2, 100)
def test_ranks_participating_rows_and_counts(name: str, cases: range) -> None:
    for seed in cases:
        check_steps(name, seed, steps=10)


@pytest.mark.parametrize(("name", "most"), [("reach", 7), ("right-linear", 49)])
@random_cases(1, 3, 6)
def test_row_numbers_are_reused(name: str, most: int, cases: range) -> None:
    """There are at most 7 nodes including NULL, so 7 or 49 rows."""
    for seed in cases:
        check_steps(name, seed, most=most, steps=25)


def test_too_many_rows_are_an_error() -> None:
    with pytest.raises(UnsupportedError, match="more than 3 rows") as caught:
        check_steps("reach", 1, most=3, steps=60)
    assert caught.value.code == "recursion_limit"


LINKED = "WITH RECURSIVE r(n) AS (SELECT x FROM t WHERE g < 3 UNION SELECT t.x FROM r JOIN t ON "
MOVING = {
    "above": (LINKED + "r.n = t.g) SELECT n FROM r WHERE n + 4 >= {now}", "g x day"),
    "joined": (
        LINKED + "r.n = t.g) SELECT r.n FROM r JOIN u ON r.n = u.g WHERE r.n + u.n + 3 >= {now}",
        "g x",
    ),
}


@random_cases(8, 9, 80)
def test_moved_constants_match_a_refill(cases: range) -> None:
    counts = moving_cases.several_cases(MOVING, cases, plan_for=for_answer)
    assert counts["moves"] == len(cases) * 4
    assert min(counts[name] for name in MOVING) > len(cases) // 16, counts


UNSAFE = {"groups in the step", "a group as base"}
"""Queries for which only sketches on the group column are safe."""
RECURSIVE = [n for n, sql in QUERIES.items() if "RECURSIVE" in sql and n not in UNSAFE]


def witness_case(name: str) -> Case:
    """The query with the plan that maintains a sketch of witnesses."""
    case = case_of(name)
    query = replace(case.query, root=apply_rules(case.query.root))
    sketched = dict.fromkeys(case.sketched, "f")
    verdict = check_safety(query, sketched, ())
    assert verdict.safe, verdict.reason
    columns = dict.fromkeys(case.sketched, Column("f", LONG))
    return Case(query, case.sketched, core_of(witnessed(query, verdict, columns).query.root))


def rows_over(plan: Plan, tables: Tables, sketches: Mapping[str, Collection[int]]) -> object:
    """The rows of a plan over the sketches."""
    instances = {
        scan.access: [
            index
            for index, row in enumerate(tables[scan.table])
            if range_id(row) in sketches[scan.access]
        ]
        for scan in plan.scans
        if scan.access in sketches
    }
    return bag(evaluate(plan, tables, instances))


def check(query: MaintainedQuery, case: Case, tables: Tables, rng: random.Random) -> int:
    """Check that these and wider sketches give the same rows as the tables. Returns how many ranges
    are saved."""
    exact, full = sketches_of(query), case.expected(tables)
    wider = {
        access: result | {one for one in range(5) if rng.random() < 0.3}
        for access, result in exact.items()
    }
    plans = [case.query.root, *(n for n in case.core.walk() if isinstance(n, Fixpoint))]
    for plan in plans:
        whole = bag(evaluate(plan, tables))
        for sketches in (exact, wider):
            assert rows_over(plan, tables, sketches) == whole, (exact, full)
    assert all(exact[access] <= full[access] for access in exact)
    return sum(len(full[access]) - len(exact[access]) for access in exact)


@pytest.mark.parametrize("name", RECURSIVE)
@random_cases(1, 2, 6)
def test_rows_over_witness_sketches_match_the_tables(name: str, cases: range) -> None:
    case = witness_case(name)
    compiled = partial(case.compiled, with_answer=False)
    assert any(isinstance(one, FixpointOperator) for one in compiled().circuit)
    for seed in cases:
        rng = random.Random(f"chosen {name} {seed}")
        tables = DRAWN.some_tables(rng, SIZES)
        for query in DRAWN.carried(rng, tables, compiled, 6):
            check(query, case, tables, rng)


def test_witness_sketches_are_smaller() -> None:
    spared, rng = Counter[str](), random.Random(4)
    for name in RECURSIVE:
        case = witness_case(name)
        if EXCEPT_LINKS.get(name):
            continue
        query = MaintainedQuery(case.compiled(with_answer=False))
        tables = DRAWN.some_tables(rng, {"links": 16, "seeds": 3})
        query.load(DRAWN.whole(tables))
        spared[name] = check(query, case, tables, rng)
    assert sum(spared.values()) > len(spared), spared


def one_plan(seed: int, counts: Counter[str]) -> None:
    """A random plan over changing tables."""
    trial, rng = make_fixpoint_trial(seed), random.Random(seed)
    root = apply_rules(trial.root)
    verdict = check_safety(Query("", root), trial.sketched, trial.facts)
    if not verdict.safe or verdict.ties is not None:
        counts["not sketched, or ties"] += 1
        return
    kept = kept_by_witnesses(root, trial, verdict)
    if not any(isinstance(node, Fixpoint) and node.chooses for node in kept.walk()):
        counts["nothing to choose"] += 1
        return
    verdict_of_kept = check_safety(Query("", kept), trial.sketched, trial.facts)
    partitions = partitions_of(trial)
    spare = {name: list(rows) for name, rows in trial.tables.items()}
    tables = {name: [row for row in spare[name] if rng.random() < 0.7] for name in spare}
    try:
        session = MaintainedQuery(
            compile_plan(
                kept,
                partitions,
                verdict_of_kept.key_columns,
                barriers=verdict_of_kept.barrier_positions,
            )
        )
        session.load([(name, table_of(name, tables[name])) for name in session.compiled.tables])
        for _ in range(4):
            sketches = {access: set(result.ids) for access, result in session.ranges().items()}
            instances = instances_of(root, tables, trial.partitions, sketches)
            whole = bag(evaluate(root, tables))
            assert bag(evaluate(root, tables, instances)) == whole, (seed, sketches)
            full = accurate_sketches(annotate(root, tables), root, tables, trial.partitions)
            counts["less"] += any(full[access] - sketches[access] for access in sketches)
            counts["compared"] += 1
            changes = changes_of(rng, session.compiled.tables, tables, spare)
            session.step(changes, partial(whole_table, tables))
    except BlockedError:
        counts["blocked"] += 1
    except (ReferenceFailure, ReferenceLimit, EvaluationError, NotExactError) as error:
        counts[f"failed: {type(error).__name__}"] += 1


@random_cases(0, 16, 1_000, also="4 32 46 80 128 137 142 146")
def test_answers_of_random_plans_over_witnesses(cases: Sequence[int]) -> None:
    counts = seen_in(cases, one_plan)
    assert counts["compared"] > len(cases), counts
    assert counts["less"] > len(cases) // 20, counts
