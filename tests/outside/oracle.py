"""What a stored sketch must hold, found in the table by deltalake's own scan and plain Python.

Law: nothing of the engine, the store or impctl's readers takes part; only the query's text is read
by impctl's parser, and the ranges are those stored with the sketch.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from impctl.plan.nodes import scans_of
from impctl.sql.statement import parse_query
from impctl.store.records import StoredQuery
from impctl.tables.schema import read_schema
from tests.plan.trials import accurate_sketches, instances_of
from tests.support.reference_plan import annotate, bag, evaluate


def check_sound(stored: StoredQuery, sql: str, path: Path) -> int:
    """The sketches cover, and the query over them gives what it gives over the table.

    Returns the slack: fragments beyond the accurate ones.
    """
    delta = DeltaTable(str(path), version=stored.versions["t"])
    schema = read_schema(delta.schema().to_json(), is_mapped=False).schema
    root = parse_query(sql, {"t": schema}).root
    names = list(dict.fromkeys(a.name for scan in scans_of(root) for a in scan.attributes))
    names += [s.attribute for s in stored.sketches if s.attribute not in names]
    rows = pa.table(delta.scan(columns=names)).to_pylist()
    # To the Delta protocol, and so to Spark, an empty partition value is NULL; not to deltalake.
    empty = delta.metadata().partition_columns
    tables = {
        "t": [{n: None if n in empty and row[n] == "" else row[n] for n in names} for row in rows]
    }
    partitions = {s.access: (s.attribute, tuple(s.partition.boundaries)) for s in stored.sketches}
    accurate = accurate_sketches(annotate(root, tables), root, tables, partitions)
    held = {s.access: set(s.fragments.ids) for s in stored.sketches}
    assert held, "a query without a sketch proves nothing"
    for access, wanted in accurate.items():
        assert wanted <= held[access], (access, wanted, held[access])
    seen = instances_of(root, tables, partitions, held)
    assert bag(evaluate(root, tables, seen)) == bag(evaluate(root, tables))
    return sum(len(held[access] - wanted) for access, wanted in accurate.items())
