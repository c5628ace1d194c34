"""What numbers of nodes stand for, by the type of column that a test is about."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from impctl.data.keys import key_codes
from impctl.data.schema import DOUBLE, LONG, STRING, SqlType
from impctl.data.vector import all_null

_NAN, _ODD = 4, 1
"""The nodes that are NaN among doubles, and what has NULL's code among numbers that collide."""


@dataclass(frozen=True)
class Kind:
    """What nodes are."""

    type: SqlType
    arrow: pa.DataType
    odd: int | None = None
    """What stands for one of the nodes, if not its number."""

    def value(self, node: int | None, turn: int) -> Any:
        if node is None or self.type == LONG:
            return self.odd if node == _ODD and self.odd is not None else node
        if self.type == STRING:
            return "n" * node
        if node == 0:
            return -0.0 if turn % 2 else 0.0
        return math.nan if node == _NAN else node + 0.5

    def node(self, value: Any) -> int | None:
        if value is None or self.type == LONG:
            is_odd = value is not None and value == self.odd
            return _ODD if is_odd else value  # type: ignore[no-any-return]  # a number or NULL
        if self.type == STRING:
            return len(value)
        if math.isnan(value):
            return _NAN
        return 0 if value == 0 else int(value - 0.5)


KINDS = {
    "numbers": Kind(LONG, pa.int64()),
    "collisions": Kind(LONG, pa.int64(), int(key_codes([all_null(LONG, 1)], 1)[0])),
    "texts": Kind(STRING, pa.large_string()),
    "doubles": Kind(DOUBLE, pa.float64()),
}
