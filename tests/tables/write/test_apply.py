"""Update batches: each commits one version exactly once, or is refused without a commit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from msgspec.structs import replace

from impctl.errors import (
    EvaluationError,
    ImpctlError,
    QueryError,
    RetryableError,
    StorageError,
    TableError,
    TableRecreatedError,
    UsageError,
)
from impctl.tables import source as source_module
from impctl.tables.changes import read_changes
from impctl.tables.files import miscopied_columns
from impctl.tables.rows import read_rows
from impctl.tables.snapshot import CHANGE_FEED
from impctl.tables.source import open_source
from impctl.tables.write import apply
from impctl.tables.write.apply import (
    AppliedUpdate,
    PreparedUpdate,
    TargetTable,
    UpdateKind,
    UpdateRequest,
    apply_update,
    commit_update,
    prepare_batch,
    version_with,
)
from tests.support.run_cli import refused
from tests.tables import handmade
from tests.tables.handmade import entry, fixture_table

INSERT, DELETE, UPDATE = UpdateKind

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


def apply_to_sales(path: str, kind: UpdateKind, **fields: object) -> AppliedUpdate:
    request = UpdateRequest("sales", kind, **fields)  # type: ignore[arg-type]  # passed through
    return apply_update(open_source("sales", path), request)


def not_writable(reason: str, path: str, kind: UpdateKind, **fields: object) -> None:
    with pytest.raises(TableError, match=reason) as caught:
        apply_to_sales(path, kind, **fields)
    assert caught.value.code == "table_not_writable"


def prices(path: str) -> dict[int, int]:
    rows = read_rows(open_source("sales", path).snapshot(), ["sid", "price"]).to_pylist()
    return {row["sid"]: row["price"] for row in rows}


def test_one_version_per_batch_and_the_feed_stays_on(tmp_path: Path) -> None:
    path = make(tmp_path / "t")
    rows = ({"sid": 4, "brand": "HP", "price": 400}, {"sid": 5})
    assert apply_to_sales(path, INSERT, rows=rows) == AppliedUpdate(1, inserted=2)
    done = apply_to_sales(path, UPDATE, assignments={"Price": "PRICE * 1.1"}, where="sid < 3")
    assert done == AppliedUpdate(2, updated=2)
    assert apply_to_sales(path, DELETE, where="Brand = 'HP'") == AppliedUpdate(3, deleted=2)
    assert prices(path) == {1: 110, 3: 300, 5: None}
    source = open_source("sales", path)
    assert source.snapshot().has_change_feed
    changes = read_changes(source, 0, 3, ["sid"])
    assert (changes.method, int(changes.weights.sum())) == ("change_feed", 0)


def test_batch_without_rows_commits_nothing(tmp_path: Path) -> None:
    path = make(tmp_path / "t")
    assert apply_to_sales(path, DELETE, where="sid = 77") == AppliedUpdate(0)
    assert apply_to_sales(path, INSERT, rows=()) == AppliedUpdate(0)
    assert open_source("sales", path).version == 0


def test_batches_apply_to_the_newest_version(tmp_path: Path) -> None:
    path = make(tmp_path / "t")
    stale = open_source("sales", path)
    apply_to_sales(path, DELETE, where="sid = 1")
    request = UpdateRequest("sales", DELETE, where="sid = 2")
    assert apply_update(stale, request) == AppliedUpdate(2, deleted=1)
    assert (stale.version, stale.snapshot().rows) == (0, 3)


def test_delete_of_unexpected_rows_fails(tmp_path: Path) -> None:
    path = make(tmp_path / "t", partition_by=["brand"])
    request = UpdateRequest("sales", DELETE, where="brand = 'HP'")
    prepared = prepare_batch(TargetTable(open_source("sales", path)), request)
    assert prepared.matched is not None
    assert prepared.matched.values.to_pylist() == [{"k0": "HP"}]
    others = replace(prepared.matched, values=pa.table({"k0": ["Dell"]}))
    with pytest.raises(
        ImpctlError, match="should affect 1 rows, but deltalake deleted 2"
    ) as caught:
        commit_update(replace(prepared, matched=others))
    assert caught.value.code == "rows_deleted_differ"
    assert "restore the table to version 0" in (caught.value.hint or "")


@pytest.mark.parametrize("options", [{}, {"partition_by": ["brand"]}])
def test_a_delete_of_all_rows(tmp_path: Path, options: dict[str, object]) -> None:
    path = make(tmp_path / "t", **options)
    assert apply_to_sales(path, DELETE, where="1 = 1") == AppliedUpdate(1, deleted=3)
    apply_to_sales(path, INSERT, rows=({"sid": 1, "brand": "HP"}, {"sid": 2}))
    assert apply_to_sales(path, DELETE) == AppliedUpdate(3, deleted=2)
    assert apply_to_sales(path, DELETE).deleted == 0


def failing_write(after: bool) -> Callable[..., None]:
    def write(*args: Any, **options: Any) -> None:
        if after:
            write_deltalake(*args, **options)
        else:
            other_commit(args[0].table_uri)
        raise OSError("no space left")

    return write


def test_failure_after_commit_says_batch_may_be_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path / "t")

    monkeypatch.setattr("impctl.tables.write.apply.write_deltalake", failing_write(after=True))
    with pytest.raises(ImpctlError, match="moved from version 0 to 1, so the batch") as caught:
        apply_to_sales(path, INSERT, rows=({"sid": 4},))
    assert (caught.value.code, caught.value.exit_code) == ("batch_maybe_committed", 1)
    assert "before you run the command again" in (caught.value.hint or "")


def test_an_empty_text_in_a_partition_column_is_null(tmp_path: Path) -> None:
    path = make(tmp_path / "t", partition_by=["brand"])
    done = apply_to_sales(path, UPDATE, assignments={"Brand": "''"}, where="sid = 1")
    assert done == AppliedUpdate(1, updated=1)
    log = handmade.entry(path, 1).read_text(encoding="utf-8")
    assert '"brand":""' not in log
    assert '"brand":null' in log
    feed = DeltaTable(path).load_cdf(starting_version=1).read_all()
    after = {row["_change_type"]: row["brand"] for row in pa.table(feed).to_pylist()}
    assert after == {"update_preimage": "Dell", "update_postimage": None}
    rows = read_rows(open_source("sales", path).snapshot(), ["sid", "brand"]).to_pylist()
    assert {"sid": 1, "brand": None} in rows
    apply_to_sales(path, INSERT, rows=({"sid": 4, "brand": ""},))
    rows = read_rows(open_source("sales", path).snapshot(), ["sid", "brand"]).to_pylist()
    assert {"sid": 4, "brand": None} in rows


def test_inserted_rows_keep_constraints(tmp_path: Path) -> None:
    path = make(tmp_path / "t")
    DeltaTable(path).alter.add_constraint({"positive": "price > 0"})
    with pytest.raises(UsageError, match="does not accept the batch"):
        apply_to_sales(path, INSERT, rows=({"sid": 9, "price": -1},))


@pytest.mark.parametrize(
    ("kind", "fields", "error", "problem"),
    [
        (INSERT, {}, UsageError, "needs either `rows` or `file`"),
        (UPDATE, {}, UsageError, "sets no column"),
        (UPDATE, {"assignments": {"cost": "1"}}, UsageError, "no column `cost` to set"),
        (UPDATE, {"assignments": {"price": "1", "PRICE": "2"}}, UsageError, "price` is set twice"),
        (UPDATE, {"assignments": {"price": "1, 2"}}, UsageError, "must be one value"),
        (UPDATE, {"assignments": {"price": "max(price)"}}, UsageError, "Only expressio"),
        (DELETE, {"where": "sid"}, UsageError, "must be a condition"),
        (DELETE, {"where": "sidd = 1"}, QueryError, "Column `sidd` is unknown"),
        (DELETE, {"where": "sid = "}, QueryError, "cannot be parsed"),
        (DELETE, {"where": "sid = 1; SELECT 1"}, QueryError, "statements"),
        (DELETE, {"where": "sid = 1 ORDER BY sid"}, UsageError, "Only expressions"),
        (
            UPDATE,
            {"assignments": {"price": "price * 100000000"}},
            EvaluationError,
            "fails on a row",
        ),
    ],
)
def test_invalid_batches(
    tmp_path: Path,
    kind: UpdateKind,
    fields: dict[str, object],
    error: type[Exception],
    problem: str,
) -> None:
    path = make(tmp_path / "t")
    with pytest.raises(error, match=problem):
        apply_to_sales(path, kind, **fields)
    assert open_source("sales", path).version == 0


def test_columns_in_other_case_are_not_copied(tmp_path: Path) -> None:
    file = handmade.added(tmp_path, "a.parquet", pa.table({"id": [1, 2], "v": [5, 6]}))
    handmade.create(tmp_path, {"Id": "long", "v": "long"}, file)
    not_writable("writes the name of column `Id`", str(tmp_path), DELETE, where="v = 5")
    assert apply_to_sales(str(tmp_path), INSERT, rows=({"Id": 3},)).inserted == 1
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
    for source in ({"rows": ({"id": 2, "v": value},)}, {"file": file}):
        with pytest.raises(UsageError, match=r"has type varchar\(3\), but a row has 4 char"):
            apply_to_sales(path, INSERT, **source)
    assert apply_to_sales(path, INSERT, rows=({"id": 3, "v": "üöé"}, {"id": 4})).inserted == 2


def test_varchar_length_is_checked_in_updates(tmp_path: Path) -> None:
    path = short_texts(tmp_path)
    for value in ("'abcd'", "id + 999", "'ab  '"):
        with pytest.raises(UsageError, match=r"has type varchar\(3\), but a row has 4 char"):
            apply_to_sales(path, UPDATE, assignments={"V": value})
    for value in ("'üöé'", "NULL", "id + 99"):
        assert apply_to_sales(path, UPDATE, assignments={"V": value}).updated == 1


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (pa.decimal128(10, 2), "writes negative decimals of its partition column `p`"),
        (pa.decimal128(10, 0), "writes negative decimals of its partition column `p`"),
        (pa.binary(), "writes binary values of its partition column `p`"),
        (pa.timestamp("us", tz="UTC"), "of its partition column `p` without a time zone"),
    ],
)
def test_unsupported_partition_types_are_not_written(
    tmp_path: Path, kind: pa.DataType, problem: str
) -> None:
    data = pa.table({"v": [1], "p": pa.nulls(1, kind)})
    write_deltalake(str(tmp_path), data, partition_by=["p"])
    for batch, fields in (
        (INSERT, {"rows": ({"v": 9},)}),
        (DELETE, {"where": "v = 2"}),
        (UPDATE, {"assignments": {"v": "2"}}),
    ):
        not_writable(problem, str(tmp_path), batch, **fields)
    assert open_source("t", str(tmp_path)).version == 0


@pytest.mark.parametrize("name", ["delta.appendOnly", CHANGE_FEED])
def test_properties_that_only_spark_reads_are_refused(tmp_path: Path, name: str) -> None:
    path = handmade.create(tmp_path, {"id": "long"}, configuration={name: "TRUE"})
    not_writable("Spark reads its property", path, INSERT, rows=({"id": 1},))


def test_omitted_nested_columns_are_null(tmp_path: Path) -> None:
    nested = {"s": pa.array([{"a": 1}]), "l": pa.array([[1]]), "m": pa.array([[("k", 1)]], MAPS)}
    write_deltalake(str(tmp_path), pa.table({"id": [1], **nested}))
    assert apply_to_sales(str(tmp_path), INSERT, rows=({"id": 2},)).inserted == 1
    rows = DeltaTable(str(tmp_path)).to_pyarrow_table().sort_by("id").to_pylist()
    assert rows[0] == {"id": 1, "s": {"a": 1}, "l": [1], "m": [("k", 1)]}
    assert rows[1] == {"id": 2, "s": None, "l": None, "m": None}


def test_int96_rows_are_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "t"
    shutil.copytree(fixture_table("table_with_edge_timestamps"), path)
    with pytest.raises(TableError, match="`BIG_DATE` is stored as INT96") as caught:
        apply_to_sales(str(path), DELETE, where="SOME_VALUE = 1")
    assert caught.value.code == "int96_timestamps"
    done = apply_to_sales(str(path), INSERT, rows=({"SOME_VALUE": 7},))
    assert done.inserted == 1
    years = read_rows(open_source("t", str(path)).snapshot(), ["BIG_DATE"]).column(0).to_pylist()
    assert {None if value is None else value.year for value in years} == {9999, None}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("table_with_column_mapping", "uses column mapping"),
        ("checkpoint-v2-table", "`id` is an identity column"),
        ("table_with_liquid_clustering", "cannot write to table"),
    ],
)
def test_tables_that_deltalake_would_damage(tmp_path: Path, name: str, reason: str) -> None:
    path = tmp_path / "t"
    shutil.copytree(fixture_table(name), path)
    version = open_source("t", str(path)).version
    rows = ({"id": 1},) if name == "table_with_liquid_clustering" else ({},)
    not_writable(reason, str(path), INSERT, rows=rows)
    assert open_source("t", str(path)).version == version


def test_rows_deleted_by_a_vector_stay_deleted(tmp_path: Path) -> None:
    path = tmp_path / "t"
    shutil.copytree(fixture_table("table-with-dv-small"), path)
    done = apply_to_sales(str(path), DELETE, where="value = 5")
    assert done.deleted == 1
    rows = read_rows(open_source("t", str(path)).snapshot(), ["value"]).column(0).to_pylist()
    assert sorted(rows) == [1, 2, 3, 4, 6, 7, 8]
    apply_to_sales(str(path), UPDATE, assignments={"value": "value + 100"}, where="value > 6")
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
        apply_to_sales(path, DELETE, where="id = 7")
    assert caught.value.code == "legacy_calendar"
    path = old_dates(tmp_path / "u", "1582-10-15")
    assert apply_to_sales(path, DELETE, where="id = 1").deleted == 1


@pytest.mark.parametrize("where", ["s = '{}'", "s >= '{}'"])
def test_truncated_maximum_skips_no_file(tmp_path: Path, where: str) -> None:
    """Spark may truncate within a character; the result is less than the value by bytes."""
    value = "a" * 32 + "\U0001f600"
    stats = {"stats": handmade.stats(1, {"s": 0}, s=("a" * 32, "a" * 32 + "\ufffd"))}
    file = handmade.added(tmp_path, "a.parquet", pa.table({"s": [value]}), stats)
    path = handmade.create(tmp_path, {"s": "string"}, file)
    assert apply_to_sales(path, DELETE, where=where.format(value)).deleted == 1


IN_THE_TABLE = AppliedUpdate(1)
"""The result of a repeated batch: its version. Batches without effect have the newest one."""


ROWS = pa.table({"id": [1, 2], "x": [1, 2]})


@pytest.fixture
def path(tmp_path: Path) -> str:
    location = str(tmp_path / "t")
    write_deltalake(location, ROWS)
    return location


def apply_named(path: str, kind: UpdateKind = INSERT, **fields: Any) -> AppliedUpdate:
    defaults = {"rows": ({"id": 3, "x": 3},)} if kind is INSERT and not fields else {}
    request = UpdateRequest("t", kind, **{"name": "b", **defaults, **fields})
    return apply_update(open_source("t", path), request)


def ids(path: str) -> list[int]:
    return sorted(DeltaTable(path).to_pyarrow_table()["id"].to_pylist())


def other_commit(path: str) -> None:
    write_deltalake(path, pa.table({"id": [9], "x": [9]}), mode="append")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (INSERT, {"rows": ({"id": 3},)}),
        (UPDATE, {"assignments": {"x": "x + 1"}}),
        (UPDATE, {"assignments": {"x": "x + 1"}, "where": "id = 1"}),
        (DELETE, {"where": "id = 1"}),
        (DELETE, {"where": None}),
    ],
)
def test_repeated_batch_is_not_applied(path: str, kind: UpdateKind, fields: dict[str, Any]) -> None:
    assert apply_named(path, kind, **fields).version == 1
    other_commit(path)
    before = ids(path)
    assert apply_named(path, kind, **fields) == IN_THE_TABLE
    assert (ids(path), DeltaTable(path).version()) == (before, 2)
    again = apply_named(path, kind, again=True, **fields)
    changed = again.inserted + again.deleted + again.updated
    assert again.version == (3 if changed else 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"name": "another"},
        {"rows": ({"id": 3, "x": 4},)},
        {"rows": ({"id": 3},)},
        {"rows": ({"id": 3, "x": 3}, {"id": 4, "x": 3})},
        {"name": None},
    ],
)
def test_another_name_or_content_is_another_batch(path: str, fields: dict[str, Any]) -> None:
    apply_named(path)
    assert apply_named(path, **{"rows": ({"id": 3, "x": 3},), **fields}).version == 2


def test_batch_edited_and_restored_is_known(path: str) -> None:
    apply_named(path)
    apply_named(path, rows=({"id": 4, "x": 4},))
    assert apply_named(path) == IN_THE_TABLE


def test_file_is_identified_by_its_bytes(path: str, tmp_path: Path) -> None:
    file, moved = tmp_path / "a.csv", tmp_path / "b.csv"
    file.write_text("id,x\n3,3\n")
    assert apply_named(path, file=str(file)).version == 1
    file.rename(moved)
    assert apply_named(path, file=str(moved)) == IN_THE_TABLE
    moved.write_text("id,x\n4,4\n")
    assert apply_named(path, file=str(moved)).version == 2
    moved.unlink()
    with pytest.raises(UsageError, match="file to insert does not exist"):
        apply_named(path, file=str(moved))


def test_batch_without_effect_is_not_recorded(path: str) -> None:
    assert apply_named(path, DELETE, where="id = 3") == AppliedUpdate(0)
    write_deltalake(path, pa.table({"id": [3], "x": [3]}), mode="append")
    assert apply_named(path, DELETE, where="id = 3") == AppliedUpdate(2, deleted=1)


def test_recreated_table_has_no_batch(path: str) -> None:
    apply_named(path)
    recreated = pa.table({"id": [1], "x": [1]})
    DeltaTable.create(path, recreated.schema, mode="overwrite")
    assert open_source("t", path).version == 2
    assert apply_named(path).version == 3


def test_restore_removes_the_batch(path: str) -> None:
    apply_named(path)
    other_commit(path)
    DeltaTable(path).restore(1)
    assert apply_named(path) == IN_THE_TABLE
    DeltaTable(path).restore(0)
    assert ids(path) == [1, 2]
    assert apply_named(path) == AppliedUpdate(5, inserted=1)
    assert apply_named(path) == AppliedUpdate(5)
    assert ids(path) == [1, 2, 3]


def test_restore_to_unknown_version_is_ambiguous(path: str) -> None:
    apply_named(path)
    DeltaTable(path).restore(0)
    actions = handmade.actions_of(path, 2)
    for action in actions:
        if "commitInfo" in action:
            action["commitInfo"]["operationParameters"] = {"timestamp": "2026-11-01"}
    handmade.commit(path, 2, *actions)
    with pytest.raises(ImpctlError, match="the batch may or may not be in it") as caught:
        apply_named(path)
    assert caught.value.code == "batch_maybe_applied"
    assert apply_named(path, rows=({"id": 3, "x": 3},), again=True).version == 3


def test_checkpoints_keep_the_identity_when_the_log_is_cleaned_up(path: str) -> None:
    apply_named(path)
    other_commit(path)
    DeltaTable(path).create_checkpoint()
    for version in (0, 1):
        handmade.entry(path, version).unlink()
    other_commit(path)
    assert apply_named(path) == IN_THE_TABLE


def test_identities_expire_by_table_property(path: str) -> None:
    apply_named(path)
    expire_identities(path)
    assert apply_named(path).version == 3


def test_one_of_two_concurrent_runs_commits(path: str) -> None:
    request = UpdateRequest("t", INSERT, ({"id": 3, "x": 3},), name="b")
    one, two = (prepare_batch(open_target(path), request) for _ in range(2))
    assert commit_update(one).version == 1
    with pytest.raises(RetryableError, match="Another writer changed"):
        commit_update(two)
    assert commit_update(prepare_batch(open_target(path), request)) == IN_THE_TABLE
    assert ids(path) == [1, 2, 3]


def test_retry_after_failure_before_commit(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("impctl.tables.write.apply.write_deltalake", failing_write(after=False))
        with pytest.raises(ImpctlError):
            apply_named(path)
    assert apply_named(path) == AppliedUpdate(2, inserted=1)


def test_unreadable_log_is_retryable(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source("t", path)

    def failing_read(*_: object) -> None:
        raise OSError("Kernel error -> Generic LocalFileSystem error (os error 5)")

    monkeypatch.setattr(DeltaTable, "transaction_version", failing_read)
    with refused(StorageError, "storage_failed"):
        version_with(source, "batch")


NAMES = ("a", "b", "c", "never")


def batches_in(path: str, followed: TargetTable) -> dict[str, int | None]:
    """Versions of the batches; deltalake, a running and a new process must agree."""
    versions = {}
    for name in NAMES:
        request = UpdateRequest("t", INSERT, ({"id": 3, "x": 3},), name=name)
        new = prepare_batch(open_target(path), request)
        assert new.identity is not None
        versions[name] = version_with(new.source, new.identity)
        assert versions[name] == new.in_version == prepare_batch(followed, request).in_version
    return versions


def batch(name: str, **fields: Any) -> Callable[[str], object]:
    return lambda path: apply_named(path, rows=({"id": 3, "x": 3},), name=name, **fields)


def without_first(entries: int) -> Callable[[str], object]:
    """Delete the first log entries."""
    return lambda path: [entry(path, version).unlink(missing_ok=True) for version in range(entries)]


def checkpoint(path: str) -> None:
    DeltaTable(path).create_checkpoint()


def expire_identities(path: str) -> None:
    keeping = {"delta.setTransactionRetentionDuration": "interval 0 seconds"}
    DeltaTable(path).alter.set_table_properties(keeping)


STEPS: dict[str, list[Callable[[str], object]]] = {
    "others between": [batch("a"), other_commit, batch("b")],
    "again": [batch("a"), other_commit, batch("a", again=True)],
    "restored": [
        *(batch("a"), batch("b"), lambda path: DeltaTable(path).restore(1)),
        *(batch("b"), lambda path: DeltaTable(path).restore(0)),
    ],
    "checkpoint": [
        *(batch("a"), checkpoint, batch("b"), without_first(1), without_first(2), batch("c")),
    ],
    "forgotten": [batch("a"), expire_identities, batch("b")],
}


@pytest.mark.slow
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS.keys())
def test_followed_batches_match_a_new_read(path: str, steps: list[Callable[[str], object]]) -> None:
    followed = open_target(path)
    assert set(batches_in(path, followed).values()) == {None}
    result = []
    for step in steps:
        step(path)
        result.append(batches_in(path, followed))
    assert any(version is not None for versions in result for version in versions.values())
    assert {versions["never"] for versions in result} == {None}


@pytest.mark.parametrize("most", [0, 300])
def test_damaged_or_many_entries_use_deltalake(
    path: str, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(apply, "_MOST_ENTRIES", most)
    followed = open_target(path)
    for step in (batch("a"), other_commit, checkpoint):
        step(path)
    entry(path, 0).write_text("{")
    other_commit(path)
    assert batches_in(path, followed) == {"a": 1, "b": None, "c": None, "never": None}


KINDS: dict[UpdateKind, dict[str, Any]] = {
    INSERT: {"rows": ({"id": 9},)},
    UPDATE: {"where": "id = 1", "assignments": {"x": "x + 1"}},
    DELETE: {"where": "id = 1"},
}


def open_target(path: str) -> TargetTable:
    return TargetTable(open_source("t", path))


def append_rows(path: str, *, mode: Any = "append") -> None:
    write_deltalake(path, ROWS, mode=mode)


def prepared(
    table: TargetTable, kind: UpdateKind = INSERT, name: str | None = "b"
) -> PreparedUpdate:
    return prepare_batch(table, UpdateRequest("t", kind, name=name, **KINDS[kind]))


def insert(table: TargetTable, name: str | None = "b") -> AppliedUpdate:
    return commit_update(prepared(table, name=name))


def test_table_and_entries_are_read_once(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    for name in ("DeltaTable", "read_entry"):
        act = getattr(source_module, name)

        def counted(*args: Any, act: Any = act, **options: Any) -> Any:
            calls.append("opened" if act is DeltaTable else args[1])
            return act(*args, **options)

        monkeypatch.setattr(source_module, name, counted)
    append_rows(path)
    table = open_target(path)
    assert [insert(table, f"b{i}").version for i in range(3)] == [2, 3, 4]
    append_rows(path)
    assert commit_update(prepared(table, UPDATE)).version == 6
    assert commit_update(prepared(table, DELETE)).version == 7
    assert insert(table, "never").version == 8
    # The run's own entries are not read.
    assert calls == ["opened", 0, 1, 5]
    assert insert(table, "b1") == AppliedUpdate(3)
    assert calls.count("opened") == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["b", None])
def test_other_commits_in_between_are_seen(path: str, name: str | None) -> None:
    table = open_target(path)
    insert(table, None if name is None else "a")
    append_rows(path)
    before = prepared(table, DELETE, name)
    assert (before.source.version, before.matched and before.matched.rows) == (2, 2)
    assert commit_update(before) == AppliedUpdate(3, deleted=2)
    append_rows(path)
    assert prepared(table, DELETE, "c").source.version == 4


def test_batch_of_another_run_is_skipped(path: str) -> None:
    table = open_target(path)
    insert(table, "a")
    insert(open_target(path), "b")
    assert insert(table, "b") == AppliedUpdate(2)


@pytest.mark.parametrize(
    "kind", [INSERT, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (UPDATE, DELETE))]
)
@pytest.mark.parametrize(("has_own_commit", "commits"), [(True, 0), (True, 1), (False, 4)])
def test_replaced_table_is_not_written(
    path: str, kind: UpdateKind, has_own_commit: bool, commits: int
) -> None:
    table = open_target(path)
    if has_own_commit:
        insert(table, "a")
    ready = prepared(table, kind)
    shutil.rmtree(path)
    write_deltalake(path, ROWS)
    for _ in range(commits):
        append_rows(path)
    with pytest.raises(TableRecreatedError) as raised:
        commit_update(ready)
    assert DeltaTable(path).version() == commits
    assert "nothing was written to it; to write to it, run" in str(raised.value.hint)


@pytest.mark.parametrize("has_own_commit", [False, True])
def test_diverged_backup_is_not_written(path: str, has_own_commit: bool) -> None:
    table = open_target(path)
    shutil.copytree(path, path + "-backup")
    if has_own_commit:
        insert(table, "a")
    else:
        append_rows(path)
    ready = prepared(table)
    shutil.rmtree(path)
    shutil.move(path + "-backup", path)
    for _ in range(2):
        append_rows(path)
    assert str(DeltaTable(path).metadata().id) == ready.source.table_id
    with pytest.raises(TableRecreatedError):
        commit_update(ready)
    assert DeltaTable(path).version() == 2


def test_table_replaced_between_batches_is_used(path: str) -> None:
    table = open_target(path)
    insert(table, "a")
    shutil.copytree(path, path + "-backup")
    insert(table, "b")
    shutil.rmtree(path)
    shutil.move(path + "-backup", path)
    # The backup lacks `b`, although the run wrote it.
    assert insert(table, "b") == AppliedUpdate(2, inserted=1)
    shutil.rmtree(path)
    write_deltalake(path, ROWS.select(["id"]))
    for _ in range(4):
        write_deltalake(path, ROWS.select(["id"]), mode="append")
    assert insert(table, "b") == AppliedUpdate(5, inserted=1)
    assert DeltaTable(path).to_pyarrow_table().column_names == ["id"]


def test_diverged_backup_between_batches_is_read_again(path: str) -> None:
    table = open_target(path)
    shutil.copytree(path, path + "-backup")
    insert(table, "a")
    shutil.rmtree(path)
    shutil.move(path + "-backup", path)
    for _ in range(2):
        append_rows(path)
    result = prepared(table, DELETE)
    # Rows of the removed log, such as that of `a`, do not count.
    assert result.table.snapshot().rows == DeltaTable(path).count() == 6
    assert commit_update(result) == AppliedUpdate(3, deleted=3)


def test_batch_committed_just_before_is_found(path: str) -> None:
    table = open_target(path)
    insert(table, "a")
    ready = prepared(table)
    insert(open_target(path), "x")
    assert commit_update(ready) == AppliedUpdate(3, inserted=1)
    assert insert(table, "x") == AppliedUpdate(2)


def test_cleaned_entry_stops_no_run(path: str) -> None:
    table = open_target(path)
    insert(table, "a")
    append_rows(path)
    DeltaTable(path).create_checkpoint()
    for version in (0, 1):
        entry(path, version).unlink()
    assert insert(table, "c") == AppliedUpdate(3, inserted=1)
    assert insert(table, "a") == AppliedUpdate(1)


def test_missing_entry_falls_back_to_the_table(path: str) -> None:
    append_rows(path)
    ready = prepared(open_target(path))
    text = entry(path, 1).read_text()
    entry(path, 1).unlink()
    with pytest.raises(TableRecreatedError):
        ready.table.check_unmoved()  # at version 0 again
    entry(path, 1).write_text(text)
    ready.table.check_unmoved()


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(UpdateKind))
def test_own_files_are_copied_faithfully(path: str, kind: UpdateKind) -> None:
    """The run assumes this of its own files."""
    table = open_target(path)
    for i, each in enumerate((INSERT, UPDATE, kind)):
        commit_update(prepared(table, each, f"b{i}"))
    assert not miscopied_columns(open_source("t", path).snapshot()).columns


def test_files_of_others_are_checked(path: str) -> None:
    table = open_target(path)
    commit_update(prepared(table, UPDATE, "a"))
    prepared(table, DELETE, "looks at all")
    file = handmade.added(Path(path), "a.parquet", pa.table({"ID": [4], "x": [4]}))
    handmade.commit(path, 2, file)
    insert(table, "c")
    with pytest.raises(TableError, match="writes the name of column `id`"):
        prepared(table, DELETE)


def test_errors_after_commit_do_not_fail_the_batch(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = open_target(path)
    ready = prepared(table, name=None)
    read = apply.read_entry

    def broken(source: Any, version: int) -> str:
        if version == 1:
            raise OSError("the network is down")
        return read(source, version)

    with monkeypatch.context() as patch:
        patch.setattr(apply, "read_entry", broken)
        assert commit_update(ready) == AppliedUpdate(1, inserted=1)
    # Without that entry, the table is opened again to check its identity.
    assert insert(table, "c") == AppliedUpdate(2, inserted=1)


def test_run_continues_after_commit_despite_failure(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = open_target(path)
    with monkeypatch.context() as patch:
        patch.setattr("impctl.tables.write.apply.write_deltalake", failing_write(after=True))
        assert insert(table, "a") == AppliedUpdate(1, inserted=1)
    assert insert(table, "a") == AppliedUpdate(1)
    assert commit_update(prepared(table, DELETE)) == AppliedUpdate(2, deleted=1)
    assert DeltaTable(path).count() == 2


def test_stamp_identifies_one_commit(path: str) -> None:
    table = open_target(path)
    insert(table, "a")
    ready = prepared(table)
    actions = handmade.actions_of(path, 1)
    for action in actions:
        if "txn" in action:
            action["txn"]["lastUpdated"] += 1
    handmade.commit(path, 1, *actions)
    with pytest.raises(TableRecreatedError):
        commit_update(ready)


def test_not_null_columns_refuse_null(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("v", pa.int64(), nullable=False), ("w", pa.int64())])
    write_deltalake(str(tmp_path), pa.table({"v": [1], "w": [None]}, schema=schema))
    for value in ("NULL", "w"):
        request = UpdateRequest("t", UPDATE, assignments={"v": value})
        with pytest.raises(UsageError, match="`t.v` is NOT NULL, but a row has no value"):
            apply_update(open_source("t", str(tmp_path)), request)
    assert open_source("t", str(tmp_path)).version == 0
