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

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from impctl.aliases import ColumnName
from impctl.data.vector import Ints, from_arrow
from impctl.tables.bounds import ColumnBounds, Flags
from impctl.tables.density import Density, line_of
from impctl.tables.line import Line
from impctl.tables.rows import FileReader
from impctl.tables.snapshot import DataFile, Snapshot

Floats = npt.NDArray[np.float64]

_ROWS = 160_000
"""About so many rows are drawn: what a tenth of a capture's time pays for."""
_WINDOWS, _FEWEST = 80, 20
"""Windows that they are drawn in, or fewer so that each has some whole values of the column."""
_WHOLE_VALUES = 2.5
_CLUSTERED = 1.5
"""Below this weight a row's group lies together, here and in a file or two beside."""
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

    def weights(self, groups: Mapping[ColumnName, ColumnBounds]) -> Floats:
        """Rows that each row drawn stands for, by the columns that its group shares; shape (n,).

        Each column comes with its bounds in `files`. Without a column that all rows of a group
        share, all rows over those drawn.
        """
        found: Floats = np.full(len(self.rows), self.total / max(len(self.rows), 1))
        for name, bounds in groups.items():
            found = np.minimum(found, self._weights_by(name, bounds))
        return np.asarray(np.maximum(found, 1.0))

    def cut(self, name: ColumnName, bounds: ColumnBounds) -> Flags:
        """Rows at the end of a window that holds a stretch of a column: of part of their group."""
        cut = np.zeros(len(self.rows), dtype=np.bool_)
        line = line_of(bounds)
        if line is None:
            return cut
        places = self._places(name, line)
        for window in _slices([sum(parts) for parts in self.windows]):
            own = places[window]
            values, counts = np.unique(own[np.isfinite(own)], return_counts=True)
            if len(values) > 1:
                # Of two values one is whole at best: the one with more rows.
                whole = values[1:-1] if len(values) > 2 else values[[np.argmax(counts)]]  # noqa: PLR2004
                cut[window] = ~np.isin(own, whole) & np.isfinite(own)
        return cut & (self._weights_by(name, bounds) < _CLUSTERED)

    def _places(self, name: ColumnName, line: Line) -> Floats:
        kind = self.snapshot.readable(name).type
        return line.places_of(from_arrow(self.rows.column(name), kind))

    def _weights_by(self, name: ColumnName, bounds: ColumnBounds) -> Floats:
        """How densely all rows lie at each row's value, over how densely those drawn do."""
        line = line_of(bounds)
        if line is None:
            return np.full(len(self.rows), np.inf)
        rows = np.array(_rows_of(self.files))[~bounds.is_all_null]
        places = self._places(name, line)
        held = Density.of(*line.spans(bounds.filled), rows)
        drawn = Density.of(*self._spans(places, line.unit))
        found = held.at(places) / np.maximum(drawn.at(places), 1e-12)
        return np.where(np.isfinite(found), found, np.inf)

    def _spans(self, places: Floats, unit: float) -> tuple[Floats, Floats, Floats]:
        """Where the values of each part start and end, and how many they are."""
        lows, ends, rows = [], [], []
        for part in _slices([size for parts in self.windows for size in parts]):
            own = places[part]
            own = own[np.isfinite(own)]
            if len(own):
                lows.append(float(own.min()))
                ends.append(max(float(own.max()) + unit, float(np.nextafter(lows[-1], np.inf))))
                rows.append(float(len(own)))
        return np.array(lows), np.array(ends), np.array(rows)


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
    reader = FileReader(snapshot, [snapshot.readable(name) for name in columns])
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        read = [
            pool.submit(reader.read_slice, chosen[order[at]], rows, number)
            for number, (at, rows, _) in enumerate(parts)
        ]
        tables = [found.result() for found in read]
    sizes: dict[int, list[int]] = {}
    for table, (_, _, window) in zip(tables, parts, strict=True):
        sizes.setdefault(window, []).append(len(table))
    rows = pa.concat_tables([reader.empty(), *tables])
    return FileSample(snapshot, chosen, rows, tuple(map(tuple, sizes.values())))


def _window_rows(counts: Ints, along: ColumnBounds) -> int:
    """Rows per window: a few values of the column, where that leaves windows enough."""
    total = int(counts.sum())
    least = min(total, _ROWS) // _WINDOWS
    line = line_of(along)
    if line is None:
        return max(least, 1)
    lows, ends = line.spans(along.filled)
    per_value = total / max(float(ends.max() - lows.min()), 1.0) if line.unit else 1.0
    return max(1, min(min(total, _ROWS) // _FEWEST, max(least, round(_WHOLE_VALUES * per_value))))


def _windows(counts: Ints, size: int) -> Iterator[list[tuple[int, int, int]]]:
    """Windows as parts: the file, the rows wanted of it, the window's number."""
    before = np.concatenate([[0], np.cumsum(counts)])
    number = max(1, min(int(before[-1]), _ROWS) // size)
    taken = 0
    for window, place in enumerate((np.arange(number) + 0.5) * before[-1] / number):
        at = max(taken, int(np.searchsorted(before, place, side="right")) - 1)
        found, left = [], size
        while left > 0 and at < len(counts):
            found.append((at, min(left, int(counts[at])), window))
            left -= int(counts[at])
            at += 1
        taken = at
        yield found


def _ordered(along: ColumnBounds) -> Ints:
    """Positions of files by the values they start with, those without one last."""
    known, unknown = np.flatnonzero(along.has_low), np.flatnonzero(~along.has_low)
    return np.concatenate([known[np.argsort(along.lows[known], kind="stable")], unknown])


def _rows_of(files: Sequence[DataFile]) -> list[int]:
    return [max(file.rows or 1, 1) for file in files]
