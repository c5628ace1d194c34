"""A short hash of what a case measures, for records: what the labels of its cells leave out.

Law: two cells of one figure with equal labels have one fingerprint exactly where they had the same
query, partition, options and data; how often and on which machine counts no more than the names of
files. Options whose values stand in the labels are left out, so a size more changes no other cell.
Out of scope: what a comparison makes of it (`bench.compare`).
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from impctl.data.schema import name_parts
from impctl.measure.ground import words_of
from impctl.workload.models import Lineage, PartitionSpec, QuerySpec

if TYPE_CHECKING:
    from impctl.measure.figures import CaseSpec
    from impctl.measure.plan import PlannedFigure, PlannedRun


def case_fingerprint(planned: PlannedRun, figure: PlannedFigure, case: CaseSpec) -> str:
    """Of one case of one figure, as this run measures it."""
    workload = planned.desk.workload
    query = workload.queries[case.query]
    facts = {
        "measure": figure.spec.measure,
        "options": _options(figure),
        "query": _query_facts(query),
        "partitions": [_partition_facts(one) for one in workload.partitions if _is_of(one, query)],
        "data": list(planned.data_of(case)),
    }
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _options(figure: PlannedFigure) -> dict[str, object]:
    labelled, options = figure.measure.labelled, figure.spec.options
    return {name: value for name, value in options.items() if name not in labelled}


def _query_facts(query: QuerySpec) -> dict[str, object]:
    facts: dict[str, object] = {
        "sql": " ".join(query.sql.split()),
        "sketch": dict(query.sketch),
        "params": dict(query.params),
        "settings": [query.policy, query.maintain, query.join, query.buffer],
    }
    # Records from before the setting have the same fingerprint.
    return facts if query.lineage is Lineage.ALL else {**facts, "lineage": query.lineage}


def _partition_facts(partition: PartitionSpec) -> list[object]:
    return [partition.table, partition.column, partition.boundaries, partition.ranges]


def _is_of(partition: PartitionSpec, query: QuerySpec) -> bool:
    """May the query have its sketch on this partition?"""
    if query.sketch:
        return query.sketch.get(partition.table) == partition.column
    own = name_parts(partition.table) or (partition.table,)
    return own[-1].lower() in words_of(query.sql)
