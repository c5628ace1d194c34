"""A keeper may stand in several operators; a checkpoint has it once, whoever asks for it."""

from __future__ import annotations

import pytest

from impctl.compile.session import checkpoint_of
from impctl.data.schema import LONG
from impctl.engine.circuit import Circuit
from impctl.engine.trace import RowIndex
from tests.support.circuits import SHAPES, Row, contents, feed, restarted
from tests.support.shared_index import Indexed, Partners

ROWS: list[Row] = [(1, 1, "a", 5, 1.0), (3, 1, "b", 2, None), (7, 2, None, 5, 1.5)]
COLUMNS = (("g", LONG),)


def index(name: str) -> RowIndex:
    return RowIndex(name, COLUMNS, ["g"], 1)


def test_a_shared_index_is_checkpointed_once() -> None:
    scan, circuit = SHAPES["a shared index"]()
    feed(scan, circuit, ROWS, [1] * len(ROWS))
    asked = [keeper.name for operator in circuit.circuit for keeper in operator.arrangements()]
    assert asked.count("shared") == 3
    checkpoint = checkpoint_of(circuit.circuit.arrangements(), circuit.circuit.counters())
    written = [(name, sequence) for name, sequence, _ in checkpoint.put]
    assert len(written) == len(set(written))
    assert {"shared", "a", "b"} <= {name for name, _ in written}


def test_what_shares_an_index_goes_on_from_the_checkpoint_with_one() -> None:
    scan, circuit = SHAPES["a shared index"]()
    feed(scan, circuit, ROWS, [1] * len(ROWS))
    fresh = restarted(circuit, SHAPES["a shared index"]()[1])
    for one in (circuit, fresh):
        feed(scan, one, [ROWS[0], ROWS[2]], [2, -1])
    assert contents(fresh) == contents(circuit)
    assert sum(contents(fresh)[0]) == 2 * 2 * (3 + 1) * 2, "joins, accesses, 4 rows by 2"


def test_an_index_shared_across_circuits_is_found_once() -> None:
    shared = index("shared")
    inner = Circuit([Indexed(shared)])
    whole = Circuit([inner, Partners(index("own"), shared)], [(-1,), (-2, 0)])
    assert [keeper.name for keeper in whole.arrangements()] == ["shared", "own"]


def test_two_keepers_of_one_name_are_refused() -> None:
    with pytest.raises(AssertionError, match="two keepers are called same"):
        Circuit([Indexed(index("same")), Indexed(index("same"))])


def test_an_operator_stands_in_one_place() -> None:
    twice = Indexed(index("i"))
    with pytest.raises(AssertionError, match="one place"):
        Circuit([twice, twice])
