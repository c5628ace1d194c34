"""Break-even in words: the earliest one, each by case, with recapture and with DuckDB."""

from __future__ import annotations

from impctl.bench.break_even_words import break_even_words, earliest_break_even
from impctl.bench.record import Cell, Label, Metric

from .one_figure import record_of


def cell(size: float, cost: float, duckdb: float | None = None, **labels: Label) -> Cell:
    metrics = {"maintain_ms": Metric.of([cost]), "recapture_ms": Metric.of([100.0])}
    if duckdb is not None:
        metrics["duckdb_ms"] = Metric.of([duckdb])
    return Cell("f", {**labels, "changes": int(size * 1000), "share": size}, metrics)


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
    assert earliest_break_even(record) == ("above 5 %", "beyond every change measured")
    assert earliest_break_even(record_of(cell(0.01, 10))) is None


def test_each_case_has_its_own_and_duckdb_another() -> None:
    record = record_of(
        cell(0.01, 10, 20.0, groups=5), cell(0.1, 90, 20.0, groups=5), cell(0.01, 10, groups=9),
    )  # fmt: skip
    assert list(break_even_words(record).values()) == ["above 100 changes"]
    (text,) = break_even_words(record, "duckdb_ms").values()
    assert text.endswith(" changes)")
    assert text.startswith("2.1 %")
