"""The public store: commits are atomic and can be read back."""

from __future__ import annotations

import shutil
import sqlite3
import stat
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace

from impctl.data.schema import DOUBLE, LONG, STRING, decimal
from impctl.errors import ImpctlError, RetryableError, StateCorruptError, StorageError, UsageError
from impctl.sketch.sketch import RangePartition, RangeSet
from impctl.store.disk import RealDisk
from impctl.store.records import Collected, Leftover, NewCapture, StoredSketch
from impctl.store.store import Store
from tests.store.builders import (
    ACCESS,
    FAILURES,
    LARGE,
    PARTITION,
    Crash,
    FailingDisk,
    capture,
    maintain,
    no_space,
    pin,
    ranges,
    record,
    referenced,
    rows,
    run_names,
    sketches_at,
    state_of,
    steps_to_fail,
)
from tests.support.kept_workload import in_catalog
from tests.support.run_cli import refused


def test_capture_round_trip(root: Path) -> None:
    saved = capture()
    with Store.open(root) as store:
        assert store.commit_capture(saved, {}, record("capture")) == 1
    with Store.open(root, create=False) as store:
        copy = store.load("q")
        assert copy is not None
        assert store.queries() == ("q",)
    keys = ("query", "fingerprint", "sql", "mode", "pins", "sketches", "assumptions", "state_meta")
    assert {name: getattr(copy, name) for name in keys} == {n: getattr(saved, n) for n in keys}
    assert (copy.query, copy.fingerprint, copy.sql, copy.mode) == ("q", "f-1", "SELECT 1", "exact")
    assert (copy.generation, copy.versions) == (1, {"sales": 0})
    assert copy.captured_at == copy.maintained_at > 0


@pytest.mark.parametrize(
    "partition",
    [
        RangePartition("t", "d", DOUBLE, (float("-inf"), -0.1, 1e-320, 0.1, float("inf"))),
        RangePartition("t", "s", STRING, ("", "a\n\"'", "ü", "\U0001f600")),
        RangePartition("t", "w", decimal(38, 2), (-(10**37), 2**53 + 1, 10**37)),
        RangePartition("t", "b", STRING, (b"\x00", b"\xff\xfe")),
        RangePartition("t", "n", STRING, ()),
    ],
)
def test_partition_round_trip(root: Path, partition: RangePartition) -> None:
    sketch = StoredSketch("t#1", "t", "x", partition, RangeSet.of([0], partition.size))
    stored = replace(capture(), pins=(pin(3, "t"),), sketches=(sketch,))
    with Store.open(root) as store:
        store.commit_capture(stored, {}, record())
        loaded = store.load("q")
    assert loaded.sketches == (sketch,)
    assert [type(b) for b in loaded.sketches[0].partition.boundaries] == [
        type(b) for b in partition.boundaries
    ]


def test_absent_store_is_empty_and_not_created(root: Path) -> None:
    assert not Store.exists(root)
    with Store.open(root, create=False) as store:
        assert store.load("q") is store.load_kept("q", 1) is None
        assert store.queries() == store.history("q") == store.kept("q") == ()
        assert state_of(store, "q") == {}
        with pytest.raises(UsageError) as caught:
            store.commit_capture(capture(), {}, record())
    assert caught.value.hint
    assert not root.exists()


def test_files_are_private(store: Store, root: Path) -> None:
    store.commit_capture(capture(), {"agg": [(0, rows(LARGE))]}, record())
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [root, *root.rglob("*")]}
    folders = {name: mode for name, mode in modes.items() if name in (".impctl", "state")}
    assert set(folders.values()) == {0o700}
    assert {mode for name, mode in modes.items() if name not in folders} == {0o600}
    assert "catalog.sqlite-wal" in modes


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1, 5, 1000, LARGE, 3 * LARGE + 1])
def test_run_round_trip(root: Path, count: int) -> None:
    stored = rows(count)
    with Store.open(root) as store:
        store.commit_capture(capture(), {"agg": [(4, stored), (2, rows(3))]}, record())
        state = state_of(store, "q")
        refs = store.run_refs("q")
    assert list(state) == ["agg"]
    assert [sequence for sequence, _ in state["agg"]] == [2, 4]
    assert state["agg"][1][1].equals(stored)
    assert [(ref.sequence, ref.rows, ref.is_file) for ref in refs] == [
        (2, 3, False),
        (4, count, count >= LARGE),
    ]


