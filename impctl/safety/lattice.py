"""What is known of a plan node's rows over the sketches, compared with its rows over the tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from impctl.expr.nodes import ColumnRef, Compare, CompareOp, Expr, Span, conjuncts
from impctl.safety.direction import Columns, Relation
from impctl.types import AccessId, AttributeId
from impctl.values import dataclass

if TYPE_CHECKING:
    from impctl.plan.nodes import Attribute
    from impctl.safety.facts import KnownSigns


class Status(StrEnum):
    EXACT = "exact"
    KEYED = "keyed"
    CONTAINED = "contained"
    UNSAFE = "unsafe"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a sketch is not safe: one sentence without a full stop, and the place in the SQL text."""

    reason: str
    span: Span | None = None


Keys = Mapping[AccessId, frozenset[AttributeId]]


@dataclass(frozen=True, slots=True)
class NodeState:
    """The state of one node.

    `sketched` are all sketched accesses below, `keys` only means something for KEYED.
    `identifiers` are sets of columns that tell all rows apart. `ties` is set where the rows depend
    on a choice among tied rows that two runs may make differently. `causes` says of a column why
    its relation is what it is, for messages.
    """

    status: Status
    columns: Columns
    sketched: frozenset[AccessId] = frozenset()
    keys: Keys = field(default_factory=dict)
    identifiers: frozenset[frozenset[AttributeId]] = frozenset()
    ties: Refusal | None = None
    causes: Mapping[AttributeId, str] = field(default_factory=dict)
    refusal: Refusal | None = None

    @property
    def is_whole(self) -> bool:
        """EXACT or KEYED: rows are unchanged or absent."""
        return self.status in (Status.EXACT, Status.KEYED)

    @property
    def is_equal(self) -> bool:
        """Whether every column has the value it has over the tables."""
        return all(r is Relation.EQUAL for r in self.columns.relations.values())


def refused(reason: str, span: Span | None) -> NodeState:
    """The state of a node that no sketch of the chosen attributes is safe for."""
    return NodeState(Status.UNSAFE, Columns({}, {}), refusal=Refusal(reason, span))


def equal_columns(attributes: tuple[Attribute, ...], signs: KnownSigns) -> Columns:
    """All these columns EQUAL."""
    return Columns({attribute.id: Relation.EQUAL for attribute in attributes}, signs)


def with_equalities(state: NodeState, predicate: Expr | None) -> NodeState:
    """KEYED: columns that the predicate equates with a key are keys too."""
    if state.status is not Status.KEYED or predicate is None:
        return state
    pairs = [pair for part in conjuncts(predicate) if (pair := _equated(part)) is not None]
    return replace(state, keys={a: _equal_to(columns, pairs) for a, columns in state.keys.items()})


def _equal_to(
    columns: frozenset[AttributeId], pairs: list[tuple[AttributeId, AttributeId]]
) -> frozenset[AttributeId]:
    """These columns with all that the pairs equate with one of them."""
    while True:
        more = {x for pair in pairs if (pair[0] in columns) != (pair[1] in columns) for x in pair}
        if not more:
            return columns
        columns |= more


def _equated(part: Expr) -> tuple[AttributeId, AttributeId] | None:
    """Two columns that are equal on every row which passes, value for value.

    Columns of different types are left out: a cast inside the comparison may round, and then two
    values of different fragments count as equal. Widening one integer type to another is exact.
    """
    if not (
        isinstance(part, Compare)
        and part.op in (CompareOp.EQUAL, CompareOp.NULL_SAFE_EQUAL)
        and isinstance(part.left, ColumnRef)
        and isinstance(part.right, ColumnRef)
    ):
        return None
    left, right = part.left.type, part.right.type
    if left == right or (left.is_integral and right.is_integral):
        return part.left.id, part.right.id
    return None
