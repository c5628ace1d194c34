"""The table of the suite `skipping`: the same rows, in files of one order or another.

A row has a unique `id`, a group `a` (groups of equally many rows), a `day` that follows nothing, a
measure `b`, and two columns that tell groups apart to within a tenth of a percent: `p` is about the
place of a group among all, counted from the middle one on, so that groups with a small `p` lie
together; `q` is about the place in an order without any, so that groups with a small `q` lie
scattered. Both go from 0 to a million.

Law: equal arguments give equal rows and files; the rows of a table do not depend on its order or
on how many files it has. Memory: a number per row where they are not sorted, else one file.
Out of scope: writing the files (`tables.write.maintenance`).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from impctl.errors import UsageError

Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

TOP = 1_000_000
"""Where `p` and `q` end."""
DAYS = 365
_NOISE = 1_000
"""How far `p` and `q` of a row lie from those of its group."""
_NEARLY = 0.01
"""How far a row of a nearly sorted table lies from its place, over all rows."""
_ZONE_BITS = 10
"""Bits of each column that a Z-order interleaves."""


class Order(StrEnum):
    """How rows are placed in files."""

    SORTED = "sorted"
    NEARLY = "nearly"
    ZORDER = "zorder"
    RANDOM = "random"


def layout_files(rows: int, groups: int, order: Order, files: int, seed: int) -> Iterator[pa.Table]:
    """The rows of each file, in the order of the files; every file has some."""
    if not 1 <= groups <= rows or not 1 <= files <= rows:
        raise UsageError(
            f"{rows} rows cannot form {groups} groups in {files} files",
            hint="ask for more rows, or for fewer groups and files",
        )
    return _files(rows, groups, order, files, seed)


def _files(rows: int, groups: int, order: Order, files: int, seed: int) -> Iterator[pa.Table]:
    placed = _placed(rows, groups, order, seed)
    for number in range(files):
        start, end = number * rows // files, (number + 1) * rows // files
        positions = np.arange(start, end) if placed is None else placed[start:end]
        yield _rows(positions, rows, groups, seed)


def _rows(positions: Integers, rows: int, groups: int, seed: int) -> pa.Table:
    a = positions * groups // rows
    from_middle = (a + groups // 2) % groups
    in_no_order = _scattered(a, groups, seed)
    columns = {
        "id": positions,
        "a": a,
        "day": _days(positions, seed),
        "b": _drawn(positions, seed, 1) * 100.0,
        "p": _around(from_middle, groups, _drawn(positions, seed, 2)),
        "q": _around(in_no_order, groups, _drawn(positions, seed, 3)),
    }
    return pa.table({name: pa.array(values) for name, values in columns.items()})


def _placed(rows: int, groups: int, order: Order, seed: int) -> Integers | None:
    """The number of the row at each place; None where that is the place itself."""
    positions = np.arange(rows)
    match order:
        case Order.SORTED:
            return None
        case Order.RANDOM:
            return np.random.default_rng(seed).permutation(rows)
        case Order.NEARLY:
            away = (_drawn(positions, seed, 4) - 0.5) * 2.0 * _NEARLY * rows
            return np.argsort(positions + away, kind="stable")
    zones = 1 << _ZONE_BITS
    across = positions * groups // rows * zones // groups
    return np.argsort(_interleaved(across, _days(positions, seed) * zones // DAYS), kind="stable")


def _interleaved(one: Integers, other: Integers) -> Integers:
    """The bits of both in turn, the first one's before the other's."""
    result = np.zeros(len(one), dtype=np.int64)
    for bit in range(_ZONE_BITS):
        result |= ((one >> bit) & 1) << (2 * bit + 1)
        result |= ((other >> bit) & 1) << (2 * bit)
    return result


def _scattered(a: Integers, groups: int, seed: int) -> Integers:
    """The place of each group in an order of its own."""
    return np.random.default_rng(seed + 1).permutation(groups)[a]


def _around(positions: Integers, groups: int, drawn: npt.NDArray[np.float64]) -> Integers:
    """The place of a group from 0 to `TOP`, give or take."""
    return positions * TOP // groups + ((drawn - 0.5) * 2 * _NOISE).astype(np.int64)


def _days(positions: Integers, seed: int) -> Integers:
    return np.asarray(_drawn(positions, seed, 0) * DAYS).astype(np.int64)


def _drawn(positions: Integers, seed: int, stream: int) -> npt.NDArray[np.float64]:
    """A number in [0, 1) for each row, of a stream of its own, whatever rows are drawn with it.

    By the mixing of SplitMix64 (Steele, Lea and Flood, 2014).
    """
    with np.errstate(over="ignore"):
        word = (positions.astype(np.uint64) + np.uint64(stream << 40)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        word += np.uint64(seed) * np.uint64(0xD1342543DE82EF95)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        word ^= word >> np.uint64(31)
    return (word >> np.uint64(11)).astype(np.float64) / float(1 << 53)