def test_chunked_and_sliced_rows_are_stored_whole(root: Path) -> None:
    stored = pa.concat_tables([rows(LARGE, 1).slice(7), rows(5, 2)])
    with Store.open(root) as store:
        runs = {"a": [(0, stored)], "b": [(0, rows(9).slice(3, 2))]}
        store.commit_capture(capture(), runs, record())
        state = state_of(store, "q")
    assert state["a"][0][1].equals(stored)
    assert all(column.num_chunks == 1 for column in state["a"][0][1].itercolumns())
    assert state["b"][0][1].equals(rows(9).slice(3, 2))


def test_maintain_commits_sketch_state_and_version(store: Store) -> None:
    first = store.commit_capture(capture(), {"agg": [(0, rows(5))]}, record("capture"))
    change = maintain(first, 7, (1, 2, 3), put=(("agg", 1, rows(2, 1)), ("top", 0, rows(1))))
    second = store.commit_maintain(change)
    stored = store.load("q")
    state = state_of(store, "q")
    assert second == stored.generation == first + 1
    assert (stored.versions, stored.state_meta) == ({"sales": 7}, {"at": 7})
    (sketch,) = stored.sketches
    assert (sketch.ranges, sketch.partition) == (ranges(1, 2, 3), PARTITION)
    assert stored.assumptions == capture().assumptions
    assert [sequence for sequence, _ in state["agg"]] == [0, 1]
    assert state["top"][0][1].equals(rows(1))


def test_dropped_and_replaced_files_are_removed_at_once(store: Store, root: Path) -> None:
    runs = {"agg": [(0, rows(LARGE)), (1, rows(LARGE, 1)), (2, rows(LARGE, 2))]}
    generation = store.commit_capture(capture(), runs, record())
    assert len(run_names(root)) == 3
    mapped = state_of(store, "q")["agg"][0][1]
    change = maintain(generation, 1, put=(("agg", 1, rows(LARGE, 9)),), drop=(("agg", 0),))
    store.commit_maintain(change)
    result = state_of(store, "q")["agg"]
    assert len(run_names(root)) == 2
    assert mapped.equals(rows(LARGE))  # a mapped run stays readable after removal
    assert [sequence for sequence, _ in result] == [1, 2]
    assert result[0][1].equals(rows(LARGE, 9))


def test_a_run_may_be_dropped_and_put_in_one_commit(store: Store, root: Path) -> None:
    generation = store.commit_capture(capture(), {"agg": [(0, rows(LARGE))]}, record())
    store.commit_maintain(maintain(generation, 1, put=(("agg", 0, rows(4)),), drop=(("agg", 0),)))
    assert state_of(store, "q")["agg"][0][1].equals(rows(4))
    assert run_names(root) == set()


def test_another_writer_in_between_is_noticed(root: Path) -> None:
    with Store.open(root) as store, Store.open(root) as other:
        generation = store.commit_capture(capture(), {}, record())
        other.commit_maintain(maintain(generation, 1, (1,)))
        with refused(RetryableError, "generation_moved", "generation 2"):
            store.commit_maintain(maintain(generation, 2, (0,), put=(("a", 0, rows(LARGE)),)))
        assert store.load("q").versions == {"sales": 1}
    assert run_names(root) == set()


def test_a_recaptured_query_never_repeats_a_generation(store: Store) -> None:
    old = store.commit_capture(capture(), {}, record())
    assert store.commit_capture(replace(capture(version=5), fingerprint="f-2"), {}, record()) > old
    with pytest.raises(RetryableError):
        store.commit_maintain(maintain(old, 1, (0,)))


def test_capture_keeps_state_of_other_queries(store: Store, root: Path) -> None:
    store.commit_capture(capture(), {"agg": [(0, rows(LARGE))]}, record())
    store.commit_capture(capture("other"), {"agg": [(0, rows(LARGE))]}, record())
    store.commit_capture(capture(version=1), {}, record())
    assert store.queries() == ("other", "q")
    assert state_of(store, "q") == {}
    assert len(run_names(root)) == referenced(store, "other") == 1
    assert state_of(store, "other")["agg"][0][1].equals(rows(LARGE))


