"""Recursive queries with `provenance: absorption`, from capture to `why`, on real tables.

Beside them the same queries by ranks: sketches, answers, and what `why` tells, are equal.
Run where `oxidd` is installed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.behaviour.absorbed_workload import SHIPS, Both, asking, changed
from tests.behaviour.recursive_workload import (
    KEPT,
    QUERIES,
    all_by_duckdb,
    answers,
    by_duckdb,
    change,
    fragments,
    network,
    some_links,
    through_sketches,
)
from tests.support.diagrams import take_away, with_diagrams
from tests.support.run_cli import Capsys, Cli


def both(folder: Path, capsys: Capsys, ship: str, names: Sequence[str] = (*QUERIES,)) -> Both:
    return Both(network(folder, capsys, names), SHIPS[ship])


def fast_by(ship: str) -> pytest.MarkDecorator:
    """Parametrizes `seed` and `ship`: this one, and in `make check` both, with other changes."""
    pairs = [(0, ship), (1, "lazy"), (2, "eager")]
    marks: list[list[pytest.MarkDecorator]] = [[], [pytest.mark.slow], [pytest.mark.slow]]
    return pytest.mark.parametrize(
        ("seed", "ship"),
        [pytest.param(*pair, marks=own) for pair, own in zip(pairs, marks, strict=True)],
    )


@pytest.mark.slow
@with_diagrams
@fast_by("lazy")
def test_sketches_deltas_and_answers_are_those_by_ranks(
    tmp_path: Path, capsys: Capsys, seed: int, ship: str
) -> None:
    pair, rng = both(tmp_path, capsys, ship), random.Random(seed)
    pair.good("capture")
    for _ in range(3):
        change(tmp_path, rng)
        own, by_ranks = pair.good("maintain")
        for one, other in zip(own, by_ranks, strict=True):
            assert one["action"] == other["action"], one
            assert (one["added"], one["removed"]) == (other["added"], other["removed"]), one
            assert one["action"] in ("exact", "none"), one
    assert fragments(pair.cli) == fragments(pair.ranks)
    expected = all_by_duckdb(pair.cli, QUERIES)
    assert through_sketches(pair.cli, QUERIES) == expected
    assert answers(pair.cli, KEPT, "--by", "state") == expected[KEPT]


TIMED = """\
version: 1
tables: {legs: {path: legs}}
partitions: {legs: {price: {boundaries: [1, 2, 3]}}}
store: .impctl
queries:
  days:
    sql: >-
      WITH RECURSIVE r(n) AS (SELECT dst FROM legs WHERE src = DATE '2026-01-01' UNION
      SELECT l.dst FROM r JOIN legs l ON r.n = l.src
      WHERE l.price > 0 AND l.ratio < 9 AND l.seen > TIMESTAMP '2025-01-01' AND l.name <> 'x')
      SELECT n FROM r
    sketch: {legs: price}
    provenance: absorption
