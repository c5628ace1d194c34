"""Laws of every operator: alone, in a circuit, and with shared state."""

from __future__ import annotations

import math
import random
from collections import Counter
from random import Random

import numpy as np
import pytest

from impctl.compile.session import checkpoint_of
from impctl.data.schema import LONG
from impctl.data.vector import Vector
from impctl.engine.accumulators import AggregateColumn
from impctl.engine.aggregate import AggregateOperator
from impctl.engine.batch import Batch
from impctl.engine.circuit import Circuit
from impctl.engine.join import JoinOperator, Side
from impctl.engine.linear import ProjectOperator, SelectOperator
from impctl.engine.tags import RowTags
from impctl.engine.trace import RowIndex
from impctl.errors import CountBelowZeroError
from impctl.expr.nodes import ColumnRef
from tests.support.circuits import (
    SHAPES,
    Indexed,
    Partners,
    Row,
    contents,
    feed,
    more_than,
    restarted,
)
from tests.support.random_cases import random_cases, random_seeds

SMALL = (None, 0, 1, 2, 3, 4, 5, 6, 7)
TEXTS = (None, "", "a", "ab", "é", "b")
DOUBLES = (None, 0.0, -0.0, 1.5, -1.5, 1e16, 1.0, math.nan, math.inf, -math.inf)
shapes = pytest.mark.parametrize("shape", SHAPES)


def some_rows(rng: Random, most: int, values: tuple[int | None, ...]) -> list[Row]:
    """Up to `most` rows, whose x is one of the values."""
    columns = (SMALL, SMALL, TEXTS, values, DOUBLES)
    return [tuple(map(rng.choice, columns)) for _ in range(rng.randint(0, most))]  # type: ignore[misc]


@pytest.mark.slow
@shapes
@random_cases(3, 5, 60)
def test_result_ignores_batching(shape: str, cases: range) -> None:
    for seed in cases:
        rng = Random(f"batching {shape} {seed}")
        rows = some_rows(rng, 14, (None, -2, 0, 1, 2, 3, 5, 7))
        scan, whole = SHAPES[shape]()
        feed(scan, whole, rows, [1] * len(rows))
        _, parts = SHAPES[shape]()
        rng.shuffle(rows)
        while rows:
            size = min(len(rows), rng.randint(1, 4))
            feed(scan, parts, rows[:size], [1] * size)
            rows = rows[size:]
        assert contents(parts) == contents(whole), seed


@pytest.mark.slow
@shapes
@random_cases(3, 5, 60)
def test_a_batch_and_its_negative_cancel(shape: str, cases: range) -> None:
    for seed in cases:
        rng = Random(f"negative {shape} {seed}")
        scan, circuit = SHAPES[shape]()
        rows, more = some_rows(rng, 10, (2,)), some_rows(rng, 6, (4,))
        weights = [rng.randint(1, 3) for _ in more]
        negative = [-weight for weight in weights]
        feed(scan, circuit, rows, [1] * len(rows))
        before = contents(circuit)
        feed(scan, circuit, more, weights)
        feed(scan, circuit, more, negative)
        assert contents(circuit) == before, seed
        feed(scan, circuit, more + more, weights + negative)
        assert contents(circuit) == before, seed
        feed(scan, circuit, [], [])
        assert contents(circuit) == before, seed


@pytest.mark.slow
@shapes
@random_cases(3, 5, 40)
def test_restored_state_continues_and_can_be_emptied(shape: str, cases: range) -> None:
    for seed in cases:
        rng = Random(f"restored {shape} {seed}")
        rows, later = (some_rows(rng, most, (0, 1, 2, 3, 4, 5, 7)) for most in (12, 6))
        scan, circuit = SHAPES[shape]()
        feed(scan, circuit, rows, [1] * len(rows))
        fresh = restarted(circuit, SHAPES[shape]()[1])
        for one in (circuit, fresh):
            feed(scan, one, later, [1] * len(later))
        assert contents(fresh) == contents(circuit), seed
        everything = rows + later
        feed(scan, fresh, everything, [-1] * len(everything))
        assert set(contents(fresh)[0]) == {0}, seed
        assert all(state == () for state in contents(fresh)[1:]) or shape == "global"


