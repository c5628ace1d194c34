"""Windows of consecutive rows drawn along a column, with how many rows each of theirs stands for.

Law: the same snapshot, files and column give the same draw. A row's weight is how densely the rows
of all files lie at its group, over how densely those drawn do: 1 where a window holds whole groups,
rows over rows drawn where groups are scattered (Horvitz and Thompson, 1952, with the chance of a
group's row to be drawn told by statistics). No weight is below 1. What a draw leaves out makes
estimates wide, never an answer wrong.
Out of scope: values for boundaries (`tables.sample`), what is made of the rows
(`app.preparing.estimate`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from impctl.data.vector import Ints, from_arrow
from impctl.tables.bounds import ColumnBounds
from impctl.tables.density import Density, line_of
from impctl.tables.line import Line
from impctl.tables.rows import FileReader
from impctl.tables.snapshot import DataFile, Snapshot
from impctl.tables.storage import local_path
from impctl.types import ColumnName
from impctl.values import dataclass

Floats = npt.NDArray[np.float64]

_OF_ALL, _LEAST_ROWS, _MOST_ROWS = 1 / 50, 40_000, 80_000
"""About so many rows are drawn: what a tenth of a capture's time pays for."""
_WINDOWS, _FEWEST, _MOST_WINDOWS = 48, 20, 56
"""Windows that they are drawn in: fewer so that each has some whole values of the column; more
where that cannot be."""
_OF_ONE_VALUE = 700
"""Rows that tell of a value what more of them would."""
_WHOLE_VALUES, _FEW_VALUES = 10, 2.5
_ENDS = (0.15, 0.85)
_BESIDE = 3
"""Values on either side that tell how many rows one has."""
_AT_ONCE = 4
"""Slices read at a time: most of what one takes is waiting, and opening the file."""


@dataclass(frozen=True, slots=True)
class FileSample:
    """The files to draw from, and the rows drawn: windows, each of parts of so many rows."""

    snapshot: Snapshot
    files: tuple[DataFile, ...]
    rows: pa.Table
    windows: tuple[tuple[int, ...], ...]

    @property
    def total(self) -> float:
        """Rows of all files drawn from; 1 for a file whose rows the log does not tell."""
        return float(sum(_rows_of(self.files)))

    @property
    def window_of(self) -> Ints:
        """The number of each row's window; shape (n,)."""
        sizes = [sum(parts) for parts in self.windows]
        return np.repeat(np.arange(len(sizes)), sizes)

    def weights(self, groups: Mapping[ColumnName, ColumnBounds]) -> Floats:
        """Rows that each row drawn stands for, by the columns that its group shares; shape (n,).

        Each column comes with its bounds in `files`. Without a column that all rows of a group
        share, all rows over those drawn.
        """
        result: Floats = np.full(len(self.rows), self.total / max(len(self.rows), 1))
        for name, bounds in groups.items():
            result = np.minimum(result, self._weights_by(name, bounds))
        return np.asarray(np.maximum(result, 1.0))

    def held(self, name: ColumnName, bounds: ColumnBounds) -> tuple[Floats, Floats] | None:
        """For each row, how many rows there are of its value of a column, and how many files may
        hold it, by the statistics; shape (n,) each. None where they do not tell."""
        line = line_of(bounds)
        if line is None:
            return None
        places = self._places(name, line)
        filled, rows = self._filled(bounds)
        lows, ends = line.spans(filled)
        files = Density.of(lows, ends, ends - lows).at(places)
        # Files that reach into the next value are spread evenly over both: so are their neighbours.
        spread, half = Density.of(lows, ends, rows), _BESIDE * line.unit
        start = np.maximum(places - half, lows.min(initial=0.0))
        end = np.minimum(places + half + line.unit, ends.max(initial=0.0))
        with np.errstate(divide="ignore", invalid="ignore"):
            held = (spread.before(end) - spread.before(start)) / (end - start)
        return held * (line.unit or math.nan), files

    def _filled(self, bounds: ColumnBounds) -> tuple[ColumnBounds, Floats]:
        """Bounds of the files that hold more than NULL, and the rows of these."""
        rows = np.array(_rows_of(self.files), dtype=np.float64)
        return bounds.filled, rows[~bounds.is_all_null]

    def _places(self, name: ColumnName, line: Line) -> Floats:
        kind = self.snapshot.readable(name).type
        return line.places_of(from_arrow(self.rows.column(name), kind))

    def _weights_by(self, name: ColumnName, bounds: ColumnBounds) -> Floats:
        """How densely all rows lie at each row's value, over how densely those drawn do."""
        line = line_of(bounds)
        if line is None:
            return np.full(len(self.rows), np.inf)
        filled, rows = self._filled(bounds)
        places = self._places(name, line)
        held = Density.of(*line.spans(filled), rows)
        drawn = Density.of(*self._spans(places, line.unit))
        result = held.at(places) / np.maximum(drawn.at(places), 1e-12)
        return np.where(np.isfinite(result), result, np.inf)

    def _spans(self, places: Floats, unit: float) -> tuple[Floats, Floats, Floats]:
        """Where the values of each part start and end, and how many they would be if all of it
        were as dense as all but its ends: these hold parts of what lies beside them."""
        lows, ends, rows = [], [], []
        for part in _slices([size for parts in self.windows for size in parts]):
            own = places[part]
            own = own[np.isfinite(own)]
            if len(own):
                lows.append(float(own.min()))
                ends.append(max(float(own.max()) + unit, float(np.nextafter(lows[-1], np.inf))))
                rows.append(_evenly(own, lows[-1], ends[-1], unit))
        return np.array(lows), np.array(ends), np.array(rows)


