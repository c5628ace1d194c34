"""Columns, layouts and constraints changed by others, under each policy."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from tests.outside.conftest import FEED
from tests.outside.workspace import (
    GROUPS,
    POLICIES,
    ROWS,
    SHOWN,
    Workspace,
    expect_exact,
    expect_recapture,
    expect_refused,
    make_workspace,
    more,
)
from tests.support.run_cli import Capsys, MadeOnce
from tests.tables import handmade
from tests.tables.handmade import fixture_table


def overwrite(workspace: Workspace, rows: pa.Table) -> None:
    write_deltalake(str(workspace.table), rows, mode="overwrite", schema_mode="overwrite")


def retyped(name: str, kind: pa.DataType, rows: pa.Table = ROWS) -> pa.Table:
    index = rows.column_names.index(name)
    return rows.set_column(index, name, rows[name].cast(kind))


def test_an_unused_column_is_added(workspace: Workspace) -> None:
    wider = more().append_column("extra", pa.array([1, 2, 3]))
    write_deltalake(str(workspace.table), wider, mode="append", schema_mode="merge")
    expect_exact(workspace, changes=3)


def test_a_column_is_added_without_a_row(workspace: Workspace) -> None:
    workspace.delta.alter.add_columns([Field("extra", PrimitiveType("long"))])
    expect_exact(workspace, changes=0)


@pytest.mark.slow
def test_a_used_column_is_dropped_and_restored(workspace: Workspace) -> None:
    """Without the column there is an error; afterwards files are compared."""
    overwrite(workspace, ROWS.drop_columns(["x"]))
    expect_refused(workspace, 3, "column_unknown", "`x`")
    overwrite(workspace, ROWS)
    workspace.append()
    expect_exact(workspace)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["g", "x"])
def test_a_used_column_is_renamed(workspace: Workspace, name: str) -> None:
    names = [f"{name}2" if column == name else column for column in ROWS.column_names]
    overwrite(workspace, ROWS.rename_columns(names))
    expect_refused(workspace, 3, "column_unknown", f"`{name}`")


@pytest.mark.slow
@pytest.mark.parametrize("change", ["renamed", "dropped", "retyped", "widened"])
def test_an_unused_column_is_changed(workspace: Workspace, change: str) -> None:
    rows = {
        "renamed": ROWS.rename_columns(["g", "x", "label"]),
        "dropped": ROWS.drop_columns(["note"]),
        "retyped": ROWS.set_column(2, "note", pa.array(range(11))),
        "widened": retyped("note", pa.large_string()),
    }[change]
    overwrite(workspace, pa.concat_tables([rows, rows.slice(7, 2)]))
    expect_exact(workspace)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["g", "x"])
def test_a_used_column_is_widened(workspace: Workspace, name: str) -> None:
    overwrite(workspace, retyped(name, pa.int64()))
    expect_recapture(workspace, "schema_changed", f"`{name}`", "`int`", "`bigint`")


def test_a_used_column_is_retyped(workspace: Workspace) -> None:
    overwrite(workspace, retyped("x", pa.float64()))
    expect_recapture(workspace, "schema_changed", "`x`", "`int`", "`double`")


@pytest.mark.slow
def test_an_output_column_is_retyped(workspace: Workspace) -> None:
    """The sketch does not depend on it."""
    output_only = make_workspace(workspace.folder, workspace.cli.capsys, sql=SHOWN).capture()
    overwrite(workspace, retyped("x", pa.float64()))
    expect_exact(output_only)


def test_a_column_name_changes_case(workspace: Workspace) -> None:
    """`X` and `x` are the same name in SQL, but not in files."""
    overwrite(workspace, ROWS.rename_columns(["g", "X", "note"]))
    expect_recapture(workspace, "schema_changed", "was replaced")


def test_columns_are_reordered(workspace: Workspace) -> None:
    overwrite(workspace, ROWS.select(["note", "x", "g"]))
    expect_exact(workspace)


@pytest.mark.slow
def test_a_used_column_becomes_nullable(workspace: Workspace) -> None:
    workspace.delta.alter.add_constraint({"known": "x IS NOT NULL"})
    workspace.capture()
    workspace.delta.alter.drop_constraint("known")
    workspace.append(x=None)
    expect_exact(workspace, changes=3)


FIXTURES = [
    *(("cdf-table-with-cdc-and-dvs", "id", [2, 4, 8], version) for version in (0, 7, 24)),
    ("table-with-dv-small", "value", [1, 5, 9], 0),
    ("table_with_partitioning_mapping", "newid", [1, 2, 3], 3),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "attribute", "ranges", "captured_at"), FIXTURES)
def test_tables_that_spark_wrote(
    name: str, attribute: str, ranges: list[int], captured_at: int, tmp_path: Path, capsys: Capsys
) -> None:
    shutil.copytree(fixture_table(name), tmp_path / "t")
    later = tmp_path / "later"
    later.mkdir()
    for entry in (tmp_path / "t" / "_delta_log").iterdir():
        # Commits, checksums and checkpoints of later versions, and the pointer to the last one.
        if entry.name.startswith("_") or int(entry.name[:20]) > captured_at:
            shutil.move(entry, later)
    sql = f"SELECT {attribute}, COUNT(*) AS n FROM t GROUP BY {attribute} HAVING COUNT(*) > 0"
    boundaries = {attribute: ranges}
    workspace = make_workspace(
        tmp_path, capsys, sql=sql, sketch=attribute, ranges=boundaries
    ).capture()
    assert workspace.stored().versions == {"t": captured_at}
    for entry in later.iterdir():
        shutil.move(entry, tmp_path / "t" / "_delta_log")
    assert workspace.delta.version() > captured_at
    expect_exact(workspace)


ODD = ["001", "1", "1e3", "A/A", "x y", "é%", "x=y", "", None]


@pytest.mark.slow
@pytest.mark.parametrize("configuration", [FEED, None], ids=["feed", "files"])
def test_partition_columns(
    tmp_path: Path, capsys: Capsys, configuration: dict[str, str] | None
) -> None:
    """Values that look like numbers, need escapes in paths, or are NULL (as the empty one is)."""
    path = str(tmp_path / "t")
    rows = pa.table({"k": pa.array(ODD), "v": pa.array(range(len(ODD)))})
    write_deltalake(path, rows, partition_by=["k"], configuration=configuration)
    sql = "SELECT k, COUNT(*) AS n FROM t GROUP BY k HAVING COUNT(*) > 1"
    ranges = {"k": ["1", "2", "x", "y"]}
    workspace = make_workspace(tmp_path, capsys, sql=sql, sketch="k", ranges=ranges).capture()
    for step in (
        lambda: write_deltalake(path, rows.slice(0, 4), mode="append"),
        lambda: write_deltalake(path, rows.slice(4), mode="append"),
        lambda: DeltaTable(path).delete("k = 'A/A' AND v = 3"),
        lambda: DeltaTable(path).delete("k IS NULL"),
        lambda: DeltaTable(path).update(updates={"k": "'001'"}, predicate="k = '1'"),
    ):
        step()
        expect_exact(workspace)


@pytest.mark.slow
@pytest.mark.parametrize("configuration", [FEED, None], ids=["feed", "files"])
def test_one_partition_is_overwritten(
    tmp_path: Path, capsys: Capsys, configuration: dict[str, str] | None
) -> None:
    path = str(tmp_path / "t")
    write_deltalake(path, ROWS, partition_by=["g"], configuration=configuration)
    workspace = make_workspace(tmp_path, capsys).capture()
    new = ROWS.filter(pa.compute.equal(ROWS["g"], 5))
    new = pa.concat_tables([new, new])
    write_deltalake(path, new, mode="overwrite", predicate="g = 5")
    assert DeltaTable(path).to_pyarrow_table().num_rows == ROWS.num_rows + 2
    expect_exact(workspace)
    assert workspace.stored().sketches[0].ranges.ids == (0, 1, 2)


MAPPED = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "9"}
_TYPES = {"g": "integer", "x": "integer", "note": "string", "label": "string"}


def mapped_field(name: str, stored: str, number: int) -> dict[str, Any]:
    metadata = {"delta.columnMapping.physicalName": stored, "delta.columnMapping.id": number}
    return handmade.field(name, _TYPES.get(name, "integer"), **metadata)


def mapped_fields(**physical: str) -> list[dict[str, Any]]:
    """Columns by logical name, each with its name in the files."""
    return [mapped_field(name, stored, int(stored[-1])) for name, stored in physical.items()]


def commit(table: Path, version: int, mode: str = "name", **physical: str) -> None:
    """New columns for the table."""
    settings = {**MAPPED, "delta.columnMapping.mode": mode}
    action = handmade.metadata(mapped_fields(**physical), configuration=settings)
    handmade.commit(table, version, action)


@pytest.fixture
def mapped_workspace(tmp_path: Path, capsys: Capsys) -> Workspace:
    table = tmp_path / "t"
    names = {"g": "col-1", "x": "col-2", "note": "col-3"}
    first = handmade.metadata(mapped_fields(**names), configuration=MAPPED)
    handmade.commit(table, 0, handmade.protocol("columnMapping"), first)
    add_rows(table, 1, ROWS.rename_columns(list(names.values())))
    return make_workspace(tmp_path, capsys).capture()


def add_rows(table: Path, version: int, rows: pa.Table) -> None:
    name = handmade.write_file(table, f"part-{version}.parquet", rows)
    size = (table / name).stat().st_size
    handmade.commit(table, version, handmade.add(name, rows.num_rows, size))


@pytest.mark.slow
def test_rows_of_a_mapped_table(mapped_workspace: Workspace) -> None:
    add_rows(
        mapped_workspace.table, 2, ROWS.slice(6, 3).rename_columns(["col-1", "col-2", "col-3"])
    )
    expect_exact(mapped_workspace)


@pytest.mark.slow
@pytest.mark.parametrize(
    "columns",
    [
        {"g": "col-1", "x": "col-2", "label": "col-3"},
        {"g": "col-1", "x": "col-2"},
        {"g": "col-1", "x": "col-2", "note": "col-4"},
        {"note": "col-3", "extra": "col-5", "g": "col-1", "x": "col-2"},
    ],
    ids=["renamed", "dropped", "replaced", "moved and added"],
)
def test_an_unused_mapped_column(mapped_workspace: Workspace, columns: dict[str, str]) -> None:
    commit(mapped_workspace.table, 2, **columns)
    rows = ROWS.slice(7, 2).select(["g", "x"]).rename_columns(["col-1", "col-2"])
    add_rows(mapped_workspace.table, 3, rows)
    expect_exact(mapped_workspace)


@pytest.mark.slow
@pytest.mark.parametrize(
    "columns",
    [{"g": "col-1", "y": "col-2", "note": "col-3"}, {"g": "col-1", "note": "col-3"}],
    ids=["renamed", "dropped"],
)
def test_a_used_mapped_column(mapped_workspace: Workspace, columns: dict[str, str]) -> None:
    commit(mapped_workspace.table, 2, **columns)
    expect_refused(mapped_workspace, 3, "column_unknown", "`x`")


@pytest.mark.slow
def test_a_used_mapped_column_is_replaced(mapped_workspace: Workspace) -> None:
    """Dropped and added again under the same name: old rows have no value in it."""
    commit(mapped_workspace.table, 2, g="col-1", x="col-4", note="col-3")
    expect_recapture(mapped_workspace, "schema_changed", "`x`", "was replaced")
    assert mapped_workspace.stored().sketches[0].ranges.ids == ()


@pytest.mark.slow
def test_two_mapped_columns_swap_names(mapped_workspace: Workspace) -> None:
    commit(mapped_workspace.table, 2, g="col-2", x="col-1", note="col-3")
    expect_recapture(mapped_workspace, "schema_changed", "was replaced")


@pytest.mark.slow
def test_used_mapped_columns_are_reordered(mapped_workspace: Workspace) -> None:
    """The state numbers columns in the table's order."""
    commit(mapped_workspace.table, 2, x="col-2", g="col-1", note="col-3")
    expect_recapture(mapped_workspace, "schema_changed", "`t`", "order of columns")


