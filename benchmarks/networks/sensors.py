"""Sensors on a field of 100 m by 100 m, the regions that begin at some of them, and who is near.

Sensors stand in a square grid with equal distances. Tables: `sensor` (`id`, `x`, `y`, in
centimetres, so that they are whole), `seed` (`region`, `sensor`), `near` (`src`, `dst`, `cost`,
the distance in centimetres; both ways, below 20 m) and `triggered` (`id`, `sensor`, `at`): all
seeds first, then half of the others in no order. `at` is 0 for seeds, else from 1 on.

Law: equal arguments give equal rows. Out of scope: sensors that move, other fields.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from impctl.errors import UsageError

FIELD_CM = 10_000
NEAR_CM = 2_000
SEEDS = 5


def sensor_tables(sensors: int, seed: int) -> Mapping[str, pa.Table]:
    """The four tables by name; the largest square of at most so many sensors.

    UsageError where none is near another, or there is more than one every centimetre.
    """
    side = int(sensors**0.5)
    if not FIELD_CM // NEAR_CM < side <= FIELD_CM:
        raise UsageError(
            f"A field of {sensors} sensors is too small", hint="ask for at least 36 rows"
        )
    random = np.random.default_rng(seed)
    step = FIELD_CM // side
    ids = np.arange(side * side, dtype=np.int64)
    order = random.permutation(ids)
    seeds, others = order[:SEEDS], order[SEEDS:]
    triggered = np.concatenate([seeds, others[: len(others) // 2]])
    ats = np.maximum(np.arange(len(triggered), dtype=np.int64) - SEEDS + 1, 0)
    return {
        "sensor": pa.table({"id": ids, "x": ids % side * step, "y": ids // side * step}),
        "seed": pa.table({"region": np.arange(SEEDS, dtype=np.int64), "sensor": seeds}),
        "near": _near(side, step),
        "triggered": pa.table(
            {"id": np.arange(len(triggered), dtype=np.int64), "sensor": triggered, "at": ats}
        ),
    }


def _near(side: int, step: int) -> pa.Table:
    """Pairs below 20 m, found by their distance in the grid."""
    reach = NEAR_CM // step
    rows, columns = np.divmod(np.arange(side * side, dtype=np.int64), side)
    parts = []
    # As many offsets as sensors lie near one.
    for down in range(-reach, reach + 1):
        for right in range(-reach, reach + 1):
            squared = (down * down + right * right) * step * step
            if 0 < squared < NEAR_CM * NEAR_CM:
                at = np.flatnonzero(
                    (rows + down >= 0)
                    & (rows + down < side)
                    & (columns + right >= 0)
                    & (columns + right < side)
                )
                cost = np.full(len(at), round(squared**0.5), dtype=np.int64)
                parts.append((at, at + down * side + right, cost))
    src, dst, cost = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = np.lexsort((dst, src))
    return pa.table({"src": src[order], "dst": dst[order], "cost": cost[order]})
