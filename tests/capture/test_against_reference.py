"""The passes of a capture, evaluated by the slow reference, find the fragments of the lineage.

Spark runs the same passes in the slow tests; here their meaning is held against what they are for,
over random plans and tables. A pass that collects fragments along the whole plan is left to Spark.
By hand: `IMPCTL_FUZZ=10` and `-m "slow or not slow"` for ten times as many cases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from random import Random

import pytest

from impctl.data.schema import Schema
from impctl.errors import QueryError
from impctl.plan.nodes import Plan, Project, Query, Sort, TopK, attributes_of, nodes_of, scans_of
from impctl.rules.optimize import apply_rules
from impctl.safety.judge import Verdict, check_safety
from impctl.spark.capture import PassKind, SketchPass, sketch_passes
from impctl.sql.statement import parse_query
from tests.circuits.test_laws import CATALOG as OPERATORS
from tests.circuits.test_laws import PARTITIONS
from tests.plan.random_plans import CATALOG
from tests.plan.trials import Trial, accurate_sketches, fragment_of, make_barrier_trial, make_trial
from tests.support.algebra import FIRST_ROWS, QUERIES, rows
from tests.support.random_cases import random_cases, random_seeds
from tests.support.reference_expr import ReferenceFailure, ReferenceLimit, Value
from tests.support.reference_plan import Instances, annotate, bag, evaluate


def values_found(
    pass_: SketchPass, trial: Trial, seen: Instances | None = None
) -> dict[str, list[Value]]:
    """Per access the values of its attribute in the rows that the pass keeps of those seen."""
    places = {attribute.id: at for at, attribute in enumerate(attributes_of(pass_.rows))}
    rows = evaluate(pass_.rows, trial.tables, seen)
    if pass_.groups is not None:
        wanted = bag(evaluate(pass_.groups, trial.tables, seen))
        group = [places[column] for column in pass_.group]
        rows = [row for row in rows if next(iter(bag([[row[at] for at in group]]))) in wanted]
    return {access: [row[places[key]] for row in rows] for access, key in pass_.keys.items()}


def check(trial: Trial, root: Plan, catalog: Mapping[str, Schema], seen: Counter[str]) -> None:
    """Each pass over the trial's tables finds what the lineage says."""
    query = Query("", root)
    verdict = check_safety(query, trial.sketched, trial.facts)
    tops = {at for at, node in enumerate(nodes_of(root)) if isinstance(node, TopK)}
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
    except (QueryError, ReferenceFailure, ReferenceLimit) as error:
        seen[type(error).__name__] += 1


def sketches_of(
    root: Plan, trial: Trial, counted: Collection[int], seen: Instances | None = None
) -> dict[str, set[int]]:
    """Those of the lineage, and of the rows that count of first rows, of the rows that are seen."""
    result = annotate(root, trial.tables, seen)
    first = {at: rows for at, rows in result.first_rows.items() if at in counted}
    result = replace(result, first_rows=first)
    return accurate_sketches(result, root, trial.tables, trial.partitions)


def counted_in(root: Plan, verdict: Verdict) -> set[int]:
    """The top-k nodes of which all rows count, ties too: barriers, and the last step."""
    last = next(at for at, n in enumerate(nodes_of(root)) if not isinstance(n, Project | Sort))
    return {last, *verdict.barrier_positions}


@random_cases(
    67,
    234,
    800,
    also="83 88 91 96 107 108 109 113 119 154 160 224 234 239 258 274 280 285 309 327 337 341 "
    "372 381 382 415 418 420 423 442 458 474 475 493 498 502 503 515 519 531 533 544 562 "
    "592",
)
def test_passes_find_the_fragments_of_the_lineage(cases: Collection[int]) -> None:
    seen: Counter[str] = Counter()
    for seed in cases:
        for trial in (make_trial(seed), make_barrier_trial(seed)):
            root = apply_rules(trial.root) if seed % 2 == 0 else trial.root
            check(trial, root, CATALOG, seen)
    for way in (PassKind.ROWS, PassKind.KEYED, PassKind.GROUPS):
        assert seen[way] > len(cases) // 20, seen


SQL = {
    **QUERIES,
    **FIRST_ROWS,
    "in_group": "SELECT g, x FROM (SELECT g, x, s, COUNT(*) OVER (PARTITION BY x) n,"
    " MAX(s) OVER (PARTITION BY g) m FROM t) q WHERE n > 1 AND m > 'a'",
    "full_of_groups": "SELECT q.g, u.y FROM (SELECT g, COUNT(*) n FROM t GROUP BY g) q"
    " FULL JOIN u ON q.g = u.g",
    "rounded": "SELECT COUNT(*) n FROM t JOIN u ON t.x = u.g GROUP BY u.g",
    "last_skipping": "SELECT g, x FROM t ORDER BY x DESC NULLS LAST, g LIMIT 2 OFFSET 3",
    "top_of_top": "SELECT q.g, u.y FROM (SELECT g FROM (SELECT g, x FROM t ORDER BY x DESC, g"
    " LIMIT 6) p ORDER BY g DESC LIMIT 2) q JOIN u ON q.g = u.g",
    "last_tied": "SELECT g, x FROM t ORDER BY g LIMIT 3",
    "numbered_ties": "SELECT g, x FROM (SELECT g, x, row_number() OVER (PARTITION BY s"
    " ORDER BY g) n FROM t) q WHERE n <= 1",
}


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
        for scan in scans_of(root):
            for column, boundaries in (("g", (2, 4)), (PARTITIONS[scan.table].attribute, (1, 2))):
                partitions = {scan.access: (column, boundaries)}
                check(Trial(root, tables, partitions, ()), root, OPERATORS, Counter())
