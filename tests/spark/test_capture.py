"""The passes of a capture, evaluated by the slow reference, find the ranges of the lineage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import partial
from random import Random

import pytest
from msgspec.structs import replace

from impctl.data.schema import LONG, Column, Schema
from impctl.errors import QueryError, UnsafeSketchError
from impctl.expr.nodes import And, CompareOp, conjuncts
from impctl.plan.nodes import Join, Plan, Project, Query, Scan, Sort, TopK
from impctl.plan.properties import scan_conditions
from impctl.rules.optimize import apply_rules
from impctl.rules.pushdown import tied_columns
from impctl.safety.facts import Fact, FactKind, FactSource
from impctl.safety.judge import Verdict, check_safety
from impctl.spark.capture import PassKind, SketchPass, sketch_passes
from impctl.sql.statement import parse_query
from tests.compile.test_against_reference import CATALOG as OPERATORS
from tests.compile.test_against_reference import LAW_PARTITIONS
from tests.plan.catalogs import cases, listed, schema_of
from tests.plan.random_plans import CATALOG
from tests.plan.trials import Trial, accurate_sketches, fragment_of, make_barrier_trial, make_trial
from tests.support import reference_plan
from tests.support.random_cases import more_seeds, random_cases, random_seeds
from tests.support.random_queries import FIRST_ROWS, QUERIES, rows


def selected_values(
    pass_: SketchPass, trial: Trial, visible: reference_plan.Instances | None = None
) -> dict[str, list[reference_plan.Value]]:
    """The attribute's values in the visible rows that the pass selects, by access."""
    positions = {attribute.id: index for index, attribute in enumerate(pass_.rows.attributes)}
    rows = reference_plan.evaluate(pass_.rows, trial.tables, visible)
    if pass_.groups is not None:
        groups = reference_plan.bag(reference_plan.evaluate(pass_.groups, trial.tables, visible))
        group = [positions[column] for column in pass_.group]
        rows = [
            row
            for row in rows
            if next(iter(reference_plan.bag([[row[index] for index in group]]))) in groups
        ]
    return {access: [row[positions[key]] for row in rows] for access, key in pass_.keys.items()}


def check(trial: Trial, root: Plan, catalog: Mapping[str, Schema], counts: Counter[str]) -> None:
    """Each pass over the trial's tables finds the sketch of the lineage."""
    query = Query("", root)
    verdict = check_safety(query, trial.sketched, trial.facts)
    top_positions = {index for index, node in enumerate(root.walk()) if isinstance(node, TopK)}
    complete = complete_tops(root, verdict)
    if not verdict.safe or (verdict.ties is not None and not top_positions <= complete):
        counts["unsafe, or a choice"] += 1
        return
    try:
        passes = sketch_passes(query, verdict, trial.columns(root, catalog))
        accurate = sketches_of(root, trial, complete)
        for pass_ in passes:
            if pass_.way is PassKind.COLLECTED:
                counts["collected"] += 1
                continue
            for access, values in selected_values(pass_, trial).items():
                boundaries = trial.partitions[access][1]
                sketch = {fragment_of(value, boundaries) for value in values}
                assert sketch == accurate[access], (access, pass_.way, root)
                counts[pass_.way] += 1
    except (QueryError, reference_plan.ReferenceFailure, reference_plan.ReferenceLimit) as error:
        counts[type(error).__name__] += 1


def sketches_of(
    root: Plan,
    trial: Trial,
    complete: Collection[int],
    visible: reference_plan.Instances | None = None,
) -> dict[str, set[int]]:
    """The accurate sketches of the visible rows: lineage, and all rows of complete top-k nodes."""
    result = reference_plan.annotate(root, trial.tables, visible)
    first_rows = {index: rows for index, rows in result.first_rows.items() if index in complete}
    result = replace(result, first_rows=first_rows)
    return accurate_sketches(result, root, trial.tables, trial.partitions)


