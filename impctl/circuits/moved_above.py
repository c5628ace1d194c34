"""The rows that pass or are otherwise because constants moved above what a circuit keeps.

Law: with A all rows below an operator without state before a step, d the change of these in it, O
and N the operator with the old and the new constants, what it puts out changes by N(A + d) - O(A) =
N(d) + N(A) - O(A). The first part is the step of the new circuit; the rest is put out beside it
(`turned`). A is told by the state of the grouping or join below, as it is before the step, through
whatever stands between, with the old constants. Cost: the rows of A, and of what changed, on.
Out of scope: constants in conditions on rows of a table (`circuits.moving`), which are read.
"""

from __future__ import annotations

from collections.abc import Mapping

from impctl.circuits.compile import Compiled
from impctl.circuits.moving import Moves
from impctl.engine.batch import Batch
from impctl.engine.circuit import Circuit
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class MovedAbove:
    """The positions of operators whose constants moved, and the circuit that has the old ones."""

    before: Circuit
    places: tuple[int, ...]


def moved_above(before: Compiled, after: Compiled, moves: Moves) -> MovedAbove | None:
    """The operators whose constants moved, but for conditions that `moves` has.

    None where the state of the one circuit is not that of the other.
    """
    if not _are_alike(before, after):
        return None
    read = {
        after.circuit.place_of(operator)
        for at, source in enumerate(after.sources)
        if source.access in moves
        for operator in after.circuit.selections_above(at, len(moves[source.access].after))
    }
    pairs = enumerate(zip(before.circuit, after.circuit, strict=True))
    places = [at for at, (was, now) in pairs if at not in read and not now.says_like(was)]
    return MovedAbove(before.circuit, tuple(places))


def untold(circuit: Circuit, above: MovedAbove) -> str | None:
    """Why the rows below one of these operators cannot be told from the state; None if they can."""
    operators = tuple(circuit)
    for place in above.places:
        wire = circuit.wires[place][0]
        while wire >= 0 and not circuit.can_tell(wire):
            lower = [below for below in circuit.wires[wire] if not circuit.can_tell(below)]
            if not operators[wire].is_linear:
                return "it is used above a LIMIT or a join whose rows are not all stored"
            wire = lower[0]
        if wire < 0:
            return "it is used with rows of a table, but not in a condition on single rows"
    return None


def turned_rows(circuit: Circuit, before: Circuit, places: tuple[int, ...]) -> Mapping[int, Batch]:
    """What the operators at these places put out beside the next step's own; before the step."""
    was = tuple(before)
    result = {}
    for at, operator in enumerate(circuit):
        if at in places:
            (wire,) = circuit.wires[at]
            rows = circuit.told(wire, before)
            if len(rows):
                result[at] = operator.turned(rows, was[at])
    return {at: batch for at, batch in result.items() if len(batch)}


def _are_alike(before: Compiled, after: Compiled) -> bool:
    """Whether the circuits differ in nothing but what operators without state compute.

    Plans that differ in constants alone come to other operators only where these make conditions
    or arguments one that were two, or change in which order relations are joined.
    """
    sources = [
        [(source.access, source.scan.columns, source.scan.partitions) for source in one.sources]
        for one in (before, after)
    ]
    mine, theirs = tuple(before.circuit), tuple(after.circuit)
    return (
        sources[0] == sources[1]
        and before.circuit.wires == after.circuit.wires
        and len(mine) == len(theirs)
        and all(one.keeps_like(other) for one, other in zip(mine, theirs, strict=True))
    )