"""


@with_diagrams
def test_values_are_told_as_the_table_has_them(tmp_path: Path, capsys: Capsys) -> None:
    days = [date(2026, 1, day) for day in range(1, 6)]
    legs = pa.table(
        {
            "src": [days[0], days[1], days[2], days[0]],
            "dst": [days[1], days[2], days[3], days[4]],
            "price": pa.array(map(Decimal, ("1.50", "2.25", "0.01", "3")), pa.decimal128(9, 2)),
            "ratio": [0.5, float("-inf"), 0.1, 8.0],
            "seen": pa.array([datetime(2026, 1, 1, 12, 0, 1)] * 4, pa.timestamp("us", "UTC")),
            "name": ["a", "b", "c", None],
        }
    )
    write_deltalake(str(tmp_path / "legs"), legs)
    state, tables = (Cli(capsys, tmp_path / f"{name}.yaml") for name in ("state", "tables"))
    state.workload.write_text(TIMED)
    other = TIMED.replace("provenance: absorption", "").replace(".impctl", ".other")
    tables.workload.write_text(other)
    for one in (state, tables):
        one.good("capture")
    told = [one.good("why", "--row", "n=2026-01-04").results[0] for one in (state, tables)]
    assert [one["by"] for one in told] == ["state", "engine"]
    assert told[0]["rows"] == told[1]["rows"]
    assert len(told[0]["rows"]) == 3
    for condition in (
        "legs: price = 2.25",
        "legs: price < 1.5",
        "legs: src >= DATE '2026-01-02'",
        "legs: seen < TIMESTAMP '2026-01-02' AND ratio < 0",
        "legs: name = 'a'",
    ):
        result = [one.good("why", "--without", condition).results[0] for one in (state, tables)]
        assert [one["by"] for one in result] == ["state", "engine"]
        assert changed(result[0]) == changed(result[1])
        assert result[0]["rows"], condition


@with_diagrams
@fast_by("eager")
def test_why_tells_from_the_state_what_it_tells_from_the_tables(
    tmp_path: Path, capsys: Capsys, seed: int, ship: str
) -> None:
    pair, rng = both(tmp_path, capsys, ship), random.Random(seed)
    write_deltalake(str(tmp_path / "links"), some_links(rng, 60), mode="append")
    pair.good("capture")
    change(tmp_path, rng)
    seen: Counter[str] = Counter()
    for name, column in (("reach", "n"), ("from_one", "y")):
        every = sorted(answers(pair.cli, name), key=repr)
        for (value,) in rng.sample(every, min(len(every), 4)):
            row = f"{column}={'NULL' if value is None else value}"
            (own,), (other,) = pair.good("why", "--query", name, "--row", row)
            assert (own["by"], other["by"]) == ("state", "engine")
            assert own["files_kept"] == 0 < other["files_kept"]
            assert own["files_total"] == other["files_total"]
            assert own["row"] == other["row"]
            assert other["claim"] == "smallest"
            assert (own["claim"], own["row_count"]) == (other["claim"], other["row_count"])
            assert own["lineage"] == other["lineage"]
            seen[name] += own["row_count"] > 1
    assert len(seen) == 2, seen
    conditions = ("links: src = 8", "links: dst < 12", "links: src = 7 OR src IS NULL")
    for at, name in enumerate(QUERIES):
        told = name != "not_reached" and name != "by_groups"
        # Each query with one condition, each condition with two queries.
        condition = conditions[(at + seed) % 3]
        (own,), (other,) = pair.good("why", "--query", name, "--without", condition)
        assert changed(own) == changed(other), (name, condition)
        assert own["by"] == ("state" if told else "engine"), name
        seen["gone"] += len(own["rows"])
    assert seen["gone"]


@pytest.mark.slow
@with_diagrams
@pytest.mark.parametrize("ship", SHIPS)
def test_explain_and_status_say_how_recursion_is_kept(
    tmp_path: Path, capsys: Capsys, ship: str
) -> None:
    """Of what is captured, and explain before, too."""
    pair = both(tmp_path, capsys, ship, [KEPT])
    for _ in range(2):
        own, by_ranks = pair.good("explain")
        for one, other in zip(own, by_ranks, strict=True):
            assert (one["provenance"], other["provenance"]) == (ship, None)
            (line,) = (line for line in one["plan"] if line["operator"] == "fixpoint")
            assert f"provenance by absorption, {ship}" in line["why"]
        pair.good("capture")
    own, by_ranks = pair.good("status")
    assert {one["provenance"] for one in own} == {ship}
    assert {one["provenance"] for one in by_ranks} == {None}


@with_diagrams
def test_too_many_nodes_at_a_capture(tmp_path: Path, capsys: Capsys) -> None:
    cli = network(tmp_path, capsys, ["reach", "from_one"])
    links = some_links(random.Random(3), 900)
    write_deltalake(str(tmp_path / "links"), links, mode="append")
    asking(cli, "{kind: absorption, ship: eager, nodes: 200}", "strict")
    refused = cli("capture")
    assert refused.code == 3
    assert refused.error["code"] == "provenance_too_large"
    assert "ship: lazy" in refused.error["hint"]
    cli.workload.write_text(cli.workload.read_text().replace("strict", "auto"))
    captured = cli.good("capture")
    (told, *_) = [
        one for one in captured.document["warnings"] if "no provenance is stored for query" in one
    ]
    assert "[provenance_too_large]" in told
    for result in cli.good("status").results:
        assert (result["mode"], result["provenance"]) == ("exact", "given_up")
    for result in cli.good("explain").results:
        assert result["provenance"] == "given_up"
        assert "by ranks" in result["reason"]
    change(tmp_path, random.Random(3))
    for result in cli.good("maintain").results:
        assert result["action"] == "exact", "a state by ranks goes on as it is"
    assert answers(cli, "reach") == by_duckdb(cli, QUERIES["reach"])
    value = next(one for (one,) in answers(cli, "reach") if one is not None)
    (told,) = cli.good("why", "--query", "reach", "--row", f"n={value}").results
    assert told["by"] == "engine"


@with_diagrams
def test_too_many_nodes_at_a_change(tmp_path: Path, capsys: Capsys) -> None:
    cli = network(tmp_path, capsys, ["reach"])
    asking(cli, "{kind: absorption, ship: eager, nodes: 3000}", "strict")
    cli.good("capture")
    before = fragments(cli)
    links = some_links(random.Random(3), 900)
    write_deltalake(str(tmp_path / "links"), links, mode="append")
    refused = cli("maintain")
    assert refused.code == 3, refused.document
    assert "provenance_too_large" in str(refused.document)
    assert fragments(cli) == before, "the store stays as it was"
    recaptured = cli.good("maintain", "--policy", "auto")
    assert {result["action"] for result in recaptured.results} == {"recapture"}
    assert {result["reason_code"] for result in recaptured.results} == {"provenance_too_large"}
    assert any(
        "no provenance is stored for query" in warning
        for warning in recaptured.document["warnings"]
    )
    assert answers(cli, "reach") == by_duckdb(cli, QUERIES["reach"])


def test_what_cannot_be_kept_so_is_refused(tmp_path: Path, capsys: Capsys) -> None:
    for name, what in (
        ("walks", "UNION ALL"),
        ("cheapest", "best rows"),
        ("plain", "no WITH RECURSIVE"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        cli = network(folder, capsys, ["reach" if name == "plain" else name])
        asking(cli, "absorption")
        if name == "plain":
            text = cli.workload.read_text()
            start, end = text.index('sql: "'), text.index('", sketch')
            text = text[:start] + 'sql: "SELECT src, dst FROM links WHERE src = 7' + text[end:]
            cli.workload.write_text(text)
        refused = cli("capture")
        assert refused.code == 3
        assert refused.error["code"] == "no_provenance"
        assert what in refused.error["message"]


def test_without_the_package_it_is_said_what_to_install(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = network(tmp_path, capsys, ["reach"])
    asking(cli, "absorption")
    take_away(monkeypatch)
    explained = cli.good("explain")
    assert explained.results[0]["provenance"] == "lazy"
    refused = cli("capture")
    assert refused.code == 2
    assert refused.error["code"] == "extra_missing"
    # Who looks before hears the same.
    checked = cli.good("check")
    (warning,) = checked.document["warnings"]
    assert explained.document["warnings"] == [warning]
    assert warning == (
        f"`reach` cannot be captured here: {refused.error['message']}; {refused.error['hint']} "
        "[extra_missing]"
    )
    (result,) = (one for one in cli("doctor").results if one["check"] == "extras")
    assert (result["level"], result["exit_code"]) == ("problem", 2)
    assert (result["message"], result["fix"]) == (refused.error["message"], refused.error["hint"])


@with_diagrams
def test_with_the_package_nothing_is_said_of_it(tmp_path: Path, capsys: Capsys) -> None:
    cli = network(tmp_path, capsys, ["reach"])
    assert not [one for one in cli("doctor").results if one["check"] == "extras"]
    asking(cli, "absorption")
    for command in ("check", "explain"):
        assert cli.good(command).document["warnings"] == []
    (result,) = (one for one in cli("doctor").results if one["check"] == "extras")
    assert result["level"] == "ok"


def test_who_asks_for_nothing_of_it_does_not_hear_of_it(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = network(tmp_path, capsys, ["reach"])
    take_away(monkeypatch)
    for command in ("check", "explain"):
        assert cli.good(command).document["warnings"] == []
    assert not [one for one in cli("doctor").results if one["check"] == "extras"]


@pytest.mark.slow
@with_diagrams
@pytest.mark.parametrize("ship", ["lazy", pytest.param("eager", marks=pytest.mark.slow)])
def test_only_changes_and_captures_need_the_package(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, ship: str
) -> None:
    cli = both(tmp_path, capsys, ship, [KEPT]).cli
    cli.good("capture")
    take_away(monkeypatch)
    assert answers(cli, KEPT) == by_duckdb(cli, QUERIES[KEPT])
    assert cli.good("status").results
    change(tmp_path, random.Random(2))
    refused = cli("maintain")
    assert (refused.code, refused.error["code"]) == (2, "extra_missing")
