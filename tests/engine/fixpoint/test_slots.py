"""Slots of keys: equal keys have one, others never, whatever their codes."""

from __future__ import annotations

import random

import numpy as np

from impctl.data.keys import group_rows, key_codes
from impctl.data.schema import LONG
from impctl.data.vector import Vector, all_null
from impctl.engine.fixpoint.rows import Slots

_ODD = int(key_codes([all_null(LONG, 1)], 1)[0])
"""The number that has the code of NULL."""


def _column(values: list[int | None]) -> Vector:
    valid = np.array([value is not None for value in values])
    return Vector(LONG, np.array([value or 0 for value in values], dtype=np.int64), valid)


def test_keys_keep_their_slots() -> None:
    rng = random.Random(5)
    for _ in range(300):
        slots, known = Slots(), dict[int | None, int]()
        for _ in range(rng.randint(1, 6)):
            values = [rng.choice((None, _ODD, 0, 1, 2, 3)) for _ in range(rng.randint(1, 5))]
            column = _column(values)
            grouping = group_rows([column], len(column))
            leaders = grouping.leaders([column])
            asked = [values[at] for at in grouping.first.tolist()]
            result = slots.find(grouping.codes, leaders)
            assert result.tolist() == [known.get(value, -1) for value in asked]
            new = (result < 0).nonzero()[0]
            rest = [key.take(new) for key in leaders]
            result[new] = slots.add(grouping.codes[new], rest)
            known.update(zip(asked, result.tolist(), strict=True))
            assert sorted(known.values()) == list(range(len(slots)))
            chosen = np.array(sorted(rng.sample(sorted(known.values()), 1)))
            codes, same = slots.ordered(chosen)
            assert same.tolist() == chosen.tolist()
            assert (
                codes.tolist()
                == key_codes([key.take(chosen) for key in slots.columns()], len(chosen)).tolist()
            )
