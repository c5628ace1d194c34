"""The passes of a capture, evaluated by the slow reference, find the fragments of the lineage."""

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


def values_found(
    pass_: SketchPass, trial: Trial, seen: reference_plan.Instances | None = None
) -> dict[str, list[reference_plan.Value]]:
    """Per access the values of its attribute in the rows that the pass keeps of those seen."""
    places = {attribute.id: at for at, attribute in enumerate(pass_.rows.attributes)}
    rows = reference_plan.evaluate(pass_.rows, trial.tables, seen)
    if pass_.groups is not None:
        wanted = reference_plan.bag(reference_plan.evaluate(pass_.groups, trial.tables, seen))
        group = [places[column] for column in pass_.group]
        rows = [
            row
            for row in rows
            if next(iter(reference_plan.bag([[row[at] for at in group]]))) in wanted
        ]
    return {access: [row[places[key]] for row in rows] for access, key in pass_.keys.items()}


def check(trial: Trial, root: Plan, catalog: Mapping[str, Schema], seen: Counter[str]) -> None:
    """Each pass over the trial's tables finds what the lineage says."""
    query = Query("", root)
    verdict = check_safety(query, trial.sketched, trial.facts)
    tops = {at for at, node in enumerate(root.walk()) if isinstance(node, TopK)}
    counted = counted_in(root, verdict)
    if not verdict.safe or (verdict.ties is not None and not tops <= counted):
        seen["unsafe, or a choice"] += 1
        return
    try:
        passes = sketch_passes(query, verdict, trial.columns(root, catalog))
        accurate = sketches_of(root, trial, counted)
        for pass_ in passes:
            if pass_.way is PassKind.COLLECTED:
                seen["collected"] += 1
                continue
            for access, values in values_found(pass_, trial).items():
                boundaries = trial.partitions[access][1]
                sketch = {fragment_of(value, boundaries) for value in values}
                assert sketch == accurate[access], (access, pass_.way, root)
                seen[pass_.way] += 1
    except (QueryError, reference_plan.ReferenceFailure, reference_plan.ReferenceLimit) as error:
        seen[type(error).__name__] += 1


def sketches_of(
    root: Plan, trial: Trial, counted: Collection[int], seen: reference_plan.Instances | None = None
) -> dict[str, set[int]]:
    """Those of the lineage, and of the rows that count of first rows, of the rows that are seen."""
    result = reference_plan.annotate(root, trial.tables, seen)
    first = {at: rows for at, rows in result.first_rows.items() if at in counted}
    result = replace(result, first_rows=first)
    return accurate_sketches(result, root, trial.tables, trial.partitions)


def counted_in(root: Plan, verdict: Verdict) -> set[int]:
    """The top-k nodes of which all rows count, ties too: barriers, and the last step."""
    last = next(at for at, n in enumerate(root.walk()) if not isinstance(n, Project | Sort))
    return {last, *verdict.barrier_positions}


@random_cases(67, 234, 800, also=more_seeds("passes of captures"))
def test_passes_find_the_fragments_of_the_lineage(cases: Collection[int]) -> None:
    seen: Counter[str] = Counter()
    for seed in cases:
        for trial in (make_trial(seed), make_barrier_trial(seed)):
            root = apply_rules(trial.root) if seed % 2 == 0 else trial.root
            check(trial, root, CATALOG, seen)
    for way in (PassKind.ROWS, PassKind.KEYED, PassKind.GROUPS):
        assert seen[way] > len(cases) // 20, seen


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


def planned(sql, attribute, *, table="t", with_rules=False):
    query = parse_query(sql, ANNOTATED)
    if with_rules:
        query = replace(query, root=apply_rules(query.root))
    access = next(scan.access for scan in query.root.scans if scan.table == table)
    verdict = check_safety(query, {access: attribute}, FACTS)
    return sketch_passes(query, verdict, {access: ANNOTATED[table].find(attribute)})


