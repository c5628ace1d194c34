"""A circuit that stands in a circuit means the same as its operators would in its place.

The laws themselves are tested over such circuits as over all others (`test_laws`).
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from impctl.data.schema import LONG
from impctl.data.vector import Vector
from impctl.engine.accumulators import AggregateColumn
from impctl.engine.aggregate import Aggregate
from impctl.engine.batch import Batch
from impctl.engine.circuit import Circuit
from impctl.engine.linear import Project, Select
from impctl.expr.nodes import ColumnRef
from tests.support.circuits import SHAPES, Row, contents, feed, more_than
from tests.support.random_cases import random_seeds

PAIRS = [
    ("group by string", "a circuit in a circuit"),
    ("keyed group", "a whole circuit in a circuit"),
    ("two joins", "two joins as one operator"),
]
N = ColumnRef("n", LONG)


def some_rows(rng: random.Random) -> list[Row]:
    return [
        (rng.randint(0, 7), rng.randint(0, 3), rng.choice("ab"), rng.randint(0, 4), 1.5)
        for _ in range(rng.randint(1, 8))
    ]


@pytest.mark.parametrize(("flat", "nested"), PAIRS)
@random_seeds(2, 5, 20)
def test_nested_means_the_same_as_flat(flat: str, nested: str, seed: int) -> None:
    rng = random.Random(seed)
    (scan, one), (_, other) = SHAPES[flat](), SHAPES[nested]()
    held: list[Row] = []
    for _ in range(6):
        came, gone = some_rows(rng), rng.sample(held, len(held) // 2)
        for row in gone:
            held.remove(row)
        held += came
        weights = [1] * len(came) + [-1] * len(gone)
        deltas = [feed(scan, circuit, came + gone, weights) for circuit in (one, other)]
        first, second = ([d.added.tolist() for d in delta] for delta in deltas)
        assert first == second
    assert contents(one) == contents(other)
    assert any(contents(one)[0]), "something came out"
    names = [[keeper.name for keeper in circuit.arrangements()] for circuit in (one, other)]
    assert names[0] == names[1]
    assert one.circuit.counters() == other.circuit.counters()


def counted(name: str) -> Aggregate:
    columns = [AggregateColumn("n", LONG, None, None)]
    return Aggregate(name, (), columns, accesses=0, is_keyed=True)


def values(batch: Batch | None) -> list[tuple[int, int]]:
    """The numbers in a batch with their weights, those that cancel left out."""
    assert batch is not None
    result: dict[int, int] = {}
    pairs = zip(batch.columns["n"].values.tolist(), batch.weights.tolist(), strict=True)
    for value, weight in pairs:
        result[value] = result.get(value, 0) + weight
    return sorted((value, weight) for value, weight in result.items() if weight)


def test_what_a_nested_circuit_starts_with_passes_what_stands_above_it() -> None:
    """Both counts have a row over empty input, and the upper one counts the lower one's.

    What groups the counts on top sees none go that did not come.
    """
    low, high = Circuit([counted("low")]), Circuit([Project([("n", N)]), counted("high")])
    once = Aggregate("once", [("n", LONG)], (), accesses=0, is_keyed=True)
    nested = Circuit([low, high, once])
    assert values(nested.start()) == [(1, 1)]
    rows = Batch({"n": Vector(LONG, np.zeros(3, np.int64))}, np.ones(3, np.int64), ())
    assert values(nested.step(rows)) == [], "three rows, but still one count of them"
    assert nested.counters().keys() == {"low.next_group", "high.next_group", "once.next_group"}


def test_a_change_of_a_source_that_does_not_reach_the_end_is_none() -> None:
    first, second = (Select(more_than(N, 0), must_be_sure=False) for _ in range(2))
    inner = Circuit([first, second], [(-1,), (-2,)])
    row = Batch({"n": Vector(LONG, np.ones(1, np.int64))}, np.ones(1, np.int64), ())
    assert inner.step(row, None) is None
    assert Circuit([inner, Project([("n", N)])], [(-1, -2), (0,)]).step(row, None) is None
    assert values(inner.step(None, row)) == [(1, 1)]


def test_what_a_nested_circuit_answers_is_that_of_its_operators() -> None:
    _, whole = SHAPES["a whole circuit in a circuit"]()
    assert whole.circuit.unsure_rows == 0
    assert not whole.circuit.can_output
    assert not whole.circuit.is_bounded
    assert whole.circuit.reads == ()
