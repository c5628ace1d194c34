"""Sums through a tree: exact where they can be, within their bound where not, in whatever order."""

from __future__ import annotations

import math
import random
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from impctl.data.schema import DOUBLE, LONG, SqlType, decimal
from impctl.data.vector import Vector, from_arrow
from impctl.engine.accumulators import AggregateColumn, Count, ExactSum, FloatSum, Spread, sum_of
from impctl.engine.batch import Batch
from impctl.engine.jointree.spec import Edge, JoinTree, Link, Mode, Node
from impctl.engine.jointree.tree import Tree
from impctl.engine.jointree.values import multiplied
from impctl.errors import EvaluationError, NotExactError
from tests.support.random_cases import random_seeds

Row = tuple[int, Any]
FINITE = [1e16, -1e16, 1.0, -1.0, 0.1, 1e-300, 5e-324, 3.5, 1e250, -1e250, 123456.789]
SPECIAL = [math.nan, math.inf, -math.inf]


class Star:
    """t and u below r, all by one column that is the group too; SUM over a column of t or of r."""

    def __init__(self, kind: SqlType, part: ExactSum | FloatSum, *, at_root: bool) -> None:
        count = Count("x", 0)
        columns = (
            AggregateColumn("n", LONG, None, None),
            AggregateColumn("sum", kind if kind == DOUBLE else decimal(38, 2), part, count),
        )
        mine = (("x", kind),)
        t = Node("t", 0, (("t.a", LONG),), ("t.a",), (False,), (), () if at_root else mine)
        u = Node("u", 1, (("u.a", LONG),), ("u.a",), (False,))
        links = (Link(0, Edge.INNER, ("r.a",)), Link(1, Edge.LEFT, ("r.a",)))
        r = Node("r", 2, (("r.a", LONG),), ("r.a",), (), links, mine if at_root else ())
        self.kind, self.at_root = kind, at_root
        self.tree = Tree(JoinTree("tree0", (t, u, r), Mode.RING, columns))
        self.rows: list[Counter[Row]] = [Counter() for _ in range(3)]

    def step(self, changes: list[list[tuple[Row, int]]]) -> None:
        batches = []
        for at, rows in enumerate(changes):
            name, has_x = "tur"[at], at == (2 if self.at_root else 0)
            columns = {f"{name}.a": from_arrow(pa.array([k for (k, _), _ in rows], "int64"), LONG)}
            if has_x:
                columns["x"] = self._vector([x for (_, x), _ in rows])
            for row, weight in rows:
                self.rows[at][row] += weight
            weights = np.array([weight for _, weight in rows], dtype=np.int64)
            batches.append(Batch(columns, weights, ()) if rows else None)
        self.tree.step(*batches)

    def _vector(self, values: list[Any]) -> Any:
        if self.kind == DOUBLE:
            return from_arrow(pa.array(values, pa.float64()), DOUBLE)
        return from_arrow(pa.array(values, pa.decimal128(38, 2)), self.kind)

    def wanted(self) -> dict[int, tuple[int, list[tuple[Any, int]]]]:
        """Per group the joined rows, and every value with how often it is joined."""
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

    def told(self) -> dict[int, tuple[int, Any, float]]:
        batch = self.tree.output()
        if not len(batch):
            return {}
        keys, counts = (batch.columns[name].values.tolist() for name in ("r.a", "n"))
        sums = batch.columns["sum"]
        errors = np.zeros(len(batch)) if sums.error is None else sums.error
        valid = sums.validity()
        return {
            key: (n, sums.values[at] if valid[at] else None, float(errors[at]))
            for at, (key, n) in enumerate(zip(keys, counts, strict=True))
        }