@pytest.mark.slow
def test_mapping_by_id_is_refused(mapped_workspace: Workspace) -> None:
    commit(mapped_workspace.table, 2, mode="id", g="col-1", x="col-2", note="col-3")
    expect_refused(mapped_workspace, 3, "column_mapping_mode", "`t`", "`id`")


@pytest.mark.slow
def test_name_mapping_is_turned_on(workspace: Workspace) -> None:
    """Names in older files are the physical names."""
    table_id = str(workspace.delta.metadata().id)
    fields = [mapped_field(name, name, number) for number, name in enumerate(("g", "x", "note"), 1)]
    metadata = handmade.metadata(fields, configuration={**MAPPED, **FEED}, table_id=table_id)
    protocol = handmade.protocol("columnMapping", writer=["changeDataFeed"])
    handmade.commit(workspace.table, 1, protocol, metadata)
    add_rows(workspace.table, 2, ROWS.slice(7, 2))
    expect_exact(workspace)


@pytest.mark.slow
def test_an_unknown_reader_feature_is_refused(workspace: Workspace) -> None:
    handmade.commit(workspace.table, 1, handmade.protocol("timeTravelling"))
    expect_refused(workspace, 3, "reader_feature_unknown", "`timeTravelling`")


SUM_QUERY = "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 20"
"""A sketch on `x` is safe only while no `x` is negative."""
X_RANGES = {"x": [10, 20]}


