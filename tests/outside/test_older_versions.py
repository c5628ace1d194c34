"""`--at`: the sketch stored for an older version, and only if it is of the current table."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.store.records import StoredQuery
from impctl.store.store import Store
from tests.outside.conftest import FEED
from tests.outside.workspace import KEYED, ROWS, Workspace, check_sound, make_workspace, more
from tests.support.kept_workload import in_catalog
from tests.support.run_cli import Capsys, Cli, MadeOnce, Ran


@pytest.fixture
def eager(made_once: MadeOnce, capsys: Capsys) -> Workspace:
    """`q` with sketches for versions 0 to 5, in which groups are added and deleted."""

    def make(folder: Path) -> None:
        write_deltalake(str(folder / "t"), ROWS, configuration=FEED)
        workspace = make_workspace(folder, capsys, maintain="eager").capture()
        append(workspace, 5, 7)
        append(workspace, 7)
        workspace.delta.delete("g = 0")
        append(workspace, 1)
        workspace.cli.good("maintain")

    folder = made_once.folder("eager", make)
    return Workspace(folder, KEYED, Cli(capsys, folder / "w.yaml"))


def append(workspace: Workspace, *groups: int) -> None:
    for group in groups:
        workspace.append(group, x=9)


def rewrite_at(workspace: Workspace, version: int, *arguments: str) -> Ran:
    return workspace.cli("rewrite", "--at", str(version), *arguments)


def stored_at(workspace: Workspace, version: int) -> list[StoredQuery]:
    """Stored sketches of a version, newest first."""
    with Store.open(workspace.store, create=False) as store:
        result = [store.load_kept("q", k.generation) for k in store.kept("q", {"t": version})]
    return [stored for stored in result if stored is not None]


def check_accurate(workspace: Workspace, *versions: int) -> None:
    """Each version has an accurate sketch that is used."""
    for version in versions:
        assert rewrite_at(workspace, version).code == 0
        assert check_sound(stored_at(workspace, version)[0], workspace.sql, workspace.table) == 0


def expect_missing(ran: Ran, code: str, *expected: str) -> None:
    assert ran.refusal == (7, code)
    for text in expected:
        assert text in ran.error["hint"], ran.error


@pytest.mark.slow
def test_every_version_uses_its_own_sketch(eager: Workspace) -> None:
    newest = eager.delta.version()
    assert newest == 5
    distinct = set()
    for version in range(newest + 1):
        (result,) = rewrite_at(eager, version).results
        assert (result["versions"], result["action"]) == ({"t": version}, "kept")
        (stored,) = stored_at(eager, version)
        assert tuple(result["sketches"][0]["ranges"]) == stored.sketches[0].ranges.ids
        assert check_sound(stored, KEYED, eager.table) == 0
        assert result["files_total"] == len(DeltaTable(str(eager.table), version).file_uris())
        distinct.add(stored.sketches[0].ranges.ids)
    assert len(distinct) >= 4


def test_older_versions_are_not_maintained(eager: Workspace) -> None:
    append(eager, 3)
    before = eager.stored()
    (result,) = rewrite_at(eager, 2).results
    assert result["versions"] == {"t": 2}
    assert eager.stored() == before
    assert eager.cli.one("status")["pending_versions"] == {"t": 1}


@pytest.mark.slow
def test_the_error_lists_versions_with_a_sketch(eager: Workspace) -> None:
    append(eager, 3)
    expect_missing(rewrite_at(eager, 6), "no_sketch_at", "versions 0 to 5")
    expect_missing(rewrite_at(eager, 99), "no_sketch_at", "versions 0 to 5")
    eager.cli.good("maintain")
    eager.delta.optimize.compact()
    append(eager, 3)
    eager.cli.good("maintain")
    expect_missing(rewrite_at(eager, 7), "no_sketch_at", "versions 0 to 6 and 8")


@pytest.mark.slow
def test_a_lazy_query_has_only_versions_of_runs(workspace: Workspace) -> None:
    append(workspace, 5, 7)
    workspace.cli.good("maintain")
    assert rewrite_at(workspace, 0).code == rewrite_at(workspace, 2).code == 0
    expect_missing(
        rewrite_at(workspace, 1), "no_sketch_at", "versions 0 and 2", "`maintain: eager`"
    )


def test_a_query_that_was_never_captured(tmp_path: Path, capsys: Capsys) -> None:
    write_deltalake(str(tmp_path / "t"), ROWS, configuration=FEED)
    expect_missing(rewrite_at(make_workspace(tmp_path, capsys), 0), "not_captured")


# A lost history: the table was replaced by a backup with the same identity and other commits


@pytest.fixture
def replaced(made_once: MadeOnce, capsys: Capsys) -> Workspace:
    """Versions 1 to 3 of a lost history, and of a backup of version 0 with other commits.

    The sketches of the lost history lack groups of the other one. Without `check_marked` in
    `service.resolve` they would be used and give wrong results.
    """

    def make(folder: Path) -> None:
        write_deltalake(str(folder / "t"), ROWS, configuration=FEED)
        workspace = make_workspace(folder, capsys).capture()
        backup = folder / "backup"
        shutil.copytree(workspace.table, backup)
        workspace.delta.delete("g = 0")
        for _ in range(3):
            workspace.cli.good("maintain")
            append(workspace, 3)
        shutil.move(workspace.table, folder / "other")
        shutil.move(backup, workspace.table)
        append(workspace, 5, 7, 5)
        ran = workspace.cli.good("maintain")
        assert [result["reason_code"] for result in ran.results] == ["table_recreated"]

    return make_workspace(made_once.folder("lost", make), capsys)


@pytest.mark.parametrize("version", [1, 2])
def test_a_sketch_of_a_lost_history_is_not_used(replaced: Workspace, version: int) -> None:
    (lost,) = stored_at(replaced, version)
    with pytest.raises(AssertionError):
        check_sound(lost, KEYED, replaced.table)
    ran = rewrite_at(replaced, version)
    expect_missing(ran, "table_recreated", "sketches for versions 0 and 3")
    assert f"Version {version} of table `t`" in ran.error["message"]


def test_versions_of_a_lost_history_are_not_listed(replaced: Workspace) -> None:
    expect_missing(rewrite_at(replaced, 4), "no_sketch_at", "versions 0 and 3")


@pytest.mark.slow
def test_sketches_common_to_both_histories_are_used(replaced: Workspace) -> None:
    for version in (0, 3):
        (result,) = rewrite_at(replaced, version).results
        assert check_sound(stored_at(replaced, version)[0], KEYED, replaced.table) == 0
        assert result["versions"] == {"t": version}


@pytest.mark.slow
def test_the_lost_history_is_restored(replaced: Workspace) -> None:
    """Version 3 has a sketch of each history; the newer one is now that of the other history."""
    replaced.replace_by(replaced.folder / "other")
    newer, older = stored_at(replaced, 3)
    assert newer.sketches != older.sketches
    for version in (0, 1, 2, 3):
        (result,) = rewrite_at(replaced, version).results
        stored = stored_at(replaced, version)[-1]
        assert tuple(result["sketches"][0]["ranges"]) == stored.sketches[0].ranges.ids
        assert check_sound(stored, KEYED, replaced.table) == 0


def test_a_version_beyond_the_current_history(workspace: Workspace) -> None:
    shutil.copytree(workspace.table, workspace.folder / "backup")
    append(workspace, 5, 7)
    workspace.cli.good("maintain")
    workspace.replace_by(workspace.folder / "backup")
    ran = rewrite_at(workspace, 2)
    expect_missing(ran, "table_recreated", "sketches for version 0")
    assert "is at version 0" in ran.error["message"]


def test_a_recreated_table_has_no_older_versions(workspace: Workspace) -> None:
    append(workspace, 5)
    workspace.cli.good("maintain")
    shutil.rmtree(workspace.table)
    write_deltalake(str(workspace.table), ROWS, configuration=FEED)
    append(workspace, 7)
    expect_missing(rewrite_at(workspace, 1), "table_recreated")
    expect_missing(rewrite_at(workspace, 0), "table_recreated")


# A log that was cleaned or altered


def test_a_version_that_is_no_longer_in_the_log(eager: Workspace) -> None:
    eager.clean_log(keep=4)
    ran = rewrite_at(eager, 2)
    expect_missing(ran, "version_gone", "sketches for version 5")
    assert "Version 2 of table `t` is no longer in its log" in ran.error["message"]


@pytest.mark.slow
def test_without_a_log_entry_files_are_compared(eager: Workspace) -> None:
    """Only the last version of a run has a mark of its files."""
    eager.clean_log(keep=6)
    assert rewrite_at(eager, 5).code == 0


def test_a_version_without_entry_and_mark_is_unproven(eager: Workspace) -> None:
    DeltaTable(str(eager.table), version=2).create_checkpoint()
    for version in range(3):
        eager.entry(version).unlink()
    expect_missing(rewrite_at(eager, 2), "version_unproven")
    assert rewrite_at(eager, 3).code == 0


@pytest.mark.parametrize("is_other", [False, True])
def test_without_a_log_entry_schemas_are_compared(workspace: Workspace, is_other: bool) -> None:
    """Columns of the same files may swap names. Here only a comment differs."""
    actions = [json.loads(line) for line in workspace.entry(0).read_text().splitlines()]
    (action,) = (result for result in actions if "metaData" in result)
    workspace.entry(1).write_text(json.dumps(action) + "\n")
    workspace.capture()
    if is_other:
        schema = json.loads(action["metaData"]["schemaString"])
        schema["fields"][0]["metadata"]["comment"] = "another history"
        action["metaData"]["schemaString"] = json.dumps(schema)
        workspace.entry(1).write_text(json.dumps(action) + "\n")
    workspace.clean_log(keep=2)
    ran = rewrite_at(workspace, 1)
    if is_other:
        expect_missing(ran, "table_recreated")
    else:
        assert ran.code == 0, ran.document


@pytest.mark.slow
def test_an_earlier_entry_without_a_line_is_detected(workspace: Workspace) -> None:
    """The version's own entry is intact, but the version has other files now."""
    for group in (5, 7):
        append(workspace, group)
        workspace.cli.good("maintain")
    assert rewrite_at(workspace, 2).code == 0
    lines = workspace.entry(1).read_text().splitlines()
    workspace.entry(1).write_text("\n".join(line for line in lines if '"add"' not in line) + "\n")
    expect_missing(rewrite_at(workspace, 2), "table_recreated")


