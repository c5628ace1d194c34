"""Recursive queries whose fixpoints are keyed, from capture to answer, against DuckDB."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.behaviour.keyed_workload import BARRIER, KEPT, KEYED, change, tenants
from tests.behaviour.recursive_workload import (
    all_by_duckdb,
    answers,
    check_maintained,
    through_sketches,
)
from tests.support.random_cases import random_seeds

EVERY = {**KEYED, **BARRIER}


@pytest.mark.slow
@random_seeds(1, 3, 9)
def test_maintained_sketches_are_those_of_fresh_captures_and_give_the_answers_of_all_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    cli = tenants(tmp_path, capsys)
    check_maintained(cli, change, seed, turns=2)
    expected = all_by_duckdb(cli, EVERY)
    assert through_sketches(cli, EVERY) == expected
    assert answers(cli, KEPT, "--by", "state") == expected[KEPT]
    texts = {}
    for name in EVERY:
        (result,) = cli.good("rewrite", "--query", name).results
        assert result["runs_on_spark"] == (name == "paths")
        if not result["runs_on_spark"]:
            texts[name] = result["sql"]
    assert all_by_duckdb(cli, texts) == {name: expected[name] for name in texts}


def test_explain_names_the_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = {}
    for result in tenants(tmp_path, capsys).good("explain").results:
        (line,) = [one for one in result["plan"] if one["operator"] == "fixpoint"]
        said[result["query"]] = "keyed on `t`" in line["why"]
    assert {name for name, is_keyed in said.items() if is_keyed} == {*KEYED}
