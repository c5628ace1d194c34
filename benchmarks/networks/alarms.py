"""Sensors on a wide field, and alarms: places around which all of them are triggered.

Sensors stand 10 m apart in a square; what is nearer than 20 m is near, eight others but at the rim.
Their numbers follow their places along a Hilbert curve, so that what lies together has numbers that
do, mostly. Tables are those of `sensors`: `sensor`, `seed`, `near`, `triggered`. There are as many
seeds; all sensors within 50 m of one are triggered, and of the others one in five, too few for them
to hang together over the field.

Law: equal arguments give equal rows. Out of scope: the field of the paper (`sensors`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from benchmarks.networks.sensors import SEEDS
from benchmarks.networks.shapes import Integers
from impctl.errors import UsageError

APART_CM = 1_000
ALARM_CM = 5_000
"""How far from its seed all sensors are triggered."""
OTHERS = 0.2
"""Of the other sensors those that are triggered."""
LEAST = 400


def alarm_tables(sensors: int, seed: int) -> Mapping[str, pa.Table]:
    """The four tables by name, of the largest square of at most so many sensors; UsageError below
    400 of them."""
    if sensors < LEAST:
        raise UsageError(
            f"A field of {sensors} sensors is too small for alarms",
            hint=f"ask for at least {LEAST} rows",
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
        "near": _near(side, column, row),
        "triggered": pa.table({"id": numbers, "sensor": triggered, "at": ats}),
    }


def _places(side: int) -> tuple[Integers, Integers]:
    """Column and row of every sensor, in the order of their numbers."""
    row, column = np.divmod(np.arange(side * side, dtype=np.int64), side)
    order = np.argsort(_along_curve(column, row, 1 << (side - 1).bit_length()))
    return column[order], row[order]


def _along_curve(column: Integers, row: Integers, side: int) -> Integers:
    """How far along the Hilbert curve of a square these places are; its side is a power of two."""
    at = np.zeros(len(column), dtype=np.int64)
    step = side // 2
    while step:
        right, down = (column & step) > 0, (row & step) > 0
        at += step * step * ((3 * right) ^ down)
        # Quarters are turned so that each begins where the one before it ends.
        turned = np.where(right, side - 1 - column, column), np.where(right, side - 1 - row, row)
        column, row = np.where(down, column, turned[1]), np.where(down, row, turned[0])
        step //= 2
    return at


def _near(side: int, column: Integers, row: Integers) -> pa.Table:
    """The eight around each."""
    number = np.empty((side, side), dtype=np.int64)
    number[row, column] = np.arange(side * side)
    parts = []
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            if down or right:
                there, beside = row + down, column + right
                at = np.flatnonzero((there >= 0) & (there < side) & (beside >= 0) & (beside < side))
                cost = round(APART_CM * (down * down + right * right) ** 0.5)
                costs = np.full(len(at), cost, dtype=np.int64)
                parts.append((at, number[there[at], beside[at]], costs))
    src, dst, cost_of = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = np.lexsort((dst, src))
    return pa.table({"src": src[order], "dst": dst[order], "cost": cost_of[order]})
