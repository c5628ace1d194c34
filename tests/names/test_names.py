"""Table names from the workload file to Spark: in rewrites, views, BI tools and catalogs."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from datetime import datetime, timedelta
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from msgspec import Struct

import impctl
from impctl.cli.application import build_app
from impctl.cli.boundary import run
from impctl.spark.predicates import local_name, rewrite_sql
from impctl.sql.names import TableNames
from impctl.sql.statement import parse_query
from impctl.tables.write.maintenance import create_table
from tests.names.conftest import ROWS, WORKLOAD
from tests.plan.catalogs import schema_of
from tests.support.run_cli import Cli

TEXTS = Path(__file__).parent / "texts"
_NAME = re.compile(r"^-- (\w+)\n", re.MULTILINE)
_QUALIFIED = re.compile(r"(?:`?main`?\.)?`?shop`?\.`?(sales|customers)`?")
REGIONS = ("north", "east", "south", "west", None)
PARTITIONS = {
    "sales": {
        "product": {"boundaries": [f"p{n:02}" for n in range(1, 12)]},
        "sold_on": {"boundaries": [f"2026-{month:02}-01" for month in range(2, 7)]},
        "qty": {"boundaries": list(range(1, 11))},
        "id": {"boundaries": list(range(40, 400, 40))},
        "region": {"boundaries": ["east", "north", "south", "west"]},
        "sold_at": {"boundaries": [f"2026-{month:02}-01 00:00:00" for month in range(2, 7)]},
    },
    "customers": {"segment": {"boundaries": ["b", "c"]}},
}


class BiText(Struct, frozen=True):
    """SQL that a tool sends, named by tool and question."""

    name: str
    sql: str

    @property
    def bare(self) -> str:
        """The same SQL with unqualified table names."""
        return _QUALIFIED.sub(lambda result: result[1], self.sql)


def bi_texts() -> Iterator[BiText]:
    """The SQL of all tools."""
    for file in sorted(TEXTS.glob("*.sql")):
        parts = _NAME.split(file.read_text(encoding="utf-8"))
        for question, text in zip(parts[1::2], parts[2::2], strict=True):
            yield BiText(f"{file.stem}_{question}", text.rstrip().removesuffix(";"))


def sales(rows: int = 400) -> pa.Table:
    """Sales of half a year. Products sell in different months, so that sketches skip ranges."""
    rng = random.Random(18)
    result = []
    for number in range(rows):
        product = number % 12
        day = rng.randrange(product * 13, product * 13 + 20)
        time = datetime(2026, 1, 1) + timedelta(days=day, minutes=rng.randrange(1440))
        result.append(
            {
                "id": number,
                "sold_at": time,
                "sold_on": time.date(),
                "region": rng.choice(REGIONS),
                "product": f"p{product:02}",
                "customer_id": rng.choice((None, *range(20))),
                "qty": rng.randrange(1, 6) + (product > 7) * 3,
                "price": Decimal(rng.randrange(100, 9999)) / 100,
            }
        )
    types = {
        "id": pa.int64(),
        "sold_at": pa.timestamp("us", "UTC"),
        "sold_on": pa.date32(),
        "region": pa.string(),
        "product": pa.string(),
        "customer_id": pa.int64(),
        "qty": pa.int32(),
        "price": pa.decimal128(10, 2),
    }
    return pa.Table.from_pylist(result, schema=pa.schema(list(types.items())))


def customers() -> pa.Table:
    """Customers of four segments; some sales have no customer."""
    rows = [{"customer_id": n, "name": f"n{n}", "segment": "abcd"[n % 4]} for n in range(18)]
    return pa.Table.from_pylist(rows)


def write_shop(folder: Path, queries: dict[str, str]) -> Path:
    """Create the tables and a workload file with these queries."""
    create_table(str(folder / "sales"), sales())
    create_table(str(folder / "customers"), customers())
    document = {
        "version": 1,
        "catalog": "main",
        "schema": "shop",
        "tables": {name: {"path": name} for name in ("sales", "customers")},
        "partitions": PARTITIONS,
        "queries": {name: {"sql": sql} for name, sql in queries.items()},
        "spark": {"master": "local[2]"},
    }
    file = folder / "w.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    return file


SQL_HEAD, SQL_TAIL = (
    "SELECT g, COUNT(*) AS n, SUM(x) AS s FROM ",
    " GROUP BY g HAVING COUNT(*) >= 2",
)


@pytest.fixture
def captured(cli: Cli) -> Cli:
    """A CLI with the sketch of `big`: ranges 0 and 1 of `g`."""
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
def test_rewrite_keeps_names(captured: Cli, shop: Path, written: str, alias: str) -> None:
    written, alias = (t.replace("PATH", str(shop / "sales")) for t in (written, alias))
    (result,) = captured.good("rewrite", "--sql", SQL_HEAD + written + SQL_TAIL).results
    rows = f"(SELECT * FROM {written} WHERE `g` < 4L)"
    assert result["sql"] == f"{SQL_HEAD}{rows} AS {alias}{SQL_TAIL}"
    assert result["reuse"]["query"] == "big"


def test_qualified_columns_follow(captured: Cli) -> None:
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


def test_same_last_name_in_another_schema(captured: Cli) -> None:
    ran = captured("rewrite", "--sql", f"{SQL_HEAD}hr.people{SQL_TAIL}")
    assert ran.results[0]["reuse"]["query"] is None
    unknown = captured("rewrite", "--sql", f"{SQL_HEAD}hr.sales{SQL_TAIL}")
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
def test_default_schema_is_part_of_the_definition(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = shop / "other.yaml"
    for schema in ("a", "b"):
        file.write_text(SCHEMAS.replace("SCHEMA", schema))
        cli = Cli(capsys, file)
        if schema == "b":
            refused_run = cli("maintain", "--policy", "strict")
            assert refused_run.error["code"] == "policy_refused", refused_run.document
        cli.good("capture")
        (result,) = cli.good("rewrite", "--query", "big").results
        assert list(result["versions"]) == [f"{schema}.t"]


SCHEMA = schema_of("k int")
NAMES = TableNames(
    {
        ("main", "shop", "sales"): "sales",
        ("main", "shop", "sales_"): "sales_",
        ("main", "hr", "sales"): "hr.sales",
    },
    {},
    "main",
    "shop",
)


@pytest.mark.parametrize(
    ("sql", "local"),
    [
        (
            "WITH sales AS (SELECT * FROM hr.sales), b AS (SELECT * FROM shop.sales) "
            "SELECT k FROM b",
            "WITH sales AS (SELECT * FROM `hr.sales_1` AS sales), "
            "b AS (SELECT * FROM `sales_0` AS sales) SELECT k FROM b",
        ),
        (
            "WITH `sales_0` AS (SELECT * FROM sales) SELECT b.k FROM Shop.sales b, sales_0, sales_",
            "WITH `sales_0` AS (SELECT * FROM `sales_0_` AS sales) "
            "SELECT b.k FROM `sales_0_` b, sales_0, sales_",
        ),
        ("WITH b AS (SELECT * FROM sales) SELECT k FROM b", None),
        ("SELECT k FROM shop.sales", "SELECT k FROM `sales` AS sales"),
    ],
)
def test_view_names_differ_from_with_entries(sql: str, local: str | None) -> None:
    catalog = dict.fromkeys(("sales", "sales_", "hr.sales"), SCHEMA)
    query = parse_query(sql, catalog, names=NAMES)
    assert rewrite_sql(query, {}, is_local=True) == (local or sql)


def test_view_names_are_unique() -> None:
    sql = "WITH b AS (SELECT * FROM shop.sales) SELECT b.k FROM b, shop.sales_"
    query = parse_query(sql, dict.fromkeys(("sales", "sales_"), SCHEMA), names=NAMES)
    assert len({local_name(query, table) for table in query.tables}) == 2


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
VIEW_QUERY = "SELECT g, n FROM main.reports.busy"


@pytest.fixture
def cli_with_views(cli: Cli, shop: Path) -> Cli:
    text = WORKLOAD.replace("queries:\n", f"{VIEWS}queries:\n  busy: {{sql: '{VIEW_QUERY}'}}\n")
    (shop / "w.yaml").write_text(text)
    return cli


@pytest.mark.slow
def test_sketch_of_a_query_over_views_is_reused(cli_with_views: Cli) -> None:
    cli_with_views.good("capture", "--query", "busy")
    (result,) = cli_with_views.good("rewrite", "--query", "busy").results
    assert "FROM (SELECT * FROM main.shop.sales WHERE `g` < 4L) AS sales" in result["sql"]
    for sql in (
        VIEW_QUERY,
        "SELECT g FROM shop.sales WHERE x >= 5 GROUP BY g HAVING COUNT(*) >= 2",
        "SELECT g FROM recent GROUP BY g HAVING COUNT(*) >= 3",
    ):
        (other,) = cli_with_views.good("rewrite", "--sql", sql).results
        assert other["reuse"]["query"] == "busy", sql


def test_changed_view_changes_definition(cli_with_views: Cli, shop: Path) -> None:
    cli_with_views.good("capture", "--query", "busy")
    file = shop / "w.yaml"
    file.write_text(file.read_text().replace("x >= 5", "x >= 6"))
    refused_run = cli_with_views("maintain", "--query", "busy", "--policy", "strict")
    assert refused_run.error["code"] == "policy_refused"


def test_errors_have_positions_in_the_view(cli_with_views: Cli, shop: Path) -> None:
    lines = (shop / "w.yaml").read_text().split("\n")
    line = next(n for n, text in enumerate(lines, start=1) if "y > 1" in text)
    ran = cli_with_views("query", "--sql", "SELECT g FROM broken")
    assert ran.error["code"] == "column_unknown"
    assert ran.error["location"]["line"] == line
    assert ran.error["location"]["column"] == lines[line - 1].index("y > 1") + 1


def test_view_cycle(cli_with_views: Cli) -> None:
    ran = cli_with_views("rewrite", "--sql", "SELECT * FROM around")
    assert (ran.code, ran.error["code"]) == (3, "view_circle")


@pytest.mark.spark
def test_sketch_over_views_keeps_results(cli_with_views: Cli) -> None:
    cli_with_views.good("capture", "--query", "busy")
    for sql in (VIEW_QUERY, "SELECT busy.g FROM reports.busy JOIN recent ON recent.g = busy.g"):
        answers = [
            sorted(cli_with_views.good("query", "--sql", sql, "--sketch", use).results[0]["rows"])
            for use in ("always", "never")
        ]
        assert answers[0] == answers[1]
        assert answers[0]


BI_TEXTS = tuple(bi_texts())
TOOLS = ("dbt", "metabase", "powerbi", "superset", "tableau")


def command_line(command: str, file: Path, *arguments: str) -> dict[str, Any]:
    """The JSON document of a successful command."""
    output = StringIO()
    with redirect_stdout(output):
        code = run(build_app(), [command, str(file), "--json", *arguments])
    document: dict[str, Any] = json.loads(output.getvalue())
    assert code == 0, document["error"]
    return document


@pytest.fixture(scope="module")
def bi_captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workload of all questions, captured."""
    folder = tmp_path_factory.mktemp("bi")
    file = write_shop(folder, {text.name: text.bare for text in BI_TEXTS})
    command_line("capture", file)
    return file


