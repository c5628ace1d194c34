"""Settings side by side: lines in a narrow terminal, a table in a wide one or a pipe."""

from __future__ import annotations

from dataclasses import replace

from impctl.app.results.results import Outcome
from tests.cli.examples import EXAMPLES

NARROW = """\
8,442 commits with 659,699 rows in 58 days replayed, from 2026-01-31 12:00:30Z
  on, by the histories of the tables; a look every 5 s
as it is:
  8,400 runs, 33,000 steps, 15.7 min of work, 0 late
  age 2.64 s, 99% 5.1 s, worst 10.4 s
  state 116 MB, reads 0, converts 0
10 MB, use:
  0 runs, 0 steps, 0 ms of work, 2 late
  age -, 99% -, worst 1,344 h
  state 20.2 MB, reads 77,912, converts 12
  work: 2 queries by recorded runs; 1 query by captures, as no run is recorded;
    1 query by prior times
  over their budget, with the least that will do: 10 MB, use
  recorded since 2026-01-31 12:00:30Z: 8,000 runs, 33,000 steps, 16.7 min; the
    model has 8,400 (+5%), 33,000 (+0%), 15.7 min (-6%)
"""

TABLE = """\
setting       runs    steps       work      age     99%     worst   late     state    reads   converts
RULE
as it is     8,400   33,000   15.7 min   2.64 s   5.1 s    10.4 s      0    116 MB        0          0
10 MB, use       0        0       0 ms        -       -   1,344 h      2   20.2 MB   77,912         12
"""  # noqa: E501 - as it is printed


def test_in_a_narrow_terminal_each_setting_has_lines(fake, impctl) -> None:
    fake.answer = Outcome((EXAMPLES["simulate"],))
    assert impctl("simulate", "w.yaml").stdout == NARROW


def test_where_it_fits_settings_are_a_table(fake, impctl, monkeypatch) -> None:
    fake.answer = Outcome((replace(EXAMPLES["simulate"], recorded=None),))
    rule = "\N{BOX DRAWINGS LIGHT HORIZONTAL}" * 102
    for columns in ("102", "300", ""):
        monkeypatch.setenv("COLUMNS", columns)
        shown = impctl("simulate", "w.yaml").stdout
        assert TABLE.replace("RULE", rule) in shown
        assert shown.endswith("no runs are recorded of this time to hold the model against\n")
    monkeypatch.setenv("COLUMNS", "101")
    assert "converts 12" in impctl("simulate", "w.yaml").stdout


def test_rows_that_come_late_are_told(fake, impctl, monkeypatch) -> None:
    late = replace(EXAMPLES["simulate"], recorded=None, late="p 0.9, every 1m")
    fake.answer = Outcome((late,))
    monkeypatch.setenv("COLUMNS", "300")
    shown = impctl("simulate", "w.yaml").stdout
    assert "histories of the tables, rows late (p 0.9, every 1m); a look" in " ".join(shown.split())
    assert shown.endswith("no run carried on rows that came late like this\n")
