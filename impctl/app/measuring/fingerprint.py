"""A short hash of what a case measures, for records: what the labels of its cells leave out.

Law: two cells of one suite, figure and labels have one fingerprint exactly where they had the same
query, partition, options and data; how often and on which machine counts no more than the names of
files. Options whose values stand in the labels are left out, so a size more changes no other cell.
Out of scope: what a comparison makes of it (`bench.compare`).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace

from impctl.app.measuring.ground import words_of
from impctl.app.measuring.plan import PlannedSuite, data_read
from impctl.app.measuring.registry import MEASURES
from impctl.data.identifiers import name_parts
from impctl.workload.models import Lineage, PartitionSpec, QuerySpec
from impctl.workload.suite_models import CaseSpec, FigureSpec


def case_fingerprint(planned: PlannedSuite, figure: FigureSpec, case: CaseSpec) -> str:
    """Of one case of one figure, as this run measures it."""
    workload = planned.suite.workload
    query = workload.queries[case.query]
    specs = data_read(planned.suite, [replace(figure, cases=(case,))], planned.folder)
    read = {spec.name for spec in specs}
    facts = {
        "measure": figure.measure,
        "options": _options(figure),
        "query": _query_facts(query),
        "partitions": [_partition_facts(one) for one in workload.partitions if _is_of(one, query)],
        # A source is told by the rows of its tables: its place and time differ by machine.
        "data": [{**asdict(one), "source": None} for one in planned.data if one.name in read],
    }
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _options(figure: FigureSpec) -> dict[str, object]:
    labelled = MEASURES[figure.measure].labelled
    return {name: value for name, value in figure.options.items() if name not in labelled}


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
