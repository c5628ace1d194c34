"""Commits that others make, over a table with a change feed, without, and with half of one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from deltalake import DeltaTable, write_deltalake

from tests.outside.place import Place, expect_carried
from tests.outside.rows import ROWS, more

pytestmark = pytest.mark.slow


def compact(delta: DeltaTable) -> None:
    delta.optimize.compact()


def z_order(delta: DeltaTable) -> None:
    delta.optimize.z_order(["g"])


@pytest.mark.parametrize("optimize", [compact, z_order])
def test_optimize_changes_nothing(either: Place, optimize: Callable[[DeltaTable], None]) -> None:
    either.append(9, 1)
    either.captured()
    before = either.delta.version()
    optimize(either.delta)
    assert either.delta.version() == before + 1
    ran = expect_carried(either, changes=0)
    assert ran.results[0]["added"] == ran.results[0]["removed"] == []
    assert ran.document["warnings"] == []


@pytest.mark.parametrize("optimize", [compact, z_order])
def test_optimize_between_other_commits(
    either: Place, optimize: Callable[[DeltaTable], None]
) -> None:
    either.append()
    optimize(either.delta)
    either.delta.delete("g = 0 AND x = 5")
    expect_carried(either)
    assert either.stored().sketches[0].fragments.ids == (1, 2)


@pytest.mark.parametrize("captured_at", [0, 1, 2, 3])
@pytest.mark.parametrize("restored_to", [0, 1, 2])
def test_restore(either: Place, captured_at: int, restored_to: int) -> None:
    """To versions before the sketch's, to its own, and to later ones."""
    for version in range(4):
        if version == captured_at:
            either.captured()
        if version == 1:
            either.delta.delete("g = 0 AND x = 5")
        elif version < 3:
            either.append(5 + version)
    either.delta.restore(restored_to)
    expect_carried(either)


def test_the_whole_table_is_overwritten(either: Place) -> None:
    write_deltalake(str(either.table), more(7, 4, 9), mode="overwrite")
    expect_carried(either)
    assert either.stored().sketches[0].fragments.ids == (3,)


def test_overwritten_by_nothing(either: Place) -> None:
    write_deltalake(str(either.table), ROWS.slice(0, 0), mode="overwrite")
    expect_carried(either)
    assert either.stored().sketches[0].fragments.ids == ()


def test_merge(either: Place) -> None:
    """Rows changed, added and removed in one commit."""
    (
        either.delta.merge(more(5, 1), "s.g = t.g", source_alias="s", target_alias="t")
        .when_matched_update(updates={"x": "t.x + 100"})
        .when_not_matched_insert_all()
        .when_not_matched_by_source_delete("t.g = 0")
        .execute()
    )
    expect_carried(either)


def test_the_feed_is_on_for_a_part(without_feed: Place) -> None:
    """Off, on, off, on: whole files are compared, and the run says so."""
    for switch in ("true", "false", "true"):
        without_feed.append(rows=1)
        without_feed.delta.delete("g = 0 AND x = 15")
        without_feed.delta.alter.set_table_properties({"delta.enableChangeDataFeed": switch})
    without_feed.append(7)
    (warning,) = expect_carried(without_feed).document["warnings"]
    assert "its change feed does not cover all of this change" in warning
    assert "`t`" in warning


def test_the_feed_is_on_by_now(without_feed: Place) -> None:
    """From then on no file is compared."""
    without_feed.delta.alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    without_feed.cli.good("maintain")
    without_feed.append()
    assert expect_carried(without_feed, changes=3).document["warnings"] == []
