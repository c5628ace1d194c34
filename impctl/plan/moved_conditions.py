"""Two plans of one query whose constants moved, held against each other.

Law: where they differ in nothing but conditions right above scans, what moved is rows of these
accesses that meet the one and not the other; everything above sees them as rows that came or went.
Where they differ in anything else, nothing is said.
Out of scope: finding such rows (`circuits.moving`, `app.maintaining.move`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from impctl.aliases import AccessId
from impctl.data.schema import BOOLEAN
from impctl.expr.nodes import Compare, CompareOp, Expr, Literal, conjuncts
from impctl.plan.nodes import Plan, Scan, Select, inputs_of, nodes_of, with_inputs

_TRUE = Literal(True, BOOLEAN)


@dataclass(frozen=True, slots=True)
class MovedConditions:
    """The predicates of the selections above one scan, the lowest first, before and after."""

    before: tuple[Expr, ...]
    after: tuple[Expr, ...]

    @property
    def rows_that_move(self) -> tuple[tuple[Expr, ...], ...]:
        """Conditions such that every row that comes or goes meets all of one of these."""
        before, after = _parts(self.before), _parts(self.after)
        return (*_leaving(before, after), *_leaving(after, before))


def moved_conditions(before: Plan, after: Plan) -> Mapping[AccessId, MovedConditions] | None:
    """The accesses whose conditions differ; None where more differs."""
    if _neutral(before) != _neutral(after):
        return None
    old, new = _stacks(before), _stacks(after)
    return {
        access: MovedConditions(own, new[access])
        for access, own in old.items()
        if own != new[access]
    }


def _is_on_scan(plan: Plan) -> bool:
    while isinstance(plan, Select):
        plan = plan.child
    return isinstance(plan, Scan)


def _neutral(plan: Plan) -> Plan:
    """The plan with nothing asked in the conditions right above its scans."""
    found = with_inputs(plan, tuple(_neutral(child) for child in inputs_of(plan)))
    if isinstance(found, Select) and _is_on_scan(found):
        return replace(found, predicate=_TRUE)
    return found


def _stacks(root: Plan) -> dict[AccessId, tuple[Expr, ...]]:
    """Per access the predicates of the selections right above it, the lowest first."""
    found: dict[AccessId, tuple[Expr, ...]] = {}
    for node in nodes_of(root):
        predicates: list[Expr] = []
        below = node
        while isinstance(below, Select):
            predicates.append(below.predicate)
            below = below.child
        if isinstance(below, Scan):
            # From above: the first of several selections on a scan has the others below it.
            found.setdefault(below.access, tuple(reversed(predicates)))
    return found


def _parts(predicates: tuple[Expr, ...]) -> tuple[Expr, ...]:
    return tuple(part for predicate in predicates for part in conjuncts(predicate))


def _leaving(before: tuple[Expr, ...], after: tuple[Expr, ...]) -> tuple[tuple[Expr, ...], ...]:
    """Conditions of which every row meets all of one that meets all of `before`, not of `after`."""
    failed = [part for part in after if part not in before]
    return tuple((*before, *_failing(part, before)) for part in failed)


def _failing(part: Expr, before: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """What is true of a row that meets `before` and for which `part` is false or NULL.

    Only where `before` says that `part` cannot be NULL is it known to be false.
    """
    if not isinstance(part, Compare) or not _is_constant(part.right):
        return ()
    is_known = any(
        isinstance(other, Compare)
        and other.left == part.left
        and other.op is not CompareOp.NULL_SAFE_EQUAL
        for other in before
    )
    opposite = part.op.opposite
    if not is_known or opposite is None:
        return ()
    return (Compare(opposite, part.left, part.right),)


def _is_constant(expr: Expr) -> bool:
    return isinstance(expr, Literal) and expr.value is not None