def test_eight_queries_per_tool() -> None:
    assert [text.name.split("_")[0] for text in BI_TEXTS] == [t for t in TOOLS for _ in range(8)]
    assert all(text.bare != text.sql for text in BI_TEXTS)


@pytest.fixture(scope="module")
def open_workload(bi_captured: Path) -> Iterator[impctl.OpenWorkload]:
    with impctl.open(bi_captured) as open_workload:
        yield open_workload


@pytest.mark.parametrize("text", BI_TEXTS, ids=lambda text: text.name)
def test_bi_sql_reuses_a_sketch(open_workload: impctl.OpenWorkload, text: BiText) -> None:
    rewrite = open_workload.rewrite(sql=text.sql)
    assert rewrite.reuse.query is not None, rewrite.reuse
    assert rewrite.sketches
    assert rewrite.files_kept <= open_workload.rewrite(text.name).files_kept


@pytest.mark.slow
def test_most_are_narrowed(open_workload: impctl.OpenWorkload) -> None:
    narrowed = {
        text.name for text in BI_TEXTS if open_workload.rewrite(sql=text.sql).sql != text.sql
    }
    assert len(narrowed) >= 30, sorted({text.name for text in BI_TEXTS} - narrowed)


@pytest.mark.spark
@pytest.mark.parametrize(
    "text",
    # A different question for each tool; the long tests run all.
    [
        pytest.param(text, marks=[pytest.mark.slow, pytest.mark.long] if index % 9 else [])
        for index, text in enumerate(BI_TEXTS)
    ],
    ids=lambda text: text.name,
)
def test_bi_results_through_the_sketch(bi_captured: Path, text: BiText) -> None:
    answers = [
        command_line("query", bi_captured, "--sql", text.sql, "--sketch", use)["results"][0]
        for use in ("always", "never")
    ]
    assert answers[0]["columns"] == answers[1]["columns"]
    rows = [sorted(map(repr, answer["rows"])) for answer in answers]
    assert rows[0] == rows[1]
    assert rows[0] or text.name.endswith("relationships")


