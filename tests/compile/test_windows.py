"""Windows in the engine: values over a partition, and values by position."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import cache, partial
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

from impctl.compile.compile import compile_plan
from impctl.compile.session import MaintainedQuery, TableChange
from impctl.data.schema import DOUBLE, INTEGER, STRING, Column, Schema, decimal
from impctl.errors import NotExactError
from impctl.expr.nodes import Arithmetic, ArithmeticOp, Compare, CompareOp, Expr, Literal
from impctl.plan import nodes as p
from impctl.rules.optimize import apply_rules, core_of
from impctl.sketch.sketch import RangePartition
from impctl.sql.aggregates import result_type
from impctl.sql.statement import parse_query
from tests.compile.cases import PlannedQuery, add_in_order, several_unsure_cases
from tests.compile.test_plans import several_cases as random_plans
from tests.plan.random_plans import FocusedMaker
from tests.plan.trials import Trial, fragment_of, make_trial, random_partition
from tests.support.carried_queries import arrow_rows, counts_of, restored
from tests.support.random_cases import random_cases, seen_in
from tests.support.reference_plan import annotate

TIE_FREE = ("rank", "dense_rank", "percent_rank", "cume_dist")
WHOLE = "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"


class WindowMaker(FocusedMaker):
    """Plans that compare rows with aggregates over their window partition."""

    def plan(self) -> p.Plan:
        rng = self.rng
        below = self._base()
        if rng.random() < 0.4:
            below = self._grouped(below)
            if rng.random() < 0.3:
                below = self._judged(below)
        result = self._filtered(self._windowed_rows(below))
        match rng.randrange(8):
            case 0:
                return self._judged(self._grouped(result))
            case 1:
                other = self._scan()
                condition = self._condition(result.attributes, other.attributes)
                kind = rng.choice(
                    (p.JoinKind.INNER, p.JoinKind.SEMI, p.JoinKind.LEFT, p.JoinKind.ANTI)
                )
                return p.Join(kind, result, other, condition)
            case 2:
                return p.Distinct(result)
            case 3:
                return self._filtered(self._windowed_rows(result))
            case _:
                return result

    def _windowed_rows(self, child: p.Plan) -> p.Window:
        """The rows with one or two window aggregates, mostly over the same partitions."""
        rng, attributes = self.rng, child.attributes
        shared = self._parts(attributes)
        calls = []
        for _ in range(rng.choice((1, 1, 2))):
            parts = shared if rng.random() < 0.8 else self._parts(attributes)
            calls.append(self._windowed_call(attributes, parts))
        return p.Window(child, tuple(calls))

    def _parts(self, attributes: Sequence[p.Attribute]) -> tuple[Expr, ...]:
        rng = self.rng
        if rng.random() < 0.06:
            return ()
        if rng.random() < 0.08:
            return (self.number(attributes, 1),)
        parts: list[Expr] = [
            (attributes[0] if rng.random() < 0.7 else rng.choice(attributes)).ref()
        ]
        if rng.random() < 0.2:
            parts.append(rng.choice(attributes).ref())
        return tuple(dict.fromkeys(parts))

    def _windowed_call(
        self, attributes: Sequence[p.Attribute], parts: tuple[Expr, ...]
    ) -> p.WindowCall:
        rng = self.rng
        if rng.random() < 0.3:
            return self._ordered_call(attributes, parts)
        column = self._numeric(attributes)
        call = p.AggregateCall("count")
        if column is not None and rng.random() < 0.85:
            name = rng.choice(("sum", "sum", "avg", "min", "max", "count"))
            call = p.AggregateCall(name, (column.ref(),))
        result = p.WindowCall(
            self._fresh(result_type(call)), call.function, call.arguments, parts, ()
        )
        if rng.random() < 0.25:
            order = (p.SortKey(rng.choice(attributes).ref(), rng.random() < 0.5, True),)
            result = replace(result, order=order, frame=WHOLE if rng.random() < 0.7 else None)
        return result

    def _ordered_call(
        self, attributes: Sequence[p.Attribute], parts: tuple[Expr, ...]
    ) -> p.WindowCall:
        """A rank, LAG or LEAD. If ties are not allowed, only copies of a row tie."""
        rng = self.rng
        name = rng.choice((*TIE_FREE, "row_number", "lag", "lag", "lead"))
        sorted_by = list(attributes)
        rng.shuffle(sorted_by)
        if name in TIE_FREE:
            sorted_by = sorted_by[: rng.choice((1, 1, 2))]
        order = tuple(p.SortKey(a.ref(), rng.random() < 0.5, rng.random() < 0.5) for a in sorted_by)
        arguments: tuple[Expr, ...] = ()
        result = DOUBLE if name in ("percent_rank", "cume_dist") else INTEGER
        if name in ("lag", "lead"):
            argument = rng.choice(attributes)
            assert argument.type is not None
            result, arguments = argument.type, (argument.ref(),)
            if rng.random() < 0.4:
                arguments += (Literal(rng.choice((0, 1, 2, -1)), INTEGER),)
                if rng.random() < 0.5:
                    same_type = [a for a in attributes if a.type == result]
                    arguments += (rng.choice(same_type).ref(),)
        return p.WindowCall(self._fresh(result), name, arguments, parts, order)

    def _filtered(self, window: p.Window) -> p.Plan:
        """A filter that compares a window value with a number or a column."""
        rng = self.rng
        if rng.random() < 0.3:
            return self._judged(window)
        value = rng.choice(window.calls).attribute.ref()
        column = self._numeric(window.child.attributes)
        if column is None:
            return self._judged(window)
        doubled = Arithmetic(ArithmeticOp.MULTIPLY, column.ref(), Literal(2, INTEGER))
        left: Expr = column.ref() if rng.random() < 0.6 else doubled
        ops = (CompareOp.LESS, CompareOp.GREATER_EQUAL, CompareOp.EQUAL, CompareOp.NOT_EQUAL)
        return p.Select(window, Compare(rng.choice(ops), left, value))


def make_window_trial(seed: int) -> Trial:
    """A trial whose plan has window aggregates, all of them used."""
    trial = make_trial(seed)
    rng = Random(f"window {seed}")
    root = apply_rules(WindowMaker(rng).plan())
    scans = root.scans
    chosen = [scan for scan in scans if rng.random() < 0.8] or list(scans)
    partitions = {scan.access: random_partition(rng, scan) for scan in chosen}
    return Trial(root, trial.tables, partitions, trial.facts)


DISTINCT = (
    "SELECT DISTINCT g, s FROM (SELECT g, d, SUM(d) OVER (PARTITION BY g) AS s FROM t) WHERE d > 0"
)
BY_A_SUM = (
    "SELECT g FROM (SELECT g, COUNT(*) OVER (PARTITION BY g, s) AS n FROM (SELECT g, h, SUM(d) AS "
    "s FROM t GROUP BY g, h)) WHERE n < 2"
)
DOUBLES = (
    "SELECT g, d FROM (SELECT g, d, SUM(d) OVER (PARTITION BY g) AS s FROM t) WHERE d * 2 > s",
    "SELECT g FROM (SELECT g, d, AVG(d) OVER (PARTITION BY g) AS a FROM t) WHERE d < a",
    "SELECT g FROM (SELECT g, h, SUM(d) AS s, SUM(SUM(d)) OVER (PARTITION BY g) AS w FROM t "
    "GROUP BY g, h) WHERE s * 100 / w > 60",
    "SELECT g FROM (SELECT g, h, SUM(d) AS s, AVG(SUM(d)) OVER (PARTITION BY g) AS w FROM t "
    "GROUP BY g, h) WHERE CASE WHEN w > 0 THEN abs(s - w) / w END > 0.1",
    "SELECT g FROM (SELECT g, d, MAX(d) OVER (PARTITION BY g) AS m, COUNT(d) OVER (PARTITION BY g, "
    "h) AS n FROM t) WHERE d = m AND n > 1",
    DISTINCT,
    "SELECT q.g FROM (SELECT g, SUM(d) OVER (PARTITION BY g) AS s FROM t) q JOIN side ON q.g = "
    "side.k AND q.s > side.w",
    "SELECT g, MAX(s) AS m FROM (SELECT g, d, SUM(d) OVER (PARTITION BY g, h) AS s FROM t) "
    "GROUP BY g HAVING MAX(s) > 1",
    "SELECT g FROM (SELECT g, COUNT(*) OVER (PARTITION BY g) AS n FROM (SELECT g, h FROM t GROUP "
    "BY g, h HAVING SUM(d) > 0)) WHERE n < 2",
    BY_A_SUM,
)


@random_cases(
    0,
    50,
    600,
    also="0-3 5 6 9-17 21 24 26 29 38 40 57 71 73 76 85 89 92-94 101 103 111 114 115 119 806 809 "
    "812 814 816 817 835 838 839",
)
def test_sketches_of_random_plans(cases: Sequence[int]) -> None:
    counts = random_plans(cases, make_window_trial)
    assert counts["with Window"] > len(cases) * 3, counts
    assert counts["exact"] > len(cases) * 5 // 2, counts
    for kind in ("Aggregate", "inner", "semi", "left", "Distinct", "union", "barrier"):
        assert counts[f"with {kind}"] > len(cases) // 30, counts


@random_cases(0, 12, 360, also="0-11 38 52 53 59 62")
def test_sketches_cover_every_order_of_summation(
    cases: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    add_in_order(monkeypatch)
    counts = several_unsure_cases(DOUBLES, cases)
    assert counts["cases"] > len(cases) * 8, counts
    assert counts["unsure"] > len(cases) // 20, counts
    assert counts[f"not exact: {DISTINCT}"] == 0, "equal rows do not decide ranges"
    assert counts[f"not exact: {BY_A_SUM}"] > 0, "rows of one partition must be sure"


SALES = Schema(
    (
        Column("item", INTEGER),
        Column("class", STRING),
        Column("day", INTEGER),
        Column("price", decimal(7, 2)),
        Column("rate", DOUBLE),
    )
)
REVENUE = (
    "SELECT item, class, SUM(price) AS revenue, SUM(price) * 100 / NULLIF(SUM(SUM(price)) OVER "
    "(PARTITION BY class), 0) AS share FROM sales GROUP BY item, class"
)
BY_CLASS = ("class", STRING, ("b", "c"))
QUERIES = {
    "share of a class": (f"SELECT * FROM ({REVENUE}) WHERE share > 40", BY_CLASS),
    "far from the average": (
        "SELECT * FROM (SELECT class, day, SUM(price) AS s, AVG(SUM(price)) OVER (PARTITION BY "
        "class) AS a FROM sales GROUP BY class, day) WHERE CASE WHEN a > 0 THEN abs(s - a) / a "
        "ELSE NULL END > 0.1",
        BY_CLASS,
    ),
    "averages joined": (
        "WITH v AS (SELECT class, day, SUM(price) AS s, AVG(SUM(price)) OVER (PARTITION BY class) "
        "AS a FROM sales GROUP BY class, day) SELECT x.day FROM v x JOIN v y ON x.class = y.class "
        "AND x.day = y.day + 1 WHERE x.s > x.a",
        BY_CLASS,
    ),
    "rows above": (
        "SELECT item FROM (SELECT item, price, AVG(price) OVER (PARTITION BY rate) AS a, COUNT(*) "
        "OVER (PARTITION BY rate) AS n FROM sales) WHERE price > a AND n > 1",
        ("rate", DOUBLE, (0.0, 2.0)),
    ),
    "the greatest": (
        "SELECT item FROM (SELECT item, price, MAX(price) OVER (PARTITION BY class ORDER BY day "
        "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS m, MIN(day) OVER (PARTITION "
        "BY class, rate) AS d FROM sales) WHERE price = m OR d = 1",
        BY_CLASS,
    ),
    "of two partitions": (
        "SELECT item FROM (SELECT item, SUM(day) OVER (PARTITION BY class) AS s, SUM(day) OVER "
        "(PARTITION BY class, item) AS o FROM sales) WHERE s > 3 AND o < 3",
        BY_CLASS,
    ),
}
BY_DAY = (
    "SELECT class, day, SUM(price) AS s, {} OVER (PARTITION BY class ORDER BY day) AS v FROM sales "
    "GROUP BY class, day"
)
QUERIES |= {
    "more than the day before": (
        f"SELECT class FROM ({BY_DAY.format('LAG(SUM(price))')}) WHERE s > v",
        BY_CLASS,
    ),
    "two days on, or nothing": (
        f"SELECT class FROM ({BY_DAY.format('LEAD(SUM(price), 2, 0.00)')}) WHERE s < v",
        BY_CLASS,
    ),
    "neighbours joined": (
        f"WITH v AS ({BY_DAY.format('ROW_NUMBER()')}) SELECT x.day FROM v x JOIN v y ON x.class = "
        "y.class AND x.v = y.v + 1 WHERE x.s < y.s",
        BY_CLASS,
    ),
    "standings": (
        "SELECT item FROM (SELECT item, RANK() OVER (PARTITION BY class ORDER BY price DESC, day) "
        "AS r, DENSE_RANK() OVER (PARTITION BY class ORDER BY rate) AS d, SUM(day) OVER (PARTITION "
        "BY class) AS s FROM sales) WHERE r > d AND s > 2",
        BY_CLASS,
    ),
    "shares": (
        "SELECT item FROM (SELECT item, PERCENT_RANK() OVER (PARTITION BY rate ORDER BY price) AS "
        "p, CUME_DIST() OVER (PARTITION BY rate ORDER BY day NULLS LAST) AS c FROM sales) WHERE p "
        "> 0.4 AND c < 0.7",
        ("rate", DOUBLE, (0.0, 2.0)),
    ),
}
LAST_PRICE = (
    "SELECT class FROM (SELECT class, price, LAG(price) OVER (PARTITION BY class ORDER BY day) AS "
    "l FROM sales) WHERE price > l"
)
Row = Mapping[str, object]


def table_of(rows: Sequence[Row]) -> pa.Table:
    return arrow_rows(SALES, rows)


@cache
def kept(name: str) -> PlannedQuery:
    sql, (attribute, kind, boundaries) = QUERIES[name]
    query = parse_query(sql, {"sales": SALES})
    partition = RangePartition("sales", attribute, kind, boundaries)
    accesses = [scan.access for scan in query.root.scans]
    result = PlannedQuery.of(query, dict.fromkeys(accesses, partition))
    assert result.whole.safe, result.whole.reason
    return result


def filled(name: str, rows: Sequence[Row]) -> MaintainedQuery:
    session = MaintainedQuery(kept(name).compiled())
    session.load([("sales", table_of(rows))])
    return session


def random_row(rng: random.Random) -> Row:
    paid = rng.choice((None, "1.00", "1.00", "2.50", "-2.50", "9.99"))
    return {
        "item": rng.choice((1, 2, None)),
        "class": rng.choice(("a", "b", "c", None)),
        "day": rng.randrange(3),
        "price": None if paid is None else Decimal(paid),
        "rate": rng.choice((0.0, -0.0, 1.5, float("nan"), float("inf"), None)),
    }


def changes(rng: random.Random, rows: list[Row]) -> TableChange:
    """A batch that is empty, deletes everything, deletes and reinserts a row, or mixes these."""
    kind = rng.randrange(8)
    deleted: list[Row] = []
    inserted: list[Row] = []
    if kind == 1:
        deleted, rows[:] = list(rows), []
    elif kind == 2 and rows:
        deleted = inserted = [rng.choice(rows)]
    elif kind > 2:
        deleted = [
            rows.pop(rng.randrange(len(rows))) for _ in range(min(len(rows), rng.randrange(3)))
        ]
        # A row may be reinserted at once, or be one of several copies.
        inserted = [rng.choice([*deleted, random_row(rng)]) for _ in range(rng.randrange(5))]
        rows += inserted
    weights = np.array([-1] * len(deleted) + [1] * len(inserted), dtype=np.int64)
    return TableChange(table_of([*deleted, *inserted]), weights)


def walk(name: str, seed: int, counts: Counter[str]) -> None:
    """Compare sketches and counts with a refill and the reference after each batch."""
    rng = random.Random(seed)
    rows: list[Row] = [random_row(rng) for _ in range(rng.randrange(6, 14))]
    session, stored = filled(name, rows), {}
    for _ in range(4):
        session.step({"sales": changes(rng, rows)})
        assert counts_of(session) == counts_of(filled(name, rows)), (name, rows)
        lineage = annotate(kept(name).query.root, {"sales": rows}, whole_windows=True).lineage  # type: ignore[dict-item]  # values
        for access, result in session.ranges().items():
            part = kept(name).partitions[access]
            indexes = {index for origin, index in lineage if origin == access}
            values = [rows[index][part.attribute] for index in indexes]
            needed = {fragment_of(value, part.boundaries) for value in values}  # type: ignore[arg-type]  # values
            assert set(result.ids) == needed, (name, rows)
            counts["ranges"] += len(needed)
        if rng.random() < 0.2:
            session = restored(session, stored, MaintainedQuery(kept(name).compiled()))


@pytest.mark.parametrize("name", QUERIES)
@random_cases(1, 4, 60)
def test_counts_match_a_refilled_circuit(cases: range, name: str) -> None:
    counts = seen_in(cases, partial(walk, name))
    assert counts["ranges"] >= len(cases), counts


def test_lag_fails_on_ties_but_not_on_copies() -> None:
    query = parse_query(LAST_PRICE, {"sales": SALES})
    core = core_of(query.root)
    partition = RangePartition("sales", "class", STRING, ("b", "c"))
    session = MaintainedQuery(
        compile_plan(core, {scan.access: partition for scan in core.scans}, {})
    )
    row = {"item": 1, "class": "a", "day": 1, "price": Decimal("1.00"), "rate": 0.0}
    other_item, other_price = {**row, "item": 2}, {**row, "price": Decimal("2.50")}
    session.load([("sales", table_of([row, row, other_item]))])
    later = {**other_price, "day": 2}
    session.step({"sales": TableChange(table_of([later]), np.array([1], np.int64))})
    assert session.ranges()
    with pytest.raises(NotExactError, match="LAG is not deterministic"):
        session.step({"sales": TableChange(table_of([other_price]), np.array([1], np.int64))})
