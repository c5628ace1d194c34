"""Maintained sketches compared with recomputed ones over random queries; operator laws."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

from impctl.compile.compile import Dataflow, compile_plan
from impctl.compile.fill import Partials, RangeRows
from impctl.compile.flows import RANGE_COLUMN, BlockedError
from impctl.compile.session import (
    GroupedRows,
    MaintainedQuery,
    TableChange,
    TouchedQuery,
    converted_session,
    needs_rows,
)
from impctl.data.schema import DATE, DOUBLE, INTEGER, LONG, STRING, Column, Schema
from impctl.data.vector import from_arrow
from impctl.engine.aggregate import AggregateOperator
from impctl.engine.tags import RANGE_BITS
from impctl.engine.trace import Run, slices
from impctl.errors import CountBelowZeroError, NotExactError
from impctl.plan.nodes import Plan, Query
from impctl.rules.optimize import apply_rules
from impctl.safety.judge import check_safety
from impctl.sketch.sketch import RangePartition, RangeSet, Renumbering, compare
from impctl.sql.statement import parse_query
from impctl.tables.snapshot import arrow_type
from tests.plan.trials import accurate_sketches
from tests.support.carried_queries import Stored, counts_of, restored
from tests.support.random_cases import random_cases, random_seeds, seen_in
from tests.support.random_queries import (
    FIRST_ROWS,
    PARTITIONS,
    QUERIES,
    SCHEMA,
    RandomCircuit,
    Row,
    random_change,
    random_circuit,
    random_row,
    random_sql,
    rows,
    table_of,
)
from tests.support.reference_plan import ReferenceLimit, annotate, bag, evaluate


def range_ids_of(rows: list[Row], partition: RangePartition) -> np.ndarray:
    column = from_arrow(table_of(rows).column(partition.attribute), partition.type)
    return partition.range_ids_of(column)


def counted(rows: list[Row], partition: RangePartition) -> list[int]:
    """How many rows each range has."""
    return np.bincount(range_ids_of(rows, partition), minlength=partition.size).tolist()


def accurate(query: Query, rows: list[Row], partition: RangePartition) -> RangeSet:
    """The sketch from the reference's lineage."""
    ranges = range_ids_of(rows, partition)
    needed = {row for _, row in annotate(query.root, {"t": rows}).lineage}
    return RangeSet.of({int(ranges[row]) for row in needed}, partition.size)


def instance(rows: list[Row], partition: RangePartition, sketch: RangeSet) -> list[int]:
    """Row numbers a query with the sketch reads."""
    return [i for i, f in enumerate(range_ids_of(rows, partition)) if int(f) in sketch]


@random_cases(0, 8, 400, also="0-9 19 25 46 49")
def test_maintained_sketches_match_recaptured(cases: Sequence[int]) -> None:
    counts = seen_in(cases, one_case)
    assert counts["exact"] > len(cases) * 10 // 3
    assert counts["unsure"] > len(cases) // 120, "no HAVING came too close to call"
    assert counts["safe"] > len(cases) * 2 // 3
    assert counts["keyed"] > len(cases) // 20


def one_case(seed: int, counts: Counter[str]) -> None:
    rng = random.Random(seed)
    case = random_circuit(rng)
    if case is None:
        return
    label = f"case {seed}: {case.query.sql}"
    session = MaintainedQuery(case.compiled)
    rows = [random_row(rng) for _ in range(rng.randint(0, 9))]
    cut = rng.randint(0, len(rows))
    counts["keyed"] += bool(case.verdict.key_columns)
    # Doubles too close to call below a grouping stop a run, which stores nothing.
    with suppress(ReferenceLimit, NotExactError):
        session.load(("t", table_of(part)) for part in (rows[:cut], rows[cut:]))
        check(session, case, rows, counts, label)
        for _ in range(4):
            session.step(changed(*random_change(rng, rows)))
            check(session, case, rows, counts, label)


