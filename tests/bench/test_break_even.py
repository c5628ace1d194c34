"""Break-even: between neighbours, beyond what was measured, and never further; and in words, by
case, with recapture and with DuckDB."""

from __future__ import annotations

import math

import pytest

from impctl.bench.break_even import break_even_words, break_evens, earliest_break_even
from impctl.bench.record import Cell, Label, Metric
from tests.bench.paper_records import record_of


def cell(size: float, cost: float, duckdb: float | None = None, **labels: Label) -> Cell:
    metrics = {"maintain_ms": Metric.of([cost]), "recapture_ms": Metric.of([100.0])}
    if duckdb is not None:
        metrics["duckdb_ms"] = Metric.of([duckdb])
    return Cell("f", {**labels, "changes": int(size * 1000), "share": size}, metrics)


def test_it_lies_where_the_costs_cross_on_logarithmic_axes() -> None:
    (result,) = break_evens(record_of(cell(0.01, 10), cell(0.1, 1000)))
    assert result.size == "share"
    assert result.at == pytest.approx(math.sqrt(0.01 * 0.1))
    assert (result.beyond, result.before) == (None, None)


def test_an_exact_tie_is_the_crossing() -> None:
    (result,) = break_evens(record_of(cell(0.01, 10), cell(0.05, 100), cell(0.1, 200)))
    assert result.at == pytest.approx(0.05)


def test_beyond_the_largest_and_below_the_smallest() -> None:
    (cheap,) = break_evens(record_of(cell(0.1, 99), cell(0.01, 1)))
    assert (cheap.at, cheap.beyond, cheap.before) == (None, 0.1, None)
    (dear,) = break_evens(record_of(cell(0.1, 500), cell(0.01, 101)))
    assert (dear.at, dear.beyond, dear.before) == (None, None, 0.01)


def test_the_first_crossing_counts() -> None:
    cells = [cell(0.01, 50), cell(0.02, 200), cell(0.04, 50), cell(0.08, 200)]
    (result,) = break_evens(record_of(*cells))
    assert result.at is not None
    assert 0.01 < result.at < 0.02


def test_every_series_has_its_own() -> None:
    cells = [cell(s, c * s, groups=g) for g, c in ((5, 2000), (9, 500)) for s in (0.01, 0.1)]
    few, many = break_evens(record_of(*cells))
    assert few.labels == {"groups": 5}
    assert few.at == pytest.approx(0.05)
    assert many.beyond == 0.1


def test_without_shares_rows_count() -> None:
    cells = [
        Cell("f", {"changes": rows}, cell(1, cost).metrics) for rows, cost in ((10, 1), (1000, 1e4))
    ]
    (result,) = break_evens(record_of(*cells))
    assert result.size == "changes"
    assert result.at == pytest.approx(100)


def test_a_single_size_or_no_size_has_none() -> None:
    assert break_evens(record_of(cell(0.1, 5))) == ()
    assert break_evens(record_of(Cell("f", {"a": 1}, cell(1, 1).metrics))) == ()
    assert break_evens(record_of(Cell("f", {"changes": 1}, {"plain_ms": Metric.of([1.0])}))) == ()


def test_the_earliest_is_a_crossing_before_any_that_lies_beyond() -> None:
    record = record_of(
        cell(0.01, 10, groups=5), cell(0.1, 50, groups=5),
        cell(0.01, 10, groups=9), cell(0.1, 1000, groups=9),
    )  # fmt: skip
    even = earliest_break_even(record)
    assert even is not None
    assert even[0] == "3.2 %"
    assert even[1].endswith("9 groups")


def test_beyond_everything_it_is_the_least_of_the_largest_sizes() -> None:
    record = record_of(
        cell(0.01, 10, groups=5), cell(0.1, 50, groups=5),
        cell(0.01, 10, groups=9), cell(0.05, 50, groups=9),
    )  # fmt: skip
    assert earliest_break_even(record) == ("above 5 %", "above every measured change")
    assert earliest_break_even(record_of(cell(0.01, 10))) is None


def test_each_case_has_its_own_and_duckdb_another() -> None:
    record = record_of(
        cell(0.01, 10, duckdb=20.0, groups=5), cell(0.1, 90, duckdb=20.0, groups=5),
        cell(0.01, 10, groups=9),
    )  # fmt: skip
    assert list(break_even_words(record).values()) == ["above 100 changes"]
    (text,) = break_even_words(record, "duckdb_ms").values()
    assert text.endswith(" changes)")
    assert text.startswith("2.1 %")
