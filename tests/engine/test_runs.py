"""Runs looked up and merged: codes that tell keys mean the same as those that do not."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from impctl.data import keys as data_keys
from impctl.data.keys import group_rows
from impctl.data.schema import LONG, STRING
from impctl.data.vector import Vector, from_arrow
from impctl.engine.trace import Arrangement, Run, merge_at_once, merge_runs, slices

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
def test_runs_merged_at_once_are_runs_merged_one_by_one(is_oldest: bool, kind: str) -> None:
    types = [KEYS[kind][0]]
    for seed in range(100):
        random_ = random.Random(seed)
        runs = [random_run(random_, at + 1, kind) for at in range(random_.randint(2, 5))]
        one = runs[-1]
        for at in range(len(runs) - 2, -1, -1):
            last = is_oldest and at == 0
            one = merge_runs(runs[at], one, types, "rows", is_oldest=last)
        both = merge_at_once(runs, types, "rows", is_oldest=is_oldest)
        assert both is not None
        assert as_rows(both, kind) == as_rows(one, kind)
        assert both.sequence == one.sequence


def test_different_keys_of_one_code_are_not_merged_at_once() -> None:
    one, two = np.array([1]), {"rows": np.ones(1, dtype=np.int64)}
    runs = [
        Run(at, one, (pa.array([name], pa.large_string()),), two) for at, name in enumerate("ab")
    ]
    assert merge_at_once(runs, [STRING], "rows", is_oldest=True) is None
    assert merge_at_once([runs[0], runs[0]], [STRING], "rows", is_oldest=True) is not None


def test_every_key_is_found_in_its_newest_run() -> None:
    for seed in range(60):
        random_ = random.Random(seed)
        kept, newest = Arrangement("kept", (LONG,), "rows"), {}
        for step in range(random_.randint(1, 7)):
            codes = np.array(sorted(random_.sample(range(40), random_.randint(1, 20))))
            value = np.full(len(codes), step + 1, dtype=np.int64)
            kept.put(codes, [Vector(LONG, codes)], {"rows": value})
            newest.update(dict.fromkeys(codes.tolist(), step + 1))
        asked = np.array(random_.sample(range(45), 30), dtype=np.int64)
        located = kept.find(asked, [Vector(LONG, asked)])
        assert kept.gather(located, "rows").tolist() == [newest.get(a, 0) for a in asked.tolist()]
        assert all(rows.tolist() == sorted(rows.tolist()) for _, rows, _ in located.parts)


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


def test_slices_in_any_order_have_the_newest_rows_of_their_codes() -> None:
    for seed in range(60):
        random_ = random.Random(seed)
        kept, newest = Arrangement("kept", (), "count"), {}
        for _ in range(random_.randint(1, 5)):
            codes = sorted(random_.sample(range(60), random_.randint(1, 25)))
            counts = [random_.randint(0, 2) for _ in codes]
            kept.put(np.array(codes), (), {"count": np.array(counts)})
            newest.update(zip(codes, counts, strict=True))
        low = np.array([random_.randrange(60) for _ in range(6)])
        wide = random_.choice([1, 4, 20])
        result = slices(kept.runs, low, low + wide, "count")
        expected = [
            (at, code, newest[code])
            for at, start in enumerate(low.tolist())
            for code in range(start, start + wide)
            if newest.get(code)
        ]
        assert list(zip(*(column.tolist() for column in result), strict=True)) == expected