@pytest.mark.parametrize("with_rules", [False, True])
@pytest.mark.parametrize(("sql", "attribute", "way"), cases("for_spark", "ways of capture"))
def test_the_cheapest_way_is_taken(sql, attribute, way, with_rules):
    passes = planned(sql, attribute, with_rules=with_rules)
    assert [str(pass_.way) for pass_ in passes] == [way]


JOINED = "SELECT t.g FROM t JOIN u ON t.id = u.k"
SHARED = [
    (JOINED, {"t#1": "id", "u#1": "k"}, [{"t#1", "u#1"}]),
    (JOINED, {"t#1": "g", "u#1": "w"}, [{"t#1", "u#1"}]),
    (JOINED + " GROUP BY t.g HAVING sum(v) > 3", {"t#1": "id", "u#1": "w"}, [{"t#1", "u#1"}]),
    (JOINED + " GROUP BY t.g HAVING sum(v) > 3", {"t#1": "g", "u#1": "g"}, [{"t#1"}, {"u#1"}]),
    (JOINED + " AND t.g = u.g GROUP BY t.g HAVING sum(v) > 3", {"t#1": "g", "u#1": "g"}, None),
    ("SELECT g FROM t UNION ALL SELECT g FROM u", {"t#1": "g", "u#1": "g"}, [{"t#1"}, {"u#1"}]),
]


@pytest.mark.parametrize(("sql", "sketched", "wanted"), SHARED)
def test_accesses_that_follow_from_the_same_rows_share_a_pass(sql, sketched, wanted):
    query = parse_query(sql, ANNOTATED)
    verdict = check_safety(query, sketched, FACTS)
    tables = {scan.access: scan.table for scan in query.root.scans}
    columns = {access: ANNOTATED[tables[access]].find(name) for access, name in sketched.items()}
    passes = sketch_passes(query, verdict, columns)
    assert [set(pass_.keys) for pass_ in passes] == (wanted or [set(sketched)])
    for pass_ in passes:
        assert {attribute.id for attribute in pass_.rows.attributes} >= set(pass_.keys.values())


def test_matched_rows_are_seen_through_what_equals_them():
    sql = "SELECT id FROM t WHERE id IN (SELECT k FROM u WHERE w > 3)"
    assert planned(sql, "k", table="u")[0].way is PassKind.ROWS
    assert planned(sql, "w", table="u")[0].way is PassKind.COLLECTED


def test_a_barrier_says_all_of_what_is_below_it():
    top = "SELECT id FROM t ORDER BY v DESC NULLS LAST, id LIMIT 9"
    (result,) = planned(f"SELECT q.id FROM ({top}) q JOIN u ON q.id = u.k", "id")
    assert not any(isinstance(node, Join) for node in result.rows.walk())


def test_of_two_barriers_the_lower_one_says_what_is_below_it():
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


def test_no_pass_cuts_ties_off():
    passes = planned("SELECT id FROM t ORDER BY v DESC NULLS LAST, id LIMIT 9", "id")
    tops = [node for node in passes[0].rows.walk() if isinstance(node, TopK)]
    assert [top.rank is not None and top.rank.function for top in tops] == ["rank"]


def test_unsafe_is_refused():
    with pytest.raises(UnsafeSketchError):
        planned("SELECT g, avg(v) FROM t GROUP BY g HAVING avg(v) > 3", "id")


def test_a_verdict_of_another_plan_is_noticed():
    query = parse_query("SELECT id FROM t", ANNOTATED)
    verdict = check_safety(query, {"t#1": "id"}, FACTS)
    with pytest.raises(ValueError, match="another plan"):
        sketch_passes(query, replace(verdict, barrier_positions=(0,)), {"t#1": Column("id", LONG)})


REFUSED = [
    ("SELECT g FROM t WHERE g IN (SELECT k FROM u)", "u", "w", "IN or EXISTS that compares"),
    ("SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k < t.id)", "u", "k", "EXISTS"),
]


@pytest.mark.parametrize(("sql", "table", "attribute", "construct"), REFUSED)
def test_what_is_not_captured_is_named_with_its_place(sql, table, attribute, construct):
    with pytest.raises(QueryError) as caught:
        planned(sql, attribute, table=table)
    assert [word for word in (construct, "line 1") if word not in caught.value.message] == []