def check(
    session: MaintainedQuery, case: RandomCircuit, rows: list[Row], counts: Counter[str], label: str
) -> None:
    query, partition = case.query, case.partition
    (sketch,) = session.ranges().values()
    result = compare(sketch, accurate(query, rows, partition))
    assert result.covers, (label, rows, partition.attribute, result)
    unsure = session.unsure_rows() > 0
    counts["unsure" if unsure else "exact"] += 1
    assert unsure or result.slack == 0, (label, rows, partition.attribute, result)
    if case.verdict.safe:
        counts["safe"] += 1
        kept = {query.root.scans[0].access: instance(rows, partition, sketch)}
        with_sketch = evaluate(query.root, {"t": rows}, kept)
        assert bag(with_sketch) == bag(evaluate(query.root, {"t": rows})), (label, rows)


def grouped(pass_: Partials, rows: list[Row], partition: RangePartition) -> pa.Table:
    """The pass's result by the slow reference, in Spark's types."""
    ranges = range_ids_of(rows, partition)
    tagged = [{**row, RANGE_COLUMN: int(f)} for row, f in zip(rows, ranges, strict=True)]
    result = evaluate(pass_.plan, {"t": tagged})
    kinds = [arrow_type(kind) for kind in pass_.key_types]
    kinds += [pa.int32()] if pass_.has_range else []
    kinds += [arrow_type(kind) for _, kind in pass_.columns]
    arrays = [pa.array([row[index] for row in result], kind) for index, kind in enumerate(kinds)]
    return pa.table(arrays, [f"c{index}" for index in range(len(arrays))])


def absorbed(
    session: MaintainedQuery, partition: RangePartition, inserted: list[Row], deleted: list[Row]
) -> bool:
    """Absorb the change. Returns whether the pass reported the rows of each range."""
    chain = session.compiled.chain
    pass_ = chain.partials()
    tables = [grouped(pass_, rows, partition) for rows in (inserted, deleted)]
    if any(pass_.needs_specials(table) for table in tables):
        pass_ = chain.partials(counts_specials=True)
        tables = [grouped(pass_, rows, partition) for rows in (inserted, deleted)]
    parts = []
    for part, table in zip((inserted, deleted), tables, strict=True):
        counts = counted(part, partition)
        reported = pass_.rows_per_range(table, partition)
        assert reported is None or reported.tolist() == counts
        parts.append(GroupedRows(table, np.array(counts, dtype=np.int64)))
    session.absorb(pass_, *parts, partition)
    return reported is not None


def one_absorbed_case(seed: int, totals: Counter[str]) -> None:
    rng = random.Random(seed)
    case = random_circuit(rng)
    if case is None or case.compiled.chain is None:
        return
    session = MaintainedQuery(case.compiled)
    rows = [random_row(rng) for _ in range(rng.randint(0, 9))]
    # Doubles too close to call below a grouping stop a run, which stores nothing.
    with suppress(ReferenceLimit, NotExactError):
        session.load([("t", table_of(rows))])
        for _ in range(5):
            change, weights = random_change(rng, rows)
            inserted = [row for row, weight in zip(change, weights, strict=True) if weight > 0]
            deleted = [row for row, weight in zip(change, weights, strict=True) if weight < 0]
            if rng.random() < 0.7:
                totals["reported"] += absorbed(session, case.partition, inserted, deleted)
                totals["absorbed"] += 1
            else:
                session.step(changed(change, weights))
            check(session, case, rows, totals, f"case {seed}: {case.query.sql}")
            counts = session.range_rows.counts(case.partition)
            assert counts.tolist() == counted(rows, case.partition)


@random_cases(0, 40, 200, also="0-2 4 7 10 11 31 38 40 44 49")
def test_grouped_changes_match_recaptured(cases: Sequence[int]) -> None:
    totals = seen_in(cases, one_absorbed_case)
    assert totals["absorbed"] > 2 * len(cases), totals
    assert totals["exact"] > 3 * len(cases), totals
    assert len(cases) < totals["reported"] < totals["absorbed"], totals


