"""Windows drawn along a column, what their rows stand for, and which fragments files may hold."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from impctl.data.schema import LONG
from impctl.data.vector import from_arrow
from impctl.sketch.likelihood import Mixture
from impctl.sketch.partition import RangePartition
from impctl.tables.prune import file_spans, rows_by_fragment
from impctl.tables.sample import FileSample, clustered_columns, file_sample, overlap
from impctl.tables.snapshot import ColumnBounds, FileBounds, Snapshot
from impctl.tables.source import open_source
from impctl.tables.statistics import file_bounds, line_of
from impctl.tables.write.maintenance import create_laid_out_table
from tests.support.reference_bounds import column_bounds

FILES, EACH = 400, 1000


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """`up` goes up from file to file, a value in ten rows; `any` is anywhere; `text` as `up`."""
    folder = tmp_path_factory.mktemp("tables") / "t"
    at = np.arange(FILES * EACH)
    scattered = np.random.default_rng(3).integers(0, 500, len(at))
    columns = {"up": at // 10, "any": scattered, "text": [f"{value // 10:07}" for value in at]}
    columns["empty"] = pa.nulls(len(at), pa.int64())
    rows = pa.table(columns)
    parts = (rows.slice(start, EACH) for start in range(0, len(at), EACH))
    create_laid_out_table(str(folder), parts)
    return open_source("t", str(folder)).snapshot()


@pytest.fixture(scope="module")
def bounds(snapshot: Snapshot) -> dict[str, ColumnBounds]:
    return {name: file_bounds(snapshot, name) for name in snapshot.schema.names}


@pytest.fixture(scope="module")
def sample(snapshot: Snapshot, bounds: dict[str, ColumnBounds]) -> FileSample:
    return file_sample(snapshot, snapshot.files, ["up", "any", "text"], bounds["up"])


def test_overlap_tells_clustered_from_scattered(snapshot: Snapshot) -> None:
    assert overlap(snapshot, "up") == pytest.approx(1 / FILES)
    assert overlap(snapshot, "text") < 0.01
    assert overlap(snapshot, "any") > 0.9
    names = ["any", "empty", "text", "up"]
    assert set(clustered_columns(snapshot, names, 0.25)) == {"up", "text"}


def test_the_draw_is_the_same_every_time_and_spread(
    snapshot: Snapshot, bounds: dict[str, ColumnBounds], sample: FileSample
) -> None:
    again = file_sample(snapshot, snapshot.files, ["up", "any", "text"], bounds["up"])
    assert again.rows.equals(sample.rows)
    assert len(sample.windows) == 48
    assert sum(size for parts in sample.windows for size in parts) == len(sample.rows)
    drawn = np.unique(np.array(sample.rows.column("up")) * 10 // EACH)
    assert np.diff(drawn).max() < 12, "no stretch of files goes without a window"


@pytest.mark.slow
def test_rows_of_whole_groups_stand_for_themselves(
    bounds: dict[str, ColumnBounds], sample: FileSample
) -> None:
    each = FILES * EACH / len(sample.rows)
    up, scattered = {"up": bounds["up"]}, {"any": bounds["any"]}
    assert (sample.weights(up) == 1).all()
    assert sample.weights(scattered) == pytest.approx(each, rel=0.3)
    assert sample.weights({}) == pytest.approx(each)
    assert (sample.weights({**scattered, **up}) == 1).all()
    assert (sample.weights({"text": bounds["text"]}) < 1.2).mean() > 0.9


def test_what_files_hold_of_a_value(bounds: dict[str, ColumnBounds], sample: FileSample) -> None:
    rows, files = sample.held("up", bounds["up"]) or ([], [])
    assert rows == pytest.approx(10, rel=0.05)
    assert files == pytest.approx(1)
    rows, files = sample.held("any", bounds["any"]) or ([], [])
    assert rows == pytest.approx(FILES * EACH / 500, rel=0.05)
    assert min(files) > 0.5 * FILES
    unknown = column_bounds([FileBounds(None, None, None, None)] * FILES, LONG)
    assert sample.held("up", unknown) is None


def test_spans_of_files(snapshot: Snapshot, bounds: dict[str, ColumnBounds]) -> None:
    each = EACH // 10
    partition = RangePartition("t", "up", LONG, tuple(range(each, each * FILES, each)))
    spans = file_spans(partition, bounds["up"])
    assert spans.first.tolist() == spans.last.tolist() == list(range(FILES))
    rows = rows_by_fragment(partition, snapshot.files, bounds["up"])
    assert rows == pytest.approx([EACH] * FILES + [0])
    chances = np.zeros(FILES + 1)
    chances[[3, 7]] = 1.0, 0.25
    left = spans.chances(chances)
    assert np.flatnonzero(left).tolist() == [3, 7]
    assert left[[3, 7]].tolist() == pytest.approx([1, 0.25])
    merged = spans.merged(3)
    assert merged.first.tolist() == merged.last.tolist() == [at // 3 for at in range(FILES)]
    wide = file_spans(RangePartition("t", "any", LONG, (250,)), bounds["any"])
    assert wide.chances(np.array([0.5, 0.5, 0])) == pytest.approx(0.75)


def test_a_file_of_nulls_is_left_by_the_fragment_of_null(
    snapshot: Snapshot, bounds: dict[str, ColumnBounds]
) -> None:
    partition = RangePartition("t", "empty", LONG, (1,))
    spans = file_spans(partition, bounds["empty"])
    assert spans.chances(np.array([1.0, 1.0, 0.0])).tolist() == [0] * FILES
    assert spans.chances(np.array([0.0, 0.0, 0.5])) == pytest.approx(0.5)
    assert rows_by_fragment(partition, snapshot.files, bounds["empty"])[-1] == FILES * EACH
    assert spans.merged(2).chances(np.array([1.0, 0.5])) == pytest.approx(0.5)


def test_fragments_that_are_alike_are_not_multiplied() -> None:
    """Two files of ten fragments each: in one way all have a hit, in the other one none has."""
    bounds = column_bounds([FileBounds(0, 9, 0, 10), FileBounds(10, 19, 0, 10)], LONG)
    spans = file_spans(RangePartition("t", "up", LONG, tuple(range(1, 20))), bounds)
    sizes = (1, 21)
    ways = np.concatenate([np.full(sizes, 0.9), np.full(sizes, 0.0)])
    weights = np.concatenate([np.full(sizes, 0.25), np.full(sizes, 0.75)])
    assert spans.left(Mixture(weights, ways)) == pytest.approx(0.25)
    assert spans.chances((weights * ways).sum(axis=0)) == pytest.approx(1 - 0.775**10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["up", "text", "any"])
def test_places_on_a_line_go_up_with_values(
    name: str, snapshot: Snapshot, bounds: dict[str, ColumnBounds], sample: FileSample
) -> None:
    line = line_of(bounds[name])
    column = sample.rows.column(name)
    places = line.places_of(from_arrow(column, snapshot.readable(name).type))
    order = np.argsort(np.array(column.to_pylist()), kind="stable")
    assert (np.diff(places[order]) >= 0).all()
    assert places[0] == line.place(column[0].as_py())