def _evenly(own: Floats, low: float, end: float, unit: float) -> float:
    """How many values there would be from `low` to `end`, by those but the ends."""
    first, last = np.quantile(own, _ENDS, method="nearest")
    width = last - first + unit
    if first <= low or last + unit >= end or width <= 0:
        return float(len(own))
    between = np.count_nonzero((own >= first) & (own <= last))
    return float(between / width * (end - low))


def _slices(sizes: Sequence[int]) -> Iterator[slice]:
    """Stretches of so many rows, one after the other."""
    ends = np.cumsum(sizes)
    return (slice(end - size, end) for end, size in zip(ends, sizes, strict=True))


def file_sample(
    snapshot: Snapshot,
    files: Sequence[DataFile],
    columns: Sequence[ColumnName],
    along: ColumnBounds,
) -> FileSample:
    """Windows at even steps of rows, files in the order of least values of some column.

    `along` are that column's bounds. A window is what follows a file's start, in the files behind
    it too where it is small.
    """
    chosen = tuple(files)
    counts = np.array(_rows_of(files), dtype=np.int64)
    order = _ordered(along)
    size = _window_rows(counts, along)
    parts = [part for window in _windows(counts[order], size) for part in window]
    reader = FileReader(snapshot, [snapshot.readable(name) for name in columns], chosen)
    slices = [
        (chosen[order[at]], number_of, number) for number, (at, number_of, _) in enumerate(parts)
    ]
    if local_path(snapshot.path) is not None:
        # Nothing to wait for: threads would only stand in each other's way.
        tables = [reader.read_slice(*result) for result in slices]
    else:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            tables = list(pool.map(lambda result: reader.read_slice(*result), slices))
    sizes: dict[int, list[int]] = {}
    for table, (_, _, window) in zip(tables, parts, strict=True):
        sizes.setdefault(window, []).append(len(table))
    rows = pa.concat_tables([reader.empty(), *tables])
    return FileSample(snapshot, chosen, rows, tuple(map(tuple, sizes.values())))


def _drawn_rows(total: int) -> int:
    return min(total, int(min(max(total * _OF_ALL, _LEAST_ROWS), _MOST_ROWS)))


def _window_rows(counts: Ints, along: ColumnBounds) -> int:
    """Rows per window: a few values of the column, where that leaves windows enough."""
    total = int(counts.sum())
    drawn = _drawn_rows(total)
    even, most = drawn // _WINDOWS, drawn // _FEWEST
    line = line_of(along)
    if line is None or not line.unit:
        return max(even, 1)
    lows, ends = line.spans(along.filled)
    per_value = total / max(float(ends.max() - lows.min()), 1.0)
    if _FEW_VALUES * per_value > most:
        # A window is in one value: the more windows, the better.
        return max(min(drawn // _MOST_WINDOWS, _OF_ONE_VALUE), 1)
    return max(1, min(most, max(even, round(_WHOLE_VALUES * per_value))))


def _windows(counts: Ints, size: int) -> Iterator[list[tuple[int, int, int]]]:
    """Windows as parts: the file, the rows wanted of it, the window's number."""
    before = np.concatenate([[0], np.cumsum(counts)])
    number = max(1, min(_drawn_rows(int(before[-1])) // size, _MOST_WINDOWS))
    taken = 0
    for window, place in enumerate((np.arange(number) + 0.5) * before[-1] / number):
        at = max(taken, int(np.searchsorted(before, place, side="right")) - 1)
        result, left = [], size
        while left > 0 and at < len(counts):
            result.append((at, min(left, int(counts[at])), window))
            left -= int(counts[at])
            at += 1
        taken = at
        yield result


def _ordered(along: ColumnBounds) -> Ints:
    """Positions of files by the values they start with, those without one last."""
    known, unknown = np.flatnonzero(along.has_low), np.flatnonzero(~along.has_low)
    return np.concatenate([known[np.argsort(along.lows[known], kind="stable")], unknown])


def _rows_of(files: Sequence[DataFile]) -> list[int]:
    return [max(file.rows or 1, 1) for file in files]