def other_ranges(rng: random.Random, partition: RangePartition) -> RangePartition:
    """Some boundaries removed, some of the column's values added."""
    pool = {
        "id": [0, 1, 2, 3, 4, 5, 6],
        "g": [0, 1, 2],
        "s": ["", "a", "b", "é"],
        "x": [-3, -1, 0, 1, 2, 5],
        "d": [-1.5, 0.0, 0.5, 2.0],
        "m": [-250, 0, 125, 310],
    }[partition.attribute]
    kept = [b for b in partition.boundaries if rng.random() < 0.6]
    added = rng.sample(pool, rng.randint(0, 2))
    return replace(partition, boundaries=tuple(sorted({*kept, *added})))


def changed(rows: list[Row], weights: list[int]) -> dict[str, TableChange]:
    return {"t": TableChange(table_of(rows), np.array(weights, dtype=np.int64))}


def split_rows(renumbering: Renumbering, rows: list[Row]) -> list[Row]:
    """The rows that must be read again."""
    targets = renumbering.targets[range_ids_of(rows, renumbering.old)]
    return [row for row, target in zip(rows, targets.tolist(), strict=True) if target < 0]


def moved(
    session: MaintainedQuery, compiled: Dataflow, renumbering: Renumbering, rows: list[Row]
) -> MaintainedQuery:
    split = split_rows(renumbering, rows)
    reread = [table_of(split)] if needs_rows(compiled, renumbering) else []
    result = converted_session(session, compiled, renumbering, reread)
    counts = renumbering.carried(session.range_rows.counts(renumbering.old))
    result.range_rows.fill(renumbering.new, counts + np.array(counted(split, renumbering.new)))
    return result


def state(session: MaintainedQuery) -> tuple[object, ...]:
    rows = session.range_rows
    return counts_of(session), [rows.counts(partition).tolist() for partition in rows.partitions]


def one_rederived_case(rng: random.Random, label: str, counts: Counter[str]) -> None:
    sql = random_sql(rng)
    root = apply_rules(parse_query(sql, {"t": SCHEMA}).root)
    partition = rng.choice(PARTITIONS)
    new = other_ranges(rng, partition)
    access = root.scans[0].access
    query = replace(parse_query(sql, {"t": SCHEMA}), root=root)
    keys = check_safety(query, {access: partition.attribute}, []).key_columns
    try:
        session = MaintainedQuery(compile_plan(root, {access: partition}, keys))
        compiled = compile_plan(root, {access: new}, keys)
    except BlockedError:
        return
    if compiled.chain is None:
        counts["others"] += 1
        return
    rows = [random_row(rng) for _ in range(rng.randint(0, 12))]
    session.load([("t", table_of(rows))])
    for _ in range(rng.randint(0, 3)):
        session.step(changed(*random_change(rng, rows)))
    renumbering = Renumbering(partition, new)
    result = moved(session, compiled, renumbering, rows)
    fresh = MaintainedQuery(compile_plan(root, {access: new}, keys))
    fresh.load([("t", table_of(rows))])
    is_sure = agree(result, fresh, (label, sql, rows))
    kind = "read" if needs_rows(compiled, renumbering) else "derived"
    counts[kind] += 1
    before = renumbering.ranges(session.ranges()[access])
    assert not result.ranges()[access].minus(before), (label, sql, rows)
    if not is_sure:
        counts["unsure"] += 1
        return
    result = restored(result, Stored(), MaintainedQuery(compile_plan(root, {access: new}, keys)))
    for _ in range(3):
        change = random_change(rng, rows)
        result.step(changed(*change))
        fresh.step(changed(*change))
        is_sure = agree(result, fresh, (label, sql, rows)) and is_sure
        if not is_sure:
            return


