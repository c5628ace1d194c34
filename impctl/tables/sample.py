"""A sample of a column's values, for choosing boundaries.

Law: the same snapshot, column and seed give the same sample; values are canonical and hold no
NULL and no NaN. How even the sample is decides only how balanced fragments are, never soundness.
Cost: one column of a few row groups of at most `MAX_FILES` files.
Out of scope: boundaries (`sketch.boundaries`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from impctl.data.vector import from_arrow
from impctl.sketch.partition import BoundaryValue, RangePartition
from impctl.sketch.sketch import FragmentSet, exact_filter
from impctl.tables.prune import prune
from impctl.tables.rows import FileReader
from impctl.tables.snapshot import DataFile, Snapshot
from impctl.types import ColumnName

MAX_FILES = 64
_GROUPS_PER_FILE = 4


def sample_values(
    snapshot: Snapshot,
    column: ColumnName,
    rows: int,
    seed: int,
    within: tuple[RangePartition, FragmentSet] | None = None,
) -> list[BoundaryValue]:
    """About `rows` values spread over the snapshot's files; all of them when there are fewer.

    `within`: only values of these fragments, from files that may hold some.
    """
    result = snapshot.readable(column)
    random = np.random.default_rng(seed)
    files = _chosen_files(_files(snapshot, within), random)
    reader = FileReader(snapshot, [result], files)
    weights = _weights(files)
    values: list[BoundaryValue] = []
    for file, weight in zip(files, weights, strict=True):
        quota = max(1, round(rows * weight))
        table = reader.read_some(file, lambda groups: _spread(groups, random))
        vector = from_arrow(table.column(0), result.type)
        live = vector.validity()
        if result.type.is_fractional:
            live = live & ~np.isnan(vector.values)
        if within is not None:
            live = live & np.isin(within[0].fragments_of(vector), within[1].ids)
        positions = np.flatnonzero(live)
        if len(positions) > quota:
            positions = np.sort(random.choice(positions, quota, replace=False))
        picked = vector.take(positions)
        values.extend(picked.values.to_pylist() if picked.is_textual else picked.values.tolist())
    return values


def _files(
    snapshot: Snapshot, within: tuple[RangePartition, FragmentSet] | None
) -> Sequence[DataFile]:
    if within is None:
        return snapshot.files
    partition, fragments = within
    return prune(snapshot, [exact_filter(fragments, partition)])


def _chosen_files(given: Sequence[DataFile], random: np.random.Generator) -> list[DataFile]:
    """At most MAX_FILES, larger ones more likely, in the log's order."""
    files = [file for file in given if file.rows != 0]
    if len(files) <= MAX_FILES:
        return files
    chosen = random.choice(len(files), MAX_FILES, replace=False, p=_weights(files))
    return [files[at] for at in sorted(chosen.tolist())]


def _weights(files: list[DataFile]) -> list[float]:
    """Share of the rows per file; of the bytes where a file's rows are not known."""
    is_known = all(file.rows is not None for file in files)
    sizes = [float((file.rows if is_known else file.size) or 1) for file in files]
    total = sum(sizes)
    return [size / total for size in sizes]


def _spread(groups: int, random: np.random.Generator) -> list[int]:
    if groups <= _GROUPS_PER_FILE:
        return list(range(groups))
    return sorted(random.choice(groups, _GROUPS_PER_FILE, replace=False).tolist())
