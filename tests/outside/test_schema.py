"""Columns, layouts and facts that others change; what each policy makes of it."""

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
from tests.outside.place import (
    GROUPS,
    POLICIES,
    ROWS,
    SHOWN,
    Place,
    expect_carried,
    expect_recapture,
    expect_refused,
    make_place,
    more,
)
from tests.support.run_cli import Capsys, MadeOnce
from tests.tables import handmade
from tests.tables.handmade import fixture_table


def overwrite(place: Place, rows: pa.Table) -> None:
    write_deltalake(str(place.table), rows, mode="overwrite", schema_mode="overwrite")


def retyped(name: str, kind: pa.DataType, rows: pa.Table = ROWS) -> pa.Table:
    at = rows.column_names.index(name)
    return rows.set_column(at, name, rows[name].cast(kind))


def test_an_unused_column_is_added(place: Place) -> None:
    wider = more().append_column("extra", pa.array([1, 2, 3]))
    write_deltalake(str(place.table), wider, mode="append", schema_mode="merge")
    expect_carried(place, changes=3)


def test_a_column_is_added_without_a_row(place: Place) -> None:
    place.delta.alter.add_columns([Field("extra", PrimitiveType("long"))])
    expect_carried(place, changes=0)


@pytest.mark.slow
def test_a_column_that_the_query_reads_is_gone_and_comes_back(place: Place) -> None:
    """In between nothing can answer; afterwards the table's files tell."""
    overwrite(place, ROWS.drop_columns(["x"]))
    expect_refused(place, 3, "column_unknown", "`x`")
    overwrite(place, ROWS)
    place.append()
    expect_carried(place)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["g", "x"])
def test_a_used_column_is_renamed(place: Place, name: str) -> None:
    names = [f"{name}2" if one == name else one for one in ROWS.column_names]
    overwrite(place, ROWS.rename_columns(names))
    expect_refused(place, 3, "column_unknown", f"`{name}`")


@pytest.mark.slow
@pytest.mark.parametrize("change", ["renamed", "dropped", "retyped", "widened"])
def test_an_unused_column_is_changed(place: Place, change: str) -> None:
    rows = {
        "renamed": ROWS.rename_columns(["g", "x", "label"]),
        "dropped": ROWS.drop_columns(["note"]),
        "retyped": ROWS.set_column(2, "note", pa.array(range(11))),
        "widened": retyped("note", pa.large_string()),
    }[change]
    overwrite(place, pa.concat_tables([rows, rows.slice(7, 2)]))
    expect_carried(place)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["g", "x"])
def test_a_used_column_is_widened(place: Place, name: str) -> None:
    overwrite(place, retyped(name, pa.int64()))
    expect_recapture(place, "schema_changed", f"`{name}`", "`int`", "`bigint`")


def test_a_used_column_is_retyped(place: Place) -> None:
    overwrite(place, retyped("x", pa.float64()))
    expect_recapture(place, "schema_changed", "`x`", "`int`", "`double`")


@pytest.mark.slow
def test_a_column_that_is_only_shown_is_retyped(place: Place) -> None:
    """The sketch does not depend on it."""
    shown = make_place(place.folder, place.cli.capsys, sql=SHOWN).captured()
    overwrite(place, retyped("x", pa.float64()))
    expect_carried(shown)


def test_a_column_changed_its_letters(place: Place) -> None:
    """`X` in place of `x` is the same name to SQL and another one to the files."""
    overwrite(place, ROWS.rename_columns(["g", "X", "note"]))
    expect_recapture(place, "schema_changed", "was replaced")


def test_columns_changed_places(place: Place) -> None:
    overwrite(place, ROWS.select(["note", "x", "g"]))
    expect_carried(place)


@pytest.mark.slow
def test_a_used_column_may_be_null_now(place: Place) -> None:
    place.delta.alter.add_constraint({"known": "x IS NOT NULL"})
    place.captured()
    place.delta.alter.drop_constraint("known")
    place.append(x=None)
    expect_carried(place, changes=3)


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
    cuts = {attribute: ranges}
    place = make_place(tmp_path, capsys, sql=sql, sketch=attribute, ranges=cuts).captured()
    assert place.stored().versions == {"t": captured_at}
    for entry in later.iterdir():
        shutil.move(entry, tmp_path / "t" / "_delta_log")
    assert place.delta.version() > captured_at
    expect_carried(place)


