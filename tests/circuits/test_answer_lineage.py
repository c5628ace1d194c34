"""Recursive queries with `lineage: answer`, by their circuits, against the slow reference.

Queries, tables and batches are those of `test_recursion`, and more that leave rows out; then random
plans. After every batch, and after taking up what was stored, sketches are the fragments of the
answer's lineage; rows that take part, and how often a fragment counts, are found by going back.
By hand: `IMPCTL_FUZZ=10` and `-m slow` for 6,000 plans.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from impctl.compile.compile import Compiled, compile_plan
from impctl.compile.session import MaintainedQuery
from impctl.engine.fixpoint.absorption import NOTHING
from impctl.engine.fixpoint.fixpoint import Backward
from impctl.engine.fixpoint.fixpoint import Fixpoint as FixpointOperator
from impctl.engine.fixpoint.rows import NumberedRows
from impctl.errors import UnsupportedError
from impctl.plan.lineage import for_answer, is_open
from impctl.plan.nodes import Fixpoint, TopK, nodes_of
from impctl.rules.finalize import answer_plan
from impctl.rules.optimize import apply_rules
from tests.circuits import moving_cases
from tests.circuits.test_plans_against_reference import several_cases
from tests.circuits.test_recursion import (
    COLUMNS,
    DRAWN,
    EXCEPT_LINKS,
    JOINED,
    PAIRS,
    PROGRAMS,
    QUERIES,
    REACH,
    Case,
    case_of_sql,
    expected,
)
from tests.plan.answer_plans import make_answer_trial
from tests.support.carried_queries import Row, fragment, fragments_read, rows_kept
from tests.support.random_cases import random_cases
from tests.support.reference_fixpoint import Derivation, fragments_of, least_fixpoint
from tests.support.reference_fixpoint import Row as Ground
from tests.support.reference_plan import annotate, bag, evaluate
from tests.support.restored_query import Stored, restored, sketches_of

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
"""Queries of programs, whose rows are left out by columns that steps change."""
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
    """The query with the plan that a sketch of its answer's lineage is kept by."""
    case = case_of_sql(sql, tables)
    query = replace(case.query, root=for_answer(apply_rules(case.query.root)))
    return Case(query, case.sketched, for_answer(case.core))


def compiled(case: Case, *, with_answer: bool = False) -> Compiled:
    """The circuit; fixpoints that are no sets are barriers."""
    answer = answer_plan(case.query) if with_answer else None
    root = case.core if answer is None else answer.kept
    nodes = enumerate(nodes_of(root))
    barriers = [
        at
        for at, node in nodes
        if isinstance(node, TopK) or (isinstance(node, Fixpoint) and not is_open(node))
    ]
    return compile_plan(root, case.sketched, {}, barriers=barriers, answer=answer)


def lineage_of(case: Case, tables: Tables) -> dict[str, set[int]]:
    """The fragments of the answer's lineage, and of what barriers keep beside."""
    result = annotate(case.core, tables, whole_windows=True)
    nodes = list(nodes_of(case.core))
    lineage = set(result.lineage)
    for at, rows in result.first_rows.items():
        node = nodes[at]
        lineage |= set() if isinstance(node, Fixpoint) and is_open(node) else rows
    return fragments_read(lineage, case.core, case.sketched, tables)


def some_tables(rng: random.Random) -> dict[str, list[Row]]:
    return DRAWN.some_tables(rng, dict.fromkeys(COLUMNS, 6))


def loaded(case: Case, tables: Tables, *, with_answer: bool = False) -> MaintainedQuery:
    query = MaintainedQuery(compiled(case, with_answer=with_answer))
    query.load(DRAWN.whole(tables))
    return query


def some_changes(rng: random.Random, tables: Mapping[str, list[Row]]) -> dict[str, Any]:
    return DRAWN.some_changes(rng, tables, (1, 3, 6))


@pytest.mark.parametrize("name", EVERY)
@random_cases(2, 5, 16)
def test_sketches_are_those_of_the_answers_lineage(name: str, cases: range) -> None:
    less = 0
    # Queries that leave nothing out are tried half as often.
    for seed in cases if name in ABOVE else cases[list(EVERY).index(name) % 2 :: 2]:
        less += one_query(name, seed, with_answer=seed % 2 == 0)
    assert less or name not in ABOVE


def one_query(name: str, seed: int, *, with_answer: bool) -> int:
    """How often its sketches were less than those with a barrier."""
    rng, less = random.Random(f"answer {name} {seed}"), 0
    case = answer_case(EVERY[name], EXCEPT_LINKS.get(name.removeprefix("narrow "), tuple(COLUMNS)))
    tables, made = some_tables(rng), partial(compiled, case, with_answer=with_answer)
    for query in DRAWN.carried(rng, tables, made, 5):
        wanted = lineage_of(case, tables)
        assert sketches_of(query) == wanted, seed
        less += wanted != expected(case, tables)
        if with_answer:
            assert rows_kept(query, case.query) == bag(evaluate(case.query.root, tables)), seed
    return less


@random_cases(0, 40, 1_000, also="4 8 11 28 40 78 93 108 110 116 123 126 128 142 144 167")
def test_sketches_of_random_plans_for_the_answer_alone(cases: Sequence[int]) -> None:
    seen = several_cases(cases, make_answer_trial)
    assert seen["exact"] > len(cases) // 3, seen
    for kind in ("Fixpoint", "inner", "Aggregate", "TopK", "union", "semi", "left"):
        assert seen[f"with {kind}"] > len(cases) // 50, seen


# What takes part, row by row.


