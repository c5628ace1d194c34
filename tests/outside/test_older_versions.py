"""`--at`: the sketch stored for an older version, and only that of the table that stands there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.store.records import StoredQuery
from impctl.store.store import Store
from tests.outside.conftest import FEED
from tests.outside.place import KEYED, ROWS, Place, check_sound, make_place, more
from tests.support.kept_workload import in_catalog
from tests.support.run_cli import Capsys, Cli, MadeOnce, Ran


@pytest.fixture
def eager(made_once: MadeOnce, capsys: Capsys) -> Place:
    """`q` with a sketch for each of versions 0 to 5: a group comes in, grows, and goes."""

    def make(folder: Path) -> None:
        write_deltalake(str(folder / "t"), ROWS, configuration=FEED)
        place = make_place(folder, capsys, maintain="eager").captured()
        append(place, 5, 7)
        append(place, 7)
        place.delta.delete("g = 0")
        append(place, 1)
        place.cli.good("maintain")

    folder = made_once.folder("eager", make)
    return Place(folder, KEYED, Cli(capsys, folder / "w.yaml"))


def append(place: Place, *groups: int) -> None:
    for group in groups:
        place.append(group, x=9)


def at(place: Place, version: int, *arguments: str) -> Ran:
    return place.cli("rewrite", "--at", str(version), *arguments)


def kept(place: Place, version: int) -> list[StoredQuery]:
    """What the store has for a version, newest commit first."""
    with Store.open(place.store, create=False) as store:
        result = [store.load_kept("q", k.generation) for k in store.kept("q", {"t": version})]
    return [stored for stored in result if stored is not None]


def check_versions(place: Place, *versions: int) -> None:
    """Each is answered, by a sketch that is accurate for it."""
    for version in versions:
        assert at(place, version).code == 0
        assert check_sound(kept(place, version)[0], place.sql, place.table) == 0


def expect_none_there(ran: Ran, code: str, *offered: str) -> None:
    assert ran.refusal == (7, code)
    for words in offered:
        assert words in ran.error["hint"], ran.error


@pytest.mark.slow
def test_every_version_is_answered_by_its_own_sketch(eager: Place) -> None:
    newest = eager.delta.version()
    assert newest == 5
    seen = set()
    for version in range(newest + 1):
        (result,) = at(eager, version).results
        assert (result["versions"], result["action"]) == ({"t": version}, "kept")
        (stored,) = kept(eager, version)
        assert tuple(result["sketches"][0]["ranges"]) == stored.sketches[0].ranges.ids
        assert check_sound(stored, KEYED, eager.table) == 0
        assert result["files_total"] == len(DeltaTable(str(eager.table), version).file_uris())
        seen.add(stored.sketches[0].ranges.ids)
    assert len(seen) >= 4


def test_nothing_is_maintained_and_nothing_written(eager: Place) -> None:
    append(eager, 3)
    before = eager.stored()
    (result,) = at(eager, 2).results
    assert result["versions"] == {"t": 2}
    assert eager.stored() == before
    assert eager.cli.one("status")["pending_versions"] == {"t": 1}


@pytest.mark.slow
def test_without_one_the_versions_there_are_are_named(eager: Place) -> None:
    append(eager, 3)
    expect_none_there(at(eager, 6), "no_sketch_at", "versions 0 to 5")
    expect_none_there(at(eager, 99), "no_sketch_at", "versions 0 to 5")
    eager.cli.good("maintain")
    eager.delta.optimize.compact()
    append(eager, 3)
    eager.cli.good("maintain")
    expect_none_there(at(eager, 7), "no_sketch_at", "versions 0 to 6 and 8")


@pytest.mark.slow
def test_a_lazy_query_has_those_it_was_maintained_to(place: Place) -> None:
    append(place, 5, 7)
    place.cli.good("maintain")
    assert at(place, 0).code == at(place, 2).code == 0
    expect_none_there(at(place, 1), "no_sketch_at", "versions 0 and 2", "`maintain: eager`")


def test_never_captured(tmp_path: Path, capsys: Capsys) -> None:
    write_deltalake(str(tmp_path / "t"), ROWS, configuration=FEED)
    expect_none_there(at(make_place(tmp_path, capsys), 0), "not_captured")


# A history that is lost: the backup has the table's identity, and version numbers of its own


@pytest.fixture
def lost(made_once: MadeOnce, capsys: Capsys) -> Place:
    """Versions 1 to 3 of a history that is lost, and of a backup of version 0 that went on.

    The sketches of the lost one leave out groups that the other one has. With `check_marked` taken
    out of `service.resolve` they are used, as was tried: too small, so wrong answers.
    """

    def make(folder: Path) -> None:
        write_deltalake(str(folder / "t"), ROWS, configuration=FEED)
        place = make_place(folder, capsys).captured()
        backup = folder / "backup"
        shutil.copytree(place.table, backup)
        place.delta.delete("g = 0")
        for _ in range(3):
            place.cli.good("maintain")
            append(place, 3)
        shutil.move(place.table, folder / "other")
        shutil.move(backup, place.table)
        append(place, 5, 7, 5)
        ran = place.cli.good("maintain")
        assert [result["reason_code"] for result in ran.results] == ["table_recreated"]

    return make_place(made_once.folder("lost", make), capsys)


@pytest.mark.parametrize("version", [1, 2])
def test_a_sketch_of_a_lost_history_is_not_used(lost: Place, version: int) -> None:
    (gone,) = kept(lost, version)
    with pytest.raises(AssertionError):
        check_sound(gone, KEYED, lost.table)
    ran = at(lost, version)
    expect_none_there(ran, "table_recreated", "sketches for versions 0 and 3")
    assert f"Version {version} of table `t`" in ran.error["message"]


def test_versions_of_a_lost_history_are_not_offered(lost: Place) -> None:
    expect_none_there(at(lost, 4), "no_sketch_at", "versions 0 and 3")


@pytest.mark.slow
def test_what_both_histories_share_is_used(lost: Place) -> None:
    for version in (0, 3):
        (result,) = at(lost, version).results
        assert check_sound(kept(lost, version)[0], KEYED, lost.table) == 0
        assert result["versions"] == {"t": version}


@pytest.mark.slow
def test_the_lost_history_put_back(lost: Place) -> None:
    """Version 3 was reached twice; the newer sketch of it is of the other history now."""
    lost.replace_by(lost.folder / "other")
    newer, older = kept(lost, 3)
    assert newer.sketches != older.sketches
    for version in (0, 1, 2, 3):
        (result,) = at(lost, version).results
        stored = kept(lost, version)[-1]
        assert tuple(result["sketches"][0]["ranges"]) == stored.sketches[0].ranges.ids
        assert check_sound(stored, KEYED, lost.table) == 0


def test_a_lost_history_that_was_longer(place: Place) -> None:
    shutil.copytree(place.table, place.folder / "backup")
    append(place, 5, 7)
    place.cli.good("maintain")
    place.replace_by(place.folder / "backup")
    ran = at(place, 2)
    expect_none_there(ran, "table_recreated", "sketches for version 0")
    assert "is at version 0" in ran.error["message"]


def test_created_anew(place: Place) -> None:
    append(place, 5)
    place.cli.good("maintain")
    shutil.rmtree(place.table)
    write_deltalake(str(place.table), ROWS, configuration=FEED)
    append(place, 7)
    expect_none_there(at(place, 1), "table_recreated")
    expect_none_there(at(place, 0), "table_recreated")


# A log that was cleaned or altered


def test_a_version_that_the_log_no_longer_holds(eager: Place) -> None:
    eager.forget(keep=4)
    ran = at(eager, 2)
    expect_none_there(ran, "version_gone", "sketches for version 5")
    assert "Version 2 of table `t` is no longer in its log" in ran.error["message"]


@pytest.mark.slow
def test_without_its_entry_the_files_tell(eager: Place) -> None:
    """The last one of a run has a mark of its files, those between have none."""
    eager.forget(keep=6)
    assert at(eager, 5).code == 0


def test_without_its_entry_and_a_mark_of_its_files(eager: Place) -> None:
    DeltaTable(str(eager.table), version=2).create_checkpoint()
    for version in range(3):
        eager.entry(version).unlink()
    expect_none_there(at(eager, 2), "version_unproven")
    assert at(eager, 3).code == 0


@pytest.mark.parametrize("is_other", [False, True])
def test_without_its_entry_the_schema_has_to_be_the_same_too(place: Place, is_other: bool) -> None:
    """Names may move among the columns of the same files; a comment is enough to show it."""
    actions = [json.loads(line) for line in place.entry(0).read_text().splitlines()]
    (action,) = (result for result in actions if "metaData" in result)
    place.entry(1).write_text(json.dumps(action) + "\n")
    place.captured()
    if is_other:
        schema = json.loads(action["metaData"]["schemaString"])
        schema["fields"][0]["metadata"]["comment"] = "another history"
        action["metaData"]["schemaString"] = json.dumps(schema)
        place.entry(1).write_text(json.dumps(action) + "\n")
    place.forget(keep=2)
    ran = at(place, 1)
    if is_other:
        expect_none_there(ran, "table_recreated")
    else:
        assert ran.code == 0, ran.document


@pytest.mark.slow
def test_an_earlier_entry_that_lost_a_line(place: Place) -> None:
    """The entry of the version itself is whole, but it has other files now."""
    for group in (5, 7):
        append(place, group)
        place.cli.good("maintain")
    assert at(place, 2).code == 0
    lines = place.entry(1).read_text().splitlines()
    place.entry(1).write_text("\n".join(line for line in lines if '"add"' not in line) + "\n")
    expect_none_there(at(place, 2), "table_recreated")


@pytest.mark.slow
def test_restored_forward(eager: Place) -> None:
    """RESTORE makes a new version with older files; each has its own sketch."""
    eager.delta.restore(1)
    eager.cli.good("maintain")
    check_versions(eager, 1, 5, 6)
    assert kept(eager, 6)[0].sketches == kept(eager, 1)[0].sketches


# The query, as it was and as it is


def test_another_definition_has_no_older_versions(eager: Place) -> None:
    eager.cli.edit("[2, 4, 6]", "[1, 3, 5]")
    expect_none_there(at(eager, 2), "definition_changed")
    eager.cli.good("capture")
    expect_none_there(at(eager, 2), "no_sketch_at", "version 5")


def test_before_a_recapture_of_the_same(eager: Place) -> None:
    eager.cli.good("capture")
    for version in (0, 4, 5):
        assert at(eager, version).code == 0
    assert len(kept(eager, 5)) == 2


def test_stored_by_another_release(eager: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is stamped otherwise is neither used nor offered, though captured anew by this one."""
    monkeypatch.setattr("impctl.service.stored.stamped", lambda text: f"other/{text}")
    expect_none_there(at(eager, 2), "engine_changed")