@shapes
def test_deleting_missing_rows_is_an_error(shape: str) -> None:
    scan, circuit = SHAPES[shape]()
    row: Row = (1, 1, "a", 5, 1.0)
    feed(scan, circuit, [row] * 3, [1] * 3)
    with pytest.raises(CountBelowZeroError, match="never contained"):
        feed(scan, circuit, [row] * 5, [-1] * 5)


def test_a_changed_sum_at_equal_row_count_is_noticed() -> None:
    """Pathway misses this change: one row is deleted, another inserted, the count stays."""
    scan, circuit = SHAPES["group by string"]()
    feed(scan, circuit, [(1, 1, "a", 1, 1.0)], [1])
    feed(scan, circuit, [(1, 1, "a", 1, 1.0), (5, 1, "a", 4, 2.5)], [-1, 1])
    assert circuit.merge.members(0).tolist() == [False, False, True, False, False]
    assert contents(circuit)[1][0][1] == [("count0", 1), ("count1", 1), ("low0", 4), ("rows", 1)]


PAIRS = [
    ("group by string", "a circuit in a circuit"),
    ("keyed group", "a whole circuit in a circuit"),
    ("two joins", "two joins as one operator"),
]
N = ColumnRef("n", LONG)


def some_grouped_rows(rng: random.Random) -> list[Row]:
    return [
        (rng.randint(0, 7), rng.randint(0, 3), rng.choice("ab"), rng.randint(0, 4), 1.5)
        for _ in range(rng.randint(1, 8))
    ]