def sum_workspace(folder: Path, capsys: Capsys) -> Workspace:
    return make_workspace(folder, capsys, sql=SUM_QUERY, sketch="x", ranges=X_RANGES)


@pytest.fixture
def sum_on_x(made_once: MadeOnce, capsys: Capsys) -> Workspace:
    """A workload that requires a sketch on `x`."""

    def make(folder: Path) -> None:
        write_deltalake(str(folder / "t"), ROWS, configuration=FEED)
        workspace = sum_workspace(folder, capsys).capture()
        assert [a.kind for a in workspace.stored().assumptions] == ["nonnegative"]

    return sum_workspace(made_once.folder("summed", make), capsys)


@pytest.mark.slow
@pytest.mark.parametrize("x", [0, 40, None])
def test_rows_that_satisfy_the_assumption(sum_on_x: Workspace, x: int | None) -> None:
    sum_on_x.append(0, 1, x)
    expect_exact(sum_on_x)


@pytest.mark.slow
def test_a_negative_value_breaks_a_required_attribute(sum_on_x: Workspace) -> None:
    """Nothing is recaptured, because the workload requires a sketch on `x`."""
    sum_on_x.append(0, 1, -5)
    refused = sum_on_x.maintain("incremental")
    assert refused.refusal == (7, "assumption_broken")
    assert "`t.x` >= 0" in refused.error["message"]
    assert sum_on_x.maintain("strict").refusal == (4, "policy_refused")
    for policy in ("auto", "full"):
        ran = sum_on_x.maintain(policy)
        assert ran.refusal == (3, "sketch_unsafe")
        assert "`x`" in ran.error["message"]
    # The stored sketch is not used, neither unchanged nor maintained.
    for policy, code in (("auto", 3), ("incremental", 7)):
        assert sum_on_x.cli("rewrite", "--policy", policy, "--require-sketch").code == code
        result = sum_on_x.cli.one("rewrite", "--policy", policy)
        assert (result["action"], result["sketches"]) == ("no_sketch", [])