ODD = ["001", "1", "1e3", "A/A", "x y", "é%", "x=y", "", None]


@pytest.mark.slow
@pytest.mark.parametrize("configuration", [FEED, None], ids=["feed", "files"])
def test_partition_columns(
    tmp_path: Path, capsys: Capsys, configuration: dict[str, str] | None
) -> None:
    """Texts that look like numbers, need escapes in paths, or are NULL (as an empty one is)."""
    path = str(tmp_path / "t")
    rows = pa.table({"k": pa.array(ODD), "v": pa.array(range(len(ODD)))})
    write_deltalake(path, rows, partition_by=["k"], configuration=configuration)
    sql = "SELECT k, COUNT(*) AS n FROM t GROUP BY k HAVING COUNT(*) > 1"
    ranges = {"k": ["1", "2", "x", "y"]}
    place = make_place(tmp_path, capsys, sql=sql, sketch="k", ranges=ranges).captured()
    for step in (
        lambda: write_deltalake(path, rows.slice(0, 4), mode="append"),
        lambda: write_deltalake(path, rows.slice(4), mode="append"),
        lambda: DeltaTable(path).delete("k = 'A/A' AND v = 3"),
        lambda: DeltaTable(path).delete("k IS NULL"),
        lambda: DeltaTable(path).update(updates={"k": "'001'"}, predicate="k = '1'"),
    ):
        step()
        expect_carried(place)


@pytest.mark.slow
@pytest.mark.parametrize("configuration", [FEED, None], ids=["feed", "files"])
def test_one_partition_is_overwritten(
    tmp_path: Path, capsys: Capsys, configuration: dict[str, str] | None
) -> None:
    path = str(tmp_path / "t")
    write_deltalake(path, ROWS, partition_by=["g"], configuration=configuration)
    place = make_place(tmp_path, capsys).captured()
    new = ROWS.filter(pa.compute.equal(ROWS["g"], 5))
    new = pa.concat_tables([new, new])
    write_deltalake(path, new, mode="overwrite", predicate="g = 5")
    assert DeltaTable(path).to_pyarrow_table().num_rows == ROWS.num_rows + 2
    expect_carried(place)
    assert place.stored().sketches[0].ranges.ids == (0, 1, 2)


MAPPED = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "9"}
_TYPES = {"g": "integer", "x": "integer", "note": "string", "label": "string"}


def mapped_field(name: str, stored: str, number: int) -> dict[str, Any]:
    mapped = {"delta.columnMapping.physicalName": stored, "delta.columnMapping.id": number}
    return handmade.field(name, _TYPES.get(name, "integer"), **mapped)


def mapped_fields(**physical: str) -> list[dict[str, Any]]:
    """Columns by logical name, each with what it is called in the files."""
    return [mapped_field(name, stored, int(stored[-1])) for name, stored in physical.items()]


def commit(table: Path, version: int, mode: str = "name", **physical: str) -> None:
    """New columns for the table."""
    settings = {**MAPPED, "delta.columnMapping.mode": mode}
    action = handmade.metadata(mapped_fields(**physical), configuration=settings)
    handmade.commit(table, version, action)


@pytest.fixture
def mapped(tmp_path: Path, capsys: Capsys) -> Place:
    table = tmp_path / "t"
    names = {"g": "col-1", "x": "col-2", "note": "col-3"}
    first = handmade.metadata(mapped_fields(**names), configuration=MAPPED)
    handmade.commit(table, 0, handmade.protocol("columnMapping"), first)
    add_rows(table, 1, ROWS.rename_columns(list(names.values())))
    return make_place(tmp_path, capsys).captured()


def add_rows(table: Path, version: int, rows: pa.Table) -> None:
    name = handmade.write_file(table, f"part-{version}.parquet", rows)
    size = (table / name).stat().st_size
    handmade.commit(table, version, handmade.add(name, rows.num_rows, size))


@pytest.mark.slow
def test_rows_of_a_mapped_table(mapped: Place) -> None:
    add_rows(mapped.table, 2, ROWS.slice(6, 3).rename_columns(["col-1", "col-2", "col-3"]))
    expect_carried(mapped)


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
def test_an_unused_mapped_column(mapped: Place, columns: dict[str, str]) -> None:
    commit(mapped.table, 2, **columns)
    rows = ROWS.slice(7, 2).select(["g", "x"]).rename_columns(["col-1", "col-2"])
    add_rows(mapped.table, 3, rows)
    expect_carried(mapped)


