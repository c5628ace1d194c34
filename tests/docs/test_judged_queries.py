"""The page of judged queries says of its tables what their rows say."""

from __future__ import annotations

import re

from tests.docs.judged_queries import INTRODUCTION, PAGE, Row, page

_ROW = re.compile(r"^\| (\w+) \| (exact|touch|recapture|refused|not read) \| ([\d.]+) \| (.*) \|$")


def test_the_page_is_printed_from_its_rows() -> None:
    text = PAGE.read_text(encoding="utf-8")
    tables: dict[str, list[Row]] = {}
    for line in text.removeprefix(INTRODUCTION).splitlines():
        if line.startswith("## "):
            rows = tables.setdefault(line[3:], [])
        match = _ROW.match(line)
        if match:
            rows.append(Row(match[1], match[2], match[4].replace("\\|", "|"), float(match[3])))
    assert {heading: len(rows) for heading, rows in tables.items()} == {
        "TPC-DS": 118,
        "ClickBench": 43,
    }
    assert page(tables) == text, "print it anew, see the page's last paragraph"


def test_every_query_that_is_not_exact_says_why() -> None:
    rows = filter(None, map(_ROW.match, PAGE.read_text(encoding="utf-8").splitlines()))
    assert all(row[4].strip() for row in rows if row[2] != "exact")