def test_recapture_replaces_state_and_keeps_old_versions_usable(store: Store, root: Path) -> None:
    first = store.commit_capture(capture(), {"agg": [(0, rows(LARGE))]}, record())
    store.commit_maintain(maintain(first, 1, (1,)))
    store.commit_capture(capture(version=2, ids=(0,)), {"new": [(0, rows(2))]}, record())
    assert list(state_of(store, "q")) == ["new"]
    assert [_ids_at(store, version) for version in (0, 1, 2)] == [(2, 3), (1,), (0,)]
    assert run_names(root) == set()


@pytest.mark.parametrize(
    "change",
    [{"fingerprint": "f-2"}, {"pins": (pin(2, table_id="t-2"),)}],
    ids=["another query", "another table"],
)
def test_recapture_of_another_query_drops_versions(store: Store, change: dict[str, object]) -> None:
    store.commit_capture(capture(), {}, record())
    store.commit_capture(replace(capture(version=2), **change), {}, record())  # type: ignore[arg-type]
    assert (_ids_at(store, 0), _ids_at(store, 2)) == (None, (2, 3))


def test_kept_versions_have_their_sketch_and_basis(store: Store, root: Path) -> None:
    generation = store.commit_capture(capture(ids=(1,)), {}, record())
    for version, ids in ((1, None), (2, (1,)), (3, (1, 2)), (5, None)):
        generation = store.commit_maintain(maintain(generation, version, ids))
    ids = [_ids_at(store, version) for version in range(7)]
    assert ids == [(1,), (1,), (1,), (1, 2), None, (1, 2), None]
    assert store.kept("q", {"other": 1}) == store.kept("q", {"sales": 1, "other": 1}) == ()
    assert store.kept("other") == ()
    kept = store.kept("q")
    assert [one.versions["sales"] for one in kept] == [5, 3, 2, 1, 0]
    assert all(one.basis == {"at": one.versions["sales"]} for one in kept)
    assert in_catalog(root, "SELECT count(*) FROM sketch") == [(2,)]


def test_kept_version_has_assumptions_of_its_capture(store: Store) -> None:
    first = store.commit_capture(capture(), {}, record())
    later = store.commit_maintain(maintain(first, 1))
    store.commit_capture(replace(capture(version=2), assumptions=()), {}, record())
    for generation in (first, later):
        kept = store.load_kept("q", generation)
        assert (kept.assumptions, kept.generation) == (capture().assumptions, generation)
    assert store.load("q").assumptions == ()


def test_same_versions_may_be_kept_twice(store: Store) -> None:
    first = store.commit_capture(capture(ids=(1,)), {}, record())
    second = store.commit_capture(capture(ids=(2,)), {}, record())
    assert [kept.generation for kept in store.kept("q", {"sales": 0})] == [second, first]
    ids = [store.load_kept("q", one).sketches[0].ranges.ids for one in (first, second)]  # type: ignore[union-attr]
    assert ids == [(1,), (2,)]


def test_commit_without_basis_is_not_kept(store: Store, root: Path) -> None:
    first = store.commit_capture(replace(capture(), basis=None), {}, record())
    store.commit_maintain(maintain(first, 1))
    assert [kept.versions for kept in store.kept("q")] == [{"sales": 1}]
    assert store.load_kept("q", first) is None
    store.commit_capture(replace(capture(), fingerprint="f-2", basis=None), {}, record())
    assert store.kept("q") == ()
    assert in_catalog(root, "SELECT count(*) FROM sketch_basis") == [(0,)]


def test_history_is_newest_first_and_outlives_recapture(root: Path) -> None:
    with Store.open(root) as store:
        store.commit_maintain(maintain(store.commit_capture(capture(), {}, record("capture")), 1))
        store.amend_record("q", replace(record("exact", 1), commit_ms=0.25))
        store.add_record("q", record("none", 1))
        store.commit_capture(capture(version=1), {}, record("recapture", 1))
        store.add_record("unknown", record("none"))
    with Store.open(root, create=False) as store:
        history = store.history("q")
        assert [entry.action for entry in history] == ["recapture", "none", "exact", "capture"]
        assert history[2].commit_ms == 0.25
        assert history[0] == record("recapture", 1)
        assert store.history("q", 1) == history[:1]


