"""Use case: is the workload file right, and which of its queries can have a sketch?

Law: every query is looked at, whatever is wrong with another; nothing is written, Spark is not
started. A query that can have no sketch is a finding, not a failure; one that cannot be read is.
Out of scope: the details of one query (`app.explain`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from impctl.aliases import QueryName
from impctl.app.capturing.chosen_way import capture_way
from impctl.app.preparing.choice import choose, judge_candidates
from impctl.app.preparing.prepared import prepare
from impctl.app.results.explanations import CheckResult
from impctl.app.results.results import Failure, Outcome
from impctl.app.workbench.isolated import Isolated
from impctl.app.workbench.workbench import Workbench
from impctl.errors import UnsafeSketchError
from impctl.plan.safety.judging import Judges
from impctl.workload.json_schema import workload_json_schema
from impctl.workload.models import QuerySpec


def check(desk: Workbench, queries: Sequence[QueryName] | None = None) -> Outcome:
    """One result per query named (default: all)."""
    results: list[CheckResult] = []
    failures: list[Failure] = []
    for spec in desk.queries(queries):
        with Isolated(failures, spec):
            results.append(_checked(desk, spec))
    return Outcome(tuple(results), (), tuple(failures))


def schema_text() -> str:
    """The JSON Schema of the workload file, for editors."""
    return json.dumps(workload_json_schema(), indent=2) + "\n"


def _checked(desk: Workbench, spec: QuerySpec) -> CheckResult:
    prepared = prepare(desk, spec)
    judges = Judges()
    try:
        chosen = choose(desk, prepared, judges=judges)
    except UnsafeSketchError as unsafe:
        if spec.sketch:
            raise
        judged = judge_candidates(desk, prepared, judges)
        return CheckResult(spec.name, False, None, unsafe.message, judged)
    way = capture_way(desk.tables, prepared, chosen.verdict, chosen.partitions(desk, prepared))
    return CheckResult(spec.name, True, way.mode.value, way.reason, chosen.candidates)