def two_and_a_link(tables: Mapping[str, Counter[Ground]], rows: frozenset[Ground]) -> Any:
    """A row of two rows and a link, whose fragment counts once for it."""
    links = tables["links"].items()
    for (a, b, f), weight in links:
        yield Derivation((a, b), (), ((0, (a, b, f)),), weight)
    for p, q in product(rows, rows):
        if None not in (p[1], q[0]) and p[1] == q[0]:
            for link, weight in links:
                if None not in (q[1], link[0]) and q[1] == link[0]:
                    yield Derivation((p[0], link[1]), (p, q), ((1, link),), weight)


RULES = {**PROGRAMS, "two and a link": two_and_a_link}
WANTED = {
    "two and a link": lambda row: None not in row and row[0] < 3 and row[1] > 2,
    "reach": lambda row: row[0] is not None and row[0] > 2,
    "right-linear": lambda row: row[0] == 1,
    "closure": lambda row: None not in row and row[0] < 3 and row[1] > 2,
    "same generation": lambda row: None not in row and row[0] < row[1],
}


def taking_part(derivations: Sequence[Derivation], answer: frozenset[Ground]) -> frozenset[Ground]:
    """The rows of the answer and all that some derivation of such a row uses."""
    result = answer
    while True:
        more = result | {b for one in derivations if one.head in result for b in one.bodies}
        if more == result:
            return result
        result = more


def numbers_of(fixpoint: FixpointOperator) -> dict[int, Ground]:
    """The rows by their numbers."""
    rows = fixpoint.output()
    columns = [column.to_arrow().to_pylist() for column in rows.columns.values()]
    numbers = rows.tags[0].expand(np.arange(len(rows)), rows.weights).fragments.tolist()
    keys = list(zip(*columns, strict=True))
    assert len(set(numbers)) == len(keys)
    return dict(zip(numbers, keys, strict=True))


def counted(query: MaintainedQuery) -> Counter[object]:
    result: Counter[object] = Counter()
    for access, counts in enumerate(query.merge.counts):
        result |= Counter({(access, at): int(counts[at]) for at in counts.nonzero()[0].tolist()})
    return result


def check_parts(query: MaintainedQuery, name: str, tables: Tables) -> None:
    rules = RULES[name]
    ground = {
        table: Counter(tuple(row[column] for column in COLUMNS[table]) for row in rows)
        for table, rows in tables.items()
    }
    rows = least_fixpoint(rules, ground)
    derivations = list(rules(ground, rows))
    wanted = taking_part(derivations, frozenset(filter(WANTED[name], rows)))
    (backward,) = (one for one in query.circuit if isinstance(one, Backward))
    (forward,) = (
        one
        for one in query.circuit
        if isinstance(one, FixpointOperator) and not isinstance(one, Backward)
    )
    numbers = numbers_of(forward)
    assert set(numbers.values()) == rows
    whole = backward.rows.whole()
    held = set(whole.keys[0].to_arrow().to_pylist()) if len(whole) else set()
    assert {numbers[one] for one in held - {NOTHING}} == wanted
    used = [one for one in derivations if one.head in wanted]
    cut = fragments_of(used, lambda leaf: fragment({"f": leaf[-1]}))
    assert counted(query) == cut


def some_steps(name: str, seed: int, *, most: int | None = None, steps: int = 20) -> None:
    """With `most`, so many numbers there are for rows."""
    rng = random.Random(f"parts {name} {seed}")
    case, stored = answer_case(NARROW[name]), Stored()
    tables = some_tables(rng)
    query = loaded(case, tables) if most is None else MaintainedQuery(compiled(case))
    tables = tables if most is None else {table: [] for table in COLUMNS}
    for _ in range(steps):
        for one in query.circuit:
            held = getattr(one, "rows", None)
            if isinstance(held, NumberedRows) and most is not None:
                held.most = most
        query.step(some_changes(rng, tables))
        check_parts(query, name, tables)
        if rng.random() < 0.2:
            query = restored(query, stored, MaintainedQuery(compiled(case)))


@pytest.mark.slow
@pytest.mark.parametrize("name", NARROW)
@random_cases(1, 4, 100)
def test_what_takes_part_and_how_often_it_counts(name: str, cases: range) -> None:
    for seed in cases:
        some_steps(name, seed, steps=10)


@pytest.mark.parametrize(("name", "most"), [("reach", 7), ("right-linear", 49)])
@random_cases(1, 3, 6)
def test_numbers_are_given_again(name: str, most: int, cases: range) -> None:
    """There are at most 7 nodes, NULL among them, so 7 rows or 49."""
    for seed in cases:
        some_steps(name, seed, most=most, steps=25)


def test_more_rows_than_numbers_are_named() -> None:
    with pytest.raises(UnsupportedError, match="more than 3 rows") as caught:
        some_steps("reach", 1, most=3, steps=60)
    assert caught.value.code == "recursion_limit"


LINKED = "WITH RECURSIVE r(n) AS (SELECT x FROM t WHERE g < 3 UNION SELECT t.x FROM r JOIN t ON "
MOVING = {
    "above": (LINKED + "r.n = t.g) SELECT n FROM r WHERE n + 4 >= {now}", "g x day"),
    "joined": (
        LINKED + "r.n = t.g) SELECT r.n FROM r JOIN u ON r.n = u.g WHERE r.n + u.n + 3 >= {now}",
        "g x",
    ),
}


@random_cases(8, 16, 80)
def test_constants_that_move_come_to_what_is_filled_anew(cases: range) -> None:
    seen = moving_cases.several_cases(MOVING, cases, plan_for=for_answer)
    assert seen["moves"] == len(cases) * 4
    assert min(seen[name] for name in MOVING) > len(cases) // 16, seen