def test_readers_see_last_commit_during_a_write(root: Path) -> None:
    with Store.open(root) as writer, Store.open(root, create=False) as reader:
        generation = writer.commit_capture(capture(), {}, record())
        with writer.lock(1), writer._catalog.writing():
            stored = reader.load("q")
        assert stored.generation == generation


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"sketches": (("sales#9", ranges(0)),)}, "access_unknown"),
        ({"sketches": ((ACCESS, RangeSet.of([0], 99)),)}, "sketch_size"),
        ({"drop_runs": (("agg", 17),)}, "run_unknown"),
        ({"pins": ()}, "pins_differ"),
        ({"pins": (pin(1, table_id="t-2"),)}, "pins_differ"),
        ({"pins": (pin(1), pin(1, "other"))}, "pins_differ"),
    ],
)
def test_mismatched_commits_are_refused(
    store: Store, root: Path, change: dict[str, object], code: str
) -> None:
    generation = store.commit_capture(capture(), {"agg": [(0, rows(3))]}, record())
    before = store.load("q")
    wrong = replace(maintain(generation, 1, (0,), put=(("agg", 1, rows(LARGE)),)), **change)  # type: ignore[arg-type]
    with refused(ImpctlError, code):
        store.commit_maintain(wrong)
    assert store.load("q") == before
    assert len(store.run_refs("q")) == 1
    assert run_names(root) == set()


def test_a_commit_writes_in_proportion_to_the_change(store: Store, root: Path) -> None:
    runs = {"agg": [(0, rows(20 * LARGE))], "small": [(i, rows(2000, i)) for i in range(50)]}
    generation = store.commit_capture(capture(), runs, record())
    log = root / "catalog.sqlite-wal"
    store.collect()
    assert log.stat().st_size == 0
    store.commit_maintain(maintain(generation, 1, (0, 1), put=(("agg", 1, rows(10)),)))
    assert log.stat().st_size < 60_000
    assert len(run_names(root)) == 1


def test_use_after_close_is_an_error(root: Path) -> None:
    store = Store.open(root)
    store.close()
    with pytest.raises(StorageError):
        store.load("q")


def test_missing_run_file_is_named(store: Store, root: Path) -> None:
    store.commit_capture(capture(), {"agg": [(0, rows(LARGE))]}, record())
    name = run_names(root).pop()
    (root / "state" / name).unlink()
    with pytest.raises(StateCorruptError, match=name) as caught:
        state_of(store, "q")
    assert "`q`" in caught.value.message
    assert "capture" in (caught.value.hint or "")


QUERIES = ("a", "b", "c")


def prepare(root: Path) -> Path:
    with Store.open(root) as store:
        for query in QUERIES:
            store.commit_capture(capture(query), {"agg": [(0, rows(LARGE))]}, record("capture"))
    return root


def move(store: Store, query: str, generation: int = 1) -> None:
    put = (("agg", generation, rows(LARGE, generation)),)
    dropped = (("agg", generation - 1),)
    store.commit_maintain(maintain(generation, generation, (0,), put, dropped, query))


def generations(root: Path) -> list[int]:
    """The generation of each query; checks state and that no unreferenced files exist."""
    with Store.open(root) as store, store.lock(1.0):
        result = []
        for query in QUERIES:
            stored = store.load(query)
            ((_, table),) = state_of(store, query)["agg"]
            assert table.equals(rows(LARGE, stored.generation - 1))
            assert stored.versions == {"sales": stored.generation - 1}
            result.append(stored.generation)
        assert len(run_names(root)) == sum(referenced(store, query) for query in QUERIES)
        return result


class Counting(RealDisk):
    """Counts the commits that are synced."""

    commits = 0

    def commit(self, connection: sqlite3.Connection) -> None:
        self.commits += 1
        super().commit(connection)


def test_many_commits_are_synced_once(tmp_path: Path) -> None:
    root, disk = prepare(tmp_path / "s"), Counting()
    with Store.open(root, disk=disk) as store, store.lock(1.0):
        with store.together():
            assert store.load("a") is not None
            for query in QUERIES:
                move(store, query)
                move(store, query, 2)
                assert store.load(query).generation == 3
            with Store.open(root, create=False) as reader:
                assert reader.load("a").generation == 1
            assert disk.commits == 0
        assert disk.commits == 1
    assert generations(root) == [3, 3, 3]