@pytest.mark.slow
def test_an_assumption_that_broke_later(tmp_path: Path, capsys: Capsys) -> None:
    """Versions before it rest on it, as it held then; the newest sketch no longer does."""
    write_deltalake(str(tmp_path / "t"), ROWS, configuration=FEED)
    sql = "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 10"
    place = make_place(tmp_path, capsys, sql=sql, sketch=None, ranges={"x": [10, 20]})
    place.cli.good("capture")
    assert [fact.kind for fact in place.stored().assumptions] == ["nonnegative"]
    append(place, 5)
    place.cli.good("maintain")
    write_deltalake(str(place.table), more(3, x=-50), mode="append")
    place.cli("maintain")
    check_versions(place, 0, 1)


@pytest.mark.slow
def test_a_column_that_came_later(eager: Place) -> None:
    """The plan is read over the columns of then."""
    rows = more(5).append_column("extra", [["a"] * 3])
    write_deltalake(str(eager.table), rows, mode="append", schema_mode="merge")
    eager.cli.good("maintain")
    check_versions(eager, 0, 5, 6)


def test_versions_without_a_basis_are_not_offered(eager: Place) -> None:
    in_catalog(eager.store, "DELETE FROM sketch_basis")
    expect_none_there(at(eager, 2), "no_sketch_at", "no usable sketch is left")
    append(eager, 3)
    eager.cli.good("maintain")
    assert at(eager, 6).code == 0
    expect_none_there(at(eager, 2), "no_sketch_at", "version 6")


