"""Records and comparisons as text: a table per figure, and what cannot be compared is told."""

from __future__ import annotations

from dataclasses import replace

from impctl.app.measuring.figure_tables import metric_text
from impctl.app.results.results import Outcome, RecordKind
from impctl.bench.compare import Difference
from tests.cli.examples import EXAMPLES

RECORD_TEXT = """\
micro: 6 cells of 2 figures, 6 checked, scale 0.05, 75 s, noise 4%

groups: Number of groups
   groups  changes  maintain  recapture  recapture ratio
       50    1,000    2.1 ms     812 ms             387×
       50  100,000    1.62 s     812 ms             0.5×
  500,000    1,000    2.5 ms     812 ms             325×
  500,000  100,000   81.2 ms     812 ms              10×
  break-even, 50 groups: 6.2 % (62,000 changes)
  break-even, 500,000 groups: above 100,000 changes
  papers: Up to 1,000 changed rows maintaining wins by two to three orders of
    magnitude. (section 8.3.1)

skipping: What a sketch saves
  layout      without sketch  rows share
  sorted               1.5 s      6.25 %
  not sorted           1.5 s       100 %
"""


def test_large_ratios_have_no_exponent() -> None:
    assert [metric_text("x_ratio", value) for value in (999.7, 2345.6)] == ["1,000×", "2,346×"]
    assert metric_text("rows_share", 12.0) == "1,200 %"


def test_a_record_is_a_table_per_figure(fake, impctl) -> None:
    fake.answer = Outcome((EXAMPLES["record"], EXAMPLES["written"]))
    ran = impctl("bench", "micro")
    assert ran.stdout == RECORD_TEXT
    assert ran.stderr == "measuring micro\nrecord: r.json\n"
    assert max(map(len, ran.stdout.splitlines())) <= 80


def test_a_workload_is_shown_alike_but_has_no_scale(fake, impctl) -> None:
    fake.answer = Outcome((replace(EXAMPLES["record"], kind=RecordKind.WORKLOAD),))
    ran = impctl("bench", "w.yaml")
    assert "scale" not in ran.stdout
    assert ran.stdout == RECORD_TEXT.replace("scale 0.05, ", "")


def test_break_evens_that_agree_are_one_line(fake, impctl) -> None:
    record = EXAMPLES["record"]
    groups = [cell for cell in record.cells if cell.figure == "groups"]
    fast = groups[-1].metrics
    alike = tuple(replace(cell, metrics=fast) if cell in groups else cell for cell in record.cells)
    fake.answer = Outcome((replace(record, cells=alike),))
    told = [line for line in impctl("bench", "micro").stdout.splitlines() if "break-even" in line]
    assert told == ["  break-even, 2 cases alike: above 100,000 changes"]


def test_a_comparison_tells_differences_and_what_has_no_partner(fake, impctl) -> None:
    fake.answer = Outcome((EXAMPLES["comparison"],))
    assert impctl("bench", "--compare", "a.json", "b.json").stdout == (
        "micro: 2 metrics of 1 cell compared, noise 21%\n"
        "  slower: groups, groups 50: maintain 2.1 ms, then 4.2 ms (2.00)\n"
        "  only in the old record: groups, groups 9\n"
        "  differs between the runs: cpu: x, then y\n"
    )


def test_what_a_comparison_cannot_judge_is_told(fake, impctl) -> None:
    comparison = EXAMPLES["comparison"]
    time, other = comparison.changes
    changes = replace(time, verdict=Difference.UNJUDGED), other
    unlike = replace(comparison, changes=changes, edited=comparison.only_old)
    fake.answer = Outcome((unlike,))
    assert impctl("bench", "--compare", "a.json", "b.json").stdout == (
        "micro: 2 metrics of 1 cell compared, noise 21%\n"
        "  not compared, of another query, partition, option or data: groups, groups 9\n"
        "  times are not judged, they are of two machines: only ratios and sizes are\n"
        "  nothing differs beyond the noise\n"
        "  only in the old record: groups, groups 9\n"
        "  differs between the runs: cpu: x, then y\n"
    )


def test_a_suite_in_short(fake, impctl) -> None:
    fake.answer = Outcome((EXAMPLES["suite"],))
    assert impctl("check", "micro").stdout == (
        "micro: Micro-benchmarks (1 figure, 3 cases)\n  groups\n"
    )
