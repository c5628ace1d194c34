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
from dataclasses import dataclass

import numpy as np

from impctl.circuits.compile import Compiled
from impctl.circuits.moving import Moves
from impctl.data.keys import same_keys
from impctl.data.vector import Bools, Vector
from impctl.engine.batch import Batch, stacked_batches
from impctl.engine.circuit import Circuit
from impctl.engine.consolidate import identity_of
from impctl.engine.operator import Keeper, Operator
from impctl.engine.operators.aggregate import Aggregate
from impctl.engine.operators.join import Join
from impctl.engine.operators.project import Project
from impctl.engine.operators.select import Select
from impctl.engine.row_index import RowIndex


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
    places = [at for at, (was, now) in pairs if at not in read and not _says_the_same(was, now)]
    return MovedAbove(before.circuit, tuple(places))


def untold(circuit: Circuit, above: MovedAbove) -> str | None:
    """Why the rows below one of these operators cannot be told from the state; None if they can."""
    operators = tuple(circuit)
    for place in above.places:
        wire = circuit.wires[place][0]
        while wire >= 0 and not circuit.can_tell(wire):
            lower = [below for below in circuit.wires[wire] if not circuit.can_tell(below)]
            if not operators[wire].is_linear:
                return "it is asked above a LIMIT or a join whose rows are not all kept"
            wire = lower[0]
        if wire < 0:
            return "it is asked of rows of a table, elsewhere than in a condition on one of them"
    return None


def turned_rows(circuit: Circuit, before: Circuit, places: tuple[int, ...]) -> Mapping[int, Batch]:
    """What the operators at these places put out beside the next step's own; before the step."""
    was = tuple(before)
    found = {}
    for at, operator in enumerate(circuit):
        if at in places:
            (wire,) = circuit.wires[at]
            rows = circuit.told(wire, before)
            if len(rows):
                found[at] = _difference(was[at], operator, rows)
    return {at: batch for at, batch in found.items() if len(batch)}


def _difference(was: Operator, now: Operator, rows: Batch) -> Batch:
    """N(rows) - O(rows), without most rows that are in both."""
    if isinstance(was, Select) and isinstance(now, Select):
        rows = rows.keep(was.passing(rows) != now.passing(rows))
        return _sum(now.step(rows), was.step(rows).negated())
    assert isinstance(was, Project)
    assert isinstance(now, Project)
    new, old = now.step(rows), was.step(rows)
    differs = np.zeros(len(rows), dtype=np.bool_)
    for name in new.columns:
        differs |= ~_is_same(old.columns[name], new.columns[name])
    return _sum(new.keep(differs), old.keep(differs).negated())


def _sum(came: Batch, went: Batch) -> Batch:
    parts = [part for part in (came, went) if len(part)]
    return stacked_batches(parts) if parts else came


def _is_same(one: Vector, other: Vector) -> Bools:
    """Where values are the same to the bit, and so are their bounds."""
    same = same_keys([identity_of(one)], [identity_of(other)])
    assert same is not None, "there is one column"
    if one.error is None and other.error is None:
        return same
    none = np.zeros(len(one))
    mine, theirs = (none if v.error is None else v.error for v in (one, other))
    return np.asarray(same & ((mine == theirs) | (np.isnan(mine) & np.isnan(theirs))))


def _are_alike(before: Compiled, after: Compiled) -> bool:
    """Whether the circuits differ in nothing but what operators without state compute."""
    sources = [
        [(source.access, source.scan.columns, source.scan.partitions) for source in one.sources]
        for one in (before, after)
    ]
    mine, theirs = tuple(before.circuit), tuple(after.circuit)
    return (
        sources[0] == sources[1]
        and before.circuit.wires == after.circuit.wires
        and len(mine) == len(theirs)
        and all(_keep_alike(one, other) for one, other in zip(mine, theirs, strict=True))
    )


def _keep_alike(one: Operator, other: Operator) -> bool:
    """Whether two operators keep the same of the same columns.

    Plans that differ in constants alone come to other operators only where these make conditions
    or arguments one that were two, or change in which order relations are joined.
    """
    if type(one) is not type(other):
        return False
    match one, other:
        case Project(), Project():
            return [name for name, _ in one.outputs] == [name for name, _ in other.outputs]
        case Join(), Join():
            return one.sides == other.sides
        case Aggregate(), Aggregate():
            return one.keys == other.keys and one.columns == other.columns
        case _:
            mine, theirs = one.arrangements(), other.arrangements()
            return list(map(_form, mine)) == list(map(_form, theirs))


def _form(keeper: Keeper) -> tuple[object, ...]:
    """The name of a piece of state, and its columns where these are rows."""
    if isinstance(keeper, RowIndex):
        return keeper.name, keeper.columns, keeper.keys
    return (keeper.name,)


def _says_the_same(was: Operator, now: Operator) -> bool:
    match was, now:
        case Select(), Select():
            return was.predicate == now.predicate
        case Project(), Project():
            return was.outputs == now.outputs
        case _:
            return True