@pytest.mark.slow
def test_a_check_that_is_gone_carries_older_sketches(tmp_path: Path, capsys: Capsys) -> None:
    """CHECKs are those of the version: the sketch was stored while the table had one."""
    write_deltalake(str(tmp_path / "t"), ROWS.slice(0, 0), configuration=FEED)
    DeltaTable(str(tmp_path / "t")).alter.add_constraint({"c": "x >= 0"})
    write_deltalake(str(tmp_path / "t"), ROWS, mode="append")
    sql = "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 10"
    place = make_place(tmp_path, capsys, sql=sql, sketch="x", ranges={"x": [10, 20]})
    place.cli.good("capture")
    assert place.stored().assumptions == ()
    append(place, 5)
    place.cli.good("maintain")
    place.delta.alter.drop_constraint("c")
    write_deltalake(str(place.table), more(3, x=-50), mode="append")
    assert place.cli("maintain", "--policy", "incremental").code == 7
    check_versions(place, 2, 3)


def test_the_table_may_be_named(eager: Place) -> None:
    assert at(eager, 2).results == eager.cli.good("rewrite", "--at", "t=2").results


# Several tables


@pytest.fixture
def two(made_once: MadeOnce, capsys: Capsys) -> Place:
    """`t` joined with `u`, which moves on once more; sketches for each, in the order they came."""
    sql = "SELECT t.g, SUM(x) AS s FROM t JOIN u ON t.g = u.g GROUP BY t.g HAVING SUM(x) > 100"

    def make(folder: Path) -> None:
        write_deltalake(str(folder / "t"), ROWS, configuration=FEED)
        write_deltalake(str(folder / "u"), ROWS.select(["g"]), configuration=FEED)
        place = make_place(folder, capsys, sql=sql, maintain="eager")
        place.cli.edit('{"path": "t"}', '{"path": "t"}, "u": {"path": "u"}')
        place.cli.good("capture")
        place.append(5, x=9)
        write_deltalake(str(folder / "u"), more(7).select(["g"]), mode="append")
        place.cli.good("maintain")

    folder = made_once.folder("two", make)
    return Place(folder, sql, Cli(capsys, folder / "w.yaml"))


