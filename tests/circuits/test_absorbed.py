"""Changes that reach the circuit as partial aggregates mean the same as their rows.

Random queries and changes: now and then a change is grouped by the slow reference, as Spark would,
and absorbed; after each the sketch covers the accurate one and equals it unless a sum was too
close to call.
By hand: `IMPCTL_FUZZ=10` and `-m "slow or not slow"` for 500 cases.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from impctl.compile.builder import Partials
from impctl.compile.flows import FRAGMENT_COLUMN
from impctl.compile.session import GroupedRows, MaintainedQuery, TableChange
from impctl.data.vector import from_arrow
from impctl.errors import NotExactError
from impctl.sketch.partition import RangePartition
from impctl.tables.schema import arrow_type
from tests.circuits.test_against_reference import judge
from tests.support.random_cases import random_cases, seen_in
from tests.support.random_circuits import random_circuit
from tests.support.random_queries import Row, random_change, random_row, table_of
from tests.support.reference_expr import ReferenceLimit
from tests.support.reference_plan import evaluate


def fragments_of(rows: list[Row], partition: RangePartition) -> np.ndarray:
    column = from_arrow(table_of(rows).column(partition.attribute), partition.type)
    return partition.fragments_of(column)


def grouped(pass_: Partials, rows: list[Row], partition: RangePartition) -> pa.Table:
    """The pass's result by the slow reference, in Spark's types."""
    fragments = fragments_of(rows, partition)
    tagged = [{**row, FRAGMENT_COLUMN: int(f)} for row, f in zip(rows, fragments, strict=True)]
    result = evaluate(pass_.plan, {"t": tagged})
    kinds = [arrow_type(kind) for kind in pass_.key_types]
    kinds += [pa.int32()] if pass_.has_fragment else []
    kinds += [arrow_type(kind) for _, kind in pass_.columns]
    arrays = [pa.array([row[at] for row in result], kind) for at, kind in enumerate(kinds)]
    return pa.table(arrays, [f"c{at}" for at in range(len(arrays))])


def absorbed(
    session: MaintainedQuery, partition: RangePartition, came: list[Row], went: list[Row]
) -> bool:
    """Absorb the change; whether the pass told the rows of each range by itself."""
    chain = session.compiled.chain
    assert chain is not None
    pass_ = chain.partials()
    tables = [grouped(pass_, rows, partition) for rows in (came, went)]
    if any(pass_.needs_specials(table) for table in tables):
        pass_ = chain.partials(counts_specials=True)
        tables = [grouped(pass_, rows, partition) for rows in (came, went)]
    parts = []
    for rows, table in zip((came, went), tables, strict=True):
        counts = np.bincount(fragments_of(rows, partition), minlength=partition.size)
        told = pass_.rows_told_by(table, partition)
        assert told is None or told.tolist() == counts.tolist()
        parts.append(GroupedRows(table, counts.astype(np.int64)))
    session.absorb(pass_, *parts, partition)
    return told is not None


def one_case(seed: int, seen: Counter[str]) -> None:
    rng = random.Random(seed)
    case = random_circuit(rng)
    if case is None or case.compiled.chain is None:
        return
    label = f"case {seed}: {case.query.sql}"
    partition = case.partition
    session = MaintainedQuery(case.compiled)
    rows = [random_row(rng) for _ in range(rng.randint(0, 9))]
    try:
        session.load([("t", table_of(rows))])
        for _ in range(5):
            change, weights = random_change(rng, rows)
            came = [row for row, weight in zip(change, weights, strict=True) if weight > 0]
            went = [row for row, weight in zip(change, weights, strict=True) if weight < 0]
            if rng.random() < 0.7:
                seen["told"] += absorbed(session, partition, came, went)
                seen["absorbed"] += 1
            else:
                signs = np.array(weights, dtype=np.int64)
                session.step({"t": TableChange(table_of(change), signs)})
            judge(session, case.query, rows, partition, case.verdict.safe, seen, label)
            counts = np.bincount(fragments_of(rows, partition), minlength=partition.size)
            assert session.range_rows.counts(partition).tolist() == counts.tolist()
    except (ReferenceLimit, NotExactError):
        # Doubles too close to call below a grouping: such a run ends, and stores nothing.
        return


@random_cases(0, 40, 200, also="0-2 4 7 10 11 31 38 40 44 49")
def test_absorbed_changes_cover_and_equal(cases: Sequence[int]) -> None:
    seen = seen_in(cases, one_case)
    assert seen["absorbed"] > 2 * len(cases), seen
    assert seen["exact"] > 3 * len(cases), seen
    assert len(cases) < seen["told"] < seen["absorbed"], seen
