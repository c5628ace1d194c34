"""`cluster` puts files in order, rows as they were; `rewrite --files` gives text and files."""

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

FILES, EACH, GROUPS = 40, 250, 1000
BY_G = "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 5000"
BY_H = "SELECT h, COUNT(*) AS n FROM t WHERE h >= 900 GROUP BY h"


def rows() -> pa.Table:
    """Groups anywhere, the last hundredth of them heavy; NaN, -0.0 and NULL among the values."""
    random = np.random.default_rng(11)
    count = FILES * EACH
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
    # Files of a table this small would all be one.
    monkeypatch.setattr(writing, "_LEAST_BYTES", 1 << 13)

    def write(folder: Path) -> None:
        everything = rows()
        parts = (everything.slice(at, EACH) for at in range(0, FILES * EACH, EACH))
        create_laid_out_table(str(folder / "t"), parts)
        queries = {n: {"sql": sql, "sketch": {"t": n}} for n, sql in (("g", BY_G), ("h", BY_H))}
        write_files(folder, {"tables": "t", "queries": queries})

    return cli_once("cluster", write)


def bag(cli: Cli) -> list[str]:
    """All rows, in an order of their own; NaN is written as a word."""
    snapshot = open_source("t", cli.path("t")).snapshot()
    return sorted(map(repr, read_rows(snapshot, snapshot.schema.names).to_pylist()))


@pytest.mark.slow
def test_files_come_into_order_and_sketches_stay(cli: Cli) -> None:
    def sketches() -> object:
        return cli.one("status", "--query", "g")["sketches"]

    cli.good("capture", "--query", "g")
    before, captured = bag(cli), sketches()
    planned = cli.one("cluster", "--dry-run")
    assert (planned["action"], planned["by"], planned["foreseen"]) == ("none", ["g"], True)
    assert cli.table("t").version() == 0
    done = cli.one("cluster")
    assert (done["action"], done["version"], done["by"]) == ("cluster", 1, ["g"])
    [sketch] = done["sketches"]
    assert sketch["files"] > FILES * 0.8, "before, hardly a file was left out"
    assert max(sketch["files_after"], sketch["files_expected"]) <= 3
    assert sketch["bytes_after"] < sketch["bytes"] / 8
    assert bag(cli) == before
    maintained = cli.one("maintain", "--query", "g")
    assert maintained["action"] in ("none", "incremental", "exact"), maintained
    assert sketches() == captured
    assert cli.good("cluster").results[0]["action"] == "none", "there is nothing more to gain"


@pytest.mark.slow
def test_several_attributes_give_a_z_order(cli: Cli) -> None:
    cli.good("capture")
    done = cli.one("cluster", "--table", "t")
    assert sorted(done["by"]) == ["g", "h"]
    left = {entry["query"]: entry for entry in done["sketches"]}
    assert left["g"]["files_after"] < FILES / 2
    assert left["h"]["bytes_after"] < left["h"]["bytes"] * 0.6


@pytest.mark.parametrize("column", ["f", "long"])
def test_what_statistics_do_not_tell_is_never_left_out(cli: Cli, column: str) -> None:
    """NaN and long texts have no bounds: nothing is gained, and nothing is wrong."""
    cli.good("capture")
    before = bag(cli)
    done = cli.one("cluster", "--table", "t", "--by", column, "--yes")
    assert done["by"] == [column]
    assert bag(cli) == before
    assert all(entry["files_after"] for entry in done["sketches"])


def test_an_order_by_which_more_is_lost_than_won_needs_a_yes(cli: Cli) -> None:
    cli.good("capture", "--query", "g")
    cli.good("cluster")
    assert cli("cluster", "--table", "t", "--by", "f").refusal == (2, "cluster_loses")
    assert cli.table("t").version() == 1
    shown = cli.text("cluster", "--table", "t", "--by", "f", "--dry-run")
    assert "sketches that would read more than now: g" in shown
    shown = cli.text("cluster", "--table", "t", "--by", "f", "--yes")
    assert shown.index("would be rewritten") < shown.index("t: version 2")