def random_steps(star: Star, random_: random.Random, values: list[Any], copies: int) -> None:
    changes: list[list[tuple[Row, int]]] = []
    for at in range(3):
        has_x = at == (2 if star.at_root else 0)
        rows: list[tuple[Row, int]] = []
        there = Counter({row: n for row, n in star.rows[at].items() if n})
        for _ in range(random_.randint(0, 4)):
            if there and random_.random() < 0.35:
                row = random_.choice(list(there))
                rows.append((row, -there.pop(row)))
            else:
                row = (random_.randrange(3), random_.choice(values) if has_x else None)
                rows.append((row, random_.randint(1, copies)))
        changes.append(rows)
    star.step(changes)


@pytest.mark.parametrize("at_root", [False, True])
@random_seeds(4, 8, 40)
def test_doubles_lie_within_their_bound_of_exact_fractions(seed: int, at_root: bool) -> None:
    random_ = random.Random(seed)
    star = Star(DOUBLE, FloatSum("x", 0, False), at_root=at_root)
    bounded = 0
    for _ in range(14):
        random_steps(star, random_, [None, *FINITE], random_.choice([1, 3, 1000, 2**19 + 1]))
        wanted, told = star.wanted(), star.told()
        assert {k: n for k, (n, _, _) in told.items()} == {k: n for k, (n, _) in wanted.items()}
        for key, (_, result, error) in told.items():
            values = wanted[key][1]
            assert (result is None) == (not values)
            if result is None or math.isinf(error):
                continue
            truth = sum((Fraction(x) * n for x, n in values), Fraction(0))
            assert abs(Fraction(float(result)) - truth) <= Fraction(error)
            bounded += 1
        check_state(star, wanted)
    assert bounded > 5


def check_state(star: Star, wanted: dict[int, tuple[int, list[tuple[Any, int]]]]) -> None:
    """`size` bounds the magnitudes, `drift` what the kept sum is off by."""
    root = star.tree.nodes[-1]
    _, keys, state = root.keys.whole(root.key_columns)
    for at, key in enumerate(keys[0].values.tolist() if keys else []):
        if key not in wanted:
            continue
        values = wanted[key][1]
        parts = [float(state[f"{name}0"][at]) for name in ("sum", "rest", "size", "drift")]
        if not all(map(math.isfinite, parts)):
            continue  # beyond the greatest double nothing is claimed
        size = sum((abs(Fraction(x)) * n for x, n in values), Fraction(0))
        total = sum((Fraction(x) * n for x, n in values), Fraction(0))
        assert Fraction(parts[2]) >= size
        assert abs(Fraction(parts[0]) + Fraction(parts[1]) - total) <= Fraction(parts[3])


@random_seeds(3, 6, 20)
def test_whole_numbers_are_exact_and_nan_and_infinities_come_and_go(seed: int) -> None:
    random_ = random.Random(seed)
    star = Star(DOUBLE, FloatSum("x", 0, False), at_root=seed % 2 == 0)
    for _ in range(20):
        random_steps(star, random_, [None, 1.0, 2.0, -7.0, 1000.0, *SPECIAL], 3)
        wanted = star.wanted()
        for key, (_, result, error) in star.told().items():
            values = wanted[key][1]
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
        wanted = star.wanted()
        for key, (_, result, _) in star.told().items():
            truth = sum(int(x.scaleb(2)) * n for x, n in wanted[key][1])
            assert (None if result is None else int(result)) == (truth if wanted[key][1] else None)


def test_a_sum_that_does_not_fit_fails_as_sparks_does() -> None:
    star = Star(decimal(38, 2), ExactSum("x", 0, decimal(38, 2)), at_root=False)
    most = Decimal(10**37).scaleb(-2)
    star.step([[((1, most), 5)], [], [((1, None), 1)]])
    with pytest.raises(EvaluationError):
        star.step([[], [((1, None), 2)], []])


def test_a_sum_of_rows_that_join_with_nothing_is_no_failure_of_the_query() -> None:
    star = Star(decimal(38, 2), ExactSum("x", 0, decimal(38, 2)), at_root=False)
    with pytest.raises(NotExactError):
        star.step([[((1, Decimal(10**37).scaleb(-2)), 20)], [], []])


