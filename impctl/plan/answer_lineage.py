"""Where the answer's lineage alone is asked for, the plan by which that is judged and kept.

Law: the plan yields the query's rows on every database. A fixpoint that is a set is marked as one
that is sketched for the answer: of the derivations of its rows those count that lead to a row that
the answer stems from, and the rules judge what stands above as over a table that is there in part
(docs/soundness.md, "The lineage of the answer alone"). Of UNION ALL all derivations of a row count,
and of best rows all that others are beaten by: these stay barriers.
Out of scope: whether that is safe (`plan.safety`), following derivations back (`engine`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from impctl.plan.nodes import Fixpoint, Plan, inputs_of, nodes_of, with_inputs

_HELD = "its sketch holds only the rows that the result is derived from"
_WHOLE = "its sketch holds the whole lineage: "


def for_answer(plan: Plan) -> Plan:
    """The plan with its fixpoints sketched for the answer alone, where they can be."""
    if not any(isinstance(node, Fixpoint) for node in nodes_of(plan)):
        return plan
    result = with_inputs(plan, tuple(map(for_answer, inputs_of(plan))))
    if isinstance(result, Fixpoint) and not _why_whole(result):
        return replace(result, answers=True)
    return result


def is_open(node: Fixpoint) -> bool:
    """Whether it is no barrier; a rule may have found since that the best rows alone count."""
    return node.answers and not _why_whole(node)


def for_all(plan: Plan) -> Plan:
    """The plan with barriers for all its fixpoints."""
    if not any(isinstance(node, Fixpoint) and node.answers for node in nodes_of(plan)):
        return plan
    result = with_inputs(plan, tuple(map(for_all, inputs_of(plan))))
    return replace(result, answers=False) if isinstance(result, Fixpoint) else result


def answer_notes(root: Plan, told: Collection[int]) -> Mapping[int, str]:
    """What the sketches of the fixpoints at these positions of `nodes_of(root)` hold."""
    notes = {}
    for position, node in enumerate(nodes_of(root)):
        if isinstance(node, Fixpoint) and position in told:
            why = _why_whole(node)
            notes[position] = f"{_WHOLE}{why}" if why else _HELD
    return notes


def why_unused(root: Plan, barriers: Collection[int], keyed: Collection[int]) -> str:
    """Why sketches are the same with the lineage of all; empty where they may be smaller.

    Positions of `nodes_of(root)`: of nodes with a sketched access below, those that are keyed and
    the others, which are barriers unless they are sketched for the answer alone.
    """
    result = [(at, node) for at, node in enumerate(nodes_of(root)) if isinstance(node, Fixpoint)]
    if not result:
        return "its plan has no WITH RECURSIVE"
    whole = [_why_whole(node) for at, node in result if at in barriers]
    if "" in whole:
        return ""
    if whole:
        return whole[0]
    if any(at in keyed for at, _ in result):
        return "the recursion is keyed, so its sketch already holds only the keys in the result"
    return "WITH RECURSIVE reads no table that has a sketch"


def _why_whole(node: Fixpoint) -> str:
    """Why all derivations of all rows count; empty where they need not."""
    if not node.is_set:
        return "UNION ALL counts all derivations of a row"
    return "" if node.best is None else "the best rows have all their derivations"