def complete_tops(root: Plan, verdict: Verdict) -> set[int]:
    """Positions of top-k nodes whose rows all count, including ties: barriers and the last step."""
    last = next(index for index, n in enumerate(root.walk()) if not isinstance(n, Project | Sort))
    return {last, *verdict.barrier_positions}


@random_cases(67, 234, 800, also=more_seeds("passes of captures"))
def test_passes_find_the_ranges_of_the_lineage(cases: Collection[int]) -> None:
    counts: Counter[str] = Counter()
    for seed in cases:
        for trial in (make_trial(seed), make_barrier_trial(seed)):
            root = apply_rules(trial.root) if seed % 2 == 0 else trial.root
            check(trial, root, CATALOG, counts)
    for way in (PassKind.ROWS, PassKind.KEYED, PassKind.GROUPS):
        assert counts[way] > len(cases) // 20, counts


SQL = {**QUERIES, **FIRST_ROWS, **dict(listed("for_spark", "captured"))}


@pytest.mark.parametrize("name", SQL)
@random_seeds(1, 2, 12)
def test_passes_of_one_query_per_operator(name: str, seed: int) -> None:
    parsed = parse_query(SQL[name], OPERATORS).root
    rng = Random(f"{name} {seed}")
    tables = {
        table: rows(rng, count, is_left=table == "t").to_pylist()
        for table, count in (("t", 14), ("u", 7))
    }
    for root in (parsed, apply_rules(parsed)):
        for scan in root.scans:
            for column, boundaries in (
                ("g", (2, 4)),
                (LAW_PARTITIONS[scan.table].attribute, (1, 2)),
            ):
                partitions = {scan.access: (column, boundaries)}
                check(Trial(root, tables, partitions, ()), root, OPERATORS, Counter())


ANNOTATED = {
    "t": schema_of("id bigint, g string, h string, v int"),
    "u": schema_of("k bigint, g string, w int"),
}
FACTS = [Fact("t", "v", FactKind.NONNEGATIVE, FactSource.CONSTRAINT)]


def passes_of(sql, attribute, *, table="t", with_rules=False):
    query = parse_query(sql, ANNOTATED)
    if with_rules:
        query = replace(query, root=apply_rules(query.root))
    access = next(scan.access for scan in query.root.scans if scan.table == table)
    verdict = check_safety(query, {access: attribute}, FACTS)
    return sketch_passes(query, verdict, {access: ANNOTATED[table].find(attribute)})


@pytest.mark.parametrize("with_rules", [False, True])
@pytest.mark.parametrize(("sql", "attribute", "kind"), cases("for_spark", "ways of capture"))
def test_the_cheapest_pass_is_used(sql, attribute, kind, with_rules):
    passes = passes_of(sql, attribute, with_rules=with_rules)
    assert [str(pass_.way) for pass_ in passes] == [kind]


JOINED = "SELECT t.g FROM t JOIN u ON t.id = u.k"
SHARED_PASSES = [
    (JOINED, {"t#1": "id", "u#1": "k"}, [{"t#1", "u#1"}]),
    (JOINED, {"t#1": "g", "u#1": "w"}, [{"t#1", "u#1"}]),
    (JOINED + " GROUP BY t.g HAVING sum(v) > 3", {"t#1": "id", "u#1": "w"}, [{"t#1", "u#1"}]),
    (JOINED + " GROUP BY t.g HAVING sum(v) > 3", {"t#1": "g", "u#1": "g"}, [{"t#1"}, {"u#1"}]),
    (JOINED + " AND t.g = u.g GROUP BY t.g HAVING sum(v) > 3", {"t#1": "g", "u#1": "g"}, None),
    ("SELECT g FROM t UNION ALL SELECT g FROM u", {"t#1": "g", "u#1": "g"}, [{"t#1"}, {"u#1"}]),
]


