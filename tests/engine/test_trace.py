"""Arrangements, runs and indexes answer like a dictionary, through collisions and reloads."""

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
def test_find_and_gather_answer_like_a_dictionary(kind: str, cases: range) -> None:
    pool = KINDS[kind][2]
    for seed in cases:
        rng = Random(f"{kind} {seed}")
        modulus = rng.choice((1, 2, 1000))
        held = Arrangement("a", [KINDS[kind][0]], "rows")
        model: dict[str, int] = {}
        stored: dict[int, pa.Table] = {}
        for step in range(rng.randrange(15)):
            distinct = {repr(key): key for key in rng.choices(pool, k=rng.randrange(7))}
            rows = sorted(distinct.items(), key=lambda item: code_of(kind, item[1], modulus))
            codes = np.array([code_of(kind, key, modulus) for _, key in rows], dtype=np.int64)
            alive = [(step + len(name)) % 3 for name, _ in rows]
            values = {"rows": np.array(alive, dtype=np.int64)}
            held.put(codes, [vector(kind, [key for _, key in rows])], values)
            model.update({name: count for (name, _), count in zip(rows, alive, strict=True)})
            if step % 4 == 3:
                save(held, stored)
            if step % 8 == 3:
                held = Arrangement("a", [KINDS[kind][0]], "rows")
                held.load(stored.items())
        asked = rng.sample(pool, len(pool))
        codes = np.array([code_of(kind, key, modulus) for key in asked], dtype=np.int64)
        located = held.find(codes, [vector(kind, asked)])
        tolist = held.gather(located, "rows").tolist()
        assert tolist == [model.get(repr(key), 0) for key in asked], seed
        assert all(rows.tolist() == sorted(rows.tolist()) for _, rows, _ in located.parts)


def code_of(kind: str, key: object, modulus: int) -> int:
    """A stable code that collides as often as asked for, NULL's with those of numbers too."""
    if kind in ("long", "double") and key is not None:  # which are told by their codes
        return int(key_codes([vector(kind, [key])], 1)[0])
    return sum(repr(key).encode()) % modulus


@random_cases(20, 50, 1_000)
def test_slices_see_the_newest_living_rows(cases: range) -> None:
    for seed in cases:
        rng = Random(f"slices {seed}")
        held = Arrangement("a", (), "rows")
        model: dict[int, int] = {}
        for _ in range(rng.randrange(13)):
            put = {rng.randint(0, 40): rng.randint(0, 2) for _ in range(rng.randrange(9))}
            codes = np.array(sorted(put), dtype=np.int64)
            counts = np.array([put[int(code)] for code in codes], dtype=np.int64)
            held.put(codes, (), {"rows": counts})
            model.update(put)
        wanted = [(rng.randint(0, 40), rng.randint(0, 12)) for _ in range(rng.randrange(6))]
        low = np.array([start for start, _ in wanted], dtype=np.int64)
        high = np.array([start + size for start, size in wanted], dtype=np.int64)
        owners, codes, values = slices(held.runs, low, high, "rows")
        expected = [
            (index, code, model[code])
            for index, (start, size) in enumerate(wanted)
            for code in range(start, start + size)
            if model.get(code, 0) != 0
        ]
        result = list(zip(owners.tolist(), codes.tolist(), values.tolist(), strict=True))
        assert result == expected, seed


def test_few_runs_however_many_puts() -> None:
    held = Arrangement("a", (), "rows")
    for step in range(3000):
        held.put(np.array([step], dtype=np.int64), (), {"rows": np.ones(1, dtype=np.int64)})
    assert len(held.runs) <= 16
    assert held.rows == 3000


def test_a_checkpoint_names_what_to_write_and_what_to_drop() -> None:
    held = Arrangement("a", (), "rows")
    stored: dict[int, pa.Table] = {}
    for step in range(50):
        codes = np.arange(step, step + 3, dtype=np.int64)
        held.put(codes, (), {"rows": np.full(3, step + 1, dtype=np.int64)})
        if step % 3 == 0:
            save(held, stored)
            again = Arrangement("a", (), "rows")
            again.load(stored.items())
            assert [run.codes.tolist() for run in again.runs] == [
                run.codes.tolist() for run in held.runs
            ]


KEYS = {
    "codes": (LONG, lambda code: code),
    "numbers": (LONG, lambda code: None if code == 3 else code),
    "texts": (STRING, lambda code: f"key {code}"),
}
"""Types of keys, and the key that has a code."""


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
        runs = [random_run(random_, at + 1, kind) for at in range(random_.randint(2, 5))]
        merged = merge_runs(runs, [KEYS[kind][0]], "rows", is_oldest=is_oldest)
        newest = {row[0]: row for run in runs for row in as_rows(run, kind)}
        expected = [row for _, row in sorted(newest.items()) if row[1] or not is_oldest]
        assert as_rows(merged, kind) == expected
        assert merged.sequence == runs[-1].sequence