@pytest.mark.parametrize(("flat", "nested"), PAIRS)
@random_seeds(2, 5, 20)
def test_nested_equals_flat(flat: str, nested: str, seed: int) -> None:
    rng = random.Random(seed)
    (scan, one), (_, other) = SHAPES[flat](), SHAPES[nested]()
    present: list[Row] = []
    for _ in range(6):
        inserted, deleted = some_grouped_rows(rng), rng.sample(present, len(present) // 2)
        for row in deleted:
            present.remove(row)
        present += inserted
        weights = [1] * len(inserted) + [-1] * len(deleted)
        for circuit in (one, other):
            feed(scan, circuit, inserted + deleted, weights)
        assert contents(one) == contents(other)
    assert any(contents(one)[0]), "no output"
    names = [[keeper.name for keeper in circuit.arrangements()] for circuit in (one, other)]
    assert names[0] == names[1]
    assert one.circuit.counters() == other.circuit.counters()


def counted(name: str) -> AggregateOperator:
    columns = [AggregateColumn("n", LONG, None, None)]
    return AggregateOperator(name, (), columns, accesses=0, is_keyed=True)


def values(batch: Batch | None) -> list[tuple[int, int]]:
    """The numbers in a batch with their weights, without those that cancel."""
    result: Counter[int] = Counter()
    pairs = zip(batch.columns["n"].values.tolist(), batch.weights.tolist(), strict=True)
    for value, weight in pairs:
        result[value] += weight
    return sorted((value, weight) for value, weight in result.items() if weight)


def test_initial_rows_pass_through_a_nested_circuit() -> None:
    """Both counts have a row over empty input, and the upper one counts the lower one's.

    The grouping on top sees no deletion without an insertion.
    """
    low, high = Circuit([counted("low")]), Circuit([ProjectOperator([("n", N)]), counted("high")])
    once = AggregateOperator("once", [("n", LONG)], (), accesses=0, is_keyed=True)
    nested = Circuit([low, high, once])
    assert values(nested.start()) == [(1, 1)]
    rows = Batch({"n": Vector(LONG, np.zeros(3, np.int64))}, np.ones(3, np.int64), ())
    assert values(nested.step(rows)) == [], "three rows, but still one count of them"
    assert nested.counters().keys() == {"low.next_group", "high.next_group", "once.next_group"}


def test_a_change_filtered_out_has_no_result() -> None:
    first, second = (SelectOperator(more_than(N, 0), must_be_sure=False) for _ in range(2))
    inner = Circuit([first, second], [(-1,), (-2,)])
    row = Batch({"n": Vector(LONG, np.ones(1, np.int64))}, np.ones(1, np.int64), ())
    assert inner.step(row, None) is None
    assert Circuit([inner, ProjectOperator([("n", N)])], [(-1, -2), (0,)]).step(row, None) is None
    assert values(inner.step(None, row)) == [(1, 1)]


def test_a_nested_circuit_has_its_operators_properties() -> None:
    circuit = SHAPES["a whole circuit in a circuit"]()[1].circuit
    assert (circuit.unsure_rows, circuit.reads) == (0, ())
    assert not circuit.can_output
    assert not circuit.is_bounded


ROWS: list[Row] = [(1, 1, "a", 5, 1.0), (3, 1, "b", 2, None), (7, 2, None, 5, 1.5)]
COLUMNS = (("g", LONG),)


def index(name: str) -> RowIndex:
    return RowIndex(name, COLUMNS, ["g"], 1)


def test_a_shared_index_is_checkpointed_and_restored_once() -> None:
    scan, circuit = SHAPES["a shared index"]()
    feed(scan, circuit, ROWS, [1] * len(ROWS))
    names = [keeper.name for operator in circuit.circuit for keeper in operator.arrangements()]
    assert names.count("shared") == 3
    checkpoint = checkpoint_of(circuit.circuit.arrangements(), circuit.circuit.counters())
    written = [(name, sequence) for name, sequence, _ in checkpoint.put]
    assert len(written) == len(set(written))
    assert {"shared", "a", "b"} <= {name for name, _ in written}
    fresh = restarted(circuit, SHAPES["a shared index"]()[1])
    for one in (circuit, fresh):
        feed(scan, one, [ROWS[0], ROWS[2]], [2, -1])
    assert contents(fresh) == contents(circuit)
    assert sum(contents(fresh)[0]) == 2 * 2 * (3 + 1) * 2, "joins, accesses, 4 rows by 2"


def test_keeper_names_are_unique_and_operators_occur_once() -> None:
    shared = index("shared")
    inner = Circuit([Indexed(shared)])
    whole = Circuit([inner, Partners(index("own"), shared)], [(-1,), (-2, 0)])
    assert [keeper.name for keeper in whole.arrangements()] == ["shared", "own"]
    with pytest.raises(AssertionError, match="two keepers are called same"):
        Circuit([Indexed(index("same")), Indexed(index("same"))])
    twice = Indexed(index("i"))
    with pytest.raises(AssertionError, match="one place"):
        Circuit([twice, twice])


WIDTH = 12


def rows(name: str, *values: tuple[int, int]) -> Batch:
    """One column, a value and weight per row, one sketched access; the range is the value."""
    numbers = np.array([value for value, _ in values], dtype=np.int64)
    weights = np.array([weight for _, weight in values], dtype=np.int64)
    tags = (RowTags(numbers.astype(np.int32)),)
    return Batch({name: Vector(LONG, numbers)}, weights, tags)


def chain() -> list[JoinOperator]:
    """Cross joins of WIDTH sides, each with the result so far."""
    joins = []
    for number in range(1, WIDTH):
        before = tuple((f"c{index}", LONG) for index in range(number))
        left = Side(before, (), number)
        joins.append(JoinOperator(f"j{number}", left, Side(((f"c{number}", LONG),), (), 1), ()))
    return joins


def step(joins: list[JoinOperator], *values: tuple[int, int]) -> list[Batch]:
    """The output of every join when every side changes by these values."""
    result = [rows("c0", *values)]
    for number, join in enumerate(joins, 1):
        result.append(join.step(result[-1], rows(f"c{number}", *values)))
    return result[1:]


def test_joins_of_one_row_each_replace_one_row() -> None:
    joins = chain()
    assert [len(batch) for batch in step(joins, (0, 1))] == [1] * (WIDTH - 1)
    for old in range(3):
        batches = step(joins, (old, -1), (old + 1, 1))
        # Without cancelling, each join would have three times the rows of the previous one.
        assert [len(batch) for batch in batches] == [2] * (WIDTH - 1)
        values_by_weight = {
            int(weight): {
                int(batches[-1].columns[f"c{index}"].values[row]) for index in range(WIDTH)
            }
            for row, weight in enumerate(batches[-1].weights)
        }
        assert values_by_weight == {-1: {old}, 1: {old + 1}}
