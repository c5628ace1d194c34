"""Random tables of doubles and what must hold of sketches, in whatever order sums are added.

Law: rows cancel to the last digit, are NaN, infinite, of both signs; each answer is computed in
several orders of the rows, and every one of them must stem from the maintained sketch alone.
Out of scope: which queries (`test_unsure_order`, `test_bounds_travel`).
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pyarrow as pa
import pytest

from impctl.compile.compile import Compiled, compile_plan
from impctl.compile.session import MaintainedQuery, TableChange
from impctl.data.schema import DOUBLE, INTEGER, Column, Schema
from impctl.errors import EvaluationError, NotExactError
from impctl.plan.nodes import Plan, Query, scans_of
from impctl.rules.optimize import apply_rules, core_of
from impctl.safety.judge import Verdict, carried, check_safety
from impctl.sketch.partition import RangePartition
from impctl.sql.statement import parse_query
from tests.support import reference_aggregate
from tests.support.arrow_rows import arrow_rows
from tests.support.random_cases import seen_in
from tests.support.reference_expr import ReferenceFailure, Value
from tests.support.reference_plan import annotate, bag, evaluate
from tests.support.restored_query import Stored, restored

SCHEMA = Schema((Column("g", INTEGER), Column("h", INTEGER), Column("d", DOUBLE)))
SIDE = Schema((Column("k", INTEGER), Column("w", DOUBLE)))
BY_G = RangePartition("t", "g", INTEGER, (1, 2, 3, 4, 5))
SUMS = "SELECT g, SUM(d) AS s FROM t GROUP BY g"
Pool = tuple[float | None, ...]
POOLS: tuple[Pool, ...] = (
    (1e16, -1e16, 1.0, 2.0, -1.0),
    (0.1, 0.2, 0.3, -0.3, 1.1, -0.6),
    (1.0, 2.0, 3.0, -0.0, 0.0),
    (math.nan, math.inf, -math.inf, 1.0),
    (1e308, -1e308, 1e308, -math.inf, 5.0),
    (None, 1.0, 2.5, 1e-300, -1e-300),
)

Rows = list[Mapping[str, Value]]


@cache
def kept(sql: str) -> tuple[Query, Verdict, dict[str, RangePartition]]:
    query = parse_query(sql, {"t": SCHEMA, "side": SIDE})
    query = replace(query, root=apply_rules(query.root))
    accesses = [scan.access for scan in scans_of(query.root) if scan.table == "t"]
    for chosen in (accesses, accesses[:1], accesses[1:]):
        verdict = check_safety(query, dict.fromkeys(chosen, "g"), [])
        if chosen and verdict.safe:
            return query, verdict, dict.fromkeys(chosen, BY_G)
    raise AssertionError(f"no sketch is safe for {sql}")


@cache
def _judged(sql: str) -> tuple[Plan, Verdict]:
    query, verdict, partitions = kept(sql)
    core = core_of(query.root)
    sketched = {access: p.attribute for access, p in partitions.items()}
    return core, carried(verdict, replace(query, root=core), sketched)


def compiled(sql: str) -> Compiled:
    core, judged = _judged(sql)
    _, _, partitions = kept(sql)
    return compile_plan(core, partitions, judged.key_columns, barriers=judged.barrier_positions)


def table_of(name: str, rows: Rows) -> pa.Table:
    return arrow_rows(SIDE if name == "side" else SCHEMA, rows)


def random_row(
    rng: random.Random, name: str, pool: tuple[float | None, ...]
) -> Mapping[str, Value]:
    if name == "side":
        return {"k": rng.randrange(6), "w": rng.choice(pool)}
    return {"g": rng.choice((*range(6), None)), "h": rng.randrange(2), "d": rng.choice(pool)}


def changed(
    rng: random.Random, name: str, rows: Rows, pool: tuple[float | None, ...]
) -> TableChange:
    changes: Rows = []
    weights: list[int] = []
    for _ in range(rng.randint(0, 4)):
        if rows and rng.random() < 0.45:
            changes.append(rows.pop(rng.randrange(len(rows))))
            weights.append(-1)
        else:
            rows.append(random_row(rng, name, pool))
            changes.append(rows[-1])
            weights.append(1)
    return TableChange(table_of(name, changes), np.array(weights, dtype=np.int64))


def check(
    sql: str, session: MaintainedQuery, tables: Mapping[str, Rows], rng: random.Random
) -> tuple[int, int]:
    """The sketches against several orders of adding: ranges beyond, and orders tried."""
    query, verdict, partitions = kept(sql)
    held = {access: set(result.ids) for access, result in session.fragments().items()}
    slack = 0
    for turn in range(3):
        shown = {name: list(rows) for name, rows in tables.items()}
        for rows in shown.values():
            rng.shuffle(rows)
        result = annotate(query.root, shown, whole_windows=True)
        barriers = [result.first_rows.get(at, frozenset()) for at in verdict.barrier_positions]
        lineage = result.lineage.union(*barriers)
        for access in partitions:
            needed = {
                _fragment(shown["t"][row]["g"]) for origin, row in lineage if origin == access
            }
            assert held[access] >= needed, (sql, shown, held, needed)
            slack += len(held[access] - needed) if turn == 0 else 0
        seen = {
            access: [at for at, row in enumerate(shown["t"]) if _fragment(row["g"]) in held[access]]
            for access in partitions
        }
        # In one order of adding, the answer over the sketch is the answer.
        if any(len(rows) < len(shown["t"]) for rows in seen.values()):
            whole = bag(row for row, _ in result.rows)
            assert bag(evaluate(query.root, shown, seen)) == whole, sql
    return slack, 3


def in_parts(values: Sequence[float]) -> float:
    """The sum as Spark may add it: some rows after each other, then what these gave."""
    middle = len(values) // 2
    parts = (values[:middle], values[middle:])
    with np.errstate(over="ignore", invalid="ignore"):
        return float(sum(np.float64(sum(map(np.float64, part))) for part in parts))


def add_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference adds exactly otherwise."""
    monkeypatch.setattr(reference_aggregate, "_double_total", in_parts)


def _fragment(value: Value) -> int:
    return 6 if value is None else min(int(value), 5)  # type: ignore[arg-type]  # an INTEGER


def one_case(queries: Sequence[str], pools: Sequence[Pool], seed: int, seen: Counter[str]) -> None:
    rng = random.Random(seed)
    sql = queries[seed % len(queries)]
    pool = rng.choice(pools)
    tables: dict[str, Rows] = {
        name: [random_row(rng, name, pool) for _ in range(rng.randint(0, 9))]
        for name in ("t", "side")
    }
    session = MaintainedQuery(compiled(sql))
    stored = Stored()
    try:
        names = session.compiled.tables
        session.load([(name, table_of(name, tables[name])) for name in names])
        for _ in range(4):
            slack, tried = check(sql, session, tables, rng)
            seen["cases"] += tried
            seen["slack"] += slack
            seen["wide"] += slack > 0
            seen["unsure"] += session.unsure_rows() > 0
            session.step({name: changed(rng, name, tables[name], pool) for name in names})
            if rng.random() < 0.2:
                session = restored(session, stored, MaintainedQuery(compiled(sql)))
    except NotExactError:
        seen["not exact"] += 1
        seen[f"not exact: {sql}"] += 1
    except (EvaluationError, ReferenceFailure):
        seen["failed"] += 1


def several_cases(
    queries: Sequence[str], seeds: Iterable[int], pools: Sequence[Pool] = POOLS
) -> Counter[str]:
    return seen_in(seeds, partial(one_case, queries, pools))