@pytest.mark.slow
@pytest.mark.parametrize(
    "columns",
    [{"g": "col-1", "y": "col-2", "note": "col-3"}, {"g": "col-1", "note": "col-3"}],
    ids=["renamed", "dropped"],
)
def test_a_used_mapped_column(mapped: Place, columns: dict[str, str]) -> None:
    commit(mapped.table, 2, **columns)
    expect_refused(mapped, 3, "column_unknown", "`x`")


@pytest.mark.slow
def test_a_used_mapped_column_is_replaced(mapped: Place) -> None:
    """Dropped and added again under its name: the old rows have no value in it."""
    commit(mapped.table, 2, g="col-1", x="col-4", note="col-3")
    expect_recapture(mapped, "schema_changed", "`x`", "was replaced")
    assert mapped.stored().sketches[0].ranges.ids == ()


@pytest.mark.slow
def test_two_mapped_columns_changed_names(mapped: Place) -> None:
    commit(mapped.table, 2, g="col-2", x="col-1", note="col-3")
    expect_recapture(mapped, "schema_changed", "was replaced")


@pytest.mark.slow
def test_used_columns_changed_places(mapped: Place) -> None:
    """The state numbers columns in the table's order."""
    commit(mapped.table, 2, x="col-2", g="col-1", note="col-3")
    expect_recapture(mapped, "schema_changed", "`t`", "order of columns")


@pytest.mark.slow
def test_columns_are_mapped_by_id_from_now_on(mapped: Place) -> None:
    commit(mapped.table, 2, mode="id", g="col-1", x="col-2", note="col-3")
    expect_refused(mapped, 3, "column_mapping_mode", "`t`", "`id`")


@pytest.mark.slow
def test_names_are_mapped_from_now_on(place: Place) -> None:
    """Files written before keep their names, which are the physical ones."""
    table_id = str(place.delta.metadata().id)
    fields = [mapped_field(name, name, at) for at, name in enumerate(("g", "x", "note"), 1)]
    metadata = handmade.metadata(fields, configuration={**MAPPED, **FEED}, table_id=table_id)
    protocol = handmade.protocol("columnMapping", writer=["changeDataFeed"])
    handmade.commit(place.table, 1, protocol, metadata)
    add_rows(place.table, 2, ROWS.slice(7, 2))
    expect_carried(place)


@pytest.mark.slow
def test_a_feature_nobody_knows_is_needed_from_now_on(place: Place) -> None:
    handmade.commit(place.table, 1, handmade.protocol("timeTravelling"))
    expect_refused(place, 3, "reader_feature_unknown", "`timeTravelling`")


SUMMED = "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 20"
"""A sketch on `x` is safe only while no `x` is negative."""
BY_X = {"x": [10, 20]}


def summed_in(folder: Path, capsys: Capsys) -> Place:
    return make_place(folder, capsys, sql=SUMMED, sketch="x", ranges=BY_X)


@pytest.fixture
def summed(made_once: MadeOnce, capsys: Capsys) -> Place:
    """Sketched on `x` because the workload says so."""

    def make(folder: Path) -> None:
        write_deltalake(str(folder / "t"), ROWS, configuration=FEED)
        place = summed_in(folder, capsys).captured()
        assert [a.kind for a in place.stored().assumptions] == ["nonnegative"]

    return summed_in(made_once.folder("summed", make), capsys)


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
    assert refused.refusal == (7, "assumption_broken")
    assert "`t.x` >= 0" in refused.error["message"]
    assert summed.maintained("strict").refusal == (4, "policy_refused")
    for policy in ("auto", "full"):
        ran = summed.maintained(policy)
        assert ran.refusal == (3, "sketch_unsafe")
        assert "`x`" in ran.error["message"]
    # Nobody may use what is stored: neither as it is, nor brought up to date.
    for policy, code in (("auto", 3), ("incremental", 7)):
        assert summed.cli("rewrite", "--policy", policy, "--require-sketch").code == code
        result = summed.cli.one("rewrite", "--policy", policy)
        assert (result["action"], result["sketches"]) == ("no_sketch", [])


