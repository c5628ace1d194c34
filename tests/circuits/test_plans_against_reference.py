"""Random plans over two tables: joins of every kind, set operations, nesting.

After every batch, of one table or of both, the maintained sketches of all accesses equal those of
the reference's lineage, unless a sum of doubles was too close to call. A plan whose sketches are
safe is compiled as a capture does it, by its core and from the whole plan's verdict, so that facts
lost on the way (half the signs are told by CHECKs) would show as barriers lost.

By hand: `IMPCTL_FUZZ=10` and `-m "slow or not slow"` for 20,000 plans of each kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest

from impctl.compile.buffers import Buffers
from impctl.compile.compile import Compiled, compile_plan
from impctl.compile.flows import BlockedError, Chooser, Strategy
from impctl.compile.jointree.cost import TreesAsRecorded
from impctl.compile.jointree.graph import TreeShape
from impctl.compile.session import MaintainedQuery
from impctl.errors import EvaluationError, Location, NotExactError
from impctl.plan.nodes import Aggregate, Join, Plan, Query, SetOperation, TopK, Window, nodes_of
from impctl.rules.optimize import apply_rules, core_of
from impctl.safety.judge import FactSource, Verdict, check_safety
from impctl.service.maintenance_plan import JoinChooser, chosen_way
from impctl.service.prepare import PreparedQuery
from impctl.sketch.partition import RangePartition
from impctl.sql.parameters import BoundSql
from impctl.workload.models import JoinStrategy, Lineage, MaintainMode, Policy, QuerySpec, SqlOrigin
from tests.circuits.conversion_cases import (
    SomeDistant,
    converted,
    moved_buffers,
    recorded,
    some_buffers,
    whole_table,
)
from tests.circuits.plan_cases import (
    Judged,
    Rows,
    changes_of,
    of_witnesses,
    partitions_of,
    table_of,
)
from tests.plan.trials import Trial, make_barrier_trial, make_trial
from tests.plan.witness_plans import make_witness_trial
from tests.support.random_cases import random_cases, seen_in
from tests.support.reference_expr import ReferenceFailure, ReferenceLimit
from tests.support.reference_partners import ReferencePartners
from tests.support.restored_query import Stored

BATCHES = 4
SHARE_OF_TREES = 0.3
OF_EACH_KIND = (
    "16 18 20 21 32 65 67 78 89 90 91 93 94 100 107 127 167 169 181 183 185 196 203 210 223 "
    "228 234 249 262 267 274 284 299 338 736 921 1255"
)
"""Together these meet every kind of join, set operation and state, and each at least twice."""


def kinds_of(plan: Plan) -> str:
    names = []
    for node in nodes_of(plan):
        if isinstance(node, Join):
            names.append(node.kind.value + (" null-aware" if node.null_aware else ""))
        elif isinstance(node, SetOperation):
            names.append(node.kind.value + (" all" if node.all else ""))
        elif isinstance(node, TopK) and node.rank is not None:
            names.append(node.rank.function)
        else:
            names.append(type(node).__name__)
    return " ".join(names)


def has_choice(plan: Plan) -> bool:
    """Whether rows that tie may leave the answer open: then the sketch covers every answer's."""
    calls = [
        o.call for node in nodes_of(plan) if isinstance(node, Aggregate) for o in node.aggregates
    ]
    return any(call.function in ("min_by", "max_by") for call in calls)


def captured(
    trial: Trial,
    root: Plan,
    verdict: Verdict,
    partitions: Mapping[str, RangePartition],
    joins: JoinChooser,
    buffer: int | None,
    lineage: Lineage = Lineage.ALL,
) -> Compiled:
    """The circuit that a capture builds; BlockedError where it builds none."""
    bound = BoundSql("")
    query = Query("", trial.root)
    place = Location("w.yaml", 1, 1)
    spec = QuerySpec(
        name="q",
        sql="",
        sketch={},
        policy=Policy.AUTO,
        maintain=MaintainMode.LAZY,
        join=JoinStrategy.AUTO,
        location=place,
        sql_origin=SqlOrigin(place, (), ()),
        buffer=buffer,
        lineage=lineage,
    )
    core = core_of(trial.root)
    prepared = PreparedQuery(spec, bound, query, replace(query, root=root), core)
    way = chosen_way(prepared, verdict, partitions, joins)
    if way.compiled is None:
        raise BlockedError(way.reason, None)
    return way.compiled


