"""Reuse trials: a query, the same query with other constants, tiny tables and a sketch.

The slow reference captures the sketch for one query, and the other query uses it. Its result over
the sketch must equal its result over the tables. The oracle does not know the rules under test.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from random import Random

from msgspec import Struct, field
from msgspec.structs import replace

from impctl.data.schema import DOUBLE, INTEGER, STRING, decimal
from impctl.expr.nodes import And, Compare, CompareOp, Expr, InList, Literal, Or
from impctl.plan import nodes as p
from impctl.reuse.verdict import _Renaming, check_reuse
from tests.plan.random_plans import FocusedMaker
from tests.plan.trials import (
    TieBreaks,
    Trial,
    Violation,
    _widened,
    accurate_sketches,
    instances_of,
    is_an_answer,
    make_trial,
    random_partition,
)
from tests.support.reference_plan import ReferenceFailure, annotate, bag, evaluate

_INWARDS = {
    CompareOp.GREATER: 1,
    CompareOp.GREATER_EQUAL: 1,
    CompareOp.LESS: -1,
    CompareOp.LESS_EQUAL: -1,
}

_GUARD = Compare(CompareOp.GREATER, Literal(1, INTEGER), Literal(0, INTEGER))
"""A condition without columns: all rows pass, or none."""


class ReuseTally(Struct, dict=True):
    """Counts of a run of trials."""

    trials: int = 0
    changed: int = 0
    accepted: int = 0
    accepted_changed: int = 0
    compared: int = 0
    tied: int = 0
    failed: int = 0
    refusals: dict[str, int] = field(default_factory=dict)


class ReuseMaker(FocusedMaker):
    """Plans that bound one or two columns, group the rows and often filter the groups."""

    def plan(self) -> p.Plan:
        rng = self.rng
        plan = self._judged(self._grouped(self._bounded(self._scan())))
        match rng.randrange(8):
            case 0:
                plan = self._judged(self._grouped(plan))
            case 1:
                plan = p.Distinct(self._without_first(plan))
            case 2:
                other = self._bounded(self._scan())
                sides = (plan, other) if rng.random() < 0.5 else (other, plan)
                kind = rng.choice(
                    (p.JoinKind.INNER, p.JoinKind.LEFT, p.JoinKind.SEMI, p.JoinKind.ANTI)
                )
                plan = p.Join(kind, *sides, self._condition(*(side.attributes for side in sides)))
        return plan

    def _bounded(self, plan: p.Plan) -> p.Plan:
        parts = []
        for _ in range(self.rng.choice((1, 1, 2))):
            column = self._numeric(plan.attributes)
            if column is not None:
                bound = Literal(self.rng.choice((-1, 0, 1, 2)), INTEGER)
                parts.append(Compare(self.rng.choice(tuple(_INWARDS)), column.ref(), bound))
        return p.Select(plan, parts[0] if len(parts) == 1 else And(tuple(parts)))

    def _without_first(self, plan: p.Plan) -> p.Plan:
        columns = plan.attributes[1:] or plan.attributes
        return p.Project(
            plan, tuple(p.ComputedColumn(self._fresh(a.type), a.ref()) for a in columns)
        )


def make_reuse_trial(seed: int) -> Trial:
    """The trial of a seed: half of them are safety trials, half are built for reuse."""
    trial = make_trial(seed)
    rng = Random(f"shape {seed // 4}")
    guards = Random(f"guard {seed}")
    if rng.random() < 0.5:
        return replace(trial, root=_with_guards(guards, trial.root))
    root = _with_guards(guards, ReuseMaker(rng).plan())
    rng = Random(f"partition {seed}")
    partitions = {}
    for scan in root.scans:
        if not partitions or rng.random() < 0.5:
            column, boundaries = random_partition(rng, scan)
            if rng.random() < 0.5 and scan.attributes[0].type == INTEGER:
                column, boundaries = scan.attributes[0].name, (1,)
            partitions[scan.access] = (column, boundaries)
    return replace(trial, root=root, partitions=partitions)


def _with_guards(rng: Random, plan: p.Plan) -> p.Plan:
    """In a fifth of the trials, add a comparison of constants above some tables."""
    if rng.random() > 0.2:
        return plan

    def guarded(node: p.Plan) -> p.Plan:
        if isinstance(node, p.Scan) and rng.random() < 0.6:
            return p.Select(node, _GUARD)
        return node.map_inputs(guarded)

    return guarded(plan)


def with_other_guards(rng: Random, plan: p.Plan) -> p.Plan:
    """Make some of the comparisons of constants false."""
    plan = plan.map_inputs(lambda child: with_other_guards(rng, child))
    if isinstance(plan, p.Select) and plan.predicate == _GUARD and rng.random() < 0.7:
        return replace(plan, predicate=replace(_GUARD, left=_GUARD.right))
    return plan


def with_other_constants(rng: Random, plan: p.Plan, *, narrower: bool) -> p.Plan:
    """Change some constants of conditions and counts of LIMITs.

    `narrower` moves bounds inwards, so that most of the new conditions imply the old ones.
    """
    inputs = tuple(with_other_constants(rng, child, narrower=narrower) for child in plan.inputs)
    plan = plan.with_inputs(inputs)
    change = _narrow_bounds if narrower else _change_constants
    match plan:
        case p.Select() if rng.random() < 0.6:
            return replace(plan, predicate=change(rng, plan.predicate))
        case p.Join() if plan.condition is not None and rng.random() < 0.6:
            return replace(plan, condition=change(rng, plan.condition))
        case p.TopK() if plan.count is not None and rng.random() < 0.3:
            step = -1 if narrower else rng.choice((-2, -1, -1, 0, 1))
            return replace(plan, count=max(1, plan.count + step))
    return plan


def _narrow_bounds(rng: Random, predicate: Expr) -> Expr:
    """Move bounds inwards. Other conditions, and those below NOT, stay."""
    match predicate:
        case And() | Or():
            return replace(
                predicate, operands=tuple(_narrow_bounds(rng, part) for part in predicate.operands)
            )
        case InList():
            return replace(predicate, options=predicate.options[: rng.randint(1, 2)])
        case Compare(op=op, left=left, right=Literal() as right) if op in _INWARDS:
            return Compare(op, left, _move_bound(rng, right, _INWARDS[op]))
        case Compare(op=op, left=Literal() as left, right=right) if op in _INWARDS:
            return Compare(op, _move_bound(rng, left, -_INWARDS[op]), right)
    return predicate


def _move_bound(rng: Random, literal: Literal, sign: int) -> Literal:
    value = literal.value
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        step = sign * rng.choice((0, 1, 1, 2))
        if rng.random() < 0.1:
            return Literal(float(value) + step, DOUBLE)
        return replace(literal, value=value + type(value)(step))
    return _other_value(rng, literal)


def _change_constants(rng: Random, predicate: Expr) -> Expr:
    def swap(part: Expr) -> Expr | None:
        if isinstance(part, InList) and rng.random() < 0.5 and len(part.options) > 1:
            return replace(part, options=part.options[: rng.randint(1, len(part.options))])
        if not isinstance(part, Literal) or rng.random() < 0.5:
            return None
        return _other_value(rng, part)

    return predicate.transform(swap)


def _other_value(rng: Random, literal: Literal) -> Literal:
    value, kind = literal.value, literal.type
    if value is None or isinstance(value, bool | bytes):
        return literal
    if isinstance(value, str):
        return Literal(rng.choice(("", "a", "ab", "b", "c")), STRING) if kind == STRING else literal
    choice = rng.random()
    if choice < 0.08:
        return Literal(float("nan"), DOUBLE)
    step = rng.choice((-2, -1, -1, 1, 1, 2))
    if choice < 0.16:
        return Literal(float(step) / 2, DOUBLE)
    if choice < 0.24:
        return Literal(Decimal(step) / 2, decimal(3, 1))
    if isinstance(value, int):
        return Literal(value + step, INTEGER)
    return replace(literal, value=value + type(value)(step))


def renamed(rng: Random, plan: p.Plan) -> p.Plan:
    """The same plan with other column ids, as if parsed from another text."""
    names = {}
    for node in plan.walk():
        names.update((column.id, f"other.{column.id}") for column in node.added)
    accesses = {scan.access: scan.access for scan in plan.scans}
    return _Renaming(names, accesses, {}).plan(plan) if rng.random() < 0.5 else plan


def run_reuse_trial(
    seed: int, tally: ReuseTally, *, rewrite: Callable[[p.Plan], p.Plan] = lambda root: root
) -> None:
    """Check one seed; Violation if an accepted sketch changes the requested result."""
    trial = make_reuse_trial(seed)
    rng = Random(seed + 5)
    captured = rewrite(trial.root)
    requested = rewrite(with_other_constants(rng, trial.root, narrower=rng.random() < 0.7))
    if Random(f"guard {seed}").random() < 0.1:
        requested = rewrite(with_other_guards(rng, trial.root))
    tally.trials += 1
    is_changed = requested != captured
    tally.changed += is_changed
    requested = renamed(rng, requested)
    verdict = check_reuse(
        p.Query("", requested), p.Query("", captured), trial.sketched, trial.facts
    )
    if not verdict.allowed:
        tally.refusals[verdict.reason] = tally.refusals.get(verdict.reason, 0) + 1
        return
    tally.accepted += 1
    tally.accepted_changed += is_changed
    try:
        _compare_results(seed, rng, trial, captured, requested, tally)
    except ReferenceFailure:
        tally.failed += 1


def _compare_results(
    seed: int, rng: Random, trial: Trial, captured: p.Plan, requested: p.Plan, tally: ReuseTally
) -> None:
    shuffled = rng.random() < 0.3
    order = TieBreaks(rng).at_random if shuffled else None
    before = annotate(captured, trial.tables, None, order)
    sketches = accurate_sketches(before, captured, trial.tables, trial.partitions)
    expected = bag(evaluate(requested, trial.tables, None, order))
    for attempt in range(2):
        candidate = sketches if attempt == 0 else _widened(rng, sketches, trial.partitions)
        instances = instances_of(requested, trial.tables, trial.partitions, candidate)
        ties = TieBreaks(rng)
        order = ties.at_random if shuffled else None
        result = bag(evaluate(requested, trial.tables, instances, order))
        tally.compared += 1
        if result == expected:
            continue
        if shuffled:
            tally.tied += 1
            if is_an_answer(result, requested, trial.tables, ties):
                continue
        raise Violation(f"seed {seed}, sketch {candidate}: {result} instead of {expected}")
