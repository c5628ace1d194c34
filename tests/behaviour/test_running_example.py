"""The running example of the papers, through the command line, on real Delta tables and Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from impctl.bench.data import running_example_table
from impctl.service import verify
from impctl.service.capture import captured_query
from impctl.sketch.sketch import FragmentSet
from impctl.store.records import StoredQuery
from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Capsys, Cli

pytestmark = pytest.mark.spark

WORKLOAD = Path(__file__).parents[2] / "workloads" / "running-example.yaml"


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys, spark: Any) -> Cli:
    create_table(str(tmp_path / "sales"), running_example_table())
    monkeypatch.setenv("IMPCTL_DATA", str(tmp_path))
    monkeypatch.setenv("IMPCTL_STORE", str(tmp_path / "store"))
    return Cli(capsys, WORKLOAD)


def fragments(cli: Cli, query: str = "q_top") -> list[int]:
    """The stored sketch's fragments."""
    (result,) = cli.good("status", "--query", query).results
    match = result["sketches"][0]["fragments"]
    assert isinstance(match, list)
    return match


def revenue(cli: Cli) -> list[tuple[str, int]]:
    """The answer of `q_top`, sorted."""
    (result,) = cli.good("query", "--query", "q_top").results
    return sorted((brand, rev) for brand, rev in result["rows"])


def test_captured_maintained_used_and_verified(cli: Cli) -> None:
    captured = cli.good("capture").results
    assert [(r["query"], r["mode"]) for r in captured] == [("q_top", "exact"), ("q_brand", "exact")]
    assert fragments(cli) == [2, 3]
    assert revenue(cli) == [("Apple", 5074)]

    cli.good("apply", "s8")
    (top, brand) = cli.good("maintain").results
    assert (top["action"], top["added"], top["removed"]) == ("exact", [1], [])
    assert top["changes"] == 1
    assert brand["action"] == "exact"
    assert fragments(cli) == [1, 2, 3]
    assert revenue(cli) == [("Apple", 5074), ("HP", 6194)]

    cli.verified()


def test_a_sketch_that_lacks_a_range_is_unsound(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(*given: Any) -> StoredQuery:
        stored = captured_query(*given)
        (sketch,) = stored.sketches
        assert sketch.fragments.ids == (2, 3)
        fewer = FragmentSet.of([2], sketch.fragments.size)
        return replace(stored, sketches=(replace(sketch, fragments=fewer),))

    monkeypatch.setattr(verify, "captured_query", lacking)
    cli.good("capture", "--query", "q_top")
    ran = cli("verify", "--query", "q_top")
    assert (ran.code, ran.error["code"]) == (5, "sketch_unsound")
    (verified,) = ran.results
    assert (verified["covers"], verified["missing"], verified["slack"]) == (False, [3], 0)


def test_deletes_and_updates_keep_it_accurate(cli: Cli) -> None:
    cli.good("capture")
    cli.good("apply", "--all")
    actions = {r["query"]: r["action"] for r in cli.good("maintain").results}
    assert actions == {"q_top": "exact", "q_brand": "exact"}
    cli.verified()
    assert revenue(cli) == [("HP", 6194)]
    assert cli.good("maintain").results[0]["action"] == "none"


def test_an_eager_query_has_a_step_per_version(cli: Cli) -> None:
    cli.good("capture")
    cli.good("apply", "--all")
    by_query = {r["query"]: r for r in cli.good("maintain").results}
    assert [step["versions"]["sales"] for step in by_query["q_brand"]["steps"]] == [1, 2, 3]
    assert by_query["q_top"]["steps"] == []


def test_the_rewritten_sql_is_alone_on_stdout(cli: Cli, capsys: Capsys) -> None:
    from impctl.cli.application import build_app
    from impctl.cli.boundary import run

    cli.good("capture", "--query", "q_top")
    capsys.readouterr()
    assert run(build_app(), ["rewrite", str(WORKLOAD), "--query", "q_top"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("SELECT brand")
    assert "price` >= 1001" in printed


def test_a_broken_assumption_is_recaptured_or_refused_by_policy(cli: Cli, tmp_path: Path) -> None:
    """A negative price makes the sketch on price unsafe."""
    from deltalake import write_deltalake

    cli.good("capture", "--query", "q_top")
    row = (
        running_example_table()
        .slice(0, 1)
        .set_column(3, "price", running_example_table().slice(0, 1)["price"].cast("int64"))
    )
    negative = row.set_column(3, "price", [[-5]])
    write_deltalake(str(tmp_path / "sales"), negative.cast(row.schema), mode="append")
    refused = cli("maintain", "--query", "q_top", "--policy", "incremental")
    assert (refused.code, refused.error["code"]) == (7, "assumption_broken")
    assert "`sales.price` >= 0" in refused.error["message"]
    assert fragments(cli) == [2, 3]
    # With policy auto a recapture is tried, and the safety check says why price will not do.
    unsafe = cli("maintain", "--query", "q_top")
    assert (unsafe.code, unsafe.error["code"]) == (3, "sketch_unsafe")
    assert fragments(cli) == [2, 3]
