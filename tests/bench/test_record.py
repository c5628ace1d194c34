"""Records in JSON, repeated runs and medians, and generated tables."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from impctl import stopwatch
from impctl.bench import timing
from impctl.bench.data import (
    MEASURES,
    SYNTHETIC_SCHEMA,
    refreshes,
    running_example_table,
    split_last_days,
    synthetic_batches,
)
from impctl.bench.quantity import (
    Unit,
    label_text,
    number,
    plain_name,
    readable,
    spread_text,
    times,
    unit_of,
)
from impctl.bench.record import RECORD_FORMAT, Cell, Metric, record_from_json, record_to_json
from impctl.bench.timing import (
    WARM_UP,
    in_turns,
    milliseconds,
    noise_of,
    warm_up,
    yardstick,
)
from impctl.errors import UsageError
from tests.bench.sample_records import record_of
from tests.support.run_cli import refused

NUMBERS = st.floats(allow_nan=False)
METRICS = st.builds(Metric, NUMBERS, NUMBERS, NUMBERS, st.integers(1, 9))
TEXTS = st.sampled_from(["", "a", "a_ms", "\u00e4\U0001f600", '"', "\\", "\n\t", "{}", "\u2028"])
LABELS = TEXTS | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
CHECKS = st.none() | st.booleans()
CELLS = st.builds(
    Cell,
    st.just("f"),
    st.dictionaries(TEXTS, LABELS, max_size=3),
    st.dictionaries(TEXTS, METRICS, max_size=3),
    covers=CHECKS,
    slack=st.none() | st.integers(0, 99),
    equal=CHECKS,
    note=TEXTS,
    fingerprint=st.sampled_from(["", "0123456789ab"]),
)


@settings(max_examples=15)
@given(st.lists(CELLS, max_size=3))
def test_records_round_trip_through_json(cells: list[Cell]) -> None:
    record = replace(record_of(*cells, noise=0.25), figure_noise={"f": 0.125})
    assert record_from_json(record_to_json(record), "r.json") == record


def test_older_records_use_the_noise_of_the_run() -> None:
    document = json.loads(record_to_json(record_of(Cell("f", {}, {}), noise=0.25)))
    del document["figure_noise"], document["cells"][0]["fingerprint"]
    record = record_from_json(json.dumps(document), "r.json")
    assert record.noise_of("f") == 0.25
    assert record.cells[0].fingerprint == ""
    assert replace(record, noise=math.nan).noise_of("f") == 0.0


def test_infinity_and_nan_survive() -> None:
    record = record_of(Cell("f", {}, {"a_ratio": Metric(math.inf, -math.inf, math.nan, 1)}))
    (cell,) = record_from_json(record_to_json(record), "r").cells
    metric = cell.metrics["a_ratio"]
    assert (metric.median, metric.low, math.isnan(metric.high)) == (math.inf, -math.inf, True)


def test_output_of_the_command_line_is_read_too() -> None:
    record = record_of(Cell("f", {"a": 1}, {"a_ms": Metric.of([1.0])}))
    envelope = {"schema_version": 1, "results": [json.loads(record_to_json(record)), {"path": ""}]}
    assert record_from_json(json.dumps(envelope), "r") == record


DOCUMENT = json.loads(record_to_json(record_of(Cell("f", {}, {"a_ms": Metric.of([1.0])}))))
CELL = DOCUMENT["cells"][0]


def altered(**changes: Any) -> str:
    """Change fields of a record, and remove those that are `...`."""
    fields = {**DOCUMENT, **changes}
    return json.dumps({name: value for name, value in fields.items() if value is not ...})


def altered_cell(**changes: Any) -> str:
    fields = {**CELL, **changes}
    return altered(cells=[{name: value for name, value in fields.items() if value is not ...}])


@pytest.mark.parametrize(
    ("text", "code"),
    [
        *((text, "record_foreign") for text in ("", "not json", "[]", "{}", '{"results": []}')),
        (altered(format=...), "record_foreign"),
        (altered(format="1"), "record_foreign"),
        (altered(format=RECORD_FORMAT + 1), "record_newer"),
        *((altered(cells=value), "record_foreign") for value in (..., [{}], 3)),
        *((altered(noise=value), "record_foreign") for value in ("loud", True)),
        (altered(machine=[]), "record_foreign"),
        (altered(failures=...), "record_foreign"),
        (altered(repeat="3"), "record_foreign"),
        *(
            (altered_cell(**{name: ...}), "record_foreign")
            for name in CELL
            if name != "fingerprint"
        ),
        *((altered_cell(covers=value), "record_foreign") for value in (1, "true")),
        (altered_cell(slack="1"), "record_foreign"),
        (altered_cell(labels={"a": True}), "record_foreign"),
        (altered(figures=[{"name": "f"}]), "record_foreign"),
    ],
)
def test_anything_else_is_refused_with_a_hint(text: str, code: str) -> None:
    with refused(UsageError, code) as caught:
        record_from_json(text, "r.json")
    assert "r.json" in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "unit", "words"),
    [
        ("maintain_ms", Unit.MS, "maintain"),
        ("state_bytes", Unit.BYTES, "state"),
        ("refilled_rows", Unit.ROWS, "refilled"),
        ("share", Unit.SHARE, "share of the table"),
        ("files_share", Unit.SHARE, "files share"),
        ("ratio", Unit.RATIO, "ratio"),
        ("recapture_ms", Unit.MS, "recapture"),
        ("recapture_ratio", Unit.RATIO, "recapture ratio"),
        ("duckdb_ms", Unit.MS, "recapture in DuckDB"),
        ("changes", Unit.NONE, "changes"),
        ("refill_count", Unit.NONE, "refill count"),
        ("", Unit.NONE, ""),
    ],
)
def test_a_name_ends_in_its_unit(name: str, unit: Unit, words: str) -> None:
    assert unit_of(name) is unit
    assert plain_name(name) == words


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.9, Unit.MS, "0.9 ms"),
        (0.0123, Unit.MS, "0.012 ms"),
        (0.0, Unit.MS, "0 ms"),
        (12.34, Unit.MS, "12.3 ms"),
        (999.4, Unit.MS, "999 ms"),
        (999.7, Unit.MS, "1 s"),
        (1300, Unit.MS, "1.3 s"),
        (90_000, Unit.MS, "1.5 min"),
        (7_200_000, Unit.MS, "2 h"),
        (152, Unit.BYTES, "152 B"),
        (4_200_000, Unit.BYTES, "4.2 MB"),
        (1234, Unit.ROWS, "1,234 rows"),
        (0.035, Unit.SHARE, "3.5 %"),
        (2497, Unit.RATIO, "2,497×"),
        (1234.5, Unit.NONE, "1,234"),
        (math.nan, Unit.MS, "–"),
        (math.inf, Unit.BYTES, "–"),
        (-5.0, Unit.MS, "-5 ms"),
    ],
)
def test_values_carry_their_unit(value: float, unit: Unit, text: str) -> None:
    assert readable(value, unit) == text


def test_ratios_and_numbers_are_rounded() -> None:
    assert [*map(times, (0.35, 1.04, 9.94, 9.96, 180.4))] == ["0.35×", "1×", "9.9×", "10×", "180×"]
    numbers = [*map(number, (0.0, 0.00123, 0.5, 12.345, 1e6))]
    assert numbers == ["0", "0.00123", "0.5", "12.3", "1,000,000"]


@pytest.mark.parametrize(
    ("metric", "unit", "text"),
    [
        ((10, 8, 12.5, 5), Unit.MS, "8–12.5 ms"),
        ((1000, 900, 1200, 5), Unit.MS, "900 ms–1.2 s"),
        ((10, 10, 10, 5), Unit.MS, ""),
        ((10, 8, 12, 1), Unit.MS, ""),
        ((10, math.nan, 12, 5), Unit.MS, ""),
        ((3, 2, 4, 5), Unit.RATIO, "2×–4×"),
    ],
)
def test_ranges_show_a_unit_once(
    metric: tuple[float, float, float, int], unit: Unit, text: str
) -> None:
    assert spread_text(Metric(*metric), unit) == text


def test_labels_are_formatted() -> None:
    labels = {"share": 0.02, "groups": 500_000, "batch": "lazy", "sorted": True}
    assert [label_text(*label) for label in labels.items()] == ["2 %", "500,000", "lazy", "yes"]


def set_clock(monkeypatch: pytest.MonkeyPatch, *durations: float) -> None:
    """Set a clock on which successive calls take these many seconds."""

    def readings() -> Iterator[float]:
        now = 100.0
        for duration in durations:
            yield now
            now += duration
            yield now

    result = readings()
    monkeypatch.setattr(stopwatch, "perf_counter", lambda: next(result))


def test_a_call_is_measured_in_milliseconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_clock(monkeypatch, 0.25, 0)
    calls: list[int] = []
    assert milliseconds(lambda: calls.append(1)) == pytest.approx(250)
    assert calls == [1]
    with pytest.raises(ZeroDivisionError):
        milliseconds(lambda: 1 / 0)


@pytest.mark.parametrize(
    ("durations", "expected"),
    [((3, 1, 2), 2000), ((1, 2, 3, 100), 2500), ((5,), 5000), ((1, 1), 1000)],
)
def test_the_median_is_used(
    durations: tuple[float, ...], expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clock(monkeypatch, *durations)
    metric = in_turns({"a": lambda: None}, len(durations))["a"]
    assert (metric.median, metric.runs) == (pytest.approx(expected), len(durations))


@pytest.mark.parametrize(
    ("seconds", "done", "runs"), [(0, 0, WARM_UP), (0, 3, 1), (0, 9, 0), (4, 0, 3), (60, 0, 1)]
)
def test_warm_up_ends_after_its_runs_or_ten_seconds(
    seconds: float, done: int, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(stopwatch, "perf_counter", lambda: len(calls) * seconds)
    warm_up(lambda: calls.append(1), done=done)
    assert len(calls) == runs


def test_calls_are_timed_in_turns() -> None:
    calls: list[str] = []
    times = in_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 2)
    assert calls == ["a", "b", "a", "b"]
    assert {name: metric.runs for name, metric in times.items()} == {"a": 2, "b": 2}


def test_the_yardstick_ignores_its_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(timing, "_work", lambda numbers, file: calls.append(file.write_bytes(b"1")))
    set_clock(monkeypatch, 5, 1, 2, 3, 4)
    assert yardstick(tmp_path) == pytest.approx(3000)
    assert len(calls) == 6
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_yardstick_takes_time(tmp_path: Path) -> None:
    assert yardstick(tmp_path) > 0


@pytest.mark.parametrize(
    ("medians", "noise"), [([], 0.0), ([5.0], 0.0), ([4.0, 5.0, 4.5], 0.25), ([2.0, 2.0], 0.0)]
)
def test_noise(medians: list[float], noise: float) -> None:
    assert noise_of(medians) == pytest.approx(noise)


def test_the_running_example_is_that_of_the_paper() -> None:
    rows = running_example_table().to_pylist()
    revenue: Counter[str] = Counter()
    for row in rows:
        revenue[row["brand"]] += row["price"] * row["numSold"]
    assert {brand: total for brand, total in revenue.items() if total > 5000} == {"Apple": 5074}
    assert revenue["HP"] + 1299 == 6194, "s8 lifts HP over the threshold"
    assert [row["sid"] for row in rows] == [1, 2, 3, 4, 5, 6, 7]
    assert rows[5]["numSold"] == 4


def entries(*days: int | None) -> pa.Table:
    dates = [None if day is None else datetime(2022, 11, day, 23, 59, 59) for day in days]
    return pa.table({"n": list(range(len(days))), "Date": pa.array(dates, pa.timestamp("us"))})


def numbers(table: pa.Table) -> list[int]:
    return list(table["n"].to_pylist())


def test_each_of_the_last_days_is_a_batch() -> None:
    base, batches = split_last_days(entries(3, None, 1, 3, 7, 1, 8), "Date", 2)
    assert numbers(base) == [0, 1, 2, 3, 5]
    assert [numbers(batch) for batch in batches] == [[4], [6]]


@pytest.mark.parametrize("days", [0, 1, 3, 99])
def test_base_and_batches_are_the_table(days: int) -> None:
    base, batches = split_last_days(entries(3, None, 1, 3, 7), "Date", days)
    assert len(batches) == min(days, 3)
    assert sorted(sum((numbers(part) for part in (base, *batches)), [])) == [0, 1, 2, 3, 4]


def test_nothing_to_split() -> None:
    base, batches = split_last_days(entries(None), "Date", 3)
    assert (numbers(base), batches) == ([0], [])


@pytest.mark.parametrize(("column", "match"), [("When", "no column `When`"), ("n", "has no dates")])
def test_a_missing_or_dateless_column_is_refused(column: str, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        split_last_days(entries(1), column, 1)


def test_incidents_of_a_year() -> None:
    path = os.environ.get("IMPCTL_CRIMES")
    if not path or not Path(path).is_file():
        pytest.skip("IMPCTL_CRIMES names no Parquet file of incidents")
    table = pq.read_table(path)
    base, batches = split_last_days(table, "Date", 3)
    assert len(batches) == 3
    assert base.num_rows + sum(batch.num_rows for batch in batches) == table.num_rows
    assert all(batch.num_rows > 0 for batch in batches)


KEYS = [32 * block + offset for block in range(400) for offset in range(8)]
ORDERS = pa.table({"o_orderkey": pa.array(KEYS, pa.int64()), "o_name": [f"o{k}" for k in KEYS]})
_LINES = pa.array([key for key in KEYS for _ in range(1 + key % 7)], pa.int64())
LINEITEM = pa.table({"l_orderkey": _LINES})


def lineitem_of(keys: Sequence[int]) -> pa.Table:
    return LINEITEM.filter(pc.is_in(LINEITEM.column("l_orderkey"), pa.array(keys, pa.int64())))


def test_orders_have_their_lines_and_new_keys() -> None:
    used: set[int] = set()
    for refresh in refreshes(ORDERS, lineitem_of, sizes=(1, 10, 200)):
        orders = refresh.orders.to_pydict()
        keys = set(orders["o_orderkey"])
        assert not keys & ({*KEYS} | used)
        used |= keys
        lines = refresh.lineitem.column("l_orderkey").to_pylist()
        assert Counter(lines) == {key + 8: 1 + key % 7 for key in KEYS if key + 8 in keys}
        assert set(lines) == keys
        assert refresh.size <= len(keys) + len(lines) < refresh.size + 8
        assert orders["o_name"] == [f"o{key - 8}" for key in orders["o_orderkey"]]


def test_equal_arguments_give_equal_rows() -> None:
    first, second = (list(refreshes(ORDERS, lineitem_of, sizes=(50,), seed=3)) for _ in range(2))
    assert first == second
    (different,) = refreshes(ORDERS, lineitem_of, sizes=(50,), seed=4)
    assert not different.orders.equals(first[0].orders)
    assert np.unique(different.orders.column("o_orderkey").to_numpy()).size == len(different.orders)


def table(rows: int, groups: int, seed: int = 7, **options: object) -> pa.Table:
    batches = synthetic_batches(rows, groups, seed, **options)  # type: ignore[arg-type]
    return pa.Table.from_batches(list(batches), schema=SYNTHETIC_SCHEMA)


@pytest.mark.parametrize("sorted_by_a", [False, True])
def test_rows_do_not_depend_on_the_batch_size(sorted_by_a: bool) -> None:
    for batch_rows in (1, 999, 4096, 20_000):
        rows = 200 if batch_rows == 1 else 10_000
        expected = table(rows, 50, sorted_by_a=sorted_by_a, batch_rows=10_000)
        parts = table(rows, 50, sorted_by_a=sorted_by_a, batch_rows=batch_rows)
        assert parts.combine_chunks().equals(expected.combine_chunks())


def test_the_seed_decides_the_rows() -> None:
    assert table(1000, 10, seed=1).equals(table(1000, 10, seed=1))
    assert not table(1000, 10, seed=1).equals(table(1000, 10, seed=2))


@pytest.mark.parametrize("sorted_by_a", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 2, 6, 1000, 10_007])
def test_ids_are_unique_and_dense(rows: int, sorted_by_a: bool) -> None:
    ids = table(rows, 13, sorted_by_a=sorted_by_a, batch_rows=100)["id"].to_numpy()
    assert np.array_equal(np.sort(ids), np.arange(rows))


def test_sorted_rows_increase_in_a_and_scatter_the_ids() -> None:
    rows = table(20_000, 40, sorted_by_a=True)
    a = rows["a"].to_numpy()
    assert np.all(np.diff(a) >= 0)
    assert abs(np.corrcoef(a, rows["id"].to_numpy())[0, 1]) < 0.05


@pytest.mark.parametrize("sorted_by_a", [False, True])
def test_groups_are_uniform_over_their_whole_range(sorted_by_a: bool) -> None:
    a = table(100_000, 50, sorted_by_a=sorted_by_a)["a"].to_numpy()
    counts = np.bincount(a, minlength=50)
    assert len(counts) == 50
    # 2000 are expected; seven standard deviations of a binomial count.
    assert np.all(np.abs(counts - 2000) < 7 * np.sqrt(2000))
    assert counts.std() > 20, "counts vary randomly"


def test_measures_follow_a_with_noise() -> None:
    rows = table(50_000, 1000)
    a = rows["a"].to_numpy()
    for name in MEASURES:
        assert 0.8 < np.corrcoef(a, rows[name].to_numpy())[0, 1] < 0.9999
    residual = rows["c"].to_numpy() - a
    assert abs(residual.mean()) < 2
    assert abs(residual.std() - 50) < 2


def test_more_groups_than_rows() -> None:
    rows = table(10, 500_000, sorted_by_a=True)
    assert pc.max(rows["a"]).as_py() < 500_000
    assert rows.num_rows == 10


@pytest.mark.parametrize(("rows", "groups"), [(-1, 1), (2**31, 1), (1, 0)])
def test_invalid_sizes_are_refused_at_once(rows: int, groups: int) -> None:
    with pytest.raises(UsageError):
        synthetic_batches(rows, groups, 1)


@pytest.mark.slow
def test_ten_million_rows_use_bounded_memory() -> None:
    total = 0
    for batch in synthetic_batches(10_000_000, 500_000, 1, sorted_by_a=True):
        total += batch.num_rows
        assert batch.nbytes <= 500_000 * 11 * 8
    assert total == 10_000_000
