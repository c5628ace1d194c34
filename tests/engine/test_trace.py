"""Arrangements, runs and indexes work like a dictionary, despite collisions and reloads."""

from __future__ import annotations

import gc
import math
import random
import weakref
from collections import Counter
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from impctl.data import keys as data_keys
from impctl.data import pages
from impctl.data.keys import group_rows, key_codes
from impctl.data.schema import DOUBLE, LONG, STRING, SqlType, decimal
from impctl.data.vector import Vector, from_arrow
from impctl.engine import trace
from impctl.engine.batch import Batch, repeating, united_neighbours
from impctl.engine.tags import RowTags
from impctl.engine.trace import Arrangement, RowIndex, Run, merge_runs, slices
from impctl.errors import InvariantError
from tests.support.circuits import save
from tests.support.paged_tables import stream_of, sums_of, table_in
from tests.support.random_cases import random_cases

KINDS: dict[str, tuple[SqlType, pa.DataType, list[object]]] = {
    "long": (LONG, pa.int64(), [None, 0, 1, -1, 2**63 - 1, 5, 6, 7]),
    "string": (STRING, pa.string(), [None, "", "a", "b", "é", "abc", "z" * 40]),
    "double": (DOUBLE, pa.float64(), [None, 0.0, 1.5, math.inf, -math.inf, math.nan]),
    "wide": (decimal(38, 0), pa.decimal128(38, 0), [None, 0, 1, 10**30, -(10**30), 2**64]),
}


def vector(kind: str, keys: list[object]) -> Vector:
    sql, arrow, _ = KINDS[kind]
    return from_arrow(pa.array(keys, arrow), sql)


@pytest.mark.parametrize("kind", KINDS)
@random_cases(12, 46, 1_000)
def test_find_and_gather_work_like_a_dictionary(kind: str, cases: range) -> None:
    pool = KINDS[kind][2]
    for seed in cases:
        rng = Random(f"{kind} {seed}")
        modulus = rng.choice((1, 2, 1000))
        arrangement = Arrangement("a", [KINDS[kind][0]], "rows")
        model: dict[str, int] = {}
        stored: dict[int, pa.Table] = {}
        for step in range(rng.randrange(15)):
            distinct = {repr(key): key for key in rng.choices(pool, k=rng.randrange(7))}
            rows = sorted(distinct.items(), key=lambda item: code_of(kind, item[1], modulus))
            codes = np.array([code_of(kind, key, modulus) for _, key in rows], dtype=np.int64)
            alive = [(step + len(name)) % 3 for name, _ in rows]
            values = {"rows": np.array(alive, dtype=np.int64)}
            arrangement.put(codes, [vector(kind, [key for _, key in rows])], values)
            model.update({name: count for (name, _), count in zip(rows, alive, strict=True)})
            if step % 4 == 3:
                save(arrangement, stored)
            if step % 8 == 3:
                arrangement = Arrangement("a", [KINDS[kind][0]], "rows")
                arrangement.load(stored.items())
        requested = rng.sample(pool, len(pool))
        codes = np.array([code_of(kind, key, modulus) for key in requested], dtype=np.int64)
        located = arrangement.find(codes, [vector(kind, requested)])
        result = arrangement.gather(located, "rows").tolist()
        assert result == [model.get(repr(key), 0) for key in requested], seed
        assert all(rows.tolist() == sorted(rows.tolist()) for _, rows, _ in located.parts)


def code_of(kind: str, key: object, modulus: int) -> int:
    """A stable code that collides according to `modulus`; NULL may collide with numbers."""
    if kind in ("long", "double") and key is not None:  # identified by their codes alone
        return int(key_codes([vector(kind, [key])], 1)[0])
    return sum(repr(key).encode()) % modulus


