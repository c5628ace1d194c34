"""Queries WITH RECURSIVE by their circuits, against the slow reference: rows and sketches.

Tables links(a, b, f) and seeds(a, f) have circles, self-loops, duplicates and NULLs; sketches are
on f, of every access that may have one. After every batch the sketches are the fragments of all
rows that take part in deriving rows, and the rows kept are those of the query.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from impctl.compile.compile import Compiled, compile_plan
from impctl.compile.flows import BlockedError
from impctl.compile.session import MaintainedQuery, TableChange
from impctl.data.schema import DOUBLE, LONG, Column, Schema
from impctl.engine.fixpoint.fixpoint import Fixpoint as FixpointOperator
from impctl.errors import NotExactError
from impctl.plan.nodes import (
    Distinct,
    Fixpoint,
    Join,
    JoinKind,
    Plan,
    Project,
    Query,
    Recursive,
    attributes_of,
    nodes_of,
    scans_of,
)
from impctl.rules.finalize import answer_plan
from impctl.rules.optimize import apply_rules, core_of
from impctl.sketch.partition import RangePartition
from impctl.sql.statement import parse_query
from tests.support.carried_queries import BOUNDARIES, Drawn, Row, fragments_read, rows_kept
from tests.support.random_cases import random_cases
from tests.support.reference_fixpoint import (
    closure,
    least_fixpoint,
    low_weights,
    reach,
    right_linear,
    same_generation,
    weights_of,
)
from tests.support.reference_plan import annotate, bag, evaluate
from tests.support.restored_query import sketches_of

COLUMNS = {"links": ("a", "b", "f"), "seeds": ("a", "f")}
"""f is its own fragment; NULL has the last one."""

REACH = "WITH RECURSIVE r(n) AS (SELECT a FROM seeds UNION {}) "
JOINED = "SELECT l.b FROM r JOIN links l ON r.n = l.a"
PAIRS = "WITH RECURSIVE r(x, y) AS (SELECT a, b FROM links UNION {}) SELECT x, y FROM r"
NODES = 6
SIZES = {"links": 6, "seeds": 2}


def some_row(rng: random.Random, name: str) -> Row:
    def some_node() -> int | None:
        return rng.randrange(NODES) if rng.random() > 0.05 else None

    values = {column: some_node() for column in COLUMNS[name] if column != "f"}
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
"""Tables whose accesses may be sketched, where not all."""


@dataclass(frozen=True)
class Case:
    """A query and the circuits that keep its sketches, and its rows besides."""

    query: Query
    sketched: Mapping[str, RangePartition]
    core: Plan

    def compiled(self, *, with_answer: bool) -> Compiled:
        if not with_answer:
            return compile_plan(self.core, self.sketched, {}, barriers=self.barriers(self.core))
        answer = answer_plan(replace(self.query, root=apply_rules(self.query.root)))
        barriers = self.barriers(answer.kept)
        return compile_plan(answer.kept, self.sketched, {}, barriers=barriers, answer=answer)

    def barriers(self, plan: Plan) -> list[int]:
        return [at for at, node in enumerate(nodes_of(plan)) if isinstance(node, Fixpoint)]


def case_of(name: str) -> Case:
    return case_of_sql(QUERIES[name], EXCEPT_LINKS.get(name, tuple(COLUMNS)))


def case_of_sql(sql: str, tables: Collection[str]) -> Case:
    """The query with sketches of all accesses to these tables."""
    query = parse_query(sql, DRAWN.catalog)
    core = core_of(query.root)
    sketched = {
        scan.access: RangePartition(scan.table, "f", LONG, BOUNDARIES)
        for scan in scans_of(core)
        if scan.table in tables
    }
    return Case(query, sketched, core)


def expected(case: Case, tables: Mapping[str, Sequence[Row]]) -> dict[str, set[int]]:
    """The fragments of the answer's rows and of the barriers'."""
    result = annotate(case.core, tables, whole_windows=True)
    lineage = result.lineage.union(*result.first_rows.values())
    return fragments_read(lineage, case.core, case.sketched, tables)


@pytest.mark.parametrize("name", QUERIES)
@random_cases(2, 4, 12)
def test_sketches_and_rows_are_those_of_the_reference(name: str, cases: range) -> None:
    case = case_of(name)
    for seed in cases:
        with_answer = seed % 2 == 0
        rng = random.Random(f"{name} {seed}")
        tables = DRAWN.some_tables(rng, SIZES)
        for query in DRAWN.carried(rng, tables, partial(case.compiled, with_answer=with_answer), 5):
            assert sketches_of(query) == expected(case, tables), seed
            if with_answer:
                rows = bag(evaluate(case.query.root, tables))
                assert rows_kept(query, case.query) == rows, seed


def _grouped(node: Fixpoint) -> Plan:
    return Distinct(node.step)


def _optional(node: Fixpoint) -> Plan:
    step = node.step
    assert isinstance(step, Project)
    assert isinstance(step.child, Join)
    return replace(step, child=replace(step.child, kind=JoinKind.RIGHT))


def _nested(node: Fixpoint) -> Plan:
    return Fixpoint("inner", node.step, Recursive("inner", node.attributes), node.attributes, True)


def _strange(node: Fixpoint) -> Plan:
    return Recursive("elsewhere", node.attributes)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (_grouped, "Distinct over rows of"),
        (_optional, "the optional side of a right outer join"),
        (_nested, "Fixpoint over rows of"),
        (_strange, "inside another self"),
    ],
)
def test_a_step_that_no_operator_carries_ranks_through_is_named(
    other: Callable[[Fixpoint], Plan], reason: str
) -> None:
    case = case_of("reach")
    (node,) = (node for node in nodes_of(case.query.root) if isinstance(node, Fixpoint))
    with pytest.raises(BlockedError, match=reason):
        compile_plan(replace(node, step=other(node)), case.sketched, {})


def test_counts_of_fragments_are_those_of_derivations() -> None:
    """One link twice and a seed: the fragment stays until both copies went."""
    case = case_of("reach")
    query = MaintainedQuery(case.compiled(with_answer=False))
    link, seed = {"a": 1, "b": 2, "f": 3}, {"a": 1, "f": 0}
    query.step(
        {
            "links": change_of("links", [link, link], [1, 1]),
            "seeds": change_of("seeds", [seed], [1]),
        }
    )
    links = next(s.access for s in scans_of(case.core) if s.table == "links")
    assert Counter(sketches_of(query)[links]) == {3: 1}
    query.step({"links": change_of("links", [link], [-1])})
    assert sketches_of(query)[links] == {3}
    query.step({"links": change_of("links", [link], [-1])})
    assert sketches_of(query)[links] == set()


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
"""Queries whose steps are one join with plain columns, whatever stands below it and above."""


@pytest.mark.parametrize("name", [name for name, sql in QUERIES.items() if "RECURSIVE" in sql])
def test_a_step_that_is_one_join_is_followed_as_such(name: str) -> None:
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


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_derives_rows_and_at_which_ranks_is_that_of_the_definition(name: str) -> None:
    """A rank that is not the greatest of all bodies would show here long before rows are wrong."""
    rng = random.Random(f"ranks {name}")
    case, rules = case_of(name), PROGRAMS[name]
    query = MaintainedQuery(case.compiled(with_answer=False))
    (fixpoint,) = (one for one in query.circuit if isinstance(one, FixpointOperator))
    tables: dict[str, list[Row]] = {table: [] for table in COLUMNS}
    for _ in range(20):
        changes = {
            table: change_of(table, *DRAWN.some_change(rng, table, rows, 4))
            for table, rows in tables.items()
        }
        query.step(changes)
        counted = {
            table: Counter(tuple(row[column] for column in COLUMNS[table]) for row in rows)
            for table, rows in tables.items()
        }
        rows = least_fixpoint(rules, counted)
        whole = fixpoint.rows.whole()
        keys = list(zip(*(key.to_arrow().to_pylist() for key in whole.keys), strict=True))
        ranks = dict(zip(keys, whole.rank.tolist(), strict=True))
        assert ranks.keys() == rows
        derivations = list(rules(counted, rows))
        assert dict(zip(keys, whole.all.tolist(), strict=True)) == weights_of(derivations)
        assert dict(zip(keys, whole.low.tolist(), strict=True)) == low_weights(derivations, ranks)


def test_no_row_of_a_fixpoint_has_bounds() -> None:
    """Whoever makes such a plan: a sum that is too close to call is told, not kept as it is."""
    kinds = [Column("g", LONG), Column("x", DOUBLE)]
    sql = "SELECT sum(x) AS s FROM t GROUP BY g"
    base = parse_query(sql, {"t": Schema(tuple(kinds))}).root
    (own,) = attributes_of(base)
    leaf = Recursive("f", (replace(own, id="leaf"),))
    root = Fixpoint("f", base, leaf, (replace(own, id="f.s"),), True)
    (scan,) = scans_of(root)
    partition = RangePartition("t", "g", LONG, BOUNDARIES)
    query = MaintainedQuery(compile_plan(root, {scan.access: partition}, {}))

    def change(*values: float) -> dict[str, TableChange]:
        rows = pa.table({"g": pa.array([1] * len(values)), "x": pa.array(values)})
        return {"t": TableChange(rows, np.ones(len(values), dtype=np.int64))}

    query.step(change(1.0, 2.0))
    assert sketches_of(query) == {scan.access: {1}}
    with pytest.raises(NotExactError):
        query.step(change(0.1, 0.2))