def test_a_deleted_negative_value_is_ignored(sum_on_x: Workspace) -> None:
    """Only the rows before and after the change count."""
    sum_on_x.append(0, 1, -5)
    sum_on_x.delta.delete("x < 0")
    expect_exact(sum_on_x)


def test_the_chosen_attribute_needs_no_assumption(workspace: Workspace) -> None:
    ranges = {**X_RANGES, **GROUPS}
    free = make_workspace(
        workspace.folder, workspace.cli.capsys, sql=SUM_QUERY, sketch=None, ranges=ranges
    )
    free.capture()
    assert free.stored().sketches[0].attribute == "g"
    free.append(0, 1, -5)
    expect_exact(free)


@pytest.fixture
def dropped_check(made_once: MadeOnce, capsys: Capsys) -> Workspace:
    """A CHECK that excluded negative values at the capture is dropped afterwards."""

    def make(folder: Path) -> None:
        write_deltalake(str(folder / "t"), ROWS, configuration=FEED)
        DeltaTable(str(folder / "t")).alter.add_constraint({"positive": "x >= 0"})
        workspace = sum_workspace(folder, capsys).capture()
        assert workspace.stored().assumptions == ()
        workspace.delta.alter.drop_constraint("positive")

    return sum_workspace(made_once.folder("promised", make), capsys)


def test_a_constraint_is_dropped(dropped_check: Workspace) -> None:
    """The sign of `x` becomes an assumption."""
    expect_recapture(dropped_check, "no_longer_safe")
    assert [a.kind for a in dropped_check.stored().assumptions] == ["nonnegative"]


def test_a_constraint_is_dropped_and_broken(dropped_check: Workspace) -> None:
    dropped_check.append(0, 1, -5)
    assert dropped_check.maintain("incremental").refusal == (7, "no_longer_safe")
    assert dropped_check.maintain("strict").refusal == (4, "policy_refused")
    assert dropped_check.maintain("auto").refusal == (3, "sketch_unsafe")


