"""Backward: the rows of a fixpoint from which some of them are derived, in any way.

Identity: with A the numbers of some rows, U = A + {body : head <- body, head in U}, each once; the
output is U's change, and its lineage (`operators.lineage`) has the fragments of the derivations
whose head is in U, each once. It is a fixpoint itself, over the first one's derivations turned
round (`engine.fixpoint.heads_and_bodies`), and maintained as such (`operators.fixpoint`): what
derives a row of A in a circle only goes with it. Derivations from nothing lead to the number
`NOTHING`, which is no row's: so the fragments of these are told as those of others are.
State: the derivations by their heads, 16 bytes each beside the tags and what an index has of a row,
and 32 bytes for each row of U and its place in the step. Cost: as of a fixpoint, the derivations
that came, went or came to be of a row in U.
It always ends, as U has rows of the fixpoint alone: no limit is asked of it.
"""

from __future__ import annotations

import sys

from impctl.data.schema import LONG
from impctl.engine.circuit import Circuit
from impctl.engine.fixpoint.heads_and_bodies import BODY, HEAD
from impctl.engine.fixpoint.limits import Limits
from impctl.engine.operators.fixpoint import Fixpoint
from impctl.engine.operators.join import Join, Side
from impctl.engine.operators.project import Project
from impctl.engine.operators.used_rows import ROW
from impctl.expr.nodes import ColumnRef

_RANK = "impctl/rank"
_NO_LIMITS = Limits(rounds=sys.maxsize, rows=sys.maxsize)


class Backward(Fixpoint):
    """Its inputs are rows of A, with a number in the column `ROW`, and derivations with so many
    `accesses`."""

    def __init__(self, name: str, accesses: int) -> None:
        rows = Side(((ROW, LONG), (_RANK, LONG)), (ROW,), 0)
        derivations = Side(((HEAD, LONG), (BODY, LONG)), (HEAD,), accesses)
        join = Join(f"{name}.derivations", rows, derivations, [False])
        chosen = Project([(ROW, ColumnRef(BODY, LONG)), (_RANK, ColumnRef(_RANK, LONG))])
        step = Circuit([join, chosen], [(-1, -2), (0,)])
        super().__init__(name, ((ROW, LONG),), _RANK, step, (0, accesses), _NO_LIMITS)

    def end_by(self, limits: Limits) -> None:
        """The limits are of the rows of the query, of which these are some."""