SCRIPT = """
import sys
import impctl
from pyspark.sql import SparkSession

folder, kind = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.sql.catalogImplementation", kind)
    .config("spark.sql.warehouse.dir", folder + "/warehouse")
    .config("spark.driver.extraJavaOptions", "-Dderby.system.home=" + folder)
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
spark.sql("CREATE DATABASE shop")
columns = "(g BIGINT, x BIGINT, Location STRING)"
spark.sql(f"CREATE TABLE shop.sales {columns} USING parquet LOCATION '{folder}/some sales'")
spark.sql("CREATE VIEW shop.seen AS SELECT 1 AS g")
with impctl.open(folder + "/w.yaml", spark=spark) as work:
    work.capture("big")
    print([list(row) for row in work.query("big").rows])
    for name in ("gone", "seen"):
        try:
            work.capture(name)
        except impctl.ImpctlError as error:
            print(error.code, error.message)
"""
CATALOGS_WORKLOAD = """\
version: 1
tables:
  sales: {path: catalog://shop.sales}
  none: {path: "catalog://spark_catalog.shop.`none`"}
  view: {path: catalog://shop.seen}
partitions: {sales: {g: {boundaries: [2, 4, 6]}}}
queries:
  big: {sql: "SELECT g, COUNT(*) AS n FROM shop.sales GROUP BY g HAVING COUNT(*) >= 3"}
  gone: {sql: SELECT g FROM shop.none GROUP BY g HAVING COUNT(*) >= 3}
  seen: {sql: SELECT g FROM shop.seen GROUP BY g HAVING COUNT(*) >= 3}
"""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("launched_here")
@pytest.mark.parametrize("kind", ["in-memory", "hive"])
def test_table_location_from_catalog(tmp_path: Path, kind: str) -> None:
    create_table(str(tmp_path / "some sales"), ROWS)
    (tmp_path / "w.yaml").write_text(CATALOGS_WORKLOAD)
    ran = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT, str(tmp_path), kind],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
        check=False,
    )
    lines = ran.stdout.splitlines()
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert sorted(json.loads(lines[0])) == [[0, 3], [3, 3]]
    assert lines[1].startswith("catalog_table_unknown"), lines
    assert lines[2].startswith("catalog_table_unknown"), lines
    assert "no location" in lines[2]


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


@pytest.mark.spark
def test_all_spellings_use_the_same_sketch(shop: Path, cli: Cli) -> None:
    cli.good("capture", "--query", "big")
    expected = [[0, 3, 45], [3, 3, 45]]
    for spelling in SPELLINGS:
        sql = BIG.format(spelling.replace("PATH", str(shop / "sales")))
        (used,) = cli.good("query", "--sql", sql).results
        assert sorted(used["rows"]) == expected, spelling
        assert used["reuse"]["query"] == "big", spelling
    for spelling in SPELLINGS[::4]:  # Each of these has another number of parts.
        sql = BIG.format(spelling)
        (plain,) = cli.good("query", "--sql", sql, "--sketch", "never").results
        assert sorted(plain["rows"]) == expected, spelling


@pytest.mark.spark
def test_queries_with_several_names_for_a_table(cli: Cli) -> None:
    cli.good("capture")
    cli.good("verify", "--results")
    for sql in SELF_JOINS:
        (plain,) = cli.good("query", "--sql", sql, "--sketch", "never").results
        assert plain["rows"], sql
