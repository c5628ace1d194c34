"""A count per fragment is the sum of its weights, however many are counted at once."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from impctl.engine.range_counts import DenseCounts
from impctl.errors import CountBelowZeroError

SIZE = 40


@pytest.mark.parametrize("rows", [0, 1, 4, 5, 6, 30, 400])
@pytest.mark.parametrize("scale", [1, 2**50, 2**54 + 1])
def test_counts_are_sums(rows: int, scale: int) -> None:
    random = Random(rows)
    counts, model = DenseCounts("c", SIZE, "rows"), np.zeros(SIZE, dtype=np.int64)
    for _ in range(4):
        fragments = np.array([random.randrange(SIZE) for _ in range(rows)], dtype=np.int32)
        weights = np.array([scale + random.randrange(3) for _ in range(rows)], dtype=np.int64)
        weights[: rows // 2] = -(model[fragments[: rows // 2]] // 400)
        before = model.copy()
        for fragment, weight in zip(fragments.tolist(), weights.tolist(), strict=True):
            model[fragment] += weight
        change = counts.add(fragments, weights)
        assert counts.counts.tolist() == model.tolist()
        assert change.fragments.tolist() == np.flatnonzero(model != before).tolist()
        assert change.before.tolist() == before[change.fragments].tolist()
        assert change.after.tolist() == model[change.fragments].tolist()


@pytest.mark.parametrize("rows", [1, 400])
def test_what_was_never_counted_cannot_be_taken_away(rows: int) -> None:
    counts = DenseCounts("c", SIZE, "rows")
    with pytest.raises(CountBelowZeroError):
        counts.add(np.full(rows, 7), np.full(rows, -1))
