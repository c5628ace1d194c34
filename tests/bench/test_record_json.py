"""Records as text that comes back or is refused in a sentence; quantities as people read them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from impctl.errors import UsageError
from tests.bench.paper_records import record_of
from tests.support.refused import refused

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
def test_reading_what_was_written_gives_the_same_record(cells: list[Cell]) -> None:
    record = replace(record_of(*cells, noise=0.25), figure_noise={"f": 0.125})
    assert record_from_json(record_to_json(record), "r.json") == record


def test_a_record_from_before_figure_noise_and_fingerprints_has_that_of_the_run() -> None:
    document = json.loads(record_to_json(record_of(Cell("f", {}, {}), noise=0.25)))
    del document["figure_noise"], document["cells"][0]["fingerprint"]
    record = record_from_json(json.dumps(document), "r.json")
    assert record.noise_of("f") == 0.25
    assert record.cells[0].fingerprint == ""
    assert replace(record, noise=math.nan).noise_of("f") == 0.0


def test_numbers_that_json_lacks_survive() -> None:
    record = record_of(Cell("f", {}, {"a_ratio": Metric(math.inf, -math.inf, math.nan, 1)}))
    text = record_to_json(record)
    (cell,) = record_from_json(text, "r").cells
    assert cell.metrics["a_ratio"].median == math.inf
    assert cell.metrics["a_ratio"].low == -math.inf
    assert math.isnan(cell.metrics["a_ratio"].high)


def test_the_envelope_of_the_command_line_is_read_too() -> None:
    record = record_of(Cell("f", {"a": 1}, {"a_ms": Metric.of([1.0])}))
    envelope = {"schema_version": 1, "results": [json.loads(record_to_json(record)), {"path": ""}]}
    assert record_from_json(json.dumps(envelope), "r") == record


def altered(**changes: Any) -> str:
    document = json.loads(record_to_json(record_of(Cell("f", {}, {"a_ms": Metric.of([1.0])}))))
    for path, value in changes.items():
        if value is ...:
            del document[path]
        else:
            document[path] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "record_foreign"),
        ("not json", "record_foreign"),
        ("[]", "record_foreign"),
        ("{}", "record_foreign"),
        ('{"results": []}', "record_foreign"),
        (altered(format=...), "record_foreign"),
        (altered(format="1"), "record_foreign"),
        (altered(format=RECORD_FORMAT + 1), "record_newer"),
        (altered(cells=...), "record_foreign"),
        (altered(cells=[{}]), "record_foreign"),
        (altered(cells=3), "record_foreign"),
        (altered(noise="loud"), "record_foreign"),
        (altered(noise=True), "record_foreign"),
        (altered(machine=[]), "record_foreign"),
        (altered(figures=[{"name": "f"}]), "record_foreign"),
    ],
)
def test_anything_else_is_refused_with_what_to_do(text: str, code: str) -> None:
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


def test_ratios_and_numbers_promise_no_more_than_they_know() -> None:
    assert [times(value) for value in (0.35, 1.04, 9.94, 9.96, 180.4)] == [
        "0.35×", "1×", "9.9×", "10×", "180×",
    ]  # fmt: skip
    assert [number(value) for value in (0.0, 0.00123, 0.5, 12.345, 1e6)] == [
        "0", "0.00123", "0.5", "12.3", "1,000,000",
    ]  # fmt: skip


def test_a_spread_names_a_common_unit_once() -> None:
    assert spread_text(Metric(10, 8, 12.5, 5), Unit.MS) == "8–12.5 ms"
    assert spread_text(Metric(1000, 900, 1200, 5), Unit.MS) == "900 ms–1.2 s"
    assert spread_text(Metric(10, 10, 10, 5), Unit.MS) == ""
    assert spread_text(Metric(10, 8, 12, 1), Unit.MS) == ""
    assert spread_text(Metric(10, math.nan, 12, 5), Unit.MS) == ""
    assert spread_text(Metric(3, 2, 4, 5), Unit.RATIO) == "2×–4×"


def test_labels_read_as_they_are_written() -> None:
    assert label_text("share", 0.02) == "2 %"
    assert label_text("groups", 500_000) == "500,000"
    assert label_text("batch", "lazy") == "lazy"
    assert label_text("sorted", True) == "yes"