def agree(
    maintained_query: MaintainedQuery, fresh: MaintainedQuery, label: tuple[object, ...]
) -> bool:
    """Check that both states are equal. Returns False if uncertain sums of doubles prevent this."""
    if maintained_query.unsure_rows() or fresh.unsure_rows():
        return False
    assert state(maintained_query) == state(fresh), label
    return True


def run(case: int, counts: Counter[str]) -> None:
    # Doubles too close to call below a grouping stop a run, which stores nothing.
    with suppress(NotExactError):
        one_rederived_case(random.Random(case), f"case {case}", counts)


@random_cases(0, 4, 200, also="2 4 6 7 9 12 14 16 32 40 49")
def test_state_converts_to_new_ranges(cases: Sequence[int]) -> None:
    counts = seen_in(cases, run)
    assert counts["read"] > len(cases) // 8
    assert counts["derived"] > len(cases) // 8


DOUBLES = RangePartition("t", "d", DOUBLE, (0.0, 2.0))
LONGS = RangePartition("t", "x", LONG, (0, 1))
COUNTED_QUERIES = [
    "SELECT g FROM t WHERE x > 3 AND d < 0.5",
    "SELECT g, COUNT(*) n FROM t WHERE x > 1 GROUP BY g HAVING COUNT(*) > 1",
    "SELECT a.g FROM t a JOIN t b ON a.id = b.id WHERE a.x > 0",
]


@pytest.mark.parametrize("sql", COUNTED_QUERIES)
@pytest.mark.parametrize("partition", [DOUBLES, LONGS], ids=["doubles", "longs"])
def test_range_counts_match_table(sql: str, partition: RangePartition) -> None:
    """Rows that the query drops count too. A table that is read twice counts once."""
    root = apply_rules(parse_query(sql, {"t": SCHEMA}).root)
    sketched = {scan.access: partition for scan in root.scans}
    session = MaintainedQuery(compile_plan(root, sketched, {}))
    session.load([])
    rng, rows = random.Random(5), list[Row]()
    for _ in range(20):
        session.step(changed(*random_change(rng, rows)))
        assert session.range_rows.partitions == (partition,)
        assert session.range_rows.counts(partition).tolist() == counted(rows, partition)


def test_touched_sketches_count_rows_and_only_grow() -> None:
    query = TouchedQuery(LONGS, RangeSet.of([], LONGS.size))
    rng, rows, before = random.Random(7), list[Row](), query.ranges
    for _ in range(20):
        now = query.step(changed(*random_change(rng, rows))["t"])
        assert not before.minus(now)
        assert query.range_rows.counts(LONGS).tolist() == counted(rows, LONGS)
        before = now
    # Without the deleted rows, the average of their group may pass.
    query = TouchedQuery(LONGS, RangeSet.of([], LONGS.size))
    table = pa.table({"x": pa.array([-1, 5], pa.int64())})
    query.step(TableChange(table, np.ones(2, dtype=np.int64)))
    query.ranges = RangeSet.of([], LONGS.size)
    now = query.step(TableChange(table.slice(1), np.array([-1], dtype=np.int64)))
    assert set(now.ids) == {int(LONGS.range_ids_of(from_arrow(table["x"], LONG))[1])}


def test_counts_are_restored_from_a_checkpoint() -> None:
    query = TouchedQuery(LONGS, RangeSet.of([], LONGS.size))
    table = pa.table({"x": pa.array([None, -1, 0, 0, 5], pa.int64())})
    query.step(TableChange(table, np.ones(5, dtype=np.int64)))
    runs = {name: [(sequence, run)] for name, sequence, run in query.checkpoint().put}
    again = RangeRows([LONGS])
    again.load(runs)
    assert again.counts(LONGS).tolist() == [1, 2, 1, 1]
    with pytest.raises(CountBelowZeroError, match="rows of table `t`"):
        RangeRows([LONGS]).count(0, np.array([1]), np.array([-1]))