@random_cases(20, 50, 1_000)
def test_slices_have_the_newest_live_rows(cases: range) -> None:
    for seed in cases:
        rng = Random(f"slices {seed}")
        arrangement = Arrangement("a", (), "rows")
        model: dict[int, int] = {}
        for _ in range(rng.randrange(13)):
            put = {rng.randint(0, 40): rng.randint(0, 2) for _ in range(rng.randrange(9))}
            codes = np.array(sorted(put), dtype=np.int64)
            counts = np.array([put[int(code)] for code in codes], dtype=np.int64)
            arrangement.put(codes, (), {"rows": counts})
            model.update(put)
        requested = [(rng.randint(0, 40), rng.randint(0, 12)) for _ in range(rng.randrange(6))]
        low = np.array([start for start, _ in requested], dtype=np.int64)
        high = np.array([start + size for start, size in requested], dtype=np.int64)
        owners, codes, values = slices(arrangement.runs, low, high, "rows")
        expected = [
            (index, code, model[code])
            for index, (start, size) in enumerate(requested)
            for code in range(start, start + size)
            if model.get(code, 0) != 0
        ]
        result = list(zip(owners.tolist(), codes.tolist(), values.tolist(), strict=True))
        assert result == expected, seed


def test_many_puts_leave_few_runs() -> None:
    arrangement = Arrangement("a", (), "rows")
    for step in range(3000):
        arrangement.put(np.array([step], dtype=np.int64), (), {"rows": np.ones(1, dtype=np.int64)})
    assert len(arrangement.runs) <= 16
    assert arrangement.rows == 3000


def test_checkpoints_write_new_runs_and_drop_old_ones() -> None:
    arrangement = Arrangement("a", (), "rows")
    stored: dict[int, pa.Table] = {}
    for step in range(50):
        codes = np.arange(step, step + 3, dtype=np.int64)
        arrangement.put(codes, (), {"rows": np.full(3, step + 1, dtype=np.int64)})
        if step % 3 == 0:
            save(arrangement, stored)
            loaded = Arrangement("a", (), "rows")
            loaded.load(stored.items())
            assert [run.codes.tolist() for run in loaded.runs] == [
                run.codes.tolist() for run in arrangement.runs
            ]


KEYS = {
    "codes": (LONG, lambda code: code),
    "numbers": (LONG, lambda code: None if code == 3 else code),
    "texts": (STRING, lambda code: f"key {code}"),
}
"""Type of the keys, and a function from a code to its key."""


def random_run(random_: random.Random, sequence: int, kind: str = "codes") -> Run:
    codes = np.array(sorted(random_.sample(range(12), random_.randint(1, 8))), dtype=np.int64)
    rows = np.array([random_.choice([0, 1, 2]) for _ in codes], dtype=np.int64)
    values = {"rows": rows}
    if random_.random() < 0.5:
        values["sum"] = np.array([random_.random() for _ in codes])
    return Run(sequence, codes, (keys_of(codes, kind),), values)


def keys_of(codes: np.ndarray, kind: str) -> pa.Array:
    arrow = pa.large_string() if KEYS[kind][0] is STRING else pa.int64()
    return pa.array([KEYS[kind][1](code) for code in codes.tolist()], arrow)


def as_rows(run: Run, kind: str) -> list[tuple[int, int, float]]:
    none = np.zeros(len(run))
    columns = [run.codes, run.values.get("rows", none), run.values.get("sum", none)]
    assert run.keys[0].equals(keys_of(run.codes, kind))
    return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("is_oldest", [False, True])
def test_merged_runs_have_the_newest_row_of_each_key(is_oldest: bool, kind: str) -> None:
    for seed in range(100):
        random_ = random.Random(seed)
        runs = [random_run(random_, index + 1, kind) for index in range(random_.randint(2, 5))]
        merged = merge_runs(runs, [KEYS[kind][0]], "rows", is_oldest=is_oldest)
        newest = {row[0]: row for run in runs for row in as_rows(run, kind)}
        expected = [row for _, row in sorted(newest.items()) if row[1] or not is_oldest]
        assert as_rows(merged, kind) == expected
        assert merged.sequence == runs[-1].sequence