def compiled_unsafe(
    root: Plan, partitions: Mapping[str, RangePartition], joins: JoinChooser, buffer: int | None
) -> Compiled:
    """The circuit of a plan whose sketch no capture would use."""
    trees = {} if joins.trees.choose(root).is_tree else None
    buffers = Buffers(of_piece=joins.buffers) if buffer is None else Buffers.of(buffer)
    return compile_plan(
        root, partitions, {}, joins.sides, barriers=(), buffers=buffers, trees=trees
    )


def is_by_check(trial: Trial, root: Plan, verdict: Verdict) -> bool:
    """Whether there are barriers, and safety rests on a CHECK."""
    others = [fact for fact in verdict.facts if fact.source is not FactSource.CONSTRAINT]
    return verdict.barriers > 0 and not check_safety(Query("", root), trial.sketched, others).safe


def marks_of(trial: Trial, root: Plan, verdict: Verdict, judged: Judged) -> list[str]:
    """What the case is one of."""
    marks = [f"with {kind}" for kind in set(kinds_of(root).split(" "))]
    marks += ["with barrier"] if judged.barriers else []
    return [*marks, *(["with barrier by CHECK"] if is_by_check(trial, root, verdict) else [])]


def filled(
    compiled: Compiled, partners: ReferencePartners, tables: Mapping[str, Rows]
) -> MaintainedQuery:
    """The circuit over the tables as they are."""
    session = MaintainedQuery(compiled)
    session.read_by(partners)
    turns = session.turns(lambda table: len(tables[table]))
    session.load_in_turn(
        turns, lambda turn: [table_of(turn.table, tables[turn.table])], partners.pairs
    )
    return session


def joined_by(compiled: Compiled) -> list[str]:
    """How joins are maintained."""
    trees = [shape for shape in compiled.shapes if isinstance(shape, TreeShape)]
    read = [
        f"with {len([one for one in compiled.sides if one.strategy is way])} sides by {way}"
        for way in Strategy
    ]
    read += [f"with groups {one.mode}" for one in compiled.groupings]
    read += [f"with sides {one.mode}" for one in compiled.sides]
    return [*read, *(["with tree"] if trees else [])]


def one_case(
    seed: int,
    seen: Counter[str],
    make: Callable[[int], Trial] = make_trial,
    lineage: Lineage = Lineage.ALL,
) -> None:
    trial, rng, turns = make(seed), Random(seed), Random(seed + 13)
    partitions = partitions_of(trial)
    root = apply_rules(trial.root)
    verdict = check_safety(Query("", root), trial.sketched, trial.facts)
    judged = (Judged.of if lineage is Lineage.ALL else of_witnesses)(trial, root, verdict)
    if judged is None:
        seen["no fixed answer"] += 1
        return
    has_trees = Random(seed + 11).random() < SHARE_OF_TREES
    groups, bounds = Random(seed + 17), Random(seed + 19)
    some_distant = partial(SomeDistant, groups=groups, by_scalars=Random(seed + 23).random() < 0.7)
    buffer = None if bounds.random() < 0.5 else Random(seed + 5).choice((None, 1, 2, 3))

    def compiled_by(sides: Chooser) -> Compiled:
        joins = JoinChooser(sides, TreesAsRecorded(has_trees), some_buffers(bounds))
        if not verdict.safe:
            return compiled_unsafe(root, partitions, joins, buffer)
        return captured(trial, root, verdict, partitions, joins, buffer, lineage)

    try:
        compiled = compiled_by(some_distant(Random(seed)))
    except BlockedError as error:
        seen[f"blocked: {error.message}"] += 1
        return
    spare = {name: list(rows) for name, rows in trial.tables.items()}
    tables = {name: [row for row in spare[name] if rng.random() < 0.7] for name in spare}
    stored = Stored()
    partners = ReferencePartners(compiled, partitions, tables)
    try:
        session = filled(compiled, partners, tables)
        for _ in range(BATCHES):
            wanted, may_widen = judged.sketches(trial, tables), _may_widen(trial.root)
            seen[compared(session, wanted, (seed, trial.root), may_widen)] += 1
            seen.update([*marks_of(trial, root, verdict, judged), *joined_by(compiled)])
            changes = changes_of(rng, compiled.tables, tables, spare)
            session.step(changes, partial(whole_table, tables))
            seen["refilled"] += session.refilled()[0]
            if rng.random() < 0.3 and not session.unsure_rows():
                other = some_distant(turns) if turns.random() < 0.5 else recorded(compiled)
                compiled = compiled_by(other)
                seen.update(moved_buffers(session.compiled, compiled))
                session, partners = converted(session, stored, compiled, partners)
                seen["converted"] += isinstance(other, SomeDistant) and bool(compiled.pieces)
    except (ReferenceFailure, ReferenceLimit, EvaluationError, NotExactError) as error:
        seen[f"failed: {type(error).__name__}"] += 1


