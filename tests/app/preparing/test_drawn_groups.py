"""Groups of a sample, made as whole as they can be: what each row is taken to stand for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from impctl.app.preparing.drawn_groups import DrawnGroups, drawn_groups
from impctl.tables.file_sample import file_sample
from impctl.tables.source import open_source
from impctl.tables.statistics import file_bounds
from impctl.tables.write.laid_out import create_laid_out_table

FILES, EACH = 200, 1_000
ROWS = FILES * EACH


def drawn(
    folder: Path, columns: dict[str, pa.Array], groups: list[str], measures: tuple[str, ...] = ()
) -> DrawnGroups:
    rows = pa.table(columns)
    parts = (rows.slice(start, EACH) for start in range(0, len(rows), EACH))
    create_laid_out_table(str(folder / "t"), parts)
    snapshot = open_source("t", str(folder / "t")).snapshot()
    bounds = {name: file_bounds(snapshot, name) for name in groups}
    along = groups[0] if groups else "price"
    sample = file_sample(snapshot, snapshot.files, list(columns), file_bounds(snapshot, along))
    return drawn_groups(sample, bounds, along, list(measures))


def sizes(found: DrawnGroups) -> np.ndarray:
    return np.bincount(np.unique(found.codes, return_inverse=True)[1], weights=found.weights)


def test_without_groups_each_row_is_one(tmp_path: Path) -> None:
    found = drawn(tmp_path, {"price": pa.array(np.arange(ROWS))}, [])
    assert len(np.unique(found.codes)) == len(found.rows) > ROWS / 10
    assert (found.weights == 1).all()


def test_groups_that_lie_together_are_whole_or_left_out(tmp_path: Path) -> None:
    found = drawn(tmp_path, {"key": pa.array(np.arange(ROWS) // 50)}, ["key"])
    assert (found.weights == 1).all()
    assert (sizes(found) == 50).all()


def test_rows_that_lie_nearly_together_make_whole_groups(tmp_path: Path) -> None:
    key = np.arange(ROWS) // 50 + np.random.default_rng(1).integers(0, 3, ROWS)
    found = drawn(tmp_path, {"key": pa.array(key)}, ["key"])
    own = np.bincount(key)
    keys = np.array(found.rows.column("key"))
    values, counts = np.unique(keys, return_counts=True)
    assert (found.weights == 1).all()
    assert (counts == own[values]).mean() > 0.95


def test_of_a_group_larger_than_a_window_rows_stand_for_all_of_it(tmp_path: Path) -> None:
    found = drawn(tmp_path, {"key": pa.array(np.arange(ROWS) // 7_000)}, ["key"])
    keys = np.array(found.rows.column("key"))
    for key in np.unique(keys[(keys > 3) & (keys < ROWS // 7_000 - 3)]):
        rows = found.weights[keys == key].sum()
        windows = round(float((keys == key).sum()) / 714)
        assert rows == pytest.approx(7_000 * max(windows, 1), rel=0.15)


def scattered(effect: float, seed: int = 5) -> dict[str, pa.Array]:
    """Groups of 200 rows, each anywhere in the table, that differ by so much in price."""
    random = np.random.default_rng(seed)
    key = random.integers(0, ROWS // 200, ROWS)
    price = random.normal(100, 20, ROWS) + random.normal(0, 1, ROWS // 200)[key] * effect
    return {"key": pa.array(key), "price": pa.array(price)}


def means(found: DrawnGroups) -> np.ndarray:
    codes = np.unique(found.codes, return_inverse=True)[1]
    prices = np.nan_to_num(np.array(found.rows.column("price"), dtype=np.float64))
    return np.bincount(codes, weights=prices) / np.bincount(codes)


@pytest.mark.slow
@pytest.mark.parametrize("effect", [0.0, pytest.param(4.0, marks=pytest.mark.slow), 20.0])
def test_groups_drawn_in_part_differ_as_whole_ones_do(tmp_path: Path, effect: float) -> None:
    """By chance alone, by a little, by much: a group of a fifth of its rows would differ more."""
    found = drawn(tmp_path, scattered(effect), ["key"], ("price",))
    expected = np.sqrt(effect**2 + 20**2 / 200)
    assert means(found).std() == pytest.approx(expected, rel=0.35)
    assert sizes(found).mean() == pytest.approx(200, rel=0.1)


def test_odd_values_stand_in_no_ones_way(tmp_path: Path) -> None:
    columns = scattered(0.0)
    key, price = np.array(columns["key"]), np.array(columns["price"])
    price[::7], price[1::7] = np.nan, np.inf
    columns["price"] = pa.array(price, mask=np.arange(ROWS) % 5 == 0)
    columns["key"] = pa.array(key, mask=key == 3)
    columns["flag"] = pa.array(key % 2 == 0)
    columns["text"] = pa.array([f"{value}" for value in key])
    found = drawn(tmp_path, columns, ["key", "flag", "text"], ("price",))
    assert len(found.rows) == len(found.codes) == len(found.weights)
    assert sizes(found).mean() == pytest.approx(200, rel=0.15)
