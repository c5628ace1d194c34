"""`why`: source rows of a result row, and results that depend on some rows, checked by DuckDB.

DuckDB runs the query over the reported source rows only, which must give the result row. For
`--without`, its results over all rows and over the rest must differ by the reported changes.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import impctl
from impctl.errors import UsageError
from impctl.tables.write.maintenance import create_table
from tests.support.kept_workload import duck
from tests.support.run_cli import Cli, CliOf, CliOnce, Words, write_files

QUERIES = {
    "reach": """
      WITH RECURSIVE r(n) AS (
        SELECT a FROM seeds
        UNION
        SELECT l.b FROM r JOIN links l ON r.n = l.a)
      SELECT n FROM r""",
    "pairs": """
      WITH RECURSIVE r(x, y) AS (
        SELECT a, b FROM links WHERE w < 6
        UNION
        SELECT r.x, l.b FROM r JOIN links l ON r.y = l.a WHERE l.w < 6)
      SELECT x, y FROM r WHERE x = 1""",
    "of_constants": """
      WITH RECURSIVE r(n) AS (
        SELECT * FROM (SELECT CAST(1 AS BIGINT) AS n UNION ALL SELECT a FROM seeds) s
        UNION
        SELECT l.b FROM r JOIN links l ON r.n = l.a)
      SELECT n FROM r""",
    "joined": "SELECT k.a, k.b, l.b AS c FROM links k JOIN links l ON k.b = l.a WHERE k.w < 5",
    "some": "SELECT DISTINCT a FROM links WHERE w > 2",
    "witnesses": "SELECT DISTINCT a FROM links WHERE w > 2",
    "either": "SELECT a FROM links WHERE w = 1 UNION SELECT b FROM links WHERE w > 7",
    "within": "SELECT a, w FROM links WHERE b IN (SELECT a FROM seeds)",
    "counted": "SELECT a, COUNT(*) AS c FROM links WHERE b IN (SELECT a FROM links) GROUP BY a",
    "groups": "SELECT a, SUM(w) AS s, COUNT(*) AS c FROM links GROUP BY a HAVING SUM(w) > 8",
}
UNTRACED = {
    "few": "SELECT a, w FROM links ORDER BY w, a, b LIMIT 4",
    "apart": "SELECT s.a FROM seeds s WHERE NOT EXISTS (SELECT 1 FROM links l WHERE l.a = s.a)",
}
"""Queries that support `--without`, but not `--row`."""
NODES = 30
SCHEMA = {"links": ("a", "b", "w"), "seeds": ("a",)}

Tables = Mapping[str, Sequence[tuple[Any, ...]]]


def random_tables(rng: random.Random) -> Tables:
    def random_node() -> int | None:
        return rng.randrange(NODES) if rng.random() > 0.03 else None

    links = [(random_node(), random_node(), rng.randrange(10)) for _ in range(45)]
    links += [(1, 2, 0), (2, 3, 0)]
    links.sort(key=lambda row: (row[0] is None, row[0]))
    return {"links": [*links, links[3]], "seeds": [(node,) for node in rng.sample(range(NODES), 4)]}


TABLES = random_tables(random.Random("why"))


def arrow(table: str, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    names = enumerate(SCHEMA[table])
    return pa.table(
        {name: pa.array([row[index] for row in rows], pa.int64()) for index, name in names}
    )


def answer(sql: str, tables: Tables) -> Counter[tuple[Any, ...]]:
    with duck() as connection:
        for name in SCHEMA:
            connection.register(name, arrow(name, tables.get(name, ())))
        return Counter(connection.sql(sql).fetchall())


def reported_tables(result: Mapping[str, Any]) -> Tables:
    """Tables of the reported rows; columns that the query does not read are NULL."""
    tables: dict[str, list[tuple[Any, ...]]] = {}
    for entry in result["rows"]:
        names = SCHEMA[entry["table"]]
        tables.setdefault(entry["table"], []).append(tuple(entry["row"].get(n) for n in names))
    return tables


def write_lake(folder: Path) -> None:
    """Write tables of several files each, and the workload."""
    for name, rows in TABLES.items():
        path = str(folder / name)
        create_table(path, arrow(name, rows[:10]))
        for start in range(10, len(rows), 10):
            write_deltalake(path, arrow(name, rows[start : start + 10]), mode="append")
    queries: dict[str, Any] = QUERIES | UNTRACED
    queries["witnesses"] = {"sql": QUERIES["witnesses"], "lineage": "witness"}
    boundaries = {"links": list(range(3, NODES, 3)), "seeds": [10, 20]}
    partitions = {name: {"a": {"boundaries": each}} for name, each in boundaries.items()}
    write_files(folder, {"tables": [*TABLES], "partitions": partitions, "queries": queries})


@pytest.fixture
def lake(cli_once: CliOnce) -> Cli:
    return cli_once("why", write_lake)


@pytest.fixture
def captured(cli_once: CliOnce) -> Cli:
    """The workload with all of `QUERIES` captured."""
    names = [f"--query={name}" for name in QUERIES]
    return cli_once("why captured", write_lake, lambda cli: cli.captured(*names))


def row_words(columns: Sequence[str], row: Sequence[Any]) -> list[str]:
    values = ("NULL" if value is None else str(value) for value in row)
    return ["--row", ",".join(f"{c}={v}" for c, v in zip(columns, values, strict=True))]


@pytest.mark.slow
@pytest.mark.parametrize(("fixture", "count"), [("captured", 8), ("lake", 3)])
@pytest.mark.parametrize("name", QUERIES)
def test_reported_rows_give_the_result_row(
    request: pytest.FixtureRequest, fixture: str, name: str, count: int
) -> None:
    """With and without a sketch, for up to `count` result rows."""
    cli = request.getfixturevalue(fixture)
    expected = answer(QUERIES[name], TABLES)
    all_rows = cli.one("query", "--query", name, "--by", "engine")
    assert Counter(map(tuple, all_rows["rows"])) == expected
    for row in choose_rows(expected, count):
        words = row_words(all_rows["columns"], row)
        result = cli.one("why", "--query", name, *words)
        assert tuple(result["row"].values()) == row
        reported = reported_tables(result)
        assert row in answer(QUERIES[name], reported)
        for table, rows in reported.items():
            columns = [index for index, value in enumerate(rows[0]) if value is not None]
            stored = {tuple(one[index] for index in columns) for one in TABLES[table]}
            assert {tuple(one[index] for index in columns) for one in rows} <= stored
        assert result["row_count"] == len(result["rows"]) <= result["lineage"]
        assert result["claim"] == ("group" if name in ("groups", "counted") else "smallest")
        if name == "groups":
            assert answer(QUERIES[name], reported)[row] == 1
            assert len(result["rows"]) == row[2]


def choose_rows(rows: Counter[tuple[Any, ...]], count: int) -> list[tuple[Any, ...]]:
    """Choose rows: those with NULL first, then the most frequent ones, and the last one."""
    ordered = sorted(rows, key=lambda row: (None not in row, -rows[row], repr(row)))
    return ordered[: count - 1] + ordered[max(count - 1, len(ordered) - 1) :]


def has_weight_three(table: str, row: Sequence[Any]) -> bool:
    return table == "links" and row[2] == 3


def matches_several(table: str, row: Sequence[Any]) -> bool:
    if table == "seeds":
        return row[0] < 10
    return (row[0] is not None and row[0] > 20 and row[1] is not None) or row[2] < 2


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for table in TABLES for path in (folder / table).rglob("*.*")}


SEVERAL_CONDITIONS = ["links: a > 20 AND b IS NOT NULL", "LINKS: w < 2", "seeds: a < 10"]


@pytest.mark.parametrize(
    ("conditions", "is_removed", "step"),
    [
        pytest.param(["links: w = 3"], has_weight_three, 1, marks=pytest.mark.slow),
        pytest.param(SEVERAL_CONDITIONS, matches_several, 1, marks=pytest.mark.slow),
        (SEVERAL_CONDITIONS, matches_several, 2),
    ],
)
def test_without_reports_the_difference(
    captured: Cli, conditions: list[str], is_removed: Any, step: int
) -> None:
    untouched = files_of(captured.folder)
    for name, sql in list((QUERIES | UNTRACED).items())[::step]:
        read = {table for table in SCHEMA if f" {table}" in sql}
        words = [w for c in conditions if c.split(":")[0].lower() in read for w in ("--without", c)]
        if not words:
            continue
        rest = {
            table: [row for row in rows if table not in read or not is_removed(table, row)]
            for table, rows in TABLES.items()
        }
        before, after = answer(sql, TABLES), answer(sql, rest)
        result = captured.one("why", "--query", name, *words)
        reported: Counter[tuple[Any, ...]] = Counter()
        for change, copies, *row in result["rows"]:
            reported[tuple(row)] += copies if change == "insert" else -copies
        signed = Counter(after)
        signed.subtract(before)
        assert reported == Counter({row: copies for row, copies in signed.items() if copies}), name
    assert files_of(captured.folder) == untouched


@pytest.mark.slow
def test_files_outside_the_sketch_are_not_read(tmp_path: Path, cli_of: CliOf) -> None:
    """Two separate chains, one per file."""
    for start in (0, 100):
        rows = [(node, node + 1, 0) for node in range(start, start + 20)]
        write_deltalake(str(tmp_path / "links"), arrow("links", rows), mode="append")
    create_table(str(tmp_path / "seeds"), arrow("seeds", [(5,)]))
    queries = {"reach": {"sql": QUERIES["reach"], "sketch": {"links": "a"}}}
    partitions = {"links": {"a": {"boundaries": [50]}}}
    workload = {"tables": SCHEMA.keys(), "partitions": partitions, "queries": queries}
    cli = cli_of(workload).captured()
    for words in (("--row", "n=9"), ("--without", "links: a = 7")):
        result = cli.one("why", *words)
        assert (result["files_kept"], result["files_total"]) == (2, 3)


@pytest.fixture
def small(cli_once: CliOnce) -> Cli:
    """The sketch covers one of two small groups; rows of the other are in both files."""
    return cli_once("why of small groups", write_small, Cli.captured)


def write_small(folder: Path) -> None:
    for rows in ([(1, 1, 5), (2, 1, 7)], [(2, 2, 1), (3, 1, 1), (3, 2, 1)]):
        write_deltalake(str(folder / "links"), arrow("links", rows), mode="append")
    few = "SELECT a, COUNT(*) AS c FROM links GROUP BY a HAVING COUNT(*) < 2"
    best = "SELECT a, MAX(w) AS m FROM links GROUP BY a"
    queries = {
        "few": {"sql": few, "sketch": {"links": "a"}},
        "best": {"sql": best, "sketch": {"links": "w"}, "lineage": "witness"},
    }
    ranges = {"links": {"a": {"boundaries": [2, 3]}, "w": {"boundaries": [2, 6]}}}
    write_files(folder, {"tables": ["links"], "partitions": ranges, "queries": queries})


def test_incomplete_groups_are_not_reported(small: Cli) -> None:
    result = small.one("why", "--query", "few", "--row", "c=1")
    assert (result["row"], result["files_kept"]) == ({"a": 1, "c": 1}, 1)


def test_inserted_rows_are_found_outside_the_sketch(small: Cli) -> None:
    result = small.one("why", "--query", "few", "--without", "w = 1")
    assert (result["rows"], result["files_kept"]) == ([["insert", 1, 2, 1]], 2)


def test_witness_sketch_is_not_used(small: Cli) -> None:
    """The sketch covers only the row with the largest value, but the group has two rows."""
    assert small.one("query", "--query", "best", "--by", "engine")["row_count"] == 3
    result = small.one("why", "--query", "best", "--row", "a=2")
    assert sorted(entry["row"]["w"] for entry in result["rows"]) == [1, 7]
    assert (result["action"], result["files_kept"]) == ("not_used", 2)
    assert "witness" in result["reason"]


@pytest.mark.parametrize(
    ("words", "code", "exit_code"),
    [
        (("reach", "--row", "n=1", "--without", "links: a = 1"), "why_of_what", 2),
        *((("reach", "--row", row), "row_unread", 2) for row in ("m=1", "n", "n=1,n=2", "n=abc")),
        (("joined", "--row", "b=NULL"), "row_not_there", 2),
        (("few", "--row", "w=0"), "not_traced", 3),
        (("apart", "--row", "a=0"), "not_traced", 3),
        (("reach", "--without", "a = 1"), "without_table", 2),
        (("some", "--without", "c = 1"), "where_unread", 2),
        (("some", "--without", "a IN (SELECT a FROM links)"), "where_unread", 2),
    ],
)
def test_refusals_have_codes_and_hints(lake: Cli, words: Words, code: str, exit_code: int) -> None:
    ran = lake("why", "--query", *words)
    assert ran.refusal == (exit_code, code)
    assert ran.error["hint"]
    if code == "not_traced":
        assert ran.error["location"]["line"] == 1


def test_python_interface_gives_the_same(captured: Cli) -> None:
    with impctl.open(captured.workload) as opened:
        row = next(row for row in answer(QUERIES["groups"], TABLES) if row[0] is not None)
        why = opened.why("groups", row={"a": row[0]})
        assert (why.claim, len(why.rows)) == ("group", row[2])
        without = opened.without("groups", f"a = {row[0]}")
        assert without.rows == (("delete", 1, *row),)
        assert without.removed == {"links": row[2]}
        with pytest.raises(UsageError, match="no such row"):
            opened.why("groups", row={"a": 10**6})


def test_infinity_can_be_written_in_several_forms(cli_of: CliOf) -> None:
    numbers = pa.table({"a": [1, 2, 3], "x": [float("inf"), float("-inf"), 1.5]})
    cli = cli_of({"queries": {"q": "SELECT a, x FROM t WHERE a > 0"}}, t=numbers).captured()
    spellings = {1: ("Infinity", "inf", "+INF"), 2: ("-Infinity", "-inf")}
    for a, words in spellings.items():
        for word in words:
            reported = cli.one("why", "--row", f"x={word}")
            assert reported["rows"][0]["row"] == {"a": a, "x": words[0]}
        assert f"x={words[0]}" in cli.text("why", "--row", f"x={words[0]}")
        with impctl.open(cli.workload) as workload:
            result = workload.why("q", row={"x": float(words[0])})
        assert isinstance(result, impctl.WhyResult)
        assert result.rows[0].row["x"] == float(words[0])


def test_limit_applies_to_shown_rows(lake: Cli) -> None:
    row = max(answer(QUERIES["groups"], TABLES), key=lambda row: row[2])
    words = row_words(("a", "s", "c"), row)
    result = lake.one("why", "--query", "groups", *words, "--limit", "1")
    assert len(result["rows"]) == 1
    assert result["row_count"] == row[2] > 1
