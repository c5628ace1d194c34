"""Facts that a sketch's safety rests on, broken by what others write or no longer promised."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from tests.outside.conftest import FEED
from tests.outside.place import Place, expect_carried, expect_recapture, make_place
from tests.outside.rows import ROWS
from tests.support.made_once import MadeOnce

SUMMED = "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 20"
"""A sketch on `x` is safe only while no `x` is negative."""
BY_X = "x: {boundaries: [10, 20]}"


@pytest.fixture
def summed(made_once: MadeOnce, capsys: pytest.CaptureFixture[str]) -> Place:
    """Sketched on `x` because the workload says so."""

    def make(folder: Path) -> None:
        write_deltalake(str(folder / "t"), ROWS, configuration=FEED)
        place = make_place(folder, capsys, sql=SUMMED, sketch="x", ranges=BY_X).captured()
        assert [a.kind for a in place.stored().assumptions] == ["nonnegative"]

    folder = made_once.folder("summed", make)
    return make_place(folder, capsys, sql=SUMMED, sketch="x", ranges=BY_X)


@pytest.mark.slow
@pytest.mark.parametrize("x", [0, 40, None])
def test_rows_that_keep_the_fact(summed: Place, x: int | None) -> None:
    summed.append(0, 1, x)
    expect_carried(summed)


@pytest.mark.slow
def test_a_negative_value_and_nothing_else_is_allowed(summed: Place) -> None:
    """The workload insists on `x`: nothing is recaptured, and the message says what to do."""
    summed.append(0, 1, -5)
    refused = summed.maintained("incremental")
    assert (refused.code, refused.error["code"]) == (7, "assumption_broken")
    assert "`t.x` >= 0" in refused.error["message"]
    strict = summed.maintained("strict")
    assert (strict.code, strict.error["code"]) == (4, "policy_refused")
    for policy in ("auto", "full"):
        ran = summed.maintained(policy)
        assert (ran.code, ran.error["code"]) == (3, "sketch_unsafe")
        assert "`x`" in ran.error["message"]
    # Nobody may use what is stored: neither as it is, nor brought up to date.
    for policy, code in (("auto", 3), ("incremental", 7)):
        assert summed.cli("rewrite", "--policy", policy, "--require-sketch").code == code
        (result,) = summed.cli.good("rewrite", "--policy", policy).results
        assert (result["action"], result["sketches"]) == ("no_sketch", [])


def test_a_negative_value_that_came_and_went(summed: Place) -> None:
    """The state never saw it: what counts is the rows there were and those there are."""
    summed.append(0, 1, -5)
    summed.delta.delete("x < 0")
    expect_carried(summed)


def test_without_a_wish_the_attribute_is_one_that_no_value_breaks(place: Place) -> None:
    ranges = f"{BY_X}\n    g: {{boundaries: [2, 4, 6]}}"
    free = make_place(place.folder, place.cli.capsys, sql=SUMMED, sketch=None, ranges=ranges)
    free.captured()
    assert free.stored().sketches[0].attribute == "g"
    free.append(0, 1, -5)
    expect_carried(free)


@pytest.fixture
def promised(made_once: MadeOnce, capsys: pytest.CaptureFixture[str]) -> Place:
    """The table itself refused negative values, so nothing is assumed; it does no longer."""

    def make(folder: Path) -> None:
        write_deltalake(str(folder / "t"), ROWS, configuration=FEED)
        DeltaTable(str(folder / "t")).alter.add_constraint({"positive": "x >= 0"})
        place = make_place(folder, capsys, sql=SUMMED, sketch="x", ranges=BY_X).captured()
        assert place.stored().assumptions == ()
        place.delta.alter.drop_constraint("positive")

    folder = made_once.folder("promised", make)
    return make_place(folder, capsys, sql=SUMMED, sketch="x", ranges=BY_X)


def test_a_constraint_is_dropped(promised: Place) -> None:
    """Its sign is an assumption from now on."""
    expect_recapture(promised, "no_longer_safe")
    assert [a.kind for a in promised.stored().assumptions] == ["nonnegative"]


def test_a_constraint_is_dropped_and_broken(promised: Place) -> None:
    promised.append(0, 1, -5)
    for policy, outcome in {
        "incremental": (7, "no_longer_safe"),
        "strict": (4, "policy_refused"),
        "auto": (3, "sketch_unsafe"),
    }.items():
        ran = promised.maintained(policy)
        assert (ran.code, ran.error["code"]) == outcome, policy


@pytest.mark.slow
def test_a_constraint_comes_back_after_it_was_broken(promised: Place) -> None:
    promised.append(0, 1, -5)
    promised.delta.delete("x < 0")
    promised.delta.alter.add_constraint({"positive": "x >= 0"})
    expect_carried(promised)


@pytest.mark.slow
def test_a_row_on_which_the_query_fails_came_and_went(place: Place) -> None:
    """No answer at the version it was there, one before and after."""
    sql = "SELECT g, SUM(100 DIV x) AS s FROM t GROUP BY g HAVING SUM(100 DIV x) > 20"
    divided = make_place(place.folder, place.cli.capsys, sql=sql).captured()
    divided.append(0, 1, 0)
    # The others would ask Spark, which fails on that row as well.
    for policy in ("strict", "incremental"):
        ran = divided.cli("maintain", "--policy", policy)
        assert (ran.code, ran.error["code"]) == (3, "division_by_zero")
    divided.append(0, 1, 30)
    divided.delta.delete("x = 0")
    assert divided.maintained("incremental").code == 3
    ran = divided.maintained("auto")
    (result,) = ran.results
    assert (result["action"], result["reason_code"]) == ("recapture", "division_by_zero")
    assert ran.document["warnings"]


@pytest.mark.slow
def test_a_subquery_used_as_a_value_has_a_second_row(place: Place) -> None:
    """No answer while it is there, as in Spark; the sketch is carried on once it is gone."""
    sql = "SELECT g, SUM(x) AS s FROM t WHERE x > (SELECT x FROM t WHERE x = 3) GROUP BY g"
    place.append(0, 1, 3)
    compared = make_place(place.folder, place.cli.capsys, sql=sql).captured()
    compared.append(0, 1, 3)
    # The others would ask Spark, which fails on these rows as well.
    for policy in ("strict", "incremental"):
        ran = compared.cli("maintain", "--policy", policy)
        assert (ran.code, ran.error["code"]) == (3, "subquery_of_several_rows")
        assert "MAX" in ran.error["hint"]
    compared.append(0, 1, 30)
    compared.delta.delete("x = 3")
    expect_carried(compared)
