"""Answers of random plans over several tables, once and from kept rows, against the reference.

The counterpart without a JVM of tests/behaviour/test_answers_in_spark.py: as bags, and any way of
breaking ties counts, where there is one.
By hand: `IMPCTL_FUZZ=10` and `-m "slow or not slow"` for 1,500 cases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pyarrow as pa
import pytest

from impctl.compile.compile import compile_answer
from impctl.compile.flows import BlockedError
from impctl.plan.nodes import Query, attributes_of
from impctl.rules.finalize import answer_plan
from impctl.rules.optimize import apply_rules
from tests.behaviour.answer_trials import _by_run, _by_state, _ordered, _values
from tests.behaviour.spark_trials import _is_an_answer, _plain, make_case
from tests.support.random_cases import random_cases, seen_in
from tests.support.reference_expr import ReferenceFailure
from tests.support.reference_plan import evaluate


@random_cases(
    0,
    12,
    150,
    also="2 3 6 9 11 15-17 25 26 28 32 34 35 38 39",
    first=50_000,
)
def test_answers_of_wide_plans(cases: Sequence[int]) -> None:
    seen = seen_in(cases, one_case)
    assert seen["once"] > len(cases) * 3 // 4
    assert seen["kept"] > len(cases) // 4
    assert seen["rows"] > len(cases) // 2


def one_case(seed: int, seen: Counter[str]) -> None:
    case, rng = make_case(seed), Random(f"order {seed}")
    root, _ = _ordered(rng, case.captured)
    query = Query("", apply_rules(root))
    answer = answer_plan(query)
    try:
        once = compile_answer(answer)
    except BlockedError:
        return
    try:
        expected = evaluate(root, case.after)
    except ReferenceFailure:
        return
    wanted = Counter(_plain(row, root) for row in expected)
    for way, result in (
        ("once", _by_run(answer, once, case)),
        ("kept", _by_state(query, answer, case)),
    ):
        if not isinstance(result, pa.Table):
            continue
        seen[way] += 1
        seen["rows"] += len(result)
        plain = _counted(result, root)
        label = f"seed {seed}, {way}"
        assert plain == wanted or _is_an_answer(plain, root, case.after, Random(label), 20_000), (
            label
        )


def _counted(table: pa.Table, root: object) -> Counter[tuple[object, ...]]:
    if not attributes_of(root):  # type: ignore[arg-type]  # a plan
        return Counter({(): len(table)})
    return Counter(_plain(row, root) for row in _values(table))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [208, 9333, 12581])
def test_answers_that_were_wrong_once(seed: int) -> None:
    """A row number that is put out, a rank that goes no further, a LIMIT of a LIMIT."""
    one_case(seed, Counter())
