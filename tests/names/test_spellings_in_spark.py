"""Queries that call their tables by any of their names give in Spark what they give with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.run_cli import Cli

pytestmark = pytest.mark.spark

BIG = "SELECT g, COUNT(*) AS n, SUM(x) AS s FROM {} GROUP BY g HAVING COUNT(*) >= 2"

SPELLINGS = [
    "sales",
    "SALES",
    "`sales`",
    "shop.sales",
    "`shop`.`Sales`",
    "main.shop.sales",
    "Main.`shop` . sales",
    "legacy.umsatz",
    "hive_metastore.`old shop`.sales",
    "delta.`PATH`",
    "Delta.`file:PATH/`",
]
SELF_JOINS = [
    """SELECT shop.sales.g, COUNT(*) AS n FROM main.shop.sales JOIN legacy.umsatz u
       ON u.g = main.shop.sales.g GROUP BY SALES.g HAVING COUNT(*) >= 2""",
    """WITH sales AS (SELECT * FROM shop.sales), unused AS (SELECT * FROM hr.people)
       SELECT main.hr.people.g, SUM(sales.x) AS s FROM hr.people, sales
       WHERE sales.g = hr.people.g GROUP BY main.hr.people.g HAVING SUM(sales.x) > 40""",
    """WITH sales AS (SELECT g, x FROM hr.people WHERE x < 0), b AS (SELECT * FROM shop.sales)
       SELECT g, COUNT(*) AS n FROM b GROUP BY g HAVING COUNT(*) >= 2""",
    """SELECT people.* FROM hr.people WHERE g IN (SELECT shop.sales.g FROM sales WHERE x > 20)""",
]


def test_every_spelling_reads_through_the_one_sketch(shop: Path, cli: Cli) -> None:
    cli.good("capture", "--query", "big")
    wanted = [[0, 3, 45], [3, 3, 45]]
    for spelling in SPELLINGS:
        sql = BIG.format(spelling.replace("PATH", str(shop / "sales")))
        (used,) = cli.good("query", "--sql", sql).results
        assert sorted(used["rows"]) == wanted, spelling
        assert used["reuse"]["query"] == "big", spelling
        (plain,) = cli.good("query", "--sql", sql, "--sketch", "never").results
        assert sorted(plain["rows"]) == wanted, spelling


def test_queries_over_several_names_are_captured_and_used(cli: Cli) -> None:
    cli.good("capture")
    cli.good("verify", "--results")
    for sql in SELF_JOINS:
        (plain,) = cli.good("query", "--sql", sql, "--sketch", "never").results
        assert plain["rows"], sql
