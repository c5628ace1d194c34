"""Derivations of rows that come of a fixpoint's best rows alone, where circles have no end.

The reference goes along links until no cost is less any more. Tables are links(a, b, w) and
seeds(a), with circles, links of no cost, duplicates and NULLs.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa
import pytest

from impctl.compile.provenance.absorbed import numbered
from impctl.compile.provenance.derivation import Claim, Derivation, derivation_of
from impctl.compile.provenance.program import made_rows
from impctl.data.schema import LONG, Column, Schema
from impctl.engine.operator import Limits
from impctl.errors import UnsupportedError
from impctl.plan.nodes import Plan, scans_of
from impctl.rules.optimize import apply_rules
from impctl.sql.statement import parse_query
from tests.support.random_cases import random_seeds

Node = int | None
Link = tuple[Node, Node, int | None]

COLUMNS = {"links": ("a", "b", "w"), "seeds": ("a",)}
CATALOG = {
    name: Schema(tuple(Column(column, LONG) for column in columns))
    for name, columns in COLUMNS.items()
}
SEEDS, MADE = 100, 1000
"""The number of the first seed, and of the first row made."""
PATHS = (
    "WITH RECURSIVE r(n, c) AS (SELECT a, CAST(0 AS BIGINT) FROM seeds UNION"
    " SELECT l.b, r.c {} l.w FROM r JOIN links l ON r.n = l.a)"
    " SELECT n, {}(c) AS c FROM r GROUP BY n"
)
CHEAPEST, FALLING = PATHS.format("+", "min"), PATHS.format("-", "max")


def plan_of(sql: str) -> Plan:
    return apply_rules(parse_query(sql, CATALOG).root)


def derivations(
    root: Plan, links: Sequence[Link], seeds: Sequence[Node], limits: Limits
) -> Iterator[tuple[tuple[Node, Node], Derivation]]:
    """Each row of the answer with its derivation."""
    tables = {}
    for scan in scans_of(root):
        rows = links if scan.table == "links" else [(seed,) for seed in seeds]
        start = 0 if scan.table == "links" else SEEDS
        columns = {
            name: pa.array([row[at] for row in rows], pa.int64())
            for at, name in enumerate(COLUMNS[scan.table])
        }
        tables[scan.access] = numbered(pa.table(columns), start)
    made = made_rows(root, tables, MADE, limits=limits)
    nodes, costs = (column.to_arrow().to_pylist() for column in made.columns)
    for number, node, cost in zip(made.numbers.tolist(), nodes, costs, strict=True):
        yield (node, cost), derivation_of(made.makings, number, MADE)


def least_costs(links: Sequence[Link], seeds: Sequence[Node]) -> dict[Node, int | None]:
    """The least cost to each node that is reached; None where each way there has a NULL."""
    known: dict[Node, int] = dict.fromkeys(seeds, 0)
    reached = set(seeds)
    for _ in range(len(links) + 1):
        for source, target, cost in links:
            if source is not None and source in reached:
                reached.add(target)
            if source is not None and source in known and cost is not None:
                known[target] = min(known.get(target, 10**6), known[source] + cost)
    return {node: known.get(node) for node in reached}


def some_tables(rng: random.Random) -> tuple[list[Link], list[Node]]:
    nodes = rng.choice((3, 5))

    def maybe(value: int) -> int | None:
        return value if rng.random() > 0.08 else None

    links: list[Link] = [(0, 1, 1), (1, 0, rng.randrange(3))]
    for _ in range(rng.randint(0, 8)):
        links.append(
            (maybe(rng.randrange(nodes)), maybe(rng.randrange(nodes)), maybe(rng.randrange(4)))
        )
    return [*links, *links[-1:]], [maybe(rng.randrange(2)) for _ in range(rng.randint(1, 2))]


def of_numbers(
    links: Sequence[Link], seeds: Sequence[Node], numbers: Collection[int]
) -> dict[Node, int | None]:
    """The least costs over these rows alone."""
    return least_costs(
        [link for at, link in enumerate(links) if at in numbers],
        [seed for at, seed in enumerate(seeds) if SEEDS + at in numbers],
    )


@pytest.mark.parametrize("sql", [CHEAPEST, FALLING])
@random_seeds(10, 25, 120)
def test_circles_have_an_end_and_rows_told_give_the_row(sql: str, seed: int) -> None:
    links, seeds = some_tables(random.Random(f"{seed} best"))
    sign = 1 if sql is CHEAPEST else -1
    costs = least_costs(links, seeds)
    limits = Limits(rounds=4 * len(links), rows=10_000)
    result = dict(derivations(plan_of(sql), links, seeds, limits))
    assert result.keys() == {(n, None if c is None else sign * c) for n, c in costs.items()}
    for (node, _), derivation in result.items():
        assert of_numbers(links, seeds, derivation.rows)[node] == costs[node]


def test_ways_that_are_beaten_are_not_told() -> None:
    links: list[Link] = [(1, 2, 1), (1, 3, 5), (3, 2, 5), (2, 1, 0)]
    result = dict(derivations(plan_of(CHEAPEST), links, [1], Limits(rounds=20)))
    derivation = result[2, 1]
    assert derivation.rows == (0, SEEDS)
    assert derivation.claim is Claim.GROUP
    assert result[3, 5].rows == (1, SEEDS)


def test_what_has_no_end_goes_as_far_as_it_is_told() -> None:
    endless = (
        "WITH RECURSIVE r(n) AS (SELECT a FROM seeds UNION SELECT n + 1 FROM r) SELECT n FROM r"
    )
    with pytest.raises(UnsupportedError, match="its limit of 7 rounds"):
        list(derivations(plan_of(endless), [], [1], Limits(rounds=7)))


def test_rows_without_a_value_stay_where_better_ones_come_of_them() -> None:
    """GREATEST leaves NULL out: along the way without a cost 3 is reached at 1, not at 5."""
    widest = (
        "WITH RECURSIVE r(n, c) AS (SELECT l.b, l.w FROM seeds s JOIN links l ON s.a = l.a UNION"
        " SELECT l.b, GREATEST(r.c, l.w) FROM r JOIN links l ON r.n = l.a)"
        " SELECT n, min(c) AS c FROM r GROUP BY n"
    )
    links: list[Link] = [(1, 2, None), (1, 2, 5), (2, 3, 1), (3, 2, 9)]
    result = dict(derivations(plan_of(widest), links, [1], Limits(rounds=20)))
    assert result.keys() == {(2, 5), (3, 1)}
    assert result[3, 1].rows == (0, 2, SEEDS)
