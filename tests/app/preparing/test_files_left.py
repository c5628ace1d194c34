"""Which files a sketch would leave, and how few ranges that takes."""

from __future__ import annotations

import numpy as np
import pytest

from impctl.data.schema import LONG
from impctl.service.estimate import FilesLeft
from impctl.sketch.likelihood import Mixture
from impctl.sketch.partition import RangePartition
from impctl.tables.prune import FileSpans, file_spans
from impctl.tables.snapshot import FileBounds
from tests.support.reference_bounds import column_bounds

FILES, RANGES = 50, 200


@pytest.fixture
def spans() -> FileSpans:
    """Four ranges a file, values 0 to 9 of a file in each."""
    files = [FileBounds(40 * at, 40 * at + 39, 0, 100) for at in range(FILES)]
    return file_spans(
        RangePartition("t", "c", LONG, tuple(range(10, 2000, 10))), column_bounds(files, LONG)
    )


def mixture(chances: np.ndarray) -> Mixture:
    return Mixture(np.ones((1, RANGES + 1)), np.append(chances, 0.0)[None])


def left(spans: FileSpans, chances: np.ndarray, most_together: int) -> FilesLeft:
    result = mixture(chances)
    ends = [result, mixture(chances / 2), mixture(np.minimum(chances * 2, 1.0))]
    return FilesLeft.of(spans, ends, 0.01, most_together)


def test_fewer_ranges_where_they_leave_as_much(spans: FileSpans) -> None:
    third = (np.arange(RANGES) // 4 % 3 == 0).astype(np.float64)
    result = left(spans, third, 100)
    assert result.likely.sum() == 17
    assert result.together == 4, "a file is one range; two files in one would leave both"
    assert left(spans, third, 2).together == 2
    assert left(spans, third, 1).together == 1
    assert left(spans, np.ones(RANGES), 100).together == 64


def test_fewest_likely_most(spans: FileSpans) -> None:
    result = left(spans, np.full(RANGES, 0.1), 1)
    likely, fewest, most = result.between()
    assert likely == pytest.approx(FILES * (1 - 0.9**4))
    assert 0 <= fewest < FILES * (1 - 0.95**4) < likely < FILES * (1 - 0.8**4) < most
    everything = FilesLeft.all_of(FILES)
    assert everything.between() == (FILES, FILES, FILES)


def test_no_file_is_left_less_likely_than_its_rows_tell(spans: FileSpans) -> None:
    at_least = left(spans, np.zeros(RANGES), 1).at_least(np.full(FILES, 0.5))
    assert at_least.likely.sum() == FILES / 2
    assert at_least.low.sum() == 0


def test_as_good_within_a_tenth_of_the_bytes(spans: FileSpans) -> None:
    half = left(spans, np.repeat([1.0, 0.0], RANGES // 2), 1)
    sizes = np.where(np.arange(FILES) < FILES // 2, 1.0, 1000.0)
    assert half.is_as_good_as(half.likely / 1.05, sizes)
    assert not half.is_as_good_as(half.likely / 1.2, sizes)
    assert half.is_as_good_as(1.0 - half.likely, sizes), "large files count more"