def test_failed_commit_rolls_back_alone(tmp_path: Path) -> None:
    root = prepare(tmp_path / "s")
    with Store.open(root) as store, store.lock(1.0), store.together():
        move(store, "a")
        with pytest.raises(RetryableError):
            store.commit_maintain(maintain(7, 1, (0,), (("new", 0, rows(LARGE)),), (), "b"))
        move(store, "c")
    assert generations(root) == [2, 1, 2]


def interrupted_transaction(store: Store) -> None:
    with store.together():
        move(store, "a")
        raise KeyboardInterrupt


def test_commits_before_an_interrupt_are_kept(tmp_path: Path) -> None:
    root = prepare(tmp_path / "s")
    with Store.open(root) as store, store.lock(1.0):
        with pytest.raises(KeyboardInterrupt):
            interrupted_transaction(store)
        move(store, "b")
    assert generations(root) == [2, 2, 1]


def test_collectable_changes_nothing(tmp_path: Path) -> None:
    root = prepare(tmp_path / "s")
    with Store.open(root) as store, store.lock(1.0), store.together():
        move(store, "a")
        assert store.collectable(keep=1).versions
        assert len(store.kept("a")) == 2
    with Store.open(root) as store:
        assert len(store.kept("a")) == 2


@FAILURES
def test_transaction_is_atomic_at_each_failing_step(
    tmp_path: Path, failure: type[Crash], late: bool
) -> None:
    master = prepare(tmp_path / "prepared")
    probe = FailingDisk(no_space)
    shutil.copytree(master, tmp_path / "probe")
    maintain_together(tmp_path / "probe", probe, -1)
    assert {"create", "sync", "sync_folder", "begin", "commit", "remove"} <= set(probe.steps)
    assert probe.steps.count("commit") == 1
    outcomes = set()
    for i, step in steps_to_fail(probe.steps):
        root = tmp_path / f"{i}"
        shutil.copytree(master, root)
        disk, done = FailingDisk(failure, late=late), True
        try:
            maintain_together(root, disk, i)
        except (Crash, StorageError):
            done = False
        stored = generations(root)
        is_one = failure is Crash or step == "commit"
        assert len(set(stored)) == 1 if is_one else stored == sorted(stored, reverse=True), (
            step,
            stored,
        )
        assert not done or stored == [2, 2, 2], (step, stored)
        outcomes.add(stored[0])
    assert outcomes == {1, 2}


def maintain_together(root: Path, disk: FailingDisk, failing_step: int) -> None:
    """Maintain all queries in one transaction, with a failure at a step."""
    store = Store.open(root, disk=disk)
    try:
        with store.lock(1.0):
            disk.arm(failing_step)
            with store.together():
                for query in QUERIES:
                    move(store, query)
    finally:
        disk.at = -1
        store.close()


def rolled_back_transaction(store: Store) -> None:
    with store.together():
        move(store, "a")
        # SQLite does this itself if the disk is full.
        with store._catalog.writing() as connection:
            connection.execute("ROLLBACK")
        with pytest.raises(StorageError, match="rolled back"):
            move(store, "b")


def test_transaction_ended_by_sqlite_rolls_back_all(tmp_path: Path) -> None:
    root = prepare(tmp_path / "s")
    fails = pytest.raises(StorageError, match="rolled back")
    with Store.open(root) as store, store.lock(1.0), fails:
        rolled_back_transaction(store)
    assert generations(root) == [1, 1, 1]


def test_next_commit_notices_missing_runs(tmp_path: Path) -> None:
    root = prepare(tmp_path / "s")
    in_catalog(root, "DELETE FROM run WHERE query_id = 1")
    with Store.open(root) as store, pytest.raises(StateCorruptError):
        store.commit_maintain(maintain(1, 1, (0,), query="a"))


def _ids_at(store: Store, version: int) -> tuple[int, ...] | None:
    sketches = sketches_at(store, {"sales": version})
    return None if sketches is None else sketches[0].ranges.ids


def _over_other_ranges(query: str) -> NewCapture:
    """A capture of another definition, over another partition."""
    other = RangePartition("sales", "price", LONG, (1, 2))
    sketch = StoredSketch(ACCESS, "sales", "price", other, RangeSet.of((0,), other.size))
    return replace(capture(query), fingerprint="f-2", sketches=(sketch,))


