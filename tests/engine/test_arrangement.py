"""An arrangement answers like a dictionary, through collisions, merges, tombstones and reloads."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from impctl.data.keys import key_codes
from impctl.data.schema import DOUBLE, LONG, STRING, SqlType, decimal
from impctl.data.vector import Vector, from_arrow
from impctl.engine.trace import Arrangement, slices
from tests.support.circuits import save
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
        codes = np.array([code_of(kind, key, modulus) for key in pool], dtype=np.int64)
        located = held.find(codes, [vector(kind, pool)])
        tolist = held.gather(located, "rows").tolist()
        assert tolist == [model.get(repr(key), 0) for key in pool], seed


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
