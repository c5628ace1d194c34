"""Values by weight from the log: every file counts, and ranges fit files that are sorted."""

from __future__ import annotations

import json
import random
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from impctl.sketch.boundaries import aligned_boundaries
from impctl.tables.sample import column_spread, with_overlaps
from impctl.tables.snapshot import Snapshot
from impctl.tables.source import open_source
from impctl.tables.statistics import file_bounds
from tests.support.random_cases import FEW
from tests.tables import handmade
from tests.tables.handmade import LONG, add, create

Stated = tuple[int | None, int | None, int]
"""Least value, greatest value and rows of a file, as the log has them."""


def table(folder: Path, files: Sequence[Stated]) -> Snapshot:
    """A table of which the log alone is there."""
    adds = []
    for at, (low, high, rows) in enumerate(files):
        stats: dict[str, Any] = {"numRecords": rows, "nullCount": {"v": 0}}
        stats |= {"minValues": {"v": low}} if low is not None else {}
        stats |= {"maxValues": {"v": high}} if high is not None else {}
        adds.append(add(f"{at}.parquet", rows, stats=json.dumps(stats)))
    return open_source("t", create(folder, {"v": LONG}, *adds)).snapshot()


def spanned(low: int, high: int, boundaries: Sequence[Any]) -> int:
    """Ranges that values from `low` to `high` fall into."""
    return bisect_right(boundaries, high) - bisect_right(boundaries, low) + 1


def test_files_that_nobody_read_count_as_well(tmp_path: Path) -> None:
    files = [(at * 100, at * 100 + 99, 100) for at in range(50)]
    spread = column_spread(table(tmp_path, files), "v", [7, 9])
    assert round(spread.weights.total) == 5000
    assert 0.9 < spread.depth < 1.3
    boundaries = aligned_boundaries(spread.weights, 50, spread.starts)
    assert boundaries == tuple(at * 100 for at in range(1, 50))


def test_a_sample_tells_how_rows_lie_between_wide_bounds(tmp_path: Path) -> None:
    files = [(0, 1_000_000, 1000)] * 10
    sample = [*range(1000), *range(999_000, 1_000_000, 10)]
    spread = column_spread(table(tmp_path, files), "v", sample)
    assert spread.depth > 9
    assert spread.weights.rows_before(1000) > 0.85 * spread.weights.total


def test_a_value_that_ends_a_file_and_starts_the_next_has_its_own_range(tmp_path: Path) -> None:
    files = [(at * 10, at * 10 + 10, 1000) for at in range(20)]
    snapshot = table(tmp_path, files)
    spread = column_spread(snapshot, "v", [])
    even = aligned_boundaries(spread.weights, 20, spread.starts)
    boundaries = with_overlaps(even, file_bounds(snapshot, "v"))
    assert {(10, 11), (20, 21)} <= set(zip(boundaries, boundaries[1:], strict=False))
    for low, high, _ in files:
        inside = spanned(low + 1, high - 1, boundaries)
        assert inside == 1, "what is in one file alone lies in one range"


def test_without_bounds_nothing_is_known_of_overlaps(tmp_path: Path) -> None:
    files: list[Stated] = [(0, 10, 100), (None, None, 100), (10, 20, 100)]
    snapshot = table(tmp_path, files)
    spread = column_spread(snapshot, "v", list(range(20)))
    assert with_overlaps((10,), file_bounds(snapshot, "v")) == (10,)
    assert round(spread.weights.total) == 300


def test_an_empty_table_has_no_values(tmp_path: Path) -> None:
    spread = column_spread(table(tmp_path, []), "v", [])
    assert aligned_boundaries(spread.weights, 1000, spread.starts) == ()


@settings(FEW, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6))
def test_overlaps_keep_boundaries_ascending(tmp_path_factory: Any, seed: int) -> None:
    rng = random.Random(seed)
    files: list[Stated] = []
    for _ in range(rng.randint(1, 12)):
        low = rng.randint(-20, 20)
        bounds = (low, low + rng.choice((0, 1, 5, 30)))
        known = bounds if rng.random() < 0.95 else (None, None)
        files.append((*known, rng.choice((1, 10, 100))))
    snapshot = table(tmp_path_factory.mktemp("t"), files)
    spread = column_spread(snapshot, "v", [rng.randint(-20, 50) for _ in range(rng.randint(0, 30))])
    ranges = rng.choice((1, 3, 10))
    boundaries: Sequence[Any] = aligned_boundaries(spread.weights, ranges, spread.starts)
    more: Sequence[Any] = with_overlaps(boundaries, file_bounds(snapshot, "v"))
    assert set(boundaries) <= set(more)
    assert all(low < high for low, high in zip(more, more[1:], strict=False))
    assert len(more) <= 2 * len(boundaries)


def test_rows_of_a_file_without_bounds_count_by_the_sample(tmp_path: Path) -> None:
    file = handmade.add("0.parquet", 10, stats='{"numRecords": 10}')
    path = handmade.create(tmp_path / "bare", {"v": "long"}, file)
    snapshot = open_source("t", path).snapshot()
    weights = column_spread(snapshot, "v", [3, 1]).weights
    assert (weights.values, weights.weights) == ((1, 3), (5.0, 5.0))