def test_a_negative_value_that_came_and_went(summed: Place) -> None:
    """The state never saw it: what counts is the rows there were and those there are."""
    summed.append(0, 1, -5)
    summed.delta.delete("x < 0")
    expect_carried(summed)


def test_without_a_wish_the_attribute_is_one_that_no_value_breaks(place: Place) -> None:
    ranges = {**BY_X, **GROUPS}
    free = make_place(place.folder, place.cli.capsys, sql=SUMMED, sketch=None, ranges=ranges)
    free.captured()
    assert free.stored().sketches[0].attribute == "g"
    free.append(0, 1, -5)
    expect_carried(free)


@pytest.fixture
def promised(made_once: MadeOnce, capsys: Capsys) -> Place:
    """The table itself refused negative values, so nothing is assumed; it does no longer."""

    def make(folder: Path) -> None:
        write_deltalake(str(folder / "t"), ROWS, configuration=FEED)
        DeltaTable(str(folder / "t")).alter.add_constraint({"positive": "x >= 0"})
        place = summed_in(folder, capsys).captured()
        assert place.stored().assumptions == ()
        place.delta.alter.drop_constraint("positive")

    return summed_in(made_once.folder("promised", make), capsys)


def test_a_constraint_is_dropped(promised: Place) -> None:
    """Its sign is an assumption from now on."""
    expect_recapture(promised, "no_longer_safe")
    assert [a.kind for a in promised.stored().assumptions] == ["nonnegative"]


def test_a_constraint_is_dropped_and_broken(promised: Place) -> None:
    promised.append(0, 1, -5)
    assert promised.maintained("incremental").refusal == (7, "no_longer_safe")
    assert promised.maintained("strict").refusal == (4, "policy_refused")
    assert promised.maintained("auto").refusal == (3, "sketch_unsafe")


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
        assert ran.refusal == (3, "division_by_zero")
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
        assert ran.refusal == (3, "subquery_of_several_rows")
        assert "MAX" in ran.error["hint"]
    compared.append(0, 1, 30)
    compared.delta.delete("x = 3")
    expect_carried(compared)


Outcome = tuple[int, str]
"""Exit code, and the reason code or that of the error."""


def recreate(place: Place) -> None:
    shutil.rmtree(place.table)
    write_deltalake(str(place.table), ROWS.slice(3), configuration=FEED)


def remove(place: Place) -> None:
    shutil.rmtree(place.table)


def move(place: Place) -> None:
    """The file names another folder, where the same table lies now."""
    shutil.move(place.table, place.folder / "t2")
    place.table.symlink_to(place.folder / "t2")
    place.cli.edit('{"path": "t"}', '{"path": "t2"}')


def retype(place: Place) -> None:
    """The boundaries in the workload file make no sense any more."""
    overwrite(place, retyped("g", pa.string()))


REFUSED = (4, "policy_refused")
FOLLOWED, MOVED, BAD_BOUNDARY = (0, "incremental"), (0, "definition_changed"), (2, "boundary_type")
CASES: dict[Callable[[Place], None], tuple[Outcome, ...]] = {
    # By policy: strict, incremental, full, auto.
    Place.append: (FOLLOWED, FOLLOWED, (0, "policy_full"), FOLLOWED),
    recreate: (REFUSED, (7, "table_recreated"), (0, "policy_full"), (0, "table_recreated")),
    move: (REFUSED, (7, "definition_changed"), MOVED, MOVED),
    retype: (REFUSED, (7, "schema_changed"), BAD_BOUNDARY, BAD_BOUNDARY),
    remove: ((3, "table_missing"),) * 4,
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CASES, ids=lambda change: change.__name__)
def test_each_policy(place: Place, change: Callable[[Place], None]) -> None:
    change(place)
    ran = place.under_each_policy()
    result = {
        policy: (one.code, one.error["code"] if one.code else one.results[0]["reason_code"])
        for policy, one in ran.items()
    }
    assert result == dict(zip(POLICIES, CASES[change], strict=True))
    if result["strict"][1] == "policy_refused":
        assert ran["incremental"].error["message"] in ran["strict"].error["message"]
    if result["auto"][0] == 0:
        is_carried = result["auto"][1] == "incremental"
        assert ran["auto"].results[0]["action"] == ("exact" if is_carried else "recapture")
        assert ran["full"].results[0]["action"] == "recapture"
        assert bool(ran["auto"].document["warnings"]) is not is_carried