def test_columns_and_tables_that_are_not_there(cli: Cli) -> None:
    assert cli("cluster", "--table", "u").error["code"] == "cluster_table_unknown"
    assert cli("cluster", "--table", "t", "--by", "nope").error["code"] == "column_unknown"
    assert cli("cluster", "--by", "g").code != 0
    ran = cli("cluster", "--table", "t")
    assert ran.code != 0, "without a sketch nothing tells by which column"
    assert "--by" in ran.error["hint"]
    ran = cli.good("cluster")
    assert ran.results == []
    assert "impctl capture" in ran.document["warnings"][0]


def test_a_partition_column_is_refused(cli: Cli) -> None:
    folder = cli.folder
    parted = pa.table({"p": [1, 2] * 50, "g": list(range(100))})
    write_deltalake(str(folder / "u"), parted, partition_by=["p"])
    cli.edit('"tables": {', '"tables": {"u": {"path": "u"}, ')
    assert cli("cluster", "--table", "u", "--by", "p").error["code"] == "table_not_clusterable"
    assert cli.one("cluster", "--table", "u", "--by", "g")["version"] == 1


def test_another_writer_that_comes_first(cli: Cli, monkeypatch: MonkeyPatch) -> None:
    """Rows that another writer deletes meanwhile do not come back."""
    cli.good("capture", "--query", "g")
    path = cli.path("t")
    checked = writing.check_clusterable

    def meanwhile(*given: object) -> None:
        checked(*given)  # type: ignore[arg-type]  # passed through
        if DeltaTable(path).version() == 0:
            DeltaTable(path).delete("g = 5")

    monkeypatch.setattr(writing, "check_clusterable", meanwhile)
    ran = cli("cluster", "--table", "t")
    left = open_source("t", path).snapshot()
    assert 5 not in read_rows(left, ["g"]).column("g").to_pylist()  # noqa: PLR2004
    assert ran.code != 0
    assert ran.error["code"] == "retryable"


USES, PARTS = 30_000, 4
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
    """The command over one table, and what it lies in."""

    @property
    def version(self) -> int:
        return self.table("t").version()

    def fix(self) -> str:
        """What `doctor` says of the sketch."""
        [result] = (one for one in self("doctor").results if one["check"] == "skips_little")
        return f"{result['message']}; {result['fix']}"

    def hint(self, times: int = 2) -> str:
        """What `gain` says of uses that left nothing out."""
        for _ in range(times):
            self.good("rewrite")
        return str(self.good("gain").results[0]["hint"])


@pytest.fixture
def made(capsys: Capsys, monkeypatch: MonkeyPatch, made_once: MadeOnce) -> Any:
    # Files of a table this small would all be one, and it would not be worth a word.
    monkeypatch.setattr(writing, "_LEAST_BYTES", 1 << 14)
    monkeypatch.setattr(advice, "_ROWS_WORTH_ADVICE", 1000)

    def make(values: Any, least: int) -> Skewed:
        def write(folder: Path) -> None:
            random, each = np.random.default_rng(17), USES // PARTS
            rows = pa.table(drawn_uses(values, random))
            parts = (rows.slice(at, each) for at in range(0, USES, each))
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
def test_what_is_foreseen_of_skewed_keys_comes_and_twice_does_nothing(
    made: Any, values: Any, least: int
) -> None:
    cli = made(values, least)
    cli.good("capture")
    planned = cli.one("cluster", "--dry-run", "--table", "t")
    [foreseen], [came] = planned["sketches"], cli.one("cluster", "--table", "t")["sketches"]
    assert came["files_after"] > 0
    assert foreseen["bytes_expected"] == pytest.approx(came["bytes_after"], rel=0.3)
    # How many files deltalake makes of the bytes depends on how well these compress.
    assert came["files_after"] / 2 <= foreseen["files_expected"] <= came["files_after"] * 2
    for flags in (("--dry-run",), ("--table", "t"), ()):
        again = cli.one("cluster", *flags)
        assert (again["action"], cli.version) == ("none", 1)
        assert "are already in the order of `user`" in again["reason"]
        [sketch] = again["sketches"]
        assert sketch["bytes_expected"] == sketch["bytes"], "no more is promised"