@pytest.mark.parametrize("is_oldest", [False, True])
def test_different_keys_of_one_code_stay_apart_when_runs_are_merged(is_oldest: bool) -> None:
    def run(sequence: int, **rows: int) -> Run:
        values = {"rows": np.array([*rows.values()])}
        return Run(
            sequence, np.ones(len(rows), int), (pa.array([*rows], pa.large_string()),), values
        )

    runs = [run(1, a=1, b=1, c=5), run(2, b=2, a=0), run(3, c=4)]
    merged = merge_runs(runs, [STRING], "rows", is_oldest=is_oldest)
    rows = zip(merged.keys[0].to_pylist(), merged.values["rows"].tolist(), strict=True)
    assert dict(rows) == {"b": 2, "c": 4} | ({} if is_oldest else {"a": 0})


def test_keys_of_one_code_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"k{at}" for at in range(9)]
    keys = from_arrow(pa.array(names), STRING)

    def few_codes(columns: list[Vector], length: int) -> np.ndarray:
        return np.array([int(text[1:]) // 3 for text in columns[0].values.to_pylist()])

    monkeypatch.setattr(data_keys, "key_codes", few_codes)
    kept = Arrangement("kept", (STRING,), "rows")
    kept.put(few_codes([keys], 9), [keys], {"rows": np.arange(1, 10)})
    order = np.array([8, 0, 4, 3, 7, 1, 2, 6, 5])
    asked = keys.take(order)
    located = kept.find(few_codes([asked], 9), [asked])
    assert kept.gather(located, "rows").tolist() == (order + 1).tolist()


@pytest.mark.parametrize("codes", [[1, 5, 9], [1, 5, 5], [5, 1, 9], [7], []])
def test_rows_that_ascend_are_groups_as_they_are(codes: list[int]) -> None:
    column = Vector(LONG, np.array(codes, dtype=np.int64))
    grouping = group_rows([column], len(codes))
    assert grouping.codes.tolist() == sorted(set(codes))
    assert [codes[row] for row in grouping.first.tolist()] == sorted(set(codes))
    assert [grouping.codes.tolist()[at] for at in grouping.index().tolist()] == codes
    assert grouping.sizes().tolist() == [codes.count(code) for code in sorted(set(codes))]
    (leaders,) = grouping.leaders([column])
    assert leaders.values.tolist() == sorted(set(codes))
    assert grouping.is_each_alone == (codes in ([1, 5, 9], [7]))


def test_codes_of_groups_do_not_hold_the_rows() -> None:
    column = Vector(LONG, np.arange(10))
    assert not np.shares_memory(group_rows([column], 10).codes, column.values)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 40])
def test_slices_of_any_length_have_all_their_rows(length: int) -> None:
    kept = Arrangement("kept", (), "count")
    for part in range(2):
        codes = np.arange(part, 400, 2)
        kept.put(codes, (), {"count": np.ones(len(codes), dtype=np.int64)})
    low = np.array([0, 90, 398, 399, 500])
    owners, codes, _ = slices(kept.runs, low, low + length, "count")
    expected = [
        (at, code)
        for at, start in enumerate(low.tolist())
        for code in range(start, min(start + length, 400))
    ]
    assert list(zip(owners.tolist(), codes.tolist(), strict=True)) == expected


ROWS = 4000


def held(altered: str | None, row: int = 0) -> Arrangement:
    """Rows 0 to 3,999, value 1 each; of one the last bit of a column is another."""
    table = pa.table({"code": np.arange(ROWS) * 2, "rows": np.ones(ROWS, dtype=np.int64)})
    whole = stream_of(table)
    shown = bytearray(whole)
    content = pa.py_buffer(shown)
    result = table_in(content)
    if altered is not None:
        (chunk,) = result.column(altered).chunks
        shown[chunk.buffers()[1].address - content.address + 8 * row] ^= 1
    checked = pages.CheckedPages(content, sums_of(whole), lambda: InvariantError("altered"))
    arrangement = Arrangement("a", (), "rows")
    arrangement.load([(1, pages.PagedTable(result, checked))])
    return arrangement


@pytest.mark.parametrize("column", ["code", "rows"])
def test_all_that_is_sliced_merged_or_taken_whole_is_looked_at(column: str) -> None:
    everything, few = ((np.array([0]), np.array([end])) for end in (2 * ROWS, 40))
    _, codes, values = slices(held(None).runs, *everything, "rows")
    assert len(codes) == int(values.sum()) == ROWS
    with pytest.raises(InvariantError, match="altered"):
        slices(held(column, 1777).runs, *everything, "rows")
    assert len(slices(held(column, 1777).runs, *few, "rows")[0]) == 20
    with pytest.raises(InvariantError, match="altered"):
        held(column, 3999).whole()
    other, ones = held(column, 3999), {"rows": np.ones(ROWS, dtype=np.int64)}
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


def left_in(index: RowIndex) -> list[tuple[str, int, int]]:
    """Value, fragment and weight of what is left once all runs are one."""
    index.compact()
    key = Vector(LONG, np.array([1], dtype=np.int64))
    asked = Batch({"k": key}, np.ones(1, dtype=np.int64), ())
    result = index.find(index.codes_of(asked), [key]).rows
    pairs = result.tags[0].expand(np.arange(len(result)), result.weights)
    rows = zip(result.columns["d"].values[pairs.slots], pairs.ranges, pairs.weights, strict=True)
    return sorted((repr(float(d)), int(f), int(w)) for d, f, w in rows)


