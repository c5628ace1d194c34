"""Derivations of rows of answers against all subsets of small tables and the slow reference.

Tables are links(a, b) and seeds(a), with circles, self-loops, duplicates and NULLs, small enough
that every set of rows can be tried.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np
import pytest

from impctl.compile.flows import BlockedError
from impctl.compile.provenance.absorbed import MakingList, numbered
from impctl.compile.provenance.derivation import Claim, Derivation, derivation_of
from impctl.compile.provenance.program import made_rows
from impctl.data.schema import LONG, Column, Schema
from impctl.plan.nodes import Plan, scans_of
from impctl.rules.optimize import apply_rules
from impctl.sql.statement import parse_query
from tests.circuits.test_recursion import JOINED, PAIRS, QUERIES, REACH
from tests.support.arrow_rows import arrow_rows
from tests.support.random_cases import random_seeds
from tests.support.reference_plan import evaluate

Row = Mapping[str, int | None]
Value = tuple[object, ...]

COLUMNS = {"links": ("a", "b"), "seeds": ("a",)}
CATALOG = {
    name: Schema(tuple(Column(column, LONG) for column in columns))
    for name, columns in COLUMNS.items()
}
FIRST = {"links": 0, "seeds": 100}
"""The number of each table's first row."""
MADE = 1000

LINES = {
    **{name: QUERIES[name] for name in ("reach", "right-linear", "IN")},
    "one source of all": PAIRS.format("SELECT r.x, l.b FROM r JOIN links l ON r.y = l.a"),
    "filtered": "SELECT a, b + 1 AS c FROM links WHERE a < b",
    "distinct": "SELECT DISTINCT a FROM links",
}
"""Queries of which some rows at least have a smallest set by a shortest derivation."""
OTHERS = {
    **{name: QUERIES[name] for name in ("closure", "same generation", "branches")},
    "levels": QUERIES["levels"].replace("k < 3", "k < 4"),
    "joined above": REACH.format(JOINED) + "SELECT l.a, l.b FROM links l JOIN r ON l.b = r.n",
    "twice": REACH.format(JOINED) + "SELECT p.n AS m, q.n FROM r p JOIN r q ON p.n = q.n + 1",
    "union": "SELECT a FROM links WHERE a > 1 UNION SELECT b FROM links UNION SELECT a FROM seeds",
    "union all": "SELECT a, 1 AS c FROM links UNION ALL SELECT s.a, 2 FROM seeds s JOIN links l"
    " ON s.a = l.b",
    "self-join": "SELECT k.a, l.b FROM links k JOIN links l ON k.b = l.a",
    "exists": "SELECT a FROM seeds s WHERE EXISTS (SELECT 1 FROM links l WHERE l.a = s.a)",
    "distinct of a join": "SELECT DISTINCT k.a FROM links k JOIN links l ON k.b = l.a"
    " JOIN links m ON l.b = m.a",
}
GROUPED = {
    "sums": "SELECT a, sum(b) AS s, count(*) AS c FROM links GROUP BY a",
    "having": "SELECT a, max(b) AS m FROM links GROUP BY a HAVING count(*) > 1",
    "reached": REACH.format(JOINED) + "SELECT count(*) AS c FROM r",
    "group in a step": REACH.format(
        "SELECT m.b FROM r JOIN (SELECT a, max(b) AS b FROM links GROUP BY a) m ON r.n = m.a"
    )
    + "SELECT n FROM r",
    "counted with a partner": "SELECT a, count(*) AS c FROM links k WHERE b IN"
    " (SELECT a FROM links) GROUP BY a",
    "counted twice": "SELECT a, count(*) AS c FROM (SELECT a FROM links UNION ALL SELECT a FROM"
    " links) x WHERE a IN (SELECT a FROM seeds UNION ALL SELECT b FROM links) GROUP BY a",
    "everything": "SELECT count(*) AS c, avg(b) AS m FROM links",
    "of different": "SELECT a, count(*) AS c FROM (SELECT DISTINCT a, b FROM links) x GROUP BY a",
}

Tables = Mapping[str, Sequence[Row]]


def some_tables(rng: random.Random) -> Tables:
    nodes = rng.choice((3, 4, 5))

    def some_node() -> int | None:
        return rng.randrange(nodes) if rng.random() > 0.05 else None

    links = [{"a": some_node(), "b": some_node()} for _ in range(rng.randint(0, 7))]
    seeds = [{"a": some_node()} for _ in range(rng.randint(0, 2))]
    return {"links": [*links, *links[:1]], "seeds": seeds}


def numbers_of(tables: Tables) -> list[int]:
    return [FIRST[name] + at for name, rows in tables.items() for at in range(len(rows))]


def of_numbers(tables: Tables, numbers: Collection[int]) -> Tables:
    """The tables with these rows alone."""
    return {
        name: [row for at, row in enumerate(rows) if FIRST[name] + at in numbers]
        for name, rows in tables.items()
    }