@pytest.mark.slow
def test_latest_sketch_versions_are_kept(root: Path) -> None:
    changes = {3: (1,), 7: (1, 2), 20: (0,)}
    with Store.open(root) as store:
        generation = store.commit_capture(capture(ids=(4,)), {}, record())
        for version in range(1, 31):
            generation = store.commit_maintain(maintain(generation, version, changes.get(version)))
        before = {version: _ids_at(store, version) for version in range(31)}
        collectable = store.collectable(20)
        assert {version: _ids_at(store, version) for version in range(31)} == before
        assert store.collect(keep=20) == collectable
        ((old, count, size),) = [(o.query, o.count, o.bytes) for o in collectable.versions]
        assert (old, count) == ("q", 11)
        assert size > 11 * len('{"sales": 0}')
        after = {version: _ids_at(store, version) for version in range(31)}
        assert store.collect(keep=20) == Collected()
    assert after == {v: ids if v >= 11 else None for v, ids in before.items()}
    assert after[11] == (1, 2)


@pytest.mark.parametrize("keep", [0, 1])
def test_current_sketch_is_never_collected(store: Store, keep: int) -> None:
    store.commit_maintain(maintain(store.commit_capture(capture(), {}, record()), 1))
    store.collect(keep=keep)
    assert _ids_at(store, 1) == (2, 3)
    assert _ids_at(store, 0) is None
    assert store.load("q") is not None


def test_old_sketches_and_partitions_are_collected(store: Store) -> None:
    store.commit_capture(capture("other"), {}, record())
    store.commit_maintain(maintain(store.commit_capture(capture(), {}, record()), 1, (0,)))
    store.commit_capture(capture(version=2, ids=(1,)), {}, record())
    assert [old.count for old in store.collect(keep=1).versions] == [2]
    assert _ids_at(store, 2) == (1,)
    store.commit_capture(_over_other_ranges("q"), {}, record())
    assert store.collect().partitions == 0  # the other query has the same
    store.commit_capture(_over_other_ranges("other"), {}, record())
    collect = store.collect()
    assert collect.partitions == 1
    assert collect.partition_bytes > 50


def test_only_run_files_without_a_run_are_removed(store: Store, root: Path) -> None:
    store.commit_capture(capture(), {"agg": [(0, rows(LARGE))]}, record())
    (used,) = run_names(root)
    with store.lock(0):
        (root / "state" / "left.arrow").write_bytes(b"12345")
        (root / "state" / "notes.txt").write_text("mine")
        leftover = root / "state" / "left.arrow"
        assert store.collectable().files == (Leftover(leftover, 5),)
        assert run_names(root) == {used, "left.arrow", "notes.txt"}
        collect = store.collect()
    assert collect.files == (Leftover(leftover, 5, removed=True),)
    assert run_names(root) == {used, "notes.txt"}


def test_unremovable_file_is_reported(root: Path) -> None:
    disk = FailingDisk(no_space)
    with Store.open(root, disk=disk) as store:
        store.commit_capture(capture(), {"agg": [(0, rows(LARGE))]}, record())
        for name in ("a.arrow", "b.arrow"):
            (root / "state" / name).write_bytes(b"12345")
        disk.arm(1)  # the first removal is after the note on the lock
        assert [file.removed for file in store.collect().files] == [False, True]
        assert (root / "state" / "a.arrow").exists()
        disk.arm(-1)
        assert [file.path.name for file in store.collect().files] == ["a.arrow"]


def test_collecting_frees_space(store: Store, root: Path) -> None:
    runs = {"agg": [(i, rows(2000, i)) for i in range(60)]}
    store.commit_capture(capture(), runs, record())
    store.collect()
    before = (root / "catalog.sqlite").stat().st_size
    store.commit_capture(capture(), {}, record())
    store.collect()
    assert (root / "catalog.sqlite").stat().st_size < before / 4
    assert store.load("q") is not None


def test_a_dry_run_on_an_absent_store_finds_nothing(root: Path) -> None:
    with Store.open(root, create=False) as store:
        collectable = store.collectable()
    assert collectable == Collected()
    assert not root.exists()
