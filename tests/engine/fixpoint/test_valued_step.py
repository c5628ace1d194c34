"""Which steps go on from a key's value by what a table adds, by circuits built by hand.

Plans are rewritten before they come here, and queries whose values may get worse on the way have no
best rows: so what is refused here is asked of circuits that no query has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from impctl.data.schema import DOUBLE, INTEGER, LONG, STRING, SqlType
from impctl.engine.circuit import Circuit
from impctl.engine.fixpoint.best_values import Offset, ValuedStep, valued_step
from impctl.engine.fixpoint.rows import Grouped
from impctl.engine.join import Join, Side
from impctl.engine.linear import Project
from impctl.expr.nodes import Arithmetic, ArithmeticOp, ColumnRef, Expr, Literal

COLUMNS = (("n", LONG), ("c", LONG))
BY_KEY = Grouped(("n",), (("c", False),))
GREATEST = Grouped(("n",), (("c", True),))
OWN = Side((*COLUMNS, ("rank", LONG)), ("n",), 0)
LINKS = Side((("a", LONG), ("b", LONG), ("w", LONG), ("v", INTEGER), ("d", DOUBLE)), ("a",), 1)
KINDS = dict((*OWN.columns, *LINKS.columns))


def ref(name: str) -> ColumnRef:
    return ColumnRef(name, KINDS.get(name, LONG))


def number(value: int | None, kind: SqlType = LONG) -> Literal:
    return Literal(value, kind)


def plus(left: Expr, right: Expr) -> Expr:
    return Arithmetic(ArithmeticOp.ADD, left, right)


def minus(left: Expr, right: Expr) -> Expr:
    return Arithmetic(ArithmeticOp.SUBTRACT, left, right)


C, W, V = ref("c"), ref("w"), ref("v")


def found_of(
    *outputs: Mapping[str, Expr], grouped: Grouped = BY_KEY, links: Side = LINKS
) -> ValuedStep | None:
    """What a step is taken for with these projections above its join, the lowest first."""
    join = Join("join", OWN, links, [False])
    above = [Project(list(one.items())) for one in outputs]
    wires: Sequence[tuple[int, ...]] = [(-1, -2), *((at,) for at in range(len(above)))]
    return valued_step(Circuit([join, *above], wires), COLUMNS, grouped, "rank")


def heads(value: Expr, key: Expr = ref("b"), rank: Expr = ref("rank")) -> Mapping[str, Expr]:  # noqa: B008
    return {"n": key, "c": value, "rank": rank}


ADDED: Mapping[str, tuple[Expr, Offset]] = {
    "nothing": (C, Offset()),
    "a column": (plus(C, W), Offset("w")),
    "a column, first": (plus(W, C), Offset("w")),
    "a column less": (minus(C, W), Offset("w", -1)),
    "a smaller number": (plus(C, V), Offset("v")),
    "a constant": (plus(number(7), C), Offset(constant=7)),
    "a constant less": (minus(C, number(7)), Offset(constant=-7)),
    "both": (minus(plus(minus(C, number(2)), W), number(3)), Offset("w", 1, -5)),
    "both, less": (plus(number(1), minus(C, W)), Offset("w", -1, 1)),
    "a large constant": (plus(C, number((1 << 50) - 1)), Offset(constant=(1 << 50) - 1)),
}
OTHERS: Mapping[str, Expr] = {
    "taken from a column": minus(W, C),
    "taken from a constant": minus(number(7), C),
    "taken from what was added": minus(number(7), plus(C, W)),
    "added, then taken from": minus(W, plus(C, number(1))),
    "twice": plus(C, C),
    "two columns": plus(plus(C, W), V),
    "a column twice": plus(plus(C, W), W),
    "times": Arithmetic(ArithmeticOp.MULTIPLY, C, W),
    "no number": plus(C, number(None)),
    "a part of one": plus(C, Literal(1.5, DOUBLE)),
    "a constant too large": plus(C, number(1 << 50)),
    "a constant too small": minus(C, number(1 << 50)),
    "a sum of others": plus(C, plus(W, number(1))),
    "another one": W,
    "the key": plus(ref("n"), W),
    "the rank": plus(ref("rank"), W),
    "a double": plus(C, ref("d")),
}


@pytest.mark.parametrize("name", ADDED)
def test_what_is_added_is_told_in_the_order_of_values(name: str) -> None:
    value, offset = ADDED[name]
    result = found_of(heads(value))
    assert result is not None
    assert (result.key, result.value, result.head, result.side) == ("n", "c", "b", 0)
    assert result.offset == offset
    assert not result.is_greatest
    turned = found_of(heads(value), grouped=GREATEST)
    assert turned is not None
    assert turned.offset.column == offset.column
    assert turned.offset.constant == -offset.constant
    assert turned.offset.sign == -offset.sign
    assert turned.is_greatest


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_surely_that_is_not_taken_for_it(name: str) -> None:
    assert found_of(heads(OTHERS[name])) is None


def test_sums_are_put_together_over_projections() -> None:
    below = {"b1": ref("b"), "c1": plus(C, W), "r1": ref("rank"), "more": number(4)}
    above = heads(minus(ref("c1"), ref("more")), ref("b1"), ref("r1"))
    result = found_of(below, above)
    assert result is not None
    assert result.offset == Offset("w", 1, -4)
    taken_from = heads(minus(ref("more"), ref("c1")), ref("b1"), ref("r1"))
    assert found_of(below, taken_from) is None


def test_keys_come_from_the_table_and_ranks_from_the_rows() -> None:
    value = plus(C, W)
    assert found_of(heads(value)) is not None
    assert found_of(heads(value, ref("n"))) is None, "its own key"
    assert found_of(heads(value, plus(ref("b"), number(1)))) is None, "a key that is computed"
    assert found_of(heads(value, ref("v"))) is None, "a key of another type"
    assert found_of(heads(value, rank=ref("w"))) is None, "another rank"
    assert found_of(heads(value, rank=plus(ref("rank"), number(1)))) is None, "a rank computed"


def test_one_key_and_one_value_of_whole_numbers() -> None:
    step = heads(plus(C, W))
    assert found_of(step, grouped=Grouped(("n", "c"), (("c", False),))) is None
    assert found_of(step, grouped=Grouped(("n",), (("c", False), ("n", False)))) is None
    for kinds in ({"n": STRING, "c": LONG}, {"n": LONG, "c": INTEGER}, {"n": LONG, "c": DOUBLE}):
        own = Side((*kinds.items(), ("rank", LONG)), ("n",), 0)
        links = Side((("a", kinds["n"]), ("b", kinds["n"]), ("w", kinds["c"])), ("a",), 1)
        value = plus(ColumnRef("c", kinds["c"]), ColumnRef("w", kinds["c"]))
        outputs = heads(value, ColumnRef("b", kinds["n"]))
        join = Join("join", own, links, [False])
        circuit = Circuit([join, Project(list(outputs.items()))], [(-1, -2), (0,)])
        assert valued_step(circuit, tuple(kinds.items()), BY_KEY, "rank") is None


def test_two_keys_or_a_column_more_are_too_many() -> None:
    more = (*COLUMNS, ("x", LONG))
    for keys, own_columns in ((("n", "x"), more), (("n",), more), (("n", "c"), COLUMNS)):
        own = Side((*own_columns, ("rank", LONG)), keys, 0)
        join = Join("join", own, Side(LINKS.columns, ("a", "w")[: len(keys)], 1), [False])
        outputs = {**heads(plus(C, W)), **({"x": ref("w")} if own_columns is more else {})}
        circuit = Circuit([join, Project(list(outputs.items()))], [(-1, -2), (0,)])
        assert valued_step(circuit, own_columns, BY_KEY, "rank") is None