@pytest.mark.parametrize("is_oldest", [False, True])
def test_merged_runs_keep_different_keys_with_equal_codes(is_oldest: bool) -> None:
    def run(sequence: int, **rows: int) -> Run:
        values = {"rows": np.array([*rows.values()])}
        return Run(
            sequence, np.ones(len(rows), int), (pa.array([*rows], pa.large_string()),), values
        )

    runs = [run(1, a=1, b=1, c=5), run(2, b=2, a=0), run(3, c=4)]
    merged = merge_runs(runs, [STRING], "rows", is_oldest=is_oldest)
    rows = zip(merged.keys[0].to_pylist(), merged.values["rows"].tolist(), strict=True)
    assert dict(rows) == {"b": 2, "c": 4} | ({} if is_oldest else {"a": 0})


def test_keys_with_equal_codes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"k{number}" for number in range(9)]
    keys = from_arrow(pa.array(names), STRING)

    def few_codes(columns: list[Vector], length: int) -> np.ndarray:
        return np.array([int(text[1:]) // 3 for text in columns[0].values.to_pylist()])

    monkeypatch.setattr(data_keys, "key_codes", few_codes)
    arrangement = Arrangement("kept", (STRING,), "rows")
    arrangement.put(few_codes([keys], 9), [keys], {"rows": np.arange(1, 10)})
    order = np.array([8, 0, 4, 3, 7, 1, 2, 6, 5])
    requested = keys.take(order)
    located = arrangement.find(few_codes([requested], 9), [requested])
    assert arrangement.gather(located, "rows").tolist() == (order + 1).tolist()


@pytest.mark.parametrize("codes", [[1, 5, 9], [1, 5, 5], [5, 1, 9], [7], []])
def test_groups_of_sorted_and_unsorted_rows(codes: list[int]) -> None:
    column = Vector(LONG, np.array(codes, dtype=np.int64))
    grouping = group_rows([column], len(codes))
    assert grouping.codes.tolist() == sorted(set(codes))
    assert [codes[row] for row in grouping.first.tolist()] == sorted(set(codes))
    assert [grouping.codes.tolist()[index] for index in grouping.index().tolist()] == codes
    assert grouping.sizes().tolist() == [codes.count(code) for code in sorted(set(codes))]
    (leaders,) = grouping.leaders([column])
    assert leaders.values.tolist() == sorted(set(codes))
    assert grouping.is_each_alone == (codes in ([1, 5, 9], [7]))


def test_group_codes_do_not_share_memory() -> None:
    column = Vector(LONG, np.arange(10))
    assert not np.shares_memory(group_rows([column], 10).codes, column.values)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 40])
def test_slices_of_any_length_have_all_their_rows(length: int) -> None:
    arrangement = Arrangement("kept", (), "count")
    for part in range(2):
        codes = np.arange(part, 400, 2)
        arrangement.put(codes, (), {"count": np.ones(len(codes), dtype=np.int64)})
    low = np.array([0, 90, 398, 399, 500])
    owners, codes, _ = slices(arrangement.runs, low, low + length, "count")
    expected = [
        (index, code)
        for index, start in enumerate(low.tolist())
        for code in range(start, min(start + length, 400))
    ]
    assert list(zip(owners.tolist(), codes.tolist(), strict=True)) == expected


ROWS = 4000


def altered_arrangement(altered: str | None, row: int = 0) -> Arrangement:
    """Rows 0 to 3,999 with value 1; the last bit of column `altered` in `row` is flipped."""
    table = pa.table({"code": np.arange(ROWS) * 2, "rows": np.ones(ROWS, dtype=np.int64)})
    whole = stream_of(table)
    data = bytearray(whole)
    content = pa.py_buffer(data)
    result = table_in(content)
    if altered is not None:
        (chunk,) = result.column(altered).chunks
        data[chunk.buffers()[1].address - content.address + 8 * row] ^= 1
    checked = pages.CheckedPages(content, sums_of(whole), lambda: InvariantError("altered"))
    arrangement = Arrangement("a", (), "rows")
    arrangement.load([(1, pages.PagedTable(result, checked))])
    return arrangement