@pytest.mark.slow
def test_files_that_another_writer_sorted_are_left(made: Any) -> None:
    cli = made(half_of_one, 500).captured()
    cli.table("t").optimize.z_order(["user"], target_size=1 << 14)
    assert (cli.one("cluster", "--table", "t")["action"], cli.version) == ("none", 1)


@pytest.mark.slow
def test_rows_that_came_since_are_put_in_order(made: Any) -> None:
    """That a table was clustered once does not keep it from being clustered again."""
    cli = made(even, 40).captured()
    cli.good("cluster")
    more = pa.table(drawn_uses(even, np.random.default_rng(3)))
    for part in range(0, USES, USES // PARTS):
        cli.append("t", more.slice(part, USES // PARTS))
    assert cli.one("cluster")["action"] == "cluster"


@pytest.mark.slow
def test_a_z_order_is_made_once(made: Any) -> None:
    cli = made(half_of_one, 500).captured()
    done = []
    for columns in (("user", "x"), ("x", "user")):
        words = [word for column in columns for word in ("--by", column)]
        done.append(cli.good("cluster", "--table", "t", *words).results[0]["action"])
    assert (done, cli.version) == (["cluster", "none"], 1)
    other = cli.good("cluster", "--table", "t", "--by", "user").results[0]
    assert other["action"] == "cluster", "another order is another matter"


def test_clustering_is_advised_where_it_gains_alone(made: Any) -> None:
    cli = made(half_of_one, 500)
    assert "`impctl cluster` would order" in cli.good("capture").document["warnings"][0]
    assert "`impctl cluster` would order" in cli.fix()
    assert "impctl cluster --dry-run" in cli.hint()
    assert cli.good("cluster").results[0]["action"] == "cluster", "as it was advised"
    assert cli.good("capture").document["warnings"] == []
    assert "impctl cluster" not in cli.fix()


def no_order_helps(cli: Skewed) -> None:
    """Nothing but reasons from any command, and the dry run leaves the table too."""
    [warning] = cli.good("capture").document["warnings"]
    for said in (warning, cli.fix(), cli.hint()):
        assert "`impctl cluster" not in said
        assert "would not help: its sketches would skip hardly more" in said
    result = cli.one("cluster", "--dry-run")
    assert "would skip hardly more" in result["reason"]
    [sketch] = result["sketches"]
    assert sketch["files_expected"] > 0
    assert cli.good("cluster").results[0]["action"] == "none"


@pytest.mark.slow
def test_a_range_of_nearly_all_rows_is_told(made: Any) -> None:
    """One range of two hundred, and nine tenths of the rows in it."""

    def nearly_all(random: np.random.Generator) -> np.ndarray:
        return np.where(random.random(USES) < 0.9, 7, random.integers(0, USERS, USES))

    no_order_helps(made(nearly_all, 1000))


@pytest.mark.slow
def test_a_table_of_one_file_is_told(made: Any, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_LEAST_BYTES", 1 << 30)
    cli = made(even, 40)
    no_order_helps(cli)
    assert "fits into one file" in cli.fix()
    shown = cli.text("cluster", "--dry-run")
    assert "would not change" in shown
    assert ": 0" not in shown, "what takes bytes takes a file"


def test_an_order_for_one_sketch_of_many_is_told(made: Any) -> None:
    """Three sketches hold nearly all of `x`; the order that is best for all leaves `q` as it is."""
    cli = made(half_of_one, 500)
    cli.edit("{user: {ranges: 200}}", "{user: {ranges: 200}, x: {ranges: 50}}")
    sql = "SELECT x, COUNT(*) AS n FROM t WHERE x < {most} GROUP BY x HAVING COUNT(*) > 0"
    more = "".join(
        f', wide{most}: {{sql: "{sql.format(most=most)}", sketch: {{t: x}}}}' for most in (7, 8, 9)
    )
    text = cli.workload.read_text()
    cli.workload.write_text(text.rstrip().removesuffix("}") + more + "}\n")
    [warning] = (one for one in cli.warnings("capture") if "`q`" in one)
    assert "`impctl cluster --table t --by user` helps this one" in warning
    for _ in range(2):
        cli.good("rewrite", "--query", "q")
    said = "`impctl cluster --table t --by user` would change that for this sketch alone"
    assert said in cli.by_query("gain")["q"]["hint"]
    assert cli.good("cluster").results[0]["action"] == "none"
    assert cli.good("cluster", "--table", "t", "--by", "user").results[0]["action"] == "cluster"
    after = cli.one("rewrite", "--query", "q")
    assert after["files_kept"] < after["files_total"] * 0.6, "half of the rows are of user 7"


GROUPED = "SELECT g, SUM(x) AS s FROM t WHERE h < 60 GROUP BY g HAVING SUM(x) > 1400"


@pytest.fixture
def laid_out(tmp_path: Path, cli_of: CliOf) -> Cli:
    random = np.random.default_rng(3)
    at = np.arange(4000)
    rows = {"g": at // 50, "h": random.integers(0, 100, 4000), "x": random.integers(0, 100, 4000)}
    table = pa.table(rows)
    parts = (table.slice(start, 100) for start in range(0, 4000, 100))
    create_laid_out_table(str(tmp_path / "t"), parts)
    return cli_of({"tables": "t", "queries": {"q": GROUPED}})


def test_text_and_files_give_the_answer(laid_out: Cli) -> None:
    """To an engine that reads the listed files and nothing else of the table."""
    file = laid_out.folder / "left.json"
    result = laid_out.captured().one("rewrite", "--files", str(file))
    left = json.loads(file.read_text())
    assert left.keys() == {"t"}
    assert len(left["t"]) == result["files_kept"] < result["files_total"] == 40
    (text,) = sqlglot.transpile(result["sql"], read="spark", write="duckdb")
    answers = []
    with duck() as connection:
        for sql, files in ((text, left["t"]), (GROUPED, f"{laid_out.path('t')}/*.parquet")):
            connection.read_parquet(files).create_view("t", replace=True)
            answers.append(sorted(connection.sql(sql).fetchall()))
    assert answers[0] == answers[1] != []


def test_rows_that_are_not_those_of_the_files_are_refused(laid_out: Cli) -> None:
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
    """DuckDB passes over a file whose greatest number is too small, though it has a NaN."""
    file, at = laid_out.folder / "left.json", np.arange(400, dtype=np.float64)
    table = pa.table({"x": np.where(at == 150, np.nan, at)})
    parts = (table.slice(i, 100) for i in range(0, 400, 100))
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
def test_a_sketch_that_does_not_pay_is_left_out_of_the_text(laid_out: Cli) -> None:
    """Each file has every `h`, and most of these pass: asking every row for them saves nothing."""
    scattered = "SELECT h, SUM(x) AS s FROM t GROUP BY h HAVING SUM(x) > 1000"
    laid_out.edit(GROUPED, scattered)
    laid_out.good("capture")
    result = {}
    for use in ("always", "auto", "never"):
        (result[use],) = laid_out.good("rewrite", "--sketch", use).results
    assert result["always"]["intervals"]
    assert result["always"]["left_away"] == {}
    assert "it skips none of the 40 files" in result["auto"]["left_away"]["t"]
    assert result["auto"]["intervals"] == result["auto"]["sketches"] == []
    assert result["auto"]["sql"] == result["never"]["sql"] != result["always"]["sql"]


@pytest.mark.slow
def test_a_sketch_that_pays_is_kept(laid_out: Cli) -> None:
    laid_out.good("capture")
    always = laid_out.good("rewrite").results
    assert laid_out.good("rewrite", "--sketch", "auto").results == always
