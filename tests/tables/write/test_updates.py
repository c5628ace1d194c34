"""Update batches commit one version each, or refuse by name and commit nothing."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.errors import (
    EvaluationError,
    ImpctlError,
    QueryError,
    TableError,
    TableRecreatedError,
    UnsupportedError,
    UsageError,
)
from impctl.tables.changes import read_changes
from impctl.tables.rows import read_rows
from impctl.tables.snapshot import CHANGE_FEED
from impctl.tables.source import open_source
from impctl.tables.write.apply import (
    AppliedUpdate,
    UpdateKind,
    UpdateRequest,
    apply_update,
    commit_update,
    prepare_update,
)
from impctl.tables.write.rows import MatchedRows
from tests.tables import handmade
from tests.tables.bags import fixture_table

SALES = pa.table(
    {
        "sid": pa.array([1, 2, 3], pa.int32()),
        "brand": ["Dell", "HP", "Dell"],
        "price": pa.array([100, 200, 300], pa.int32()),
    }
)

MAPS = pa.map_(pa.string(), pa.int64())


def make(path: Path, **options: object) -> str:
    configuration = {CHANGE_FEED: "true"}
    write_deltalake(str(path), SALES, configuration=configuration, **options)  # type: ignore[arg-type]  # passed through
    return str(path)


def apply(path: str, kind: UpdateKind, **fields: object) -> AppliedUpdate:
    request = UpdateRequest("sales", kind, **fields)  # type: ignore[arg-type]  # passed through
    return apply_update(open_source("sales", path), request)


def not_writable(reason: str, path: str, kind: UpdateKind, **fields: object) -> None:
    with pytest.raises(TableError, match=reason) as caught:
        apply(path, kind, **fields)
    assert caught.value.code == "table_not_writable"


def prices(path: str) -> dict[int, int]:
    rows = read_rows(open_source("sales", path).snapshot(), ["sid", "price"]).to_pylist()
    return {row["sid"]: row["price"] for row in rows}


def test_one_version_per_batch_and_the_feed_stays_on(tmp_path: Path) -> None:
    path = make(tmp_path / "t")
    rows = ({"sid": 4, "brand": "HP", "price": 400}, {"sid": 5})
    assert apply(path, UpdateKind.INSERT, rows=rows) == AppliedUpdate(1, inserted=2)
    done = apply(path, UpdateKind.UPDATE, assignments={"Price": "PRICE * 1.1"}, where="sid < 3")
    assert done == AppliedUpdate(2, updated=2)
    assert apply(path, UpdateKind.DELETE, where="Brand = 'HP'") == AppliedUpdate(3, deleted=2)
    assert prices(path) == {1: 110, 3: 300, 5: None}
    source = open_source("sales", path)
    assert source.snapshot().has_change_feed
    changes = read_changes(source, 0, 3, ["sid"])
    assert (changes.method, int(changes.weights.sum())) == ("change_feed", 0)


def test_insert_from_a_file(tmp_path: Path) -> None:
    path = make(tmp_path / "t")
    pq.write_table(pa.table({"sid": [9], "price": [900]}), tmp_path / "batch.parquet")
    apply(path, UpdateKind.INSERT, file=str(tmp_path / "batch.parquet"))
    assert prices(path)[9] == 900


def test_batch_without_rows_commits_nothing(tmp_path: Path) -> None:
    path = make(tmp_path / "t")
    assert apply(path, UpdateKind.DELETE, where="sid = 77") == AppliedUpdate(0)
    assert apply(path, UpdateKind.INSERT, rows=()) == AppliedUpdate(0)
    assert open_source("sales", path).version == 0


def test_batches_go_on_top_of_the_newest_version(tmp_path: Path) -> None:
    path = make(tmp_path / "t")
    stale = open_source("sales", path)
    apply(path, UpdateKind.DELETE, where="sid = 1")
    request = UpdateRequest("sales", UpdateKind.DELETE, where="sid = 2")
    assert apply_update(stale, request) == AppliedUpdate(2, deleted=1)
    assert (stale.version, stale.snapshot().rows) == (0, 3)


def test_rows_are_not_inserted_into_a_table_made_anew_meanwhile(tmp_path: Path) -> None:
    path = make(tmp_path / "t")
    request = UpdateRequest("sales", UpdateKind.INSERT, rows=({"sid": 4},))
    prepared = prepare_update(open_source("sales", path), request)
    shutil.rmtree(path)
    make(tmp_path / "t")
    with pytest.raises(TableRecreatedError):
        commit_update(prepared)
    assert open_source("sales", path).version == 0


def test_a_delete_that_takes_other_rows_than_the_log_tells_is_no_success(tmp_path: Path) -> None:
    path = make(tmp_path / "t", partition_by=["brand"])
    request = UpdateRequest("sales", UpdateKind.DELETE, where="brand = 'HP'")
    prepared = prepare_update(open_source("sales", path), request)
    assert prepared.matched == MatchedRows(1, "(\"brand\" = 'HP')")
    bare = MatchedRows(1, "CASE WHEN brand = 'HP' THEN TRUE ELSE FALSE END")
    with pytest.raises(
        ImpctlError, match="should affect 1 rows, but deltalake deleted 3"
    ) as caught:
        commit_update(replace(prepared, matched=bare))
    assert caught.value.code == "rows_deleted_differ"
    assert "restore the table to version 0" in (caught.value.hint or "")


@pytest.mark.parametrize("options", [{}, {"partition_by": ["brand"]}])
def test_a_delete_of_all_rows(tmp_path: Path, options: dict[str, object]) -> None:
    path = make(tmp_path / "t", **options)
    assert apply(path, UpdateKind.DELETE, where="1 = 1") == AppliedUpdate(1, deleted=3)
    apply(path, UpdateKind.INSERT, rows=({"sid": 1, "brand": "HP"}, {"sid": 2}))
    assert apply(path, UpdateKind.DELETE) == AppliedUpdate(3, deleted=2)
    assert apply(path, UpdateKind.DELETE).deleted == 0


def test_a_failure_after_the_commit_says_that_the_batch_may_be_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path / "t")

    def write_and_fail(*given: Any, **options: Any) -> None:
        write_deltalake(*given, **options)
        raise OSError("no space left")

    monkeypatch.setattr("impctl.tables.write.apply.write_deltalake", write_and_fail)
    with pytest.raises(ImpctlError, match="moved from version 0 to 1, so the batch") as caught:
        apply(path, UpdateKind.INSERT, rows=({"sid": 4},))
    assert (caught.value.code, caught.value.exit_code) == ("batch_maybe_committed", 1)
    assert "before you run the command again" in (caught.value.hint or "")


def test_empty_partition_text_is_stored_as_null(tmp_path: Path) -> None:
    path = make(tmp_path / "t", partition_by=["brand"])
    apply(path, UpdateKind.INSERT, rows=({"sid": 4, "brand": ""},))
    rows = read_rows(open_source("sales", path).snapshot(), ["sid", "brand"]).to_pylist()
    assert {"sid": 4, "brand": None} in rows


@pytest.mark.parametrize(
    "value", ["''", "CASE WHEN sid = 2 THEN brand ELSE '' END", "CASE WHEN sid = 1 THEN '' END"]
)
def test_an_empty_text_set_in_a_partition_column_is_null(tmp_path: Path, value: str) -> None:
    path = make(tmp_path / "t", partition_by=["brand"])
    done = apply(path, UpdateKind.UPDATE, assignments={"Brand": value}, where="sid = 1")
    assert done == AppliedUpdate(1, updated=1)
    log = handmade.entry(path, 1).read_text(encoding="utf-8")
    assert '"brand":""' not in log
    assert '"brand":null' in log
    feed = DeltaTable(path).load_cdf(starting_version=1).read_all()
    after = {row["_change_type"]: row["brand"] for row in pa.table(feed).to_pylist()}
    assert after == {"update_preimage": "Dell", "update_postimage": None}
    rows = read_rows(open_source("sales", path).snapshot(), ["sid", "brand"]).to_pylist()
    assert {"sid": 1, "brand": None} in rows


@pytest.mark.parametrize(
    ("kind", "fields", "error", "problem"),
    [
        (UpdateKind.INSERT, {}, UsageError, "needs either `rows` or `file`"),
        (UpdateKind.UPDATE, {}, UsageError, "sets no column"),
        (UpdateKind.UPDATE, {"assignments": {"cost": "1"}}, UsageError, "no column `cost` to set"),
        (
            UpdateKind.UPDATE,
            {"assignments": {"price": "1", "PRICE": "2"}},
            UsageError,
            "`sales.price` is set twice",
        ),
        (UpdateKind.UPDATE, {"assignments": {"price": "1, 2"}}, UsageError, "must be one value"),
        (UpdateKind.UPDATE, {"assignments": {"price": "max(price)"}}, UsageError, "Only expressio"),
        (UpdateKind.DELETE, {"where": "sid"}, UsageError, "must be a condition"),
        (UpdateKind.DELETE, {"where": "sidd = 1"}, QueryError, "Column `sidd` is unknown"),
        (UpdateKind.DELETE, {"where": "sid = "}, QueryError, "cannot be parsed"),
        (UpdateKind.DELETE, {"where": "sid = 1; SELECT 1"}, QueryError, "statements"),
        (UpdateKind.DELETE, {"where": "sid = 1 ORDER BY sid"}, UsageError, "Only expressions"),
        (
            UpdateKind.UPDATE,
            {"assignments": {"price": "price * 100000000"}},
            EvaluationError,
            "fails on a row",
        ),
    ],
)
def test_batches_that_make_no_sense(
    tmp_path: Path,
    kind: UpdateKind,
    fields: dict[str, object],
    error: type[Exception],
    problem: str,
) -> None:
    path = make(tmp_path / "t")
    with pytest.raises(error, match=problem):
        apply(path, kind, **fields)
    assert open_source("sales", path).version == 0


def test_check_constraint_is_kept(tmp_path: Path) -> None:
    path = make(tmp_path / "t")
    DeltaTable(path).alter.add_constraint({"positive": "price > 0"})
    with pytest.raises(UsageError, match="does not accept the batch"):
        apply(path, UpdateKind.INSERT, rows=({"sid": 9, "price": -1},))
    with pytest.raises(UsageError, match="does not accept the batch"):
        apply(path, UpdateKind.UPDATE, assignments={"price": "price - 100"})


def test_columns_in_other_letters_are_not_copied(tmp_path: Path) -> None:
    file = handmade.added(tmp_path, "a.parquet", pa.table({"id": [1, 2], "v": [5, 6]}))
    handmade.create(tmp_path, {"Id": "long", "v": "long"}, file)
    not_writable("writes the name of column `Id`", str(tmp_path), UpdateKind.DELETE, where="v = 5")
    assert apply(str(tmp_path), UpdateKind.INSERT, rows=({"Id": 3},)).inserted == 1
    rows = read_rows(open_source("t", str(tmp_path)).snapshot(), ["id"])
    assert sorted(rows.column("Id").to_pylist()) == [1, 2, 3]


def short_texts(path: Path) -> str:
    file = handmade.added(path, "a.parquet", pa.table({"id": [1], "v": ["ab"]}))
    text = handmade.field("v", "string", __CHAR_VARCHAR_TYPE_STRING="varchar(3)")
    return handmade.create(path, [handmade.field("id", "long"), text], file)


@pytest.mark.parametrize("value", ["abcd", "ab  "])
def test_texts_longer_than_a_varchar_are_not_inserted(tmp_path: Path, value: str) -> None:
    path = short_texts(tmp_path / "t")
    file = str(tmp_path / "rows.parquet")
    pq.write_table(pa.table({"id": [2], "v": [value]}), file)
    for given in ({"rows": ({"id": 2, "v": value},)}, {"file": file}):
        with pytest.raises(UsageError, match=r"has type varchar\(3\), but a row has 4 char"):
            apply(path, UpdateKind.INSERT, **given)
    assert apply(path, UpdateKind.INSERT, rows=({"id": 3, "v": "üöé"}, {"id": 4})).inserted == 2


def test_only_texts_that_fit_are_set_in_a_varchar(tmp_path: Path) -> None:
    path = short_texts(tmp_path)
    for value in ("'abcd'", "id", "CASE WHEN id = 1 THEN 'a' ELSE 'abcd' END", "'ab  '"):
        with pytest.raises(UnsupportedError, match="does not enforce the length of `v`"):
            apply(path, UpdateKind.UPDATE, assignments={"V": value})
    for value in ("'üöé'", "NULL"):
        assert apply(path, UpdateKind.UPDATE, assignments={"V": value}).updated == 1


def test_times_of_partitions_are_not_written_without_a_zone(tmp_path: Path) -> None:
    data = pa.table({"v": [1], "at": pa.array([0], pa.timestamp("us", tz="UTC"))})
    write_deltalake(str(tmp_path), data, partition_by=["at"])
    not_writable(
        "of its partition column `at` without a time zone",
        str(tmp_path),
        UpdateKind.INSERT,
        rows=({"v": 9},),
    )


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (
            pa.array([None], pa.decimal128(10, 2)),
            "writes negative decimals of its partition column `p`",
        ),
        (
            pa.array([None], pa.decimal128(10, 0)),
            "writes negative decimals of its partition column `p`",
        ),
        (pa.array([None], pa.binary()), "writes binary values of its partition column `p`"),
    ],
)
def test_partitions_of_decimals_and_bytes_are_not_written(
    tmp_path: Path, value: pa.Array, problem: str
) -> None:
    write_deltalake(str(tmp_path), pa.table({"v": [1], "p": value}), partition_by=["p"])
    for kind, fields in (
        (UpdateKind.INSERT, {"rows": ({"v": 9},)}),
        (UpdateKind.DELETE, {"where": "v = 2"}),
        (UpdateKind.UPDATE, {"assignments": {"v": "2"}}),
    ):
        not_writable(problem, str(tmp_path), kind, **fields)
    assert open_source("t", str(tmp_path)).version == 0


@pytest.mark.parametrize("name", ["delta.appendOnly", CHANGE_FEED])
def test_properties_that_only_spark_reads_are_not_passed_over(tmp_path: Path, name: str) -> None:
    path = handmade.create(tmp_path, {"id": "long"}, configuration={name: "TRUE"})
    not_writable("Spark reads its property", path, UpdateKind.INSERT, rows=({"id": 1},))


def test_nested_columns_left_out_are_null(tmp_path: Path) -> None:
    nested = {"s": pa.array([{"a": 1}]), "l": pa.array([[1]]), "m": pa.array([[("k", 1)]], MAPS)}
    write_deltalake(str(tmp_path), pa.table({"id": [1], **nested}))
    assert apply(str(tmp_path), UpdateKind.INSERT, rows=({"id": 2},)).inserted == 1
    rows = DeltaTable(str(tmp_path)).to_pyarrow_table().sort_by("id").to_pylist()
    assert rows[0] == {"id": 1, "s": {"a": 1}, "l": [1], "m": [("k", 1)]}
    assert rows[1] == {"id": 2, "s": None, "l": None, "m": None}


def test_int96_rows_are_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "t"
    shutil.copytree(fixture_table("table_with_edge_timestamps"), path)
    with pytest.raises(TableError, match="`BIG_DATE` is stored as INT96") as caught:
        apply(str(path), UpdateKind.DELETE, where="SOME_VALUE = 1")
    assert caught.value.code == "int96_timestamps"
    done = apply(str(path), UpdateKind.INSERT, rows=({"SOME_VALUE": 7},))
    assert done.inserted == 1
    years = read_rows(open_source("t", str(path)).snapshot(), ["BIG_DATE"]).column(0).to_pylist()
    assert {None if at is None else at.year for at in years} == {9999, None}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("table_with_column_mapping", "uses column mapping"),
        ("checkpoint-v2-table", "`id` is an identity column"),
        ("table_with_liquid_clustering", "cannot write to table"),
    ],
)
def test_tables_deltalake_would_damage(tmp_path: Path, name: str, reason: str) -> None:
    path = tmp_path / "t"
    shutil.copytree(fixture_table(name), path)
    version = open_source("t", str(path)).version
    rows = ({"id": 1},) if name == "table_with_liquid_clustering" else ({},)
    not_writable(reason, str(path), UpdateKind.INSERT, rows=rows)
    assert open_source("t", str(path)).version == version


def test_rows_deleted_by_a_vector_stay_deleted(tmp_path: Path) -> None:
    path = tmp_path / "t"
    shutil.copytree(fixture_table("table-with-dv-small"), path)
    done = apply(str(path), UpdateKind.DELETE, where="value = 5")
    assert done.deleted == 1
    rows = read_rows(open_source("t", str(path)).snapshot(), ["value"]).column(0).to_pylist()
    assert sorted(rows) == [1, 2, 3, 4, 6, 7, 8]
    apply(str(path), UpdateKind.UPDATE, assignments={"value": "value + 100"}, where="value > 6")
    source = open_source("t", str(path))
    rows = read_rows(source.snapshot(), ["value"]).column(0).to_pylist()
    assert sorted(rows) == [1, 2, 3, 4, 6, 107, 108]
    assert int(read_changes(source, 0, source.version, ["value"]).weights.sum()) == -3


def old_dates(path: Path, day: str) -> str:
    """A table with one file as Spark 2 wrote it."""
    mark = {"org.apache.spark.version": "2.4.8"}
    data = pa.table({"id": [1], "d": pa.array([day]).cast(pa.date32())})
    file = handmade.added(path, "a.parquet", data.replace_schema_metadata(mark))
    return handmade.create(path, {"id": "long", "d": "date"}, file)


def test_old_dates_of_spark_2_are_not_copied(tmp_path: Path) -> None:
    path = old_dates(tmp_path / "t", "1582-10-14")
    with pytest.raises(TableError, match="`d` may have old dates") as caught:
        apply(path, UpdateKind.DELETE, where="id = 7")
    assert caught.value.code == "legacy_calendar"
    path = old_dates(tmp_path / "u", "1582-10-15")
    assert apply(path, UpdateKind.DELETE, where="id = 1").deleted == 1


@pytest.mark.parametrize("where", ["s = '{}'", "s >= '{}'", "s LIKE '{}%'"])
def test_a_maximum_that_was_cut_leaves_no_file_out(tmp_path: Path, where: str) -> None:
    """Spark may have cut it in the middle of a character: less than the value, by its bytes."""
    value = "a" * 32 + "\U0001f600"
    stats = {"stats": handmade.stats(1, {"s": 0}, s=("a" * 32, "a" * 32 + "\ufffd"))}
    file = handmade.added(tmp_path, "a.parquet", pa.table({"s": [value]}), stats)
    path = handmade.create(tmp_path, {"s": "string"}, file)
    assert apply(path, UpdateKind.DELETE, where=where.format(value)).deleted == 1
