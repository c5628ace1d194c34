"""Conditions leave out only files of which no row meets them; brute force is the judge.

By hand: `IMPCTL_FUZZ=30` and `-m slow` for more than 100,000 pairs of file and condition.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest

from impctl.data.schema import DATE, DOUBLE, FLOAT, INTEGER, LONG, STRING, SqlType, decimal
from impctl.expr.nodes import Compare, CompareOp, Expr, InList, IsNull, Literal, Not, Or
from impctl.plan.nodes import Attribute
from impctl.tables.prune import prune_by_condition
from impctl.tables.snapshot import Snapshot
from impctl.tables.source import open_source
from tests.plan.random_exprs import ExprMaker
from tests.support.random_cases import random_cases
from tests.support.reference_expr import ReferenceFailure, Value, is_true
from tests.tables import handmade
from tests.tables.handmade import add, create

LARGE = Decimal("12345678901234567890.123456789012345678")
KINDS: dict[str, tuple[str, SqlType, list[Value]]] = {
    "a": ("long", LONG, [-3, -1, 0, 1, 2, 4, 2**53, 2**53 + 1]),
    "i": ("integer", INTEGER, [-2, 0, 1, 3]),
    "d": ("double", DOUBLE, [-1.5, -0.0, 0.0, 0.5, 2.5, math.nan, math.inf, -math.inf]),
    "s": ("string", STRING, ["", "a", "ab", "b", "b" * 40, "a\U0001f600" * 20]),
    "m": ("decimal(6,1)", decimal(6, 1), [Decimal("-1.5"), Decimal("0.0"), Decimal("2.5")]),
    "w": ("decimal(38,18)", decimal(38, 18), [LARGE, -LARGE, Decimal(0), Decimal("1e-18")]),
}
ATTRIBUTES = tuple(Attribute(name, name, kind) for name, (_, kind, _) in KINDS.items())
COLUMNS = {name: name for name in KINDS}
Row = dict[str, Value]


def stated(rng: Random, rows: Sequence[Row]) -> str:
    """The statistics that a writer of Delta gives; now and then some of them are missing."""
    result: dict[str, Any] = {"numRecords": len(rows), "minValues": {}, "maxValues": {}}
    nulls = result["nullCount"] = {}
    for name in KINDS:
        values = [row[name] for row in rows if row[name] is not None]
        if rng.random() < 0.95:
            nulls[name] = len(rows) - len(values)
        clean = [v for v in values if not (isinstance(v, float) and not math.isfinite(v))]
        if len(clean) < len([v for v in values if v == v]) or not clean or rng.random() < 0.05:
            continue
        low, high = min(clean), max(clean)  # type: ignore[type-var]  # one column, one value type
        result["minValues"][name] = _json(low, rounds_up=False)
        result["maxValues"][name] = _json(high, rounds_up=True)
    return json.dumps(result)


def _json(value: Value, *, rounds_up: bool) -> Any:
    if isinstance(value, str):
        return value if len(value) <= 32 else value[:32] + ("\ufffd" if rounds_up else "")
    return float(value) if isinstance(value, Decimal) else value


def random_rows(rng: Random) -> list[Row]:
    pools = {}
    for name, (_, _, values) in KINDS.items():
        some: list[Value] = rng.sample(values, rng.randint(1, min(3, len(values))))
        pools[name] = some + ([None] if rng.random() < 0.4 else [])
        pools[name] = [None] if rng.random() < 0.05 else pools[name]
    return [{name: rng.choice(pool) for name, pool in pools.items()} for _ in range(3)]


def snapshot_of(folder: Path, stats: Sequence[str]) -> Snapshot:
    adds = [add(f"{at}.parquet", 3, stats=text) for at, text in enumerate(stats)]
    columns = {name: kind for name, (kind, _, _) in KINDS.items()}
    return open_source("t", create(folder, columns, *adds)).snapshot()


def condition(rng: Random) -> Expr:
    """Mostly what bounds can tell of: a column and a constant, and how these are put together."""
    if rng.random() < 0.3:
        return ExprMaker(rng).predicate(ATTRIBUTES)
    name = rng.choice(list(KINDS))
    _, kind, values = KINDS[name]
    column = next(a for a in ATTRIBUTES if a.id == name).ref()
    constants = [Literal(rng.choice(values), kind) for _ in range(2)]
    if kind in (LONG, INTEGER, DOUBLE) and rng.random() < 0.3:
        constants[0] = Literal(rng.randint(-2, 3), rng.choice((INTEGER, LONG)))
    if kind.is_numeric and rng.random() < 0.1:
        constants[0] = Literal(Decimal("0.5"), decimal(2, 1))
    if kind in (LONG, DOUBLE) and rng.random() < 0.3:
        constants[1] = Literal(rng.choice((5.0, 2.0**53)), DOUBLE)
    ops = list(CompareOp)
    choice = rng.random()
    if choice < 0.1:
        expr: Expr = InList(column, tuple(constants))
    elif choice < 0.2:
        expr = IsNull(column)
    elif choice < 0.6:
        expr = Compare(rng.choice(ops), column, constants[0])
    else:
        expr = Compare(rng.choice(ops), constants[0], column)
    if rng.random() < 0.3:
        expr = Not(expr)
    return Or((expr, condition(rng))) if rng.random() < 0.2 else expr


def judged(folder: Path, cases: range) -> tuple[int, int, int]:
    """Pairs looked at, files left out, and files with a row that meets the condition."""
    looked = left_out = needed = 0
    for case in cases:
        rng = Random(f"prune {case}")
        files = [random_rows(rng) for _ in range(5)]
        snapshot = snapshot_of(folder / str(case), [stated(rng, rows) for rows in files])
        for _ in range(25):
            asked = condition(rng)
            kept = {f.uri.rpartition("/")[2] for f in prune_by_condition(snapshot, asked, COLUMNS)}
            for at, rows in enumerate(files):
                try:
                    holds = any(is_true(asked, row) for row in rows)
                except ReferenceFailure:
                    continue
                looked += 1
                is_kept = f"{at}.parquet" in kept
                left_out += not is_kept
                needed += holds
                assert is_kept or not holds, (case, asked, rows)
    return looked, left_out, needed


@random_cases(2, 5, 60)
def test_a_file_with_a_row_that_counts_is_never_left_out(tmp_path: Path, cases: range) -> None:
    looked, left_out, needed = judged(tmp_path, cases)
    assert looked > 100 * len(cases)
    assert min(left_out, needed) > looked // 6, "both happen often"


@pytest.mark.parametrize(
    ("kind", "stats", "op", "asked", "kept"),
    [
        (DATE, ("2020-01-01", "2020-01-05"), "=", Literal(18262, DATE), True),
        (DATE, ("2020-01-01", "2020-01-05"), "=", Literal(18270, DATE), False),
        (DATE, ("2020-01-01", "2020-01-05"), "=", Literal("2020-02-01", STRING), True),
        (FLOAT, (0.0, 2.0), "=", Literal(2**24 + 1, INTEGER), True),
        (FLOAT, (0.0, 2.0), "=", Literal(5, INTEGER), False),
        (LONG, (0, 5), "=", Literal(2.5, DOUBLE), True),
        (LONG, (0, 5), "=", Literal(7, LONG), False),
        # Statistics do not count NaN, which is greater than every number.
        (DOUBLE, (0.0, 2.0), ">", Literal(9.0, DOUBLE), True),
        (DOUBLE, (0.0, 2.0), ">=", Literal(9.0, DOUBLE), True),
        (DOUBLE, (0.0, 2.0), "<", Literal(-1.0, DOUBLE), False),
        (LONG, (0, 5), ">", Literal(9, LONG), False),
        (LONG, (2, 2), "<>", Literal(2, LONG), False),
    ],
)
def test_a_file_is_kept_by_its_statistics(
    tmp_path: Path, kind: SqlType, stats: tuple[Any, Any], op: str, asked: Literal, kept: bool
) -> None:
    action = add("0.parquet", 2, stats=handmade.stats(2, {"v": 0}, v=stats))
    snapshot = open_source("t", create(tmp_path, {"v": str(kind.kind)}, action)).snapshot()
    compared = Compare(CompareOp(op), Attribute("v", "v", kind).ref(), asked)
    assert bool(prune_by_condition(snapshot, compared, {"v": "v"})) == kept


def test_a_column_of_another_type_at_this_version_tells_nothing(tmp_path: Path) -> None:
    snapshot = snapshot_of(tmp_path, [stated(Random(1), random_rows(Random(2)))])
    wrong = Compare(CompareOp.GREATER, Attribute("a", "a", INTEGER).ref(), Literal(9, INTEGER))
    assert len(prune_by_condition(snapshot, wrong, COLUMNS)) == 1


@pytest.mark.parametrize(
    ("other", "kept"), [(Literal(5.0, DOUBLE), True), (Literal(5, INTEGER), False)]
)
def test_a_list_of_several_sorts_rounds_the_column(
    tmp_path: Path, other: Literal, kept: bool
) -> None:
    """With a double in the list, Spark makes doubles of all: 2^53 + 1 is 2^53 then."""
    rows: list[Row] = [{**random_rows(Random(3))[0], "a": 2**53 + 1}]
    snapshot = snapshot_of(tmp_path, [stated(Random(5), rows)])
    listed = InList(Attribute("a", "a", LONG).ref(), (Literal(2**53, LONG), other))
    assert bool(prune_by_condition(snapshot, listed, COLUMNS)) == kept


def test_constants_of_a_list_round_each_other(tmp_path: Path) -> None:
    """Beside a constant of 30 digits Spark keeps 8 digits after the point of the other one, which
    is 1 then; in `a = 1.000000000000000001` it keeps them all."""
    bounds = {"minValues": {"a": 1}, "maxValues": {"a": 1}, "nullCount": {"a": 0}}
    file = add("0.parquet", 1, stats=json.dumps({"numRecords": 1, **bounds}))
    snapshot = open_source("t", create(tmp_path, {"a": "long"}, file)).snapshot()
    fine = Literal(Decimal("1.000000000000000001"), decimal(38, 18))
    large = Literal(Decimal(10) ** 29, decimal(30, 0))
    column = Attribute("a", "a", LONG).ref()
    assert len(prune_by_condition(snapshot, InList(column, (fine, large)), {"a": "a"})) == 1
    assert not prune_by_condition(snapshot, InList(column, (Literal(2, LONG),)), {"a": "a"})