def _may_widen(root: Plan) -> bool:
    """Whether a sketch may hold more than the lineage and not tell: a choice among tied rows, and
    window calls of several partitions, of which each groups what the one before put beside."""
    several = (
        isinstance(node, Window) and len({call.partition_by for call in node.calls}) > 1
        for node in nodes_of(root)
    )
    return has_choice(root) or any(several)


def compared(
    session: MaintainedQuery,
    wanted: Mapping[str, set[int]],
    what: tuple[int, Plan],
    may_widen: bool,
) -> str:
    """How the sketches stand to those wanted, which they cover."""
    held = {access: set(kept.ids) for access, kept in session.fragments().items()}
    unsure = may_widen or session.unsure_rows() > 0
    for access in held:
        assert held[access] >= wanted[access], (access, held, wanted, what)
        assert unsure or held[access] == wanted[access], (held, wanted, what)
    return "unsure" if unsure else "exact"


def several_cases(seeds: Iterable[int], *how: Any) -> Counter[str]:
    """`how` is a maker of trials, and their lineage."""
    return seen_in(seeds, lambda seed, seen: one_case(seed, seen, *how))


@random_cases(0, 125, 2_000, also=OF_EACH_KIND)
def test_sketches_of_random_plans(cases: Sequence[int]) -> None:
    seen = several_cases(cases)
    assert seen["exact"] > len(cases) // 3
    assert seen["refilled"] > 0
    assert seen["converted"] > 0
    assert min(seen["with groups read"], seen["with groups rebuilt"]) > len(cases) // 40, seen
    assert min(seen[f"{what} bounded"] for what in ("groups", "first rows")) > 0, seen
    assert min(seen[f"{what} kept again"] for what in ("groups", "first rows")) > 0, seen
    assert seen["with tree"] > len(cases) // 20
    kinds = ("inner", "semi", "anti", "left", "right", "full", "union", "intersect", "TopK")
    for kind in (*kinds, "row_number", "rank", "dense_rank", "barrier"):
        assert seen[f"with {kind}"] > len(cases) // 300, seen


@pytest.mark.slow
@random_cases(0, 50, 2_000, also="22 29 31 49 51 71 76 82 99 104 190")
def test_sketches_of_random_plans_with_barriers(cases: Sequence[int]) -> None:
    seen = several_cases(cases, make_barrier_trial)
    assert seen["with barrier by CHECK"] > len(cases) // 3, seen
    assert seen["with tree"] > len(cases) // 5, seen
    for kind in ("inner", "semi", "rank", "dense_rank", "row_number", "Aggregate"):
        assert seen[f"with {kind}"] > len(cases) // 20, seen


@random_cases(0, 50, 2_000, also="12 17 28 71 125 140 148 157 159 160 195 204 226 247 248")
def test_sketches_of_witnesses_of_random_plans(cases: Sequence[int]) -> None:
    seen = several_cases(cases, make_witness_trial, Lineage.WITNESS)
    assert seen["exact"] > len(cases) // 3, seen
    # Beside the one row that is wanted another is kept, so few of these small buffers are used up.
    assert seen["refilled"] > 0 or len(cases) < 6000, seen
    for kind in ("inner", "semi", "Distinct", "Aggregate", "TopK"):
        assert seen[f"with {kind}"] > len(cases) // 50, seen