@pytest.mark.slow
def test_a_constraint_is_restored_after_it_was_broken(dropped_check: Workspace) -> None:
    dropped_check.append(0, 1, -5)
    dropped_check.delta.delete("x < 0")
    dropped_check.delta.alter.add_constraint({"positive": "x >= 0"})
    expect_exact(dropped_check)


@pytest.mark.slow
def test_a_deleted_row_on_which_the_query_failed(workspace: Workspace) -> None:
    """The query fails only at the version with the row."""
    sql = "SELECT g, SUM(100 DIV x) AS s FROM t GROUP BY g HAVING SUM(100 DIV x) > 20"
    divided = make_workspace(workspace.folder, workspace.cli.capsys, sql=sql).capture()
    divided.append(0, 1, 0)
    # The other policies would use Spark, which fails on that row as well.
    for policy in ("strict", "incremental"):
        ran = divided.cli("maintain", "--policy", policy)
        assert ran.refusal == (3, "division_by_zero")
    divided.append(0, 1, 30)
    divided.delta.delete("x = 0")
    assert divided.maintain("incremental").code == 3
    ran = divided.maintain("auto")
    (result,) = ran.results
    assert (result["action"], result["reason_code"]) == ("recapture", "division_by_zero")
    assert ran.document["warnings"]


@pytest.mark.slow
def test_a_scalar_subquery_gets_a_second_row(workspace: Workspace) -> None:
    """The query fails while the row exists, as in Spark; then the sketch is maintained."""
    sql = "SELECT g, SUM(x) AS s FROM t WHERE x > (SELECT x FROM t WHERE x = 3) GROUP BY g"
    workspace.append(0, 1, 3)
    compared = make_workspace(workspace.folder, workspace.cli.capsys, sql=sql).capture()
    compared.append(0, 1, 3)
    # The other policies would use Spark, which fails on these rows as well.
    for policy in ("strict", "incremental"):
        ran = compared.cli("maintain", "--policy", policy)
        assert ran.refusal == (3, "subquery_of_several_rows")
        assert "MAX" in ran.error["hint"]
    compared.append(0, 1, 30)
    compared.delta.delete("x = 3")
    expect_exact(compared)


Outcome = tuple[int, str]
"""Exit code, and reason code or error code."""


def recreate(workspace: Workspace) -> None:
    shutil.rmtree(workspace.table)
    write_deltalake(str(workspace.table), ROWS.slice(3), configuration=FEED)


def remove(workspace: Workspace) -> None:
    shutil.rmtree(workspace.table)


def move(workspace: Workspace) -> None:
    """The same table is in another folder, to which the workload file refers."""
    shutil.move(workspace.table, workspace.folder / "t2")
    workspace.table.symlink_to(workspace.folder / "t2")
    workspace.cli.edit('{"path": "t"}', '{"path": "t2"}')


def retype(workspace: Workspace) -> None:
    """The boundaries in the workload file are no longer valid."""
    overwrite(workspace, retyped("g", pa.string()))


REFUSED = (4, "policy_refused")
EXACT, MOVED, BAD_BOUNDARY = (0, "incremental"), (0, "definition_changed"), (2, "boundary_type")
CASES: dict[Callable[[Workspace], None], tuple[Outcome, ...]] = {
    # By policy: strict, incremental, full, auto.
    Workspace.append: (EXACT, EXACT, (0, "policy_full"), EXACT),
    recreate: (REFUSED, (7, "table_recreated"), (0, "policy_full"), (0, "table_recreated")),
    move: (REFUSED, (7, "definition_changed"), MOVED, MOVED),
    retype: (REFUSED, (7, "schema_changed"), BAD_BOUNDARY, BAD_BOUNDARY),
    remove: ((3, "table_missing"),) * 4,
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CASES, ids=lambda change: change.__name__)
def test_outcomes_by_policy(workspace: Workspace, change: Callable[[Workspace], None]) -> None:
    change(workspace)
    ran = workspace.under_each_policy()
    result = {
        policy: (run.code, run.error["code"] if run.code else run.results[0]["reason_code"])
        for policy, run in ran.items()
    }
    assert result == dict(zip(POLICIES, CASES[change], strict=True))
    if result["strict"][1] == "policy_refused":
        assert ran["incremental"].error["message"] in ran["strict"].error["message"]
    if result["auto"][0] == 0:
        is_exact = result["auto"][1] == "incremental"
        assert ran["auto"].results[0]["action"] == ("exact" if is_exact else "recapture")
        assert ran["full"].results[0]["action"] == "recapture"
        assert bool(ran["auto"].document["warnings"]) is not is_exact
