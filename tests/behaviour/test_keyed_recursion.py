"""Recursive queries whose fixpoints are keyed, from capture to answer, against DuckDB."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable

from impctl.app.preparing import filters
from tests.behaviour.keyed_workload import BARRIER, KEPT, KEYED, change, tenants
from tests.support.run_cli import Cli

EVERY = {**KEYED, **BARRIER}
TABLES = ("links", "seeds", "names")


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return tenants(tmp_path, capsys)


def by_duckdb(cli: Cli, sql: str) -> Counter[tuple[object, ...]]:
    with duckdb.connect() as connection:
        for table in TABLES:
            rows = DeltaTable(str(cli.workload.parent / table)).to_pyarrow_table()
            connection.register(table, rows)
        return Counter(connection.execute(sql).fetchall())


def answers(cli: Cli, name: str, *arguments: str) -> Counter[tuple[object, ...]]:
    (result,) = cli.good("query", "--query", name, *arguments).results
    return Counter(map(tuple, result["rows"]))


def sketches(cli: Cli, *arguments: str) -> dict[str, list[Any]]:
    return {
        result["query"]: [one["fragments"] for one in result["sketches"]]
        for result in cli.good("status", *arguments).results
    }


@pytest.mark.parametrize("seed", range(2))
def test_answers_through_maintained_sketches_are_those_of_all_rows(cli: Cli, seed: int) -> None:
    rng = random.Random(seed)
    for result in cli.good("capture").results:
        assert result["mode"] == "exact", result
    for _ in range(2):
        change(cli.workload.parent, rng)
        for result in cli.good("maintain").results:
            assert result["action"] in ("exact", "none"), result
        for name, sql in EVERY.items():
            expected = by_duckdb(cli, sql)
            assert answers(cli, name, "--sketch", "always", "--by", "engine") == expected, name
            assert answers(cli, name, "--by", "engine") == expected, name
            (written,) = cli.good("rewrite", "--query", name).results
            assert written["runs_on_spark"] == (name == "paths")
            if not written["runs_on_spark"]:
                assert by_duckdb(cli, written["sql"]) == expected, name
        assert answers(cli, KEPT, "--by", "state") == by_duckdb(cli, KEYED[KEPT])


def test_filters_of_each_access_by_itself_would_be_noticed(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry that names its table once for base and query: the step is filtered elsewhere."""
    expected = by_duckdb(cli, KEYED["shared"])
    cli.good("capture", "--query", "shared")
    (written,) = cli.good("rewrite", "--query", "shared").results
    assert by_duckdb(cli, written["sql"]) == expected
    monkeypatch.setattr(filters, "groups_of", lambda prepared, sketches: ())
    (written,) = cli.good("rewrite", "--query", "shared").results
    assert by_duckdb(cli, written["sql"]) != expected


def test_explain_names_the_key(cli: Cli) -> None:
    said = {}
    for result in cli.good("explain").results:
        (line,) = [one for one in result["plan"] if one["operator"] == "fixpoint"]
        said[result["query"]] = "keyed on `t`" in line["why"]
    assert {name for name, is_keyed in said.items() if is_keyed} == {*KEYED}


def test_a_maintained_sketch_is_that_of_a_fresh_capture(cli: Cli) -> None:
    rng = random.Random(9)
    cli.good("capture")
    for _ in range(4):
        change(cli.workload.parent, rng)
        cli.good("maintain")
        store = ("--store", str(cli.workload.parent / "fresh"))
        cli.good("capture", *store)
        assert sketches(cli) == sketches(cli, *store)
