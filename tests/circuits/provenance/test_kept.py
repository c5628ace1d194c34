"""What is told of kept derivations against what is told of the tables themselves, on small ones.

Of every row of a query: how many rows of tables derive it at least, how many take part, and that
those told derive it. Then what would go without some rows, against the query over the others.
Run where `oxidd` is installed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

import pyarrow as pa
import pytest

from impctl.compile.compile import compile_plan
from impctl.compile.provenance.absorbed import (
    AbsorbedRows,
    derivations_of,
    leaves_of,
    numbered,
    rows_without,
    smallest_by_functions,
)
from impctl.compile.provenance.derivation import Claim, Lineage, derivation_of
from impctl.compile.provenance.program import Made, made_rows
from impctl.compile.session import MaintainedQuery
from impctl.data.schema import DOUBLE, Column, Schema
from impctl.engine.fixpoint.absorption import Absorbs, Ship
from impctl.plan.nodes import Fixpoint, Plan, nodes_of, scans_of
from impctl.rules.optimize import core_of
from impctl.sketch.partition import RangePartition
from impctl.sql.statement import parse_query
from tests.circuits.provenance.test_absorbed import compiled
from tests.circuits.test_recursion import COLUMNS, DRAWN, Case, Row, case_of
from tests.support.arrow_rows import arrow_rows
from tests.support.diagrams import with_diagrams
from tests.support.random_cases import random_seeds
from tests.support.reference_plan import evaluate

pytestmark = with_diagrams
TRACED = (
    "reach",
    "right-linear",
    "closure",
    "one source of all",
    "same generation",
    "branches",
    "levels",
    "IN",
    "a constant",
    "constants",
)
SHIPS = [Absorbs(ship, 100_000) for ship in Ship]
ships = pytest.mark.parametrize("absorbs", SHIPS, ids=[str(one.ship) for one in SHIPS])
Tables = Mapping[str, list[Row]]


def stepped(
    name: str, absorbs: Absorbs, rng: random.Random
) -> tuple[Case, Plan, AbsorbedRows, Tables]:
    """A query after some batches, its fixpoint's plan, and what it was fed with."""
    case = case_of(name)
    query = MaintainedQuery(compiled(case, absorbs))
    tables: dict[str, list[Row]] = {table: [] for table in COLUMNS}
    query.load(DRAWN.whole(tables))
    # Whole functions of the same generation soon take more room than there is.
    most = 3 if name == "same generation" else 6
    for _ in range(4):
        changes = {
            table: DRAWN.change_of(
                table, *DRAWN.some_change(rng, table, rows, most if table == "links" else 2)
            )
            for table, rows in tables.items()
        }
        query.step(changes)
    (absorbed,) = query.compiled.absorbed
    node = next(one for one in nodes_of(case.core) if isinstance(one, Fixpoint))
    return case, node, absorbed, tables


def from_tables(node: Plan, tables: Tables) -> tuple[Made, int]:
    """All makings from the tables, each copy a row of its own."""
    own, first = {}, 0
    for table, rows in tables.items():
        own[table] = numbered(arrow_rows(DRAWN.catalog[table], rows), first)
        first += len(rows)
    result = {scan.access: own[scan.table] for scan in scans_of(node)}
    return made_rows(node, result, first), first


def rows_of(made: Made) -> dict[tuple[object, ...], int]:
    columns = [column.to_arrow().to_pylist() for column in made.columns]
    return dict(zip(zip(*columns, strict=True), made.numbers.tolist(), strict=True))


def over(node: Plan, tables: Mapping[str, Sequence[Row]]) -> Counter[tuple[object, ...]]:
    return Counter(evaluate(node, tables))


