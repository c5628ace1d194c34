"""`views:` of a workload file, from the file to the sketch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.names.conftest import WORKLOAD
from tests.support.run_cli import Cli

VIEWS = """\
views:
  recent: SELECT g, x FROM main.shop.sales WHERE x >= 5
  reports.busy: |
    SELECT g, COUNT(*) AS n
    FROM recent GROUP BY g HAVING COUNT(*) >= 2
  broken: |
    SELECT g
    FROM recent WHERE y > 1
  around: SELECT * FROM back
  back: SELECT * FROM around
"""
ASKED = "SELECT g, n FROM main.reports.busy"


@pytest.fixture
def viewed(cli: Cli, shop: Path) -> Cli:
    text = WORKLOAD.replace("queries:\n", f"{VIEWS}queries:\n  busy: {{sql: '{ASKED}'}}\n")
    (shop / "w.yaml").write_text(text)
    return cli


@pytest.mark.slow
def test_a_query_over_views_has_a_sketch_that_its_own_text_finds_too(viewed: Cli) -> None:
    viewed.good("capture", "--query", "busy")
    (result,) = viewed.good("rewrite", "--query", "busy").results
    assert "FROM (SELECT * FROM main.shop.sales WHERE `g` < 4L) AS sales" in result["sql"]
    for sql in (
        ASKED,
        "SELECT g FROM shop.sales WHERE x >= 5 GROUP BY g HAVING COUNT(*) >= 2",
        "SELECT g FROM recent GROUP BY g HAVING COUNT(*) >= 3",
    ):
        (other,) = viewed.good("rewrite", "--sql", sql).results
        assert other["reuse"]["query"] == "busy", sql


def test_a_view_that_changes_makes_another_query(viewed: Cli, shop: Path) -> None:
    viewed.good("capture", "--query", "busy")
    file = shop / "w.yaml"
    file.write_text(file.read_text().replace("x >= 5", "x >= 6"))
    late = viewed("maintain", "--query", "busy", "--policy", "strict")
    assert late.error["code"] == "policy_refused"


def test_errors_stand_at_their_place_in_the_view(viewed: Cli, shop: Path) -> None:
    lines = (shop / "w.yaml").read_text().split("\n")
    line = next(n for n, text in enumerate(lines, start=1) if "y > 1" in text)
    ran = viewed("query", "--sql", "SELECT g FROM broken")
    assert ran.error["code"] == "column_unknown"
    assert ran.error["location"]["line"] == line
    assert ran.error["location"]["column"] == lines[line - 1].index("y > 1") + 1


def test_a_circle_is_told(viewed: Cli) -> None:
    ran = viewed("rewrite", "--sql", "SELECT * FROM around")
    assert (ran.code, ran.error["code"]) == (3, "view_circle")


@pytest.mark.spark
def test_answers_over_views_are_the_same_with_the_sketch(viewed: Cli) -> None:
    viewed.good("capture", "--query", "busy")
    for sql in (ASKED, "SELECT busy.g FROM reports.busy JOIN recent ON recent.g = busy.g"):
        answers = [
            sorted(viewed.good("query", "--sql", sql, "--sketch", use).results[0]["rows"])
            for use in ("always", "never")
        ]
        assert answers[0] == answers[1]
        assert answers[0]