def test_zeros_of_either_sign_are_two_rows() -> None:
    """A cast to text tells them apart, so taking one away leaves the other."""
    fillers = [batch([float(number)], [1], 1) for number in range(1, 8)]
    index = index_of(batch([0.0, -0.0], [1, 1], 1), batch([0.0], [1], -1), *fillers)
    zeros = [row for row in left_in(index) if "0.0" in (row[0], row[0][1:])]
    assert zeros == [("-0.0", 1, 1)]


@pytest.mark.parametrize("value", [1.5, float("nan")])
def test_rows_of_two_fragments_are_two_rows(value: float) -> None:
    index = index_of(batch([value] * 80, [1] * 80, 1), batch([value], [2], 1))
    weights = {1: 0, 2: 0}
    for _, range_id, weight in left_in(index):
        weights[range_id] += weight
    assert weights == {1: 80, 2: 1}


Rows = Counter[tuple[int, int, int]]
"""Copies of (key, value, fragment)."""


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
def test_rows_come_and_go_whatever_runs_they_lie_in(
    keys: int, many: int, hardly: float, united: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "_MANY_ROWS", united)
    monkeypatch.setattr(trace, "_HARDLY", hardly)
    monkeypatch.setattr(data_keys, "MANY", many)
    monkeypatch.setattr(trace, "MANY", many)
    random = Random(keys)
    index = RowIndex("i", (("k", LONG), ("v", LONG)), ("k",), 1)
    there: Rows = Counter()
    for _ in range(14):
        changes = [
            (random.randrange(keys), *random.choices((0, 1), k=2), random.choice([1, 1, 2]))
            for _ in range(random.choice([1, 30, 90]))
        ]
        changes += [(*row, -n) for row, n in there.items() if n and random.random() < 0.3]
        for key, value, range_id, n in changes:
            there[key, value, range_id] += n
        columns = list(zip(*changes, strict=True))
        vectors = [Vector(LONG, np.array(column, dtype=np.int64)) for column in columns[:2]]
        tags = (RowTags(np.array(columns[2], dtype=np.int32)),)
        weights = np.array(columns[3], dtype=np.int64)
        rows = Batch({"k": vectors[0], "v": vectors[1]}, weights, tags)
        index.add(rows, index.codes_of(rows))
        asked = sorted({key for key, _, _ in there} | {-1, 5})
        random.shuffle(asked)
        key = Vector(LONG, np.array(asked, dtype=np.int64))
        result = index.find(key.values, [key])
        assert rows_of(result.rows) == there
        of_rows = result.rows.columns["k"].values.tolist()
        assert [asked[owner] for owner in result.owners.tolist()] == of_rows
        of_keys = np.bincount(result.owners, minlength=len(asked))
        assert index.count(key.values).tolist() == of_keys.tolist()
    whole = index.whole()
    assert rows_of(whole) == {row: n for row, n in there.items() if n}
    assert len(whole) == len(rows_of(whole))
    assert whole.columns["k"].values.tolist() == sorted(whole.columns["k"].values.tolist())


@pytest.mark.parametrize("united", [0, 1 << 16])
def test_rows_that_only_come_are_counted_once_each(
    united: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is left side by side in a run, the rows of the index come to the same sum."""
    monkeypatch.setattr(trace, "_MANY_ROWS", united)
    monkeypatch.setattr(trace, "_HARDLY", 1.0)
    values, ranges = [0.0, -0.0, float("nan"), 1.0, 1.0, 1.0], [0, 0, 1, 1, 1, 2]
    index = index_of(*(batch(values, ranges, weight) for weight in (1, 2, 1)))
    result = index.whole()
    assert len(result) == 5
    assert sorted(result.weights.tolist()) == [4, 4, 4, 4, 8]


def test_neighbours_that_are_one_row_are_united_and_others_are_not() -> None:
    rows = batch([1.0, 1.0, 1.0, -0.0, 0.0, 2.0, 2.0], [0, 0, 1, 1, 1, 1, 1], 3)
    codes = np.array([5, 5, 5, 5, 5, 5, 6])
    result, one = united_neighbours(codes, rows)
    assert result.tolist() == [5, 5, 5, 5, 5, 6]
    assert one.weights.tolist() == [6, 3, 3, 3, 3, 3]
    assert repeating(batch([1.0, 2.0, 1.0, 1.0], [0, 0, 0, 0], 1)) == 0.5


def test_state_goes_with_whoever_held_it() -> None:
    """Without waiting for cycles to be looked for: it may be most of the memory there is."""
    gc.disable()
    try:
        index, keyed = index_of(batch([1.0], [0], 1)), Arrangement("a", (LONG,), "n")
        index.whole()
        gone = [weakref.ref(index), weakref.ref(keyed)]
        del index, keyed
        assert [one() for one in gone] == [None, None]
    finally:
        gc.enable()
