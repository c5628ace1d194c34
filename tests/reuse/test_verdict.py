"""Which sketches can be reused: the published table, counterexamples, trials, implication."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from impctl.data import schema
from impctl.expr import nodes as e
from impctl.plan.fingerprint import fingerprint, template
from impctl.plan.nodes import Fixpoint, Join, JoinKind, Plan, Query, Select
from impctl.reuse.implication import find_gap, points_of
from impctl.reuse.verdict import ReuseVerdict, _Renaming, check_reuse
from impctl.rules.optimize import apply_rules, core_of
from impctl.safety.direction import Columns, Relation
from impctl.safety.facts import Fact, FactKind, FactSource
from impctl.safety.judge import carried_verdict, check_safety
from impctl.sql.statement import parse_query
from tests.plan.catalogs import (
    BY_COST,
    CLOSURE,
    KEYED,
    REACHED,
    cases,
    links,
    listed,
    ruled,
    schema_of,
)
from tests.plan.random_fixpoints import BagMaker, FixpointMaker, KeyedMaker
from tests.plan.trials import (
    Boundaries,
    Trial,
    Violation,
    _widened,
    accurate_sketches,
    evened,
    instances_of,
    keyed_positions,
    make_trial,
    random_partitions,
    without_keyed,
)
from tests.reuse.trials import ReuseTally, run_reuse_trial, with_other_constants
from tests.safety.test_counterexamples import Example, Rows, read_yaml, tables_in
from tests.support.random_cases import more_seeds, random_cases
from tests.support.reference_plan import (
    ReferenceFailure,
    Value,
    annotate,
    bag,
    evaluate,
    is_true,
    sort_key,
)

POSITIVE = Fact("t", "v", FactKind.NONNEGATIVE, FactSource.STATISTICS)
TABLE = {"t": ("g p v x", (("A", 1, 10, 5), ("B", 2, 3, 7)))}


class Case(Struct, frozen=True):
    """An SQL text with the captured and the requested values, sketched on `t#1`."""

    name: str
    tables: Mapping[str, tuple[str, Rows]]
    sql: str
    values: tuple[object, object]
    reason: str = ""
    sketch: tuple[str, Boundaries] = ("g", ("B",))
    facts: Sequence[Fact] = ()

    @property
    def queries(self) -> tuple[Query, Query]:
        captured, requested = (self._query(self.sql.format(value)) for value in self.values)
        return captured, requested

    def _query(self, sql: str) -> Query:
        query = parse_query(sql, Example(self.name, self.tables, sql).catalog())
        return Query(sql, apply_rules(query.root), query.nondeterministic)

    def verdict(self) -> ReuseVerdict:
        captured, requested = self.queries
        return check_reuse(requested, captured, {"t#1": self.sketch[0]}, self.facts)

    def is_harmed(self) -> bool:
        """Whether the captured sketch changes the requested result."""
        captured, requested = self.queries
        tables = Example(self.name, self.tables, self.sql).rows()
        partitions = {"t#1": self.sketch}
        result = annotate(captured.root, tables)
        sketches = accurate_sketches(result, captured.root, tables, partitions)
        instances = instances_of(requested.root, tables, partitions, sketches)
        return bag(evaluate(requested.root, tables, instances)) != bag(
            evaluate(requested.root, tables)
        )

    def __str__(self) -> str:
        return self.name


def _refused() -> Iterator[Case]:
    for entry in read_yaml(Path(__file__).parent / "refused.yaml"):
        column, bounds = entry.get("sketch", ("g", ["B"]))
        tables, values = tables_in(entry["tables"]), tuple(entry["values"])
        yield Case(
            **{**entry, "tables": tables, "values": values, "sketch": (column, tuple(bounds))}
        )


REFUSED = tuple(_refused())


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_refused_with_its_reason(case: Case) -> None:
    verdict = case.verdict()
    assert not verdict.allowed
    assert verdict.reason == case.reason


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_reusing_a_refused_sketch_changes_the_result(case: Case) -> None:
    assert case.is_harmed()


RANGE = "SELECT g, count(*) AS n FROM t WHERE x >= {} AND x < {} GROUP BY g HAVING count(*) >= {}"
IMPLIED = "the query needs only rows that the sketch was captured for"


@pytest.mark.parametrize(
    ("captured", "requested", "allowed"),
    [
        ((0, 100, 10), (0, 100, 15), True),
        ((0, 100, 10), (20, 80, 10), True),
        ((0, 100, 10), (20, 80, 9), False),
        ((0, 100, 10), (0, 120, 10), False),
        ((0, 100, 10), (-1, 100, 10), False),
    ],
)
def test_the_published_table(
    captured: tuple[int, ...], requested: tuple[int, ...], allowed: bool
) -> None:
    texts = (RANGE.format(*captured), RANGE.format(*requested))
    for column in ("g", "p"):
        assert Case("table", TABLE, "{}", texts, sketch=(column, (2,))).verdict().allowed is allowed


@pytest.mark.parametrize(("captured", "requested"), cases("implied", "controls"))
def test_positive_controls(captured: str, requested: str) -> None:
    values = (captured, requested)
    verdict = Case("control", TABLE, "SELECT g FROM t {}", values, facts=(POSITIVE,)).verdict()
    assert (verdict.allowed, verdict.reason) == (True, IMPLIED)


def test_maximum_keeps_the_lineage_of_its_group() -> None:
    """CE-15: a sketch of one witness row would lose the group; this one has the whole lineage."""
    witness = Case(
        "CE-15",
        {"t": ("g x p a", ((1, 9, 1, 100), (1, 7, 2, 6)))},
        "SELECT g, max(a) AS m FROM t WHERE x < {} GROUP BY g HAVING max(a) > 5",
        (10, 8),
        sketch=("p", (2,)),
    )
    assert witness.verdict().allowed
    assert not witness.is_harmed()


def test_another_table_with_the_same_columns_is_refused() -> None:
    tables, values = {"t": TABLE["t"], "s": TABLE["t"]}, ("t WHERE x > 1", "s WHERE x > 2")
    verdict = Case("tables", tables, "SELECT g FROM {}", values).verdict()
    assert not verdict.allowed
    assert verdict.reason == "the queries differ in more than the constants in their conditions"


def test_explode_can_be_reused() -> None:
    sql = "SELECT g, y FROM t LATERAL VIEW explode(array(x, v)) e AS y WHERE x > {}"
    verdict = Case("elements", TABLE, sql, (1, 2)).verdict()
    assert (verdict.allowed, verdict.reason) == (True, IMPLIED)


def test_equivalent_text_is_the_same_query() -> None:
    captured = "SELECT g AS h, count(*) AS n FROM t GROUP BY g HAVING count(*) > 1"
    requested = "select u.g, COUNT( * ) m from t as u group by u.g having count(*) > 1"
    verdict = Case("texts", TABLE, "{}", (captured, requested), sketch=("p", (2,))).verdict()
    assert verdict.allowed
    assert verdict.reason == "it was captured for the same conditions and limits"
    assert verdict.accesses == {"t#1": "t#1"}


def test_accesses_are_matched_by_position() -> None:
    captured = "WITH a AS (SELECT * FROM t) SELECT t.g FROM t JOIN a ON t.g = a.g WHERE t.x > 1"
    requested = "SELECT b.g FROM t AS b JOIN t AS a ON b.g = a.g WHERE b.x > 2"
    case = Case("accesses", TABLE, "{}", (captured, requested))
    verdict = case.verdict()
    assert verdict.allowed, verdict.reason
    first, second = case.queries
    assert template(first.root) == template(second.root)
    assert set(verdict.accesses) == {"t#1", "t#2"}


def test_template_ignores_only_constants_and_limits() -> None:
    def key(sql: str) -> str:
        return template(Case("", TABLE, "{}", (sql, sql), sketch=("g", ())).queries[0].root)

    base = key("SELECT g FROM t WHERE x IN (1, 2) GROUP BY g HAVING sum(v) > 5 LIMIT 3")
    assert base == key("SELECT g FROM t WHERE x IN (4) GROUP BY g HAVING sum(v) > 5.5 LIMIT 9")
    assert base != key("SELECT g FROM t WHERE x IN (1, 2) GROUP BY g HAVING sum(v) >= 5 LIMIT 3")
    assert base != key("SELECT g FROM t WHERE p IN (1, 2) GROUP BY g HAVING sum(v) > 5 LIMIT 3")
    assert base != key("SELECT g FROM t WHERE x IN (1, 2) GROUP BY g HAVING sum(v+1) > 5 LIMIT 3")
    other = Case("", TABLE, "SELECT g FROM t WHERE x > {}", (1, 2), sketch=("g", ()))
    plans = [query.root for query in other.queries]
    assert template(plans[0]) == template(plans[1])
    assert fingerprint(plans[0]) != fingerprint(plans[1])


def test_condition_on_the_sign_of_zero_is_refused() -> None:
    """Group 0.0 has both zeros in the captured query, but only one in the requested one."""
    tables = {"t": ("g v", ((0.0, 1), (-0.0, 2), (1.0, 3)))}
    text = "SELECT g FROM t WHERE {} GROUP BY g HAVING count(*) < 2"
    zeros = ("CAST(g AS STRING) IN ('0.0', '-0.0')", "CAST(g AS STRING) IN ('0.0')")
    verdict = Case("zeros", tables, text, zeros, sketch=("g", (0.5,))).verdict()
    assert not verdict.allowed
    assert "changes the values that it compares" in verdict.reason
    plain = ("g IN (0.0D, 1.0D)", "g IN (0.0D)")
    assert Case("plain", tables, text, plain, sketch=("g", (0.5,))).verdict().allowed


@pytest.mark.parametrize(("captured", "requested"), cases("implied", "no plain texts"))
def test_texts_compared_as_numbers_have_no_order(captured: str, requested: str) -> None:
    tables = {"t": ("s p", (("-7", 1), ("-70", 2)))}
    values, sql = (captured, requested), "SELECT p FROM t WHERE {}"
    assert not Case("no plain texts", tables, sql, values, sketch=("p", (2,))).verdict().allowed


_LARGER_LIMIT = 9_000_983
"""A seed whose query requests more rows than the sketch has, which is rare."""


@random_cases(50, 123, 2500, first=9_000_000, also=more_seeds("reuse"))
def test_reused_sketch_never_changes_the_result(cases: Collection[int]) -> None:
    """Tests original plans and plans after the rules."""
    unruled, ruled = ReuseTally(), ReuseTally()
    for seed in cases:
        run_reuse_trial(seed, unruled)
        run_reuse_trial(seed, ruled, rewrite=apply_rules)
    assert min(unruled.accepted_changed, ruled.accepted_changed) > len(cases) // 20
    assert unruled.failed * 100 < max(len(cases), 100)
    if _LARGER_LIMIT in cases:
        assert any("LIMIT asks for" in reason for reason in unruled.refusals)


QUERIES_ABOVE = (
    "SELECT t, COUNT(*) FROM r GROUP BY t HAVING COUNT(*) <= {}",
    "SELECT t, COUNT(*) FROM r GROUP BY t HAVING COUNT(*) > {}",
    "SELECT t FROM r WHERE n >= {}",
    "SELECT t, MAX(n) FROM r WHERE n < {} GROUP BY t HAVING MAX(n) > 1",
    "SELECT n, COUNT(*) FROM r GROUP BY n HAVING COUNT(*) > {}",
    "SELECT n, COUNT(*) FROM r GROUP BY n HAVING COUNT(*) < {}",
    "SELECT t FROM r WHERE n = 2 ORDER BY t LIMIT {}",
)


_ruled_query = cache(ruled)


def _links(rng: Random) -> dict[str, Any]:
    rows = [(rng.randint(1, 4), rng.randint(1, 3), rng.randint(1, 3)) for _ in range(9)]
    return {"links": links(*((src, dst, "A", cost) for cost, src, dst in rows))}


@pytest.mark.slow
@random_cases(30, 37, 2000, also="293")
def test_reused_keyed_sketch_gives_the_result(cases: Collection[int]) -> None:
    allowed = 0
    for seed in cases:
        rng = Random(seed)
        above = rng.choice(QUERIES_ABOVE)
        captured, requested = (
            _ruled_query(KEYED + above.format(rng.randint(1, 4))) for _ in range(2)
        )
        if not check_reuse(requested, captured, BY_COST, ()).allowed:
            continue
        allowed += captured.sql != requested.sql
        verdict = check_safety(captured, BY_COST, ())
        core = Query("", core_of(captured.root))
        carried = carried_verdict(verdict, core, BY_COST)
        tables, partitions = _links(rng), dict.fromkeys(BY_COST, ("cost", (2, 3, 4)))
        result = without_keyed(core.root, carried, annotate(core.root, tables))
        sketches: Any = accurate_sketches(result, core.root, tables, partitions)
        sketches = evened(core.root, carried, sketches)
        instances = instances_of(requested.root, tables, partitions, sketches)
        expected = bag(evaluate(requested.root, tables))
        assert bag(evaluate(requested.root, tables, instances)) == expected, seed
    assert allowed > len(cases) // 5


@pytest.mark.parametrize(
    ("captured", "requested", "reason"),
    [
        ("HAVING COUNT(*) <= 3", "HAVING COUNT(*) <= 2", None),
        ("HAVING COUNT(*) <= 2", "HAVING COUNT(*) <= 3", "does not imply"),
        # Without a condition the sketch has derivations of all rows.
        ("", "HAVING COUNT(*) <= 3", None),
        ("HAVING COUNT(*) <= 3", "", "its recursion is keyed"),
    ],
)
def test_reuse_depends_on_the_query_above(
    captured: str, requested: str, reason: str | None
) -> None:
    text = KEYED + "SELECT t, COUNT(*) FROM r GROUP BY t "
    verdict = check_reuse(
        _ruled_query(text + requested), _ruled_query(text + captured), BY_COST, ()
    )
    assert verdict.allowed is (reason is None)
    assert reason is None or reason in verdict.reason


def test_keyed_sketch_is_refused_if_all_rows_are_needed() -> None:
    """The queries share a core, but an output column prevents a keyed fixpoint in one."""
    text = KEYED + "SELECT t{} FROM r WHERE n = 2"
    captured, requested = (
        _ruled_query(text.format("")),
        _ruled_query(text.format(", RANK() OVER (ORDER BY n)")),
    )
    assert core_of(captured.root) == core_of(requested.root)
    keyed, whole = (check_safety(query, BY_COST, ()) for query in (captured, requested))
    assert keyed_positions(captured.root, keyed)
    assert not keyed_positions(requested.root, whole)
    verdict = check_reuse(requested, captured, BY_COST, ())
    assert not verdict.allowed
    assert verdict.reason == "the sketch does not have the rows that a recursion derives"
    assert check_reuse(captured, requested, BY_COST, ()).allowed


_MAKERS = (FixpointMaker, FixpointMaker, BagMaker, KeyedMaker)


def _pair(seed: int) -> tuple[Trial, Plan]:
    """A trial of the captured query, and another query, usually over an equal recursion."""
    rng = Random(f"same recursion {seed}")
    maker = rng.choice(_MAKERS)(rng)
    fixpoint = maker.fixpoint()
    captured, requested = maker.above(fixpoint), _renamed(maker.above(fixpoint), "a")
    if rng.random() < 0.2:
        other = with_other_constants(rng, fixpoint, narrower=rng.random() < 0.5)
        assert isinstance(other, Fixpoint)
        requested = _renamed(maker.above(other), "b")
    if rng.random() < 0.1:
        # A second use of the recursion.
        requested = _twice(rng, requested, _renamed(fixpoint, "c"))
    partitions = random_partitions(rng, captured, 0.8, alike=True)
    return replace(make_trial(seed), root=captured, partitions=partitions), requested


def _twice(rng: Random, plan: Plan, other: Plan) -> Plan:
    pairs = [(a, b) for a in plan.attributes for b in other.attributes if a.type == b.type]
    if not pairs:
        return plan
    a, b = rng.choice(pairs)
    kind = rng.choice((JoinKind.INNER, JoinKind.ANTI, JoinKind.LEFT))
    return Join(kind, plan, other, e.Compare(e.CompareOp.EQUAL, a.ref(), b.ref()))


def _renamed(plan: Plan, mark: str) -> Plan:
    """The same plan with other ids of columns, accesses and fixpoints."""
    names = {column.id: f"{mark}.{column.id}" for node in plan.walk() for column in node.added}
    accesses = {scan.access: f"{mark}.{scan.access}" for scan in plan.scans}
    ids = {node.id: f"{mark}.{node.id}" for node in plan.walk() if isinstance(node, Fixpoint)}
    return _Renaming(names, accesses, ids).plan(plan)


class _Tally:
    trials = allowed = others = compared = failed = 0


def _run(seed: int, tally: _Tally) -> None:
    trial, requested = _pair(seed)
    tally.trials += 1
    rng = Random(seed + 7)
    captured, requested = (Query("", apply_rules(plan)) for plan in (trial.root, requested))
    verdict = check_reuse(requested, captured, trial.sketched, trial.facts)
    if not verdict.allowed:
        return
    tally.allowed += 1
    tally.others += "same recursion" in verdict.reason
    kept = check_safety(captured, trial.sketched, trial.facts)
    core = Query("", core_of(captured.root))
    core_accesses = {scan.access for scan in core.root.scans}
    partitions = {
        access: result for access, result in trial.partitions.items() if access in core_accesses
    }
    model = carried_verdict(
        kept, core, {access: column for access, (column, _) in partitions.items()}
    )
    try:
        result = without_keyed(core.root, model, annotate(core.root, trial.tables))
        sketches: Any = accurate_sketches(result, core.root, trial.tables, partitions)
        for candidate in (sketches, _widened(rng, sketches, partitions)):
            sketches = evened(core.root, model, candidate)
            pairs = [
                (target, source)
                for target, source in verdict.accesses.items()
                if source in sketches
            ]
            instances = instances_of(
                requested.root,
                trial.tables,
                {target: partitions[source] for target, source in pairs},
                {target: sketches[source] for target, source in pairs},
            )
            tally.compared += 1
            expected = bag(evaluate(requested.root, trial.tables))
            if bag(evaluate(requested.root, trial.tables, instances)) != expected:
                raise Violation(f"seed {seed}: {verdict.reason}")
    except ReferenceFailure:
        tally.failed += 1


@random_cases(35, 93, 6000, first=8_000_000, also=more_seeds("reuse over one recursion"))
def test_sketch_of_the_same_recursion_gives_the_result(cases: Iterable[int]) -> None:
    tally = _Tally()
    for seed in cases:
        _run(seed, tally)
    assert tally.others > tally.trials // 4
    assert tally.failed < tally.trials // 20


ABOVE_REACHED = REACHED + "SELECT n FROM r WHERE n > 1"
LINKS = {"links#1": "src", "links#2": "src"}
BAG = (
    "WITH RECURSIVE r(n, k, m) AS (SELECT dst, 1, src FROM links UNION ALL "
    "SELECT l.dst, r.k + 1, r.m FROM r JOIN links l ON r.n = l.src WHERE r.k < 5) "
)


@pytest.mark.parametrize(
    ("captured", "requested", "reason"),
    [
        (ABOVE_REACHED, REACHED + "SELECT COUNT(*) FROM r", None),
        (ABOVE_REACHED, REACHED + "SELECT n FROM nodes WHERE n NOT IN (SELECT n FROM r)", None),
        (ABOVE_REACHED, REACHED + "SELECT a.n FROM r a JOIN r b ON a.n = b.n + 1", None),
        (
            ABOVE_REACHED,
            (REACHED + "SELECT COUNT(*) FROM r").replace("src = 1", "src = 2"),
            "the constants inside WITH RECURSIVE differ, which changes what it derives",
        ),
        (ABOVE_REACHED, "SELECT src FROM links WHERE dst > 1", "more than the constants"),
        # A filter pushed into the recursion makes it another one.
        (
            CLOSURE + "SELECT y FROM c WHERE x = 1",
            CLOSURE + "SELECT COUNT(*) FROM c",
            "more than the constants",
        ),
        (
            CLOSURE + "SELECT y FROM c WHERE x = 1",
            CLOSURE + "SELECT MAX(y) FROM c WHERE x = 1 AND y > 2 HAVING MAX(y) > 3",
            None,
        ),
        # The queries need the same columns of a bag, or different ones.
        (BAG + "SELECT n FROM r WHERE n > 2", BAG + "SELECT COUNT(*) FROM r WHERE n < 9", None),
        (BAG + "SELECT n FROM r", BAG + "SELECT m, COUNT(*) FROM r GROUP BY m", "more than"),
    ],
)
def test_recursions_must_be_equal(captured: str, requested: str, reason: str | None) -> None:
    verdict = check_reuse(ruled(requested), ruled(captured), LINKS, ())
    assert verdict.allowed is (reason is None), verdict.reason
    assert reason is None or reason in verdict.reason


def test_every_use_of_the_recursion_gets_the_sketch() -> None:
    twice = REACHED + "SELECT a.n FROM r a JOIN r b ON a.n = b.n + 1"
    verdict = check_reuse(ruled(twice), ruled(ABOVE_REACHED), LINKS, ())
    assert sorted(verdict.accesses.values()) == ["links#1", "links#1", "links#2", "links#2"]


def test_tables_outside_the_recursion_are_read_in_full() -> None:
    outside = REACHED + "SELECT l.dst FROM r JOIN links l ON l.src = r.n AND l.cost > {}"
    captured, requested = (ruled(outside.format(cost)) for cost in (5, 2))
    sketched = {scan.access: "src" for scan in captured.root.scans}
    assert len(sketched) == 3
    verdict = check_reuse(requested, captured, sketched, ())
    assert verdict.allowed
    assert verdict.reason.endswith("the other tables of the sketch are read in full")
    fixpoint = next(node for node in requested.root.walk() if isinstance(node, Fixpoint))
    assert set(verdict.accesses) == {scan.access for scan in fixpoint.scans}


X, D, S = (
    e.ColumnRef("x", schema.INTEGER),
    e.ColumnRef("d", schema.DOUBLE),
    e.ColumnRef("s", schema.STRING),
)
VALUES: Mapping[str, Sequence[Value]] = {
    "x": (None, -1, 0, 1, 2, 3),
    "d": (None, -0.5, -0.0, 0.0, 0.5, 1.0, math.nan),
    "s": (None, "", "a", "ab", "b"),
}
EQUAL = Columns(dict.fromkeys("xds", Relation.EQUAL), {})
OPS = (*e.CompareOp,)


@cache
def _allowed_indexes(relation: Relation, name: str) -> Sequence[Sequence[int]]:
    """For each value of a column, the indexes of values that the relation allows for it."""
    values = VALUES[name]
    return [
        [
            index
            for index, second in enumerate(values)
            if _satisfies_relation(relation, first, second)
        ]
        for first in values
    ]


def _satisfies_relation(relation: Relation, first: Value, second: Value) -> bool:
    if relation is Relation.UNKNOWN:
        return True
    if relation is Relation.EQUAL:
        return first is second or repr(first) == repr(second)
    if first is None:
        return True
    if second is None:
        return False
    low, high = sort_key(first), sort_key(second)
    return low <= high if relation is Relation.AT_MOST else low >= high


def _is_implied(premise: e.Expr, conclusion: e.Expr, columns: Columns) -> bool:
    used = [n for n in "xds" if any(n in repr(expr) for expr in (premise, conclusion))]
    rows = list(itertools.product(*(range(len(VALUES[name])) for name in used)))

    def true_rows(condition: e.Expr) -> set[tuple[int, ...]]:
        named = ((row, zip(used, row, strict=True)) for row in rows)
        return {
            row
            for row, indexes in named
            if is_true(condition, {n: VALUES[n][i] for n, i in indexes})
        }

    allowed = true_rows(conclusion)
    allowed_indexes = [_allowed_indexes(columns.relations[name], name) for name in used]
    return all(
        second in allowed
        for first in true_rows(premise)
        for second in itertools.product(
            *(r[i] for r, i in zip(allowed_indexes, first, strict=True))
        )
    )


def _number(rng: Random) -> e.Literal:
    match rng.randrange(6):
        case 0:
            return e.Literal(rng.choice((-0.5, 0.0, -0.0, 0.5, 1.0, math.nan)), schema.DOUBLE)
        case 1:
            return e.Literal(
                Decimal(rng.choice(("-0.5", "0.0", "0.5", "1.0"))), schema.decimal(2, 1)
            )
        case 2:
            return e.Literal(rng.choice((0, 1, 2)), schema.LONG)
        case _:
            return e.Literal(rng.choice((-1, 0, 1, 2)), schema.INTEGER)


def _atom(rng: Random) -> e.Expr:
    if rng.random() < 0.2:
        text = e.Literal(rng.choice(("", "a", "ab", "b")), schema.STRING)
        return e.Compare(rng.choice(OPS), S, text)
    column = rng.choice((X, X, D))
    match rng.randrange(8):
        case 0:
            return e.IsNull(column)
        case 1 | 2:
            options = tuple(_number(rng) for _ in range(rng.choice((1, 2, 3))))
            null = (e.Literal(None, schema.NULL),) if rng.random() < 0.15 else ()
            return e.InList(column, (*options, *null))
        case 3:
            return e.Compare(rng.choice(OPS), _number(rng), column)
        case 4 if rng.random() < 0.3:
            return e.Compare(rng.choice(OPS), X, e.Literal(None, schema.NULL))
        case _:
            return e.Compare(rng.choice(OPS), column, _number(rng))


def _condition(rng: Random, depth: int) -> e.Expr:
    choice = rng.random()
    if depth == 0 or choice < 0.4:
        return _atom(rng)
    if choice < 0.55:
        return e.Not(_condition(rng, depth - 1))
    parts = tuple(_condition(rng, depth - 1) for _ in range(rng.choice((2, 2, 3))))
    return e.And(parts) if choice < 0.8 else e.Or(parts)


@random_cases(150, 1000, 2000, also="232 393 433 460 535 594 821")
def test_implications_hold_for_all_values(cases: Collection[int]) -> None:
    implied = different = 0
    for seed in cases:
        rng = Random(f"pair {seed}")
        relations = rng.choices(tuple(Relation), weights=(4, 2, 2, 1), k=3)
        columns = Columns(dict(zip("xds", relations, strict=True)), {})
        depth = rng.choice((0, 0, 1, 2))
        premise = _condition(rng, depth)
        conclusion = _condition(rng, depth) if rng.random() < 0.8 else premise
        if find_gap(premise, conclusion, columns) is None:
            implied += 1
            different += premise != conclusion
            assert _is_implied(premise, conclusion, columns), (premise, conclusion, relations)
    assert different > len(cases) // 50
    assert implied > different


CATALOG = {"c": schema_of("x int, d double, t timestamp, n timestamp_ntz")}
EQUAL_COLUMNS = Columns({f"c#1.{name}": Relation.EQUAL for name in "xdtn"}, {})


def _parse_condition(condition: str) -> e.Expr:
    """Parse the condition in a time zone with daylight saving time."""
    sql = f"SELECT x FROM c WHERE {condition}"
    (select,) = (
        node
        for node in parse_query(sql, CATALOG, zone="America/New_York").root.walk()
        if isinstance(node, Select)
    )
    return select.predicate


IMPLIED_PAIRS = listed("implied", "follows")


OTHER_PAIRS = [
    *listed("implied", "differs"),
    *((stronger, weaker) for weaker, stronger in IMPLIED_PAIRS if weaker != stronger),
]


@pytest.mark.parametrize(("premise", "conclusion"), IMPLIED_PAIRS)
def test_implied_conditions_have_no_gap(premise: str, conclusion: str) -> None:
    assert find_gap(_parse_condition(premise), _parse_condition(conclusion), EQUAL_COLUMNS) is None


@pytest.mark.parametrize(("premise", "conclusion"), OTHER_PAIRS)
def test_gap_is_the_condition_that_is_not_implied(premise: str, conclusion: str) -> None:
    requested = _parse_condition(conclusion)
    gap = requested.operands[0] if isinstance(requested, e.And) else requested
    assert find_gap(_parse_condition(premise), requested, EQUAL_COLUMNS) is gap


def test_related_value_may_be_null() -> None:
    unknown = Columns({"c#1.x": Relation.UNKNOWN}, {})
    assert (
        find_gap(_parse_condition("x > 1"), _parse_condition("x IS NOT NULL"), unknown) is not None
    )


def test_nan_is_greatest() -> None:
    nan = e.Compare(e.CompareOp.GREATER_EQUAL, D, e.Literal(math.nan, schema.DOUBLE))
    large = e.Compare(e.CompareOp.GREATER, D, e.Literal(1e308, schema.DOUBLE))
    assert find_gap(nan, large, EQUAL) is None
    assert find_gap(large, nan, EQUAL) is nan


def test_rounding_types_have_no_common_order() -> None:
    single = e.ColumnRef("f", schema.FLOAT)
    wide = [e.Literal(value, schema.INTEGER) for value in (16_777_217, 16_777_216)]
    assert points_of(single, wide) is None
    assert points_of(X, [e.Literal(1, schema.INTEGER), e.Literal(0.5, schema.DOUBLE)]) is None
    # As a float, 16,777,219 is 16,777,220; as a double it is less.
    both = [e.Literal(16_777_220.0, kind) for kind in (schema.FLOAT, schema.DOUBLE)]
    assert points_of(X, both) is None
    assert points_of(X, both[:1]) is not None
    assert (
        points_of(e.ColumnRef("t", schema.TIMESTAMP), [e.Literal("2024-01-01", schema.STRING)])
        is None
    )
    huge = e.ColumnRef("m", schema.decimal(38, 0))
    assert points_of(huge, [e.Literal(Decimal("0.5"), schema.decimal(1, 1))]) is None
    assert (
        points_of(e.ColumnRef("b", schema.BOOLEAN), [e.Literal(True, schema.BOOLEAN)]) is not None
    )


def test_local_columns_and_days_compare_exactly() -> None:
    local = e.ColumnRef("n", schema.TIMESTAMP_NTZ)
    columns = Columns({"n": Relation.EQUAL}, {})
    day = e.Compare(e.CompareOp.GREATER_EQUAL, local, e.Literal(1, schema.DATE))
    later = e.Compare(e.CompareOp.GREATER, local, e.Literal(86_400_000_000, schema.TIMESTAMP_NTZ))
    assert find_gap(later, day, columns) is None
    assert find_gap(day, later, columns) is later
