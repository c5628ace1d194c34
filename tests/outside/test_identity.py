"""Another table at the path, a backup put back, history that is gone, a moved path."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.outside.conftest import FEED
from tests.outside.place import Place, expect_carried, expect_recapture
from tests.outside.rows import ROWS


def recreate(place: Place, versions: int, rows: pa.Table = ROWS) -> None:
    """Another table with the same columns, `versions` commits after its first one."""
    shutil.rmtree(place.table)
    write_deltalake(str(place.table), rows, configuration=FEED)
    for _ in range(versions):
        place.append()


@pytest.mark.slow
@pytest.mark.parametrize("versions", [0, 1, 3])
def test_created_anew_with_fewer_as_many_and_more_versions(place: Place, versions: int) -> None:
    place.append(1)
    place.captured()
    recreate(place, versions, ROWS.slice(3))
    expect_recapture(place, "table_recreated", "`t`")


@pytest.mark.slow
@pytest.mark.parametrize("is_as_long", [True, False])
def test_a_backup_from_before_the_sketch(place: Place, tmp_path: Path, is_as_long: bool) -> None:
    shutil.copytree(place.table, tmp_path / "backup")
    place.append(1 if is_as_long else 5)
    place.captured()
    place.replace_by(tmp_path / "backup")
    if is_as_long:
        place.append()
    expect_recapture(place, "table_recreated", "`t`")


def test_a_copy_of_the_table_in_its_place_is_the_table(place: Place, tmp_path: Path) -> None:
    shutil.copytree(place.table, tmp_path / "copy")
    place.replace_by(tmp_path / "copy")
    place.append()
    expect_carried(place, changes=3)


def test_the_log_before_the_sketch_is_cleaned(place: Place) -> None:
    place.append(1)
    place.captured()
    place.append()
    place.forget(keep=2)
    expect_carried(place, changes=3)


@pytest.mark.slow
def test_the_log_since_the_sketch_is_cleaned(place: Place) -> None:
    place.append(1)
    place.append()
    place.forget(keep=2)
    expect_recapture(place, "history_gone", "`t`", "Version 0")


@pytest.mark.slow
def test_nothing_but_a_checkpoint_is_left(place: Place) -> None:
    place.append()
    place.forget(keep=99)
    expect_recapture(place, "history_gone", "`t`")


def vacuum(place: Place, *, and_change_data: bool) -> None:
    place.delta.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    if and_change_data:
        shutil.rmtree(place.table / "_change_data", ignore_errors=True)


def said_by_spark(place: Place) -> None:
    """Every commit since the capture told to be Spark's."""
    for version in range(1, place.delta.version() + 1):
        entry = place.table / "_delta_log" / f"{version:020}.json"
        said = re.compile('"engineInfo":"[^"]*"')
        text, result = said.subn('"engineInfo":"Apache-Spark/4.0.0"', entry.read_text())
        assert result == 1
        entry.write_text(text)


@pytest.mark.slow
@pytest.mark.parametrize("by_spark", [True, False])
def test_files_of_the_sketchs_version_are_gone(place: Place, by_spark: bool) -> None:
    """The change feed tells what was deleted; what deltalake copied has to be looked at, too."""
    place.delta.delete("x = 5")
    place.delta.update(updates={"x": "x + 1"}, predicate="g = 3")
    if by_spark:
        said_by_spark(place)
    vacuum(place, and_change_data=False)
    if not (place.table / "_change_data").exists():
        pytest.skip("deltalake's vacuum took the change data with it")
    if by_spark:
        expect_carried(place)
    else:
        expect_recapture(place, "history_gone", "`t`")


@pytest.mark.slow
def test_files_needed_for_the_change_are_gone(place: Place) -> None:
    place.delta.delete("x = 5")
    place.delta.update(updates={"x": "x + 1"}, predicate="g = 3")
    vacuum(place, and_change_data=True)
    expect_recapture(place, "history_gone", "`t`")


@pytest.mark.slow
def test_without_a_feed_files_needed_for_the_change_are_gone(without_feed: Place) -> None:
    without_feed.delta.delete("x = 5")
    vacuum(without_feed, and_change_data=True)
    expect_recapture(without_feed, "history_gone", "`t`")


@pytest.mark.slow
def test_a_file_of_the_newest_version_is_gone(place: Place) -> None:
    """Somebody removed what the table still needs: no policy can answer."""
    place.append()
    for uri in place.delta.file_uris():
        Path(uri).unlink()
    for policy in ("incremental", "auto", "full"):
        ran = place.maintained(policy)
        assert ran.code == 7, ran.document
        assert ran.error["code"] in ("history_gone", "data_files_gone")
    assert place.maintained("strict").code == 4
