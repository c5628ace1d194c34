"""Use case: what would be done with a query, and why, before anything runs.

Law: reads metadata only, writes nothing, never starts Spark; every operator says how it would be
maintained, every attribute whether it is safe, and what is refused says where in the SQL it stands.
Out of scope: doing it (`app.capture`, `app.maintain`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from impctl.aliases import QueryName
from impctl.app.choice import choose, judge_candidates
from impctl.app.explanations import ExplainResult, JoinSideEntry, PlanEntry
from impctl.app.isolated import Isolated
from impctl.app.prepared import PreparedQuery, prepare
from impctl.app.restored import capture_way
from impctl.app.results import Failure, Outcome
from impctl.app.workbench import Workbench
from impctl.errors import UnsafeSketchError
from impctl.expr.nodes import Span, walk
from impctl.maintain.strategy import SideChoice
from impctl.maintain.way import Way
from impctl.plan.explain import PlanLine, describe
from impctl.plan.nodes import Aggregate, Plan, Project, Select, nodes_of
from impctl.sketch.mode import Mode
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
    way = capture_way(bench, prepared, chosen.verdict, chosen.partitions(bench, prepared))
    plan = tuple(_lines(tree, prepared, way))
    sides = () if way.compiled is None else tuple(map(_side, way.compiled.sides))
    candidates = chosen.candidates
    return ExplainResult(spec.name, way.mode.value, way.reason, policy, plan, candidates, sides)


def _side(choice: SideChoice) -> JoinSideEntry:
    return JoinSideEntry(
        choice.side,
        choice.tables,
        choice.strategy.value,
        choice.reason,
        choice.rows,
        choice.bytes,
    )


def _lines(tree: PlanLine, prepared: PreparedQuery, way: Way | None) -> Iterator[PlanEntry]:
    """The plan line by line, in the order of `nodes_of`, the blocking operator with its reason."""
    blocking = None if way is None or way.mode is Mode.EXACT else _blocking(prepared, way.span)
    how = "" if way is None else way.mode.value
    for position, (depth, line) in enumerate(_flat(tree, 0)):
        why = way.reason if way is not None and position == blocking else ""
        yield PlanEntry(depth, line.operator, line.detail, how, why, prepared.place(line.span))


def _flat(line: PlanLine, depth: int) -> Iterator[tuple[int, PlanLine]]:
    yield depth, line
    for child in line.children:
        yield from _flat(child, depth + 1)


def _blocking(prepared: PreparedQuery, span: Span | None) -> int:
    """Position of the lowest node with the blocking part in its expressions; else the root."""
    found = [
        position
        for position, node in enumerate(nodes_of(prepared.root))
        if span is not None and any(_holds(own, span) for own in _own_spans(node))
    ]
    return found[-1] if found else 0


def _own_spans(node: Plan) -> Iterator[Span | None]:
    yield node.span
    match node:
        case Select():
            yield from (part.span for part in walk(node.predicate))
        case Project():
            yield from (part.span for out in node.outputs for part in walk(out.expr))
        case Aggregate():
            yield from (part.span for key in node.keys for part in walk(key.expr))
            yield from (output.call.span for output in node.aggregates)
        case _:
            return


def _holds(own: Span | None, span: Span) -> bool:
    return own is not None and own.start <= span.start and span.end <= own.end
