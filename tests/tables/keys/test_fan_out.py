"""Fan-outs against pairs counted one by one, in samples against the mean of many tables."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from impctl.data.schema import INTEGER, LONG, STRING
from impctl.errors import EvaluationError
from impctl.expr.nodes import And, Arithmetic, ArithmeticOp, ColumnRef, Compare, CompareOp, Literal
from impctl.tables.lookup import (
    MANY_ROWS,
    KeyColumns,
    KeyCounts,
    counted,
    fan_out,
    key_counts,
    one_in,
    thinned,
)
from impctl.tables.source import open_source
from impctl.tables.write.maintenance import create_laid_out_table

BOTH = (("a", LONG), ("b", STRING))
PAIR = KeyColumns(BOTH, (False, False))


def rows(rng: Random, count: int) -> list[tuple[int | None, str | None]]:
    return [(rng.choice((None, 1, 2, 3, 4)), rng.choice((None, "x", "y"))) for _ in range(count)]


def table(values: list[tuple[int | None, str | None]], **more: list[int] | pa.Array) -> pa.Table:
    first, second = ([row[at] for row in values] for at in (0, 1))
    columns = {"a": pa.array(first, pa.int64()), "b": pa.array(second, pa.string())}
    return pa.table({**columns, **more})


@pytest.mark.parametrize("seed", range(20))
def test_a_fan_out_is_the_pairs_over_the_changed_rows(seed: int) -> None:
    rng = Random(seed)
    mine, theirs = rows(rng, rng.randint(1, 30)), rows(rng, rng.randint(0, 30))
    null_safe = (rng.random() < 0.5, rng.random() < 0.5)
    columns = KeyColumns(BOTH, null_safe)

    def meet(one: tuple[int | None, str | None], other: tuple[int | None, str | None]) -> bool:
        return all(
            x == y and (x is not None or safe)
            for x, y, safe in zip(one, other, null_safe, strict=True)
        )

    pairs = sum(meet(one, other) for one in mine for other in theirs)
    parts = [table(mine[:7]), table(mine[7:])]
    result = fan_out(counted(parts, columns), counted([table(theirs)], columns))
    assert result == pytest.approx(pairs / len(mine))


def test_tuples_count_once_per_key_in_whatever_batches_they_are() -> None:
    key = KeyColumns((("a", LONG),), (False,), counted=(("b", STRING),))
    first = table([(1, "x"), (1, "x"), (1, "y"), (2, None), (2, None)])
    second = table([(1, "x"), (1, None), (None, "x")])
    result = counted([first, second], key)
    assert result.rows == 8
    assert dict(zip(result.codes.tolist(), result.counts.tolist(), strict=True)) == {1: 3, 2: 1}


def test_keys_of_two_integral_types_meet() -> None:
    one = counted(
        [pa.table({"a": pa.array([1, 1, 2], pa.int32())})], KeyColumns((("a", INTEGER),), (False,))
    )
    other = counted([table([(1, None)])], KeyColumns((("a", LONG),), (False,)))
    assert fan_out(one, other) == pytest.approx(2 / 3)


def test_the_empty_key_meets_every_row() -> None:
    nothing = KeyColumns((), ())
    assert (
        fan_out(
            counted([table([(1, "x")] * 3)], nothing), counted([table([(1, "x")] * 5)], nothing)
        )
        == 5
    )


def test_nothing_meets_nothing() -> None:
    some, none = counted([table([(1, "x")])], PAIR), counted([], PAIR)
    assert fan_out(none, some) == 0
    assert fan_out(some, none) == 0


def less(name: str, bound: int) -> Compare:
    """`name < bound`."""
    return Compare(CompareOp.LESS, ColumnRef(name, LONG), Literal(bound, LONG))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_condition_leaves_rows_out_on_either_side(seed: int) -> None:
    """Of the rows that meet it, which NULL does not, in whatever batches."""
    rng = Random(seed)
    mine, theirs = rows(rng, rng.randint(1, 30)), rows(rng, rng.randint(0, 30))
    values = [[rng.choice((0, 1, 2, None)) for _ in part] for part in (mine, theirs)]
    key = KeyColumns(BOTH, (True, True), where=less("n", 2))
    kept = [
        [row for row, n in zip(part, own, strict=True) if n is not None and n < 2]
        for part, own in zip((mine, theirs), values, strict=True)
    ]
    whole = [
        table(part, n=pa.array(own, pa.int64()))
        for part, own in zip((mine, theirs), values, strict=True)
    ]
    parts = [whole[0].slice(0, 7), whole[0].slice(7)]
    changed, others = counted(parts, key), counted([whole[1]], key)
    pairs = sum(one == another for one in kept[0] for another in kept[1])
    assert (changed.rows, changed.read) == (len(kept[0]), len(mine))
    assert changed.share == pytest.approx(len(kept[0]) / len(mine))
    assert fan_out(changed, others) == pytest.approx(pairs / max(len(kept[0]), 1))


def test_tuples_of_rows_that_are_left_out_are_none() -> None:
    key = KeyColumns((("a", LONG),), (False,), counted=(("b", STRING),), where=less("n", 2))
    result = counted([table([(1, "x"), (1, "y"), (1, "x"), (2, "x")], n=[1, 2, 0, 3])], key)
    assert (result.codes.tolist(), result.counts.tolist()) == ([1], [1])
    assert (result.keys, result.together, result.rows, result.read) == (1, 1, 2, 4)


def test_a_condition_that_keeps_nothing_and_a_table_without_rows() -> None:
    key = KeyColumns((("a", LONG),), (False,), counted=(("b", STRING),), where=less("n", 0))
    none = counted([table([(1, "x")], n=[1])], key)
    assert (none.rows, none.read, none.share, none.keys) == (0, 1, 0.0, 0)
    assert counted([], key).share == 1.0


def test_a_condition_that_fails_on_a_row_is_told() -> None:
    """As it would fail in the engine; behind another one that leaves the row out it does not."""
    inverse = Arithmetic(ArithmeticOp.INTEGER_DIVIDE, Literal(8, LONG), ColumnRef("n", LONG))
    failing = Compare(CompareOp.GREATER, inverse, Literal(1, LONG))
    rows_ = table([(1, "x"), (2, "x")], n=[0, 2])
    with pytest.raises(EvaluationError):
        counted([rows_], KeyColumns(BOTH, (False, False), where=failing))
    some = Compare(CompareOp.NOT_EQUAL, ColumnRef("n", LONG), Literal(0, LONG))
    guarded = KeyColumns(BOTH, (False, False), where=And((some, failing)))
    assert counted([rows_], guarded).rows == 1


def test_a_sample_is_of_keys_whatever_their_condition_keeps() -> None:
    random = np.random.default_rng(7)
    keys, values = random.integers(0, 20_000, 200_000), random.integers(0, 10, 200_000)
    batch = pa.table({"a": keys, "n": values})
    key = KeyColumns((("a", LONG),), (False,), where=less("n", 3))
    whole, sampled = counted([batch], key), counted([batch], key, 16)
    assert (sampled.rows, sampled.share) == (whole.rows, whole.share)
    assert sampled.keys == pytest.approx(whole.keys, rel=0.1)
    assert sampled.together == pytest.approx(whole.together, rel=0.1)
    assert fan_out(sampled, sampled) == pytest.approx(fan_out(whole, whole), rel=0.1)


def drawn(values: np.ndarray, sample: int) -> KeyCounts:
    return counted([pa.table({"a": values})], KeyColumns((("a", LONG),), (False,)), sample)


@pytest.mark.parametrize("step", [1, 16, 1 << 20])
def test_a_sample_estimates_without_bias_whatever_the_keys_have_in_common(step: int) -> None:
    """Keys that are all multiples of something are sampled as others are."""
    random = np.random.default_rng(5)
    mine = random.integers(0, 20_000, 60_000) * step
    theirs = random.integers(0, 20_000, 100_000) * step
    whole = fan_out(drawn(mine, 1), drawn(theirs, 1))
    sampled = fan_out(drawn(mine, 16), drawn(theirs, 16))
    assert whole == pytest.approx(5, rel=0.05)
    assert sampled == pytest.approx(whole, rel=0.1)
    assert len(drawn(mine, 16).codes) == pytest.approx(len(drawn(mine, 1).codes) / 16, rel=0.1)


def test_large_tables_are_sampled_and_both_sides_alike() -> None:
    assert one_in(10, MANY_ROWS) == 1
    assert one_in(10, MANY_ROWS + 1) == 16
    with pytest.raises(AssertionError):
        fan_out(drawn(np.arange(3), 1), drawn(np.arange(3), 16))


def test_a_table_is_read_by_its_key_columns(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    create_laid_out_table(
        path, [table([(1, "x"), (None, "x")], n=[1, 2]), table([(1, "x")], n=[3])]
    )
    result = key_counts(open_source("t", path).snapshot(), PAIR)
    assert (result.rows, result.counts.tolist()) == (3, [2])
    assert key_counts(open_source("t", path).snapshot(), KeyColumns((), ())).counts.tolist() == [3]
    where = KeyColumns(BOTH, (False, False), where=less("n", 3))
    assert where.names == ("a", "b", "n")
    result = key_counts(open_source("t", path).snapshot(), where)
    assert (result.rows, result.read, result.counts.tolist()) == (2, 3, [1])


@pytest.mark.parametrize("share", [2, 16])
def test_a_sample_is_taken_of_what_was_counted(share: int) -> None:
    rng = Random(share)
    keys = [rng.randrange(500) for _ in range(3000)]
    parts = [pa.table({"a": pa.array(keys[at::3], pa.int64())}) for at in range(3)]
    columns = KeyColumns((("a", LONG),), (False,))
    result, direct = thinned(counted(parts, columns), share), counted(parts, columns, share)
    assert result.codes.tolist() == direct.codes.tolist()
    assert result.counts.tolist() == direct.counts.tolist()
    assert (result.rows, result.read, result.one_in) == (direct.rows, direct.read, direct.one_in)
    assert 0 < len(result.codes) < 500