@pytest.mark.slow
def test_versions_around_a_restore(eager: Workspace) -> None:
    """RESTORE creates a new version with older files, which has its own sketch."""
    eager.delta.restore(1)
    eager.cli.good("maintain")
    check_accurate(eager, 1, 5, 6)
    assert stored_at(eager, 6)[0].sketches == stored_at(eager, 1)[0].sketches


# Changed queries and releases


def test_a_changed_definition_has_no_older_versions(eager: Workspace) -> None:
    eager.cli.edit("[2, 4, 6]", "[1, 3, 5]")
    expect_missing(rewrite_at(eager, 2), "definition_changed")
    eager.cli.good("capture")
    expect_missing(rewrite_at(eager, 2), "no_sketch_at", "version 5")


def test_versions_before_a_recapture_are_used(eager: Workspace) -> None:
    eager.cli.good("capture")
    for version in (0, 4, 5):
        assert rewrite_at(eager, version).code == 0
    assert len(stored_at(eager, 5)) == 2


def test_sketches_of_another_release_are_not_used(
    eager: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sketches with another stamp are neither used nor listed."""
    monkeypatch.setattr("impctl.service.stored.stamped", lambda text: f"other/{text}")
    expect_missing(rewrite_at(eager, 2), "engine_changed")


@pytest.mark.slow
def test_versions_before_a_broken_assumption_are_used(tmp_path: Path, capsys: Capsys) -> None:
    """Sketches of earlier versions assume it, and it was true then."""
    write_deltalake(str(tmp_path / "t"), ROWS, configuration=FEED)
    sql = "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 10"
    workspace = make_workspace(tmp_path, capsys, sql=sql, sketch=None, ranges={"x": [10, 20]})
    workspace.cli.good("capture")
    assert [fact.kind for fact in workspace.stored().assumptions] == ["nonnegative"]
    append(workspace, 5)
    workspace.cli.good("maintain")
    write_deltalake(str(workspace.table), more(3, x=-50), mode="append")
    workspace.cli("maintain")
    check_accurate(workspace, 0, 1)


@pytest.mark.slow
def test_versions_before_an_added_column_are_used(eager: Workspace) -> None:
    """The plan uses the columns of the older version."""
    rows = more(5).append_column("extra", [["a"] * 3])
    write_deltalake(str(eager.table), rows, mode="append", schema_mode="merge")
    eager.cli.good("maintain")
    check_accurate(eager, 0, 5, 6)


def test_versions_without_a_basis_are_not_listed(eager: Workspace) -> None:
    in_catalog(eager.store, "DELETE FROM sketch_basis")
    expect_missing(rewrite_at(eager, 2), "no_sketch_at", "no usable sketch is left")
    append(eager, 3)
    eager.cli.good("maintain")
    assert rewrite_at(eager, 6).code == 0
    expect_missing(rewrite_at(eager, 2), "no_sketch_at", "version 6")


@pytest.mark.slow
def test_versions_before_a_dropped_check_are_used(tmp_path: Path, capsys: Capsys) -> None:
    """The version's own CHECK constraints count: the table had one when the sketch was stored."""
    write_deltalake(str(tmp_path / "t"), ROWS.slice(0, 0), configuration=FEED)
    DeltaTable(str(tmp_path / "t")).alter.add_constraint({"c": "x >= 0"})
    write_deltalake(str(tmp_path / "t"), ROWS, mode="append")
    sql = "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 10"
    workspace = make_workspace(tmp_path, capsys, sql=sql, sketch="x", ranges={"x": [10, 20]})
    workspace.cli.good("capture")
    assert workspace.stored().assumptions == ()
    append(workspace, 5)
    workspace.cli.good("maintain")
    workspace.delta.alter.drop_constraint("c")
    write_deltalake(str(workspace.table), more(3, x=-50), mode="append")
    assert workspace.cli("maintain", "--policy", "incremental").code == 7
    check_accurate(workspace, 2, 3)


def test_the_table_name_is_optional(eager: Workspace) -> None:
    assert rewrite_at(eager, 2).results == eager.cli.good("rewrite", "--at", "t=2").results


# Several tables


@pytest.fixture
def two_tables(made_once: MadeOnce, capsys: Capsys) -> Workspace:
    """`t` joined with `u`; both change, with a sketch for each version in order."""
    sql = "SELECT t.g, SUM(x) AS s FROM t JOIN u ON t.g = u.g GROUP BY t.g HAVING SUM(x) > 100"

    def make(folder: Path) -> None:
        write_deltalake(str(folder / "t"), ROWS, configuration=FEED)
        write_deltalake(str(folder / "u"), ROWS.select(["g"]), configuration=FEED)
        workspace = make_workspace(folder, capsys, sql=sql, maintain="eager")
        workspace.cli.edit('{"path": "t"}', '{"path": "t"}, "u": {"path": "u"}')
        workspace.cli.good("capture")
        workspace.append(5, x=9)
        write_deltalake(str(folder / "u"), more(7).select(["g"]), mode="append")
        workspace.cli.good("maintain")

    folder = made_once.folder("two", make)
    return Workspace(folder, sql, Cli(capsys, folder / "w.yaml"))


def test_versions_of_two_tables(two_tables: Workspace) -> None:
    for t, u in ((0, 0), (1, 0), (1, 1)):
        result = two_tables.cli.one("rewrite", "--at", f"t={t}", "--at", f"u={u}")
        assert (result["versions"], result["action"]) == ({"t": t, "u": u}, "kept")


def test_versions_that_were_never_maintained_together(two_tables: Workspace) -> None:
    ran = two_tables.cli("rewrite", "--at", "t=0", "--at", "u=1")
    expect_missing(ran, "no_sketch_at", "t=1, u=1; t=1, u=0; t=0, u=0")
    assert "version 0 of table `t` and version 1 of table `u`" in ran.error["message"]


@pytest.mark.parametrize(
    "arguments", [["--at", "1"], ["--at", "t=1"], ["--at", "t=1", "--at", "1"]]
)
def test_every_table_must_be_named(two_tables: Workspace, arguments: list[str]) -> None:
    ran = two_tables.cli("rewrite", *arguments)
    assert ran.refusal == (2, "at_syntax")
    assert "--at t=VERSION --at u=VERSION" in ran.error["hint"]


# Invalid arguments


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        *((["--at", version], "at_syntax") for version in ("x", "-1", "t=", "")),
        (["--at", "1", "--at", "2"], "at_syntax"),
        (["--at", "t=1", "--at", "t=1"], "at_syntax"),
        (["--at", "s=1"], "at_table_unknown"),
        (["--at", "1", "--sql", "SELECT g FROM t"], "at_and_constants"),
        (["--at", "1", "--param", "a=1"], "at_and_constants"),
    ],
)
def test_invalid_versions(workspace: Workspace, arguments: list[str], code: str) -> None:
    ran = workspace.cli("rewrite", *arguments)
    assert ran.refusal == (2, code)
    assert ran.error["hint"]