CATALOG = {
    "t": Schema((Column("g", INTEGER), Column("x", LONG), Column("s", STRING), Column("d", DATE))),
    "u": Schema((Column("g", INTEGER), Column("y", LONG))),
}
LAW_PARTITIONS = {
    "t": RangePartition("t", "x", LONG, (0, 2)),
    "u": RangePartition("u", "y", LONG, (1,)),
}
ONE_PER_OPERATOR = {
    **QUERIES,
    **FIRST_ROWS,
    "semi_mixed": "SELECT g, x, s FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.g < t.x)",
    "intersect": "SELECT g, x FROM t INTERSECT SELECT g, y FROM u",
    "right": "SELECT t.x, u.y FROM t RIGHT JOIN u ON t.g = u.g",
    "null_safe": "SELECT t.x, u.y FROM t JOIN u ON t.g <=> u.g",
    "anti": "SELECT g, x FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.g = t.g)",
    "anti_mixed": "SELECT g, x FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.y >= t.x)",
    "types": "SELECT t.g, u.y FROM t JOIN u ON t.x = u.g",
    "types_left": "SELECT t.x, u.y FROM t JOIN u ON t.g = CAST(u.y AS DOUBLE)",
    "types_right": "SELECT t.x, u.y FROM t JOIN u ON CAST(t.x AS DOUBLE) = u.g",
    "either": "SELECT t.g FROM t JOIN u ON (t.x = 1 AND u.y > 1) OR (t.x > 2 AND u.g = 3)",
    "either_open": "SELECT t.g FROM t JOIN u ON (t.x = 1 AND u.y > 1) OR u.g = 3",
    "filtered_calls": "SELECT g, COUNT(x) FILTER (WHERE s = 'a') n FROM t GROUP BY g"
    " HAVING COUNT(x) FILTER (WHERE s = 'a') > 0 AND SUM(x) FILTER (WHERE s <> 'b') > 1",
    "distinct_sum": "SELECT g, SUM(DISTINCT x) n FROM t GROUP BY g HAVING SUM(DISTINCT x) > 3",
    "global": "SELECT COUNT(*) n, MAX(x) m FROM t HAVING COUNT(*) < 12",
}


@cache
def root_of(name: str) -> Plan:
    return apply_rules(parse_query(ONE_PER_OPERATOR[name], CATALOG).root)


def started(name: str) -> MaintainedQuery:
    """The circuit of a query over empty tables."""
    root = root_of(name)
    sketched = {scan.access: LAW_PARTITIONS[scan.table] for scan in root.scans}
    session = MaintainedQuery(compile_plan(root, sketched, {}))
    session.load([])
    return session


def random_tables(rng: random.Random) -> dict[str, pa.Table]:
    return {"t": rows(rng, 14, is_left=True), "u": rows(rng, 7, is_left=False)}


def changes(tables: Mapping[str, pa.Table], sign: int) -> dict[str, TableChange]:
    return {
        name: TableChange(table, np.full(len(table), sign, dtype=np.int64))
        for name, table in tables.items()
    }


def listed(table: pa.Table) -> list[Mapping[str, object]]:
    return table.to_pylist()


