"""Check whether the workload file is right, and which queries can have a sketch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from impctl.errors import ImpctlError, UnsafeSketchError
from impctl.safety.judge import Judges
from impctl.service.capture_plan import choose_sketches, judge_candidates, lineage_warnings
from impctl.service.context import Context, Isolated, is_refused
from impctl.service.explain import answer_entry, extra_warnings
from impctl.service.maintenance_plan import plan_after_capture
from impctl.service.prepare import prepare
from impctl.service.query import who_answers
from impctl.service.results import AnsweredEntry, CandidateEntry, CheckResult, Failure, Outcome
from impctl.workload.schema import workload_json_schema

if TYPE_CHECKING:
    from impctl.types import QueryName
    from impctl.workload.models import QuerySpec


# Law: checks every query, whatever is wrong with another; writes nothing and does not start Spark.
# A query that can have no sketch is a finding, and a failure only with `strict`; an invalid one is
# a failure.


def check(
    ctx: Context, queries: Sequence[QueryName] | None = None, *, strict: bool = False
) -> Outcome:
    """Check each query (default: all); `strict`: every one must have a sketch."""
    results: list[CheckResult] = []
    warnings: list[str] = []
    failures: list[Failure] = []
    absorbed: list[QueryName] = []
    for spec in ctx.queries(queries):
        with Isolated(failures, spec):
            result, refusal = _checked(ctx, spec, warnings)
            results.append(result)
            if result.supported and spec.provenance is not None:
                absorbed.append(spec.name)
            if refusal is not None and strict:
                raise refusal
    warnings += extra_warnings(absorbed)
    old = [spec for spec in ctx.workload.partitions if spec.is_old_key]
    if old:
        warnings.append(f"{old[0].location}: the key `fragments` is now called `ranges`; rename it")
    return Outcome(tuple(results), tuple(warnings), tuple(failures))


def schema_text() -> str:
    """The JSON Schema of the workload file, for editors."""
    return json.dumps(workload_json_schema(), indent=2) + "\n"


def _checked(
    ctx: Context, spec: QuerySpec, warnings: list[str]
) -> tuple[CheckResult, ImpctlError | None]:
    if not spec.is_sketched:
        return replace(CheckResult(spec.name), answered=_unsketched(ctx, spec)), None
    judges = Judges()
    judged: tuple[CandidateEntry, ...] = ()
    answered: AnsweredEntry | None = None
    try:
        prepared = prepare(ctx, spec)
        answered = who_answers(ctx, prepared)
        try:
            chosen = choose_sketches(ctx, prepared, judges=judges)
        except UnsafeSketchError:
            judged = judge_candidates(ctx, prepared, judges)
            raise
    except ImpctlError as error:
        if not is_refused(spec, error):
            raise
        result = CheckResult(
            spec.name,
            False,
            None,
            error.message,
            judged,
            hint=error.hint,
            answer=answer_entry(spec, None, None),
            place=error.location,
            answered=answered,
        )
        return result, error
    plan = plan_after_capture(ctx, chosen.of(ctx, prepared), reads=False)
    warnings += lineage_warnings(ctx.tables, prepared, chosen)
    result = CheckResult(
        spec.name,
        True,
        plan.mode.value,
        plan.reason,
        chosen.candidates,
        answer=answer_entry(spec, plan, None),
        answered=answered,
    )
    return result, None


def _unsketched(ctx: Context, spec: QuerySpec) -> AnsweredEntry | None:
    try:
        return who_answers(ctx, prepare(ctx, spec))
    except ImpctlError as error:
        if not is_refused(spec, error):
            raise
    return None
