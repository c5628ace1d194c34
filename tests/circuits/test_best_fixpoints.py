"""Fixpoints that keep the best of each group, against the slow reference: rows and sketches.

Tables links(a, b, w, f) and seeds(a, w, f) have circles, self-loops, duplicates, ties, costs of 0
and NULLs; sketches are on f, of every access.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Mapping, Sequence
from functools import partial

import pytest

from impctl.compile.compile import Compiled, compile_plan
from impctl.compile.session import MaintainedQuery
from impctl.data.schema import LONG
from impctl.engine.fixpoint.fixpoint import BestFixpoint
from impctl.engine.operator import Limits
from impctl.errors import CountBelowZeroError, UnsupportedError
from impctl.plan.nodes import Fixpoint, Query, nodes_of, scans_of
from impctl.rules.finalize import answer_plan
from impctl.rules.optimize import apply_rules, core_of
from impctl.sketch.partition import RangePartition
from impctl.sql.statement import parse_query
from tests.support.carried_queries import (
    BOUNDARIES,
    Drawn,
    Row,
    best_ranked,
    fragment,
    fragments_read,
    rows_kept,
)
from tests.support.random_cases import random_cases, random_seeds
from tests.support.reference_plan import annotate, bag, evaluate
from tests.support.restored_query import Stored, restored, sketches_of

COLUMNS = {"links": ("a", "b", "w", "f"), "seeds": ("a", "w", "f")}
NODES = 6


def some_row(rng: random.Random, name: str) -> Row:
    values: dict[str, int | None] = {}
    for column in COLUMNS[name]:
        most = {"w": 4, "f": 4}.get(column, NODES)
        values[column] = rng.randrange(most) if rng.random() > 0.06 else None
    return values


DRAWN = Drawn(COLUMNS, some_row)
change_of = DRAWN.change_of

FROM_SEEDS = (
    "WITH RECURSIVE r(n, c) AS (SELECT a, w FROM seeds UNION"
    " SELECT l.b, {} FROM r JOIN links l ON r.n = l.a{}) "
)
CHEAPEST = FROM_SEEDS.format("r.c + l.w", "")
PATHS = (
    "WITH RECURSIVE r(x, y, via, hops, c) AS (SELECT a, b, b, 1L, w + 1L FROM links"
    " WHERE a < 2 AND w IS NOT NULL UNION SELECT r.x, l.b, l.a, r.hops + 1L, r.c + l.w + 1L"
    " FROM r JOIN links l ON r.y = l.a WHERE l.w IS NOT NULL) "
)
BY_PAIR = " FROM r GROUP BY x, y"

QUERIES = {
    "cheapest": CHEAPEST + "SELECT n, min(c) AS c FROM r GROUP BY n",
    "cheapest, bounded": FROM_SEEDS.format("r.c + l.w", " WHERE r.c + l.w < 5")
    + "SELECT n, min(c) AS c FROM r GROUP BY n HAVING min(c) > 1",
    "to one": CHEAPEST + "SELECT min(c) AS c FROM r WHERE n = 3 AND c < 9",
    "over kinds": CHEAPEST
    + "SELECT s.w, min(r.c) AS c FROM r JOIN seeds s ON r.n = s.a GROUP BY s.w",
    "widest": FROM_SEEDS.format("least(r.c, l.w)", "") + "SELECT n, max(c) AS c FROM r GROUP BY n",
    "smoothest": FROM_SEEDS.format("greatest(r.c, l.w)", "")
    + "SELECT n, min(c) AS c FROM r GROUP BY n",
    "components": FROM_SEEDS.format("r.c", "") + "SELECT n, min(c) AS c FROM r GROUP BY n",
    "highest label": FROM_SEEDS.format("r.c", "") + "SELECT n, max(c) AS c FROM r GROUP BY n",
    "least and greatest label": FROM_SEEDS.format("r.c", "")
    + "SELECT n, min(c) AS c, max(c) AS d FROM r GROUP BY n",
    "falling": FROM_SEEDS.format("r.c - l.w", "") + "SELECT n, max(c) AS c FROM r GROUP BY n",
    "pairs": PATHS + "SELECT x, y, min(c) AS c" + BY_PAIR,
    "cost and hops": PATHS + "SELECT x, y, min(c) AS c, min(hops) AS h" + BY_PAIR,
    "cheapest rows": PATHS
    + ", m AS (SELECT x, y, min(c) AS c"
    + BY_PAIR
    + ") SELECT r.x, r.y, r.via, r.hops FROM r JOIN m ON r.x = m.x AND r.y = m.y AND r.c = m.c",
    "two ways": (
        "WITH RECURSIVE r(n, c) AS (SELECT a, w FROM seeds UNION SELECT * FROM ("
        "SELECT l.b, r.c + l.w FROM r JOIN links l ON r.n = l.a UNION ALL"
        " SELECT l.a, r.c + 3L FROM r JOIN links l ON r.n = l.b UNION ALL"
        " SELECT b, w FROM links WHERE a = 5) x) SELECT n, min(c) AS c FROM r GROUP BY n"
    ),
    "no groups": "WITH RECURSIVE r(c) AS (SELECT w FROM seeds UNION SELECT r.c + s.w FROM r"
    " CROSS JOIN seeds s WHERE s.a = 1 AND r.c < 7) SELECT min(c) AS c FROM r",
    "not the dearest": CHEAPEST
    + "SELECT a FROM seeds WHERE a NOT IN (SELECT n FROM r GROUP BY n HAVING min(c) > 3)",
}


class Case:
    """A query and the circuits that keep its sketches, and its rows besides."""

    def __init__(self, sql: str) -> None:
        self.query: Query = parse_query(sql, DRAWN.catalog)
        self.ruled = Query(sql, apply_rules(self.query.root))
        self.core = core_of(self.query.root)
        self.sketched = {
            scan.access: RangePartition(scan.table, "f", LONG, BOUNDARIES)
            for scan in scans_of(self.core)
        }

    def compiled(self, *, with_answer: bool) -> Compiled:
        answer = answer_plan(self.ruled) if with_answer else None
        plan = self.core if answer is None else answer.kept
        barriers = [at for at, node in enumerate(nodes_of(plan)) if isinstance(node, Fixpoint)]
        return compile_plan(plan, self.sketched, {}, barriers=barriers, answer=answer)

    def expected(self, tables: Mapping[str, Sequence[Row]]) -> dict[str, set[int]]:
        """The fragments of the answer's rows and of the barriers'."""
        result = annotate(self.core, tables, whole_windows=True)
        lineage = result.lineage.union(*result.first_rows.values())
        return fragments_read(lineage, self.core, self.sketched, tables)


def over_sketches(case: Case, tables: Mapping[str, Sequence[Row]]) -> object:
    """The rows over those of the tables that the sketches hold."""
    table = {scan.access: scan.table for scan in scans_of(case.core)}
    seen = {
        access: [at for at, row in enumerate(tables[table[access]]) if fragment(row) in fragments]
        for access, fragments in case.expected(tables).items()
    }
    return bag(evaluate(case.ruled.root, tables, seen))


@pytest.mark.parametrize("name", QUERIES)
@random_cases(2, 4, 12)
def test_sketches_and_rows_are_those_of_the_reference(name: str, cases: range) -> None:
    case = Case(QUERIES[name])
    assert all(n.best for n in nodes_of(case.core) if isinstance(n, Fixpoint))
    for seed in cases:
        with_answer = seed % 2 == 0
        rng = random.Random(f"{name} {seed}")
        tables = DRAWN.some_tables(rng, {"links": 9, "seeds": 2})
        made = partial(case.compiled, with_answer=with_answer)
        for query in DRAWN.carried(rng, tables, made, 6, (1, 1, 3, 6), Limits(rounds=300)):
            assert sketches_of(query) == case.expected(tables), seed
            if with_answer:
                rows_now = bag(evaluate(case.ruled.root, tables))
                assert rows_kept(query, case.ruled) == rows_now, seed
                assert over_sketches(case, tables) == rows_now, seed


def dijkstra(links: Sequence[Row], seeds: Sequence[Row]) -> dict[int | None, int]:
    """What it takes at least to get to each node."""
    out: dict[int | None, list[tuple[int | None, int]]] = {}
    for row in links:
        if row["w"] is not None and row["a"] is not None:
            out.setdefault(row["a"], []).append((row["b"], row["w"]))
    waiting = [(row["w"], -1 if row["a"] is None else row["a"]) for row in seeds]
    heap = [(cost, node) for cost, node in waiting if cost is not None]
    heapq.heapify(heap)
    least: dict[int | None, int] = {}
    while heap:
        cost, number = heapq.heappop(heap)
        node = None if number == -1 else number
        if node in least:
            continue
        least[node] = cost
        for other, more in out.get(node, ()):
            heapq.heappush(heap, (cost + more, -1 if other is None else other))
    return least


def network(rng: random.Random, nodes: int) -> Row:
    """A link with no NULL but now and then."""
    cost = rng.choice((0, 0, 1, 2, 5, 9)) if rng.random() > 0.02 else None
    return {"a": rng.randrange(nodes), "b": rng.randrange(nodes), "w": cost, "f": rng.randrange(4)}


def ranked(query: MaintainedQuery) -> list[tuple[int | None, int | None, int, int]]:
    """Node, cost, rank and low of all rows that are in."""
    (fixpoint,) = (one for one in query.circuit if isinstance(one, BestFixpoint))
    return [(*row.values(), rank, low) for row, rank, low in best_ranked(fixpoint.rows)]


@random_seeds(2, 4, 12)
def test_costs_are_those_of_dijkstra_and_stand_on_lower_ranks(seed: int) -> None:
    """Dense enough for circles of no cost, thin enough for parts that are cut off."""
    rng = random.Random(seed)
    nodes = rng.choice((8, 30, 60))
    case = Case(QUERIES["cheapest"])
    query = MaintainedQuery(case.compiled(with_answer=False))
    stored = Stored()
    links = [network(rng, nodes) for _ in range(2 * nodes)]
    seeds: list[Row] = [{"a": 0, "w": 0, "f": 0}]
    tables = {"links": links, "seeds": seeds}
    query.load(DRAWN.whole(tables))
    for turn in range(12):
        result = ranked(query)
        known = {node: cost for node, cost, _, _ in result if cost is not None}
        assert known == dijkstra(links, seeds)
        costs = {(node, cost): rank for node, cost, rank, _ in result}
        lows = dict.fromkeys(costs, 0)
        for row in seeds:
            lows[row["a"], row["w"]] = lows.get((row["a"], row["w"]), 0) + 1
        for row in links:
            for (node, cost), rank in costs.items():
                if node is None or node != row["a"]:
                    continue
                made = None if cost is None or row["w"] is None else cost + row["w"]
                head = (row["b"], made)
                if head in costs and rank < costs[head]:
                    lows[head] += 1
        assert {head: lows[head] for head in costs} == {(n, c): low for n, c, _, low in result}
        came = [network(rng, nodes) for _ in range(rng.choice((0, 1, 2, 8)))]
        gone = rng.sample(links, min(len(links), rng.choice((0, 1, 2, nodes))))
        for row in gone:
            links.remove(row)
        links += came
        changed = change_of("links", came + gone, [1] * len(came) + [-1] * len(gone))
        query.step({"links": changed})
        if turn % 5 == 4:
            query = restored(query, stored, MaintainedQuery(case.compiled(with_answer=False)))


def test_what_is_least_above_a_bound_needs_all_best_rows() -> None:
    """1 -> 2 costs 5 or 1, 1 -> 3 costs 4. Of `HAVING MIN(c) > 3` node 3 alone is left, and over
    the rows that it comes from, 2 would be there at 5: the sketch has the 1, too."""
    sql = (
        "WITH RECURSIVE r(n, c) AS (SELECT b, w FROM links WHERE a = 1 UNION SELECT l.b, r.c + l.w"
        " FROM r JOIN links l ON r.n = l.a) SELECT n, min(c) AS c FROM r GROUP BY n HAVING min(c)>3"
    )
    case = Case(sql)
    rows: list[Row] = [
        {"a": 1, "b": 2, "w": 5, "f": 0},
        {"a": 1, "b": 2, "w": 1, "f": 1},
        {"a": 1, "b": 3, "w": 4, "f": 2},
    ]
    query = MaintainedQuery(case.compiled(with_answer=False))
    query.step({"links": change_of("links", rows, [1, 1, 1])})
    base, step = (scan.access for scan in scans_of(case.core))
    assert sketches_of(query) == {base: {1, 2}, step: set()}
    left = [row for row in rows if row["f"] in {1, 2}]
    assert evaluate(case.query.root, {"links": left}) == [(3, 4)]
    assert len(evaluate(case.query.root, {"links": rows[::2]})) == 2


def test_a_circle_below_zero_has_no_end() -> None:
    case = Case(QUERIES["cheapest"])
    query = MaintainedQuery(case.compiled(with_answer=False))
    query.circuit.end_by(Limits(rounds=50))
    links: list[Row] = [
        {"a": 1, "b": 2, "w": 1, "f": 0},
        {"a": 2, "b": 1, "w": -1, "f": 0},
        {"a": 2, "b": 1, "w": -2, "f": 0},
    ]
    seeds: list[Row] = [{"a": 1, "w": 0, "f": 0}]
    query.step(
        {"links": change_of("links", links[:2], [1, 1]), "seeds": change_of("seeds", seeds, [1])}
    )
    assert [row[:2] for row in sorted(ranked(query))] == [(1, 0), (2, 1)]
    with pytest.raises(UnsupportedError, match="exceeds its limit of 50 rounds") as caught:
        query.step({"links": change_of("links", links[2:], [1])})
    assert "a cycle that keeps improving the value" in str(caught.value.hint)


def test_a_row_that_was_never_there_is_told() -> None:
    query = MaintainedQuery(Case(QUERIES["cheapest"]).compiled(with_answer=False))
    with pytest.raises(CountBelowZeroError):
        query.step({"seeds": change_of("seeds", [{"a": 1, "w": 0, "f": 0}], [-1])})


def test_the_best_rows_alone_stay() -> None:
    """Of a thousand links to one node one row is in, whatever else is derived."""
    query = MaintainedQuery(Case(QUERIES["cheapest"]).compiled(with_answer=False))
    links: list[Row] = [{"a": 1, "b": 2, "w": cost, "f": 0} for cost in range(1000)]
    seeds: list[Row] = [{"a": 1, "w": 0, "f": 0}]
    query.step({"links": change_of("links", links, [1] * 1000)})
    query.step({"seeds": change_of("seeds", seeds, [1])})
    assert [row[:2] for row in sorted(ranked(query))] == [(1, 0), (2, 0)]
    query.step({"links": change_of("links", links[:500], [-1] * 500)})
    assert [row[:2] for row in sorted(ranked(query))] == [(1, 0), (2, 500)]


def _stepped(name: str, *changes: Mapping[str, Sequence[tuple[int | None, ...]]]) -> list[object]:
    """Nodes and values that are in after steps, each of rows that come."""
    query = MaintainedQuery(Case(QUERIES[name]).compiled(with_answer=False))
    for change in changes:
        made = {}
        for table, rows in change.items():
            named = [dict(zip(COLUMNS[table], (*row, 0), strict=True)) for row in rows]
            made[table] = change_of(table, named, [1] * len(rows))
        query.step(made)
    return sorted((row[:2] for row in ranked(query)), key=repr)


def test_what_comes_of_null_may_be_better_than_what_comes_of_a_value() -> None:
    """greatest(NULL, 3) is 3."""
    seeds = [(1, None), (1, 5)]
    links = {"links": [(1, 2, 3)]}
    for changes in (
        ({"seeds": seeds, **links},),
        ({"seeds": seeds[1:], **links}, {"seeds": seeds[:1]}),
    ):
        assert _stepped("smoothest", *changes) == [(1, 5), (1, None), (2, 3)]


def test_a_row_that_comes_of_a_better_one_alike_stands_on_that() -> None:
    """A step of 7 is the greatest of the way whether it begins with 5 or 3."""
    links = [(1, 2, 7), (2, 3, 1)]
    result = _stepped("smoothest", {"links": links, "seeds": [(1, 5)]}, {"seeds": [(1, 3)]})
    assert result == [(1, 3), (2, 7), (3, 7)]


@pytest.mark.parametrize(("name", "last"), [("components", 2**63 - 1), ("highest label", -(2**63))])
def test_null_is_no_value_not_even_the_last(name: str, last: int) -> None:
    result = _stepped(name, {"seeds": [(1, last), (1, None), (2, None)]})
    assert result == [(1, last), (2, None)]
