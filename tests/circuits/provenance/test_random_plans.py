"""Derivations over random plans and tables, with fixpoints and without, against the slow reference.

Where a plan is traced, its rows are those of the reference, and each row is a row over what is told
of it alone; of a plan without groups no row of it can be left out. Where it is not, it has a part
that makes rows because of others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa

from impctl.compile.flows import BlockedError
from impctl.compile.provenance.absorbed import numbered
from impctl.compile.provenance.derivation import Claim, derivation_of
from impctl.compile.provenance.program import made_rows
from impctl.errors import EvaluationError, NotExactError
from impctl.plan.nodes import (
    Aggregate,
    Join,
    JoinKind,
    Plan,
    SetKind,
    SetOperation,
    TopK,
    Window,
    attributes_of,
    nodes_of,
    scans_of,
)
from impctl.rules.optimize import apply_rules
from tests.circuits.plan_cases import table_of
from tests.plan.fixpoint_plans import make_fixpoint_trial
from tests.plan.trials import Trial, make_trial
from tests.support.random_cases import random_cases
from tests.support.reference_expr import ReferenceFailure, ReferenceLimit
from tests.support.reference_plan import Tables, evaluate

MOST_CHECKED = 6
"""Rows of an answer that are looked at."""


def starts_of(trial: Trial) -> tuple[dict[str, int], int]:
    """The number of each table's first row, and the first that no row has."""
    names = list(dict.fromkeys(scan.table for scan in scans_of(trial.root)))
    sizes = [len(trial.tables[name]) for name in names]
    ends = np.cumsum(sizes).tolist()
    return dict(zip(names, [0, *ends[:-1]], strict=True)), ends[-1]


def kept(trial: Trial, starts: dict[str, int], numbers: Collection[int]) -> Tables:
    """The tables with these rows alone."""
    wanted = set(numbers)
    return {
        name: [row for at, row in enumerate(rows) if starts.get(name, 0) + at in wanted]
        for name, rows in trial.tables.items()
    }


def is_refused(node: Plan) -> bool:
    match node:
        case Join(kind=kind):
            return kind not in (JoinKind.INNER, JoinKind.SEMI)
        case SetOperation(kind=kind):
            return kind is not SetKind.UNION
        case Aggregate(grouping_sets=sets):
            return sets is not None
    return isinstance(node, TopK | Window)


def check(trial: Trial, seen: Counter[str], label: str) -> None:
    starts, first = starts_of(trial)
    try:
        expected = evaluate(trial.root, trial.tables)
    except (ReferenceFailure, ReferenceLimit):
        return
    root = apply_rules(trial.root)
    arrow: dict[str, pa.Table] = {
        scan.access: numbered(table_of(scan.table, trial.tables[scan.table]), starts[scan.table])
        for scan in scans_of(root)
    }
    try:
        made = made_rows(root, arrow, first)
    except BlockedError:
        seen["refused"] += 1
        seen["named"] += any(map(is_refused, nodes_of(root)))
        return
    except (EvaluationError, NotExactError):
        seen["failed"] += 1
        return
    seen["traced"] += 1
    columns = [column.to_pylist() for column in made.to_arrow(attributes_of(root), "UTC").columns]
    keys = list(map(key_of, zip(*columns, strict=True))) if columns else [()] * len(made.numbers)
    assert set(keys) == set(map(key_of, expected)), label
    assert len(set(keys)) == len(keys), label
    for key, number in list(zip(keys, made.numbers.tolist(), strict=True))[:MOST_CHECKED]:
        derivation = derivation_of(made.makings, number, first, 200_000)
        seen[derivation.claim] += 1
        over = set(map(key_of, evaluate(trial.root, kept(trial, starts, derivation.rows))))
        assert key in over, (label, key, derivation)
        if derivation.claim is not Claim.GROUP:
            for left_out in derivation.rows:
                rest = set(derivation.rows) - {left_out}
                less = map(key_of, evaluate(trial.root, kept(trial, starts, rest)))
                assert key not in set(less), (label, key, derivation)


def key_of(row: tuple[object, ...]) -> tuple[object, ...]:
    """A row as DISTINCT tells rows apart: NaN is NaN, 0.0 is -0.0; doubles but for last digits."""
    return tuple(
        "NaN" if value != value else float(f"{value:.9g}") if isinstance(value, float) else value
        for value in row
    )


@random_cases(0, 50, 4_000, also="3 5 10 11 22 23 26 28 29 40 49 50 55 63 65 67 91 98")
def test_random_plans(cases: Sequence[int]) -> None:
    seen: Counter[str] = Counter()
    for case in cases:
        check(make_trial(case), seen, f"trial {case}")
        check(make_fixpoint_trial(case), seen, f"fixpoint {case}")
    assert seen["traced"] > len(cases) // 4, seen
    assert seen[Claim.SMALLEST] > len(cases) // 8, seen
    assert seen[Claim.GROUP] > len(cases) // 8, seen
