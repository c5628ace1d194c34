"""`cluster` orders files without changing rows; `rewrite --files` gives text and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import sqlglot
from deltalake import DeltaTable, write_deltalake

from impctl.service import advice
from impctl.tables.rows import read_rows
from impctl.tables.source import open_source
from impctl.tables.write import maintenance as writing
from impctl.tables.write.maintenance import create_laid_out_table
from tests.support.kept_workload import duck
from tests.support.run_cli import Capsys, Cli, CliOf, CliOnce, MadeOnce, MonkeyPatch, write_files

FILES, ROWS_PER_FILE, GROUPS = 40, 250, 1000
BY_G = "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 5000"
BY_H = "SELECT h, COUNT(*) AS n FROM t WHERE h >= 900 GROUP BY h"


def rows() -> pa.Table:
    """Random groups, the last hundredth of them heavy; values include NaN, -0.0 and NULL."""
    random = np.random.default_rng(11)
    count = FILES * ROWS_PER_FILE
    g, h = random.integers(0, GROUPS, count), random.integers(0, GROUPS, count)
    f = random.normal(size=count)
    f[::7], f[1::7] = np.nan, -0.0
    return pa.table(
        {
            "g": g,
            "h": pa.array(h, mask=random.random(count) < 0.02),
            "x": (g >= GROUPS - GROUPS // 100) * 1000 + 1,
            "f": f,
            "long": ["x" * 40 + str(value) for value in g],
        }
    )


@pytest.fixture
def cli(monkeypatch: MonkeyPatch, cli_once: CliOnce) -> Cli:
    # Otherwise a table this small would be one file.
    monkeypatch.setattr(writing, "_LEAST_BYTES", 1 << 13)

    def write(folder: Path) -> None:
        everything = rows()
        parts = (
            everything.slice(start, ROWS_PER_FILE)
            for start in range(0, FILES * ROWS_PER_FILE, ROWS_PER_FILE)
        )
        create_laid_out_table(str(folder / "t"), parts)
        queries = {
            column: {"sql": sql, "sketch": {"t": column}}
            for column, sql in (("g", BY_G), ("h", BY_H))
        }
        write_files(folder, {"tables": "t", "queries": queries})

    return cli_once("cluster", write)


def sorted_rows(cli: Cli) -> list[str]:
    """All rows as sorted texts, since NaN does not equal itself."""
    snapshot = open_source("t", cli.path("t")).snapshot()
    return sorted(map(repr, read_rows(snapshot, snapshot.schema.names).to_pylist()))


@pytest.mark.slow
def test_clustering_sorts_files_not_sketches(cli: Cli) -> None:
    def sketches() -> object:
        return cli.one("status", "--query", "g")["sketches"]

    cli.good("capture", "--query", "g")
    before, captured = sorted_rows(cli), sketches()
    planned = cli.one("cluster", "--dry-run")
    assert (planned["action"], planned["by"], planned["dry_run"]) == ("none", ["g"], True)
    assert cli.table("t").version() == 0
    result = cli.one("cluster")
    assert (result["action"], result["version"], result["by"]) == ("cluster", 1, ["g"])
    [sketch] = result["sketches"]
    assert sketch["files"] > FILES * 0.8, "before, few files were skipped"
    assert max(sketch["files_after"], sketch["files_expected"]) <= 3
    assert sketch["bytes_after"] < sketch["bytes"] / 8
    assert sorted_rows(cli) == before
    maintained = cli.one("maintain", "--query", "g")
    assert maintained["action"] in ("none", "incremental", "exact"), maintained
    assert sketches() == captured
    assert cli.good("cluster").results[0]["action"] == "none", "there is nothing more to gain"


@pytest.mark.slow
def test_several_columns_give_a_z_order(cli: Cli) -> None:
    cli.good("capture")
    result = cli.one("cluster", "--table", "t")
    assert sorted(result["by"]) == ["g", "h"]
    by_query = {entry["query"]: entry for entry in result["sketches"]}
    assert by_query["g"]["files_after"] < FILES / 2
    assert by_query["h"]["bytes_after"] < by_query["h"]["bytes"] * 0.6


@pytest.mark.parametrize("column", ["f", "long"])
def test_columns_without_statistics_skip_no_files(cli: Cli, column: str) -> None:
    """NaN and long texts have no bounds, so nothing is skipped and results are correct."""
    cli.good("capture")
    before = sorted_rows(cli)
    result = cli.one("cluster", "--table", "t", "--by", column, "--yes")
    assert result["by"] == [column]
    assert sorted_rows(cli) == before
    assert all(entry["files_after"] for entry in result["sketches"])


def test_order_that_loses_more_than_it_gains_needs_yes(cli: Cli) -> None:
    cli.good("capture", "--query", "g")
    cli.good("cluster")
    assert cli("cluster", "--table", "t", "--by", "f").refusal == (2, "cluster_loses")
    assert cli.table("t").version() == 1
    output = cli.text("cluster", "--table", "t", "--by", "f", "--dry-run")
    assert "sketches that would read more than now: g" in output
    output = cli.text("cluster", "--table", "t", "--by", "f", "--yes")
    assert output.index("would be rewritten") < output.index("t: version 2")


def test_missing_columns_and_tables(cli: Cli) -> None:
    assert cli("cluster", "--table", "u").error["code"] == "cluster_table_unknown"
    assert cli("cluster", "--table", "t", "--by", "nope").error["code"] == "column_unknown"
    assert cli("cluster", "--by", "g").code != 0
    ran = cli("cluster", "--table", "t")
    assert ran.code != 0, "without a sketch, no column is known"
    assert "--by" in ran.error["hint"]
    ran = cli.good("cluster")
    assert ran.results == []
    assert "impctl capture" in ran.document["warnings"][0]


def test_partition_column_is_refused(cli: Cli) -> None:
    folder = cli.folder
    parted = pa.table({"p": [1, 2] * 50, "g": list(range(100))})
    write_deltalake(str(folder / "u"), parted, partition_by=["p"])
    cli.edit('"tables": {', '"tables": {"u": {"path": "u"}, ')
    assert cli("cluster", "--table", "u", "--by", "p").error["code"] == "table_not_clusterable"
    assert cli.one("cluster", "--table", "u", "--by", "g")["version"] == 1


def test_concurrent_delete_is_kept(cli: Cli, monkeypatch: MonkeyPatch) -> None:
    """Rows deleted by another writer meanwhile stay deleted."""
    cli.good("capture", "--query", "g")
    path = cli.path("t")
    check = writing.check_clusterable

    def delete_after_check(*arguments: object) -> None:
        check(*arguments)  # type: ignore[arg-type]  # passed through
        if DeltaTable(path).version() == 0:
            DeltaTable(path).delete("g = 5")

    monkeypatch.setattr(writing, "check_clusterable", delete_after_check)
    ran = cli("cluster", "--table", "t")
    snapshot = open_source("t", path).snapshot()
    assert 5 not in read_rows(snapshot, ["g"]).column("g").to_pylist()  # noqa: PLR2004
    assert ran.code != 0
    assert ran.error["code"] == "retryable"


USES, SKEWED_FILES = 30_000, 4
USERS = 1_250
SLOW = pytest.mark.slow
SQL = "SELECT user, COUNT(*) AS n FROM t GROUP BY user HAVING COUNT(*) > {least}"


def half_of_one(random: np.random.Generator) -> np.ndarray:
    return np.where(random.random(USES) < 0.5, 7, random.integers(0, USERS, USES))


def zipf(random: np.random.Generator) -> np.ndarray:
    """Few users have most of the rows."""
    return np.minimum(random.zipf(1.3, USES), 50_000)


def even(random: np.random.Generator) -> np.ndarray:
    return random.integers(0, USERS, USES)


class Skewed(Cli):
    """The command line over one skewed table."""

    @property
    def version(self) -> int:
        return self.table("t").version()

    def fix(self) -> str:
        """What `doctor` reports about the sketch."""
        [result] = (one for one in self("doctor").results if one["check"] == "skips_little")
        return f"{result['message']}; {result['fix']}"

    def hint(self, times: int = 2) -> str:
        """The hint of `gain` after uses that skipped nothing."""
        for _ in range(times):
            self.good("rewrite")
        return str(self.good("gain").results[0]["hint"])


@pytest.fixture
def make_skewed(capsys: Capsys, monkeypatch: MonkeyPatch, made_once: MadeOnce) -> Any:
    # Otherwise a table this small would be one file, and give no advice.
    monkeypatch.setattr(writing, "_LEAST_BYTES", 1 << 14)
    monkeypatch.setattr(advice, "_ROWS_WORTH_ADVICE", 1000)

    def make(values: Any, least: int) -> Skewed:
        def write(folder: Path) -> None:
            random, size = np.random.default_rng(17), USES // SKEWED_FILES
            rows = pa.table(drawn_uses(values, random))
            parts = (rows.slice(start, size) for start in range(0, USES, size))
            create_laid_out_table(str(folder / "t"), parts)
            (folder / "w.yaml").write_text(
                "version: 1\ntables: {t: {path: t}}\nstore: st\n"
                "partitions: {t: {user: {ranges: 200}}}\n"
                f'queries: {{q: {{sql: "{SQL.format(least=least)}", sketch: {{t: user}}}}}}\n'
            )

        return Skewed(capsys, made_once.folder(f"skewed {values.__name__}", write) / "w.yaml")

    return make


def drawn_uses(values: Any, random: np.random.Generator) -> dict[str, np.ndarray]:
    return {"user": values(random), **{name: random.normal(size=USES) for name in "xy"}}


@pytest.mark.parametrize(
    ("values", "least"), [(half_of_one, 500), pytest.param(zipf, 500, marks=SLOW), (even, 40)]
)
def test_skewed_keys_match_the_estimate_and_are_clustered_once(
    make_skewed: Any, values: Any, least: int
) -> None:
    cli = make_skewed(values, least)
    cli.good("capture")
    planned = cli.one("cluster", "--dry-run", "--table", "t")
    [expected], [actual] = planned["sketches"], cli.one("cluster", "--table", "t")["sketches"]
    assert actual["files_after"] > 0
    assert expected["bytes_expected"] == pytest.approx(actual["bytes_after"], rel=0.3)
    # The number of files that deltalake writes depends on compression.
    assert actual["files_after"] / 2 <= expected["files_expected"] <= actual["files_after"] * 2
    for flags in (("--dry-run",), ("--table", "t"), ()):
        second = cli.one("cluster", *flags)
        assert (second["action"], cli.version) == ("none", 1)
        assert "are already in the order of `user`" in second["reason"]
        [sketch] = second["sketches"]
        assert sketch["bytes_expected"] == sketch["bytes"], "no more is promised"


@pytest.mark.slow
def test_files_sorted_by_others_stay(make_skewed: Any) -> None:
    cli = make_skewed(half_of_one, 500).captured()
    cli.table("t").optimize.z_order(["user"], target_size=1 << 14)
    assert (cli.one("cluster", "--table", "t")["action"], cli.version) == ("none", 1)


@pytest.mark.slow
def test_new_rows_are_clustered(make_skewed: Any) -> None:
    """A table that was clustered before can be clustered again."""
    cli = make_skewed(even, 40).captured()
    cli.good("cluster")
    more = pa.table(drawn_uses(even, np.random.default_rng(3)))
    for part in range(0, USES, USES // SKEWED_FILES):
        cli.append("t", more.slice(part, USES // SKEWED_FILES))
    assert cli.one("cluster")["action"] == "cluster"


@pytest.mark.slow
def test_z_order_is_made_once(make_skewed: Any) -> None:
    cli = make_skewed(half_of_one, 500).captured()
    actions = []
    for columns in (("user", "x"), ("x", "user")):
        flags = [word for column in columns for word in ("--by", column)]
        actions.append(cli.good("cluster", "--table", "t", *flags).results[0]["action"])
    assert (actions, cli.version) == (["cluster", "none"], 1)
    other = cli.good("cluster", "--table", "t", "--by", "user").results[0]
    assert other["action"] == "cluster", "another order clusters again"


def test_clustering_is_advised_only_if_it_gains(make_skewed: Any) -> None:
    cli = make_skewed(half_of_one, 500)
    assert "`impctl cluster` would order" in cli.good("capture").document["warnings"][0]
    assert "`impctl cluster` would order" in cli.fix()
    assert "impctl cluster --dry-run" in cli.hint()
    assert cli.good("cluster").results[0]["action"] == "cluster", "as it was advised"
    assert cli.good("capture").document["warnings"] == []
    assert "impctl cluster" not in cli.fix()


def assert_no_order_helps(cli: Skewed) -> None:
    """Every command gives reasons but no advice, and nothing is clustered."""
    [warning] = cli.good("capture").document["warnings"]
    for text in (warning, cli.fix(), cli.hint()):
        assert "`impctl cluster" not in text
        assert "would not help: its sketches would skip hardly more" in text
    result = cli.one("cluster", "--dry-run")
    assert "would skip hardly more" in result["reason"]
    [sketch] = result["sketches"]
    assert sketch["files_expected"] > 0
    assert cli.good("cluster").results[0]["action"] == "none"


@pytest.mark.slow
def test_range_of_nearly_all_rows(make_skewed: Any) -> None:
    """One of two hundred ranges has nine tenths of the rows."""

    def nearly_all(random: np.random.Generator) -> np.ndarray:
        return np.where(random.random(USES) < 0.9, 7, random.integers(0, USERS, USES))

    assert_no_order_helps(make_skewed(nearly_all, 1000))


@pytest.mark.slow
def test_one_file_is_not_clustered(make_skewed: Any, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_LEAST_BYTES", 1 << 30)
    cli = make_skewed(even, 40)
    assert_no_order_helps(cli)
    assert "fits into one file" in cli.fix()
    output = cli.text("cluster", "--dry-run")
    assert "would not change" in output
    assert ": 0" not in output, "any bytes need at least one file"


def test_advice_for_one_sketch_of_many(make_skewed: Any) -> None:
    """Three sketches cover nearly all of `x`; the best order for all does not help `q`."""
    cli = make_skewed(half_of_one, 500)
    cli.edit("{user: {ranges: 200}}", "{user: {ranges: 200}, x: {ranges: 50}}")
    sql = "SELECT x, COUNT(*) AS n FROM t WHERE x < {most} GROUP BY x HAVING COUNT(*) > 0"
    wide_queries = "".join(
        f', wide{most}: {{sql: "{sql.format(most=most)}", sketch: {{t: x}}}}' for most in (7, 8, 9)
    )
    text = cli.workload.read_text()
    cli.workload.write_text(text.rstrip().removesuffix("}") + wide_queries + "}\n")
    [warning] = (line for line in cli.warnings("capture") if "`q`" in line)
    assert "`impctl cluster --table t --by user` helps this one" in warning
    for _ in range(2):
        cli.good("rewrite", "--query", "q")
    hint = "`impctl cluster --table t --by user` would change that for this sketch alone"
    assert hint in cli.by_query("gain")["q"]["hint"]
    assert cli.good("cluster").results[0]["action"] == "none"
    assert cli.good("cluster", "--table", "t", "--by", "user").results[0]["action"] == "cluster"
    after = cli.one("rewrite", "--query", "q")
    assert after["files_kept"] < after["files_total"] * 0.6, "half of the rows are of user 7"


GROUPED = "SELECT g, SUM(x) AS s FROM t WHERE h < 60 GROUP BY g HAVING SUM(x) > 1400"


@pytest.fixture
def laid_out(tmp_path: Path, cli_of: CliOf) -> Cli:
    random = np.random.default_rng(3)
    positions = np.arange(4000)
    rows = {
        "g": positions // 50,
        "h": random.integers(0, 100, 4000),
        "x": random.integers(0, 100, 4000),
    }
    table = pa.table(rows)
    parts = (table.slice(start, 100) for start in range(0, 4000, 100))
    create_laid_out_table(str(tmp_path / "t"), parts)
    return cli_of({"tables": "t", "queries": {"q": GROUPED}})


def test_text_and_files_give_the_result(laid_out: Cli) -> None:
    """They are enough for an engine that reads only the listed files."""
    file = laid_out.folder / "left.json"
    result = laid_out.captured().one("rewrite", "--files", str(file))
    files_by_table = json.loads(file.read_text())
    assert files_by_table.keys() == {"t"}
    assert len(files_by_table["t"]) == result["files_kept"] < result["files_total"] == 40
    (text,) = sqlglot.transpile(result["sql"], read="spark", write="duckdb")
    results = []
    with duck() as connection:
        for sql, files in (
            (text, files_by_table["t"]),
            (GROUPED, f"{laid_out.path('t')}/*.parquet"),
        ):
            connection.read_parquet(files).create_view("t", replace=True)
            results.append(sorted(connection.sql(sql).fetchall()))
    assert results[0] == results[1] != []


def test_columns_missing_from_files_are_refused(laid_out: Cli) -> None:
    path, file = laid_out.path("t"), laid_out.folder / "left.json"
    rows = DeltaTable(path).to_pyarrow_table()
    halves = pa.array([h - h % 50 for h in rows["h"].to_pylist()])
    rows = rows.set_column(rows.column_names.index("h"), "h", halves)
    write_deltalake(path, rows, mode="overwrite", partition_by=["h"], schema_mode="overwrite")
    laid_out.captured().good("rewrite")
    assert laid_out("rewrite", "--files", str(file)).refusal == (3, "files_not_plain")
    assert not file.exists()


@pytest.mark.parametrize(("least", "is_refused"), [(390, True), (5, False)])
def test_nan_that_file_readers_skip_is_refused(laid_out: Cli, least: int, is_refused: bool) -> None:
    """DuckDB skips a file whose maximum is too small, even if it has a NaN."""
    file, numbers = laid_out.folder / "left.json", np.arange(400, dtype=np.float64)
    table = pa.table({"x": np.where(numbers == 150, np.nan, numbers)})
    parts = (table.slice(start, 100) for start in range(0, 400, 100))
    create_laid_out_table(laid_out.path("d"), parts)
    condition = f"NOT x < {least}" if is_refused else f"x < {least}"
    sql = f"SELECT x, COUNT(*) AS n FROM d WHERE {condition} GROUP BY x HAVING COUNT(*) > 0"
    queries = {"q": {"sql": sql, "sketch": {"d": "x"}}}
    write_files(laid_out.folder, {"tables": "d", "queries": queries})
    assert laid_out.captured().good("rewrite").results[0]["intervals"]
    ran = laid_out("rewrite", "--files", str(file))
    assert (ran.code != 0, file.exists()) == (is_refused, not is_refused)
    if is_refused:
        assert ran.refusal == (3, "files_not_plain")
        laid_out.good("rewrite", "--files", str(file), "--sketch", "never")


@pytest.mark.slow
def test_sketch_that_does_not_pay_is_not_in_the_text(laid_out: Cli) -> None:
    """Each file has every `h`, and most of them pass, so filtering rows saves nothing."""
    scattered = "SELECT h, SUM(x) AS s FROM t GROUP BY h HAVING SUM(x) > 1000"
    laid_out.edit(GROUPED, scattered)
    laid_out.good("capture")
    result = {}
    for use in ("always", "auto", "never"):
        (result[use],) = laid_out.good("rewrite", "--sketch", use).results
    assert result["always"]["intervals"]
    assert result["always"]["unused_sketches"] == {}
    assert "it skips none of the 40 files" in result["auto"]["unused_sketches"]["t"]
    assert result["auto"]["intervals"] == result["auto"]["sketches"] == []
    assert result["auto"]["sql"] == result["never"]["sql"] != result["always"]["sql"]


@pytest.mark.slow
def test_profitable_sketch_is_used(laid_out: Cli) -> None:
    laid_out.good("capture")
    always = laid_out.good("rewrite").results
    assert laid_out.good("rewrite", "--sketch", "auto").results == always