@pytest.mark.parametrize("column", ["code", "rows"])
def test_slicing_merging_and_reading_all_verify_checksums(column: str) -> None:
    everything, few = ((np.array([0]), np.array([end])) for end in (2 * ROWS, 40))
    _, codes, values = slices(altered_arrangement(None).runs, *everything, "rows")
    assert len(codes) == int(values.sum()) == ROWS
    with pytest.raises(InvariantError, match="altered"):
        slices(altered_arrangement(column, 1777).runs, *everything, "rows")
    assert len(slices(altered_arrangement(column, 1777).runs, *few, "rows")[0]) == 20
    with pytest.raises(InvariantError, match="altered"):
        altered_arrangement(column, 3999).whole()
    other, ones = altered_arrangement(column, 3999), {"rows": np.ones(ROWS, dtype=np.int64)}
    for start in (1, 3):
        other.put(np.arange(start, start + 2 * ROWS, 2), (), ones)
    with pytest.raises(InvariantError, match="altered"):
        other.put(np.arange(5, 5 + 2 * ROWS, 2), (), ones)


COLUMNS = (("k", LONG), ("d", DOUBLE))


def batch(values: list[float], ranges: list[int], weight: int) -> Batch:
    keys = np.ones(len(values), dtype=np.int64)
    columns = {"k": Vector(LONG, keys), "d": Vector(DOUBLE, np.array(values))}
    tags = (RowTags(np.array(ranges, dtype=np.int32)),)
    return Batch(columns, keys * weight, tags)


def index_of(*batches: Batch) -> RowIndex:
    index = RowIndex("i", COLUMNS, ("k",), 1)
    for rows in batches:
        index.add(rows, index.codes_of(rows))
    return index


def remaining_rows(index: RowIndex) -> list[tuple[str, int, int]]:
    """Value, range and weight of the remaining rows after all runs are merged."""
    index.compact()
    key = Vector(LONG, np.array([1], dtype=np.int64))
    request = Batch({"k": key}, np.ones(1, dtype=np.int64), ())
    result = index.find(index.codes_of(request), [key]).rows
    pairs = result.tags[0].expand(np.arange(len(result)), result.weights)
    rows = zip(result.columns["d"].values[pairs.slots], pairs.ranges, pairs.weights, strict=True)
    return sorted((repr(float(d)), int(f), int(w)) for d, f, w in rows)


def test_zero_and_minus_zero_are_two_rows() -> None:
    """A cast to text distinguishes them, so deleting one keeps the other."""
    fillers = [batch([float(number)], [1], 1) for number in range(1, 8)]
    index = index_of(batch([0.0, -0.0], [1, 1], 1), batch([0.0], [1], -1), *fillers)
    zeros = [row for row in remaining_rows(index) if "0.0" in (row[0], row[0][1:])]
    assert zeros == [("-0.0", 1, 1)]


@pytest.mark.parametrize("value", [1.5, float("nan")])
def test_rows_of_two_ranges_are_two_rows(value: float) -> None:
    index = index_of(batch([value] * 80, [1] * 80, 1), batch([value], [2], 1))
    weights = {1: 0, 2: 0}
    for _, range_id, weight in remaining_rows(index):
        weights[range_id] += weight
    assert weights == {1: 80, 2: 1}


Rows = Counter[tuple[int, int, int]]
"""Copies of (key, value, range)."""


