"""What `explain` and `capture` say of estimates: every candidate, upkeep, columns of odd values.

Whatever a column holds, an estimate comes out or is left away; a capture never fails for it. Groups
of a sample are made as whole as they can be.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from impctl.service import choose, estimate
from impctl.service.estimate import DrawnGroups, drawn_groups
from impctl.tables.sample import file_sample
from impctl.tables.source import open_source
from impctl.tables.statistics import file_bounds
from impctl.tables.write.maintenance import create_laid_out_table
from tests.support.run_cli import Cli, CliOf

ROWS, FILES = 40_000, 40


@pytest.fixture
def cli(tmp_path: Path, cli_of: CliOf, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Groups of a hundred rows in the order of files, four hundred rows an hour."""
    monkeypatch.setattr(estimate, "LEAST_ROWS", 1_000)
    monkeypatch.setattr(choose, "LEAST_ROWS", 1_000)
    at = np.arange(ROWS)
    price = np.where(at >= ROWS * 9 // 10, 3, 1)
    rows = pa.table({"key": at // 100, "hour": at // 400, "price": price, "id": at})
    step = ROWS // FILES
    create_laid_out_table(str(tmp_path / "t"), (rows.slice(i, step) for i in range(0, ROWS, step)))
    sql = "SELECT key, SUM(price) AS s FROM t GROUP BY 1 HAVING SUM(price) > 200"
    return cli_of(
        f'version: 1\ntables: {{t: {{path: t}}}}\nqueries: {{q: {{sql: "{sql}"}}}}\nstore: s\n'
    )


def safe(entries: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {entry["attribute"]: entry for entry in entries if entry["safe"]}


@pytest.mark.slow
def test_explain_shows_every_candidate_and_what_its_upkeep_takes(cli: Cli) -> None:
    entries = safe(cli.one("explain")["attributes"])
    assert entries["key"]["chosen"]
    assert {"hour", "id"} <= set(entries)
    expected = {name: entry["expected"] for name, entry in entries.items()}
    for name in ("key", "hour", "id"):
        assert expected[name]["files_low"] <= 4 <= expected[name]["files_high"]
        assert expected[name]["files"] == pytest.approx(4, abs=1)
    assert expected["key"]["upkeep"] == 0, "the range of a group follows from its key"
    assert expected["hour"]["upkeep"] == pytest.approx(20 * ROWS / 100, rel=0.2)
    assert expected["id"]["upkeep"] > 2 * expected["hour"]["upkeep"]


def test_capture_tells_what_it_foresaw_of_what_may_be_taken(cli: Cli) -> None:
    result = cli.one("capture")
    entries = safe(result["considered"])
    assert entries["key"]["chosen"]
    assert entries["hour"]["expected"] is None, "it cannot be better than `key`"
    (left,) = result["left"]
    assert left["expected"] == entries["key"]["expected"]
    assert left["expected"]["files_low"] <= left["files"] == 4 <= left["expected"]["files_high"]


def test_of_two_that_leave_as_much_the_one_that_is_cheaper_to_keep_is_taken(cli: Cli) -> None:
    """The file names `id` first, which takes counters for ten ranges of every group."""
    text = cli.workload.read_text()
    cli.workload.write_text(text + "partitions: {t: {id: {ranges: 4000}, hour: {ranges: 100}}}\n")
    entries = safe(cli.one("explain")["attributes"])
    assert entries["id"]["expected"]["files"] == entries["hour"]["expected"]["files"]
    assert entries["hour"]["chosen"]
    assert "expected to read less" in entries["id"]["reason"]


ODD_ROWS, ODD_FILES = 4_000, 8

COLUMNS: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "two_valued": (pa.bool_(), lambda at: at * 2 >= ODD_ROWS),
    "infinite": (
        pa.float64(),
        lambda at: -math.inf if at == 0 else math.inf if at == ODD_ROWS - 1 else at / 7,
    ),
    "not_a_number": (pa.float64(), lambda at: math.nan if at % 50 == 0 else at / 7),
    "far_apart": (pa.float64(), lambda at: (at * 2 - ODD_ROWS) * (1.7e308 / ODD_ROWS)),
    "wide": (pa.int64(), lambda at: (at - ODD_ROWS // 2) * (2**64 // ODD_ROWS - 1)),
    "missing": (pa.int64(), lambda at: None),
    "missing_text": (pa.string(), lambda at: None if at > ODD_ROWS // ODD_FILES else f"{at:05}"),
    "long_text": (pa.string(), lambda at: "a" * 200 + f"{at:05}"),
    "odd_text": (pa.string(), lambda at: "" if at == 0 else chr(0x10FFFF) * 3 + f"{at:05}"),
    "days": (pa.date32(), lambda at: date(1, 1, 1) + timedelta(days=at * 900)),
    "moment": (
        pa.timestamp("us", tz="UTC"),
        lambda at: datetime(1, 1, 2, tzinfo=UTC) + timedelta(days=at * 900),
    ),
    "money": (pa.decimal128(38, 2), lambda at: Decimal((at - ODD_ROWS // 2) * 10**30).scaleb(-2)),
}


LIMITS = ("COUNT(*) > 0", "SUM(id) > 900000000", "MAX(id) < 600")
GROUPED = {
    f"{grouped}_{at}": f"SELECT {grouped}, few, COUNT(*) AS n FROM t GROUP BY 1, 2 HAVING {limit}"
    for grouped in (*COLUMNS, "few")
    for at, limit in enumerate(LIMITS)
}
NOTHING_LEFT = {
    f"nothing_{at}": f"SELECT id, few, two_valued FROM t WHERE {asked}"
    for at, asked in enumerate(("id < 0", "missing = 3", "NOT two_valued AND id > 3990"))
}


def test_odd_values_have_an_estimate_or_none(
    tmp_path: Path, cli_of: CliOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Grouped by any column, with every limit, and where no file or no row is left."""
    monkeypatch.setattr(estimate, "LEAST_ROWS", 1_000)
    monkeypatch.setattr(choose, "LEAST_ROWS", 1_000)
    at = range(ODD_ROWS)
    columns = {name: pa.array(map(make, at), kind) for name, (kind, make) in COLUMNS.items()}
    rows = pa.table({"id": pa.array(at), "few": pa.array([i // 500 for i in at]), **columns})
    step = ODD_ROWS // ODD_FILES
    parts = (rows.slice(i, step) for i in range(0, ODD_ROWS, step))
    create_laid_out_table(str(tmp_path / "t"), parts)
    lines = "".join(
        f'  {name}: {{sql: "{sql}"}}\n' for name, sql in (GROUPED | NOTHING_LEFT).items()
    )
    results = (
        cli_of(f"version: 1\ntables: {{t: {{path: t}}}}\nqueries:\n{lines}").good("explain").results
    )
    assert len(results) == len(GROUPED) + len(NOTHING_LEFT)
    for one in results:
        entries = [entry for entry in one["attributes"] if entry["safe"]]
        reasons = " ".join(entry["reason"] for entry in entries)
        if one["query"] in GROUPED:
            assert any(entry["chosen"] for entry in entries), one["query"]
        for entry in entries:
            expected = entry["expected"]
            if expected is not None:
                low, high = expected["files_low"], expected["files_high"]
                assert 0 <= low <= expected["files"] <= high + 1, one["query"]
                assert high <= ODD_FILES == expected["files_total"]
            elif one["query"] in GROUPED:
                assert "no estimate" in reasons or all(e["expected"] is None for e in entries)


DRAWN_FILES, EACH = 200, 1_000
DRAWN_ROWS = DRAWN_FILES * EACH


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


def sizes(result: DrawnGroups) -> np.ndarray:
    return np.bincount(np.unique(result.codes, return_inverse=True)[1], weights=result.weights)


def test_without_groups_each_row_is_one(tmp_path: Path) -> None:
    result = drawn(tmp_path, {"price": pa.array(np.arange(DRAWN_ROWS))}, [])
    assert len(np.unique(result.codes)) == len(result.rows) > DRAWN_ROWS / 10
    assert (result.weights == 1).all()


def test_groups_that_lie_together_are_whole_or_left_out(tmp_path: Path) -> None:
    result = drawn(tmp_path, {"key": pa.array(np.arange(DRAWN_ROWS) // 50)}, ["key"])
    assert (result.weights == 1).all()
    assert (sizes(result) == 50).all()


def test_rows_that_lie_nearly_together_make_whole_groups(tmp_path: Path) -> None:
    key = np.arange(DRAWN_ROWS) // 50 + np.random.default_rng(1).integers(0, 3, DRAWN_ROWS)
    result = drawn(tmp_path, {"key": pa.array(key)}, ["key"])
    own = np.bincount(key)
    keys = np.array(result.rows.column("key"))
    values, counts = np.unique(keys, return_counts=True)
    assert (result.weights == 1).all()
    assert (counts == own[values]).mean() > 0.95


def test_of_a_group_larger_than_a_window_rows_stand_for_all_of_it(tmp_path: Path) -> None:
    result = drawn(tmp_path, {"key": pa.array(np.arange(DRAWN_ROWS) // 7_000)}, ["key"])
    keys = np.array(result.rows.column("key"))
    for key in np.unique(keys[(keys > 3) & (keys < DRAWN_ROWS // 7_000 - 3)]):
        rows = result.weights[keys == key].sum()
        windows = round(float((keys == key).sum()) / 714)
        assert rows == pytest.approx(7_000 * max(windows, 1), rel=0.15)


def scattered(effect: float, seed: int = 5) -> dict[str, pa.Array]:
    """Groups of 200 rows, each anywhere in the table, that differ by so much in price."""
    random = np.random.default_rng(seed)
    key = random.integers(0, DRAWN_ROWS // 200, DRAWN_ROWS)
    price = (
        random.normal(100, 20, DRAWN_ROWS) + random.normal(0, 1, DRAWN_ROWS // 200)[key] * effect
    )
    return {"key": pa.array(key), "price": pa.array(price)}


def means(result: DrawnGroups) -> np.ndarray:
    codes = np.unique(result.codes, return_inverse=True)[1]
    prices = np.nan_to_num(np.array(result.rows.column("price"), dtype=np.float64))
    return np.bincount(codes, weights=prices) / np.bincount(codes)


@pytest.mark.slow
@pytest.mark.parametrize("effect", [0.0, 4.0, 20.0])
def test_groups_drawn_in_part_differ_as_whole_ones_do(tmp_path: Path, effect: float) -> None:
    """By chance alone, by a little, by much: a group of a fifth of its rows would differ more."""
    result = drawn(tmp_path, scattered(effect), ["key"], ("price",))
    expected = np.sqrt(effect**2 + 20**2 / 200)
    assert means(result).std() == pytest.approx(expected, rel=0.35)
    assert sizes(result).mean() == pytest.approx(200, rel=0.1)


def test_odd_values_stand_in_no_ones_way(tmp_path: Path) -> None:
    columns = scattered(0.0)
    key, price = np.array(columns["key"]), np.array(columns["price"])
    price[::7], price[1::7] = np.nan, np.inf
    columns["price"] = pa.array(price, mask=np.arange(DRAWN_ROWS) % 5 == 0)
    columns["key"] = pa.array(key, mask=key == 3)
    columns["flag"] = pa.array(key % 2 == 0)
    columns["text"] = pa.array([f"{value}" for value in key])
    result = drawn(tmp_path, columns, ["key", "flag", "text"], ("price",))
    assert len(result.rows) == len(result.codes) == len(result.weights)
    assert sizes(result).mean() == pytest.approx(200, rel=0.15)
