"""OneRow: one row without columns, there from the start.

Identity: the output is that row over whatever the tables hold; its change is never any. No input,
no state.
"""

from __future__ import annotations

import numpy as np

from impctl.engine.batch import Batch
from impctl.engine.operator import Operator


class OneRow(Operator):
    """Its row comes with `start`."""

    form = ()

    @property
    def is_linear(self) -> bool:
        return True

    def step(self) -> Batch:
        """The row: asked only for all that there is."""
        return Batch({}, np.ones(1, dtype=np.int64), ())

    def start(self) -> Batch:
        return self.step()
