"""Fingerprints of cases: what a number is of, and nothing that only tells where or how often."""

from __future__ import annotations

from pathlib import Path

import pytest

from impctl.app.measuring.fingerprint import case_fingerprint
from impctl.app.measuring.plan import VOCABULARY, planned_suite
from impctl.app.measuring.registry import MEASURES
from impctl.app.measuring.shipped import shipped_suites
from impctl.app.workbench.reporter import SilentReporter
from impctl.app.workbench.settings import SuiteRequest
from impctl.workload.suites import load_suite

SUITE = """\
version: 1
data:
  t: {example: synthetic, rows: 1000, groups: 5}
  u: {example: synthetic, rows: 1000, groups: 5}
workload:
  tables: {t: {path: t}, u: {path: u}}
  partitions:
    t: {a: {fragments: 10}, b: {fragments: 10}}
  queries: {q: {sql: SELECT a FROM t, sketch: {t: a}}, r: {sql: SELECT a FROM u}}
figures:
  one:
    title: One
    measure: deletions
    with: {patterns: [minimal, random], points: 2, updates: 100}
    cases: [{query: q}]
    chart: {x: updates, y: [maintain_ms]}
"""


def fingerprint(folder: Path, old: str = "", new: str = "", *, repeat: int = 2) -> str:
    path = folder / "own.yaml"
    assert old in SUITE
    path.write_text(SUITE.replace(old, new) if old else SUITE)
    request = SuiteRequest(str(path), scale=0.5, repeat=repeat, folder=folder)
    planned = planned_suite(request, SilentReporter())
    (figure,) = planned.figures
    ((case, _),) = figure.cases
    return case_fingerprint(planned, figure.spec, case)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SELECT a FROM t", "SELECT b FROM t"),
        ("sketch: {t: a}", "sketch: {t: b}"),
        ("sketch: {t: a}", "sketch: {t: a}, join: index"),
        ("a: {fragments: 10}", "a: {fragments: 11}"),
        ("points: 2", "points: 4"),
        # The label of this name counts up to the option.
        ("updates: 100", "updates: 200"),
        ("t: {example: synthetic, rows: 1000, groups: 5}",
         "t: {example: synthetic, rows: 1000, groups: 6}"),
    ],
)  # fmt: skip
def test_what_is_measured_counts(tmp_path: Path, old: str, new: str) -> None:
    assert fingerprint(tmp_path, old, new) != fingerprint(tmp_path)


@pytest.mark.slow
def test_options_left_out_are_options_that_suites_give_to_these_measures(tmp_path: Path) -> None:
    suites = [load_suite(path, {}, tmp_path, VOCABULARY) for path in shipped_suites().values()]
    given = {
        (figure.measure, option)
        for suite in suites
        for figure in suite.figures
        for option in figure.at(1).options
    }
    left_out = {(name, option) for name, kind in MEASURES.items() for option in kind.labelled}
    assert left_out <= given


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("title: One", "title: Another"),
        ("SELECT a FROM u", "SELECT b FROM u"),
        ("b: {fragments: 10}", "b: {fragments: 11}"),
        # Each cell has its pattern among its labels.
        ("[minimal, random]", "[minimal, random, '2:1']"),
        ("u: {example: synthetic, rows: 1000", "u: {example: synthetic, rows: 5000"),
    ],
)
def test_what_is_told_elsewhere_does_not(tmp_path: Path, old: str, new: str) -> None:
    assert fingerprint(tmp_path, old, new) == fingerprint(tmp_path)
    assert fingerprint(tmp_path, repeat=9) == fingerprint(tmp_path)
