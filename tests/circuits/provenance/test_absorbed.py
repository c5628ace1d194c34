"""Queries kept by absorption beside the same ones kept by ranks: nothing that goes out differs.

After every batch, and after taking up what was stored: the change of every sketch, how often each
fragment is counted, and the rows of the answer. Functions are those of the definition. Queries,
tables and batches are those of `test_recursion`; then random plans.
Run where `oxidd` is installed. By hand: `IMPCTL_FUZZ=10` and `-m "slow or not slow"`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import pytest

from impctl.compile.compile import Compiled, compile_plan
from impctl.compile.flows import BlockedError
from impctl.compile.session import MaintainedQuery
from impctl.engine.fixpoint.absorption import (
    PROVENANCE_TOO_LARGE,
    AbsorbedFixpoint,
    Absorbs,
    Grounded,
    Ship,
)
from impctl.engine.linear import SketchDelta
from impctl.errors import EvaluationError, NotExactError, UnsupportedError
from impctl.plan.nodes import Fixpoint, Query, nodes_of
from impctl.rules.finalize import answer_plan
from impctl.rules.optimize import apply_rules
from impctl.safety.judge import check_safety
from impctl.types import AccessId
from tests.circuits.conversion_cases import whole_table
from tests.circuits.plan_cases import changes_of, partitions_of, table_of
from tests.circuits.test_recursion import DRAWN, QUERIES, SIZES, Case, case_of, expected
from tests.plan.fixpoint_plans import make_fixpoint_trial
from tests.plan.keyed_plans import make_keyed_trial
from tests.support.diagrams import derivations_in, with_diagrams
from tests.support.random_cases import random_cases, seen_in
from tests.support.restored_query import Stored, counts_of, restored, sketches_of

REFUSED = {"optional side": "a left outer join"}
"""Recursive queries that cannot be kept so, and what of them is named."""
NAMES = [n for n, sql in QUERIES.items() if "RECURSIVE" in sql and n not in REFUSED]
SHIPS = [Absorbs(ship, 100_000) for ship in Ship]
ships = pytest.mark.parametrize("absorbs", SHIPS, ids=[str(one.ship) for one in SHIPS])


def compiled(case: Case, absorbs: Absorbs | None, *, with_answer: bool = False) -> Compiled:
    """The circuit of a case as `Case.compiled` has it."""
    if not with_answer:
        barriers = case.barriers(case.core)
        return compile_plan(case.core, case.sketched, {}, barriers=barriers, absorbs=absorbs)
    answer = answer_plan(replace(case.query, root=apply_rules(case.query.root)))
    barriers = case.barriers(answer.kept)
    return compile_plan(
        answer.kept, case.sketched, {}, barriers=barriers, answer=answer, absorbs=absorbs
    )


def grounded(numbers: list[int]) -> Grounded:
    """A derivation of which the head comes first: rows have even numbers, leaves odd ones."""
    head, *parts = (number for number in numbers if number >= 0)
    bodies, leaves = ([part for part in parts if part % 2 == odd] for odd in (0, 1))
    return Grounded(head, tuple(bodies), tuple(leaves))


def kept_rows(query: MaintainedQuery) -> Counter[tuple[object, ...]]:
    kept = query.compiled.kept
    assert kept is not None
    batch = kept.whole()
    columns = [column.to_arrow().to_pylist() for column in batch.columns.values()]
    result: Counter[tuple[object, ...]] = Counter()
    for *row, weight in zip(*columns, batch.weights.tolist(), strict=True):
        result[tuple(row)] += weight
    return result


def told(deltas: Mapping[AccessId, SketchDelta]) -> dict[AccessId, tuple[list[int], list[int]]]:
    """What changed in each sketch."""
    return {one: (result.added.tolist(), result.removed.tolist()) for one, result in deltas.items()}


def operators(query: MaintainedQuery) -> list[AbsorbedFixpoint]:
    return [one for one in query.circuit if isinstance(one, AbsorbedFixpoint)]


@pytest.mark.slow
@with_diagrams
@ships
@pytest.mark.parametrize("name", NAMES)
@random_cases(1, 3, 30)
def test_nothing_that_goes_out_differs(name: str, absorbs: Absorbs, cases: range) -> None:
    for seed in cases:
        # Both ways of shipping are tried with an answer and without, in turns.
        compared(name, absorbs, seed, with_answer=(seed + SHIPS.index(absorbs)) % 2 == 0)


def compared(name: str, absorbs: Absorbs, seed: int, *, with_answer: bool) -> None:
    rng = random.Random(f"absorbed {name} {seed}")
    case = case_of(name)
    ranked = MaintainedQuery(compiled(case, None, with_answer=with_answer))
    query = MaintainedQuery(compiled(case, absorbs, with_answer=with_answer))
    assert operators(query)
    stored = Stored()
    tables = DRAWN.some_tables(rng, SIZES)
    for one in (ranked, query):
        one.load(DRAWN.whole(tables))
    for _ in range(5):
        changes = DRAWN.some_changes(rng, tables, (1, 3, 6))
        try:
            deltas = query.step(changes)
        except EvaluationError as error:
            # Whole functions may be larger than there is room for.
            is_known = (name, absorbs.ship) == ("same generation", Ship.EAGER)
            if not is_known or error.code != PROVENANCE_TOO_LARGE:
                raise
            return
        assert told(deltas) == told(ranked.step(changes))
        assert sketches_of(query) == expected(case, tables)
        assert counts_of(query) == counts_of(ranked)
        if with_answer:
            assert kept_rows(query) == kept_rows(ranked)
        for operator in operators(query):
            held = operator.absorption
            rows = operator.rows.whole()
            numbers = rows.columns["number"].values.tolist() if len(rows) else []
            assert sorted(held.rows) == sorted(numbers)
            known = set(map(grounded, operator.numbers().tolist()))
            assert {*derivations_in(held)} == known
        if rng.random() < 0.3:
            query = restored(
                query, stored, MaintainedQuery(compiled(case, absorbs, with_answer=with_answer))
            )


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_functions_is_named(name: str) -> None:
    with pytest.raises(BlockedError, match=REFUSED[name]) as raised:
        compiled(case_of(name), SHIPS[0])
    assert raised.value.span is not None


def one_plan(seed: int, seen: Counter[str], *, is_keyed: bool) -> None:
    """A random plan over tables that change, kept by ranks and by either way of shipping."""
    trial = (make_keyed_trial if is_keyed else make_fixpoint_trial)(seed)
    rng = random.Random(seed)
    root = apply_rules(trial.root)
    if not any(isinstance(node, Fixpoint) for node in nodes_of(root)):
        return
    verdict = check_safety(Query("", root), trial.sketched, trial.facts)
    if not verdict.safe:
        seen["not sketched"] += 1
        return
    made = partial(
        compile_plan,
        root,
        partitions_of(trial),
        verdict.key_columns,
        barriers=verdict.barrier_positions,
    )
    spare = {name: list(rows) for name, rows in trial.tables.items()}
    tables = {name: [row for row in spare[name] if rng.random() < 0.7] for name in spare}
    try:
        ranked = MaintainedQuery(made())
        queries = [MaintainedQuery(made(absorbs=absorbs)) for absorbs in SHIPS]
        stores = [Stored() for _ in SHIPS]
        whole = [(name, table_of(name, tables[name])) for name in ranked.compiled.tables]
        for one in (ranked, *queries):
            one.load(whole)
        for _ in range(4):
            changes = changes_of(rng, ranked.compiled.tables, tables, spare)
            read, before = partial(whole_table, tables), ranked.fragments()
            wanted = told(ranked.step(changes, read))
            for at, (query, absorbs) in enumerate(zip(queries, SHIPS, strict=True)):
                assert query.fragments() == before, (seed, absorbs)
                assert told(query.step(changes, read)) == wanted, (seed, absorbs)
                seen["compared"] += 1
                if rng.random() < 0.3:
                    queries[at] = restored(
                        query, stores[at], MaintainedQuery(made(absorbs=absorbs))
                    )
    except BlockedError as blocked:
        seen[f"blocked: {'left' if 'join' in blocked.message else blocked.message}"] += 1
    except (EvaluationError, NotExactError, UnsupportedError) as error:
        seen[f"failed: {type(error).__name__}"] += 1


@with_diagrams
@random_cases(0, 20, 600, also="5 11 22 31 44 49 66 78")
def test_sketches_of_random_plans(cases: Sequence[int]) -> None:
    of_random_plans(cases, is_keyed=False)


@with_diagrams
@random_cases(0, 20, 600, also="6 9 37 59 63 70 72")
def test_sketches_of_random_plans_that_are_keyed(cases: Sequence[int]) -> None:
    of_random_plans(cases, is_keyed=True)


def of_random_plans(cases: Sequence[int], *, is_keyed: bool) -> None:
    seen = seen_in(cases, partial(one_plan, is_keyed=is_keyed))
    assert seen["compared"] > 2 * len(cases), seen