def batch(rng: random.Random, table: pa.Table, *, is_left: bool) -> tuple[pa.Table, TableChange]:
    """The table after a batch, and the batch."""
    order = table.take(pa.array(rng.sample(range(len(table)), len(table)), pa.int64()))
    cut = rng.choice((0, 1, 3, len(table) // 2, len(table)))
    deleted, kept = order.slice(0, cut), order.slice(cut)
    new = rows(rng, rng.choice((0, 1, 4, 8)), is_left=is_left)
    weights = np.repeat(np.array([-1, 1], dtype=np.int64), [len(deleted), len(new)])
    return pa.concat_tables([kept, new]), TableChange(pa.concat_tables([deleted, new]), weights)


def expected_sketches(root: Plan, tables: Mapping[str, pa.Table]) -> dict[str, set[int]]:
    partitions = {
        scan.access: (LAW_PARTITIONS[scan.table].attribute, LAW_PARTITIONS[scan.table].boundaries)
        for scan in root.scans
    }
    plain = {name: listed(table) for name, table in tables.items()}
    result = annotate(root, plain)
    return accurate_sketches(result, root, plain, partitions)


def step_and_compare(
    session: MaintainedQuery, root: Plan, tables: dict[str, pa.Table], rng: random.Random
) -> None:
    """Apply a random batch and compare the sketches with the lineage."""
    batches = {}
    for table in tables:
        if rng.random() < 0.7:
            tables[table], batches[table] = batch(rng, tables[table], is_left=table == "t")
    session.step(batches)
    result = {access: set(kept.ids) for access, kept in session.ranges().items()}
    assert result == expected_sketches(root, tables)


@pytest.mark.parametrize("name", ONE_PER_OPERATOR)
@random_seeds(1, 1, 12)
def test_laws_of_every_operator(name: str, seed: int) -> None:
    rng, root = random.Random(f"{name} {seed}"), root_of(name)
    session, chunked, tables = started(name), started(name), random_tables(rng)
    empty = counts_of(session)

    session.step(changes(tables, 1))
    size = 1 if seed else 7
    chunks = [(key, start) for key, table in tables.items() for start in range(0, len(table), size)]
    rng.shuffle(chunks)
    for key, start in chunks:
        chunked.step(changes({key: tables[key].slice(start, size)}, 1))
    assert counts_of(chunked) == counts_of(session)

    for _ in range(3):
        step_and_compare(session, root, tables, rng)

    # A batch and its inverse cancel, one after the other or in one step.
    before, more = counts_of(session), random_tables(rng)
    session.step(changes(more, 1))
    session.step(changes(more, -1))
    assert counts_of(session) == before
    signs = {name: np.repeat(np.array([1, -1]), len(table)) for name, table in more.items()}
    both = {name: pa.concat_tables([table, table]) for name, table in more.items()}
    session.step({name: TableChange(both[name], signs[name]) for name in both})
    assert counts_of(session) == before
    session.step(changes({name: table.slice(0, 0) for name, table in more.items()}, 1))
    assert counts_of(session) == before

    # A restored session continues as if it had never stopped; without rows it is empty.
    fresh = restored(session, Stored(), started(name))
    for one in (session, fresh):
        one.step(changes(more, 1))
    assert counts_of(fresh) == counts_of(session)
    fresh.step(changes(more, -1))
    fresh.step(changes(tables, -1))
    assert counts_of(fresh) == empty


def session_of(sql: str, tables: Mapping[str, tuple[str, int]]) -> MaintainedQuery:
    """A circuit over integer tables. Each is split in two at a value of its first column."""
    catalog = {
        table: Schema(tuple(Column(name, LONG) for name in names))
        for table, (names, _) in tables.items()
    }
    root = apply_rules(parse_query(sql, catalog).root)
    partitions = {
        table: RangePartition(table, names[0], LONG, (boundary,))
        for table, (names, boundary) in tables.items()
    }
    sketched = {scan.access: partitions[scan.table] for scan in root.scans}
    return MaintainedQuery(compile_plan(root, sketched, {}))


def paper_rows(names: str, *values: tuple[int | None, ...]) -> pa.Table:
    return pa.table({name: [row[index] for row in values] for index, name in enumerate(names)})


def groups_of(session: MaintainedQuery) -> dict[int, tuple[int, int, dict[int, int], ...]]:
    """Per group: the sum, the count, and for each access the rows per range."""
    operator = next(op for op in session.circuit if isinstance(op, AggregateOperator))
    groups, *ranges = operator.arrangements()
    newest: dict[int, tuple[int, int, int]] = {}
    runs: tuple[Run, ...] = groups.runs  # type: ignore[union-attr]  # sums only: no other state
    for run in runs:
        none = np.zeros(len(run), dtype=np.int64)
        totals = run.values.get("low0", none)
        for index, code in enumerate(run.codes.tolist()):
            result = [run.values.get(name, none)[index] for name in ("rows", "group")]
            newest[code] = (int(totals[index]), int(result[0]), int(result[1]))
    state = {}
    for key, (total, count, number) in newest.items():
        if not count:
            continue
        low = np.array([number << RANGE_BITS])
        range_counts = []
        for counts in ranges:
            part: tuple[Run, ...] = counts.runs  # type: ignore[union-attr]  # as above
            _, codes, values = slices(part, low, low + (1 << RANGE_BITS), "count")
            ids = (codes & ((1 << RANGE_BITS) - 1)).tolist()
            range_counts.append(dict(zip(ids, values.tolist(), strict=True)))
        state[key] = (total, count, *range_counts)
    return state


def sketches(session: MaintainedQuery) -> list[tuple[int, ...]]:
    return [range_id.ids for range_id in session.ranges().values()]


@pytest.mark.parametrize(
    ("word", "expected"), [("EXISTS", [(1,), (1,)]), ("NOT EXISTS", [(0,), ()])]
)
def test_semi_joins_find_rows_with_null(word: str, expected: list[tuple[int, ...]]) -> None:
    sql = f"SELECT a, b FROM t WHERE {word} (SELECT 1 FROM u WHERE t.a > u.c)"
    session = session_of(sql, {"t": ("ab", 5), "u": ("c", 5)})
    session.load([("t", paper_rows("ab", (9, None), (1, None))), ("u", paper_rows("c", (6,)))])
    assert sketches(session) == expected


def test_figure_5_of_the_edbt_paper() -> None:
    session = session_of(
        "SELECT a, SUM(c) AS total FROM (SELECT a, b FROM r WHERE a > 3) JOIN s ON b = d"
        " GROUP BY a HAVING SUM(c) > 5",
        {"r": ("ab", 6), "s": ("cd", 7)},
    )
    session.load([("r", paper_rows("ab", (1, 7), (9, 9))), ("s", paper_rows("cd", (6, 9), (7, 8)))])
    assert groups_of(session) == {9: (6, 1, {1: 1}, {0: 1})}
    assert sketches(session) == [(1,), (0,)]
    one = np.ones(1, dtype=np.int64)
    session.step({"r": TableChange(paper_rows("ab", (5, 8)), one)})
    assert groups_of(session) == {9: (6, 1, {1: 1}, {0: 1}), 5: (7, 1, {0: 1}, {1: 1})}
    assert sketches(session) == [(0, 1), (0, 1)]
    counts = [count.tolist()[:2] for count in session.merge.counts]
    assert counts == [[1, 1], [1, 1]]


def test_examples_5_2_and_5_3_of_the_draft() -> None:
    """Group 1 is removed, 10 is added, 7 changes its sum. Figure 6 misprints 10's f2 as f1."""
    sql = "SELECT k, SUM(n) AS summation FROM rr, ss GROUP BY k"
    session = session_of(sql, {"rr": ("k", 5), "ss": ("n", 5)})
    session.load([("rr", paper_rows("k", (1,), (7,))), ("ss", paper_rows("n", (1,), (8,)))])
    ones = ({0: 1, 1: 1},)
    assert groups_of(session) == {1: (9, 2, {0: 2}, *ones), 7: (9, 2, {1: 2}, *ones)}
    signs = np.array([-1, 1], dtype=np.int64)
    session.step(
        {
            "rr": TableChange(paper_rows("k", (1,), (10,)), signs),
            "ss": TableChange(paper_rows("n", (8,), (10,)), signs),
        }
    )
    assert groups_of(session) == {7: (11, 2, {1: 2}, *ones), 10: (11, 2, {1: 2}, *ones)}
    assert sketches(session) == [(1,), (0, 1)]
