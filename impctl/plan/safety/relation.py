"""The four ways in which a value over the sketch can compare with that over the table.

Law: what each means is said in `plan.safety.direction`; `meet` and `mirrored` follow from that.
Out of scope: which of them holds of what.
"""

from __future__ import annotations

from enum import StrEnum


class Relation(StrEnum):
    EQUAL = "equal"
    AT_MOST = "at most"
    AT_LEAST = "at least"
    UNKNOWN = "unknown"

    @property
    def mirrored(self) -> Relation:
        """The relation of the negated value."""
        match self:
            case Relation.AT_MOST:
                return Relation.AT_LEAST
            case Relation.AT_LEAST:
                return Relation.AT_MOST
            case Relation.EQUAL | Relation.UNKNOWN:
                return self

    def meet(self, other: Relation) -> Relation:
        """What holds of a value that comes from either side."""
        if self is other or other is Relation.EQUAL:
            return self
        return other if self is Relation.EQUAL else Relation.UNKNOWN