@ships
@pytest.mark.parametrize("name", TRACED)
@random_seeds(1, 2, 40)
def test_what_derives_a_row_is_as_much_as_the_tables_tell(
    name: str, absorbs: Absorbs, seed: int
) -> None:
    rng = random.Random(f"kept {name} {seed}")
    _, node, absorbed, tables = stepped(name, absorbs, rng)
    made, first = from_tables(node, tables)
    told = derivations_of(absorbed)
    assert told is not None
    kept, known = told
    held = made_rows(node, {}, kept.first, known=known)
    smallest = partial(smallest_by_functions, first=kept.first, absorbs=absorbs)
    entries = {
        number: (table, dict(zip(one.columns, row.values(), strict=True)))
        for table, one in kept.tables.items()
        for number, row in zip(one.numbers, one.rows.to_pylist(), strict=True)
    }
    copies = {
        number: count
        for one in kept.tables.values()
        for number, count in zip(one.numbers, one.copies, strict=True)
    }
    expected = rows_of(made)
    assert rows_of(held).keys() == expected.keys()
    for row, number in rows_of(held).items():
        wanted = derivation_of(made.makings, expected[row], first)
        own = derivation_of(
            held.makings,
            number,
            kept.first,
            smallest=smallest if absorbs.ship is Ship.EAGER else None,
        )
        assert own.claim is wanted.claim is Claim.SMALLEST
        assert len(own.rows) == len(wanted.rows), row
        leaves = Lineage(held.makings, number, kept.first).leaves.tolist()
        assert sum(copies[leaf] for leaf in leaves) == wanted.lineage
        some: dict[str, list[Row]] = {table: [] for table in COLUMNS}
        for leaf in own.rows:
            table, values = entries[leaf]
            some[table].append(dict.fromkeys(COLUMNS[table]) | values)
        assert row in over(node, some)


@ships
@pytest.mark.parametrize("name", TRACED)
@random_seeds(1, 2, 40)
def test_what_would_be_left_is_what_the_rest_derives(
    name: str, absorbs: Absorbs, seed: int
) -> None:
    rng = random.Random(f"without {name} {seed}")
    _, node, absorbed, tables = stepped(name, absorbs, rng)
    source = rng.randrange(6)
    rest = {table: [row for row in rows if row["a"] != source] for table, rows in tables.items()}
    gone = []
    for at, of in enumerate(absorbed.of):
        if of is not None:
            rows, numbers, _ = leaves_of(absorbed, at)
            values = rows.column("a").to_pylist()
            gone += [n for n, value in zip(numbers, values, strict=True) if value == source]
    whole, left = rows_without(absorbed, gone)
    names = [column for column, _ in absorbed.operator.columns]
    for batch, expected in ((whole, tables), (left, rest)):
        columns = [batch.columns[name].to_arrow().to_pylist() for name in names if len(batch)]
        assert Counter(zip(*columns, strict=True)) == over(node, expected)


def test_groups_are_no_rows_of_tables() -> None:
    for name in ("groups in the step", "a group as base"):
        _, _, absorbed, _ = stepped(name, SHIPS[0], random.Random(name))
        assert derivations_of(absorbed) is None


def test_rows_that_are_read_by_other_columns_cannot_be_told_to_be_one() -> None:
    """The base reads a column that the step does not."""
    _, _, absorbed, _ = stepped("reach", SHIPS[0], random.Random(1))
    assert derivations_of(absorbed) is not None
    seeds, links = absorbed.of
    assert seeds is not None
    assert links is not None
    other = AbsorbedRows(
        absorbed.fixpoint, absorbed.operator, (type(seeds)("links", ("a",)), links)
    )
    assert derivations_of(other) is None


def test_a_row_with_nan_is_one_however_many_parts_read_it() -> None:
    """The base and the step read the same table: NaN, which is no equal of itself, is in it."""
    sql = (
        "WITH RECURSIVE r(n) AS (SELECT b FROM links WHERE a = 1"
        " UNION SELECT l.b FROM r JOIN links l ON r.n = l.a) SELECT n FROM r"
    )
    schema = Schema((Column("a", DOUBLE), Column("b", DOUBLE)))
    core = core_of(parse_query(sql, {"links": schema}).root)
    ranges = RangePartition("links", "a", DOUBLE, (1.5,))
    sketched = {scan.access: ranges for scan in scans_of(core)}
    query = MaintainedQuery(compile_plan(core, sketched, {}, absorbs=SHIPS[0]))
    query.load([("links", pa.table({"a": [1.0, 1.0], "b": [float("nan"), 2.0]}))])
    (absorbed,) = query.compiled.absorbed
    told = derivations_of(absorbed)
    assert told is not None
    links = told[0].tables["links"]
    assert (len(links.numbers), list(links.copies), len(links.rows)) == (2, [1, 1], 2)