@pytest.mark.parametrize("factor", [2, 3, 2**31 + 1, 2**53 + 1, 2**61 + 12345])
@pytest.mark.parametrize("value", [0.1, 1e16 + 2, 5e-324, 1.7e285, -123456.789, 3.0])
def test_a_product_with_a_count_is_within_its_drift(factor: int, value: float) -> None:
    part = FloatSum("x", 0, False)
    state = {name: np.zeros(1, dtype=kind) for name, kind in part.columns.items()}
    state |= {"sum0": np.array([value]), "rest0": np.array([value * 2.0**-54])}
    state["size0"] = np.abs(state["sum0"])
    result = multiplied(part, state, np.array([factor], dtype=np.int64))
    truth = (Fraction(value) + Fraction(value * 2.0**-54)) * factor
    held = Fraction(float(result["sum0"][0])) + Fraction(float(result["rest0"][0]))
    # Where digits fall below the least double there is, that one bounds what is lost.
    assert abs(held - truth) <= Fraction(float(result["drift0"][0])) + Fraction(5e-324) * 8
    assert Fraction(float(result["size0"][0])) >= abs(Fraction(value)) * factor


def test_a_variance_is_that_of_the_joined_rows() -> None:
    count, total = Count("x", 0), ExactSum("x", 0, LONG)
    spread = Spread("var_pop", count, total, ExactSum("xx", 1, LONG), 0)
    columns = (AggregateColumn("v", DOUBLE, spread, None),)
    arguments = (("x", LONG), ("xx", LONG))
    s = Node("s", 0, (("s.a", LONG),), ("s.a",), (False,), (), arguments)
    r = Node("r", 1, (("r.a", LONG),), ("r.a",), (), (Link(0, Edge.INNER, ("r.a",)),))
    tree = Tree(JoinTree("tree0", (s, r), Mode.RING, columns))
    numbers = np.array([1, 2, 6], dtype=np.int64)
    rows = {name: Vector(LONG, v) for name, v in (("x", numbers), ("xx", numbers**2))}
    rows["s.a"] = Vector(LONG, np.ones(3, dtype=np.int64))
    batch = Batch(rows, np.array([1, 1, 2], dtype=np.int64), ())
    one = Vector(LONG, np.ones(1, dtype=np.int64))
    tree.step(batch, Batch({"r.a": one}, np.array([3], dtype=np.int64), ()))
    result = tree.output().columns["v"]
    assert result.error is not None
    # Of 1, 2, 6, 6 three times each: mean 15/4, mean of squares 77/4.
    assert abs(result.values[0] - (77 / 4 - (15 / 4) ** 2)) <= result.error[0] < 1e-9


@pytest.mark.parametrize("at_root", [False, True])
def test_nothing_is_left_of_values_that_went(at_root: bool) -> None:
    def told(first: float | None) -> dict[int, tuple[int, Any, float]]:
        star = Star(DOUBLE, FloatSum("x", 0, False), at_root=at_root)
        empty: list[tuple[Row, int]] = [((1, None), 3)]
        mine, other = (2, 0) if at_root else (0, 2)
        star.step([empty, [], empty])
        changes: list[list[tuple[Row, int]]] = [[], [], []]
        for value, weight in ((first, 1), (first, -1), (0.5, 1)):
            changes[mine] = [((1, value), weight)]
            star.step(changes)
        changes[mine], changes[other] = [], [((1, None), 1)]
        star.step(changes)
        return star.told()

    assert told(1e16) == told(1e308) == told(None)


def test_sums_over_integers_stay_exact_as_doubles() -> None:
    part = sum_of("x", 0, DOUBLE, DOUBLE, integral=True)
    assert isinstance(part, FloatSum)
    star = Star(DOUBLE, part, at_root=False)
    star.step([[((1, 3.0), 7)], [], [((1, None), 1000)]])
    star.step([[((1, 3.0), -7), ((1, 5.0), 1)], [((1, None), 3)], []])
    assert star.told() == {1: (3000, 15000.0, 0.0)}
