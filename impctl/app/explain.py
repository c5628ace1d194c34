"""Use case: what would be done with a query, and why, before anything runs.

Law: reads metadata only, writes nothing, never starts Spark; every operator says how it would be
maintained, every attribute whether it is safe, and what is refused says where in the SQL it stands.
Out of scope: doing it (`app.capture`, `app.maintain`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from impctl.aliases import QueryName
from impctl.app.choice import choose, judge_candidates
from impctl.app.isolated import Isolated
from impctl.app.prepared import PreparedQuery, prepare
from impctl.app.restored import chosen_way
from impctl.app.results import ExplainResult, Failure, Outcome, PlanEntry
from impctl.app.workbench import Workbench
from impctl.errors import UnsafeSketchError
from impctl.maintain.way import Mode, Way
from impctl.plan.explain import PlanLine, describe
from impctl.workload.models import QuerySpec


def explain(bench: Workbench, queries: Sequence[QueryName] | None) -> Outcome:
    """One result per query named (default: all)."""
    results: list[ExplainResult] = []
    failures: list[Failure] = []
    for spec in bench.queries(queries):
        with Isolated(failures, spec):
            results.append(_explained(bench, spec))
    return Outcome(tuple(results), (), tuple(failures))


def _explained(bench: Workbench, spec: QuerySpec) -> ExplainResult:
    prepared = prepare(bench, spec)
    tree = describe(prepared.root)
    policy = str(bench.policy(spec))
    try:
        chosen = choose(bench, prepared)
    except UnsafeSketchError as unsafe:
        plan = tuple(_lines(tree, prepared, None))
        judged = judge_candidates(bench, prepared)
        return ExplainResult(spec.name, "none", unsafe.message, policy, plan, judged)
    way = chosen_way(prepared, chosen.verdict, chosen.partitions(bench, prepared))
    plan = tuple(_lines(tree, prepared, way))
    return ExplainResult(spec.name, way.mode.value, way.reason, policy, plan, chosen.candidates)


def _lines(
    line: PlanLine, prepared: PreparedQuery, way: Way | None, depth: int = 0
) -> Iterator[PlanEntry]:
    how, why = _how(line, way)
    yield PlanEntry(depth, line.operator, line.detail, how, why, prepared.place(line.span))
    for child in line.children:
        yield from _lines(child, prepared, way, depth + 1)


def _how(line: PlanLine, way: Way | None) -> tuple[str, str]:
    """How an operator is maintained; the one that blocks exact maintenance says why."""
    if way is None:
        return "", ""
    if way.mode is Mode.EXACT:
        return "exact", ""
    blocks = (
        way.span is not None
        and line.span is not None
        and (line.span.start <= way.span.start and way.span.end <= line.span.end)
    )
    return way.mode.value, way.reason if blocks and not _inner_blocks(line, way) else ""


def _inner_blocks(line: PlanLine, way: Way) -> bool:
    return any(_how(child, way)[1] for child in line.children)