def test_each_table_has_its_version(two: Place) -> None:
    for t, u in ((0, 0), (1, 0), (1, 1)):
        result = two.cli.one("rewrite", "--at", f"t={t}", "--at", f"u={u}")
        assert (result["versions"], result["action"]) == ({"t": t, "u": u}, "kept")


def test_versions_that_were_never_together(two: Place) -> None:
    ran = two.cli("rewrite", "--at", "t=0", "--at", "u=1")
    expect_none_there(ran, "no_sketch_at", "t=1, u=1; t=1, u=0; t=0, u=0")
    assert "version 0 of table `t` and version 1 of table `u`" in ran.error["message"]


@pytest.mark.parametrize(
    "arguments", [["--at", "1"], ["--at", "t=1"], ["--at", "t=1", "--at", "1"]]
)
def test_every_table_is_named(two: Place, arguments: list[str]) -> None:
    ran = two.cli("rewrite", *arguments)
    assert ran.refusal == (2, "at_syntax")
    assert "--at t=VERSION --at u=VERSION" in ran.error["hint"]


# What is said wrongly


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        *((["--at", word], "at_syntax") for word in ("x", "-1", "t=", "")),
        (["--at", "1", "--at", "2"], "at_syntax"),
        (["--at", "t=1", "--at", "t=1"], "at_syntax"),
        (["--at", "s=1"], "at_table_unknown"),
        (["--at", "1", "--sql", "SELECT g FROM t"], "at_and_constants"),
        (["--at", "1", "--param", "a=1"], "at_and_constants"),
    ],
)
def test_wrong_wishes(place: Place, arguments: list[str], code: str) -> None:
    ran = place.cli("rewrite", *arguments)
    assert ran.refusal == (2, code)
    assert ran.error["hint"]
