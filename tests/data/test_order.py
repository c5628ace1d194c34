"""The order that sorts codes, against NumPy's own, whatever the codes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from impctl.data import keys
from impctl.data.keys import ascending, distinct_values, in_order, perhaps_in, when_many
from impctl.data.vector import INT64_MAX, INT64_MIN, Ints


def hard_codes(rng: np.random.Generator, n: int) -> Iterator[Ints]:
    """Dense, repeated, negative, spread over all 64 bits, sorted but for a few, backwards."""
    for bits in (1, 3, 15, 16, 17, 31, 32, 33, 47, 48, 49, 62):
        yield rng.integers(0, 1 << bits, n)
        yield rng.integers(0, 1 << bits, n) - (1 << bits) // 2
    yield rng.integers(INT64_MIN, INT64_MAX, n, endpoint=True)
    yield np.where(rng.random(n) < 0.5, INT64_MIN, INT64_MAX)
    yield np.concatenate([np.sort(rng.integers(0, 10**6, n // 3)) for _ in range(3)])
    yield np.arange(n)[::-1].copy()
    yield np.full(n, -7)


@pytest.mark.parametrize("few", [2, 2_000])
@pytest.mark.parametrize("cached", [0, 1 << 19])
def test_it_is_the_stable_order(few: int, cached: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "_FEW", few)
    monkeypatch.setattr(keys, "_CACHED", cached)
    rng = np.random.default_rng(few + cached)
    for n in (0, 1, 2, 50, 3_000):
        for codes in hard_codes(rng, n):
            before = codes.copy()
            assert np.array_equal(ascending(codes), np.argsort(codes, kind="stable"))
            assert np.array_equal(in_order(codes), np.sort(codes))
            assert np.array_equal(codes, before)


def test_what_is_looked_for_comes_back_to_its_place() -> None:
    rng = np.random.default_rng(3)
    for codes in hard_codes(rng, 3_000):
        by, ordered = when_many(codes)
        assert np.array_equal(ordered, np.sort(codes))
        assert by is None or np.array_equal(codes[by], ordered)


def test_each_value_once_and_none_that_may_be_there_left_out() -> None:
    rng = np.random.default_rng(4)
    for codes in hard_codes(rng, 3_000):
        assert np.array_equal(distinct_values(codes), np.unique(codes))
        held = np.unique(codes[:100])
        some = perhaps_in(held, codes)
        assert set(np.flatnonzero(np.isin(codes, held))) <= set(some.tolist())
        assert np.array_equal(some, np.unique(some))
