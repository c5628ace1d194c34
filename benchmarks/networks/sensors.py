"""Sensors in a square grid, regions that start at some of them, and their neighbours.

Tables: `sensor` (`id`, `x`, `y`, in whole centimetres), `seed` (`region`, `sensor`), `near` (`src`,
`dst`, `cost`, the distance in centimetres; both ways, below 20 m) and `triggered` (`id`, `sensor`,
`at`): all seeds first, then others in random order. `at` is 0 for seeds, else from 1 on.

Law: equal arguments give equal rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from benchmarks.networks.shapes import Integers
from impctl.errors import UsageError

FIELD_CM = 10_000
NEAR_CM = 2_000
SEEDS = 5
APART_CM = 1_000
ALARM_CM = 5_000
"""All sensors within this distance of a seed are triggered."""
OTHERS = 0.2
"""The share of the other sensors that is triggered."""
LEAST_ALARMS = 400


def sensor_tables(sensors: int, seed: int) -> Mapping[str, pa.Table]:
    """The four tables by name, of a field of 100 m by 100 m: the largest square of so many sensors.

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


def alarm_tables(sensors: int, seed: int) -> Mapping[str, pa.Table]:
    """The tables of `sensor_tables` for a wide field, in the largest square of so many sensors.

    Sensors are 10 m apart and numbered along a Hilbert curve, so that neighbours mostly have close
    numbers. All sensors within 50 m of a seed are triggered, and one in five of the others, which
    is too few to connect them across the field. UsageError below 400 sensors.
    """
    if sensors < LEAST_ALARMS:
        raise UsageError(
            f"A field of {sensors} sensors is too small for alarms",
            hint=f"ask for at least {LEAST_ALARMS} rows",
        )
    side = int(sensors**0.5)
    random = np.random.default_rng(seed)
    column, row = _places(side)
    ids = np.arange(side * side, dtype=np.int64)
    seeds = random.permutation(ids)[:SEEDS]
    is_triggered = random.random(len(ids)) < OTHERS
    for one in seeds:
        down, right = row - row[one], column - column[one]
        is_triggered |= (down * down + right * right) * APART_CM**2 <= ALARM_CM**2
    others = random.permutation(np.setdiff1d(np.flatnonzero(is_triggered), seeds))
    triggered = np.concatenate([seeds, others])
    ats = np.maximum(np.arange(len(triggered), dtype=np.int64) - SEEDS + 1, 0)
    numbers = np.arange(len(triggered), dtype=np.int64)
    return {
        "sensor": pa.table({"id": ids, "x": column * APART_CM, "y": row * APART_CM}),
        "seed": pa.table({"region": np.arange(SEEDS, dtype=np.int64), "sensor": seeds}),
        "near": _renumbered(_near(side, APART_CM), row * side + column),
        "triggered": pa.table({"id": numbers, "sensor": triggered, "at": ats}),
    }


def _places(side: int) -> tuple[Integers, Integers]:
    """Column and row of every sensor, by number."""
    row, column = np.divmod(np.arange(side * side, dtype=np.int64), side)
    order = np.argsort(_along_curve(column, row, 1 << (side - 1).bit_length()))
    return column[order], row[order]


def _along_curve(column: Integers, row: Integers, side: int) -> Integers:
    """Positions along the Hilbert curve of a square; its side is a power of two."""
    positions = np.zeros(len(column), dtype=np.int64)
    step = side // 2
    while step:
        right, down = (column & step) > 0, (row & step) > 0
        positions += step * step * ((3 * right) ^ down)
        # Quadrants are turned, so that each starts where the previous one ends.
        turned = np.where(right, side - 1 - column, column), np.where(right, side - 1 - row, row)
        column, row = np.where(down, column, turned[1]), np.where(down, row, turned[0])
        step //= 2
    return positions


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
                indexes = np.flatnonzero(
                    (rows + down >= 0)
                    & (rows + down < side)
                    & (columns + right >= 0)
                    & (columns + right < side)
                )
                cost = np.full(len(indexes), round(squared**0.5), dtype=np.int64)
                parts.append((indexes, indexes + down * side + right, cost))
    src, dst, cost = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = np.lexsort((dst, src))
    return pa.table({"src": src[order], "dst": dst[order], "cost": cost[order]})


def _renumbered(near: pa.Table, places: Integers) -> pa.Table:
    """Pairs of places as pairs of the numbers that sensors have there."""
    number = np.empty(len(places), dtype=np.int64)
    number[places] = np.arange(len(places))
    src, dst = number[near["src"]], number[near["dst"]]
    return pa.table({"src": src, "dst": dst, "cost": near["cost"]}).sort_by(
        [("src", "ascending"), ("dst", "ascending")]
    )
