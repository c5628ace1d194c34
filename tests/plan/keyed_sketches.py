"""Sketches of a plan whose fixpoints are keyed: one for all accesses below such a fixpoint.

Law: that one has the fragments of whatever the rows used above are derived from, by any access.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace

from impctl.plan.lineage import is_open
from impctl.plan.nodes import Fixpoint, Plan, nodes_of
from impctl.plan.recursion import keyed_rows
from impctl.safety.judge import Verdict
from impctl.types import AccessId
from tests.support.reference_plan import Annotated

Sketches = Mapping[AccessId, Collection[int]]


def keyed_positions(root: Plan, verdict: Verdict) -> frozenset[int]:
    """Where the fixpoints that are keyed stand."""
    nodes = tuple(nodes_of(root))
    return frozenset(at for at in verdict.key_columns if isinstance(nodes[at], Fixpoint))


def evened(root: Plan, verdict: Verdict, sketches: Sketches) -> dict[AccessId, set[int]]:
    """The sketches, with those of a keyed fixpoint's accesses merged."""
    result = {access: set(fragments) for access, fragments in sketches.items()}
    for group in keyed_rows(root, verdict.key_columns).values():
        merged = set[int]().union(*(result[access] for access in group))
        result |= {access: set(merged) for access in group}
    return result


def tries(
    root: Plan, verdict: Verdict, sketches: Sketches, widened: Callable[[Sketches], Sketches]
) -> Iterator[dict[AccessId, set[int]]]:
    """These sketches and two wider ones, as a query can be run with them."""
    yield evened(root, verdict, sketches)
    for _ in range(2):
        yield evened(root, verdict, widened(sketches))


def without_keyed(root: Plan, verdict: Verdict, annotated: Annotated) -> Annotated:
    """The rows with what barriers need, not with all that other fixpoints are derived from: those
    that are keyed, and those of which the answer's lineage counts alone."""
    nodes = enumerate(nodes_of(root))
    others = {at for at, node in nodes if isinstance(node, Fixpoint) and is_open(node)}
    others |= keyed_positions(root, verdict)
    kept = {at: rows for at, rows in annotated.first_rows.items() if at not in others}
    return replace(annotated, first_rows=kept)
