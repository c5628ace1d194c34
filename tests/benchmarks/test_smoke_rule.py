"""Ratios held against a baseline: noise and a factor pass, a fall does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from impctl.bench.record import Cell, Metric, Record
from tests.bench.paper_records import small_record
from tests.benchmarks.smoke import FACTOR, falls, ratios_of, read_baseline, write_baseline


def record(*ratios: float, noise: float = 0.0) -> Record:
    cells = tuple(
        Cell("f", {"query": at}, {"a_ratio": Metric.of([ratio]), "a_ms": Metric.of([5.0])})
        for at, ratio in enumerate(ratios)
    )
    return small_record(*cells, noise=noise)


def test_the_baseline_is_the_median_of_ratios_and_comes_back(tmp_path: Path) -> None:
    ratios = ratios_of([record(10.04, 2), record(30, 2), record(12.6, 2)])
    assert [(each.metric, each.ratio) for each in ratios] == [("a_ratio", 13.0), ("a_ratio", 2.0)]
    write_baseline(tmp_path / "b.json", ratios)
    assert read_baseline(tmp_path / "b.json") == ratios


def test_only_a_fall_beyond_noise_and_factor_counts() -> None:
    usual = ratios_of([record(30.0)])
    assert falls(record(30.0), usual) == ()
    assert falls(record(300.0), usual) == ()
    assert falls(record(30.0 / FACTOR), usual) == ()
    assert falls(record(11.0, noise=0.2), usual) == ()
    (told,) = falls(record(11.0), usual)
    assert told == "a_ratio of figure `f` (query 0) is 11, below 12; usual is 30"


def test_the_median_counts_not_what_the_luckiest_runs_allow() -> None:
    usual = ratios_of([record(30.0)])

    def runs(*ratios: float) -> Record:
        cell = Cell("f", {"query": 0}, {"a_ratio": Metric.of(ratios)})
        return replace(record(), cells=(cell,))

    assert falls(runs(2.0, 16.0, 28.0), usual) == ()
    assert len(falls(runs(1.0, 2.0, 28.0), usual)) == 1
    assert ratios_of([runs(20.0, 30.0, 90.0)])[0].ratio == 30.0


def test_a_cell_that_is_missing_is_told() -> None:
    (told,) = falls(record(), ratios_of([record(30.0)]))
    assert told == "a_ratio of figure `f` (query 0) was not measured"
