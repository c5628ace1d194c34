"""Fixpoints that two plans have in common, whatever stands above them.

Law: where a fixpoint is a barrier of the plan that was captured, its sketches hold derivations of
all its rows. So wherever else there is an equal fixpoint (same base and step, constants in them and
columns), it has the same rows over these sketches as over the tables, and so has any query that
reads no other rows by a sketch. A fixpoint that is keyed is no barrier: some of its rows are there.
Out of scope: plans of one shape (`plan.reuse.pairing`), whether the sketches are safe
(`plan.reuse.verdict`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import chain

from impctl.plan.fingerprint import fingerprint, template
from impctl.plan.nodes import Fixpoint, Plan, Recursive, nodes_of, scans_of
from impctl.types import AccessId


def has_recursion_like(asked: Plan, captured: Plan) -> bool:
    """Whether some fixpoints of both differ in constants of conditions at most."""
    own = {template(node) for _, node in _fixpoints(asked)}
    return bool(own) and any(template(node) in own for _, node in _fixpoints(captured))


def held_accesses(
    asked: Plan, captured: Plan, barriers: Collection[int]
) -> Mapping[AccessId, AccessId]:
    """By access of the asked plan below a fixpoint that is one of the captured plan's `barriers`
    (by place in `nodes_of`), too: the access of the captured plan in its place.
    """
    held: dict[str, Fixpoint] = {}
    for at, node in _fixpoints(captured):
        if at in barriers:
            held.setdefault(fingerprint(node), node)
    result: dict[AccessId, AccessId] = {}
    for node, other in _equal_ones(asked, held):
        # An outer one comes before those in it, and has all that they have.
        for scan, model in zip(scans_of(node), scans_of(other), strict=True):
            result.setdefault(scan.access, model.access)
    return _without_others(asked, result, held)


def _equal_ones(plan: Plan, held: Mapping[str, Fixpoint]) -> Iterator[tuple[Fixpoint, Fixpoint]]:
    for _, node in _fixpoints(plan):
        other = held.get(fingerprint(node))
        if other is not None:
            yield node, other


def _without_others(
    plan: Plan, result: Mapping[AccessId, AccessId], held: Mapping[str, Fixpoint]
) -> dict[AccessId, AccessId]:
    """Without accesses that the plan has outside of these fixpoints, too."""
    inside = set(
        chain.from_iterable(map(id, scans_of(node)) for node, _ in _equal_ones(plan, held))
    )
    outside = {scan.access for scan in scans_of(plan) if id(scan) not in inside}
    return {own: other for own, other in result.items() if own not in outside}


def _fixpoints(plan: Plan) -> Iterator[tuple[int, Fixpoint]]:
    """The fixpoints with their places; none whose base or step reads rows of one around it."""
    for at, node in enumerate(nodes_of(plan)):
        if isinstance(node, Fixpoint) and _is_closed(node):
            yield at, node


def _is_closed(fixpoint: Fixpoint) -> bool:
    own = {node.id for node in nodes_of(fixpoint) if isinstance(node, Fixpoint)}
    return all(node.fixpoint in own for node in nodes_of(fixpoint) if isinstance(node, Recursive))
