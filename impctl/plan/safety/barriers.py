"""Which nodes are barriers, of those that could stay KEYED, too.

Law: it never depends on what is known of the data today: other barriers later would be another
sketch. First ranks within keys, and fixpoints, stay KEYED wherever some facts could make the rest
of the plan safe with it; a fixpoint only where something above it can leave keys out, since else
the sketches of a barrier are no larger and serve more queries.
Out of scope: when a node can be either (`plan.safety.ordering`, `plan.safety.recursion`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from impctl.plan.nodes import (
    Aggregate,
    Distinct,
    Fixpoint,
    Join,
    JoinKind,
    Plan,
    Project,
    SetKind,
    SetOperation,
    Sort,
    TopK,
    Window,
    inputs_of,
    nodes_of,
)
from impctl.plan.safety.judging import Analysis, PlanJudge
from impctl.plan.safety.status import Status
from impctl.types import AccessId, ColumnName

_OUTER = (JoinKind.LEFT, JoinKind.RIGHT, JoinKind.FULL)


def chosen_barriers(
    sketched: Mapping[AccessId, ColumnName],
    by: PlanJudge,
    *,
    ranks: bool | None,
    keyed: bool | None,
) -> tuple[bool, bool]:
    """Whether first ranks are barriers, and whether fixpoints are KEYED; given ones stay."""
    ways = [
        (has_barriers, has_keys)
        for has_keys in _given(keyed, (True, False) if by.has_fixpoints else (False,))
        for has_barriers in _given(ranks, (False, True) if by.has_ranks else (False,))
    ]
    if len(ways) > 1:
        for has_barriers, has_keys in ways:
            result = by.of_all_facts(
                sketched, has_rank_barriers=has_barriers, has_keyed_fixpoints=has_keys
            )
            is_safe = result.root.status is not Status.UNSAFE
            if is_safe and (keyed is not None or not has_keys or _leaves_keys_out(result)):
                return has_barriers, has_keys
    return ways[-1]


def _given(asked: bool | None, tried: tuple[bool, ...]) -> tuple[bool, ...]:
    return tried if asked is None else (asked,)


def _leaves_keys_out(analysis: Analysis) -> bool:
    """Whether a fixpoint that is KEYED has something above it that can drop all rows of a key."""
    narrowed = {id(node) for node in _narrowed(analysis.nodes[0], is_narrowed=False)}
    pairs = zip(analysis.nodes, analysis.states, strict=True)
    return any(id(node) in narrowed and state.status is Status.KEYED for node, state in pairs)


def _narrowed(plan: Plan, *, is_narrowed: bool) -> Iterator[Fixpoint]:
    """The fixpoints with something above that leaves rows out."""
    if isinstance(plan, Fixpoint):
        if is_narrowed:
            yield plan
        return
    match plan:
        case Project() | Sort() | Distinct() | Aggregate() | Window():
            pass
        case SetOperation(kind=SetKind.UNION):
            pass
        case Join(kind=kind) if kind in _OUTER:
            pass
        case _:
            is_narrowed = True
    for child in inputs_of(plan):
        yield from _narrowed(child, is_narrowed=is_narrowed)


def barrier_positions(analysis: Analysis) -> tuple[int, ...]:
    """Nodes that make sketched inputs exact: fixpoints, and top-k that are not the last step."""
    last = 0
    while isinstance(analysis.nodes[last], Project | Sort):
        last += 1
    return tuple(
        position
        for position, (node, state) in enumerate(zip(analysis.nodes, analysis.states, strict=True))
        if state.status is Status.EXACT
        and (
            (isinstance(node, Fixpoint) and state.sketched)
            or (
                isinstance(node, TopK)
                and position != last
                and analysis.states[position + 1].status is not Status.EXACT
            )
        )
    )


def keyed_groups(
    plan: Plan, sketched: Mapping[AccessId, ColumnName], by: PlanJudge
) -> Iterator[frozenset[AccessId]]:
    """Per fixpoint that can be KEYED, the accesses below it, of which one sketch is that of all.

    Whatever is known of the data, and whether it is KEYED or not.
    """
    for ranks in (False, True):
        result = by.of_all_facts(sketched, has_rank_barriers=ranks, has_keyed_fixpoints=True)
        for node, state in zip(nodes_of(plan), result.states, strict=True):
            if isinstance(node, Fixpoint) and state.status is Status.KEYED:
                yield state.sketched
