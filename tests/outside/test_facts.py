"""Facts that a sketch's safety rests on, broken by what others write or no longer promised."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from tests.outside.conftest import FEED
from tests.outside.place import Place, expect_carried, expect_recapture, make_place
from tests.outside.rows import ROWS, more

SUMMED = "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 20"
"""A sketch on `x` is safe only while no `x` is negative."""
BY_X = "x: {boundaries: [10, 20]}"


def make_summed(folder: Path, capsys: pytest.CaptureFixture[str], sketch: str | None) -> Place:
    return make_place(folder, capsys, sql=SUMMED, sketch=sketch, ranges=BY_X)


@pytest.fixture
def path(tmp_path: Path) -> str:
    write_deltalake(str(tmp_path / "t"), ROWS, configuration=FEED)
    return str(tmp_path / "t")


@pytest.fixture
def summed(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    """Sketched on `x` because the workload says so."""
    place = make_summed(tmp_path, capsys, "x").captured()
    assert [a.kind for a in place.stored().assumptions] == ["nonnegative"]
    return place


def append(path: str, x: int | None) -> None:
    write_deltalake(path, more(0, 1, x), mode="append")


@pytest.mark.parametrize("x", [0, 40, None])
def test_rows_that_keep_the_fact(summed: Place, path: str, x: int | None) -> None:
    append(path, x)
    expect_carried(summed)


def test_a_negative_value_and_nothing_else_is_allowed(summed: Place, path: str) -> None:
    """The workload insists on `x`: nothing is recaptured, and the message says what to do."""
    append(path, -5)
    found = summed.under_each_policy()
    refused = found["incremental"]
    assert (refused.code, refused.error["code"]) == (7, "assumption_broken")
    assert "t.x is nonnegative" in refused.error["message"]
    assert (found["strict"].code, found["strict"].error["code"]) == (4, "policy_refused")
    for policy in ("auto", "full"):
        assert (found[policy].code, found[policy].error["code"]) == (3, "sketch_unsafe")
        assert "`x`" in found[policy].error["message"]
    # Nobody may use what is stored: neither as it is, nor brought up to date.
    for policy, code in (("auto", 3), ("incremental", 7)):
        assert summed.cli("rewrite", "--policy", policy, "--require-sketch").code == code
        plain = summed.cli("rewrite", "--policy", policy)
        assert plain.code == 0
        (result,) = plain.document["results"]
        assert (result["action"], result["sketches"]) == ("no_sketch", [])


def test_a_negative_value_that_came_and_went(summed: Place, path: str) -> None:
    """The state never saw it: what counts is the rows there were and those there are."""
    append(path, -5)
    DeltaTable(path).delete("x < 0")
    expect_carried(summed)
    assert summed.check_sound() == 0


def test_without_a_wish_another_attribute_is_chosen(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranges = f"{BY_X}\n    g: {{boundaries: [2, 4, 6]}}"
    free = make_place(tmp_path, capsys, sql=SUMMED, sketch=None, ranges=ranges).captured()
    if free.stored().sketches[0].attribute != "x":
        # The chooser prefers the keyed attribute, whose safety no value can break.
        append(path, -5)
        expect_carried(free)
        return
    append(path, -5)
    expect_recapture(free, "assumption_broken", "t.x is nonnegative")
    assert free.stored().sketches[0].attribute == "g"


@pytest.fixture
def promised(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    """The table itself refuses negative values, so nothing is assumed."""
    DeltaTable(path).alter.add_constraint({"positive": "x >= 0"})
    place = make_summed(tmp_path, capsys, "x").captured()
    assert place.stored().assumptions == ()
    DeltaTable(path).alter.drop_constraint("positive")
    return place


def test_a_constraint_is_dropped(promised: Place) -> None:
    """Its sign is an assumption from now on."""
    expect_recapture(promised, "no_longer_safe")
    assert [a.kind for a in promised.stored().assumptions] == ["nonnegative"]


def test_a_constraint_is_dropped_and_broken(promised: Place, path: str) -> None:
    append(path, -5)
    found = promised.under_each_policy()
    refused = found["incremental"]
    assert (refused.code, refused.error["code"]) == (7, "no_longer_safe")
    assert (found["strict"].code, found["strict"].error["code"]) == (4, "policy_refused")
    for policy in ("auto", "full"):
        assert (found[policy].code, found[policy].error["code"]) == (3, "sketch_unsafe")


def test_a_constraint_comes_back_after_it_was_broken(promised: Place, path: str) -> None:
    append(path, -5)
    DeltaTable(path).delete("x < 0")
    DeltaTable(path).alter.add_constraint({"positive": "x >= 0"})
    expect_carried(promised)


def test_a_row_on_which_the_query_fails_came_and_went(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No answer at the version it was there, one before and after."""
    sql = "SELECT g, SUM(100 DIV x) AS s FROM t GROUP BY g HAVING SUM(100 DIV x) > 20"
    place = make_place(tmp_path, capsys, sql=sql).captured()
    append(path, 0)
    # The others would ask Spark, which fails on that row as well.
    for policy in ("strict", "incremental"):
        ran = place.cli("maintain", "--policy", policy)
        assert (ran.code, ran.error["code"]) == (3, "division_by_zero")
    append(path, 30)
    DeltaTable(path).delete("x = 0")
    found = place.under_each_policy()
    (result,) = found["auto"].results
    assert (result["action"], result["reason_code"]) == ("recapture", "division_by_zero")
    assert found["auto"].document["warnings"]
    assert found["incremental"].code == 3


def test_a_subquery_used_as_a_value_has_a_second_row(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No answer while it is there, as in Spark; the sketch is carried on once it is gone."""
    sql = "SELECT g, SUM(x) AS s FROM t WHERE x > (SELECT x FROM t WHERE x = 3) GROUP BY g"
    append(path, 3)
    DeltaTable(path).delete("x = 3")
    append(path, 3)
    place = make_place(tmp_path, capsys, sql=sql).captured()
    append(path, 3)
    # The others would ask Spark, which fails on these rows as well.
    for policy in ("strict", "incremental"):
        ran = place.cli("maintain", "--policy", policy)
        assert (ran.code, ran.error["code"]) == (3, "subquery_of_several_rows")
        assert "MAX" in ran.error["hint"]
    append(path, 30)
    DeltaTable(path).delete("x = 3")
    (result,) = place.cli.good("maintain", "--policy", "strict").results
    assert (result["action"], result["reason_code"]) == ("exact", "incremental")
    assert place.check_sound() == 0