@pytest.mark.parametrize(("sql", "sketched", "expected"), SHARED_PASSES)
def test_accesses_of_the_same_rows_share_a_pass(sql, sketched, expected):
    query = parse_query(sql, ANNOTATED)
    verdict = check_safety(query, sketched, FACTS)
    tables = {scan.access: scan.table for scan in query.root.scans}
    columns = {access: ANNOTATED[tables[access]].find(name) for access, name in sketched.items()}
    passes = sketch_passes(query, verdict, columns)
    assert [set(pass_.keys) for pass_ in passes] == (expected or [set(sketched)])
    for pass_ in passes:
        assert {attribute.id for attribute in pass_.rows.attributes} >= set(pass_.keys.values())


def test_matched_rows_are_read_through_the_equality():
    sql = "SELECT id FROM t WHERE id IN (SELECT k FROM u WHERE w > 3)"
    assert passes_of(sql, "k", table="u")[0].way is PassKind.ROWS
    assert passes_of(sql, "w", table="u")[0].way is PassKind.COLLECTED


def test_a_pass_below_a_barrier_ignores_the_plan_above():
    top = "SELECT id FROM t ORDER BY v DESC NULLS LAST, id LIMIT 9"
    (result,) = passes_of(f"SELECT q.id FROM ({top}) q JOIN u ON q.id = u.k", "id")
    assert not any(isinstance(node, Join) for node in result.rows.walk())


def test_the_lowest_barrier_above_an_access_decides():
    sql = (
        "SELECT z.w, COUNT(*) FROM (SELECT q.id, u.w FROM "
        "(SELECT id FROM t ORDER BY v DESC NULLS LAST, id LIMIT 9) q JOIN u ON q.id = u.k "
        "ORDER BY u.w NULLS LAST, q.id, u.k, u.g LIMIT 5) z GROUP BY z.w"
    )
    query, sketched = parse_query(sql, ANNOTATED), {"t#1": "id", "u#1": "w"}
    verdict = check_safety(query, sketched, FACTS)
    assert verdict.barriers == 2
    columns = {access: ANNOTATED[access[0]].find(name) for access, name in sketched.items()}
    joined = {
        access: any(isinstance(node, Join) for node in result.rows.walk())
        for result in sketch_passes(query, verdict, columns)
        for access in result.keys
    }
    assert joined == {"t#1": False, "u#1": True}


def test_no_pass_drops_ties():
    passes = passes_of("SELECT id FROM t ORDER BY v DESC NULLS LAST, id LIMIT 9", "id")
    tops = [node for node in passes[0].rows.walk() if isinstance(node, TopK)]
    assert [top.rank is not None and top.rank.function for top in tops] == ["rank"]


def test_an_unsafe_sketch_is_refused():
    with pytest.raises(UnsafeSketchError):
        passes_of("SELECT g, avg(v) FROM t GROUP BY g HAVING avg(v) > 3", "id")


def test_a_verdict_of_another_plan_is_refused():
    query = parse_query("SELECT id FROM t", ANNOTATED)
    verdict = check_safety(query, {"t#1": "id"}, FACTS)
    with pytest.raises(ValueError, match="another plan"):
        sketch_passes(query, replace(verdict, barrier_positions=(0,)), {"t#1": Column("id", LONG)})


REFUSED = [
    ("SELECT g FROM t WHERE g IN (SELECT k FROM u)", "u", "w", "IN or EXISTS that compares"),
    ("SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k < t.id)", "u", "k", "EXISTS"),
]


@pytest.mark.parametrize(("sql", "table", "attribute", "construct"), REFUSED)
def test_unsupported_constructs_are_located(sql, table, attribute, construct):
    with pytest.raises(QueryError) as error:
        passes_of(sql, attribute, table=table)
    assert [word for word in (construct, "line 1") if word not in error.value.message] == []