@pytest.mark.parametrize("operation", ["INTERSECT", "EXCEPT"])
def test_null_is_among_what_a_set_operation_compares(operation):
    (result,) = planned(f"SELECT g, h FROM t {operation} SELECT g, g FROM u", "id")
    (join,) = (node for node in result.above.walk() if isinstance(node, Join))
    assert {part.op for part in conjuncts(join.condition)} == {CompareOp.NULL_SAFE_EQUAL}


Seen = dict[str, list[int]]


def meeting(scan: Scan, root: Plan, trial: Trial, rng: Random) -> list[int]:
    """The rows of an access that its conditions let through, and some of the others."""
    conditions, rows = scan_conditions(root).get(scan.access, ()), trial.tables[scan.table]

    def is_met(at: int) -> bool:
        row = {a.id: rows[at][a.name] for a in scan.attributes}
        return reference_plan.is_true(And(conditions), row) if conditions else True

    return [at for at in range(len(rows)) if is_met(at) or rng.random() < 0.2]


def tied(root: Plan, trial: Trial, seen: Seen, rng: Random) -> int:
    """Takes away rows whose value no row that is left has on the other side; how many."""
    tables = {scan.access: trial.tables[scan.table] for scan in root.scans}
    gone = 0
    for tie in [*tied_columns(root)] * 2:
        mine, other = tie.column, tie.to
        theirs = {tables[other.access][at][other.attribute.name] for at in seen[other.access]}
        values = {reference_plan.identity(value) for value in theirs if value is not None}
        own = seen[mine.access]
        seen[mine.access] = [
            at
            for at in own
            if reference_plan.identity(tables[mine.access][at][mine.attribute.name]) in values
            or rng.random() < 0.2
        ]
        gone += len(own) - len(seen[mine.access])
    return gone


def check_left_out(trial: Trial, rng: Random, count: Counter[str]) -> None:
    root = apply_rules(trial.root)
    query = Query("", root)
    verdict = check_safety(query, trial.sketched, trial.facts)
    counted = counted_in(root, verdict)
    tops = {at for at, node in enumerate(root.walk()) if isinstance(node, TopK)}
    if not verdict.safe or (verdict.ties is not None and not tops <= counted):
        return

    sketches = partial(sketches_of, root, trial, counted)
    try:
        accurate = sketches()
        seen = {scan.access: meeting(scan, root, trial, rng) for scan in root.scans}
        whole = sum(len(trial.tables[scan.table]) for scan in root.scans)
        count["by conditions"] += whole - sum(map(len, seen.values()))
        assert sketches(seen) == accurate, root
        count["by partners"] += tied(root, trial, seen, rng)
        assert sketches(seen) == accurate, root
        for pass_ in sketch_passes(query, verdict, trial.columns(root)):
            if pass_.way is not PassKind.COLLECTED:
                same_by(pass_, trial, seen, accurate)
                count[pass_.way] += 1
    except (QueryError, reference_plan.ReferenceFailure, reference_plan.ReferenceLimit):
        count["failed"] += 1


def same_by(pass_: SketchPass, trial: Trial, seen: Seen, accurate: dict[str, set[int]]) -> None:
    for access, values in values_found(pass_, trial, seen).items():
        boundaries = trial.partitions[access][1]
        assert {fragment_of(value, boundaries) for value in values} == accurate[access], pass_


def run(cases: Collection[int], makes: tuple[Callable[[int], Trial], ...]) -> Counter[str]:
    count: Counter[str] = Counter()
    for seed in cases:
        for make in makes:
            check_left_out(make(seed), Random(seed), count)
    return count


@random_cases(67, 234, 800, also=more_seeds("rows left out of captures"))
def test_rows_left_out_change_no_sketch(cases: Collection[int]) -> None:
    count = run(cases, (make_trial, make_barrier_trial))
    assert count["by conditions"] > len(cases) // 4, count
    assert count["by partners"] > len(cases) // 10, count
    for way in (PassKind.ROWS, PassKind.KEYED, PassKind.GROUPS):
        assert count[way] > len(cases) // 20, count
