"""Records as text: the same record comes back, and anything else is refused in a sentence."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from impctl.bench.record import RECORD_FORMAT, Cell, Metric
from impctl.bench.record_json import record_from_json, record_to_json
from impctl.errors import UsageError

from .one_figure import record_of

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
    with pytest.raises(UsageError) as caught:
        record_from_json(text, "r.json")
    assert caught.value.code == code
    assert "r.json" in caught.value.message
    assert caught.value.hint
