"""`rewrite` keeps the names that a text has, and finds sketches by tables, not by spelling."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.run_cli import Cli

HEAD, TAIL = "SELECT g, COUNT(*) AS n, SUM(x) AS s FROM ", " GROUP BY g HAVING COUNT(*) >= 2"


@pytest.fixture
def captured(cli: Cli) -> Cli:
    """Sketch of `big`: fragments 0 and 1 of g."""
    cli.good("capture", "--query", "big")
    return cli


@pytest.mark.slow
@pytest.mark.parametrize(
    ("written", "alias"),
    [
        ("sales", "sales"),
        ("shop.sales", "sales"),
        ("`main`.shop.`Sales`", "`Sales`"),
        ("legacy.UMSATZ", "UMSATZ"),
        ("hive_metastore.`old shop`.sales", "sales"),
        ("delta.`PATH`", "`PATH`"),
    ],
)
def test_the_names_written_stay(captured: Cli, shop: Path, written: str, alias: str) -> None:
    written, alias = (t.replace("PATH", str(shop / "sales")) for t in (written, alias))
    (result,) = captured.good("rewrite", "--sql", HEAD + written + TAIL).results
    rows = f"(SELECT * FROM {written} WHERE `g` < 4L)"
    assert result["sql"] == f"{HEAD}{rows} AS {alias}{TAIL}"
    assert result["reuse"]["query"] == "big"


def test_columns_by_whole_names_follow(captured: Cli) -> None:
    sql = (
        "SELECT shop.sales.g, COUNT(*) AS n, SUM(main.shop.sales.x) AS s FROM shop.sales "
        "GROUP BY sales.g HAVING COUNT(*) >= 2"
    )
    (result,) = captured.good("rewrite", "--sql", sql).results
    assert result["sql"] == (
        "SELECT sales.g, COUNT(*) AS n, SUM(sales.x) AS s "
        "FROM (SELECT * FROM shop.sales WHERE `g` < 4L) AS sales "
        "GROUP BY sales.g HAVING COUNT(*) >= 2"
    )


def test_other_tables_of_the_same_last_name_are_others(captured: Cli) -> None:
    ran = captured("rewrite", "--sql", f"{HEAD}hr.people{TAIL}")
    assert ran.results[0]["reuse"]["query"] is None
    unknown = captured("rewrite", "--sql", f"{HEAD}hr.sales{TAIL}")
    assert (unknown.code, unknown.error["code"]) == (3, "table_unknown")


SCHEMAS = """\
version: 1
schema: SCHEMA
tables: {a.t: {path: sales}, b.t: {path: people}}
partitions: {a.t: {g: {boundaries: [2, 4, 6]}}, b.t: {g: {boundaries: [3, 5]}}}
queries: {big: {sql: SELECT g FROM t GROUP BY g HAVING COUNT(*) >= 2}}
store: .other
"""


@pytest.mark.slow
def test_a_default_that_makes_a_name_another_table_makes_another_query(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = shop / "other.yaml"
    for schema in ("a", "b"):
        file.write_text(SCHEMAS.replace("SCHEMA", schema))
        cli = Cli(capsys, file)
        if schema == "b":
            late = cli("maintain", "--policy", "strict")
            assert late.error["code"] == "policy_refused", late.document
        cli.good("capture")
        (result,) = cli.good("rewrite", "--query", "big").results
        assert list(result["versions"]) == [f"{schema}.t"]
