"""Circuits that read groups, sides or rows selected by scalars match those that store them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from functools import cache, partial

import numpy as np
import pyarrow as pa
import pytest
from msgspec import Struct
from msgspec.structs import replace

from impctl.compile.buffers import Buffers
from impctl.compile.compile import Dataflow, compile_plan
from impctl.compile.flows import ChooseBySize, Chooser, SideFacts, Source, StoredChoices, Strategy
from impctl.compile.session import MaintainedQuery, TableChange
from impctl.data.schema import DOUBLE, INTEGER, LONG, STRING, Column, Schema, decimal
from impctl.data.vector import Vector
from impctl.engine.aggregate import AggregateOperator
from impctl.engine.batch import Batch
from impctl.engine.join import SelectByScalars
from impctl.plan.nodes import Plan
from impctl.rules.optimize import apply_rules
from impctl.sketch.sketch import RangePartition
from impctl.sql.statement import parse_query
from impctl.types import TableName
from tests.compile.cases import converted
from tests.support.carried_queries import ReferencePartners, Stored, arrow_rows, counts_of
from tests.support.random_cases import random_cases

T = (("g", INTEGER), ("f", DOUBLE), ("x", LONG), ("n", decimal(6, 1)), ("s", STRING))
CATALOG = {
    table: Schema(tuple(Column(name, kind) for name, kind in columns))
    for table, columns in (("t", T), ("u", (("g", INTEGER), ("y", LONG))))
}
PARTITIONS = {
    "t": RangePartition("t", "x", LONG, (0, 2)),
    "u": RangePartition("u", "y", LONG, (1,)),
}
QUERIES = {
    "sums": "SELECT t.g, COUNT(*), SUM(n), AVG(n), SUM(y) FROM t JOIN u ON t.x = u.y GROUP BY t.g "
    "HAVING SUM(y) > 1",
    "floats": "SELECT f, COUNT(*) c, MAX(x) FROM t JOIN u ON t.g = u.g GROUP BY f",
    "extremes": "SELECT t.s, MIN(f), MAX(f), MIN(s), MAX(n) FROM t JOIN u ON t.g = u.g "
    "GROUP BY t.s",
    "ties": "SELECT t.g, MIN_BY(s, x), MAX_BY(n, x) FROM t JOIN u ON t.x = u.y GROUP BY t.g",
    "spread": "SELECT t.s, STDDEV(n), VAR_POP(u.g) FROM t JOIN u ON t.g = u.g GROUP BY t.s",
    "counts": "SELECT u.g, COUNT(DISTINCT t.s), SUM(DISTINCT n), COUNT(f) FROM t JOIN u "
    "ON t.g = u.g GROUP BY u.g",
    "two_keys": "SELECT t.f, u.y, COUNT(*) FROM t JOIN u ON t.g <=> u.g GROUP BY t.f, u.y",
    "computed": "SELECT t.g, x + y k, COUNT(*) FROM t JOIN u ON t.g = u.g GROUP BY t.g, x + y",
    "once": "SELECT DISTINCT t.f, u.y FROM t JOIN u ON t.g = u.g WHERE x > 0",
    "self": "SELECT a.s, COUNT(*), SUM(b.x) FROM t a JOIN t b ON a.g = b.g GROUP BY a.s",
    "sets": "SELECT t.g, t.s, COUNT(*) FROM t JOIN u ON t.g = u.g GROUP BY ROLLUP (t.g, t.s)",
    "inside": "SELECT s FROM t WHERE x IN (SELECT y FROM u GROUP BY y HAVING COUNT(*) > 1)",
    "least": "SELECT y FROM u WHERE g IN (SELECT g FROM t GROUP BY g HAVING MIN(x) < 1)",
    "under": "SELECT c, COUNT(*) FROM (SELECT t.s, COUNT(*) c FROM t JOIN u ON t.g = u.g "
    "GROUP BY t.s) GROUP BY c",
    "beside": "SELECT t.x, k FROM t JOIN (SELECT g, COUNT(*) k FROM u GROUP BY g) v ON t.g = v.g",
    "having": "SELECT t.x, k + 1 FROM t JOIN (SELECT g, f, COUNT(*) k, MAX(s) m FROM t "
    "GROUP BY g, f HAVING COUNT(*) > 1 AND MAX(s) <> 'b') v ON t.g = v.g AND t.x = k",
    "exists": "SELECT x FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.g = t.g AND u.y > 0)",
    "without": "SELECT x FROM t WHERE g NOT IN (SELECT g FROM u WHERE y > 0)",
    "outer": "SELECT t.x, k FROM t LEFT JOIN (SELECT g, SUM(y) k FROM u GROUP BY g) v ON t.g = v.g",
    "alone": "SELECT g, COUNT(*) c, MAX(n), SUM(x) FROM t WHERE s = 'a' GROUP BY g "
    "HAVING SUM(x) > 1",
    "twice": "SELECT c, COUNT(*) FROM (SELECT g, s, COUNT(*) c FROM t GROUP BY g, s) GROUP BY c",
    "same": "SELECT x, f, COUNT(*) c, SUM(n) FROM t GROUP BY x, f HAVING COUNT(*) > 1",
    "top": "SELECT t.s, t.x, t.f, MAX(n) m FROM t JOIN u ON t.g = u.g GROUP BY t.s, t.x, t.f "
    "ORDER BY m DESC LIMIT 1",
}
JOINS = {
    "grouped": "SELECT t.g, SUM(u.y) s FROM t JOIN u ON t.g = u.g GROUP BY t.g HAVING SUM(u.y) > 2",
    "condition": "SELECT t.x FROM t JOIN u ON t.g = u.g AND t.x < u.y WHERE t.s = 'a'",
    "computed": "SELECT t.x FROM t JOIN u ON t.x + 1 = u.y",
    "null_safe": "SELECT t.x FROM t JOIN u ON t.g <=> u.g",
    "two_keys": "SELECT t.s FROM t JOIN u ON t.g = u.g AND t.x = u.y",
    "self": "SELECT a.g FROM t a JOIN t b ON a.g = b.g AND a.x < b.x WHERE b.s = 'a'",
    "three": "SELECT t.s FROM t JOIN u ON t.g = u.g JOIN u v ON v.y = t.x WHERE u.y > 0",
    "star": "SELECT COUNT(*) FROM t JOIN u ON t.g = u.g JOIN t o ON o.g = u.g AND o.x = t.x",
    "partnered": "SELECT g FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.g = t.g AND u.y > t.x)",
}
SCALAR_QUERIES = {
    "latest": "SELECT g, SUM(x), COUNT(*) FROM t WHERE x = (SELECT MAX(x) FROM t) GROUP BY g",
    "first": "SELECT g, SUM(x), COUNT(*) FROM t WHERE x = (SELECT MIN(x) FROM t) GROUP BY g",
    "among": "SELECT g, COUNT(*) FROM t WHERE x IN (SELECT MAX(y) FROM u) GROUP BY g",
    "some_days": "SELECT s, COUNT(*) FROM t WHERE x >= (SELECT MAX(x) FROM t) - 1 GROUP BY s",
    "within": "SELECT s, COUNT(*) FROM t WHERE x > (SELECT MAX(y) - 2 FROM u) GROUP BY s",
    "between": "SELECT g, COUNT(*) FROM t WHERE x BETWEEN (SELECT MIN(y) FROM u) AND "
    "(SELECT MAX(g) FROM t) GROUP BY g",
    "either": "SELECT g, COUNT(*) FROM t WHERE x = (SELECT MAX(x) FROM t) OR "
    "n = (SELECT MIN(n) FROM t) GROUP BY g",
    "not_equal": "SELECT g, COUNT(*) FROM t WHERE x <> (SELECT MAX(y) FROM u) GROUP BY g",
    "null_safe": "SELECT x, COUNT(*) FROM t WHERE g <=> (SELECT MAX(g) FROM u) GROUP BY x",
    "null_is_a_value": "SELECT x, COUNT(*) FROM t WHERE g < COALESCE((SELECT MAX(g) FROM u), 9) "
    "GROUP BY x",
    "average": "SELECT g, COUNT(*) FROM t WHERE x > (SELECT AVG(x) FROM t) GROUP BY g",
    "with_a_bound": "SELECT g, COUNT(*) FROM t WHERE x + 0.171D > "
    "(SELECT SUM(CAST(x AS DOUBLE) / 3) FROM t) GROUP BY g",
    "doubles": "SELECT g, COUNT(*) FROM t WHERE f = (SELECT MAX(f) FROM t) GROUP BY g",
    "decimals": "SELECT g, COUNT(*) FROM t WHERE n < (SELECT MAX(n) FROM t) GROUP BY g",
    "text": "SELECT g, COUNT(*) FROM t WHERE s = (SELECT MAX(s) FROM t) GROUP BY g",
    "limited": "SELECT g, COUNT(*) FROM t WHERE x = (SELECT x FROM t ORDER BY x DESC LIMIT 1) "
    "GROUP BY g",
    "at_most_one": "SELECT g, COUNT(*) FROM t WHERE x IN (SELECT MAX(x) m FROM t HAVING m > 2) "
    "GROUP BY g",
    "nested": "SELECT g, COUNT(*) FROM t WHERE x = (SELECT MAX(x) FROM t WHERE x < "
    "(SELECT MAX(x) FROM t)) GROUP BY g",
    "beside_conditions": "SELECT s, SUM(k) FROM (SELECT s, x + 1 k, g FROM t WHERE g > 0) "
    "WHERE k = (SELECT MAX(x) FROM t) GROUP BY s",
    "joined": "SELECT u.y, COUNT(*) FROM t JOIN u ON t.g = u.g WHERE x = (SELECT MAX(x) FROM t) "
    "GROUP BY u.y",
    "both_joined": "SELECT u.y, COUNT(*) FROM t JOIN u ON t.g = u.g WHERE "
    "x >= (SELECT MIN(y) FROM u) AND y <= (SELECT MAX(x) FROM t) GROUP BY u.y",
    "read_on": "SELECT m, COUNT(*) FROM t, (SELECT MAX(y) m FROM u) WHERE x >= m GROUP BY m",
    "having": "SELECT g, COUNT(*) c FROM t WHERE x = (SELECT MAX(x) FROM t) GROUP BY g "
    "HAVING COUNT(*) > (SELECT MIN(y) FROM u)",
}
LEFT = "SELECT t.x, t.s, u.g h, u.y FROM t LEFT JOIN u ON t.g = u.g"
FULL = "SELECT t.x, t.g, u.g h, u.y FROM t FULL JOIN u ON t.g = u.g AND t.x < u.y"
ALONE = "SELECT g, x FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.g = t.g AND u.y > t.x)"
JOINED = "SELECT w.x, COUNT(*) FROM ({side}) v JOIN t w ON {on} GROUP BY w.x HAVING COUNT(*) > 1"
NARROWED = {
    "left": JOINED.format(side=LEFT, on="v.x = w.x"),
    "right": JOINED.format(side=LEFT.replace("t LEFT JOIN u", "u RIGHT JOIN t"), on="v.x = w.x"),
    "anti": JOINED.format(side=ALONE, on="v.g = w.g AND v.x >= w.x"),
    "not_in": JOINED.format(
        side="SELECT g, x FROM t WHERE g NOT IN (SELECT g FROM u)", on="v.x = w.x"
    ),
    "semi": JOINED.format(side="SELECT g FROM t WHERE x IN (SELECT y FROM u)", on="v.g <=> w.g"),
    "groups": f"SELECT x, COUNT(y) FROM ({LEFT}) GROUP BY x",
    "once": f"SELECT DISTINCT x, y FROM ({LEFT}) WHERE y IS NULL OR y > 0",
}
WHOLE_SIDES = {
    "padded": JOINED.format(side=LEFT, on="v.h <=> w.g"),
    "full": JOINED.format(side=FULL, on="v.g <=> w.g"),
    "both": JOINED.format(side=FULL, on="COALESCE(v.g, v.h) = w.g"),
    "union": JOINED.format(side="SELECT g FROM t UNION ALL SELECT g FROM u", on="v.g = w.g"),
    "distinct": JOINED.format(side="SELECT x FROM t UNION SELECT y FROM u", on="v.x = w.x"),
    "common": JOINED.format(side="SELECT g FROM t INTERSECT SELECT g FROM u", on="v.g <=> w.g"),
    "except": JOINED.format(side="SELECT x FROM t EXCEPT SELECT y FROM u", on="v.x = w.x"),
    "copies": JOINED.format(side="SELECT g FROM t EXCEPT ALL SELECT g FROM u", on="v.g = w.g"),
    "groups": f"SELECT y, COUNT(*) FROM ({LEFT}) GROUP BY y",
    "merged": "SELECT g, COUNT(*) FROM (SELECT g FROM t UNION ALL SELECT y FROM u) GROUP BY g",
    "counts": "SELECT c, COUNT(*) FROM (SELECT t.x, COUNT(u.y) c FROM t LEFT JOIN u ON t.g = u.g "
    "GROUP BY t.x) GROUP BY c",
}

CHOICES: dict[str, list[object]] = {
    "g": [None, 0, 1, 2],
    "f": [None, 0.0, -0.0, float("nan"), 1.5, float("inf")],
    "x": [-1, 0, 1, 2, 3],
    "n": [None, Decimal("0.0"), Decimal("-1.5"), Decimal("99999.9")],
    "s": [None, "", "a", "b"],
    "y": [-1, 0, 1, 2],
}
STEPS = 3
KEPT, TO_FILL = StoredChoices(), StoredChoices(is_to_fill=True)


def row_of(rng: random.Random, table: TableName) -> dict[str, object]:
    return {column.name: rng.choice(CHOICES[column.name]) for column in CATALOG[table]}


def arrow(table: TableName, rows: list[dict[str, object]]) -> pa.Table:
    return arrow_rows(CATALOG[table], rows)


@cache
def root_of(sql: str) -> Plan:
    return apply_rules(parse_query(sql, CATALOG).root)


def compiled(
    sql: str, chooser: Chooser = KEPT, size: int | None = None, *, of_all: bool = True
) -> Dataflow:
    """With `of_all` every access is sketched, else only the first one."""
    root = root_of(sql)
    scans = root.scans if of_all else root.scans[:1]
    sketched = {scan.access: PARTITIONS[scan.table] for scan in scans}
    return compile_plan(root, sketched, {}, chooser, buffers=Buffers.of(size))


def selected_by_scalars(sql: str) -> tuple[str, ...]:
    """The sides selected by scalars, which a newly filled circuit does not store."""
    return compiled(sql, TO_FILL).sides_by(Strategy.FILES)


def readable(sql: str) -> dict[str, tuple[Strategy, ...]]:
    """The other pieces that may be read, and their readers."""
    result = compiled(sql, StoredChoices(from_files=selected_by_scalars(sql)))
    return {one.side: one.readers for one in result.pieces if one.readers}


class Tables(Struct, dict=True):
    """The current tables."""

    rng: random.Random
    rows: dict[TableName, list[dict[str, object]]]

    def changed(self) -> dict[TableName, TableChange]:
        """Random deletions and insertions, some of the same rows; sometimes deletes all."""
        rng, result = self.rng, {}
        for name, rows in self.rows.items():
            if rng.random() < 0.2:
                continue
            count = len(rows) if rng.random() < 0.1 else min(len(rows), rng.randint(0, 4))
            deleted = [rows.pop(rng.randrange(len(rows))) for _ in range(count)]
            inserted = [row_of(rng, name) for _ in range(rng.randint(0, 4))]
            inserted += rng.sample(deleted, min(len(deleted), rng.randint(0, 2)))
            inserted += [rng.choice(rows)] if rows and rng.random() < 0.5 else []
            rows += inserted
            weights = np.array([1] * len(inserted) + [-1] * len(deleted), dtype=np.int64)
            result[name] = TableChange(arrow(name, [*inserted, *deleted]), weights)
        return result


def record_output(session: MaintainedQuery) -> list[Batch | None]:
    """Record the output of the last operator, whose rows still have their columns."""
    *_, last = session.circuit
    step, result = last.step, list[Batch | None]()

    def recorded_step(*batches: Batch | None) -> Batch | None:
        result.append(step(*batches))
        return result[-1]

    last.step = recorded_step  # type: ignore[method-assign]
    return result


def weights_of(batch: Batch) -> Counter[object]:
    """The total weight of each distinct row of a batch, with exact bits and ranges."""
    result: Counter[object] = Counter()
    columns = [bits(vector) for _, vector in sorted(batch.columns.items())]
    sets = [tag.sets() for tag in batch.tags]
    for index, weight in enumerate(batch.weights.tolist()):
        range_sets = [
            tuple(one.ranges[one.offsets[index] : one.offsets[index + 1]]) for one in sets
        ]
        result[tuple(column[index] for column in columns), tuple(range_sets)] += weight
    return Counter({row: weight for row, weight in result.items() if weight})


def bits(vector: Vector) -> list[object]:
    """Each value with its bound; doubles as bits."""
    if vector.is_textual:
        return list(vector.to_arrow().to_pylist())
    values = vector.values
    values = values.view(np.int64) if values.dtype == np.float64 else values
    bounds = np.zeros(len(values)) if vector.error is None else vector.error
    rows = zip(values.tolist(), bounds.tolist(), vector.validity().tolist(), strict=True)
    return [(value, bound) if is_valid else None for value, bound, is_valid in rows]


def partners_of(result: Dataflow, tables: Tables) -> ReferencePartners:
    partitions = {s.access: PARTITIONS[s.table] for s in result.sources}
    return ReferencePartners(result, partitions, tables.rows)  # type: ignore[arg-type]


def started(
    result: Dataflow, tables: Tables, *, in_turn: bool = True
) -> tuple[MaintainedQuery, ReferencePartners]:
    """A session filled from the current tables, table by table or by shuffled rows."""
    session, partners = MaintainedQuery(result), partners_of(result, tables)
    session.read_by(partners)
    if in_turn:
        turns = session.turns(lambda table: tables.rng.random())
        session.load_in_turn(
            turns, lambda turn: [arrow(turn.table, tables.rows[turn.table])], partners.pairs
        )
    else:
        rows = [(name, row) for name in result.tables for row in tables.rows[name]]
        tables.rng.shuffle(rows)
        session.load((name, arrow(name, [row])) for name, row in rows)
    return session, partners


def output_rows(output: Sequence[Batch | None], sql: str) -> Counter[object]:
    """The rows of the query that a step inserted and deleted, with their ranges."""
    (batch,) = output or (None,)
    if batch is None or not len(batch):
        return Counter()
    # The circuit ends below operators over sums of doubles, so some columns are missing.
    names = {one.id for one in root_of(sql).attributes} & batch.columns.keys()
    columns = {name: batch.columns[name] for name in names}
    return weights_of(Batch(columns, batch.weights, batch.tags))


def one_case(sql: str, seed: int) -> tuple[int, int]:
    """Returns how many pieces were read, and how many rows changed, over all steps."""
    rng = random.Random(seed)
    size, of_all, has_filter = rng.choice([None, 1, 2]), seed % 2 == 0, (len(sql) + seed) % 4 > 0
    tables = Tables(rng, {t: [row_of(rng, t) for _ in range(rng.randint(0, 14))] for t in CATALOG})
    selected, can_read = selected_by_scalars(sql), readable(sql)

    def random_choice() -> Dataflow:
        reads = {
            one: rng.choice(readers) for one, readers in can_read.items() if rng.random() < 0.6
        }
        by_spark, by_files = (
            [one for one, reader in reads.items() if reader is strategy]
            for strategy in (Strategy.SPARK, Strategy.FILES)
        )
        choices = StoredChoices(by_spark, has_filter, (*selected, *by_files))
        return compiled(sql, choices, size, of_all=of_all)

    in_turn = not selected or rng.random() < 0.5
    twin, _ = started(compiled(sql, KEPT, size, of_all=of_all), tables, in_turn=in_turn)
    session, partners = started(random_choice(), tables, in_turn=in_turn)
    stored, reads, row_changes = Stored(), 0, 0
    for _ in range(STEPS):
        mine, theirs = record_output(session), record_output(twin)
        changes = tables.changed()
        for one in (session, twin):
            one.step(changes, partial(whole_table_of, tables))
        changed_rows = output_rows(mine, sql)
        assert changed_rows == output_rows(theirs, sql), (sql, seed)
        assert counts_of(session) == counts_of(twin), (sql, seed)
        reads += sum(len(one.reads) for one in session.circuit)
        row_changes += len(changed_rows)
        if rng.random() < 0.5:
            session, partners = converted(session, stored, random_choice(), partners)
    return reads, row_changes


def whole_table_of(tables: Tables, source: Source, keys: object) -> list[pa.Table]:
    return [arrow(source.table, tables.rows[source.table]).select(source.scan.table_columns)]


@random_cases(0, 1, 150, also="0 1")
@pytest.mark.parametrize(
    "sql",
    [
        *(
            pytest.param(sql, id=name)
            for name, sql in (*JOINS.items(), *QUERIES.items(), *SCALAR_QUERIES.items())
        ),
        *(
            pytest.param(sql, id=name, marks=pytest.mark.slow)
            for name, sql in (*NARROWED.items(), *WHOLE_SIDES.items())
        ),
    ],
)
def test_read_state_gives_the_same_results(sql: str, cases: Sequence[int]) -> None:
    read, moved = map(sum, zip(*(one_case(sql, seed) for seed in cases), strict=True))
    # One case alone may read nothing, or change no row of the result.
    assert len(cases) == 1 or min(read, moved) > 0


@pytest.mark.parametrize("name", ["beside", "having", "exists", "without"])
def test_sides_over_groups_are_readable_by_group_keys(name: str) -> None:
    assert "join0.right" in readable(QUERIES[name])


PINNED = {
    "SELECT COUNT(*) FROM t JOIN u ON t.g = u.g": "it has one group",
    "SELECT t.g, SUM(f) FROM t JOIN u ON t.g = u.g GROUP BY t.g": "sums of doubles",
    "SELECT t.g, AVG(x) FROM t JOIN u ON t.g = u.g GROUP BY t.g": "sums of doubles",
    "SELECT t.g, VAR_POP(x) FROM t JOIN u ON t.g = u.g GROUP BY t.g": "sums of doubles",
    "SELECT t.g, MIN_BY(f, x) FROM t JOIN u ON t.g = u.g GROUP BY t.g": "ties between them",
    "SELECT g, COUNT(*) FROM (SELECT g, SUM(x) OVER (PARTITION BY g) k FROM t) "
    "WHERE k < 3 GROUP BY g": "computed",
}


RECORDED = StoredChoices(from_files=("aggregate0", "aggregate1"))


@pytest.mark.parametrize("sql", PINNED)
def test_pinned_groups_ignore_recorded_choices(sql: str) -> None:
    result = compiled(sql, RECORDED)
    last = result.groupings[-1]
    assert PINNED[sql] in last.reason
    assert (last.strategy, last.readers) == (Strategy.INDEX, ())
    assert last.side in {one.piece for one in result.circuit if isinstance(one, AggregateOperator)}


WHOLE = (
    "SELECT x + y, COUNT(*) FROM t JOIN u ON t.g = u.g GROUP BY x + y",
    "SELECT g, COUNT(*) FROM (SELECT g FROM t UNION ALL SELECT g FROM u) GROUP BY g",
    "SELECT k, COUNT(*) FROM (SELECT t.g, COUNT(*) k FROM t JOIN u ON t.g = u.g GROUP BY t.g) "
    "GROUP BY k",
    "SELECT u.g, COUNT(*) FROM t LEFT JOIN u ON t.g = u.g GROUP BY u.g",
)


@pytest.mark.parametrize("sql", WHOLE)
def test_groups_without_narrowing_keys_are_read_only_if_recorded(sql: str) -> None:
    last = compiled(sql, RECORDED).groupings[-1]
    assert (last.strategy, last.is_whole) == (Strategy.FILES, True)
    for requested in (None, Strategy.FILES):
        chooser = ChooseBySize(requested, lambda table: 1_000_000, from_files=1, fits=1)
        last = compiled(sql, chooser).groupings[-1]
        assert (last.strategy, last.readers) == (Strategy.INDEX, (Strategy.FILES,))


def test_groups_that_a_pass_may_fill_are_kept_at_first() -> None:
    facts = SideFacts("aggregate0", ("t",), 100, (Strategy.FILES,), is_grouping=True)
    least = ChooseBySize(Strategy.FILES, {"t": 1}.__getitem__, is_least=True)
    assert least.choose(facts).strategy is Strategy.FILES
    assert least.choose(replace(facts, is_passed=True)).strategy is Strategy.INDEX
    sides_alone = ChooseBySize(Strategy.FILES, {"t": 1}.__getitem__)
    assert sides_alone.choose(facts).strategy is Strategy.INDEX


@pytest.mark.parametrize("name", SCALAR_QUERIES)
def test_rows_selected_by_scalars_are_not_kept(name: str) -> None:
    result = compiled(SCALAR_QUERIES[name], TO_FILL)
    selected = [one for one in result.sides if one.side.startswith("scalars")]
    assert {one.strategy for one in selected} == {Strategy.FILES}
    read = {side.name for join in result.distant for side in join.sides}
    assert {one.side for one in selected} == read
    # A budget has no choice here.
    assert not any(one.readers for one in selected)


KEPT_SCALARS = {
    "each_group": "SELECT g FROM (SELECT g, MAX(x) m FROM t GROUP BY g) "
    "WHERE m = (SELECT MAX(x) FROM t)",
    "several": "SELECT t.x FROM t JOIN u ON t.g = u.g WHERE t.x + u.y > (SELECT MAX(x) FROM t)",
    "first_row": "SELECT x FROM t WHERE x IN (SELECT x FROM t ORDER BY x DESC LIMIT 1)",
    "any_number": "SELECT x FROM t WHERE x IN (SELECT y FROM u)",
    "by_group": "SELECT x FROM t WHERE x = (SELECT MAX(y) FROM u WHERE u.g = t.g)",
}


@pytest.mark.parametrize("name", KEPT_SCALARS)
def test_other_subqueries_are_joined(name: str) -> None:
    result = compiled(KEPT_SCALARS[name], TO_FILL)
    assert not any(isinstance(one, SelectByScalars) for one in result.circuit)


def test_scalars_are_loaded_before_their_rows() -> None:
    nested = compiled(SCALAR_QUERIES["nested"], TO_FILL)
    turns = [[nested.sources[index].access for index in turn] for turn in nested.turns()]
    assert turns == [["t#3"], ["t#2"], ["t#1"]]
    kept = compiled(SCALAR_QUERIES["nested"])
    assert [len(turn) for turn in kept.turns()] == [3]


@pytest.mark.parametrize("sql", [*NARROWED.values(), *WHOLE_SIDES.values()])
def test_unnarrowed_state_is_rebuilt(sql: str) -> None:
    modes = {one.mode for one in compiled(sql, StoredChoices(from_files=readable(sql))).pieces}
    assert ("rebuilt" in modes) == (sql in WHOLE_SIDES.values())
    assert modes >= ({"rebuilt"} if sql in WHOLE_SIDES.values() else {"read"})