@pytest.mark.parametrize("operation", ["INTERSECT", "EXCEPT"])
def test_set_operations_compare_nulls_as_equal(operation):
    (result,) = passes_of(f"SELECT g, h FROM t {operation} SELECT g, g FROM u", "id")
    (join,) = (node for node in result.above.walk() if isinstance(node, Join))
    assert {part.op for part in conjuncts(join.condition)} == {CompareOp.NULL_SAFE_EQUAL}


Visible = dict[str, list[int]]


def visible_positions(scan: Scan, root: Plan, trial: Trial, rng: Random) -> list[int]:
    """Positions of an access's rows that match its conditions, and some of the others."""
    conditions, rows = scan_conditions(root).get(scan.access, ()), trial.tables[scan.table]

    def is_match(index: int) -> bool:
        row = {a.id: rows[index][a.name] for a in scan.attributes}
        return reference_plan.is_true(And(conditions), row) if conditions else True

    return [index for index in range(len(rows)) if is_match(index) or rng.random() < 0.2]


def hide_unmatched(root: Plan, trial: Trial, visible: Visible, rng: Random) -> int:
    """Hides rows without a matching visible row on the other side; returns how many."""
    tables = {scan.access: trial.tables[scan.table] for scan in root.scans}
    hidden = 0
    for tie in [*tied_columns(root)] * 2:
        column, partner = tie.column, tie.to
        others = {
            tables[partner.access][index][partner.attribute.name]
            for index in visible[partner.access]
        }
        values = {reference_plan.identity(value) for value in others if value is not None}
        positions = visible[column.access]
        visible[column.access] = [
            index
            for index in positions
            if reference_plan.identity(tables[column.access][index][column.attribute.name])
            in values
            or rng.random() < 0.2
        ]
        hidden += len(positions) - len(visible[column.access])
    return hidden


def check_hidden_rows(trial: Trial, rng: Random, counts: Counter[str]) -> None:
    root = apply_rules(trial.root)
    query = Query("", root)
    verdict = check_safety(query, trial.sketched, trial.facts)
    complete = complete_tops(root, verdict)
    top_positions = {index for index, node in enumerate(root.walk()) if isinstance(node, TopK)}
    if not verdict.safe or (verdict.ties is not None and not top_positions <= complete):
        return

    sketches = partial(sketches_of, root, trial, complete)
    try:
        accurate = sketches()
        visible = {scan.access: visible_positions(scan, root, trial, rng) for scan in root.scans}
        total = sum(len(trial.tables[scan.table]) for scan in root.scans)
        counts["by conditions"] += total - sum(map(len, visible.values()))
        assert sketches(visible) == accurate, root
        counts["by partners"] += hide_unmatched(root, trial, visible, rng)
        assert sketches(visible) == accurate, root
        for pass_ in sketch_passes(query, verdict, trial.columns(root)):
            if pass_.way is not PassKind.COLLECTED:
                check_pass(pass_, trial, visible, accurate)
                counts[pass_.way] += 1
    except (QueryError, reference_plan.ReferenceFailure, reference_plan.ReferenceLimit):
        counts["failed"] += 1


def check_pass(
    pass_: SketchPass, trial: Trial, visible: Visible, accurate: dict[str, set[int]]
) -> None:
    for access, values in selected_values(pass_, trial, visible).items():
        boundaries = trial.partitions[access][1]
        assert {fragment_of(value, boundaries) for value in values} == accurate[access], pass_


def run(cases: Collection[int], makers: tuple[Callable[[int], Trial], ...]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed in cases:
        for maker in makers:
            check_hidden_rows(maker(seed), Random(seed), counts)
    return counts


@random_cases(67, 234, 800, also=more_seeds("rows left out of captures"))
def test_hidden_rows_change_no_sketch(cases: Collection[int]) -> None:
    counts = run(cases, (make_trial, make_barrier_trial))
    assert counts["by conditions"] > len(cases) // 4, counts
    assert counts["by partners"] > len(cases) // 10, counts
    for way in (PassKind.ROWS, PassKind.KEYED, PassKind.GROUPS):
        assert counts[way] > len(cases) // 20, counts