def derivations(
    root: Plan, tables: Tables, budget: int = 10**6
) -> Iterator[tuple[Value, Derivation]]:
    """Each row of the answer with its derivation."""
    arrow = {
        scan.access: numbered(
            arrow_rows(CATALOG[scan.table], tables[scan.table]), FIRST[scan.table]
        )
        for scan in scans_of(root)
    }
    made = made_rows(root, arrow, MADE)
    columns = [column.to_arrow().to_pylist() for column in made.columns]
    for number, row in zip(made.numbers.tolist(), zip(*columns, strict=True), strict=True):
        yield row, derivation_of(made.makings, number, MADE, budget)


def derives(root: Plan, tables: Tables, numbers: Collection[int], row: Value) -> bool:
    """Whether these rows alone give the row, by the reference."""
    return row in evaluate(root, of_numbers(tables, numbers))


def plan_of(sql: str) -> Plan:
    return apply_rules(parse_query(sql, CATALOG).root)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LINES, *OTHERS])
@random_seeds(2, 4, 24)
def test_a_smallest_set_is_one(name: str, seed: int) -> None:
    rng = random.Random(f"{name} {seed}")
    root, tables = plan_of({**LINES, **OTHERS}[name]), some_tables(rng)
    result = dict(derivations(root, tables))
    assert result.keys() == set(evaluate(root, tables))
    for row, derivation in result.items():
        assert derivation.claim is Claim.SMALLEST
        assert derivation.lineage >= len(derivation.rows)
        assert derives(root, tables, derivation.rows, row)
        fewer = combinations(numbers_of(tables), len(derivation.rows) - 1)
        assert not any(derives(root, tables, some, row) for some in fewer)


@pytest.mark.parametrize("name", OTHERS)
@random_seeds(2, 4, 24)
def test_without_a_search_no_row_can_be_left_out(name: str, seed: int) -> None:
    rng = random.Random(f"{name} {seed} minimal")
    root, tables = plan_of(OTHERS[name]), some_tables(rng)
    for row, derivation in derivations(root, tables, budget=-1):
        assert derives(root, tables, derivation.rows, row)
        if derivation.claim is Claim.MINIMAL:
            for left_out in derivation.rows:
                rest = set(derivation.rows) - {left_out}
                assert not derives(root, tables, rest, row)


@pytest.mark.parametrize("name", GROUPED)
@random_seeds(2, 4, 24)
def test_of_groups_all_rows_are_told(name: str, seed: int) -> None:
    """They give the row with any others of other groups away, as with all of them there."""
    rng = random.Random(f"{name} {seed} groups")
    root, tables = plan_of(GROUPED[name]), some_tables(rng)
    result = dict(derivations(root, tables))
    assert result.keys() == set(evaluate(root, tables))
    for row, derivation in result.items():
        assert derives(root, tables, derivation.rows, row)
    if name in ("sums", "having"):
        for row, derivation in result.items():
            links = enumerate(tables["links"])
            assert derivation.rows == tuple(at for at, link in links if link["a"] == row[0])
            assert derivation.claim is Claim.GROUP


def test_two_rows_made_of_one_use_its_rows_once() -> None:
    """The derivation with the fewest uses has four rows; one that uses three of them twice has
    three."""
    made = MakingList()
    target, left, right, shared, other = range(100, 105)
    for head, *bodies in (
        (target, left, right),
        (left, shared),
        (right, shared),
        (shared, 0, 1, 2),
        (target, other),
        (other, 3, 4, 5, 6),
    ):
        made.add(np.array([head]), np.array([bodies]))
    derivation = derivation_of(made.whole(), target, 100)
    assert derivation == Derivation((0, 1, 2), Claim.SMALLEST, 7)
    unproved = derivation_of(made.whole(), target, 100, budget=-1)
    assert unproved == Derivation((3, 4, 5, 6), Claim.MINIMAL, 7)


REFUSED = {
    "SELECT a FROM links ORDER BY b LIMIT 2": "a LIMIT or a rank",
    "SELECT s.a FROM seeds s LEFT JOIN links l ON s.a = l.a": "left outer join",
    "SELECT a FROM seeds EXCEPT SELECT b FROM links": "EXCEPT returns rows",
    "SELECT a FROM seeds WHERE a NOT IN (SELECT b FROM links)": "anti join",
    "SELECT a, sum(b) OVER (PARTITION BY a) AS s FROM links": "window function",
    "SELECT a, count(*) FROM links GROUP BY ROLLUP (a)": "ROLLUP",
}


@pytest.mark.parametrize("sql", REFUSED)
def test_what_is_not_traced_is_named(sql: str) -> None:
    root = plan_of(sql)
    with pytest.raises(BlockedError, match=REFUSED[sql]) as raised:
        list(derivations(root, {"links": [], "seeds": []}))
    assert raised.value.span is not None


def test_the_links_of_a_long_chain_are_its_derivation() -> None:
    """A shortest derivation, without a search, however long it is; beside it a longer way."""
    links = [{"a": at, "b": at + 1} for at in range(90)]
    longer = [{"a": 0, "b": -1}, {"a": -1, "b": -2}, {"a": -2, "b": 1}]
    tables = {"links": [*longer, *links], "seeds": [{"a": 0}]}
    made = dict(derivations(plan_of(LINES["reach"]), tables, budget=-1))
    derivation = made[(90,)]
    assert derivation.claim is Claim.SMALLEST
    assert derivation.rows == (FIRST["seeds"], *range(3, 93))
    assert derivation.lineage == 94
