"""What an index join writes down for a changed row, and what it keeps.

Law: relations are joined in the order in which the circuit joins them; each step but the last keeps
what it joined, for the next one to look up. Rows are products of fan-outs, as if keys were
independent. What is not known is None, never a guess.
Out of scope: how long it takes (`circuits.trees.costs.times`).
"""

from __future__ import annotations

from collections.abc import Sequence

from impctl.circuits.join_order import chain_of
from impctl.circuits.strategy import row_bytes
from impctl.circuits.trees.costs.sides import FanOuts, KeySide, key_side
from impctl.circuits.trees.costs.tree import PAIR_BYTES
from impctl.engine.jointree.spec import Mode
from impctl.expr.nodes import ColumnRef, Compare, CompareOp, Expr
from impctl.plan.nodes import (
    Join,
    JoinKind,
    Plan,
    Project,
    Scan,
    Select,
    Sort,
    attributes_of,
    scans_of,
)
from impctl.values import dataclass

_EQUALITIES = (CompareOp.EQUAL, CompareOp.NULL_SAFE_EQUAL)


@dataclass(frozen=True, slots=True)
class JoinedAccess:
    """What one changed row of an access comes to.

    Conditions keep a `share` of the access's rows. A row passes so many `joins`; those before the
    last one write `kept` rows, which are looked up later, and the last one writes `last`.
    """

    scan: Scan
    share: float
    joins: int
    kept: float
    last: float


@dataclass(frozen=True, slots=True)
class IndexCost:
    """What each access comes to, and the bytes of all rows that are kept."""

    accesses: tuple[JoinedAccess, ...]
    bytes: float


def index_cost(joins: Plan, mode: Mode, fan_outs: FanOuts) -> IndexCost | None:
    """The cost of a block's joins; None where some key is computed, or they are no inner joins.

    Where groups decide (`mode`) they keep the ranges of their rows too.
    """
    while isinstance(joins, Select | Project | Sort):
        joins = joins.child
    if not isinstance(joins, Join) or joins.kind is not JoinKind.INNER:
        return None
    chain = _Chain.of(joins, fan_outs)
    joined_accesses: list[JoinedAccess] = []
    held = 0.0
    for at, plan in enumerate(chain.plans):
        size = chain.size(at)
        steps = [chain.met(at, last) for last in range(max(at, 1), len(chain.plans))]
        known = [one for one in steps if one is not None]
        if size is None or len(known) < len(steps):
            return None
        rows, share = size
        *kept, last = (share * one for one in known)
        joined_accesses += [
            JoinedAccess(scan, share, len(known), sum(kept), last) for scan in scans_of(plan)
        ]
        held += rows * (_row_bytes([plan]) + (PAIR_BYTES if mode is Mode.RING else 0))
        if at == 0:
            held += sum(
                rows * one * _row_bytes(chain.plans[: last + 1])
                for last, one in enumerate(known[:-1], 1)
            )
    return IndexCost(tuple(joined_accesses), held)


def _row_bytes(plans: Sequence[Plan]) -> int:
    """Of a row of these relations joined; as if each was sketched once."""
    columns = [(one.id, one.type) for plan in plans for one in attributes_of(plan)]
    return row_bytes([(name, kind) for name, kind in columns if kind is not None], len(plans))


@dataclass(frozen=True, slots=True)
class _Arc:
    """An equality between two relations of the chain, by their places."""

    ends: tuple[int, int]
    columns: tuple[Expr, Expr]
    null_safe: bool


@dataclass(frozen=True, slots=True)
class _Chain:
    """Relations in the order in which they are joined, and what connects them."""

    plans: tuple[Plan, ...]
    arcs: tuple[_Arc, ...]
    fan_outs: FanOuts

    @classmethod
    def of(cls, joins: Join, fan_outs: FanOuts) -> _Chain:
        """The inner joins as a chain."""
        chain = chain_of(joins)
        owner = {name: at for at, one in enumerate(chain.relations) for name in one.ids}
        arcs = []
        for part in chain.conditions:
            match part:
                case Compare(op, ColumnRef() as one, ColumnRef() as other) if op in _EQUALITIES:
                    ends = (owner[one.id], owner[other.id])
                    arcs.append(_Arc(ends, (one, other), op is CompareOp.NULL_SAFE_EQUAL))
        return cls(tuple(one.plan for one in chain.relations), tuple(arcs), fan_outs)

    def between(self, one: int, other: int) -> list[_Arc]:
        return [arc for arc in self.arcs if {one, other} == set(arc.ends)]

    def side(self, at: int, other: int) -> KeySide | None:
        """The columns by which a relation meets another one."""
        arcs = self.between(at, other)
        exprs = [arc.columns[arc.ends.index(at)] for arc in arcs]
        return key_side(self.plans[at], exprs, [arc.null_safe for arc in arcs])

    def size(self, at: int) -> tuple[float, float] | None:
        """Rows of a relation that its conditions keep, and the share of all that these are."""
        side = self.side(at, next(other for _, other in self._way(at, len(self.plans) - 1)))
        if side is None:
            return None
        result = self.fan_outs.size(side)
        return result.rows, result.share

    def met(self, start: int, last: int) -> float | None:
        """What a row that counts comes to when it is joined with all up to the last one."""
        product = 1.0
        for one, other in self._way(start, last):
            sides = (self.side(one, other), self.side(other, one))
            if sides[0] is None or sides[1] is None:
                return None
            product *= self.fan_outs.met(sides[0], sides[1])
        return product

    def _way(self, start: int, last: int) -> list[tuple[int, int]]:
        """Who is met from whom, until all up to the last one are."""
        reached, way = [start], list[tuple[int, int]]()
        left = [at for at in range(last + 1) if at != start]
        while left:
            connected = (
                (one, other) for one in reached for other in left if self.between(one, other)
            )
            # What no equality connects is met as a whole.
            one, other = next(connected, (reached[0], left[0]))
            way.append((one, other))
            reached.append(other)
            left.remove(other)
        return way
