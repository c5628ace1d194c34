"""Fixpoints judged: what is accepted never changes the answer, and what a barrier is good for.

Counter-examples prove themselves: a sketch of the answer's lineage alone is wrong. Random trials
are in test_trials.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from impctl.plan.nodes import Fixpoint, Query, TopK, nodes_of
from impctl.safety.facts import Fact, FactKind, FactSource
from impctl.safety.judge import Verdict, check_safety
from tests.plan.network import BY_REGION, CLOSURE, COSTS, REACHED, links, read
from tests.plan.trials import accurate_sketches, instances_of
from tests.support.reference_plan import annotate, evaluate


@dataclass(frozen=True)
class Example:
    """A query over a few rows, the accesses sketched, and what the answer's lineage gives."""

    sql: str
    links: Sequence[Mapping[str, Any]]
    answer: set[tuple[Any, ...]]
    naive: set[tuple[Any, ...]] | None
    """The answer over a sketch of the answer's lineage alone; None where that does."""
    reason: str = ""
    """Why the answer's lineage is refused as a sketch; empty where that is not tried."""
    column: Mapping[str, str] = field(default_factory=lambda: BY_REGION)
    """By access; fragments are its values."""


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
def test_a_sketch_with_the_barrier_gives_the_answer_and_one_without_does_not(name: str) -> None:
    example = EXAMPLES[name]
    root = read(example.sql).root
    verdict = check_safety(Query("", root), example.column, ())
    assert verdict.safe
    assert any(isinstance(list(nodes_of(root))[p], Fixpoint) for p in verdict.barrier_positions)
    assert _over(example, barriers=True) == example.answer
    naive = _over(example, barriers=False)
    assert naive == (example.answer if example.naive is None else example.naive)


def _over(example: Example, *, barriers: bool) -> set[tuple[Any, ...]]:
    root = read(example.sql).root
    tables: Any = {"links": example.links, "nodes": NODES, "seeds": SEEDS}
    partitions: Any = {
        access: (column, tuple(sorted({row[column] for row in tables[access[:-2]]})))
        for access, column in example.column.items()
    }
    result = annotate(root, tables)
    assert {row for row, _ in result.rows} == example.answer
    sketches = accurate_sketches(result, root, tables, partitions, barriers=barriers)
    return set(evaluate(root, tables, instances_of(root, tables, partitions, sketches)))


def _judged(sql: str, **columns: str) -> Verdict:
    """`links2="region"` sketches the second access of links."""
    return check_safety(read(sql), {f"{k[:-1]}#{k[-1]}": c for k, c in columns.items()}, ())


STEP_OVER = (
    "WITH RECURSIVE r(n) AS (SELECT dst FROM links WHERE src = 1 UNION "
    "SELECT {head} FROM r JOIN (SELECT src, MAX(dst) AS top, COUNT(*) AS many FROM links "
    "GROUP BY src {having}) q ON r.n = q.src) SELECT n FROM r"
)


@pytest.mark.parametrize(
    ("head", "having", "reason"),
    [
        # Groups by another column than the sketch's are contained: their keys may go on.
        ("q.src", "", None),
        ("q.src", "HAVING COUNT(*) > 1", None),
        ("q.src", "HAVING COUNT(*) < 2", "HAVING compares"),
        ("q.top", "", "WITH RECURSIVE derives rows by `n`, which can be smaller"),
        ("q.many", "", "WITH RECURSIVE derives rows by `n`, which can be smaller"),
    ],
)
def test_parts_that_do_not_read_the_entry_are_judged_by_the_rules(
    head: str, having: str, reason: str | None
) -> None:
    sql = STEP_OVER.format(head=head, having=having)
    verdict = _judged(sql, links2="region")
    assert verdict.safe is (reason is None)
    if reason is not None:
        assert verdict.reason.startswith(reason)
        assert verdict.span is not None
    # Whole groups, or a table that is not sketched, may give any value on.
    assert _judged(sql, links2="src").safe
    assert _judged(sql, links1="region").safe


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
def test_anything_may_stand_above_a_fixpoint(above: str) -> None:
    assert _judged(REACHED + above, links1="region", links2="cost").safe


@pytest.mark.parametrize(
    "step",
    [
        "SELECT r.n + 1 FROM r LEFT JOIN links l ON r.n = l.src",
        "SELECT r.n + 1 FROM r WHERE r.n NOT IN (SELECT l.dst FROM links l)",
    ],
)
def test_rows_without_a_partner_ask_for_a_table_without_a_sketch(step: str) -> None:
    sql = f"WITH RECURSIVE r(n) AS (SELECT n FROM nodes UNION {step}) SELECT n FROM r"
    assert not _judged(sql, links1="src").safe
    assert _judged(sql, nodes1="kind").safe


def test_ties_below_ask_for_tables_without_sketches() -> None:
    sql = (
        "WITH RECURSIVE r(n) AS (SELECT n FROM (SELECT n, kind FROM nodes ORDER BY kind LIMIT 1) "
        "UNION SELECT l.dst FROM r JOIN links l ON r.n = l.src) SELECT n FROM r"
    )
    assert not _judged(sql, nodes1="kind").safe
    verdict = _judged(sql, links1="src")
    assert not verdict.safe
    assert "the rows that the recursion derives are not fixed" in verdict.reason
    assert _judged(sql).ties is not None


def test_only_what_is_sketched_below_makes_a_barrier() -> None:
    sql = REACHED + "SELECT r.n FROM r JOIN nodes n ON r.n = n.n"
    assert _judged(sql, nodes1="kind").barrier_positions == ()
    nodes = list(nodes_of(read(sql).root))
    (position,) = _judged(sql, links2="src").barrier_positions
    assert isinstance(nodes[position], Fixpoint)


def test_first_rows_below_are_a_barrier_of_their_own() -> None:
    sql = (
        "WITH RECURSIVE r(n) AS (SELECT n FROM (SELECT n FROM nodes ORDER BY n LIMIT 1) "
        "UNION SELECT l.dst FROM r JOIN links l ON r.n = l.src) SELECT n FROM r"
    )
    nodes = list(nodes_of(read(sql).root))
    barrier_positions = _judged(sql, nodes1="n", links1="src").barrier_positions
    assert {type(nodes[position]) for position in barrier_positions} == {Fixpoint, TopK}


def test_what_is_known_of_a_column_is_known_of_both_parts() -> None:
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
    of_base, of_step = ([one for one in own if one.kind in kept] for own in (of_base, of_step))

    def is_safe(facts: list[Fact]) -> bool:
        return check_safety(read(sql), {"nodes#1": "kind"}, facts).safe

    assert is_safe([*of_base, *of_step])
    assert not is_safe(of_base)
    assert not is_safe(of_step)
