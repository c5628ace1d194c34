"""Cases of join trees that are easy to get wrong: passes up and down, conditions, sums."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from impctl.data import keys as data_keys
from impctl.data.schema import DOUBLE, LONG, SqlType, decimal
from impctl.data.vector import Vector, from_arrow
from impctl.engine.accumulators import AggregateColumn, Count, ExactSum, FloatSum, Spread, sum_of
from impctl.engine.batch import Batch
from impctl.engine.circuit import Circuit
from impctl.engine.extremes import OrderKey
from impctl.engine.jointree.spec import Access, Edge, JoinTree, Link, TreeMode, TreeNode
from impctl.engine.jointree.tree import Live, Tree
from impctl.engine.jointree.values import multiplied
from impctl.engine.linear import Merge, SelectOperator
from impctl.engine.topk import Cut, Limit, Top
from impctl.errors import CountBelowZeroError, EvaluationError, NotExactError
from impctl.expr.nodes import CompareOp
from impctl.sketch.sketch import RangePartition
from tests.support.circuits import Rooted
from tests.support.join_trees import (
    ANY,
    FRAGMENTS,
    SUM,
    Grown,
    N,
    Rows,
    compared,
    grown,
    node,
    pair,
)
from tests.support.random_cases import random_seeds


def groups(tree: Grown) -> dict[Any, dict[str, Any]]:
    """(n, sum) per group of one column."""
    operator = next(iter(tree.rooted.circuit))
    batch = operator.output()
    if not len(batch):
        return {}
    (key,) = operator.tree.root.key
    lists = [batch.columns[name].to_arrow().to_pylist() for name in (key, N, SUM)]
    return {group: {N: n, SUM: total} for group, n, total in zip(*lists, strict=True)}


TWO_BELOW = (
    node(0, "s", "a", "a"),
    node(1, "t", "a", "a"),
    node(2, "r", "a", "a", [(0, Edge.INNER, "a"), (1, Edge.INNER, "a")]),
)


def test_both_sides_of_a_key_change_in_one_step() -> None:
    tree = pair()
    tree.step(s=[((1, 10), 0, 1)], r=[((1, 7), 0, 1)])
    # The new row of r joins all of s, the old row only its change.
    tree.step(s=[((1, 5), 0, 2)], r=[((1, 7), 1, 1), ((1, 8), 2, 1)])
    assert groups(tree) == {7: {N: 6, SUM: 40}, 8: {N: 3, SUM: 20}}


def test_a_tuple_reached_through_two_children_counts_once() -> None:
    nodes = [
        node(0, "s", "a", "a", argument=True),
        node(1, "t", "b", "b"),
        node(2, "r", "abg", "g", [(0, Edge.INNER, "a"), (1, Edge.INNER, "b")]),
    ]
    tree = grown(nodes, ANY)
    tree.step(r=[((1, 2, 7), 0, 1)])
    assert tree.step(s=[((1, 5), 0, 1)], t=[((2,), 0, 1)]) == (3, 3, 3)
    assert groups(tree) == {7: {N: 1, SUM: 5}}


@pytest.mark.parametrize("edge", [Edge.SEMI, Edge.ANTI])
def test_existence_multiplies_by_one(edge: Edge) -> None:
    tree = pair(edge, having=compared(N, CompareOp.EQUAL, 2))
    key = 1 if edge is Edge.SEMI else 2
    tree.step(s=[((1,), 0, 3), ((1,), 1, 4)], r=[((key, 7, 5), 0, 2)])
    assert groups(tree) == {7: {N: 2, SUM: 10}}
    assert tree.sketches == {"r": {0}, "s": {0, 1} if edge is Edge.SEMI else set()}
    if edge is Edge.ANTI:
        keepers = {keeper.name: keeper for keeper in tree.rooted.arrangements()}
        assert keepers["tree0.s.live"].bytes_held == 0  # type: ignore[attr-defined]  # an arrangement
    # Another copy crosses no zero, so no parent is touched.
    assert tree.step(s=[((1,), 2, 1)])[0] == 1


@pytest.mark.parametrize("edge", [Edge.LEFT, Edge.ANTI])
def test_null_has_no_partner_but_is_live(edge: Edge) -> None:
    is_seen = edge is Edge.LEFT
    tree = pair(edge)
    s: Rows = [((None, 1), 0, 1)] if is_seen else [((None,), 0, 1)]
    tree.step(s=s, r=[((None, 7), 3, 1) if is_seen else ((None, 7, 1), 3, 1)])
    assert tree.sketches == {"s": set(), "r": {3}}
    assert groups(tree)[7][N] == 1


@pytest.mark.parametrize("edge", [Edge.INNER, Edge.SEMI])
def test_null_without_a_partner_is_dropped(edge: Edge) -> None:
    nodes = [node(0, "s", "a", "a"), node(1, "r", "a", "", [(0, edge, "a")])]
    tree = grown(nodes, bits=True)
    tree.step(s=[((None,), 0, 1)], r=[((None,), 0, 1), ((1,), 1, 1)])
    assert tree.sketches == {"s": set(), "r": set()}
    # Deleting rows that were never stored is no error.
    tree.step(s=[((None,), 0, -1)], r=[((None,), 0, -1)])


def test_a_left_key_is_live_before_it_has_rows_unless_null() -> None:
    tree = pair(Edge.LEFT)
    tree.step(r=[((1, 7), 0, 1)])
    assert tree.sketches == {"s": set(), "r": {0}}
    tree.step(s=[((1, 5), 4, 1)])
    assert tree.sketches == {"s": {4}, "r": {0}}
    assert groups(tree) == {7: {N: 1, SUM: 5}}
    tree.step(s=[((1, 5), 4, -1)])
    assert groups(tree) == {7: {N: 1, SUM: None}}
    assert tree.sketches == {"s": set(), "r": {0}}
    nodes = [node(0, "s", "a", "a"), node(1, "r", "a", "a", [(0, Edge.LEFT, "a")])]
    tree = grown(nodes, ANY)
    # Its code sorts after that of NULL.
    late = 2**62
    tree.step(s=[((late,), 4, 1)], r=[((None,), 1, 1)])
    assert tree.sketches == {"s": set(), "r": {1}}
    tree.step(r=[((None,), 1, -1), ((late,), 2, 1)])
    assert tree.sketches == {"s": {4}, "r": {2}}


def test_updating_only_the_sketched_column_moves_ranges() -> None:
    tree = pair()
    tree.step(s=[((1, 1), 0, 1)], r=[((1, 7), 5, 1)])
    assert tree.step(s=[((1, 1), 0, -1), ((1, 1), 9, 1)])[1:] == (0, 2)
    assert tree.sketches == {"s": {9}, "r": {5}}


@pytest.mark.slow
def test_a_group_keeps_its_number_while_dead_tuples_refer_to_it() -> None:
    tree = pair(having=compared(N, CompareOp.GREATER, 1))
    tree.step(s=[((2, 1), 2, 1), ((3, 1), 3, 1)], r=[((2, 7), 12, 1), ((3, 7), 13, 1)])
    assert tree.sketches == {"s": {2, 3}, "r": {12, 13}}
    # The group dies while its tuples remain, for so long that runs merge.
    tree.step(s=[((2, 1), 2, -1), ((3, 1), 3, -1)])
    for weight in (1, -1):
        for number in range(40):
            tree.step(s=[((9, 1), 0, weight)], r=[((9, 100 + number), 0, weight)])
    assert tree.sketches == {"s": set(), "r": set()}
    # The second tuple makes the group pass; the first is reached by the group's number alone.
    tree.step(s=[((2, 1), 2, 1)])
    tree.step(s=[((3, 1), 3, 1)])
    assert tree.sketches == {"s": {2, 3}, "r": {12, 13}}


def test_keys_with_equal_codes_are_distinct(monkeypatch: pytest.MonkeyPatch) -> None:
    real = data_keys.key_codes

    def crowded(columns: Any, length: int) -> Any:
        codes = real(columns, length)
        return codes if len(columns) < 2 else codes % np.int64(3)

    trees = (f"engine.jointree.{name}" for name in ("node", "values", "top_down"))
    for module in ("data.keys", "engine.batch", *trees):
        monkeypatch.setattr(f"impctl.{module}.key_codes", crowded)
    nodes = [
        node(0, "s", "ab", "ab", argument=True),
        node(1, "r", "abg", "g", [(0, Edge.INNER, "ab")]),
    ]
    tree = grown(nodes, ANY)
    cells = [(a, b) for a in range(4) for b in range(4)]
    tree.step(s=[((a, b, 4 * a + b), a, 1) for a, b in cells])
    tree.step(r=[((a, b, 4 * a + b), b, 1) for a, b in cells])
    assert groups(tree) == {4 * a + b: {N: 1, SUM: 4 * a + b} for a, b in cells}
    tree.step(s=[((a, b, 4 * a + b), a, -1) for a, b in cells if a != 2])
    assert tree.sketches == {"s": {2}, "r": {0, 1, 2, 3}}


@pytest.mark.parametrize(("of_s", "of_t"), [(2**31, 2**31), (2**33, 2**33), (2**61, 2**61)])
def test_too_many_joined_rows_are_an_error(of_s: int, of_t: int) -> None:
    tree = grown(TWO_BELOW, ANY)
    least = (2**62 - 1) // of_s
    tree.step(s=[((1,), 0, of_s)], t=[((1,), 0, least)], r=[((1,), 0, 1)])
    assert tree.sketch("r") == {0}
    # The product of the second pair is 0 in 64 bits.
    with pytest.raises(NotExactError) as error:
        tree.step(t=[((1,), 0, of_t - least)])
    assert error.value.code == "count_too_large"


def test_only_joined_rows_count_towards_the_limit() -> None:
    tree = grown(TWO_BELOW, ANY)
    tree.step(s=[((1,), 0, 2**40)], r=[((1,), 0, 2**40)])
    assert tree.sketches == {"s": set(), "t": set(), "r": set()}
    nodes = [node(0, "s", "a", "a"), node(1, "r", "ag", "g", [(0, Edge.INNER, "a")])]
    tree = grown(nodes, ANY)
    s: Rows = [((key,), 0, 2**30) for key in range(4)]
    with pytest.raises(NotExactError, match="2\\^62"):
        tree.step(s=s, r=[((key, 7), 0, 2**31) for key in range(4)])


@pytest.mark.parametrize("name", ["r", "s"])
def test_the_error_for_missing_rows_names_the_node(name: str) -> None:
    tree = pair()
    tree.step(s=[((1, 1), 0, 1)], r=[((1, 7), 0, 1)])
    deleted: Rows = [((1, 1) if name == "s" else (1, 7), 0, -2)]
    with pytest.raises(CountBelowZeroError, match=f"`{name}`.*never contained"):
        tree.step(**{name: deleted})


def test_ranges_that_do_not_cancel_with_their_tuple_are_an_error() -> None:
    tree = pair()
    tree.step(s=[((1, 1), 0, 1)], r=[((1, 7), 0, 1)])
    assert tree.step(r=[((5, 7), 3, 1), ((5, 7), 3, -1)]) == (1, 0, 0)
    with pytest.raises(CountBelowZeroError, match="from a range"):
        tree.step(r=[((5, 7), 3, 1), ((5, 7), 4, -1)], s=[((1, 1), 0, 1)])


CHAIN = (
    node(0, "t", "b", "b"),
    node(1, "s", "ab", "a", [(0, Edge.INNER, "b")]),
    node(2, "r", "ag", "g", [(1, Edge.INNER, "a")], argument=True),
)


def first_groups(size: int, nodes: Sequence[TreeNode] = CHAIN) -> Grown:
    """The groups with the greatest COUNT(*) by one column, with ties of the last one."""
    plain = grown(nodes)
    tree = next(iter(plain.rooted.circuit))
    assert isinstance(tree, Tree)
    columns = ((tree.tree.root.key[0], LONG), (N, LONG), (tree.tree.group, LONG))
    order = (OrderKey(N, descending=True, nulls_first=False),)
    top = Top("top0", columns, order, Limit(size, Cut.RANK), 0)
    wires = tuple(-1 - index for index in range(tree.tree.inputs))
    circuit = Circuit([tree, top, Live(tree)], [wires, (0,), (1, 0)])
    return Grown(nodes, Rooted(circuit, Merge([FRAGMENTS] * tree.tree.accesses)), "tree0")


def test_rows_far_below_change_the_first_groups() -> None:
    tree = first_groups(1)
    tree.step(
        t=[((1,), 1, 2), ((2,), 2, 1)],
        s=[((1, 1), 11, 1), ((2, 2), 12, 1), ((3, 2), 13, 1)],
        r=[((1, 7, 0), 21, 1), ((2, 8, 0), 22, 1), ((3, 9, 0), 23, 1)],
    )
    assert tree.sketches == {"t": {1}, "s": {11}, "r": {21}}
    # One copy less, two joins away: three groups tie, and two untouched ones enter.
    tree.step(t=[((1,), 1, -1)])
    assert tree.sketches == {"t": {1, 2}, "s": {11, 12, 13}, "r": {21, 22, 23}}
    tree.step(t=[((1,), 1, -1)])
    assert tree.sketches == {"t": {2}, "s": {12, 13}, "r": {22, 23}}
    tree.step(t=[((1,), 3, 5)])
    assert tree.sketches == {"t": {3}, "s": {11}, "r": {21}}
    tree = first_groups(1)
    tree.step(
        t=[((1,), 1, 1)],
        s=[((1, 1), 11, 3), ((2, 1), 12, 2)],
        r=[((1, 7, 0), 21, 1), ((2, 8, 0), 22, 1)],
    )
    assert tree.sketches == {"t": {1}, "s": {11}, "r": {21}}
    # Only rows of group 7 are touched in r and s, but group 8 replaces it.
    tree.step(r=[((1, 7, 0), 21, -1)])
    assert tree.sketches == {"t": {1}, "s": {12}, "r": {22}}


def test_a_circuit_continues_with_new_constants() -> None:
    tree = pair(having=compared(SUM, CompareOp.GREATER, 5))
    tree.step(s=[((1, 4), 0, 1), ((2, 9), 1, 1)], r=[((1, 7), 0, 1), ((2, 8), 1, 1)])
    assert tree.sketches == {"s": {1}, "r": {1}}
    circuit = tree.rooted.circuit
    parts = [operator for operator in circuit if isinstance(operator, Tree | SelectOperator)]
    rows = parts[0].output()
    moved = SelectOperator(compared(SUM, CompareOp.GREATER, 3), must_be_sure=False)
    output = circuit.step_past([None, None], {}, {1: moved.turned(rows, parts[1])})
    assert output is not None
    tree.rooted.merge.step(output)
    assert tree.sketches == {"s": {0, 1}, "r": {0, 1}}
    # Nothing is counted twice.
    assert [int(counts.max()) for counts in tree.rooted.merge.counts] == [1, 1]


def test_deleting_a_group_not_in_the_result_is_an_error() -> None:
    tree = Tree(JoinTree("tree0", CHAIN[:1], TreeMode.RING, (), 1))
    groups = Batch({tree.tree.group: Vector(LONG, np.array([1]))}, np.array([-1]), ())
    with pytest.raises(CountBelowZeroError, match="was not in the result"):
        Live(tree).step(groups)


def virtual(*edges: Edge, bits: bool = False) -> Grown:
    """One node per edge, all children of a virtual root of their common column."""
    names = "stu"[: len(edges)]
    nodes = [node(index, name, "a", "a", argument=not index) for index, name in enumerate(names)]
    links = tuple(Link(index, edge, ("v.a",)) for index, edge in enumerate(edges))
    nodes.append(TreeNode("v", None, (("v.a", LONG),), ("v.a",), (), links))
    return grown(nodes, None if bits else compared(SUM, CompareOp.GREATER, 10))


def test_a_change_below_a_virtual_root_touches_only_its_key() -> None:
    tree = virtual(Edge.INNER, Edge.INNER, Edge.INNER)
    tree.step(s=[((1, 3), 1, 1)], t=[((1,), 2, 2)], u=[((1,), 3, 1)])
    assert tree.sketches == {"s": set(), "t": set(), "u": set()}
    # Its own tuple and the root's; the root and all three children flip.
    assert tree.step(u=[((1,), 4, 1)]) == (2, 4, 4)
    assert tree.sketches == {"s": {1}, "t": {2}, "u": {3, 4}}
    assert tree.step(t=[((1,), 2, -2)])[1] == 4
    assert tree.sketches == {"s": set(), "t": set(), "u": set()}
    assert tree.step(t=[((1,), 6, 9)])[1] == 4
    assert tree.sketches == {"s": {1}, "t": {6}, "u": {3, 4}}
    tree = virtual(Edge.INNER, Edge.LEFT, Edge.ANTI)
    tree.step(s=[((1, 6), 1, 2)])
    assert tree.sketches == {"s": {1}, "t": set(), "u": set()}
    tree.step(t=[((1,), 2, 3)])
    assert tree.sketches == {"s": {1}, "t": {2}, "u": set()}
    tree.step(u=[((1,), 3, 1)])
    assert tree.sketches == {"s": set(), "t": set(), "u": set()}


def test_an_untouched_group_of_a_virtual_root_is_reached() -> None:
    links = (Link(0, Edge.INNER, ("v.a",)), Link(1, Edge.INNER, ("v.a",)))
    root = TreeNode("v", None, (("v.a", LONG),), ("v.a",), (), links)
    tree = first_groups(1, [node(0, "s", "a", "a"), node(1, "t", "a", "a"), root])
    tree.step(s=[((1,), 1, 3), ((2,), 2, 2)], t=[((1,), 11, 1), ((2,), 12, 1)])
    assert tree.sketches == {"s": {1}, "t": {11}}
    tree.step(s=[((1,), 1, -2)])
    assert tree.sketches == {"s": {2}, "t": {12}}


def test_ranges_of_a_kept_column_need_no_counts() -> None:
    ranges = RangePartition("r", "g", LONG, (2, 4, 6))
    leaf = TreeNode("s", 0, (("s.a", LONG),), ("s.a",), (False,), accesses=(Access(0),))
    columns = (("r.a", LONG), ("r.g", LONG))
    links = (Link(0, Edge.INNER, ("r.a",)),)
    root = TreeNode("r", 1, columns, (), (), links, accesses=(Access(1, ("r.g", ranges)),))
    tree = Tree(JoinTree("tree0", (leaf, root), TreeMode.BITS, (), 2))
    assert not [keeper for keeper in tree.arrangements() if "r.fragments" in keeper.name]
    circuit = grown([leaf, root], bits=True)
    circuit.step(s=[((1,), 0, 1)], r=[((1, 1), 0, 1), ((1, 5), 2, 1), ((2, 7), 3, 1)])
    assert circuit.sketches == {"s": {0}, "r": {0, 2}}
    circuit.step(r=[((1, 5), 2, -1), ((1, None), ranges.size - 1, 1)])
    assert circuit.sketches == {"s": {0}, "r": {0, ranges.size - 1}}


Row = tuple[int, Any]
FINITE = [1e16, -1e16, 1.0, -1.0, 0.1, 1e-300, 5e-324, 3.5, 1e250, -1e250, 123456.789]
SPECIAL = [math.nan, math.inf, -math.inf]


class Star:
    """t and u below r, joined and grouped by one column; SUM over a column of t or r."""

    def __init__(self, kind: SqlType, part: ExactSum | FloatSum, *, at_root: bool) -> None:
        count = Count("x", 0)
        columns = (
            AggregateColumn("n", LONG, None, None),
            AggregateColumn("sum", kind if kind == DOUBLE else decimal(38, 2), part, count),
        )
        argument = (("x", kind),)
        t = TreeNode("t", 0, (("t.a", LONG),), ("t.a",), (False,), (), () if at_root else argument)
        u = TreeNode("u", 1, (("u.a", LONG),), ("u.a",), (False,))
        links = (Link(0, Edge.INNER, ("r.a",)), Link(1, Edge.LEFT, ("r.a",)))
        r = TreeNode("r", 2, (("r.a", LONG),), ("r.a",), (), links, argument if at_root else ())
        self.kind, self.at_root = kind, at_root
        self.tree = Tree(JoinTree("tree0", (t, u, r), TreeMode.RING, columns))
        self.rows: list[Counter[Row]] = [Counter() for _ in range(3)]

    def step(self, changes: list[list[tuple[Row, int]]]) -> None:
        batches = []
        for index, rows in enumerate(changes):
            name, has_x = "tur"[index], index == (2 if self.at_root else 0)
            columns = {f"{name}.a": from_arrow(pa.array([k for (k, _), _ in rows], "int64"), LONG)}
            if has_x:
                columns["x"] = self._vector([x for (_, x), _ in rows])
            for row, weight in rows:
                self.rows[index][row] += weight
            weights = np.array([weight for _, weight in rows], dtype=np.int64)
            batches.append(Batch(columns, weights, ()) if rows else None)
        self.tree.step(*batches)

    def _vector(self, values: list[Any]) -> Any:
        if self.kind == DOUBLE:
            return from_arrow(pa.array(values, pa.float64()), DOUBLE)
        return from_arrow(pa.array(values, pa.decimal128(38, 2)), self.kind)

    def expected(self) -> dict[int, tuple[int, list[tuple[Any, int]]]]:
        """Per group the number of joined rows, and each value with its multiplicity."""
        t, u, r = (
            {k: [(x, n) for (key, x), n in rows.items() if key == k and n] for k in range(4)}
            for rows in self.rows
        )
        result = {}
        for k in range(4):
            of_t, of_r = (sum(n for _, n in side[k]) for side in (t, r))
            of_u = max(sum(n for _, n in u[k]), 1)
            mine, others = (r[k], of_t) if self.at_root else (t[k], of_r)
            if of_t * of_r:
                values = [(x, n * others * of_u) for x, n in mine if x is not None]
                result[k] = (of_t * of_u * of_r, values)
        return result

    def output(self) -> dict[int, tuple[int, Any, float]]:
        batch = self.tree.output()
        if not len(batch):
            return {}
        keys, counts = (batch.columns[name].values.tolist() for name in ("r.a", "n"))
        sums = batch.columns["sum"]
        errors = np.zeros(len(batch)) if sums.error is None else sums.error
        known = zip(sums.values, sums.validity(), strict=True)
        values = [value if is_valid else None for value, is_valid in known]
        return dict(zip(keys, zip(counts, values, errors.tolist(), strict=True), strict=True))


def random_steps(star: Star, random_: random.Random, values: list[Any], copies: int) -> None:
    changes: list[list[tuple[Row, int]]] = []
    for index in range(3):
        has_x = index == (2 if star.at_root else 0)
        rows: list[tuple[Row, int]] = []
        present = Counter({row: n for row, n in star.rows[index].items() if n})
        for _ in range(random_.randint(0, 4)):
            if present and random_.random() < 0.35:
                row = random_.choice(list(present))
                rows.append((row, -present.pop(row)))
            else:
                row = (random_.randrange(3), random_.choice(values) if has_x else None)
                rows.append((row, random_.randint(1, copies)))
        changes.append(rows)
    star.step(changes)


@pytest.mark.parametrize("at_root", [False, True])
@random_seeds(4, 8, 40)
def test_sums_of_doubles_are_within_their_bound(seed: int, at_root: bool) -> None:
    random_ = random.Random(seed)
    star = Star(DOUBLE, FloatSum("x", 0, False), at_root=at_root)
    bounded = 0
    for _ in range(14):
        random_steps(star, random_, [None, *FINITE], random_.choice([1, 3, 1000, 2**19 + 1]))
        expected, output = star.expected(), star.output()
        assert {k: n for k, (n, _, _) in output.items()} == {k: n for k, (n, _) in expected.items()}
        for key, (_, result, error) in output.items():
            values = expected[key][1]
            assert (result is None) == (not values)
            if result is None or math.isinf(error):
                continue
            truth = sum((Fraction(x) * n for x, n in values), Fraction(0))
            assert abs(Fraction(float(result)) - truth) <= Fraction(error)
            bounded += 1
        check_state(star, expected)
    assert bounded > 5


def check_state(star: Star, expected: dict[int, tuple[int, list[tuple[Any, int]]]]) -> None:
    """Assert that `size` bounds the magnitudes, and `drift` the error of the stored sum."""
    root = star.tree.nodes[-1]
    _, keys, state = root.keys.whole(root.key_columns)
    for index, key in enumerate(keys[0].values.tolist() if keys else []):
        if key not in expected:
            continue
        values = expected[key][1]
        parts = [float(state[f"{name}0"][index]) for name in ("sum", "rest", "size", "drift")]
        if not all(map(math.isfinite, parts)):
            continue  # no bound beyond the greatest double
        size = sum((abs(Fraction(x)) * n for x, n in values), Fraction(0))
        total = sum((Fraction(x) * n for x, n in values), Fraction(0))
        assert Fraction(parts[2]) >= size
        assert abs(Fraction(parts[0]) + Fraction(parts[1]) - total) <= Fraction(parts[3])


@random_seeds(3, 6, 20)
def test_sums_of_whole_numbers_nan_and_infinities_are_exact(seed: int) -> None:
    random_ = random.Random(seed)
    star = Star(DOUBLE, FloatSum("x", 0, False), at_root=seed % 2 == 0)
    for _ in range(20):
        random_steps(star, random_, [None, 1.0, 2.0, -7.0, 1000.0, *SPECIAL], 3)
        expected = star.expected()
        for key, (_, result, error) in star.output().items():
            values = expected[key][1]
            truth = sum((x * n for x, n in values), 0.0)
            assert (result is None) == (not values)
            if result is not None:
                assert result == truth or (math.isnan(result) and math.isnan(truth))
                assert error == 0.0


@pytest.mark.parametrize("at_root", [False, True])
@random_seeds(3, 6, 24)
def test_decimals_are_exact_in_128_bits(seed: int, at_root: bool) -> None:
    random_ = random.Random(seed)
    kind = decimal(30, 2)
    values = [None, *(Decimal(n).scaleb(-2) for n in (1, -5, 2**62, -(2**62), 10**24, -(10**24)))]
    star = Star(kind, ExactSum("x", 0, decimal(38, 2)), at_root=at_root)
    for _ in range(14):
        random_steps(star, random_, values, random_.choice([1, 3, 1000]))
        expected = star.expected()
        for key, (_, result, _) in star.output().items():
            truth = sum(int(x.scaleb(2)) * n for x, n in expected[key][1])
            assert (None if result is None else int(result)) == (
                truth if expected[key][1] else None
            )


def test_an_overflow_fails_as_in_spark_if_its_rows_join() -> None:
    most = Decimal(10**37).scaleb(-2)
    star, alone = (
        Star(decimal(38, 2), ExactSum("x", 0, decimal(38, 2)), at_root=False) for _ in range(2)
    )
    star.step([[((1, most), 5)], [], [((1, None), 1)]])
    with pytest.raises(EvaluationError):
        star.step([[], [((1, None), 2)], []])
    with pytest.raises(NotExactError):
        alone.step([[((1, most), 20)], [], []])


@pytest.mark.parametrize("factor", [2, 3, 2**31 + 1, 2**53 + 1, 2**61 + 12345])
@pytest.mark.parametrize("value", [0.1, 1e16 + 2, 5e-324, 1.7e285, -123456.789, 3.0])
def test_a_product_with_a_count_is_within_its_drift(factor: int, value: float) -> None:
    part = FloatSum("x", 0, False)
    state = {name: np.zeros(1, dtype=kind) for name, kind in part.columns.items()}
    state |= {"sum0": np.array([value]), "rest0": np.array([value * 2.0**-54])}
    state["size0"] = np.abs(state["sum0"])
    result = multiplied(part, state, np.array([factor], dtype=np.int64))
    truth = (Fraction(value) + Fraction(value * 2.0**-54)) * factor
    total = Fraction(float(result["sum0"][0])) + Fraction(float(result["rest0"][0]))
    # Digits below the smallest double are lost; it bounds their sum.
    assert abs(total - truth) <= Fraction(float(result["drift0"][0])) + Fraction(5e-324) * 8
    assert Fraction(float(result["size0"][0])) >= abs(Fraction(value)) * factor


def test_a_variance_is_that_of_the_joined_rows() -> None:
    count, total = Count("x", 0), ExactSum("x", 0, LONG)
    spread = Spread("var_pop", count, total, ExactSum("xx", 1, LONG), 0)
    columns = (AggregateColumn("v", DOUBLE, spread, None),)
    arguments = (("x", LONG), ("xx", LONG))
    s = TreeNode("s", 0, (("s.a", LONG),), ("s.a",), (False,), (), arguments)
    r = TreeNode("r", 1, (("r.a", LONG),), ("r.a",), (), (Link(0, Edge.INNER, ("r.a",)),))
    tree = Tree(JoinTree("tree0", (s, r), TreeMode.RING, columns))
    numbers = np.array([1, 2, 6], dtype=np.int64)
    rows = {name: Vector(LONG, v) for name, v in (("x", numbers), ("xx", numbers**2))}
    rows["s.a"] = Vector(LONG, np.ones(3, dtype=np.int64))
    batch = Batch(rows, np.array([1, 1, 2], dtype=np.int64), ())
    one = Vector(LONG, np.ones(1, dtype=np.int64))
    tree.step(batch, Batch({"r.a": one}, np.array([3], dtype=np.int64), ()))
    result = tree.output().columns["v"]
    # Of 1, 2, 6, 6 three times each: mean 15/4, mean of squares 77/4.
    assert abs(result.values[0] - (77 / 4 - (15 / 4) ** 2)) <= result.error[0] < 1e-9


@pytest.mark.parametrize("at_root", [False, True])
def test_deleted_values_leave_no_trace(at_root: bool) -> None:
    def output_after(first: float | None) -> dict[int, tuple[int, Any, float]]:
        star = Star(DOUBLE, FloatSum("x", 0, False), at_root=at_root)
        empty: list[tuple[Row, int]] = [((1, None), 3)]
        changed, other = (2, 0) if at_root else (0, 2)
        star.step([empty, [], empty])
        changes: list[list[tuple[Row, int]]] = [[], [], []]
        for value, weight in ((first, 1), (first, -1), (0.5, 1)):
            changes[changed] = [((1, value), weight)]
            star.step(changes)
        changes[changed], changes[other] = [], [((1, None), 1)]
        star.step(changes)
        return star.output()

    assert output_after(1e16) == output_after(1e308) == output_after(None)


def test_sums_over_integers_stay_exact_as_doubles() -> None:
    part = sum_of("x", 0, DOUBLE, DOUBLE, integral=True)
    assert isinstance(part, FloatSum)
    star = Star(DOUBLE, part, at_root=False)
    star.step([[((1, 3.0), 7)], [], [((1, None), 1000)]])
    star.step([[((1, 3.0), -7), ((1, 5.0), 1)], [((1, None), 3)], []])
    assert star.output() == {1: (3000, 15000.0, 0.0)}