def rows_of(result: Batch) -> Rows:
    counts: Rows = Counter()
    values = (result.columns[name].values.tolist() for name in ("k", "v"))
    ranges = result.tags[0].expand(np.arange(len(result)), result.weights).ranges.tolist()
    for key, value, range_id, n in zip(*values, ranges, result.weights.tolist(), strict=True):
        counts[key, value, range_id] += n
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("united", [0, 1 << 16])
@pytest.mark.parametrize("hardly", [0.1, 1.0])
@pytest.mark.parametrize("many", [1, 10**6])
@pytest.mark.parametrize("keys", [3, 40, 10**9])
def test_inserts_and_deletes_over_runs_of_any_size(
    keys: int, many: int, hardly: float, united: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "_MANY_ROWS", united)
    monkeypatch.setattr(trace, "_HARDLY", hardly)
    monkeypatch.setattr(data_keys, "MANY", many)
    monkeypatch.setattr(trace, "MANY", many)
    random = Random(keys)
    index = RowIndex("i", (("k", LONG), ("v", LONG)), ("k",), 1)
    present: Rows = Counter()
    for _ in range(14):
        changes = [
            (random.randrange(keys), *random.choices((0, 1), k=2), random.choice([1, 1, 2]))
            for _ in range(random.choice([1, 30, 90]))
        ]
        changes += [(*row, -n) for row, n in present.items() if n and random.random() < 0.3]
        for key, value, range_id, n in changes:
            present[key, value, range_id] += n
        columns = list(zip(*changes, strict=True))
        vectors = [Vector(LONG, np.array(column, dtype=np.int64)) for column in columns[:2]]
        tags = (RowTags(np.array(columns[2], dtype=np.int32)),)
        weights = np.array(columns[3], dtype=np.int64)
        rows = Batch({"k": vectors[0], "v": vectors[1]}, weights, tags)
        index.add(rows, index.codes_of(rows))
        requested = sorted({key for key, _, _ in present} | {-1, 5})
        random.shuffle(requested)
        key = Vector(LONG, np.array(requested, dtype=np.int64))
        result = index.find(key.values, [key])
        assert rows_of(result.rows) == present
        of_rows = result.rows.columns["k"].values.tolist()
        assert [requested[owner] for owner in result.owners.tolist()] == of_rows
        of_keys = np.bincount(result.owners, minlength=len(requested))
        assert index.count(key.values).tolist() == of_keys.tolist()
    whole = index.whole()
    assert rows_of(whole) == {row: n for row, n in present.items() if n}
    assert len(whole) == len(rows_of(whole))
    assert whole.columns["k"].values.tolist() == sorted(whole.columns["k"].values.tolist())


@pytest.mark.parametrize("united", [0, 1 << 16])
def test_inserted_rows_are_counted_once_each(united: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index has the same sums whether or not equal rows of a run are united."""
    monkeypatch.setattr(trace, "_MANY_ROWS", united)
    monkeypatch.setattr(trace, "_HARDLY", 1.0)
    values, ranges = [0.0, -0.0, float("nan"), 1.0, 1.0, 1.0], [0, 0, 1, 1, 1, 2]
    index = index_of(*(batch(values, ranges, weight) for weight in (1, 2, 1)))
    result = index.whole()
    assert len(result) == 5
    assert sorted(result.weights.tolist()) == [4, 4, 4, 4, 8]


def test_only_equal_neighbours_are_united() -> None:
    rows = batch([1.0, 1.0, 1.0, -0.0, 0.0, 2.0, 2.0], [0, 0, 1, 1, 1, 1, 1], 3)
    codes = np.array([5, 5, 5, 5, 5, 5, 6])
    result, one = united_neighbours(codes, rows)
    assert result.tolist() == [5, 5, 5, 5, 5, 6]
    assert one.weights.tolist() == [6, 3, 3, 3, 3, 3]
    assert repeating(batch([1.0, 2.0, 1.0, 1.0], [0, 0, 0, 0], 1)) == 0.5


def test_state_is_freed_with_its_owner() -> None:
    """At once, not by the cycle collector: state may be most of the memory."""
    gc.disable()
    try:
        index, keyed = index_of(batch([1.0], [0], 1)), Arrangement("a", (LONG,), "n")
        index.whole()
        references = [weakref.ref(index), weakref.ref(keyed)]
        del index, keyed
        assert [one() for one in references] == [None, None]
    finally:
        gc.enable()
