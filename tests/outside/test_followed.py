"""A backup put over a table's log between or during the runs of one following process."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deltalake import write_deltalake

from impctl.service.context import Workbench, open_workbench
from impctl.service.maintain import maintain
from impctl.service.schedule.daemon import Watch
from impctl.service.settings import Settings
from impctl.tables.source import open_source
from impctl.workload.models import Policy
from tests.outside.place import Place
from tests.outside.rows import more


@pytest.fixture
def desk(place: Place) -> Iterator[Workbench]:
    """Never run itself, as in `maintain --follow`."""
    settings = Settings(place.folder / "w.yaml", policy=Policy.AUTO)
    with open_workbench(settings) as opened:
        yield opened


@pytest.fixture
def aside(place: Place, tmp_path: Path) -> Callable[[], None]:
    """Puts a log of the same identity and length over the table's, with another version 1."""
    backup = tmp_path / "backup"
    shutil.copytree(place.table, backup)
    place.append(7)
    write_deltalake(str(backup), more(5), mode="append")

    def replace() -> None:
        place.replace_by(backup)

    return replace


def files(desk: Workbench) -> set[str]:
    return {file.uri for file in desk.tables.snapshot("t").files}


@pytest.mark.slow
@pytest.mark.parametrize("goes_on", [False, True])
def test_another_log_that_came_during_a_run_is_no_continuation(
    place: Place, desk: Workbench, aside: Callable[[], None], goes_on: bool
) -> None:
    """It pinned {v0, old v1, new v2}, of which no version of any table ever consisted."""
    watch = Watch()
    first = desk.next_run(watch.pinned())
    assert not maintain(first, None).failures
    aside()
    first.close()
    watch.saw(first)
    assert watch.is_due(desk)
    if not goes_on:
        second = desk.next_run(watch.pinned())
        assert files(second) == {f.uri for f in open_source("t", str(place.table)).snapshot().files}
        watch.saw(second)
    place.append(3)
    second = desk.next_run(watch.pinned())
    assert files(second) == {f.uri for f in open_source("t", str(place.table)).snapshot().files}
    outcome = maintain(second, None)
    second.close()
    assert not outcome.failures
    place.check_sound()


def watching(desk: Workbench) -> Watch:
    """A watch after a first run that pinned the table."""
    watch = Watch()
    first = desk.next_run(watch.pinned())
    first.tables.source("t")
    watch.saw(first)
    return watch


def test_a_table_that_a_run_did_not_pin_stays_as_it_was_seen(
    place: Place, desk: Workbench, aside: Callable[[], None]
) -> None:
    watch = watching(desk)
    aside()
    # A run that fails before it looks at any table.
    watch.saw(Workbench(desk.settings, desk.workload, desk.reporter))
    place.append(3)
    assert watch.is_due(desk)
    second = desk.next_run(watch.pinned())
    assert files(second) == {f.uri for f in open_source("t", str(place.table)).snapshot().files}


def test_a_table_that_is_gone_is_looked_for_until_it_is_there_again(
    place: Place, desk: Workbench, aside: Callable[[], None]
) -> None:
    watch = watching(desk)
    shutil.move(place.table, place.folder / "away")
    assert watch.is_due(desk)
    second = desk.next_run(watch.pinned())
    assert not second.tables.seen
    watch.saw(second)
    assert not watch.is_due(desk), "what could not be opened is told once"
    write_deltalake(str(place.table), more(3))
    assert watch.is_due(desk), "another table stands there, its log is shorter"
    aside()
    assert watch.is_due(desk)
    third = desk.next_run(watch.pinned())
    assert files(third) == {f.uri for f in open_source("t", str(place.table)).snapshot().files}
